//! `cpu-gpu` over a NIC: real queues of unmodified libibverbs, a client of the shim, and kernels of the host twin or of a GPU.

use ::gpu::Toolkit;
use host_twin::Visibility;
use measure::need;
use rdma_shim::kernel::{Machine, Memory as MachineMemory};
use rdma_shim::testing::{compile_everywhere, device};
use verbs::Context;

use super::by_cpu::{Model, Setting, Turns, units};
use super::launch;
use crate::Mode;
use crate::cpu::{Memory, Served};
use crate::testing::{ARRIVALS, SLOTS, broken, failure, geometry, read_late, serves};

fn served(machine: &Machine) -> Served {
    served_by(machine, |buffers| super::nic_tests::add_one_on(machine, buffers))
}

fn served_by(machine: &Machine, model: impl FnOnce(&MachineMemory) -> Model) -> Served {
    let slots = 3 * SLOTS;
    let memory = Memory::new(geometry(), slots).unwrap().shown_to(machine).unwrap();
    let buffers = machine.own_memory(1 << 13).unwrap();
    buffers.fill(0).unwrap();
    let at = buffers.kernel_address();
    let setting = Setting {
        slots: &memory,
        slot_count: slots,
        clients: 3,
        inputs: &[at],
        outputs: &[at + 4096],
        copying: [2, 64],
    };
    let turns = Turns::new(machine, &setting, model(&buffers)).unwrap();
    Served::with(memory, slots, Some(Box::new(turns))).unwrap()
}

fn clients_come_and_go(context: &Context, machine: &Machine) {
    for arrival in ARRIVALS {
        let mut served = served(machine);
        assert_eq!(serves(context, &mut served, Mode::CpuGpu, arrival), 33);
    }
}

fn has_kernels() -> Result<(), String> {
    launch::SOURCES[0].twin.find("begin_turn").map(drop).map_err(|error| error.to_string())
}

#[test]
fn twin_serves_what_the_cpu_launches() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    for visibility in [Visibility::InOrder, Visibility::Weak { seed: 3 }] {
        clients_come_and_go(&context, &Machine::twin(visibility));
    }
}

#[test]
fn an_answer_of_cpu_gpu_stays_until_the_nic_has_read_it() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    let machine = Machine::twin(Visibility::InOrder);
    let read = |waits| read_late(&context, &mut served(&machine), Mode::CpuGpu, waits);
    assert!(read(true));
    assert!(!read(false), "the defect is not seen");
}

#[test]
fn a_model_that_fails_ends_cpu_gpu_with_its_reason() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    let machine = Machine::twin(Visibility::InOrder);
    let error = failure(&context, &mut served_by(&machine, broken), Mode::CpuGpu);
    assert!(error.ends_with("the model: 8192 bytes are broken"), "{error}");
}

#[test]
fn every_kernel_that_the_cpu_launches_compiles_for_every_architecture() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    compile_everywhere(toolkit, &units());
}

#[test]
fn gpu_serves_what_the_cpu_launches() {
    let context = need!(device(), nic, "an mlx5 device");
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    clients_come_and_go(&context, &machine);
    assert!(read_late(&context, &mut served(&machine), Mode::CpuGpu, true));
}
