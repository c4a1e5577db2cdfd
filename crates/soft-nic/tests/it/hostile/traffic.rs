//! Pairs of queues under mutants, next to each other on one NIC.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use mlx5_device::Violation;
use mlx5_device::carrier::{Carrier as _, Disposition, PathAddress, Payload};
use mlx5_device::command::ModifyQp;
use mlx5_device::commands::*;
use mlx5_layout::send_wqe::AddressVector;
use roce::packet::{Aeth, Deth, Syndrome};
use roce::{Content, Fragment, NakCode, Packet, Position, ServiceType};
use soft_nic::link::{Link, LinkConfig};
use soft_nic::testing::{
    Block, CqShape, Driver, Opening, QpId, QpShape, Region, Setup, SrqId, Window, WorkRequest,
};

use super::Tally;
use super::checked_memory::{AccessCheck, CheckedMemory};
use super::mutants::{AREA, Effect, benign, receive, spoil};
use super::rng::Rng;
use crate::operations::ALL;

mod outcome;

/// Names of the mutants, for the table.
pub const KINDS: [&str; 11] = [
    "right work request, shuffled",
    "invalid WQE",
    "WQE rewritten while it is read",
    "doorbell",
    "receive",
    "no receive",
    "CQ record",
    "towards nobody",
    "peer that answers nonsense",
    "list of a shared receive queue",
    "memory window",
];

/// Q_Key of a pair: a invalid datagram that finds another pair's QPN must not take that one's receive.
fn qkey(pair: usize) -> u32 {
    0x1111_1111 + 0x0707_0707 * pair as u32
}

/// `IBV_ACCESS_MW_BIND`.
const MW_BIND: u32 = 1 << 4;

/// Receives of a shared queue.
const SHARED_RECEIVES: u32 = 15;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Plain,
    /// Small payloads in 128-byte CQEs.
    Scatter,
    /// The responder takes from a shared receive queue.
    Shared,
    /// Another thread rewrites the send ring.
    Torn,
    /// Nobody has the peer's number.
    Nobody,
    /// The peer is not a NIC of ours.
    Foreign,
}

struct Pair {
    role: Role,
    service: ServiceType,
    a: QpId,
    b: QpId,
    srq: Option<SrqId>,
    near: Region,
    far: Region,
    /// Of type 1 and of type 2, for both queues.
    windows: [Window; 2],
}

impl Pair {
    fn new(driver: &mut Driver<CheckedMemory>, rng: &mut Rng, role: Role, service: ServiceType) -> Pair {
        let scatter = role == Role::Scatter;
        let cqe_size = if scatter { 128 } else { 64 };
        let srq = (role == Role::Shared).then(|| driver.create_srq(SHARED_RECEIVES, 4));
        let mut queue = |srq: Option<SrqId>| {
            let cq = |driver: &mut Driver<CheckedMemory>| {
                driver.create_cq(CqShape { entries: 64, cqe_size, ..CqShape::default() })
            };
            let (send_cq, recv_cq) = (Some(cq(driver)), Some(cq(driver)));
            let mlx5_flags = 1 << 10 | if scatter { 1 << 1 } else { 0 };
            let shape = QpShape {
                service,
                sq_blocks: 32,
                rq_entries: 16,
                srq,
                send_cq,
                recv_cq,
                mlx5_flags,
                ..QpShape::default()
            };
            driver.create_qp(QpShape { signal_all: scatter, ..shape })
        };
        let (a, b) = (queue(None), queue(srq));
        let mut region = || {
            let region = driver.region(2 * AREA as usize, ALL | MW_BIND);
            let bytes: Vec<u8> = (0..2 * AREA / 8).flat_map(|_| rng.next().to_ne_bytes()).collect();
            region.block.write(0, &bytes);
            region
        };
        let (near, far) = (region(), region());
        let windows = [driver.window(1), driver.window(2)];
        Pair { role, service, a, b, srq, near, far, windows }
    }
}

/// What was done to a pair in this round.
enum Plan {
    Right { effect: Effect, index: u16 },
    Invalid { kind: usize, silent: bool },
}

