//! The drain budget of one service: how many targets may be out of use at a time because their pods do not serve.
//!
//! A shared dependency that fails every probe must not empty the load balancer.
//!
//! Invariant: a grant is given only where fewer are outstanding than the threshold leaves, and never for the last of several targets.
//! Absent on purpose: who needs no grant (deletions, debts, stamped orphans; they never ask).

use std::collections::BTreeSet;

use super::service::Key;

/// Who counts, who is out of use, and who was refused.
#[derive(Debug, Default)]
pub struct Budget {
    /// Claims of live, bound pods.
    counted: BTreeSet<Key>,
    /// Grants that are outstanding.
    granted: BTreeSet<Key>,
    /// Out of use without a grant: the registry has lost them, or somebody else has taken them out.
    away: BTreeSet<Key>,
    /// Who asked in vain.
    refused: BTreeSet<Key>,
}

impl Budget {
    /// Asks for leave to take `key` out of use; a refusal is remembered until there is room.
    pub fn ask(&mut self, key: &Key, panic_threshold: u8) -> bool {
        if self.granted.contains(key) {
            return true;
        }
        let others = self.out_of_use() - usize::from(self.away.contains(key));
        let room = others < allowed(self.counted.len(), panic_threshold);
        if room {
            self.refused.remove(key);
            self.granted.insert(key.clone());
        } else {
            self.refused.insert(key.clone());
        }
        room
    }

    /// Whether `key` has leave.
    pub fn granted(&self, key: &Key) -> bool {
        self.granted.contains(key)
    }

    /// Counts `key`, or not.
    pub fn count(&mut self, key: &Key, counts: bool) {
        if counts {
            if !self.counted.contains(key) {
                self.counted.insert(key.clone());
            }
        } else {
            self.counted.remove(key);
        }
    }

    /// Notes whether `key` is out of use though nobody granted it: it leaves less room, and is no leave to send anything.
    pub fn note_away(&mut self, key: &Key, away: bool) {
        if away {
            self.away.insert(key.clone());
        } else {
            self.away.remove(key);
        }
    }

    /// Gives back what `key` had.
    pub fn settle(&mut self, key: &Key) {
        self.granted.remove(key);
        self.away.remove(key);
        self.refused.remove(key);
    }

    /// Forgets `key`.
    pub fn forget(&mut self, key: &Key) {
        self.settle(key);
        self.counted.remove(key);
    }

    /// Those refused before for whom there may be room now; no more of them than there is room for, which who is away already takes none of.
    pub fn hopeful(&mut self, panic_threshold: u8) -> Vec<Key> {
        if self.refused.is_empty() {
            return Vec::new();
        }
        let (allowed, out) = (allowed(self.counted.len(), panic_threshold), self.out_of_use());
        let (away, others): (Vec<Key>, Vec<Key>) = self.refused.iter().cloned().partition(|key| self.away.contains(key));
        let away = away.into_iter().filter(|_| out <= allowed);
        let hopeful: Vec<Key> = away.chain(others.into_iter().take(allowed.saturating_sub(out))).collect();
        for key in &hopeful {
            self.refused.remove(key);
        }
        hopeful
    }

    /// Takes leave back where more targets are out of use, or have leave to be, than may be by now: from those that have not `used` it.
    pub fn take_back(&mut self, panic_threshold: u8, used: impl Fn(&Key) -> bool) -> Vec<Key> {
        if self.granted.is_empty() {
            return Vec::new();
        }
        let beyond = self.out_of_use().saturating_sub(allowed(self.counted.len(), panic_threshold));
        let back: Vec<Key> = self.granted.iter().filter(|key| !used(key)).take(beyond).cloned().collect();
        for key in &back {
            self.granted.remove(key);
        }
        back
    }

    /// How many were refused and still are.
    pub fn refused(&self) -> usize {
        self.refused.len()
    }

    fn out_of_use(&self) -> usize {
        self.granted.len() + self.away.difference(&self.granted).count()
    }
}

/// How many of `n` targets may be out of use.
fn allowed(n: usize, panic_threshold: u8) -> usize {
    let share = n * usize::from(100_u8.saturating_sub(panic_threshold)) / 100;
    if n > 1 { share.min(n - 1) } else { share }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::target::PodUid;

    #[rstest]
    #[case(0, 50, 0)]
    #[case(1, 50, 0)]
    #[case(1, 0, 1)]
    #[case(2, 50, 1)]
    #[case(3, 50, 1)]
    #[case(3, 0, 2)]
    #[case(4, 50, 2)]
    #[case(4, 100, 0)]
    #[case(10, 33, 6)]
    fn leaves_what_the_threshold_says(#[case] n: usize, #[case] threshold: u8, #[case] drains: usize) {
        assert_eq!(allowed(n, threshold), drains);
    }

    fn key(number: u8) -> Key {
        Key { address: ([10, 0, 0, number], 80).into(), uid: PodUid::new(format!("uid-{number}")) }
    }

    #[test]
    fn grants_one_by_one() {
        let mut budget = Budget::default();
        for number in 1..=4 {
            budget.count(&key(number), true);
        }
        assert!(budget.ask(&key(1), 50));
        assert!(budget.ask(&key(2), 50));
        assert!(!budget.ask(&key(3), 50));
        assert!(budget.ask(&key(1), 50), "a grant stays");
        assert_eq!(budget.hopeful(50), []);
        budget.settle(&key(2));
        assert_eq!(budget.hopeful(50), [key(3)]);
        assert!(budget.ask(&key(3), 50));
        budget.forget(&key(4));
        assert!(!budget.ask(&key(2), 50), "fewer count, so fewer may be out");
    }

    #[test]
    fn leave_that_was_not_used_is_taken_back_once_fewer_count() {
        let mut budget = Budget::default();
        for number in 1..=4 {
            budget.count(&key(number), true);
        }
        assert!(budget.ask(&key(1), 50) && budget.ask(&key(2), 50));
        let used = |one: &Key| *one == key(1);
        assert_eq!(budget.take_back(50, used), []);
        budget.forget(&key(4));
        assert_eq!(budget.take_back(50, used), [key(2)]);
        assert!(budget.granted(&key(1)) && !budget.granted(&key(2)));
        budget.forget(&key(3));
        budget.forget(&key(2));
        assert_eq!(budget.take_back(50, used), [], "what was used cannot be taken back");
    }

    #[test]
    fn what_is_away_leaves_less_room_and_no_leave() {
        let mut budget = Budget::default();
        for number in 1..=4 {
            budget.count(&key(number), true);
        }
        budget.note_away(&key(1), true);
        assert!(!budget.granted(&key(1)));
        assert!(budget.ask(&key(2), 50));
        assert!(!budget.ask(&key(3), 50));
        assert!(budget.ask(&key(1), 50), "what is away already takes no more room");
        budget.settle(&key(2));
        assert!(budget.ask(&key(3), 50));
    }

    #[test]
    fn what_is_away_already_waits_for_no_room_beside_it() {
        let mut budget = Budget::default();
        budget.count(&key(1), true);
        budget.note_away(&key(1), true);
        assert!(!budget.ask(&key(1), 50));
        assert_eq!(budget.hopeful(50), [], "the only one stays");
        budget.count(&key(2), true);
        assert_eq!(budget.hopeful(50), [key(1)]);
    }
}
