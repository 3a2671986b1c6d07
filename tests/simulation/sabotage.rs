//! Deliberate faults, to show that the simulation bites.
//!
//! Each is a lie of the adapters between product and world: the product's code stays as it is and does the wrong thing in good faith,
//! as it would if the line that guards against it were missing. The judges see the truth.
//!
//! Invariant: every fault of the list is found; one that no world finds is a defect of the simulation.
//! Absent on purpose: switches in the product.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use lockstep::names;
use lockstep::pod::{Condition, PodView};
use lockstep::reconcile::cluster::{ConditionPatch, PodPatch, Presence};
use lockstep::registry::{Capabilities, DrainKind, GoneWhen, Listed, Listing, Stamp, TargetKeys};
use lockstep::target::{PodUid, TargetState};
use serde_json::{Value, json};

use crate::scenario;
use crate::seeds;

/// Worlds that are played before a fault counts as not found.
const WORLDS: u64 = 3000;
/// How often each fault is looked for, from other seeds each time, for the mean.
const ROUNDS: u64 = 3;

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// A target that is not active yet is taken for active.
    OpensOnInitial,
    /// A read from before the change opens the gate.
    OpensOnStaleRead,
    /// A successful send is taken for an acknowledgement.
    OpensOnSend,
    /// A register is sent though the claim was never written.
    RegistersBeforeClaim,
    /// A deregister is taken for done without a read.
    ReleasesWithoutRead,
    /// A draining target counts as gone where it does not.
    DrainingCountsAsGone,
    /// An address is taken for its last owner's alone, though a newcomer has it.
    IgnoresAddressReuse,
    /// A pod is taken for the first one of its name.
    IgnoresUid,
    /// A replica goes on though its Lease was taken.
    WritesWithoutLease,
    /// A replica does not notice that it was stopped for a while.
    SleepsThroughItsLease,
    /// A condition of somebody else is overwritten.
    OverwritesForeignCondition,
    /// `lastTransitionTime` moves with every write.
    TouchesTransition,
    /// The same status is written again and again.
    RepeatsItself,
    /// A debt is believed recorded and is not.
    LosesDebts,
    /// One more drain than the budget allows.
    BudgetOffByOne,
    /// A conflict is taken for success.
    SwallowsConflict,
    /// Retries come later and later.
    RetriesUncapped,
    /// A drain is sent before the gate is False.
    DrainsBeforeGateFalse,
    /// An observed service is written to.
    WritesToObserved,
    /// A drain is sent where there is none.
    DrainsWhereThereIsNone,
    /// Somebody else's targets are swept.
    SweepsForeign,
    /// A change is sent while the last one of the target is under way.
    DoesNotWaitForAnswers,
    /// A released pod is taken care of.
    IgnoresReleased,
    /// A deletion is not noticed.
    MissesDeletions,
    /// Containers that stopped being ready are not noticed.
    BelievesReady,
    /// Time-outs pass too early.
    ImpatientClock,
    /// What the watch did not bring is never looked for.
    NeverRelists,
    /// Pods without our label are never looked for.
    NeverAdopts,
}

/// All of them.
pub(crate) const ALL: [Sabotage; 28] = [
    Sabotage::OpensOnInitial,
    Sabotage::OpensOnStaleRead,
    Sabotage::OpensOnSend,
    Sabotage::RegistersBeforeClaim,
    Sabotage::ReleasesWithoutRead,
    Sabotage::DrainingCountsAsGone,
    Sabotage::IgnoresAddressReuse,
    Sabotage::IgnoresUid,
    Sabotage::WritesWithoutLease,
    Sabotage::SleepsThroughItsLease,
    Sabotage::OverwritesForeignCondition,
    Sabotage::TouchesTransition,
    Sabotage::RepeatsItself,
    Sabotage::LosesDebts,
    Sabotage::BudgetOffByOne,
    Sabotage::SwallowsConflict,
    Sabotage::RetriesUncapped,
    Sabotage::DrainsBeforeGateFalse,
    Sabotage::WritesToObserved,
    Sabotage::DrainsWhereThereIsNone,
    Sabotage::SweepsForeign,
    Sabotage::DoesNotWaitForAnswers,
    Sabotage::IgnoresReleased,
    Sabotage::MissesDeletions,
    Sabotage::BelievesReady,
    Sabotage::ImpatientClock,
    Sabotage::NeverRelists,
    Sabotage::NeverAdopts,
];

/// Looks for every fault; how many were not found.
pub(crate) fn run(say: &(impl Fn(&str) + Sync), only: Option<&str>) -> usize {
    let mut missed = 0;
    say("fault                        found by       mean lives   scenarios failing");
    for fault in ALL.into_iter().filter(|fault| only.is_none_or(|only| format!("{fault:?}") == only)) {
        let hunts: Vec<Option<(u64, String)>> = (0..ROUNDS).map(|round| hunt(fault, 1_000_000 * (round + 1))).collect();
        let failing = scenario::failing_with(fault);
        let found: Vec<&(u64, String)> = hunts.iter().flatten().collect();
        if found.len() < hunts.len() {
            missed += 1;
        }
        let mean = found.iter().map(|(lives, _)| *lives).sum::<u64>() / (found.len() as u64).max(1);
        let mut rules: Vec<&str> = found.iter().map(|(_, rule)| rule.as_str()).collect();
        rules.sort_unstable();
        rules.dedup();
        let rules = if found.is_empty() { "NOT FOUND".to_owned() } else { rules.join(" ") };
        let part = if found.len() < hunts.len() { format!(" ({} of {} rounds)", found.len(), hunts.len()) } else { String::new() };
        say(&format!("{:<28} {rules:<14} {mean:>10}{part}   {failing}", format!("{fault:?}")));
    }
    missed
}

