//! Pipelines over a NIC: queues of unmodified libibverbs, a shim client, kernels of the host twin or a GPU.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ::gpu::{Function, Module, Recorded, Shape, SlotTensors, Stream, Unit};
use host_twin::{Kernels, Visibility};
use measure::need;
use rdma_shim::Options;
use rdma_shim::kernel::Reason;
use rdma_shim::testing::{device, wait_for};
use slots::layout::Status;
use verbs::connect::RegionOffer;
use verbs::{Context, Cq, QpBuilder, QpType};

use super::tests::chain::{WOKEN, Wakes};
use super::*;
use crate::testing::{ARRIVALS, Asked, FLOATS, Peer, SLOTS, geometry};
use crate::trace::Step;

const LIMIT: Duration = Duration::from_secs(20);

/// A client that a pipeline serves, and its registrations on the server.
pub struct Member {
    pub peer: Peer,
    pub place: u32,
    _shares: [Share; 2],
}

impl Member {
    /// `wrong`: is added to the key of its answers.
    fn join(context: &Context, served: &mut Served, first: u32, wrong: u32) -> Member {
        let pd = context.alloc_pd().unwrap();
        let cq = || Cq::new(context, 127).unwrap().into_direct().unwrap();
        let builder = QpBuilder::new(QpType::Rc).send_requests(32).receive_requests(16).own_register(true);
        let machine = served.core.machine.clone();
        let create = if served.posts() == Processor::Cpu { Queue::create_mixed } else { Queue::create };
        let queue = create(&machine, &builder, &pd, cq(), Some(cq()), Options::default()).unwrap();
        Member::join_by(queue, served, [first, SLOTS], wrong, 16)
    }

    /// `receives`: that it posts at first.
    pub fn join_by(
        queue: Queue,
        served: &mut Served,
        [first, count]: [u32; 2],
        wrong: u32,
        receives: usize,
    ) -> Member {
        let shares = served.slots().shares(queue.qp().pd(), first, count).unwrap();
        let there = [0, 1].map(|nth: usize| RegionOffer::new(shares[nth].mr()));
        let granted: Vec<(u32, u32)> = (first..first + count).map(|slot| (slot, 0)).collect();
        let peer = Peer::new(queue.qp(), there, served.arrival, 0, &granted, receives);
        let [answers, flags] = peer.answers(wrong).map(|region| (region.address, region.rkey));
        let lkey = shares[0].mr().lkey();
        let client = Client { first, count, sequence: 0, answers, flags, lkey, is_reliable: true };
        let place = served.add_client(queue, client).unwrap();
        Member { peer, place, _shares: shares }
    }

    fn answer(&mut self, asked: Asked) -> (Status, bool) {
        self.peer.answer(asked, &mut || ())
    }
}

