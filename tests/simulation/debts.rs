//! The text of the debts ConfigMap, as the judges read it.
//!
//! The format is the product's own, so the product's own parser reads it.
//!
//! Invariant: every line that holds a claim counts.
//! Absent on purpose: writing.

use crate::world::invariants::Debt;

/// Every debt of the text.
pub(crate) fn parse(text: &str) -> Vec<Debt> {
    let debts = lockstep::registration::claim::parse_debts(text).into_iter();
    debts.map(|debt| Debt { service: debt.claim.service, address: debt.claim.address, uid: debt.uid }).collect()
}
