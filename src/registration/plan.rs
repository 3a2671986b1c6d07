//! What to do for one pod next, decided from one observation and the time.
//!
//! Every step of a plan may be started at once and in any order: where one must wait for another, only the first is planned, and the
//! next observation brings the second. So a crash between two steps is like any other moment.
//!
//! Invariant: total and pure; the same observation and time give the same plan; what is done already is not planned again.
//! Absent on purpose: pace, retry and batching (`reconcile::service`), grants of the budget (an input), sending.

mod ending;
pub(crate) mod gate;
mod live;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use super::claim::Claim;
use super::life::Stage;
use super::observe::{Doing, Observation, TargetView};
use super::reason::Reason;
use crate::config::Mode;
use crate::registry::Operation;
use crate::target::ServiceId;

/// What to do for a pod, and when to look again without being told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Why.
    pub reason: Reason,
    /// What to start now.
    pub steps: Vec<Step>,
    /// Wall time at which the same observation may give another plan.
    pub wake: Option<jiff::Timestamp>,
    /// It is held beyond `gateTimeout` or `drainTimeout`.
    pub held: bool,
}

/// One thing to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write to the pod.
    Patch(Patch),
    /// Put these claims among the debts.
    Record(Vec<Claim>),
    /// Queue a change; it replaces one of the same target that has not left.
    Change {
        /// Where.
        service: ServiceId,
        /// Of which target.
        address: SocketAddr,
        /// What.
        operation: Operation,
    },
    /// Take the target's change, which has not left, out of the queue.
    Withdraw {
        /// Where.
        service: ServiceId,
        /// Of which target.
        address: SocketAddr,
    },
    /// Ask the drain budget for leave to take the target out.
    Ask {
        /// Where.
        service: ServiceId,
        /// Which target.
        address: SocketAddr,
    },
    /// Keep reading the service.
    Read {
        /// Which.
        service: ServiceId,
        /// How soon.
        urgency: Urgency,
    },
    /// Write an Event about the pod.
    Tell(Notice),
}

/// How soon a service is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// At the pace of things that wait.
    Soon,
    /// At once: no read so far can answer.
    Now,
}

/// One write to a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// Our gate's condition, where it changes.
    pub gate: Option<ConditionChange>,
    /// Our claims' condition, where it changes.
    pub claims: Option<ConditionChange>,
    /// Put our finalizer and label in.
    pub adopt: bool,
    /// Take our finalizer out.
    pub release: bool,
    /// The exception that this write makes use of.
    pub exception: Option<Reason>,
    /// It is right only for the pod as it was seen: its containers may have come up, or gone, since.
    pub as_seen: bool,
    /// The Event that tells of it once it is done.
    pub tell: Option<Notice>,
}

/// A condition as it shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionChange {
    /// Its status.
    pub status: bool,
    /// Its reason.
    pub reason: Reason,
    /// One sentence for people, or the claims.
    pub message: String,
    /// Its `lastTransitionTime`, where the status changes.
    pub transition: Option<jiff::Timestamp>,
}

/// An Event about the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its reason; whether it warns follows from it.
    pub reason: Reason,
    /// One sentence.
    pub note: String,
}

/// Decides what to do for a pod.
pub fn plan(observation: &Observation, now: jiff::Timestamp) -> Plan {
    let draft = Draft { o: observation, now, steps: Vec::new(), patch: Patch::default(), wake: None, held: false };
    if observation.released {
        return draft.finish(Reason::Released, &[]);
    }
    match observation.life.stage {
        Stage::Waiting | Stage::Serving | Stage::NotServing(_) => live::plan(draft),
        Stage::Terminating if !observation.life.forced => ending::terminating(draft),
        Stage::Terminating | Stage::Gone => ending::ending(draft),
    }
}

/// A plan that is being made.
struct Draft<'a> {
    o: &'a Observation,
    now: jiff::Timestamp,
    steps: Vec<Step>,
    patch: Patch,
    wake: Option<jiff::Timestamp>,
    held: bool,
}

impl Plan {
    /// Whether it does more than wait.
    pub fn acts(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step, Step::Read { .. }))
    }
}

