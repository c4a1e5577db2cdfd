//! For the same requests a GPU leaves the bytes of the host's shim in ring, record and register (INV-5):
//! every operation, inline or not, any number of pieces, by a thread and by a warp, and receives. No NIC.

use std::time::Duration;

use gpu::cache::Cache;
use gpu::{
    Arguments, Context, Form, Gpu, ImageBuilder, Module, PinnedMemory, Priority, Shape, Stream, Toolkit,
};
use measure::need;
use rdma_shim::device::unit;
use rdma_shim::sys::*;

use crate::seeded::Seeded;

/// A launch and its wait take microseconds.
const LIMIT: Duration = Duration::from_secs(5);
/// Lists that are posted: each a launch.
const ROUNDS: u64 = 600;
const BLOCKS: u32 = 64;
const WQES: u32 = 16;
const STRIDE: u32 = 64;
const MAX_SGES: u32 = 4;
const MAX_INLINE: u32 = 300;
/// Bytes of a register's half.
const HALF: u32 = 256;
const INLINE: u32 = 8;
const READ: u32 = 4;
const ATOMIC: u32 = 5;

/// Where an arena's parts lie: structs, results, records, registers, rings, slots, what requests point to.
const SQ: usize = 0;
const RQ: usize = 128;
const RESULT: usize = 192;
const RECORD: usize = 256;
const REGISTER: usize = 512;
const RING: usize = 1024;
const RECEIVES: usize = RING + BLOCKS as usize * 64;
const SLOTS: usize = RECEIVES + (WQES * STRIDE) as usize;
const WR_IDS: usize = SLOTS + BLOCKS as usize * 16;
const REQUESTS: usize = WR_IDS + WQES as usize * 8;
const PIECES: usize = REQUESTS + 8 * 128;
const PAYLOAD: usize = PIECES + 8 * MAX_SGES as usize * 16;
const BYTES: usize = PAYLOAD + 4096;
/// What is compared: record to wr_ids.
const COMPARED: std::ops::Range<usize> = RECORD..REQUESTS;

/// One of two equal queues: its structs and all they name, in one memory that host and GPU address alike.
struct Arena(PinnedMemory);

impl Arena {
    fn new(context: &Context, seed: u64) -> Arena {
        let memory = PinnedMemory::new(context, BYTES).unwrap();
        assert_eq!(memory.device_address(), memory.address().as_ptr().addr() as u64, "one address for both");
        let mut seeded = Seeded(seed);
        let garbage: Vec<u8> = (0..BYTES).map(|_| seeded.below(256) as u8).collect();
        memory.write(0, &garbage).unwrap();
        memory.write(RECORD, &[0; REGISTER + 512 - RECORD]).unwrap();
        Arena(memory)
    }

    fn at(&self, offset: usize) -> u64 {
        self.0.device_address() + offset as u64
    }

