//! What to do about a config: `plan(observed)` compares what should be with what is and says what is missing.
//!
//! It is called again whenever something changed, and after its own actions: on their outcome it plans nothing. Moving consumers to a new
//! version is a release's work; here it is only asked for.

use std::collections::BTreeSet;

use crate::config::ConfigRef;
use crate::digest::{Digest, MAX_CONFIG_NAME_LENGTH};
use crate::table::Entry;
use crate::version::{Given, Version, VersionName};

/// A config's content and what its user says about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub digest: Digest,
    /// The name that the user gives this content.
    pub version_name: Option<String>,
    pub changed_by: Option<String>,
    pub reason: Option<String>,
    /// What keeps it from becoming a version, whatever it holds, in one sentence.
    pub obstacle: Option<String>,
    /// Why its content breaks a rule of its policy, if it does.
    pub invalid: Option<String>,
}

/// All that is known of one config.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each with its own name")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub config: ConfigRef,
    /// None if it was deleted or did not opt in.
    pub source: Option<Source>,
    pub versions: Vec<Version>,
    /// The objects of those that are there only for as long as somebody runs them.
    pub unkept: BTreeSet<String>,
    pub entry: Entry,
    /// None until the config is under our care.
    pub managed: Option<Managed>,
    pub has_consumers: bool,
    /// What they are pinned to.
    pub pinned: BTreeSet<String>,
    /// Whether its source is there and does not want to be under our care any more.
    pub has_opted_out: bool,
    /// Whether neither a source nor a consumer was seen for a good while. An object that is recreated is gone for a moment, too.
    pub is_long_unused: bool,
    /// The version that a release under way moves it to, or one that waits for that one's end.
    pub moving_to: Option<String>,
    /// The version that a release under way moves it to.
    pub under_way: Option<String>,
    /// Whether consumers still have the held version.
    pub stranded: Stranded,
    /// What the table says is on its way, or offers, if consumers have it and no release moves anybody there.
    pub left_behind: Option<String>,
    /// Whether a workload that is written meanwhile may have the new version at once.
    pub can_join: bool,
    /// Whether somebody else changed the table's `next` a moment ago: the write of the config that it stands for may still be on its way.
    pub next_is_fresh: bool,
    /// Whether any template, also an old one that a workload could go back to, is not pinned.
    pub has_unpinned_templates: bool,
    /// The versions whose last word is that they break a rule.
    pub rejected: BTreeSet<String>,
}

/// Consumers that still have the held version although no release moves them: it failed and was left to a person, or their code had changed
/// with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stranded {
    #[default]
    Nobody,
    Somebody,
    /// What failed is still on its way back.
    NotYetKnown,
    /// They were taken back already, as far as that was possible.
    ForGood,
}

/// What the VersionedConfig remembers, and what a person wrote into it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Managed {
    /// The last version that was good.
    pub released: Option<String>,
    /// The highest number that a version ever had.
    pub last_number: u64,
    /// The names that were given so far, as far as they are remembered.
    pub names: Vec<Given>,
    pub held: Option<Held>,
    /// The failed release that somebody wants tried again.
    pub retry: Option<String>,
    pub choice: Option<Choice>,
}

/// A version that failed and is not tried again by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub object: String,
    /// The release that failed with it.
    pub release: String,
    /// Whether what it failed together with is another by now: another config of that release, or the code of a consumer.
    pub is_outdated: bool,
}

/// A version that somebody wants to run, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub version: String,
    /// Only while this is the source's version, by its name or its object.
    pub instead_of: Option<String>,
}

impl Choice {
    /// Whether it holds while the source has this version.
    fn holds(&self, source: &Version) -> bool {
        self.instead_of.as_ref().is_none_or(|instead_of| is_called(source, instead_of))
    }
}

/// By its name, or by its object: whatever happens to a version, the same content has the same object.
fn is_called(version: &Version, name: &str) -> bool {
    version.name.as_str() == name || version.object == name
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Put the config under our care.
    Adopt,
    /// Copy the source's content into a version.
    CreateVersion(Version),
    /// An earlier version is wanted again: it must not go with those who run it now.
    Keep { object: String },
    /// Tell the API server which versions to hand out.
    Publish(Entry),
    /// The first version is what consumers run already: nothing has to move.
    Complete { released: String, last_number: u64 },
    /// Consumers are to be moved to this version.
    Release { to: String },
    /// The version breaks a rule: it is held, and nothing moves.
    Reject { version: String, reason: String },
    /// The source is another by now than the one that failed.
    LetGo,
    /// The config has moved on from what somebody chose another version for.
    ForgetChoice,
    /// Nobody uses it any more and its source is gone: forget it.
    Forget,
    /// Do nothing, and say why.
    Refuse(Refusal),
}

/// Why a change does not become a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "version {name} has other content already: give this change a new name in the annotation lockstep.dev/version, or remove the annotation to have it numbered"
    )]
    NameTaken { name: String },
    #[error("{0}")]
    BadName(#[from] crate::version::VersionNameError),
    #[error(
        "its name has {length} characters, and at most {MAX_CONFIG_NAME_LENGTH} leave room for the names of its versions: give it a shorter name"
    )]
    NameTooLong { length: usize },
    #[error(
        "there is no version {version}, which spec.current of its VersionedConfig asks for: choose one of its versions"
    )]
    NoSuchVersion { version: String },
    #[error(
        "version {version}, which spec.current of its VersionedConfig asks for, was rejected: choose another, or write its content into the config to have it checked again"
    )]
    ChoiceRejected { version: String },
    #[error("the object {object} is in the way of its new version, and is not that version: remove or rename it")]
    ObjectInTheWay { object: String },
    #[error("its new version {object} cannot be created: {reason}")]
    NotCreated { object: String, reason: String },
    #[error("{0}")]
    Obstacle(String),
}

pub fn plan(observed: &Observed) -> Vec<Action> {
    match &observed.source {
        None => plan_without_source(observed),
        Some(source) => match wanted_version(observed, source) {
            Ok(wanted) => plan_with_source(observed, source, &wanted),
            Err(refusal) => {
                let mut actions = Vec::new();
                refuse(observed, refusal, &mut actions);
                actions
            }
        },
    }
}