impl Draft<'_> {
    /// The plan, with `changes` as the changes that are wanted now and no others.
    fn finish(mut self, reason: Reason, changes: &[(usize, Operation)]) -> Plan {
        if self.patch != Patch::default() {
            self.steps.insert(0, Step::Patch(self.patch));
        }
        for (index, target) in self.o.targets.iter().enumerate() {
            let wanted = changes.iter().find(|(of, _)| *of == index).map(|(_, operation)| *operation);
            let (service, address) = (target.service.clone(), target.address);
            match (target.facts.doing, wanted) {
                (Doing::Nothing, Some(operation)) => self.steps.push(Step::Change { service, address, operation }),
                (Doing::Queued(queued), Some(operation)) if queued != operation => {
                    self.steps.push(Step::Change { service, address, operation });
                }
                (Doing::Queued(_), None) => self.steps.push(Step::Withdraw { service, address }),
                (Doing::Nothing, None) | (Doing::Queued(_), Some(_)) | (Doing::Sent(_), _) => {}
            }
        }
        Plan { reason, steps: self.steps, wake: self.wake, held: self.held }
    }

    /// Waits for a read that says more of `target`; `fresh`: only one that began after the end was seen does.
    fn read(&mut self, target: &TargetView, fresh: bool) {
        let said = target.facts.seen.is_some() && (!fresh || target.facts.seen_fresh);
        let urgency = match target.facts.doing {
            Doing::Nothing if !said => Urgency::Now,
            // A read follows the change anyway.
            Doing::Nothing | Doing::Queued(_) | Doing::Sent(_) => Urgency::Soon,
        };
        if target.facts.traits.is_none() {
            return;
        }
        let asked = self.steps.iter_mut().find_map(|step| match step {
            Step::Read { service, urgency } if *service == target.service => Some(urgency),
            _ => None,
        });
        match asked {
            Some(known) => *known = (*known).max(urgency),
            None => self.steps.push(Step::Read { service: target.service.clone(), urgency }),
        }
    }

    /// Tells `note` once.
    fn tell(&mut self, reason: Reason, note: impl FnOnce() -> String) {
        if !self.o.memory.told.contains(reason) {
            self.steps.push(Step::Tell(Notice { reason, note: note() }));
        }
    }

    /// Whether `deadline` has passed; if not, it is a time to look again.
    fn due(&mut self, deadline: jiff::Timestamp) -> bool {
        if self.now >= deadline {
            return true;
        }
        self.wake = Some(self.wake.map_or(deadline, |wake| wake.min(deadline)));
        false
    }

    /// Writes the claims' condition where it differs from `claims`.
    fn write_claims(&mut self, claims: &[Claim]) {
        let current = self.o.claims.as_ref();
        let listed = current.is_some_and(|condition| condition.status);
        if claims.is_empty() {
            if listed {
                self.patch.claims = Some(self.condition(listed, false, Reason::NoClaims, String::new()));
            }
            return;
        }
        let message = super::claim::print(claims);
        if !current.is_some_and(|condition| condition.status && condition.message == message) {
            self.patch.claims =
                Some(ConditionChange { status: true, reason: Reason::Claimed, message, transition: (!listed).then_some(self.now) });
        }
    }

    fn condition(&self, before: bool, status: bool, reason: Reason, message: String) -> ConditionChange {
        ConditionChange { status, reason, message, transition: (before != status).then_some(self.now) }
    }

    /// Says once that calls for `target` keep failing.
    fn tell_trouble(&mut self, target: &TargetView) {
        if let Some(trouble) = target.trouble() {
            self.tell(Reason::RegistryFailing, || format!("{}: {trouble}.", target.service));
        }
    }
}

/// The claims as they stand, each with its target.
fn claimed(observation: &Observation) -> impl Iterator<Item = (usize, &TargetView, Claim)> {
    observation.targets.iter().enumerate().filter_map(|(index, target)| {
        let mode: Mode = target.claim?;
        Some((index, target, Claim { service: target.service.clone(), address: target.address, mode }))
    })
}
