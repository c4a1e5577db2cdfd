//! Kernels of `generator bench-post-gpu` without a GPU: on the host twin they leave what the host's shim
//! writes; the peer's compile with NVRTC where its headers are.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::content::{BLOCK, Expected, LKEY, LOCAL, QPN, REMOTE, RKEY, check};
use super::nic::{Cqes, Device, NicRun, Rules, Signals};
use super::{Case, Floor, GpuBench, PeerHeaders, Place, Poster, Room, Scope, Sharing, put_image};
use crate::kernel::KERNELS;
use gpu::cache::Cache;
use gpu::{Arch, Gpu, ImageBuilder, Toolkit};
use host_twin::{Arguments, Launch, Visibility, run};
use measure::need;
use rdma_shim::Order;
use rdma_shim::sys::{db_cq, db_slot, db_sq};

/// Far above what a busy machine needs.
const DEADLINE: Duration = Duration::from_secs(300);
/// Of each ring: the runs below leave a part of it free.
pub const BLOCKS: u32 = 256;
const PRODUCERS: u32 = 2;
const POSTS: u32 = 64;
const EINVAL: u32 = 22;

/// `struct db_sq`, `DB_BENCH_SQ_BYTES` long.
#[repr(C, align(128))]
#[derive(Clone)]
struct Queue(db_sq);

/// `struct db_bench_run`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Run {
    queues: u64,
    times: u64,
    local: u64,
    remote: u64,
    lkey: u32,
    rkey: u32,
    posts: u32,
    per_ring: u32,
    apart: u64,
    patience_ns: u64,
    cqs: u64,
    signal_every: u32,
    pad: u32,
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u64; 8]);

fn address<T>(memory: &mut [T]) -> u64 {
    memory.as_mut_ptr().expose_provenance() as u64
}

/// Runs a kernel on rings that begin at `start`; the rings, and what record and register say at the end.
fn post(kernel: &str, threads: u32, per_ring: u32, shared: bool, start: u64) -> (Vec<u8>, Vec<(u32, u64)>) {
    let queues = if shared { 1 } else { PRODUCERS };
    let mut rings = vec![Line([0; 8]); (queues * BLOCKS) as usize];
    let mut slots = vec![db_slot::default(); (queues * BLOCKS) as usize];
    let mut pages = vec![Line([0; 8]); 2 * queues as usize];
    let (mut cqes, mut marks) =
        (vec![Line([u64::MAX; 8]); 2 * BLOCKS as usize], vec![0_u128; BLOCKS as usize / 4]);
    let mut times = vec![[0_u64; 3]; PRODUCERS as usize];
    let mut structs: Vec<Queue> = (0..queues as usize)
        .map(|queue| {
            let first = queue * BLOCKS as usize;
            Queue(db_sq {
                ring: address(&mut rings[first..]),
                record: address(&mut pages[2 * queue..]) + 4,
                reg: address(&mut pages[2 * queue + 1..]),
                slots: address(&mut slots[first..]),
                blocks: BLOCKS,
                qpn: QPN + queue as u32,
                max_sge: 1,
                opcodes: 1,
                producer: start,
                rung: start,
                consumer: start,
                ..db_sq::default()
            })
        })
        .collect();
    let mut shared_queue = vec![Line([0; 8]); 32];
    let launch = |blocks, threads| weak(per_ring, blocks, threads);
    let find = |name| KERNELS.find(name).unwrap();
    if shared {
        let mut record = [0_u64; 2];
        // A CQ that the shim refuses, and one of a size that it takes.
        for (entries, refusal) in [(BLOCKS, EINVAL), (2 * BLOCKS, 0)] {
            // `struct db_cq`.
            let cq = [address(&mut cqes), address(&mut record), u64::from(entries) | 1 << 32, 0];
            let mut error = u32::MAX;
            let arguments = Arguments::new()
                .pointer(structs.as_mut_ptr())
                .pointer(shared_queue.as_mut_ptr())
                .push(cq)
                .push(address(&mut marks))
                .push(31_u32)
                .pointer(&raw mut error);
            // SAFETY: as below.
            unsafe { run(find("bench_share"), &launch(1, 1), arguments) }.unwrap();
            assert_eq!(error, refusal, "a CQ of {entries} entries for a ring of {BLOCKS} blocks");
        }
    }
    let given = Run {
        queues: if shared { address(&mut shared_queue) } else { address(&mut structs) },
        times: address(&mut times),
        local: LOCAL,
        remote: REMOTE,
        lkey: LKEY,
        rkey: RKEY,
        posts: POSTS,
        per_ring,
        apart: if shared { 0 } else { size_of::<Queue>() as u64 },
        patience_ns: DEADLINE.as_nanos() as u64 / 2,
        cqs: 0,
        signal_every: 1,
        pad: 0,
    };
    // SAFETY: these are what the kernels take; all they lead to lives here, in memory of the stated sizes.
    unsafe { run(find(kernel), &launch(PRODUCERS, threads), Arguments::new().push(given)) }.unwrap();
    for [start_ns, end_ns, error] in times {
        assert!(
            error as u32 == 0 && start_ns <= end_ns && end_ns > 0,
            "{kernel}: error {error}, {start_ns} to {end_ns}"
        );
    }
    let bells = pages.chunks(2).map(|page| (u32::from_be((page[0].0[0] >> 32) as u32), page[1].0[0]));
    (rings.iter().flat_map(|line| line.0).flat_map(u64::to_ne_bytes).collect(), bells.collect())
}

