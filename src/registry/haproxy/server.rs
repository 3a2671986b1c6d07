//! One server of a backend: where it is in its life, and which commands bring it further.
//!
//! Pure. What a server is to become is read from HAProxy alone, so a restart of ours loses nothing:
//!
//! | a server of ours is | weight | administrative state |
//! | --- | --- | --- |
//! | registering: checked, takes no traffic yet | 0 | ready |
//! | in use | above 0 | ready |
//! | draining | any | drain |
//! | leaving: removed once its sessions are gone | 0 | maintenance |
//! | parked by an operator: left alone | above 0 | maintenance |
//! | half made: removed, unless it is registered again | any | maintenance, its check never enabled |
//!
//! Invariant: no command takes a server into use before its own check has passed, except where there is no check.
//! Invariant: what is done unasked (`upkeep`) undoes no drain and no removal that somebody else began: it changes the weight alone. A register
//! undoes both; so does whatever makes a process that was away or is new like the others (`super`), an operator's drain in it included.
//! Absent on purpose: texts of HAProxy (`answer`), which server is meant (`backend`).

use std::net::SocketAddr;
use std::time::Duration;

use crate::config::HaproxyBackend;
use crate::registry::Stamp;
use crate::target::TargetState;

/// A server is deleted no sooner after its last new request could have come: while HAProxy tries a request again on a server that does not
/// answer (three times, a second apart), the request holds the server without being counted, and 2.6 crashes if it is deleted then.
const REST: u64 = 6;
/// HAProxy takes no weight above.
pub(super) const HEAVIEST: u32 = 256;

/// Bits of the administrative state: maintenance by command, inheritance, resolution or host name.
const MAINTENANCE: u32 = 0x63;
/// Bits of the administrative state: drain by command or inheritance.
const DRAIN: u32 = 0x18;

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) address: Option<SocketAddr>,
    pub(super) owner: Owner,
    pub(super) administrative: u32,
    pub(super) operational: Operational,
    pub(super) weight: u32,
    /// The one it was made with.
    pub(super) initial_weight: u32,
    /// An agent of the operator sets its weight.
    pub(super) advised: bool,
    /// It has a check that nobody has ever enabled, as a dynamic server that is being made.
    pub(super) unbegun: bool,
    /// Its check has passed since it was last put in.
    pub(super) passed: bool,
    pub(super) sessions: u64,
    /// Seconds since it last went up or down.
    pub(super) since: u64,
    /// Whether its line has a host name: without one HAProxy takes no address from a state file.
    pub(super) named: bool,
}

/// Whose a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A dynamic server with our cluster in its name.
    Ours(Stamp),
    /// A slot of a template; whoever has the address in use has the slot.
    Slot,
    /// Anybody else's; of another cluster, where there is a stamp.
    Foreign(Option<Stamp>),
}

/// Where a server of ours is in its life; the careful ones come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// A slot that nobody uses.
    Free,
    Active,
    Registering,
    Parked,
    Draining,
    Leaving,
}

/// `srv_op_state` of HAProxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operational {
    Stopped,
    Starting,
    Running,
    Stopping,
}

/// Commands about one server, one after the other as long as each is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) commands: Vec<String>,
    /// HAProxy may refuse them yet; then they are tried again later.
    pub(super) attempt: bool,
}

impl Server {
    /// Where it is in its life.
    pub(super) fn phase(&self) -> Phase {
        let ours = !matches!(self.owner, Owner::Foreign(_));
        if self.administrative & MAINTENANCE != 0 {
            return match self.owner {
                Owner::Slot if self.weight == 0 && self.sessions > 0 => Phase::Leaving,
                Owner::Slot => Phase::Free,
                Owner::Ours(_) if self.weight == 0 || self.unbegun => Phase::Leaving,
                Owner::Ours(_) | Owner::Foreign(_) => Phase::Parked,
            };
        }
        match () {
            () if self.administrative & DRAIN != 0 => Phase::Draining,
            () if self.weight == 0 && ours => Phase::Registering,
            () if self.weight == 0 => Phase::Draining,
            () => Phase::Active,
        }
    }

    /// Whether somebody began to make it and did not come far: it takes no part in what processes agree on.
    pub(super) fn is_half_made(&self) -> bool {
        self.unbegun && matches!(self.owner, Owner::Ours(_)) && self.phase() == Phase::Leaving
    }

