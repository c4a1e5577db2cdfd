//! Owners of the UDP ports of our addresses: one outside the fabric is reported.
//!
//! The process that owns the port of an address gets every packet for it, and hands on what is for other processes of its fabric. A process of
//! another fabric, a plain socket or the kernel's own soft-RoCE does not, and then nothing ever comes here: no counter of ours moves.

use std::net::IpAddr;
use std::sync::mpsc::{TryRecvError, sync_channel};

use super::port_watch::{Found, Standing};
use super::udp::{Holder, ROCE_PORT};
use super::{Link, LinkEvent, SLOTS};
use crate::os::signals::{NIC_THREAD, spawn};

/// Between two looks at the holder of a port that is not ours: as long as a process may take to end between its leaving the fabric and
/// the closing of its sockets …
const SOON_NS: u64 = 1_000_000_000;
/// … and, after many looks that found nothing, as long as a change may go unnoticed.
const SELDOM_NS: u64 = 64_000_000_000;

impl Link {
    /// Reports, once, which process outside this fabric holds this NIC's UDP port. Waits for nothing.
    pub(super) fn check_foreign_ports(&mut self, now_ns: u64) {
        if let Some(look) = &self.port_watch.look {
            match look.try_recv() {
                Ok(found) => self.judge(found, now_ns),
                Err(TryRecvError::Empty) => return,
                // The thread died of it, and the next one tries again.
                Err(TryRecvError::Disconnected) => self.port_watch.wait(now_ns, SELDOM_NS),
            }
            self.port_watch.look = None;
            return;
        }
        let Some(wire) = &self.wire else { return };
        if now_ns < self.port_watch.due_ns {
            return;
        }
        let others: Vec<IpAddr> = wire.foreign_ports().collect();
        if others.is_empty() {
            return self.judge(Vec::new(), now_ns);
        }
        let owners = (0..SLOTS as u8).filter_map(|slot| self.fabric.slot_owner(slot));
        let pids: Vec<u32> = owners.map(|owner| owner.pid).collect();
        let known = self.port_watch.known.clone();
        let look = move |address: IpAddr| {
            let holder = Holder::of(address, ROCE_PORT)?;
            let socket = (address, holder.inode);
            let is = |standing| known.contains(&(socket, standing));
            if is(Standing::Reported) {
                return None;
            }
            let of_fabric = is(Standing::Friend) || is_of_fabric(&holder, &pids);
            let pid = if !of_fabric && is(Standing::Suspect) { holder.process() } else { None };
            Some(Found { socket, user: holder.user, of_fabric, pid })
        };
        let (result, taken) = sync_channel(1);
        // With the pump a thread of the program makes it.
        match spawn(NIC_THREAD, move || _ = result.send(others.into_iter().filter_map(look).collect())) {
            Ok(_) => self.port_watch.look = Some(taken),
            Err(_) => self.port_watch.wait(now_ns, SOON_NS),
        }
    }

    /// What a look found.
    fn judge(&mut self, found: Vec<Found>, now_ns: u64) {
        let before = std::mem::take(&mut self.port_watch.known);
        let mut known: Vec<_> = before.iter().copied().filter(|(_, is)| *is == Standing::Reported).collect();
        // Taking an address from process to process is not to fill memory.
        known.drain(..known.len().saturating_sub(SLOTS));
        let mut pause_ns = (2 * self.port_watch.pause_ns).clamp(SOON_NS, SELDOM_NS);
        for Found { socket, user, of_fabric, pid } in found {
            let standing = if of_fabric {
                Standing::Friend
            } else if before.contains(&(socket, Standing::Suspect))
                && self.happened(LinkEvent::PortTaken { address: socket.0, user, pid })
            {
                Standing::Reported
            } else {
                pause_ns = SOON_NS;
                Standing::Suspect
            };
            known.push((socket, standing));
        }
        self.port_watch.known = known;
        self.port_watch.wait(now_ns, pause_ns);
    }
}

/// Whether one of these processes, those of this fabric, has the socket; also when one of them does not let us see.
fn is_of_fabric(holder: &Holder, pids: &[u32]) -> bool {
    let has = |pid: &u32| match holder.is_of(*pid) {
        Ok(has) => has,
        // One that has ended has no socket.
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    };
    pids.iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkConfig;

    #[test]
    fn a_foreign_port_owner_is_reported_once_when_seen_twice_and_as_soon_as_there_is_room() {
        let fabric = format!("foreign-ports-{}", std::process::id());
        let mut link = Link::join(LinkConfig { fabric, ..LinkConfig::default() }).unwrap();
        let address = IpAddr::from([127, 0, 0, 9]);
        let found = || vec![Found { socket: (address, 4711), user: 7, of_fabric: false, pid: Some(9) }];
        let told = |link: &mut Link| std::iter::from_fn(|| link.events.pop_front()).collect::<Vec<_>>();
        link.judge(found(), 0);
        assert_eq!(told(&mut link), [], "it may have been about to end");
        let other = LinkEvent::Unsent { address, errno: 1 };
        while link.happened(other) {}
        link.judge(found(), 1);
        assert!(told(&mut link).iter().all(|event| *event == other));
        link.judge(found(), 2);
        assert_eq!(told(&mut link), [LinkEvent::PortTaken { address, user: 7, pid: Some(9) }]);
        assert_eq!(link.port_watch.known, [((address, 4711), Standing::Reported)]);
    }
}
