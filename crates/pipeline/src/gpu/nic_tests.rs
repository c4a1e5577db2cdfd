//! Pipelines over a NIC: real queues of unmodified libibverbs, a client of the shim, and kernels of the host twin or of a GPU.

use std::time::{Duration, Instant};

use ::gpu::{Function, Module, Recorded, Shape, Stream, Unit};
use host_twin::{Kernels, Visibility};
use measure::need;
use rdma_shim::kernel::Reason;
use rdma_shim::testing::{connect, device, wait_for};
use rdma_shim::{Completion, Options, QueuePair};
use slots::layout::{PREFIX_BYTES, Status, flag};
use slots::{Tensor, TensorKind};
use verbs::code::Access;
use verbs::{
    Context, Cq, Mr, Pages, Payload, Pd, QpBuilder, QpType, ReceiveRequest, SendOperation, SendRequest,
};

use super::*;
use crate::trace::Step;

pub const FLOATS: usize = 1000;
const SLOTS: u32 = 4;
const LIMIT: Duration = Duration::from_secs(20);

fn geometry() -> Geometry {
    let tensor = Tensor { kind: TensorKind::F32, count: FLOATS };
    Geometry::new(5, &[tensor], &[tensor]).unwrap()
}

fn builder() -> QpBuilder {
    QpBuilder::new(QpType::Rc).send_requests(32).receive_requests(16).own_register(true)
}

/// A client with memory for requests and answers, and its end of the connection.
struct Peer {
    qp: QueuePair,
    memory: Mr<Pages>,
    client: slots::Client,
    shares: [Share; 2],
    _pd: Pd,
    index: u32,
    first: u32,
}

/// Where the answers' flags lie in a client's memory, and where it makes its requests.
const FLAGS: usize = 1 << 16;
const REQUESTS: usize = 1 << 17;

impl Peer {
    /// `wrong`: is added to the key of its answers.
    fn join(context: &Context, served: &mut Served, first: u32, wrong: u32) -> Peer {
        let server_pd = context.alloc_pd().unwrap();
        let cq = || Cq::new(context, 127).unwrap().into_direct().unwrap();
        let machine = served.core.machine.clone();
        let create = if served.posts() == Processor::Cpu { Queue::create_mixed } else { Queue::create };
        let queue = create(&machine, &builder(), &server_pd, cq(), Some(cq()), Options::default()).unwrap();
        Peer::join_by(queue, served, first, wrong)
    }

    fn join_by(queue: Queue, served: &mut Served, first: u32, wrong: u32) -> Peer {
        let server_pd = queue.qp().pd().clone();
        let context = server_pd.context();
        let pd = context.alloc_pd().unwrap();
        let cq = || Cq::new(context, 127).unwrap().into_direct().unwrap();
        let mut qp = QueuePair::create(&builder(), &pd, cq(), Some(cq()), Options::default()).unwrap();
        connect(queue.qp(), qp.qp().number());
        connect(qp.qp(), queue.qp().number());
        let memory = Mr::register(&pd, Pages::new(1 << 18).unwrap(), Access::ALL).unwrap();
        let shares = served.shares(&server_pd, first, SLOTS).unwrap();
        for _ in 0..16 {
            qp.post_receive(&ReceiveRequest { id: 0, scatter: &[] }).unwrap();
        }
        let there = Client {
            first,
            count: SLOTS,
            sequence: 0,
            answers: (memory.address(), memory.rkey() + wrong),
            flags: (memory.address() + FLAGS as u64, memory.rkey()),
            lkey: shares[0].mr().lkey(),
            is_reliable: true,
        };
        let index = served.add_client(queue, there).unwrap();
        let granted: Vec<(u32, u32)> = (first..first + SLOTS).map(|slot| (slot, 0)).collect();
        let client = slots::Client::new(geometry(), &granted);
        Peer { qp, memory, client, shares, _pd: pd, index, first }
    }

