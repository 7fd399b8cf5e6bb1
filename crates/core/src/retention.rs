//! Which versions are kept, and who holds them.
//!
//! A version is held by what uses it, as an owner: Kubernetes' garbage collector lets it go with the last of them. What goes on to another
//! version, as a CronJob does, holds that one from then on, and not the one before. What is kept besides has two keepers, the VersionedConfig
//! and the config itself: whoever deletes one of them loses no content.

use std::collections::BTreeSet;

use crate::version::Version;

/// How many versions are kept besides those in use, if nobody says otherwise.
pub const DEFAULT_RETAIN: usize = 10;

/// What is known about one version's holders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    pub version: Version,
    /// The uids of the owners that it has, without its keepers.
    pub owners: BTreeSet<String>,
    /// Those among them whose template runs another version by now.
    pub former: BTreeSet<String>,
    pub kept_by: Keepers,
    /// The uids of the ReplicaSets, ControllerRevisions, Jobs and so on whose template runs it.
    pub users: BTreeSet<String>,
    /// Whether a workload's template is pinned to it right now: what makes pods from it may not be there yet.
    pub is_wanted: bool,
}

/// Which of its keepers are among the owners of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keepers {
    None,
    /// One was made anew, say.
    Some,
    All,
}

/// What is known about the holders of a draft: what was written ahead of a change of the config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    pub object: String,
    /// Whether the change that it was written for had time to come, and did not.
    pub is_abandoned: bool,
    /// As of a version.
    pub owners: BTreeSet<String>,
    pub former: BTreeSet<String>,
    pub kept_by: Keepers,
    pub users: BTreeSet<String>,
    pub is_wanted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The owners that a version should have: users are appended, those who have gone on leave, and the keepers come or go.
    SetOwners { object: String, add: BTreeSet<String>, leave: BTreeSet<String>, is_kept: bool },
    /// Nobody holds it.
    Delete { object: String },
}

/// What to change about a config's versions. `protected` are the objects that the table, a release or the source itself needs. Without a
/// `count` nobody can say yet which may go: whoever uses one becomes its owner all the same, and nothing else changes.
pub fn retain(holdings: &[Holding], protected: &BTreeSet<String>, count: Option<usize>) -> Vec<Change> {
    let kept = count.map(|count| newest(holdings, protected, count));
    holdings.iter().filter_map(|holding| change(holding, kept.as_ref(), protected)).collect()
}

/// What to change about a config's drafts. One whose change never came goes; but somebody may have joined it before another change took its
/// place, or before anybody gave it a name: then it is held like a version, from then on.
pub fn retain_drafts(drafts: &[Draft], protected: &BTreeSet<String>) -> Vec<Change> {
    let change = |draft: &Draft| {
        let object = draft.object.clone();
        if draft.users.is_empty() && draft.owners.is_empty() && !draft.is_wanted {
            let goes = draft.is_abandoned && !protected.contains(&object);
            return goes.then_some(Change::Delete { object });
        }
        let add: BTreeSet<String> = draft.users.difference(&draft.owners).cloned().collect();
        let leave = draft.former.clone();
        let changes = !add.is_empty() || !leave.is_empty() || draft.kept_by != Keepers::All;
        changes.then_some(Change::SetOwners { object, add, leave, is_kept: true })
    };
    drafts.iter().filter_map(change).collect()
}

/// As many as are kept besides those in use, and what is in use among them: when its user goes, it is one of the newest.
fn newest(holdings: &[Holding], protected: &BTreeSet<String>, count: usize) -> BTreeSet<u64> {
    let mut sorted: Vec<&Holding> = holdings.iter().collect();
    sorted.sort_unstable_by_key(|holding| std::cmp::Reverse(holding.version.number));
    let mut room = count;
    let is_within = |holding: &&Holding| {
        let is_used = protected.contains(&holding.version.object) || holding.is_wanted || !holding.users.is_empty();
        let is_within = room > 0;
        room -= usize::from(is_within && !is_used);
        is_within
    };
    sorted.into_iter().take_while(is_within).map(|holding| holding.version.number).collect()
}

