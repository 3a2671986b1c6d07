//! Which process answers at a place: one life of HAProxy told from the next, and several that answer by turns.
//!
//! A process that was started later than the one before has replaced it: a reload or a restart, after which it may lack something. One that
//! was started earlier has not: both live behind one address, as a TCP balancer or a shared port makes it. What one of them acknowledges the
//! other does not have, so such a place must not pass for a process.
//!
//! Invariant: reloads make no place shared, however many: an old process may be met once more after the new one, but not again and again.
//! Absent on purpose: what follows from it (`instances`).

use std::cmp::Reverse;
use std::time::Duration;

use tokio::time::Instant;

use super::instances::unlike;
use crate::registry::CallError;

/// So many returns of one process make a place shared: in a reload the old one may be met once more after the new one.
const TURNS: u32 = 2;
/// A place where one process alone has answered for so long is shared no more; while something waits, it is read many times in that.
const CALM: Duration = Duration::from_secs(60);
/// Processes that are remembered: more than a balancer has behind it, as a rule. Of more those go first that never came back.
const MET: usize = 64;

/// One life of a process: in a container each new one may have the id of the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    /// Name of its machine or container.
    node: String,
    id: u64,
    /// When it was started, in seconds.
    started: u64,
}

/// Who has answered at one place.
#[derive(Debug, Default)]
pub(super) struct Answering {
    /// Each with how often it has come back in the place of one that was started later; the first is the one that answers.
    met: Vec<(Process, u32)>,
    /// When the session was begun in which that was seen.
    known: Option<Instant>,
    returned: Option<Instant>,
}

/// Who answered, compared with the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// The same.
    Same,
    /// One that may lack what that one had.
    Another,
    /// One that lives beside it.
    Rival,
}

impl Process {
    /// The process that answers to `show info` with `text`, and the seconds that it runs. One that is about to end has nothing to say any
    /// more: what it acknowledges, its successor may not have.
    pub(super) fn of(text: &str) -> Result<(Self, u64), CallError> {
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::trim));
        let number = |name: &str| value(name)?.parse::<u64>().ok();
        if number("Stopping").is_some_and(|stopping| stopping != 0) {
            return Err(CallError::Unavailable("the process is ending; its successor answers next".to_owned()));
        }
        let id = number("Pid").ok_or_else(|| unlike(text))?;
        let node = value("node").unwrap_or_default().to_owned();
        Ok((Self { node, id, started: number("Start_time_sec").unwrap_or_default() }, number("Uptime_sec").unwrap_or_default()))
    }
}

impl Answering {
    /// Takes note of who answered in a session that was begun at that time.
    pub(super) fn meet(&mut self, process: &Process, at: Instant) -> Met {
        if self.is(process) {
            self.known = self.known.max(Some(at));
            return Met::Same;
        }
        if self.known.is_some_and(|known| at < known) {
            // A late answer: its process may have been replaced since.
            return Met::Another;
        }
        self.known = Some(at);
        let before = self.met.iter().position(|(one, _)| one == process).map(|place| self.met.remove(place));
        let returns = before.as_ref().map_or(0, |(_, returns)| *returns);
        let older =
            self.met.first().is_some_and(|(now, _)| process.started < now.started || (before.is_some() && process.started == now.started));
        self.make_room();
        self.met.insert(0, (process.clone(), returns));
        if !older {
            return Met::Another;
        }
        if self.is_calm(at) {
            self.met.iter_mut().for_each(|(_, returns)| *returns = 0);
        }
        self.met[0].1 += 1;
        self.returned = Some(at);
        Met::Rival
    }

    /// Whether several processes answer by turns.
    pub(super) fn is_shared(&self) -> bool {
        self.met.iter().any(|(_, returns)| *returns >= TURNS) && !self.is_calm(Instant::now())
    }

    /// Whether it is the rival that was met just now that makes it so.
    pub(super) fn is_news(&self) -> bool {
        self.met.first().is_some_and(|(_, returns)| *returns == TURNS)
    }

    /// Whether it is that one that answers.
    pub(super) fn is(&self, process: &Process) -> bool {
        self.met.first().is_some_and(|(now, _)| now == process)
    }

    /// Forgets one that came back least often, and of those the one that was met the longest ago.
    fn make_room(&mut self) {
        let least = self.met.iter().enumerate().min_by_key(|(place, (_, returns))| (*returns, Reverse(*place)));
        if let Some((place, _)) = least.filter(|_| self.met.len() >= MET) {
            self.met.remove(place);
        }
    }

