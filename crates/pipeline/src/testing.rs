//! A client over a NIC, for tests of every mode: it asks by each way of arrival, and checks what is answered.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdma_shim::kernel::Memory;
use rdma_shim::testing::{connect, wait_for};
use rdma_shim::{Completion, Options, QueuePair};
use slots::layout::{Header, PREFIX_BYTES, Status, flag};
use slots::{Arrival, Geometry, Tensor, TensorKind};
use verbs::code::Access;
use verbs::connect::RegionOffer;
use verbs::{
    Context, Cq, Mr, Pages, Payload, Qp, QpBuilder, QpType, ReceiveRequest, Remote, SendOperation,
    SendRequest,
};

use crate::Mode;
use crate::cpu::{Endpoint, Served, Setting};
use crate::gpu::by_cpu::Model;

pub const FLOATS: usize = 1000;
pub const SLOTS: u32 = 4;
pub const ARRIVALS: [Arrival; 3] = [Arrival::Flag, Arrival::Tail, Arrival::Completion];
/// Where the answers' flags lie in a client's memory, and where it makes its requests.
const FLAGS: usize = 1 << 16;
const REQUESTS: usize = 1 << 17;

/// One tensor of [`FLOATS`] numbers each way.
pub fn geometry() -> Geometry {
    let tensor = Tensor { kind: TensorKind::F32, count: FLOATS };
    Geometry::new(5, &[tensor], &[tensor]).unwrap()
}

/// A request that was sent: its slot, its sequence, and what it holds.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub slot: u32,
    pub sequence: u32,
    pub value: f32,
}

/// A client with memory for requests and answers, and its end of the connection.
pub struct Peer {
    qp: QueuePair,
    memory: Mr<Pages>,
    pub client: slots::Client,
    there: [RegionOffer; 2],
    arrival: Arrival,
    pub number: u32,
    pub first: u32,
}

impl Peer {
    /// Connects to a server's queue pair in RESET, with slots and flags `there`. Posts `receives` at first.
    pub fn new(
        server: &Qp,
        there: [RegionOffer; 2],
        arrival: Arrival,
        number: u32,
        granted: &[(u32, u32)],
        receives: usize,
    ) -> Peer {
        let context = server.pd().context();
        let pd = context.alloc_pd().unwrap();
        let cq = || Cq::new(context, 127).unwrap().into_direct().unwrap();
        let builder = QpBuilder::new(QpType::Rc).send_requests(32).receive_requests(16).own_register(true);
        let mut qp = QueuePair::create(&builder, &pd, cq(), Some(cq()), Options::default()).unwrap();
        connect(server, qp.qp().number());
        connect(qp.qp(), server.number());
        let memory = Mr::register(&pd, Pages::new(1 << 18).unwrap(), Access::ALL).unwrap();
        for _ in 0..receives {
            qp.post_receive(&ReceiveRequest { id: 0, scatter: &[] }).unwrap();
        }
        let client = slots::Client::new(geometry(), granted);
        Peer { qp, memory, client, there, arrival, number, first: granted[0].0 }
    }

    /// Where it wants its answers; `wrong` is added to their key.
    pub fn answers(&self, wrong: u32) -> [RegionOffer; 2] {
        let whole = RegionOffer::new(&self.memory);
        let flags = RegionOffer { address: whole.address + FLAGS as u64, bytes: FLAGS as u64, ..whole };
        [RegionOffer { rkey: whole.rkey + wrong, bytes: FLAGS as u64, ..whole }, flags]
    }

    pub fn ask(&mut self, id: u64, value: f32) -> Asked {
        let request = self.client.ask(id, id ^ 7, 0, u64::MAX).unwrap();
        self.send(id, request.slot, request.sequence, &request.prefix, value)
    }

    /// The next request of a slot whose answer has not come: a client does not do that.
    pub fn ask_early(&mut self, before: Asked, prefix: &[u8; PREFIX_BYTES], value: f32) -> Asked {
        let sequence = before.sequence + 1;
        let header = Header { sequence, request_id: 77, ..Header::read(prefix).unwrap() };
        self.send(77, before.slot, sequence, &geometry().request.prefix(&header), value)
    }

