//! `testbed up`, `status` and `down`, from every state that a cut run leaves.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use measure::need;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bed::{Bed, LIMIT, ProgramOutput, machine, say_if_beyond};

pub const NEEDS: &str = "root, iproute2, openssh-server, openssh-client and ansible-core";

fn send(process: u32, signal: Signal) {
    kill(Pid::from_raw(process.try_into().unwrap()), signal).unwrap();
}

#[test]
fn up_makes_two_nodes_with_files_of_their_own_and_down_leaves_nothing() {
    need!(machine(), testbed, NEEDS);
    let bed = Bed::new("round");
    assert_eq!(bed.testbed("status").code, Some(1));
    let up = bed.testbed("up");
    up.has(&["up in", "log in:", "remove:"]);
    let seconds = up.text.split("up in ").nth(1).and_then(|rest| rest.split(' ').next());
    say_if_beyond(15.0, seconds.unwrap().parse().unwrap(), "testbed up");
    bed.has_namespaces();
    bed.testbed("up").has(&["already up"]);
    let status = bed.testbed("status");
    assert!(status.ok, "{status:?}");
    status.has(&["testbed: up", "node1  10.77.0.1", "node2  10.77.0.2"]);

    let own = format!("doorbell-testbed-{}", std::process::id());
    for (node, other, address) in [("node1", "node2", "10.77.0.1"), ("node2", "node1", "10.77.0.2")] {
        assert_eq!(bed.on(node, "hostname").text, format!("{node}\n"));
        assert_eq!(bed.on(node, "cat /etc/hostname").text, format!("{node}\n"));
        bed.on(node, "ip -br addr show eth0").has(&[address]);
        bed.on(node, "cat /sys/class/net/eth0/mtu").has(&["4200"]);
        for folder in ["/etc", "/tmp", "/opt", "/run", "/root", "/dev/shm"] {
            let file = format!("{folder}/{own}");
            assert!(bed.on(node, &format!("echo {node} > {file}")).ok, "{node}: {file}");
            assert!(!Path::new(&file).exists(), "{file} of {node} is on this machine");
            assert!(!bed.on(other, &format!("ls {file}")).ok, "{file} of {node} is on {other}");
            assert!(bed.on(node, &format!("rm {file}")).ok, "{node}: {file}");
        }
    }
    // A host key that is not the node's is not taken.
    let known = bed.dir.join("known_hosts");
    let other =
        fs::read_to_string(&known).unwrap().replace("10.77.0.2", "x").replace("10.77.0.1", "10.77.0.2");
    fs::write(&known, other).unwrap();
    let options = ["-o", "ControlPath=none", "node2", "true"];
    let refused = ProgramOutput::of(Command::new(bed.dir.join("ssh")).args(options));
    assert!(!refused.ok, "{refused:?}");
    refused.has(&["Host key verification failed"]);

    let down = bed.testbed("down");
    assert!(down.ok, "{down:?}");
    down.has(&["nothing is left"]);
    assert_eq!(bed.left(), [""; 0]);
    let again = bed.testbed("down");
    assert!(again.ok, "{again:?}");
    again.has(&["there is none"]);
}

#[test]
fn down_removes_what_an_up_left_that_was_killed_at_any_moment() {
    need!(machine(), testbed, NEEDS);
    for after_ms in [30, 80, 150, 300] {
        let bed = Bed::new(&format!("half{after_ms}"));
        let mut up = bed.start("up");
        sleep(Duration::from_millis(after_ms));
        send(up.id(), Signal::SIGKILL);
        up.wait().unwrap();
        if bed.dir.join("ssh").exists() {
            // A supervisor that was started goes on, and may finish meanwhile.
            let up = bed.testbed("up");
            match up.code {
                Some(0) => up.has(&["already up"]),
                _ => up.has(&["a part of a testbed", "testbed down"]),
            }
        }
        let down = bed.testbed("down");
        assert!(down.ok, "{after_ms} ms: {down:?}");
        assert_eq!(bed.left(), [""; 0], "{after_ms} ms");
    }
}