    /// What a listing says of it; `None` of what is in no use at all.
    pub(super) fn state(&self) -> Option<TargetState> {
        let down = self.operational == Operational::Stopped;
        Some(match self.phase() {
            Phase::Free => return None,
            Phase::Leaving | Phase::Draining => TargetState::Draining,
            Phase::Parked => TargetState::Unused,
            Phase::Registering | Phase::Active if down => TargetState::Unhealthy,
            Phase::Registering => TargetState::Initial,
            Phase::Active if self.operational == Operational::Stopping => TargetState::Draining,
            Phase::Active => TargetState::Active,
        })
    }

    /// Whether it comes further only as somebody looks after it.
    pub(super) fn is_underway(&self) -> bool {
        matches!(self.phase(), Phase::Registering | Phase::Leaving)
    }

    /// Steps that stop new traffic to it.
    pub(super) fn drain(&self, backend: &str) -> Vec<Steps> {
        match self.phase() {
            Phase::Active | Phase::Registering => vec![Steps::must([format!("set server {backend}/{} state drain", self.name)])],
            // The others get none, and `state drain` would end a maintenance.
            Phase::Draining | Phase::Leaving | Phase::Parked | Phase::Free => Vec::new(),
        }
    }

    /// Steps that take it out; it stays while it has sessions.
    pub(super) fn take_out(&self, backend: &str) -> Vec<Steps> {
        let full = format!("{backend}/{}", self.name);
        let mut steps = Vec::new();
        if self.phase() != Phase::Leaving {
            steps.push(Steps::must([format!("set server {full} weight 0%"), format!("set server {full} state maint")]));
        }
        steps.extend(self.removal(backend));
        steps
    }

    /// Steps that put it in again, where it is on its way out or out of use. `share`: the one that its target is to have, where known.
    /// `its_own`: a slot was drained for the very pod that is put in; else what its check says is of somebody else.
    pub(super) fn put_in(&self, backend: &str, config: HaproxyBackend, share: Option<u16>, its_own: bool) -> Vec<Steps> {
        let full = format!("{backend}/{}", self.name);
        let ready = format!("set server {full} state ready");
        let steps = match self.phase() {
            Phase::Active => return self.weigh(backend, share),
            Phase::Registering | Phase::Free => return Vec::new(),
            Phase::Draining if its_own || self.owner != Owner::Slot => return self.take_drain_back(backend),
            // A check begins anew only from maintenance.
            Phase::Draining if config.check => Steps::must([
                format!("set server {full} weight 0%"),
                format!("set server {full} state maint"),
                format!("enable health {full}"),
                ready,
            ]),
            Phase::Leaving | Phase::Parked if config.check => {
                Steps::must([format!("set server {full} weight 0%"), format!("enable health {full}"), ready])
            }
            Phase::Draining | Phase::Leaving | Phase::Parked => Steps::must([self.take_weight(backend, share), ready]),
        };
        vec![steps]
    }

    /// Steps that undo a drain. Its check has gone on meanwhile, and one that was never used keeps the weight 0 of that.
    pub(super) fn take_drain_back(&self, backend: &str) -> Vec<Steps> {
        let ready = || Steps::must([format!("set server {backend}/{} state ready", self.name)]);
        (self.phase() == Phase::Draining).then(ready).into_iter().collect()
    }

    /// For how long it has had no new sessions, at least.
    pub(super) fn quiet(&self) -> Duration {
        match self.phase() {
            Phase::Draining | Phase::Leaving => Duration::from_secs(self.since),
            Phase::Free | Phase::Active | Phase::Registering | Phase::Parked => Duration::ZERO,
        }
    }

    /// Steps for what other registries do by themselves: take into use what has passed its check, remove what has no sessions any more.
    /// `share`: the one that its target is to have, where that is known. `over`: whether sessions that are left have had their time.
    pub(super) fn upkeep(&self, backend: &str, share: Option<u16>, over: impl FnOnce(&Self) -> bool) -> Vec<Steps> {
        match self.phase() {
            Phase::Registering if self.passed => vec![Steps::must([self.take_weight(backend, share)])],
            Phase::Active => self.weigh(backend, share),
            Phase::Leaving => {
                let cut = self.sessions > 0 && over(self);
                let cut = cut.then(|| Steps::attempt(format!("shutdown sessions server {backend}/{}", self.name)));
                cut.into_iter().chain(self.removal(backend)).collect()
            }
            Phase::Free | Phase::Registering | Phase::Parked | Phase::Draining => Vec::new(),
        }
    }

    /// The step that removes it, once it has rested; a slot stays.
    fn removal(&self, backend: &str) -> Option<Steps> {
        let removed = matches!(self.owner, Owner::Ours(_)) && self.has_rested();
        removed.then(|| Steps::attempt(format!("del server {backend}/{}", self.name)))
    }