    pub fn send(
        &mut self,
        id: u64,
        slot: u32,
        sequence: u32,
        prefix: &[u8; PREFIX_BYTES],
        value: f32,
    ) -> Asked {
        let geometry = geometry();
        let nth = (slot - self.first) as usize;
        let at = REQUESTS + nth * (1 << 14);
        self.memory.write(at, prefix);
        let values: Vec<u8> = (0..FLOATS).flat_map(|nth| (value + nth as f32).to_le_bytes()).collect();
        self.memory.write(at + geometry.request.entries()[0].offset as usize, &values);
        self.memory.write(at + geometry.request.tail, &flag(sequence).to_le_bytes());
        let end = at + geometry.request.bytes();
        let [whole, tail] =
            [at..end, at + geometry.request.tail..end].map(|range| [self.memory.sge(range).unwrap()]);
        let remote = |region: RegionOffer, offset: usize| Remote {
            address: region.address + offset as u64,
            rkey: region.rkey,
        };
        let there = remote(self.there[0], nth * geometry.server_stride());
        let mut write = |operation, pieces: &[verbs::Sge]| {
            self.qp.try_post(&SendRequest::new(id, operation, Payload::Gather(pieces))).unwrap();
        };
        match self.arrival {
            Arrival::Completion => write(SendOperation::WriteImm(there, slot.to_be_bytes()), &whole),
            Arrival::Send => panic!("its receives have no memory, which an answer by a SEND needs"),
            Arrival::Tail => write(SendOperation::Write(there), &whole),
            Arrival::Flag => {
                write(SendOperation::Write(there), &whole);
                write(SendOperation::Write(remote(self.there[1], nth * 8)), &tail);
            }
        }
        self.qp.ring();
        Asked { slot, sequence, value }
    }

    pub fn post_receive(&mut self) {
        self.qp.post_receive(&ReceiveRequest { id: 0, scatter: &[] }).unwrap();
    }

    /// Waits until so many of its messages have arrived.
    pub fn wait_sent(&mut self, mut count: usize) {
        let mut done = [Completion::default(); 8];
        wait_for("arrival", || {
            count = count.saturating_sub(self.qp.poll(&mut done).unwrap());
            (count == 0).then_some(())
        });
    }

    /// Writes to its first slot while `end` runs and a little longer: the error that ended a write, if any.
    pub fn failure_while(mut self, end: impl FnOnce() + Send) -> Option<String> {
        const ON_THEIR_WAY: usize = 8;
        let mut done = [Completion::default(); ON_THEIR_WAY];
        let (mut sent, mut ended) = (0, 0);
        std::thread::scope(|scope| {
            let ending = scope.spawn(end);
            let mut last = None;
            while last.is_none_or(|since: Instant| since.elapsed() < Duration::from_millis(20)) {
                if last.is_none() && ending.is_finished() {
                    last = Some(Instant::now());
                }
                if sent - ended < ON_THEIR_WAY {
                    self.send(0, self.first, 0, &[0; PREFIX_BYTES], 0.0);
                    sent += 1;
                }
                let count = self.qp.poll(&mut done).unwrap();
                ended += count;
                if let Some(failed) = done[..count].iter().find(|completion| !completion.is_success()) {
                    return Some(failed.status().to_string());
                }
            }
            None
        })
    }

    /// Whether an answer has come, as its last word tells.
    pub fn has(&mut self, asked: Asked) -> bool {
        let nth = (asked.slot - self.first) as usize;
        let word = match self.arrival {
            Arrival::Flag => FLAGS + 8 * nth,
            _ => nth * geometry().client_stride() + geometry().answer.tail,
        };
        self.memory.word64(word).load(Ordering::Acquire) == flag(asked.sequence)
    }

