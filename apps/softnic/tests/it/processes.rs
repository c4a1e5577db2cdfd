//! Lives and deaths of processes: fork, several opens, leaving without closing, a killed peer, Ctrl-C.

use std::time::Duration;

use crate::c_program::{compile, verbs_program};
use crate::counters::{Messages, messages};
use crate::fabric::{Fabric, Layer, Pair};
use crate::program::{Signal, find, within};

/// Bound on an end that waits for nothing, after a death or Ctrl-C. The pairs here go on for a minute.
const AT_ONCE: Duration = Duration::from_secs(20);

/// The GID argument of the C programs.
pub fn gid_argument(fabric: &Fabric) -> String {
    match fabric.layer() {
        Layer::InfiniBand => "-1".into(),
        Layer::Roce => fabric.gid_index().expect("a RoCE v2 GID").to_string(),
    }
}

#[test]
fn a_forked_child_gets_errors_on_what_it_inherits_and_a_nic_of_its_own() {
    let program = measure::need!(verbs_program("fork_child"), "C compiler and libibverbs-dev");
    for layer in Layer::BOTH {
        let fabric = Fabric::new(layer);
        let gid = gid_argument(&fabric);
        let mut parent = fabric.start(&[&program, &gid]);
        parent.program.succeed();
        let lines = parent.all_counters();
        assert_eq!(lines.len(), 2, "a line for the parent and one for the child");
        for line in &lines {
            let count = if line.pid() == parent.program.pid() { 3 + 5 } else { 4 };
            assert_eq!(line.completed(), messages("write", count), "completed for process {}", line.pid());
            assert_eq!(line.executed(), count, "executed by process {}", line.pid());
        }
    }
}

/// Payloads go through the ring of a channel, so that peers need no right to a program's memory.
#[test]
fn no_program_reaches_a_peer_s_memory_or_lets_the_peer_reach_its_own() {
    measure::need!(find("ibv_rc_pingpong"), "ibverbs-utils");
    let ended_else = measure::need!(compile("own_memory", &[]), "C compiler").display().to_string();
    let command = [&ended_else, "ibv_rc_pingpong", "-c", "-s", "1000000", "-n", "10"];
    Fabric::new(Layer::InfiniBand).pair(&command).finish();
}

#[test]
fn two_opens_close_in_any_order() {
    let program = measure::need!(verbs_program("two_opens"), "C compiler and libibverbs-dev");
    for layer in Layer::BOTH {
        let fabric = Fabric::new(layer);
        let gid = gid_argument(&fabric);
        for order in ["ab", "ba"] {
            let (_, counters) = fabric.run(&[&program, &gid, order]);
            assert_eq!(counters.completed(), messages("write", 3 + 2 + 2 + 2), "{order}");
            assert_eq!(counters.executed(), 3 + 2 + 2 + 2, "{order}");
            assert!(counters.trouble().is_empty(), "{order}: {:?}", counters.trouble());
        }
    }
}

/// Two threads post to one shared receive queue, four queue pairs of two services take from it.
#[test]
fn queue_pairs_and_threads_share_a_receive_queue() {
    let program = measure::need!(verbs_program("shared_receive"), "C compiler and libibverbs-dev");
    for layer in Layer::BOTH {
        let fabric = Fabric::new(layer);
        let (_, counters) = fabric.run(&[&program, &gid_argument(&fabric)]);
        assert_eq!(counters.completed(), messages("send", 3 * 400 + 8));
        assert_eq!((counters.executed(), counters.value("receives_shared")), (3 * 400 + 8, 3 * 400 + 8));
    }
}

/// CQs that change their size with completions in them and under way, also of 128-byte CQEs.
#[test]
fn completion_queues_change_their_size_under_way() {
    let program = measure::need!(verbs_program("resize_cq"), "C compiler and libibverbs-dev");
    for (layer, cqe_size) in [(Layer::InfiniBand, "64"), (Layer::Roce, "128")] {
        let fabric = Fabric::new(layer).with_environment("MLX5_CQE_SIZE", cqe_size);
        let (output, counters) = fabric.run(&[&program, &gid_argument(&fabric)]);
        let written: u64 = output.trim().parse().expect("a number of WRITEs");
        assert!(written > 20_000);
        assert_eq!(counters.completed(), messages("write", written));
        assert!(counters.trouble().is_empty(), "{:?}", counters.trouble());
    }
}

#[test]
fn regions_are_registered_anew_and_bad_changes_refused() {
    let program = measure::need!(verbs_program("reregister"), "C compiler and libibverbs-dev");
    for layer in Layer::BOTH {
        let fabric = Fabric::new(layer);
        let (_, counters) = fabric.run(&[&program, &gid_argument(&fabric)]);
        assert_eq!(counters.completed(), messages("write", 6));
    }
}

#[test]
fn extended_queues_have_timestamps_and_take_requests_one_by_one() {
    let program = measure::need!(verbs_program("extended"), "C compiler and libibverbs-dev");
    for layer in Layer::BOTH {
        let fabric = Fabric::new(layer);
        let (_, counters) = fabric.run(&[&program, &gid_argument(&fabric)]);
        assert_eq!((counters.completed()["write"], counters.completed()["send"]), (25, 1));
        assert!(counters.trouble().is_empty(), "{:?}", counters.trouble());
    }
}

#[test]
fn a_program_may_leave_without_closing() {
    let program = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::InfiniBand);
    for way in ["return", "exit", "_exit", "close"] {
        let (_, counters) = fabric.run(&[&program, "-1", way]);
        assert_eq!(counters.completed(), messages("write", 3), "{way}");
        assert_eq!(counters.executed(), 3, "{way}");
    }
}

