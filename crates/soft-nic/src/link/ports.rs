//! Whose the ports of our addresses are: taken over when their owner ends, and reported when a stranger has them.
//!
//! Who owns the port of an address gets every packet for it, and hands on what is for other processes of its fabric. A process of
//! another fabric, a plain socket or the kernel's own soft-RoCE does not, and then nothing ever comes here: no counter of ours moves.

use std::net::IpAddr;

use super::udp::{Holder, ROCE_PORT};
use super::{Link, LinkEvent, SLOTS};

/// Between two looks at who has a port that is not ours: as long as a process may take to end between its leaving the fabric and
/// the closing of its sockets …
const SOON_NS: u64 = 1_000_000_000;
/// … and, after many looks that found nothing, as long as a change may go unnoticed.
const SELDOM_NS: u64 = 64_000_000_000;

/// What is known of those who own our addresses' ports.
#[derive(Debug, Default)]
pub(super) struct PortWatch {
    due_ns: u64,
    pause_ns: u64,
    /// Sockets that no process of the fabric had at the last look: it may have been about to end.
    suspects: Vec<(IpAddr, u64)>,
    /// Sockets that a process of the fabric had: they stay its own, and nobody's descriptors are looked through for them again.
    friends: Vec<(IpAddr, u64)>,
    /// Those that were reported.
    reported: Vec<(IpAddr, u64)>,
    /// The ear could not be told of a socket yet.
    unheard: bool,
}

impl Link {
    /// An address whose owner has ended gets another.
    pub(super) fn take_over_ports(&mut self) {
        let (Some(wire), Some(ear)) = (&mut self.wire, &self.ear) else { return };
        if wire.try_own() || self.port_watch.unheard {
            // Those that are heard already stay so. One that cannot be now is tried with every look: till then what comes there is
            // found when something else ends a sleep.
            let failed = wire.descriptors().filter(|fd| ear.listen_to(*fd).is_err()).count();
            self.port_watch.unheard = failed > 0;
        }
    }

    /// Reports, once, who has the port of an address of ours and is no process of this fabric.
    pub(super) fn look_for_strangers(&mut self, now_ns: u64) {
        let Some(wire) = &self.wire else { return };
        if now_ns < self.port_watch.due_ns {
            return;
        }
        let others: Vec<IpAddr> = wire.foreign_ports().collect();
        let (mut friends, mut suspects) = (Vec::new(), Vec::new());
        for address in others {
            let Some(holder) = Holder::of(address, ROCE_PORT) else { continue };
            let suspect = (address, holder.inode);
            if self.port_watch.reported.contains(&suspect) {
                continue;
            }
            if self.port_watch.friends.contains(&suspect) || self.is_of_fabric(&holder) {
                friends.push(suspect);
            } else if self.port_watch.suspects.contains(&suspect) {
                self.port_watch.reported.push(suspect);
                self.happened(LinkEvent::PortTaken { address, user: holder.user, pid: holder.process() });
            } else {
                suspects.push(suspect);
            }
        }
        let watch = &mut self.port_watch;
        // Who takes an address from process to process is not to fill memory.
        let forgotten = watch.reported.len().saturating_sub(SLOTS);
        watch.reported.drain(..forgotten);
        watch.pause_ns = match suspects.is_empty() {
            true => (2 * watch.pause_ns).clamp(SOON_NS, SELDOM_NS),
            false => SOON_NS,
        };
        (watch.friends, watch.suspects) = (friends, suspects);
        watch.due_ns = now_ns.saturating_add(watch.pause_ns);
    }

    /// Whether a process of this fabric has the socket; also when one of them does not let us see.
    fn is_of_fabric(&self, holder: &Holder) -> bool {
        let occupants = (0..SLOTS as u8).filter_map(|slot| self.fabric.occupant(slot));
        let has = |pid| match holder.is_of(pid) {
            Ok(has) => has,
            // One that has ended has no socket.
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        };
        occupants.map(|who| who.pid).any(has)
    }
}
