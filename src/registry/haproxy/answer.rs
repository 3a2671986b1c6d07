//! What the answers of one HAProxy process say of the servers of a backend.
//!
//! Facts (tried on 2.6 and 3.2): `show servers state` has addresses, names and states; whether a check has passed in this life of a server,
//! its sessions and its age only `show stat` tells, and shows the check of the life before until the first new one has ended.
//!
//! Invariant: an answer that lacks what is decided from is no answer; nothing in it is guessed.
//! Absent on purpose: what follows from it (`server`, `backend`).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::name;
use super::server::{Operational, Server};

/// Bits of `srv_agent_state`: an agent is configured, and enabled.
const AGENT: u32 = 0x06;
/// Bit of `srv_check_state`: a check is configured.
const CHECK_CONFIGURED: u32 = 0x02;
/// Bit of `srv_check_state`: the check is enabled, also while it rests.
const CHECK_ENABLED: u32 = 0x04;
/// The highest `srv_check_status` of a check that has never ended: unknown, or at its start.
const NO_RESULT: u32 = 1;

/// The servers in the answers to `show stat NAME 4 -1` and `show servers state NAME`; `None` where they are no such answers.
pub(super) fn servers(stat: &str, state: &str, cluster: &str) -> Option<Vec<Server>> {
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
            advised: state.text(row, "srv_agent_state").parse().is_ok_and(|agent: u32| agent & AGENT == AGENT),
            unbegun: unbegun(state.text(row, "srv_check_state"), state.text(row, "srv_check_status")),
            passed: passed(text("status"), text("check_status"), number("check_health"), number("check_rise"), number("check_fall")),
            sessions: number("scur").unwrap_or(0),
            since: number("lastchg").unwrap_or(0),
            named: !matches!(state.text(row, "srv_fqdn"), "-" | ""),
        })
    });
    servers.collect()
}

/// Whether a check has passed since the server was last put in. Right after that HAProxy counts it as up, and shows the last check of its
/// life before; but its health begins below the full one, which the first passed check gives.
fn passed(status: &str, check: &str, health: Option<u64>, rise: Option<u64>, fall: Option<u64>) -> bool {
    let check = check.trim_start_matches("* ");
    let full = health.zip(rise).zip(fall).is_some_and(|((health, rise), fall)| fall > 1 && health + 1 == rise + fall);
    status == "UP" && (check.ends_with("OK") || check == "L7OKC") && full
}

/// Whether a check is configured that nobody has ever enabled.
fn unbegun(state: &str, status: &str) -> bool {
    let waits = |state: u32| state & CHECK_CONFIGURED != 0 && state & CHECK_ENABLED == 0;
    state.parse().is_ok_and(waits) && status.parse().is_ok_and(|status: u32| status <= NO_RESULT)
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
pub(super) mod tests {
    use rstest::rstest;

    use super::*;

    pub(crate) const OURS: &str = "lockstep:here:shop:web-1:u:10.0.0.1:80";
    pub(crate) const UP: Seen<'static> = ("UP", "L7OK", 4, 0, 9);

    /// Of the statistics of a server: status, check, health, sessions and seconds since the last change.
    pub(crate) type Seen<'s> = (&'s str, &'s str, u32, u32, u32);

    /// The server of that name, with its administrative and operational state and its weight. Rise is 2 and fall is 3, so that full health
    /// is 4.
    pub(crate) fn example(name: &str, numbers: [u32; 3], seen: Seen<'_>) -> Server {
        with_check([6, 1], name, numbers, seen)
    }

    /// The same, with state and status of its check. State: 2 as a new dynamic server has it, 6 once it is enabled, 14 in maintenance.
    /// Status: 1 until a check has ended, 6 after one of TCP has passed.
    pub(crate) fn with_check(checked: [u32; 2], name: &str, [administrative, operational, weight]: [u32; 3], seen: Seen<'_>) -> Server {
        let ((status, check, health, sessions, since), [check_state, check_status]) = (seen, checked);
        let stat = format!(
            "# pxname,svname,scur,status,lastchg,check_status,last_chk,check_rise,check_fall,check_health,\n\
             web,{name},{sessions},{status},{since},{check},\"a, quoted\",2,3,{health},\n\n"
        );
        let state = format!(
            "1\n# be_name srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight srv_check_status srv_check_state srv_port\n\
             web {name} 10.0.0.1 {operational} {administrative} {weight} 100 {check_status} {check_state} 80\n\n"
        );
        servers(&stat, &state, "here").unwrap().remove(0)
    }

    #[rstest]
    #[case("", "")]
    #[case("HTTP/1.1 400 Bad request", "x")]
    #[case("# pxname,svname\n", "1\n# be_name srv_name\nweb one\n")]
    fn other_texts_are_not_read(#[case] stat: &str, #[case] state: &str) {
        assert_eq!(servers(stat, state, "here"), None);
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
    fn a_check_has_passed(#[case] status: &str, #[case] check: &str, #[case] health: u64, #[case] expected: bool) {
        assert_eq!(passed(status, check, Some(health), Some(2), Some(3)), expected);
    }
}