/// Plays worlds until one fails; how many lives it took, and which rule failed.
fn hunt(fault: Sabotage, from: u64) -> Option<(u64, String)> {
    let mut lives = 0;
    for seed in from..from + WORLDS {
        let played = seeds::play_seed(seed, Some(fault));
        lives += played.report.lives;
        if let Some(first) = played.failures.first() {
            return Some((lives, first.rule.clone()));
        }
    }
    None
}

impl Sabotage {
    /// The configuration that the product is shown.
    pub(crate) fn configuration(self, text: &str) -> String {
        let Ok(mut whole) = serde_json::from_str::<Value>(text) else { return text.to_owned() };
        for binding in whole.get_mut("bindings").and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut) {
            match self {
                Self::WritesToObserved => drop(binding.remove("mode")),
                Self::OpensOnSend => drop(binding.insert("ack".to_owned(), json!("accepted"))),
                _ => {}
            }
        }
        if let (Self::BudgetOffByOne, Some(registration)) = (self, whole.get_mut("registration").and_then(Value::as_object_mut)) {
            registration.insert("panicThreshold".to_owned(), json!("0%"));
        }
        whole.to_string()
    }

    /// A pod as the product is shown it.
    pub(crate) fn view(self, view: &mut PodView) {
        match self {
            Self::IgnoresReleased => view.released = false,
            Self::MissesDeletions => view.deletion = None,
            Self::ImpatientClock => {
                let earlier = |at: jiff::Timestamp| at.saturating_sub(jiff::SignedDuration::from_mins(2)).unwrap_or(at);
                if let Some(ready) = &mut view.containers_ready {
                    ready.since = ready.since.map(earlier);
                }
                if let Some(deletion) = &mut view.deletion {
                    deletion.at = earlier(deletion.at);
                }
            }
            Self::BelievesReady => {
                if let Some(ready) = view.containers_ready.as_mut().filter(|_| view.claims.is_some()) {
                    ready.status = true;
                }
            }
            _ => {}
        }
    }

    /// What the product is told of a registry.
    pub(crate) fn capabilities(self, capabilities: &mut Capabilities) {
        match self {
            Self::DrainingCountsAsGone => capabilities.gone_when = GoneWhen::Draining,
            Self::IgnoresAddressReuse => capabilities.keys = TargetKeys::Uid,
            Self::DrainsWhereThereIsNone => capabilities.drain = DrainKind::Explicit,
            _ => {}
        }
    }

    /// A listing as the product is shown it.
    pub(crate) fn listing(self, listing: &mut Listing, seen: &mut BTreeMap<SocketAddr, Listed>) {
        match self {
            Self::OpensOnInitial => {
                for target in listing.targets.iter_mut().filter(|target| target.state == TargetState::Initial) {
                    target.state = TargetState::Active;
                }
            }
            Self::OpensOnStaleRead => {
                for target in &listing.targets {
                    if target.state == TargetState::Active {
                        seen.insert(target.address, target.clone());
                    }
                }
                listing.targets.retain(|target| !seen.contains_key(&target.address));
                listing.targets.extend(seen.values().cloned());
            }
            Self::SweepsForeign => {
                for target in &mut listing.targets {
                    let uid = PodUid::new(format!("stranger-{}", target.address));
                    let stamp = target.stamp.get_or_insert_with(|| Stamp { cluster: Arc::from("sim"), uid });
                    stamp.cluster = Arc::from("sim");
                }
            }
            _ => {}
        }
    }

    /// The patch as it is sent; `None`: it is not, and the product believes that it was.
    pub(crate) fn patch(self, patch: &PodPatch, wall: jiff::Timestamp) -> Option<PodPatch> {
        let mut patch = patch.clone();
        match self {
            Self::RegistersBeforeClaim => patch.conditions.retain(|one| one.type_ != names::CLAIMS || !one.status),
            Self::DrainsBeforeGateFalse if shuts(&patch) => return None,
            Self::OverwritesForeignCondition => patch.conditions.push(ConditionPatch {
                type_: "Ready",
                status: true,
                reason: "Ready",
                message: String::new(),
                transition: Some(wall),
            }),
            Self::TouchesTransition => {
                for condition in &mut patch.conditions {
                    condition.transition = Some(wall);
                }
            }
            _ => {}
        }
        let empty = patch.conditions.is_empty() && patch.finalizer.is_none() && !patch.label && patch.annotations.is_empty();
        (!empty).then_some(patch)
    }
}

/// A pod as it would be if that patch had been done.
pub(crate) fn as_if(view: &PodView, patch: &PodPatch) -> PodView {
    let mut view = view.clone();
    for one in &patch.conditions {
        let slot = match one.type_ {
            names::GATE => &mut view.gate,
            names::CLAIMS => &mut view.claims,
            _ => continue,
        };
        let since = one.transition.or_else(|| slot.as_ref().and_then(|old| old.since));
        *slot = Some(Condition { status: one.status, reason: one.reason.to_owned(), message: one.message.clone(), since });
    }
    match patch.finalizer {
        Some(Presence::Present) => view.finalizer = true,
        Some(Presence::Absent) => view.finalizer = false,
        None => {}
    }
    view
}

/// Whether a patch does nothing but turn the gate False on account of readiness.
fn shuts(patch: &PodPatch) -> bool {
    let gate = |one: &ConditionPatch| one.type_ == names::GATE && !one.status && matches!(one.reason, "NotServing" | "NodeLost");
    patch.finalizer != Some(Presence::Absent) && patch.conditions.iter().any(gate)
}
