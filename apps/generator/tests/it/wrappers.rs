//! The safe wrappers of the generator's kernels: refusals, how senders end, and queues that come back. Each
//! on the host twin, and on a GPU where there is one. Other tests send messages of all kinds.

use std::sync::Arc;
use std::time::Duration;

use generator::kernel::KERNELS;
use generator::kernel::generate::{Generate, Lane, Operation, Plan, Senders, Sent, Style};
use generator::kernel::receive::{self, Receive};
use host_twin::Visibility;
use measure::need;
use rdma_shim::kernel::{KernelError, Machine, Place, Queue, Reason, Region, Running};
use rdma_shim::testing::{Bench, PATIENCE, connect, device, memory, wait_for};
use rdma_shim::{Options, Status, on_both};
use verbs::code::{Access, WcStatus};
use verbs::{Cq, Mr, Pages, Payload, QpBuilder, QueuePair, Remote, SendOperation, SendRequest};

/// Messages of a doorbell, of a completion, and half of those under way.
const BATCH: u32 = 32;
const SLOTS: u32 = 4 * BATCH;
const BYTES: u64 = 64;

/// WRITEs of one slot each.
const PLAN: Plan = Plan {
    operation: Operation::Write,
    inline: false,
    payload_bytes: BYTES,
    slot_bytes: BYTES,
    source_slots: SLOTS,
    target_slots: SLOTS,
    batch: BATCH,
    doorbell_batch: BATCH,
    window: 2 * BATCH,
    run: None,
    patience: PATIENCE,
    hurry: Duration::from_secs(5),
    receives: 0,
    sample: 1,
    has_credits: false,
};

/// What a receiver of SENDs is told.
const TAKES: Plan = Plan { operation: Operation::Send, window: BATCH, receives: 16, ..PLAN };

/// A queue of two CQs, the send queue's of so many entries; in RESET.
fn queue(bench: &Bench, completions: u32) -> Queue {
    queue_of(bench, &Bench::builder(), completions)
}

fn queue_of(bench: &Bench, builder: &QpBuilder, completions: u32) -> Queue {
    let cq = |entries| Cq::new(bench.pd.context(), entries).unwrap().into_direct().unwrap();
    let (send, receive) = (cq(completions), cq(63));
    let options = Options::default();
    Queue::create(&bench.machine, builder, &bench.pd, send, Some(receive), options).unwrap()
}

/// Sends and receives complete on one CQ.
fn queue_of_one_cq(bench: &Bench) -> Queue {
    let cq = Cq::new(bench.pd.context(), 127).unwrap().into_direct().unwrap();
    Queue::create(&bench.machine, &Bench::builder(), &bench.pd, cq, None, Options::default()).unwrap()
}

fn region(bench: &Bench) -> Arc<Region> {
    let bytes = (u64::from(SLOTS) * BYTES) as usize;
    Arc::new(Region::new(&bench.machine, &bench.pd, Place::Host, bytes, Access::ALL).unwrap())
}

/// A lane that leads nowhere.
fn lane(queue: Queue) -> Lane {
    Lane { queue, source_at: 0, target: Remote { address: 0, rkey: 0 }, credit_at: None, share: 1 }
}

fn receiving(queue: Queue) -> receive::Lane {
    receive::Lane { queue, slots_at: 0, credits: Remote { address: 0, rkey: 0 } }
}

/// The text of a refusal.
fn refusal<T>(what: &str, refused: Result<T, KernelError>) -> String {
    match refused {
        Err(KernelError::Refused(text)) => text,
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what} was not refused"),
    }
}

