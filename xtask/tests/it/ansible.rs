//! The playbooks of `ansible/` on a testbed's nodes, and figures 4, 6 and 7 measured between these.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use experiment::spec::{Extent, Spec};
use measure::need;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bed::{Bed, LIMIT, ProgramOutput, machine};
use crate::hosts::inventory;
use crate::testbed::NEEDS;

const PROGRAMS: [&str; 3] = ["softnic", "libsoftnic_preload.so", "generator"];

/// A playbook on a testbed.
fn playbook(bed: &Bed, playbook: &str, words: &[&str]) -> ProgramOutput {
    playbook_of(bed, "inventories/netns.yml", playbook, words)
}

/// A playbook on the hosts of an inventory: in its own folder, so that nothing of ansible's stays.
pub fn playbook_of(bed: &Bed, inventory: &str, playbook: &str, words: &[&str]) -> ProgramOutput {
    let ansible = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("ansible");
    let mut command = Command::new("ansible-playbook");
    command.current_dir(&ansible).args(["-i", inventory]).args(words).arg(playbook);
    command.args(["-e", &format!("testbed_dir={}", bed.dir.display())]);
    command.env("ANSIBLE_HOME", bed.dir.join("ansible"));
    ProgramOutput::of(command.envs([("LC_ALL", "C.UTF-8"), ("ANSIBLE_NOCOLOR", "1")]))
}

/// Tasks that changed something, of each node.
fn changed(said: &ProgramOutput) -> Vec<u32> {
    let counts = said.text.lines().filter(|line| line.starts_with("node") && line.contains("changed="));
    let count = |line: &str| line.split("changed=").nth(1)?.split(' ').next()?.parse().ok();
    counts.map(|line| count(line).unwrap()).collect()
}

/// Folder of the release builds.
fn release() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_xtask")).parent().unwrap().with_file_name("release")
}

/// Whether the release builds that a figure starts are there.
pub fn released() -> bool {
    let release = release();
    PROGRAMS.iter().all(|name| release.join(name).exists())
}

/// Figure 4 on hosts that ansible reaches, with these variables in its environment.
pub fn figure_4(place: &str, out: &Path, words: &[&str], variables: &[(&str, String)]) -> ProgramOutput {
    figure(LIMIT, ["4", place], out, words, variables)
}

/// A figure, by its number, at a place that ansible reaches, within this time.
fn figure(
    limit: Duration,
    [number, place]: [&str; 2],
    out: &Path,
    words: &[&str],
    variables: &[(&str, String)],
) -> ProgramOutput {
    let run = |more: &[&str]| {
        let mut figure = Command::new(env!("CARGO_BIN_EXE_xtask"));
        figure.envs(variables.iter().cloned());
        figure.args(["figure", number, "--smoke", "--where", place, "--no-install", "--out"]).arg(out);
        ProgramOutput::within(limit, figure.args(words).args(more))
    };
    let mut said = run(&[]);
    // On a busy machine a NIC's thread may get no core for half a second; its peer then gives up, as a card
    // does. A server that answers once in some seconds may have no request due. The run says how to go on.
    let is_of_load = |text: &str| {
        ["transport retry counter exceeded", "no request was due"].iter().any(|words| text.contains(words))
    };
    for _ in 0..4 {
        if said.ok || !is_of_load(&said.text) {
            break;
        }
        said.has(&["go on with: ", "--resume"]);
        let more = run(&["--resume"]);
        said = ProgramOutput { text: said.text + &more.text, ..more };
    }
    said
}

/// The whole points of a run; one that lacks a message stays among the results, and was measured again.
pub fn whole_points(out: &Path) -> String {
    let points = fs::read_to_string(out.join("results.jsonl")).unwrap();
    points
        .lines()
        .filter(|point| point.contains("\"content_ok\":true") && !point.contains("\"missing\":"))
        .fold(String::new(), |all, one| all + one + "\n")
}

/// Waits until a program on the second node listens on the receiver's port, or none does.
#[track_caller]
pub fn wait_for_port(bed: &Bed, is_taken: bool) {
    let listens = || !bed.on("node2", "ss -Hltn 'sport = :18515'").text.is_empty();
    let since = Instant::now();
    while listens() != is_taken {
        assert!(since.elapsed() < LIMIT, "port 18515 is taken: {}", !is_taken);
        sleep(Duration::from_millis(50));
    }
}

