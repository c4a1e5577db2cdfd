//! Two connections, each with a process whose memory is mostly unregistered: work is checked, then done.

use std::collections::{BTreeMap, VecDeque};

use crate::testing::{Arrival, Connection, Event, Rng, WorkRequest};
use crate::{
    Access, DropReason, Fragment, GRH_BYTES, Now, Opcode, Outcome, Packet, PayloadSource, PostedMessage, Psn,
    Receive, Region, RegionError, ReplyVerdict, RequesterConfig, Resources, ResponderConfig, ResponderEvent,
    SendWindow, ServiceType, Status, Ticket, Verdict, Work,
};

/// Address of the memory's first byte, as requests name it.
pub(super) const VA: u64 = 0x7000_0000;
const MEMORY_BYTES: usize = 16 << 10;
/// Regions: key, first byte, bytes, what they grant. What lies between belongs to nobody.
pub(super) const REGIONS: [(u32, usize, usize, Access); 3] = [
    (0x1000, 0x400, 0x1800, Access(0xf)),
    (0x1001, 0x2000, 0x800, Access::REMOTE_READ),
    (0x1002, 0x2c00, 0x200, Access(1 | 1 << 1)),
];
/// Longest message posted.
pub(super) const LONGEST: u32 = 3000;
/// Q_Key of datagrams.
const QKEY: u32 = 0x2222;
/// Messages outstanding at most.
const WINDOW_MESSAGES: u32 = 12;

/// Entries that all queues of a connection may hold together: outstanding messages, and for three responder
/// resources the remembered ones and twice (replies, streams) the waiting, each up to a power of two.
const HELD: usize = (WINDOW_MESSAGES as usize).next_power_of_two() + 4 + 8 + 8;

/// What happened, by name.
pub(super) type Reached = BTreeMap<String, u64>;

pub(super) fn count(reached: &mut Reached, what: impl Into<String>) {
    *reached.entry(what.into()).or_default() += 1;
}

/// A packet on its way.
pub(super) type Flying = (Packet, Vec<u8>);

/// What both ends are made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub(super) service: ServiceType,
    pub(super) path_mtu_bytes: u32,
    first_psn: Psn,
    rd_atomic: u8,
    retry_count: u8,
    rnr_retry: u8,
    timeout: u8,
    window: SendWindow,
    ack_every: u32,
    /// Bytes of a packet at most, in shared memory; none: on a wire.
    pub(super) most: Option<u32>,
}

impl Setting {
    pub(super) fn random(rng: &mut Rng) -> Setting {
        let services = [ServiceType::Rc, ServiceType::Rc, ServiceType::Rc, ServiceType::Uc, ServiceType::Ud];
        let small = |rng: &mut Rng, bound: u64| u32::try_from(rng.below(bound)).unwrap_or_default();
        Setting {
            service: services[small(rng, 5) as usize],
            path_mtu_bytes: [256, 256, 512, 1024][small(rng, 4) as usize],
            first_psn: Psn::new(match rng.below(2) {
                0 => small(rng, 1 << 24),
                _ => 0xff_ffe0 + small(rng, 64),
            }),
            rd_atomic: (rng.below(10).min(1) * (1 + rng.below(3))) as u8,
            retry_count: rng.below(8) as u8,
            // Not 7, which is for ever.
            rnr_retry: rng.below(7) as u8,
            timeout: 1 + rng.below(9) as u8,
            window: SendWindow { packets: 1 + small(rng, 40), ack_every: 1 + small(rng, 20) },
            ack_every: 1 + small(rng, 20),
            most: None,
        }
    }

    fn connection(&self, peer_qpn: u32) -> Connection {
        let Setting { service, path_mtu_bytes, first_psn, .. } = *self;
        let connected = (service != ServiceType::Ud).then_some(peer_qpn);
        let requester = RequesterConfig {
            service,
            first_psn,
            path_mtu_bytes,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            timeout: self.timeout,
            max_rd_atomic: self.rd_atomic,
            window_messages: WINDOW_MESSAGES,
        };
        let responder = ResponderConfig {
            service,
            peer_qpn: connected,
            expected_psn: first_psn,
            path_mtu_bytes,
            access: Access(0xf),
            max_dest_rd_atomic: self.rd_atomic,
            min_rnr_timer: 1,
            qkey: QKEY,
        };
        match self.most {
            Some(most) => Connection::shared(requester, responder, most),
            None => Connection::new(requester, self.window, responder, self.ack_every),
        }
    }
}

