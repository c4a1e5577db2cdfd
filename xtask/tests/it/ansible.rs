//! The playbooks of `ansible/` on a testbed's nodes, and figure 4 measured through both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use measure::need;

use crate::bed::{Bed, Said, machine};
use crate::testbed::NEEDS;

const PROGRAMS: [&str; 3] = ["softnic", "libsoftnic_preload.so", "generator"];

/// A playbook on a testbed: in its own folder, so that nothing of ansible's stays.
fn playbook(bed: &Bed, playbook: &str, words: &[&str]) -> Said {
    let ansible = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("ansible");
    let mut command = Command::new("ansible-playbook");
    command.current_dir(&ansible).args(["-i", "inventories/netns.yml"]).args(words).arg(playbook);
    command.args(["-e", &format!("testbed_dir={}", bed.dir.display())]);
    command.env("ANSIBLE_HOME", bed.dir.join("ansible"));
    Said::of(command.envs([("LC_ALL", "C.UTF-8"), ("ANSIBLE_NOCOLOR", "1")]))
}

/// Tasks that changed something, of each node.
fn changed(said: &Said) -> Vec<u32> {
    let counts = said.text.lines().filter(|line| line.starts_with("node") && line.contains("changed="));
    let count = |line: &str| line.split("changed=").nth(1)?.split(' ').next()?.parse().ok();
    counts.map(|line| count(line).unwrap()).collect()
}

/// A folder of stand-ins for our programs.
fn programs(bed: &Bed, name: &str, text: &str) -> PathBuf {
    let folder = bed.dir.join(name);
    fs::create_dir(&folder).unwrap();
    PROGRAMS.iter().for_each(|name| fs::write(folder.join(name), text).unwrap());
    folder
}

#[test]
fn both_nodes_are_set_up_once_and_a_second_run_or_a_check_changes_nothing() {
    need!(machine(), testbed, NEEDS);
    let bed = Bed::up("site");
    let ours = format!("doorbell_programs={}", programs(&bed, "ours", "one\n").display());
    let run = |words: &[&str]| {
        let said = playbook(&bed, "site.yml", &[&["-e", &ours], words].concat());
        assert!(said.ok, "{}", said.text);
        said
    };
    let check = run(&["--check"]);
    assert!(changed(&check).iter().all(|changed| *changed > 0), "{}", check.text);
    assert!(!bed.on("node1", "ls /opt/doorbell").ok, "--check made something");
    let first = run(&[]);
    first.has(&["mtu: 4200", "governor: "]);
    assert!(changed(&first).iter().all(|changed| *changed > 0), "{}", first.text);
    for node in ["node1", "node2"] {
        assert_eq!(bed.on(node, "cat /opt/doorbell/bin/*").text, "one\n".repeat(3));
        assert!(bed.on(node, "test -x /opt/doorbell/bin/generator").ok);
    }
    assert!(!Path::new("/opt/doorbell").exists(), "/opt is the machine's own");
    assert_eq!([changed(&run(&[])), changed(&run(&["--check"]))], [[0, 0], [0, 0]]);
}

#[test]
fn nodes_with_different_programs_are_refused_by_name() {
    need!(machine(), testbed, NEEDS);
    let bed = Bed::up("versions");
    let [one, other] = ["one", "other"].map(|name| programs(&bed, name, name));
    // The inventory of a user whose second host has another build.
    let inventory = bed.dir.join("programs.yml");
    let host =
        |name: &str, folder: &Path| format!("      {name}: {{ doorbell_programs: {} }}\n", folder.display());
    let hosts = [host("node1", &one), host("node2", &other)].concat();
    fs::write(&inventory, format!("all:\n  children:\n    nodes:\n     hosts:\n{hosts}")).unwrap();
    let inventory = inventory.display().to_string();
    let words =
        ["node1 and node2 have different programs", "7692c3ad3540", "d9298a10d1b0", "doorbell_programs"];
    for book in ["site.yml", "figure4.yml"] {
        let said = playbook(&bed, book, &["-i", &inventory]);
        assert!(!said.ok, "{}", said.text);
        said.has(&words);
        assert!(!said.text.contains("Start the receiver"), "{}", said.text);
    }
}

#[test]
fn a_failed_transfer_names_its_host_keeps_the_logs_and_restores_what_was_tuned() {
    need!(machine(), testbed, NEEDS);
    let bed = Bed::up("failed");
    for node in ["node1", "node2"] {
        let line = "mkdir -p /opt/doorbell/bin; cd /opt/doorbell/bin; touch libsoftnic_preload.so generator; \
                    printf '#!/bin/sh\ncat /sys/class/net/eth0/mtu >&2; echo the port is taken >&2; exit 2\n' > softnic; \
                    chmod +x softnic";
        assert!(bed.on(node, line).ok);
    }
    let out = bed.dir.join("out");
    let out_is = format!("experiment_out={}", out.display());
    let said = playbook(&bed, "figure4.yml", &["-e", "tune=true", "-e", "host_mtu=4100", "-e", &out_is]);
    assert!(!said.ok, "{}", said.text);
    said.has(&["The receiver on node2 does not listen", "the port is taken"]);
    let log = fs::read_to_string(out.join("node2/receiver.log")).unwrap();
    assert_eq!(log, "4100\nthe port is taken\n", "it ran on a node that was not tuned");
    for node in ["node1", "node2"] {
        assert_eq!(
            bed.on(node, "cat /sys/class/net/eth0/mtu; ls /tmp /run/doorbell-tuned 2>&-").text,
            "4200\n/tmp:\n"
        );
    }
}

#[test]
fn figure_4_is_measured_between_two_nodes_that_are_gone_afterwards() {
    need!(machine(), testbed, NEEDS);
    let xtask = Path::new(env!("CARGO_BIN_EXE_xtask"));
    let release = xtask.parent().unwrap().with_file_name("release");
    need!(release.join("generator").exists() && release.join("softnic").exists(), softnic, "release builds");
    let bed = Bed::new("fig4");
    let out = bed.dir.with_extension("out");
    let mut figure = Command::new(xtask);
    figure.args(["figure", "4", "--smoke", "--where", "netns", "--no-install", "--out"]).arg(&out);
    let said = Said::of(&mut figure);
    assert!(said.ok, "{}", said.text);
    said.has(&["4 points in", "nothing is left", "label: emulated"]);
    let points = fs::read_to_string(out.join("results.jsonl")).unwrap();
    let words = [("\"series\":\"cpu-shim\"", 2), ("\"path\":\"wire\"", 4), ("\"content_ok\":true", 4)];
    for (word, count) in words {
        assert_eq!(points.matches(word).count(), count, "{word}: {points}");
    }
    assert!(!out.join("testbed").exists());
    // Another figure, and a run that would be recorded, are refused before anything is made.
    for (words, said) in
        [("figure 1 --where netns", "figures 4 and 5"), ("figure 4 --where netns --record", "--record")]
    {
        let refused = Said::of(Command::new(xtask).args(words.split(' ')).arg("--out").arg(&out));
        assert_eq!(refused.code, Some(2), "{refused:?}");
        refused.has(&["--where netns", said]);
    }
    fs::remove_dir_all(out).unwrap();
}
