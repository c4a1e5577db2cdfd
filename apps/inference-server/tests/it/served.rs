//! A running server, clients of it in this process, and what the engine itself says.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use cli::testing::{Program, program};
use inference::engine::Engine;
use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;
use inference::import::import;
use inference::plan::Plan;
use serde_json::Value;
use serving::connection::Connection;
use serving::{Arrival, SetupRequest, Transport, model};
use slots::{Geometry, Status};
use verbs::Context;
use verbs::connect::{Path, PathOptions, Wait};
use zoo::Manifest;

pub static SERVER: LazyLock<String> =
    LazyLock::new(|| program("CARGO_BIN_EXE_inference-server", env!("CARGO_BIN_EXE_inference-server")));
/// A model that takes microseconds.
pub const SMALL: &str = "small";
/// Another one.
pub const OTHER: &str = "other";
/// A model that takes milliseconds.
pub const SLOW: &str = "squeezenet-1.1";
const ALL: &[Arrival] = &[Arrival::Flag, Arrival::Tail, Arrival::Completion];
/// Ways to serve a model by our own kernels on the twin (same bits): options, and possible arrivals, one
/// where a model's kernels wait. `gpu-while` has `gpu-graph`'s kernels and, on the twin, its launches.
pub const WAYS: [(&[&str], &[Arrival]); 7] = [
    (&["--engine", "twin"], ALL),
    (&["--machine", "twin", "--mode", "cpu-gpu"], ALL),
    (&["--machine", "twin", "--mode", "gpu-graph", "--arrival", "flag"], &[Arrival::Flag]),
    (&["--machine", "twin", "--mode", "gpu-ahead", "--arrival", "tail"], &[Arrival::Tail]),
    (&["--machine", "twin", "--mode", "gpu-graph", "--arrival", "completion"], &[Arrival::Completion]),
    (&["--machine", "twin", "--mode", "gpu-persistent", "--arrival", "flag"], &[Arrival::Flag]),
    (&["--machine", "twin", "--mode", "gpu-cpu", "--arrival", "completion"], &[Arrival::Completion]),
];

/// The first way in which the CPU waits, and the first in which kernels do; requests arrive by flags.
pub const BOTH: [&[&str]; 2] = [WAYS[0].0, WAYS[2].0];

/// Those by which requests may arrive so.
pub fn ways(arrival: Arrival) -> impl Iterator<Item = &'static [&'static str]> {
    WAYS.iter().filter(move |(_, arrivals)| arrivals.contains(&arrival)).map(|(options, _)| *options)
}

/// Between two polls: a wait leaves the cores to the tested programs. The twin answers in some 10 ms.
pub const PAUSE: Duration = Duration::from_micros(500);
/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(120);

const MANIFEST: &str = include_str!("../../../../crates/serving/tests/small.toml");

/// A device, as clients open it.
pub struct Nic(pub Context, pub Path);

/// Error: no device.
pub fn device() -> Result<Nic, String> {
    let (context, path) = PathOptions::default().open().map_err(|error| error.to_string())?;
    Ok(Nic(context, path))
}

/// Error: no ONNX Runtime.
pub fn runtime() -> Result<Runtime, String> {
    Runtime::load(None).map_err(|error| error.to_string())
}

/// Where the manifest of the small model lies.
pub fn manifests() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("inference-server-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // Two tests may write the same bytes at once: each file appears whole.
    let own = folder.join(format!("{:?}", std::thread::current().id()));
    let other = MANIFEST.replace("\"small\"", "\"other\"").replace("height = 4", "height = 2");
    let other = other.replace("4, 6]", "2, 6]").replace("bytes = 96", "bytes = 48");
    for (text, file) in [(MANIFEST, "small.toml"), (&other, "other.toml")] {
        std::fs::write(&own, text).unwrap();
        std::fs::rename(&own, folder.join(file)).unwrap();
    }
    folder
}

pub fn manifest(model: &str) -> Manifest {
    let folder = [SMALL, OTHER].contains(&model).then(manifests);
    Manifest::find(model, folder.as_deref()).unwrap().0
}

pub fn geometry(model: &str) -> Geometry {
    model::geometry(&manifest(model), 0).unwrap()
}

/// A server of one model, and its address.
pub fn server(model: &str, options: &[&str]) -> (Program, String) {
    server_in(None, model, options)
}

/// The same, in an environment that has this variable too.
pub fn server_in(variable: Option<(&str, &str)>, model: &str, options: &[&str]) -> (Program, String) {
    let folder = manifests();
    let own: &[&str] = if model == SMALL { &["--manifests", folder.to_str().unwrap()] } else { &[] };
    Program::listening_in(variable, &SERVER, &[&["--model", model], own, options].concat())
}

/// The client's program: beside the server where cargo has built it.
pub fn client() -> Result<String, String> {
    let beside = std::path::Path::new(&*SERVER).with_file_name("doorbell-client");
    let path = program("CARGO_BIN_EXE_doorbell-client", &beside.display().to_string());
    std::path::Path::new(&path)
        .is_file()
        .then(|| path.clone())
        .ok_or(format!("{path}; `cargo build -p client`"))
}

/// What the small model's server says when it is refused.
pub fn refused(options: &[&str], words: &[&str]) {
    let folder = manifests();
    let start = ["--listen", "127.0.0.1:0", "--model", SMALL, "--manifests", folder.to_str().unwrap()];
    cli::testing::refused(&SERVER, &[&start, options].concat(), words);
}

