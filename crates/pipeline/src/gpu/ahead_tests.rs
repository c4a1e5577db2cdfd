//! One block that looks ahead and two lanes, on the host twin and on a GPU.

use ::gpu::Toolkit;
use host_twin::{Arguments, Kernel, Kernels, Launch, Visibility, run};
use measure::need;
use rdma_shim::testing::{compile_and_link, device, wait_for};
use slots::layout::Status;

use super::cost::setting;
use super::layout::db_lane;
use super::nic_tests::{add_one_ahead, serves, traces};
use super::resident_kernel::WORDS;
use super::tests::chain::{ends, ends_at_marks};
use super::tests::test_pipeline::{RECORD, TestPipeline, geometry};
use super::tests::{PLANTED, has_compiler, ptx};
use super::*;
use crate::testing::ARRIVALS;
use crate::trace::Step;

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn twin_serves_clients_that_come_and_go_ahead_of_two_lanes() {
    let context = need!(device(), nic, "an mlx5 device");
    let kernels: &Kernels = ahead_kernel::SOURCE.twin;
    need!(kernels.find("look_ahead").map_err(|error| error.to_string()), cc, "a C++ compiler");
    for (arrival, visibility) in
        ARRIVALS.iter().zip([Visibility::Weak { seed: 1 }, Visibility::InOrder, Visibility::Weak { seed: 2 }])
    {
        let machine = Machine::twin(visibility);
        serves(&context, &machine, (*arrival, Processor::Gpu, false), &|served, memory| {
            let model = add_one_ahead(served, memory, false);
            served.prepare_ahead(model).and_then(|()| served.start()).unwrap();
        });
    }
    let steps = [Step::CopyIn, Step::Run, Step::CopyOut, Step::Send];
    traces(&context, &Machine::twin(Visibility::InOrder), (&steps, false), &|served, memory| {
        let model = add_one_ahead(served, memory, false);
        served.prepare_ahead(model).and_then(|()| served.start()).unwrap();
    });
}

#[test]
fn gpu_serves_clients_that_come_and_go_ahead_of_two_lanes() {
    let context = need!(device(), nic, "an mlx5 device");
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    for (arrival, in_slots) in ARRIVALS.iter().flat_map(|arrival| [(*arrival, true), (*arrival, false)]) {
        serves(&context, &machine, (arrival, Processor::Gpu, in_slots), &|served, memory| {
            let model = add_one_ahead(served, memory, in_slots);
            served.prepare_ahead(model).and_then(|()| served.start()).unwrap();
            let structure = served.structure().unwrap().unwrap();
            let copies = 2 * usize::from(!in_slots);
            assert_eq!((structure.nodes, structure.kernels), (4 + copies, 4 + copies), "{structure:?}");
        });
    }
    traces(&context, &machine, (&[Step::Run, Step::Send], true), &|served, memory| {
        let model = add_one_ahead(served, memory, true);
        served.prepare_ahead(model).and_then(|()| served.start()).unwrap();
    });
}

#[test]
fn every_answer_is_right_and_a_bad_request_is_not_computed() {
    need!(has_compiler(), cc, "a C++ compiler");
    for (arrival, seed) in [(Arrival::Flag, None), (Arrival::Tail, Some(1)), (Arrival::Completion, Some(2))] {
        let mut pipeline = TestPipeline::new(arrival, seed, None);
        let mut peer = pipeline.join(0, 0, 3);
        pipeline.served.prepare_ahead(pipeline.model()).and_then(|()| pipeline.served.start()).unwrap();
        // A WQE with its flag, or one alone.
        let each = if arrival == Arrival::Flag { 2 } else { 1 };
        for round in 0..3 {
            let values = [1.0, 2.0].map(|more| (round * 10) as f32 + more);
            let requests = [0, 1].map(|nth| pipeline.ask(&mut peer, 2 * round + nth, values[nth as usize]));
            wait_for("both doorbells", || {
                let posted = u32::from_be((peer.word(RECORD) >> 32) as u32);
                (posted as u64 == each * 2 * (round + 1)).then_some(())
            });
            peer.execute(0);
            for (request, value) in requests.iter().zip(values) {
                assert_eq!(peer.answer(request.slot).ok(), Some((Status::Ok, Some(value + 1.0))));
            }
        }
        let slot = pipeline.ask_bad(&mut peer, 90);
        wait_for("the refusal", || (pipeline.served.counters().refused == 1).then_some(()));
        peer.execute(0);
        assert_eq!(peer.answer(slot).unwrap().0, Status::BadModel);
        pipeline.served.stop(LIMIT).unwrap();
        assert_eq!(pipeline.served.counters().answered, 7);
    }
}

