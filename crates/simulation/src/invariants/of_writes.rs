//! Rules about what operators write into what is not theirs.

use lockstep_core::release::{Phase, State};
use lockstep_core::{ConfigRef, Pins, names};

use super::reading::{
    CONSUMERS, Version, config_kind, consumer_id, controller, known_releases, managed, pinned, pins, record,
    references, source_key, table,
};
use super::{ChangeRule, Seen};
use crate::kinds::Kind;
use crate::replica::{OWN_NAMESPACE, identity};
use crate::store::{Change, Object, Writer};

fn is_operator(change: &Change) -> bool {
    matches!(change.by, Writer::Operator(_) | Writer::Webhook(_))
}

pub(super) const OPTED_IN: ChangeRule = ChangeRule {
    name: "only_what_opted_in_is_written",
    says: "operators write versions, their own objects, and workloads that use a versioned config; never a config itself",
    check: |seen, change| {
        if !is_operator(change) || change.key.namespace == OWN_NAMESPACE {
            return None;
        }
        let object = change.after.as_ref().or(change.before.as_ref())?;
        let is_right = match change.key.kind {
            Kind::VersionedConfig | Kind::PinTable | Kind::Release | Kind::Event => true,
            kind if config_kind(kind).is_some() => {
                let was_version = change.before.as_ref().is_none_or(|before| before.label(names::VERSION_OF).is_some());
                was_version && object.label(names::VERSION_OF).is_some()
            }
            Kind::Pod => change.after.as_ref().is_none_or(|pod| pod.is_deleted()) && is_of_stateful_set(object),
            kind if CONSUMERS.contains(&kind) => {
                change.before.as_ref().is_some_and(|before| uses_versions(seen, before))
            }
            _ => false,
        };
        (!is_right).then(|| format!("{:?} writes {}: {}", change.by, change.key, super::reading::difference(change)))
    },
};

fn is_of_stateful_set(pod: &Object) -> bool {
    controller(pod).is_some_and(|owner| owner["kind"] == "StatefulSet")
}

fn uses_versions(seen: &Seen, workload: &Object) -> bool {
    let namespace = &workload.key.namespace;
    let is_versioned = |config: &ConfigRef| {
        managed(seen, namespace, config).is_some()
            || table(seen, namespace).is_some_and(|table| table.get(config).is_some())
    };
    // What is left of a gate, or of pins, goes also where a reference went.
    references(workload).iter().any(is_versioned)
        || !pins(workload).is_empty()
        || workload.annotation(names::GATE).is_some()
}

/// The pins that an operator's write changes: config, before, after.
fn repinned(change: &Change) -> Vec<(ConfigRef, Option<String>, Option<String>)> {
    if !matches!(change.by, Writer::Operator(_)) || !CONSUMERS.contains(&change.key.kind) {
        return Vec::new();
    }
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return Vec::new() };
    let (before, after): (Pins, Pins) = (pins(before), pins(after));
    let configs: std::collections::BTreeSet<&ConfigRef> =
        before.iter().chain(after.iter()).map(|(config, _)| config).collect();
    let changed = |config: &ConfigRef| {
        let (was, is) = (pinned(&before, config), pinned(&after, config));
        (was != is).then(|| (config.clone(), was, is))
    };
    configs.into_iter().filter_map(changed).collect()
}

pub(super) const RECORDED: ChangeRule = ChangeRule {
    name: "pins_are_written_as_recorded",
    says: "an operator gives a consumer other pins only if an open release has it on record, for exactly those",
    check: |seen, change| {
        let workload = change.before.as_ref()?;
        let changed = repinned(change);
        let releases: Vec<_> =
            if changed.is_empty() { Vec::new() } else { known_releases(seen, &change.key.namespace).collect() };
        let consumer = consumer_id(workload);
        for (config, was, is) in changed {
            let is_told = releases.iter().any(|release| {
                let (Some(record), Some(step)) =
                    (record(release, &consumer), release.moves.iter().find(|step| step.config == config))
                else {
                    return false;
                };
                let before = pinned(&record.pins_before, &config);
                let goes_back = release.progress.phase == Phase::RollingBack || step.from == step.to;
                let is_back = goes_back && is == before;
                let is_forward = release.progress.phase != Phase::RollingBack
                    && is.as_ref() == Some(&step.to)
                    && !matches!(record.state, State::Waiting | State::Restored);
                is_back || is_forward
            });
            // What nobody knows is replaced by what is current. A draft whose change another one overtook is no version.
            let is_version = |name: &String| {
                let key = source_key(&change.key.namespace, &ConfigRef::new(config.kind, name.as_str()));
                let version = seen.objects.get(&key).and_then(|object| Version::read(object));
                version.is_some_and(|version| version.name.is_some())
            };
            let was_unknown = was.as_ref().is_some_and(|was| !is_version(was));
            if !is_told && !was_unknown {
                let (was, is) = (was.unwrap_or("nothing".into()), is.unwrap_or("nothing".into()));
                return Some(format!("{:?} pins {} from {was} to {is} of {config}", change.by, change.key));
            }
        }
        None
    },
};

pub(super) const HELD: ChangeRule = ChangeRule {
    name: "what_is_held_is_not_pinned",
    says: "an operator never gives a consumer a version that is held, unless it had it before, or somebody asked to try it again",
    check: |seen, change| {
        let workload = change.before.as_ref()?;
        for (config, _, is) in repinned(change) {
            let Some(is) = is else { continue };
            let Some(managed) = managed(seen, &change.key.namespace, &config) else { continue };
            let held = &managed.value["status"]["held"];
            let is_retried = managed.value["spec"]["retry"] == held["release"];
            if held["object"] != is.as_str() || is_retried {
                continue;
            }
            let consumer = consumer_id(workload);
            let had_it = |release: &lockstep_core::release::Release| {
                record(release, &consumer)
                    .is_some_and(|record| pinned(&record.pins_before, &config).as_ref() == Some(&is))
            };
            if !known_releases(seen, &change.key.namespace).any(|release| had_it(&release)) {
                return Some(format!("{:?} pins {} to {is} of {config}", change.by, change.key));
            }
        }
        None
    },
};

pub(super) const LEADER: ChangeRule = ChangeRule {
    name: "only_the_leader_writes",
    says: "what an operator writes takes effect only while it holds the lease",
    check: |seen, change| {
        let Writer::Operator(index) = change.by else { return None };
        if matches!(change.key.kind, Kind::Lease | Kind::Event) || change.key.namespace == OWN_NAMESPACE {
            return None;
        }
        let leader = seen.leader.as_ref()?;
        (*leader != identity(index)).then(|| {
            let what = super::reading::difference(change);
            format!("operator {index} writes {} while {leader} leads: {what}", change.key)
        })
    },
};
