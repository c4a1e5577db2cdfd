//! Posting and polling errors of the paper's release, put back into our kernels: on the host twin each goes
//! wrong, the kernel without it does not. Numbers are those of the list that the tests are named by.

use std::time::Duration;

use crate::{KERNELS, PLANTED};
use host_twin::{Arguments, Kernel, Launch, TwinError, Visibility, run};
use measure::need;
use rdma_shim::header;
use rdma_shim::sys::db_sq;

use crate::twin_queue::{DEADLINE, Queue, STRICT, Shared, Status, Target, compiler, launch};
use rdma_shim::testing::{device, softnic, wait_for};

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

/// P1: both doorbell stores release at gpu scope, though a device looks at ring, record and register.
#[test]
fn release_p1_a_release_among_the_gpus_threads_does_not_reach_the_nic() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(softnic(), softnic, "the software NIC");
    let kernel = PLANTED.find("post_thread+gpu-scope").unwrap();
    let shown = (1..41).any(|seed| {
        let mut queue = Queue::new(&context, STRICT);
        let (status, wrong) = queue.post(kernel, &launch(1, seed), MESSAGES, PATIENCE / 4);
        status.error >= ERROR_CQE || wrong > 0
    });
    assert!(shown, "no WQE was executed too early under any seed");
}

/// P2: the CQE is taken without a look at its owner bit, right after posting, when it cannot be there yet.
#[test]
fn release_p2_a_cqe_that_is_believed_unseen_completes_what_has_not_arrived() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let mut queue = Queue::new(&context, STRICT);
    let target = Target { window: 1, ..flood(&queue, MESSAGES, 1, 1, DEADLINE / 2) };
    let found = queue.post_with(KERNELS.find("flood").unwrap(), &fast(), target);
    assert_eq!(found, (Status::all(MESSAGES), 0), "status, wrong words");

    let context = need!(softnic(), softnic, "the software NIC");
    let mut queue = Queue::new(&context, STRICT);
    let target = Target { window: 1, ..flood(&queue, MESSAGES, 1, 1, PATIENCE) };
    let (status, _) = queue.post_with(PLANTED.find("flood+no-owner-bit").unwrap(), &fast(), target);
    assert!(status.early > 0, "every completion that was believed had come: {status:?}");
}

/// P3: the CQ's consumer index is cut to 16 bits, and jumps back after 65,536 CQEs.
#[test]
fn release_p3_a_consumer_index_of_16_bits_ends_the_queue_at_its_wrap() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    const BEYOND: u32 = 70_000;
    let mut queue = Queue::new(&context, STRICT);
    let target = flood(&queue, BEYOND, 16, 1, DEADLINE / 2);
    let (status, _) = queue.post_with(KERNELS.find("flood").unwrap(), &fast(), target);
    assert_eq!(status, Status::all(BEYOND));

    let context = need!(softnic(), softnic, "the software NIC");
    let mut queue = Queue::new(&context, STRICT);
    let target = flood(&queue, BEYOND, 16, 1, PATIENCE);
    let (status, _) = queue.post_with(PLANTED.find("flood+short-index").unwrap(), &fast(), target);
    assert!(status.error != 0 && (65_000..67_000).contains(&status.done), "{status:?}");
}

/// P4: nothing looks whether there is room in the send queue.
#[test]
fn release_p4_a_poster_that_does_not_look_for_room_laps_the_nic() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let mut queue = Queue::new(&context, STRICT);
    assert!(queue.sq.blocks < MESSAGES);
    let target = flood(&queue, MESSAGES, MESSAGES, 16, DEADLINE / 2);
    let found = queue.post_with(KERNELS.find("flood").unwrap(), &fast(), target);
    assert_eq!(found, (Status::all(MESSAGES), 0), "status, wrong words");

    let context = need!(softnic(), softnic, "the software NIC");
    let mut queue = Queue::new(&context, STRICT);
    let target = flood(&queue, MESSAGES, MESSAGES, 16, PATIENCE);
    let (status, wrong) = queue.post_with(PLANTED.find("flood+no-space-check").unwrap(), &fast(), target);
    // The software NIC refuses a record that is ahead by more than the ring; a card executes what it finds.
    assert!(status.error != 0 || wrong > 0, "{status:?}");
}