pub struct Traffic {
    driver: Driver<CheckedMemory>,
    accesses: AccessCheck,
    pairs: Vec<Pair>,
    foreign: Link,
    foreign_qpn: u32,
    /// Registered for reading only, with and without windows, and for another domain: nobody may change them.
    canaries: Vec<(Region, Vec<u8>)>,
    stop: Arc<AtomicBool>,
    rewriter: Option<JoinHandle<u64>>,
    rounds: u64,
    psn: u32,
}

impl Traffic {
    pub fn new(rng: &mut Rng) -> Traffic {
        let setup = Setup::new("hostile");
        let fabric = setup.fabric.clone();
        let accesses = AccessCheck::default();
        let memory = CheckedMemory { host: setup.memory, accesses: accesses.clone(), lags: false };
        let mut driver = Driver::new(setup.with_memory(memory));
        let foreign = Link::join(LinkConfig { fabric, ..LinkConfig::default() }).expect("a second slot");
        let foreign_qpn = mlx5_device::first_qpn(foreign.slot()) | 0x40;
        let roles = [
            (Role::Plain, ServiceType::Rc),
            (Role::Plain, ServiceType::Rc),
            (Role::Plain, ServiceType::Rc),
            (Role::Plain, ServiceType::Rc),
            (Role::Scatter, ServiceType::Rc),
            (Role::Shared, ServiceType::Rc),
            (Role::Shared, ServiceType::Ud),
            (Role::Plain, ServiceType::Uc),
            (Role::Plain, ServiceType::Ud),
            (Role::Torn, ServiceType::Rc),
            (Role::Nobody, ServiceType::Rc),
            (Role::Foreign, ServiceType::Rc),
        ];
        let pairs: Vec<Pair> = roles.map(|(role, service)| Pair::new(&mut driver, rng, role, service)).into();
        let mut canaries = Vec::new();
        for access in [0, MW_BIND, ALL] {
            let own = driver.pd;
            if access == ALL {
                driver.pd = driver.nic.alloc_pd(driver.context).expect("a PD").handle;
            }
            let region = driver.region(4096, access);
            driver.pd = own;
            let bytes = region.fill(0, 4096, 0xca);
            canaries.push((region, bytes));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let torn = pairs.iter().find(|pair| pair.role == Role::Torn).map(|pair| pair.a);
        let ring = torn.map(|qp| driver.qp(qp).ring.clone());
        let rewriter = ring.map(|ring| rewrite(ring, stop.clone()));
        let mut traffic = Traffic {
            driver,
            accesses,
            pairs,
            foreign,
            foreign_qpn,
            canaries,
            stop,
            rewriter,
            rounds: 0,
            psn: 0,
        };
        traffic.build_walls();
        (0..traffic.pairs.len()).for_each(|i| traffic.connect(i));
        traffic
    }

    fn build_walls(&self) {
        let place = |block: &Block| (block.address(), block.len() as u64);
        let regions = self.pairs.iter().flat_map(|pair| [place(&pair.near.block), place(&pair.far.block)]);
        let canaries = self.canaries.iter().map(|(region, _)| place(&region.block));
        self.accesses.set(self.driver.blocks().map(place).chain(regions).chain(canaries));
    }

    fn connect(&mut self, pair: usize) {
        let Pair { role, a, b, .. } = self.pairs[pair];
        let (qpn_a, qpn_b) = (self.driver.qp(a).qpn, self.driver.qp(b).qpn);
        let peer = match role {
            Role::Nobody => qpn_b + 0x1000,
            Role::Foreign => self.foreign_qpn,
            Role::Plain | Role::Scatter | Role::Shared | Role::Torn => qpn_b,
        };
        // New numbers each time, as programs are told to choose: what is still in flight must not fit.
        self.psn = self.psn.wrapping_add(0x4_7b1d) & 0xff_ffff;
        let (sq_psn, rq_psn) = (self.psn, self.psn);
        let attributes = |peer| ModifyQp {
            rnr_retry: 0,
            retry_count: 0,
            timeout: 1,
            sq_psn,
            rq_psn,
            qkey: qkey(pair),
            ..self.driver.attributes(peer)
        };
        let (to_peer, to_a) = (attributes(peer), attributes(qpn_a));
        self.driver.bring_up(a, &to_peer);
        self.driver.bring_up(b, &to_a);
    }

    /// One mutant on each pair.
    pub fn round(&mut self, rng: &mut Rng, tally: &mut Tally) {
        self.rounds += 1;
        let plans: Vec<Plan> = (0..self.pairs.len()).map(|pair| self.post(rng, tally, pair)).collect();
        // Queues where nothing moved for long are heard in the background: within this time.
        self.driver.now += 600_000;
        for _ in 0..8 {
            self.driver.poll();
        }
        self.answer_as_foreigner(rng);
        self.driver.poll();
        self.driver.poll();
        if self.rounds.is_multiple_of(128) {
            // Time-outs, and doorbells that are missing in a hundred looks.
            self.wait();
            for _ in 0..=100 {
                self.driver.now += 10_000_000;
                self.driver.poll();
            }
            let events = self.driver.sinks.take_events();
            assert!(events.len() <= 64 * self.pairs.len(), "a flood of {} events", events.len());
            self.driver.sinks.take_lines();
        }
        for (pair, plan) in plans.into_iter().enumerate() {
            self.judge(tally, pair, plan);
        }
    }

    /// Lets every time-out pass.
    fn wait(&mut self) {
        self.driver.advance(15_000_000);
    }

    fn vector(&self, pair: usize) -> Option<AddressVector> {
        let Pair { service, b, .. } = self.pairs[pair];
        (service == ServiceType::Ud).then(|| AddressVector {
            qkey: qkey(pair),
            destination_qpn: self.driver.qp(b).qpn,
            extended: true,
            lid_or_udp_port: self.driver.address().dlid,
            ..AddressVector::default()
        })
    }

    /// Posts one mutant.
    fn post(&mut self, rng: &mut Rng, tally: &mut Tally, pair: usize) -> Plan {
        let vector = self.vector(pair);
        let Pair { role, service, a, b, srq, ref near, ref far, windows } = self.pairs[pair];
        if role == Role::Plain && rng.one_in(30) {
            return self.post_window(rng, tally, pair);
        }
        let (request, effect) = benign(rng, service, near, far, vector);
        let kind = match role {
            Role::Torn => 2,
            Role::Nobody => 7,
            Role::Foreign => 8,
            Role::Shared if effect.receives && rng.one_in(10) => 9,
            Role::Plain | Role::Scatter | Role::Shared => match rng.below(40) {
                0..=20 => 0,
                21..=31 => 1,
                32..=34 => 3,
                35..=37 if effect.receives => 4,
                38 if effect.receives => 5,
                39 if rng.one_in(4) => 6,
                _ => 0,
            },
        };
        tally.mutants += 1;
        *tally.kinds.entry(KINDS[kind]).or_default() += 1;
        let index = self.driver.qp(a).posted;
        let qpn = self.driver.qp(a).qpn;
        if effect.receives && kind != 5 {
            let grh = if service == ServiceType::Ud { 40 } else { 0 };
            let len = effect.bytes.len() as u64 + grh;
            let pointers = receive(rng, far, effect.at - grh, len, kind == 4);
            if let Some(srq) = srq {
                self.driver.post_shared(srq, &pointers);
            } else {
                self.driver.post_receive(b, &pointers);
            }
        }
        if let Some(srq) = srq.filter(|_| kind == 9) {
            self.spoil_list(rng, srq);
        }
        self.blank(pair, &effect);
        let mut wqe = request.wqe(qpn, index).expect("a right WQE");
        if kind == 1 {
            let foreign_keys = [
                self.canaries[0].0.lkey,
                self.canaries[1].0.lkey,
                self.canaries[2].0.lkey,
                windows[0].key(rng.below(4) as u8),
                windows[1].key(rng.below(4) as u8),
            ];
            spoil(rng, &mut wqe, service);
            if rng.one_in(8) && wqe.len() >= 32 {
                let at =
                    16 * (1 + rng.below(wqe.len() as u64 / 16 - 1)) as usize + 4 + 4 * rng.below(2) as usize;
                wqe[at..at + 4].copy_from_slice(&rng.pick(&foreign_keys).to_be_bytes());
            }
        }
        *tally.opcodes.entry(wqe[3]).or_default() += 1;
        self.driver.lay_bytes(a, &wqe);
        let silent = match kind {
            3 => self.ring_wrongly(rng, a),
            6 => {
                let cq = self.driver.qp(a).send_cq;
                let word = rng.edge(1) as u32;
                self.driver.cq(cq).record.word(0).store(word, Ordering::Release);
                self.driver.ring_doorbell(a);
                false
            }
            _ if rng.one_in(2) => {
                self.driver.write_record(a).write_register_next_index(a);
                false
            }
            _ => {
                self.driver.ring_doorbell(a);
                false
            }
        };
        if kind == 0 { Plan::Right { effect, index } } else { Plan::Invalid { kind, silent } }
    }

    /// Opens or closes a window of a pair on either queue, rightly or not, or closes one from the other side.
    fn post_window(&mut self, rng: &mut Rng, tally: &mut Tally, pair: usize) -> Plan {
        tally.mutants += 1;
        *tally.kinds.entry(KINDS[10]).or_default() += 1;
        let Pair { service, a, b, windows, ref near, ref far, .. } = self.pairs[pair];
        let (mut on, window, tag) = (rng.pick(&[a, b]), rng.pick(&windows), rng.below(2) as u8);
        // The canary that may be bound may be read by everybody; a window of another domain opens nothing.
        let region = rng.pick(&[near, far, far, &self.canaries[1].0, &self.canaries[2].0]);
        let offset = rng.below(AREA);
        let rights = rng.pick(&[0, 0x10, 0x20, 0x30, 0x70, 0xff]);
        let opening = Opening { region, offset, len: 1 + rng.below(AREA), rights };
        let request = match rng.below(8) {
            0..=2 => self.driver.bind(on, &window, tag, &opening),
            3 | 4 => WorkRequest::local_invalidate(window.key(tag)),
            5 => WorkRequest::close(&window, tag),
            _ => {
                on = a;
                if rng.one_in(2) {
                    let bind = self.driver.bind(b, &windows[1], tag, &opening);
                    self.driver.post(b, &bind);
                }
                self.driver.post_receive(b, &[far.pointer(AREA, 64)]);
                WorkRequest::send_invalidate(near, 0, 8, windows[1].key(tag))
            }
        };
        let state = self.driver.qp(on);
        let mut wqe = request.wqe(state.qpn, state.posted).expect("a right WQE");
        if on == b && rng.one_in(2) {
            spoil(rng, &mut wqe, service);
        }
        *tally.opcodes.entry(wqe[3]).or_default() += 1;
        self.driver.lay_bytes(on, &wqe).ring_doorbell(on);
        Plan::Invalid { kind: 10, silent: false }
    }

    /// Links that lead anywhere, and counts of posts that never were.
    fn spoil_list(&mut self, rng: &mut Rng, srq: SrqId) {
        let (head, posted) = (self.driver.srq(srq).head, self.driver.srq(srq).posted);
        let entry = rng.below(SHARED_RECEIVES.into()) as u16;
        match rng.below(4) {
            0 => {
                let index =
                    if rng.one_in(2) { entry } else { posted.wrapping_sub(1) % SHARED_RECEIVES as u16 };
                let next = rng.edge(head.into()) as u16;
                self.driver.link_shared(srq, index, next);
            }
            1 => self.driver.write_shared_record(srq, rng.edge(posted.into()) as u16),
            2 => self.driver.write_shared_record(srq, posted.wrapping_add(entry)),
            // Above the size it is refused.
            _ => self.driver.arm_limit(srq, rng.below(2 * u64::from(SHARED_RECEIVES)) as u32).unwrap_or(()),
        }
    }

    /// Makes the bytes that are to arrive different from what is there.
    fn blank(&self, pair: usize, effect: &Effect) {
        let Pair { near, far, .. } = &self.pairs[pair];
        let region = if effect.to_requester { near } else { far };
        let other: Vec<u8> = effect.bytes.iter().map(|byte| !byte).collect();
        region.block.write(effect.at as usize, &other);
    }

    /// Rings in one of the wrong ways. True: nothing may be executed.
    fn ring_wrongly(&mut self, rng: &mut Rng, qp: QpId) -> bool {
        let driver = &mut self.driver;
        match rng.below(6) {
            0 => {
                driver.write_record(qp);
                true
            }
            1 => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(
                    &driver.qp(qp).qpn.wrapping_add(0x800).rotate_left(8).to_be_bytes().repeat(2),
                );
                driver.write_record(qp).write_register_with(qp, bytes);
                true
            }
            2 => {
                driver.write_register(qp);
                // Long enough that the NIC looks there, in the background too.
                driver.now += 600_000;
                driver.poll();
                driver.write_record(qp);
                true
            }
            3 => {
                let far = 0x4000 + rng.below(0x4000) as u16;
                let state = driver.qp_mut(qp);
                let posted = state.posted;
                state.posted = posted.wrapping_add(far);
                driver.write_record(qp).write_register(qp);
                driver.qp_mut(qp).posted = posted;
                true
            }
            4 => {
                let word = rng.next() as u32;
                driver.qp(qp).record.word(4).store(word, Ordering::Release);
                driver.write_register(qp);
                false
            }
            _ => {
                let bytes = rng.next().to_ne_bytes();
                driver.write_record(qp).write_register_with(qp, bytes);
                false
            }
        }
    }

