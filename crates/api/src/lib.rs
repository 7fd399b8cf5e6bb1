//! The custom resources of Lockstep.

mod pin_table;
mod release;
mod release_policy;
mod versioned_config;

pub use pin_table::{PinTable, PinTableSpec};
pub use release::{Move, Release, ReleaseCondition, ReleaseConsumer, ReleaseSpec, ReleaseStage, ReleaseStatus};
pub use release_policy::{
    Canary, FailureLimits, JoiningSpec, KeySchemaSpec, OnJoinedFailure, ParseRule, ReleasePolicy, ReleasePolicySpec,
    RuleSpec, StormGuardSpec, ValidationSpec,
};
pub use versioned_config::{
    Choice, ConditionType, Consumer, GivenName, Held, Source, SourceKind, VersionSummary, VersionedConfig,
    VersionedConfigSpec, VersionedConfigStatus,
};