    fn ask(&mut self, arrival: Arrival, id: u64, value: f32) -> (u32, u32) {
        let geometry = geometry();
        let request = self.client.ask(id, id ^ 7, 0, u64::MAX).unwrap();
        let at = REQUESTS + request.place * (1 << 14);
        self.memory.write(at, &request.prefix);
        let values: Vec<u8> = (0..FLOATS).flat_map(|nth| (value + nth as f32).to_le_bytes()).collect();
        self.memory.write(at + geometry.request.entries()[0].offset as usize, &values);
        self.memory.write(at + geometry.request.tail, &flag(request.sequence).to_le_bytes());
        let [whole, tail] =
            [at..at + geometry.request.bytes(), at + geometry.request.tail..at + geometry.request.bytes()]
                .map(|range| [self.memory.sge(range).unwrap()]);
        let nth = (request.slot - self.first) as usize;
        let there = self.shares[0].mr().remote(nth * geometry.server_stride()).unwrap();
        let flag_there = self.shares[1].mr().remote(nth * 8).unwrap();
        let write = |qp: &mut QueuePair, operation, pieces: &[verbs::Sge]| {
            qp.try_post(&SendRequest::new(id, operation, Payload::Gather(pieces))).unwrap();
        };
        match arrival {
            Arrival::Completion => {
                write(&mut self.qp, SendOperation::WriteImm(there, request.slot.to_be_bytes()), &whole);
            }
            Arrival::Tail => write(&mut self.qp, SendOperation::Write(there), &whole),
            Arrival::Flag => {
                write(&mut self.qp, SendOperation::Write(there), &whole);
                write(&mut self.qp, SendOperation::Write(flag_there), &tail);
            }
        }
        self.qp.ring();
        (request.slot, request.sequence)
    }

    /// Waits for a slot's answer: whether its values are the model's.
    fn answer(&mut self, arrival: Arrival, (slot, sequence): (u32, u32), value: f32) -> (Status, bool) {
        let geometry = geometry();
        let nth = (slot - self.first) as usize;
        let at = nth * geometry.client_stride();
        let word = match arrival {
            Arrival::Flag => FLAGS + 8 * nth,
            _ => at + geometry.answer.tail,
        };
        let mut completions = [Completion::default(); 8];
        wait_for("answer", || {
            let count = self.qp.poll(&mut completions).unwrap();
            for _ in completions[..count].iter().filter(|completion| !completion.is_send()) {
                self.qp.post_receive(&ReceiveRequest { id: 0, scatter: &[] }).unwrap();
            }
            (self.memory.word64(word).load(Ordering::Acquire) == flag(sequence)).then_some(())
        });
        let mut prefix = [0; PREFIX_BYTES];
        self.memory.read(at, &mut prefix);
        let mut values = vec![0; 4 * FLOATS];
        self.memory.read(at + geometry.answer.entries()[0].offset as usize, &mut values);
        let expected: Vec<u8> =
            (0..FLOATS).flat_map(|nth| (value + nth as f32 + 1.0).to_le_bytes()).collect();
        (self.client.answered(slot, &prefix).unwrap().status, values == expected)
    }
}

/// Two clients, several rounds, one that leaves while the other goes on; then the place is taken again.
pub fn serves(
    context: &Context,
    machine: &Machine,
    (arrival, posts): (Arrival, Processor),
    start: &dyn Fn(&mut Served, &Memory),
) {
    let model = machine.own_memory(1 << 13).unwrap();
    model.fill(0).unwrap();
    let at = model.kernel_address();
    let setting = Setting {
        geometry: &geometry(),
        slots: 3 * SLOTS,
        clients: 3,
        arrival,
        place: Place::Gpu,
        inputs: &[at],
        outputs: &[at + 4096],
        wait: Duration::from_millis(20),
        threads: 64,
        copying: [2, 64],
    };
    let mut served = Served::posted_by(posts, machine, setting).unwrap();
    let mut peers = [Peer::join(context, &mut served, 0, 0), Peer::join(context, &mut served, SLOTS, 0)];
    start(&mut served, &model);
    peers.iter().for_each(|peer| served.wait_done(peer.index, LIMIT).unwrap());
    for round in 0..5_u64 {
        let mut asked = Vec::new();
        for (nth, peer) in peers.iter_mut().enumerate() {
            for id in 0..u64::from(SLOTS - 1) {
                let value = (round * 1000 + id * 10 + nth as u64) as f32;
                asked.push((nth, peer.ask(arrival, round * 10 + id, value), value));
            }
        }
        for (nth, slot, value) in asked {
            let answer = peers[nth].answer(arrival, slot, value);
            assert_eq!(answer, (Status::Ok, true), "{arrival:?} round {round} client {nth} {slot:?}");
        }
    }
    let [gone, mut stays] = peers;
    let queue = served.remove_client(gone.index, LIMIT).unwrap();
    let slot = stays.ask(arrival, 900, 3.0);
    assert_eq!(stays.answer(arrival, slot, 3.0), (Status::Ok, true));
    drop(gone);
    // What the client before has written is gone.
    let tensor = geometry().request.entries()[0].offset as usize;
    let first_slot = |served: &Served| {
        let mut bytes = vec![0; 4 * FLOATS];
        served.core.slots.read(tensor, &mut bytes).unwrap();
        bytes.iter().any(|byte| *byte != 0)
    };
    assert!(first_slot(&served));
    let mut next = Peer::join_by(queue, &mut served, 0, 0);
    assert!(!first_slot(&served));
    served.wait_done(next.index, LIMIT).unwrap();
    let slot = next.ask(arrival, 1, 4.0);
    assert_eq!(next.answer(arrival, slot, 4.0), (Status::Ok, true));
    // A client whose memory refuses the answer: its queue alone is given up.
    let mut bad = Peer::join(context, &mut served, 2 * SLOTS, 0x100);
    served.wait_done(bad.index, LIMIT).unwrap();
    bad.ask(arrival, 1, 4.0);
    let failure = wait_for("failure", || served.failure(bad.index).unwrap());
    // The chain ends with that, and goes on without it.
    served.wait_end(LIMIT).unwrap();
    served.start().unwrap();
    let Reason::Completion { status, is_send: true, .. } = failure.reason else { panic!("{failure}") };
    assert_eq!(status.to_string().split(' ').next(), Some("remote"), "{failure}");
    let slot = stays.ask(arrival, 901, 5.0);
    assert_eq!(stays.answer(arrival, slot, 5.0), (Status::Ok, true));
    assert_eq!(served.failure(stays.index).unwrap(), None);
    served.stop(LIMIT).unwrap();
    let counters = served.counters();
    assert_eq!((counters.answered, counters.refused, counters.strays), (34, 0, 0), "{counters:?}");
}

