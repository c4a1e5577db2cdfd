//! Requests posted by the shim do on a NIC what they say.

use measure::need;
use rdma_shim::{Completion, Doorbell, Options, Order, PollError, QueuePair, ShimError, Status};
use verbs::code::{WcOpcode, WcStatus};
use verbs::{
    Context, Cq, InlineSlice, Mr, Pages, Payload, Pd, QpBuilder, QpType, ReceiveRequest, Remote, SendFlags,
    SendOperation, SendRequest,
};

use rdma_shim::testing::{connect, device, memory, wait_for};

const BYTES: usize = 1 << 16;

/// Two connected queue pairs of the shim, a region each.
struct Pair {
    pd: Pd,
    qps: [QueuePair; 2],
    memory: [Mr<Pages>; 2],
}

fn builder(kind: QpType) -> QpBuilder {
    QpBuilder::new(kind).sges(4, 4).inline_bytes(128).own_register(true)
}

fn queue_pair(
    context: &Context,
    pd: &Pd,
    builder: &QpBuilder,
    options: Options,
) -> Result<QueuePair, ShimError> {
    let cq = || Cq::new(context, 255).and_then(Cq::into_direct);
    QueuePair::create(builder, pd, cq()?, Some(cq()?), options)
}

impl Pair {
    fn new(context: &Context, kind: QpType, options: Options) -> Pair {
        let pd = context.alloc_pd().unwrap();
        let qps = [(); 2].map(|()| queue_pair(context, &pd, &builder(kind), options).unwrap());
        connect(qps[0].qp(), qps[1].qp().number());
        connect(qps[1].qp(), qps[0].qp().number());
        Pair { memory: [(); 2].map(|()| memory(&pd, BYTES)), qps, pd }
    }

    fn post(&mut self, request: &SendRequest<'_>) {
        self.qps[0].try_post(request).unwrap();
        self.qps[0].ring();
    }

    /// The next completion of an end.
    fn completion(&mut self, end: usize) -> Completion {
        let mut found = [Completion::default()];
        wait_for("completion", || (self.qps[end].poll(&mut found).unwrap() == 1).then_some(found[0]))
    }

    fn there(&self, at: usize) -> Remote {
        self.memory[1].remote(at).unwrap()
    }
}

