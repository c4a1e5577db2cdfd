//! The kernels on the host twin, in order and with weak memory, before a NIC that the test plays: it reads and writes when it is told.

use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::gpu::{Arch, Compiler, Form, Toolkit, Unit};
use host_twin::Visibility;
use measure::need;
use rdma_shim::device::HEADERS;
use rdma_shim::kernel::{Source, db_kernel_queue};
use rdma_shim::sys::{db_cq, db_rq, db_sq};
use rdma_shim::testing::compile_everywhere;
use slots::layout::{Header, PREFIX_BYTES, Status, flag};
use slots::{Tensor, TensorKind};

use super::*;

mod chain;
mod release;
mod turns;

host_twin::include_kernels!("planted");

pub const FLOATS: usize = 37;
const ENTRIES: u32 = 64;
const QPN: u32 = 0x49;
/// Where the parts of a played queue lie.
const RING: usize = 0;
const CQ: usize = 4096;
const RECEIVES: usize = 8192;
const RECEIVE_CQ: usize = 12288;
const SLOTS: usize = 16384;
pub const RECORD: usize = 20480;
const STRUCTS: usize = 24576;
pub const ANSWERS: usize = 28672;
const FLAGS: usize = 61440;
const SQ_AT: usize = 0;
const RQ_AT: usize = 256;
const CQ_AT: usize = 512;
const RECEIVE_CQ_AT: usize = 768;
const REGISTER_AT: usize = 1024;

pub fn geometry() -> Geometry {
    let tensor = Tensor { kind: TensorKind::F32, count: FLOATS };
    Geometry::new(5, &[tensor], &[tensor]).unwrap()
}

/// The PTX of a kernel, where `planted` has taken the place of a text in one of its sources.
pub fn ptx(compiler: &Compiler, source: &Source, planted: Option<(&str, &str)>) -> String {
    let mut changed = 0;
    let mut plant = |text: &str| {
        let Some((old, new)) = planted else { return text.to_owned() };
        changed += text.matches(old).count();
        text.replace(old, new)
    };
    let unit = Unit::new(source.name, plant(source.text));
    let headers = HEADERS.iter().chain(source.headers);
    let unit = headers.fold(unit, |unit, (name, text)| unit.header(*name, plant(text)));
    assert_eq!(changed, usize::from(planted.is_some()), "{planted:?}");
    let compiled = compiler.compile(&unit, Arch::sm(90), Form::Ptx).unwrap_or_else(|error| panic!("{error}"));
    String::from_utf8(compiled.bytes).unwrap()
}

/// A pipeline, a model that adds 1, and its kernels.
pub struct Rig {
    pub served: Served,
    steps: launch::Steps,
    /// Of the model, unless it works in the slots.
    model: Option<HostMemory>,
}

/// A client, its queue, and the NIC beneath that queue.
pub struct Peer {
    index: u32,
    first: u32,
    count: u32,
    pub memory: Memory,
    client: slots::Client,
    /// WQEs that the NIC has executed, CQEs that it wrote, WRITEs that it took a receive for.
    done: u32,
    completed: u32,
    received: u32,
}

