//! The modes in which kernels serve: on the host twin, and on a GPU where there is one.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cli::testing::Signal;
use measure::need;
use serving::{Arrival, Transport};
use slots::Status;

use crate::served::*;

const MODES: [&str; 4] = ["gpu-graph", "gpu-while", "gpu-ahead", "gpu-persistent"];
/// Kernels wait.
const WAITING: [&[&str]; 5] =
    [&["gpu-graph"], &["gpu-while"], &["gpu-ahead"], &["gpu-persistent"], &["gpu-cpu"]];
/// The processor waits, and kernels compute.
const DRIVEN: [&[&str]; 3] = [
    &["cpu-gpu"],
    &["cpu-cpu-ibverbs", "--engine", "gpu"],
    &["cpu-cpu-shim", "--engine", "gpu", "--baseline", "faithful"],
];
const ARRIVALS: [(&str, Arrival); 4] = [
    ("flag", Arrival::Flag),
    ("tail", Arrival::Tail),
    ("completion", Arrival::Completion),
    ("send", Arrival::Send),
];

/// Clients of both transports, by each arrival; the second ones get queues and slots of the first.
fn serves_every_way(modes: &[&[&str]], machine: &[&str], expected: &Expected, (slots, count): (u16, u64)) {
    let nic = device().unwrap();
    for (mode, (name, arrival)) in modes.iter().flat_map(|mode| ARRIVALS.map(|arrival| (mode, arrival))) {
        let options = ["--arrival", name, "--sessions", "4", "--slots", &slots.to_string(), "--mode"];
        let (mut server, address) = server(SMALL, &[machine, &options, mode].concat());
        for transport in [Transport::Rc, Transport::Uc, Transport::Rc, Transport::Uc] {
            // A SEND that is lost takes no receive: there is none on UC.
            let transport = if arrival == Arrival::Send { Transport::Rc } else { transport };
            let setup_request = setup_request(SMALL, slots, arrival, transport);
            // Slots of the client before may not be free yet.
            let since = Instant::now();
            let mut client = loop {
                match Client::open(&nic, &address, SMALL, &setup_request) {
                    Ok(client) => break client,
                    Err(why) => assert!(since.elapsed() < PATIENCE, "{why}"),
                }
            };
            client.run(expected, count);
        }
        let ended = server.end();
        assert_eq!(ended.code, Some(0), "{mode:?} {name}: {ended:?}");
        let totals = totals(&ended.lines);
        let counts = ["clients", "failed", "answered", "refused"].map(|name| totals[name].as_u64().unwrap());
        assert_eq!(counts, [4, 0, 4 * count, 0], "{mode:?} {name}: {ended:?}");
        let left: Vec<_> = ended.lines.iter().filter(|line| line["kind"] == "left").collect();
        assert!(left.iter().all(|line| line["answered"] == count && line["error"].is_null()), "{left:?}");
        assert_eq!(totals["mode"], mode[0]);
    }
}

#[test]
fn kernels_of_the_twin_answer_however_requests_come() {
    need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    // On the twin gpu-while has gpu-graph's kernels and launches.
    let waiting: Vec<_> = WAITING.into_iter().filter(|mode| mode[0] != "gpu-while").collect();
    serves_every_way(&waiting, &["--machine", "twin"], &expected, (2, 3));
    serves_every_way(&DRIVEN, &["--machine", "twin"], &expected, (2, 3));
}

/// A client's program against a server of kernels, its answers compared with a reference file.
fn program_agrees(machine: &[&str], reference: &Expected, tolerance: &str) {
    let client = client().unwrap();
    let folder = manifests();
    let file = folder.join(format!("reference-{}.f32", machine.len()));
    std::fs::write(&file, reference.reference()).unwrap();
    let (mut server, address) =
        server(SMALL, &[&["--mode", "gpu-graph", "--sessions", "1"], machine].concat());
    let (folder, file) = (folder.to_str().unwrap(), file.to_str().unwrap());
    let options =
        ["--connect", &address, "--model", SMALL, "--manifests", folder, "--count", "40", "--deadline", "60"];
    let options = [&options[..], &["--slots", "4", "--reference", file, "--tolerance", tolerance]].concat();
    let mut command = cli::testing::command(&client, &options);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(server.end().code, Some(0));
}