    fn is_calm(&self, at: Instant) -> bool {
        self.returned.is_none_or(|returned| at.saturating_duration_since(returned) >= CALM)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::runs("Name: HAProxy\nPid: 1\nUptime_sec: 5\nnode: lb-1\nStopping: 0\nStart_time_sec: 1700\n", Ok(("lb-1", 1, 1700, 5)))]
    #[case::another_with_its_id("Pid: 1\nUptime_sec: 5\nStart_time_sec: 1800\n", Ok(("", 1, 1800, 5)))]
    #[case::of_another_version("Pid: 17\n", Ok(("", 17, 0, 0)))]
    #[case::ends("Pid: 17\nUptime_sec: 5\nStopping: 1\nStart_time_sec: 1700\n", Err(true))]
    #[case::is_none("Name: other\n", Err(false))]
    fn a_process_is_known_by_its_start(#[case] info: &str, #[case] expected: Result<(&str, u64, u64, u64), bool>) {
        let read = Process::of(info);
        let read = read.as_ref().map(|(process, age)| (&*process.node, process.id, process.started, *age));
        assert_eq!(read.map_err(|error| matches!(error, CallError::Unavailable(_))), expected);
    }

    /// Each letter is a process, started in the order of the alphabet; a number is that many seconds that pass.
    #[rstest]
    #[case::alone("a a a", "another same same", false)]
    #[case::reloads("a b c d", "another another another another", false)]
    #[case::old_one_met_once_more("a b a b b", "another another rival another same", false)]
    #[case::old_one_met_while_it_is_replaced("a b a c", "another another rival another", false)]
    #[case::reloads_in_a_minute("a b a b c b c d c d", "another another rival another another rival another another rival another", false)]
    #[case::address_that_moves_now_and_then("a b a b 60 a b", "another another rival another rival another", false)]
    #[case::by_turns("b a b a", "another rival another rival", true)]
    #[case::by_turns_until_lately("b a b a 59 a", "another rival another rival same", true)]
    #[case::by_turns_until_a_minute_ago("b a b a 60 a", "another rival another rival same", false)]
    #[case::many("c b d a c b", "another rival another rival another rival", true)]
    #[tokio::test(start_paused = true)]
    async fn processes_behind_one_address_are_told_from_a_restart(#[case] who: &str, #[case] expected: &str, #[case] shared: bool) {
        let (mut answering, mut met) = (Answering::default(), Vec::new());
        for word in who.split(' ') {
            match word.parse() {
                Ok(seconds) => tokio::time::advance(Duration::from_secs(seconds)).await,
                Err(_) => met.push(format!("{:?}", answering.meet(&of(word), Instant::now())).to_lowercase()),
            }
        }
        assert_eq!((met.join(" "), answering.is_shared()), (expected.to_owned(), shared));
    }

    /// However many there are, and in whatever order they answer.
    #[rstest]
    #[case::the_oldest_first(0..10)]
    #[case::the_youngest_first((0..10).rev())]
    #[case::more_than_are_remembered(0..100)]
    #[tokio::test(start_paused = true)]
    async fn many_processes_that_answer_by_turns_are_found(#[case] turn: impl Iterator<Item = u64> + Clone) {
        let mut answering = Answering::default();
        for started in [turn.clone(), turn.clone(), turn].into_iter().flatten() {
            answering.meet(&Process { started, ..of("a") }, Instant::now());
        }
        assert!(answering.is_shared());
    }

    /// Each old process is met once more, as often as there is a new one.
    #[tokio::test(start_paused = true)]
    async fn many_reloads_make_no_place_shared() {
        let mut answering = Answering::default();
        for started in 0..200 {
            for started in [started, started + 1, started, started + 1] {
                answering.meet(&Process { started, ..of("a") }, Instant::now());
            }
        }
        assert!(!answering.is_shared());
    }

    /// As those of one Deployment are.
    #[tokio::test(start_paused = true)]
    async fn processes_that_were_started_together_are_told_apart() {
        let (mut answering, one) = (Answering::default(), of("a"));
        let other = Process { id: 2, ..one.clone() };
        for process in [&one, &other, &one, &other, &one] {
            assert!(!answering.is_shared());
            answering.meet(process, Instant::now());
        }
        assert!(answering.is_shared());
    }

    /// Two services ask at the same time, and a restart comes in between.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_late_is_no_rival() {
        let (mut answering, early) = (Answering::default(), Instant::now());
        tokio::time::advance(Duration::from_secs(1)).await;
        answering.meet(&of("b"), Instant::now());
        assert_eq!(answering.meet(&of("a"), early), Met::Another);
        assert_eq!(answering.meet(&of("b"), Instant::now()), Met::Same);
    }

    fn of(letter: &str) -> Process {
        Process { node: String::new(), id: 1, started: u64::from(letter.as_bytes()[0]) }
    }
}