/// Rows: kernel, lanes, WQEs a doorbell, whether all share a queue, which of a queue's WQEs are signalled.
#[test]
fn twin_bench_kernels_leave_what_the_hosts_shim_writes() {
    need!(KERNELS.find("bench_post_one").map(drop).map_err(|error| error.to_string()), cc, "a C++ compiler");
    for (kernel, threads, per_ring, shared, signals) in [
        ("bench_post_one", 1, 1, false, 1),
        ("bench_post_one", 1, 16, false, 16),
        ("bench_post_one_unchecked", 1, 16, false, 16),
        ("bench_post_list", 1, 16, false, 16),
        ("bench_post_list", 1, 64, false, 64),
        ("bench_post_list_unchecked", 1, 64, false, 64),
        ("bench_post_warp", 32, 32, false, 32),
        ("bench_post_warp", 32, 64, false, 64),
        ("bench_post_warp_unchecked", 32, 32, false, 32),
        ("bench_post_shared", 1, 1, true, 32),
        ("bench_post_shared_warp", 32, 32, true, 32),
        ("bench_floor_wqe", 1, 1, false, u32::MAX),
        ("bench_floor_wqe_fence", 1, 1, false, u32::MAX),
        ("bench_floor_wqe_mark_fence", 1, 1, false, u32::MAX),
        ("bench_post_original", 1, 1, false, 1),
        ("bench_post_original_release", 1, 1, false, 1),
    ] {
        for start in [0, u64::from(BLOCKS)] {
            let (rings, bells) = post(kernel, threads, per_ring, shared, start);
            let queues = if shared { 1 } else { PRODUCERS };
            let posts = POSTS * PRODUCERS / queues;
            let expected = Expected {
                queues,
                blocks: BLOCKS,
                start,
                posts,
                in_order: !shared,
                signal_every: signals,
                reserved_free: false,
            };
            check(&rings, &expected).unwrap_or_else(|wrong| panic!("{kernel} from {start} on: {wrong}"));
            if kernel.starts_with("bench_floor") {
                continue;
            }
            let end = start + u64::from(posts);
            for (queue, (record, register)) in (0..queues).zip(bells) {
                let [_, high, low, _, qpn @ .., _] = register.to_ne_bytes();
                let index = u64::from(u16::from_be_bytes([high, low]));
                assert_eq!(u64::from(record), end, "{kernel}");
                assert!([end - 1, end].contains(&index), "{kernel}: index {index} of {end}");
                assert_eq!(qpn, (QPN + queue).to_be_bytes()[1..], "{kernel}");
            }
            let free = &rings[posts as usize * BLOCK..BLOCKS as usize * BLOCK];
            assert!(free.iter().all(|byte| *byte == 0), "{kernel} wrote behind its last WQE");
        }
    }
}

