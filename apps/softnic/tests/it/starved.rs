//! Programs that lack what the NIC needs and a kernel's device does not: each is told in one line, and lives.

use crate::c_program::{compile, verbs_program};
use crate::fabric::{Fabric, Layer, launcher};
use crate::program::{DEADLINE, find, within};

/// Runs a command to its end; demands its exit status, and one line of the NIC's that holds the words.
fn told(command: &[&str], status: i32, words: &str) -> String {
    let mut started = Fabric::new(Layer::InfiniBand).start(command);
    let ended = started.program.wait(DEADLINE).unwrap_or_else(|why| panic!("{why}"));
    let output = started.program.output();
    assert_eq!(ended.code(), Some(status), "{command:?}: {}\n{output}", started.program.ending());
    let said: Vec<&str> = output.lines().filter(|line| line.starts_with("softnic")).collect();
    assert!(said.len() == 1 && said[0].contains(words), "{command:?}:\n{output}");
    output
}

#[test]
fn a_limit_of_file_sizes_is_named_and_ends_nothing_by_a_signal() {
    let program = measure::need!(verbs_program("open_device"), "C compiler and libibverbs-dev");
    let limited = ["sh", "-c", "ulimit -f 1000; exec \"$0\"", &program];
    let output = told(&limited, 1, "above this process's limit of file sizes, 512000 (ulimit -f)");
    assert!(output.contains("devices 1, opened 0"), "discovery goes on: {output}");
    let open = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::InfiniBand);
    let it = fabric.start(&[&open, "-1", "polling"]);
    assert!(within(DEADLINE, || it.program.output().contains("ready")), "{}", it.program.tail());
    let list = format!("ulimit -f 1000; exec {} ctl list --fabric {}", launcher().display(), fabric.name());
    let listed = std::process::Command::new("sh").args(["-c", &list]).output().expect("sh");
    let said = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.status.success() && said.contains(&it.program.pid().to_string()), "{listed:?}");
}

#[test]
fn a_program_that_closes_the_nics_descriptors_is_told_so() {
    let program = measure::need!(verbs_program("open_device"), "C compiler and libibverbs-dev");
    let output = told(&[&program, "again"], 1, "has closed the NIC's own descriptors");
    let opened = output.lines().filter(|line| line.starts_with("devices")).collect::<Vec<_>>();
    assert_eq!(opened, ["devices 1, opened 1, errno 0", "devices 1, opened 0, errno 2"]);
}

#[test]
fn a_refused_memfd_is_named() {
    let program = measure::need!(verbs_program("open_device"), "C compiler and libibverbs-dev");
    let refused = compile("refused", &[]).expect("compiled like the other").display().to_string();
    let memfd_create = nix::libc::SYS_memfd_create.to_string();
    let words = "the devices' folders cannot be opened: memfd_create: Operation not permitted";
    told(&[&refused, &memfd_create, &program], 1, words);
}

#[test]
fn too_few_descriptors_for_a_channel_are_named() {
    measure::need!(find("ibv_rc_pingpong"), "ibverbs-utils");
    let few = measure::need!(compile("few_descriptors", &[]), "C compiler").display().to_string();
    // The first limit leaves none for the client's own channel, the second none for the server's.
    for (limit, words) in [
        (10, "messages to it are lost: Too many open files (os error 24) (said once)"),
        (11, "messages from it are lost: Too many open files (os error 24)"),
    ] {
        let client = format!("*127.0.0.1*) exec \"$few\" {limit} \"$0\" \"$@\"");
        let ends = format!("few=$1; shift; case \"$*\" in {client};; *) exec \"$0\" \"$@\";; esac");
        let limited = ["sh", "-c", &ends, "ibv_rc_pingpong", &few];
        let mut pair = Fabric::new(Layer::InfiniBand).pair(&limited);
        let ended = pair.client.program.wait(DEADLINE).unwrap_or_else(|why| panic!("{why}"));
        let output = pair.client.program.output();
        assert!(!ended.success() && output.matches(words).count() == 1, "limit {limit}: {output}");
    }
}

#[test]
fn a_limit_of_the_address_space_is_named_when_a_channel_does_not_fit() {
    measure::need!(find("ibv_rc_pingpong"), "ibverbs-utils");
    let fabric = Fabric::new(Layer::InfiniBand);
    // A NIC that runs, and less room than a channel takes.
    let mut pair = fabric.pair_prepared(&["ibv_rc_pingpong"], |server| {
        let pid = server.program.pid().to_string();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.split_whitespace().next());
        let room = size.expect("proc(5) has it").parse::<u64>().expect("kB") + 1024;
        let limit = format!("--as={}", room << 10);
        let set = std::process::Command::new("prlimit").args(["--pid", &pid, &limit]).status();
        assert!(set.expect("util-linux").success());
    });
    let ended = pair.client.program.wait(DEADLINE).unwrap_or_else(|why| panic!("{why}"));
    let output = pair.server.program.output();
    let words = "Cannot allocate memory (os error 12); this process's memory is limited to";
    let said: Vec<&str> = output.lines().filter(|line| line.contains(words)).collect();
    assert!(!ended.success() && said.len() == 1 && said[0].contains("(ulimit -v)"), "{output}");
}

#[test]
fn a_peer_that_cannot_be_watched_is_named() {
    measure::need!(find("ibv_rc_pingpong"), "ibverbs-utils");
    let refused = measure::need!(compile("refused", &[]), "C compiler").display().to_string();
    let pidfd_open = nix::libc::SYS_pidfd_open.to_string();
    let mut pair = Fabric::new(Layer::InfiniBand).pair(&[&refused, &pidfd_open, "ibv_rc_pingpong"]);
    let ended = pair.client.program.wait(DEADLINE).unwrap_or_else(|why| panic!("{why}"));
    let output = pair.client.program.output();
    let words = format!("process {} of the fabric cannot be reached: pidfd_open", pair.server.program.pid());
    assert!(!ended.success() && output.matches(&words).count() == 1, "{output}");
    // What is known of a peer that does not answer.
    assert!(output.contains("such QP numbers, and cannot be watched: "), "{output}");
}
