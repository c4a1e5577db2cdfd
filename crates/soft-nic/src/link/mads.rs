//! MADs between connection managers: datagrams between QP1s, by Unix sockets between the processes of a fabric, by packets elsewhere.
//!
//! Within a fabric the sender looks into the directory: a request goes to the process that listens to its service, all else to the
//! slot in the upper bits of the communication id that it names. A request without a listener comes back to the sender's own connection
//! manager, which refuses it. On the wire a MAD goes to an address: the NIC sends it with its packets, and at the other end the
//! owner of the port, whose QP1 is the address's, hands it on in the same way, and refuses what no process takes.
//! A socket that is full is tried again for a while; a MAD that is lost is sent again by its connection manager.

mod tally;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use roce::packet::{Deth, Trailer};
use roce::wire::Gid;
use roce::wire::cm::attribute;
use roce::wire::mad::{MAD_BYTES, MadHeader, QP1, QP1_QKEY};
use roce::wire::{gid_of, ip_of};
use roce::{Content, Fragment, Packet, Position, Psn, ServiceType};

use super::fabric::{Fabric, Occupant, Process, SLOTS, ServiceError, ServiceWord};
use super::udp::ROCE_PORT;
use crate::os::system;
use crate::os::unix_datagram::{BoundSocket, UnboundSocket};

pub use tally::MadCounters;
use tally::{MadOutcome, Tally};

/// Both addresses, then the MAD.
const ADDRESSED_BYTES: usize = 32 + MAD_BYTES;
/// MADs that wait for room in sockets, at most.
const MAX_WAITING: usize = 4096;
/// MADs that one look takes.
const BUDGET: usize = 256;

/// A MAD with the addresses of both QP1s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressedMad {
    /// Address of the sender.
    pub from: Gid,
    /// Address of the receiver.
    pub to: Gid,
    /// The datagram.
    pub mad: Box<[u8; MAD_BYTES]>,
}

/// A process of the fabric that has ended.
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
    /// Processes that have ended since this was asked, of those that MADs went to. [`MadPort::receive`] has returned all that they sent.
    fn departed(&mut self) -> Vec<EndedProcess> {
        Vec::new()
    }
    /// The address of ours that packets to another host leave from, `from` itself when that is given; `None` when none can.
    fn source_for(&self, _to: Gid, _from: Option<Gid>) -> Option<Gid> {
        None
    }
    /// Whether something waits for room: call [`MadPort::receive`] again soon.
    fn is_waiting(&self) -> bool {
        false
    }
}

/// MADs that the NIC is to send, and whether there are some: the NIC looks at that every round.
#[derive(Debug, Default)]
pub(super) struct ForWire {
    some: AtomicBool,
    mads: Mutex<VecDeque<AddressedMad>>,
}

impl ForWire {
    fn mads(&self) -> MutexGuard<'_, VecDeque<AddressedMad>> {
        self.mads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False: too many wait already, it is lost.
    fn push(&self, addressed: AddressedMad) -> bool {
        let mut mads = self.mads();
        let room = mads.len() < MAX_WAITING;
        if room {
            mads.push_back(addressed);
            self.some.store(true, Ordering::Release);
        }
        room
    }

    /// Puts back what was taken and found no room, in front of what came since. Returns how many were too many, the last ones.
    pub(super) fn put_back(&self, mut taken: VecDeque<AddressedMad>) -> usize {
        let mut mads = self.mads();
        taken.append(&mut mads);
        let lost = taken.len().saturating_sub(MAX_WAITING);
        taken.truncate(MAX_WAITING);
        *mads = taken;
        self.some.store(true, Ordering::Release);
        lost
    }

    pub(super) fn take(&self) -> VecDeque<AddressedMad> {
        if !self.some.load(Ordering::Relaxed) {
            return VecDeque::new();
        }
        self.some.store(false, Ordering::Release);
        std::mem::take(&mut *self.mads())
    }
}

/// Routes a process's MADs: opens its socket, hands on what comes over the wire, and counts.
#[derive(Debug, Clone)]
pub struct MadRouter {
    fabric: Arc<Fabric>,
    /// The connection manager's, once there is one.
    socket: Arc<Mutex<Option<Arc<BoundSocket>>>>,
    /// Sends what the owner of a port hands on. A process without a connection manager has no bound socket, since datagrams for it
    /// would never be received.
    unbound: Arc<OnceLock<UnboundSocket>>,
    /// `None` without a wire.
    for_wire: Option<Arc<ForWire>>,
    tally: Arc<Tally>,
    local: Arc<Tally>,
    /// No socket can be made, as where a program has all descriptors in use.
    #[cfg(test)]
    poor: Option<i32>,
}