/// The memory of a process and its receive queue.
struct Process {
    memory: Vec<u8>,
    /// Regions that are registered now, as indices of [`REGIONS`].
    registered: [bool; REGIONS.len()],
    receives: VecDeque<Receive>,
    posted: u64,
}

impl Process {
    fn new() -> Process {
        let memory = (0..MEMORY_BYTES).map(fresh_byte).collect();
        Process { memory, registered: [true; REGIONS.len()], receives: VecDeque::new(), posted: 0 }
    }

    /// The bytes of a range within a granted region, or `None` if the region is gone since. Panics when the
    /// engine names bytes outside the region.
    fn granted(&mut self, region: Region, offset: u32, length: usize, need: Access) -> Option<&mut [u8]> {
        if length == 0 {
            return Some(&mut []);
        }
        let index = REGIONS.iter().position(|row| row.0 == region.key).expect("a key that was granted");
        let (_, first, bytes, access) = REGIONS[index];
        let start = usize::try_from(region.address).expect("an address of ours") + offset as usize;
        assert!(offset as usize + length <= region.len as usize, "{offset} + {length} leave {region:?}");
        assert!(first <= start && start + length <= first + bytes, "{region:?} + {offset} leaves its region");
        assert!(access.contains(need), "{region:?} does not grant {need:?}");
        self.registered[index].then(|| &mut self.memory[start..start + length])
    }

    /// Whatever nobody may write is as it was.
    fn check_untouched(&self) {
        for (at, byte) in self.memory.iter().enumerate() {
            let writable = REGIONS.iter().any(|(_, first, bytes, access)| {
                access.contains(Access::REMOTE_WRITE) && (*first..first + bytes).contains(&at)
            });
            assert!(writable || *byte == fresh_byte(at), "byte {at:#x} was written");
        }
    }
}

fn fresh_byte(at: usize) -> u8 {
    (at ^ at >> 8) as u8
}

impl Resources for Process {
    fn region(&self, key: u32, va: u64, len: u64, need: Access) -> Result<Region, RegionError> {
        let index = REGIONS.iter().position(|row| row.0 == key).ok_or(RegionError::UnknownKey { key })?;
        let (_, first, bytes, access) = REGIONS[index];
        if !self.registered[index] {
            return Err(RegionError::UnknownKey { key });
        }
        if !access.contains(need) {
            return Err(RegionError::AccessDenied { key, need: need.0 });
        }
        let outside =
            RegionError::OutOfBounds { key, va, len, start: VA + first as u64, length: bytes as u64 };
        let address = va.checked_sub(VA).ok_or(outside)?;
        let end = address.checked_add(len).ok_or(outside)?;
        if address < first as u64 || end > (first + bytes) as u64 {
            return Err(outside);
        }
        Ok(Region { key, va, len, address, rights: Access(0) })
    }

    fn take_receive(&mut self) -> Option<Receive> {
        self.receives.pop_front()
    }

    fn may_invalidate(&self, rkey: u32) -> bool {
        // A region is no window: only keys that open nothing can be invalidated.
        REGIONS.iter().all(|row| row.0 != rkey) && rkey & 1 == 0
    }
}

/// One end.
pub(super) struct End {
    pub(super) connection: Connection,
    process: Process,
    posted: VecDeque<WorkRequest>,
    /// Ticket of the front of `posted`.
    first_ticket: u64,
    qpn: u32,
    peer_qpn: u32,
    /// Bytes of a packet at most.
    most: u32,
}

impl End {
    pub(super) fn new(setting: &Setting, qpn: u32, peer_qpn: u32) -> End {
        End {
            connection: setting.connection(peer_qpn),
            process: Process::new(),
            posted: VecDeque::new(),
            first_ticket: 0,
            qpn,
            peer_qpn,
            most: setting.most.unwrap_or(setting.path_mtu_bytes),
        }
    }

