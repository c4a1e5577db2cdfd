//! Servers that are killed, stopped or held up under load: no request without an answer or a report.

use std::time::Duration;

use cli::testing::Signal;
use measure::need;
use serde_json::{Value, json};

use crate::server::{Fixture, GRAPH, KERNELS, PATIENCE, WANTED, counts, joined, totals};

/// A client that asks for longer than the test takes.
const LOAD: [&str; 4] = ["--seconds", "50", "--deadline", "3"];
const SOME_LOAD: Duration = Duration::from_millis(300);

/// `sent`, `answered`, `lost`, `late`, after a check that nothing was wrong or came twice.
fn reported(run: &Value) -> [u64; 4] {
    let [sent, answered, lost, late, wrong, duplicate] =
        counts(run, ["sent", "answered", "lost", "late", "wrong", "duplicate"]);
    assert_eq!([wrong, duplicate], [0, 0], "{run}");
    [sent, answered, lost, late]
}

fn refused(run: &Value) -> u64 {
    run["refused"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

#[test]
fn after_a_sigkill_each_outstanding_request_is_lost_and_the_next_server_serves() {
    for world in need!(Fixture::each("killed", &KERNELS), WANTED) {
        let (mut server, address) = world.server(&[]);
        for arrival in world.served.arrivals {
            let options = [&LOAD[..], &["--arrival", arrival]].concat();
            let mut clients = [0, 1].map(|_| world.client(&address, &options));
            joined(&mut server, clients.len());
            std::thread::sleep(SOME_LOAD);
            let killed = server.signal(Signal::SIGKILL);
            server.end();
            for client in &mut clients {
                let ended = client.end_since(killed);
                let run = ended.line();
                let [sent, answered, lost, _] = reported(run);
                assert!(lost > 0 && sent == answered + lost, "{:?}: {run}", world.served);
                assert!(ended.code == Some(1) && run["error"].is_string(), "{run}");
                // They see the end of the connection, and need not wait for the deadlines.
                assert!(ended.after < PATIENCE / 2, "{:?}", ended.after);
            }
            server = world.server_at(&address, &[]).0;
            let count = world.is_served(&address, arrival, &[]);
            joined(&mut server, 1);
            let left = server.next_line();
            assert_eq!((&left["kind"], &left["answered"]), (&json!("left"), &json!(count)), "{left}");
        }
        totals(&mut server);
    }
}

#[test]
fn at_a_sigterm_under_load_each_request_is_answered_refused_or_lost() {
    for world in need!(Fixture::each("terminated", &KERNELS), WANTED) {
        let (mut server, address) = world.server(&[]);
        let arrivals = world.served.arrivals.iter().cycle().take(4);
        let loads = arrivals.map(|arrival| [&LOAD[..], &["--arrival", arrival]].concat());
        let mut clients: Vec<_> = loads.map(|load| world.client(&address, &load)).collect();
        joined(&mut server, clients.len());
        std::thread::sleep(SOME_LOAD);
        let signalled = server.signal(Signal::SIGTERM);
        let (mut results, mut stopping) = (0, 0);
        for client in &mut clients {
            let ended = client.end_since(signalled);
            let run = ended.line();
            let [sent, answered, lost, late] = reported(run);
            // The server has answered all that it took: nothing is lost.
            assert_eq!((sent, lost, late), (answered, 0, 0), "{:?}: {run}", world.served);
            assert!(ended.code == Some(1) && run["error"].as_str().unwrap().contains("stopping"), "{run}");
            results += answered - refused(run);
            stopping += refused(run);
        }
        let ended = server.end_since(signalled);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let served = ended.lines.last().unwrap();
        let found = ["answered", "refused"].map(|name| served[name].as_u64().unwrap());
        assert_eq!((found, stopping > 0), ([results, stopping], true), "{served}");
    }
}

#[test]
fn requests_of_a_server_that_is_held_up_are_lost_at_their_deadline_and_their_answers_late() {
    const SECONDS: u64 = 3;
    for (world, rate) in need!(Fixture::each("held", &[GRAPH]), WANTED).iter().zip([100, 20]) {
        let (mut server, address) = world.server(&[]);
        let times = [rate, SECONDS].map(|number| number.to_string());
        let load = ["--rate", &times[0], "--arrivals", "constant", "--seconds", &times[1], "--deadline", "1"];
        let mut client = world.client(&address, &load);
        joined(&mut server, 1);
        std::thread::sleep(SOME_LOAD);
        server.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_secs(2));
        server.signal(Signal::SIGCONT);
        let ended = client.end();
        let run = ended.line();
        let [_, answered, lost, late] = reported(run);
        // Eight were in slots, and the others found none in time.
        assert!(late > 0 && lost >= late && answered + lost == rate * SECONDS, "{:?}: {run}", world.served);
        assert!(ended.code == Some(1) && run["error"].is_null(), "{run}");
        world.is_served(&address, "flag", &[]);
        assert_eq!(totals(&mut server)["failed"], 0);
    }
}
