//! The whole operator against a simulated cluster: one process, virtual time, and a seed that replays every step.

pub mod admission;
pub mod cluster;
pub mod faults;
pub mod invariants;
pub mod kinds;
pub mod panics;
pub mod random;
pub mod replica;
pub mod report;
pub mod runs;
pub mod scene;
pub mod schedule;
pub mod seeds;
pub mod server;
pub mod shrink;
pub mod stage;
pub mod store;
pub mod trace;
pub mod users;
mod world;

pub use world::{ConfigWebhook, Ran, Shared, World};
