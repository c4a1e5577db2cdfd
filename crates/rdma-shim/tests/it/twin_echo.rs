//! The echo service on the host twin, asked by libmlx5: what it answers, and how it ends when its peer, its queue, its memory or
//! its host take something away.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use measure::need;
use rdma_shim::twin::{Arguments, Kernel, Launch, Running, TwinError, start};
use verbs::{Payload, ReceiveRequest, SendOperation, SendRequest, WorkCompletion};

use crate::ends::{connect_with, device, wait_for};
use crate::twin_queue::{DEADLINE, Queue, STRICT, compiler, launch};

/// `DB_EIO`, `DB_ETIMEDOUT`, `DB_ECANCELED`.
const FAILED: u32 = 5;
const TIMED_OUT: u32 = 110;
const CANCELED: u32 = 125;
/// `DB_WC_*`.
const LOCAL_PROTECTION: u32 = 4;
const WR_FLUSH: u32 = 5;
const RETRY_EXCEEDED: u32 = 12;
const RNR_RETRY_EXCEEDED: u32 = 13;

/// Bytes of a buffer, of the service and of its peer.
const STRIDE: u32 = 128;
/// Where the peer receives; it sends from the buffers in front.
const ANSWERS: usize = 1 << 15;

/// `struct db_echo_run` of `kernels/echo.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Run {
    buffers: u64,
    cancel: u64,
    wait_ns: u64,
    lkey: u32,
    stride: u32,
    window: u32,
    bytes: u32,
    count: u32,
    pad: u32,
}

/// `struct db_echo_status`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Status {
    error: u32,
    ready: u32,
    messages: u64,
    wr_id: u64,
    qpn: u32,
    is_send: u32,
    status: u32,
    syndrome: u32,
    vendor_syndrome: u32,
    bytes: u32,
    wrong: u32,
    first_wrong: u32,
}

/// A queue whose peer is libmlx5's, and the service that runs on it.
struct Service {
    /// Dropped first: that waits for the kernel's end.
    running: Option<Running>,
    queue: Box<Queue>,
    cancel: Box<AtomicU32>,
    status: Box<Status>,
    asked: u64,
}

impl Service {
    /// Starts it and waits until its receives are posted.
    fn start(queue: Queue, window: u32, wait: Duration, launch: &Launch) -> Service {
        let (cancel, status) = (Box::new(AtomicU32::new(0)), Box::new(Status::default()));
        let mut service = Service { running: None, queue: Box::new(queue), cancel, status, asked: 0 };
        service.launch(window, wait, launch);
        let ready = std::ptr::from_mut(&mut service.status.ready);
        wait_for("receives", || {
            // SAFETY: a word of the status, which the kernel stores as a whole.
            let ready = unsafe { AtomicU32::from_ptr(ready) }.load(Ordering::Acquire) == 1;
            (ready || service.running.as_ref().unwrap().has_ended()).then_some(())
        });
        service
    }

    fn launch(&mut self, window: u32, wait: Duration, launch: &Launch) {
        let queue = &mut self.queue;
        let run = Run {
            buffers: queue.local.address(),
            cancel: self.cancel.as_ptr().expose_provenance() as u64,
            wait_ns: wait.as_nanos() as u64,
            lkey: queue.local.lkey(),
            stride: STRIDE,
            window,
            bytes: 0,
            count: 0,
            pad: 0,
        };
        let arguments = Arguments::new()
            .pointer(&raw mut queue.sq)
            .pointer(&raw mut queue.rq)
            .pointer(&raw mut queue.cq)
            .push(run)
            .pointer(&raw mut *self.status);
        // SAFETY: the kernel takes these, and all lives in boxes until it has ended.
        self.running = Some(unsafe { start(Kernel::find("echo").unwrap(), launch, arguments) }.unwrap());
    }

    /// Waits for the end of the kernel.
    fn end(&mut self) -> Result<Status, TwinError> {
        self.running.take().unwrap().wait().map(|_| *self.status)
    }

    fn cancel(&mut self) -> Status {
        self.cancel.store(1, Ordering::Release);
        self.end().unwrap()
    }

    /// Posts a receive at the peer, into the buffer of a number.
    fn expect_answer(&mut self, number: usize) {
        let piece = [self.queue.remote.sge(answer_at(number)).unwrap()];
        self.queue
            .peer
            .post_receive(&ReceiveRequest { id: 1 << 32 | number as u64, scatter: &piece })
            .unwrap();
    }

    /// Sends a message from the peer's buffer of a number.
    fn ask(&mut self, number: usize, message: &[u8]) {
        let start = number * STRIDE as usize;
        self.queue.remote.write(start, message);
        let piece = [self.queue.remote.sge(start..start + message.len()).unwrap()];
        let request = SendRequest::new(number as u64, SendOperation::Send, Payload::Gather(&piece));
        self.queue.peer.post_send(&request).unwrap();
        self.asked += 1;
    }

