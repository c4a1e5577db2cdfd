//! The kernel that stays, on the host twin and on a GPU: protocol, planted defects, and a real model.

use ::gpu::{Gpu, ResidentModel, SlotTensors, Toolkit, Unit};
use host_twin::{Kernels, Visibility};
use inference::engine::Engine;
use inference::engine::gpu::{Instance, Libraries, Loaded};
use inference::engine::resident::TwinResident;
use inference::engine::twin::Twin;
use inference::import::import;
use inference::layers::Random;
use inference::plan::Plan;
use measure::need;
use prost::Message as _;
use rdma_shim::kernel::Source;
use rdma_shim::testing::{compile_and_link, device, wait_for};
use slots::layout::Status;
use slots::{Tensor as Shape, TensorKind};
use verbs::Context;
use zoo::Architecture;

use super::cost::{Waiting, setting};
use super::nic_tests::{serves, traces};
use super::tests::chain::{ends, ends_at_marks};
use super::tests::test_pipeline::{ANSWERS, RECORD, TestPipeline, geometry};
use super::tests::{PLANTED, has_compiler, ptx};
use super::*;
use crate::testing::ARRIVALS;
use crate::trace::Step;

pub const LIMIT: Duration = Duration::from_secs(20);

/// Tests link this model (`tests/kernels/add_one.cu`). `kernel`: with a planted defect, or none.
fn add_one(served: &Served, kernel: &str, threads: u32) -> ResidentModel {
    let is_gpu = served.core.machine.is_gpu();
    let twin_entry = if is_gpu { 0 } else { PLANTED.find(kernel).unwrap().entry() };
    add_one_at(served, twin_entry, threads, None)
}

/// `gate`: words that say how many runs may begin, and how many have.
pub fn add_one_at(
    served: &Served,
    twin_entry: u64,
    threads: u32,
    gate: Option<&HostMemory>,
) -> ResidentModel {
    let machine = &served.core.machine;
    let SlotTensors { inputs, outputs } = served.tensors();
    let ([base, index, stride, request], [.., answer]) = (inputs[0].words(), outputs[0].words());
    let arguments = machine.own_memory(size_of::<[u64; 8]>()).unwrap();
    let between = machine.own_memory(inputs[0].bytes()).unwrap();
    let count = inputs[0].bytes() as u64 / 4;
    let closed = gate.map_or(0, HostMemory::kernel_address);
    // `struct add_one`.
    let words = [base, index, stride, request, answer, between.kernel_address(), count, closed];
    arguments.put(0, &words).unwrap();
    let address = arguments.kernel_address();
    // SAFETY: the function keeps to the slots and to the memory that the value keeps.
    unsafe { ResidentModel::new(vec![add_one_unit()], twin_entry, address, threads, (arguments, between)) }
}

fn add_one_unit() -> Unit {
    rdma_shim::device::unit("add_one.cu", include_str!("../../tests/kernels/add_one.cu"))
        .header(::gpu::GRID_HEADER.0, ::gpu::GRID_HEADER.1)
}

pub const GOOD: &str = "db_model+none";

#[test]
fn twin_serves_clients_that_come_and_go_in_one_kernel() {
    let context = need!(device(), nic, "an mlx5 device");
    let kernels: &Kernels = resident::SOURCE.twin;
    need!(kernels.find("serve").map_err(|error| error.to_string()), cc, "a C++ compiler");
    for (arrival, visibility) in
        ARRIVALS.iter().zip([Visibility::Weak { seed: 1 }, Visibility::InOrder, Visibility::Weak { seed: 2 }])
    {
        let machine = Machine::twin(visibility);
        serves(&context, &machine, (*arrival, Processor::Gpu, true), &|served, _| {
            let model = add_one(served, GOOD, 64);
            served.prepare_resident(model).and_then(|()| served.start()).unwrap();
        });
    }
    trace_in_one_kernel(&context, &Machine::twin(Visibility::InOrder), 64);
}

/// The model works in the slots: nothing is copied.
fn trace_in_one_kernel(context: &Context, machine: &Machine, threads: u32) {
    traces(context, machine, (&[Step::Run, Step::Send], true), &|served, _| {
        let model = add_one(served, GOOD, threads);
        served.prepare_resident(model).and_then(|()| served.start()).unwrap();
    });
}

#[test]
fn gpu_serves_clients_that_come_and_go_in_one_kernel() {
    let context = need!(device(), nic, "an mlx5 device");
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    for arrival in ARRIVALS {
        serves(&context, &machine, (arrival, Processor::Gpu, true), &|served, _| {
            let model = add_one(served, GOOD, 256);
            served.prepare_resident(model).and_then(|()| served.start()).unwrap();
        });
    }
    trace_in_one_kernel(&context, &machine, 256);
}

