//! `gpu-cpu` over a NIC: the posting thread while the NIC takes no answer. `nic_tests` has the rest.

use std::time::Duration;

use host_twin::Visibility;
use measure::need;
use rdma_shim::Options;
use rdma_shim::kernel::{Machine, Place, Queue, Reason};
use rdma_shim::testing::{device, wait_for};
use slots::Status;
use verbs::{Context, Cq, QpBuilder, QpType};

use super::by_cpu::Model;
use super::layout::db_turn;
use super::nic_tests::{Member, add_one_on};
use super::{Arrival, Repeat, Served, Setting, launch};
use crate::Processor;
use crate::testing::{SLOTS, geometry, is_ever_torn};

const LIMIT: Duration = Duration::from_secs(60);

/// A pipeline of one client, which has posted so many receives. `prepare`: before its first turn.
fn served(
    context: &Context,
    machine: &Machine,
    [slots, receives]: [u32; 2],
    prepare: impl FnOnce(&mut Served),
) -> (Served, Member) {
    let buffers = machine.own_memory(1 << 13).unwrap();
    buffers.fill(0).unwrap();
    let at = buffers.kernel_address();
    let setting = Setting {
        geometry: &geometry(),
        slots,
        clients: 1,
        arrival: Arrival::Completion,
        place: Place::Gpu,
        inputs: &[at],
        outputs: &[at + 4096],
        wait: Duration::from_millis(2),
        threads: 64,
        copying: [2, 64],
    };
    let mut served = Served::posted_by(Processor::Cpu, machine, setting).unwrap();
    prepare(&mut served);
    let pd = context.alloc_pd().unwrap();
    let cq = || Cq::new(context, 127).unwrap().into_direct().unwrap();
    let builder = QpBuilder::new(QpType::Rc).send_requests(32).receive_requests(16).own_register(true);
    let queue = Queue::create_mixed(machine, &builder, &pd, cq(), Some(cq()), Options::default()).unwrap();
    let member = Member::join_by(queue, &mut served, [0, slots], 0, receives as usize);
    match add_one_on(machine, &buffers) {
        Model::Called(model) => served.prepare_by_cpu(model),
        Model::Recorded(model) => served.prepare_graph(Repeat::Relaunch, model),
    }
    .and_then(|()| served.start())
    .unwrap();
    served.wait_done(member.place, LIMIT).unwrap();
    (served, member)
}

/// A slot's next request comes before the NIC could read its last answer to the end: the client has no
/// receive for the answer. Whether that answer comes whole. `waits`: without the planted defect.
fn read_late(context: &Context, machine: &Machine, waits: bool) -> bool {
    let prepare = |served: &mut Served| served.queues.lock().forgets_sending = !waits;
    let (mut served, mut member) = served(context, machine, [SLOTS, 0], prepare);
    let peer = &mut member.peer;
    let answered = |count: u64| wait_for("answers", || (served.counters().answered >= count).then_some(()));
    let request = peer.client.ask(1, 2, 0, u64::MAX).unwrap();
    let first = peer.send(1, request.slot, request.sequence, &request.prefix, 7.0);
    answered(1);
    let second = peer.ask_early(first, &request.prefix, 70.0);
    peer.wait_sent(2);
    if waits {
        // Some turns that could serve it.
        let turns = served.counters().turns + 5;
        wait_for("turns", || (served.counters().turns >= turns).then_some(()));
        assert_eq!(served.counters().answered, 1, "the answer before is still read");
    } else {
        answered(2);
    }
    peer.post_receive();
    wait_for("the first answer", || (peer.has(first) || peer.has(second)).then_some(()));
    let is_whole = peer.has_whole(first);
    if waits {
        // The second one has its turn once the first was sent.
        answered(2);
        wait_for("completions", || (served.counters().sent >= 1).then_some(()));
    }
    served.stop(LIMIT).unwrap();
    is_whole
}

fn has_kernels() -> Result<(), String> {
    launch::SOURCES[0].twin.find("wait_inputs").map(drop).map_err(|error| error.to_string())
}

#[test]
fn an_answer_of_gpu_cpu_stays_until_the_nic_has_read_it() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    let machine = Machine::twin(Visibility::InOrder);
    assert!(read_late(&context, &machine, true));
    assert!(is_ever_torn(|| read_late(&context, &machine, false)), "the defect is not seen");
}

#[test]
fn a_client_that_takes_no_answer_of_gpu_cpu_is_given_up() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    let machine = Machine::twin(Visibility::InOrder);
    let (mut served, mut member) = served(&context, &machine, [SLOTS, 0], |served| {
        served.queues.lock().patience = Duration::from_millis(50);
    });
    member.peer.ask(1, 1.0);
    let failure = wait_for("failure", || served.failure(member.place).unwrap());
    assert_eq!(failure.reason, Reason::Deadline, "{failure}");
    // The chain ends with that.
    served.wait_end(LIMIT).unwrap();
}

/// The CPU reads no record while two answers are told of, of which the second one's number has 33 bits.
#[test]
fn answers_are_told_of_beyond_32_bits_in_a_ring_of_any_length() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    let machine = Machine::twin(Visibility::InOrder);
    let before = u64::from(u32::MAX);
    let (mut served, mut member) = served(&context, &machine, [3, 3], |served| {
        let mut turn: db_turn = served.core.turn.get(0).unwrap();
        turn.counts.answered = before;
        served.core.turn.put(0, &turn).unwrap();
        served.queues.lock().read = before;
    });
    let held = served.queues.lock();
    let asked = [1, 2].map(|id| member.peer.ask(id, id as f32));
    wait_for("answers", || (served.counters().answered == before + 2).then_some(()));
    drop(held);
    let answers = asked.map(|asked| member.peer.answer(asked, &mut || ()));
    assert_eq!(answers, [(Status::Ok, true); 2]);
    served.stop(LIMIT).unwrap();
}

#[test]
fn gpu_leaves_an_answer_to_the_cpu_until_the_nic_has_read_it() {
    let context = need!(device(), nic, "an mlx5 device");
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    assert!(read_late(&context, &machine, true));
    assert!(is_ever_torn(|| read_late(&context, &machine, false)), "the defect is not seen");
}
