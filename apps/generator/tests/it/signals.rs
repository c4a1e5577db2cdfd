//! Ctrl-C and killed peers: both ends stop without waiting for the other, with the counts so far.

use std::time::Duration;

use cli::testing::{Signal, until_loaded};
use measure::need;

use crate::ends::{Ended, Generator, device};

/// Bound on the time from the signal to the end of both processes. A sender waits 30 s for its peer.
const SOON: Duration = Duration::from_secs(10);

/// In which a sender sends on a quiet machine.
const MOMENT: Duration = Duration::from_millis(500);

/// A run that would go on for minutes, after it has sent for so long.
fn endless(options: &[&str], load: Duration) -> (Generator, Generator) {
    let (receiver, address) = Generator::receiver(&[]);
    let sender = Generator::start(&[&["--connect", &address, "--seconds", "300"], options].concat());
    std::thread::sleep(load);
    (sender, receiver)
}

/// Whether a program counts some.
fn has(ended: &Ended, field: &str) -> bool {
    ended.lines.first().is_some_and(|line| line[field].as_u64() > Some(0))
}

fn soon(name: &str, ended: &Ended) {
    assert!(ended.after < SOON, "{name} took {:?}: {ended:?}", ended.after);
}

#[test]
fn ctrl_c_at_the_sender_ends_both_with_the_counts_so_far() {
    need!(device(), nic, "an RDMA device");
    for options in [&["--op", "write"][..], &["--op", "send", "--poster", "cpu-shim"], &["--verify", "all"]] {
        let (sent, received) = until_loaded(MOMENT, |load| {
            let (mut sender, mut receiver) = endless(options, load);
            let signalled = sender.signal(Signal::SIGINT);
            let sent = sender.end_since(signalled);
            has(&sent, "posted").then(|| (sent, receiver.end_since(signalled)))
        });
        soon("the sender", &sent);
        soon("the receiver", &received);
        assert_eq!((sent.code, received.code), (Some(130), Some(0)), "{options:?}: {sent:?} {received:?}");
        let run = sent.line();
        assert!(run["interrupted"].as_bool().unwrap(), "{run}");
        assert_eq!(run["received"], received.line()["received"]);
    }
}

#[test]
fn ctrl_c_at_the_receiver_fails_the_sender_by_name() {
    need!(device(), nic, "an RDMA device");
    let (received, sent) = until_loaded(MOMENT, |load| {
        let (mut sender, mut receiver) = endless(&["--op", "write-imm"], load);
        let signalled = receiver.signal(Signal::SIGTERM);
        let received = receiver.end_since(signalled);
        has(&received, "received").then(|| (received, sender.end_since(signalled)))
    });
    soon("the receiver", &received);
    soon("the sender", &sent);
    assert_eq!((received.code, sent.code), (Some(130), Some(1)), "{received:?} {sent:?}");
    assert!(!sent.line()["error"].is_null(), "{sent:?}");
}

/// Messages come faster than it takes them: it never finds its queue empty.
#[test]
fn ctrl_c_at_a_kernel_that_receives_is_heard_while_messages_flow() {
    need!(device(), nic, "an RDMA device");
    need!(
        generator::kernel::KERNELS.find("generate_receive").map(drop).map_err(|e| e.to_string()),
        cc,
        "a C++ compiler"
    );
    let (received, sent) = until_loaded(MOMENT, |load| {
        let (mut receiver, address) = Generator::receiver(&["--receiver", "host-twin"]);
        let options = ["--op", "send", "--verify", "all", "--poster", "cpu-shim", "--seconds", "300"];
        let mut sender = Generator::start(&[&["--connect", &address], &options[..]].concat());
        std::thread::sleep(load);
        let signalled = receiver.signal(Signal::SIGTERM);
        let received = receiver.end_since(signalled);
        has(&received, "received").then(|| (received, sender.end_since(signalled)))
    });
    soon("the receiver", &received);
    assert_eq!((received.code, sent.code), (Some(130), Some(1)), "{received:?} {sent:?}");
}

#[test]
fn a_killed_peer_is_noticed() {
    need!(device(), nic, "an RDMA device");
    let (sent, load) = until_loaded(MOMENT, |load| {
        let (mut sender, mut receiver) = endless(&["--op", "write"], load);
        let signalled = receiver.signal(Signal::SIGKILL);
        let sent = sender.end_since(signalled);
        receiver.end();
        has(&sent, "posted").then_some((sent, load))
    });
    soon("the sender", &sent);
    assert_eq!(sent.code, Some(1), "{sent:?}");
    assert!(!sent.line()["error"].is_null(), "{sent:?}");

    for options in [&["--op", "write"][..], &["--op", "send"]] {
        let (mut sender, mut receiver) = endless(options, load);
        let signalled = sender.signal(Signal::SIGKILL);
        let received = receiver.end_since(signalled);
        sender.end();
        soon("the receiver", &received);
        assert_eq!(received.code, Some(1), "{received:?}");
        assert!(received.line()["error"].as_str().is_some_and(|error| !error.is_empty()), "{received:?}");
    }
}

#[test]
fn a_receiver_that_gets_no_core_for_six_seconds_is_waited_for() {
    need!(device(), nic, "an RDMA device");
    // There one process takes the host's packets from UDP port 4791; stopped, it would stop other tests.
    let on_wire = std::env::var("SOFTNIC_CONFIG").is_ok_and(|config| config.contains("path = \"wire\""));
    need!(!on_wire, own_port, "a NIC that hears its packets by itself");
    let (mut receiver, address) = Generator::receiver(&[]);
    // No time-out of the NIC: it is the generator's patience that is looked at.
    let options = ["--connect", &address, "--seconds", "1", "--payload", "4096", "--timeout", "0"];
    let mut sender = Generator::start(&options);
    std::thread::sleep(Duration::from_millis(500));
    receiver.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(6500));
    receiver.signal(Signal::SIGCONT);
    let (sent, received) = (sender.end(), receiver.end());
    assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{sent:?} {received:?}");
    assert_eq!(sent.line()["posted"], sent.line()["completed"]);
}
