//! What the paper's own release does wrong when it posts and polls, put back into our kernels: each goes wrong on the host
//! twin, beside the kernel without it, which does not. Numbers are those of the list that the tests are named by.

use std::time::Duration;

use measure::need;
use rdma_shim::twin::{Kernel, Launch, Visibility};

use crate::ends::{device, softnic};
use crate::twin_queue::{DEADLINE, Queue, STRICT, Status, Target, compiler, launch};

/// More than the ring holds.
const MESSAGES: u32 = 1024;
/// What `post.cu` adds to the status of an error CQE.
const ERROR_CQE: u32 = 0x10000;
/// In runs that may hang.
const PATIENCE: Duration = Duration::from_secs(1);

/// A launch that posts as fast as the twin can.
fn fast() -> Launch {
    Launch { visibility: Visibility::InOrder, ..launch(1, 0) }
}

/// `flood` with a doorbell every so many WQEs, of which every so many ask for a completion.
fn flood(queue: &Queue, messages: u32, per_ring: u32, signal_every: u32, patience: Duration) -> Target {
    Target { window: 512, per_ring, signal_every, ..queue.target(messages, patience) }
}

/// P1: both doorbell stores are releases of gpu scope, though ring, record and register are looked at by a device.
#[test]
fn p1_a_release_among_the_gpus_threads_does_not_reach_the_nic() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(softnic(), softnic, "the software NIC");
    let kernel = Kernel::find_planted("post_thread+gpu-scope").unwrap();
    let shown = (1..41).any(|seed| {
        let mut queue = Queue::new(&context, STRICT);
        let (status, wrong) = queue.post(kernel, &launch(1, seed), MESSAGES, PATIENCE / 4);
        status.error >= ERROR_CQE || wrong > 0
    });
    assert!(shown, "no WQE was executed too early under any seed");
}

/// P2: the CQE is taken without a look at its owner bit, right after posting, when it cannot be there yet.
#[test]
fn p2_a_cqe_that_is_believed_unseen_completes_what_has_not_arrived() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let mut queue = Queue::new(&context, STRICT);
    let target = Target { window: 1, ..flood(&queue, MESSAGES, 1, 1, DEADLINE / 2) };
    let found = queue.post_with(Kernel::find("flood").unwrap(), &fast(), target);
    assert_eq!(found, (Status::all(MESSAGES), 0), "status, wrong words");

    let context = need!(softnic(), softnic, "the software NIC");
    let mut queue = Queue::new(&context, STRICT);
    let target = Target { window: 1, ..flood(&queue, MESSAGES, 1, 1, PATIENCE) };
    let (status, _) = queue.post_with(Kernel::find_planted("flood+no-owner-bit").unwrap(), &fast(), target);
    assert!(status.early > 0, "every completion that was believed had come: {status:?}");
}

/// P3: the CQ's consumer index is cut to 16 bits, and jumps back after 65,536 CQEs.
#[test]
fn p3_a_consumer_index_of_16_bits_ends_the_queue_at_its_wrap() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    const BEYOND: u32 = 70_000;
    let mut queue = Queue::new(&context, STRICT);
    let target = flood(&queue, BEYOND, 16, 1, DEADLINE / 2);
    let (status, _) = queue.post_with(Kernel::find("flood").unwrap(), &fast(), target);
    assert_eq!(status, Status::all(BEYOND));

    let context = need!(softnic(), softnic, "the software NIC");
    let mut queue = Queue::new(&context, STRICT);
    let target = flood(&queue, BEYOND, 16, 1, PATIENCE);
    let (status, _) = queue.post_with(Kernel::find_planted("flood+short-index").unwrap(), &fast(), target);
    assert!(status.error != 0 && (65_000..67_000).contains(&status.done), "{status:?}");
}

/// P4: nothing looks whether there is room in the send queue.
#[test]
fn p4_a_poster_that_does_not_look_for_room_laps_the_nic() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let mut queue = Queue::new(&context, STRICT);
    assert!(queue.sq.blocks < MESSAGES);
    let target = flood(&queue, MESSAGES, MESSAGES, 16, DEADLINE / 2);
    let found = queue.post_with(Kernel::find("flood").unwrap(), &fast(), target);
    assert_eq!(found, (Status::all(MESSAGES), 0), "status, wrong words");

    let context = need!(softnic(), softnic, "the software NIC");
    let mut queue = Queue::new(&context, STRICT);
    let target = flood(&queue, MESSAGES, MESSAGES, 16, PATIENCE);
    let (status, wrong) =
        queue.post_with(Kernel::find_planted("flood+no-space-check").unwrap(), &fast(), target);
    // The software NIC does not execute a record that is further ahead than the ring is long; a card executes what it finds.
    assert!(status.error != 0 || wrong > 0, "{status:?}");
}

/// P5: the GPU rings with 8 bytes, the CPU pushes WQEs through the register: here either does either.
#[test]
fn p5_kernels_ring_both_ways() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    for doorbell in [0, 1] {
        for seed in 1..4 {
            let mut queue = Queue::new(&context, STRICT);
            queue.sq.doorbell = doorbell;
            let target = Target { per_ring: 1, ..queue.target(MESSAGES / 2, DEADLINE / 2) };
            let kernel = Kernel::find("post_thread").unwrap();
            let found = queue.post_with(kernel, &launch(1, seed), target);
            assert_eq!(found, (Status::all(MESSAGES / 2), 0), "doorbell {doorbell}, seed {seed}");
        }
    }
}
