//! What can be asked of the store, by whom, and how it refuses.

use serde_json::Value;

use crate::kinds::{Key, Kind};

/// Who writes: decides about admission, and goes into the history that invariants read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Writer {
    Operator(usize),
    /// Kubernetes' own: controller-manager, kubelet, garbage collector.
    Controller,
    User(String),
    /// A replica that answers the API server's questions about configs.
    Webhook(usize),
}

impl Writer {
    /// Whom the API server sees.
    pub fn username(&self) -> &str {
        match self {
            Self::Operator(_) | Self::Webhook(_) => crate::admission::OPERATOR,
            Self::Controller => "system:kube-controller-manager",
            Self::User(name) => name,
        }
    }
}

#[derive(Debug, Clone)]
pub enum Write {
    /// The key is taken from the object; `generateName` is honoured.
    Create {
        object: Value,
    },
    /// A resource version in the object is a precondition.
    Replace {
        key: Key,
        object: Value,
        part: Part,
    },
    /// A resource version in the metadata of a merge patch is a precondition.
    Patch {
        key: Key,
        patch: Patch,
        part: Part,
    },
    Delete {
        key: Key,
        uid: Option<String>,
        revision: Option<u64>,
        propagation: Propagation,
    },
}

/// A write of the object leaves the status alone where the kind has a status subresource, and the other way round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Object,
    Status,
}

#[derive(Debug, Clone)]
pub enum Patch {
    Merge(Value),
    Json(json_patch::Patch),
    /// A merge, too: nobody here takes fields away by not applying them any more.
    Apply {
        manager: String,
        force: bool,
        object: Value,
    },
}

/// What happens to those that it owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// Becomes a `Status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
}

impl Refusal {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into() }
    }

    pub fn not_found(key: &Key) -> Self {
        Self::new(404, "NotFound", format!("{} \"{}\" not found", resource(key.kind), key.name))
    }

    pub fn exists(key: &Key) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{}\" already exists", resource(key.kind), key.name))
    }

    pub fn conflict(key: &Key) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflicting(key, why)
    }

    pub fn conflicting(key: &Key, why: &str) -> Self {
        let of = resource(key.kind);
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {of} \"{}\": {why}", key.name))
    }

    pub fn other_uid(key: &Key, asked: &str, found: &str) -> Self {
        let why = format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {found}");
        Self::conflicting(key, &why)
    }

    pub fn invalid(key: &Key, why: &str) -> Self {
        Self::new(422, "Invalid", format!("{} \"{}\" is invalid: {why}", resource(key.kind), key.name))
    }

    pub fn forbidden(key: &Key, why: &str) -> Self {
        Self::new(403, "Forbidden", format!("{} \"{}\" is forbidden: {why}", resource(key.kind), key.name))
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }
}

/// As in the API server's messages: `deployments.apps`.
fn resource(kind: Kind) -> String {
    let (plural, group) = (kind.plural(), kind.group());
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}
