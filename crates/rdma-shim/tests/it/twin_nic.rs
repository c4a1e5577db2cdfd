//! Kernels of the host twin post to a NIC: what they WRITE arrives, by the queues and regions of unmodified libibverbs and
//! libmlx5; and with a fence or a barrier taken out of the shim it does not.

use std::time::{Duration, Instant};

use measure::need;
use rdma_shim::sys::*;
use rdma_shim::twin::{Arguments, Kernel, Launch, Visibility, run};
use verbs::code::EventType;
use verbs::{AsyncEvent, Context, Cq, DirectCq, DirectQp, Element, Mr, Pages, QpBuilder, QpCapacity, QpType};

use crate::ends::{connect, device, memory, softnic, wait_for};

/// `DB_ORDER_STRICT`, `DB_ORDER_EARLY`.
const STRICT: u32 = 0;
const EARLY: u32 = 1;
/// `DB_POST_STEP` of `kernels/post.cu`.
const STEP: u64 = 0x0101_0101_0101_0101;
const DEADLINE: Duration = Duration::from_secs(60);

/// `struct db_post_target` of `kernels/post.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Target {
    local: u64,
    remote: u64,
    lkey: u32,
    rkey: u32,
    messages: u32,
    window: u32,
    per_ring: u32,
    pad: u32,
    deadline_ns: u64,
}

/// `struct db_post_status`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Status {
    error: u32,
    done: u32,
}

/// `struct db_shared_sq` of `doorbell_gpu.h`.
#[repr(C)]
struct Shared {
    sq: db_sq,
    cq: db_cq,
    released: u64,
    filled: u64,
    signal_mask: u32,
    polling: u32,
    failed: u32,
    pad: u32,
    line0: [u64; 9],
    reserved: u64,
    line1: [u64; 15],
    published: u64,
    line2: [u64; 15],
    rung: u64,
    line3: [u64; 15],
    consumed: u64,
    line4: [u64; 15],
}

/// A queue that kernels post to, and a peer with the memory that they WRITE to.
struct Queue {
    sq: db_sq,
    cq: db_cq,
    _slots: Vec<db_slot>,
    qp: DirectQp,
    _peer: DirectQp,
    _direct: DirectCq,
    local: Mr<Pages>,
    remote: Mr<Pages>,
}

