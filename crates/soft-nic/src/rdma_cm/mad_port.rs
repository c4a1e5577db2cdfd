//! The connection manager's mailbox: its MADs to and from its fabric, and those for other hosts to the NIC.
//!
//! Within a fabric the sender looks into the directory. A request without a listener comes back to the
//! sender's own connection manager, which refuses it. A full socket is retried for a while; a lost MAD is
//! sent again by its connection manager.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use roce::wire::mad::MAD_BYTES;
use roce::wire::{Gid, gid_of, ip_of};

use crate::link::fabric::{Process, SLOTS, ServiceError, ServiceWord, SlotOwner};
use crate::link::mads::{
    ADDRESSED_BYTES, Address, AddressedMad, MAX_WAITING, MadOutcome, MadRouter, address, head, socket_name,
    word,
};
use crate::link::udp::ROCE_PORT;
use crate::os::locked;
use crate::os::unix_datagram::KeyedSocket;

/// MADs that one look takes.
const BUDGET: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedProcess {
    pub slot: u8,
    /// Our communication ids of the requests that went to it, those with an answer included.
    pub asked: Vec<u32>,
}

/// Carries MADs, and knows which process listens.
pub trait MadPort: Send {
    /// Sends; what cannot be delivered is lost.
    fn send(&mut self, addressed: AddressedMad);
    /// What has arrived.
    fn receive(&mut self) -> Vec<AddressedMad>;
    /// Listens to a service, at one address or at all. Errors: another process does; too many.
    fn announce(&mut self, service: u64, address: Option<Gid>) -> Result<(), ServiceError>;
    /// No longer.
    fn withdraw(&mut self, service: u64, address: Option<Gid>);
    /// Whether another process listens there.
    fn is_taken(&self, service: u64, address: Option<Gid>) -> bool;
    /// Peers that ended since the last call. [`MadPort::receive`] has returned all that they sent.
    fn departed(&mut self) -> Vec<EndedProcess>;
    /// Our address that packets to another host leave from, `from` itself if given; `None` when none can.
    fn source_for(&self, to: Gid, from: Option<Gid>) -> Option<Gid>;
    /// Whether something waits for room: call [`MadPort::receive`] again soon.
    fn is_waiting(&self) -> bool;
}

/// Processes whose end is to be reported, by slot and owner's generation: a slot's next process is another.
type Watched = Arc<Mutex<BTreeMap<(u8, u32), Peer>>>;

/// A process that MADs went to.
#[derive(Debug)]
struct Peer {
    process: Process,
    /// Our communication ids of the last requests that went to it, [`MAX_WAITING`] of them.
    asked: VecDeque<u32>,
}

/// Waits for MADs, without the port's lock.
#[derive(Debug, Clone)]
pub struct MadWaiter {
    socket: Arc<KeyedSocket>,
    name: String,
    watched: Watched,
}

impl MadWaiter {
    /// Waits until a MAD comes, [`MadWaiter::ring`] is called, a watched process ends, or the time is over.
    pub fn wait(&self, max: Duration) {
        let watched: Vec<_> = locked(&self.watched).values().map(|peer| peer.process.as_raw_fd()).collect();
        self.socket.wait(&watched, max);
    }

    /// Ends a wait.
    pub fn ring(&self) {
        // A full socket ends the wait too.
        let _ = self.socket.post(&self.name, &[], &[]);
    }
}

/// A process's port for MADs within a fabric and beyond.
#[derive(Debug)]
pub struct FabricMads {
    router: MadRouter,
    socket: Arc<KeyedSocket>,
    addresses: Vec<Gid>,
    watched: Watched,
    /// Requests without a listener, which this process refuses.
    own: Vec<AddressedMad>,
    waiting: VecDeque<(String, AddressedMad)>,
    /// Ended processes whose last MADs have been received.
    departed: Vec<EndedProcess>,
    /// MADs that one look takes.
    budget: usize,
}

impl FabricMads {
    /// Opens the socket. `addresses`: the fabric's own; others go over the wire. Errors: the kernel's.
    pub fn open(router: MadRouter, addresses: Vec<Gid>) -> io::Result<(FabricMads, MadWaiter)> {
        let socket = router.bound_socket()?;
        let watched = Arc::new(Mutex::default());
        let bell = MadWaiter { socket: socket.clone(), name: router.name()?, watched: Arc::clone(&watched) };
        let mads = FabricMads {
            router,
            socket,
            addresses,
            watched,
            own: Vec::new(),
            waiting: VecDeque::new(),
            departed: Vec::new(),
            budget: BUDGET,
        };
        Ok((mads, bell))
    }

    /// Watched processes that have ended: slot and generation.
    fn ended(&self) -> Vec<(u8, u32)> {
        let watched = locked(&self.watched);
        watched.iter().filter(|(_, peer)| peer.process.has_ended()).map(|(known, _)| *known).collect()
    }

    /// Ends the watch of these processes and keeps what [`MadPort::departed`] says of them.
    fn depart(&mut self, ended: &[(u8, u32)]) {
        let mut watched = locked(&self.watched);
        for known in ended {
            let asked = watched.remove(known).map(|peer| peer.asked.into()).unwrap_or_default();
            self.departed.push(EndedProcess { slot: known.0, asked });
        }
    }

    fn post(&mut self, slot: u8, owner: &SlotOwner, addressed: AddressedMad) {
        self.watch(slot, owner, &addressed);
        let to_all = address(&addressed.mad) == Some(Address::All);
        match self.deliver(socket_name(slot, owner), addressed) {
            // What goes to all is not for processes without a connection manager.
            Some(MadOutcome::Unclaimed) if to_all => {}
            outcome => self.count(outcome),
        }
    }