/// What a client gets to each of `count` inputs, as bytes, with `others` beside it that ask all the time.
fn answers_among(nic: &Nic, address: &str, others: usize, inputs: &Expected, count: usize) -> Vec<Vec<u8>> {
    let mut clients: Vec<_> = (0..=others).map(|_| Client::usual(nic, address, SMALL, 2)).collect();
    let (mut answers, since) = (vec![Vec::new(); count], Instant::now());
    // Each has had its turn: the others' requests were there when answers were computed.
    while answers.iter().any(Vec::is_empty) || clients.iter().any(|client| client.answered == 0) {
        assert!(since.elapsed() < PATIENCE, "{others} others: {answers:?}");
        for (nth, client) in clients.iter_mut().enumerate() {
            while (nth > 0 || client.answered < count as u64) && client.ask(inputs) {}
            let Some((id, output)) = client.take() else { continue };
            // The others' answers are compared too: they have the same inputs.
            let known = &mut answers[id as usize % count];
            assert!(known.is_empty() || *known == output, "{others} others: client {nth}, request {id}");
            *known = output;
        }
        std::thread::sleep(PAUSE);
    }
    answers
}

/// In every mode, whatever the GPU's order of adding: answers alone and among 16 clients agree to the bit.
fn load_changes_no_bit(machine: &[&str], inputs: &Expected) {
    const FAIR: &[&str] = &["cpu-cpu-shim", "--engine", "gpu", "--baseline", "fair"];
    let nic = device().unwrap();
    for mode in WAITING.iter().chain(&DRIVEN).chain([&FAIR]) {
        let (mut server, address) = server(SMALL, &[machine, &["--mode"], mode].concat());
        let count = inputs.inputs.len();
        let alone = answers_among(&nic, &address, 0, inputs, count);
        let among = answers_among(&nic, &address, 15, inputs, count);
        assert!(alone == among, "{mode:?}: load changes an answer");
        assert!(
            alone.windows(2).all(|pair| pair[0] != pair[1]),
            "{mode:?}: inputs that differ give one answer"
        );
        stopped(&mut server);
    }
}

#[test]
fn answers_of_the_twin_are_the_same_alone_and_among_16_clients() {
    need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    load_changes_no_bit(&["--machine", "twin"], &Expected::of_twin(SMALL, 2));
}

#[test]
fn gpu_answers_are_the_same_alone_and_among_16_clients() {
    need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "one CUDA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    load_changes_no_bit(&[], &Expected::of_twin(SMALL, 64));
}

#[test]
fn the_client_s_program_finds_the_twin_s_answers_right() {
    need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    need!(client(), "doorbell-client beside the server");
    let runtime = need!(runtime(), reference, "ONNX Runtime");
    program_agrees(&["--machine", "twin"], &Expected::of(&runtime, SMALL, 16), "1e-4");
}

#[test]
fn two_models_have_pipelines_of_their_own() {
    need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    serve_two_models(
        &["--machine", "twin"],
        [SMALL, OTHER],
        &[SMALL, OTHER].map(|model| Expected::of_twin(model, 2)),
    );
}

/// Both models have requests at the same time.
fn serve_two_models(machine: &[&str], models: [&str; 2], expected: &[Expected; 2]) {
    let nic = device().unwrap();
    let options = ["--mode", "gpu-graph", "--model", models[1], "--slots", "2", "--slots-per-client", "2"];
    let (mut server, address) = server(models[0], &[&options[..], machine].concat());
    let mut clients = models.map(|model| Client::usual(&nic, &address, model, 2));
    let since = Instant::now();
    while clients.iter().any(|client| client.answered < 6) {
        assert!(since.elapsed() < PATIENCE);
        for (client, expected) in clients.iter_mut().zip(expected) {
            client.ask(expected);
            assert!(matches!(client.poll(expected), None | Some(Status::Ok)));
        }
    }
    drop(clients);
    stopped(&mut server);
}