impl Queue {
    fn new(context: &Context, order: u32) -> Queue {
        let pd = context.alloc_pd().unwrap();
        let direct = Cq::new(context, 255).unwrap().into_direct().unwrap();
        let capacity = QpCapacity {
            send_requests: 64,
            receive_requests: 1,
            send_sges: 1,
            receive_sges: 1,
            inline_bytes: 0,
        };
        let builder = QpBuilder::new(QpType::Rc).capacity(capacity).own_register(true);
        let qp = builder.build_direct(&pd, &direct, &direct).unwrap();
        let peer = builder.build_direct(&pd, &direct, &direct).unwrap();
        connect(&qp, peer.number());
        connect(&peer, qp.number());
        let (layout, cq_layout) = (qp.memory(), direct.layout());
        let slots = vec![db_slot::default(); layout.send.entries as usize];
        let mut sq = db_sq {
            ring: layout.send.address.addr() as u64,
            record: layout.record.addr() as u64 + 4,
            reg: layout.register.addr() as u64,
            slots: slots.as_ptr() as u64,
            blocks: layout.send.entries,
            qpn: layout.number,
            half_bytes: layout.blueflame_half_bytes,
            max_sge: 1,
            opcodes: 0x7f,
            order,
            ..db_sq::default()
        };
        let mut cq = db_cq {
            ring: cq_layout.address.addr() as u64,
            record: cq_layout.record.addr() as u64,
            entries: cq_layout.entries,
            cqn: cq_layout.number,
            ..db_cq::default()
        };
        // SAFETY: the structs are ours alone.
        assert_eq!(unsafe { db_c_sq_init(&raw mut sq, layout.send.stride) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { db_c_cq_init(&raw mut cq, cq_layout.stride) }, 0);
        let (local, remote) = (memory(&pd, 1 << 12), memory(&pd, 1 << 16));
        Queue { sq, cq, _slots: slots, qp, _peer: peer, _direct: direct, local, remote }
    }

    /// Runs a kernel that posts `messages` WRITEs: what it says, and how many words of the target are not what was to
    /// arrive there, of those whose completion was seen.
    fn post(
        &mut self,
        kernel: Kernel,
        launch: &Launch,
        messages: u32,
        patience: Duration,
    ) -> (Status, usize) {
        let mut status = Status::default();
        let target = self.target(messages, patience);
        let arguments = Arguments::new()
            .pointer(&raw mut self.sq)
            .pointer(&raw mut self.cq)
            .push(target)
            .pointer(&raw mut status);
        // SAFETY: the kernels of `post.cu` take these, and everything lives in `self` or on this stack.
        unsafe { run(kernel, launch, arguments) }.unwrap();
        (status, self.wrong_words(status.done))
    }

    fn target(&self, messages: u32, patience: Duration) -> Target {
        Target {
            local: self.local.address(),
            remote: self.remote.address(),
            lkey: self.local.lkey(),
            rkey: self.remote.rkey(),
            messages,
            window: 32,
            per_ring: 4,
            pad: 0,
            deadline_ns: patience.as_nanos() as u64,
        }
    }

    /// How many of the first words of the target are not what was to arrive there.
    fn wrong_words(&self, messages: u32) -> usize {
        let word = |message: u32| {
            let mut bytes = [0; 8];
            self.remote.read(8 * message as usize, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        (0..messages).filter(|&n| word(n) != STEP.wrapping_mul(u64::from(n) + 1)).count()
    }
}

fn compiler() -> Result<(), String> {
    Kernel::find("post_thread").map(drop).map_err(|error| error.to_string())
}

fn launch(threads: u32, seed: u64) -> Launch {
    Launch { blocks: 1, threads, visibility: Visibility::Weak { seed }, deadline: DEADLINE }
}

/// One thread among a warp's, and a warp in step; many seeds; and more messages than the ring holds.
#[test]
fn twin_kernels_write_what_arrives_under_every_seed() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    const MESSAGES: u32 = 320;
    for kernel in ["post_thread", "post_warp"] {
        for seed in 1..7 {
            let mut queue = Queue::new(&context, STRICT);
            let kernel = Kernel::find(kernel).unwrap();
            let found = queue.post(kernel, &launch(32, seed), MESSAGES, DEADLINE / 2);
            assert_eq!(
                found,
                (Status { error: 0, done: MESSAGES }, 0),
                "{kernel:?} seed {seed}: wrong words"
            );
            assert_eq!(queue.sq.producer, u64::from(MESSAGES), "{kernel:?}");
            assert!(queue.sq.blocks < MESSAGES, "the ring of {} blocks was not used again", queue.sq.blocks);
        }
    }
}

#[test]
fn twin_kernels_write_what_arrives_without_a_store_buffer() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    const MESSAGES: u32 = 4096;
    for kernel in ["post_thread", "post_warp"] {
        let mut queue = Queue::new(&context, STRICT);
        let launch = Launch { visibility: Visibility::InOrder, ..launch(32, 0) };
        let found = queue.post(Kernel::find(kernel).unwrap(), &launch, MESSAGES, DEADLINE / 2);
        assert_eq!(found, (Status { error: 0, done: MESSAGES }, 0), "{kernel}: status, wrong words");
    }
}

/// More than the ring holds, and a whole number for each lane.
const SHARED_MESSAGES: u32 = 512;

/// Two blocks of two warps on one queue: what they say, and the queue's words.
fn post_shared(queue: &Queue, kernel: Kernel, seed: u64, patience: Duration) -> (Status, Box<Shared>) {
    // A byte for each block, 16-byte aligned.
    let mut marks = vec![0_u128; queue.sq.blocks.div_ceil(16) as usize];
    let mut shared = Box::new(Shared {
        sq: queue.sq.clone(),
        cq: queue.cq.clone(),
        released: 0,
        filled: marks.as_mut_ptr().expose_provenance() as u64,
        signal_mask: 15,
        polling: 0,
        failed: 0,
        pad: 0,
        line0: [0; 9],
        reserved: 0,
        line1: [0; 15],
        published: 0,
        line2: [0; 15],
        rung: 0,
        line3: [0; 15],
        consumed: 0,
        line4: [0; 15],
    });
    let mut status = Status::default();
    let target = Target { window: SHARED_MESSAGES, ..queue.target(SHARED_MESSAGES, patience) };
    let arguments = Arguments::new().pointer(&raw mut *shared).push(target).pointer(&raw mut status);
    // SAFETY: `post_shared` takes these, and everything lives in `queue` or here.
    unsafe { run(kernel, &Launch { blocks: 2, ..launch(64, seed) }, arguments) }.unwrap();
    (status, shared)
}

#[test]
fn twin_lanes_share_a_queue_under_every_seed() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let kernel = Kernel::find("post_shared").unwrap();
    for seed in 1..5 {
        let queue = Queue::new(&context, STRICT);
        let (status, shared) = post_shared(&queue, kernel, seed, DEADLINE / 2);
        assert_eq!((status, shared.failed), (Status { error: 0, done: SHARED_MESSAGES }, 0), "seed {seed}");
        let all = u64::from(SHARED_MESSAGES);
        let (taken, rung) = (shared.reserved, shared.rung);
        assert_eq!(
            (taken, shared.published, rung),
            (all, all << 16, all),
            "seed {seed}: taken, published, rung"
        );
        assert!(
            queue.sq.blocks < SHARED_MESSAGES,
            "the ring of {} blocks was not used again",
            queue.sq.blocks
        );
        // The last ones may be on their way.
        wait_for("message", || (queue.wrong_words(SHARED_MESSAGES) == 0).then_some(()));
    }
}

