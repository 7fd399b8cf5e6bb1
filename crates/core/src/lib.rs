//! The domain of Lockstep: decisions as pure functions. No async, no client, no clock.

pub mod admission;
pub mod config;
pub mod digest;
pub mod gate;
pub mod health;
pub mod keys;
pub mod kinds;
pub mod names;
pub mod pins;
pub mod plan;
pub mod policy;
pub mod references;
pub mod release;
pub mod retention;
pub mod rollout;
pub mod storm;
pub mod table;
pub mod template;
pub mod validation;
pub mod version;

pub use config::{ConfigKind, ConfigRef};
pub use digest::{Digest, DigestKey};
pub use pins::{Pin, Pins};
pub use table::{Entry, Table};
pub use version::{Given, Version, VersionName};
