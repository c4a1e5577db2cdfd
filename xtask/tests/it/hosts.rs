//! Figure 4 between the two hosts of an inventory, which stay: nodes of a testbed in their place.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use measure::need;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ansible::{figure_4, has_samples_of_both_nodes, programs, released, wait_for_port, whole_points};
use crate::bed::{Bed, LIMIT, ProgramOutput, machine};
use crate::testbed::NEEDS;

/// The inventory of a testbed's nodes as a file of a user's, with changes.
pub fn inventory(bed: &Bed, name: &str, changes: &[(&str, &str)]) -> String {
    let dir = format!("testbed_dir: {}", bed.dir.display());
    let own = ("testbed_dir: \"{{ inventory_dir }}/../../target/testbed\"", &*dir);
    with_changes(bed, "netns.yml", name, &[&[own], changes].concat())
}

/// One of our inventories as a file of a user's, with changes.
fn with_changes(bed: &Bed, ours: &str, name: &str, changes: &[(&str, &str)]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("ansible/inventories");
    let mut text = fs::read_to_string(folder.join(ours)).unwrap();
    for (from, to) in changes {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text = text.replace(from, to);
    }
    let file = bed.dir.join(name);
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// An inventory that tunes its hosts' interfaces to this MTU.
const MTU_4300: (&str, &str) =
    ("    host_interface: eth0\n", "    host_interface: eth0\n    host_mtu: 4300\n");

/// The MTU of both nodes, and the file of old values where it is still there.
fn tuned_mtu(bed: &Bed) -> [String; 2] {
    ["node1", "node2"]
        .map(|node| bed.on(node, "cat /sys/class/net/eth0/mtu; ls /run/doorbell-tuned 2>&-").text)
}

/// The example for two real hosts, with nodes in their place. Left out: a card, installed packages, and what
/// nodes share with this machine.
fn two_hosts(bed: &Bed) -> String {
    let file = with_changes(
        bed,
        "two-hosts.yml",
        "mine.yml",
        &[
            ("experiment_device: mlx5_0", "experiment_device: \"\"\n    ansible_ssh_transfer_method: piped"),
            ("rdma_core_install: true", "rdma_core_install: false"),
            (
                "host_interface: ens1f0np0",
                "host_interface: eth0\n    host_mtu: 4300\n    host_gpu: false\n    host_tuned: [\"/sys/class/net/eth0/mtu 4300\"]",
            ),
            ("experiment_address: 192.0.2.1", "experiment_address: 10.77.0.1"),
            ("experiment_address: 192.0.2.2", "experiment_address: 10.77.0.2"),
        ],
    );
    // Where a user's ~/.ssh/config leads their names to.
    let leads = format!(
        "#!/bin/sh\nfor word; do case $word in node?.example.org) word=${{word%%.*}} ;; esac; shift; set -- \"$@\" \"$word\"; done\n\
         PATH=${{PATH#*:}} exec {} \"$@\"\n",
        bed.dir.join("ssh").display()
    );
    fs::create_dir(bed.dir.join("bin")).unwrap();
    let ssh = bed.dir.join("bin/ssh");
    fs::write(&ssh, leads).unwrap();
    assert!(ProgramOutput::of(Command::new("chmod").arg("+x").arg(ssh)).ok);
    // There is no password to ask for.
    let sudo = "while case $1 in -u) shift ;; -*) ;; *) false ;; esac; do shift; done; echo \"$*\" >> /root/by-sudo; exec \"$@\"";
    ["node1", "node2"].iter().for_each(|node| bed.stand_ins(node, &[("sudo", sudo)]));
    file
}

#[test]
fn figure_4_is_measured_between_the_two_hosts_of_the_example_which_stay() {
    need!(machine(), testbed, NEEDS);
    need!(released(), softnic, "release builds");
    let bed = Bed::up("hosts");
    let out = bed.dir.join("out");
    // What the hosts' MTU is while points are measured.
    let seen = format!(
        "{} node2 cat /sys/class/net/eth0/mtu >> {}/seen; echo a,1",
        bed.dir.join("ssh").display(),
        bed.dir.display()
    );
    let place = two_hosts(&bed);
    let path = format!("{}:{}", bed.dir.join("bin").display(), std::env::var("PATH").unwrap());
    let variables = [("PATH", path), ("ANSIBLE_HOME", bed.dir.join("ansible").display().to_string())];
    let said = figure_4(&place, &out, &["--tune", "--counters-hook", &seen], &variables);
    assert!(said.ok, "{}", said.text);
    let seen = fs::read_to_string(bed.dir.join("seen")).unwrap();
    assert!(seen.lines().count() > 4 && seen.lines().all(|mtu| mtu == "4300"), "{seen}");
    assert_eq!(tuned_mtu(&bed), ["4200\n"; 2]);
    let names = ["node1.example.org", "node2.example.org"];
    said.has(&[&format!("between {} and {}", names[0], names[1]), "4 points in", "label: emulated"]);
    let points = whole_points(&out);
    let settings = names.map(|name| format!("{name}: eth0/mtu 4300")).join("; ");
    let of_both = [
        "\"name\":\"node1.example.org\"",
        "\"name\":\"node2.example.org\"",
        "\"content_ok\":true",
        "\"path\":\"wire\"",
        &format!("\"host_settings\":\"{settings}\""),
    ];
    for word in of_both {
        assert_eq!(points.matches(word).count(), 4, "{word}: {points}");
    }
    points.lines().for_each(|point| has_samples_of_both_nodes(point, false));
    // The receiver, which serves until it is stopped, is gone, and so are the counters; the nodes are not.
    wait_for_port(&bed, false);
    for node in ["node1", "node2"] {
        let since = Instant::now();
        while !bed.on(node, "ls /tmp").text.is_empty() {
            assert!(since.elapsed() < LIMIT, "{:?}", bed.on(node, "ls /tmp"));
            sleep(Duration::from_millis(50));
        }
        bed.on(node, "cat /root/by-sudo").has(&["BECOME-SUCCESS", "/opt/doorbell/bin/generator"]);
    }
    assert_eq!(bed.on("node2", "hostname").text, "node2\n");
}

/// Programs whose transfer ends by no means of its own; each leaves its process id on its node.
const ENDLESS: &str = r#"#!/bin/sh
case $(basename $0)$* in
softnicrun*) until [ $1 = -- ]; do shift; done; shift; exec "$@" ;;
generatorprobe*) echo '{"kind":"probe","devices":[{"name":"mlx5_0"}]}' ;;
generator*) echo $$ > /tmp/endless; echo '{"kind":"listening"}'; exec sleep 600 ;;
esac
"#;

