//! One backend of one HAProxy process: which of its servers is meant by a target, and how one comes to be.
//!
//! Pure: servers in, commands out.
//!
//! Invariant: a server that is neither stamped as ours nor a slot is never named in a command.
//! Invariant: a slot that nobody named is touched only in a backend whose slots are ours, as the configuration says.
//! Absent on purpose: what one server needs (`server`), several processes (`instances`), what is remembered (`slots`).

use std::net::SocketAddr;

use super::name::{self, SLOT};
use super::server::{HEAVIEST, Owner, Phase, Server, Steps};
use crate::config::{HaproxyBackend, Servers};
use crate::registry::{Change, ChangeError, Operation};
use crate::target::PodUid;

/// Check of a dynamic server, which no `default-server` line reaches: first result within a second, out of use after three failures.
const CHECK: &str = "check inter 1s fastinter 250ms rise 2 fall 3";

/// A change, and what is known of the slot at its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'c> {
    pub(super) change: &'c Change,
    /// It was put in for the very pod of the change. Else its state, its check and its weight are those of whoever had the address before.
    pub(super) its_own: bool,
}

/// The servers of a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Backend {
    pub(super) servers: Vec<Server>,
}

impl Backend {
    /// Whether slots of it lose their addresses at a reload.
    pub(super) fn forgets_slots(&self) -> bool {
        self.servers.iter().any(|server| server.owner == Owner::Slot && !server.named)
    }

    /// The servers of ours that are in use.
    pub(super) fn ours(&self, config: HaproxyBackend) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(move |server| server.phase() != Phase::Free && is_ours(server, config))
    }

    /// The server of that target.
    pub(super) fn find(&self, address: SocketAddr, uid: &PodUid) -> Option<&Server> {
        self.servers.iter().filter(|server| server.address == Some(address) && server.phase() != Phase::Free).find(|server| {
            match &server.owner {
                Owner::Ours(stamp) => stamp.uid == *uid,
                Owner::Slot => true,
                Owner::Foreign(_) => false,
            }
        })
    }

    /// Steps that do `change` in the backend `name`; none where it is done. A drain or a deregister of nothing is [`ChangeError::NotFound`].
    pub(super) fn change(&self, name: &str, config: HaproxyBackend, told: Told<'_>) -> Result<Vec<Steps>, ChangeError> {
        let Told { change, its_own } = told;
        let known = self.find(change.address, &change.uid);
        match (change.operation, known) {
            (Operation::Register, Some(server)) => Ok(server.put_in(name, config, Some(change.weight), its_own)),
            (Operation::Register, None) => self.add(name, config, change).map(|steps| vec![steps]),
            (Operation::Drain, Some(server)) => Ok(server.drain(name)),
            (Operation::Deregister, Some(server)) => Ok(server.take_out(name)),
            (Operation::Drain | Operation::Deregister, None) => Err(ChangeError::NotFound),
        }
    }

    /// Steps that do what of `change` may be done while other processes do not: it stops traffic to what is there, or takes a drain back.
    pub(super) fn change_in_part(&self, name: &str, told: Told<'_>) -> Vec<Steps> {
        let Told { change, its_own } = told;
        let Some(server) = self.find(change.address, &change.uid) else { return Vec::new() };
        match change.operation {
            Operation::Register if its_own || server.owner != Owner::Slot => server.take_drain_back(name),
            Operation::Register => Vec::new(),
            Operation::Drain | Operation::Deregister => server.drain(name),
        }
    }

    /// Steps for what other registries do by themselves. `share`: the one that a target is to have, where that is known. `over`: whether
    /// the sessions of a leaving server have had their time.
    pub(super) fn upkeep(
        &self,
        name: &str,
        config: HaproxyBackend,
        share: impl Fn(SocketAddr) -> Option<u16>,
        over: impl Fn(&Server) -> bool,
    ) -> Vec<Steps> {
        let looked_after = self.servers.iter().filter(|server| is_ours(server, config));
        looked_after.flat_map(|server| server.upkeep(name, server.address.and_then(&share), &over)).collect()
    }

    /// Slots that nobody uses.
    pub(super) fn free(&self) -> Vec<&Server> {
        self.servers.iter().filter(|server| server.owner == Owner::Slot && server.phase() == Phase::Free).collect()
    }

    /// Steps that make a server like `model`, which another process has, here. `free`: the slots that are left, of which one may be taken.
    pub(super) fn copy(
        name: &str,
        config: HaproxyBackend,
        (model, share): (&Server, Option<u16>),
        free: &mut Vec<&Server>,
    ) -> Option<Steps> {
        let address = model.address?;
        let mut steps = match model.owner {
            Owner::Ours(_) => dynamic(name, &model.name, address, model.initial_weight, config.check),
            Owner::Slot => slot(name, take_slot(free, address)?, address, config.check, share),
            Owner::Foreign(_) => return None,
        };
        // The last step is the one that takes it into use.
        match model.phase() {
            Phase::Draining => {
                let ready = steps.commands.pop()?;
                steps.commands.push(ready.replace("state ready", "state drain"));
            }
            Phase::Parked => {
                steps.commands.pop()?;
                steps.commands.retain(|command| !command.ends_with("weight 0%"));
            }
            Phase::Free | Phase::Active | Phase::Registering | Phase::Leaving => {}
        }
        Some(steps)
    }

    fn add(&self, name: &str, config: HaproxyBackend, change: &Change) -> Result<Steps, ChangeError> {
        match config.servers {
            Servers::Dynamic => {
                let weight = u32::from(change.weight).clamp(1, HEAVIEST);
                Ok(dynamic(name, &name::of(change), change.address, weight, config.check))
            }
            Servers::Template => {
                let Some(free) = take_slot(&mut self.free(), change.address) else { return Err(self.full(name)) };
                Ok(slot(name, free, change.address, config.check, Some(change.weight)))
            }
        }
    }

    fn full(&self, name: &str) -> ChangeError {
        let slots: Vec<&Server> = self.servers.iter().filter(|server| server.owner == Owner::Slot).collect();
        let prefix = slots.first().map_or(SLOT, |server| server.name.trim_end_matches(|one: char| one.is_ascii_digit()));
        let remedy = format!("raise the number in its line `server-template {prefix} 1-N`");
        ChangeError::Full(format!("all {} slots of backend {name} are in use; {remedy}", slots.len()))
    }
}

