//! What people run without Lockstep: a loop that follows EndpointSlices and makes the balancer's servers alike.
//!
//! Invariant: it tells HAProxy of a change at once, sooner than most that are in use.
//! Absent on purpose: any word back to the cluster; that is the difference.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::outside::Backend;
use crate::world::World;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Does something while the loop keeps the backend like the Service `web` in the namespace of its name.
pub(super) fn beside<T>(world: &World, backend: &Backend, deed: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut known = BTreeSet::new();
            while !over.load(Ordering::SeqCst) {
                follow(world, backend, &mut known);
                std::thread::sleep(LOOK);
            }
        });
        let done = deed();
        over.store(true, Ordering::SeqCst);
        done
    })
}

fn follow(world: &World, backend: &Backend, known: &mut BTreeSet<SocketAddr>) {
    let wanted = world.cluster.ready_endpoints(backend.name, "web");
    let balancer = world.outside.first();
    let full = |address: &SocketAddr| format!("{}/at-{address}", backend.name);
    for address in known.difference(&wanted) {
        // It is left in maintenance: HAProxy 2.6 crashes where a server that has just died is deleted.
        balancer.ask(&format!("set server {} state maint", full(address)));
    }
    for address in wanted.difference(known) {
        let server = full(address);
        balancer.ask(&format!("add server {server} {address} check inter 1s fastinter 250ms rise 2 fall 3"));
        balancer.ask(&format!("enable health {server}; set server {server} state ready"));
    }
    *known = wanted;
}