/// Each wrapper with one thing of another machine, whose addresses are invalid or wrong for its kernel.
fn refuse_what_another_machine_has(ours: &Bench, theirs: &Bench) {
    let generate = Generate::prepare(&ours.machine, Style::Thread).unwrap();
    let takes = Receive::prepare(&ours.machine).unwrap();
    let (their_region, our_region) = (region(theirs), region(ours));
    let (stranger, ours_too) = (queue(theirs, 127), queue(ours, 127));
    let qpn = format!("QP {:#x}", stranger.qp().number());
    let start = |lanes: Vec<Queue>, source: &Arc<Region>, credits: &Arc<Region>| {
        let lanes = lanes.into_iter().map(lane).collect();
        generate.start(&PLAN, lanes, Arc::clone(source), Arc::clone(credits)).map(drop)
    };
    let take = |lanes: Vec<Queue>, region: &Arc<Region>| {
        takes.start(&TAKES, lanes.into_iter().map(receiving).collect(), Arc::clone(region)).map(drop)
    };
    for (what, refused) in [
        ("the region of messages", start(vec![queue(ours, 127)], &their_region, &our_region)),
        ("the region of credits", start(vec![queue(ours, 127)], &our_region, &their_region)),
        (&qpn, start(vec![ours_too, stranger], &our_region, &our_region)),
        ("the region", take(vec![queue(ours, 127)], &their_region)),
    ] {
        let text = refusal(what, refused);
        let (other, own) = (theirs.machine.name(), ours.machine.name());
        let words = format!(
            "{what} was made for another machine ({other}) than the one that runs the kernel ({own})"
        );
        assert!(text.starts_with(&words), "{words}: {text}");
    }
    let (first, stranger) = (queue(ours, 127), queue(theirs, 127));
    let qpn = format!("QP {:#x} was made for another machine", stranger.qp().number());
    let text = refusal(&qpn, take(vec![first, stranger], &our_region));
    assert!(text.starts_with(&qpn), "{text}");
}

#[test]
fn twin_kernels_refuse_queues_and_regions_of_another_machine() {
    let context = need!(device(), nic, "an mlx5 device");
    let [ours, theirs] = [(); 2].map(|()| Bench::twin(&KERNELS, &context, 1));
    let ours = need!(ours, cc, "a C++ compiler");
    refuse_what_another_machine_has(&ours, &need!(theirs, cc, "a C++ compiler"));
}

/// A twin's lanes would store to addresses of the GPU, a kernel would use pages that the GPU was never shown.
#[test]
fn gpu_kernels_refuse_queues_and_regions_of_another_machine() {
    let context = need!(device(), nic, "an mlx5 device");
    let gpu = need!(Bench::gpu(&context), gpu, "one CUDA device");
    if let Ok(twin) = Bench::twin(&KERNELS, &context, 1) {
        refuse_what_another_machine_has(&gpu, &twin);
        refuse_what_another_machine_has(&twin, &gpu);
        let twin = Machine::twin(Visibility::InOrder);
        let on_gpu = Region::new(&gpu.machine, &gpu.pd, Place::Gpu, 1 << 16, Access::ALL);
        let on_gpu = need!(on_gpu.map_err(|error| error.to_string()), gpu, "a NIC that takes a GPU's memory");
        let generate = Generate::prepare(&twin, Style::Thread).unwrap();
        let ours = Arc::new(Region::new(&twin, &gpu.pd, Place::Host, 4096, Access::ALL).unwrap());
        let refused = generate.start(&PLAN, Vec::new(), Arc::new(on_gpu), ours).map(drop);
        assert!(refusal("memory of a GPU", refused).starts_with("the region of messages was made for"));
    }
}

/// Rows: what asks for more than queue or machine have, and words of the refusal. Otherwise posters of a
/// shared queue overwrite unread WQEs, or flushes overrun a CQ. Two SENDs would share a slot, receives'
/// completions count as credits', and a block start after others ended.
fn refuse_more_than_there_is(bench: &Bench) {
    let region = region(bench);
    let start = |style, plan: Plan| {
        let generate = Generate::prepare(&bench.machine, style).unwrap();
        let lanes = vec![lane(queue(bench, 127))];
        generate.start(&plan, lanes, Arc::clone(&region), Arc::clone(&region)).map(drop)
    };
    let take_on = |queue, plan: Plan| {
        let takes = Receive::prepare(&bench.machine).unwrap();
        takes.start(&plan, vec![receiving(queue)], Arc::clone(&region)).map(drop)
    };
    let take = |plan| take_on(queue(bench, 15), plan);
    let long = Plan { window: 90, inline: true, payload_bytes: 100, slot_bytes: 128, ..PLAN };
    let credits = Plan { has_credits: true, ..TAKES };
    let mut rows = vec![
        ("a window of 97 messages of 1 blocks each does not fit 256 blocks and 128 completions", {
            start(Style::Thread, Plan { window: 97, ..PLAN })
        }),
        ("a window of 257 messages of 1 blocks", start(Style::Shared(2), Plan { window: 257, ..PLAN })),
        ("a window of 90 messages of 3 blocks", start(Style::Warp, long)),
        ("17 receives and 0 credits", take(Plan { receives: 17, ..TAKES })),
        ("16 receives and 0 credits", take(Plan { target_slots: 15, ..TAKES })),
        ("16 receives and 16 credits", take(credits)),
        ("its receives complete on the CQ of its sends", take_on(queue_of_one_cq(bench), TAKES)),
    ];
    for style in [Style::Thread, Style::Shared(128)] {
        let generate = Generate::prepare(&bench.machine, style).unwrap();
        generate.check_queues(1).unwrap_or_else(|error| assert!(style == Style::Shared(128), "{error}"));
        rows.push(("1000000 queue pairs take", generate.check_queues(1_000_000)));
    }
    if !bench.machine.is_gpu() {
        rows.push(("1 queue pairs take 128 blocks of 32 threads", start(Style::Shared(128), PLAN)));
    }
    for (words, refused) in rows {
        let text = refusal(words, refused);
        assert!(text.contains(words), "{words}: {text}");
    }
}

