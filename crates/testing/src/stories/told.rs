//! The stories. Most of them are situations in which it is easy to end with something that is not true.

use std::time::Duration;

use serde_json::{Value, json};

use super::Step::{Apply, Delete, Pass, Patch, Undo, Until};
use super::Story;
use super::objects::{
    always_healthy, config, daemon_set, deployment, in_wave, policy, reads_one_key, stateful_set, with_new_code,
};

macro_rules! stories {
    ($($name:ident)*) => {
        /// All stories, by their names.
        pub fn all() -> Vec<(&'static str, Story)> {
            vec![$((stringify!($name), $name())),*]
        }
    };
}

stories! {
    a_good_change_reaches_everybody
    a_crash_is_taken_back
    who_never_gets_ready_is_taken_back
    a_stateful_set_goes_back_and_its_repair_goes_out
    a_daemon_set_follows
    a_daemon_set_that_crashes_goes_back
    a_crash_is_taken_back_also_where_all_pods_go_before_new_ones_come
    a_later_wave_keeps_what_it_has
    a_canary_waits_and_goes_on
    scaling_does_not_change_a_canary
    another_strategy_ends_a_canary
    a_policy_without_its_canary_lets_the_rest_follow
    who_opts_out_and_in_again_in_the_middle_goes_on
    a_deleted_release_goes_on
    a_deleted_versioned_config_goes_on
    an_undo_of_the_only_consumer_is_no_success
    who_is_recreated_is_judged
    who_sleeps_is_not_judged
    new_code_in_the_middle_keeps_the_config
    code_and_config_that_fail_together_are_left_to_a_person
    what_was_left_to_a_person_is_taken_back_with_the_change
    what_was_left_to_a_person_is_taken_back_although_its_release_is_gone
    who_changed_its_code_goes_back_with_the_config
    who_opts_out_runs_the_config_itself_with_its_next_code
    a_newer_change_takes_the_place
    one_bad_config_of_two_takes_both_back_and_its_repair_brings_both
    a_person_goes_back_to_an_earlier_version
    a_person_aborts
    who_uses_no_changed_key_stays_as_it_is
    what_breaks_a_rule_moves_nobody
}

/// Stories that nobody would wait for: they are played where time costs nothing.
pub fn for_hours() -> Vec<(&'static str, Story)> {
    vec![("a_canary_that_is_paused_stays_so", a_canary_that_is_paused_stays_so())]
}

/// Longer than any story.
const LONG_BAKE: u32 = 600;

fn change(color: &str, behavior: &str) -> super::Step {
    Patch("configmap/app", json!({"data": {"COLOR": color, "BEHAVIOR": behavior}}))
}

fn promote() -> super::Step {
    Patch("release/configmap-app-1", json!({"spec": {"promote": true}}))
}

/// A config `app` and these workloads, by a policy with this in it besides.
fn given(besides: &Value, workloads: Vec<Value>) -> Vec<Value> {
    [vec![policy(besides), config("app", "blue", "healthy")], workloads].concat()
}

fn web(replicas: u32) -> Value {
    deployment("web", replicas, &["app"])
}

fn a_good_change_reaches_everybody() -> Story {
    Story {
        given: given(&json!({}), vec![web(2)]),
        steps: vec![Until("workload web 1.0.0 1.0.0"), change("green", "healthy")],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload web r2 r2",
    }
}

fn a_crash_is_taken_back() -> Story {
    Story {
        given: given(&json!({}), vec![web(2)]),
        steps: vec![Until("workload web 1.0.0 1.0.0"), change("red", "crash")],
        ends: "release configmap-app-1 RolledBack
               config app 1.0.0, held r2
               workload web 1.0.0 1.0.0",
    }
}

fn who_never_gets_ready_is_taken_back() -> Story {
    Story {
        given: given(&json!({"progressDeadlineSeconds": 15}), vec![web(1)]),
        steps: vec![Until("workload web 1.0.0"), change("red", "never-ready")],
        ends: "release configmap-app-1 RolledBack
               config app 1.0.0, held r2
               workload web 1.0.0",
    }
}

