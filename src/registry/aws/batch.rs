//! Many changes in few calls, although one bad target makes AWS refuse a whole call.
//!
//! A refused call is divided until the target is found that it was refused for, unless the text of the refusal names it. A refusal that
//! speaks of the Availability Zone of an address means that it is on the other side of the VPC's border than was thought.
//!
//! Invariant: every change has a result that is true: done, certainly not done, or an error of the whole call that leaves it open.
//! Invariant: every call but the first is taken from the spare ones.
//! Absent on purpose: what may be sent at all (`group`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use aws_sdk_elasticloadbalancingv2::types::TargetDescription;

use super::api::{Api, Direction};
use super::budget::Budget;
use super::failure::Failure;
use super::group::Group;
use super::zones::ALL;
use crate::registry::text::bounded;
use crate::registry::{CallError, Change, ChangeError, Operation};

type Outcome = Result<(), ChangeError>;

/// A batch on its way.
pub(super) struct Batch<'a> {
    changes: &'a [Change],
    outcomes: Vec<Option<Outcome>>,
    /// What is still to be sent; the last is next.
    left: Vec<Part>,
    /// Addresses for which the other side of the border was tried.
    crossed: BTreeSet<IpAddr>,
    /// Something was done.
    done: bool,
}

/// Changes that go into one call, by their place in the batch.
struct Part {
    direction: Direction,
    places: Vec<usize>,
}

impl<'a> Batch<'a> {
    /// A batch of `changes`, without those that `refused` knows a reason against.
    pub(super) fn new(changes: &'a [Change], refused: impl Fn(&Change) -> Option<ChangeError>) -> Self {
        let outcomes: Vec<Option<Outcome>> = changes.iter().map(|change| refused(change).map(Err)).collect();
        let part = |direction: Direction| {
            let wanted = |place: &usize| outcomes[*place].is_none() && direction_of(&changes[*place]) == direction;
            Part { direction, places: (0..changes.len()).filter(wanted).collect() }
        };
        // What frees a place goes first.
        let left = [part(Direction::In), part(Direction::Out)].into_iter().filter(|part| !part.places.is_empty()).collect();
        Self { changes, outcomes, left, crossed: BTreeSet::new(), done: false }
    }

    /// Sends it all; one result for each change, in order.
    pub(super) async fn send(mut self, api: &Api, arn: &str, group: &Group, spare: &Budget) -> Result<Vec<Outcome>, CallError> {
        let mut first = true;
        while let Some(part) = self.left.pop() {
            if !std::mem::take(&mut first) && !spare.take() {
                break;
            }
            let targets = part.places.iter().map(|place| self.target(*place, group)).collect();
            match api.change(part.direction, arn, targets).await {
                Ok(()) => {
                    self.done = true;
                    self.settle(&part.places, &Ok(()));
                }
                Err(Failure::Target(text)) => self.divide(part, &text, group),
                Err(Failure::Full(text)) => self.full(part, text),
                Err(Failure::Call(error) | Failure::Stale(error)) => self.stop(part, error)?,
            }
        }
        let late = ChangeError::Throttled("a request was refused too often for single targets; the rest goes with the next".to_owned());
        Ok(self.outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(late.clone()))).collect())
    }

    fn target(&self, place: usize, group: &Group) -> TargetDescription {
        let address = self.changes[place].address;
        let target = TargetDescription::builder().id(address.ip().to_string()).port(address.port().into());
        if group.zones().is_outside(address.ip()) { target.availability_zone(ALL).build() } else { target.build() }
    }

    /// One of `part` is refused.
    fn divide(&mut self, part: Part, text: &str, group: &Group) {
        let Part { direction, places } = part;
        let addresses = addresses(text);
        let (named, others): (Vec<usize>, Vec<usize>) =
            places.iter().partition(|place| addresses.contains(&self.changes[**place].address.ip()));
        if text.contains("Availability Zone") && self.cross(&named, group) {
            self.left.push(Part { direction, places });
        } else if named.is_empty() && places.len() > 1 {
            self.halve(direction, &places);
        } else {
            let (refused, others) = if named.is_empty() { (places, Vec::new()) } else { (named, others) };
            self.settle(&refused, &Err(ChangeError::Refused(bounded(text))));
            if !others.is_empty() {
                self.left.push(Part { direction, places: others });
            }
        }
    }

    /// Goes on with the first half, then with the other.
    fn halve(&mut self, direction: Direction, places: &[usize]) {
        let (first, second) = places.split_at(places.len() / 2);
        self.left.extend([second, first].map(|places| Part { direction, places: places.to_vec() }));
    }

    /// The addresses of these are on the other side than was thought; whether that is news.
    fn cross(&mut self, named: &[usize], group: &Group) -> bool {
        let mut news = false;
        for place in named {
            let ip = self.changes[*place].address.ip();
            if self.crossed.insert(ip) {
                let mut zones = group.zones();
                let outside = zones.is_outside(ip);
                zones.learn(ip, !outside);
                news = true;
            }
        }
        news
    }

    /// The group has no room for all of `part`.
    fn full(&mut self, part: Part, text: String) {
        if part.places.len() > 1 {
            self.halve(part.direction, &part.places);
            return;
        }
        // No room for one is no room for any.
        let (waiting, left): (Vec<Part>, Vec<Part>) =
            std::mem::take(&mut self.left).into_iter().partition(|other| other.direction == part.direction);
        self.left = left;
        let full = Err(ChangeError::Full(text));
        for part in waiting.into_iter().chain([part]) {
            self.settle(&part.places, &full);
        }
    }

    /// The whole call failed. What was done before is not lost, as far as that can be told.
    fn stop(&mut self, part: Part, error: CallError) -> Result<(), CallError> {
        if !self.done {
            return Err(error);
        }
        let outcome = match error {
            CallError::Throttled(text) => Err(ChangeError::Throttled(text)),
            CallError::Denied(text) => Err(ChangeError::Denied(text)),
            CallError::Unavailable(text) => return Err(CallError::Failed(text)),
            error @ (CallError::ServiceMissing(_) | CallError::Timeout | CallError::Failed(_)) => return Err(error),
        };
        self.left.push(part);
        for part in std::mem::take(&mut self.left) {
            self.settle(&part.places, &outcome);
        }
        Ok(())
    }

    fn settle(&mut self, places: &[usize], outcome: &Outcome) {
        for place in places {
            self.outcomes[*place] = Some(outcome.clone());
        }
    }
}

fn direction_of(change: &Change) -> Direction {
    match change.operation {
        Operation::Register => Direction::In,
        // Deregistering drains by itself.
        Operation::Drain | Operation::Deregister => Direction::Out,
    }
}

/// The addresses that a text names.
fn addresses(text: &str) -> BTreeSet<IpAddr> {
    let words = text.split(|one: char| !(one.is_ascii_hexdigit() || matches!(one, '.' | ':')));
    words.filter_map(|word| word.trim_matches(['.', ':']).parse().ok().or_else(|| word.parse().ok())).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("The Availability Zone is required for IP address '10.4.40.87' because it is not in the VPC", &["10.4.40.87"])]
    #[case("since the IP address 'fd00::1' is outside the VPC.", &["fd00::1"])]
    #[case("Not valid: 10.0.0.1, 10.0.0.2.", &["10.0.0.1", "10.0.0.2"])]
    #[case("The port is not valid", &[])]
    fn addresses_are_found_in_a_text(#[case] text: &str, #[case] found: &[&str]) {
        assert_eq!(addresses(text), found.iter().map(|one| one.parse().unwrap()).collect());
    }
}