on_both!(
    twin_kernels_refuse_more_than_queues_and_machine_have,
    gpu_kernels_refuse_more_than_queues_and_machine_have,
    refuse_more_than_there_is
);

/// Where a sender's messages go.
struct Target {
    peer: QueuePair,
    memory: Mr<Pages>,
    _cq: Cq,
}

impl Target {
    /// With a connected sender's queue: a ring of 64 blocks, which holds the window, and a CQ of 128 entries.
    fn new(bench: &Bench) -> (Queue, Target) {
        let queue = queue_of(bench, &Bench::builder().send_requests(16), 127);
        let cq = bench.cq();
        let peer = Bench::builder().build(&bench.pd, &cq, &cq).unwrap();
        connect(queue.qp(), peer.number());
        connect(&peer, queue.qp().number());
        (queue, Target { peer, memory: memory(&bench.pd, (u64::from(SLOTS) * BYTES) as usize), _cq: cq })
    }

    fn place(&self) -> Remote {
        self.memory.remote(0).unwrap()
    }

    /// The last number that came into a slot, counted from 1; 0: none.
    fn number(&self, slot: u32) -> u64 {
        self.memory
            .word64((u64::from(slot + 1) * BYTES - 8) as usize)
            .load(std::sync::atomic::Ordering::Acquire)
    }

    /// Waits until all of `share` messages have come.
    fn have_come(&self, share: u64) {
        let slots = u64::from(SLOTS);
        let last = |slot: u64| slot + 1 + (share - 1 - slot) / slots * slots;
        wait_for("the last messages", || {
            (0..slots.min(share)).all(|slot| self.number(slot as u32) == last(slot)).then_some(())
        });
    }
}

/// What the only lane of a launch that has ended says.
fn only(senders: &Senders) -> Sent {
    senders.sent().unwrap().remove(0)
}

const STYLES: [Style; 4] = [Style::Thread, Style::Original, Style::Warp, Style::Shared(3)];

/// A kernel of one style, and memory for its messages.
struct Sender {
    generate: Generate,
    plan: Plan,
    region: Arc<Region>,
}

impl Sender {
    fn new(bench: &Bench, style: Style) -> Sender {
        let doorbell_batch = if style == Style::Original { 1 } else { BATCH };
        let generate = Generate::prepare(&bench.machine, style).unwrap();
        Sender { generate, plan: Plan { doorbell_batch, ..PLAN }, region: region(bench) }
    }

    /// Begins to send `share` messages to `target`.
    fn start(&self, queue: Queue, target: Remote, share: u64) -> Running<Senders> {
        let lanes = vec![Lane { target, share, ..lane(queue) }];
        self.generate.start(&self.plan, lanes, Arc::clone(&self.region), Arc::clone(&self.region)).unwrap()
    }
}

