//! What to do about a config: `plan(observed)` compares what should be with what is and says what is missing.
//!
//! It is called again whenever something changed, and after its own actions: on their outcome it plans nothing. A change is
//! released to all consumers at once.

use std::collections::BTreeSet;

use crate::config::ConfigRef;
use crate::digest::{Digest, MAX_CONFIG_NAME_LENGTH};
use crate::pins::{Pin, Pins};
use crate::table::Entry;
use crate::version::{Version, VersionName};

/// A config's content and what its user says about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub digest: Digest,
    /// The name that the user gives this content.
    pub version_name: Option<String>,
    pub changed_by: Option<String>,
    pub reason: Option<String>,
}

/// All that is known of one config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub config: ConfigRef,
    /// None if it was deleted or did not opt in.
    pub source: Option<Source>,
    pub versions: Vec<Version>,
    pub entry: Entry,
    /// None until the config is under our care.
    pub managed: Option<Managed>,
    /// What the consumers' templates are pinned to.
    pub consumers: Vec<ConsumerPin>,
    /// Whether the table's `next` was announced a moment ago: the write of the config that it stands for may still be on its way.
    pub next_is_fresh: bool,
    /// Whether any template, also an old one that a workload could go back to, is not pinned.
    pub has_unpinned_templates: bool,
}

/// What the VersionedConfig remembers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Managed {
    /// The version that was last released to every consumer.
    pub released: Option<String>,
    /// The highest number that a version ever had.
    pub last_number: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerPin {
    pub pin: Option<Pin>,
    /// Whether its template can be changed: a Job's cannot.
    pub can_change: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Put the config under our care.
    Adopt,
    /// Copy the source's content into a version.
    CreateVersion(Version),
    /// Tell the API server which versions to hand out.
    Publish(Entry),
    /// Pin every consumer that can be changed to what the table calls current.
    PinConsumers,
    /// All consumers have it: say so.
    Complete { released: String, last_number: u64 },
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
        "its name has {length} characters, and with {MAX_CONFIG_NAME_LENGTH} at most its versions can be named after it: give it a shorter name"
    )]
    NameTooLong { length: usize },
    #[error("the object {object} is in the way of its new version: remove or rename it")]
    ObjectInTheWay { object: String },
}

pub fn plan(observed: &Observed) -> Vec<Action> {
    match &observed.source {
        None => plan_without_source(observed),
        Some(source) => match wanted_version(observed, source) {
            Ok(wanted) => plan_release(observed, &wanted),
            Err(refusal) => withdraw_next(observed).chain([Action::Refuse(refusal)]).collect(),
        },
    }
}

/// Nothing that is in use goes: the table goes on handing out what is current until the last consumer is gone.
fn plan_without_source(observed: &Observed) -> Vec<Action> {
    let known = observed.managed.is_some() || observed.entry != Entry::default();
    if known && observed.consumers.is_empty() { vec![Action::Forget] } else { Vec::new() }
}

/// What was announced and will not come must not be joined.
fn withdraw_next(observed: &Observed) -> impl Iterator<Item = Action> {
    let announced = observed.entry.next.is_some() && !observed.next_is_fresh;
    let entry = Entry { next: None, ..observed.entry.clone() };
    announced.then_some(Action::Publish(entry)).into_iter()
}

/// The version that has the source's content: an earlier one, or a new one.
enum Wanted {
    Known(Version),
    New(Version),
}

impl Wanted {
    fn object(&self) -> &str {
        match self {
            Self::Known(version) | Self::New(version) => &version.object,
        }
    }
}

fn wanted_version(observed: &Observed, source: &Source) -> Result<Wanted, Refusal> {
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
    let (number, name) = next_name(observed, source.version_name.as_deref())?;
    let digest = source.digest.full().to_owned();
    let (changed_by, reason) = (source.changed_by.clone(), source.reason.clone());
    Ok(Wanted::New(Version { object, name, number, digest, changed_by, reason }))
}

fn next_name(observed: &Observed, chosen: Option<&str>) -> Result<(u64, VersionName), Refusal> {
    let taken: BTreeSet<&VersionName> = observed.versions.iter().map(|version| &version.name).collect();
    let number = last_number(observed) + 1;
    let Some(chosen) = chosen else {
        // Somebody may have called a version `r7` by hand: the number then goes on to the next free one.
        let candidates = number..=number + taken.len() as u64;
        let free = candidates.clone().find(|number| !taken.contains(&VersionName::numbered(*number)));
        let free = free.unwrap_or(*candidates.end());
        return Ok((free, VersionName::numbered(free)));
    };
    let name: VersionName = chosen.parse()?;
    if taken.contains(&name) {
        return Err(Refusal::NameTaken { name: chosen.to_owned() });
    }
    Ok((number, name))
}

