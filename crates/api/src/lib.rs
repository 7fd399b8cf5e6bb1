//! The custom resources of Lockstep.

mod pin_table;
mod versioned_config;

pub use pin_table::{PinTable, PinTableSpec};
pub use versioned_config::{
    ConditionType, Consumer, Source, SourceKind, VersionSummary, VersionedConfig, VersionedConfigSpec,
    VersionedConfigStatus,
};
