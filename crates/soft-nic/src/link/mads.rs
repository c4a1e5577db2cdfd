//! MADs as the NIC carries them between QP1s: by packets on the wire, by Unix sockets from a port's owner on.
//!
//! A request goes to the fabric's process that listens to its service; others go to the slot in the upper
//! bits of the communication id that they name. On the wire a MAD goes to an address, among the NIC's
//! packets. The owner of the port there, whose QP1 is the address's, hands it on or refuses what none takes.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

pub use roce::cm::AddressedMad;
use roce::packet::{Deth, Trailer};
use roce::wire::cm::attribute;
use roce::wire::mad::{MAD_BYTES, MadHeader, QP1, QP1_QKEY};
use roce::wire::{Gid, gid_of};
use roce::{Content, Fragment, Packet, Position, Psn, ServiceType};

use super::fabric::{Fabric, ServiceWord, SlotOwner};
use crate::os::unix_datagram::KeyedSocket;
use crate::os::{locked, system};

/// Both addresses, then the MAD.
pub(crate) const ADDRESSED_BYTES: usize = 32 + MAD_BYTES;
/// MADs that wait for room in sockets, at most.
pub(crate) const MAX_WAITING: usize = 4096;

/// MADs that the NIC is to send, and whether there are some: the NIC looks at that every round.
#[derive(Debug, Default)]
pub(crate) struct ForWire {
    some: AtomicBool,
    mads: Mutex<VecDeque<AddressedMad>>,
}

impl ForWire {
    /// False: too many wait already, it is lost.
    pub(crate) fn push(&self, addressed: AddressedMad) -> bool {
        let mut mads = locked(&self.mads);
        let room = mads.len() < MAX_WAITING;
        if room {
            mads.push_back(addressed);
            self.some.store(true, Ordering::Release);
        }
        room
    }

    /// One that found no room: it is the next one again.
    pub(crate) fn push_front(&self, addressed: AddressedMad) {
        let mut mads = locked(&self.mads);
        mads.push_front(addressed);
        self.some.store(true, Ordering::Release);
    }

    pub(crate) fn pop(&self) -> Option<AddressedMad> {
        if !self.some.load(Ordering::Relaxed) {
            return None;
        }
        let mut mads = locked(&self.mads);
        let next = mads.pop_front();
        self.some.store(!mads.is_empty(), Ordering::Release);
        next
    }
}

/// Routes a process's MADs: opens its socket, hands on what comes over the wire, and counts.
#[derive(Debug, Clone)]
pub struct MadRouter {
    pub(crate) fabric: Arc<Fabric>,
    /// The connection manager's, once there is one.
    socket: Arc<Mutex<Option<Arc<KeyedSocket>>>>,
    /// Sends what the owner of a port hands on. A process without a connection manager has no bound socket,
    /// since datagrams for it would never be received.
    unbound: Arc<OnceLock<KeyedSocket>>,
    /// `None` without a wire.
    pub(crate) for_wire: Option<Arc<ForWire>>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) local: Arc<Tally>,
    /// No socket can be made, as where a program has all descriptors in use.
    #[cfg(test)]
    pub(crate) poor: Option<i32>,
}