#[test]
fn programs_on_the_hosts_end_when_the_command_is_killed() {
    need!(machine(), testbed, NEEDS);
    need!(released(), softnic, "release builds");
    let bed = Bed::up("ends");
    let folder = programs(&bed, "endless", ENDLESS).display().to_string();
    let with = |address: &str| format!("{address}\n          doorbell_programs: {folder}");
    let [one, two] = ["10.77.0.1", "10.77.0.2"];
    let place = inventory(&bed, "mine.yml", &[(one, &with(one)), (two, &with(two)), MTU_4300]);
    // A kill leaves the hosts tuned, with their old values; the next run restores these first.
    for (signal, mtu) in [(Signal::SIGKILL, "4300\n/run/doorbell-tuned\n"), (Signal::SIGTERM, "4200\n")] {
        let out = bed.dir.join(signal.as_str());
        let mut figure = Command::new(env!("CARGO_BIN_EXE_xtask"));
        figure
            .args(["figure", "4", "--smoke", "--where", &place, "--tune", "--no-install", "--out"])
            .arg(&out);
        let mut run =
            figure.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let runs = |node| bed.on(node, "kill -0 $(cat /tmp/endless)").ok;
        let since = Instant::now();
        // A check logs in to both nodes, and the playbooks run first for many seconds.
        while !["node1", "node2"].map(runs).iter().all(|runs| *runs) && since.elapsed() < LIMIT {
            sleep(Duration::from_millis(500));
        }
        let both_ran = ["node1", "node2"].map(runs);
        kill(Pid::from_raw(run.id().try_into().unwrap()), signal).unwrap();
        run.wait().unwrap();
        assert_eq!(both_ran, [true; 2], "no transfer began; see {}", out.display());
        for node in ["node1", "node2"] {
            let since = Instant::now();
            while runs(node) {
                assert!(since.elapsed() < LIMIT, "{signal}: the program on {node} lives on");
                sleep(Duration::from_millis(50));
            }
            assert!(bed.on(node, "rm /tmp/endless").ok);
        }
        assert_eq!(tuned_mtu(&bed), [mtu; 2], "{signal}");
    }
}

