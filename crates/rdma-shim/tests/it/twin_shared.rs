//! A queue that many share: what its set-up refuses, how it fails, and how the host brings it back.

use std::time::{Duration, Instant};

use crate::KERNELS;
use host_twin::{run, start};
use measure::need;
use rdma_shim::sys::{db_failure, db_shared_sq};

use crate::twin_queue::{DEADLINE, Queue, STRICT, Shared, Status, Target, compiler, launch};
use rdma_shim::testing::{connect, device, wait_for};

const EIO: u32 = 5;
const EINVAL: i32 = 22;
const TIMED_OUT: u32 = 110;
/// `DB_FAILED_CQE`, `DB_FAILED_HOLE`.
const BY_CQE: u32 = 1;
const BY_HOLE: u32 = 2;
/// `DB_WC_REM_ACCESS_ERR`, and the syndrome that stands for it.
const REMOTE_ACCESS: u32 = 10;
const REMOTE_ACCESS_SYNDROME: u32 = 0x13;
/// In runs that may hang.
const PATIENCE: Duration = Duration::from_millis(500);

fn target(queue: &Queue, messages: u32, patience: Duration) -> Target {
    Target { window: messages, ..queue.target(messages, patience) }
}

#[test]
fn a_shared_queue_refuses_numbers_with_which_it_would_hang() {
    let context = need!(device(), nic, "an mlx5 device");
    let queue = Queue::new(&context, STRICT);
    let blocks = queue.sq.blocks;
    assert_eq!(Shared::unchecked(&queue, blocks / 2 - 1).init(), 0);
    type Spoil = fn(&mut db_shared_sq);
    let rows: [(&str, Spoil); 14] = [
        ("64 blocks, mask 63", |q| (q.sq.blocks, q.signal_mask) = (64, 63)),
        ("mask of half the ring", |q| q.signal_mask = q.sq.blocks - 1),
        ("a mask that is no mask", |q| q.signal_mask = 20),
        ("a mask without an end", |q| q.signal_mask = u32::MAX),
        ("32 blocks", |q| (q.sq.blocks, q.signal_mask) = (32, 7)),
        ("65 blocks", |q| q.sq.blocks = 65),
        ("32768 blocks", |q| (q.sq.blocks, q.cq.entries) = (32_768, 1 << 17)),
        ("marks that are not aligned", |q| q.filled += 4),
        ("no marks", |q| q.filled = 0),
        ("a CQ that holds a ring but no quarter more", |q| q.cq.entries = q.sq.blocks),
        ("no CQ", |q| q.cq.ring = 0),
        ("BlueFlame", |q| q.sq.doorbell = 1),
        ("a WQE that was not rung", |q| q.sq.producer += 1),
        ("a WQE that has not completed", |q| (q.sq.producer, q.sq.rung) = (1, 1)),
    ];
    for (what, spoil) in rows {
        let mut shared = Shared::unchecked(&queue, 15);
        assert_eq!(shared.init(), 0);
        shared.spoil(spoil);
        assert_eq!(shared.init(), EINVAL, "{what}");
    }
    let mut shared = Shared::unchecked(&queue, 31);
    shared.spoil(|q| (q.sq.blocks, q.signal_mask) = (64, 31));
    assert_eq!(shared.init(), 0, "64 blocks are enough with a mask of 31");
}

/// What is refused above does hang: 33 unsignalled WQEs in a ring of 64 leave no room for the warp, whose own
/// would be signalled; nothing retires any. At its deadline, the failure names queue and request.
#[test]
fn a_shared_ring_that_may_be_all_unsignalled_hangs_until_the_deadline() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let kernel = KERNELS.find("post_shared_both").unwrap();
    const MESSAGES: u32 = 8 * 33;
    let queue = Queue::of(&context, STRICT, 16);
    assert_eq!(queue.sq.blocks, 64, "the ring for 16 requests");
    let mut shared = Shared::of(&queue, 31);
    let status = shared.post(kernel, &launch(32, 1), target(&queue, MESSAGES, DEADLINE / 2));
    assert_eq!((status, shared.failed), (Status::all(MESSAGES), 0));

    let queue = Queue::of(&context, STRICT, 16);
    let mut shared = Shared::unchecked(&queue, 63);
    assert_eq!(shared.init(), EINVAL);
    let begin = Instant::now();
    let status = shared.post(kernel, &launch(32, 1), target(&queue, MESSAGES, PATIENCE));
    assert_eq!(status, Status { error: TIMED_OUT, done: 33, ..Status::default() });
    assert!(begin.elapsed() < DEADLINE / 2);
    let hole = db_failure { why: BY_HOLE, qpn: queue.qp.number(), wr_id: 34, ..db_failure::default() };
    assert_eq!((shared.failed, shared.failure), (1, hole));
}