    /// The raw peer answers what came with what it likes.
    fn answer_as_foreigner(&mut self, rng: &mut Rng) {
        let mut requests = Vec::new();
        self.foreign.poll(64, |inbound| {
            requests.push(*inbound.packet);
            Disposition::Consumed
        });
        for request in requests {
            let syndrome = match rng.below(9) {
                1 => Syndrome::RnrNak { timer: rng.next() as u8 & 0x1f },
                2 => Syndrome::Nak(rng.pick(&[
                    NakCode::PsnSequence,
                    NakCode::InvalidRequest,
                    NakCode::RemoteAccess,
                    NakCode::RemoteOperation,
                ])),
                _ => Syndrome::Ack,
            };
            let aeth = Aeth { syndrome, msn: rng.next() as u32 & 0xff_ffff };
            let position = rng.pick(&[
                Position::Only,
                Position::Only,
                Position::First,
                Position::Middle,
                Position::Last,
            ]);
            let content = match rng.below(8) {
                _ if syndrome != Syndrome::Ack => Content::Acknowledge(aeth),
                0 => Content::Acknowledge(aeth),
                1 | 2 => Content::AtomicAcknowledge { aeth, old: rng.next() },
                _ => Content::ReadResponse { position, aeth: Some(aeth) },
            };
            let is_read = matches!(content, Content::ReadResponse { .. });
            let psn = request.psn.plus(rng.pick(&[0, 0, 0, 1, 0xff_ffff]));
            let bytes = vec![0x99; if is_read { rng.below(100) as usize } else { 0 }];
            let reply = Packet {
                dst_qpn: request.deth.src_qpn,
                psn,
                deth: Deth { qkey: 0, src_qpn: self.foreign_qpn },
                content,
                payload: Fragment { offset: 0, length: bytes.len() as u32 },
                ..Packet::default()
            };
            // A ring that is full is no concern of this test.
            let path = PathAddress::default();
            let _ = self.foreign.send_record(&reply, 4096, &path, Payload::Inline(&bytes));
        }
        self.foreign.ring_bells();
    }

