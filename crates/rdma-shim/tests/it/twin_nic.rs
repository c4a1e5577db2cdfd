//! Kernels of the host twin post to a NIC: what they WRITE arrives, by queues and regions of unmodified
//! libibverbs and libmlx5; with a fence or a barrier taken out of the shim it does not.

use std::time::{Duration, Instant};

use crate::{KERNELS, PLANTED};
use host_twin::{Launch, Visibility};
use measure::need;
use rdma_shim::sys::DB_PUBLISHED_SHIFT;
use verbs::code::EventType;
use verbs::{AsyncEvent, Element};

use crate::twin_queue::{DEADLINE, EARLY, Queue, STRICT, Shared, Status, Target, compiler, launch};
use rdma_shim::testing::{device, softnic, wait_for};

/// One thread among a warp's, and a warp in step; many seeds; and more messages than the ring holds.
#[test]
fn twin_kernels_write_what_arrives_under_every_seed() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    const MESSAGES: u32 = 320;
    for kernel in ["post_thread", "post_warp"] {
        for seed in 1..7 {
            let mut queue = Queue::new(&context, STRICT);
            let kernel = KERNELS.find(kernel).unwrap();
            let found = queue.post(kernel, &launch(32, seed), MESSAGES, DEADLINE / 2);
            assert_eq!(found, (Status::all(MESSAGES), 0), "{kernel:?} seed {seed}: wrong words");
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
        let found = queue.post(KERNELS.find(kernel).unwrap(), &launch, MESSAGES, DEADLINE / 2);
        assert_eq!(found, (Status::all(MESSAGES), 0), "{kernel}: status, wrong words");
    }
}

/// More than the ring holds, and a whole number for each lane.
const SHARED_MESSAGES: u32 = 512;

fn target(queue: &Queue, patience: Duration) -> Target {
    Target { window: SHARED_MESSAGES, ..queue.target(SHARED_MESSAGES, patience) }
}

/// Two blocks of two warps, each lane by itself, and each warp together.
#[test]
fn twin_lanes_share_a_queue_under_every_seed() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    for kernel in ["post_shared", "post_shared_warp"] {
        for seed in 1..5 {
            let queue = Queue::new(&context, STRICT);
            let mut shared = Shared::of(&queue, 15);
            let launch = Launch { blocks: 2.into(), ..launch(64, seed) };
            let found = KERNELS.find(kernel).unwrap();
            let status = shared.post(found, &launch, target(&queue, DEADLINE / 2));
            let (all, what) = (u64::from(SHARED_MESSAGES), format!("{kernel} seed {seed}"));
            assert_eq!((status, shared.failed), (Status::all(SHARED_MESSAGES), 0), "{what}");
            let (taken, rung) = (shared.reserved, shared.rung);
            assert_eq!((taken, shared.published, rung), (all, all << DB_PUBLISHED_SHIFT, all), "{what}");
            assert!(queue.sq.blocks < SHARED_MESSAGES, "the ring was not used again: {}", queue.sq.blocks);
            // The last ones may be on their way.
            wait_for(&what, || (queue.wrong_words(SHARED_MESSAGES) == 0).then_some(()));
        }
    }
}

/// Without the release between a WQE and its mark, the ringer has nothing of the WQE to publish; without the
/// meeting of a warp, the lane that rings has nothing of the other lanes'.
#[test]
fn twin_shows_what_is_missing_on_a_shared_queue() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(softnic(), softnic, "the software NIC");
    for (kernel, blocks, threads) in
        [("post_shared+no-release", 2, 64), ("post_shared_warp+no-warp-sync", 1, 32)]
    {
        let kernel = PLANTED.find(kernel).unwrap();
        let shown = SEEDS.into_iter().any(|seed| {
            let (queue, begin) = (Queue::new(&context, STRICT), Instant::now());
            let mut shared = Shared::of(&queue, 15);
            let launch = Launch { blocks: blocks.into(), ..launch(threads, seed) };
            let status = shared.post(kernel, &launch, target(&queue, DEADLINE / 4));
            // An error CQE reaches every later poster. One whose wait times out says the same, but later.
            let words = if status.error == 0 { queue.wrong_words_at_rest(SHARED_MESSAGES) } else { 0 };
            (shared.failed != 0 || words > 0) && begin.elapsed() < DEADLINE / 4
        });
        assert!(shown, "{kernel:?}: no WQE was executed too early under any of {SEEDS:?}");
    }
}

/// Seeds that a defect is given to show itself: each run rings dozens of times, and one seed mostly suffices.
const SEEDS: std::ops::Range<u64> = 1..41;

/// Enough to ring dozens of times.
const MANY: u32 = 1024;

/// In runs that may hang.
const PATIENCE: Duration = Duration::from_millis(300);

/// Longest wait for the event of a queue that hangs.
const NAMED: Duration = Duration::from_secs(5);

/// `DB_ETIMEDOUT`, and what `post.cu` adds to the status of an error CQE.
const TIMED_OUT: u32 = 110;
const ERROR_CQE: u32 = 0x10000;

/// A card's outcome is undefined, so this asks for the software NIC, which executes whatever lies in the ring
/// when the doorbell comes. Rows: kernel with a defect, lanes, order.
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
        let kernel = PLANTED.find(kernel).unwrap();
        let shown = SEEDS.into_iter().any(|seed| {
            let mut queue = Queue::new(&context, order);
            let (status, wrong) = queue.post(kernel, &launch(lanes, seed), MANY, PATIENCE);
            status.error >= ERROR_CQE || wrong > 0
        });
        assert!(shown, "{kernel:?} order {order}: no WQE was executed too early under any of {SEEDS:?}");
    }
}

/// The early order leaves record and register unordered, and relies on a device that is content with the
/// register's index. The software NIC is not, until a card is seen to be: it names the queue. Nothing worse
/// happens: what completes has arrived.
#[test]
fn twin_shows_what_the_early_order_relies_on() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(softnic(), softnic, "the software NIC");
    let kernel = KERNELS.find("post_warp").unwrap();
    let named = SEEDS.into_iter().any(|seed| {
        let mut queue = Queue::new(&context, EARLY);
        let (status, wrong) = queue.post(kernel, &launch(32, seed), MANY, PATIENCE);
        assert!(wrong == 0 && (status.error == 0 || status.error == TIMED_OUT), "seed {seed}: {status:?}");
        // The NIC names a queue after a second at least.
        let patience = if status.error == TIMED_OUT { NAMED } else { Duration::ZERO };
        let event = context.wait_async_event(patience).unwrap();
        let of_queue =
            AsyncEvent { kind: EventType::QpRequestError, element: Element::Qp(queue.qp.number()) };
        assert!(event.is_none() || event == Some(of_queue), "seed {seed}: {event:?}");
        event.is_some() && status.error == TIMED_OUT
    });
    assert!(named, "the register never came before the record under any of {SEEDS:?}");
}
