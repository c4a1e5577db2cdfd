//! The server's own program in the modes that differ, and a file with the bits of its answers.

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use cli::testing::{Ended, Program, Signal, program};
use inference::engine::Engine;
use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;
use inference::import::import;
use inference::plan::Plan;
use measure::need;
use serde_json::{Value, json};
use zoo::Manifest;

use crate::played::{CLIENT, Files, MODEL, device};

/// What tests with a server need.
pub const WANTED: &str = "a NIC, ONNX Runtime as the reference, a C++ compiler and inference-server";
/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Beside the client, where cargo has built it.
static SERVER: LazyLock<String> = LazyLock::new(|| {
    let beside = Path::new(&*CLIENT).with_file_name("inference-server");
    program("CARGO_BIN_EXE_inference-server", &beside.display().to_string())
});
pub const WAYS: [(&str, &str); 7] = [
    ("rc", "flag"),
    ("rc", "tail"),
    ("rc", "completion"),
    ("rc", "send"),
    ("uc", "flag"),
    ("uc", "tail"),
    ("uc", "completion"),
];

/// A way to serve.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// Options of the server.
    pub options: &'static [&'static str],
    /// How requests may arrive. Where kernels wait, those of a model wait for one kind.
    pub arrivals: &'static [&'static str],
    /// Requests of a short load. The host twin takes some 10 ms for each.
    count: u64,
}

/// A CPU mode with ONNX Runtime.
pub const CPU: Served = Served { options: &[], arrivals: &["flag", "tail", "completion"], count: 160 };
const TWIN: u64 = 10;
/// The graph of `gpu-while` has the same kernels, and on the twin the same launches.
pub const GRAPH: Served =
    Served { options: &["--mode", "gpu-graph", "--machine", "twin"], arrivals: &["flag"], count: TWIN };
/// The modes in which kernels serve, on the host twin.
pub const KERNELS: [Served; 4] = [
    GRAPH,
    Served {
        options: &["--mode", "gpu-persistent", "--machine", "twin", "--arrival", "tail"],
        arrivals: &["tail"],
        count: TWIN,
    },
    Served {
        options: &["--mode", "gpu-cpu", "--machine", "twin", "--arrival", "completion"],
        arrivals: &["completion"],
        count: TWIN,
    },
    Served {
        options: &["--mode", "cpu-gpu", "--machine", "twin"],
        arrivals: &["flag", "completion"],
        count: TWIN,
    },
];

/// What tests with a server need.
pub struct Fixture {
    pub served: Served,
    pub files: Files,
    /// Outputs of 16 inputs by the server's engine: its answers have these bits, or are wrong.
    pub reference: String,
}

impl Fixture {
    /// Error: no device, no ONNX Runtime, or no server.
    pub fn new(test: &str) -> Result<Fixture, String> {
        let runtime = Runtime::load(None).map_err(|error| error.to_string())?;
        let model = |manifest: &Manifest| -> Box<dyn Engine> {
            Box::new(runtime.model(&manifest.build(), 1).unwrap())
        };
        Fixture::with(test, CPU, &model)
    }

    /// Error: as [`Self::new`], or no C++ compiler for the twin.
    pub fn of(test: &str, served: Served) -> Result<Fixture, String> {
        if served.options == CPU.options {
            return Fixture::new(test);
        }
        inference::engine::has_twin().map_err(|error| error.to_string())?;
        let model = |manifest: &Manifest| -> Box<dyn Engine> {
            let graph = import(&manifest.build(), 1).unwrap();
            Box::new(Twin::new(Plan::new(&graph).unwrap()).unwrap())
        };
        Fixture::with(test, served, &model)
    }

    /// Of the CPU's mode, and of these.
    pub fn each(test: &str, others: &[Served]) -> Result<Vec<Fixture>, String> {
        std::iter::once(&CPU).chain(others).map(|served| Fixture::of(test, *served)).collect()
    }

