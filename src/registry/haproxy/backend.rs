//! One backend of one HAProxy process: what its answers say of each server, and which commands bring a server further.
//!
//! Pure: texts in, texts out. What a server is to become is read from HAProxy alone, so a restart of ours loses nothing:
//!
//! | a server of ours is | weight | administrative state |
//! | --- | --- | --- |
//! | registering: checked, takes no traffic yet | 0 | ready |
//! | in use | above 0 | ready |
//! | draining | any | drain |
//! | leaving: removed once its sessions are gone | 0 | maintenance |
//! | parked by an operator: left alone | above 0 | maintenance |
//!
//! Invariant: no command takes a server into use before its own check has passed, except where there is no check.
//! Invariant: no command undoes a drain or a removal that somebody else began: taking into use changes the weight alone.
//! Absent on purpose: connections (`runtime`), several processes (`instances`).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::name::{self, SLOT};
use crate::config::{HaproxyBackend, Servers};
use crate::registry::{Change, ChangeError, Operation, Stamp};
use crate::target::{PodUid, TargetState};

/// Sessions of a leaving server are cut after this long: its containers are gone by then, as a rule long before.
const SESSION_DEADLINE: u64 = 30;
/// A server is deleted no sooner after its last new request could have come: while HAProxy tries a request again on a server that does not
/// answer (three times, a second apart), the request holds the server without being counted, and 2.6 crashes if it is deleted then.
const REST: u64 = 6;
/// Check of a dynamic server, which no `default-server` line reaches: first result within a second, out of use after three failures.
const CHECK: &str = "check inter 1s fastinter 250ms rise 2 fall 3";
/// HAProxy takes no weight above.
const HEAVIEST: u16 = 256;

/// Bits of the administrative state: maintenance by command, inheritance, resolution or host name.
const MAINTENANCE: u32 = 0x63;
/// Bits of the administrative state: drain by command or inheritance.
const DRAIN: u32 = 0x18;

/// The servers of a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Backend {
    pub(super) servers: Vec<Server>,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) address: Option<SocketAddr>,
    pub(super) owner: Owner,
    administrative: u32,
    operational: Operational,
    weight: u32,
    initial_weight: u32,
    passed: bool,
    sessions: u64,
    /// Seconds since it last went up or down.
    since: u64,
    /// Whether its line has a host name: without one HAProxy takes no address from a state file.
    named: bool,
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
enum Operational {
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

impl Backend {
    /// Reads the answers to `show stat NAME 4 -1` and `show servers state NAME`; `None` where they are no such answers.
    pub(super) fn read(stat: &str, state: &str, cluster: &str) -> Option<Self> {
        let stat = Table::of(stat.trim_start().strip_prefix("# ")?, csv)?;
        // The first line is the version of the format.
        let state = Table::of(state.trim_start().split_once('\n')?.1.strip_prefix("# ")?, words)?;
        let statistics: HashMap<&str, usize> = stat.rows.iter().enumerate().map(|(row, _)| (stat.text(row, "svname"), row)).collect();
        let servers = (0..state.rows.len()).map(|row| {
            let name = state.text(row, "srv_name");
            let seen = statistics.get(name).copied();
            let number = |column| seen.and_then(|row| stat.text(row, column).parse().ok());
            let text = |column| seen.map_or("", |row| stat.text(row, column));
            Some(Server {
                name: name.to_owned(),
                address: address(state.text(row, "srv_addr"), state.text(row, "srv_port")),
                owner: name::owner(name, cluster),
                administrative: state.text(row, "srv_admin_state").parse().ok()?,
                operational: operational(state.text(row, "srv_op_state"))?,
                weight: state.text(row, "srv_uweight").parse().ok()?,
                initial_weight: state.text(row, "srv_iweight").parse().ok()?,
                passed: passed(text("status"), text("check_status"), number("check_health"), number("check_rise"), number("check_fall")),
                sessions: number("scur").unwrap_or(0),
                since: number("lastchg").unwrap_or(0),
                named: !matches!(state.text(row, "srv_fqdn"), "-" | ""),
            })
        });
        Some(Self { servers: servers.collect::<Option<_>>()? })
    }