    /// Waits for a slot's answer, while `pump` has the server work: its status, and if its values are right.
    pub fn answer(&mut self, asked: Asked, pump: &mut dyn FnMut()) -> (Status, bool) {
        let mut completions = [Completion::default(); 8];
        wait_for("answer", || {
            pump();
            let count = self.qp.poll(&mut completions).unwrap();
            for _ in completions[..count].iter().filter(|completion| !completion.is_send()) {
                self.post_receive();
            }
            self.has(asked).then_some(())
        });
        self.taken(asked)
    }

    /// What lies where an answer belongs.
    fn taken(&mut self, asked: Asked) -> (Status, bool) {
        self.read(asked).unwrap()
    }

    /// Whether an answer has come whole. A later one's header in its place is no panic: it is torn.
    pub fn has_whole(&mut self, asked: Asked) -> bool {
        self.has(asked) && matches!(self.read(asked), Ok((Status::Ok, true)))
    }

    fn read(&mut self, asked: Asked) -> Result<(Status, bool), slots::client::AnswerError> {
        let (geometry, nth) = (geometry(), (asked.slot - self.first) as usize);
        let at = nth * geometry.client_stride();
        let (mut prefix, mut values) = ([0; PREFIX_BYTES], vec![0; 4 * FLOATS]);
        self.memory.read(at, &mut prefix);
        self.memory.read(at + geometry.answer.entries()[0].offset as usize, &mut values);
        let more = |nth: usize| (asked.value + nth as f32 + 1.0).to_le_bytes();
        let expected: Vec<u8> = (0..FLOATS).flat_map(more).collect();
        Ok((self.client.answered(asked.slot, &prefix)?.status, values == expected))
    }
}

/// A client of slots that the CPU watches, admitted.
pub fn join(context: &Context, served: &mut Served, mode: Mode, arrival: Arrival, wrong: u32) -> Peer {
    join_with(context, served, mode, arrival, wrong, 16, false)
}

/// A client whose requests are traced.
pub fn traced_peer(context: &Context, served: &mut Served) -> Peer {
    join_with(context, served, Mode::CpuCpuShim, Arrival::Completion, 0, 16, true)
}

pub fn join_with(
    context: &Context,
    served: &mut Served,
    mode: Mode,
    arrival: Arrival,
    wrong: u32,
    receives: usize,
    is_traced: bool,
) -> Peer {
    let (client, granted) = served.grant(SLOTS as u16).unwrap();
    let setting = Setting { mode, kind: QpType::Rc, arrival, granted: &granted, is_traced };
    let mut endpoint = Endpoint::new(context, served.memory(), &setting).unwrap();
    let there = endpoint.regions().try_into().unwrap();
    let peer = Peer::new(endpoint.qp(), there, arrival, client, &granted, receives);
    endpoint.post_receives().unwrap();
    endpoint.answer_to(&peer.answers(wrong)).unwrap();
    served.admit(client, endpoint);
    peer
}

/// A round of the thread that serves. Any model will do: the offloaded one computes.
pub fn pump(served: &mut Served) {
    served.look();
    served.serve(Some(&mut |_, _| Err("requests are offloaded".into()))).unwrap();
}

/// A model of the host twin that fails. It keeps its buffers, as each model does.
pub fn broken(buffers: &Memory) -> Model {
    let buffers = buffers.clone();
    Model::Called(Box::new(move || Err(format!("{} bytes are broken", buffers.len()))))
}

/// What the service says when such a model fails: it ends with that.
pub fn failure(context: &Context, served: &mut Served, mode: Mode) -> String {
    let mut peer = join(context, served, mode, Arrival::Flag, 0);
    peer.ask(1, 2.0);
    wait_for("the model's failure", || {
        served.look();
        let mut other = |_: &[Vec<f32>], _: &mut Vec<Vec<f32>>| Err("requests are offloaded".into());
        served.serve(Some(&mut other)).err().map(|error| error.to_string())
    })
}

