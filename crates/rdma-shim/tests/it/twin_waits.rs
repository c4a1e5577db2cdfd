//! What a kernel waits for ends, and how it ended is a value: a completion, an error CQE with its request, a
//! deadline, a word that the host set.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use host_twin::{Arguments, TwinError, run, start};
use measure::need;
use rdma_shim::sys::{db_cq, db_slot, db_sq};
use verbs::{InlineSlice, Payload, SendOperation, SendRequest, WorkCompletion};

use crate::twin_queue::{DEADLINE, Queue, STEP, STRICT, Status, Target, compiler, launch};
use crate::{KERNELS, PLANTED};
use rdma_shim::testing::{device, wait_for};

/// `DB_ETIMEDOUT`, `DB_ECANCELED`.
const TIMED_OUT: u32 = 110;
const CANCELED: u32 = 125;
/// What `post.cu` adds to the status of an error CQE; two of those.
const ERROR_CQE: u32 = 0x10000;
const WR_FLUSH: u32 = 5;
const REMOTE_ACCESS: u32 = 10;

/// `struct db_wait_status` of `kernels/wait.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Waited {
    result: u32,
    status: u32,
    syndrome: u32,
    taken: u32,
    wr_id: u64,
}

/// Arguments of `wait_once` on the queue.
fn waits(queue: &mut Queue, patience: Duration, cancel: &AtomicU32, out: &mut Waited) -> Arguments {
    Arguments::new()
        .pointer(&raw mut queue.cq)
        .pointer(&raw mut queue.sq)
        .push(patience.as_nanos() as u64)
        .pointer(cancel.as_ptr())
        .pointer(std::ptr::from_mut(out))
}

#[test]
fn twin_waits_end_at_their_deadline_or_by_the_hosts_word() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let mut queue = Queue::new(&context, STRICT);
    let kernel = KERNELS.find("wait_once").unwrap();
    let (cancel, mut out, begin) = (AtomicU32::new(0), Waited::default(), Instant::now());
    let patience = Duration::from_millis(50);
    let arguments = waits(&mut queue, patience, &cancel, &mut out);
    // SAFETY: the kernel takes these, and everything lives until it has ended.
    unsafe { run(kernel, &launch(1, 1), arguments) }.unwrap();
    assert_eq!((out.result, out.taken), (TIMED_OUT, 0));
    assert!(begin.elapsed() >= patience);

    let arguments = waits(&mut queue, DEADLINE, &cancel, &mut out);
    // SAFETY: as above.
    let running = unsafe { start(kernel, &launch(1, 2), arguments) }.unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(!running.has_ended(), "nothing has completed, and nobody set the word");
    cancel.store(1, Ordering::Release);
    running.wait().unwrap();
    assert_eq!((out.result, out.taken), (CANCELED, 0));
}

#[test]
fn twin_launches_that_are_dropped_are_given_up() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let mut queue = Queue::new(&context, STRICT);
    let kernel = KERNELS.find("wait_once").unwrap();
    let (cancel, mut out, begin) = (AtomicU32::new(0), Waited::default(), Instant::now());
    let arguments = waits(&mut queue, DEADLINE, &cancel, &mut out);
    // SAFETY: the kernel takes these, and everything lives until it has ended, which dropping waits for.
    drop(unsafe { start(kernel, &launch(1, 1), arguments) }.unwrap());
    assert!(begin.elapsed() < DEADLINE / 2);
    assert_eq!(out, Waited::default(), "the lane left the kernel where it was");
}

#[test]
fn twin_kernels_hear_of_an_error_cqe_with_its_request() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let mut queue = Queue::new(&context, STRICT);
    let target = queue.target(8, DEADLINE / 2);
    let target = Target { rkey: target.rkey ^ 0x5500, per_ring: 1, window: 1, ..target };
    let (status, _) = queue.post_with(KERNELS.find("post_thread").unwrap(), &launch(1, 1), target);
    assert_eq!(status, Status { error: ERROR_CQE + REMOTE_ACCESS, ..Status::default() });
}

/// The host moves the queue pair to ERROR while a kernel waits on it: the flush of its request tells it.
#[test]
fn twin_kernels_end_when_the_host_takes_their_queue_away() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let mut queue = Queue::new(&context, STRICT);
    let (mut seen, mut out) = ([0_u64; 1], Waited::default());
    let arguments = receives(&mut queue, 4, &mut seen, &mut out);
    // SAFETY: the kernel takes these, and everything lives until it has ended.
    let running = unsafe { start(KERNELS.find("receive").unwrap(), &launch(1, 1), arguments) }.unwrap();
    std::thread::sleep(Duration::from_millis(20));
    queue.qp.to_error().unwrap();
    running.wait().unwrap();
    assert_eq!((out.result, out.status, out.taken, out.wr_id), (0, WR_FLUSH, 0, 0));
}

