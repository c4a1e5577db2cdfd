//! Ctrl-C and killed peers: both ends stop without waiting for the other, and say why.

use std::time::Duration;

use cli::testing::{Ended, Program, Signal, until_loaded};
use measure::need;

use crate::ends::{MOMENT, asking, device, gpu, has_answers, service, twin};

/// From the signal to the end of both processes: an end that waits for its peer takes 10 minutes.
const SOON: Duration = Duration::from_secs(20);

/// Both ends, at it for so long, and with enough to do for minutes.
fn endless(machine: &str, asker: &str, load: Duration) -> (Program, Program) {
    let (service, address) = service(&["--machine", machine]);
    let asking = asking(&address, &["--machine", asker, "--count", "10000000"]);
    std::thread::sleep(load);
    (service, asking)
}

/// The first load of [`until_loaded`]: a GPU's kernels are compiled first.
fn moment(machine: &str) -> Duration {
    if machine == "gpu" { Duration::from_secs(2) } else { MOMENT }
}

fn soon(name: &str, ended: &Ended) {
    assert!(ended.after < SOON, "{name} took {:?}: {ended:?}", ended.after);
}

/// The software NIC may say something too.
fn one_line(ended: &Ended) {
    assert_eq!(
        ended.stderr.lines().filter(|line| line.starts_with("doorbell-echo: ")).count(),
        1,
        "{ended:?}"
    );
}

fn ctrl_c(machine: &str, asker: &str) {
    let (asked, answered) = until_loaded(moment(machine), |load| {
        let (mut service, mut asking) = endless(machine, asker, load);
        let signalled = asking.signal(Signal::SIGINT);
        let asked = asking.end_since(signalled);
        has_answers(&asked).then(|| (asked, service.end_since(signalled)))
    });
    soon("the client", &asked);
    soon("the service", &answered);
    assert_eq!(asked.code, Some(130), "{asked:?} {answered:?}");
    let run = asked.line();
    assert!(run["interrupted"].as_bool().unwrap(), "{run}");
    assert!(answered.line()["answered"].as_u64() >= run["answered"].as_u64(), "{run} {answered:?}");

    let (answered, asked) = until_loaded(moment(machine), |load| {
        let (mut service, mut asking) = endless(machine, asker, load);
        let signalled = service.signal(Signal::SIGTERM);
        let answered = service.end_since(signalled);
        has_answers(&answered).then(|| (answered, asking.end_since(signalled)))
    });
    soon("the service", &answered);
    soon("the client", &asked);
    assert_eq!((answered.code, asked.code), (Some(130), Some(1)), "{answered:?} {asked:?}");
    assert!(!asked.line()["error"].is_null(), "{asked:?}");
}

fn a_killed_peer(machine: &str, asker: &str) {
    let (asked, load) = until_loaded(moment(machine), |load| {
        let (mut service, mut asking) = endless(machine, asker, load);
        let signalled = service.signal(Signal::SIGKILL);
        let asked = asking.end_since(signalled);
        service.end();
        has_answers(&asked).then_some((asked, load))
    });
    soon("the client", &asked);
    assert_eq!(asked.code, Some(1), "{asked:?}");
    assert!(!asked.line()["error"].is_null(), "{asked:?}");
    one_line(&asked);

    let (mut service, mut asking) = endless(machine, asker, load);
    let signalled = asking.signal(Signal::SIGKILL);
    let answered = service.end_since(signalled);
    asking.end();
    soon("the service", &answered);
    assert_eq!(answered.code, Some(1), "{answered:?}");
    assert!(answered.line()["error"].as_str().is_some_and(|error| !error.is_empty()), "{answered:?}");
    one_line(&answered);
}

#[test]
fn ctrl_c_ends_both_with_the_counts_so_far() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    ["twin", "cpu"].iter().for_each(|asker| ctrl_c("twin", asker));
}

#[test]
fn a_killed_peer_is_noticed() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    ["twin", "cpu"].iter().for_each(|asker| a_killed_peer("twin", asker));
}

#[test]
fn gpu_kernels_end_with_ctrl_c_and_with_their_peer() {
    need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "one CUDA device");
    ctrl_c("gpu", "gpu");
    a_killed_peer("gpu", "gpu");
}

#[test]
fn a_service_that_nobody_asks_ends_with_ctrl_c() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    for (sessions, code) in [("1", 130), ("0", 0)] {
        let (mut service, _) = service(&["--machine", "twin", "--sessions", sessions]);
        let signalled = service.signal(Signal::SIGINT);
        let ended = service.end_since(signalled);
        soon("the service", &ended);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(code), ""), "{ended:?}");
    }
}