fn last_number(observed: &Observed) -> u64 {
    let known = observed.versions.iter().map(|version| version.number);
    known.chain(observed.managed.as_ref().map(|managed| managed.last_number)).max().unwrap_or(0)
}

fn plan_release(observed: &Observed, wanted: &Wanted) -> Vec<Action> {
    let object = wanted.object().to_owned();
    let mut actions = Vec::new();
    let mut last_number = last_number(observed);
    if observed.managed.is_none() {
        actions.push(Action::Adopt);
    }
    if let Wanted::New(version) = wanted {
        last_number = last_number.max(version.number);
        actions.push(Action::CreateVersion(version.clone()));
    }
    let released = observed.managed.as_ref().and_then(|managed| managed.released.as_deref());
    // What unpinned templates were written against is settled when the config is adopted, and matters for as long as there are any.
    let adopted = observed.entry.baseline.clone().filter(|_| observed.has_unpinned_templates);
    let next = observed.entry.next.clone().filter(|next| observed.next_is_fresh && *next != object);
    let entry = Entry { baseline: adopted.or_else(|| Some(object.clone())), current: Some(object.clone()), next };
    if entry != observed.entry {
        actions.push(Action::Publish(entry));
    }
    if released == Some(object.as_str()) {
        return actions;
    }
    // At its adoption a config is what consumers run already: nothing has to change.
    if released.is_some() && !all_pinned(&observed.consumers, &object) {
        actions.push(Action::PinConsumers);
    } else {
        actions.push(Action::Complete { released: object, last_number });
    }
    actions
}

fn all_pinned(consumers: &[ConsumerPin], object: &str) -> bool {
    consumers.iter().filter(|consumer| consumer.can_change).all(|consumer| match &consumer.pin {
        Some(Pin::Version(pinned)) => pinned == object,
        Some(Pin::Live) => true,
        None => false,
    })
}