/// Nothing that is in use goes: the table goes on handing out what is current until the last consumer is gone, and a release that is
/// under way, or that somebody asks for, goes to its end.
fn plan_without_source(observed: &Observed) -> Vec<Action> {
    let known = observed.managed.is_some() || observed.entry != Entry::default();
    // A release under way ends by itself once its consumers are gone.
    if known && observed.is_long_unused && observed.moving_to.is_none() {
        return vec![Action::Forget];
    }
    // Pins stay until a pod spec changes; from then on, workloads run what the config itself says. A workload that is made anew may opt it
    // in again: for that, what is there is handed out for a while.
    let is_over = observed.has_consumers || !hands_out_what_exists(observed);
    if observed.has_opted_out && is_over && observed.moving_to.is_none() {
        let is_handed_out = observed.entry != Entry::default();
        return is_handed_out.then(|| Action::Publish(Entry::default())).into_iter().collect();
    }
    let mut actions = Vec::new();
    let released = observed.managed.as_ref().and_then(|managed| Some((managed, managed.released.as_ref()?)));
    if let Some((managed, released)) = released {
        // What has not started is taken back: nobody says any more that it should be.
        let wanted = observed.under_way.as_ref().unwrap_or(released);
        if let Some(wanted) = observed.versions.iter().find(|version| version.object == *wanted) {
            plan_change(observed, None, wanted, managed, released, &mut actions);
        }
    }
    actions
}

fn exists(observed: &Observed, object: &str) -> bool {
    observed.versions.iter().any(|version| version.object == object)
}

/// Whether pods would get anything from the table that they can start with.
fn hands_out_what_exists(observed: &Observed) -> bool {
    let handed_out = [&observed.entry.baseline, &observed.entry.current].into_iter().flatten();
    handed_out.into_iter().any(|object| exists(observed, object))
}

/// What was announced and will not come must not be joined. A release under way goes on all the same.
fn refuse(observed: &Observed, refusal: Refusal, actions: &mut Vec<Action>) {
    let released = observed.managed.as_ref().and_then(|managed| managed.released.as_ref());
    if let Some(current) = released.or(observed.entry.current.as_ref()) {
        publish(observed, current, None, actions);
        take_back(observed, current, actions);
        // One whose VersionedConfig was lost goes on from what the table hands out, whatever it says.
        if released.is_none() && exists(observed, current) {
            actions.push(Action::Complete { released: current.clone(), last_number: last_number(observed) });
        }
    }
    actions.push(Action::Refuse(refusal));
}

/// The version that has the source's content: an earlier one, or a new one.
enum Wanted {
    Known(Version),
    New(Version),
}

impl Wanted {
    fn version(&self) -> &Version {
        match self {
            Self::Known(version) | Self::New(version) => version,
        }
    }
}

fn wanted_version(observed: &Observed, source: &Source) -> Result<Wanted, Refusal> {
    if let Some(obstacle) = &source.obstacle {
        return Err(Refusal::Obstacle(obstacle.clone()));
    }
    let length = observed.config.name.len();
    if length > MAX_CONFIG_NAME_LENGTH {
        return Err(Refusal::NameTooLong { length });
    }
    if let Some(known) = observed.versions.iter().find(|version| version.digest == source.digest.full()) {
        return Ok(Wanted::Known(known.clone()));
    }
    let object = source.digest.version_object_name(&observed.config.name);
    if observed.versions.iter().any(|version| version.object == object) {
        return Err(Refusal::ObjectInTheWay { object });
    }
    let (number, name) = next_name(observed, &object, source.version_name.as_deref())?;
    let digest = source.digest.full().to_owned();
    let (changed_by, reason) = (source.changed_by.clone(), source.reason.clone());
    Ok(Wanted::New(Version { object, name, number, digest, changed_by, reason }))
}

/// Content that had a version before is called as it was, with the number of then; anything else gets a name that never stood for other
/// content.
fn next_name(observed: &Observed, object: &str, chosen: Option<&str>) -> Result<(u64, VersionName), Refusal> {
    let given = observed.managed.iter().flat_map(|managed| &managed.names);
    let mut taken: BTreeSet<&str> = observed.versions.iter().map(|version| version.name.as_str()).collect();
    let is_free = |given: &&Given| !taken.contains(given.name.as_str());
    let mut earlier = given.clone().filter(|given| given.object == object).filter(is_free);
    let earlier = earlier.find(|given| chosen.is_none_or(|chosen| chosen == given.name));
    if let Some(earlier) = earlier {
        return Ok((earlier.number, earlier.name.parse()?));
    }
    taken.extend(given.map(|given| given.name.as_str()));
    let number = last_number(observed).saturating_add(1);
    let Some(chosen) = chosen else {
        // Somebody may have called a version `r7` by hand: the number then goes on to the next free one.
        let candidates = number..=number.saturating_add(taken.len() as u64);
        let free = candidates.clone().find(|number| !taken.contains(VersionName::numbered(*number).as_str()));
        let free = free.unwrap_or(*candidates.end());
        return Ok((free, VersionName::numbered(free)));
    };
    let name = VersionName::chosen(chosen)?;
    if taken.contains(name.as_str()) {
        return Err(Refusal::NameTaken { name: chosen.to_owned() });
    }
    Ok((number, name))
}

fn last_number(observed: &Observed) -> u64 {
    let known = observed.versions.iter().map(|version| version.number);
    let given = observed.managed.iter().flat_map(|managed| managed.names.iter().map(|given| given.number));
    known.chain(given).chain(observed.managed.as_ref().map(|managed| managed.last_number)).max().unwrap_or(0)
}

fn plan_with_source(observed: &Observed, source: &Source, wanted: &Wanted) -> Vec<Action> {
    let mut actions = Vec::new();
    let managed = observed.managed.clone().unwrap_or_default();
    if observed.managed.is_none() {
        actions.push(Action::Adopt);
    }
    if let Wanted::New(version) = wanted {
        actions.push(Action::CreateVersion(version.clone()));
    }
    // What is gone and not in the table either is nobody's to go on from.
    let goes_on = |released: &&String| exists(observed, released) || observed.entry.names(released);
    match managed.released.as_ref().filter(goes_on) {
        None => plan_first(observed, wanted, &mut actions),
        Some(released) => plan_change(observed, Some(source), wanted.version(), &managed, released, &mut actions),
    }
    actions
}

/// At its adoption a config is what consumers run already. One whose VersionedConfig was lost goes on from what the table hands out, and one
/// that had opted out from what its consumers are still pinned to: its source may have content that nobody has judged.
fn plan_first(observed: &Observed, wanted: &Wanted, actions: &mut Vec<Action>) {
    let version = wanted.version();
    let handed_out = observed.entry.current.as_ref().filter(|current| exists(observed, current));
    let pinned = observed.versions.iter().filter(|version| observed.pinned.contains(&version.object));
    let runs = pinned.max_by_key(|version| version.number).map(|version| &version.object);
    let released = handed_out.or(runs).unwrap_or(&version.object);
    // Pods without a pin run what the config itself says.
    let baseline = handed_out.unwrap_or(&version.object);
    publish_from(observed, baseline, released, None, actions);
    let last_number = last_number(observed).max(version.number);
    actions.push(Action::Complete { released: released.clone(), last_number });
}