impl MadRouter {
    pub(super) fn new(fabric: Arc<Fabric>, has_wire: bool) -> MadRouter {
        let for_wire = has_wire.then(Arc::default);
        let (socket, unbound) = (Arc::default(), Arc::default());
        MadRouter {
            fabric,
            socket,
            unbound,
            for_wire,
            tally: Arc::default(),
            local: Arc::default(),
            #[cfg(test)]
            poor: None,
        }
    }

    /// What became of MADs of the wire so far.
    pub fn counters(&self) -> MadCounters {
        self.tally.counters()
    }

    /// What became of MADs within the fabric: of those that this process sent, and, of those that came, which were malformed.
    pub fn local_counters(&self) -> MadCounters {
        self.local.counters()
    }

    /// One that the wire does not take.
    pub(super) fn count_unsent(&self) {
        self.tally.count(MadOutcome::Unsent);
    }

    /// So many that the wire has no room for now: see [`ForWire::put_back`].
    pub(super) fn put_back(&self, mads: VecDeque<AddressedMad>) {
        let lost = self.for_wire.as_ref().map_or(0, |for_wire| for_wire.put_back(mads));
        self.tally.add(MadOutcome::Full, lost as u64);
    }

    pub fn slot(&self) -> u8 {
        self.fabric.slot()
    }

    pub(super) fn for_wire(&self) -> Option<&Arc<ForWire>> {
        self.for_wire.as_ref()
    }

