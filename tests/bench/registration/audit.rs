//! The API server's audit log: who wrote what to which pod, and when.
//!
//! Invariant: times are the server's own, to the microsecond; nothing here depends on how fast this program reads.
//! Absent on purpose: reads, which cost a server little.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::Value;

use crate::stage::{ACCOUNT, NAMESPACE};

/// The server's word for an answer that nobody waited for any more; what was asked for is done all the same.
const TOO_LATE: u64 = 504;

/// One write that was answered.
pub(crate) struct Write {
    /// Whether Lockstep made it.
    pub ours: bool,
    /// Name of the object.
    pub name: String,
    /// Its kind, with a sub-resource behind a slash.
    pub resource: String,
    /// Whether the object was created; else it was changed.
    pub created: bool,
    /// The path and query that were asked for.
    pub uri: String,
    /// Seconds since 1970 when the answer was complete.
    pub at: f64,
    /// What was sent; only of Lockstep's.
    pub body: Value,
}

/// The log from a moment on.
pub(crate) struct Audit {
    file: PathBuf,
    from: u64,
}

impl Audit {
    /// What is written from now on.
    pub(crate) fn from_now(file: PathBuf) -> Self {
        let from = file.metadata().map_or(0, |meta| meta.len());
        Self { file, from }
    }

    /// Writes to pods of the bench, and Events about them, that were done so far.
    pub(crate) fn writes(&self) -> Vec<Write> {
        let mut file = File::open(&self.file).expect("the API server writes it");
        file.seek(SeekFrom::Start(self.from)).expect("it only grows");
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()).filter_map(|line| write(&line)).collect()
    }
}

impl Write {
    /// Whether it opens the gate.
    pub(crate) fn opens_gate(&self) -> bool {
        let conditions = self.body["status"]["conditions"].as_array();
        self.ours && conditions.is_some_and(|all| all.iter().any(|one| one["type"] == lockstep::names::GATE && one["status"] == "True"))
    }

    /// What it is for, in a few words.
    pub(crate) fn purpose(&self) -> String {
        if self.resource == "events" {
            return format!("Event {}", self.body["reason"].as_str().unwrap_or("?"));
        }
        let conditions = self.body["status"]["conditions"].as_array().into_iter().flatten();
        let mut parts: Vec<String> = conditions
            .map(|one| {
                let (kind, reason) = (one["type"].as_str().unwrap_or("?"), one["reason"].as_str().unwrap_or("?"));
                format!("{} {reason}", kind.rsplit('/').next().unwrap_or(kind))
            })
            .collect();
        if !self.body["metadata"]["$deleteFromPrimitiveList/finalizers"].is_null() {
            parts.push("finalizer off".to_owned());
        }
        format!("pods/status: {}", parts.join(", "))
    }
}

fn write(line: &Value) -> Option<Write> {
    let target = &line["objectRef"];
    let done = line["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300 || code == TOO_LATE);
    let changes = matches!(line["verb"].as_str(), Some("create" | "patch" | "update" | "delete"));
    if !done || !changes || target["namespace"] != NAMESPACE {
        return None;
    }
    let kind = target["resource"].as_str()?;
    let resource = match target["subresource"].as_str() {
        Some(part) => format!("{kind}/{part}"),
        None => kind.to_owned(),
    };
    let at: jiff::Timestamp = line["stageTimestamp"].as_str()?.parse().ok()?;
    Some(Write {
        ours: line["user"]["username"] == ACCOUNT,
        name: target["name"].as_str()?.to_owned(),
        resource,
        created: line["verb"] == "create",
        uri: line["requestURI"].as_str()?.to_owned(),
        at: at.as_microsecond() as f64 / 1e6,
        body: line["requestObject"].clone(),
    })
}