/// P5: the GPU rings with 8 bytes, the CPU pushes WQEs through the register: here either does either.
#[test]
fn release_p5_kernels_ring_both_ways() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    for doorbell in [0, 1] {
        for seed in 1..4 {
            let mut queue = Queue::new(&context, STRICT);
            queue.sq.doorbell = doorbell;
            let target = Target { per_ring: 1, ..queue.target(MESSAGES / 2, DEADLINE / 2) };
            let kernel = KERNELS.find("post_thread").unwrap();
            let found = queue.post_with(kernel, &launch(1, seed), target);
            assert_eq!(found, (Status::all(MESSAGES / 2), 0), "doorbell {doorbell}, seed {seed}");
        }
    }

    let context = need!(softnic(), softnic, "the software NIC");
    // It takes 8 bytes out of the register: what lies behind them was pushed.
    let pushes = |kernel: Kernel| {
        [0, 1].map(|doorbell| {
            let mut queue = Queue::new(&context, STRICT);
            queue.sq.doorbell = doorbell;
            let second = std::ptr::with_exposed_provenance_mut::<u64>(queue.sq.reg as usize + 8);
            // The page may have been another queue's.
            // SAFETY: the register's first half holds a 64-byte WQE; the queue pair keeps its page mapped.
            unsafe { second.write_volatile(0) };
            let target = queue.target(1, DEADLINE / 2);
            assert_eq!(queue.post_with(kernel, &fast(), target), (Status::all(1), 0));
            // SAFETY: as above.
            let word = unsafe { second.read_volatile() };
            word != 0
        })
    };
    assert_eq!(pushes(KERNELS.find("post_thread").unwrap()), [false, true]);
    let planted = pushes(PLANTED.find("post_thread+eight-bytes").unwrap());
    assert_eq!(planted, [false, false], "the defect is not seen");
}

/// P6: one thread posts, without a lock. Many do here, and none takes another's blocks.
#[test]
fn release_p6_posters_that_do_not_reserve_overwrite_one_another() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let many = |seed| Launch { blocks: 2.into(), ..launch(64, seed) };
    let target = |queue: &Queue, patience| Target { window: 512, ..queue.target(512, patience) };
    let queue = Queue::new(&context, STRICT);
    let mut shared = Shared::of(&queue, 15);
    let kernel = KERNELS.find("post_shared").unwrap();
    let found = shared.post(kernel, &many(1), target(&queue, DEADLINE / 2));
    assert_eq!((found, shared.failed), (Status::all(512), 0));
    wait_for("message in every word", || (queue.wrong_words(512) == 0).then_some(()));

    let context = need!(softnic(), softnic, "the software NIC");
    let kernel = PLANTED.find("post_shared+one-poster").unwrap();
    let shown = (1..9).any(|seed| {
        let queue = Queue::new(&context, STRICT);
        let mut shared = Shared::of(&queue, 15);
        let status = shared.post(kernel, &many(seed), target(&queue, PATIENCE / 4));
        status.error != 0 || queue.wrong_words_at_rest(512) > 0
    });
    assert!(shown, "every message arrived though nobody reserved");
}

/// P8: the index within the ring in the place of the counter, and bytes in the place of 16-byte units.
#[test]
fn release_p8_a_wqe_with_a_ring_index_or_a_length_in_bytes_is_not_executed() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let mut queue = Queue::new(&context, STRICT);
    assert!(queue.sq.blocks < MESSAGES, "the counter leaves the ring");
    let found = queue.post(KERNELS.find("post_thread").unwrap(), &fast(), MESSAGES, DEADLINE / 2);
    assert_eq!(found, (Status::all(MESSAGES), 0), "status, wrong words");

    let context = need!(softnic(), softnic, "the software NIC");
    for (kernel, at_most) in [("post_thread+ring-index", queue.sq.blocks), ("post_thread+length-in-bytes", 0)]
    {
        let mut queue = Queue::new(&context, STRICT);
        let kernel = PLANTED.find(kernel).unwrap();
        let (status, _) = queue.post(kernel, &fast(), MESSAGES, PATIENCE);
        assert!(status.error != 0 && status.done <= at_most, "{kernel:?}: {status:?}");
    }
}

/// P9: sizes that were fixed when the program was written. Ours are what libmlx5 says of each queue.
#[test]
fn release_p9_queues_of_every_size_work_and_a_size_that_is_assumed_does_not() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let kernel = KERNELS.find("post_thread").unwrap();
    let run_on = |queue: &mut Queue, patience| {
        let window = (queue.sq.blocks / 8).clamp(1, 32);
        let target = Target { window, per_ring: 1, ..queue.target(MESSAGES, patience) };
        queue.post_with(kernel, &fast(), target)
    };
    let mut sizes = Vec::new();
    for requests in [1, 5, 16, 100, 300] {
        let mut queue = Queue::of(&context, STRICT, requests);
        sizes.push(queue.sq.blocks);
        assert_eq!(run_on(&mut queue, DEADLINE / 2), (Status::all(MESSAGES), 0), "{requests} requests");
    }
    sizes.dedup();
    assert!(sizes.len() >= 4, "{sizes:?}");

    let context = need!(softnic(), softnic, "the software NIC");
    let mut queue = Queue::of(&context, STRICT, 100);
    assert!(queue.sq.blocks > 64);
    queue.sq.blocks = 64;
    let (status, _) = run_on(&mut queue, PATIENCE);
    assert!(status.error != 0 && status.done <= 64, "{status:?}");
}

