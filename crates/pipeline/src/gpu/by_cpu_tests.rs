//! `cpu-gpu` over a NIC: queues of unmodified libibverbs, a shim client, kernels of the host twin or a GPU.

use ::gpu::{Compiler, Toolkit};
use host_twin::Visibility;
use measure::need;
use rdma_shim::kernel::{Machine, Memory as MachineMemory};
use rdma_shim::sys::db_sq;
use rdma_shim::testing::{compile_and_link, device, wait_for};
use slots::Arrival;
use slots::layout::Header;
use verbs::{Context, QpType};

use super::by_cpu::{BEGIN, Model, Setting, Turns};
use super::launch;
use super::tests::ptx;
use crate::Mode;
use crate::cpu::{self, CpuError, Endpoint, Job, Memory, Offload, Served};
use crate::testing::{
    ARRIVALS, Peer, SLOTS, broken, failure, geometry, is_ever_torn, join, join_with, pump, read_late, serves,
};

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
    assert!(is_ever_torn(|| read(false)), "the defect is not seen");
}

#[test]
fn a_number_is_outstanding_until_the_answer_of_cpu_gpu_was_sent() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    let mut served = served(&Machine::twin(Visibility::InOrder));
    // Without receives no answer is sent.
    let mut peer = join_with(&context, &mut served, Mode::CpuGpu, Arrival::Completion, 0, 0, false);
    let until = |served: &mut Served, answered: u64, refused: u64| {
        wait_for("service", || {
            pump(served);
            (served.counts().1 == cpu::Counts { answered, refused }).then_some(())
        });
    };
    peer.ask(1, 1.0);
    until(&mut served, 1, 0);
    let request = peer.client.ask(2, 0, 0, u64::MAX).unwrap();
    let header = Header { request_id: 1, ..Header::read(&request.prefix).unwrap() };
    peer.send(1, request.slot, request.sequence, &geometry().request.prefix(&header), 2.0);
    until(&mut served, 1, 1);
}

#[test]
fn a_client_of_cpu_gpu_is_told_why_its_answer_was_not_posted() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(has_kernels(), cc, "a C++ compiler");
    let mut served = served(&Machine::twin(Visibility::InOrder));
    let (client, granted) = served.grant(1).unwrap();
    let (mode, kind, arrival) = (Mode::CpuGpu, QpType::Rc, Arrival::Flag);
    let setting = cpu::Setting { mode, kind, arrival, granted: &granted, is_traced: false };
    let mut endpoint = Endpoint::new(&context, served.memory(), &setting).unwrap();
    let there = endpoint.regions().try_into().unwrap();
    let mut peer = Peer::new(endpoint.qp(), there, arrival, client, &granted, 0);
    endpoint.answer_to(&peer.answers(0)).unwrap();
    let sq = std::ptr::with_exposed_provenance_mut::<db_sq>(endpoint.kernel_queue().unwrap().sq as usize);
    // SAFETY: the endpoint keeps its queue's structs, and no kernel has the queue yet.
    unsafe { (*sq).blocks = 0 };
    served.admit(client, endpoint);
    peer.ask(1, 1.0);
    let why = wait_for("failure", || {
        pump(&mut served);
        served.failed().next().map(|(_, why)| why.to_owned())
    });
    assert!(why.contains("cannot be posted on this queue"), "{why}");
}

/// Computes nothing, and lets no client go.
struct StuckModel;

impl Offload for StuckModel {
    fn remove(&mut self, _: u32) -> Result<(), CpuError> {
        Err(CpuError::Offload("a kernel still posts".into()))
    }
    fn has_room(&self) -> bool {
        false
    }
    fn begin(&mut self, _: Job) -> Result<(), CpuError> {
        Ok(())
    }
    fn ended(&mut self) -> Result<Option<Job>, CpuError> {
        Ok(None)
    }
}

#[test]
fn a_client_that_cannot_be_let_go_is_an_error() {
    let context = need!(device(), nic, "an mlx5 device");
    let memory = Memory::new(geometry(), SLOTS).unwrap();
    let mut served = Served::with(memory, SLOTS, Some(Box::new(StuckModel))).unwrap();
    let peer = join(&context, &mut served, Mode::CpuCpuShim, Arrival::Flag, 0);
    let error = served.remove(peer.number).unwrap_err().to_string();
    assert!(error.ends_with("a kernel still posts"), "{error}");
}

#[test]
fn a_queue_of_cpu_gpu_is_the_next_clients() {
    let context = need!(device(), nic, "an mlx5 device");
    let machine = Machine::twin(Visibility::InOrder);
    let memory = Memory::new(geometry(), SLOTS).unwrap().shown_to(&machine).unwrap();
    let endpoint = |slots: u32| {
        let granted: Vec<(u32, u32)> = (0..slots).map(|slot| (slot, 0)).collect();
        let (mode, kind, arrival) = (Mode::CpuGpu, QpType::Rc, ARRIVALS[0]);
        let setting = cpu::Setting { mode, kind, arrival, granted: &granted, is_traced: false };
        let endpoint = Endpoint::new(&context, &memory, &setting).unwrap();
        (endpoint.qp().number(), endpoint.regions()[0].rkey, endpoint)
    };
    let (number, rkey, first) = endpoint(SLOTS - 1);
    drop(first);
    let (again, other_rkey, _second) = endpoint(SLOTS);
    assert_eq!(again, number);
    assert_ne!(other_rkey, rkey);
    assert_ne!(endpoint(SLOTS).0, number, "it has a client");
}

#[test]
fn the_count_that_gives_a_record_back_is_stored_with_release() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let compiler = Compiler::load(&toolkit).unwrap();
    let release =
        "db_store_release_sys64((db_u64) & ((struct db_counts *)at->counts)->turns, ++turn->counts.turns)";
    let count = |planted| ptx(&compiler, &BEGIN, planted).matches("st.release.sys.global.u64").count();
    assert_eq!([None, Some((release, "DB_COUNT(at, &turn->counts, turns, 1)"))].map(count), [1, 0]);
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
fn the_first_kernel_that_the_cpu_launches_compiles() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    // The others are those of the graph.
    compile_and_link(toolkit, &[BEGIN.unit()], need::is_full());
}

#[test]
fn gpu_serves_what_the_cpu_launches() {
    let context = need!(device(), nic, "an mlx5 device");
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    clients_come_and_go(&context, &machine);
    assert!(read_late(&context, &mut served(&machine), Mode::CpuGpu, true));
}