/// Serves four requests of a played NIC with a defect in kernel or model: how many answers are right.
fn right(seed: u64, serve: Option<&'static str>, model: &str) -> usize {
    let planted = serve.map(|name| (4, name));
    let mut pipeline = TestPipeline::of(Arrival::Flag, Some(seed), None, true);
    pipeline.served.planted =
        planted.map(|(step, name)| (step, Source { twin: &PLANTED, ..resident::SOURCE }, name));
    let mut peer = pipeline.join(0, 0, 2);
    let model = add_one(&pipeline.served, model, 32);
    pipeline.served.prepare_resident(model).and_then(|()| pipeline.served.start()).unwrap();
    let mut right = 0;
    for id in 0..4 {
        let value = (id * 10) as f32;
        let request = pipeline.ask(&mut peer, id, value);
        let posted = 2 * (id + 1);
        wait_for("doorbell", || {
            (u32::from_be((peer.word(RECORD) >> 32) as u32) == posted as u32).then_some(())
        });
        peer.execute(0);
        right += usize::from(peer.answer(request.slot).ok() == Some((Status::Ok, Some(value + 1.0))));
    }
    pipeline.served.stop(LIMIT).unwrap();
    assert_eq!(pipeline.served.counters().answered, 4);
    right
}

#[test]
fn answers_are_whole_and_steps_see_what_other_blocks_stored() {
    need!(has_compiler(), cc, "a C++ compiler");
    for seed in 1..4 {
        assert_eq!(right(seed, None, GOOD), 4, "seed {seed}");
    }
    let seen = |model: &str| (1..20).any(|seed| right(seed, None, model) < 4);
    assert!(seen("db_model+DB_DEFECT_NO_GRID_FENCE"), "no fence: the defect is not seen");
}

#[test]
fn a_bad_request_is_answered_and_not_computed() {
    need!(has_compiler(), cc, "a C++ compiler");
    let mut pipeline = TestPipeline::of(Arrival::Flag, Some(3), None, true);
    let mut peer = pipeline.join(0, 0, 2);
    let model = add_one(&pipeline.served, GOOD, 64);
    pipeline.served.prepare_resident(model).and_then(|()| pipeline.served.start()).unwrap();
    let slot = pipeline.ask_bad(&mut peer, 1);
    wait_for("doorbell", || (peer.word(RECORD) >> 32 != 0).then_some(()));
    peer.execute(0);
    assert_eq!(peer.answer(slot).unwrap().0, Status::BadModel);
    let tensor = ANSWERS + geometry().answer.entries()[0].offset as usize;
    assert_eq!(peer.word(tensor), 0, "nothing but the prefix is sent");
    pipeline.served.stop(LIMIT).unwrap();
    let counters = pipeline.served.counters();
    assert_eq!((counters.answered, counters.refused), (1, 1), "{counters:?}");
}

/// Whether it ends when it is told to, with nothing to serve, and again after it was started anew.
fn stops(serve: Option<&'static str>, tell: fn(&Served), limit: Duration) -> bool {
    let mut pipeline = TestPipeline::of(Arrival::Flag, None, None, true);
    pipeline.served.planted = serve.map(|name| (4, Source { twin: &PLANTED, ..resident::SOURCE }, name));
    let model = add_one(&pipeline.served, GOOD, 32);
    pipeline.served.prepare_resident(model).and_then(|()| pipeline.served.start()).unwrap();
    for nth in 1..3 {
        wait_for("a turn", || (pipeline.served.counters().turns > 20 * nth).then_some(()));
        tell(&pipeline.served);
        match pipeline.served.wait_end(limit) {
            Ok(()) => {
                assert!(!pipeline.served.is_running().unwrap());
                pipeline.served.start().unwrap();
            }
            Err(error) => {
                assert!(matches!(error, ServedError::Deadline { .. }), "{error}");
                pipeline.served.core.shared.words()[0].store(2, Ordering::Release);
                pipeline.served.wait_end(LIMIT).unwrap();
                return false;
            }
        }
    }
    pipeline.served.stop(LIMIT).unwrap();
    true
}

#[test]
fn the_kernel_ends_when_it_is_told_to() {
    need!(has_compiler(), cc, "a C++ compiler");
    let marks = |served: &Served| served.mark_stop().unwrap();
    for (tell, defect) in
        [(Served::cancel as fn(&Served), "serve+DB_DEFECT_NO_STOP"), (marks, "serve+DB_DEFECT_NO_MARK")]
    {
        assert!(stops(None, tell, LIMIT));
        assert!(!stops(Some(defect), tell, Duration::from_millis(200)), "{defect} is not seen");
    }
}

