//! A queue pair whose one end kernels of the host twin post to and poll.

use std::ops::Deref;
use std::time::{Duration, Instant};

use crate::KERNELS;
use host_twin::{Arguments, Kernel, Launch, Visibility, run};
use rdma_shim::sys::*;
use verbs::{Context, Cq, DirectCq, DirectQp, Mr, Pages, QpBuilder, QpCapacity, QpType, QueuePair};

use rdma_shim::testing::{connect, memory};

/// `DB_ORDER_STRICT`.
pub const STRICT: u32 = 0;
/// `DB_ORDER_EARLY`.
pub const EARLY: u32 = 1;
/// `DB_POST_STEP` of `kernels/post.cu`.
pub const STEP: u64 = 0x0101_0101_0101_0101;
/// `DB_FLOOD_WORDS`.
pub const FLOOD_WORDS: u32 = 8192;
/// Longest a kernel may run; far above what a busy machine needs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// `struct db_post_target` of `kernels/post.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Target {
    pub local: u64,
    pub remote: u64,
    pub lkey: u32,
    pub rkey: u32,
    pub messages: u32,
    pub window: u32,
    pub per_ring: u32,
    pub signal_every: u32,
    pub deadline_ns: u64,
}

/// `struct db_post_status`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Status {
    pub error: u32,
    pub done: u32,
    pub early: u32,
    pub pad: u32,
}

impl Status {
    /// Of a run in which all went well.
    pub fn all(messages: u32) -> Status {
        Status { done: messages, ..Status::default() }
    }
}

/// A queue that kernels post to, and a peer with the memory that they WRITE to.
pub struct Queue {
    /// Its send queue, as kernels take it.
    pub sq: db_sq,
    /// Its receive queue.
    pub rq: db_rq,
    /// The CQ of both.
    pub cq: db_cq,
    _slots: Vec<db_slot>,
    _wr_ids: Vec<u64>,
    /// The queue pair, for its number and states.
    pub qp: DirectQp,
    /// The other end, libmlx5's own.
    pub peer: QueuePair,
    /// Its CQ.
    pub peer_cq: Cq,
    _direct: DirectCq,
    /// What kernels post from and receive into.
    pub local: Mr<Pages>,
    /// What they WRITE to.
    pub remote: Mr<Pages>,
}

impl Queue {
    /// Connected, with an order of record and register.
    pub fn new(context: &Context, order: u32) -> Queue {
        Queue::of(context, order, 64)
    }