fn plan_change(
    observed: &Observed,
    source: Option<&Source>,
    wanted: &Version,
    managed: &Managed,
    released: &str,
    actions: &mut Vec<Action>,
) {
    let target = match chosen(observed, managed, wanted) {
        Ok(target) => target.object.clone(),
        Err(refusal) => return refuse(observed, refusal, actions),
    };
    if has_moved_on(observed, managed, wanted, released) {
        actions.push(Action::ForgetChoice);
    }
    let is_over = |held: &Held| held.is_outdated || managed.retry.as_ref() == Some(&held.release);
    let held = managed.held.as_ref().filter(|held| !is_over(held));
    let is_held = held.is_some_and(|held| held.object == target);
    let invalid = source.and_then(|source| source.invalid.as_ref());
    // What is on its way already is judged by how its pods do, whatever rule somebody writes meanwhile.
    let is_under_way = observed.under_way.as_ref() == Some(&target);
    let invalid = invalid.filter(|_| target == wanted.object && target != released && !is_under_way);
    let may_move = !is_held && invalid.is_none();
    publish(observed, released, may_move.then_some(target.as_str()), actions);
    if let Some(reason) = invalid.filter(|_| !is_held) {
        actions.push(Action::Reject { version: wanted.object.clone(), reason: reason.clone() });
        return;
    }
    // What somebody chose failed as well as what the config says: neither is tried again by itself.
    let has_changed = |held: &Held| held.is_outdated || (held.object != wanted.object && held.object != target);
    // What somebody still has is not let go: it says why they are not well.
    let is_left = |held: &Held| observed.stranded != Stranded::Nobody && held.object != target;
    if source.is_some() && managed.held.as_ref().is_some_and(|held| has_changed(held) && !is_left(held)) {
        actions.push(Action::LetGo);
    }
    // Whoever was left with what failed follows as soon as somebody wants something else, be it what is current.
    let is_stranded = observed.stranded == Stranded::Somebody
        && observed.moving_to.is_none()
        && managed.held.as_ref().is_some_and(is_left);
    let has_followers = source.is_some() && is_stranded;
    if may_move && (has_followers || observed.moving_to.as_deref().unwrap_or(released) != target) {
        actions.push(Action::Release { to: target });
    } else if !may_move || target == released {
        take_back(observed, released, actions);
    }
}

/// Whoever has what was on its way goes back to what is current, where the config goes nowhere else: it says so itself, or what it says failed
/// or is refused. What was offered a moment ago, the config says in a moment.
fn take_back(observed: &Observed, released: &str, actions: &mut Vec<Action>) {
    if observed.left_behind.is_some() && !observed.next_is_fresh {
        actions.push(Action::Release { to: released.to_owned() });
    }
}

/// Whether a later change of the config was released since somebody chose a version in place of an earlier one. If that one comes again, it
/// is meant.
fn has_moved_on(observed: &Observed, managed: &Managed, wanted: &Version, released: &str) -> bool {
    let instead_of = managed.choice.as_ref().and_then(|choice| choice.instead_of.as_ref());
    // The version itself may be gone by now.
    let given = |name: &String| managed.names.iter().find(|given| given.name == *name || given.object == *name);
    let known = |name: &String| observed.versions.iter().find(|version| is_called(version, name));
    let replaced = |name: &String| known(name).map(|known| known.number).or_else(|| Some(given(name)?.number));
    let is_later = instead_of.and_then(replaced).is_some_and(|replaced| wanted.number > replaced);
    is_later && observed.source.is_some() && wanted.object == released
}

/// The version to run: the source's, unless somebody chose another.
fn chosen<'a>(observed: &'a Observed, managed: &Managed, wanted: &'a Version) -> Result<&'a Version, Refusal> {
    let Some(choice) = &managed.choice else { return Ok(wanted) };
    if !choice.holds(wanted) {
        return Ok(wanted);
    }
    let found = observed.versions.iter().find(|version| is_called(version, &choice.version));
    match found {
        // The source's own content is checked anew.
        Some(found) if found.object != wanted.object && observed.rejected.contains(&found.object) => {
            Err(Refusal::ChoiceRejected { version: choice.version.clone() })
        }
        found => found.ok_or_else(|| Refusal::NoSuchVersion { version: choice.version.clone() }),
    }
}

/// `to` is where it wants to go, if it may.
fn publish(observed: &Observed, current: &str, to: Option<&str>, actions: &mut Vec<Action>) {
    publish_from(observed, current, current, to, actions);
}

