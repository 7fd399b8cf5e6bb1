//! Events about configs, also about those whose names are too long for an Event named after them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lockstep_core::config::MAX_NAME_LENGTH;
use lockstep_core::release::Phase;
use serde_json::json;

use crate::environment::Clock;

/// What comes after the object's name in an Event's: a dot and sixteen hexadecimal digits.
const SUFFIX_LENGTH: usize = 17;
/// For how long the same words about the same object are counted in one Event.
const MOMENT: SignedDuration = SignedDuration::from_mins(6);
/// Where Events about objects without a namespace go.
const DEFAULT_NAMESPACE: &str = "default";
/// The API server takes no longer notes.
const MAX_NOTE_BYTES: usize = 1024;

/// Why an Event is told. Each has its place in docs/operations.md, which says what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A release entered this phase.
    Phase(Phase),
    /// A release pinned a workload to its version.
    ConfigReleased,
    /// A release put a workload's old version back.
    ConfigRolledBack,
    /// Somebody ran a version only after its release had ended, and is well or not.
    JudgedLater { is_well: bool },
    /// A change cannot become a version.
    Refused,
    /// An object cannot be read.
    Unreadable,
    /// The rules or schemas of a policy cannot be used.
    InvalidPolicy,
    /// An object says that it is a version, and is not.
    ForgedVersion,
    /// A workload is pinned to a version that does not exist.
    UnknownVersion,
}

impl Reason {
    #[cfg(test)]
    fn all() -> impl Iterator<Item = Self> {
        let others = [
            Self::ConfigReleased,
            Self::ConfigRolledBack,
            Self::JudgedLater { is_well: true },
            Self::Refused,
            Self::Unreadable,
            Self::InvalidPolicy,
            Self::ForgedVersion,
            Self::UnknownVersion,
        ];
        Phase::ALL.into_iter().map(Self::Phase).chain(others)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Phase(phase) => phase.name(),
            Self::ConfigReleased => "ConfigReleased",
            Self::ConfigRolledBack => "ConfigRolledBack",
            Self::JudgedLater { .. } => "JudgedLater",
            Self::Refused => "Refused",
            Self::Unreadable => "Unreadable",
            Self::InvalidPolicy => "InvalidPolicy",
            Self::ForgedVersion => "ForgedVersion",
            Self::UnknownVersion => "UnknownVersion",
        }
    }

    fn kind(self) -> &'static str {
        use Phase::{Aborted, Failed, Rejected, RolledBack, RollingBack};
        match self {
            Self::Phase(RollingBack | RolledBack | Failed | Rejected | Aborted)
            | Self::ConfigRolledBack
            | Self::JudgedLater { is_well: false }
            | Self::Refused
            | Self::Unreadable
            | Self::InvalidPolicy
            | Self::ForgedVersion
            | Self::UnknownVersion => "Warning",
            Self::Phase(_) | Self::ConfigReleased | Self::JudgedLater { .. } => "Normal",
        }
    }

    fn action(self) -> &'static str {
        match self {
            Self::ConfigReleased | Self::ConfigRolledBack | Self::UnknownVersion => "Pin",
            Self::Phase(_) | Self::JudgedLater { .. } | Self::Refused | Self::ForgedVersion => "Release",
            Self::Unreadable | Self::InvalidPolicy => "Read",
        }
    }
}

/// Who tells it.
#[derive(Debug, Clone)]
pub struct Reporter {
    pub controller: String,
    pub instance: String,
}

/// What is told, and of what.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Saying {
    namespace: String,
    name: String,
    uid: String,
    reason: &'static str,
    note: String,
}

/// The Event that was made of it, and how often it was said.
#[derive(Debug, Clone)]
struct Said {
    event: String,
    times: i32,
    last: Timestamp,
}

pub struct Events {
    client: Client,
    clock: Clock,
    reporter: Reporter,
    said: Mutex<BTreeMap<Saying, Said>>,
}

impl Events {
    pub fn new(client: Client, clock: Clock, reporter: Reporter) -> Self {
        Self { client, clock, reporter, said: Mutex::default() }
    }

    /// What was said a moment ago is counted in its Event. These writes alone are not guarded by what we know of their object: they change
    /// nothing but the number in an Event of ours, which nobody decides by.
    pub async fn publish(&self, reason: Reason, note: String, about: &ObjectReference) -> kube::Result<()> {
        let saying = Saying {
            namespace: about.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            name: about.name.clone().unwrap_or_default(),
            uid: about.uid.clone().unwrap_or_default(),
            reason: reason.name(),
            note: shortened(note),
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &saying.namespace);
        if let Some(Said { event, times, last }) = self.again(&saying) {
            let series = EventSeries { count: times, last_observed_time: MicroTime(last) };
            let patch = Patch::Merge(json!({"series": series}));
            match api.patch_metadata(&event, &PatchParams::default(), &patch).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                patched => return patched.map(drop),
            }
        }
        let now = self.clock.now();
        let event = self.event(reason, &saying, about, now);
        let name = event.metadata.name.clone().unwrap_or_default();
        match api.create(&PostParams::default(), &event).await {
            // It was said already.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            created => drop(created?),
        }
        self.said().insert(saying, Said { event: name, times: 1, last: now });
        Ok(())
    }

    /// Counts it, if it was said a moment ago.
    fn again(&self, saying: &Saying) -> Option<Said> {
        let (mut said, now) = (self.said(), self.clock.now());
        said.retain(|_, said| now.duration_since(said.last) < MOMENT);
        let known = said.get_mut(saying)?;
        (known.times, known.last) = (known.times.saturating_add(1), now);
        Some(known.clone())
    }

    /// Nobody who holds the lock can panic, so a poisoned lock is as good as any.
    fn said(&self) -> MutexGuard<'_, BTreeMap<Saying, Said>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn event(&self, reason: Reason, saying: &Saying, about: &ObjectReference, now: Timestamp) -> Event {
        Event {
            metadata: ObjectMeta {
                namespace: Some(saying.namespace.clone()),
                name: Some(name(saying, now)),
                ..ObjectMeta::default()
            },
            action: Some(reason.action().to_owned()),
            reason: Some(saying.reason.to_owned()),
            note: Some(saying.note.clone()),
            type_: Some(reason.kind().to_owned()),
            regarding: Some(about.clone()),
            event_time: Some(MicroTime(now)),
            reporting_controller: Some(self.reporter.controller.clone()),
            reporting_instance: Some(self.reporter.instance.clone()),
            ..Event::default()
        }
    }
}