/// A handler may call only async-signal-safe functions, such as `_exit`; it may interrupt a lock's holder.
#[test]
fn a_signal_handler_that_leaves_by_exit_ends_the_program_at_once_with_its_counts() {
    let program = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::InfiniBand);
    for way in ["polling", "commanding", "commanding", "commanding"] {
        let mut it = fabric.start(&[&program, "-1", way]);
        let ready = within(Duration::from_secs(20), || it.program.output().contains("ready"));
        assert!(ready, "{way}: {}", it.program.tail());
        it.program.signal(Signal::SIGINT);
        let ended = within(AT_ONCE, || it.program.exited().is_some());
        assert!(ended, "{way}: {}", it.program.tail());
        assert!(it.program.exited().is_some_and(|status| status.success()), "{way}: {}", it.program.tail());
        // Counts of a program that was stopped while it held what the NIC's thread needs are lost.
        if way == "polling" {
            assert_eq!(it.counters().completed(), messages("write", 3));
            assert_eq!(it.counters().executed(), 3);
        }
    }
}

/// A pair that goes on for a minute, well under way.
fn long_pair(fabric: &Fabric, program: &str) -> Pair {
    // A shell that runs the tests in the background ignores SIGINT, and so would its children.
    let mut pair = fabric.pair(&["env", "--default-signal=INT", program, "-F", "-D", "60"]);
    // Output goes to a file and comes late. A client that used this much CPU time is posting; before that it
    // only waits for the server on a socket.
    let busy = Duration::from_millis(500);
    let posting = within(Duration::from_secs(20), || {
        pair.client.program.exited().is_some() || pair.client.program.processor_time() >= busy
    });
    assert!(posting && pair.client.program.exited().is_none(), "{}", pair.account());
    pair
}

#[test]
fn a_killed_server_gives_the_client_an_error_at_once() {
    for program in ["ib_write_bw", "ib_send_bw", "ib_read_bw"] {
        measure::need!(find(program), "perftest");
        let fabric = Fabric::new(Layer::InfiniBand);
        let mut pair = long_pair(&fabric, program);
        pair.server.program.signal(Signal::SIGKILL);
        let ended = within(AT_ONCE, || pair.client.program.exited().is_some());
        assert!(ended, "{program}: {}", pair.account());
        let status = pair.client.program.exited().unwrap();
        assert!(!status.success(), "{program}: {}", pair.account());
        // "transport retry counter exceeded", as from a card whose peer is gone; perftest prints 12.
        let ended =
            format!("process {}, which had such QP numbers there, has ended", pair.server.program.pid());
        for words in ["Failed status 12", &ended] {
            assert!(pair.client.program.output().contains(words), "{program}: {}", pair.account());
        }
        let counters = pair.client.counters();
        assert!(!counters.trouble().is_empty(), "{program}: the failure is counted");
    }
}

#[test]
fn a_killed_client_ends_a_server_that_reads_from_its_socket() {
    measure::need!(find("ib_write_bw"), "perftest");
    let fabric = Fabric::new(Layer::Roce);
    let mut pair = long_pair(&fabric, "ib_write_bw");
    pair.client.program.signal(Signal::SIGKILL);
    assert!(within(AT_ONCE, || pair.server.program.exited().is_some()), "{}", pair.account());
}

#[test]
fn nothing_survives_the_death_of_both_sides() {
    measure::need!(find("ib_write_bw"), "perftest");
    let fabric = Fabric::new(Layer::InfiniBand);
    let before = named_shared_memory();
    let mut pair = long_pair(&fabric, "ib_write_bw");
    assert_eq!(named_shared_memory(), before, "a running pair names nothing in /dev/shm");
    pair.server.program.signal(Signal::SIGKILL);
    pair.client.program.signal(Signal::SIGKILL);
    assert!(
        within(AT_ONCE, || pair.server.program.exited().is_some() && pair.client.program.exited().is_some())
    );
    assert_eq!(named_shared_memory(), before, "nothing is left in /dev/shm");
    // The same fabric works for the next pair, which must not meet the dead ones' queue pairs.
    let next = fabric.pair(&["ib_write_bw", "-F", "-n", "200"]).finish_on_distribution();
    assert_eq!(next.client.counters.completed(), messages("write", 200));
    assert_eq!(next.server.counters.executed(), 200);
    assert_eq!(next.server.counters.posted(), Messages::new());
}

fn named_shared_memory() -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("softnic"))
        .collect();
    names.sort();
    names
}

#[test]
fn ctrl_c_ends_both_sides_at_once() {
    measure::need!(find("ib_send_bw"), "perftest");
    for program in ["ib_write_bw", "ib_send_bw"] {
        let fabric = Fabric::new(Layer::InfiniBand);
        let mut pair = long_pair(&fabric, program);
        // A terminal signals every process of the foreground group at once.
        pair.server.program.signal(Signal::SIGINT);
        pair.client.program.signal(Signal::SIGINT);
        let both = within(AT_ONCE, || {
            pair.server.program.exited().is_some() && pair.client.program.exited().is_some()
        });
        assert!(both, "{}", pair.account());
    }
}

#[test]
fn what_a_shell_starts_is_on_the_nic_too() {
    measure::need!(find("ibv_devinfo"), "ibverbs-utils");
    let fabric = Fabric::new(Layer::InfiniBand);
    let mut shell = fabric.start(&["sh", "-c", "ibv_devinfo && ibv_devinfo"]);
    let output = shell.program.succeed();
    assert_eq!(output.matches("mlx5_0").count(), 2, "{output}");
    let pids: Vec<u32> = shell.all_counters().iter().map(|line| line.pid()).collect();
    assert!(matches!(pids[..], [first, second] if first != second), "one line a process: {pids:?}");
}