/// Two clients, several rounds; one leaves while the other goes on, then its place is taken again. Gives the
/// time from the request whose answer fails its queue to the wake-up of the thread that sleeps at the end.
pub fn serves(
    context: &Context,
    machine: &Machine,
    (arrival, posts, in_slots): (Arrival, Processor, bool),
    start: &dyn Fn(&mut Served, &Memory),
) -> Duration {
    let model = machine.own_memory(1 << 13).unwrap();
    model.fill(0).unwrap();
    let at = model.kernel_address();
    let setting = Setting {
        geometry: &geometry(),
        slots: 3 * SLOTS,
        clients: 3,
        arrival,
        place: Place::Gpu,
        inputs: &[at][usize::from(in_slots)..],
        outputs: &[at + 4096][usize::from(in_slots)..],
        wait: Duration::from_millis(20),
        threads: 64,
        copying: [2, 64],
    };
    let mut served = Served::posted_by(posts, machine, setting).unwrap();
    let mut members = [0, SLOTS].map(|first| Member::join(context, &mut served, first, 0));
    let (tells, ended) = channel();
    served.call_at_end(Arc::new(move || tells.send(Instant::now()).unwrap()));
    start(&mut served, &model);
    members.iter().for_each(|member| served.wait_done(member.place, LIMIT).unwrap());
    for round in 0..5_u64 {
        let mut asked = Vec::new();
        for (nth, member) in members.iter_mut().enumerate() {
            for id in 0..u64::from(SLOTS - 1) {
                let value = (round * 1000 + id * 10 + nth as u64) as f32;
                asked.push((nth, member.peer.ask(round * 10 + id, value)));
            }
        }
        for (nth, asked) in asked {
            let answer = members[nth].answer(asked);
            assert_eq!(answer, (Status::Ok, true), "{arrival:?} round {round} client {nth} {asked:?}");
        }
    }
    let ask = |member: &mut Member, id: u64, value: f32| {
        let asked = member.peer.ask(id, value);
        assert_eq!(member.answer(asked), (Status::Ok, true), "{arrival:?} {id}");
    };
    let [gone, mut stays] = members;
    let queue = served.remove_client(gone.place, LIMIT).unwrap();
    ask(&mut stays, 900, 3.0);
    drop(gone);
    // What the client before has written is gone.
    let tensor = geometry().request.entries()[0].offset as usize;
    let first_slot = |served: &Served| {
        let mut bytes = vec![0; 4 * FLOATS];
        served.core.slots.read(tensor, &mut bytes).unwrap();
        bytes.iter().any(|byte| *byte != 0)
    };
    assert!(first_slot(&served));
    let mut next = Member::join_by(queue, &mut served, [0, SLOTS], 0, 16);
    assert!(!first_slot(&served));
    served.wait_done(next.place, LIMIT).unwrap();
    ask(&mut next, 1, 4.0);
    // A client whose memory refuses the answer: its queue alone is given up.
    let mut bad = Member::join(context, &mut served, 2 * SLOTS, 0x100);
    served.wait_done(bad.place, LIMIT).unwrap();
    // Before the request, and so before the error's CQE.
    let asked = Instant::now();
    bad.peer.ask(1, 4.0);
    let woken = ended.recv_timeout(LIMIT).unwrap().duration_since(asked);
    let failure = wait_for("failure", || served.failure(bad.place).unwrap());
    // The chain ends with that, and goes on without it.
    served.wait_end(LIMIT).unwrap();
    served.start().unwrap();
    let Reason::Completion { status, is_send: true, .. } = failure.reason else { panic!("{failure}") };
    assert_eq!(status.to_string().split(' ').next(), Some("remote"), "{failure}");
    ask(&mut stays, 901, 5.0);
    assert_eq!(served.failure(stays.place).unwrap(), None);
    served.stop(LIMIT).unwrap();
    let counters = served.counters();
    assert_eq!((counters.answered, counters.refused, counters.strays), (34, 0, 0), "{counters:?}");
    woken
}

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
        serves(&context, &machine, (*arrival, posts, false), &|served, model| {
            let model = model.clone();
            let add = move || {
                add_one(&model);
                Ok(())
            };
            served.prepare_by_cpu(add).and_then(|()| served.start()).unwrap();
        });
    }
}

/// Steps of a request whose model works in memory of its own.
const COPIED: [Step; 4] = [Step::CopyIn, Step::Run, Step::CopyOut, Step::Send];

/// Whether each answer's steps are known, one behind the other, and no longer than its service.
pub fn traces(
    context: &Context,
    machine: &Machine,
    (steps, in_slots): (&[Step], bool),
    start: &dyn Fn(&mut Served, &Memory),
) {
    let model = machine.own_memory(1 << 13).unwrap();
    model.fill(0).unwrap();
    let at = model.kernel_address();
    let setting = Setting {
        geometry: &geometry(),
        slots: 2 * SLOTS,
        clients: 2,
        arrival: Arrival::Completion,
        place: Place::Gpu,
        inputs: &[at][usize::from(in_slots)..],
        outputs: &[at + 4096][usize::from(in_slots)..],
        wait: Duration::from_millis(20),
        threads: 64,
        copying: [2, 64],
    };
    let mut served = Served::new(machine, setting).unwrap();
    served.trace(context).unwrap();
    let mut members = [0, SLOTS].map(|first| Member::join(context, &mut served, first, 0));
    start(&mut served, &model);
    members.iter().for_each(|member| served.wait_done(member.place, LIMIT).unwrap());
    let begun = Instant::now();
    for id in 0..20 {
        for member in &mut members {
            let asked = member.peer.ask(id, 1.0);
            assert_eq!(member.answer(asked), (Status::Ok, true));
        }
    }
    let most = begun.elapsed().as_nanos() as u64;
    // A queue that is dropped beside a graph that runs is waited for.
    let mut queues = Vec::new();
    for Member { place, .. } in members {
        queues.push(served.remove_client(place, LIMIT).unwrap());
        let trace = served.traced(place).unwrap().unwrap();
        assert_eq!((trace.samples.len(), trace.lost, trace.disordered), (20, 0, 0));
        for sample in &trace.samples {
            let all: u64 = sample.steps_ns.iter().sum();
            let service = sample.service_ns + 2 * trace.clock_error_ns;
            assert!(
                all > 0 && all <= service && service <= most + 2 * trace.clock_error_ns,
                "{sample:?} {most}"
            );
            for step in steps {
                assert!(sample.ns(*step) > 0, "{step:?}: {sample:?}");
            }
        }
        assert_eq!(served.traced(place).unwrap().unwrap().samples, []);
    }
    served.stop(LIMIT).unwrap();
}