#[test]
fn it_ends_when_it_is_told_to_and_at_a_model_s_error() {
    need!(has_compiler(), cc, "a C++ compiler");
    for tell in [Served::cancel as fn(&Served), |served| served.mark_stop().unwrap()] {
        let mut pipeline = TestPipeline::new(Arrival::Flag, None, None);
        pipeline.served.prepare_ahead(pipeline.model()).and_then(|()| pipeline.served.start()).unwrap();
        for nth in 1..3 {
            wait_for("a turn", || (pipeline.served.counters().turns > 5 * nth).then_some(()));
            tell(&pipeline.served);
            pipeline.served.wait_end(LIMIT).unwrap();
            assert!(!pipeline.served.is_running().unwrap());
            pipeline.served.start().unwrap();
        }
        pipeline.served.stop(LIMIT).unwrap();
    }
    for (panics, why) in [(false, "it is broken"), (true, "it has panicked")] {
        let mut pipeline = TestPipeline::new(Arrival::Flag, None, None);
        let mut peer = pipeline.join(0, 0, 1);
        let wait = Duration::from_secs(600).as_nanos() as u64;
        pipeline.served.core.tell(offset_of!(db_served, wait_ns), &wait.to_ne_bytes()).unwrap();
        let broken = move || if panics { panic!("planted") } else { Err("it is broken".into()) };
        let model = by_cpu::Model::Called(Box::new(broken));
        pipeline.served.prepare_ahead(model).and_then(|()| pipeline.served.start()).unwrap();
        // Also while it looks for the next request.
        pipeline.ask(&mut peer, 1, 1.0);
        assert_eq!(pipeline.served.wait_end(LIMIT).unwrap_err().to_string(), format!("the model: {why}"));
        // It may be started again.
        pipeline.served.start().and_then(|()| pipeline.served.stop(LIMIT)).unwrap();
    }
}

#[test]
fn a_twin_s_model_without_buffers_is_refused() {
    need!(has_compiler(), cc, "a C++ compiler");
    let mut pipeline = TestPipeline::of(Arrival::Flag, None, None, true);
    let called = by_cpu::Model::Called(Box::new(|| Ok(())));
    let error = pipeline.served.prepare_ahead(called).unwrap_err().to_string();
    assert!(error.contains("copies from and to buffers"), "{error}");
}

/// What `take_turn` leaves in a lane that was offered turn 2 so, when turn `done` is: whether its graph goes
/// on; the turn's state, its slot, and where the model runs.
fn taken(kernel: Kernel, offer: u32, done: u32) -> [u32; 4] {
    let mut words = [0_u32; WORDS / 4];
    // `offers[0]`, then `done[1]`.
    (words[32], words[33], words[128]) = (offer, 2, done);
    let mut cancel = 0_u32;
    let lane =
        db_lane { next: 2, cancel: (&raw mut cancel).expose_provenance() as u64, ..db_lane::default() };
    let runs = db_turn { slot: 2, model_slot: 3, ..db_turn::default() };
    let mut lanes = db_lanes { runs, lanes: [lane, db_lane::default()] };
    let mut served = db_served { slot_count: 6, ..db_served::default() };
    let arguments = Arguments::new().pointer(&raw mut served).pointer(words.as_mut_ptr());
    let arguments = arguments.pointer(&raw mut lanes).push(0_u64).push(5_000_000_u64);
    // SAFETY: the kernel has its structs, which live until it has ended.
    unsafe { run(kernel, &Launch::new(1, 1), arguments) }.unwrap();
    assert_eq!(lanes.lanes[0].next, 4);
    let runs = lanes.runs;
    [u32::from(cancel == 0), runs.state, runs.slot, runs.model_slot]
}

#[test]
fn a_lane_waits_for_the_turn_before() {
    need!(has_compiler(), cc, "a C++ compiler");
    const NO_SLOT: u32 = 0xffff_ffff;
    const LAST: u32 = 0xffff_fffe;
    let kernel = ahead_kernel::SOURCE.twin.find("take_turn").unwrap();
    assert_eq!(taken(kernel, 4, 1), [1, 1, 4, 4]);
    assert_eq!(taken(kernel, NO_SLOT, 1), [1, 0, 6, 6], "a turn without a good request has the spare slot");
    assert_eq!(taken(kernel, LAST, 1), [0, 0, 6, 6], "so has the last launch");
    assert_eq!(taken(kernel, 4, 0), [0, 0, 2, 3], "what is late changes nothing");
    let planted = PLANTED.find("take_turn+DB_DEFECT_NOT_IN_TURN").unwrap();
    assert_eq!(taken(planted, 4, 0), [1, 1, 4, 4], "the defect is not seen");
}

/// The edges of `kernels/ahead.cu`: each fence is in the GPU's code.
#[test]
fn ends_of_turns_are_fenced() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let compiler = ::gpu::Compiler::load(&toolkit).unwrap();
    let fences = |text: &str| text.matches("fence.acq_rel.gpu").count();
    let all = fences(&ptx(&compiler, &ahead_kernel::SOURCE, None));
    for (fenced, plain) in [
        ("db_grid_fence();\n    atomicAdd(words->done", "atomicAdd(words->done"),
        ("    db_grid_fence();\n    /* The model", "    /* The model"),
    ] {
        assert!(all > fences(&ptx(&compiler, &ahead_kernel::SOURCE, Some((fenced, plain)))), "{fenced}");
    }
    // It was compiled above, for one of them.
    if need::is_full() {
        compile_and_link(toolkit, &[ahead_kernel::SOURCE.unit()], true);
    }
}

#[test]
fn gpu_that_looks_ahead_ends_at_a_marked_slot() {
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    let geometry = geometry();
    let setting = Setting { wait: Duration::from_secs(600), ..setting(&geometry, 64, 256) };
    let mut served = Served::new(&machine, setting).unwrap();
    let ended = ends(&mut served);
    let memory = machine.zeroed_memory(1 << 13).unwrap();
    let model = add_one_ahead(&served, &memory, true);
    served.prepare_ahead(model).and_then(|()| served.start()).unwrap();
    ends_at_marks(&mut served, &ended, "a marked slot ends the kernel that looks ahead");
    served.stop(LIMIT).unwrap();
}