/// Inputs that differ, as bytes, with what the engine itself makes of each.
pub struct Expected {
    pub inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    /// Largest difference relative to an output's root mean square; 0: to the bit.
    tolerance: f32,
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl Expected {
    pub fn new(engine: &mut dyn Engine, model: &str, count: usize) -> Expected {
        let manifest = manifest(model);
        let inputs: Vec<Vec<f32>> = (0..count).map(|number| manifest.test_input(number).unwrap()).collect();
        let outputs = inputs.iter().map(|input| bytes(&engine.run(&[input]).unwrap()[0]));
        let expected = Expected {
            outputs: outputs.collect(),
            inputs: inputs.iter().map(|one| bytes(one)).collect(),
            tolerance: 0.0,
        };
        assert!(count < 2 || expected.outputs[0] != expected.outputs[1]);
        expected
    }

    /// Of ONNX Runtime, on one thread as the server has it.
    pub fn of(runtime: &Runtime, model: &str, count: usize) -> Expected {
        let mut engine = runtime.model(&manifest(model).build(), 1).unwrap();
        Expected::new(&mut engine, model, count)
    }

    /// As a file of `profiler reference`: the outputs of one input behind those of the other.
    pub fn reference(&self) -> Vec<u8> {
        self.outputs.concat()
    }

    /// Of the host twin.
    pub fn of_twin(model: &str, count: usize) -> Expected {
        let graph = import(&manifest(model).build(), 1).unwrap();
        Expected::new(&mut Twin::new(Plan::new(&graph).unwrap()).unwrap(), model, count)
    }

    fn is_met(&self, id: u64, output: &[u8]) -> bool {
        let expected = &self.outputs[id as usize % self.inputs.len()];
        let values = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        let (found, wanted) = (values(output), values(expected));
        let square: f32 = wanted.iter().map(|value| value * value).sum();
        let most = self.tolerance * (square / wanted.len() as f32).sqrt();
        let is_near = |(one, other): (&f32, &f32)| (one - other).abs() <= most;
        output == expected || (most > 0.0 && found.iter().zip(&wanted).all(is_near))
    }

    /// The same, for an engine that adds in another order.
    pub fn within(self, tolerance: f32) -> Expected {
        Expected { tolerance, ..self }
    }

    pub fn input(&self, id: u64) -> &[u8] {
        &self.inputs[id as usize % self.inputs.len()]
    }
}

/// A client in this process.
pub struct Client {
    pub connection: Connection,
    asked: u64,
    pub answered: u64,
}

pub fn setup_request(model: &str, slots: u16, arrival: Arrival, transport: Transport) -> SetupRequest {
    SetupRequest::new(model, &geometry(model), slots, arrival, transport)
}

impl Client {
    /// Error: the server refuses.
    pub fn open(
        nic: &Nic,
        address: &str,
        model: &str,
        setup_request: &SetupRequest,
    ) -> Result<Client, String> {
        let wait = Wait::at_most(PATIENCE);
        let opened = Connection::open((&nic.0, &nic.1), address, setup_request, geometry(model), wait);
        let connection = opened.map_err(|error| error.to_string())?;
        Ok(Client { connection, asked: 0, answered: 0 })
    }

    /// With RC and flags.
    pub fn usual(nic: &Nic, address: &str, model: &str, slots: u16) -> Client {
        Client::open(nic, address, model, &setup_request(model, slots, Arrival::Flag, Transport::Rc)).unwrap()
    }

    /// With RC, when its slots are free.
    pub fn by(nic: &Nic, address: &str, slots: u16, arrival: Arrival) -> Client {
        let (setup_request, since) = (setup_request(SMALL, slots, arrival, Transport::Rc), Instant::now());
        loop {
            match Client::open(nic, address, SMALL, &setup_request) {
                Ok(client) => break client,
                Err(why) => assert!(since.elapsed() < PATIENCE, "{why}"),
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Sends a request, if there is a slot.
    pub fn ask(&mut self, expected: &Expected) -> bool {
        let deadline = self.connection.now_ns() + PATIENCE.as_nanos() as u64;
        let asked = self.connection.ask(self.asked, 7, &[expected.input(self.asked)], deadline).unwrap();
        self.asked += u64::from(asked);
        asked
    }

    /// Takes an answer, if there is one. Results must be the engine's to the bit.
    pub fn poll(&mut self, expected: &Expected) -> Option<Status> {
        let found = self.connection.poll().unwrap()?.unwrap();
        let (status, id) = (found.answer.status, found.answer.header.request_id);
        if status == Status::Ok {
            let output = found.outputs().next().unwrap();
            assert!(expected.is_met(id, output), "request {id}");
        }
        self.answered += 1;
        Some(status)
    }

    /// Takes an answer, if there is one, whatever its result is: its request's number, and the output.
    pub fn take(&mut self) -> Option<(u64, Vec<u8>)> {
        let found = self.connection.poll().unwrap()?.unwrap();
        assert_eq!(found.answer.status, Status::Ok);
        let answer = (found.answer.header.request_id, found.outputs().next().unwrap().to_vec());
        self.answered += 1;
        Some(answer)
    }

    /// So many requests with results, as many at a time as there are slots.
    pub fn run(&mut self, expected: &Expected, count: u64) {
        let (since, target, mut left) = (Instant::now(), self.answered + count, count);
        while self.answered < target {
            assert!(since.elapsed() < PATIENCE, "{} of {target} answers", self.answered);
            while left > 0 && self.ask(expected) {
                left -= 1;
            }
            match self.poll(expected) {
                Some(status) => assert_eq!(status, Status::Ok),
                None => std::thread::sleep(PAUSE),
            }
        }
    }
}

/// Stops a server that is idle, or has idle clients: its lines.
pub fn stopped(server: &mut Program) -> Vec<Value> {
    server.signal(cli::testing::Signal::SIGTERM);
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.lines
}

/// The last line of `lines`.
pub fn totals(lines: &[Value]) -> &Value {
    let last = lines.last().unwrap();
    assert_eq!(last["kind"], "served", "{last}");
    last
}