#[test]
fn each_operation_moves_what_it_says() {
    let context = need!(device(), nic, "an mlx5 device");
    let mut pair = Pair::new(&context, QpType::Rc, Options::default());
    pair.memory[0].write(0, b"hello, doorbell!");
    let (local, back) = (
        [pair.memory[0].sge(0..5).unwrap(), pair.memory[0].sge(5..16).unwrap()],
        [pair.memory[0].sge(512..528).unwrap()],
    );
    let word = [pair.memory[0].sge(256..264).unwrap()];
    let inline = [InlineSlice::new(b"in "), InlineSlice::new(b"line")];
    let landing = [pair.memory[1].sge(4096..4200).unwrap()];
    pair.memory[1].word64(8192).store(40, std::sync::atomic::Ordering::Relaxed);

    // Operation, payload, its completion, where the peer sees which bytes, what the peer's CQE carries.
    let (write, receive) = (WcOpcode::Write, Some(WcOpcode::Receive));
    let there = |at| pair.memory[1].remote(at).unwrap();
    for (operation, payload, opcode, at, bytes, received, immediate) in [
        (
            SendOperation::Write(there(0)),
            Payload::Gather(&local),
            write,
            0,
            &b"hello, doorbell!"[..],
            None,
            None,
        ),
        (SendOperation::Write(there(64)), Payload::Inline(&inline), write, 64, b"in line", None, None),
        (
            SendOperation::WriteImm(there(128), [1, 2, 3, 4]),
            Payload::Gather(&local[..1]),
            write,
            128,
            b"hello",
            Some(WcOpcode::ReceiveWriteImm),
            Some([1, 2, 3, 4]),
        ),
        (
            SendOperation::Send,
            Payload::Gather(&local),
            WcOpcode::Send,
            4096,
            b"hello, doorbell!",
            receive,
            None,
        ),
        (
            SendOperation::SendImm([9; 4]),
            Payload::Inline(&inline),
            WcOpcode::Send,
            4096,
            b"in line",
            receive,
            Some([9; 4]),
        ),
        (SendOperation::Write(there(300)), Payload::Gather(&[]), write, 300, b"\0\0", None, None),
    ] {
        if received.is_some() {
            pair.qps[1].post_receive(&ReceiveRequest { id: 77, scatter: &landing }).unwrap();
        }
        pair.qps[0].try_post(&SendRequest::new(5, operation, payload)).unwrap();
        pair.qps[0].ring();
        let mut found = [Completion::default()];
        let done =
            wait_for("completion", || (pair.qps[0].poll(&mut found).unwrap() == 1).then_some(found[0]));
        assert!(done.is_success() && done.is_send(), "{operation:?}: {done:?}");
        assert_eq!((done.id(), done.opcode()), (5, opcode));
        if let Some(kind) = received {
            let got =
                wait_for("receive", || (pair.qps[1].poll(&mut found).unwrap() == 1).then_some(found[0]));
            assert_eq!((got.id(), got.opcode(), got.immediate()), (77, kind, immediate), "{operation:?}");
            assert_eq!(got.byte_count() as usize, bytes.len(), "{operation:?}");
        }
        let mut seen = vec![0; bytes.len()];
        pair.memory[1].read(at, &mut seen);
        assert_eq!(seen, bytes, "{operation:?}");
    }

    pair.post(&SendRequest::new(6, SendOperation::Read(pair.there(0)), Payload::Gather(&back)));
    let done = pair.completion(0);
    let mut seen = [0; 16];
    pair.memory[0].read(512, &mut seen);
    assert_eq!((done.opcode(), done.byte_count(), &seen), (WcOpcode::Read, 16, b"hello, doorbell!"));

    let remote = pair.there(8192);
    for (operation, opcode, old, new) in [
        (SendOperation::FetchAdd { remote, add: 2 }, WcOpcode::FetchAdd, 40, 42),
        (SendOperation::CompareSwap { remote, compare: 42, swap: 7 }, WcOpcode::CompareSwap, 42, 7),
        (SendOperation::CompareSwap { remote, compare: 42, swap: 8 }, WcOpcode::CompareSwap, 7, 7),
    ] {
        pair.post(&SendRequest::new(7, operation, Payload::Gather(&word)));
        let done = pair.completion(0);
        assert_eq!((done.opcode(), done.byte_count(), done.is_success()), (opcode, 8, true), "{done:?}");
        let load = |end: usize, at| pair.memory[end].word64(at).load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!((load(0, 256), load(1, 8192)), (old, new), "{operation:?}");
    }
}

/// More messages than a 16-bit index counts, through a queue that is kept full, with each way of ringing.
#[test]
fn every_way_of_ringing_delivers_all_messages_in_order() {
    let context = need!(device(), nic, "an mlx5 device");
    for (order, doorbell) in [
        (Order::Strict, Doorbell::EightBytes),
        (Order::Strict, Doorbell::BlueFlame),
        (Order::Early, Doorbell::EightBytes),
        (Order::Early, Doorbell::BlueFlame),
    ] {
        let mut pair = Pair::new(&context, QpType::Rc, Options { order, doorbell, signal_all: false });
        let (mut posted, mut completed, mut full) = (0u64, 0u64, 0u64);
        const MESSAGES: u64 = 70_000;
        let mut found = [Completion::default(); 32];
        while completed < MESSAGES {
            while posted < MESSAGES {
                let number = (posted + 1).to_le_bytes();
                let inline = [InlineSlice::new(&number)];
                let mut request =
                    SendRequest::new(posted, SendOperation::Write(pair.there(64)), Payload::Inline(&inline));
                if !(posted + 1).is_multiple_of(8) && posted + 1 < MESSAGES {
                    request.flags = SendFlags::NONE;
                }
                match pair.qps[0].try_post(&request) {
                    Ok(()) => posted += 1,
                    Err(error) => {
                        assert!(error.is_full(), "{error}");
                        full += 1;
                        break;
                    }
                }
                if posted.is_multiple_of(3) {
                    pair.qps[0].ring();
                }
            }
            pair.qps[0].ring();
            let count =
                wait_for("completion", || Some(pair.qps[0].poll(&mut found).unwrap()).filter(|&n| n > 0));
            for done in &found[..count] {
                assert!(done.is_success() && done.id() >= completed, "{done:?}");
                completed = done.id() + 1;
            }
        }
        let last = pair.memory[1].word64(64).load(std::sync::atomic::Ordering::Acquire);
        assert_eq!(last, MESSAGES, "{order:?} {doorbell:?}");
        assert!(full > 0, "the queue was never full, so that nothing was proved about it");
    }
}

