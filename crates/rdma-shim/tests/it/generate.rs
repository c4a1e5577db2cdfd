//! The generator's kernels by their safe wrappers: what these refuse. Each on the host twin, and on a GPU where there is one.
//! What arrives is apps/generator's to test.

use std::sync::Arc;
use std::time::Duration;

use measure::need;
use rdma_shim::Options;
use rdma_shim::kernel::generate::{Generate, Lane, Operation, Plan, Style};
use rdma_shim::kernel::receive::{self, Receive};
use rdma_shim::kernel::{Ask, Echo, KernelError, Listening, Machine, Place, Questions, Queue, Region};
use rdma_shim::twin::Visibility;
use verbs::code::Access;
use verbs::{Cq, Remote};

use crate::echo::{Bench, PATIENCE};
use crate::ends::device;
use crate::twin_queue::compiler;

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
};

/// What a receiver of SENDs is told.
const TAKES: receive::Plan = receive::Plan {
    operation: Operation::Send,
    payload_bytes: BYTES,
    slot_bytes: BYTES,
    source_slots: SLOTS,
    target_slots: SLOTS,
    window: BATCH,
    receives: 16,
    sample: 1,
    has_credits: false,
};

/// A queue of two CQs, the send queue's of so many entries; in RESET.
fn queue(bench: &Bench, completions: u32) -> Queue {
    let cq = |entries| Cq::new(bench.pd.context(), entries).unwrap().into_direct().unwrap();
    let (send, receive) = (cq(completions), cq(63));
    let options = Options::default();
    Queue::create(&bench.machine, &Bench::builder(), &bench.pd, send, Some(receive), options).unwrap()
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

/// Each wrapper with one thing of another machine, whose addresses mean nothing to its kernel, or something else.
fn refuse_what_another_machine_has(ours: &Bench, theirs: &Bench) {
    let listening = Listening { window: 2, most_bytes: 64, patience: PATIENCE };
    let questions = Questions { count: 1, bytes: 64, patience: PATIENCE, threads: 1 };
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
        ("the region", Echo::new(ours.end().0, &their_region, listening).map(drop)),
        ("the region", Ask::new(ours.end().0, &their_region, questions).map(drop)),
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
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    refuse_what_another_machine_has(&Bench::twin(&context, 1), &Bench::twin(&context, 1));
}

/// A twin's lanes would store to addresses of the GPU, a kernel would use pages that the GPU was never shown. Two values of one
/// GPU are the same machine.
#[test]
fn gpu_kernels_refuse_queues_and_regions_of_another_machine() {
    let context = need!(device(), nic, "an mlx5 device");
    let gpu = need!(Bench::gpu(&context), gpu, "one CUDA device");
    let twin = Bench::twin(&context, 1);
    refuse_what_another_machine_has(&gpu, &twin);
    if compiler().is_ok() {
        refuse_what_another_machine_has(&twin, &gpu);
        let twin = Machine::twin(Visibility::InOrder);
        let on_gpu = Region::new(&gpu.machine, &gpu.pd, Place::Gpu, 1 << 16, Access::ALL);
        let on_gpu = need!(on_gpu.map_err(|error| error.to_string()), gpu, "a NIC that takes a GPU's memory");
        let generate = Generate::prepare(&twin, Style::Thread).unwrap();
        let ours = Arc::new(Region::new(&twin, &gpu.pd, Place::Host, 4096, Access::ALL).unwrap());
        let refused = generate.start(&PLAN, Vec::new(), Arc::new(on_gpu), ours).map(drop);
        assert!(refusal("memory of a GPU", refused).starts_with("the region of messages was made for"));
    }
    let again = Machine::gpu(None, None).unwrap();
    let region = Region::new(&again, &gpu.pd, Place::Host, 1 << 14, Access::ALL).unwrap();
    let listening = Listening { window: 2, most_bytes: 64, patience: PATIENCE };
    Echo::new(gpu.end().0, &region, listening).unwrap();
}