/// How long a played NIC goes on behind a kernel that has ended: far above what its last doorbell needs.
const LAST_DOORBELL: Duration = Duration::from_secs(10);

/// A queue in plain memory, which a kernel of the twin and a played NIC share: words that both reach.
pub struct PlainQueue {
    ring: Vec<AtomicU64>,
    cq: Vec<AtomicU64>,
    page: Vec<AtomicU64>,
    slots: Vec<AtomicU64>,
    consumer: AtomicU32,
}

impl PlainQueue {
    /// A ring of `BLOCKS`, and a CQ of twice as many entries.
    pub fn new() -> PlainQueue {
        let words = |count: u32, value| (0..count).map(|_| AtomicU64::new(value)).collect();
        let consumer = AtomicU32::new(0);
        PlainQueue {
            ring: words(8 * BLOCKS, 0),
            cq: words(2 * 8 * BLOCKS, u64::MAX),
            page: words(24, 0),
            slots: words(2 * BLOCKS, 0),
            consumer,
        }
    }

    fn at(words: &[AtomicU64]) -> u64 {
        words.as_ptr().expose_provenance() as u64
    }

    /// The send queue, as kernels take it.
    pub fn sq(&self) -> db_sq {
        db_sq {
            ring: PlainQueue::at(&self.ring),
            record: PlainQueue::at(&self.page) + 4,
            reg: PlainQueue::at(&self.page[16..]),
            slots: PlainQueue::at(&self.slots),
            blocks: BLOCKS,
            qpn: QPN,
            max_sge: 1,
            opcodes: 1,
            ..db_sq::default()
        }
    }

    /// Its CQ.
    pub fn cq(&self) -> db_cq {
        let record = (&raw const self.consumer).expose_provenance() as u64;
        db_cq { ring: PlainQueue::at(&self.cq), record, entries: 2 * BLOCKS, cqn: 1, consumer: 0 }
    }

    /// Runs a kernel beside the NIC: whether the kernel ended by itself, and what the NIC saw.
    ///
    /// # Safety
    /// As [`run`]: the kernel takes these arguments, and what they lead to lives.
    pub unsafe fn beside_a_nic(
        &self,
        kernel: host_twin::Kernel,
        launch: &Launch,
        arguments: Arguments,
        rules: &Rules,
    ) -> (bool, NicRun) {
        let PlainQueue { ring, cq, page, consumer, .. } = self;
        let (device, signals) = (Device { ring, cq, register: &page[16], consumer }, Signals::default());
        std::thread::scope(|scope| {
            let nic = scope.spawn(|| device.play(rules, &signals));
            // SAFETY: the caller's promise.
            let ended = unsafe { run(kernel, launch, arguments) }.is_ok();
            let deadline = Instant::now() + LAST_DOORBELL;
            while ended && !nic.is_finished() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            signals.stop.store(true, Ordering::Relaxed);
            (ended, nic.join().unwrap())
        })
    }
}

/// The twin with weak memory under a seed.
pub fn weak(seed: u32, blocks: u32, threads: u32) -> Launch {
    let visibility = Visibility::Weak { seed: u64::from(seed) };
    Launch { visibility, deadline: DEADLINE, ..Launch::new(blocks, threads) }
}