    /// Whether slots of it lose their addresses at a reload.
    pub(super) fn forgets_slots(&self) -> bool {
        self.servers.iter().any(|server| server.owner == Owner::Slot && !server.named)
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
    pub(super) fn change(&self, name: &str, config: HaproxyBackend, change: &Change) -> Result<Vec<Steps>, ChangeError> {
        let known = self.find(change.address, &change.uid);
        match (change.operation, known) {
            (Operation::Register, Some(server)) => Ok(server.put_in(name, config, change.weight)),
            (Operation::Register, None) => self.add(name, config, change).map(|steps| vec![steps]),
            (Operation::Drain, Some(server)) => Ok(server.drain(name)),
            (Operation::Deregister, Some(server)) => Ok(server.take_out(name)),
            (Operation::Drain | Operation::Deregister, None) => Err(ChangeError::NotFound),
        }
    }

    /// Steps for what other registries do by themselves: take into use what has passed its check, remove what has no sessions any more.
    pub(super) fn upkeep(&self, name: &str, weight: impl Fn(SocketAddr) -> Option<u16>) -> Vec<Steps> {
        let mut steps = Vec::new();
        for server in &self.servers {
            let full = format!("{name}/{}", server.name);
            match (server.phase(), &server.owner) {
                (Phase::Registering, Owner::Ours(_)) if server.passed => {
                    steps.push(Steps::must([format!("set server {full} weight 100%")]))
                }
                (Phase::Registering, Owner::Slot) if server.passed => {
                    let share = server.address.and_then(&weight).unwrap_or(100);
                    steps.push(Steps::must([format!("set server {full} weight {share}%")]));
                }
                (Phase::Leaving, owner) => {
                    if server.since >= SESSION_DEADLINE && server.sessions > 0 {
                        steps.push(Steps::attempt(format!("shutdown sessions server {full}")));
                    }
                    if matches!(owner, Owner::Ours(_)) && server.has_rested() {
                        steps.push(Steps::attempt(format!("del server {full}")));
                    }
                }
                _ => {}
            }
        }
        steps
    }

    /// Steps that make a server like `model`, which another process has, here.
    pub(super) fn copy(&self, name: &str, config: HaproxyBackend, model: &Server) -> Option<Steps> {
        let address = model.address?;
        let mut steps = match model.owner {
            Owner::Ours(_) => dynamic(name, &model.name, address, model.initial_weight, config.check),
            Owner::Slot => self.slot(name, address, config.check, 100).ok()?,
            Owner::Foreign(_) => return None,
        };
        if model.phase() == Phase::Draining
            && let Some(last) = steps.commands.last_mut()
        {
            *last = last.replace("state ready", "state drain");
        }
        Some(steps)
    }

    fn add(&self, name: &str, config: HaproxyBackend, change: &Change) -> Result<Steps, ChangeError> {
        match config.servers {
            Servers::Dynamic => {
                let weight = change.weight.clamp(1, HEAVIEST).into();
                Ok(dynamic(name, &name::of(change), change.address, weight, config.check))
            }
            Servers::Template => self.slot(name, change.address, config.check, change.weight),
        }
    }

    fn slot(&self, name: &str, address: SocketAddr, check: bool, share: u16) -> Result<Steps, ChangeError> {
        let free = || self.servers.iter().filter(|server| server.owner == Owner::Slot && server.phase() == Phase::Free);
        // A slot that had the address before is in its place in a state file too.
        let slot = free().find(|server| server.address == Some(address)).or_else(|| free().next());
        let slot = slot.ok_or_else(|| {
            let slots = self.servers.iter().filter(|server| server.owner == Owner::Slot).count();
            let remedy = format!("raise the number in its line `server-template {SLOT} 1-N`");
            ChangeError::Full(format!("all {slots} slots of backend {name} are in use; {remedy}"))
        })?;
        let full = format!("{name}/{}", slot.name);
        let place = format!("set server {full} addr {} port {}", address.ip(), address.port());
        let ready = format!("set server {full} state ready");
        Ok(if check {
            Steps::must([format!("set server {full} weight 0%"), place, format!("enable health {full}"), ready])
        } else {
            Steps::must([place, format!("set server {full} weight {share}%"), ready])
        })
    }
}

impl Server {
    /// Where it is in its life.
    pub(super) fn phase(&self) -> Phase {
        let ours = !matches!(self.owner, Owner::Foreign(_));
        if self.administrative & MAINTENANCE != 0 {
            let busy = self.sessions > 0 && self.since < SESSION_DEADLINE;
            return match self.owner {
                Owner::Slot if self.weight == 0 && busy => Phase::Leaving,
                Owner::Slot => Phase::Free,
                Owner::Ours(_) if self.weight == 0 => Phase::Leaving,
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

    /// Whose it is, where that can be told.
    pub(super) fn stamp(&self) -> Option<&Stamp> {
        match &self.owner {
            Owner::Ours(stamp) => Some(stamp),
            Owner::Slot => None,
            Owner::Foreign(stamp) => stamp.as_ref(),
        }
    }

    /// Steps that stop new traffic to it.
    pub(super) fn drain(&self, backend: &str) -> Vec<Steps> {
        match self.phase() {
            Phase::Active | Phase::Registering => vec![Steps::must([format!("set server {backend}/{} state drain", self.name)])],
            // The others get none, and `state drain` would end a maintenance.
            Phase::Draining | Phase::Leaving | Phase::Parked | Phase::Free => Vec::new(),
        }
    }

    /// Whether no request can hold it any more but those that are counted.
    fn has_rested(&self) -> bool {
        matches!(self.phase(), Phase::Draining | Phase::Leaving) && self.since >= REST
    }

    /// Steps that take it out; it stays while it has sessions.
    pub(super) fn take_out(&self, backend: &str) -> Vec<Steps> {
        let full = format!("{backend}/{}", self.name);
        let mut steps = Vec::new();
        if self.phase() != Phase::Leaving {
            steps.push(Steps::must([format!("set server {full} weight 0%"), format!("set server {full} state maint")]));
        }
        if matches!(self.owner, Owner::Ours(_)) && self.has_rested() {
            steps.push(Steps::attempt(format!("del server {full}")));
        }
        steps
    }

    fn put_in(&self, backend: &str, config: HaproxyBackend, weight: u16) -> Vec<Steps> {
        let full = format!("{backend}/{}", self.name);
        let ready = format!("set server {full} state ready");
        let steps = match self.phase() {
            Phase::Active if matches!(self.owner, Owner::Ours(_)) && self.weight != u32::from(weight.clamp(1, HEAVIEST)) => {
                Steps::must([format!("set server {full} weight {}", weight.clamp(1, HEAVIEST))])
            }
            Phase::Active | Phase::Registering | Phase::Free => return Vec::new(),
            Phase::Draining => Steps::must([ready]),
            Phase::Leaving | Phase::Parked if config.check => {
                Steps::must([format!("set server {full} weight 0%"), format!("enable health {full}"), ready])
            }
            Phase::Leaving | Phase::Parked => Steps::must([format!("set server {full} weight 100%"), ready]),
        };
        vec![steps]
    }
}

impl Steps {
    fn must<const N: usize>(commands: [String; N]) -> Self {
        Self { commands: commands.into(), attempt: false }
    }

    fn attempt(command: String) -> Self {
        Self { commands: vec![command], attempt: true }
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

/// Whether a check has passed since the server was last put in. Right after that HAProxy counts it as up, and shows the last check of its
/// life before; but its health begins below the full one, which the first passed check gives.
fn passed(status: &str, check: &str, health: Option<u64>, rise: Option<u64>, fall: Option<u64>) -> bool {
    let check = check.trim_start_matches("* ");
    let full = health.zip(rise).zip(fall).is_some_and(|((health, rise), fall)| fall > 1 && health + 1 == rise + fall);
    status == "UP" && (check.ends_with("OK") || check == "L7OKC") && full
}

fn operational(number: &str) -> Option<Operational> {
    Some(match number {
        "0" => Operational::Stopped,
        "1" => Operational::Starting,
        "2" => Operational::Running,
        "3" => Operational::Stopping,
        _ => return None,
    })
}

fn address(address: &str, port: &str) -> Option<SocketAddr> {
    let address: IpAddr = address.parse().ok()?;
    Some(SocketAddr::new(address, port.parse().ok()?))
}

/// An answer with a line of column names.
struct Table<'t> {
    columns: HashMap<&'t str, usize>,
    rows: Vec<Vec<&'t str>>,
}

impl<'t> Table<'t> {
    fn of(text: &'t str, split: impl Fn(&'t str) -> Vec<&'t str>) -> Option<Self> {
        let mut lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
        let columns = split(lines.next()?).into_iter().enumerate().map(|(place, name)| (name, place)).collect();
        Some(Self { columns, rows: lines.map(split).collect() })
    }

    fn text(&self, row: usize, column: &str) -> &'t str {
        let place = self.columns.get(column);
        place.and_then(|place| self.rows.get(row)?.get(*place)).copied().unwrap_or("")
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Fields between commas; those in quotes may hold commas. The quotes stay, for no field that is read has any.
fn csv(line: &str) -> Vec<&str> {
    let mut quoted = false;
    line.split(|one: char| {
        quoted ^= one == '"';
        one == ',' && !quoted
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::target::PodKey;

    const CHECKED: HaproxyBackend = HaproxyBackend { servers: Servers::Dynamic, check: true };
    const OURS: &str = "lockstep:here:shop:web-1:u:10.0.0.1:80";

    /// A backend with one server: name, administrative and operational state, weight; and of its statistics: status, check, health, sessions
    /// and seconds since the last change. Rise is 2 and fall is 3, so that full health is 4.
    fn backend(name: &str, [administrative, operational, weight]: [u32; 3], (status, check, health, sessions, since): Seen) -> Backend {
        let stat = format!(
            "# pxname,svname,scur,status,lastchg,check_status,last_chk,check_rise,check_fall,check_health,\n\
             web,{name},{sessions},{status},{since},{check},\"a, quoted\",2,3,{health},\n\n"
        );
        let state = format!(
            "1\n# be_name srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight srv_port\n\
             web {name} 10.0.0.1 {operational} {administrative} {weight} 100 80\n\n"
        );
        Backend::read(&stat, &state, "here").unwrap()
    }

    type Seen<'s> = (&'s str, &'s str, u32, u32, u32);
    const UP: Seen<'static> = ("UP", "L7OK", 4, 0, 9);

    fn change(operation: Operation) -> Change {
        let (address, pod) = ("10.0.0.1:80".parse().unwrap(), PodKey::new("shop", "web-1"));
        Change { operation, address, uid: PodUid::new("u"), pod, cluster: "here".into(), weight: 100 }
    }

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
        let backend = backend(OURS, numbers, seen);
        assert_eq!((backend.servers[0].phase(), backend.servers[0].state()), (phase, Some(state)));
        assert_eq!(backend.servers[0].stamp().map(|stamp| stamp.uid.as_str()), Some("u"));
    }

    #[rstest]
    #[case::unused([5, 0, 1], 0, 100, Phase::Free)]
    #[case::busy([5, 0, 0], 1, 1, Phase::Leaving)]
    #[case::cut([5, 0, 0], 1, 30, Phase::Free)]
    #[case::left([5, 0, 0], 0, 1, Phase::Free)]
    fn a_slot_is_free_once_its_sessions_are_gone(
        #[case] numbers: [u32; 3],
        #[case] sessions: u32,
        #[case] since: u32,
        #[case] phase: Phase,
    ) {
        let backend = backend("lockstep7", numbers, ("MAINT", "", 0, sessions, since));
        assert_eq!(backend.servers[0].phase(), phase);
        assert_eq!(backend.servers[0].state().is_none(), phase == Phase::Free);
    }

    /// Only a check of this life counts: right after it was put in, a server is up, and may show the check of its life before.
    #[rstest]
    #[case::before_any("UP 1/3", "INI", 2, false)]
    #[case::of_the_life_before("UP 1/3", "L7OK", 2, false)]
    #[case::passed("UP", "L7OK", 4, true)]
    #[case::passed_again("UP", "* L4OK", 4, true)]
    #[case::failing("UP 1/3", "L4CON", 3, false)]
    #[case::down("DOWN", "L4CON", 0, false)]
    #[case::without_check("no check", "", 0, false)]
    fn a_server_comes_into_use_by_its_own_check(#[case] status: &str, #[case] check: &str, #[case] health: u32, #[case] used: bool) {
        let backend = backend(OURS, [0, 2, 0], (status, check, health, 0, 0));
        let steps = backend.upkeep("web", |_| None);
        assert_eq!(texts(&steps), if used { "set server web/S weight 100%" } else { "" });
    }

    #[rstest]
    #[case::too_soon(1, "")]
    #[case::soon(6, "del server web/S")]
    #[case::late(30, "shutdown sessions server web/S; del server web/S")]
    fn a_leaving_server_is_removed(#[case] since: u32, #[case] expected: &str) {
        let backend = backend(OURS, [1, 0, 0], ("MAINT", "", 0, 1, since));
        let steps = backend.upkeep("web", |_| None);
        assert!(steps.iter().all(|steps| steps.attempt));
        assert_eq!(texts(&steps), expected);
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
        let backend = backend(OURS, numbers, UP);
        let told = |operation| texts(&backend.change("web", CHECKED, &change(operation)).unwrap());
        assert_eq!(told(Operation::Register), register);
        assert_eq!(told(Operation::Drain), drain);
        assert_eq!(told(Operation::Deregister), out);
    }

    #[test]
    fn a_new_server_is_checked_before_it_is_used() {
        let steps = Backend::default().change("web", CHECKED, &change(Operation::Register)).unwrap();
        let expected = format!("add server web/S 10.0.0.1:80 {CHECK} weight 100; set server web/S weight 0%; ");
        assert_eq!(texts(&steps), expected + "enable health web/S; set server web/S state ready");
    }

    #[rstest]
    #[case::foreign("web1")]
    #[case::of_another_cluster("lockstep:there:shop:web-1:u:10.0.0.1:80")]
    #[case::of_another_pod("lockstep:here:shop:web-2:v:10.0.0.1:80")]
    fn others_are_not_named(#[case] name: &str) {
        let backend = backend(name, [0, 2, 100], UP);
        for operation in [Operation::Drain, Operation::Deregister] {
            assert_eq!(backend.change("web", CHECKED, &change(operation)), Err(ChangeError::NotFound));
        }
        assert!(!texts(&backend.change("web", CHECKED, &change(Operation::Register)).unwrap()).contains(&format!("web/{name} ")));
        assert_eq!(backend.upkeep("web", |_| None), []);
    }

    #[test]
    fn a_full_template_says_what_to_do() {
        let config = HaproxyBackend { servers: Servers::Template, check: true };
        let full = backend("lockstep1", [4, 2, 100], UP);
        let other = Change { address: "10.0.0.2:80".parse().unwrap(), ..change(Operation::Register) };
        let refused = full.change("web", config, &other);
        assert!(matches!(&refused, Err(ChangeError::Full(text)) if text.contains("server-template lockstep")), "{refused:?}");
    }

    #[rstest]
    #[case("", "")]
    #[case("HTTP/1.1 400 Bad request", "x")]
    #[case("# pxname,svname\n", "1\n# be_name srv_name\nweb one\n")]
    fn other_texts_are_not_read(#[case] stat: &str, #[case] state: &str) {
        assert_eq!(Backend::read(stat, state, "here"), None);
    }
}
