//! The harness of the end-to-end tests, and what the test app reports.
//!
//! A test is a [`scenario`]: it runs in a namespace of its own, acts with the tools that users have (kubectl, Helm), and
//! observes through the API. When it fails, it prints what a person would look at first.

mod command_line;
mod diagnostics;
pub mod documents;
pub mod joining;
pub mod manifests;
pub mod report;
mod scenario;
pub mod stories;
mod versions;
mod wait;

pub use command_line::command_line;
pub use scenario::{Scenario, impatient, scenario};
pub use wait::{LONG, SHORT, eventually, holds};
