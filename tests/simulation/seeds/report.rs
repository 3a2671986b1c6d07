//! What the drawn worlds reached: rows of the table of pods, reasons, faults.
//!
//! A world that never reaches a case proves nothing about it.
//!
//! Invariant: what must be reached is a closed list here, and a gap fails a full run.
//! Absent on purpose: timings of the product.

use std::collections::BTreeMap;

use super::faults::{KINDS, Kind};
use crate::world::World;

/// What a full run must reach.
const ROWS: [&str; 9] = [
    "no address, or containers never ready",
    "serving: acknowledged",
    "not serving: drained",
    "deleted, containers running: drained or deregistered",
    "containers gone: deregistered",
    "containers gone: finalizer removed",
    "bound no longer",
    "no such port or address",
    "forced deletion",
];

/// Faults that a full run must reach.
const FAULTS: [&str; 24] = [
    "API server 409",
    "API server 429",
    "API server 500",
    "API server cut off",
    "API server unreachable",
    "API server's answer lost",
    "bad configuration",
    "change done twice",
    "node changes",
    "registry denied",
    "registry lost its data",
    "registry silent, change done",
    "registry silent, change not done",
    "registry throttled",
    "registry unavailable",
    "replica crashes",
    "replica pauses",
    "replica stops",
    "service missing",
    "wall clock jumps",
    "watch event late",
    "watch event lost",
    "watch event twice",
    "watch expired",
];

/// Kinds of fault that every world draws at least.
const LEAST_KINDS: usize = 2;

/// What was reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) worlds: u64,
    pub(crate) lives: u64,
    polls: u64,
    rows: BTreeMap<&'static str, u64>,
    reasons: BTreeMap<String, u64>,
    faults: BTreeMap<&'static str, u64>,
    /// Worlds that drew each kind of fault.
    kinds: BTreeMap<Kind, u64>,
    /// Worlds that drew fewer than two.
    tame: u64,
}

impl Report {
    /// What one world reached; `kinds`: the faults that it drew.
    pub(crate) fn of(world: &World, kinds: &[Kind], polls: u64) -> Self {
        Self {
            kinds: kinds.iter().map(|kind| (*kind, 1)).collect(),
            tame: u64::from(kinds.len() < LEAST_KINDS),
            worlds: 1,
            lives: world.pods.len() as u64,
            polls,
            rows: world.record.rows.clone(),
            reasons: world.record.reasons.clone(),
            faults: world.record.faults.clone(),
        }
    }

    /// Adds what another reached.
    pub(crate) fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.lives += other.lives;
        self.polls += other.polls;
        self.tame += other.tame;
        for (kind, count) in &other.kinds {
            *self.kinds.entry(*kind).or_default() += count;
        }
        for (name, count) in &other.rows {
            *self.rows.entry(name).or_default() += count;
        }
        for (name, count) in &other.reasons {
            *self.reasons.entry(name.clone()).or_default() += count;
        }
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
    }

    /// The report, for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let row = |(name, count): (&str, &u64)| format!("  {count:>9}  {name}");
        let mut lines = vec![format!("{} worlds, {} lives, {} polls", self.worlds, self.lives, self.polls), "cases".to_owned()];
        lines.extend(self.rows.iter().map(|(name, count)| row((name, count))));
        lines.push("reasons".to_owned());
        lines.extend(self.reasons.iter().map(|(name, count)| row((name, count))));
        lines.push("faults".to_owned());
        lines.extend(self.faults.iter().map(|(name, count)| row((name, count))));
        lines.push("worlds that drew a kind of fault".to_owned());
        lines.extend(self.kinds.iter().map(|(kind, count)| format!("  {count:>9}  {kind:?}")));
        lines
    }

    /// What was never reached and should have been.
    pub(crate) fn gaps(&self) -> Vec<String> {
        let rows = ROWS.iter().filter(|name| !self.rows.contains_key(*name)).map(|name| format!("case: {name}"));
        let faults = FAULTS.iter().filter(|name| !self.faults.contains_key(*name)).map(|name| format!("fault: {name}"));
        let reasons =
            crate::product::reasons().into_iter().filter(|name| !self.reasons.contains_key(*name)).map(|name| format!("reason: {name}"));
        let kinds = KINDS.iter().filter(|kind| !self.kinds.contains_key(*kind)).map(|kind| format!("kind of fault: {kind:?}"));
        let tame = (self.tame > 0).then(|| format!("two kinds of fault in {} worlds", self.tame));
        rows.chain(faults).chain(reasons).chain(kinds).chain(tame).collect()
    }
}