    fn with(
        test: &str,
        served: Served,
        model: &dyn Fn(&Manifest) -> Box<dyn Engine>,
    ) -> Result<Fixture, String> {
        device()?;
        if !Path::new(&*SERVER).is_file() {
            return Err(format!("{}; `cargo build -p inference-server`", *SERVER));
        }
        let files = Files::new(&format!("{test}{}", served.options.concat()));
        let (manifest, _) = Manifest::find(MODEL, Some(Path::new(files.folder()))).unwrap();
        let mut engine = model(&manifest);
        let mut outputs =
            |number| engine.run(&[&manifest.test_input(number).unwrap()]).unwrap().swap_remove(0);
        let bytes: Vec<u8> =
            (0..16).flat_map(&mut outputs).flat_map(|value: f32| value.to_le_bytes()).collect();
        let reference = format!("{}/bits.f32", files.folder());
        std::fs::write(&reference, bytes).unwrap();
        Ok(Fixture { served, files, reference })
    }

    /// A server of the small model, and its address.
    pub fn server(&self, options: &[&str]) -> (Program, String) {
        self.server_at("127.0.0.1:0", options)
    }

    pub fn server_at(&self, address: &str, options: &[&str]) -> (Program, String) {
        let own = ["--listen", address, "--model", MODEL, "--manifests", self.files.folder()];
        let mut server = Program::start(&SERVER, &[&own, self.served.options, options].concat());
        let line = server.next_line();
        assert_eq!(line["kind"], "listening");
        (server, line["address"].as_str().unwrap().to_owned())
    }

    /// A client whose answers have to have the reference's bits.
    pub fn client(&self, address: &str, options: &[&str]) -> Program {
        let own = ["--connect", address, "--model", MODEL, "--manifests", self.files.folder()];
        let compared = ["--reference", &self.reference, "--tolerance", "0"];
        Program::start(&CLIENT, &[&own[..], &compared, options].concat())
    }

    /// Requests of a short load.
    pub fn count(&self) -> u64 {
        self.served.count
    }

    /// A short load, by one of the arrivals.
    pub fn short(&self, address: &str, arrival: &str, options: &[&str]) -> Program {
        let count = self.served.count.to_string();
        self.client(address, &[&["--count", &count, "--arrival", arrival], options].concat())
    }

    /// A client that is served well: how many answers it has.
    pub fn is_served(&self, address: &str, arrival: &str, options: &[&str]) -> u64 {
        let ended = self.short(address, arrival, options).end();
        assert_eq!(ended.code, Some(0), "{:?}: {ended:?}", self.served);
        assert_clean(&ended, self.served.count);
        self.served.count
    }
}

/// Waits until so many clients have joined.
pub fn joined(server: &mut Program, clients: usize) {
    let mut left = clients;
    while left > 0 {
        left -= usize::from(server.next_line()["kind"] == "joined");
    }
}

/// Stops a server: its last line.
pub fn totals(server: &mut Program) -> Value {
    server.signal(Signal::SIGTERM);
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let last = ended.lines.last().unwrap();
    assert_eq!(last["kind"], "served", "{ended:?}");
    last.clone()
}

pub fn counts<const N: usize>(run: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| run[name].as_u64().unwrap_or_else(|| panic!("{name}: {run}")))
}

/// `sent`, `answered`, and nothing that is wrong.
pub fn assert_clean(ended: &Ended, count: u64) {
    let run = ended.line();
    let found = counts(run, ["sent", "answered", "wrong", "lost", "late", "duplicate"]);
    assert_eq!((found, &run["reference"]), ([count, count, 0, 0, 0, 0], &json!(true)), "{ended:?}");
}

#[test]
fn each_way_brings_the_bits_of_the_reference_in_both_cpu_modes() {
    let world = need!(Fixture::new("bits"), "a NIC, ONNX Runtime as the reference, and inference-server");
    for mode in ["cpu-cpu-ibverbs", "cpu-cpu-shim"] {
        let (mut server, address) = world.server(&["--mode", mode, "--sessions", &WAYS.len().to_string()]);
        for (transport, arrival) in WAYS {
            world.is_served(&address, arrival, &["--transport", transport]);
        }
        let ended = server.end();
        let served = ended.lines.last().unwrap();
        assert_eq!(
            (ended.code, &served["answered"], &served["failed"]),
            (Some(0), &json!(WAYS.len() as u64 * world.count()), &json!(0)),
            "{mode}"
        );
    }
}

