//! What the test app tells about itself over HTTP: written by the app, read by the tests.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Answer to `GET /config`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConfigReport {
    /// The pod's name.
    pub host: String,
    /// What the app runs with: read at its start, and again at a signal that asks for it.
    pub loaded: Snapshot,
    /// The files as they are now: what a reload would load.
    pub files_now: BTreeMap<String, String>,
}

/// Configuration as it was at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Snapshot {
    pub at: Timestamp,
    pub env: BTreeMap<String, String>,
    /// Content by path. Bytes that are not text come as `base16:…`.
    pub files: BTreeMap<String, String>,
}

/// One entry of the answer to `GET /signals`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SignalReport {
    pub signal: String,
    pub at: Timestamp,
}