    /// The same with room for so many requests.
    pub fn of(context: &Context, order: u32, send_requests: u32) -> Queue {
        let pd = context.alloc_pd().unwrap();
        // Room for every WQE, and for the quarter of the CQ that a kernel gives back late.
        let direct = Cq::new(context, 1023).unwrap().into_direct().unwrap();
        let capacity = QpCapacity {
            send_requests,
            receive_requests: 16,
            send_sges: 2,
            receive_sges: 1,
            inline_bytes: 16,
        };
        let builder = QpBuilder::new(QpType::Rc).capacity(capacity).own_register(true);
        let qp = builder.build_direct(&pd, &direct, &direct).unwrap();
        let peer_cq = Cq::new(context, 255).unwrap();
        let peer = builder.build(&pd, &peer_cq, &peer_cq).unwrap();
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
            max_sge: qp.capacity().send_sges,
            max_inline: qp.capacity().inline_bytes,
            opcodes: 0x7f,
            order,
            ..db_sq::default()
        };
        let mut wr_ids = vec![0; layout.receive.entries as usize];
        let mut rq = db_rq {
            ring: layout.receive.address.addr() as u64,
            record: layout.record.addr() as u64,
            wr_ids: wr_ids.as_mut_ptr().expose_provenance() as u64,
            wqes: layout.receive.entries,
            stride: layout.receive.stride,
            qpn: layout.number,
            max_sge: 1,
            ..db_rq::default()
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
        assert_eq!(unsafe { db_c_rq_init(&raw mut rq) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { db_c_cq_init(&raw mut cq, cq_layout.stride) }, 0);
        let (local, remote) = (memory(&pd, 1 << 12), memory(&pd, 1 << 16));
        Queue {
            sq,
            rq,
            cq,
            _slots: slots,
            _wr_ids: wr_ids,
            qp,
            peer,
            peer_cq,
            _direct: direct,
            local,
            remote,
        }
    }

    /// Runs a kernel that posts `messages` WRITEs: what it says, and how many words of the target are wrong
    /// among those whose completion was seen.
    pub fn post(
        &mut self,
        kernel: Kernel,
        launch: &Launch,
        messages: u32,
        patience: Duration,
    ) -> (Status, usize) {
        self.post_with(kernel, launch, self.target(messages, patience))
    }

    /// The same with numbers of the caller's.
    pub fn post_with(&mut self, kernel: Kernel, launch: &Launch, target: Target) -> (Status, usize) {
        let mut status = Status::default();
        let arguments = Arguments::new()
            .pointer(&raw mut self.sq)
            .pointer(&raw mut self.cq)
            .push(target)
            .pointer(&raw mut status);
        // SAFETY: the kernels of `post.cu` take these, and everything lives in `self` or on this stack.
        unsafe { run(kernel, launch, arguments) }.unwrap();
        (status, self.wrong_words(status.done.min(FLOOD_WORDS)))
    }

    /// A run's numbers, as kernels take them.
    pub fn target(&self, messages: u32, patience: Duration) -> Target {
        Target {
            local: self.local.address(),
            remote: self.remote.address(),
            lkey: self.local.lkey(),
            rkey: self.remote.rkey(),
            messages,
            window: 32,
            per_ring: 4,
            signal_every: 1,
            deadline_ns: patience.as_nanos() as u64,
        }
    }

    /// The same as [`Queue::wrong_words`] after everything that was posted had time to arrive.
    pub fn wrong_words_at_rest(&self, messages: u32) -> usize {
        let begin = Instant::now();
        while self.wrong_words(messages) > 0 && begin.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.wrong_words(messages)
    }

    /// How many of the first words of the target are not what was to arrive there.
    pub fn wrong_words(&self, messages: u32) -> usize {
        let word = |message: u32| {
            let mut bytes = [0; 8];
            self.remote.read(8 * message as usize, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        (0..messages).filter(|&n| word(n) != STEP.wrapping_mul(u64::from(n) + 1)).count()
    }
}

/// A queue's send queue as many lanes share it: `struct db_shared_sq`, with its marks.
pub struct Shared {
    queue: Box<db_shared_sq>,
    /// A word for each block, 16-byte aligned.
    marks: Vec<u128>,
}

impl Deref for Shared {
    type Target = db_shared_sq;

    fn deref(&self) -> &db_shared_sq {
        &self.queue
    }
}

impl Shared {
    /// Checked, and empty.
    pub fn of(queue: &Queue, signal_mask: u32) -> Shared {
        let mut shared = Shared::unchecked(queue, signal_mask);
        assert_eq!(shared.init(), 0);
        shared
    }

    /// Whatever its numbers are.
    pub fn unchecked(queue: &Queue, signal_mask: u32) -> Shared {
        let mut marks = vec![0_u128; queue.sq.blocks.div_ceil(4) as usize];
        let filled = marks.as_mut_ptr().expose_provenance() as u64;
        let (sq, cq) = (queue.sq.clone(), queue.cq);
        Shared {
            queue: Box::new(db_shared_sq { sq, cq, filled, signal_mask, ..db_shared_sq::default() }),
            marks,
        }
    }

    /// `db_shared_init`.
    pub fn init(&mut self) -> i32 {
        // SAFETY: the struct is ours alone.
        unsafe { db_c_shared_init(&raw mut *self.queue) }
    }

    /// Changes what `init` then looks at.
    pub fn spoil(&mut self, change: fn(&mut db_shared_sq)) {
        change(&mut self.queue);
    }

    /// `db_shared_reset`, as the host does it when the queue pair is in RESET and no kernel works on it.
    pub fn reset(&mut self) -> i32 {
        self.marks.fill(0);
        // SAFETY: the struct is ours alone, its queue and CQ are in RESET and live.
        unsafe { db_c_shared_reset(&raw mut *self.queue) }
    }

    /// For a kernel's argument.
    pub fn pointer(&mut self) -> *mut db_shared_sq {
        &raw mut *self.queue
    }

    /// Arguments of the kernels that take queue, target and status.
    pub fn arguments(&mut self, target: Target, status: &mut Status) -> Arguments {
        Arguments::new().pointer(self.pointer()).push(target).pointer(std::ptr::from_mut(status))
    }

    /// A launch on it: what its lanes say.
    pub fn post(&mut self, kernel: Kernel, launch: &Launch, target: Target) -> Status {
        let mut status = Status::default();
        // SAFETY: the kernels that share take these, and everything lives in a `Queue` or here.
        unsafe { run(kernel, launch, self.arguments(target, &mut status)) }.unwrap();
        status
    }
}

/// Whether there are kernels.
pub fn compiler() -> Result<(), String> {
    KERNELS.find("post_thread").map(drop).map_err(|error| error.to_string())
}

/// One block.
pub fn launch(threads: u32, seed: u64) -> Launch {
    Launch { visibility: Visibility::Weak { seed }, deadline: DEADLINE, ..Launch::new(1, threads) }
}