#[test]
fn answers_of_64_clients_at_once_have_the_same_bits_as_those_of_one() {
    const CLIENTS: u64 = 64;
    let world = need!(Fixture::new("many"), "a NIC, ONNX Runtime as the reference, and inference-server");
    let (mut server, address) = world.server(&["--slots", "128"]);
    world.is_served(&address, "flag", &[]);
    let way = |number: usize| {
        let (transport, arrival) = WAYS[number % WAYS.len()];
        // Until they are stopped, so that the first one still asks when the last one joins.
        let load =
            ["--slots", "2", "--seconds", "250", "--rate", "2", "--arrivals", "constant", "--deadline", "60"];
        [&load[..], &["--live", "--transport", transport, "--arrival", arrival]].concat()
    };
    let mut clients = Vec::new();
    joined(&mut server, 1);
    for number in 0..CLIENTS as usize + 4 {
        if number < CLIENTS as usize {
            clients.push(world.client(&address, &way(number)));
        }
        // Processes join the NIC's fabric one by one, and wait for that for five seconds at most.
        if number >= 4 {
            joined(&mut server, 1);
        }
    }
    // The last one's first request waits behind those of all others.
    for client in &mut clients {
        let since = Instant::now();
        while client.next_line()["answered"] == 0 {
            assert!(since.elapsed() < PATIENCE, "a client without an answer");
        }
    }
    for client in &clients {
        client.signal(Signal::SIGTERM);
    }
    let mut each = Vec::new();
    for client in &mut clients {
        let ended = client.end();
        let run = ended.lines.last().unwrap();
        let found = counts(run, ["wrong", "lost", "late", "duplicate", "sent", "answered"]);
        assert!(ended.code == Some(130) && found[..4] == [0; 4] && found[4] - found[5] <= 2, "{ended:?}");
        each.push(found[5]);
    }
    each.sort_unstable();
    println!("{CLIENTS} clients at once have {} to {} answers each", each[0], each[CLIENTS as usize - 1]);
    world.is_served(&address, "flag", &[]);
    let totals = totals(&mut server);
    let [connected, failed, answered] =
        ["clients", "failed", "answered"].map(|name| totals[name].as_u64().unwrap());
    assert_eq!([connected, failed], [CLIENTS + 2, 0], "{totals}");
    assert!(each[0] > 0 && answered >= 320 + each.iter().sum::<u64>(), "{totals}");
}

#[test]
fn kernels_answer_several_clients_at_once_with_the_bits_of_one() {
    const CLIENTS: usize = 4;
    need!(Fixture::new("several"), "a NIC, ONNX Runtime as the reference, and inference-server");
    for served in KERNELS {
        let world = need!(Fixture::of("several", served), cc, "a C++ compiler");
        let (mut server, address) = world.server(&[]);
        let arrival = |number: usize| served.arrivals[number % served.arrivals.len()];
        let before = world.is_served(&address, arrival(0), &[]);
        let transport = |number: usize| ["--slots", "4", "--transport", ["rc", "uc"][number % 2]];
        let mut clients: Vec<Program> =
            (0..CLIENTS).map(|number| world.short(&address, arrival(number), &transport(number))).collect();
        for client in &mut clients {
            let ended = client.end();
            assert_eq!(ended.code, Some(0), "{served:?}: {ended:?}");
            assert_clean(&ended, before);
        }
        world.is_served(&address, arrival(1), &[]);
        let totals = totals(&mut server);
        let all = (CLIENTS as u64 + 2) * before;
        assert_eq!((&totals["answered"], &totals["failed"]), (&json!(all), &json!(0)), "{served:?} {totals}");
    }
}