    fn count(&self, outcome: Option<MadOutcome>) {
        outcome.into_iter().for_each(|outcome| self.router.local.count(outcome));
    }

    /// Its end is to be reported, but not our own slot's. It may end without an answer to a request, and
    /// before it is known which communication id it would have given.
    fn watch(&mut self, slot: u8, owner: &SlotOwner, addressed: &AddressedMad) {
        if slot == self.router.fabric.slot() {
            return;
        }
        let mut watched = locked(&self.watched);
        // A process that left the fabric and lives on told its peers; one that ended is still to be reported.
        let new = (slot, owner.generation);
        watched.retain(|known, peer| known.0 != slot || *known == new || peer.process.has_ended());
        if let Entry::Vacant(place) = watched.entry(new)
            && let Ok(process) = owner.watch()
        {
            place.insert(Peer { process, asked: VecDeque::new() });
        }
        let id = word(&addressed.mad, 0);
        // A request that is sent again is one.
        if let Some(Address::Service(_)) = address(&addressed.mad)
            && let Some(Peer { asked, .. }) = watched.get_mut(&new)
            && !asked.contains(&id)
        {
            if asked.len() >= MAX_WAITING {
                asked.pop_front();
            }
            asked.push_back(id);
        }
    }

    /// What became of it; `None`: it waits.
    fn deliver(&mut self, name: String, addressed: AddressedMad) -> Option<MadOutcome> {
        let outcome = MadOutcome::of(&self.socket.post(&name, &head(&addressed), &*addressed.mad));
        if matches!(outcome, MadOutcome::Full) && self.waiting.len() < MAX_WAITING {
            self.waiting.push_back((name, addressed));
            return None;
        }
        Some(outcome)
    }
}

impl MadPort for FabricMads {
    fn send(&mut self, addressed: AddressedMad) {
        if let Some(for_wire) =
            self.router.for_wire.as_ref().filter(|_| !self.addresses.contains(&addressed.to))
        {
            if !for_wire.push(addressed) {
                self.router.tally.count(MadOutcome::Full);
            }
            return self.router.fabric.rouse();
        }
        if !self.router.fabric.is_ours() {
            return;
        }
        let slot_owner = |slot: u8| Some((slot, self.router.fabric.slot_owner(slot)?));
        let Some(address) = address(&addressed.mad) else {
            return self.router.local.count(MadOutcome::Malformed);
        };
        if address == Address::All {
            let all: Vec<_> = (0..SLOTS as u8).filter_map(slot_owner).collect();
            return all.into_iter().for_each(|(slot, owner)| self.post(slot, &owner, addressed.clone()));
        }
        let asks = matches!(address, Address::Service(_));
        match self.router.slot_for(address, addressed.to).and_then(slot_owner) {
            Some((slot, owner)) => self.post(slot, &owner, addressed),
            None if asks => self.own.push(addressed),
            None => self.router.local.count(MadOutcome::Unclaimed),
        }
    }

    fn receive(&mut self) -> Vec<AddressedMad> {
        for (name, addressed) in std::mem::take(&mut self.waiting) {
            let outcome = self.deliver(name, addressed);
            self.count(outcome);
        }
        // Looked for before the socket is read: all that a process sent before its end lies there by now.
        let ended = self.ended();
        let mut mads = std::mem::take(&mut self.own);
        let mut malformed = 0;
        let mut take = |bytes: &[u8]| {
            // A bell is empty; anything else of another length is malformed.
            if let Ok(bytes) = <[u8; ADDRESSED_BYTES]>::try_from(bytes) {
                let (mut from, mut to, mut mad) = (Gid::default(), Gid::default(), Box::new([0; MAD_BYTES]));
                from.0.copy_from_slice(&bytes[..16]);
                to.0.copy_from_slice(&bytes[16..32]);
                mad.copy_from_slice(&bytes[32..]);
                mads.push(AddressedMad { from, to, mad });
            } else if !bytes.is_empty() {
                malformed += 1;
            }
        };
        // An error is nothing received; the next look finds what there is.
        let collected = self.socket.collect(self.budget, &mut take);
        let refused = collected.as_ref().map_or(0, |collected| collected.refused);
        self.router.local.add(MadOutcome::Malformed, malformed + refused as u64);
        // A socket that may hold more, or was not read, leaves the ended processes to the next look.
        if collected.is_ok_and(|collected| collected.datagrams + collected.refused < self.budget) {
            self.depart(&ended);
        }
        mads
    }

    fn announce(&mut self, service: u64, address: Option<Gid>) -> Result<(), ServiceError> {
        ServiceWord::new(service, address).map_or(Ok(()), |word| self.router.fabric.announce(word))
    }

    fn withdraw(&mut self, service: u64, address: Option<Gid>) {
        ServiceWord::new(service, address).into_iter().for_each(|word| self.router.fabric.withdraw(word));
    }

    fn is_taken(&self, service: u64, address: Option<Gid>) -> bool {
        ServiceWord::new(service, address)
            .is_some_and(|word| self.router.fabric.clashing_slot(word).is_some())
    }

    fn departed(&mut self) -> Vec<EndedProcess> {
        std::mem::take(&mut self.departed)
    }

    fn source_for(&self, to: Gid, from: Option<Gid>) -> Option<Gid> {
        self.router.for_wire.as_ref()?;
        // The kernel's routing, asked without sending anything: what a UDP socket would leave from (udp(7)).
        let to = ip_of(to)?;
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let from = from.map_or(Some(any), ip_of)?;
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.connect((to, ROCE_PORT)).ok()?;
        Some(gid_of(socket.local_addr().ok()?.ip()))
    }

    fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.own.is_empty()
    }
}

#[cfg(test)]
mod tests;
