//! The modes of the pipeline: every answer of each is what it has to be, and their ends say why they end.

use std::time::Duration;

use cli::testing::{Program, Signal, until_loaded};
use measure::need;
use pipeline::{Mode, Processor};
use serde_json::json;

use crate::ends::{MOMENT, asking, device, gpu, has_answers, service, twin};

/// A service of a mode. `machine`: what runs its kernels, if it has some.
fn serving(mode: Mode, machine: &str, options: &[&str]) -> (Program, String) {
    let machine = if mode.needs_gpu() { machine } else { "cpu" };
    service(&[&["--mode", mode.name(), "--machine", machine], options].concat())
}

fn client(mode: Mode, address: &str, options: &[&str]) -> Program {
    asking(address, &[&["--mode", mode.name(), "--machine", "cpu"], options].concat())
}

/// Two clients of each mode in turn: the second has several questions in flight, and the first one's slots.
fn answers(machine: &str, memory: &str, count: u64) {
    let mut wrong = Vec::new();
    for (mode, bytes) in Mode::ALL.into_iter().flat_map(|mode| ["8", "4096"].map(|bytes| (mode, bytes))) {
        let memory = if mode.waits() == Processor::Gpu { memory } else { "host" };
        let options = ["--payload", bytes, "--window", "4", "--sessions", "2", "--memory", memory];
        let (mut service, address) = serving(mode, machine, &options);
        for window in ["1", "4"] {
            let options = ["--payload", bytes, "--window", window, "--count", &count.to_string()];
            let asked = client(mode, &address, &options).end();
            let (run, answered) = (asked.line(), service.next_line());
            let p50 = &run["round_trip"]["p50_ns"];
            println!("TABLE {mode} ({machine}), {bytes} bytes, {window} in flight: p50 {p50} ns");
            let found = [&run["answered"], &answered["answered"], &run["wrong_words"], &answered["error"]];
            if asked.code != Some(0) || found != [&json!(count), &json!(count), &json!(0), &json!(null)] {
                wrong.push(format!("{mode}, {bytes} bytes, {window} in flight: {asked:?} {answered}"));
            }
        }
        let ended = service.end();
        assert_eq!((ended.code, &ended.stderr[..]), (Some(0), ""), "{mode}: {ended:?}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_mode_answers_each_question() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    answers("twin", "host", 60);
}

#[test]
fn gpu_every_mode_answers_each_question() {
    need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "one CUDA device");
    ["host", "gpu"].into_iter().for_each(|memory| answers("gpu", memory, 1000));
}

#[test]
fn ends_of_other_modes_lengths_or_slots_refuse_each_other() {
    need!(device(), nic, "an RDMA device");
    let mode = Mode::CpuCpuShim;
    for (other, options, words) in [
        (Mode::GpuWhile, &[][..], "\"gpu-while\" is wanted, cpu-cpu-shim is served"),
        (mode, &["--payload", "128"], "the server's manifest of the model says"),
        (mode, &["--window", "9"], "9 slots are wanted, 8 are free"),
    ] {
        let (mut service, address) = serving(mode, "cpu", &[]);
        let (asked, served) = (client(other, &address, options).end(), service.end());
        for ended in [&asked, &served] {
            assert!(ended.code == Some(2) && ended.stderr.contains(words), "{asked:?} {served:?}");
        }
    }
}

/// One mode in which this processor waits, and one in which kernels do.
const BOTH: [Mode; 2] = [Mode::CpuCpuIbverbs, Mode::GpuGraph];
/// From a signal to the end: an end that waits for its peer takes 10 minutes.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_killed_client_leaves_its_slots_to_the_next_one() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    for mode in BOTH {
        let mut service = until_loaded(MOMENT, |load| {
            let (mut service, address) = serving(mode, "twin", &["--sessions", "2", "--window", "4"]);
            let mut killed = client(mode, &address, &["--window", "4", "--count", "10000000"]);
            std::thread::sleep(load);
            killed.signal(Signal::SIGKILL);
            killed.end();
            let asked = client(mode, &address, &["--window", "4", "--count", "20"]).end();
            assert_eq!(asked.code, Some(0), "{mode}: {asked:?}");
            // If the first client was killed before it was served, the second is the first that is reported.
            let first = service.next_line()["answered"].as_u64().unwrap();
            (![0, 20].contains(&first)).then_some(service)
        });
        assert_eq!(service.next_line()["answered"], 20, "{mode}");
        service.end();
    }
}

#[test]
fn a_signal_or_a_service_that_goes_ends_the_other_end() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    for (mode, signal) in
        BOTH.into_iter().flat_map(|mode| [Signal::SIGTERM, Signal::SIGKILL].map(|signal| (mode, signal)))
    {
        let (served, asked) = until_loaded(MOMENT, |load| {
            let (mut service, address) = serving(mode, "twin", &[]);
            let mut asking = client(mode, &address, &["--count", "10000000"]);
            std::thread::sleep(load);
            let signalled = service.signal(signal);
            let asked = asking.end_since(signalled);
            has_answers(&asked).then(|| (service.end_since(signalled), asked))
        });
        let code = (signal == Signal::SIGTERM).then_some(130);
        assert_eq!((served.code, asked.code), (code, Some(1)), "{mode} {served:?} {asked:?}");
        let run = asked.line();
        assert_eq!(run["wrong_words"], 0, "{run}");
        assert!(run["error"].as_str().is_some_and(|error| error.contains("the service is gone")), "{run}");
        assert!(served.after < SOON && asked.after < SOON, "{mode} {served:?} {asked:?}");
    }
}