/// Nothing of the role `experiment` is left on the nodes: no folder, and no receiver.
#[track_caller]
fn assert_nothing_is_left(bed: &Bed) {
    for node in ["node1", "node2"] {
        assert_eq!(bed.on(node, "ls -d /run/doorbell-experiment 2>&-").text, "", "{node}");
    }
    wait_for_port(bed, false);
}

/// A folder of stand-ins for our programs.
pub fn programs(bed: &Bed, name: &str, text: &str) -> PathBuf {
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
fn a_host_whose_clock_is_wrong_or_that_does_not_answer_is_named_with_what_to_do() {
    need!(machine(), testbed, NEEDS);
    let bed = Bed::up("clock");
    bed.stand_ins("node2", &[("date", "exec /bin/date -d \"+2 minutes\" \"$@\"")]);
    let said = playbook(&bed, "site.yml", &["-e", "doorbell_copy=false"]);
    assert!(!said.ok, "{}", said.text);
    said.has(&["The clock of node2 differs by more than 60 s: set it, then run this again."]);
    // An address of the nodes' network that nothing has: no packet is answered.
    let said = playbook(&bed, "site.yml", &["-e", "ansible_host=10.77.0.9", "--limit", "node2"]);
    assert!(!said.ok, "{}", said.text);
    said.has(&["node2", "UNREACHABLE", "10.77.0.9"]);
    // ssh's words, unless ansible was still sending when ssh ended: then ansible's own.
    let words = ["10.77.0.9 port 2222", "Data could not be sent to remote host"];
    assert!(words.iter().any(|words| said.text.contains(words)), "{}", said.text);
}

#[test]
fn a_host_without_the_libraries_or_the_gpu_that_it_needs_is_refused_by_name() {
    need!(machine(), testbed, NEEDS);
    let bed = Bed::up("lacks");
    bed.stand_ins("node1", &[("nvidia-smi", "echo \"NVIDIA H200, 580.1\"")]);
    bed.stand_ins("node2", &[("nvidia-smi", "echo no driver; exit 9")]);
    let run = |words: &[&str]| playbook(&bed, "site.yml", &[&["-e", "doorbell_copy=false"], words].concat());
    let said = run(&["-e", "cuda_required=true"]);
    assert!(!said.ok, "{}", said.text);
    said.has(&["node2 has no GPU that nvidia-smi lists", "NVIDIA H200, 580.1"]);
    assert!(!said.text.contains("node1 has no GPU"), "{}", said.text);
    // The list of libraries of a host without rdma-core.
    let none =
        "mkdir -p /tmp/none/etc; /sbin/ldconfig -r /tmp/none; cp /tmp/none/etc/ld.so.cache /etc/ld.so.cache";
    assert!(bed.on("node2", none).ok);
    let said = run(&[]);
    assert!(!said.ok, "{}", said.text);
    said.has(&["node2 lacks libibverbs1 or ibverbs-providers", "rdma_core_install=true"]);
    assert!(!said.text.contains("node1 lacks"), "{}", said.text);
}

#[test]
fn the_playbooks_pass_ansible_lint() {
    // Of the long run, which fetches it: each version has rules of its own.
    let wheels = std::env::var("DOORBELL_ANSIBLE_LINT");
    let wheels = need!(wheels, ansible_lint, "ansible-lint, which `cargo xtask test --full` fetches");
    let ansible = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("ansible");
    // A copy: it leaves a folder of its own beside the playbooks.
    let copy = std::env::temp_dir().join(format!("xtask-lint-{}", std::process::id()));
    let cache = copy.join("cache");
    assert!(ProgramOutput::of(Command::new("cp").arg("-r").args([&ansible, &copy])).ok);
    let mut command = Command::new(Path::new(&wheels).join("bin/ansible-lint"));
    command.current_dir(&copy).args(["--offline", "--profile", "production", "--nocolor"]);
    command.env("PATH", format!("{wheels}/bin:/usr/sbin:/usr/bin:/sbin:/bin")).env("PYTHONPATH", &wheels);
    command.env("XDG_CACHE_HOME", &cache).env("ANSIBLE_HOME", &cache).env("LC_ALL", "C.UTF-8");
    let said = ProgramOutput::of(&mut command);
    let _ = fs::remove_dir_all(copy);
    assert!(said.ok, "{}", said.text);
    said.has(&["Passed: 0 failure(s), 0 warning(s)"]);
}

#[test]
fn a_failed_transfer_names_its_host_keeps_the_logs_and_restores_what_was_tuned() {
    need!(machine(), testbed, NEEDS);
    let bed = Bed::up("failed");
    let smi = r#"case $1 in --query*) echo "0000:17:00.0, Disabled, 1593, 1095, 2619, 1980";; *) echo "smi $*" >> /root/calls;; esac"#;
    let modprobe = r#"echo "modprobe $*" >> /root/calls"#;
    for node in ["node1", "node2"] {
        bed.stand_ins(node, &[("nvidia-smi", smi), ("modprobe", modprobe)]);
        let line = "mkdir -p /opt/doorbell/bin; cd /opt/doorbell/bin; touch libsoftnic_preload.so generator; \
                    printf '#!/bin/sh\ncat /sys/class/net/eth0/mtu >&2; echo the port is taken >&2; exit 2\n' > softnic; \
                    chmod +x softnic";
        assert!(bed.on(node, line).ok);
    }
    let out = bed.dir.join("out");
    let out_is = format!("experiment_out={}", out.display());
    let tuned = ["-e", "tune=true", "-e", "host_mtu=4100", "-e", "host_gpu=true", "-e", &out_is];
    let said = playbook(&bed, "figure4.yml", &tuned);
    assert!(!said.ok, "{}", said.text);
    said.has(&["The receiver on node2 does not listen", "the port is taken"]);
    let log = fs::read_to_string(out.join("node2/receiver.log")).unwrap();
    assert_eq!(log, "4100\nthe port is taken\n", "it ran on a node that was not tuned");
    assert_nothing_is_left(&bed);
    for node in ["node1", "node2"] {
        assert_eq!(
            bed.on(node, "cat /sys/class/net/eth0/mtu; ls /tmp /run/doorbell-tuned 2>&-").text,
            "4200\n/tmp:\n"
        );
        // A stand-in for a GPU: it gets back what was read before, and no module stays that was not there.
        let gpu = "smi --id=0000:17:00.0";
        let calls = [
            format!("{gpu} -pm 1\n{gpu} -ac 2619,1980\nmodprobe nvidia-peermem\n"),
            format!("{gpu} -ac 1593,1095\n{gpu} -pm 0\nmodprobe -r nvidia-peermem\n"),
        ];
        assert_eq!(bed.on(node, "cat /root/calls; ls /run/doorbell-tuned.* 2>&-").text, calls.concat());
    }
}

/// A sysfs of two processors: governor, idle states of which one was disabled before, and an interface's MTU.
const SYSFS: &str = "mkdir -p /root/sys/class/net/eth0 && cd /root/sys && echo 1500 > class/net/eth0/mtu
for cpu in 0 1; do
    at=devices/system/cpu/cpu$cpu; mkdir -p $at/cpufreq; echo powersave > $at/cpufreq/scaling_governor
    for state in 0 1 2 3 10; do mkdir -p $at/cpuidle/state$state; echo 0 > $at/cpuidle/state$state/disable; done
done
echo 1 > $at/cpuidle/state3/disable; touch /root/made";
/// What lies there, a line a file.
const LOOKED: &str = "cd /root/sys; grep -r . | sort";

#[test]
fn governor_and_idle_states_are_written_for_a_tuned_run_alone_and_get_back_what_they_were() {
    need!(machine(), testbed, NEEDS);
    let bed = Bed::up("tuned");
    // The role's own table, of another sysfs than the machine's.
    let table = "host_tuned: [\"/sys/class/net/{{ host_interface }}/mtu {{ host_mtu }}\"]";
    let mine = inventory(&bed, "mine.yml", &[(table, "host_sys: /root/sys")]);
    let softnic = format!("#!/bin/sh\n{{ {LOOKED}; }} >&2; exit 2\n");
    let install = format!(
        "{SYSFS}\nmkdir -p /opt/doorbell/bin; cd /opt/doorbell/bin; touch libsoftnic_preload.so generator; \
         printf '%s' '{softnic}' > softnic; chmod +x softnic"
    );
    let nodes = ["node1", "node2"];
    nodes.iter().for_each(|node| assert!(bed.on(node, &install).ok));
    let looked = |node: &str| bed.on(node, LOOKED).text;
    let before = looked("node1");
    assert_eq!(before.lines().count(), 13, "{before}");
    let tuned = before.replace("powersave", "performance").replace("mtu:1500", "mtu:4200");
    let tuned = ["state2", "state3", "state10"].iter().fold(tuned, |tuned, state| {
        tuned.replace(&format!("{state}/disable:0"), &format!("{state}/disable:1"))
    });
    let out = bed.dir.join("out");
    let out_is = format!("experiment_out={}", out.display());
    let run = |book: &str, words: &[&str]| {
        let said = playbook_of(&bed, &mine, book, &[&["-e", &*out_is], words].concat());
        // What the receiver saw, if it was started.
        let log = fs::read_to_string(out.join("node2/receiver.log")).unwrap_or_default();
        let _ = fs::remove_dir_all(&out);
        (said, log)
    };
    let is_as_before = || {
        for node in nodes {
            assert_eq!(looked(node), before, "{node}");
            assert!(!bed.on(node, "test -e /run/doorbell-tuned").ok, "{node}");
        }
    };
    run("site.yml", &["-e", "doorbell_copy=false"]).0.has(&[
        "governor: powersave",
        "idle-disabled: 0 1",
        "mtu: 1500",
    ]);
    assert_eq!(run("figure4.yml", &[]).1, before, "a run that is not tuned");
    for node in nodes {
        let written = bed.on(node, "find /root/sys -newer /root/made");
        assert!(written.ok && written.text.is_empty(), "written without tune: {}", written.text);
    }
    // The transfer fails, and all is as it was.
    let (said, log) = run("figure4.yml", &["-e", "tune=true"]);
    assert_eq!((said.ok, log), (false, tuned), "{}", said.text);
    is_as_before();
    // A governor that one processor does not take: no transfer begins, and the others get back their old one.
    let file = "/root/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor";
    let takes_numbers = "/proc/sys/net/ipv4/ip_default_ttl";
    assert!(bed.on("node2", &format!("rm {file}; ln -s {takes_numbers} {file}")).ok);
    let (said, log) = run("figure4.yml", &["-e", "tune=true"]);
    assert_eq!((said.ok, &*log), (false, ""), "{}", said.text);
    said.has(&["node2", &format!("{file} does not take performance")]);
    assert!(bed.on("node2", &format!("rm {file}; echo powersave > {file}")).ok);
    is_as_before();
    // One value that cannot be written back keeps no other one from it, and stays on its host.
    let left = format!("{takes_numbers} powersave\n/root/sys/class/net/eth0/mtu 9000\n");
    assert!(bed.on("node2", &format!("printf '%s' '{left}' > /run/doorbell-tuned")).ok);
    let said = run("restore.yml", &[]).0;
    said.has(&[
        "node2",
        &format!("not written back: {takes_numbers}; the old values stay in /run/doorbell-tuned"),
    ]);
    let now = bed.on("node2", "cat /root/sys/class/net/eth0/mtu /run/doorbell-tuned").text;
    assert_eq!((said.ok, now), (false, format!("9000\n{left}")));
}

#[test]
fn the_playbook_measures_figure_4_and_a_port_that_is_taken_is_named() {
    need!(machine(), testbed, NEEDS);
    need!(released(), softnic, "release builds");
    let bed = Bed::up("book");
    for node in ["node1", "node2"] {
        // Not by a path on the node, whose /tmp is its own: this folder may lie there.
        let (from, ssh) = (release(), bed.dir.join("ssh"));
        let (from, ssh, names) = (from.display(), ssh.display(), PROGRAMS.join(" "));
        let to = "/opt/doorbell/bin";
        let line = format!("tar -C '{from}' -c {names} | '{ssh}' {node} 'mkdir -p {to} && tar -C {to} -x'");
        let copied = ProgramOutput::of(Command::new("sh").args(["-c", &line]));
        assert!(copied.ok, "{node}: {}", copied.text);
    }
    let out = bed.dir.join("out");
    let out_is = format!("experiment_out={}", out.display());
    let words = ["-e", &out_is, "-e", "{\"experiment_payloads\": [4096]}"];
    let holds = "import socket, time; s = socket.socket(); s.bind((\"10.77.0.2\", 18515)); s.listen(); time.sleep(600)";
    let mut holder = Command::new(bed.dir.join("ssh"));
    holder.args(["-tt", "-o", "ControlPath=none", "node2", &format!("python3 -c '{holds}'")]);
    // It ends with the node, if not before.
    let mut holder = holder.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    wait_for_port(&bed, true);
    let said = playbook(&bed, "figure4.yml", &words);
    assert!(!said.ok, "{}", said.text);
    said.has(&[
        "The receiver on node2 does not listen",
        "10.77.0.2:18515",
        "Address already in use",
        "-e experiment_port=",
    ]);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_nothing_is_left(&bed);
    // The sender fails while the receiver listens.
    let said = playbook(&bed, "figure4.yml", &[&words[..], &["-e", "experiment_options=--no-such"]].concat());
    assert!(!said.ok && fs::read_to_string(out.join("node2/receiver.jsonl")).unwrap().contains("listening"));
    said.has(&["--no-such"]);
    assert_nothing_is_left(&bed);
    let said = playbook(&bed, "figure4.yml", &words);
    assert!(said.ok, "{}", said.text);
    assert_nothing_is_left(&bed);
    let results = fs::read_to_string(out.join("node1/results.jsonl")).unwrap();
    for (word, count) in [("\"content_ok\":true", 2), ("\"payload_bytes\":4096", 2)] {
        assert_eq!(results.matches(word).count(), count, "{word}: {results}");
    }
    assert!(fs::read_to_string(out.join("node2/receiver.jsonl")).unwrap().contains("listening"));
}

#[test]
fn the_playbook_measures_what_a_smoke_run_of_figure_4_measures() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let defaults = fs::read_to_string(root.join("ansible/roles/experiment/defaults/main.yml")).unwrap();
    let line = |name: &str| {
        defaults.lines().find_map(|line| line.strip_prefix(&format!("experiment_{name}: "))).unwrap()
    };
    let spec = Spec::read(&root.join("experiments/fig4")).unwrap();
    let mut grid = spec.grid(Extent::Smoke);
    grid.without_gpu();
    assert_eq!(line("payloads"), format!("{:?}", grid.xs()));
    assert_eq!(line("posters"), format!("[{}]", grid.series.join(", ")));
    let options: Vec<String> = spec.options["generator"]
        .as_table()
        .unwrap()
        .iter()
        .map(|(name, value)| format!("--{name} {}", value.as_str().map_or(value.to_string(), str::to_owned)))
        .collect();
    let missing: Vec<&String> = options.iter().filter(|option| !line("options").contains(*option)).collect();
    assert!(options.len() == 5 && missing.is_empty(), "{missing:?}");
}