/// Without the release between a WQE and the mark that says that it is filled, whoever rings has nothing of it to publish.
#[test]
fn twin_shows_a_dropped_release_on_a_shared_queue() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(softnic(), softnic, "the software NIC");
    let kernel = Kernel::find_planted("post_shared+no-release").unwrap();
    let shown = SEEDS.into_iter().any(|seed| {
        let (queue, start) = (Queue::new(&context, STRICT), Instant::now());
        let (status, shared) = post_shared(&queue, kernel, seed, DEADLINE / 4);
        // Everybody hears of an error CQE. Who gives up waiting says the same, but later.
        assert_eq!(status.error != 0, shared.failed != 0, "seed {seed}: {status:?}");
        shared.failed != 0 && start.elapsed() < DEADLINE / 4
    });
    assert!(shown, "no WQE was executed too early under any of {SEEDS:?}");
}

/// Seeds that a defect is given to show itself: each run rings dozens of times, and one seed mostly suffices.
const SEEDS: std::ops::Range<u64> = 1..41;

/// Enough to ring dozens of times.
const MANY: u32 = 1024;

/// In runs that may hang.
const PATIENCE: Duration = Duration::from_millis(300);

/// `DB_ETIMEDOUT`, and what `post.cu` adds to the status of an error CQE.
const TIMED_OUT: u32 = 110;
const ERROR_CQE: u32 = 0x10000;

/// On a card the outcome is not defined, so this asks for the software NIC, which executes whatever lies in the ring when
/// the doorbell comes. Rows: kernel with a defect, lanes, order.
#[test]
fn twin_shows_what_is_missing_between_a_wqe_and_its_doorbell() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(softnic(), softnic, "the software NIC");
    for (kernel, lanes, order) in [
        // In the strict order the second fence covers what the first one should have.
        ("post_thread+no-wqe-fence", 1, EARLY),
        ("post_warp+no-warp-sync", 32, STRICT),
        ("post_warp+no-warp-sync", 32, EARLY),
    ] {
        let kernel = Kernel::find_planted(kernel).unwrap();
        let shown = SEEDS.into_iter().any(|seed| {
            let mut queue = Queue::new(&context, order);
            let (status, wrong) = queue.post(kernel, &launch(lanes, seed), MANY, PATIENCE);
            status.error >= ERROR_CQE || wrong > 0
        });
        assert!(shown, "{kernel:?} order {order}: no WQE was executed too early under any of {SEEDS:?}");
    }
}

/// The early order leaves record and register unordered, and relies on a device that is content with the index in the
/// register. The software NIC is not, as long as no card was seen to be: it names the queue. Nothing worse happens: what
/// completes has arrived.
#[test]
fn twin_shows_what_the_early_order_relies_on() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(softnic(), softnic, "the software NIC");
    let kernel = Kernel::find("post_warp").unwrap();
    let named = SEEDS.into_iter().any(|seed| {
        let mut queue = Queue::new(&context, EARLY);
        let (status, wrong) = queue.post(kernel, &launch(32, seed), MANY, PATIENCE);
        assert!(wrong == 0 && (status.error == 0 || status.error == TIMED_OUT), "seed {seed}: {status:?}");
        let event = context.wait_async_event(Duration::ZERO).unwrap();
        let of_queue =
            AsyncEvent { kind: EventType::QpRequestError, element: Element::Qp(queue.qp.number()) };
        assert!(event.is_none() || event == Some(of_queue), "seed {seed}: {event:?}");
        event.is_some() && status.error == TIMED_OUT
    });
    assert!(named, "the register never came before the record under any of {SEEDS:?}");
}