pub const ARRIVALS: [Arrival; 3] = [Arrival::Flag, Arrival::Tail, Arrival::Completion];

#[test]
fn twin_serves_clients_that_come_and_go() {
    let context = need!(device(), nic, "an mlx5 device");
    let kernels: &Kernels = launch::SOURCES[0].twin;
    need!(kernels.find("wait_inputs").map_err(|error| error.to_string()), cc, "a C++ compiler");
    let orders = [Visibility::Weak { seed: 1 }, Visibility::InOrder, Visibility::Weak { seed: 2 }];
    for ((arrival, visibility), posts) in
        ARRIVALS.iter().zip(orders).flat_map(|way| [Processor::Gpu, Processor::Cpu].map(|posts| (way, posts)))
    {
        let machine = Machine::twin(visibility);
        serves(&context, &machine, (*arrival, posts), &|served, model| {
            let model = model.clone();
            let add = move || {
                add_one(&model);
                Ok(())
            };
            served.start_by_cpu(add).unwrap();
        });
    }
}

/// Whether each answer's steps are known, one behind the other, and no longer than its service.
fn traces(context: &Context, machine: &Machine, start: &dyn Fn(&mut Served, &Memory)) {
    let model = machine.own_memory(1 << 13).unwrap();
    model.fill(0).unwrap();
    let at = model.kernel_address();
    let setting = Setting {
        geometry: &geometry(),
        slots: 2 * SLOTS,
        clients: 2,
        arrival: Arrival::Completion,
        place: Place::Gpu,
        inputs: &[at],
        outputs: &[at + 4096],
        wait: Duration::from_millis(20),
        threads: 64,
        copying: [2, 64],
    };
    let mut served = Served::new(machine, setting).unwrap();
    served.trace(context).unwrap();
    let mut peers = [0, SLOTS].map(|first| Peer::join(context, &mut served, first, 0));
    start(&mut served, &model);
    peers.iter().for_each(|peer| served.wait_done(peer.index, LIMIT).unwrap());
    let begun = Instant::now();
    for id in 0..20 {
        for peer in &mut peers {
            let slot = peer.ask(Arrival::Completion, id, 1.0);
            assert_eq!(peer.answer(Arrival::Completion, slot, 1.0), (Status::Ok, true));
        }
    }
    let most = begun.elapsed().as_nanos() as u64;
    // A queue that is dropped beside a graph that runs is waited for.
    let mut queues = Vec::new();
    for peer in peers {
        queues.push(served.remove_client(peer.index, LIMIT).unwrap());
        let trace = served.traced(peer.index).unwrap().unwrap();
        assert_eq!((trace.samples.len(), trace.lost), (20, 0));
        for sample in &trace.samples {
            let steps: u64 = sample.steps_ns.iter().sum();
            let service = sample.service_ns + 2 * trace.clock_error_ns;
            assert!(
                steps > 0 && steps <= service && service <= most + 2 * trace.clock_error_ns,
                "{sample:?} {most}"
            );
            for step in [Step::CopyIn, Step::Run, Step::CopyOut, Step::Send] {
                assert!(sample.ns(step) > 0, "{step:?}: {sample:?}");
            }
        }
        assert_eq!(served.traced(peer.index).unwrap().unwrap().samples, []);
    }
    served.stop(LIMIT).unwrap();
}