/// The slot for that address, which is not free any more: one that had it before is in its place in a state file too.
fn take_slot<'b>(free: &mut Vec<&'b Server>, address: SocketAddr) -> Option<&'b Server> {
    let place = free.iter().position(|server| server.address == Some(address)).unwrap_or(0);
    (place < free.len()).then(|| free.remove(place))
}

fn slot(backend: &str, slot: &Server, address: SocketAddr, check: bool, share: Option<u16>) -> Steps {
    let full = format!("{backend}/{}", slot.name);
    let place = format!("set server {full} addr {} port {}", address.ip(), address.port());
    let ready = format!("set server {full} state ready");
    let weight = slot.take_weight(backend, share);
    if !check {
        return Steps::must([place, weight, ready]);
    }
    let mut steps = Steps::must([format!("set server {full} weight 0%"), place, format!("enable health {full}"), ready]);
    if slot.wanted_weight(share) != slot.initial_weight {
        // A balance algorithm that takes no weights says so now, and not when the check has passed.
        steps.commands.insert(0, weight);
    }
    steps
}

/// Whether a server is ours by its name: a slot is, where the configuration gives us the slots of the backend.
pub(super) fn is_ours(server: &Server, config: HaproxyBackend) -> bool {
    match server.owner {
        Owner::Ours(_) => true,
        Owner::Slot => config.servers == Servers::Template,
        Owner::Foreign(_) => false,
    }
}

