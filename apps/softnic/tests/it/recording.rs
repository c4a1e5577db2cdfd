//! `softnic run --record`, `softnic replay` and `softnic trace` on unmodified programs.

// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::counters::Counters;
use crate::fabric::{Fabric, Layer, launcher, scratch};
use crate::program::find;

fn softnic(arguments: &[&str]) -> Output {
    Command::new(launcher()).args(arguments).output().expect("softnic starts")
}

/// Replays a recording: packets, completions and the hash.
fn replayed(file: &Path) -> (u64, u64, String) {
    let output = softnic(&["replay", file.to_str().unwrap()]);
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{complained}");
    let (_, said) = said.trim_end().rsplit_once(": ").expect("the file's name");
    let words: Vec<&str> = said.split([' ', ',']).collect();
    let [packets, "packets", "and", completions, "completions", "in", _, "steps", "", "hash", hash, ..] =
        words[..]
    else {
        panic!("{said}");
    };
    (packets.parse().unwrap(), completions.parse().unwrap(), hash.to_owned())
}

/// Messages of each queue pair in a [`lossy_run`].
const MESSAGES: usize = 2000;

/// A recorded `ib_write_bw` run over a lossy wire: file and counters of each side, the server's first.
fn lossy_run(name: &str, queue_pairs: usize) -> [(PathBuf, Counters); 2] {
    let folder = scratch(name);
    let [of_server, of_client] = ["server.rec", "client.rec"].map(|file| folder.join(file));
    let fabric = Fabric::new(Layer::Roce).with_options(&["--path", "wire", "--loss", "0.01"]);
    let clients = fabric.neighbour().with_options(&["--record", of_client.to_str().unwrap()]);
    let servers = fabric.with_options(&["--record", of_server.to_str().unwrap()]);
    let [messages, queue_pairs] = [MESSAGES, queue_pairs].map(|count| count.to_string());
    let command = ["ib_write_bw", "-F", "-u", "18", "-s", "4096", "-n", &messages, "-q", &queue_pairs];
    let finished = servers.pair_across(&clients, &command).finish_on_distribution();
    [(of_server, finished.server.counters), (of_client, finished.client.counters)]
}

#[test]
fn a_lossy_run_replays_with_equal_hashes() {
    measure::need!(find("ib_write_bw"), "perftest");
    let sides = lossy_run("recording-replay", 1);
    for (file, counters) in &sides {
        let (packets, completions, hash) = replayed(file);
        assert_eq!(replayed(file), (packets, completions, hash), "the second replay of {}", file.display());
        // The link's other packets are the connection manager's, which this program does not use.
        assert_eq!(packets, counters.value("wire_packets_sent"), "{}", file.display());
    }
    let [(_, server), (client_file, client)] = &sides;
    let lost = server.value("injected_lost_replies") + client.value("injected_lost_requests");
    assert!(lost > 0, "packets were lost");
    assert!(client.value("retransmissions") > 0, "they were sent again");
    assert!(replayed(client_file).1 > 0, "completions");
}