impl MadRouter {
    pub(crate) fn new(fabric: Arc<Fabric>, has_wire: bool) -> MadRouter {
        MadRouter {
            fabric,
            socket: Arc::default(),
            unbound: Arc::default(),
            for_wire: has_wire.then(Arc::default),
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

    /// MADs within the fabric: outcomes of those that this process sent; of those that came, the malformed.
    pub fn local_counters(&self) -> MadCounters {
        self.local.counters()
    }

    pub fn slot(&self) -> u8 {
        self.fabric.slot()
    }

    /// The one bound socket of this process, however many threads ask for it. Nothing blocks under the lock.
    pub(crate) fn bound_socket(&self) -> io::Result<Arc<KeyedSocket>> {
        let mut place = locked(&self.socket);
        if let Some(open) = &*place {
            return Ok(Arc::clone(open));
        }
        let open = Arc::new(KeyedSocket::bound(&self.name()?, self.fabric.key())?);
        Ok(Arc::clone(place.insert(open)))
    }

    /// Without a name, so that any thread may make it: the NIC's thread comes here, and never waits.
    fn unbound(&self) -> io::Result<&KeyedSocket> {
        #[cfg(test)]
        if let Some(errno) = self.poor {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if let Some(made) = self.unbound.get() {
            return Ok(made);
        }
        let made = KeyedSocket::unbound(self.fabric.key())?;
        Ok(self.unbound.get_or_init(|| made))
    }

    pub(crate) fn name(&self) -> io::Result<String> {
        let owner = self.fabric.slot_owner(self.slot()).ok_or(io::ErrorKind::NotConnected)?;
        Ok(socket_name(self.slot(), &owner))
    }

    /// The slot of the process that receives a MAD for this local address.
    pub(crate) fn slot_for(&self, address: Address, to: Gid) -> Option<u8> {
        match address {
            Address::Service(service) => self.fabric.serving_slot(ServiceWord::new(service, Some(to))?),
            Address::Id(id) => Some(roce::cm::slot_of(id)),
            Address::All => None,
        }
    }

    /// A MAD came over the wire to the port that we own: hands it on, or says what its sender gets back.
    pub(crate) fn hand_on(&self, addressed: AddressedMad) -> Option<AddressedMad> {
        let Some(address) = address(&addressed.mad) else {
            self.tally.count(MadOutcome::Malformed);
            return None;
        };
        let slot = self.slot_for(address, addressed.to);
        let name = slot.and_then(|slot| self.fabric.slot_owner(slot).map(|owner| socket_name(slot, &owner)));
        let post = |name: String| self.unbound()?.post(&name, &head(&addressed), &*addressed.mad);
        let outcome = name.map_or(MadOutcome::Unclaimed, |name| MadOutcome::of(&post(name)));
        let unclaimed = matches!(outcome, MadOutcome::Unclaimed);
        let answer = if unclaimed { roce::cm::refuse(&*addressed.mad) } else { None };
        self.tally.count(if answer.is_some() { MadOutcome::Refused } else { outcome });
        answer.map(|mad| AddressedMad { from: addressed.to, to: addressed.from, mad })
    }

    /// A packet came for QP1.
    pub(crate) fn take_packet(&self, from: IpAddr, at: IpAddr, packet: &Packet, payload: &[u8]) {
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
pub(crate) fn packet(psn: u32) -> Packet {
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

pub(crate) fn head(addressed: &AddressedMad) -> [u8; 32] {
    let mut head = [0; 32];
    head[..16].copy_from_slice(&addressed.from.0);
    head[16..].copy_from_slice(&addressed.to.0);
    head
}

/// Name of the socket of a slot's owner: its cookie is another one in each process.
pub(crate) fn socket_name(slot: u8, owner: &SlotOwner) -> String {
    format!("softnic-cm-{}-{slot}-{}-{:x}", system::user(), owner.pid, owner.cookie)
}

/// Where a MAD goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Address {
    /// To the process that listens to this service.
    Service(u64),
    /// To the process that gave this communication id.
    Id(u32),
    /// To every process: it names no id that its receiver would know it by.
    All,
}

/// A word behind the header.
pub(crate) fn word(mad: &[u8; MAD_BYTES], at: usize) -> u32 {
    mad[MadHeader::BYTES + at..][..4].try_into().map(u32::from_be_bytes).unwrap_or(0)
}

pub(crate) fn address(mad: &[u8; MAD_BYTES]) -> Option<Address> {
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

roce::counters! {
    /// What became of MADs: those that came over the wire to a port this process owns or were to leave over
    /// it, or those within the fabric.
    #[derive(Copy)]
    MadCounters [fields "wire_mads_"] {
        /// Handed on to the process that they are for.
        handed_on,
        /// No process listens, or the one that they are for has ended: refused with an answer.
        refused,
        /// Dropped: no process takes them, and there is nothing to answer.
        unclaimed,
        /// Dropped: of QP1, but no MAD of a connection manager (service, length, Q_Key, version, class).
        malformed,
        /// Dropped: the socket of the process that they are for was full, or too many wait for the wire.
        full,
        /// Not sent: no header says that, or no port has that address.
        unsent,
        /// Dropped: an error of this process (descriptors, memory or the like). No request is refused for it.
        failed,
    }
}

/// [`MadCounters`] while they count, one place for each [`MadOutcome`].
#[derive(Debug, Default)]
pub(crate) struct Tally([AtomicU64; 7]);

/// Place in a [`Tally`], in the order of [`MadCounters`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum MadOutcome {
    HandedOn,
    Refused,
    Unclaimed,
    Malformed,
    Full,
    Unsent,
    Failed,
}

impl MadOutcome {
    /// What became of a MAD sent to a socket. A full socket loses it, as a wire does: its sender asks again.
    pub fn of(posted: &io::Result<()>) -> MadOutcome {
        match posted.as_ref().map_err(io::Error::kind) {
            Ok(()) => MadOutcome::HandedOn,
            Err(io::ErrorKind::WouldBlock) => MadOutcome::Full,
            Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => MadOutcome::Unclaimed,
            Err(_) => MadOutcome::Failed,
        }
    }
}

impl Tally {
    pub fn count(&self, outcome: MadOutcome) {
        self.add(outcome, 1);
    }

    pub fn add(&self, outcome: MadOutcome, more: u64) {
        self.0[outcome as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub fn counters(&self) -> MadCounters {
        let [handed_on, refused, unclaimed, malformed, full, unsent, failed] =
            self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        MadCounters { handed_on, refused, unclaimed, malformed, full, unsent, failed }
    }
}