impl Rig {
    pub fn new(arrival: Arrival, seed: Option<u64>, planted: Option<(usize, &'static str)>) -> Rig {
        Rig::of(arrival, seed, planted, false)
    }

    pub fn of(
        arrival: Arrival,
        seed: Option<u64>,
        planted: Option<(usize, &'static str)>,
        in_slots: bool,
    ) -> Rig {
        let visibility = seed.map_or(Visibility::InOrder, |seed| Visibility::Weak { seed });
        let machine = Machine::twin(visibility);
        let model = (!in_slots).then(|| machine.host_memory(8192).unwrap());
        let buffers = model.iter().map(|model| model.kernel_address()).collect::<Vec<u64>>();
        let outputs = buffers.iter().map(|at| at + 4096).collect::<Vec<u64>>();
        let setting = Setting {
            geometry: &geometry(),
            slots: 6,
            clients: 2,
            arrival,
            place: Place::Gpu,
            inputs: &buffers,
            outputs: &outputs,
            wait: Duration::from_millis(3),
            threads: 32,
            copying: [2, 32],
        };
        let mut served = Served::new(&machine, setting).unwrap();
        served.planted =
            planted.map(|(step, name)| (step, Source { twin: &PLANTED, ..launch::SOURCES[step] }, name));
        let steps = served.steps().unwrap();
        Rig { served, steps, model }
    }

    /// The model, in the slot that the turn names or in its own memory.
    fn add_one(&self) {
        let core = &self.served.core;
        let (memory, from, to) = match &self.model {
            Some(own) => (Memory::from(own.clone()), 0, 4096),
            None => {
                let geometry = geometry();
                let at = core.turn_now().unwrap().0.model_slot as usize * geometry.server_stride();
                let answer = at + geometry.answer_offset() + geometry.answer.entries()[0].offset as usize;
                (core.slots.clone(), at + geometry.request.entries()[0].offset as usize, answer)
            }
        };
        let mut values = vec![0; FLOATS * 4];
        memory.read(from, &mut values).unwrap();
        let add = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap()) + 1.0;
        let more: Vec<u8> = values.chunks_exact(4).flat_map(|bytes| add(bytes).to_le_bytes()).collect();
        memory.write(to, &more).unwrap();
    }

    /// One turn: what it served.
    fn turn(&self) -> (db_turn, State) {
        for step in 0..4 {
            if step == 2 {
                self.add_one();
            }
            if self.served.core.told.has(step) {
                self.steps.run(step, self.served.core.wait, Arc::clone(&self.served.core)).unwrap();
            }
        }
        self.served.core.turn_now().unwrap()
    }

    /// A turn that finds nothing, so that it has looked at places and completions.
    fn idle(&self) {
        assert_eq!(self.turn().1, State::None);
    }

    pub fn join(&self, index: u32, first: u32, count: u32) -> Peer {
        self.join_by(index, first, count, 0)
    }

    fn join_by(&self, index: u32, first: u32, count: u32, unreliable: u32) -> Peer {
        let memory = Memory::from(self.served.core.machine.host_memory(1 << 16).unwrap());
        let at = |offset: usize| memory.kernel_address() + offset as u64;
        memory.write(CQ, &[0xf0; 64 * ENTRIES as usize]).unwrap();
        memory.write(RECEIVE_CQ, &[0xf0; 64 * ENTRIES as usize]).unwrap();
        let sq = db_sq {
            ring: at(RING),
            record: at(RECORD + 4),
            reg: at(RECORD + REGISTER_AT),
            slots: at(SLOTS),
            blocks: ENTRIES,
            qpn: QPN + index,
            max_sge: 1,
            opcodes: 0x7f,
            ..db_sq::default()
        };
        let wqes = 16;
        let rq = db_rq {
            ring: at(RECEIVES),
            record: at(RECORD),
            wr_ids: at(STRUCTS + 2048),
            wqes,
            stride: 16,
            qpn: QPN + index,
            max_sge: 1,
            ..db_rq::default()
        };
        let cq =
            |ring, record| db_cq { ring: at(ring), record: at(record), entries: ENTRIES, ..db_cq::default() };
        memory.put(STRUCTS + SQ_AT, &sq).unwrap();
        memory.put(STRUCTS + RQ_AT, &rq).unwrap();
        memory.put(STRUCTS + CQ_AT, &cq(CQ, RECORD + 64)).unwrap();
        memory.put(STRUCTS + RECEIVE_CQ_AT, &cq(RECEIVE_CQ, RECORD + 128)).unwrap();
        let wanted = self.served.word(index, offset_of!(db_place, wanted)).load(Ordering::Relaxed);
        let queue = db_kernel_queue {
            sq: at(STRUCTS + SQ_AT),
            rq: at(STRUCTS + RQ_AT),
            send_cq: at(STRUCTS + CQ_AT),
            receive_cq: at(STRUCTS + RECEIVE_CQ_AT),
        };
        let place = db_place {
            queue,
            answers: at(ANSWERS),
            answer_flags: at(FLAGS),
            first,
            count,
            unreliable,
            wanted,
            done: wanted,
            ..db_place::default()
        };
        self.served.core.places.write(self.served.place_at(index), place.bytes()).unwrap();
        self.served.want(index);
        self.idle();
        assert!(self.served.is_done(index));
        let granted: Vec<(u32, u32)> = (first..first + count).map(|slot| (slot, 0)).collect();
        let client = slots::Client::new(geometry(), &granted);
        Peer { index, first, count, memory, client, done: 0, completed: 0, received: 0 }
    }

    /// Writes a request as a client's NIC does.
    pub fn ask(&self, peer: &mut Peer, id: u64, value: f32) -> slots::client::Request {
        let request = peer.client.ask(id, id + 100, 0, u64::MAX).unwrap();
        self.arrive(peer, request.slot, request.sequence, &request.prefix, value);
        request
    }

    /// A request of another model: its slot.
    pub fn ask_bad(&self, peer: &mut Peer, id: u64) -> u32 {
        let mut request = peer.client.ask(id, 0, 0, u64::MAX).unwrap();
        request.prefix[16] ^= 2;
        self.arrive(peer, request.slot, request.sequence, &request.prefix, 3.0);
        request.slot
    }

    fn arrive(&self, peer: &mut Peer, slot: u32, sequence: u32, prefix: &[u8; PREFIX_BYTES], value: f32) {
        let (geometry, slots) = (geometry(), &self.served.core.slots);
        let at = slot as usize * geometry.server_stride();
        slots.write(at, prefix).unwrap();
        slots
            .write(at + geometry.request.entries()[0].offset as usize, &value.to_le_bytes().repeat(FLOATS))
            .unwrap();
        match self.served.arrival {
            Arrival::Flag => self.served.core.flags.put(slot as usize * 8, &Word(flag(sequence))).unwrap(),
            Arrival::Tail => slots.put(at + geometry.request.tail, &Word(flag(sequence))).unwrap(),
            Arrival::Completion => peer.receive(slot),
        }
    }
}

#[repr(transparent)]
struct Word(u64);
// SAFETY: a number.
unsafe impl Plain for Word {}

impl Peer {
    pub fn word(&self, at: usize) -> u64 {
        self.memory.get::<Word>(at).unwrap().0
    }

