//! The stories that are also played in the simulation (`crates/simulation/tests/stories.rs`).

use lockstep_testing::manifests::testapp_image;
use lockstep_testing::{scenario, stories};

macro_rules! play {
    ($($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                play(stringify!($name)).await;
            }
        )*

        #[test]
        fn no_story_is_forgotten() {
            let told: Vec<&str> = stories::all().into_iter().map(|(name, _)| name).collect();
            assert_eq!(told, [$(stringify!($name)),*]);
        }
    };
}

play! {
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

async fn play(name: &str) {
    let story = stories::all().into_iter().find(|(told, _)| *told == name).map(|(_, story)| story);
    let story = story.unwrap_or_else(|| panic!("there is no story {name}"));
    scenario(
        "story",
        |stage| async move { stories::play(&story, &stage.client, &stage.namespace, &testapp_image()).await },
    )
    .await;
}