    /// The next answer: whose, and what it says. Completions of questions are passed over.
    fn answer(&mut self) -> (usize, Vec<u8>) {
        loop {
            let mut done = [WorkCompletion::default()];
            wait_for("answer", || (self.queue.peer_cq.poll(&mut done).unwrap() == 1).then_some(()));
            assert!(done[0].is_success(), "{:?}", done[0]);
            if done[0].id() >> 32 == 1 {
                let number = done[0].id() as u32 as usize;
                let mut bytes = vec![0; done[0].byte_count() as usize];
                self.queue.remote.read(answer_at(number).start, &mut bytes);
                return (number, bytes);
            }
        }
    }
}

fn answer_at(number: usize) -> std::ops::Range<usize> {
    let start = ANSWERS + number * STRIDE as usize;
    start..start + STRIDE as usize
}

/// Bytes of a message, its number in each.
fn message(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|byte| (number * 31 + byte) as u8 | 0x80).collect()
}

/// What comes back: 1 more in its last whole word.
fn answered(mut message: Vec<u8>) -> Vec<u8> {
    if let Some(start) = (message.len() / 8).checked_sub(1).map(|word| word * 8) {
        let word = u64::from_le_bytes(message[start..start + 8].try_into().unwrap()).wrapping_add(1);
        message[start..start + 8].copy_from_slice(&word.to_le_bytes());
    }
    message
}

/// More messages than the queues hold, of all kinds of lengths, several at a time.
#[test]
fn twin_echo_answers_every_message_under_every_seed() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    const WINDOW: usize = 4;
    const LENGTHS: [usize; 7] = [8, 64, 128, 0, 3, 12, 127];
    for seed in 1..5 {
        let queue = Queue::new(&context, STRICT);
        let mut service = Service::start(queue, WINDOW as u32, DEADLINE / 2, &launch(1, seed));
        let messages: Vec<_> = (0..100).map(|n| message(n, LENGTHS[n % LENGTHS.len()])).collect();
        for (number, message) in messages.iter().enumerate() {
            if number >= WINDOW {
                let expected = (number % WINDOW, answered(messages[number - WINDOW].clone()));
                assert_eq!(service.answer(), expected, "seed {seed}");
            }
            service.expect_answer(number % WINDOW);
            service.ask(number % WINDOW, message);
        }
        let last: Vec<_> = (0..WINDOW).map(|_| service.answer().1).collect();
        assert_eq!(last, messages[100 - WINDOW..].iter().cloned().map(answered).collect::<Vec<_>>());
        let qpn = service.queue.qp.number();
        let status = service.cancel();
        assert_eq!((status.error, status.messages, status.qpn), (CANCELED, 100, qpn), "{status:?}");
    }
}

/// A service with one receive, and eight messages at once: those that come too early are sent again by the peer's NIC.
#[test]
fn twin_echo_answers_more_messages_than_it_has_receives() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let mut service = Service::start(Queue::new(&context, STRICT), 1, DEADLINE / 2, &launch(1, 3));
    (0..8).for_each(|number| service.expect_answer(number));
    (0..8).for_each(|number| service.ask(number, &message(number, 24)));
    for number in 0..8 {
        assert_eq!(service.answer(), (number, answered(message(number, 24))));
    }
    assert_eq!(service.cancel().messages, 8);
}

/// What ends the service but its host: rows of what is done to it, and what it says.
#[test]
fn twin_echo_ends_with_the_queue_and_the_request_that_failed() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let end = |what: fn(&mut Service), window| {
        let queue = Queue::new(&context, STRICT);
        // Nor does it wait for ever for a peer without a receive.
        queue.qp.reset().unwrap();
        connect_with(&queue.qp, queue.peer.number(), 1);
        let mut service = Service::start(queue, window, DEADLINE / 2, &launch(1, 1));
        let since = Instant::now();
        what(&mut service);
        let status = service.end().unwrap();
        assert!(since.elapsed() < DEADLINE / 4, "{status:?} after {:?}", since.elapsed());
        assert_eq!((status.error, status.qpn), (FAILED, service.queue.qp.number()), "{status:?}");
        assert_ne!(status.syndrome, 0, "{status:?}");
        (status.status, status.is_send, status.wr_id, status.messages)
    };
    // The host takes the queue pair away: the oldest receive is flushed.
    assert_eq!(end(|service| service.queue.qp.to_error().unwrap(), 4), (WR_FLUSH, 0, 0, 0));
    // The memory of its buffers goes, and a message comes.
    let no_memory = |service: &mut Service| {
        let other = crate::ends::memory(service.queue.qp.pd(), 1 << 12);
        let pages = std::mem::replace(&mut service.queue.local, other).deregister().unwrap();
        // The kernel may look at it until it has ended.
        Box::leak(Box::new(pages));
        service.ask(0, &message(0, 64));
    };
    assert_eq!(end(no_memory, 4), (LOCAL_PROTECTION, 0, 0, 0));
    // The second message's sender has no receive for its answer.
    let no_receive = |service: &mut Service| {
        service.expect_answer(0);
        service.ask(0, &message(0, 64));
        service.answer();
        service.ask(1, &message(1, 64));
    };
    assert_eq!(end(no_receive, 2), (RNR_RETRY_EXCEEDED, 1, 1, 2));
}