#[test]
fn a_signal_during_a_run_on_nodes_removes_them_and_says_how_to_go_on() {
    need!(machine(), testbed, NEEDS);
    need!(released(), softnic, "release builds");
    let out = std::env::temp_dir().join(format!("tb-cut-{}", std::process::id()));
    let bed = Bed { dir: out.join("testbed") };
    let mut figure = Command::new(env!("CARGO_BIN_EXE_xtask"));
    figure.args(["figure", "4", "--smoke", "--where", "netns", "--no-install", "--out"]).arg(&out);
    let run = figure.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let since = Instant::now();
    while !fs::read_to_string(out.join("results.jsonl")).is_ok_and(|points| points.contains('\n')) {
        if since.elapsed() > LIMIT {
            let _ = kill(Pid::from_raw(run.id().try_into().unwrap()), Signal::SIGTERM);
            panic!("no point was measured: {:?}", run.wait_with_output());
        }
        sleep(Duration::from_millis(5));
    }
    bed.has_namespaces();
    kill(Pid::from_raw(run.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let ended = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    for words in ["stopped by a signal; finished points are in ", "--resume --out ", "--where netns"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(bed.left(), [""; 0]);
    assert!(fs::read_to_string(out.join("results.jsonl")).unwrap().ends_with('\n'));
    fs::remove_dir_all(out).unwrap();
}

#[test]
fn figures_4_and_5_are_measured_between_two_nodes_that_are_gone_afterwards() {
    need!(machine(), testbed, NEEDS);
    need!(released(), softnic, "release builds");
    let bed = Bed::new("fig4");
    let out = bed.dir.with_extension("out");
    let said = figure_4("netns", &out, &[], &[]);
    assert!(said.ok, "{}", said.text);
    said.has(&["left out: gpu-", "4 points in", "nothing is left", "label: emulated"]);
    let points = whole_points(&out);
    let words = [("\"series\":\"cpu-shim\"", 2), ("\"path\":\"wire\"", 4), ("\"content_ok\":true", 4)];
    for (word, count) in words {
        assert_eq!(points.matches(word).count(), count, "{word}: {points}");
    }
    points.lines().for_each(|point| has_samples_of_both_nodes(point, true));
    assert!(!out.join("testbed").exists());
    // The posting code is compared once the points, and the folders for their counters, are gone.
    fs::remove_dir_all(&out).unwrap();
    let said = figure(LIMIT, ["5", "netns"], &out, &[], &[]);
    assert!(said.ok, "{}", said.text);
    said.has(&["shim ÷ libmlx5", "nothing is left"]);
    // Another figure, and a run that would be recorded, are refused before anything is made.
    for (words, said) in [
        ("figure 1 --where netns", "figures 4 to 7"),
        ("figure 4 --where netns --record", "--record"),
        ("figure 7 --where netns --nic mlx5_0", "leave --nic out"),
        ("figure 4 --where local --tune", "--tune is of hosts that ansible reaches (--where)"),
    ] {
        let refused = ProgramOutput::of(
            Command::new(env!("CARGO_BIN_EXE_xtask")).args(words.split(' ')).arg("--out").arg(&out),
        );
        assert_eq!(refused.code, Some(2), "{refused:?}");
        refused.has(&["--where", said]);
    }
    fs::remove_dir_all(out).unwrap();
}

/// Longest that a figure of a server may take, whose programs are built first.
const WITH_BUILD: Duration = Duration::from_secs(30 * 60);

/// Of the long run alone: the profiler, which makes the reference, is built in the release profile first.
#[test]
fn figures_6_and_7_are_served_between_two_nodes_that_are_gone_afterwards() {
    need!(measure::need::is_full(), full, "`cargo xtask test --full`");
    need!(machine(), testbed, NEEDS);
    need!(released(), softnic, "release builds");
    for (number, count) in [("6", "8 points in"), ("7", "1 point in")] {
        let out = std::env::temp_dir().join(format!("tb-fig{number}-{}", std::process::id()));
        let bed = Bed { dir: out.join("testbed") };
        let said = figure(WITH_BUILD, [number, "netns"], &out, &["--machine", "twin"], &[]);
        assert!(said.ok, "{}", said.text);
        said.has(&["between node1 and node2", count, "nothing is left", "label: emulated"]);
        assert_eq!(bed.left(), [""; 0]);
        let points = fs::read_to_string(out.join("results.jsonl")).unwrap();
        for point in points.lines().filter(|point| !point.contains("\"missing\":")) {
            let point: serde_json::Value = serde_json::from_str(point).unwrap();
            // Counted answers were compared and right; else the point is missing. Figure 6 counts by load.
            let (detail, values) = (&point["detail"], &point["values"]);
            let loads = detail.as_object().unwrap().values().map(|load| &load["client"]);
            let all = loads.chain([detail]).filter_map(|client| client["answered"].as_f64());
            let answered: f64 = all.sum();
            let has = |name: &str| values.get(name).is_some();
            let of_7 = (has("serving_s"), has("thread softnic-nic"), has("woken_ms"));
            assert!(answered > 0.0 && of_7 == (number == "7", number == "7", false), "{point}");
            let provenance = &point["provenance"];
            assert_eq!(provenance["nic_options"]["path"], "wire");
            let names = ["node1", "node2"].map(serde_json::Value::from);
            assert_eq!([0, 1].map(|at| provenance["hosts"][at]["name"].clone()), names);
            // A request and its answer are a message each at least, and each of both ends counts them.
            let counts = &point["samples"]["counts"];
            for name in ["nic.messages_sent", "nic.messages_received"] {
                assert!(counts[name].as_f64() >= Some(2.0 * answered), "{name}, {answered}: {counts}");
            }
        }
        fs::remove_dir_all(out).unwrap();
    }
}

/// A point has the counters of its sender and its receiver, and the use of processors of their machines.
#[track_caller]
pub fn has_samples_of_both_nodes(point: &str, is_here: bool) {
    let point: serde_json::Value = serde_json::from_str(point).unwrap();
    let posted = point["detail"]["posted"].as_f64().unwrap();
    let samples = &point["samples"];
    for name in ["nic.messages_sent", "nic.messages_received"] {
        assert!(
            posted > 0.0 && samples["counts"][name].as_f64() >= Some(posted),
            "{name}, {posted}: {samples}"
        );
    }
    let used = |name: &str| samples["gauges"][name][0].as_f64() > Some(0.0);
    let why = samples["absent"]["programs_cores"].as_str();
    assert_eq!(
        (used("programs_cores"), used("cpu_cores"), why.is_none()),
        (is_here, is_here, is_here),
        "{samples}"
    );
    // Nodes that are hosts of an inventory are read as those are.
    assert_eq!(["sender.cpu_cores", "receiver.cpu_cores"].map(used), [!is_here; 2], "{samples}");
}