fn dynamic(backend: &str, server: &str, address: SocketAddr, weight: u32, check: bool) -> Steps {
    let full = format!("{backend}/{server}");
    let ready = format!("set server {full} state ready");
    if check {
        // Out of the maintenance in which it begins, but with weight 0: the check runs and nothing else comes.
        let (idle, health) = (format!("set server {full} weight 0%"), format!("enable health {full}"));
        Steps::must([format!("add server {full} {address} {CHECK} weight {weight}"), idle, health, ready])
    } else {
        Steps::must([format!("add server {full} {address} weight {weight}"), ready])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::*;
    use crate::registry::haproxy::answer::tests::{OURS, UP, example};
    use crate::target::PodKey;

    const CHECKED: HaproxyBackend = HaproxyBackend { servers: Servers::Dynamic, check: true, weight: None, drain: Duration::ZERO };
    const SLOTS: HaproxyBackend = HaproxyBackend { servers: Servers::Template, ..CHECKED };

    const SLOT7: &str = "lockstep7";

    fn backend(servers: impl IntoIterator<Item = Server>) -> Backend {
        Backend { servers: servers.into_iter().collect() }
    }

    fn change(operation: Operation) -> Change {
        let (address, pod) = ("10.0.0.1:80".parse().unwrap(), PodKey::new("shop", "web-1"));
        Change { operation, address, uid: PodUid::new("u"), pod, cluster: "here".into(), weight: 100 }
    }

    fn told(change: &Change) -> Told<'_> {
        Told { change, its_own: false }
    }

    fn texts<'s>(steps: impl IntoIterator<Item = &'s Steps>) -> String {
        let all: Vec<String> = steps.into_iter().flat_map(|steps| &steps.commands).map(|one| one.replace(OURS, "S")).collect();
        all.join("; ")
    }

    #[rstest]
    #[case::active([0, 2, 100], "", "set server web/S state drain", "set server web/S weight 0%; set server web/S state maint")]
    #[case::draining(
        [8, 2, 100],
        "set server web/S state ready",
        "",
        "set server web/S weight 0%; set server web/S state maint; del server web/S"
    )]
    #[case::leaving([1, 0, 0], "set server web/S weight 0%; enable health web/S; set server web/S state ready", "", "del server web/S")]
    fn a_change_takes_the_way_from_where_it_is(#[case] numbers: [u32; 3], #[case] register: &str, #[case] drain: &str, #[case] out: &str) {
        let backend = backend([example(OURS, numbers, UP)]);
        let said = |operation| texts(&backend.change("web", CHECKED, told(&change(operation))).unwrap());
        assert_eq!(said(Operation::Register), register);
        assert_eq!(said(Operation::Drain), drain);
        assert_eq!(said(Operation::Deregister), out);
    }

    #[test]
    fn a_new_server_is_checked_before_it_is_used() {
        let steps = Backend::default().change("web", CHECKED, told(&change(Operation::Register))).unwrap();
        let expected = format!("add server web/S 10.0.0.1:80 {CHECK} weight 100; set server web/S weight 0%; ");
        assert_eq!(texts(&steps), expected + "enable health web/S; set server web/S state ready");
    }

    /// Slots do not tell pods apart: what is drained there was, as a rule, drained for whoever had the address before.
    #[rstest]
    #[case::of_its_own(SLOT7, true, "state ready", "state ready")]
    #[case::of_another(SLOT7, false, "weight 0%; state maint; enable health; state ready", "")]
    #[case::dynamic(OURS, false, "state ready", "state ready")]
    fn a_drain_is_taken_back_for_its_own_pod(#[case] name: &str, #[case] its_own: bool, #[case] whole: &str, #[case] part: &str) {
        let (backend, change) = (backend([example(name, [8, 2, 100], UP)]), change(Operation::Register));
        let told = Told { change: &change, its_own };
        let short = |steps: &[Steps]| texts(steps).replace(&format!("set server web/{SLOT7} "), "").replace("set server web/S ", "");
        let short = |steps: &[Steps]| short(steps).replace(&format!(" web/{SLOT7}"), "");
        assert_eq!(short(&backend.change("web", SLOTS, told).unwrap()), whole);
        assert_eq!(short(&backend.change_in_part("web", told)), part);
    }

    /// Another process gets it as it is here, and nothing comes into use that an operator has parked.
    #[rstest]
    #[case::in_use(OURS, [0, 2, 100], "weight 0%; enable health web/S; set server web/S state ready")]
    #[case::draining(OURS, [8, 2, 100], "weight 0%; enable health web/S; set server web/S state drain")]
    #[case::parked(OURS, [1, 0, 100], "enable health web/S")]
    fn a_copy_is_like_its_model(#[case] name: &str, #[case] numbers: [u32; 3], #[case] expected: &str) {
        let copied = Backend::copy("web", CHECKED, (&example(name, numbers, UP), None), &mut Vec::new());
        let text = texts(&copied);
        let rest = text.strip_prefix(&format!("add server web/S 10.0.0.1:80 {CHECK} weight 100; ")).unwrap();
        assert_eq!(rest.trim_start_matches("set server web/S "), expected);
    }

    #[rstest]
    #[case::foreign("web1")]
    #[case::of_another_cluster("lockstep:there:shop:web-1:u:10.0.0.1:80")]
    #[case::of_another_pod("lockstep:here:shop:web-2:v:10.0.0.1:80")]
    fn others_are_not_named(#[case] name: &str) {
        let backend = backend([example(name, [0, 2, 100], UP)]);
        for operation in [Operation::Drain, Operation::Deregister] {
            assert_eq!(backend.change("web", CHECKED, told(&change(operation))), Err(ChangeError::NotFound));
        }
        assert!(!texts(&backend.change("web", CHECKED, told(&change(Operation::Register))).unwrap()).contains(&format!("web/{name} ")));
        assert_eq!(backend.upkeep("web", CHECKED, |_| None, |_| false), []);
    }

    /// Slots of a backend that no binding owns may be another cluster's: one is touched only by a change that names its address.
    #[rstest]
    #[case::ours(SLOTS, "set server web/lockstep7 weight 100%")]
    #[case::not_ours(CHECKED, "")]
    fn only_slots_of_ours_are_looked_after(#[case] config: HaproxyBackend, #[case] expected: &str) {
        let backend = backend([example("lockstep7", [4, 2, 0], UP)]);
        assert_eq!(texts(&backend.upkeep("web", config, |_| None, |_| false)), expected);
        assert_eq!(backend.ours(config).count(), usize::from(!expected.is_empty()));
        assert!(texts(&backend.change("web", config, told(&change(Operation::Deregister))).unwrap()).contains("state maint"));
    }

    #[rstest]
    #[case::whole(100, "set server web/lockstep7 weight 0%")]
    #[case::light(20, "set server web/lockstep7 weight 20; set server web/lockstep7 weight 0%")]
    fn a_slot_that_takes_no_weights_says_so_at_once(#[case] weight: u16, #[case] expected: &str) {
        let backend = backend([example("lockstep7", [5, 0, 100], ("MAINT", "", 0, 0, 9))]);
        let steps = backend.change("web", SLOTS, told(&Change { weight, ..change(Operation::Register) })).unwrap();
        let rest = "; set server web/lockstep7 addr 10.0.0.1 port 80; enable health web/lockstep7; set server web/lockstep7 state ready";
        assert_eq!(texts(&steps), format!("{expected}{rest}"));
    }

    #[test]
    fn a_full_template_says_what_to_do() {
        let full = backend([example("lockstep1", [4, 2, 100], UP)]);
        let other = Change { address: "10.0.0.2:80".parse().unwrap(), ..change(Operation::Register) };
        let refused = full.change("web", SLOTS, told(&other));
        assert!(matches!(&refused, Err(ChangeError::Full(text)) if text.contains("server-template lockstep")), "{refused:?}");
    }
}