#[test]
fn a_client_that_errs_ends_alone_and_its_queue_serves_the_next() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    let options = ["--mode", "gpu-graph", "--machine", "twin", "--slots", "8", "--slots-per-client", "4"];
    let (mut server, address) = server(SMALL, &options);
    let mut good = Client::usual(&nic, &address, SMALL, 4);
    for _ in 0..3 {
        // It offers memory for answers that the server may not write.
        let mut rogue = crate::rogue::Rogue::with_wrong_answers(&nic, &address, 4, Arrival::Flag);
        rogue.ask(0, |_| {});
        let line = std::iter::repeat_with(|| server.next_line()).find(|line| line["kind"] == "left").unwrap();
        let error = line["error"].as_str().unwrap_or_default();
        assert!(error.contains("remote access"), "{line}");
        assert!(!rogue.session.is_alive());
        good.run(&expected, 5);
    }
    drop(good);
    let lines = stopped(&mut server);
    assert_eq!((&totals(&lines)["clients"], &totals(&lines)["failed"]), (&4.into(), &3.into()), "{lines:?}");
}

/// Voluntary context switches of a process's threads by name, without the NIC's and the twin's (a GPU's).
fn switches(process: u32) -> BTreeMap<(u32, String), u64> {
    let mut all = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten() {
        // A thread may end meanwhile.
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (name, status) = (read("comm").trim().to_owned(), read("status"));
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let apart = ["softnic", "twin"].iter().any(|other| name.starts_with(other));
        if let (Some(count), false) = (count, apart) {
            let thread = task.file_name().to_str().unwrap().parse().unwrap();
            all.insert((thread, name), count.trim().parse().unwrap());
        }
    }
    all
}

/// Serves for a while: switches of each thread that was there all the time.
fn switches_while_it_serves(machine: &[&str], expected: &Expected) -> Vec<((u32, String), u64)> {
    let nic = device().unwrap();
    let (mut server, address) = server(SMALL, &[&["--mode", "gpu-graph"], machine].concat());
    let mut clients = [(); 2].map(|()| Client::usual(&nic, &address, SMALL, 4));
    clients.iter_mut().for_each(|client| client.run(expected, 2));
    let before = switches(server.id());
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        clients.iter_mut().for_each(|client| client.run(expected, 4));
    }
    let after = switches(server.id());
    println!(
        "TABLE {} answers in {:?}: {after:?}",
        clients[0].answered + clients[1].answered,
        since.elapsed()
    );
    assert!(before.keys().any(|(_, name)| name == "inference-serve"), "{before:?}");
    drop(clients);
    stopped(&mut server);
    let more = |(thread, count): (&(u32, String), &u64)| Some((thread.clone(), after.get(thread)? - count));
    before.iter().filter_map(more).collect()
}

#[test]
fn release_m13_no_thread_of_a_server_of_kernels_wakes_while_it_serves() {
    need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let more = switches_while_it_serves(&["--machine", "twin"], &Expected::of_twin(SMALL, 2));
    // The release's thread looks once a second; one that falls asleep in these two seconds counts once.
    assert!(more.iter().all(|(_, count)| *count <= 1), "in two seconds: {more:?}");
}

#[test]
fn counters_are_written_when_a_signal_asks_for_them() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 2);
    for mode in [&["--mode", "gpu-graph", "--machine", "twin"][..], &["--engine", "twin"]] {
        let (mut server, address) = server(SMALL, &[mode, &["--status", "-"]].concat());
        let mut client = Client::usual(&nic, &address, SMALL, 2);
        assert_eq!(server.next_line()["kind"], "joined");
        for answered in [4, 8] {
            client.run(&expected, 4);
            let asked = server.signal(Signal::SIGUSR1);
            let line = server.next_line();
            println!("TABLE a sleeping server answers after {:?}: {line}", asked.elapsed());
            let model = &line["models"][0];
            assert_eq!((&line["kind"], &model["clients"]), (&"status".into(), &1.into()), "{line}");
            assert_eq!((&model["answered"], &model["refused"]), (&answered.into(), &0.into()), "{line}");
            assert_eq!(model["turns"].is_u64(), mode.len() == 4, "{line}");
        }
        drop(client);
        stopped(&mut server);
    }
}

