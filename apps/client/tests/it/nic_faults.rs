//! A software NIC that loses, delays and errs: what is lost is counted, nothing is wrong, and other clients go on.

use std::path::Path;
use std::process::Command;

use cli::testing::Program;
use measure::need;
use serde_json::{Value, json};

use crate::played::CLIENT;
use crate::server::{World, assert_clean, counts, joined, totals};

/// What `softnic ctl` says. Error: there is none, or its own words.
pub fn ctl(arguments: &[&str]) -> Result<String, String> {
    let beside = Path::new(&*CLIENT).with_file_name("softnic");
    let launcher = std::env::var("SOFTNIC_TEST_LAUNCHER").unwrap_or(beside.display().to_string());
    let said = Command::new(&launcher).arg("ctl").args(arguments).output();
    let said = said.map_err(|error| format!("{launcher}: {error}"))?;
    let [out, words] = [said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if said.status.success() { Ok(out) } else { Err(words) }
}

/// What the NICs' list says of a process. Error: it is on no software NIC.
pub fn listed(program: &Program) -> Result<Value, String> {
    let text = ctl(&["list", "--json"])?;
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find(|line| line["pid"] == program.id()).ok_or(format!("process {} in no line", program.id()))
}

/// QPN of the first queue pair of a process: `soft-nic/src/device/qpn.rs`.
fn first_qpn(program: &Program) -> String {
    let slot = listed(program).unwrap()["slot"].as_u64().unwrap();
    format!("{:#x}", slot << 17 | 0x40)
}

/// A world on the software NIC. Error: no such world, or a card.
fn world(test: &str) -> Result<World, String> {
    let world = World::new(test)?;
    ctl(&["list"])?;
    Ok(world)
}

#[test]
fn what_uc_loses_is_lost_and_nothing_is_wrong_and_rc_sends_it_again() {
    let world = need!(world("loses"), softnic, "the software NIC, ONNX Runtime and inference-server");
    let (mut server, address) = world.server(&["--slots", "256"]);
    ctl(&["set", &server.id().to_string(), "--loss", "0.1", "--seed", "5"]).unwrap();
    // Each request has a slot of its own: on UC a slot that has lost something is not used again.
    let load = ["--slots", "64", "--count", "64", "--rate", "400", "--deadline", "2"];
    let uc = ["flag", "tail", "completion"].map(|arrival| {
        world.client(&address, &[&load[..], &["--transport", "uc", "--arrival", arrival]].concat())
    });
    for mut client in uc {
        let ended = client.end();
        let [sent, answered, lost, wrong, late, duplicate] =
            counts(ended.line(), ["sent", "answered", "lost", "wrong", "late", "duplicate"]);
        assert_eq!((sent, answered + lost, [wrong, late, duplicate]), (64, 64, [0; 3]), "{ended:?}");
        assert!(lost > 0 && answered > 0 && ended.code == Some(1), "{ended:?}");
    }
    // A client whose slots have all lost something ends, and does not wait once for each request.
    let load = ["--slots", "2", "--count", "100000", "--transport", "uc", "--deadline", "1"];
    let ended = world.client(&address, &load).end();
    let run = ended.line();
    assert_eq!((&run["lost"], &run["wrong"], ended.code), (&json!(2), &json!(0), Some(1)), "{run}");
    assert!(run["error"].as_str().unwrap().contains("no slot is left"), "{run}");
    world.is_served(&address, &["--count", "160", "--deadline", "60"]);
    let counted = ctl(&["counters", &server.id().to_string(), "--json"]).unwrap();
    let counted: Value = serde_json::from_str(&counted).unwrap();
    assert!(counted["counters"]["injected_lost_requests"].as_u64() > Some(3), "{counted}");
    assert_eq!(totals(&mut server)["failed"], 0);
}

#[test]
fn a_long_link_delays_answers_and_changes_none() {
    let world = need!(world("delays"), softnic, "the software NIC, ONNX Runtime and inference-server");
    let (mut server, address) = world.server(&[]);
    ctl(&["set", &server.id().to_string(), "--delay", "5ms"]).unwrap();
    for arrival in ["flag", "completion"] {
        let ended = world.client(&address, &["--count", "160", "--arrival", arrival]).end();
        assert_clean(&ended, 160);
        assert!(ended.line()["latency"]["min_ns"].as_u64() >= Some(5_000_000), "{ended:?}");
    }
    totals(&mut server);
}

#[test]
fn an_error_cqe_ends_one_client_and_no_other() {
    let world = need!(world("errs"), softnic, "the software NIC, ONNX Runtime and inference-server");
    for at_server in [true, false] {
        let (mut server, address) = world.server(&[]);
        let load = ["--seconds", "60", "--deadline", "5"];
        let mut first = world.client(&address, &load);
        joined(&mut server, 1);
        let mut second = world.client(&address, &["--count", "1500"]);
        joined(&mut server, 1);
        let failing = if at_server { &server } else { &first };
        let (process, qpn) = (failing.id().to_string(), first_qpn(failing));
        ctl(&["inject", &process, "error-cqe", "--qp", &qpn, "--syndrome", "retry_exceeded"]).unwrap();
        let ended = first.end();
        let run = ended.line();
        let [sent, answered, lost, wrong, late, duplicate] =
            counts(run, ["sent", "answered", "lost", "wrong", "late", "duplicate"]);
        assert!(ended.code == Some(1) && run["error"].is_string() && lost > 0, "{run}");
        assert_eq!((sent, [wrong, late, duplicate]), (answered + lost, [0; 3]), "{run}");
        assert_clean(&second.end(), 1500);
        world.is_served(&address, &["--count", "160"]);
        assert_eq!((&totals(&mut server)["clients"], at_server), (&json!(3), at_server));
    }
}