/// Two clients, several rounds; one leaves while the other goes on. Then its slots are granted again, and a
/// client whose memory refuses its answer fails alone. How many were answered.
pub fn serves(context: &Context, served: &mut Served, mode: Mode, arrival: Arrival) -> u64 {
    let mut peers = [0, 0].map(|wrong| join(context, served, mode, arrival, wrong));
    let mut answered = 0;
    for round in 0..5_u64 {
        let mut asked = Vec::new();
        for (nth, peer) in peers.iter_mut().enumerate() {
            for id in 0..u64::from(SLOTS - 1) {
                asked.push((nth, peer.ask(round * 10 + id, (round * 1000 + id * 10 + nth as u64) as f32)));
            }
        }
        for (nth, asked) in asked {
            let answer = peers[nth].answer(asked, &mut || pump(served));
            assert_eq!(answer, (Status::Ok, true), "{arrival:?} round {round} client {nth} {asked:?}");
            answered += 1;
        }
    }
    let [gone, mut stays] = peers;
    let ask = |peer: &mut Peer, served: &mut Served, id: u64| {
        let asked = peer.ask(id, id as f32);
        assert_eq!(peer.answer(asked, &mut || pump(served)), (Status::Ok, true), "{id}");
    };
    drop(served.remove(gone.number).unwrap());
    served.withdraw(gone.number).unwrap();
    ask(&mut stays, served, 900);
    let mut next = join(context, served, mode, arrival, 0);
    assert_eq!(next.first, gone.first);
    ask(&mut next, served, 1);
    let mut bad = join(context, served, mode, arrival, 0x100);
    bad.ask(1, 4.0);
    let failure = wait_for("failure", || {
        pump(served);
        served.failed().find(|(client, _)| *client == bad.number).map(|(_, why)| why.to_owned())
    });
    assert!(failure.contains("remote"), "{failure}");
    ask(&mut stays, served, 901);
    assert_eq!(served.failed().count(), 1);
    drop(served.remove(bad.number).unwrap());
    served.withdraw(bad.number).unwrap();
    wait_for("the last completion", || {
        pump(served);
        served.is_quiet().then_some(())
    });
    answered + 3
}

/// A slot's next request comes before the NIC could read its last answer to the end: the client has no
/// receive for the answer. Whether that answer comes whole. `waits`: without the planted defect.
pub fn read_late(context: &Context, served: &mut Served, mode: Mode, waits: bool) -> bool {
    if !waits {
        served.forget_sending();
    }
    let mut peer = join_with(context, served, mode, Arrival::Completion, 0, 0, false);
    let request = peer.client.ask(1, 2, 0, u64::MAX).unwrap();
    let first = peer.send(1, request.slot, request.sequence, &request.prefix, 7.0);
    until_served(&mut peer, served, 1);
    let second = peer.ask_early(first, &request.prefix, 70.0);
    until_served(&mut peer, served, if waits { 1 } else { 2 });
    peer.post_receive();
    wait_for("the first answer", || {
        served.look();
        // The second one may have taken its place, where nothing waits.
        (peer.has(first) || peer.has(second)).then_some(())
    });
    let is_whole = peer.has_whole(first);
    drop(served.remove(peer.number).unwrap());
    // Where nothing waits, the slot counts as sent already.
    let _ = served.withdraw(peer.number);
    is_whole
}

/// Whether an answer is ever torn where nothing waits. The NIC may have read the first answer before the
/// second one was written: on a busy machine once in forty tries.
pub fn is_ever_torn(is_whole: impl Fn() -> bool) -> bool {
    (0..5).any(|_| !is_whole())
}

/// Waits until a request has arrived, and serves until so many are answered and nothing more is to be done.
fn until_served(peer: &mut Peer, served: &mut Served, answers: u64) {
    peer.wait_sent(1);
    let mut idle = 0;
    wait_for("service", || {
        let has_come = served.look();
        let did = served.serve(Some(&mut |_, _| Err("requests are offloaded".into()))).unwrap();
        idle = if has_come || did { 0 } else { idle + 1 };
        (idle > 100 && served.answered(peer.number) >= answers).then_some(())
    });
    assert_eq!(served.failed().next(), None);
}
