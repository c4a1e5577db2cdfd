//! Both baselines over a NIC, on the host twin and on a GPU.

use std::cell::RefCell;
use std::sync::mpsc::channel;
use std::time::Duration;

use gpu::{Function, Recorded, Shape, Stream, Unit};
use host_twin::Visibility;
use measure::need;
use rdma_shim::kernel::{Machine, Memory as MachineMemory};
use rdma_shim::testing::{device, wait_for};
use slots::Status;
use slots::layout::Header;
use verbs::Context;

use super::{Baseline, Fair, Faithful, Instance};
use crate::Mode;
use crate::cpu::{Job, Memory, Offload, Served};
use crate::gpu::by_cpu::Model;
use crate::gpu::nic_tests::add_one_on;
use crate::gpu::{ServedError, launch};
use crate::testing::{
    ARRIVALS, Asked, SLOTS, broken, failure, geometry, is_ever_torn, pump, read_late, serves, traced_peer,
};
use crate::trace::{Step, Trace};

fn instance(machine: &Machine) -> Instance {
    instance_by(machine, &|buffers| add_one_on(machine, buffers))
}

fn instance_by(machine: &Machine, model: &dyn Fn(&MachineMemory) -> Model) -> Instance {
    let buffers = machine.own_memory(1 << 13).unwrap();
    buffers.fill(0).unwrap();
    let at = buffers.kernel_address();
    Instance { inputs: vec![at], outputs: vec![at + 4096], model: model(&buffers) }
}

fn memory() -> Memory {
    Memory::new(geometry(), 3 * SLOTS).unwrap()
}

fn offload(machine: &Machine, baseline: Baseline, memory: &Memory) -> Result<Box<dyn Offload>, ServedError> {
    offload_by(machine, baseline, memory, &|| instance(machine))
}

fn offload_by(
    machine: &Machine,
    baseline: Baseline,
    memory: &Memory,
    instance: &dyn Fn() -> Instance,
) -> Result<Box<dyn Offload>, ServedError> {
    Ok(match baseline {
        Baseline::Fair => Box::new(Fair::new(machine, memory, [instance(), instance()])?),
        Baseline::Faithful => Box::new(Faithful::new(machine, memory, 3 * SLOTS, instance())?),
    })
}

fn served(machine: &Machine, baseline: Baseline) -> Served {
    served_by(machine, baseline, &|| instance(machine))
}

fn served_by(machine: &Machine, baseline: Baseline, instance: &dyn Fn() -> Instance) -> Served {
    let memory = match baseline {
        Baseline::Fair => memory().shown_to(machine).unwrap(),
        Baseline::Faithful => memory(),
    };
    let offload = offload_by(machine, baseline, &memory, instance).unwrap();
    Served::with(memory, 3 * SLOTS, Some(offload)).unwrap()
}

fn both_serve(context: &Context, machine: &Machine) {
    for (baseline, arrival) in Baseline::ALL.iter().flat_map(|one| ARRIVALS.map(|way| (*one, way))) {
        let mut served = served(machine, baseline);
        assert_eq!(serves(context, &mut served, Mode::CpuCpuIbverbs, arrival), 33, "{baseline:?}");
    }
}

fn has_kernels() -> Result<(), String> {
    launch::SOURCES[0].twin.find("put_outputs").map(drop).map_err(|error| error.to_string())
}

#[test]
fn twin_serves_by_both_baselines() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    both_serve(&context, &Machine::twin(Visibility::InOrder));
}

/// Traces of requests: [`SLOTS`] in flight, all arrived before the first is served, then one at a time.
fn traced(context: &Context, served: &mut Served) -> Trace {
    served.trace().unwrap();
    let mut peer = traced_peer(context, served);
    let all: Vec<Asked> = (0..u64::from(SLOTS)).map(|id| peer.ask(id, id as f32)).collect();
    peer.wait_sent(all.len());
    for asked in all {
        assert_eq!(peer.answer(asked, &mut || pump(served)), (Status::Ok, true));
    }
    for id in 100..104 {
        let asked = peer.ask(id, id as f32);
        assert_eq!(peer.answer(asked, &mut || pump(served)), (Status::Ok, true));
    }
    let trace = served.remove(peer.number).unwrap().unwrap().take_trace().unwrap();
    let found = [trace.lost, trace.disordered, trace.clock_error_ns];
    assert_eq!((trace.samples.len(), found), (4 + SLOTS as usize, [0; 3]));
    trace
}