/// As much of a note as an Event takes.
fn shortened(mut note: String) -> String {
    note.truncate(note.floor_char_boundary(MAX_NOTE_BYTES));
    note
}

/// Another one each time; but of an object with a name so long that there is no place for our memory of what it was told, always the same
/// for the same words.
fn name(saying: &Saying, now: Timestamp) -> String {
    let is_long = saying.name.len() + SUFFIX_LENGTH > MAX_NAME_LENGTH;
    let mut hash = DefaultHasher::new();
    (&saying.uid, saying.reason, &saying.note).hash(&mut hash);
    if !is_long {
        now.as_nanosecond().hash(&mut hash);
    }
    let name: String = saying.name.chars().take(MAX_NAME_LENGTH - SUFFIX_LENGTH).collect();
    // Before a dot, Kubernetes allows letters and digits only.
    format!("{}.{:016x}", name.trim_end_matches(['-', '.']), hash.finish())
}

#[cfg(test)]
mod tests {
    use lockstep_core::config::is_object_name;

    use super::*;
    use crate::fake::Fake;

    fn saying(object: &str, note: &str) -> Saying {
        let (namespace, uid) = ("shop".to_owned(), "uid".to_owned());
        Saying { namespace, name: object.to_owned(), uid, reason: "Refused", note: note.to_owned() }
    }

    fn named(object: &str, note: &str, second: i64) -> String {
        name(&saying(object, note), Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn an_event_about_the_longest_name_has_a_name_that_kubernetes_takes() {
        for object in ["a".repeat(MAX_NAME_LENGTH), format!("{}----{}", "a".repeat(234), "b".repeat(15)), "a".into()] {
            let name = named(&object, "too long", 1);
            assert!(is_object_name(&name), "{name}");
            assert!(!name.contains("-."), "{name}");
        }
    }

    /// Somebody sees an Event at night and searches for its reason.
    #[test]
    fn every_reason_is_explained_and_no_other() {
        let text = lockstep_testing::documents::read("docs/operations.md").unwrap();
        let section = text.split("## Troubleshooting by event").nth(1).unwrap().split("\n## ").next().unwrap();
        let explained: Vec<&str> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .filter_map(|line| line.split('`').next())
            .collect();
        let missing: Vec<&str> = Reason::all().map(Reason::name).filter(|name| !explained.contains(name)).collect();
        assert!(missing.is_empty(), "docs/operations.md does not explain {missing:?}");
        let extra: Vec<&&str> =
            explained.iter().filter(|name| !Reason::all().any(|known| known.name() == **name)).collect();
        assert!(extra.is_empty(), "docs/operations.md explains {extra:?}, which are no reasons");
    }

    #[test]
    fn a_note_is_no_longer_than_an_event_takes() {
        assert_eq!(shortened("ü".repeat(600)).len(), MAX_NOTE_BYTES);
        assert_eq!(shortened(format!("x{}", "ü".repeat(600))).len(), MAX_NOTE_BYTES - 1);
        assert_eq!(shortened("short".into()), "short");
    }

    #[test]
    fn the_same_words_about_a_long_name_have_the_same_name() {
        let object = "a".repeat(MAX_NAME_LENGTH);
        assert_eq!(named(&object, "too long", 1), named(&object, "too long", 2));
        assert_ne!(named(&object, "too long", 1), named(&object, "something else", 1));
        assert_ne!(named("a", "something", 1), named("a", "something", 2), "said again after a while");
        assert_ne!(named("a", "something", 1), named("a", "something else", 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_again_is_counted_for_a_while() {
        let fake = Fake::default();
        let reporter = Reporter { controller: "lockstep".into(), instance: "one".into() };
        let clock = Clock::starting_at("2026-11-15T12:00:00Z".parse().unwrap());
        let events = Events::new(fake.client(), clock.clone(), reporter);
        let about = ObjectReference {
            namespace: Some("shop".into()),
            name: Some("app".into()),
            uid: Some("uid".into()),
            ..ObjectReference::default()
        };
        let say = async |note: &str| {
            events.publish(Reason::Refused, note.to_owned(), &about).await.unwrap();
            fake.writes().pop().unwrap()
        };
        let first = say("no").await;
        assert_eq!(fake.get(&first).unwrap()["series"], json!(null));
        assert_eq!(say("no").await, first);
        assert_eq!(fake.get(&first).unwrap()["series"]["count"], 2);
        assert_eq!(fake.get(&first).unwrap()["note"], "no");
        assert_ne!(say("never").await, first, "other words are another Event");
        fake.delete(&first);
        assert_eq!(fake.get(&say("no").await).unwrap()["series"], json!(null), "nobody counts in what is gone");
        clock.jump(MOMENT);
        assert_ne!(say("no").await, first, "after a while it is news");
    }
}