    /// The one bound socket of this process, however many threads ask for it at once. Nothing is waited for under the lock.
    fn bound_socket(&self) -> io::Result<Arc<BoundSocket>> {
        let mut place = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            *place = Some(Arc::new(BoundSocket::open(&self.name()?, self.fabric.key())?));
        }
        place.clone().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Without a name of its own, so that any thread may make it: the NIC's thread comes here, and never waits.
    fn unbound(&self) -> io::Result<&UnboundSocket> {
        #[cfg(test)]
        if let Some(errno) = self.poor {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if self.unbound.get().is_none() {
            let made = UnboundSocket::open(self.fabric.key())?;
            return Ok(self.unbound.get_or_init(|| made));
        }
        self.unbound.get().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn name(&self) -> io::Result<String> {
        let who = self.fabric.occupant(self.slot()).ok_or(io::ErrorKind::NotConnected)?;
        Ok(socket_name(self.slot(), &who))
    }

    /// Opens the socket. `addresses` are the fabric's own: what is for others goes over the wire. Errors: the kernel's.
    pub fn open(&self, addresses: Vec<Gid>) -> io::Result<(FabricMads, MadWaiter)> {
        let socket = self.bound_socket()?;
        let watched = Arc::new(Mutex::default());
        let bell = MadWaiter { socket: socket.clone(), name: self.name()?, watched: Arc::clone(&watched) };
        let mads = FabricMads {
            fabric: self.fabric.clone(),
            socket,
            addresses,
            for_wire: self.for_wire.clone(),
            tally: self.tally.clone(),
            local: self.local.clone(),
            watched,
            own: Vec::new(),
            waiting: VecDeque::new(),
            asked: VecDeque::new(),
            departed: Vec::new(),
            budget: BUDGET,
        };
        Ok((mads, bell))
    }

    /// A MAD came over the wire to the port that we own: hands it on, or says what its sender gets back.
    pub(super) fn hand_on(&self, addressed: AddressedMad) -> Option<AddressedMad> {
        let slot = match address(&addressed.mad) {
            Some(Address::Service(service)) => {
                ServiceWord::new(service, Some(addressed.to.0)).and_then(|word| self.fabric.who_serves(word))
            }
            Some(Address::Id(id)) => Some(roce::cm::slot_of(id)),
            Some(Address::All) => None,
            None => {
                self.tally.count(MadOutcome::Malformed);
                return None;
            }
        };
        let name = slot.and_then(|slot| self.fabric.occupant(slot).map(|who| socket_name(slot, &who)));
        let post = |name: String| self.unbound()?.post(&name, &head(&addressed), &*addressed.mad);
        let outcome = name.map_or(MadOutcome::Unclaimed, |name| MadOutcome::of(&post(name)));
        let answer = match outcome {
            MadOutcome::Unclaimed => roce::cm::refuse(&*addressed.mad),
            _ => None,
        };
        self.tally.count(if answer.is_some() { MadOutcome::Refused } else { outcome });
        answer.map(|mad| AddressedMad { from: addressed.to, to: addressed.from, mad })
    }
}

impl MadRouter {
    /// A packet came for QP1.
    pub(super) fn take_packet(&self, from: IpAddr, at: IpAddr, packet: &Packet, payload: &[u8]) {
        let is_mad = packet.service == ServiceType::Ud && packet.deth.qkey == QP1_QKEY;
        let Some(mad) = <[u8; MAD_BYTES]>::try_from(payload).ok().filter(|_| is_mad) else {
            return self.tally.count(MadOutcome::Malformed);
        };
        let addressed = AddressedMad { from: gid_of(from), to: gid_of(at), mad: Box::new(mad) };
        if let Some((answer, for_wire)) = self.hand_on(addressed).zip(self.for_wire.as_ref())
            && !for_wire.push(answer)
        {
            self.tally.count(MadOutcome::Full);
        }
    }
}

/// The packet that carries a MAD.
pub(super) fn packet(psn: u32) -> Packet {
    Packet {
        service: ServiceType::Ud,
        dst_qpn: QP1,
        psn: Psn::new(psn),
        ack_requested: false,
        solicited: false,
        deth: Deth { qkey: QP1_QKEY, src_qpn: QP1 },
        content: Content::Send { position: Position::Only, trailer: Trailer::None },
        payload: Fragment { offset: 0, length: MAD_BYTES as u32 },
    }
}

/// A process of the fabric whose end is to be reported. The next process in its slot is another one.
#[derive(Debug)]
struct Watch {
    slot: u8,
    generation: u32,
    process: Process,
}

/// Processes that are watched.
type Watched = Arc<Mutex<Vec<Watch>>>;

fn head(addressed: &AddressedMad) -> [u8; 32] {
    let mut head = [0; 32];
    head[..16].copy_from_slice(&addressed.from.0);
    head[16..].copy_from_slice(&addressed.to.0);
    head
}

/// Name of an occupant's socket: its cookie is another one in each process.
fn socket_name(slot: u8, who: &Occupant) -> String {
    format!("softnic-cm-{}-{slot}-{}-{:x}", system::user(), who.pid, who.cookie)
}

/// Waits for MADs, without the port's lock.
#[derive(Debug, Clone)]
pub struct MadWaiter {
    socket: Arc<BoundSocket>,
    name: String,
    watched: Watched,
}

impl MadWaiter {
    /// Waits until a MAD comes, [`MadWaiter::ring`] is called, a process that is watched ends, or the time is over.
    pub fn wait(&self, max: Duration) {
        let watched: Vec<_> = watched(&self.watched).iter().map(|watch| watch.process.as_raw_fd()).collect();
        self.socket.wait(&watched, max);
    }

    /// Ends a wait.
    pub fn ring(&self) {
        // A full socket ends the wait too.
        let _ = self.socket.post(&self.name, &[], &[]);
    }
}

fn watched(watched: &Watched) -> MutexGuard<'_, Vec<Watch>> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process's port for MADs within a fabric and beyond.
#[derive(Debug)]
pub struct FabricMads {
    fabric: Arc<Fabric>,
    socket: Arc<BoundSocket>,
    addresses: Vec<Gid>,
    for_wire: Option<Arc<ForWire>>,
    tally: Arc<Tally>,
    /// Of what stays within the fabric.
    local: Arc<Tally>,
    watched: Watched,
    /// Requests without a listener, which this process refuses.
    own: Vec<AddressedMad>,
    waiting: VecDeque<(String, AddressedMad)>,
    /// Slot, its occupant's generation and communication id of the last requests, [`MAX_WAITING`] of them.
    asked: VecDeque<(u8, u32, u32)>,
    /// Ended processes whose last MADs have been received.
    departed: Vec<EndedProcess>,
    /// MADs that one look takes.
    budget: usize,
}

/// Where a MAD goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Address {
    /// To the process that listens to this service.
    Service(u64),
    /// To the process that gave this communication id.
    Id(u32),
    /// To every process: it names no id that its receiver would know it by.
    All,
}

/// A word behind the header.
fn word(mad: &[u8; MAD_BYTES], at: usize) -> u32 {
    mad[MadHeader::BYTES + at..][..4].try_into().map(u32::from_be_bytes).unwrap_or(0)
}

fn address(mad: &[u8; MAD_BYTES]) -> Option<Address> {
    let header = MadHeader::parse(mad).ok()?;
    let word = |at| word(mad, at);
    Some(match header.attribute {
        attribute::REQ | attribute::SIDR_REQ => {
            Address::Service(u64::from(word(8)) << 32 | u64::from(word(12)))
        }
        attribute::SIDR_REP => Address::Id(word(0)),
        _ => match word(4) {
            0 => Address::All,
            id => Address::Id(id),
        },
    })
}

impl FabricMads {
    /// Watched processes that have ended: slot and generation.
    fn ended(&self) -> Vec<(u8, u32)> {
        let watched = watched(&self.watched);
        let ended = watched.iter().filter(|watch| watch.process.has_ended());
        ended.map(|watch| (watch.slot, watch.generation)).collect()
    }