/// A queue that failed and one that did not are emptied and connected again. The next launch sends as the
/// first did, and takes nothing of an earlier life for its own.
fn queues_come_back(bench: &Bench) {
    const SHARE: u64 = 200;
    for style in STYLES {
        let (sender, (queue, target)) = (Sender::new(bench, style), Target::new(bench));
        let qpn = queue.qp().number();
        let astray = Remote { rkey: !target.place().rkey, ..target.place() };
        let mut senders = sender.start(queue, astray, SHARE).end(PATIENCE).unwrap();
        let failure = only(&senders).failure.unwrap();
        let Reason::Completion { status: Status::Verbs(WcStatus::RemoteAccess), .. } = failure.reason else {
            panic!("{style:?}: {failure}");
        };
        assert_eq!(failure.qpn, qpn);
        for life in 1..4 {
            let mut queues = senders.into_queues().unwrap();
            assert_eq!((queues.len(), queues[0].qp().number()), (1, qpn));
            let queue = queues.remove(0);
            target.peer.reset().unwrap();
            (0..SLOTS as usize)
                .for_each(|slot| target.memory.write(slot * BYTES as usize, &[0; BYTES as usize]));
            connect(queue.qp(), target.peer.number());
            connect(&target.peer, qpn);
            // Of many posters the state lies elsewhere; their CQ goes round once.
            let share =
                if life == 1 && matches!(style, Style::Shared(_)) { 130 * u64::from(BATCH) } else { SHARE };
            senders = sender.start(queue, target.place(), share).end(PATIENCE).unwrap();
            let sent = only(&senders);
            let what = format!("{style:?}, life {life}: {sent:?}");
            assert_eq!((sent.posted, sent.completed, sent.failure), (share, share, None), "{what}");
            target.have_come(share);
        }
    }
}

on_both!(
    twin_senders_give_queues_back_for_another_life,
    gpu_senders_give_queues_back_for_another_life,
    queues_come_back
);

/// A receiver's queue comes back: unused receives are forgotten, and the next launch posts its own.
fn receivers_come_back(bench: &Bench) {
    const MESSAGES: usize = 20;
    let (takes, region) = (Receive::prepare(&bench.machine).unwrap(), region(bench));
    let (mut queue, mut target) = Target::new(bench);
    let (plan, stride) = (Plan { sample: 0, ..TAKES }, BYTES as usize);
    for life in 0..3 {
        let running = takes.start(&plan, vec![receiving(queue)], Arc::clone(&region)).unwrap();
        wait_for("receives", || running.held().unwrap().is_ready().then_some(()));
        for number in 0..MESSAGES {
            // What the kernel takes the message for: its number, in the last word.
            target.memory.write((number + 1) * stride - 8, &(number as u64 + 1).to_ne_bytes());
            let piece = [target.memory.sge(number * stride..(number + 1) * stride).unwrap()];
            let request = SendRequest::new(number as u64, SendOperation::Send, Payload::Gather(&piece));
            target.peer.post_send(&request).unwrap();
        }
        running.held().unwrap().tell(&[MESSAGES as u64]);
        let receivers = running.end(PATIENCE).unwrap();
        let taken = receivers.taken().unwrap()[0];
        assert_eq!((taken.received, taken.torn, taken.failure), (MESSAGES as u64, 0, None), "life {life}");
        queue = receivers.into_queues().unwrap().remove(0);
        target.peer.reset().unwrap();
        connect(queue.qp(), target.peer.number());
        connect(&target.peer, queue.qp().number());
    }
}

on_both!(
    twin_receivers_give_queues_back_for_another_life,
    gpu_receivers_give_queues_back_for_another_life,
    receivers_come_back
);

/// Told to end, a poster waits a while for its outstanding messages: all that was posted is seen to arrive.
fn what_was_posted_is_waited_for(bench: &Bench) {
    for style in STYLES {
        let (sender, (queue, target)) = (Sender::new(bench, style), Target::new(bench));
        let running = sender.start(queue, target.place(), u64::MAX);
        wait_for("a second lap of the slots", || (target.number(1) > 2).then_some(()));
        running.cancel();
        let sent = only(&running.end(PATIENCE).unwrap());
        assert_eq!((sent.completed, sent.failure), (sent.posted, None), "{style:?}: {sent:?}");
        target.have_come(sent.posted);
    }
}

on_both!(
    twin_senders_that_are_told_to_end_wait_for_what_they_posted,
    gpu_senders_that_are_told_to_end_wait_for_what_they_posted,
    what_was_posted_is_waited_for
);
