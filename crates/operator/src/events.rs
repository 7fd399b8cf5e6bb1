//! Events about configs, also about those whose names are too long for an Event named after them.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as KubernetesEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use lockstep_core::config::MAX_NAME_LENGTH;
use lockstep_core::release::Phase;

/// What comes after the object's name in an Event's: a dot and sixteen hexadecimal digits, here as with kube's recorder.
const SUFFIX_LENGTH: usize = 17;
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
    /// A change cannot become a version.
    Refused,
    /// An object cannot be read.
    Unreadable,
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
            Self::Refused,
            Self::Unreadable,
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
            Self::Refused => "Refused",
            Self::Unreadable => "Unreadable",
            Self::ForgedVersion => "ForgedVersion",
            Self::UnknownVersion => "UnknownVersion",
        }
    }

    fn kind(self) -> EventType {
        use Phase::{Aborted, Failed, Rejected, RolledBack, RollingBack};
        match self {
            Self::Phase(RollingBack | RolledBack | Failed | Rejected | Aborted)
            | Self::ConfigRolledBack
            | Self::Refused
            | Self::Unreadable
            | Self::ForgedVersion
            | Self::UnknownVersion => EventType::Warning,
            Self::Phase(_) | Self::ConfigReleased => EventType::Normal,
        }
    }

    fn action(self) -> &'static str {
        match self {
            Self::ConfigReleased | Self::ConfigRolledBack | Self::UnknownVersion => "Pin",
            Self::Phase(_) | Self::Refused | Self::ForgedVersion => "Release",
            Self::Unreadable => "Read",
        }
    }
}

pub struct Events {
    client: Client,
    reporter: Reporter,
    recorder: Recorder,
}

impl Events {
    pub fn new(client: Client, reporter: Reporter) -> Self {
        Self { recorder: Recorder::new(client.clone(), reporter.clone()), client, reporter }
    }

    pub async fn publish(&self, reason: Reason, note: String, about: &ObjectReference) -> kube::Result<()> {
        let event = Event {
            type_: reason.kind(),
            reason: reason.name().to_owned(),
            action: reason.action().to_owned(),
            note: Some(shortened(note)),
            secondary: None,
        };
        self.publish_event(&event, about).await
    }

    async fn publish_event(&self, event: &Event, about: &ObjectReference) -> kube::Result<()> {
        let name = about.name.as_deref().unwrap_or_default();
        if name.len() + SUFFIX_LENGTH <= MAX_NAME_LENGTH {
            return self.recorder.publish(event, about).await;
        }
        let namespace = about.namespace.as_deref().unwrap_or_default();
        let api: Api<KubernetesEvent> = Api::namespaced(self.client.clone(), namespace);
        match api.create(&PostParams::default(), &self.with_short_name(event, about)).await {
            // It was said already.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            created => created.map(drop),
        }
    }

    fn with_short_name(&self, event: &Event, about: &ObjectReference) -> KubernetesEvent {
        let kind = match event.type_ {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        };
        let controller = &self.reporter.controller;
        KubernetesEvent {
            metadata: ObjectMeta {
                namespace: about.namespace.clone(),
                name: Some(short_name(event, about)),
                ..ObjectMeta::default()
            },
            action: Some(event.action.clone()),
            reason: Some(event.reason.clone()),
            note: event.note.clone(),
            type_: Some(kind.to_owned()),
            regarding: Some(about.clone()),
            related: event.secondary.clone(),
            event_time: Some(MicroTime(jiff::Timestamp::now())),
            reporting_controller: Some(controller.clone()),
            reporting_instance: Some(self.reporter.instance.as_ref().unwrap_or(controller).clone()),
            ..KubernetesEvent::default()
        }
    }
}

/// As much of a note as an Event takes.
fn shortened(mut note: String) -> String {
    note.truncate(note.floor_char_boundary(MAX_NOTE_BYTES));
    note
}

/// The same for the same words about the same object, so that they are said once.
fn short_name(event: &Event, about: &ObjectReference) -> String {
    let mut hash = DefaultHasher::new();
    (&about.uid, &event.reason, &event.note).hash(&mut hash);
    let name: String = about.name.iter().flat_map(|name| name.chars()).take(MAX_NAME_LENGTH - SUFFIX_LENGTH).collect();
    // Before a dot, Kubernetes allows letters and digits only.
    format!("{}.{:016x}", name.trim_end_matches(['-', '.']), hash.finish())
}

#[cfg(test)]
mod tests {
    use lockstep_core::config::is_object_name;

    use super::*;

    fn name(object: &str, note: &str) -> String {
        let about = ObjectReference {
            name: Some(object.to_owned()),
            uid: Some("uid".to_owned()),
            ..ObjectReference::default()
        };
        let (reason, action) = ("Refused".to_owned(), "Release".to_owned());
        short_name(
            &Event { type_: EventType::Warning, reason, action, note: Some(note.to_owned()), secondary: None },
            &about,
        )
    }

    #[test]
    fn an_event_about_the_longest_name_has_a_name_that_kubernetes_takes() {
        for object in ["a".repeat(MAX_NAME_LENGTH), format!("{}----{}", "a".repeat(234), "b".repeat(15))] {
            let name = name(&object, "too long");
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
    fn the_same_words_have_the_same_name() {
        let object = "a".repeat(MAX_NAME_LENGTH);
        assert_eq!(name(&object, "too long"), name(&object, "too long"));
        assert_ne!(name(&object, "too long"), name(&object, "something else"));
    }
}