/// P10: memory without regard to alignment. Ours stores whole segments, and refuses a queue where it cannot.
#[test]
fn release_p10_a_queue_that_is_not_aligned_is_refused() {
    need!(compiler(), cc, "a C++ compiler");
    let fresh = db_sq { ring: 4096, record: 64, reg: 128, slots: 8192, blocks: 64, ..db_sq::default() };
    let init = |kernel: Kernel, mut sq: db_sq| {
        let mut error = u32::MAX;
        let arguments = Arguments::new().pointer(&raw mut sq).push(64_u32).pointer(&raw mut error);
        // SAFETY: the kernel takes these, and reaches nothing that the queue names.
        unsafe { run(kernel, &fast(), arguments) }.unwrap();
        error
    };
    let (kernel, planted) =
        (KERNELS.find("look_at_queue").unwrap(), PLANTED.find("look_at_queue+no-alignment").unwrap());
    assert_eq!(init(kernel, fresh.clone()), 0);
    for (what, sq) in [
        ("the ring", db_sq { ring: 4096 + 8, ..fresh.clone() }),
        ("the slots", db_sq { slots: 8192 + 8, ..fresh.clone() }),
        ("the record", db_sq { record: 66, ..fresh.clone() }),
        ("the register", db_sq { reg: 132, ..fresh.clone() }),
    ] {
        assert_eq!(init(kernel, sq.clone()), 22, "{what}");
        assert_eq!(init(planted, sq), 0, "{what}, where nobody looks");
    }
}

/// Two-digit offsets and numbers typed from `mlx5dv.h`: `mlx5_cqe64`, `mlx5_err_cqe`, opcodes, syndromes.
const MLX5DV: [(&str, u32); 22] = [
    ("DB_BLOCK_BYTES", 64),
    ("DB_SEGMENT_BYTES", 16),
    ("DB_MAX_DS", 63),
    ("DB_INVALID_LKEY", 0x100),
    ("DB_OPCODE_RDMA_READ", 0x10),
    ("DB_OPCODE_ATOMIC_CS", 0x11),
    ("DB_OPCODE_ATOMIC_FA", 0x12),
    ("DB_CQE_BYTES", 64),
    ("DB_CQE_IMMEDIATE", 36),
    ("DB_CQE_BYTE_COUNT", 44),
    ("DB_CQE_OPCODE_QPN", 56),
    ("DB_CQE_WQE_COUNTER", 60),
    ("DB_CQE_OP_OWN", 63),
    ("DB_CQE_SYNDROME", 55),
    ("DB_CQE_VENDOR_SYNDROME", 54),
    ("DB_SYNDROME_BAD_RESPONSE", 0x10),
    ("DB_SYNDROME_REMOTE_INVALID_REQUEST", 0x12),
    ("DB_SYNDROME_REMOTE_ACCESS", 0x13),
    ("DB_SYNDROME_REMOTE_OPERATION", 0x14),
    ("DB_SYNDROME_TRANSPORT_RETRY_EXCEEDED", 0x15),
    ("DB_SYNDROME_RNR_RETRY_EXCEEDED", 0x16),
    ("DB_SYNDROME_REMOTE_ABORTED", 0x22),
];

/// Names of [`MLX5DV`] that a text of C constants has with another number, or not at all.
fn unlike_mlx5dv(text: &str) -> Vec<&'static str> {
    let is_there = |(name, number): &(&str, u32)| text.contains(&format!("#define {name} {number:#x}u\n"));
    MLX5DV.iter().filter(|row| !is_there(row)).map(|(name, _)| *name).collect()
}

/// P11: 1204 for 1024. Sizes of structs and numbers of the header are compared with what they stand for.
#[test]
fn release_p11_a_size_with_two_digits_exchanged_is_found() {
    need!(compiler(), cc, "a C++ compiler");
    let kernel = KERNELS.find("post_list").unwrap();
    let wanted: usize = kernel.parameters().iter().map(|&bytes| bytes as usize).sum();
    assert_eq!(wanted, 36, "four pointers and a count");
    let arguments = Arguments::new().push(0_u64).push(0_u64).push([0_u8; 1204]).push(0_u64).push(0_u64);
    // SAFETY: it is refused before it runs.
    let refused = unsafe { run(kernel, &fast(), arguments) }.unwrap_err();
    assert!(matches!(&refused, TwinError::Arguments { .. }), "{refused}");
    assert!(refused.to_string().contains("1204"), "{refused}");

    let generated = header::mlx5_layout_h();
    assert_eq!(unlike_mlx5dv(&generated), Vec::<&str>::new());
    let mut found = 0;
    for (name, number) in MLX5DV {
        let exchanged = number % 16 * 16 + number / 16;
        if number > 0xff || exchanged == number {
            continue;
        }
        let line = |number: u32| format!("#define {name} {number:#x}u\n");
        let wrong = generated.replacen(&line(number), &line(exchanged), 1);
        assert_eq!(unlike_mlx5dv(&wrong), [name], "{exchanged:#x} for {number:#x}");
        found += 1;
    }
    assert!(found >= 15, "{found} numbers");
}