    /// The program connects anew, over the same memory.
    pub(super) fn renew(&mut self, setting: &Setting, reached: &mut Reached) {
        self.note_counters(reached);
        self.connection = setting.connection(self.peer_qpn);
        self.posted.clear();
        self.first_ticket = 0;
    }

    /// Adds what this connection counted.
    pub(super) fn note_counters(&self, reached: &mut Reached) {
        let counters = self.connection.responder.counters();
        for (name, many) in [
            ("duplicates answered", counters.duplicates),
            ("messages executed", counters.messages),
            ("packets sent again", self.connection.retransmitted),
        ] {
            *reached.entry(name.into()).or_default() += many;
        }
    }

    pub(super) fn post_receive(&mut self, capacity: u64) {
        if self.process.receives.len() < 64 {
            self.process.receives.push_back(Receive { capacity, id: self.process.posted });
            self.process.posted += 1;
        }
    }

    pub(super) fn toggle_region(&mut self, index: usize) {
        let registered = &mut self.process.registered[index % REGIONS.len()];
        *registered = !*registered;
    }

    pub(super) fn register_all(&mut self) {
        self.process.registered = [true; REGIONS.len()];
    }

    /// Posts a message, mostly one that its peer would take.
    pub(super) fn post(&mut self, rng: &mut Rng) {
        let mut opcode = Opcode::ALL[rng.below(8) as usize];
        let service = self.connection.requester.config().service;
        if !opcode.allowed_on(service) && rng.below(40) > 0 {
            opcode = Opcode::Send;
        }
        let fence = rng.below(8) == 0;
        if !self.connection.requester.can_post(opcode, fence) {
            return;
        }
        let longest = match service {
            ServiceType::Ud if rng.below(20) > 0 => self.connection.requester.config().path_mtu_bytes,
            _ => LONGEST,
        };
        let length = match opcode {
            // Now and then one that cannot be.
            Opcode::CompareSwap | Opcode::FetchAdd => 8 - 4 * u32::from(rng.below(99) == 0),
            _ => {
                let most = rng.below(longest.into()) + 1;
                rng.below(most) as u32
            }
        };
        // Now and then a region that does not grant it.
        let (key, first, bytes, _) = REGIONS[rng.below(20).saturating_sub(17) as usize];
        let room = (bytes as u64).saturating_sub(length.into());
        let mut remote_va = VA + first as u64 + (rng.below(room + 1) & !7);
        let mut rkey = key;
        match rng.below(200) {
            0 => remote_va = remote_va.wrapping_add(rng.below(1 << 14)),
            1 => rkey ^= 1 << rng.below(4),
            2 => remote_va = rng.next_u64(),
            _ => {}
        }
        let imm = match opcode {
            Opcode::SendInvalidate if rng.below(20) == 0 => REGIONS[0].0.to_be_bytes(),
            _ => 0x0666_u32.to_be_bytes(),
        };
        let work = WorkRequest {
            message: PostedMessage { opcode, length, fence },
            solicited: rng.below(2) == 0,
            imm,
            remote_va,
            rkey,
            swap_add: rng.next_u64(),
            compare: rng.below(2),
            src_qpn: self.qpn,
            dst_qpn: self.peer_qpn,
            qkey: if rng.below(20) == 0 { 1 } else { QKEY },
        };
        self.posted.push_back(work);
        let ticket = if rng.below(500) == 0 {
            self.connection.post_failed(work, Status::LocalProtection)
        } else {
            self.connection.post(work)
        };
        assert_eq!(ticket.0, self.first_ticket + self.posted.len() as u64 - 1);
        if rng.below(500) == 0 {
            self.connection.requester.fail(ticket, Status::LocalProtection);
        }
    }