#[test]
fn down_ends_logins_and_sshds_whose_supervisor_was_killed() {
    need!(machine(), testbed, NEEDS);
    let bed = Bed::up("killed");
    bed.has_namespaces();
    let mut login = Command::new(bed.dir.join("ssh"));
    let mut login = login.args(["-o", "ControlPath=none", "node1", "echo in; exec sleep 600"]);
    login = login.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    let mut login = login.spawn().unwrap();
    let mut said = [0; 3];
    std::io::Read::read_exact(login.stdout.as_mut().unwrap(), &mut said).unwrap();
    send(bed.supervisor(), Signal::SIGKILL);
    let since = Instant::now();
    while bed.testbed("status").ok {
        assert!(since.elapsed() < LIMIT, "its end is not seen");
        sleep(Duration::from_millis(10));
    }
    bed.testbed("status").has(&["not whole", "supervisor none"]);
    let down = bed.testbed("down");
    assert!(down.ok, "{down:?}");
    assert_eq!(bed.left(), [""; 0]);
    login.wait().unwrap();
}

#[test]
fn a_signal_during_up_removes_what_was_made() {
    need!(machine(), testbed, NEEDS);
    let bed = Bed::new("signal");
    let up = bed.start("up");
    let since = Instant::now();
    while !bed.dir.join("supervisor.log").exists() {
        assert!(since.elapsed() < LIMIT, "no supervisor was started");
        sleep(Duration::from_millis(5));
    }
    bed.has_namespaces();
    send(up.id(), Signal::SIGTERM);
    let ended = up.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.ends_with("stopped by a signal\n"), "{said}");
    assert_eq!(bed.left(), [""; 0]);
}

#[test]
fn a_disk_without_room_is_named_with_what_to_do_and_nothing_half_written_stays() {
    need!(machine(), testbed, NEEDS);
    let disk = std::env::temp_dir().join(format!("tb-full-{}", std::process::id()));
    fs::create_dir(&disk).unwrap();
    let bed = Bed { dir: disk.join("bed") };
    let report = disk.join("report");
    let (up, xtask) = (bed.command("up"), env!("CARGO_BIN_EXE_xtask"));
    let mut draws = Command::new(xtask);
    draws.args(["report", "--out"]).arg(&report);
    // In a mount namespace of its own: the disk goes with its processes.
    let line = "mount -t tmpfs -o size=$1 tmpfs $2 && shift 2 && { \"$@\"; code=$?; } && ls -A $0 $0/report; exit $code";
    for (command, size, words) in [
        (&up, "12k", "no room for keys and logs in "),
        (&draws, "64k", "not all of it was written; make room in "),
    ] {
        let mut full = Command::new("unshare");
        full.args(["-m", "sh", "-c", line]).arg(&disk).arg(size).arg(&disk);
        let said = ProgramOutput::of(full.arg(command.get_program()).args(command.get_args()));
        assert_eq!(said.code, Some(1), "{said:?}");
        said.has(&[words, "No space left on device", "give another --"]);
        let is_half = |line: &&str| {
            ["bed", "index.html"].contains(line) || line.contains(".svg.") || line.contains(".csv.")
        };
        assert_eq!(said.text.lines().filter(is_half).count(), 0, "{said:?}");
    }
    assert_eq!(bed.left(), [""; 0]);
    fs::remove_dir(disk).unwrap();
}

#[test]
fn a_process_without_the_right_is_told_which_and_what_to_do() {
    need!(machine(), testbed, NEEDS);
    let bed = Bed::new("right");
    let up = bed.command("up");
    for (lost, name) in [("-sys_admin", "CAP_SYS_ADMIN"), ("-net_admin", "CAP_NET_ADMIN")] {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", lost, "--inh-caps", lost]).arg(up.get_program()).args(up.get_args());
        let said = ProgramOutput::of(&mut command);
        assert_eq!(said.code, Some(2), "{said:?}");
        said.has(&[&format!("lacks {name}"), "root", "--where local"]);
        assert_eq!(bed.left(), [""; 0]);
    }
}