    fn pointer<T>(&self, offset: usize) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.0.address().as_ptr().expose_provenance() + offset)
    }

    /// Lays the queues' structs there, checked and empty.
    fn init(&self, order: u32, doorbell: u32) {
        let sq = db_sq {
            ring: self.at(RING),
            record: self.at(RECORD) + 4,
            reg: self.at(REGISTER),
            slots: self.at(SLOTS),
            blocks: BLOCKS,
            qpn: 0x00_1234,
            half_bytes: HALF,
            max_sge: MAX_SGES,
            max_inline: MAX_INLINE,
            opcodes: 0x7f,
            order,
            doorbell,
            ..db_sq::default()
        };
        let rq = db_rq {
            ring: self.at(RECEIVES),
            record: self.at(RECORD),
            wr_ids: self.at(WR_IDS),
            wqes: WQES,
            stride: STRIDE,
            qpn: 0x00_1234,
            max_sge: MAX_SGES,
            ..db_rq::default()
        };
        // SAFETY: aligned places of the arena, which no kernel uses now.
        unsafe { self.pointer::<db_sq>(SQ).write(sq) };
        // SAFETY: as above.
        unsafe { self.pointer::<db_rq>(RQ).write(rq) };
        // SAFETY: as above; the struct was written.
        assert_eq!(unsafe { db_c_sq_init(self.pointer(SQ), 64) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { db_c_rq_init(self.pointer(RQ)) }, 0);
    }

    /// As if everything had completed.
    fn retire(&self) {
        // SAFETY: the struct was written, and no kernel uses it now.
        let sq = unsafe { &mut *self.pointer::<db_sq>(SQ) };
        // SAFETY: as above.
        let rq = unsafe { &mut *self.pointer::<db_rq>(RQ) };
        (sq.consumer, rq.consumer) = (sq.producer, rq.producer);
    }

    fn compared(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.0.read(0, &mut bytes).unwrap();
        bytes[COMPARED].to_vec()
    }

    /// The pieces of request number `request`: somewhere, or in the payload where they are to be inline.
    fn pieces(
        &self,
        seeded: &mut Seeded,
        request: usize,
        operation: u32,
        inline: bool,
    ) -> (*const db_sge, u32) {
        let count = if operation >= ATOMIC { 1 } else { seeded.below(u64::from(MAX_SGES) + 1) as u32 };
        let mut left = seeded.below(u64::from(MAX_INLINE) + 1);
        let place = self.pointer::<db_sge>(PIECES + 16 * MAX_SGES as usize * request);
        for piece in 0..count {
            let sge = match (operation >= ATOMIC, inline) {
                (true, _) => db_sge { addr: seeded.below(u64::MAX), length: 8, lkey: 3 },
                (_, true) => {
                    let length = seeded.below(left + 1);
                    left -= length;
                    let from = PAYLOAD as u64 + seeded.below(2048);
                    db_sge { addr: self.at(0) + from, length: length as u32, lkey: 0 }
                }
                _ => {
                    // From 2 GiB on it would be refused: its top bit is the flag of inline data.
                    let length = if seeded.once_in(5) { 0 } else { seeded.below(1 << 31) as u32 };
                    db_sge { addr: seeded.below(u64::MAX), length, lkey: seeded.below(1 << 32) as u32 }
                }
            };
            // SAFETY: an aligned place of the arena.
            unsafe { place.wrapping_add(piece as usize).write(sge) };
        }
        (place, count)
    }

    /// A list of requests of any kind.
    fn requests(&self, seeded: &mut Seeded) -> (*const db_send_wr, u32) {
        let place = self.pointer::<db_send_wr>(REQUESTS);
        let count = 1 + seeded.below(5) as usize;
        for request in 0..count {
            let opcode = seeded.below(7) as u32;
            let inline = opcode < READ && seeded.once_in(2);
            let (sg_list, num_sge) = self.pieces(seeded, request, opcode, inline);
            let wr = db_send_wr {
                wr_id: seeded.below(u64::MAX),
                sg_list,
                num_sge,
                opcode,
                send_flags: seeded.below(8) as u32 | if inline { INLINE } else { 0 },
                imm_data: seeded.below(1 << 32) as u32,
                remote_addr: seeded.below(u64::MAX),
                compare_add: seeded.below(u64::MAX),
                swap: seeded.below(u64::MAX),
                rkey: seeded.below(1 << 32) as u32,
            };
            // SAFETY: an aligned place of the arena.
            unsafe { place.wrapping_add(request).write(wr) };
        }
        (place, count as u32)
    }

    /// A list of receives.
    fn receives(&self, seeded: &mut Seeded) -> (*const db_recv_wr, u32) {
        let place = self.pointer::<db_recv_wr>(REQUESTS);
        let count = 1 + seeded.below(5) as usize;
        for request in 0..count {
            let (sg_list, num_sge) = self.pieces(seeded, request, 0, false);
            let wr = db_recv_wr { wr_id: seeded.below(u64::MAX), sg_list, num_sge };
            // SAFETY: an aligned place of the arena.
            unsafe { place.wrapping_add(request).write(wr) };
        }
        (place, count as u32)
    }
}

/// A GPU with the kernels that post lists.
struct Bench {
    context: Context,
    stream: Stream,
    module: Module,
}