    /// The next packet, with its bytes.
    pub(super) fn transmit(&mut self, now: Now, rng: &mut Rng, reached: &mut Reached) -> Option<Flying> {
        loop {
            let outgoing = self.connection.poll_transmit(now)?;
            let (packet, part) = (outgoing.packet, outgoing.packet.payload);
            let payload = match outgoing.source {
                PayloadSource::Nothing => Vec::new(),
                PayloadSource::Message(ticket) => {
                    let work = self.work(ticket.0);
                    assert!(
                        u64::from(part.offset) + u64::from(part.length) <= u64::from(work.message.length)
                    );
                    (part.offset..part.offset + part.length)
                        .map(|at| (u64::from(at) ^ ticket.0) as u8)
                        .collect()
                }
                PayloadSource::Region(region) => {
                    let need = Access::REMOTE_READ;
                    let bytes = self.process.granted(region, part.offset, part.length as usize, need);
                    let Some(bytes) = bytes.filter(|_| rng.below(200) > 0) else {
                        let fault = if rng.below(2) == 0 {
                            Outcome::Revoked
                        } else {
                            Outcome::LocalFault { addr: 0 }
                        };
                        self.connection.responder.read_failed(fault);
                        count(reached, "READ responses that could not be read");
                        continue;
                    };
                    bytes.to_vec()
                }
            };
            assert_eq!(payload.len(), part.length as usize);
            assert!(part.length <= self.most);
            count(reached, format!("sends {}", spoken(&packet)));
            if part.length > self.connection.requester.config().path_mtu_bytes {
                count(reached, "sends several packets at once");
            }
            return Some((packet, payload));
        }
    }

    fn work(&self, ticket: u64) -> &WorkRequest {
        let index = ticket.checked_sub(self.first_ticket).expect("a ticket that is not done");
        &self.posted[usize::try_from(index).expect("a small number")]
    }

    /// Takes a packet that its device let through.
    pub(super) fn handle(&mut self, now: Now, flying: &Flying, rng: &mut Rng, reached: &mut Reached) {
        let (packet, payload) = flying;
        let arrival = self.connection.handle_packet(now, packet, &mut self.process);
        let name = match arrival {
            Arrival::Request(Verdict::Execute(work)) => {
                if rng.below(100) == 0 {
                    // A device that hands over the next packet before it reports: held back by the engine.
                    let busy = self.connection.handle_packet(now, packet, &mut self.process);
                    assert_eq!(busy, Arrival::Request(Verdict::Dropped(DropReason::Busy)));
                    count(reached, "drop Busy");
                }
                let outcome = self.execute(work, payload, rng);
                count(
                    reached,
                    format!("executes, {}", format!("{outcome:?}").split(' ').next().unwrap_or("")),
                );
                self.connection.responder.executed(outcome);
                if packet.payload.length > self.connection.responder.config().path_mtu_bytes {
                    count(reached, "executes several packets at once");
                }
                "executed"
            }
            Arrival::Request(Verdict::Answered) => "answered",
            Arrival::Request(Verdict::Dropped(reason)) => {
                count(reached, format!("drop {reason:?}"));
                "dropped"
            }
            Arrival::Reply(ReplyVerdict::Place { ticket, fragment }) => {
                self.place(ticket, fragment, payload);
                "READ response placed"
            }
            Arrival::Reply(ReplyVerdict::Progress) => "reply: progress",
            Arrival::Reply(ReplyVerdict::Response(_)) => "reply: response",
            Arrival::Reply(ReplyVerdict::Resend) => "reply: send again",
            Arrival::Reply(ReplyVerdict::Failed) => "reply: failed",
            Arrival::Reply(ReplyVerdict::Ignored) => "reply: ignored",
        };
        count(reached, name);
        self.collect(reached);
    }