#[test]
fn gpu_kernel_that_stays_ends_at_a_marked_slot() {
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    let geometry = geometry();
    let setting = Setting { wait: Duration::from_secs(600), ..setting(&geometry, 64, 256) };
    let mut served = Served::new(&machine, setting).unwrap();
    let ended = ends(&mut served);
    let model = add_one(&served, GOOD, 256);
    served.prepare_resident(model).and_then(|()| served.start()).unwrap();
    ends_at_marks(&mut served, &ended, "a marked slot ends the kernel that stays");
    served.stop(LIMIT).unwrap();
}

#[test]
fn what_a_kernel_that_runs_reads_is_not_changed() {
    need!(has_compiler(), cc, "a C++ compiler");
    let mut pipeline = TestPipeline::of(Arrival::Flag, None, None, true);
    let model = || add_one(&pipeline.served, GOOD, 32);
    let (served, alone) = (model(), model());
    pipeline.served.prepare_resident(served).and_then(|()| pipeline.served.start()).unwrap();
    for refused in
        [pipeline.served.refuse(Some(Status::Stopping)), pipeline.served.run_alone(alone, 1).map(drop)]
    {
        assert!(matches!(refused, Err(ServedError::Refused(_))), "{refused:?}");
    }
    pipeline.served.stop(LIMIT).unwrap();
    pipeline.served.refuse(Some(Status::Stopping)).unwrap();
}

/// The edges between the I/O block and the model's (`kernels/serve.cu`): each fence is in the GPU's code.
#[test]
fn offers_and_ends_of_turns_are_fenced() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let compiler = ::gpu::Compiler::load(&toolkit).unwrap();
    let ours_alone = ptx(&compiler, &resident::SOURCE, None);
    for (what, instruction, ours, plain) in [
        (
            "before an offer",
            "fence.acq_rel.gpu",
            "db_grid_fence();\n                db_store_relaxed64(words->offers",
            "db_store_relaxed64(words->offers",
        ),
        ("behind an offer", "fence.acq_rel.gpu", "db_grid_fence();\n        slot = late", "slot = late"),
        (
            "behind the end of a turn",
            "fence.acquire.gpu",
            "db_acquire_room();\n    }\n    return db_block_any(late)",
            "}\n    return db_block_any(late)",
        ),
    ] {
        let planted = ptx(&compiler, &resident::SOURCE, Some((ours, plain)));
        let [all, without] = [&ours_alone, &planted].map(|text| text.matches(instruction).count());
        assert!(all > without, "{what}: {instruction}, {all}");
    }
}

/// What the barrier says to three blocks of which the third does not come, and whether it has told the host.
fn late(kernel: &str) -> ([u32; 2], bool) {
    let (mut words, mut late) = ([0_u32; 2], [9_u32; 3]);
    let arguments = host_twin::Arguments::new().pointer(words.as_mut_ptr()).pointer(late.as_mut_ptr());
    let launch = host_twin::Launch { cooperative: true, ..host_twin::Launch::new(3, 32) };
    // SAFETY: the kernel has two words for its barrier and one for each block, which live until it has ended.
    unsafe { host_twin::run(PLANTED.find(kernel).unwrap(), &launch, arguments) }.unwrap();
    ([late[0], late[1]], words[1] != 0)
}

#[test]
fn blocks_do_not_wait_for_ever_for_one_that_does_not_come() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(late("late+none"), ([3, 3], true));
    let planted = late("late+DB_DEFECT_NO_GRID_BARRIER");
    assert_eq!(planted, ([0, 0], false), "without the barrier no block waits");
}

#[test]
fn models_and_settings_that_do_not_fit_are_refused() {
    need!(has_compiler(), cc, "a C++ compiler");
    let geometry = geometry();
    let machine = Machine::twin(Visibility::Weak { seed: 1 });
    let setting = setting(&geometry, 1, 256);
    let mut served = Served::new(&machine, setting).unwrap();
    let of_gpu = add_one_at(&served, 0, 32, None);
    let error = served.prepare_resident(of_gpu).unwrap_err().to_string();
    assert!(error.contains("made for a GPU"), "{error}");
    let wide = add_one(&served, GOOD, host_twin::MAX_LANES as u32);
    let error = served.prepare_resident(wide).unwrap_err().to_string();
    assert!(error.contains("too few for a kernel that stays"), "{error}");
    assert!(served.run_alone(add_one(&served, GOOD, 32), 0).is_err());
    served.run_alone(add_one(&served, GOOD, 32), 3).unwrap();
}

