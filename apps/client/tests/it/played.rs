//! A server for one client, in a thread of the test, whose answers can be spoiled. Its model doubles the
//! input. Requests go through [`slots::Server`], which must find nothing to refuse.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cli::testing::{Ended, Program, program};
use serving::setup::REGIONS;
use serving::{Arrival, Grant, Reply, SetupRequest, Transport, model};
use slots::layout::{FLAG_BYTES, Header, PREFIX_BYTES, flag};
use slots::{Geometry, Server, Status};
use verbs::code::Access;
use verbs::connect::{Hello, Listener, PathOptions, QpOffer, RegionOffer, Session, Wait};
use verbs::{
    Cq, Mr, Pages, Payload, QpBuilder, QpType, QueuePair, ReceiveRequest, Remote, SendOperation, SendRequest,
    WorkCompletion,
};
use zoo::Manifest;

pub static CLIENT: LazyLock<String> =
    LazyLock::new(|| program("CARGO_BIN_EXE_doorbell-client", env!("CARGO_BIN_EXE_doorbell-client")));
pub const MODEL: &str = "small";
/// Values of an input, and of an output.
const VALUES: usize = 4 * 6;
const MANIFEST: &str = include_str!("../../../../crates/serving/tests/small.toml");
const MODEL_ID: u32 = 3;
/// Numbers of sends and of receives.
const SEND: u64 = 0;
const RECEIVE: u64 = 1;
/// What a slot holds behind its first request until it has been answered.
const UNTOUCHED: u8 = 0x5a;
/// Between two looks: a wait leaves the cores to the programs under test.
pub const PAUSE: Duration = Duration::from_micros(50);
/// Longest life of a server.
const LIFE: Duration = Duration::from_secs(60);

/// What happens to the answer of one request, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerFault {
    Nothing,
    /// One value of the output is another one.
    Value(u64),
    /// The header has another cookie.
    Header(u64),
    Never(u64),
    /// No request is answered.
    Silent,
    /// So many milliseconds later.
    Late(u64, u64),
    /// Once more, after all others were answered.
    Twice(u64),
    Status(u64, Status),
    /// The flag comes, and the last packet of the message does not.
    Torn(u64),
    /// The server dies instead: its memory goes first, its connection a while later.
    Die(u64),
    /// Every request takes so many milliseconds, one after the other.
    Slow(u64),
}

/// A folder with the manifest and a reference, for one test.
pub struct Files(PathBuf);