/// `baseline` is what unpinned templates were written against, if the table does not say so yet.
fn publish_from(observed: &Observed, baseline: &str, current: &str, to: Option<&str>, actions: &mut Vec<Action>) {
    // What is taken back is nobody's to keep: new code comes with the old version in one step.
    let is_taken_back = to == Some(current);
    let to = to.filter(|to| *to != current).map(str::to_owned);
    // What unpinned templates were written against is settled when the config is adopted, and matters for as long as there are any.
    let adopted = observed.entry.baseline.clone().filter(|_| observed.has_unpinned_templates);
    let adopted = adopted.filter(|adopted| exists(observed, adopted));
    let announced = observed.entry.next.clone().filter(|announced| observed.next_is_fresh && announced != current);
    // What we offer ourselves, we move to as well: anything else is a change that comes to us in a moment.
    let newer = announced.clone().filter(|_| observed.entry.next != observed.entry.moving);
    // What is under way was withdrawn by somebody whose config says so in a moment: new code must not get it meanwhile.
    let is_withdrawn = |to: &String| {
        let is_empty = observed.entry.next.is_none() && observed.entry.moving.is_none();
        observed.next_is_fresh && is_empty && observed.moving_to.as_ref() == Some(to)
    };
    let to = to.filter(|to| !is_withdrawn(to));
    // A release under way goes on for a while although its config already wants to go elsewhere, or must not.
    let moving = observed.under_way.clone().or_else(|| observed.moving_to.clone());
    let moving = moving.filter(|moving| moving != current && !is_taken_back && !is_withdrawn(moving));
    // It stays there as what they have to be taken back from, until a release does that.
    let moving = moving.or_else(|| to.clone()).or_else(|| observed.left_behind.clone());
    let entry = Entry {
        baseline: adopted.or_else(|| Some(baseline.to_owned())),
        current: Some(current.to_owned()),
        next: newer.or_else(|| to.filter(|_| observed.can_join)).or(announced),
        moving,
    };
    let named: BTreeSet<&String> = [&entry.current, &entry.next, &entry.moving].into_iter().flatten().collect();
    let unkept = named.into_iter().filter(|object| observed.unkept.contains(*object));
    actions.extend(unkept.map(|object| Action::Keep { object: object.clone() }));
    if entry != observed.entry {
        actions.push(Action::Publish(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigKind::ConfigMap;

    fn digest(letter: char) -> Digest {
        Digest::from(letter.to_string().repeat(64))
    }

    fn object(letter: char) -> String {
        digest(letter).version_object_name("app")
    }

    fn source(letter: char) -> Source {
        Source {
            digest: digest(letter),
            version_name: None,
            changed_by: None,
            reason: None,
            obstacle: None,
            invalid: None,
        }
    }

    fn fresh(letter: char) -> Observed {
        Observed {
            config: ConfigRef::new(ConfigMap, "app"),
            source: Some(source(letter)),
            versions: Vec::new(),
            unkept: BTreeSet::new(),
            entry: Entry::default(),
            managed: None,
            has_consumers: true,
            pinned: BTreeSet::new(),
            has_opted_out: false,
            is_long_unused: false,
            moving_to: None,
            under_way: None,
            stranded: Stranded::Nobody,
            left_behind: None,
            can_join: true,
            next_is_fresh: false,
            has_unpinned_templates: true,
            rejected: BTreeSet::new(),
        }
    }

    fn managed(observed: &mut Observed) -> &mut Managed {
        observed.managed.as_mut().unwrap()
    }

    /// A cluster that does as it is told, with releases that succeed at once.
    fn perform(observed: &mut Observed) {
        for action in plan(observed) {
            match action {
                Action::Adopt => observed.managed = Some(Managed::default()),
                Action::CreateVersion(version) => observed.versions.push(version),
                Action::Keep { object } => drop(observed.unkept.remove(&object)),
                Action::Publish(entry) => observed.entry = entry,
                Action::Complete { released, last_number } => {
                    observed.managed = Some(Managed { released: Some(released), last_number, ..Managed::default() });
                }
                Action::Release { to } => {
                    let number = last_number(observed);
                    (managed(observed).released, managed(observed).last_number) = (Some(to), number);
                }
                Action::Reject { version, .. } => hold(observed, &version),
                Action::LetGo => managed(observed).held = None,
                Action::ForgetChoice => managed(observed).choice = None,
                Action::Forget => (observed.managed, observed.entry) = (None, Entry::default()),
                Action::Refuse(_) => {}
            }
        }
    }

    fn hold(observed: &mut Observed, object: &str) {
        let held = Held { object: object.to_owned(), release: "release-2".into(), is_outdated: false };
        managed(observed).held = Some(held);
    }

    fn settle(observed: &mut Observed) {
        for _ in 0..4 {
            perform(observed);
        }
        assert_eq!(plan(observed), [], "a plan on its own outcome");
    }

    fn adopted(letter: char) -> Observed {
        let mut observed = fresh(letter);
        settle(&mut observed);
        observed
    }

    fn change(observed: &mut Observed, letter: char) {
        observed.source = Some(source(letter));
        settle(observed);
    }

    #[test]
    fn what_changed_while_a_config_had_opted_out_is_released_to_whom_it_left_pinned() {
        let mut observed = fresh('b');
        observed.versions.push(version('a'));
        observed.pinned.insert(object('a'));
        let actions = plan(&observed);
        assert!(
            actions.contains(&Action::Publish(entry('b', 'a'))),
            "pods without a pin run the config itself: {actions:?}"
        );
        settle(&mut observed);
        assert_eq!(released(&observed), object('b'));
    }

    #[test]
    fn a_choice_is_forgotten_when_a_later_change_was_released() {
        let mut observed = adopted('a');
        change(&mut observed, 'b');
        managed(&mut observed).choice = Some(Choice { version: "1.0.0".into(), instead_of: Some(object('b')) });
        settle(&mut observed);
        assert!(managed(&mut observed).choice.is_some() && released(&observed) == object('a'));
        change(&mut observed, 'c');
        assert_eq!(managed(&mut observed).choice, None);
        change(&mut observed, 'b');
        assert_eq!(released(&observed), object('b'), "it is meant");
    }

    #[test]
    fn what_was_chosen_and_failed_is_held_until_something_else_is_wanted() {
        let mut observed = adopted('a');
        change(&mut observed, 'b');
        managed(&mut observed).choice = Some(Choice { version: "1.0.0".into(), instead_of: None });
        assert!(plan(&observed).contains(&release('a')));
        hold(&mut observed, &object('a'));
        assert_eq!(plan(&observed), [], "it would fail again and again");
        managed(&mut observed).choice = None;
        assert_eq!(plan(&observed), [Action::LetGo], "the config is followed again");
    }

    #[test]
    fn whoever_was_left_with_what_failed_follows_when_the_change_is_taken_back() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        observed.versions.push(version('b'));
        hold(&mut observed, &object('b'));
        observed.stranded = Stranded::Somebody;
        assert_eq!(plan(&observed), [], "it is left to a person");
        observed.source = Some(source('a'));
        assert_eq!(plan(&observed), [release('a')]);
        observed.moving_to = Some(object('a'));
        assert_eq!(plan(&observed), [], "it is under way");
        observed.moving_to = None;
        observed.stranded = Stranded::NotYetKnown;
        assert_eq!(plan(&observed), [], "who is left with it shows when all are back");
        observed.stranded = Stranded::ForGood;
        assert_eq!(plan(&observed), [], "it did not help, and what failed is still told");
        observed.stranded = Stranded::Nobody;
        assert_eq!(plan(&observed), [Action::LetGo]);
        (observed.stranded, observed.source) = (Stranded::Somebody, None);
        assert_eq!(plan(&observed), [], "nobody says what it should be");
    }

    #[test]
    fn a_version_that_somebody_chose_and_that_failed_is_not_tried_again_and_again() {
        let mut observed = adopted('a');
        change(&mut observed, 'b');
        managed(&mut observed).choice = Some(Choice { version: "1.0.0".into(), instead_of: None });
        hold(&mut observed, &object('a'));
        settle(&mut observed);
        assert!(managed(&mut observed).held.is_some() && released(&observed) == object('b'));
        managed(&mut observed).choice = None;
        assert_eq!(plan(&observed), [Action::LetGo]);
    }

    #[test]
    fn whoever_has_what_was_on_its_way_is_taken_back_although_its_release_is_lost() {
        let mut observed = adopted('a');
        observed.versions.push(version('b'));
        observed.entry.moving = Some(object('b'));
        observed.left_behind = Some(object('b'));
        assert_eq!(plan(&observed), [release('a')], "the table keeps saying what they have");
        observed.next_is_fresh = true;
        assert_eq!(plan(&observed), [], "the change may be on its way");
        (observed.moving_to, observed.left_behind) = (Some(object('a')), None);
        let entry = Entry { moving: None, ..observed.entry.clone() };
        assert_eq!(plan(&observed), [Action::Publish(entry)], "a release knows that by now");
    }

    #[test]
    fn whoever_has_what_was_on_its_way_is_taken_back_also_while_what_the_config_says_is_held_or_refused() {
        let mut observed = adopted('a');
        observed.source = Some(source('c'));
        observed.versions.extend([version('b'), version('c')]);
        hold(&mut observed, &object('c'));
        (observed.entry.moving, observed.left_behind) = (Some(object('b')), Some(object('b')));
        assert_eq!(plan(&observed), [release('a')], "what failed is not tried again: all run what is current");
        observed.next_is_fresh = true;
        assert_eq!(plan(&observed), [], "the change may be on its way");
        observed.next_is_fresh = false;
        observed.source.as_mut().unwrap().obstacle = Some("no".into());
        assert_eq!(plan(&observed), [release('a'), Action::Refuse(Refusal::Obstacle("no".into()))]);
    }

    #[test]
    fn whoever_has_what_was_on_its_way_is_taken_back_also_while_the_config_is_gone() {
        let mut observed = adopted('a');
        observed.versions.push(version('b'));
        (observed.entry.moving, observed.left_behind) = (Some(object('b')), Some(object('b')));
        observed.source = None;
        assert_eq!(plan(&observed), [release('a')], "the table keeps saying what they have");
        observed.next_is_fresh = true;
        assert_eq!(plan(&observed), [], "the config may come again with it");
    }

    #[test]
    fn what_has_the_name_of_the_new_version_and_other_content_is_in_the_way() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        observed.versions.push(Version { digest: "b".repeat(10) + &"c".repeat(54), ..version('b') });
        let refused = Refusal::ObjectInTheWay { object: object('b') };
        assert!(refused.to_string().contains(&object('b')), "{refused}");
        assert_eq!(plan(&observed), [Action::Refuse(refused)], "nothing moves");
        observed.versions.pop();
        settle(&mut observed);
        assert_eq!(released(&observed), object('b'), "once it is gone");
    }

    #[test]
    fn a_config_whose_memory_is_lost_goes_on_from_what_the_table_hands_out_also_while_it_is_refused() {
        let mut observed = adopted('a');
        observed.managed = None;
        observed.source.as_mut().unwrap().obstacle = Some("no".into());
        let refused = Action::Refuse(Refusal::Obstacle("no".into()));
        let goes_on = Action::Complete { released: object('a'), last_number: 1 };
        assert_eq!(plan(&observed), [goes_on, refused.clone()], "else nothing would be current, and pods get it");
        observed.managed = Some(Managed { released: Some(object('a')), last_number: 1, ..Managed::default() });
        assert_eq!(plan(&observed), [refused], "on its own outcome it says only why");
        observed.managed = None;
        observed.versions.clear();
        assert!(!plan(&observed).iter().any(|action| matches!(action, Action::Complete { .. })), "it is gone");
    }

    #[test]
    fn what_is_wanted_again_is_kept_before_it_is_handed_out() {
        let mut observed = adopted('a');
        change(&mut observed, 'b');
        observed.unkept = BTreeSet::from([object('a')]);
        assert_eq!(plan(&observed), [], "it goes with those who run it");
        observed.source = Some(source('a'));
        let actions = plan(&observed);
        assert_eq!(actions.first(), Some(&Action::Keep { object: object('a') }));
        assert!(matches!(actions.get(1), Some(Action::Publish(_))));
        settle(&mut observed);
    }

    #[test]
    fn what_is_taken_back_is_nobodys_to_keep() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        observed.versions.push(version('b'));
        observed.moving_to = Some(object('b'));
        observed.source = Some(source('a'));
        let table = plan(&observed).into_iter().find_map(|action| match action {
            Action::Publish(entry) => Some(entry),
            _ => None,
        });
        assert_eq!(table.unwrap_or(observed.entry.clone()).moving, None);
    }

    fn released(observed: &Observed) -> String {
        observed.managed.as_ref().and_then(|managed| managed.released.clone()).unwrap_or_default()
    }

    fn version(letter: char) -> Version {
        let digest = digest(letter).full().to_owned();
        let name = VersionName::numbered(2);
        Version { object: object(letter), name, number: 2, digest, changed_by: None, reason: None }
    }

    /// The table's entry while nothing moves.
    fn entry(baseline: char, current: char) -> Entry {
        Entry { baseline: Some(object(baseline)), current: Some(object(current)), ..Entry::default() }
    }

    /// The entry that a plan leaves.
    fn published(observed: &Observed) -> Entry {
        let publish = plan(observed).into_iter().find_map(|action| match action {
            Action::Publish(entry) => Some(entry),
            _ => None,
        });
        publish.unwrap_or_else(|| observed.entry.clone())
    }

    fn release(letter: char) -> Action {
        Action::Release { to: object(letter) }
    }

    #[test]
    fn adopting_makes_the_first_version_and_moves_nothing() {
        let mut observed = fresh('a');
        assert!(!plan(&observed).iter().any(|action| matches!(action, Action::Release { .. })));
        settle(&mut observed);
        assert_eq!(observed.versions[0].name.as_str(), "1.0.0");
        assert_eq!(observed.entry, entry('a', 'a'));
    }

    #[test]
    fn a_change_is_offered_to_whoever_joins_and_asks_for_a_release() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        let actions = plan(&observed);
        assert!(actions.contains(&release('b')), "{actions:?}");
        let offered = Entry { next: Some(object('b')), moving: Some(object('b')), ..entry('a', 'a') };
        assert!(actions.contains(&Action::Publish(offered)), "{actions:?}");
        settle(&mut observed);
        assert_eq!(observed.entry, entry('a', 'b'), "old templates stay with what they were written against");
    }

    #[test]
    fn a_release_under_way_is_not_asked_for_again() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        observed.moving_to = Some(object('b'));
        assert!(!plan(&observed).contains(&release('b')));
        observed.source = Some(source('a'));
        assert!(plan(&observed).contains(&release('a')), "a change that is taken back");
    }

    #[test]
    fn where_consumers_go_in_waves_nobody_joins_and_who_was_moved_stays() {
        let mut observed = Observed { can_join: false, ..adopted('a') };
        observed.source = Some(source('b'));
        assert!(plan(&observed).contains(&release('b')));
        observed.entry = published(&observed);
        assert_eq!(observed.entry, Entry { moving: Some(object('b')), ..entry('a', 'a') });
        observed.moving_to = Some(object('b'));
        assert_eq!(published(&observed), observed.entry, "the same when the release is there");
        (observed.moving_to, managed(&mut observed).released) = (None, Some(object('b')));
        assert_eq!(published(&observed), entry('a', 'b'));
    }

    #[test]
    fn nobody_stays_with_what_is_put_back() {
        let mut observed = Observed { can_join: false, ..adopted('a') };
        observed.source = Some(source('b'));
        (observed.entry, observed.moving_to) = (published(&observed), None);
        hold(&mut observed, &object('b'));
        assert_eq!(published(&observed), entry('a', 'a'));
    }

    #[test]
    fn a_change_that_cannot_be_does_not_disturb_the_release_under_way() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        (observed.entry, observed.moving_to) = (published(&observed), Some(object('b')));
        let under_way = Entry { moving: Some(object('b')), ..entry('a', 'a') };
        let refused = Source { version_name: Some("current".into()), ..source('c') };
        let invalid = Source { invalid: Some("key x".into()), ..source('c') };
        for bad in [refused, invalid] {
            let mut observed = Observed { source: Some(bad), ..observed.clone() };
            assert_eq!(published(&observed), under_way);
            (observed.moving_to, managed(&mut observed).released) = (None, Some(object('b')));
            assert_eq!(published(&observed), entry('a', 'b'), "it has succeeded");
        }
    }

    #[test]
    fn a_rule_that_is_written_in_the_middle_of_a_release_does_not_reject_it() {
        let mut observed = adopted('a');
        observed.source = Some(Source { invalid: Some("key x".into()), ..source('b') });
        observed.versions.push(version('b'));
        (observed.moving_to, observed.under_way) = (Some(object('b')), None);
        let is_rejected =
            |observed: &Observed| plan(observed).iter().any(|action| matches!(action, Action::Reject { .. }));
        assert!(is_rejected(&observed), "it has not started");
        observed.under_way = Some(object('b'));
        assert!(!is_rejected(&observed));
    }

    #[test]
    fn a_release_counts_until_another_takes_its_place() {
        let mut observed = Observed { can_join: false, moving_to: Some(object('b')), ..adopted('a') };
        observed.source = Some(source('c'));
        assert_eq!(published(&observed).moving, Some(object('b')));
        observed.moving_to = Some(object('c'));
        observed.under_way = Some(object('b'));
        assert_eq!(published(&observed).moving, Some(object('b')), "the other one waits for its end");
        observed.under_way = None;
        assert_eq!(published(&observed).moving, Some(object('c')));
    }

    #[test]
    fn a_held_version_is_not_tried_again_until_the_source_changes_or_somebody_asks() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        hold(&mut observed, &object('b'));
        assert!(!plan(&observed).contains(&release('b')));
        managed(&mut observed).retry = Some("release-2".into());
        assert!(plan(&observed).contains(&release('b')));
        managed(&mut observed).retry = Some("release-1".into());
        assert!(!plan(&observed).contains(&release('b')));
        observed.source = Some(source('c'));
        let actions = plan(&observed);
        assert!(actions.contains(&Action::LetGo) && actions.contains(&release('c')), "{actions:?}");
    }

    #[test]
    fn a_held_version_is_tried_again_once_what_failed_with_it_is_another() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        let managed = managed(&mut observed);
        managed.held = Some(Held { object: object('b'), release: "release-2".into(), is_outdated: true });
        let actions = plan(&observed);
        assert!(
            actions.contains(&Action::LetGo) && actions.contains(&Action::Release { to: object('b') }),
            "{actions:?}"
        );
    }

    #[test]
    fn a_config_whose_versioned_config_was_lost_goes_on_from_what_the_table_hands_out() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        observed.versions.push(Version {
            object: object('b'),
            digest: digest('b').full().into(),
            ..observed.versions[0].clone()
        });
        observed.managed = None;
        let actions = plan(&observed);
        let released =
            |action: &Action| matches!(action, Action::Complete { released, .. } if *released == object('a'));
        assert!(actions.iter().any(released), "{actions:?}");
    }

    #[test]
    fn invalid_content_becomes_a_version_that_is_held_and_never_offered() {
        let mut observed = adopted('a');
        observed.source = Some(Source { invalid: Some("key x".into()), ..source('b') });
        let actions = plan(&observed);
        assert!(actions.contains(&Action::Reject { version: object('b'), reason: "key x".into() }), "{actions:?}");
        assert!(!actions.contains(&release('b')));
        settle(&mut observed);
        assert_eq!(observed.entry.next, None);
        assert_eq!(observed.entry.current, Some(object('a')));
    }

    #[test]
    fn somebody_may_choose_an_earlier_version() {
        let mut observed = adopted('a');
        change(&mut observed, 'b');
        managed(&mut observed).choice = Some(Choice { version: "1.0.0".into(), instead_of: None });
        settle(&mut observed);
        assert_eq!(observed.entry.current, Some(object('a')));
        change(&mut observed, 'c');
        assert_eq!(observed.entry.current, Some(object('a')), "until the choice is taken back");
        managed(&mut observed).choice = None;
        settle(&mut observed);
        assert_eq!(observed.entry.current, Some(object('c')));
    }

    #[test]
    fn a_choice_may_end_with_the_next_change() {
        let mut observed = adopted('a');
        change(&mut observed, 'b');
        managed(&mut observed).choice = Some(Choice { version: "1.0.0".into(), instead_of: Some("r2".into()) });
        settle(&mut observed);
        assert_eq!(observed.entry.current, Some(object('a')));
        change(&mut observed, 'c');
        assert_eq!(observed.entry.current, Some(object('c')));
    }

    #[test]
    fn a_choice_of_nothing_is_refused() {
        let mut observed = adopted('a');
        managed(&mut observed).choice = Some(Choice { version: "9.9.9".into(), instead_of: None });
        assert!(matches!(&plan(&observed)[..], [Action::Refuse(Refusal::NoSuchVersion { .. })]));
    }

    #[test]
    fn a_choice_of_what_was_rejected_is_refused_unless_the_source_has_it_and_is_checked() {
        let mut observed = adopted('a');
        change(&mut observed, 'b');
        managed(&mut observed).choice = Some(Choice { version: "1.0.0".into(), instead_of: None });
        observed.rejected = [object('a')].into();
        assert!(matches!(plan(&observed).last(), Some(Action::Refuse(Refusal::ChoiceRejected { .. }))));
        observed.source = Some(source('a'));
        assert!(plan(&observed).contains(&Action::Release { to: object('a') }));
    }

    #[test]
    fn the_baseline_goes_with_the_last_unpinned_template() {
        let mut observed = adopted('a');
        change(&mut observed, 'b');
        assert_eq!(observed.entry.baseline, Some(object('a')));
        observed.has_unpinned_templates = false;
        settle(&mut observed);
        assert_eq!(observed.entry.baseline, Some(object('b')));
    }

    #[test]
    fn earlier_content_finds_its_earlier_version() {
        let mut observed = fresh('a');
        settle(&mut observed);
        change(&mut observed, 'b');
        change(&mut observed, 'a');
        assert_eq!(observed.versions.len(), 2);
        assert_eq!(observed.entry.current, Some(object('a')));
        change(&mut observed, 'c');
        assert_eq!(observed.versions[2].number, 3);
    }

    #[test]
    fn numbers_only_grow_also_when_versions_are_gone() {
        let mut observed = fresh('a');
        settle(&mut observed);
        change(&mut observed, 'b');
        change(&mut observed, 'c');
        observed.versions.clear();
        change(&mut observed, 'd');
        assert_eq!(observed.versions[0].number, 4);
        assert_eq!(observed.versions[0].name.as_str(), "r4");
    }

    /// What the VersionedConfig's status remembers.
    fn remember_names(observed: &mut Observed) {
        let given = |version: &Version| Given {
            name: version.name.to_string(),
            number: version.number,
            object: version.object.clone(),
            was_current: false,
        };
        let versions: Vec<Given> = observed.versions.iter().map(given).collect();
        let names = crate::version::remember(&managed(observed).names, &versions, None);
        managed(observed).names = names;
    }

    #[test]
    fn a_name_stands_for_its_content_also_when_its_version_is_gone() {
        let mut observed = adopted('a');
        observed.source = Some(Source { version_name: Some("1.4.0".into()), ..source('b') });
        settle(&mut observed);
        change(&mut observed, 'c');
        remember_names(&mut observed);
        observed.versions.retain(|version| version.object != object('b'));
        observed.source = Some(Source { version_name: Some("1.4.0".into()), ..source('d') });
        assert_eq!(plan(&observed), [Action::Refuse(Refusal::NameTaken { name: "1.4.0".into() })]);
        change(&mut observed, 'b');
        let again = observed.versions.iter().find(|version| version.object == object('b')).unwrap();
        assert_eq!((again.name.as_str(), again.number), ("1.4.0", 2), "the same content is called the same again");
        change(&mut observed, 'd');
        let newest = observed.versions.iter().find(|version| version.object == object('d')).unwrap();
        assert_eq!((newest.name.as_str(), newest.number), ("r4", 4));
    }

    #[test]
    fn a_choice_outlives_the_version_that_it_stands_in_for() {
        let mut observed = adopted('a');
        change(&mut observed, 'b');
        let choice = Choice { version: "1.0.0".into(), instead_of: Some(object('b')) };
        managed(&mut observed).choice = Some(choice);
        settle(&mut observed);
        assert_eq!(observed.entry.current, Some(object('a')));
        observed.versions.retain(|version| version.object != object('b'));
        assert!(!plan(&observed).iter().any(|action| matches!(action, Action::Release { .. })));
        settle(&mut observed);
        assert_eq!(observed.versions.last().unwrap().object, object('b'), "made again, whatever it is called");
        assert_eq!(observed.entry.current, Some(object('a')));
        change(&mut observed, 'c');
        assert_eq!(observed.entry.current, Some(object('c')), "the next change is released");
    }

    #[test]
    fn a_choice_is_forgotten_after_a_later_change_also_when_the_version_that_it_stood_in_for_is_gone() {
        for instead_of in [object('b'), "r2".to_owned()] {
            let mut observed = adopted('a');
            change(&mut observed, 'b');
            managed(&mut observed).choice = Some(Choice { version: "1.0.0".into(), instead_of: Some(instead_of) });
            settle(&mut observed);
            remember_names(&mut observed);
            observed.versions.retain(|version| version.object != object('b'));
            change(&mut observed, 'c');
            assert_eq!(managed(&mut observed).choice, None);
            change(&mut observed, 'b');
            assert_eq!(released(&observed), object('b'), "it is meant");
        }
    }

    #[test]
    fn a_name_stands_for_one_content() {
        let mut observed = fresh('a');
        observed.source.as_mut().unwrap().version_name = Some("1.4.0".into());
        settle(&mut observed);
        observed.source = Some(Source { version_name: Some("1.4.0".into()), ..source('b') });
        let refusal = plan(&observed);
        assert_eq!(refusal, [Action::Refuse(Refusal::NameTaken { name: "1.4.0".into() })]);
        observed.source = Some(Source { version_name: Some("1.4.1".into()), ..source('b') });
        settle(&mut observed);
        assert_eq!(observed.versions[1].name.as_str(), "1.4.1");
    }

    #[test]
    fn what_was_announced_a_moment_ago_is_waited_for() {
        let mut observed = fresh('a');
        settle(&mut observed);
        observed.entry.next = Some("app-announced".into());
        observed.next_is_fresh = true;
        assert_eq!(plan(&observed), []);
        observed.next_is_fresh = false;
        assert!(matches!(&plan(&observed)[..], [Action::Publish(entry)] if entry.next.is_none()));
    }

    #[test]
    fn what_was_withdrawn_a_moment_ago_is_not_offered_again_before_its_config_speaks() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        for action in plan(&observed) {
            if let Action::CreateVersion(version) = action {
                observed.versions.push(version);
            }
        }
        observed.moving_to = Some(object('b'));
        observed.next_is_fresh = true;
        assert_eq!(plan(&observed), [], "somebody takes it back");
        observed.next_is_fresh = false;
        assert!(matches!(&plan(&observed)[..], [Action::Publish(entry)] if entry.moving == Some(object('b'))));
        observed.next_is_fresh = true;
        observed.source = Some(source('c'));
        let offers = |action: &Action| matches!(action, Action::Publish(entry) if entry.next == Some(object('c')));
        assert!(plan(&observed).iter().any(offers), "another change is another matter");
    }

    #[test]
    fn what_is_announced_in_the_middle_of_a_release_is_not_replaced_by_what_is_released() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        observed.versions.push(version('b'));
        (observed.entry, observed.moving_to) = (published(&observed), Some(object('b')));
        observed.next_is_fresh = true;
        assert_eq!(published(&observed), observed.entry);
        observed.entry.next = Some(object('c'));
        assert_eq!(published(&observed).next, Some(object('c')), "its config comes in a moment");
        observed.next_is_fresh = false;
        assert_eq!(published(&observed).next, Some(object('b')), "it never came");
    }

    #[test]
    fn what_opted_out_is_not_handed_out_any_more_once_its_release_has_ended() {
        let mut observed = adopted('a');
        (observed.source, observed.has_opted_out) = (None, true);
        observed.moving_to = Some(object('a'));
        assert_eq!(plan(&observed), []);
        observed.moving_to = None;
        assert_eq!(plan(&observed), [Action::Publish(Entry::default())]);
        let lost = Observed { managed: None, ..observed.clone() };
        assert_eq!(plan(&lost), [Action::Publish(Entry::default())], "although nobody knows what was released");
        observed.entry = Entry::default();
        assert_eq!(plan(&observed), []);
        (observed.source, observed.has_opted_out) = (Some(source('a')), false);
        assert_eq!(plan(&observed), [Action::Publish(entry('a', 'a'))], "it opts in again");
    }

    #[test]
    fn what_is_gone_is_not_handed_out_when_its_config_comes_back() {
        let mut observed = adopted('a');
        (observed.source, observed.managed, observed.has_consumers) = (None, None, false);
        observed.has_opted_out = true;
        assert_eq!(plan(&observed), [], "its workload may be made anew");
        observed.versions.clear();
        let withdrawn = [Action::Publish(Entry::default())];
        assert_eq!(plan(&observed), withdrawn);
        observed.has_consumers = true;
        assert_eq!(plan(&observed), withdrawn);
        observed.has_opted_out = false;
        change(&mut observed, 'b');
        assert_eq!(observed.entry, entry('b', 'b'), "it is adopted anew, also for templates without a pin");
    }

    #[test]
    fn a_config_whose_current_version_is_gone_and_in_no_table_is_adopted_anew() {
        let mut observed = adopted('a');
        observed.versions.clear();
        observed.entry = Entry::default();
        change(&mut observed, 'b');
        assert_eq!((observed.entry.clone(), released(&observed)), (entry('b', 'b'), object('b')));
    }

    #[test]
    fn what_was_announced_and_is_refused_is_withdrawn() {
        let mut observed = fresh('a');
        settle(&mut observed);
        let settled = observed.entry.clone();
        observed.entry.next = Some("app-announced".into());
        observed.source = Some(Source { version_name: Some("current".into()), ..source('b') });
        assert_eq!(plan(&observed)[0], Action::Publish(settled));
    }

    #[test]
    fn what_cannot_become_a_version_is_not_offered_and_what_is_current_is_handed_out() {
        let mut observed = adopted('a');
        observed.source = Some(source('b'));
        let offered = published(&observed);
        assert_eq!(offered.next, Some(object('b')));
        let no_policy = Source { obstacle: Some("there is no policy".into()), ..source('b') };
        (observed.entry, observed.source) = (offered, Some(no_policy));
        let refused = Action::Refuse(Refusal::Obstacle("there is no policy".into()));
        assert_eq!(plan(&observed), [Action::Publish(entry('a', 'a')), refused.clone()], "it is withdrawn");
        observed.entry = entry('a', 'a');
        assert_eq!(plan(&observed), std::slice::from_ref(&refused));
        managed(&mut observed).released = Some(object('b'));
        assert_eq!(
            plan(&observed),
            [Action::Publish(entry('a', 'b')), refused],
            "a release that was under way has succeeded"
        );
    }

    #[test]
    fn a_number_that_somebody_took_by_hand_is_passed_over() {
        let mut observed = fresh('a');
        settle(&mut observed);
        observed.source = Some(Source { version_name: Some("r3".into()), ..source('b') });
        settle(&mut observed);
        change(&mut observed, 'c');
        assert_eq!(observed.versions[2].name.as_str(), "r4");
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        let mut observed = fresh('a');
        observed.source.as_mut().unwrap().version_name = Some("current".into());
        assert!(matches!(plan(&observed)[..], [Action::Refuse(Refusal::BadName(_))]));
        let long = Observed { config: ConfigRef::new(ConfigMap, "a".repeat(250)), ..fresh('a') };
        assert!(matches!(plan(&long)[..], [Action::Refuse(Refusal::NameTooLong { length: 250 })]));
    }

    #[test]
    fn a_deleted_source_is_forgotten_with_its_last_consumer() {
        let mut observed = fresh('a');
        settle(&mut observed);
        observed.source = None;
        assert_eq!(plan(&observed), []);
        observed.has_consumers = false;
        assert_eq!(plan(&observed), [], "an object that is recreated is gone for a moment, too");
        observed.is_long_unused = true;
        assert_eq!(plan(&observed), [Action::Forget]);
        settle(&mut observed);
    }

    #[test]
    fn without_a_source_a_release_goes_to_its_end_and_its_table_entry_follows() {
        let mut observed = fresh('a');
        settle(&mut observed);
        let first = observed.versions[0].object.clone();
        observed.source = Some(source('b'));
        let publish = plan(&observed).into_iter().find_map(|action| match action {
            Action::Publish(entry) => Some(entry),
            Action::CreateVersion(version) => {
                observed.versions.push(version);
                None
            }
            _ => None,
        });
        let second = observed.versions[1].object.clone();
        (observed.entry, observed.moving_to, observed.source) = (publish.unwrap(), Some(second.clone()), None);
        assert_eq!(observed.entry.next.as_ref(), Some(&second));
        let takes_back = Action::Release { to: first.clone() };
        assert!(plan(&observed).contains(&takes_back), "it has not started, and nobody says any more that it should");
        observed.under_way = Some(second.clone());
        assert_eq!(plan(&observed), [], "it is under way");

        let mut bad = observed.clone();
        (bad.moving_to, bad.under_way) = (None, None);
        hold(&mut bad, &second);
        settle(&mut bad);
        assert_eq!(
            (bad.entry.current.as_ref(), bad.entry.next.as_ref()),
            (Some(&first), None),
            "nobody joins what failed"
        );
        assert!(managed(&mut bad).held.is_some(), "the same content may come back");

        let mut good = observed;
        (good.moving_to, good.under_way) = (None, None);
        managed(&mut good).released = Some(second.clone());
        settle(&mut good);
        assert_eq!((good.entry.current.as_ref(), good.entry.next.as_ref()), (Some(&second), None));
    }

    #[test]
    fn without_a_source_an_earlier_version_can_be_chosen() {
        let mut observed = fresh('a');
        settle(&mut observed);
        observed.source = Some(source('b'));
        settle(&mut observed);
        observed.source = None;
        assert_eq!(plan(&observed), []);
        let (first, second) = (observed.versions[0].clone(), observed.versions[1].clone());
        let choice = Choice { version: first.name.to_string(), instead_of: Some(second.name.to_string()) };
        managed(&mut observed).choice = Some(choice);
        assert!(plan(&observed).contains(&Action::Release { to: first.object.clone() }));
        managed(&mut observed).released = Some(first.object.clone());
        settle(&mut observed);
        assert_eq!(observed.entry.current, Some(first.object));
    }
}