#[test]
fn twin_traces_the_steps_of_each_request() {
    let context = need!(device(), nic, "an mlx5 device");
    need!(launch::SOURCES[0].twin.find("tell_time").map_err(|error| error.to_string()), cc, "a C++ compiler");
    let machine = Machine::twin(Visibility::InOrder);
    traces(&context, &machine, (&COPIED, false), &|served, model| {
        let model = model.clone();
        let add = move || {
            add_one(&model);
            Ok(())
        };
        served.prepare_by_cpu(add).and_then(|()| served.start()).unwrap();
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
    for again in [Repeat::Relaunch, Repeat::While] {
        traces(&context, &machine, (&COPIED, false), &|served, memory| {
            served
                .prepare_graph(again, Box::new(AddOne::of(&module, memory)))
                .and_then(|()| served.start())
                .unwrap();
        });
        traces(&context, &machine, (&[Step::Run, Step::Send], true), &|served, memory| {
            served
                .prepare_graph(again, Box::new(AddOne::in_slots(&module, memory, served)))
                .and_then(|()| served.start())
                .unwrap();
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

const ADD_ONE: &str = "struct slot { char *base; const int *index; unsigned long long stride, offset; };
extern \"C\" __global__ void add_one(struct slot in, struct slot out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float *from = (const float *)(in.base + *in.index * in.stride + in.offset);
    if (i < count) ((float *)(out.base + *out.index * out.stride + out.offset))[i] = from[i] + 1.0f;
}
";

struct AddOne {
    function: Function,
    /// Where the request and the answer lie: `struct slot` each.
    places: [[u64; 4]; 2],
    _memory: Memory,
}

impl AddOne {
    /// Its input lies where the memory begins, its output 4096 bytes behind; its slot's number behind both.
    fn of(module: &Module, memory: &Memory) -> AddOne {
        let at = memory.kernel_address();
        memory.write((1 << 13) - 4, &[0; 4]).unwrap();
        let places = [at, at + 4096].map(|base| [base, at + (1 << 13) - 4, 0, 0]);
        AddOne { function: module.function("add_one").unwrap(), places, _memory: memory.clone() }
    }

    fn in_slots(module: &Module, memory: &Memory, served: &Served) -> AddOne {
        AddOne::at(module, memory, &served.tensors())
    }

    fn at(module: &Module, memory: &Memory, tensors: &SlotTensors) -> AddOne {
        let places = [tensors.inputs[0].words(), tensors.outputs[0].words()];
        AddOne { places, ..AddOne::of(module, memory) }
    }
}

// SAFETY: the kernel reads and writes memory that the value keeps, or slots of the graph's pipeline.
unsafe impl Recorded for AddOne {
    fn record(&self, stream: &Stream) -> ::gpu::Result<()> {
        let words: Vec<u8> = self.places.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
        let arguments = ::gpu::Arguments::new().bytes(&words[..32]).bytes(&words[32..]).u32(FLOATS as u32);
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
        (Repeat::Relaunch, Processor::Gpu, true),
        (Repeat::Relaunch, Processor::Gpu, false),
        (Repeat::While, Processor::Gpu, true),
        (Repeat::Relaunch, Processor::Cpu, true),
    ];
    for (again, posts, in_slots) in ways {
        let mut wakes = Wakes::default();
        wakes.took.extend(ARRIVALS.map(|arrival| {
            serves(&context, &machine, (arrival, posts, in_slots), &|served, memory| {
                let model = if in_slots {
                    AddOne::in_slots(&module, memory, served)
                } else {
                    AddOne::of(&module, memory)
                };
                served.prepare_graph(again, Box::new(model)).and_then(|()| served.start()).unwrap();
            })
        }));
        wakes.judge(&format!("{again:?}, posted by {posts:?}: a failed queue ends the chain"), WOKEN);
    }
}

/// The model that adds 1 in the slots that [`Served::tensors_ahead`] says, or where `memory` begins.
pub fn add_one_ahead(served: &Served, memory: &Memory, in_slots: bool) -> by_cpu::Model {
    let machine = &served.core.machine;
    if !in_slots {
        return add_one_on(machine, memory);
    }
    let module = machine.module(&[Unit::new("add_one.cu", ADD_ONE)]).unwrap();
    by_cpu::Model::Recorded(Box::new(AddOne::at(&module, memory, &served.tensors_ahead())))
}

/// The model that adds 1, on either machine; input where `memory` begins, output 4096 bytes behind.
pub fn add_one_on(machine: &Machine, memory: &Memory) -> by_cpu::Model {
    let memory = memory.clone();
    if !machine.is_gpu() {
        return by_cpu::Model::Called(Box::new(move || {
            add_one(&memory);
            Ok(())
        }));
    }
    let module = machine.module(&[Unit::new("add_one.cu", ADD_ONE)]).unwrap();
    by_cpu::Model::Recorded(Box::new(AddOne::of(&module, &memory)))
}
