//! The harness of the end-to-end tests, and what the test app reports.

pub mod report;