#[test]
fn an_error_names_its_request_the_rest_is_flushed_and_reset_makes_it_whole() {
    let context = need!(device(), nic, "an mlx5 device");
    let mut pair = Pair::new(&context, QpType::Rc, Options::default());
    let local = [pair.memory[0].sge(0..8).unwrap()];
    let wrong = Remote { rkey: pair.there(0).rkey ^ 0x5500, ..pair.there(0) };
    for (id, remote) in [(1, pair.there(0)), (2, wrong), (3, pair.there(0)), (4, pair.there(0))] {
        let mut request = SendRequest::new(id, SendOperation::Write(remote), Payload::Gather(&local));
        // Flushed requests complete whether they asked for it or not.
        request.flags = SendFlags::NONE;
        pair.qps[0].try_post(&request).unwrap();
    }
    pair.qps[0].ring();
    let first = pair.completion(0);
    assert_eq!(
        (first.id(), first.status(), first.syndrome()),
        (2, Status::Verbs(WcStatus::RemoteAccess), 0x13)
    );
    for id in [3, 4] {
        let flushed = pair.completion(0);
        assert_eq!((flushed.id(), flushed.status()), (id, Status::Verbs(WcStatus::WrFlush)));
    }

    for qp in &mut pair.qps {
        assert_eq!(qp.reset().unwrap(), 0);
    }
    let numbers = [0, 1].map(|end: usize| pair.qps[end].qp().number());
    connect(pair.qps[0].qp(), numbers[1]);
    connect(pair.qps[1].qp(), numbers[0]);
    pair.post(&SendRequest::new(5, SendOperation::Write(pair.there(0)), Payload::Gather(&local)));
    let done = pair.completion(0);
    assert_eq!((done.id(), done.status()), (5, Status::SUCCESS));
}

#[test]
fn completions_that_nobody_took_are_dropped_by_reset() {
    let context = need!(device(), nic, "an mlx5 device");
    let mut pair = Pair::new(&context, QpType::Rc, Options { signal_all: true, ..Options::default() });
    let local = [pair.memory[0].sge(0..8).unwrap()];
    pair.memory[0].write(0, &1u64.to_le_bytes());
    for _ in 0..3 {
        let mut request = SendRequest::new(1, SendOperation::Write(pair.there(0)), Payload::Gather(&local));
        request.flags = SendFlags::NONE;
        pair.post(&request);
    }
    // The last one is signalled too and its data is there; give its CQE, written after the data, a moment.
    wait_for("data", || {
        (pair.memory[1].word64(0).load(std::sync::atomic::Ordering::Acquire) == 1).then_some(())
    });
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(pair.qps[0].reset().unwrap(), 3);
    let mut found = [Completion::default()];
    assert_eq!(pair.qps[0].poll(&mut found), Ok::<usize, PollError>(0));
}

#[test]
fn queues_that_the_shim_cannot_serve_are_refused_by_name() {
    let context = need!(device(), nic, "an mlx5 device");
    let pd = context.alloc_pd().unwrap();
    let blueflame = Options { doorbell: Doorbell::BlueFlame, ..Options::default() };
    // SAFETY: the queue pair is refused before anything is posted to it.
    let scattering = unsafe { builder(QpType::Rc).allow_scatter_to_cqe() };
    for (builder, options, words) in [
        (builder(QpType::Rc).own_register(false), blueflame, "shares its doorbell register"),
        (builder(QpType::Ud), Options::default(), "is UD: the shim posts to RC and UC"),
        (scattering, Options::default(), "may scatter to CQEs"),
    ] {
        let error = queue_pair(&context, &pd, &builder, options).unwrap_err().to_string();
        let switched_off = std::env::var("MLX5_SCATTER_TO_CQE").is_ok_and(|value| value == "0");
        assert!(error.contains(words) || switched_off, "{error}");
    }
}

#[test]
fn a_queue_pair_without_receives_refuses_them() {
    let context = need!(device(), nic, "an mlx5 device");
    let pair = Pair::new(&context, QpType::Rc, Options::default());
    let none = builder(QpType::Rc).receive_requests(0);
    let mut qp = queue_pair(&context, &pair.pd, &none, Options::default()).unwrap();
    assert!(qp.post_receive(&ReceiveRequest { id: 1, scatter: &[] }).unwrap_err().is_full());
}