/// Whether the steps of each answer are known, and no longer than its service.
fn both_trace(context: &Context, machine: &Machine) {
    for baseline in Baseline::ALL {
        let trace = traced(context, &mut served(machine, baseline));
        let steps: &[Step] = match baseline {
            Baseline::Fair => &[Step::ToGpu, Step::Run, Step::ToCpu, Step::Send],
            Baseline::Faithful => {
                &[Step::ToGpu, Step::CopyIn, Step::Run, Step::CopyOut, Step::ToCpu, Step::Send]
            }
        };
        for sample in &trace.samples {
            let sum: u64 = sample.steps_ns.iter().sum();
            assert!(sample.service_ns > 0 && sample.service_ns < 60_000_000_000, "{baseline:?} {sample:?}");
            // Events tell half a microsecond each.
            assert!(sum <= sample.service_ns + 5_000, "{baseline:?} {sample:?}");
            for step in steps {
                assert!(sample.ns(*step) > 0, "{baseline:?} {step:?}: {sample:?}");
            }
        }
    }
}

#[test]
fn twin_traces_the_steps_of_both_baselines() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    both_trace(&context, &Machine::twin(Visibility::InOrder));
}

/// What a slow model takes at least.
const RUN: Duration = Duration::from_millis(2);

/// What waits behind another run is in the queue, wherever it waits.
#[test]
fn requests_behind_others_are_traced_as_queued_in_both_baselines() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    both_queue(&context, &Machine::twin(Visibility::InOrder));
}

/// Runs the model that adds 1 behind a kernel that takes [`RUN`].
struct Slow(Function, Box<dyn Recorded>);

const SPIN: &str = "extern \"C\" __global__ void spin(unsigned long long ns) {
    unsigned long long begun, now;
    asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(begun));
    do asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(now)); while (now - begun < ns);
}
";

// SAFETY: the first kernel touches no memory; the model keeps its own promise.
unsafe impl Recorded for Slow {
    fn record(&self, stream: &Stream) -> gpu::Result<()> {
        let shape = Shape { grid: [1; 3], block: [1; 3], shared_bytes: 0 };
        // A tenth more: the timer and events tell times in steps.
        let arguments = gpu::Arguments::new().u64(RUN.as_nanos() as u64 * 11 / 10);
        // SAFETY: as above.
        unsafe { stream.launch(&self.0, shape, &arguments) }?;
        self.1.record(stream)
    }
}

fn slow_on(machine: &Machine, buffers: &MachineMemory) -> Model {
    match add_one_on(machine, buffers) {
        Model::Called(mut add) => Model::Called(Box::new(move || {
            std::thread::sleep(RUN);
            add()
        })),
        Model::Recorded(model) => {
            let module = machine.module(&[Unit::new("spin.cu", SPIN)]).unwrap();
            Model::Recorded(Box::new(Slow(module.function("spin").unwrap(), model)))
        }
    }
}

fn both_queue(context: &Context, machine: &Machine) {
    for baseline in Baseline::ALL {
        let instance = || instance_by(machine, &|buffers| slow_on(machine, buffers));
        let trace = traced(context, &mut served_by(machine, baseline, &instance));
        for (nth, sample) in (0..).zip(&trace.samples[..SLOTS as usize]) {
            let mut queue = Duration::from_nanos(sample.ns(Step::Queue));
            if machine.is_gpu() {
                // Meanwhile its input is copied; the faithful one then also waits for the run before.
                queue += RUN / 2;
                if baseline == Baseline::Faithful {
                    queue += Duration::from_nanos(sample.ns(Step::ToGpu));
                }
            }
            assert!(queue >= nth * RUN, "{baseline:?} {nth}: {sample:?}");
            assert!(Duration::from_nanos(sample.ns(Step::Run)) >= RUN, "{baseline:?} {nth}: {sample:?}");
        }
    }
}