    /// A CQE: 4 bytes at an offset, then its tail, the owner byte last.
    fn cqe(&self, ring: usize, nth: u32, opcode: u8, imm: u32, tail: [u8; 6]) {
        let at = ring + 64 * (nth % ENTRIES) as usize;
        self.memory.write(at, &[0; 56]).unwrap();
        self.memory.write(at + 36, &imm.to_be_bytes()).unwrap();
        let owner = (opcode << 4) | u8::from(nth / ENTRIES % 2 == 1);
        let mut whole = [0; 8];
        whole[..6].copy_from_slice(&tail);
        whole[7] = owner;
        self.memory.put(at + 56, &Word(u64::from_le_bytes(whole))).unwrap();
    }

    /// Whether the NIC has a receive for the next WRITE with immediate data.
    fn has_receive(&self) -> bool {
        let posted = u32::from_be(self.word(RECORD) as u32) as u16;
        posted != self.received as u16
    }

    fn receive(&mut self, slot: u32) {
        let mut tail = [0; 6];
        tail[..4].copy_from_slice(&(QPN + self.index).to_be_bytes());
        tail[4..].copy_from_slice(&(self.received as u16).to_be_bytes());
        self.cqe(RECEIVE_CQ, self.received, 1, slot, tail);
        self.received += 1;
    }

    /// The NIC executes what it was told of; `opcode`: of the CQEs.
    pub fn execute(&mut self, opcode: u8) {
        let told = u32::from_be((self.word(RECORD) >> 32) as u32);
        while self.done & 0xffff != told {
            let at = RING + 64 * (self.done % ENTRIES) as usize;
            let be = |offset: usize, bytes: usize| {
                let mut all = vec![0; bytes];
                self.memory.read(at + offset, &mut all).unwrap();
                all.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
            };
            let (remote, length, local) = (be(16, 8), be(32, 4), be(40, 8));
            let base = self.memory.kernel_address();
            // A WQE that was not there yet: a NIC would fail it.
            if remote < base || local == 0 {
                self.done += 1;
                continue;
            }
            let mut payload = vec![0_u8; length as usize];
            // The slots are host memory of the twin's.
            for (byte, from) in payload.iter_mut().zip(local..) {
                // SAFETY: the address lies in the pipeline's slots, which live, and which no kernel writes meanwhile.
                *byte = unsafe { std::ptr::with_exposed_provenance::<u8>(from as usize).read_volatile() };
            }
            self.memory.write((remote - base) as usize, &payload).unwrap();
            if be(11, 1) & 8 != 0 {
                let mut tail = [0; 6];
                tail[..4].copy_from_slice(&(8 << 24 | (QPN + self.index)).to_be_bytes());
                tail[4..].copy_from_slice(&(self.done as u16).to_be_bytes());
                self.cqe(CQ, self.completed, opcode, 0, tail);
                self.completed += 1;
            }
            self.done += 1;
        }
    }