    /// The command by which it takes its share of the traffic; where that is not known, the share that it was made for.
    pub(super) fn take_weight(&self, backend: &str, share: Option<u16>) -> String {
        let full = format!("{backend}/{}", self.name);
        match self.wanted_weight(share) {
            // A static balance algorithm takes no other form of its own weight.
            weight if weight == self.initial_weight => format!("set server {full} weight 100%"),
            weight => format!("set server {full} weight {weight}"),
        }
    }

    /// Steps that give a server in use the weight of its share, where that is known, unless somebody else is asked for it.
    fn weigh(&self, backend: &str, share: Option<u16>) -> Vec<Steps> {
        if share.is_none() || self.advised || self.weight == self.wanted_weight(share) {
            return Vec::new();
        }
        vec![Steps::must([self.take_weight(backend, share)])]
    }

    /// A slot has the share as part of its own weight, but never so little that it would get nothing.
    pub(super) fn wanted_weight(&self, share: Option<u16>) -> u32 {
        let weight = match (share.map(u32::from), &self.owner) {
            (None, _) => self.initial_weight,
            (Some(share), Owner::Slot) => (self.initial_weight * share + 50) / 100,
            (Some(share), Owner::Ours(_) | Owner::Foreign(_)) => share,
        };
        weight.clamp(1, HEAVIEST)
    }

    /// Whether no request can hold it any more but those that are counted.
    fn has_rested(&self) -> bool {
        matches!(self.phase(), Phase::Draining | Phase::Leaving) && self.since >= REST
    }
}

impl Steps {
    pub(super) fn must<const N: usize>(commands: [String; N]) -> Self {
        Self { commands: commands.into(), attempt: false }
    }