#[test]
fn an_answer_of_a_baseline_stays_until_the_nic_has_read_it() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    let machine = Machine::twin(Visibility::InOrder);
    for baseline in Baseline::ALL {
        let read = |waits| read_late(&context, &mut served(&machine, baseline), Mode::CpuCpuIbverbs, waits);
        assert!(read(true), "{baseline:?}");
        assert!(is_ever_torn(|| read(false)), "{baseline:?}: the defect is not seen");
    }
}

#[test]
fn a_model_that_fails_ends_a_baseline_with_its_reason() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    let machine = Machine::twin(Visibility::InOrder);
    let fails = || instance_by(&machine, &broken);
    for baseline in Baseline::ALL {
        let error = failure(&context, &mut served_by(&machine, baseline, &fails), Mode::CpuCpuIbverbs);
        assert!(error.contains("8192 bytes are broken"), "{baseline:?}: {error}");
    }
}

#[test]
fn a_faithful_baseline_whose_launcher_hangs_says_so_and_does_not_wait_for_it() {
    need!(has_kernels(), cc, "a C++ compiler");
    let machine = Machine::twin(Visibility::InOrder);
    let (release, gate) = channel::<()>();
    let gate = RefCell::new(Some(gate));
    let hangs = |buffers: &MachineMemory| {
        let (gate, buffers) = (gate.take().unwrap(), buffers.clone());
        Model::Called(Box::new(move || {
            gate.recv().map_err(|_| format!("released with {} bytes", buffers.len()))
        }))
    };
    let mut faithful = Faithful::new(&machine, &memory(), 3 * SLOTS, instance_by(&machine, &hangs)).unwrap();
    faithful.limit = Duration::from_millis(100);
    let (status, header, arrival) = (Status::Ok, Header::default(), ARRIVALS[0]);
    let job = Job { client: 0, slot: 0, sequence: 1, status, header, arrival, completed: 0 };
    faithful.begin(job).unwrap();
    let error = wait_for("the error", || faithful.ended().err()).to_string();
    assert!(error.contains("an end among the baseline's 1 requests has not happened"), "{error}");
    let dropping = std::thread::spawn(|| drop(faithful));
    wait_for("the end of the drop, beside a thread that hangs", || dropping.is_finished().then_some(()));
    drop(release);
}

#[test]
fn a_baseline_refuses_slots_of_the_other_kind() {
    let machine = Machine::twin(Visibility::InOrder);
    let pinned = memory().shown_to(&machine).unwrap();
    for (baseline, slots, why) in
        [(Baseline::Fair, memory(), "these are pageable"), (Baseline::Faithful, pinned, "these are pinned")]
    {
        let error = offload(&machine, baseline, &slots).err().unwrap().to_string();
        assert!(error.ends_with(why), "{error}");
    }
    let [one, mut other] = [instance(&machine), instance(&machine)];
    other.outputs.clear();
    let slots = memory().shown_to(&machine).unwrap();
    let error = Fair::new(&machine, &slots, [one, other]).err().unwrap().to_string();
    assert!(error.contains("0 outputs for 1 tensors"), "{error}");
}

#[test]
fn gpu_serves_by_both_baselines() {
    let context = need!(device(), nic, "an mlx5 device");
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    both_serve(&context, &machine);
    both_trace(&context, &machine);
    both_queue(&context, &machine);
    // What they claim of their slots is what the driver says of them.
    let driver = machine.context().unwrap();
    let (pageable, pinned) = (memory(), memory().shown_to(&machine).unwrap());
    assert!(!driver.is_pinned(pageable.address().unwrap()).unwrap());
    assert!(driver.is_pinned(pinned.address().unwrap()).unwrap());
}