    pub fn finish(&mut self) {
        self.stop.store(true, Ordering::Release);
        let rewritten = self.rewriter.take().map(|thread| thread.join().expect("it only stores words"));
        println!("{} words rewritten behind the NIC's back", rewritten.unwrap_or(0));
        for (region, bytes) in &self.canaries {
            assert!(region.block.bytes(0, bytes.len()) == *bytes, "memory that nobody may write was written");
        }
        let closed = self.driver.counters().windows_invalidated;
        assert!(closed >= 100, "peers closed {closed} windows");
        assert_eq!(self.accesses.outside(), [], "the NIC touched memory that it was not given");
        for violation in Violation::ALL {
            assert!(self.driver.counters().violations(violation) > 0, "{violation:?} was never noticed");
        }
    }
}

/// Rewrites words of a ring until told to stop; returns how many.
fn rewrite(ring: Block, stop: Arc<AtomicBool>) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut rng = Rng::new(0x7ea2);
        let mut count = 0;
        while !stop.load(Ordering::Acquire) {
            for _ in 0..64 {
                let word = ring.word(4 * rng.below(ring.len() as u64 / 4) as usize);
                let old = word.load(Ordering::Relaxed);
                word.store(
                    if rng.one_in(2) { rng.next() as u32 } else { old ^ 1 << rng.below(32) },
                    Ordering::Relaxed,
                );
                count += 1;
            }
            std::thread::yield_now();
        }
        count
    })
}