/// An error CQE concerns all posters: the first is kept with its request, the flushes behind it do not
/// overwrite it, and the next post is refused though the ring is empty.
#[test]
fn a_shared_queue_that_failed_refuses_posts_and_says_whose_request_it_was() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    const ASTRAY: u32 = 5;
    for seed in 1..5 {
        let queue = Queue::new(&context, STRICT);
        let (shared, status, failure) = go_astray(&queue, ASTRAY, seed);
        let what = format!("seed {seed}: {status:?} {failure:?}");
        assert_eq!(status.error, EIO, "{what}");
        assert!(status.done > ASTRAY, "what was posted before the failure was taken; {what}");
        assert!(shared.consumed > 0 && shared.reserved >> 63 == 1, "{what}");
        let expected = db_failure {
            wr_id: ASTRAY.into(),
            why: BY_CQE,
            qpn: queue.qp.number(),
            status: REMOTE_ACCESS,
            syndrome: REMOTE_ACCESS_SYNDROME,
            ..failure
        };
        assert_eq!((failure, shared.failure), (expected, expected), "{what}");
    }
}

/// One thread, 24 messages, of which one may not go where it goes.
fn go_astray(queue: &Queue, astray: u32, seed: u64) -> (Shared, Status, db_failure) {
    let (mut shared, mut status) = (Shared::of(queue, 7), Status::default());
    let mut failure = db_failure::default();
    let target = Target { signal_every: astray, ..target(queue, 24, DEADLINE / 2) };
    let arguments = shared.arguments(target, &mut status).pointer(&raw mut failure);
    // SAFETY: the kernel takes these, and everything lives in `queue` or here.
    unsafe { run(KERNELS.find("post_shared_astray").unwrap(), &launch(1, seed), arguments) }.unwrap();
    (shared, status, failure)
}

/// A caller past its deadline posts if there is room, and rings if elected: the queue is none the worse.
#[test]
fn a_deadline_that_has_passed_does_not_fail_a_shared_queue_with_room() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    for seed in 1..9 {
        let queue = Queue::new(&context, STRICT);
        let mut shared = Shared::of(&queue, 15);
        assert!(queue.sq.blocks >= 128);
        let kernel = KERNELS.find("post_shared").unwrap();
        let status = shared.post(kernel, &launch(64, seed), target(&queue, 128, Duration::ZERO));
        assert_eq!((status, shared.failed), (Status::all(128), 0), "seed {seed}");
        wait_for("the words", || (queue.wrong_words(128) == 0).then_some(()));
    }
}

/// The host takes a failed queue to RESET, empties and reconnects it, while a kernel goes on posting on
/// another one; then the first works, from its first block on.
#[test]
fn the_host_brings_a_shared_queue_back_while_another_goes_on() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let kernel = KERNELS.find("post_shared").unwrap();
    const MESSAGES: u32 = 192;
    const MANY: u32 = 512;
    let queue = Queue::new(&context, STRICT);
    let (mut shared, status, _) = go_astray(&queue, 3, 7);
    assert_eq!((status.error, shared.failed), (EIO, 1));

    let other = Queue::new(&context, STRICT);
    let mut others = Shared::of(&other, 15);
    let mut status = Status::default();
    let arguments = others.arguments(target(&other, MANY, DEADLINE / 2), &mut status);
    // SAFETY: the kernel takes these, and everything lives until it has ended.
    let running = unsafe { start(kernel, &launch(32, 3), arguments) }.unwrap();
    wait_for("the other queue's first block", || (other.wrong_words(1) == 0).then_some(()));
    assert!(!running.has_ended(), "it has more to post than that");
    queue.qp.reset().unwrap();
    queue.peer.reset().unwrap();
    let dropped = shared.reset();
    assert!(dropped >= 0, "{dropped}");
    // The device's index is 0 again; the queue's own is behind all that this life has used.
    let start = 1 << 16;
    assert_eq!((shared.failed, shared.reserved, shared.rung, shared.consumed), (0, start, start, start));
    connect(&queue.qp, queue.peer.number());
    connect(&queue.peer, queue.qp.number());
    let found = shared.post(kernel, &launch(32, 8), target(&queue, MESSAGES, DEADLINE / 2));
    assert_eq!((found, shared.failed), (Status::all(MESSAGES), 0));
    wait_for("the words", || (queue.wrong_words(MESSAGES) == 0).then_some(()));

    running.wait().unwrap();
    assert_eq!((status, others.failed), (Status::all(MANY), 0), "the other queue");
    wait_for("the other's words", || (other.wrong_words(MANY) == 0).then_some(()));
}
