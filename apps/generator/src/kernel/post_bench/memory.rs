//! A benchmark's memory: rings at both places, records, registers, slots, queue structs, kernels' reports.

#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use gpu::{Context, DeviceMemory, PinnedMemory, Staging, Stream};

use super::case::{ALL_BLOCKS, Case, MOST_BLOCKS, MOST_PRODUCERS, Place, STEADY_CQES};
use super::content::{BLOCK, QPN};
use super::nic::Device;
use rdma_shim::kernel::Plain;
use rdma_shim::sys::{db_cq, db_slot, db_sq};

/// `DB_BENCH_SQ_BYTES`, `DB_BENCH_PEER_BYTES`, `DB_BENCH_SHARED_BYTES`.
pub const SQ_BYTES: u32 = 128;
pub const PEER_BYTES: u32 = 1024;
pub const SHARED_BYTES: u32 = 2048;
/// `struct db_bench_time`.
const TIME_BYTES: usize = 24;
/// `struct db_peer_queue`.
const PEER_QUEUE_BYTES: usize = 64;
/// Of a queue: its record at the beginning, its register further on, on lines of their own.
const PAGE_BYTES: u64 = 512;
const REGISTER_AT: u64 = 256;
/// A record's word for sends.
const SEND_WORD: u64 = 4;
/// A copy of 16 MiB takes less than a millisecond.
const COPY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Memory {
    rings: PinnedMemory,
    gpu_rings: DeviceMemory,
    pages: PinnedMemory,
    slots: DeviceMemory,
    cqes: DeviceMemory,
    /// The CQ of a queue that a played NIC serves.
    host_cqes: PinnedMemory,
    /// The shim's struct of that.
    pub cq: DeviceMemory,
    marks: DeviceMemory,
    /// Structs of the shim's exclusive queues.
    pub queues: DeviceMemory,
    pub shared: DeviceMemory,
    /// What the peer's structs are made of.
    pub peer_queues: DeviceMemory,
    pub peers: DeviceMemory,
    /// What each producer says.
    pub times: PinnedMemory,
    between: PinnedMemory,
}

/// What a producer said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    /// Global timer before the first post.
    pub start_ns: u64,
    /// And after the last doorbell.
    pub end_ns: u64,
    /// What its posts returned.
    pub error: u32,
}

impl Memory {
    /// All of it, some 40 MiB.
    pub fn new(context: &Context) -> gpu::Result<Memory> {
        let rings = ALL_BLOCKS as usize * BLOCK;
        let most = MOST_PRODUCERS as usize;
        Ok(Memory {
            rings: PinnedMemory::new(context, rings)?,
            gpu_rings: DeviceMemory::new(context, rings)?,
            // One more for the shared queue's CQ.
            pages: PinnedMemory::new(context, (most + 1) * PAGE_BYTES as usize)?,
            slots: DeviceMemory::new(context, ALL_BLOCKS as usize * size_of::<db_slot>())?,
            cqes: DeviceMemory::new(context, MOST_BLOCKS as usize * BLOCK)?,
            host_cqes: PinnedMemory::new(context, STEADY_CQES as usize * BLOCK)?,
            cq: DeviceMemory::new(context, size_of::<db_cq>())?,
            marks: DeviceMemory::new(context, MOST_BLOCKS as usize * size_of::<u32>())?,
            queues: DeviceMemory::new(context, most * SQ_BYTES as usize)?,
            shared: DeviceMemory::new(context, SHARED_BYTES as usize)?,
            peer_queues: DeviceMemory::new(context, most * PEER_QUEUE_BYTES)?,
            peers: DeviceMemory::new(context, most * PEER_BYTES as usize)?,
            times: PinnedMemory::new(context, most * TIME_BYTES)?,
            between: PinnedMemory::new(context, 1 << 20)?,
        })
    }

    fn way<'a>(&'a self, stream: &'a Stream) -> Staging<'a> {
        Staging { stream, between: &self.between, limit: COPY }
    }

    /// The shim's queue number `queue` of a case.
    fn queue(&self, case: &Case, queue: u32) -> db_sq {
        let rings = match case.place {
            Place::Host => self.rings.device_address(),
            Place::Gpu => self.gpu_rings.address(),
        };
        let first = u64::from(queue) * u64::from(case.blocks());
        let page = self.pages.device_address() + u64::from(queue) * PAGE_BYTES;
        let start = case.start();
        db_sq {
            ring: rings + first * BLOCK as u64,
            record: page + SEND_WORD,
            reg: page + REGISTER_AT,
            slots: self.slots.address() + first * size_of::<db_slot>() as u64,
            blocks: case.blocks(),
            qpn: QPN + queue,
            max_sge: 1,
            opcodes: 0x7f,
            order: case.order() as u32,
            producer: start,
            rung: start,
            consumer: start,
            ..db_sq::default()
        }
    }