/// Four laps of a ring that a played NIC empties: it compares each WQE, and posters go on by its completions.
#[test]
fn twin_posters_go_on_by_what_a_played_nic_completes() {
    need!(KERNELS.find("bench_post_one").map(drop).map_err(|error| error.to_string()), cc, "a C++ compiler");
    for (kernel, producers, threads, per_ring, shared, every) in [
        ("bench_steady_one", 1, 1, 1, false, 1),
        ("bench_steady_one", 1, 1, 16, false, 64),
        ("bench_steady_list", 1, 1, 16, false, 16),
        ("bench_steady_list", 1, 1, 64, false, 128),
        ("bench_steady_warp", 1, 32, 32, false, 32),
        ("bench_steady_warp", 1, 32, 32, false, 128),
        ("bench_post_shared", 4, 1, 1, true, 32),
        ("bench_post_shared_warp", 2, 32, 32, true, 128),
    ] {
        let plain = PlainQueue::new();
        let mut marks = vec![0_u128; BLOCKS as usize / 4];
        let mut times = vec![[0_u64; 3]; producers as usize];
        let (mut queue, mut cqs) = (vec![Queue(plain.sq())], vec![plain.cq()]);
        let mut shared_queue = vec![Line([0; 8]); 32];
        let find = |name| KERNELS.find(name).unwrap();
        if shared {
            let mut error = u32::MAX;
            let arguments = Arguments::new()
                .pointer(queue.as_mut_ptr())
                .pointer(shared_queue.as_mut_ptr())
                .push(cqs[0])
                .push(address(&mut marks))
                .push(every - 1)
                .pointer(&raw mut error);
            // SAFETY: as below.
            unsafe { run(find("bench_share"), &weak(every, 1, 1), arguments) }.unwrap();
            assert_eq!(error, 0);
        }
        let posts = 4 * BLOCKS / producers;
        let given = Run {
            queues: if shared { address(&mut shared_queue) } else { address(&mut queue) },
            times: address(&mut times),
            local: LOCAL,
            remote: REMOTE,
            lkey: LKEY,
            rkey: RKEY,
            posts,
            per_ring,
            apart: 0,
            patience_ns: DEADLINE.as_nanos() as u64 / 2,
            cqs: address(&mut cqs),
            signal_every: every,
            pad: 0,
        };
        let rules = Rules {
            queue: 0,
            posts: posts * producers,
            signal_every: every,
            names_next: shared,
            in_order: producers == 1,
            reserved_free: false,
            cqes: Cqes::InOrder,
        };
        let (launch, arguments) = (weak(every, producers, threads), Arguments::new().push(given));
        // SAFETY: these are what the kernels take; all they lead to lives here, in memory of stated sizes.
        let (ended, played) = unsafe { plain.beside_a_nic(find(kernel), &launch, arguments, &rules) };
        assert!(times.iter().all(|[.., error]| *error as u32 == 0), "{kernel}: {times:?}, {played:?}");
        assert_eq!((ended, &played.wrong), (true, &None), "{kernel}");
        assert_eq!(played.executed, u64::from(rules.posts), "{kernel}");
        assert_eq!(played.completed, played.executed / u64::from(every), "{kernel}");
    }
}

/// Word of a shared queue that counts the blocks which completions gave back (`struct db_shared_sq`).
const CONSUMED: usize = 640 / 8;

#[test]
fn twin_posters_take_completions_before_a_shared_ring_is_full() {
    need!(KERNELS.find("bench_share").map(drop).map_err(|error| error.to_string()), cc, "a C++ compiler");
    let plain = PlainQueue::new();
    let mut marks = vec![0_u128; BLOCKS as usize / 4];
    let mut times = [[0_u64; 3]];
    let (mut queue, mut shared, mut error) = (Queue(plain.sq()), vec![Line([0; 8]); 32], u32::MAX);
    let find = |name| KERNELS.find(name).unwrap();
    let arguments = Arguments::new()
        .pointer(&raw mut queue)
        .pointer(shared.as_mut_ptr())
        .push(plain.cq())
        .push(address(&mut marks))
        .push(0_u32)
        .pointer(&raw mut error);
    // SAFETY: as above.
    unsafe { run(find("bench_share"), &weak(1, 1, 1), arguments) }.unwrap();
    assert_eq!(error, 0);
    let consumed = |shared: &[Line]| shared[CONSUMED / 8].0[CONSUMED % 8];
    // One less than three quarters of the ring, all completed; then the one that ends them. Room for each.
    let first = 3 * BLOCKS / 4 - 1;
    for (posts, beside) in [(first, true), (1, false)] {
        let given = Run {
            queues: address(&mut shared),
            times: address(&mut times),
            local: LOCAL,
            remote: REMOTE,
            lkey: LKEY,
            rkey: RKEY,
            posts,
            per_ring: 1,
            apart: 0,
            patience_ns: DEADLINE.as_nanos() as u64 / 2,
            cqs: 0,
            signal_every: 1,
            pad: 0,
        };
        let (kernel, launch) = (find("bench_post_shared"), weak(posts, 1, 1));
        let arguments = Arguments::new().push(given);
        let rules = Rules {
            queue: 0,
            posts,
            signal_every: 1,
            names_next: true,
            in_order: true,
            reserved_free: false,
            cqes: Cqes::InOrder,
        };
        if beside {
            // SAFETY: as above.
            let (ended, played) = unsafe { plain.beside_a_nic(kernel, &launch, arguments, &rules) };
            assert_eq!((ended, played.wrong, played.executed), (true, None, u64::from(first)));
            assert_eq!(consumed(&shared), 0, "nobody looked for completions yet");
        } else {
            // SAFETY: as above.
            unsafe { run(kernel, &launch, arguments) }.unwrap();
        }
        assert_eq!(times[0][2] as u32, 0);
    }
    assert!(consumed(&shared) > 0, "the poster that fills the third quarter takes what has completed");
}