fn a_stateful_set_goes_back_and_its_repair_goes_out() -> Story {
    Story {
        given: given(&json!({}), vec![stateful_set("db", 2, &["app"])]),
        steps: vec![
            Until("workload db 1.0.0 1.0.0"),
            change("red", "crash"),
            Until("release configmap-app-1 RolledBack"),
            Until("workload db 1.0.0 1.0.0"),
            change("green", "healthy"),
        ],
        ends: "release configmap-app-1 RolledBack
               release configmap-app-2 Succeeded
               config app r3
               workload db r3 r3",
    }
}

fn a_daemon_set_follows() -> Story {
    Story {
        given: given(&json!({}), vec![daemon_set("agent", &["app"])]),
        steps: vec![Until("workload agent 1.0.0"), change("green", "healthy")],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload agent r2",
    }
}

fn a_daemon_set_that_crashes_goes_back() -> Story {
    Story {
        given: given(&json!({}), vec![daemon_set("agent", &["app"])]),
        steps: vec![Until("workload agent 1.0.0"), change("red", "crash")],
        ends: "release configmap-app-1 RolledBack
               config app 1.0.0, held r2
               workload agent 1.0.0",
    }
}

fn a_crash_is_taken_back_also_where_all_pods_go_before_new_ones_come() -> Story {
    let mut web = web(2);
    web["spec"]["strategy"] = json!({"type": "Recreate"});
    Story {
        given: given(&json!({}), vec![web]),
        steps: vec![Until("workload web 1.0.0 1.0.0"), change("red", "crash")],
        ends: "release configmap-app-1 RolledBack
               config app 1.0.0, held r2
               workload web 1.0.0 1.0.0",
    }
}

fn a_later_wave_keeps_what_it_has() -> Story {
    Story {
        given: given(&json!({}), vec![in_wave(deployment("api", 1, &["app"]), 1), web(1)]),
        steps: vec![Until("workload web 1.0.0"), Until("workload api 1.0.0"), change("red", "crash")],
        ends: "release configmap-app-1 RolledBack
               config app 1.0.0, held r2
               workload api 1.0.0
               workload web 1.0.0",
    }
}

fn canary() -> Value {
    json!({"canary": {"size": 1}, "bakeSeconds": LONG_BAKE})
}

fn a_canary_waits_and_goes_on() -> Story {
    Story {
        given: given(&canary(), vec![web(3)]),
        steps: vec![
            Until("workload web 1.0.0 1.0.0 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            Until("workload web 1.0.0 1.0.0 1.0.0 r2, gated"),
            promote(),
        ],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload web r2 r2 r2",
    }
}

/// What holds it goes by time, and is renewed.
fn a_canary_that_is_paused_stays_so() -> Story {
    Story {
        given: given(&canary(), vec![web(3)]),
        steps: vec![
            Until("workload web 1.0.0 1.0.0 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            Patch("release/configmap-app-1", json!({"spec": {"paused": true}})),
            Until("release configmap-app-1 Paused"),
            Pass(Duration::from_secs(6 * 3600)),
        ],
        ends: "release configmap-app-1 Paused
               config app 1.0.0
               workload web 1.0.0 1.0.0 1.0.0 r2, gated",
    }
}

fn scaling_does_not_change_a_canary() -> Story {
    Story {
        given: given(&canary(), vec![web(3)]),
        steps: vec![
            Until("workload web 1.0.0 1.0.0 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            Patch("deployment/web", json!({"spec": {"replicas": 4}})),
            promote(),
        ],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload web r2 r2 r2 r2",
    }
}

fn another_strategy_ends_a_canary() -> Story {
    Story {
        given: given(&canary(), vec![web(3)]),
        steps: vec![
            Until("workload web 1.0.0 1.0.0 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            Patch("deployment/web", json!({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": null}}})),
            promote(),
        ],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload web r2 r2 r2",
    }
}