#[test]
fn the_resident_kernel_compiles_with_either_model() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let builder = ::gpu::ImageBuilder::new(toolkit.clone(), ::gpu::cache::Cache::off());
    // Each link compiles the kernel again, so a full run alone links the last two.
    let links = [(80, add_one_unit()), (90, cost::unit()), (90, add_one_unit()), (100, add_one_unit())];
    for (arch, model) in links.into_iter().take(if need::is_full() { 4 } else { 2 }) {
        let units = [resident::SOURCE.unit(), model];
        let image = builder.image(&units, ::gpu::Arch::sm(arch), ::gpu::Form::Cubin);
        let functions = image.unwrap_or_else(|error| panic!("{arch}: {error}")).facts.functions;
        assert!(functions.contains("serve") && functions.contains("db_model"), "{arch}: {functions:?}");
    }
    compile_and_link(toolkit, &[cost::unit()], need::is_full());
}

// ---- A model of the zoo ---------------------------------------------------------------------------------

fn plan(architecture: &Architecture) -> Plan {
    Plan::new(&import(&architecture.build(1).encode_to_vec(), 1).unwrap()).unwrap()
}

fn inputs(plan: &Plan) -> Vec<Vec<f32>> {
    (0..3).map(|seed| Random(seed + 1).tensor(plan.inputs[0].count())).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Fills every slot, has `start` give the pipeline its model, compares each answer with its `wanted` one.
fn answers(
    machine: &Machine,
    plan: &Plan,
    slots: u32,
    [inputs, wanted]: [&[Vec<f32>]; 2],
    start: impl FnOnce(&mut Served),
) -> Waiting {
    let tensor = |shape: &inference::graph::Shape| Shape { kind: TensorKind::F32, count: shape.count() };
    let geometry = Geometry::new(5, &[tensor(&plan.inputs[0])], &[tensor(&plan.outputs[0])]).unwrap();
    let mut waiting = Waiting::new(machine, geometry, slots, 512).unwrap();
    start(&mut waiting.served);
    waiting.until(0).unwrap();
    let of = |all: &[Vec<f32>], slot: u32| bytes(&all[slot as usize % all.len()]);
    waiting.fill(&(0..slots).collect::<Vec<_>>(), 0, |slot| of(inputs, slot)).unwrap();
    waiting.served.start().unwrap();
    waiting.until(slots.into()).unwrap();
    for slot in 0..slots {
        let found = waiting.answer(slot).unwrap().1;
        assert!(found == of(wanted, slot), "slot {slot}: not the bits of a launch a step");
    }
    waiting
}

#[test]
fn twin_a_model_of_the_zoo_answers_from_the_slots_what_launches_compute() {
    need!(has_compiler(), cc, "a C++ compiler");
    let plan = plan(&Architecture::SuperResolution { factor: 1, height: 9, width: 7 });
    let inputs = inputs(&plan);
    let mut twin = Twin::new(plan.clone()).unwrap();
    let wanted: Vec<Vec<f32>> = inputs.iter().map(|input| twin.run(&[input]).unwrap().remove(0)).collect();
    let machine = Machine::twin(Visibility::InOrder);
    let model = |served: &Served| -> ResidentModel {
        TwinResident::new(plan.clone(), Some(&served.tensors()), 1).unwrap().into()
    };
    let mut waiting = answers(&machine, &plan, 6, [&inputs, &wanted], |served| {
        served.prepare_resident(model(served)).and_then(|()| served.start()).unwrap();
    });
    let model = model(&waiting.served);
    assert!(waiting.served.run_alone(model, 2).unwrap() > Duration::ZERO);
}

#[test]
fn gpu_a_model_of_the_zoo_answers_from_the_slots_what_launches_compute() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    let machine = Machine::gpu(None, None).unwrap();
    for (height, width, slots) in [(24, 20, 2), (24, 20, 64), (24, 20, 4096), (640, 480, 64)] {
        let plan = plan(&Architecture::SuperResolution { factor: 1, height, width });
        let inputs = inputs(&plan);
        let loaded =
            Loaded::new(gpu, Toolkit::find(None).unwrap(), plan.clone(), &Libraries::none()).unwrap();
        let mut instance = Instance::new(&loaded).unwrap();
        let wanted: Vec<Vec<f32>> =
            inputs.iter().map(|input| instance.run(&[input]).unwrap().remove(0)).collect();
        answers(&machine, &plan, slots, [&inputs, &wanted], |served| {
            let model = inference::engine::gpu::Resident::new(&loaded, Some(&served.tensors())).unwrap();
            served.prepare_resident(model.into()).and_then(|()| served.start()).unwrap();
        });
        answers(&machine, &plan, slots, [&inputs, &wanted], |served| {
            let model = Instance::in_slots(&loaded, &served.tensors()).unwrap();
            served.prepare_graph(Repeat::Relaunch, Box::new(model)).and_then(|()| served.start()).unwrap();
        });
    }
}