/// A generator without a NIC: ten packets a point, counted in the sysfs of the host that sends or receives.
const COUNTS: &str = r#"#!/usr/bin/python3
import json, socket, sys
def count(name):
    file = "/root/sys/class/infiniband/mlx5_0/ports/1/counters/" + name
    packets = int(open(file).read()) + 10
    open(file, "w").write(f"{packets}\n")
def say(kind, **fields):
    print(json.dumps({"kind": kind, **fields}), flush=True)
at = ("10.77.0.2", 18515)
if "probe" in sys.argv:
    say("probe", devices=[{"name": "mlx5_0"}])
elif "--listen" in sys.argv:
    server = socket.create_server(at)
    say("listening")
    while True:
        sender, _ = server.accept()
        count("port_rcv_packets")
        sender.close()
else:
    count("port_xmit_packets")
    socket.create_connection(at).recv(1)
    counts = {name: 10 for name in ["posted", "completed", "received", "verified"]}
    rates = {name: 1 for name in ["msgs_per_s", "payload_gbps", "wire_gbps", "post_ns"]}
    say("run", window=64, batch=32, torn=0, lost=0, content_ok=True, interrupted=False, **counts, **rates)
"#;

#[test]
fn a_cards_counters_are_read_on_the_host_that_has_it() {
    need!(machine(), testbed, NEEDS);
    need!(released(), softnic, "release builds");
    let bed = Bed::up("card");
    let card = "at=/root/sys/class/infiniband/mlx5_0; mkdir -p $at/device $at/ports/1/counters; cd $at
        ln -s ../../../../bus/pci/drivers/mlx5_core device/driver
        for name in port_xmit_packets port_rcv_packets; do echo 5 > ports/1/counters/$name; done
        at=/root/sys/devices/system/cpu/cpu0/cpufreq; mkdir -p $at; echo 2000000 > $at/scaling_cur_freq";
    for node in ["node1", "node2"] {
        assert!(bed.on(node, &format!("{card}; echo {node} > node_guid")).ok);
    }
    let folder = programs(&bed, "counts", COUNTS).display().to_string();
    let device =
        format!("experiment_device: mlx5_0\n    host_sys: /root/sys\n    doorbell_programs: {folder}");
    let place = inventory(&bed, "mine.yml", &[("experiment_device: \"\"", &device)]);
    let out = bed.dir.join("out");
    let said = figure_4(&place, &out, &[], &[]);
    assert!(said.ok, "{}", said.text);
    let points = fs::read_to_string(out.join("results.jsonl")).unwrap();
    assert_eq!(points.lines().count(), 4, "{points}");
    for point in points.lines() {
        let point: serde_json::Value = serde_json::from_str(point).unwrap();
        let counts = serde_json::json!({ "nic.sender.port_xmit_packets": 10.0, "nic.receiver.port_rcv_packets": 10.0 });
        assert_eq!(point["samples"]["counts"], counts, "{point}");
        let mhz = &point["samples"]["gauges"]["receiver.cpu_mhz"];
        assert_eq!(mhz, &serde_json::json!([2000.0, 2000.0, 2000.0]), "{point}");
    }
}

#[test]
fn a_host_that_does_not_answer_and_an_inventory_of_other_hosts_are_named() {
    need!(machine(), testbed, NEEDS);
    need!(released(), softnic, "release builds");
    let bed = Bed::up("no-host");
    let out = bed.dir.join("out");
    let gone =
        ("experiment_address: 10.77.0.2", "experiment_address: 10.77.0.2\n          ansible_host: 10.77.0.9");
    let one = ("experiment_address: 10.77.0.2", "other: 1");
    for (name, change, words) in [
        ("gone.yml", gone, &["site.yml: node2: ", "10.77.0.9", "out/logs/site.log"][..]),
        ("one.yml", one, &["one.yml: node2 has no experiment_address", "two-hosts.yml"]),
        (
            "group.yml",
            ("    nodes:", "    others:"),
            &["group.yml: there is no group `nodes`", "two-hosts.yml"],
        ),
    ] {
        let said = figure_4(&inventory(&bed, name, &[change]), &out, &[], &[]);
        assert!(!said.ok, "{said:?}");
        said.has(words);
    }
    let none = figure_4("no/such.yml", &out, &[], &[]);
    none.has(&["--where no/such.yml: No such file", "two-hosts.yml"]);
    assert_eq!(none.code, Some(2));
    assert!(!out.join("results.jsonl").exists());
}