/// Where the peer's headers are given: they are nobody's to ship, so that no test fetches them.
fn peer() -> Result<PeerHeaders, String> {
    let folder = std::env::var_os("DOORBELL_PEER_HEADERS").filter(|folder| !folder.is_empty());
    let folder = folder.ok_or("DOORBELL_PEER_HEADERS names no folder")?;
    PeerHeaders::read(&PathBuf::from(folder)).map_err(|error| error.to_string())
}

#[test]
fn the_peers_routine_compiles_and_links_for_every_architecture() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let peer = need!(peer(), peer, "headers of gpunetio, and a toolkit with the C++ library");
    let builder = ImageBuilder::new(toolkit, Cache::off());
    for number in [80, 90, 100] {
        let image = put_image(&peer, &builder, Arch::sm(number)).unwrap();
        for kernel in ["bench_put_prepare", "bench_put_alone", "bench_put_shared_unchecked_warp"] {
            assert!(image.facts.functions.contains(kernel), "sm_{number}: {:?}", image.facts.functions);
        }
    }
}

/// Every way of posting on a real GPU, with the ring at either place, in the first lap and in a later one.
#[test]
fn gpu_bench_kernels_leave_what_the_hosts_shim_writes() {
    let gpu = need!(Gpu::first(), gpu, "a GPU");
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let mut bench =
        GpuBench::new(gpu, &ImageBuilder::new(toolkit, Cache::off()), peer().ok().as_ref()).unwrap();
    let mut runs = 0;
    for poster in [
        Poster::Shim(Order::Early),
        Poster::Shim(Order::Strict),
        Poster::ShimList(Order::Early),
        Poster::Original,
        Poster::OriginalRelease,
        Poster::Peer,
        Poster::PeerCollapsed,
        Poster::PeerPieces,
    ] {
        for (scope, per_ring) in
            [(Scope::Thread, 1), (Scope::Thread, 16), (Scope::Warp, 32), (Scope::Warp, 64)]
        {
            for (sharing, producers) in [
                (Sharing::Exclusive, 1),
                (Sharing::Exclusive, 132),
                (Sharing::Shared, 1),
                (Sharing::Shared, 33),
            ] {
                let steady = Room::Steady { every: 64 };
                for room in [Room::FirstLap, Room::LaterLap, Room::Unchecked, steady] {
                    for place in [Place::Host, Place::Gpu] {
                        let case =
                            Case { poster, scope, sharing, producers, per_ring, room, place, posts: 2048 };
                        let left_out = case.is_peers() && bench.no_peer().is_some();
                        if case.impossible().is_some() || left_out {
                            continue;
                        }
                        let sample = bench.run(&case).unwrap_or_else(|error| panic!("{case:?}: {error}"));
                        assert!(
                            sample.span_ns > 0 && sample.span_ns <= sample.event_ns + 1000,
                            "{case:?} {sample:?}"
                        );
                        runs += 1;
                    }
                }
            }
        }
    }
    assert!(runs >= 150, "{runs} runs");
    for (floor, place) in Floor::ALL.into_iter().flat_map(|floor| [(floor, Place::Host), (floor, Place::Gpu)])
    {
        let sample = bench.floor(floor, place, 2048).unwrap_or_else(|error| panic!("{floor:?}: {error}"));
        assert!(sample.span_ns > 0, "{floor:?}: {sample:?}");
    }
}