    fn execute(&mut self, work: Work, payload: &[u8], rng: &mut Rng) -> Outcome {
        let ud = self.connection.responder.config().service == ServiceType::Ud;
        let trouble = rng.below(400);
        match work {
            Work::Receive { receive, scatter_offset, length, completion } => {
                assert_eq!(length as usize, payload.len());
                let end = u64::from(scatter_offset) + u64::from(length);
                assert!(end <= receive.capacity, "{end} bytes into a receive of {}", receive.capacity);
                assert!(!ud || scatter_offset == GRH_BYTES);
                assert!(completion.is_none_or(|done| u64::from(done.byte_len) == end));
            }
            Work::Write { region, offset, length, .. } => {
                assert_eq!(length as usize, payload.len());
                let need = Access::REMOTE_WRITE;
                let Some(bytes) = self.process.granted(region, offset, payload.len(), need) else {
                    return Outcome::Revoked;
                };
                bytes.copy_from_slice(payload);
            }
            Work::Atomic { region, .. } => {
                assert!(region.len == 8 && region.va.is_multiple_of(8), "{region:?}");
                let need = Access::REMOTE_ATOMIC;
                return match self.process.granted(region, 0, 8, need) {
                    Some(_) if trouble == 0 => Outcome::Done,
                    Some(_) => Outcome::Atomic { old: rng.next_u64() },
                    None => Outcome::Revoked,
                };
            }
        }
        if trouble == 0 { Outcome::LocalFault { addr: 0 } } else { Outcome::Done }
    }

    fn place(&self, ticket: Ticket, part: Fragment, payload: &[u8]) {
        let work = self.work(ticket.0);
        assert_eq!((work.message.opcode, part.length as usize), (Opcode::Read, payload.len()));
        assert!(u64::from(part.offset) + u64::from(part.length) <= u64::from(work.message.length));
    }

    /// Runs the timers; what is due next lies ahead then.
    pub(super) fn handle_timeout(&mut self, now: Now, reached: &mut Reached) {
        self.connection.requester.handle_timeout(now);
        assert!(self.connection.requester.poll_timeout().is_none_or(|due| due > now), "due in the past");
        self.collect(reached);
    }

    /// Events, each once and in order, and what an error of a half does to the QP.
    pub(super) fn collect(&mut self, reached: &mut Reached) {
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Responder(ResponderEvent::CommunicationEstablished) => {
                    count(reached, "event CommunicationEstablished");
                }
                Event::Responder(ResponderEvent::Dropped(failure)) => {
                    assert!(failure.receive.is_none() && !self.connection.responder.is_failed());
                    count(reached, "event Dropped");
                }
                Event::Responder(ResponderEvent::Failed(failure)) => {
                    let name = failure.event.map_or("none, the receive tells".into(), |e| format!("{e:?}"));
                    count(reached, format!("event {name}"));
                    if let Some(failed) = failure.receive {
                        count(reached, format!("receive ends {:?}", failed.status));
                    }
                    self.connection.requester.enter_error();
                }
                Event::Sent(completion) => {
                    assert_eq!(completion.ticket.0, self.first_ticket, "completions in order, each once");
                    let work = self.posted.pop_front().expect("a message that was posted");
                    self.first_ticket += 1;
                    assert_eq!(completion.opcode, work.message.opcode);
                    count(reached, format!("send ends {:?}", completion.status));
                    let reliable = self.connection.requester.config().service == ServiceType::Rc;
                    if completion.status != Status::Success && reliable {
                        self.connection.responder.enter_error();
                    }
                }
            }
        }
        let held = self.connection.requester.held() + self.connection.responder.held();
        assert!(held <= HELD, "{held} entries are allocated");
    }

    pub(super) fn is_failed(&self) -> bool {
        self.connection.requester.is_failed() || self.connection.responder.is_failed()
    }

    pub(super) fn check_end(&self) {
        self.process.check_untouched();
        assert!(self.connection.requester.is_idle(), "a message that never ends");
    }
}

/// What a packet says, as the table names it.
fn spoken(packet: &Packet) -> String {
    use crate::packet::Syndrome;
    match packet.content {
        crate::Content::Acknowledge(aeth) => match aeth.syndrome {
            Syndrome::Ack => "ACK".into(),
            Syndrome::RnrNak { .. } => "RNR NAK".into(),
            Syndrome::Nak(code) => format!("NAK {code:?}"),
        },
        crate::Content::ReadResponse { .. } => "READ response".into(),
        crate::Content::AtomicAcknowledge { .. } => "atomic response".into(),
        _ => "requests".into(),
    }
}
