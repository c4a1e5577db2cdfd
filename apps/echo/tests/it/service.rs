//! The echo service, asked by libmlx5 and by a kernel: its answers, and how it ends when peer, queue, memory
//! or host take something away. Each on the host twin, and on a GPU where there is one.

use std::time::{Duration, Instant};

use echo::kernel::{Echo, EchoClient, KERNELS, Listening, Questions};
use measure::need;
use rdma_shim::kernel::{Failure, KernelError, Machine, Place, Queue, Reason, Region, Running};
use rdma_shim::testing::{Bench, PATIENCE, connect_with, device, memory, wait_for};
use rdma_shim::{Options, Status, on_both};
use verbs::code::{Access, WcStatus};
use verbs::{Cq, Mr, Pages, Payload, QueuePair, ReceiveRequest, SendOperation, SendRequest, WorkCompletion};

/// In which everything ends that was told to, or has failed.
const SOON: Duration = Duration::from_secs(15);
/// Bytes of a buffer, of the service and of its peer.
const STRIDE: usize = 128;
/// Where the peer receives; it sends from the buffers in front.
const ANSWERS: usize = 1 << 15;

/// Starts a service.
trait Serve {
    /// A service that is asked by libmlx5, with so many messages at a time and so long a patience.
    fn service(&self, window: u32, patience: Duration) -> Service {
        self.service_with(window, patience, 7)
    }

    /// As `service`, with a number of retries by the service after a peer without a receive; 7: without end.
    fn service_with(&self, window: u32, patience: Duration, rnr_retry: u8) -> Service;
}

impl Serve for Bench {
    fn service_with(&self, window: u32, patience: Duration, rnr_retry: u8) -> Service {
        let (queue, region) = self.end();
        let cq = self.cq();
        let peer = Bench::builder().build(&self.pd, &cq, &cq).unwrap();
        connect_with(queue.qp(), peer.number(), rnr_retry);
        connect_with(&peer, queue.qp().number(), 7);
        let listening = Listening { window, most_bytes: STRIDE as u32, patience };
        let running = Echo::new(queue, &region, listening).unwrap().start().unwrap();
        wait_for("receives", || running.held().unwrap().is_ready().unwrap().then_some(()));
        Service { running, region: Some(region), peer, cq, memory: memory(&self.pd, 1 << 16) }
    }
}

/// A service that runs, and its peer.
pub struct Service {
    /// Its kernel.
    pub running: Running<Echo>,
    /// Its buffers' registration.
    pub region: Option<Region>,
    /// The peer that asks.
    pub peer: QueuePair,
    cq: Cq,
    memory: Mr<Pages>,
}

impl Service {
    /// Posts a receive at the peer, into the buffer of a number.
    pub fn expect_answer(&mut self, number: usize) {
        let piece = [self.memory.sge(answer_at(number)).unwrap()];
        self.peer.post_receive(&ReceiveRequest { id: 1 << 32 | number as u64, scatter: &piece }).unwrap();
    }

    /// Sends a message from the peer's buffer of a number.
    pub fn ask(&mut self, number: usize, message: &[u8]) {
        let start = number * STRIDE;
        self.memory.write(start, message);
        let piece = [self.memory.sge(start..start + message.len()).unwrap()];
        let request = SendRequest::new(number as u64, SendOperation::Send, Payload::Gather(&piece));
        self.peer.post_send(&request).unwrap();
    }

    fn completion(&mut self) -> WorkCompletion {
        let mut done = [WorkCompletion::default()];
        wait_for("completion", || (self.cq.poll(&mut done).unwrap() == 1).then_some(()));
        done[0]
    }

    /// The next answer: its number, and what it says. Completions of questions are passed over.
    pub fn answer(&mut self) -> (usize, Vec<u8>) {
        loop {
            let done = self.completion();
            assert!(done.is_success(), "{done:?}");
            if done.id() >> 32 == 1 {
                let number = done.id() as u32 as usize;
                let mut bytes = vec![0; done.byte_count() as usize];
                self.memory.read(answer_at(number).start, &mut bytes);
                return (number, bytes);
            }
        }
    }