    /// The answer of a slot: its status, and the value if all of it is the same.
    pub fn answer(&mut self, slot: u32) -> Result<(Status, Option<f32>), slots::client::AnswerError> {
        let geometry = geometry();
        let at = ANSWERS + (slot - self.first) as usize * geometry.client_stride();
        let mut prefix = [0; PREFIX_BYTES];
        self.memory.read(at, &mut prefix).unwrap();
        let mut values = vec![0; 4 * FLOATS];
        self.memory.read(at + geometry.answer.entries()[0].offset as usize, &mut values).unwrap();
        let first = f32::from_le_bytes(values[..4].try_into().unwrap());
        let same = values.chunks_exact(4).all(|bytes| bytes == &values[..4]);
        let answer = self.client.answered(slot, &prefix)?;
        Ok((answer.status, same.then_some(first)))
    }
}

const ARRIVALS: [Arrival; 3] = [Arrival::Flag, Arrival::Tail, Arrival::Completion];

pub fn has_compiler() -> Result<(), String> {
    PLANTED.find("layout+none").map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn requests_are_answered_by_every_way_of_arrival_and_under_every_seed() {
    need!(has_compiler(), cc, "a C++ compiler");
    for (arrival, seed) in
        ARRIVALS.iter().flat_map(|way| [None, Some(1), Some(2), Some(3)].map(|seed| (*way, seed)))
    {
        let rig = Rig::of(arrival, seed, None, seed.is_some_and(|seed| seed < 3));
        let mut peers = [rig.join(0, 0, 4), rig.join(1, 4, 2)];
        for round in 0..3_u64 {
            let mut asked = Vec::new();
            for (nth, peer) in peers.iter_mut().enumerate() {
                for id in 0..u64::from(peer.count) {
                    let value = (round * 100 + id * 10) as f32 + nth as f32;
                    asked.push((nth, rig.ask(peer, round * 10 + id, value).slot, value));
                }
            }
            for _ in &asked {
                assert_eq!(rig.turn().1, State::Request, "{arrival:?} {seed:?}");
            }
            for (nth, slot, value) in asked {
                peers[nth].execute(0);
                if arrival == Arrival::Flag {
                    let nth_flag = FLAGS + 8 * (slot - peers[nth].first) as usize;
                    assert_eq!(peers[nth].word(nth_flag), flag(round as u32 + 1));
                }
                let answer = peers[nth].answer(slot).unwrap();
                assert_eq!(answer, (Status::Ok, Some(value + 1.0)), "{arrival:?} {seed:?} slot {slot}");
            }
        }
        rig.idle();
        let counters = rig.served.counters();
        assert_eq!(
            (counters.answered, counters.refused, counters.sent),
            (18, 0, 18),
            "{arrival:?} {counters:?}"
        );
    }
}

/// The next request of a slot comes before the NIC has read the answer of the one before.
fn read_late(planted: Option<(usize, &'static str)>) -> Option<f32> {
    let rig = Rig::new(Arrival::Flag, Some(5), planted);
    let mut peer = rig.join(0, 0, 1);
    let request = rig.ask(&mut peer, 1, 7.0);
    assert_eq!(rig.turn().1, State::Request);
    let next = Header { sequence: 2, request_id: 2, ..Header::read(&request.prefix).unwrap() };
    rig.arrive(&mut peer, 0, 2, &geometry().request.prefix(&next), 70.0);
    let second = rig.turn().1;
    peer.execute(0);
    let answer = peer.answer(0).ok().and_then(|(_, value)| value);
    if planted.is_none() {
        assert_eq!(second, State::None, "the answer before is still read");
        let after = rig.turn();
        assert_eq!((after.1, after.0.sequence), (State::Request, 2));
    }
    answer
}

#[test]
fn an_answer_stays_until_the_nic_has_read_it() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(read_late(None), Some(8.0));
    assert_ne!(read_late(Some((0, "wait_inputs+DB_DEFECT_NO_SENDING"))), Some(8.0), "the defect is not seen");
}

fn status_of(byte: usize, planted: Option<(usize, &'static str)>) -> Option<Status> {
    let rig = Rig::new(Arrival::Flag, None, planted);
    let mut peer = rig.join(0, 0, 2);
    let mut request = peer.client.ask(1, 0, 0, u64::MAX).unwrap();
    request.prefix[byte] ^= 2;
    rig.arrive(&mut peer, 0, 1, &request.prefix, 3.0);
    let (turn, state) = rig.turn();
    assert_eq!(state, State::Request);
    peer.execute(0);
    // Of a refused request nothing but the prefix is sent.
    let tensor = ANSWERS + geometry().answer.entries()[0].offset as usize;
    assert_eq!(peer.word(tensor) == 0, turn.status != 1);
    // The sequence goes on behind a bad request.
    let next = Header {
        sequence: 2,
        request_id: 9,
        ..Header::read(&peer.client.ask(9, 0, 0, 9).unwrap().prefix).unwrap()
    };
    let prefix = geometry().request.prefix(&Header { slot: 0, ..next });
    rig.arrive(&mut peer, 0, 2, &prefix, 3.0);
    assert_eq!((rig.turn().0.status, rig.served.counters().answered), (1, 2));
    Status::of(turn.status as u16)
}

#[test]
fn a_bad_request_is_answered_with_its_status_and_nothing_else_of_the_slot() {
    need!(has_compiler(), cc, "a C++ compiler");
    for (byte, status) in [
        (0, Status::BadHeader),
        (4, Status::BadHeader),
        (6, Status::BadHeader),
        (16, Status::BadModel),
        (20, Status::BadSequence),
        (56, Status::BadTensors),
        (60, Status::BadSequence),
        (Header::BYTES, Status::BadTensors),
        (PREFIX_BYTES - 1, Status::BadTensors),
    ] {
        assert_eq!(status_of(byte, None), Some(status), "byte {byte}");
    }
    let planted = Some((0, "wait_inputs+DB_DEFECT_NO_TABLE"));
    assert_eq!(status_of(Header::BYTES, planted), Some(Status::Ok), "the defect is not seen");
}

fn strays(planted: Option<(usize, &'static str)>) -> (State, u64) {
    let rig = Rig::new(Arrival::Completion, Some(1), planted);
    let (mut peer, _other) = (rig.join(0, 0, 2), rig.join(1, 2, 2));
    for slot in [2, 6, u32::MAX] {
        peer.receive(slot);
    }
    (rig.turn().1, rig.served.counters().strays)
}

#[test]
fn a_completion_that_names_another_clients_slot_counts_and_changes_nothing() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(strays(None), (State::None, 3));
    let planted = strays(Some((0, "wait_inputs+DB_DEFECT_ANY_SLOT")));
    assert_eq!(planted.0, State::Request, "the defect is not seen");
}

#[test]
fn a_queue_that_fails_is_given_up_and_others_go_on() {
    need!(has_compiler(), cc, "a C++ compiler");
    let rig = Rig::new(Arrival::Flag, Some(2), None);
    let mut peers = [rig.join(0, 0, 2), rig.join(1, 2, 2)];
    rig.ask(&mut peers[0], 1, 1.0);
    assert_eq!(rig.turn().1, State::Request);
    // An error CQE of a requester.
    peers[0].execute(13);
    rig.ask(&mut peers[1], 1, 2.0);
    assert_eq!(rig.turn().0.slot, 2);
    rig.idle();
    rig.ask(&mut peers[0], 2, 1.0);
    rig.idle();
    let failure = rig.served.failure(0).unwrap().unwrap();
    assert_eq!((failure.qpn, rig.served.failure(1).unwrap()), (QPN, None));
    peers[1].execute(0);
    assert_eq!(peers[1].answer(2).unwrap(), (Status::Ok, Some(3.0)));
    // It leaves, and another one takes its place and slots: a request of before is none of its.
    rig.served.want(0);
    rig.idle();
    assert!(rig.served.is_done(0));
    let mut peer = rig.join(0, 0, 2);
    rig.idle();
    rig.ask(&mut peer, 1, 5.0);
    assert_eq!(rig.turn().0.slot, 0);
    peer.execute(0);
    assert_eq!(peer.answer(0).unwrap(), (Status::Ok, Some(6.0)));
}

fn order(planted: Option<(usize, &'static str)>) -> Vec<u32> {
    let rig = Rig::new(Arrival::Flag, None, planted);
    let mut peer = rig.join(0, 0, 6);
    for id in 0..2 {
        rig.ask(&mut peer, id, 0.0);
    }
    let mut order: Vec<u32> = (0..2).map(|_| rig.turn().0.slot).collect();
    peer.execute(0);
    rig.idle();
    peer.answer(0).unwrap();
    for id in 10..15 {
        rig.ask(&mut peer, id, 0.0);
    }
    order.extend((0..5).map(|_| rig.turn().0.slot));
    order
}

#[test]
fn slots_have_their_turn() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(order(None), [0, 1, 2, 3, 4, 5, 0]);
    let planted = order(Some((0, "wait_inputs+DB_DEFECT_FROM_SLOT_0")));
    assert_eq!(planted, [0, 1, 0, 2, 3, 4, 5], "the defect is not seen");
}

fn old_flag(planted: Option<(usize, &'static str)>) -> State {
    let rig = Rig::new(Arrival::Flag, None, planted);
    let _peer = rig.join(0, 0, 2);
    rig.served.core.flags.put(0, &Word(flag(2))).unwrap();
    rig.turn().1
}

#[test]
fn a_flag_of_another_request_is_none() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(old_flag(None), State::None);
    assert_eq!(
        old_flag(Some((0, "wait_inputs+DB_DEFECT_ANY_FLAG"))),
        State::Request,
        "the defect is not seen"
    );
}

/// Whether an answer's prefix was sent as it is, under one seed.
fn is_whole(seed: u64, planted: Option<(usize, &'static str)>) -> bool {
    let rig = Rig::new(Arrival::Flag, Some(seed), planted);
    let mut peer = rig.join(0, 0, 1);
    rig.ask(&mut peer, 1, 1.0);
    for step in 0..3 {
        rig.steps.run(step, rig.served.core.wait, Arc::clone(&rig.served.core)).unwrap();
    }
    std::thread::scope(|scope| {
        let peer = &mut peer;
        let nic = scope.spawn(move || {
            let since = Instant::now();
            while peer.word(RECORD) >> 32 == 0 && since.elapsed() < Duration::from_secs(20) {
                std::hint::spin_loop();
            }
            peer.execute(0);
        });
        rig.steps.run(3, rig.served.core.wait, Arc::clone(&rig.served.core)).unwrap();
        nic.join().unwrap();
    });
    peer.answer(0).is_ok()
}

#[test]
fn an_answer_is_whole_before_the_nic_is_told_of_it() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert!((1..9).all(|seed| is_whole(seed, None)));
    // The ringer has not met the threads that wrote the prefix. Mostly one of the first seeds shows it.
    let planted = Some((3, "send_outputs+DB_DEFECT_NO_SEND_SYNC"));
    assert!(!(1..1000).all(|seed| is_whole(seed, planted)), "the defect is not seen");
}

#[test]
fn a_pipeline_that_cannot_be_is_refused() {
    let machine = Machine::twin(Visibility::InOrder);
    let geometry = geometry();
    let good = Setting {
        geometry: &geometry,
        slots: 1,
        clients: 1,
        arrival: Arrival::Flag,
        place: Place::Gpu,
        inputs: &[64],
        outputs: &[64],
        wait: Duration::ZERO,
        threads: 1,
        copying: [1, 1],
    };
    for bad in
        [Setting { slots: 0, ..good }, Setting { inputs: &[], ..good }, Setting { outputs: &[65], ..good }]
    {
        assert!(matches!(Served::new(&machine, bad), Err(ServedError::Refused(_))));
    }
    let served = Served::new(&machine, good).unwrap();
    let error = served.wait_done(0, Duration::ZERO);
    assert!(error.is_ok() && served.is_done(0) && !served.is_running().unwrap());
}

#[test]
fn every_kernel_compiles_and_links_for_every_architecture() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    compile_everywhere(toolkit, &units());
}
