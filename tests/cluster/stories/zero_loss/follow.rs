//! What people run without Lockstep: a loop that follows EndpointSlices and makes the balancer's servers alike.
//!
//! Invariant: it tells HAProxy of a change at once, sooner than most that are in use, and puts back what a reload has lost.
//! Absent on purpose: any word back to the cluster; that is the difference.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::outside::Backend;
use crate::world::World;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// Where its leader dies, another takes over after the time of a Lease, as with Lockstep.
const TAKEOVER: Duration = Duration::from_secs(12);

/// The loop.
pub(super) struct Follower {
    over: AtomicBool,
    rests_until: Mutex<Instant>,
}

/// A server of the backend.
struct Seat {
    name: String,
    address: Option<SocketAddr>,
    used: bool,
}

/// Does something while the loop keeps the backend like the Service `web` in the namespace of its name.
pub(super) fn beside<T>(world: &World, backend: &Backend, deed: impl FnOnce(&Follower) -> T) -> T {
    let follower = Follower { over: AtomicBool::new(false), rests_until: Mutex::new(Instant::now()) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !follower.over.load(Ordering::SeqCst) {
                if !follower.rests() {
                    follow(world, backend);
                }
                std::thread::sleep(LOOK);
            }
        });
        let done = deed(&follower);
        follower.over.store(true, Ordering::SeqCst);
        done
    })
}

impl Follower {
    /// Its leader dies.
    pub(super) fn lose_leader(&self) {
        *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + TAKEOVER;
    }

    fn rests(&self) -> bool {
        Instant::now() < *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn follow(world: &World, backend: &Backend) {
    let wanted = world.cluster.ready_endpoints(backend.name, "web");
    // What is not done now is done with the next look.
    let ask = |command: &str| world.outside.ask_first(command);
    let Some(state) = ask(&format!("show servers state {}", backend.name)) else { return };
    let seats = seats(&state);
    let has = |address: &SocketAddr| seats.iter().any(|seat| seat.used && seat.address == Some(*address));
    for seat in seats.iter().filter(|seat| seat.used && seat.address.is_none_or(|address| !wanted.contains(&address))) {
        // It is left in maintenance: HAProxy 2.6 crashes where a server that has just died is deleted.
        ask(&format!("set server {}/{} state maint", backend.name, seat.name));
    }
    let mut free = seats.iter().filter(|seat| !seat.used);
    for address in wanted.iter().filter(|address| !has(address)) {
        let server = if backend.has_slots() {
            let slot = free.next().expect("there are more slots than pods").name.clone();
            ask(&format!("set server {}/{slot} addr {} port {}", backend.name, address.ip(), address.port()));
            slot
        } else {
            let server = format!("at-{address}");
            // Where it was there before, it is there still.
            ask(&format!("add server {}/{server} {address} check inter 1s fastinter 250ms rise 2 fall 3", backend.name));
            server
        };
        ask(&format!("enable health {0}/{server}; set server {0}/{server} state ready", backend.name));
    }
}

/// The servers in an answer to `show servers state`.
fn seats(state: &str) -> Vec<Seat> {
    let rows = state.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|row| row.len() > 18 && row[0] != "#");
    let seat = |row: Vec<&str>| Seat {
        name: row[3].to_owned(),
        address: format!("{}:{}", row[4], row[18]).parse().ok(),
        used: row[6].parse().is_ok_and(|maintenance: u32| maintenance & 0x63 == 0),
    };
    rows.map(seat).collect()
}