fn a_policy_without_its_canary_lets_the_rest_follow() -> Story {
    Story {
        given: given(&canary(), vec![web(3)]),
        steps: vec![
            Until("workload web 1.0.0 1.0.0 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            Until("workload web 1.0.0 1.0.0 1.0.0 r2, gated"),
            Patch("releasepolicy/default", json!({"spec": {"canary": null}})),
            Until("workload web r2 r2 r2"),
            promote(),
        ],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload web r2 r2 r2",
    }
}

fn who_opts_out_and_in_again_in_the_middle_goes_on() -> Story {
    let versioned = |on: Value| Patch("configmap/app", json!({"metadata": {"labels": {"lockstep.dev/versioned": on}}}));
    Story {
        given: given(&json!({"bakeSeconds": LONG_BAKE}), vec![web(2)]),
        steps: vec![
            Until("workload web 1.0.0 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            versioned(Value::Null),
            Until("config app 1.0.0, not followed"),
            versioned(json!("true")),
            Until("config app 1.0.0"),
            promote(),
        ],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload web r2 r2",
    }
}

fn a_deleted_release_goes_on() -> Story {
    Story {
        given: given(&canary(), vec![web(3)]),
        steps: vec![
            Until("workload web 1.0.0 1.0.0 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            Delete("release/configmap-app-1"),
            Until("release configmap-app-1 Baking"),
            promote(),
        ],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload web r2 r2 r2",
    }
}

fn a_deleted_versioned_config_goes_on() -> Story {
    Story {
        given: given(&canary(), vec![web(3)]),
        steps: vec![
            Until("workload web 1.0.0 1.0.0 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            Delete("versionedconfig/configmap-app"),
            Until("config app 1.0.0"),
            Until("release configmap-app-1 Baking"),
            promote(),
        ],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload web r2 r2 r2",
    }
}

fn an_undo_of_the_only_consumer_is_no_success() -> Story {
    Story {
        given: given(&json!({"bakeSeconds": LONG_BAKE}), vec![web(1)]),
        steps: vec![
            Until("workload web 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            Undo("deployment/web"),
            Until("workload web 1.0.0"),
            promote(),
        ],
        ends: "release configmap-app-1 Failed
               config app 1.0.0, held r2
               workload web 1.0.0",
    }
}

fn who_is_recreated_is_judged() -> Story {
    Story {
        given: given(&json!({"bakeSeconds": LONG_BAKE}), vec![web(1)]),
        steps: vec![
            Until("workload web 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            Delete("deployment/web"),
            Apply(vec![web(2)]),
            Until("workload web r2 r2"),
            promote(),
        ],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload web r2 r2",
    }
}

fn who_sleeps_is_not_judged() -> Story {
    Story {
        given: given(&json!({}), vec![deployment("asleep", 0, &["app"]), web(1)]),
        steps: vec![Until("workload web 1.0.0"), change("green", "healthy")],
        ends: "release configmap-app-1 Succeeded, not judged: asleep
               config app r2
               workload asleep nobody
               workload web r2",
    }
}

fn new_code_in_the_middle_keeps_the_config() -> Story {
    Story {
        given: given(&json!({"bakeSeconds": LONG_BAKE, "joining": {"enabled": false}}), vec![web(1)]),
        steps: vec![
            Until("workload web 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            Apply(vec![with_new_code(web(1))]),
            promote(),
        ],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload web r2",
    }
}

fn code_and_config_that_fail_together_are_left_to_a_person() -> Story {
    Story {
        given: given(&json!({}), vec![web(2)]),
        steps: vec![
            Until("workload web 1.0.0 1.0.0"),
            Apply(vec![config("app", "red", "crash"), with_new_code(web(2))]),
            Until("release configmap-app-1 Failed"),
            Until("config app 1.0.0, held r2"),
            Until("workload web 1.0.0 1.0.0"),
            change("blue", "healthy"),
        ],
        ends: "release configmap-app-1 Failed
               release configmap-app-2 Succeeded
               config app 1.0.0
               workload web 1.0.0 1.0.0",
    }
}

fn what_was_left_to_a_person_is_taken_back_with_the_change() -> Story {
    Story {
        given: given(&json!({"automaticRollback": false}), vec![web(1)]),
        steps: vec![
            Until("workload web 1.0.0"),
            change("red", "crash"),
            Until("release configmap-app-1 Failed"),
            change("blue", "healthy"),
        ],
        ends: "release configmap-app-1 Failed
               release configmap-app-2 Succeeded
               config app 1.0.0
               workload web 1.0.0",
    }
}

fn what_was_left_to_a_person_is_taken_back_although_its_release_is_gone() -> Story {
    Story {
        given: given(&json!({"automaticRollback": false, "canary": {"size": 1}}), vec![web(2)]),
        steps: vec![
            Until("workload web 1.0.0 1.0.0"),
            change("red", "crash"),
            Until("release configmap-app-1 Failed"),
            Delete("release/configmap-app-1"),
            change("blue", "healthy"),
        ],
        ends: "release configmap-app-2 Succeeded
               config app 1.0.0
               workload web 1.0.0 1.0.0",
    }
}

fn who_changed_its_code_goes_back_with_the_config() -> Story {
    let healthy = || always_healthy(web(1));
    Story {
        given: given(&json!({}), vec![deployment("api", 1, &["app"]), healthy()]),
        steps: vec![
            Until("workload web 1.0.0"),
            Until("workload api 1.0.0"),
            Apply(vec![config("app", "red", "crash"), with_new_code(healthy())]),
            Until("release configmap-app-1 Failed"),
            Until("workload api 1.0.0"),
            Until("workload web r2"),
            change("blue", "healthy"),
        ],
        ends: "release configmap-app-1 Failed
               release configmap-app-2 Succeeded
               config app 1.0.0
               workload api 1.0.0
               workload web 1.0.0",
    }
}

fn who_opts_out_runs_the_config_itself_with_its_next_code() -> Story {
    Story {
        given: given(&json!({}), vec![web(1)]),
        steps: vec![
            Until("workload web 1.0.0"),
            Patch(
                "configmap/app",
                json!({"metadata": {"labels": {"lockstep.dev/versioned": null}}, "data": {"COLOR": "green"}}),
            ),
            Until("config app 1.0.0, not followed"),
            Apply(vec![with_new_code(web(1))]),
        ],
        ends: "config app 1.0.0, not followed
               workload web ?",
    }
}

fn a_newer_change_takes_the_place() -> Story {
    Story {
        given: given(&json!({"bakeSeconds": 15}), vec![web(1)]),
        steps: vec![
            Until("workload web 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            change("yellow", "healthy"),
        ],
        ends: "release configmap-app-1 Superseded
               release configmap-app-2 Succeeded
               config app r3
               workload web r3",
    }
}

fn one_bad_config_of_two_takes_both_back_and_its_repair_brings_both() -> Story {
    let both = deployment("web", 1, &["app", "db"]);
    Story {
        given: given(&json!({}), vec![config("db", "blue", "healthy"), both]),
        steps: vec![
            Until("workload web 1.0.0+1.0.0"),
            Apply(vec![config("app", "red", "crash"), config("db", "green", "healthy")]),
            Until("release configmap-app-1 RolledBack"),
            Until("config db 1.0.0, held r2"),
            Apply(vec![config("app", "green", "healthy")]),
        ],
        ends: "release configmap-app-1 RolledBack
               release configmap-app-2 Succeeded
               config app r3
               config db r2
               workload web r3+r2",
    }
}

fn a_person_goes_back_to_an_earlier_version() -> Story {
    Story {
        given: given(&json!({}), vec![web(1)]),
        steps: vec![
            Until("workload web 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Succeeded"),
            Patch("versionedconfig/configmap-app", json!({"spec": {"current": {"version": "1.0.0"}}})),
        ],
        ends: "release configmap-app-1 Succeeded
               release configmap-app-2 Succeeded
               config app 1.0.0
               workload web 1.0.0",
    }
}

fn a_person_aborts() -> Story {
    Story {
        given: given(&json!({"bakeSeconds": LONG_BAKE}), vec![web(1)]),
        steps: vec![
            Until("workload web 1.0.0"),
            change("green", "healthy"),
            Until("release configmap-app-1 Baking"),
            Patch("release/configmap-app-1", json!({"spec": {"abort": true}})),
        ],
        ends: "release configmap-app-1 Aborted
               config app 1.0.0, held r2
               workload web 1.0.0",
    }
}

fn who_uses_no_changed_key_stays_as_it_is() -> Story {
    let keys = reads_one_key(deployment("keys", 1, &["app"]), "app", "OTHER");
    Story {
        given: given(&json!({}), vec![keys, web(1)]),
        steps: vec![Until("workload web 1.0.0"), Until("workload keys 1.0.0"), change("green", "healthy")],
        ends: "release configmap-app-1 Succeeded
               config app r2
               workload keys 1.0.0
               workload web r2",
    }
}

fn what_breaks_a_rule_moves_nobody() -> Story {
    let rules = json!([{"expression": "data.COLOR != 'red'", "message": "red is taken"}]);
    Story {
        given: given(&json!({"validation": {"rules": rules}}), vec![web(1)]),
        steps: vec![Until("workload web 1.0.0"), change("red", "healthy")],
        ends: "release configmap-app-1 Rejected
               config app 1.0.0, held r2
               workload web 1.0.0",
    }
}