/// Who has gone on leaves, and what nobody holds then goes only after another look: its controller may make a pod of the old template yet.
fn change(holding: &Holding, kept: Option<&BTreeSet<u64>>, protected: &BTreeSet<String>) -> Option<Change> {
    let object = &holding.version.object;
    let is_needed = protected.contains(object) || holding.is_wanted;
    let is_kept = match kept {
        Some(kept) => is_needed || kept.contains(&holding.version.number),
        None => is_needed || holding.kept_by != Keepers::None,
    };
    if !is_kept && holding.users.is_empty() && holding.owners.is_empty() {
        return kept.map(|_| Change::Delete { object: object.clone() });
    }
    let add: BTreeSet<String> = holding.users.difference(&holding.owners).cloned().collect();
    let leave = kept.map(|_| holding.former.clone()).unwrap_or_default();
    let wanted = if is_kept { Keepers::All } else { Keepers::None };
    let changes = !add.is_empty() || !leave.is_empty() || holding.kept_by != wanted;
    changes.then(|| Change::SetOwners { object: object.clone(), add, leave, is_kept })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::VersionName;

    const OURS: &str = "ours";

    fn holding(number: u64, owners: &[&str], users: &[&str]) -> Holding {
        let set = |uids: &[&str]| uids.iter().map(ToString::to_string).collect();
        let version = Version {
            object: format!("app-{number}"),
            name: VersionName::numbered(number),
            number,
            digest: String::new(),
            changed_by: None,
            reason: None,
        };
        let kept_by = if owners.contains(&OURS) { Keepers::All } else { Keepers::None };
        let owners: Vec<&str> = owners.iter().copied().filter(|owner| *owner != OURS).collect();
        let former = BTreeSet::new();
        Holding { version, owners: set(&owners), former, kept_by, users: set(users), is_wanted: false }
    }

    fn set(object: &str, add: &[&str], is_kept: bool) -> Change {
        let add = add.iter().map(ToString::to_string).collect();
        Change::SetOwners { object: object.into(), add, leave: BTreeSet::new(), is_kept }
    }

    #[test]
    fn users_are_appended() {
        let changes = retain(&[holding(1, &[OURS], &["rs-1", "rs-2"])], &BTreeSet::new(), Some(10));
        assert_eq!(changes, [set("app-1", &["rs-1", "rs-2"], true)]);
        assert_eq!(retain(&[holding(1, &[OURS, "rs-1"], &["rs-1"])], &BTreeSet::new(), Some(10)), []);
    }

    #[test]
    fn what_is_old_is_left_to_its_users_and_goes_with_them() {
        let versions = [holding(1, &[OURS], &[]), holding(2, &[OURS, "rs-2"], &["rs-2"]), holding(3, &[OURS], &[])];
        let changes = retain(&versions, &BTreeSet::new(), Some(1));
        assert_eq!(changes, [Change::Delete { object: "app-1".into() }, set("app-2", &[], false)]);
    }

    #[test]
    fn versions_are_kept_besides_those_in_use() {
        let versions = [
            holding(1, &[OURS], &[]),
            holding(2, &[OURS], &[]),
            holding(3, &[OURS, "rs-3"], &["rs-3"]),
            holding(4, &[OURS], &[]),
        ];
        let changes = retain(&versions, &BTreeSet::from(["app-4".to_owned()]), Some(1));
        assert_eq!(changes, [Change::Delete { object: "app-1".into() }]);
    }

    #[test]
    fn what_the_table_names_or_a_template_wants_is_kept() {
        let wanted = Holding { is_wanted: true, ..holding(2, &[OURS], &[]) };
        let protected = BTreeSet::from(["app-1".to_owned()]);
        assert_eq!(retain(&[holding(1, &[OURS], &[]), wanted], &protected, Some(0)), []);
    }

    #[test]
    fn nothing_goes_as_long_as_nobody_knows_what_the_config_holds() {
        let versions = [holding(1, &[OURS], &[]), holding(2, &["rs-2"], &["rs-2"]), holding(3, &[OURS], &["rs-3"])];
        let unkept = holding(4, &[], &[]);
        assert_eq!(retain(&versions, &BTreeSet::new(), None), [set("app-3", &["rs-3"], true)]);
        assert_eq!(retain(&[unkept], &BTreeSet::new(), None), []);
    }

    #[test]
    fn what_somebody_else_holds_is_never_deleted() {
        assert_eq!(retain(&[holding(1, &["stranger"], &[])], &BTreeSet::new(), Some(0)), []);
    }

    fn draft(is_abandoned: bool, owners: &[&str], users: &[&str]) -> Draft {
        let set = |uids: &[&str]| uids.iter().map(ToString::to_string).collect();
        let (owners, users) = (set(owners), set(users));
        let (former, kept_by) = (BTreeSet::new(), Keepers::All);
        Draft { object: "app-1".into(), is_abandoned, owners, former, kept_by, users, is_wanted: false }
    }

    fn left(object: &str, leave: &str, is_kept: bool) -> Change {
        let (add, leave) = (BTreeSet::new(), [leave.to_owned()].into());
        Change::SetOwners { object: object.into(), add, leave, is_kept }
    }

    #[test]
    fn who_has_gone_on_to_another_version_leaves_and_what_nobody_holds_then_goes() {
        let none = BTreeSet::new();
        let gone_on = |is_kept: &[&str]| {
            let owners: Vec<&str> = is_kept.iter().chain(&["cron-job"]).copied().collect();
            Holding { former: ["cron-job".to_owned()].into(), ..holding(1, &owners, &[]) }
        };
        assert_eq!(retain(&[gone_on(&[OURS])], &none, Some(1)), [left("app-1", "cron-job", true)]);
        assert_eq!(retain(&[gone_on(&[])], &none, Some(0)), [left("app-1", "cron-job", false)]);
        assert_eq!(retain(&[holding(1, &[], &[])], &none, Some(0)), [Change::Delete { object: "app-1".into() }]);
        assert_eq!(retain(&[gone_on(&[OURS])], &none, None), [], "nobody can say yet");
        let job = Holding { former: ["cron-job".to_owned()].into(), ..holding(1, &["cron-job", "job"], &["job"]) };
        assert_eq!(retain(&[job], &none, Some(0)), [left("app-1", "cron-job", false)], "its Job still runs it");
        let joined = Draft { former: ["cron-job".to_owned()].into(), ..draft(true, &["cron-job"], &[]) };
        assert_eq!(retain_drafts(&[joined], &none), [left("app-1", "cron-job", true)]);
    }

    #[test]
    fn a_draft_whose_change_never_came_goes() {
        let gone = [Change::Delete { object: "app-1".into() }];
        assert_eq!(retain_drafts(&[draft(true, &[], &[])], &BTreeSet::new()), gone);
        assert_eq!(retain_drafts(&[draft(false, &[], &[])], &BTreeSet::new()), [], "it may still come");
    }

    #[test]
    fn a_draft_that_somebody_joined_is_held_by_them() {
        let none = BTreeSet::new();
        assert_eq!(retain_drafts(&[draft(true, &[], &["rs-1"])], &none), [set("app-1", &["rs-1"], true)]);
        assert_eq!(retain_drafts(&[draft(true, &["rs-1"], &["rs-1"])], &none), []);
        assert_eq!(retain_drafts(&[draft(true, &["rs-1"], &[])], &none), [], "its owner may make pods again");
        assert_eq!(retain_drafts(&[Draft { is_wanted: true, ..draft(true, &[], &[]) }], &none), []);
        assert_eq!(
            retain_drafts(&[draft(true, &[], &[])], &BTreeSet::from(["app-1".to_owned()])),
            [],
            "the table has it"
        );
    }

    #[test]
    fn who_joined_a_draft_holds_it_at_once_and_so_do_its_keepers() {
        let none = BTreeSet::new();
        assert_eq!(retain_drafts(&[draft(false, &[], &["rs-1"])], &none), [set("app-1", &["rs-1"], true)]);
        let left = Draft { kept_by: Keepers::Some, ..draft(false, &["rs-1"], &["rs-1"]) };
        assert_eq!(retain_drafts(&[left], &none), [set("app-1", &[], true)], "its VersionedConfig was made anew");
    }

    #[test]
    fn a_keeper_that_was_made_anew_is_an_owner_again() {
        let half = Holding { kept_by: Keepers::Some, ..holding(1, &[], &[]) };
        assert_eq!(retain(&[half], &BTreeSet::new(), Some(1)), [set("app-1", &[], true)]);
    }

    #[test]
    fn what_is_needed_again_is_ours_again() {
        let changes = retain(&[holding(1, &["rs-1"], &["rs-1"])], &BTreeSet::from(["app-1".to_owned()]), Some(0));
        assert_eq!(changes, [set("app-1", &[], true)]);
    }
}