impl Bench {
    fn new() -> Result<Bench, String> {
        let gpu = Gpu::first().map_err(|error| error.to_string())?;
        let toolkit = Toolkit::find(None).map_err(|error| error.to_string())?;
        let context = Context::new(gpu).map_err(|error| error.to_string())?;
        let source = unit("post.cu", include_str!("../kernels/post.cu"))
            .header("post.h", include_str!("../kernels/post.h"));
        let image =
            ImageBuilder::new(toolkit, Cache::off()).image(&[source], gpu.arch().unwrap(), Form::Cubin);
        let module = Module::load(&context, &image.unwrap()).unwrap();
        Ok(Bench { stream: Stream::new(&context, Priority::Least).unwrap(), module, context })
    }

    /// Has a kernel post a list to the queue at `queue`: what it says.
    fn post<R>(
        &self,
        (kernel, lanes): (&str, u32),
        arena: &Arena,
        queue: usize,
        list: *const R,
        count: u32,
    ) -> u32 {
        let arguments = Arguments::new()
            .u64(arena.at(queue))
            .u64(list.expose_provenance() as u64)
            .u32(count)
            .u64(arena.at(RESULT))
            .u64(arena.at(RESULT + 4));
        let shape = Shape { grid: [1; 3], block: [lanes, 1, 1], shared_bytes: 0 };
        let function = self.module.function(kernel).unwrap();
        // SAFETY: the kernel takes these, all of which lie in arenas that outlive the wait.
        unsafe { self.stream.launch(&function, shape, &arguments) }.unwrap();
        self.stream.wait(kernel, LIMIT).unwrap();
        arena.0.words()[RESULT / 4].load(std::sync::atomic::Ordering::Acquire)
    }
}

#[test]
fn gpu_shim_leaves_the_bytes_of_the_hosts() {
    let bench = need!(Bench::new(), gpu, "one CUDA device and a toolkit");
    for (order, doorbell) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let seed = 0x5eed_0010 + u64::from(order * 2 + doorbell);
        let (gpu, host) = (Arena::new(&bench.context, seed), Arena::new(&bench.context, seed));
        let mut seeded = Seeded(seed);
        let mut posted = [0; 3];
        gpu.init(order, doorbell);
        host.init(order, doorbell);
        for round in 0..ROUNDS {
            let what = format!("order {order}, doorbell {doorbell}, round {round}, seed {seed:#x}");
            let mut bad = 0;
            let by = seeded.below(3) as usize;
            // The requests lie in the GPU's arena, for both.
            let codes = if by == 2 {
                let (list, count) = gpu.receives(&mut seeded);
                // SAFETY: queue and list lie in arenas; the GPU is idle.
                let code = unsafe { db_c_post_recv(host.pointer(RQ), list, count, &raw mut bad) };
                (code, bench.post(("post_receives", 1), &gpu, RQ, list, count))
            } else {
                let (list, count) = gpu.requests(&mut seeded);
                // SAFETY: as above.
                let code = unsafe { db_c_post(host.pointer(SQ), list, count, &raw mut bad) };
                (code, bench.post([("post_list", 1), ("post_warp_list", 32)][by], &gpu, SQ, list, count))
            };
            assert_eq!(codes, (0, 0), "{what}");
            posted[by] += 1;
            let (by_gpu, by_host) = (gpu.compared(), host.compared());
            if let Some(at) = (0..by_gpu.len()).find(|&at| by_gpu[at] != by_host[at]) {
                let (block, byte) = ((at + RECORD).wrapping_sub(RING) / 64, (at + RECORD) % 64);
                panic!("block {block}, byte {byte}: GPU {:#x}, host {:#x}; {what}", by_gpu[at], by_host[at]);
            }
            gpu.retire();
            host.retire();
        }
        // SAFETY: the struct was written, and no kernel uses it now.
        let producer = unsafe { &*gpu.pointer::<db_sq>(SQ) }.producer;
        assert!(producer > 10 * u64::from(BLOCKS) && posted.iter().all(|&lists| lists > 50), "{posted:?}");
    }
}
