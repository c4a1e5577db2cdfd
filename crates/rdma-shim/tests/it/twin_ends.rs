//! A twin kernel that loses a resource ends in bounded time, with an error that names queue and request.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::KERNELS;
use host_twin::{Arguments, start};
use measure::need;
use verbs::Context;

use crate::twin_queue::{DEADLINE, Queue, STRICT, compiler, launch};
use rdma_shim::testing::{device, memory, wait_for};

const TIMED_OUT: u32 = 110;
const CANCELED: u32 = 125;
/// `DB_END_COMPLETION`.
const BY_COMPLETION: u32 = 0x10000;
/// `enum ibv_wc_status`.
const LOCAL_PROTECTION: u32 = 4;
const FLUSHED: u32 = 5;
const REMOTE_ACCESS: u32 = 10;
const RETRY_EXCEEDED: u32 = 12;

/// `struct db_kernel_end` of `doorbell_kernel.h`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct End {
    wr_id: u64,
    code: u32,
    qpn: u32,
    status: u32,
    syndrome: u32,
    vendor_syndrome: u32,
    is_send: u32,
}

/// Runs `post_endlessly`, takes something away once some requests have completed, and checks how it ends: its
/// code, and the completion's status. `patience` is each wait's.
fn take_away(
    context: &Context,
    patience: Duration,
    expected: (u32, u32),
    what: &str,
    take: impl FnOnce(&mut Queue, &AtomicU32),
) {
    let mut queue = Queue::new(context, STRICT);
    let qpn = queue.qp.number();
    let (cancel, mut progress, mut end) = (AtomicU32::new(0), 0_u64, End::default());
    let progress = &raw mut progress;
    let arguments = Arguments::new()
        .pointer(&raw mut queue.sq)
        .pointer(&raw mut queue.cq)
        .push(queue.local.address())
        .push(queue.local.lkey())
        .push(queue.remote.rkey())
        .push(queue.remote.address())
        .push(patience.as_nanos() as u64)
        .pointer(cancel.as_ptr())
        .pointer(progress)
        .pointer(&raw mut end);
    // SAFETY: the kernel takes these, and everything that it reaches itself lives until it has ended.
    let running =
        unsafe { start(KERNELS.find("post_endlessly").unwrap(), &launch(1, 1), arguments) }.unwrap();
    // SAFETY: an aligned word that outlives the kernel, which stores it in one piece.
    let done = || unsafe { std::sync::atomic::AtomicU64::from_ptr(progress) }.load(Ordering::Relaxed);
    wait_for("some requests", || (done() >= 3).then_some(()));
    let begin = Instant::now();
    take(&mut queue, &cancel);
    running.wait().unwrap();
    assert!(begin.elapsed() < DEADLINE / 2, "{what}: it took {:?}", begin.elapsed());
    assert_eq!((end.code, end.status), expected, "{what}: {end:?}");
    assert_eq!(end.qpn, qpn, "{what}: {end:?}");
    // The word may be a little late.
    let last = done();
    assert!((last..=last + 1).contains(&end.wr_id), "{what}: {last} requests have completed, {end:?}");
    assert_eq!(end.syndrome != 0, end.code == BY_COMPLETION, "{what}: {end:?}");
}

#[test]
fn a_kernel_whose_memory_is_deregistered_hears_of_it_with_its_request() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let by = |status| (BY_COMPLETION, status);
    take_away(&context, DEADLINE / 4, by(REMOTE_ACCESS), "the target's MR", |queue, _| {
        let another = memory(queue.qp.pd(), 4096);
        drop(std::mem::replace(&mut queue.remote, another).deregister().unwrap());
    });
    let mut pages = None;
    take_away(&context, DEADLINE / 4, by(LOCAL_PROTECTION), "the source's MR", |queue, _| {
        let another = memory(queue.qp.pd(), 4096);
        // The kernel's own loads and stores need no registration: the pages stay.
        pages = Some(std::mem::replace(&mut queue.local, another).deregister().unwrap());
    });
    assert!(pages.is_some());
}

#[test]
fn a_kernel_whose_queue_or_peer_is_taken_away_hears_of_it_with_its_request() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    take_away(&context, DEADLINE / 4, (BY_COMPLETION, FLUSHED), "the queue pair to ERROR", |queue, _| {
        queue.qp.to_error().unwrap();
    });
    // In RESET a device forgets what was posted: no CQE comes any more.
    take_away(&context, Duration::from_secs(1), (TIMED_OUT, 0), "the queue pair to RESET", |queue, _| {
        queue.qp.reset().unwrap();
    });
    take_away(&context, DEADLINE / 4, (BY_COMPLETION, RETRY_EXCEEDED), "the peer destroyed", |queue, _| {
        let cq = verbs::Cq::new(&context, 16).unwrap();
        let another = verbs::QpBuilder::new(verbs::QpType::Rc).build(queue.qp.pd(), &cq, &cq).unwrap();
        drop(std::mem::replace(&mut queue.peer, another));
    });
}

#[test]
fn a_kernel_that_would_never_end_ends_by_the_hosts_word() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    take_away(&context, DEADLINE, (CANCELED, 0), "told to end", |_, cancel| {
        cancel.store(1, Ordering::Release)
    });
    // And where nothing completes, as the deadline of its wait is far away.
    take_away(&context, DEADLINE, (CANCELED, 0), "told to end while it waits", |queue, cancel| {
        queue.qp.reset().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        cancel.store(1, Ordering::Release);
    });
}
