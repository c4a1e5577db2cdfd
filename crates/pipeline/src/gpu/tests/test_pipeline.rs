//! A pipeline on the host twin, and clients whose NIC the test plays.

use super::*;

pub const FLOATS: usize = 37;
const ENTRIES: u32 = 64;
pub const QPN: u32 = 0x49;
/// Where the parts of a played queue lie.
const RING: usize = 0;
const CQ: usize = 4096;
const RECEIVES: usize = 8192;
const RECEIVE_CQ: usize = 12288;
const SLOTS: usize = 16384;
pub const RECORD: usize = 20480;
const STRUCTS: usize = 24576;
pub const ANSWERS: usize = 28672;
pub const FLAGS: usize = 61440;
const SQ_AT: usize = 0;
const RQ_AT: usize = 256;
const CQ_AT: usize = 512;
const RECEIVE_CQ_AT: usize = 768;
const REGISTER_AT: usize = 1024;

pub fn geometry() -> Geometry {
    let tensor = Tensor { kind: TensorKind::F32, count: FLOATS };
    Geometry::new(5, &[tensor], &[tensor]).unwrap()
}

/// A pipeline, a model that adds 1, and its kernels.
pub struct TestPipeline {
    pub served: Served,
    pub steps: launch::Steps,
    /// Of the model, unless it works in the slots.
    model: Option<HostMemory>,
}

/// A client, its queue, and the NIC beneath that queue.
pub struct Peer {
    index: u32,
    pub first: u32,
    pub count: u32,
    pub memory: Memory,
    pub client: slots::Client,
    /// WQEs that the NIC has executed, CQEs that it wrote, WRITEs that it took a receive for.
    done: u32,
    completed: u32,
    received: u32,
}

fn add_one(memory: &Memory, from: usize, to: usize) {
    let mut values = vec![0; FLOATS * 4];
    memory.read(from, &mut values).unwrap();
    let add = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap()) + 1.0;
    let more: Vec<u8> = values.chunks_exact(4).flat_map(|bytes| add(bytes).to_le_bytes()).collect();
    memory.write(to, &more).unwrap();
}

impl TestPipeline {
    pub fn new(arrival: Arrival, seed: Option<u64>, planted: Option<(usize, &'static str)>) -> TestPipeline {
        TestPipeline::of(arrival, seed, planted, false)
    }

    pub fn of(
        arrival: Arrival,
        seed: Option<u64>,
        planted: Option<(usize, &'static str)>,
        in_slots: bool,
    ) -> TestPipeline {
        TestPipeline::by(32, arrival, seed, planted, in_slots)
    }

    /// With so many threads that wait: one, a warp, or warps of which all but the first look for outstanding
    /// numbers.
    pub fn by(
        threads: u32,
        arrival: Arrival,
        seed: Option<u64>,
        planted: Option<(usize, &'static str)>,
        in_slots: bool,
    ) -> TestPipeline {
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
            threads,
            copying: [2, 32],
        };
        let mut served = Served::new(&machine, setting).unwrap();
        served.planted =
            planted.map(|(step, name)| (step, Source { twin: &PLANTED, ..launch::SOURCES[step] }, name));
        let steps = served.steps().unwrap();
        TestPipeline { served, steps, model }
    }

    /// The model, in the slot that the turn names or in its own memory.
    pub fn add_one(&self) {
        let core = &self.served.core;
        let Some(own) = &self.model else {
            let geometry = geometry();
            let at = core.turn_now().unwrap().0.model_slot as usize * geometry.server_stride();
            let answer = at + geometry.answer_offset() + geometry.answer.entries()[0].offset as usize;
            return add_one(&core.slots, at + geometry.request.entries()[0].offset as usize, answer);
        };
        add_one(&Memory::from(own.clone()), 0, 4096);
    }

    /// The model in its own memory, as a pipeline takes it.
    pub fn model(&self) -> by_cpu::Model {
        let own = Memory::from(self.model.clone().unwrap());
        by_cpu::Model::Called(Box::new(move || {
            add_one(&own, 0, 4096);
            Ok(())
        }))
    }

    /// One turn: what it served.
    pub fn turn(&self) -> (db_turn, State) {
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
    pub fn idle(&self) {
        assert_eq!(self.turn().1, State::None);
    }

    pub fn join(&self, index: u32, first: u32, count: u32) -> Peer {
        self.join_by(index, first, count, 0)
    }

    pub fn join_by(&self, index: u32, first: u32, count: u32, unreliable: u32) -> Peer {
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

    pub fn arrive(&self, peer: &mut Peer, slot: u32, sequence: u32, prefix: &[u8; PREFIX_BYTES], value: f32) {
        let (geometry, slots) = (geometry(), &self.served.core.slots);
        let at = slot as usize * geometry.server_stride();
        slots.write(at, prefix).unwrap();
        slots
            .write(at + geometry.request.entries()[0].offset as usize, &value.to_le_bytes().repeat(FLOATS))
            .unwrap();
        match self.served.arrival {
            Arrival::Flag => self.served.core.flags.put(slot as usize * 8, &flag(sequence)).unwrap(),
            Arrival::Tail => slots.put(at + geometry.request.tail, &flag(sequence)).unwrap(),
            Arrival::Completion => peer.receive(slot),
            Arrival::Send => panic!("it writes no completion of a SEND"),
        }
    }
}

impl Peer {
    pub fn word(&self, at: usize) -> u64 {
        self.memory.get::<u64>(at).unwrap()
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
        self.memory.put(at + 56, &u64::from_le_bytes(whole)).unwrap();
    }

    /// Whether the NIC has a receive for the next WRITE with immediate data.
    pub fn has_receive(&self) -> bool {
        let posted = u32::from_be(self.word(RECORD) as u32) as u16;
        posted != self.received as u16
    }

    pub fn receive(&mut self, slot: u32) {
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
                // SAFETY: the address lies in the pipeline's slots, which live; no kernel writes them now.
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