#[test]
fn twin_traces_the_steps_of_each_request() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(launch::SOURCES[0].twin.find("tell_time").map_err(|error| error.to_string()), cc, "a C++ compiler");
    let machine = Machine::twin(Visibility::InOrder);
    traces(&context, &machine, &|served, model| {
        let model = model.clone();
        let add = move || {
            add_one(&model);
            Ok(())
        };
        served.start_by_cpu(add).unwrap();
    });
    // Without receive completions nothing tells when a request has arrived.
    let at = machine.own_memory(1 << 13).unwrap().kernel_address();
    let setting = Setting {
        geometry: &geometry(),
        slots: 1,
        clients: 1,
        arrival: Arrival::Flag,
        place: Place::Gpu,
        inputs: &[at],
        outputs: &[at + 4096],
        wait: Duration::from_millis(1),
        threads: 32,
        copying: [1, 32],
    };
    let error = Served::new(&machine, setting).unwrap().trace(&context).unwrap_err().to_string();
    assert!(error.contains("receive completions"), "{error}");
}

#[test]
fn gpu_traces_the_steps_of_each_request() {
    let context = need!(device(), nic, "an mlx5 device");
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    let module: Module = machine.module(&[Unit::new("add_one.cu", ADD_ONE)]).unwrap();
    for again in [Again::Relaunch, Again::While] {
        traces(&context, &machine, &|served, memory| {
            let function = module.function("add_one").unwrap();
            served.start_graph(again, Box::new(AddOne { function, memory: memory.clone() })).unwrap();
        });
    }
}

fn add_one(model: &Memory) {
    let mut values = vec![0; 4 * FLOATS];
    model.read(0, &mut values).unwrap();
    let floats = values.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes) + 1.0);
    let more: Vec<u8> = floats.flat_map(f32::to_le_bytes).collect();
    model.write(4096, &more).unwrap();
}

const ADD_ONE: &str = "extern \"C\" __global__ void add_one(const float *in, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] + 1.0f;
}
";

struct AddOne {
    function: Function,
    memory: Memory,
}

// SAFETY: the kernel reads and writes the memory, and the value keeps both.
unsafe impl Recorded for AddOne {
    fn record(&self, stream: &Stream) -> ::gpu::Result<()> {
        let at = self.memory.kernel_address();
        let arguments = ::gpu::Arguments::new().u64(at).u64(at + 4096).u32(FLOATS as u32);
        let shape = Shape { grid: [4, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
        // SAFETY: as above.
        unsafe { stream.launch(&self.function, shape, &arguments) }
    }
}

#[test]
fn gpu_serves_clients_that_come_and_go_by_itself() {
    let context = need!(device(), nic, "an mlx5 device");
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    let module: Module = machine.module(&[Unit::new("add_one.cu", ADD_ONE)]).unwrap();
    let ways = [
        (Again::Relaunch, Processor::Gpu),
        (Again::While, Processor::Gpu),
        (Again::Relaunch, Processor::Cpu),
    ];
    for (arrival, (again, posts)) in ARRIVALS.iter().flat_map(|way| ways.map(|others| (*way, others))) {
        serves(&context, &machine, (arrival, posts), &|served, memory| {
            let function = module.function("add_one").unwrap();
            let model = AddOne { function, memory: memory.clone() };
            served.start_graph(again, Box::new(model)).unwrap();
        });
    }
}

/// The model that adds 1, on a machine of either kind; its input lies where `memory` begins, its output 4096 bytes behind.
pub fn add_one_on(machine: &Machine, memory: &Memory) -> by_cpu::Model {
    let memory = memory.clone();
    if !machine.is_gpu() {
        return by_cpu::Model::Called(Box::new(move || {
            add_one(&memory);
            Ok(())
        }));
    }
    let module = machine.module(&[Unit::new("add_one.cu", ADD_ONE)]).unwrap();
    by_cpu::Model::Recorded(Box::new(AddOne { function: module.function("add_one").unwrap(), memory }))
}