/// The pins that a consumer should have: `releasing` names the version of a config whose release is under way. Configs that are
/// not being released keep the pin that they have, also an older one: somebody chose it.
pub fn consumer_pins<'a>(
    pins: &Pins,
    references: &[ConfigRef],
    releasing: impl Fn(&ConfigRef) -> Option<&'a str>,
) -> Option<Pins> {
    let mut wanted = pins.clone();
    for config in references {
        match (pins.get(config), releasing(config)) {
            (Some(Pin::Live), _) | (_, None) => {}
            (_, Some(object)) => wanted.set(config.clone(), Pin::Version(object.to_owned())),
        }
    }
    (wanted != *pins).then_some(wanted)
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
        Source { digest: digest(letter), version_name: None, changed_by: None, reason: None }
    }

    fn fresh(letter: char) -> Observed {
        Observed {
            config: ConfigRef::new(ConfigMap, "app"),
            source: Some(source(letter)),
            versions: Vec::new(),
            entry: Entry::default(),
            managed: None,
            consumers: Vec::new(),
            next_is_fresh: false,
            has_unpinned_templates: true,
        }
    }

    fn pinned(pin: Option<&str>) -> ConsumerPin {
        ConsumerPin { pin: pin.map(Pin::from), can_change: true }
    }

    /// A cluster that does as it is told.
    fn perform(observed: &mut Observed) {
        for action in plan(observed) {
            match action {
                Action::Adopt => observed.managed = Some(Managed::default()),
                Action::CreateVersion(version) => observed.versions.push(version),
                Action::Publish(entry) => observed.entry = entry,
                Action::PinConsumers => {
                    let current = observed.entry.current.clone().unwrap();
                    for consumer in observed.consumers.iter_mut().filter(|consumer| consumer.can_change) {
                        consumer.pin = Some(Pin::Version(current.clone()));
                    }
                }
                Action::Complete { released, last_number } => {
                    observed.managed = Some(Managed { released: Some(released), last_number });
                }
                Action::Forget => (observed.managed, observed.entry) = (None, Entry::default()),
                Action::Refuse(_) => {}
            }
        }
    }

    fn settle(observed: &mut Observed) {
        for _ in 0..4 {
            perform(observed);
        }
        assert_eq!(plan(observed), [], "a plan on its own outcome");
    }

    fn change(observed: &mut Observed, letter: char) {
        observed.source = Some(source(letter));
        settle(observed);
    }

    #[test]
    fn adopting_makes_the_first_version_and_restarts_nothing() {
        let mut observed = Observed { consumers: vec![pinned(None)], ..fresh('a') };
        assert!(!plan(&observed).contains(&Action::PinConsumers));
        settle(&mut observed);
        assert_eq!(observed.versions[0].name.as_str(), "1.0.0");
        assert_eq!(observed.entry.current, Some(object('a')));
        assert_eq!(observed.entry.baseline, Some(object('a')));
        assert_eq!(observed.consumers, [pinned(None)]);
    }

    #[test]
    fn a_change_is_pinned_everywhere_and_completed_after_that() {
        let mut observed = Observed { consumers: vec![pinned(None), pinned(None)], ..fresh('a') };
        settle(&mut observed);
        observed.source = Some(source('b'));
        let first = plan(&observed);
        assert!(first.contains(&Action::PinConsumers), "{first:?}");
        assert!(!first.iter().any(|action| matches!(action, Action::Complete { .. })), "{first:?}");
        settle(&mut observed);
        assert_eq!(observed.consumers, [pinned(Some(&object('b'))), pinned(Some(&object('b')))]);
        assert_eq!(observed.managed.as_ref().unwrap().released, Some(object('b')));
        assert_eq!(
            observed.entry.baseline,
            Some(object('a')),
            "old templates stay with what they were written against"
        );
    }

    #[test]
    fn the_baseline_goes_with_the_last_unpinned_template() {
        let mut observed = fresh('a');
        settle(&mut observed);
        change(&mut observed, 'b');
        assert_eq!(observed.entry.baseline, Some(object('a')));
        observed.has_unpinned_templates = false;
        settle(&mut observed);
        assert_eq!(observed.entry.baseline, Some(object('b')));
    }

    #[test]
    fn a_job_does_not_hold_up_a_release() {
        let job = ConsumerPin { pin: None, can_change: false };
        let mut observed = Observed { consumers: vec![job.clone()], ..fresh('a') };
        settle(&mut observed);
        change(&mut observed, 'b');
        assert_eq!(observed.managed.unwrap().released, Some(object('b')));
        assert_eq!(observed.consumers, [job]);
    }

    #[test]
    fn an_undone_consumer_is_left_alone_until_the_next_release() {
        let mut observed = Observed { consumers: vec![pinned(None)], ..fresh('a') };
        settle(&mut observed);
        change(&mut observed, 'b');
        observed.consumers = vec![pinned(Some(&object('a')))];
        assert_eq!(plan(&observed), []);
        change(&mut observed, 'c');
        assert_eq!(observed.consumers, [pinned(Some(&object('c')))]);
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
    fn what_was_announced_and_is_refused_is_withdrawn() {
        let mut observed = Observed { consumers: vec![pinned(None)], ..fresh('a') };
        settle(&mut observed);
        let settled = observed.entry.clone();
        observed.entry.next = Some("app-announced".into());
        observed.source = Some(Source { version_name: Some("current".into()), ..source('b') });
        assert_eq!(plan(&observed)[0], Action::Publish(settled));
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
        let mut observed = Observed { consumers: vec![pinned(None)], ..fresh('a') };
        settle(&mut observed);
        observed.source = None;
        assert_eq!(plan(&observed), []);
        observed.consumers.clear();
        assert_eq!(plan(&observed), [Action::Forget]);
        settle(&mut observed);
    }

    #[test]
    fn one_patch_brings_a_consumer_all_that_is_being_released() {
        let configs: Vec<ConfigRef> = ["a", "b", "c", "d"].map(|name| ConfigRef::new(ConfigMap, name)).to_vec();
        let pins: Pins = "configmap/a=a-1,configmap/c=c-1,configmap/d=live".parse().unwrap();
        let releasing = |config: &ConfigRef| match config.name.as_str() {
            "a" => Some("a-2"),
            "b" => Some("b-2"),
            "d" => Some("d-2"),
            _ => None,
        };
        let wanted = consumer_pins(&pins, &configs, releasing).unwrap();
        assert_eq!(wanted.to_string(), "configmap/a=a-2,configmap/b=b-2,configmap/c=c-1,configmap/d=live");
        assert_eq!(consumer_pins(&wanted, &configs, releasing), None);
    }
}
