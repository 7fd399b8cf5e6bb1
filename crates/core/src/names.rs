//! Every name that Lockstep writes into other people's objects, in one place.

/// Label on a config, or on a namespace: make versions of it.
pub const VERSIONED: &str = "lockstep.dev/versioned";
/// Annotation on a workload: make versions of all that it references.
pub const AUTO: &str = "lockstep.dev/auto";
/// Label or annotation on a config: leave it alone, whatever else says otherwise.
pub const IGNORE: &str = "lockstep.dev/ignore";
/// The value that turns the above on.
pub const ON: &str = "true";

/// Annotation on a pod template: the versions that its pods run.
pub const PINS: &str = "lockstep.dev/pins";

/// Annotation on a config: the name of the version that its content is to become. On a version: its name.
pub const VERSION: &str = "lockstep.dev/version";
/// Annotation on a config: why it was changed. On a version: why it was made.
pub const REASON: &str = "lockstep.dev/reason";
/// Annotation on a config, stamped by the API server: who changed its content last. On a version: who made it.
pub const CHANGED_BY: &str = "lockstep.dev/changed-by";
/// Annotation on a config: how many versions are kept besides those in use.
pub const RETAIN: &str = "lockstep.dev/retain";

/// Annotation on a config: the name of its release policy.
pub const POLICY: &str = "lockstep.dev/policy";
/// The policy of a namespace for configs that name none.
pub const DEFAULT_POLICY: &str = "default";
/// Annotation on a workload: its place in the order of consumers, a whole number; those with the lowest go first.
pub const WAVE: &str = "lockstep.dev/wave";
/// Annotation on a workload that is stopped after its first new pods: what its fields were before.
pub const GATE: &str = "lockstep.dev/gate";
/// Annotation on a version: a short digest of each key's value.
pub const KEYS: &str = "lockstep.dev/keys";
/// Label on a version, so that versions can be selected. Its value is the source's kind.
pub const VERSION_OF: &str = "lockstep.dev/version-of";
/// Annotation on a version: the name of its source. A label would be too short for it.
pub const SOURCE: &str = "lockstep.dev/source";
/// Annotation on a version: its number, which only grows.
pub const NUMBER: &str = "lockstep.dev/number";
/// Annotation on a version: the whole digest, of which the version's name carries the beginning.
pub const DIGEST: &str = "lockstep.dev/digest";

/// Who Lockstep is in `managedFields`.
pub const FIELD_MANAGER: &str = "lockstep";

/// The name of the one pin table of a namespace.
pub const PIN_TABLE: &str = "lockstep";