/// Arguments of `receive` on the queue, one message for each word of `seen`.
fn receives(queue: &mut Queue, window: u32, seen: &mut [u64], out: &mut Waited) -> Arguments {
    Arguments::new()
        .pointer(&raw mut queue.rq)
        .pointer(&raw mut queue.cq)
        .push(queue.local.address())
        .push(queue.local.lkey())
        .push(window)
        .push(seen.len() as u32)
        .push((DEADLINE / 2).as_nanos() as u64)
        .pointer(seen.as_mut_ptr())
        .pointer(std::ptr::from_mut(out))
}

/// More messages than the receive queue holds, from libmlx5's own SENDs.
#[test]
fn twin_kernels_receive_what_was_sent_under_every_seed() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    const MESSAGES: usize = 60;
    for seed in 1..5 {
        let mut queue = Queue::new(&context, STRICT);
        let (mut seen, mut out) = ([0_u64; MESSAGES], Waited::default());
        let arguments = receives(&mut queue, 8, &mut seen, &mut out);
        // SAFETY: the kernel takes these, and everything lives until it has ended.
        let running =
            unsafe { start(KERNELS.find("receive").unwrap(), &launch(1, seed), arguments) }.unwrap();
        for message in 1..=MESSAGES as u64 {
            let bytes = STEP.wrapping_mul(message).to_le_bytes();
            let inline = [InlineSlice::new(&bytes)];
            let request = SendRequest::new(message, SendOperation::Send, Payload::Inline(&inline));
            queue.peer.post_send(&request).unwrap();
            let mut sent = [WorkCompletion::default()];
            wait_for("completion", || (queue.peer_cq.poll(&mut sent).unwrap() == 1).then_some(()));
            assert!(sent[0].is_success(), "{:?}", sent[0]);
        }
        running.wait().unwrap_or_else(|error: TwinError| panic!("{error}; seed {seed}"));
        assert_eq!((out.result, out.taken), (0, MESSAGES as u32), "seed {seed}");
        let sent: Vec<u64> = (1..=MESSAGES as u64).map(|message| STEP.wrapping_mul(message)).collect();
        assert_eq!(seen[..], sent[..], "seed {seed}");
    }
}

/// One look at a CQ in its second lap: three CQEs of this lap, then those of the first. What it says, and the
/// blocks that are retired.
fn look(kernel: host_twin::Kernel) -> (Waited, u64) {
    const ENTRIES: u64 = 32;
    const QPN: u32 = 0x12_3456;
    let mut cqes = vec![[0_u64; 8]; ENTRIES as usize];
    for (entry, cqe) in (0..ENTRIES).zip(&mut cqes) {
        let lap = u64::from(entry < 3);
        let [high, low] = ((entry + lap * ENTRIES) as u16).to_be_bytes();
        let [_, qpn @ ..] = QPN.to_be_bytes();
        cqe[7] = u64::from_ne_bytes([8, qpn[0], qpn[1], qpn[2], high, low, 0, lap as u8]);
    }
    let mut slots: Vec<db_slot> =
        (0..64).map(|block| db_slot { wr_id: 100 + block, end: block + 1 }).collect();
    let mut record = 0_u32;
    let mut sq = db_sq {
        slots: slots.as_mut_ptr().expose_provenance() as u64,
        blocks: 64,
        qpn: QPN,
        producer: ENTRIES + 16,
        rung: ENTRIES + 16,
        consumer: ENTRIES,
        ..db_sq::default()
    };
    let mut cq = db_cq {
        ring: cqes.as_mut_ptr().expose_provenance() as u64,
        record: (&raw mut record).expose_provenance() as u64,
        entries: ENTRIES as u32,
        cqn: 1,
        consumer: ENTRIES,
    };
    let mut out = Waited::default();
    let arguments =
        Arguments::new().pointer(&raw mut cq).pointer(&raw mut sq).pointer(std::ptr::from_mut(&mut out));
    // SAFETY: the kernel takes these, and everything lives until it has ended.
    unsafe { run(kernel, &launch(1, 1), arguments) }.unwrap();
    (out, sq.consumer)
}

#[test]
fn twin_a_look_takes_the_cqes_of_this_lap_and_none_behind_them() {
    need!(compiler(), cc, "a C++ compiler");
    let taken = Waited { taken: 3, wr_id: 134, ..Waited::default() };
    assert_eq!(look(KERNELS.find("take_sends").unwrap()), (taken, 35));
    let (wrong, given_back) = look(PLANTED.find("take_sends+no-owner-bit-behind").unwrap());
    assert_ne!((wrong, given_back), (taken, 35), "a look that does not test the owner bits behind the first");
    assert_eq!((wrong.taken, given_back), (16, 32), "{wrong:?}");
}