#[test]
fn a_trace_has_a_track_for_each_queue_pair_where_slices_nest_and_times_rise() {
    measure::need!(find("ib_write_bw"), "perftest");
    let [_, (file, _)] = lossy_run("recording-trace", 2);
    let out = file.with_file_name("trace.json");
    let output = softnic(&["trace", file.to_str().unwrap(), "--perfetto", out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let (mut last, mut open, mut named) = (0, BTreeMap::<u64, Vec<u64>>::new(), BTreeSet::new());
    let mut messages = BTreeMap::<u64, (u64, String)>::new();
    let mut kinds = BTreeMap::<(u64, String), usize>::new();
    for event in events {
        let ph = event["ph"].as_str().expect("a phase");
        let tid = event["tid"].as_u64();
        if ph == "M" {
            let Some(tid) = tid else { continue };
            assert_eq!(event["args"]["name"], format!("QP {tid:#x}"));
            assert!(named.insert(tid), "QP {tid:#x} has one track");
            continue;
        }
        let tid = tid.filter(|tid| named.contains(tid)).expect("a track that was named before");
        let begin = (event["ts"].as_f64().expect("a time") * 1e3).round() as u64;
        assert!(begin >= last, "{event}: after {last} ns");
        last = begin;
        let open = open.entry(tid).or_default();
        open.retain(|end| *end > begin);
        match ph {
            "X" => {
                let end = begin + (event["dur"].as_f64().expect("a length") * 1e3).round() as u64;
                assert!(open.iter().all(|outer| end <= *outer), "{event} ends after what it is in");
                let name = event["name"].as_str().expect("a name").split(' ').next().unwrap();
                assert_eq!(open.is_empty(), name == "round", "{event}: what happens is in a round");
                open.push(end);
                *kinds.entry((tid, name.to_owned())).or_default() += 1;
            }
            "s" | "t" | "f" => {
                assert!(open.len() == 2, "{event} is in a slice of a round");
                let id = event["id"].as_u64().expect("a message");
                let (track, phases) = messages.entry(id).or_insert((tid, String::new()));
                assert_eq!(*track, tid, "{event}: a message is of one queue pair");
                phases.push_str(ph);
            }
            other => panic!("a phase of {other}: {event}"),
        }
    }
    assert_eq!(named.len(), 2, "two queue pairs: {named:?}");
    for tid in named {
        let count = |kind: &str| kinds.get(&(tid, kind.to_owned())).copied().unwrap_or_default();
        let flows = messages.values().filter(|(track, _)| *track == tid).count();
        assert_eq!((count("WQE"), flows), (MESSAGES, MESSAGES), "QP {tid:#x}");
        let all = ["round", "doorbell", "send", "receive", "CQE"];
        assert!(all.iter().all(|kind| count(kind) > 0), "QP {tid:#x}: {kinds:?}");
    }
    for (message, (_, phases)) in &messages {
        let flow = phases.trim_end_matches('f');
        assert!(phases.len() - flow.len() <= 1, "message {message} ends once: {phases}");
        assert!(
            flow.starts_with('s') && flow.len() > 1 && !flow[1..].contains('s'),
            "message {message}: {phases}"
        );
    }
    assert!(messages.values().any(|(_, phases)| phases.ends_with('f')), "CQEs end messages");
}

/// Changes the digest at the end of a recording, with the checksum of the last block that fits.
fn change_digest(bytes: &mut [u8]) {
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..][..8].try_into().unwrap());
    let (mut block, mut next) = (0, 40 + word(bytes, 16) as usize);
    while next < bytes.len() {
        block = next;
        next += 16 + 8 * (word(bytes, block) >> 32) as usize;
    }
    // The file ends with the bytes of the digest, and padding behind them.
    bytes[next - 8] ^= 1;
    let words = (block + 16..next).step_by(8).map(|at| word(bytes, at));
    let sum = words.fold(1, |sum: u64, word| sum.rotate_left(5).wrapping_add(word));
    bytes[block + 8..][..8].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn a_changed_recording_is_a_difference_and_a_broken_one_is_refused_in_one_line() {
    measure::need!(find("ib_write_bw"), "perftest");
    let [_, (file, _)] = lossy_run("recording-broken", 1);
    let whole = fs::read(&file).unwrap();
    let broken = file.with_file_name("broken.rec");
    let mut changed = whole.clone();
    change_digest(&mut changed);
    fs::write(&broken, changed).unwrap();
    let out = broken.with_extension("json");
    let (changed, out) = (broken.to_str().unwrap(), out.to_str().unwrap());
    for arguments in [&["replay", changed][..], &["trace", changed, "--perfetto", out]] {
        let output = softnic(arguments);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{complained}");
        assert!(
            complained.contains("differs in step ")
                && complained.contains("expected what was recorded (digest "),
            "{complained}"
        );
        assert_eq!(complained.lines().count(), 1, "{complained}");
    }
    for (name, bytes, words) in [
        // In its last block: what one flush wrote is read whole or not at all.
        ("cut off", &whole[..whole.len() - 8], "cut off at byte"),
        ("foreign", b"#!/bin/sh".as_slice(), "is no recording"),
        ("empty", b"", "is no recording"),
    ] {
        fs::write(&broken, bytes).unwrap();
        let out = broken.with_extension("json");
        let (file, out) = (broken.to_str().unwrap(), out.to_str().unwrap());
        for arguments in [&["replay", file][..], &["trace", file, "--perfetto", out]] {
            let output = softnic(arguments);
            let complained = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{name}: {complained}");
            assert!(complained.contains(words) && complained.lines().count() == 1, "{name}: {complained}");
        }
    }
    // The trace of the part before the cut is there, and whole.
    let trace = fs::read_to_string(broken.with_extension("json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).expect("JSON");
    assert!(trace["traceEvents"].as_array().expect("events").len() > 100);
    // The recording is not overwritten, also not by another name.
    let link = file.with_file_name("link.rec");
    let _ = fs::remove_file(&link);
    fs::hard_link(&file, &link).unwrap();
    let output = softnic(&["trace", file.to_str().unwrap(), "--perfetto", link.to_str().unwrap()]);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && complained.contains("is the recording itself"),
        "{complained}"
    );
    assert!(fs::read(&file).unwrap() == whole, "the recording is as it was");
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_program() {
    let fabric = Fabric::new(Layer::Roce).with_options(&["--record", "/dev/full"]);
    let mut program = fabric.start(&["ibv_devinfo"]).program;
    let output = program.succeed();
    let lines: Vec<_> = output.lines().filter(|line| line.contains("recording /dev/full")).collect();
    let [line] = lines[..] else { panic!("{output}") };
    assert!(line.contains("No space left on device") && line.contains("the program goes on"), "{line}");
}