    /// Waits for its end by itself: messages answered, and why it ended.
    fn end(self) -> (u64, Failure) {
        let since = Instant::now();
        let qpn = self.running.held().unwrap().queue().qp().number();
        let outcome = self.running.end(PATIENCE).unwrap().outcome().unwrap();
        assert!(since.elapsed() < SOON, "{outcome:?} after {:?}", since.elapsed());
        let failure = outcome.failure.unwrap();
        assert_eq!(failure.qpn, qpn, "{failure}");
        (outcome.messages, failure)
    }

    /// Tells it to end: messages answered.
    pub fn cancel(self) -> u64 {
        self.running.cancel();
        let (messages, failure) = self.end();
        assert_eq!(failure.reason, Reason::Cancelled, "{failure}");
        messages
    }
}

fn answer_at(number: usize) -> std::ops::Range<usize> {
    let start = ANSWERS + number * STRIDE;
    start..start + STRIDE
}

/// Bytes of a message, its number in each.
pub fn message(number: usize, bytes: usize) -> Vec<u8> {
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
fn answers_every_message(bench: &Bench) {
    const WINDOW: usize = 4;
    const LENGTHS: [usize; 7] = [8, 64, 128, 0, 3, 12, 127];
    let mut service = bench.service(WINDOW as u32, PATIENCE);
    let messages: Vec<_> = (0..100).map(|n| message(n, LENGTHS[n % LENGTHS.len()])).collect();
    for (number, message) in messages.iter().enumerate() {
        if number >= WINDOW {
            let expected = (number % WINDOW, answered(messages[number - WINDOW].clone()));
            assert_eq!(service.answer(), expected, "{:?}", bench.machine);
        }
        service.expect_answer(number % WINDOW);
        service.ask(number % WINDOW, message);
    }
    let last: Vec<_> = (0..WINDOW).map(|_| service.answer().1).collect();
    assert_eq!(last, messages[100 - WINDOW..].iter().cloned().map(answered).collect::<Vec<_>>());
    assert_eq!(service.cancel(), 100);
}

on_both!(twin_echo_answers_every_message, gpu_echo_answers_every_message, answers_every_message);

#[test]
fn twin_echo_answers_every_message_under_other_seeds() {
    let context = need!(device(), nic, "an mlx5 device");
    for seed in 2..5 {
        answers_every_message(&need!(Bench::twin(&KERNELS, &context, seed), cc, "a C++ compiler"));
    }
}

/// A service with one receive gets eight messages at once: the peer's NIC sends those too early again.
fn answers_more_messages_than_it_has_receives(bench: &Bench) {
    let mut service = bench.service(1, PATIENCE);
    (0..8).for_each(|number| service.expect_answer(number));
    (0..8).for_each(|number| service.ask(number, &message(number, 24)));
    for number in 0..8 {
        assert_eq!(service.answer(), (number, answered(message(number, 24))));
    }
    assert_eq!(service.cancel(), 8);
}

on_both!(
    twin_echo_answers_more_messages_than_it_has_receives,
    gpu_echo_answers_more_messages_than_it_has_receives,
    answers_more_messages_than_it_has_receives
);

/// What a service says that hears of an error CQE: messages answered, status, request, whether it was a send.
fn error_cqe((messages, failure): (u64, Failure)) -> (u64, WcStatus, u64, bool) {
    let Reason::Completion { status: Status::Verbs(status), syndrome, is_send, .. } = failure.reason else {
        panic!("{failure}");
    };
    assert_ne!(syndrome, 0, "{failure}");
    (messages, status, failure.wr_id, is_send)
}

/// The host takes the queue pair away: the oldest receive is flushed.
fn hears_that_its_queue_was_moved_to_error(bench: &Bench) {
    let service = bench.service(4, PATIENCE);
    service.running.held().unwrap().queue().qp().to_error().unwrap();
    assert_eq!(error_cqe(service.end()), (0, WcStatus::WrFlush, 0, false));
}

on_both!(
    twin_echo_hears_that_its_queue_was_moved_to_error,
    gpu_echo_hears_that_its_queue_was_moved_to_error,
    hears_that_its_queue_was_moved_to_error
);

/// The memory of its buffers is deregistered, and a message comes. Its peer is told as well.
fn hears_that_its_memory_was_deregistered(bench: &Bench) {
    let mut service = bench.service(4, PATIENCE);
    service.region = None;
    service.ask(0, &message(0, 64));
    assert!(!service.completion().is_success());
    assert_eq!(error_cqe(service.end()), (0, WcStatus::LocalProtection, 0, false));
}

on_both!(
    twin_echo_hears_that_its_memory_was_deregistered,
    gpu_echo_hears_that_its_memory_was_deregistered,
    hears_that_its_memory_was_deregistered
);

/// The second message's sender has no receive for its answer, and the service tries only once more.
fn hears_that_its_peer_takes_no_answer(bench: &Bench) {
    let mut service = bench.service_with(2, PATIENCE, 1);
    service.expect_answer(0);
    service.ask(0, &message(0, 64));
    service.answer();
    service.ask(1, &message(1, 64));
    assert_eq!(error_cqe(service.end()), (2, WcStatus::RnrRetryExceeded, 1, true));
}

on_both!(
    twin_echo_hears_that_its_peer_takes_no_answer,
    gpu_echo_hears_that_its_peer_takes_no_answer,
    hears_that_its_peer_takes_no_answer
);

/// The peer goes while an answer waits for its receive.
fn hears_that_its_peer_is_gone(bench: &Bench) {
    let mut service = bench.service(2, PATIENCE);
    service.ask(0, &message(0, 64));
    wait_for("an answer", || {
        (service.running.held().unwrap().outcome().unwrap().messages == 1).then_some(())
    });
    service.peer.to_error().unwrap();
    assert_eq!(error_cqe(service.end()), (1, WcStatus::RetryExceeded, 0, true));
}

on_both!(
    twin_echo_hears_that_its_peer_is_gone,
    gpu_echo_hears_that_its_peer_is_gone,
    hears_that_its_peer_is_gone
);

/// Told to end among many messages, it answers the one that it is at, and no other.
fn ends_within_one_message(bench: &Bench) {
    for _ in 0..8 {
        let mut service = bench.service(16, PATIENCE);
        (0..16).for_each(|number| service.expect_answer(number));
        (0..16).for_each(|number| service.ask(number, &message(number, 64)));
        service.answer();
        service.running.cancel();
        let then = service.running.held().unwrap().outcome().unwrap().messages;
        let (messages, failure) = service.end();
        assert_eq!(failure.reason, Reason::Cancelled, "{failure}");
        // What a GPU stored may be under way to the CPU, as may what it reads be to the GPU.
        let under_way = u64::from(bench.machine.is_gpu());
        assert!(messages <= then + 1 + under_way, "{messages}, of which {then} when it was told");
    }
}

on_both!(twin_echo_ends_within_one_message, gpu_echo_ends_within_one_message, ends_within_one_message);

/// A service that nobody keeps is told to end, and waited for: its queue pair does not go before.
fn ends_when_it_is_dropped(bench: &Bench) {
    let service = bench.service(4, PATIENCE);
    let since = Instant::now();
    drop(service.running);
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
}

on_both!(twin_echo_ends_when_it_is_dropped, gpu_echo_ends_when_it_is_dropped, ends_when_it_is_dropped);

fn ends_without_a_message(bench: &Bench) {
    let patience = Duration::from_millis(50);
    let since = Instant::now();
    let (messages, failure) = bench.service(4, patience).end();
    assert_eq!((messages, failure.reason), (0, Reason::Deadline), "{failure}");
    assert!(since.elapsed() >= patience);
}

on_both!(twin_echo_ends_without_a_message, gpu_echo_ends_without_a_message, ends_without_a_message);

/// The client, its peer, and the memory of both.
fn asks(bench: &Bench, questions: Questions) -> (EchoClient, Region, QueuePair, Cq, Mr<Pages>) {
    let (queue, region) = bench.end();
    let cq = bench.cq();
    let peer = Bench::builder().build(&bench.pd, &cq, &cq).unwrap();
    connect_with(queue.qp(), peer.number(), 7);
    connect_with(&peer, queue.qp().number(), 7);
    let ask = EchoClient::new(queue, &region, questions).unwrap();
    (ask, region, peer, cq, memory(&bench.pd, STRIDE))
}

const QUESTIONS: Questions = Questions { count: 200, bytes: STRIDE as u32, patience: PATIENCE, threads: 1 };

/// Two kernels: each question is answered, looked at word for word, and timed.
fn kernels_ask_and_answer(bench: &Bench) {
    let count = if bench.machine.is_gpu() { 5000 } else { 200 };
    for (threads, bytes) in [(1, 8), (if bench.machine.is_gpu() { 64 } else { 4 }, 1 << 12)] {
        let ((queue, region), (asking, its_region)) = (bench.end(), bench.end());
        connect_with(queue.qp(), asking.qp().number(), 7);
        connect_with(asking.qp(), queue.qp().number(), 7);
        let listening = Listening { window: 2, most_bytes: bytes, patience: PATIENCE };
        let echo = Echo::new(queue, &region, listening).unwrap();
        let questions = Questions { count, bytes, threads, ..QUESTIONS };
        let ask = EchoClient::new(asking, &its_region, questions).unwrap();
        let running = echo.start().unwrap();
        let asked = ask.start().unwrap().end(PATIENCE).unwrap();
        let (outcome, mut times) = (asked.outcome().unwrap(), asked.round_trips_ns().unwrap());
        running.cancel();
        let answered = running.end(SOON).unwrap().outcome().unwrap().messages;
        let all = u64::from(count);
        assert_eq!((outcome.failure, outcome.messages, outcome.wrong_words, answered), (None, all, 0, all));
        assert!(times.len() == count as usize && times.iter().all(|&ns| ns > 0), "{times:?}");
        times.sort_unstable();
        println!(
            "TABLE {} bytes by {}, there and back: p50 {:.1} us, p99 {:.1} us",
            bytes,
            bench.machine.name(),
            f64::from(times[times.len() / 2]) / 1e3,
            f64::from(times[times.len() * 99 / 100]) / 1e3
        );
    }
}

on_both!(twin_echo_kernels_ask_and_answer, gpu_echo_kernels_ask_and_answer, kernels_ask_and_answer);

/// Both kernels are launched repeatedly on the same queues, more often than their CQs hold entries left by a
/// short launch. Then the queues are emptied, reconnected and given to new kernels.
fn kernels_begin_again(bench: &Bench) {
    const COUNT: u32 = 5;
    let ((mut queue, region), (mut asking, its_region)) = (bench.end(), bench.end());
    for life in 0..2 {
        connect_with(queue.qp(), asking.qp().number(), 7);
        connect_with(asking.qp(), queue.qp().number(), 7);
        let listening = Listening { window: 2, most_bytes: 64, patience: PATIENCE };
        let mut echo = Echo::new(queue, &region, listening).unwrap();
        let questions = Questions { count: COUNT, bytes: 64, ..QUESTIONS };
        let mut ask = EchoClient::new(asking, &its_region, questions).unwrap();
        for launch in 0..30 {
            let running = echo.start().unwrap();
            ask = ask.start().unwrap().end(PATIENCE).unwrap();
            running.cancel();
            echo = running.end(SOON).unwrap();
            let (asked, answered) = (ask.outcome().unwrap(), echo.outcome().unwrap());
            let what = format!("life {life}, launch {launch}: {asked:?} {answered:?}");
            assert_eq!(
                (asked.messages, asked.failure, asked.wrong_words),
                (u64::from(COUNT), None, 0),
                "{what}"
            );
            assert_eq!(answered.messages, u64::from(COUNT), "{what}");
            assert_eq!(answered.failure.map(|why| why.reason), Some(Reason::Cancelled), "{what}");
        }
        (queue, asking) = (echo.into_queue().unwrap(), ask.into_queue().unwrap());
    }
}

on_both!(twin_echo_kernels_begin_again, gpu_echo_kernels_begin_again, kernels_begin_again);

/// A service whose queue failed: emptied and connected again, with its peer, it answers.
fn comes_back_after_a_failure(bench: &Bench) {
    let mut service = bench.service(4, PATIENCE);
    service.running.held().unwrap().queue().qp().to_error().unwrap();
    let echo = service.running.end(PATIENCE).unwrap();
    assert!(matches!(echo.outcome().unwrap().failure.unwrap().reason, Reason::Completion { .. }));
    let queue = echo.into_queue().unwrap();
    service.peer.reset().unwrap();
    connect_with(queue.qp(), service.peer.number(), 7);
    connect_with(&service.peer, queue.qp().number(), 7);
    let listening = Listening { window: 4, most_bytes: STRIDE as u32, patience: PATIENCE };
    let region = service.region.as_ref().unwrap();
    service.running = Echo::new(queue, region, listening).unwrap().start().unwrap();
    for number in 0..20 {
        service.expect_answer(number % 4);
        service.ask(number % 4, &message(number, 64));
        assert_eq!(service.answer(), (number % 4, answered(message(number, 64))));
    }
    assert_eq!(service.cancel(), 20);
}

on_both!(
    twin_echo_comes_back_after_a_failure,
    gpu_echo_comes_back_after_a_failure,
    comes_back_after_a_failure
);

/// Rows: what a peer answers instead, and words that are wrong.
fn wrong_answers_are_counted(bench: &Bench) {
    type Lie = fn(usize, &mut Vec<u8>);
    let rows: [(Lie, u32, Option<u32>); 4] = [
        (|_, answer| *answer = answered(answer.clone()), 0, None),
        // Not an answer, but the question.
        (|_, _| (), 20, Some(0)),
        // One bit of the seventh.
        (
            |number, answer| {
                *answer = answered(answer.clone());
                answer[17] ^= u8::from(number == 7);
            },
            1,
            Some(7),
        ),
        // All of them late by one: what the kernel saw before does not pass.
        (
            |number, answer| if number > 0 { answer.fill(0) } else { *answer = answered(answer.clone()) },
            19 * 16,
            Some(1),
        ),
    ];
    for (lie, wrong, first) in rows {
        let (ask, _region, mut peer, mut cq, memory) = asks(bench, Questions { count: 20, ..QUESTIONS });
        let piece = [memory.sge(0..STRIDE).unwrap()];
        peer.post_receive(&ReceiveRequest { id: 1, scatter: &piece }).unwrap();
        let running = ask.start().unwrap();
        for number in 0..20 {
            let mut done = [WorkCompletion::default()];
            wait_for("question", || (cq.poll(&mut done).unwrap() == 1).then_some(()));
            assert!(done[0].is_success() && done[0].id() == 1, "{:?}", done[0]);
            let mut bytes = vec![0; STRIDE];
            memory.read(0, &mut bytes);
            lie(number, &mut bytes);
            memory.write(0, &bytes);
            peer.post_send(&SendRequest::new(2, SendOperation::Send, Payload::Gather(&piece))).unwrap();
            wait_for("its completion", || (cq.poll(&mut done).unwrap() == 1).then_some(()));
            assert!(done[0].is_success() && done[0].id() == 2, "{:?}", done[0]);
            peer.post_receive(&ReceiveRequest { id: 1, scatter: &piece }).unwrap();
        }
        let outcome = running.end(PATIENCE).unwrap().outcome().unwrap();
        assert_eq!((outcome.failure, outcome.messages), (None, 20));
        assert_eq!((outcome.wrong_words, outcome.first_wrong), (wrong, first));
    }
}

on_both!(twin_echo_wrong_answers_are_counted, gpu_echo_wrong_answers_are_counted, wrong_answers_are_counted);

/// A peer takes a question and does not answer; one answers too few bytes; a question is cancelled.
fn a_question_without_its_answer_is_named(bench: &Bench) {
    for (answer, expected) in
        [(None, Reason::Deadline), (Some(64), Reason::Invalid), (None, Reason::Cancelled)]
    {
        let patience = if expected == Reason::Deadline { Duration::from_millis(100) } else { PATIENCE };
        let (ask, _region, mut peer, mut cq, memory) = asks(bench, Questions { patience, ..QUESTIONS });
        let (piece, qpn) = ([memory.sge(0..STRIDE).unwrap()], ask.queue().qp().number());
        peer.post_receive(&ReceiveRequest { id: 1, scatter: &piece }).unwrap();
        let running = ask.start().unwrap();
        let mut done = [WorkCompletion::default()];
        wait_for("question", || (cq.poll(&mut done).unwrap() == 1).then_some(()));
        if let Some(bytes) = answer {
            let piece = [memory.sge(0..bytes).unwrap()];
            peer.post_send(&SendRequest::new(2, SendOperation::Send, Payload::Gather(&piece))).unwrap();
        }
        if expected == Reason::Cancelled {
            running.cancel();
        }
        let asked = running.end(PATIENCE).unwrap();
        let (outcome, failure) = (asked.outcome().unwrap(), Failure { qpn, wr_id: 0, reason: expected });
        assert_eq!((outcome.messages, outcome.failure), (0, Some(failure)));
        // Its receive would take the answer of a later question.
        let KernelError::Refused(said) = asked.start().unwrap_err() else { panic!("{expected:?}") };
        assert!(said.contains(&failure.to_string()) && said.contains("into_queue()"), "{said}");
    }
}

on_both!(
    twin_echo_a_question_without_its_answer_is_named,
    gpu_echo_a_question_without_its_answer_is_named,
    a_question_without_its_answer_is_named
);

/// Rows: what cannot be, and words of the refusal.
#[test]
fn twin_echo_refuses_what_queue_or_region_do_not_have() {
    let context = need!(device(), nic, "an mlx5 device");
    let bench = need!(Bench::twin(&KERNELS, &context, 1), cc, "a C++ compiler");
    for (window, most_bytes, words) in [
        (0, 64, "0 buffers of 64 bytes"),
        (4, 0, "4 buffers of 0 bytes"),
        (4, 12, "4 buffers of 12 bytes are not buffers of whole words"),
        (16, 2048, "16 buffers of 2048 bytes are not buffers of whole words in a region of 16384"),
        (17, 64, "17 messages at a time do not fit 256 sends, 16 receives and 128 completions"),
        (u32::MAX, !7, "in a region of 16384"),
    ] {
        let (queue, region) = bench.end();
        let qpn = queue.qp().number();
        let refused = Echo::new(queue, &region, Listening { window, most_bytes, patience: PATIENCE });
        let KernelError::Refused(text) = refused.unwrap_err() else { panic!("{words}") };
        assert!(text.starts_with(&format!("QP {qpn:#x}: ")) && text.contains(words), "{text}");
    }
    let (send, receive) = (bench.cq().into_direct().unwrap(), bench.cq().into_direct().unwrap());
    let (builder, options) = (Bench::builder(), Options::default());
    let queue = Queue::create(&bench.machine, &builder, &bench.pd, send, Some(receive), options).unwrap();
    let refused = EchoClient::new(queue, &bench.end().1, QUESTIONS).unwrap_err().to_string();
    assert!(refused.ends_with("completions of one direction"), "{refused}");
}

/// Both kernels with a region of another machine, whose addresses mean nothing to them, or something else.
fn refuse_a_region_of_another_machine(ours: &Bench, theirs: &Bench) {
    let (_, their_region) = theirs.end();
    let listening = Listening { window: 2, most_bytes: 64, patience: PATIENCE };
    for refused in [
        Echo::new(ours.end().0, &their_region, listening).map(drop),
        EchoClient::new(ours.end().0, &their_region, Questions { bytes: 64, ..QUESTIONS }).map(drop),
    ] {
        let KernelError::Refused(text) = refused.unwrap_err() else { panic!("not refused") };
        let (other, own) = (theirs.machine.name(), ours.machine.name());
        let words = format!(
            "the region was made for another machine ({other}) than the one that runs the kernel ({own})"
        );
        assert!(text.starts_with(&words), "{words}: {text}");
    }
}

#[test]
fn twin_echo_refuses_a_region_of_another_machine() {
    let context = need!(device(), nic, "an mlx5 device");
    let [ours, theirs] = [(); 2].map(|()| Bench::twin(&KERNELS, &context, 1));
    let ours = need!(ours, cc, "a C++ compiler");
    refuse_a_region_of_another_machine(&ours, &need!(theirs, cc, "a C++ compiler"));
}

/// Two values of one GPU are the same machine.
#[test]
fn gpu_echo_refuses_a_region_of_another_machine() {
    let context = need!(device(), nic, "an mlx5 device");
    let gpu = need!(Bench::gpu(&context), gpu, "one CUDA device");
    if let Ok(twin) = Bench::twin(&KERNELS, &context, 1) {
        refuse_a_region_of_another_machine(&gpu, &twin);
        refuse_a_region_of_another_machine(&twin, &gpu);
    }
    let again = Machine::gpu(None, None).unwrap();
    let region = Region::new(&again, &gpu.pd, Place::Host, 1 << 14, Access::ALL).unwrap();
    let listening = Listening { window: 2, most_bytes: 64, patience: PATIENCE };
    Echo::new(gpu.end().0, &region, listening).unwrap();
}
