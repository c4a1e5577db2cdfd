//! A software NIC that loses, delays and errs: losses are counted, no answer is wrong, other clients go on.

use std::path::Path;
use std::process::Command;

use cli::testing::{Ended, Program};
use measure::need;
use serde_json::{Value, json};

use crate::played::CLIENT;
use crate::server::{Fixture, GRAPH, KERNELS, Served, assert_clean, counts, joined, totals};

/// What `softnic ctl` says. Error: there is none, or its own words.
pub fn ctl(arguments: &[&str]) -> Result<String, String> {
    let beside = Path::new(&*CLIENT).with_file_name("softnic");
    let launcher = std::env::var("SOFTNIC_TEST_LAUNCHER").unwrap_or(beside.display().to_string());
    let said = Command::new(&launcher).arg("ctl").args(arguments).output();
    let said = said.map_err(|error| format!("{launcher}: {error}"))?;
    let [out, words] = [said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if said.status.success() { Ok(out) } else { Err(words) }
}

/// The NICs of this fabric, in JSON: other tests' NICs are not asked. Error: there is no software NIC.
fn list() -> Result<String, String> {
    let fabric = std::env::var("SOFTNIC_FABRIC").map_err(|error| format!("SOFTNIC_FABRIC: {error}"))?;
    ctl(&["list", "--json", "--fabric", &fabric])
}

/// What the NICs' list says of a process. Error: it is on no software NIC.
pub fn listed(program: &Program) -> Result<Value, String> {
    let text = list()?;
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find(|line| line["pid"] == program.id()).ok_or(format!("process {} in no line", program.id()))
}

/// QPN of the first queue pair of a process: `mlx5-device/src/qpn.rs`.
fn first_qpn(program: &Program) -> String {
    let slot = listed(program).unwrap()["slot"].as_u64().unwrap();
    format!("{:#x}", slot << 17 | 0x40)
}

/// Worlds on the software NIC. Error: no such world, or a card.
fn worlds(test: &str, others: &[Served]) -> Result<Vec<Fixture>, String> {
    let worlds = Fixture::each(test, others)?;
    list()?;
    Ok(worlds)
}

const SOFTNIC: &str = "softnic, ONNX Runtime as the reference, a C++ compiler and inference-server";

/// Of 64 requests each was answered or lost, and some were.
fn assert_lossy(ended: &Ended) {
    let [sent, answered, lost, wrong, duplicate] =
        counts(ended.line(), ["sent", "answered", "lost", "wrong", "duplicate"]);
    assert_eq!((sent, answered + lost, [wrong, duplicate]), (64, 64, [0; 2]), "{ended:?}");
    assert!(lost > 0 && answers(ended) > 0 && ended.code == Some(1), "{ended:?}");
}

/// Answers that came. Behind its deadline one counts as lost, and as late.
fn answers(ended: &Ended) -> u64 {
    counts(ended.line(), ["answered", "late"]).iter().sum()
}

#[test]
fn what_uc_loses_is_lost_and_nothing_is_wrong_and_rc_sends_it_again() {
    // What kernels make of a request that has lost its middle: the pipeline's tests.
    let others = if need::is_full() { &[GRAPH][..] } else { &[] };
    for world in need!(worlds("loses", others), SOFTNIC) {
        let arrivals = world.served.arrivals;
        let (mut server, address) = world.server(&["--slots", "256"]);
        ctl(&["set", &server.id().to_string(), "--loss", "0.1", "--seed", "5"]).unwrap();
        // On a busy machine no answer comes before a short deadline, which each lost one is waited for.
        for deadline in ["1", "5", "30"] {
            // Each request has a slot of its own: on UC a slot that has lost something is not used again.
            let load = ["--slots", "64", "--count", "64", "--rate", "200", "--deadline", deadline];
            let load = [&load[..], &["--transport", "uc"]].concat();
            let ways =
                arrivals.iter().map(|way| world.client(&address, &[&load[..], &["--arrival", way]].concat()));
            let mut uc: Vec<_> = ways.collect();
            // A NIC loses what its process sends: the server's loses answers, this client's requests.
            let client = world.client(&address, &load);
            joined(&mut server, uc.len() + 1);
            // On a busy machine it may have ended: a lost request waits for no more than its deadline.
            let is_set = ctl(&["set", &client.id().to_string(), "--loss", "0.3", "--seed", "5"]);
            uc.push(client);
            let all: Vec<_> = uc.iter_mut().map(Program::end).collect();
            let is_last = deadline == "30";
            assert!(is_set.is_ok() || !is_last, "{is_set:?}");
            if is_last || is_set.is_ok() && all.iter().all(|ended| answers(ended) > 0) {
                all.iter().for_each(assert_lossy);
                break;
            }
        }
        // A client whose slots have all lost something ends, and does not wait once for each request.
        let load = ["--slots", "2", "--count", "100000", "--transport", "uc", "--deadline", "1"];
        let ended = world.client(&address, &load).end();
        let run = ended.line();
        let [lost, late] = ["lost", "late"].map(|name| run[name].as_u64().unwrap());
        // On a busy machine an answer may pass its deadline: it counts as lost, and as late when it comes.
        assert_eq!((lost - late, &run["wrong"], ended.code), (2, &json!(0), Some(1)), "{run}");
        assert!(run["error"].as_str().unwrap().contains("no slot is left"), "{run}");
        world.is_served(&address, arrivals[0], &["--deadline", "60"]);
        let counted = ctl(&["counters", &server.id().to_string(), "--json"]).unwrap();
        let counted: Value = serde_json::from_str(&counted).unwrap();
        assert!(counted["counters"]["injected_lost_requests"].as_u64() > Some(3), "{counted}");
        // A flag without its request is none: nothing was refused.
        let totals = totals(&mut server);
        assert_eq!((&totals["failed"], &totals["refused"]), (&json!(0), &json!(0)), "{totals}");
    }
}

#[test]
fn a_long_link_delays_answers_and_changes_none() {
    for world in need!(worlds("delays", &[GRAPH]), SOFTNIC) {
        let (mut server, address) = world.server(&[]);
        ctl(&["set", &server.id().to_string(), "--delay", "5ms"]).unwrap();
        for arrival in world.served.arrivals {
            let ended = world.short(&address, arrival, &[]).end();
            assert_clean(&ended, world.count());
            assert!(ended.line()["latency"]["min_ns"].as_u64() >= Some(5_000_000), "{ended:?}");
        }
        totals(&mut server);
    }
}

#[test]
fn an_error_cqe_ends_one_client_and_no_other() {
    // The processor, kernels, and kernels whose answers the processor posts.
    let worlds = need!(worlds("errs", &[GRAPH, KERNELS[2]]), SOFTNIC);
    let cases =
        worlds.iter().map(|world| (world, true)).chain(worlds[..2].iter().map(|world| (world, false)));
    for (world, at_server) in cases {
        let (mut server, address) = world.server(&[]);
        let arrival = world.served.arrivals[0];
        let mut first = world.client(&address, &["--seconds", "60", "--deadline", "5", "--arrival", arrival]);
        joined(&mut server, 1);
        // It still asks when the first one ends.
        let asked = world.count() * if world.served.options.is_empty() { 9 } else { 4 };
        let count = asked.to_string();
        let mut second = world.client(&address, &["--count", &count, "--arrival", arrival]);
        joined(&mut server, 1);
        let failing = if at_server { &server } else { &first };
        let (process, qpn) = (failing.id().to_string(), first_qpn(failing));
        ctl(&["inject", &process, "error-cqe", "--qp", &qpn, "--syndrome", "retry_exceeded"]).unwrap();
        let ended = first.end();
        let run = ended.line();
        let [sent, answered, lost, wrong, late, duplicate] =
            counts(run, ["sent", "answered", "lost", "wrong", "late", "duplicate"]);
        assert!(ended.code == Some(1) && run["error"].is_string() && lost > 0, "{:?}: {run}", world.served);
        assert_eq!((sent, [wrong, late, duplicate]), (answered + lost, [0; 3]), "{run}");
        assert_clean(&second.end(), asked);
        world.is_served(&address, arrival, &[]);
        assert_eq!((&totals(&mut server)["clients"], at_server), (&json!(3), at_server));
    }
}
