//! `softnic ctl capture` of programs that talk over the wire.

use std::fs;
use std::process::{Command, Stdio};

use soft_nic::link::capture::pcapng::{BlockKind, first_block};

use crate::ctl::{SOON, busy, count, ctl_prints, ctl_refuses, pid_of};
use crate::fabric::{Fabric, Layer, launcher, scratch};
use crate::program::{find, within};

/// The kinds of all blocks of a file, which has nothing but whole ones.
fn blocks(bytes: &[u8]) -> Vec<BlockKind> {
    let (mut kinds, mut rest) = (Vec::new(), bytes);
    while let Some((kind, block)) = first_block(rest).expect("blocks") {
        kinds.push(kind);
        rest = &rest[block.len()..];
    }
    assert!(rest.is_empty(), "{} bytes of a block that is not whole", rest.len());
    kinds
}

fn packets(bytes: &[u8]) -> usize {
    blocks(bytes).into_iter().filter(|kind| *kind == BlockKind::Packet).count()
}

/// A fabric whose programs send packets, and perftest's options there: the GID with the IPv4 address.
fn on_the_wire() -> (Fabric, [&'static str; 2]) {
    (Fabric::new(Layer::Roce).with_options(&["--path", "wire"]), ["-x", "3"])
}

#[test]
fn so_many_packets_are_captured_of_a_program_that_runs_and_one_at_a_time_looks_on() {
    measure::need!(find("ib_write_bw"), "perftest");
    let (fabric, gid) = on_the_wire();
    let pair = busy(&fabric, &[&["ib_write_bw", "-F", "-D", "60", "-s", "4096"][..], &gid].concat());
    let pid = pid_of(&pair.client);
    let file = scratch("capture").join("packets.pcapng");
    let shown = file.display().to_string();
    assert_eq!(ctl_prints(&["capture", &pid, &shown, "--packets", "300"]), "300 packets\n");
    let kinds = blocks(&fs::read(&file).expect("a file"));
    assert_eq!(kinds.iter().filter(|kind| **kind == BlockKind::Packet).count(), 300);
    assert_eq!(kinds.last(), Some(&BlockKind::Statistics { dropped: 0 }));
    // Another looks on while we are refused; then it is killed, and we are not.
    let mut other = Command::new(launcher());
    let mut other = other.args(["ctl", "capture", &pid, "-"]).stdout(Stdio::piped()).spawn().expect("starts");
    let mut first = [0; 4];
    let stdout = other.stdout.as_mut().expect("a pipe");
    std::io::Read::read_exact(stdout, &mut first).expect("the beginning of a file");
    assert_eq!(first, [0x0a, 0x0d, 0x0d, 0x0a]);
    ctl_refuses(&["capture", &pid, &shown], &["captured by another already"]);
    other.kill().expect("a child of ours");
    other.wait().expect("a child of ours");
    let again = || {
        let mut once = Command::new(launcher());
        let once = once.args(["ctl", "capture", &pid, &shown, "--packets", "1"]);
        once.output().expect("the launcher starts").status.success()
    };
    assert!(within(SOON, again), "the capture of a killed reader has ended");
    // The directory is missing: said, and the capture is over at once.
    let nowhere = scratch("capture").join("none").join("x.pcapng").display().to_string();
    ctl_refuses(&["capture", &pid, &nowhere], &["creating", "none"]);
    assert!(within(SOON, again));
    assert_eq!(count(&pair.client, "ctl_changes"), 0, "looking on changes nothing");
}

#[test]
fn a_capture_goes_on_to_the_last_packet_of_a_program_that_ends() {
    measure::need!(find("ibv_rc_pingpong"), "ibverbs-utils");
    // With the delay, answers to repeated requests leave later than any other wait of an ending program.
    for (name, delay, rounds) in [("to-the-end", None, 500), ("to-the-late-end", Some("300ms"), 3)] {
        let (fabric, _) = on_the_wire();
        let file = scratch("capture").join(format!("{name}.pcapng"));
        let mut looking = None;
        let iterations = rounds.to_string();
        let command = ["ibv_rc_pingpong", "-g", "3", "-n", &iterations, "-s", "1000"];
        let pair = fabric.pair_prepared(&command, |server| {
            let pid = pid_of(server);
            if let Some(delay) = delay {
                ctl_prints(&["set", &pid, "--delay", delay]);
            }
            let mut capture = Command::new(launcher());
            let capture = capture.args(["ctl", "capture", &pid]).arg(&file).stdout(Stdio::piped());
            looking = Some(capture.spawn().expect("the launcher starts"));
            assert!(within(SOON, || file.exists()), "a capture that has begun has its file");
        });
        let finished = pair.finish();
        let output = looking.expect("started").wait_with_output().expect("a child of ours");
        assert!(output.status.success());
        let counters = &finished.server.counters;
        let passed = counters.value("wire_packets_sent") + counters.value("wire_packets_received");
        let captured = packets(&fs::read(&file).expect("a file")) as u64;
        assert_eq!(captured, passed, "{name}: every packet that the NIC counted");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{passed} packets\n"));
        // The messages there, and as many back, are the least.
        assert!(passed >= 2 * rounds, "{name}: {passed}");
    }
}
