//! What the operator asked of the API server, by the API server's own audit log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::Value;

use crate::results::Rows;

pub(crate) const OPERATOR: &str = "system:serviceaccount:lockstep-system:lockstep";

/// One request of the operator.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) verb: String,
    pub(crate) resource: String,
    pub(crate) started: Timestamp,
    pub(crate) ended: Timestamp,
}

/// The log from a place on. It grows by megabytes with every thousand objects, so each line is read once.
pub(crate) struct AuditLog {
    path: PathBuf,
    read_up_to: u64,
    requests: Vec<Request>,
}

impl AuditLog {
    pub(crate) fn from_now_on() -> Result<Self> {
        let path = std::env::var_os("LOCKSTEP_AUDIT_LOG")
            .context("LOCKSTEP_AUDIT_LOG does not say where the API server's audit log is: run `make bench`")?;
        let path = PathBuf::from(path);
        let read_up_to = path.metadata().with_context(|| format!("cannot read {}", path.display()))?.len();
        Ok(Self { path, read_up_to, requests: Vec::new() })
    }

    /// All requests since then, but for watches and the lease, which cost the same whether anything changes or not.
    pub(crate) fn since(&mut self, start: Timestamp) -> Result<Vec<Request>> {
        self.read_on().with_context(|| format!("cannot read {}", self.path.display()))?;
        Ok(self.requests.iter().filter(|request| request.started >= start).cloned().collect())
    }

    fn read_on(&mut self) -> Result<()> {
        let mut file = File::open(&self.path)?;
        if file.metadata()?.len() < self.read_up_to {
            // The API server began a new file.
            self.read_up_to = 0;
        }
        file.seek(SeekFrom::Start(self.read_up_to))?;
        let mut reader = BufReader::new(file);
        let mut line = String::new();
        // A line without its end is still being written.
        while reader.read_line(&mut line)? > 0 && line.ends_with('\n') {
            self.read_up_to += line.len() as u64;
            self.requests.extend(request(&line)?);
            line.clear();
        }
        Ok(())
    }
}

fn request(line: &str) -> Result<Option<Request>> {
    if !line.contains(OPERATOR) {
        return Ok(None);
    }
    let entry: Value = serde_json::from_str(line)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (verb, resource) = (text(&entry["verb"]), text(&entry["objectRef"]["resource"]));
    // Who writes in the operator's name has another name here.
    if entry["user"]["username"] != OPERATOR || verb == "watch" || resource == "leases" {
        return Ok(None);
    }
    let started = text(&entry["requestReceivedTimestamp"]).parse()?;
    let ended = text(&entry["stageTimestamp"]).parse()?;
    Ok(Some(Request { verb, resource, started, ended }))
}

/// How many there were, and of which kinds.
pub(crate) fn add_requests(rows: &mut Rows, requests: &[Request], note: &str) {
    rows.add("requests of the operator", requests.len(), "requests").note(note);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for request in requests {
        *kinds.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
    }
    for (kind, count) in kinds {
        rows.add(format!("requests of the operator: {kind}"), count, "requests").note(note);
    }
}