#[test]
fn at_its_end_a_server_of_kernels_answers_each_request_or_says_that_it_stops() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    let (mut server, address) = server(SMALL, &["--mode", "gpu-while", "--machine", "twin"]);
    let mut client = Client::usual(&nic, &address, SMALL, 4);
    client.run(&expected, 2);
    let signalled = server.signal(Signal::SIGTERM);
    // Until it hears of it.
    let (mut answered, mut stopping) = (0, 0);
    while stopping == 0 || client.connection.outstanding() > 0 {
        assert!(signalled.elapsed() < PATIENCE);
        if stopping == 0 {
            client.ask(&expected);
        }
        match client.poll(&expected) {
            Some(Status::Ok) => answered += 1,
            Some(Status::Stopping) => stopping += 1,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    println!("TABLE the first refusal came within {:?} of the signal", signalled.elapsed());
    let ended = server.end_since(signalled);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let totals = totals(&ended.lines);
    assert_eq!(
        (&totals["answered"], &totals["refused"]),
        (&(2 + answered).into(), &stopping.into()),
        "{ended:?}"
    );
}

/// Error: no GPU that programs here can use.
fn gpu() -> Result<(), String> {
    let found = cli::Gpu { gpu: None, cuda: None }.machine(", the tests of the twin run alone");
    found.map(drop).map_err(|error| error.to_string())
}

/// The GPU adds in another order than the twin.
fn near(model: &str) -> Expected {
    Expected::of_twin(model, 3).within(1e-4)
}

#[test]
fn gpu_kernels_answer_however_requests_come() {
    need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "one CUDA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    for place in ["gpu", "host"] {
        serves_every_way(&WAITING, &["--place", place], &near(SMALL), (4, 50));
    }
}

#[test]
fn gpu_driven_by_this_processor_answers_however_requests_come() {
    need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "one CUDA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    serves_every_way(&DRIVEN, &[], &near(SMALL), (4, 50));
}

#[test]
fn gpu_answers_are_what_the_client_s_program_takes_for_right() {
    need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "one CUDA device");
    need!(client(), "doorbell-client beside the server");
    let runtime = need!(runtime(), reference, "ONNX Runtime");
    program_agrees(&["--machine", "gpu"], &Expected::of(&runtime, SMALL, 16), "1e-4");
}

/// Each model's graph has its turns while the other's kernel waits.
#[test]
fn gpu_graphs_of_two_models_run_side_by_side() {
    need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "one CUDA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    serve_two_models(&[], [SMALL, OTHER], &[SMALL, OTHER].map(near));
}

#[test]
fn gpu_server_s_threads_sleep_while_it_serves() {
    need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "one CUDA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let more = switches_while_it_serves(&[], &near(SMALL));
    // The driver's own threads are listed too.
    let ours = |name: &str| ["inference-serve", "chain-end", "accept", "client", "stop"].contains(&name);
    let wakes = more.iter().filter(|((_, name), _)| ours(name)).map(|(_, count)| *count);
    assert!(wakes.max() <= Some(1), "in two seconds: {more:?}");
}

#[test]
fn gpu_server_waits_in_every_way_that_it_offers() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "one CUDA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = near(SMALL);
    for sleep in ["event", "block", "spin"] {
        for mode in MODES {
            let options = ["--mode", mode, "--sleep", sleep, "--sessions", "3", "--status", "-"];
            let (mut server, address) = server(SMALL, &options);
            for _ in 0..3 {
                Client::usual(&nic, &address, SMALL, 4).run(&expected, 50);
                server.signal(Signal::SIGUSR1);
            }
            let ended = server.end();
            assert_eq!(ended.code, Some(0), "{sleep} {mode}: {ended:?}");
            assert_eq!(totals(&ended.lines)["answered"], 150, "{sleep} {mode}: {ended:?}");
        }
    }
}