impl Files {
    pub fn new(test: &str) -> Files {
        let folder = std::env::temp_dir().join(format!("client-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("small.toml"), MANIFEST).unwrap();
        Files(folder)
    }

    pub fn folder(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Writes what the played server computes for these inputs, `spoiled` with one other value.
    pub fn reference(&self, inputs: usize, spoiled: Option<usize>) -> String {
        let (manifest, _) = Manifest::find(MODEL, Some(&self.0)).unwrap();
        let outputs = |number| manifest.test_input(number).unwrap().into_iter().map(|value| value * 2.0);
        let mut values: Vec<f32> = (0..inputs).flat_map(outputs).collect();
        assert_eq!(values.len(), inputs * VALUES);
        if let Some(at) = spoiled {
            values[at] += 0.1;
        }
        let file = self.0.join("reference.f32");
        std::fs::write(&file, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
            .unwrap();
        file.to_str().unwrap().to_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A device, or why there is none.
pub fn device() -> Result<(), String> {
    PathOptions::default().open().map(|_| ()).map_err(|error| error.to_string())
}

/// Runs a client of a played server to its end.
pub fn asked(files: &Files, spoil: AnswerFault, options: &[&str]) -> Ended {
    let (address, server) = start(files, spoil);
    let all = ["--connect", &address, "--model", MODEL, "--manifests", files.folder()];
    let ended = Program::start(&CLIENT, &[&all, options].concat()).end();
    server.join().unwrap();
    ended
}

/// Starts a server, and a client of it.
pub fn start(files: &Files, spoil: AnswerFault) -> (String, JoinHandle<()>) {
    let (manifest, _) = Manifest::find(MODEL, Some(&files.0)).unwrap();
    let geometry = model::geometry(&manifest, MODEL_ID).unwrap();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let session = listener.accept(Wait::at_most(LIFE)).unwrap();
        PlayedServer::new(session, geometry, spoil).serve();
    });
    (address, server)
}

/// Where the slot goes on behind a request, and for how many bytes.
fn behind_request(geometry: &Geometry, place: usize) -> (usize, usize) {
    let bytes = geometry.request.bytes();
    (place * geometry.server_stride() + bytes, geometry.server_stride() - bytes)
}

struct PlayedServer {
    session: Session,
    qp: QueuePair,
    cq: Cq,
    slots: Mr<Pages>,
    flags: Mr<Pages>,
    remote: Vec<RegionOffer>,
    setup_request: SetupRequest,
    geometry: Geometry,
    server: Server,
    spoil: AnswerFault,
    sent: u64,
    /// Answers that are sent later, and when.
    later: Vec<(Instant, u32, [u8; PREFIX_BYTES])>,
    computed: u64,
}

impl PlayedServer {
    fn new(mut session: Session, geometry: Geometry, spoil: AnswerFault) -> PlayedServer {
        let wait = Wait::at_most(LIFE);
        let setup_request: SetupRequest = session.receive("a set-up request", wait).unwrap();
        setup_request.check(&geometry).unwrap();
        let mut server = Server::new(geometry.clone(), 64);
        // Another client has the first slots: numbers do not begin with 0.
        server.grant(5).unwrap();
        let (client, granted) = server.grant(setup_request.slots).unwrap();
        let sequences = granted.iter().map(|(_, sequence)| *sequence).collect();
        let grant = Grant {
            client,
            model_id: MODEL_ID,
            first: granted[0].0,
            sequences,
            credits: setup_request.slots,
        };
        session.send(&Reply::Granted(grant)).unwrap();
        let (context, path) = PathOptions::default().open().unwrap();
        let (pd, slots) = (context.alloc_pd().unwrap(), usize::from(setup_request.slots));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let register = |bytes| Mr::register(&pd, Pages::new(slots * bytes).unwrap(), access).unwrap();
        let (memory, flags) = (register(geometry.server_stride()), register(FLAG_BYTES));
        let cq = Cq::new(&context, 256).unwrap();
        let kind = if setup_request.transport == Transport::Rc { QpType::Rc } else { QpType::Uc };
        let mut qp = QpBuilder::new(kind).inline_bytes(8).build(&pd, &cq, &cq).unwrap();
        path.to_init(&qp, access, 0).unwrap();
        for _ in 0..slots {
            qp.post_receive(&ReceiveRequest { id: RECEIVE, scatter: &[] }).unwrap();
        }
        let offer = QpOffer::new(&qp);
        let regions = vec![RegionOffer::new(&memory), RegionOffer::new(&flags)];
        let theirs = session.exchange(&Hello::new(&path, kind, vec![offer], regions, ()), wait).unwrap();
        path.connect(&qp, offer, &theirs, theirs.queue_pairs[0]).unwrap();
        assert_eq!(theirs.regions.len(), REGIONS);
        session.barrier(wait).unwrap();
        for place in 0..slots {
            let (at, rest) = behind_request(&geometry, place);
            memory.write(at, &vec![UNTOUCHED; rest]);
        }
        let (remote, later) = (theirs.regions, Vec::new());
        PlayedServer {
            session,
            qp,
            cq,
            slots: memory,
            flags,
            remote,
            setup_request,
            geometry,
            server,
            spoil,
            sent: 0,
            later,
            computed: 0,
        }
    }

    fn serve(mut self) {
        let end = Instant::now() + LIFE;
        let mut turn = 0_u64;
        while Instant::now() < end {
            turn += 1;
            if turn.is_multiple_of(64) && !self.session.is_alive() {
                return;
            }
            self.take_arrived();
            if let Some(work) = self.server.take() {
                assert_eq!(work.refused, None, "{work:?}");
                if self.spoil == AnswerFault::Die(work.header.request_id) {
                    drop(self.slots);
                    std::thread::sleep(Duration::from_millis(700));
                    return;
                }
                self.answer(work.slot, work.header.request_id);
            } else {
                std::thread::sleep(PAUSE);
            }
            let now = Instant::now();
            while let Some(at) = self.later.iter().position(|(due, ..)| *due <= now) {
                let (_, slot, prefix) = self.later.remove(at);
                self.send(slot, &prefix, false);
            }
        }
        panic!("the client is still there");
    }

    /// Takes requests that are whole.
    fn take_arrived(&mut self) {
        let first = 5;
        let named = match self.setup_request.arrival {
            Arrival::Completion | Arrival::Send => self.completions().collect(),
            Arrival::Flag | Arrival::Tail => {
                let count = u32::from(self.setup_request.slots);
                (first..first + count).filter(|slot| self.is_whole(*slot)).collect::<Vec<_>>()
            }
        };
        for slot in named {
            let mut prefix = [0; PREFIX_BYTES];
            self.slots.read((slot - first) as usize * self.geometry.server_stride(), &mut prefix);
            if self.server.expected(slot) == Ok(1) {
                let (at, rest) = behind_request(&self.geometry, (slot - first) as usize);
                let mut bytes = vec![0; rest];
                self.slots.read(at, &mut bytes);
                assert!(bytes.iter().all(|byte| *byte == UNTOUCHED), "slot {slot}: a request wrote on");
            }
            self.server.arrived(1, slot, &prefix).unwrap();
        }
    }

    fn is_whole(&self, slot: u32) -> bool {
        let place = (slot - 5) as usize;
        let word = match self.setup_request.arrival {
            Arrival::Flag => self.flags.word64(place * FLAG_BYTES),
            _ => self.slots.word64(place * self.geometry.server_stride() + self.geometry.request.tail),
        };
        word.load(std::sync::atomic::Ordering::Acquire) == flag(self.server.expected(slot).unwrap())
    }

    /// Slots that receives name, and the sends that are done.
    fn completions(&mut self) -> impl Iterator<Item = u32> + use<> {
        let mut done = [WorkCompletion::default(); 32];
        let count = self.cq.poll(&mut done).unwrap();
        let mut named = Vec::new();
        for one in &done[..count] {
            assert!(one.is_success(), "{one:?}");
            // libmlx5 says of a WRITE with immediate data, too, that it has some.
            if one.id() == SEND {
                self.sent -= 1;
                continue;
            }
            self.qp.post_receive(&ReceiveRequest { id: RECEIVE, scatter: &[] }).unwrap();
            named.push(u32::from_be_bytes(one.immediate().unwrap()));
        }
        named.into_iter()
    }

    /// Computes an answer, and sends it as it is to be spoiled.
    fn answer(&mut self, slot: u32, id: u64) {
        let start = (slot - 5) as usize * self.geometry.server_stride();
        let [input, output] =
            [&self.geometry.request, &self.geometry.answer].map(|at| at.entries()[0].offset as usize);
        let mut value = [0; 4];
        for at in (0..VALUES * 4).step_by(4) {
            self.slots.read(start + input + at, &mut value);
            let computed = f32::from_le_bytes(value) * 2.0;
            self.slots.write(start + self.geometry.answer_offset() + output + at, &computed.to_le_bytes());
        }
        if self.spoil == AnswerFault::Value(id) {
            self.slots.write(start + self.geometry.answer_offset() + output, &7_f32.to_le_bytes());
        }
        self.computed += 1;
        let status = match self.spoil {
            AnswerFault::Status(spoiled, status) if spoiled == id => status,
            _ => Status::Ok,
        };
        let mut prefix = self.server.done(slot, status, [5, 905]).unwrap().unwrap();
        match self.spoil {
            AnswerFault::Header(spoiled) if spoiled == id => prefix[24] ^= 1,
            AnswerFault::Never(spoiled) if spoiled == id => return,
            AnswerFault::Silent => return,
            AnswerFault::Late(spoiled, ms) if spoiled == id => {
                self.later.push((Instant::now() + Duration::from_millis(ms), slot, prefix));
                return;
            }
            AnswerFault::Twice(spoiled) if spoiled == id => {
                self.later.push((Instant::now() + Duration::from_millis(20), slot, prefix));
            }
            AnswerFault::Slow(ms) => std::thread::sleep(Duration::from_millis(ms)),
            _ => {}
        }
        self.send(slot, &prefix, self.spoil == AnswerFault::Torn(id));
    }

    /// Writes an answer into the client's memory; a torn one lacks its last line, and one that refuses is its
    /// prefix alone.
    fn send(&mut self, slot: u32, prefix: &[u8; PREFIX_BYTES], torn: bool) {
        let (place, stride) = ((slot - 5) as usize, self.geometry.client_stride());
        let Header { sequence, status, .. } = Header::read(prefix).unwrap();
        let is_whole = status == Status::Ok.number();
        let start = place * self.geometry.server_stride() + self.geometry.answer_offset();
        let bytes = if is_whole { self.geometry.answer.bytes() } else { PREFIX_BYTES };
        self.slots.write(start, prefix);
        self.slots.write(start + self.geometry.answer.tail, &flag(sequence).to_le_bytes());
        let at = |region: RegionOffer, offset: usize| Remote {
            address: region.address + offset as u64,
            rkey: region.rkey,
        };
        let (answers, flags) = (at(self.remote[0], place * stride), at(self.remote[1], place * FLAG_BYTES));
        let message = [self.slots.sge(start..start + bytes - if torn { 64 } else { 0 }).unwrap()];
        let operation = match self.setup_request.arrival {
            Arrival::Completion => SendOperation::WriteImm(answers, slot.to_be_bytes()),
            _ => SendOperation::Write(answers),
        };
        self.qp.post_send(&SendRequest::new(SEND, operation, Payload::Gather(&message))).unwrap();
        self.sent += 1;
        let flag_at = match self.setup_request.arrival {
            Arrival::Flag => Some(flags),
            Arrival::Tail if !is_whole => {
                Some(at(self.remote[0], place * stride + self.geometry.answer.tail))
            }
            Arrival::Tail | Arrival::Completion | Arrival::Send => None,
        };
        if let Some(flag_at) = flag_at {
            let value = flag(sequence).to_le_bytes();
            let inline = [verbs::InlineSlice::new(&value)];
            let write = SendRequest::new(SEND, SendOperation::Write(flag_at), Payload::Inline(&inline));
            self.qp.post_send(&write).unwrap();
            self.sent += 1;
        }
        // The slot may be overwritten once the NIC has read it. A client that is gone reads nothing.
        let mut early = Vec::new();
        while self.sent > 0 && self.session.is_alive() {
            early.extend(self.completions());
        }
        // An answer that is sent once more has been sent before.
        let _ = self.server.sent(slot);
        for slot in early {
            let mut prefix = [0; PREFIX_BYTES];
            self.slots.read((slot - 5) as usize * self.geometry.server_stride(), &mut prefix);
            self.server.arrived(1, slot, &prefix).unwrap();
        }
    }
}