    /// Ends the watch of these processes and keeps what [`MadPort::departed`] says of them.
    fn depart(&mut self, ended: &[(u8, u32)]) {
        for &(slot, generation) in ended {
            watched(&self.watched).retain(|watch| (watch.slot, watch.generation) != (slot, generation));
            let is_its = |asked: &&(u8, u32, u32)| (asked.0, asked.1) == (slot, generation);
            let asked = self.asked.iter().filter(is_its).map(|(.., id)| *id).collect();
            self.asked.retain(|asked| !is_its(&asked));
            self.departed.push(EndedProcess { slot, asked });
        }
    }

    /// To this occupant.
    fn post(&mut self, slot: u8, who: &Occupant, addressed: AddressedMad) {
        self.watch(slot, who);
        let to_all = address(&addressed.mad) == Some(Address::All);
        match self.deliver(socket_name(slot, who), addressed) {
            // What goes to all is not for processes without a connection manager.
            Some(MadOutcome::Unclaimed) if to_all => {}
            outcome => self.count(outcome),
        }
    }

    fn count(&self, outcome: Option<MadOutcome>) {
        outcome.into_iter().for_each(|outcome| self.local.count(outcome));
    }

    /// The receiver may end without an answer, and before it is known which communication id it would have given. Our own slot's
    /// end is not reported, and a request that is sent again is one.
    fn note(&mut self, slot: u8, who: &Occupant, request: &AddressedMad) {
        let asked = (slot, who.generation, word(&request.mad, 0));
        if slot == self.fabric.slot() || self.asked.contains(&asked) {
            return;
        }
        if self.asked.len() >= MAX_WAITING {
            self.asked.pop_front();
        }
        self.asked.push_back(asked);
    }

    /// Its end is to be reported.
    fn watch(&mut self, slot: u8, who: &Occupant) {
        if slot == self.fabric.slot() {
            return;
        }
        let mut watched = watched(&self.watched);
        // One that has left the fabric, and goes on without, has told its peers; the end of one that has ended is still to be reported.
        watched.retain(|known| {
            known.slot != slot || known.generation == who.generation || known.process.has_ended()
        });
        let is_known = watched.iter().any(|known| (known.slot, known.generation) == (slot, who.generation));
        if !is_known && let Ok(process) = self.fabric.watch(who) {
            watched.push(Watch { slot, generation: who.generation, process });
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
        if let Some(for_wire) = self.for_wire.as_ref().filter(|_| !self.addresses.contains(&addressed.to)) {
            if !for_wire.push(addressed) {
                self.tally.count(MadOutcome::Full);
            }
            if self.fabric.is_ours() {
                self.fabric.rouse();
            }
            return;
        }
        if !self.fabric.is_ours() {
            return;
        }
        let occupant = |slot: u8| Some((slot, self.fabric.occupant(slot)?));
        match address(&addressed.mad) {
            Some(Address::Service(service)) => {
                let word = ServiceWord::new(service, Some(addressed.to.0));
                match word.and_then(|word| self.fabric.who_serves(word)).and_then(occupant) {
                    Some((slot, who)) => {
                        self.note(slot, &who, &addressed);
                        self.post(slot, &who, addressed);
                    }
                    None => self.own.push(addressed),
                }
            }
            Some(Address::Id(id)) => match occupant(roce::cm::slot_of(id)) {
                Some((slot, who)) => self.post(slot, &who, addressed),
                None => self.local.count(MadOutcome::Unclaimed),
            },
            Some(Address::All) => {
                let all: Vec<_> = (0..SLOTS as u8).filter_map(occupant).collect();
                all.into_iter().for_each(|(slot, who)| self.post(slot, &who, addressed.clone()));
            }
            None => self.local.count(MadOutcome::Malformed),
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
        self.local.add(MadOutcome::Malformed, malformed + refused as u64);
        // A socket that may hold more, or was not read, leaves the ended processes to the next look.
        if collected.is_ok_and(|collected| collected.datagrams + collected.refused < self.budget) {
            self.depart(&ended);
        }
        mads
    }

    fn announce(&mut self, service: u64, address: Option<Gid>) -> Result<(), ServiceError> {
        ServiceWord::new(service, address.map(|gid| gid.0)).map_or(Ok(()), |word| self.fabric.announce(word))
    }

    fn withdraw(&mut self, service: u64, address: Option<Gid>) {
        if let Some(word) = ServiceWord::new(service, address.map(|gid| gid.0)) {
            self.fabric.withdraw(word);
        }
    }

    fn is_taken(&self, service: u64, address: Option<Gid>) -> bool {
        let word = ServiceWord::new(service, address.map(|gid| gid.0));
        word.is_some_and(|word| self.fabric.who_clashes(word).is_some())
    }

    fn departed(&mut self) -> Vec<EndedProcess> {
        std::mem::take(&mut self.departed)
    }

    fn source_for(&self, to: Gid, from: Option<Gid>) -> Option<Gid> {
        self.for_wire.as_ref()?;
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