    /// The CQ of a case's one queue: the played NIC's, or an empty one, since no poster waits for room.
    pub fn one_cq(&self, case: &Case) -> db_cq {
        let record = self.pages.device_address() + u64::from(MOST_PRODUCERS) * PAGE_BYTES;
        let (ring, entries) = match case.is_steady() {
            true => (self.host_cqes.device_address(), STEADY_CQES),
            false => (self.cqes.address(), MOST_BLOCKS),
        };
        db_cq { ring, record, entries, cqn: 1, consumer: 0 }
    }

    /// What a played NIC sees of a steady case's queue.
    pub fn device(&self, case: &Case) -> Device<'_> {
        let record = MOST_PRODUCERS as usize * PAGE_BYTES as usize;
        Device {
            ring: &self.rings.long_words()[..case.blocks() as usize * BLOCK / 8],
            cq: self.host_cqes.long_words(),
            register: &self.pages.long_words()[REGISTER_AT as usize / 8],
            consumer: &self.pages.words()[record / 4],
        }
    }

    pub fn marks(&self) -> u64 {
        self.marks.address()
    }

    /// Empties what a case uses and lays its queues' structs out.
    pub fn prepare(&self, case: &Case, stream: &Stream) -> gpu::Result<()> {
        let words = (case.queues() * case.blocks()) as usize * BLOCK / 8;
        match case.place {
            Place::Host => {
                self.rings.long_words()[..words].iter().for_each(|word| word.store(0, Ordering::Relaxed));
            }
            Place::Gpu => self.gpu_rings.fill(0, stream)?,
        }
        self.pages.long_words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.times.long_words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.marks.fill(0, stream)?;
        // Opcode 15 and no owner: a CQE that was never written.
        self.cqes.fill(0xff, stream)?;
        self.host_cqes.long_words().iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        self.cq.write(0, self.one_cq(case).bytes(), self.way(stream))?;
        let (mut ours, mut peers) = (Vec::new(), Vec::new());
        for number in 0..case.queues() {
            let queue = self.queue(case, number);
            ours.extend(queue.bytes());
            ours.resize((number + 1) as usize * SQ_BYTES as usize, 0);
            // Where nothing completes all may share a CQ.
            let cq = self.one_cq(case);
            let entries = if case.is_steady() { cq.entries } else { queue.blocks };
            let words = [queue.ring, queue.record, queue.reg, cq.ring, cq.record, queue.producer];
            peers.extend(words.into_iter().flat_map(u64::to_ne_bytes));
            peers.extend([queue.blocks, queue.qpn, entries, 0].into_iter().flat_map(u32::to_ne_bytes));
        }
        self.queues.write(0, &ours, self.way(stream))?;
        self.peer_queues.write(0, &peers, self.way(stream))
    }

    /// What lies in a case's rings.
    pub fn rings(&self, case: &Case, stream: &Stream) -> gpu::Result<Vec<u8>> {
        let bytes = (case.queues() * case.blocks()) as usize * BLOCK;
        if case.place == Place::Gpu {
            let mut rings = vec![0; bytes];
            self.gpu_rings.read(0, &mut rings, self.way(stream))?;
            return Ok(rings);
        }
        let words = self.rings.long_words()[..bytes / 8].iter();
        Ok(words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect())
    }

    /// Record and register of a queue, as in memory.
    pub fn doorbell(&self, queue: u32) -> ([u8; 4], [u8; 8]) {
        let word = |at: u64| {
            let index = (u64::from(queue) * PAGE_BYTES + at) / 4;
            self.pages.words()[index as usize].load(Ordering::Acquire).to_ne_bytes()
        };
        let mut register = [0; 8];
        register[..4].copy_from_slice(&word(REGISTER_AT));
        register[4..].copy_from_slice(&word(REGISTER_AT + 4));
        (word(SEND_WORD), register)
    }

    pub fn times(&self, producers: u32) -> Vec<Time> {
        let words = self.times.long_words();
        let time = |at: usize| Time {
            start_ns: words[3 * at].load(Ordering::Acquire),
            end_ns: words[3 * at + 1].load(Ordering::Acquire),
            error: words[3 * at + 2].load(Ordering::Acquire) as u32,
        };
        (0..producers as usize).map(time).collect()
    }
}