    fn attempt(command: String) -> Self {
        Self { commands: vec![command], attempt: true }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::registry::haproxy::answer::tests::{OURS, Seen, UP, example, with_check};

    const SLOT: &str = "lockstep7";

    fn texts(steps: &[Steps]) -> String {
        let all: Vec<String> = steps.iter().flat_map(|steps| &steps.commands).map(|one| one.replace(OURS, "S")).collect();
        all.join("; ")
    }

    #[rstest]
    #[case::begins([1, 0, 100], UP, Phase::Parked, TargetState::Unused)]
    #[case::checked([0, 2, 0], ("UP 1/3", "INI", 2, 0, 0), Phase::Registering, TargetState::Initial)]
    #[case::dead([0, 0, 0], ("DOWN", "L4CON", 0, 0, 1), Phase::Registering, TargetState::Unhealthy)]
    #[case::in_use([0, 2, 100], UP, Phase::Active, TargetState::Active)]
    #[case::slot_in_use([4, 2, 100], UP, Phase::Active, TargetState::Active)]
    #[case::failed([0, 0, 100], ("DOWN", "L4CON", 0, 0, 1), Phase::Active, TargetState::Unhealthy)]
    #[case::drained([8, 2, 100], ("DRAIN", "L7OK", 4, 0, 1), Phase::Draining, TargetState::Draining)]
    #[case::drained_before_use([8, 2, 0], ("DRAIN", "L7OK", 4, 0, 1), Phase::Draining, TargetState::Draining)]
    #[case::drained_and_dead([8, 0, 100], ("DOWN", "L4CON", 0, 0, 1), Phase::Draining, TargetState::Draining)]
    #[case::leaving([1, 0, 0], ("MAINT", "", 0, 1, 1), Phase::Leaving, TargetState::Draining)]
    #[case::disabled_by_404([0, 3, 100], ("NOLB", "L7OKC", 4, 0, 1), Phase::Active, TargetState::Draining)]
    fn a_server_of_ours_is_shown(#[case] numbers: [u32; 3], #[case] seen: Seen<'_>, #[case] phase: Phase, #[case] state: TargetState) {
        let server = example(OURS, numbers, seen);
        assert_eq!((server.phase(), server.state()), (phase, Some(state)));
        assert!(matches!(&server.owner, Owner::Ours(stamp) if stamp.uid.as_str() == "u"));
    }

    /// Whoever made it was broken off: that is not parked by an operator, so it must not wait for one.
    #[rstest]
    #[case::after_the_first_step([2, 1], 100, true, Phase::Leaving)]
    #[case::after_the_second([2, 1], 0, true, Phase::Leaving)]
    #[case::taken_out_before_its_check([6, 1], 0, false, Phase::Leaving)]
    #[case::parked_before_its_check([6, 1], 100, false, Phase::Parked)]
    #[case::parked([14, 6], 100, false, Phase::Parked)]
    #[case::parked_and_its_check_disabled([2, 6], 100, false, Phase::Parked)]
    #[case::taken_out_and_its_check_disabled([2, 6], 0, false, Phase::Leaving)]
    #[case::without_a_check([0, 0], 100, false, Phase::Parked)]
    fn half_made_is_not_parked(#[case] check: [u32; 2], #[case] weight: u32, #[case] half: bool, #[case] phase: Phase) {
        let server = with_check(check, OURS, [1, 0, weight], ("MAINT", "", 0, 0, 9));
        assert_eq!((server.is_half_made(), server.phase()), (half, phase));
        let removed = if phase == Phase::Leaving { "del server web/S" } else { "" };
        assert_eq!(texts(&server.upkeep("web", None, |_| false)), removed);
    }

    #[rstest]
    #[case::unused([5, 0, 1], 0, true, Phase::Free, "")]
    #[case::busy([5, 0, 0], 1, false, Phase::Leaving, "")]
    #[case::busy_for_too_long([5, 0, 0], 1, true, Phase::Leaving, "shutdown sessions server web/lockstep7")]
    #[case::left([5, 0, 0], 0, true, Phase::Free, "")]
    fn a_slot_is_free_once_its_sessions_are_gone(
        #[case] numbers: [u32; 3],
        #[case] sessions: u32,
        #[case] over: bool,
        #[case] phase: Phase,
        #[case] expected: &str,
    ) {
        let server = example(SLOT, numbers, ("MAINT", "", 0, sessions, 1));
        assert_eq!(server.phase(), phase);
        assert_eq!(server.state().is_none(), phase == Phase::Free);
        assert_eq!(texts(&server.upkeep("web", None, |_| over)), expected);
    }

    #[rstest]
    #[case::before_its_check(("UP 1/3", "INI", 2, 0, 0), "")]
    #[case::after_it(UP, "set server web/S weight 100%")]
    fn a_server_comes_into_use_by_its_own_check(#[case] seen: Seen<'_>, #[case] expected: &str) {
        let server = example(OURS, [0, 2, 0], seen);
        assert_eq!(texts(&server.upkeep("web", None, |_| false)), expected);
        assert!(server.is_underway());
    }

    /// The line of these slots says `weight 100`, as that of [`a_light_slot_gets_traffic`] says nothing.
    #[rstest]
    #[case::of_a_slot(SLOT, 0, Some(20), "set server web/lockstep7 weight 20")]
    #[case::that_nobody_knows(SLOT, 0, None, "set server web/lockstep7 weight 100%")]
    #[case::that_is_the_whole(SLOT, 0, Some(100), "set server web/lockstep7 weight 100%")]
    #[case::that_is_more(SLOT, 0, Some(256), "set server web/lockstep7 weight 256")]
    #[case::that_a_slot_lost(SLOT, 100, Some(20), "set server web/lockstep7 weight 20")]
    #[case::that_a_slot_has(SLOT, 20, Some(20), "")]
    #[case::of_a_slot_in_use_that_nobody_knows(SLOT, 50, None, "")]
    #[case::of_a_dynamic_server(OURS, 0, None, "set server web/S weight 100%")]
    #[case::of_a_binding_that_was_changed(OURS, 100, Some(20), "set server web/S weight 20")]
    fn a_server_has_its_share(#[case] name: &str, #[case] weight: u32, #[case] share: Option<u16>, #[case] expected: &str) {
        assert_eq!(texts(&example(name, [0, 2, weight], UP).upkeep("web", share, |_| false)), expected);
    }

    #[rstest]
    #[case(1)]
    #[case(49)]
    fn a_light_slot_gets_traffic(#[case] share: u16) {
        let server = Server { initial_weight: 1, ..example(SLOT, [0, 2, 0], UP) };
        assert_eq!(texts(&server.upkeep("web", Some(share), |_| false)), "set server web/lockstep7 weight 100%");
    }

    #[test]
    fn an_agent_of_the_operator_is_not_fought() {
        let server = Server { advised: true, ..example(SLOT, [0, 2, 50], UP) };
        assert_eq!(texts(&server.upkeep("web", Some(100), |_| false)), "");
    }

    /// HAProxy counts on from when it went down where it was down before; that says nothing of its sessions.
    #[rstest]
    #[case::too_soon(1, false, "")]
    #[case::soon(6, false, "del server web/S")]
    #[case::down_long_before(9000, false, "del server web/S")]
    #[case::late(36, true, "shutdown sessions server web/S; del server web/S")]
    fn a_leaving_server_is_removed(#[case] since: u32, #[case] over: bool, #[case] expected: &str) {
        let steps = example(OURS, [1, 0, 0], ("MAINT", "", 0, 1, since)).upkeep("web", None, |_| over);
        assert!(steps.iter().all(|steps| steps.attempt));
        assert_eq!(texts(&steps), expected);
    }
}
