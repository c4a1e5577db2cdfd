//! `softnic ctl` and running programs: what it lists, counts and leaves behind, and which it cannot ask.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use measure::need::is_full;
use serde_json::Value;
use soft_nic::control::{Request, THREAD_NAME, encode, socket_name};
use soft_nic::link::FabricView;

use crate::c_program::verbs_program;
use crate::counters::messages;
use crate::fabric::{Fabric, Layer, OnNic, Pair, launcher};
use crate::program::{Signal, find, within};

/// What a running program may need to get where a test wants it.
pub const SOON: Duration = Duration::from_secs(20);

/// Runs `softnic ctl`.
fn ctl(arguments: &[&str]) -> Output {
    Command::new(launcher()).arg("ctl").args(arguments).output().expect("the launcher starts")
}

/// The same; demands success and returns what it printed.
pub fn ctl_prints(arguments: &[&str]) -> String {
    let output = ctl(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "ctl {arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

/// Demands status 2 and one line with these words.
pub fn ctl_refuses(arguments: &[&str], words: &[&str]) {
    let output = ctl(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "ctl {arguments:?}: {said}");
    assert_eq!(said.lines().count(), 1, "ctl {arguments:?}: {said}");
    assert!(words.iter().all(|word| said.contains(word)), "ctl {arguments:?}: {words:?} not all in {said}");
}

/// Its process number as an argument.
pub fn pid_of(it: &OnNic) -> String {
    it.program.pid().to_string()
}

/// Every counter of a running NIC.
fn counters(it: &OnNic) -> Value {
    let text = ctl_prints(&["counters", &pid_of(it), "--json"]);
    let line: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    line["counters"].clone()
}

/// One counter of a running NIC.
pub fn count(it: &OnNic, name: &str) -> u64 {
    counters(it)[name].as_u64().unwrap_or_else(|| panic!("no counter {name}"))
}

/// Waits until a counter of a running NIC satisfies `enough`.
pub fn wait_for(it: &OnNic, name: &str, enough: impl Fn(u64) -> bool) {
    let reached = within(SOON, || enough(count(it, name)));
    assert!(reached, "{name} is {}\n{}", count(it, name), it.program.tail());
}

/// A client and a server that run. The test ends those that would run for a minute.
pub fn busy(fabric: &Fabric, command: &[&str]) -> Pair {
    let pair = fabric.pair(command);
    let under_way = || {
        // Of this fabric: on another, somebody may be stopped, and is waited for.
        let listed = ctl_prints(&["list", "--fabric", fabric.name()]);
        listed.lines().any(|line| line.split_whitespace().any(|word| word == pid_of(&pair.client)))
            && count(&pair.client, "completed_write") > 0
    };
    assert!(within(SOON, under_way), "{}", pair.client.program.tail());
    pair
}

#[test]
fn the_list_has_every_nic_of_a_fabric_with_its_devices_and_queues() {
    measure::need!(find("ib_write_bw"), "perftest");
    let fabric = Fabric::new(Layer::Roce).with_options(&["--devices", "2"]);
    let pair = busy(&fabric, &["ib_write_bw", "-F", "-D", "60", "-d", "mlx5_1", "-q", "3"]);
    let text = ctl_prints(&["list", "--json", "--fabric", fabric.name()]);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut pids: Vec<_> = lines.iter().map(|line| line["pid"].to_string()).collect();
    let mut expected = [pid_of(&pair.server), pid_of(&pair.client)];
    pids.sort();
    expected.sort();
    assert_eq!(pids, expected, "{text}");
    for line in &lines {
        assert_eq!(line["program"], "ib_write_bw");
        let qps: Vec<_> = [0, 1].map(|at| line["devices"][at]["qps"].as_u64()).into();
        assert_eq!(qps, [Some(0), Some(3)], "{line}");
        assert_eq!(
            (&line["devices"][1]["name"], &line["devices"][1]["port"]),
            (&"mlx5_1".into(), &"active".into())
        );
    }
    let table = ctl_prints(&["list", "--fabric", fabric.name()]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.contains("mlx5_0 (active, 0), mlx5_1 (active, 3)"), "{table}");
    drop(pair);
    assert_eq!(ctl_prints(&["list", "--json", "--fabric", fabric.name()]), "", "nobody is left");
}

#[test]
fn counters_of_a_running_nic_are_the_messages_asked_for_and_have_the_names_of_the_stats_line() {
    measure::need!(find("ib_write_bw"), "perftest");
    let layers = if is_full() { &Layer::BOTH[..] } else { &[Layer::Roce] };
    for &layer in layers {
        let fabric = Fabric::new(layer);
        let pair = busy(&fabric, &["ib_write_bw", "-F", "-n", "3000", "-s", "1000", "--wait_destroy=8"]);
        wait_for(&pair.client, "completed_write", |writes| writes == 3000);
        let live = counters(&pair.client);
        assert_eq!((&live["messages_sent"], &live["bytes_sent"]), (&3000.into(), &3_000_000.into()));
        assert_eq!(live["posted_write"], 3000);
        assert!(live["doorbells_taken"].as_u64() > Some(0), "{live}");
        assert_eq!(count(&pair.server, "messages_received"), 3000);
        let finished = pair.finish();
        // The launcher's library adds these two when it writes the line.
        let line: Vec<&str> = finished
            .client
            .counters
            .names()
            .filter(|name| !["nic_thread_ns", "pump_ns"].contains(name))
            .collect();
        let live: Vec<&String> = live.as_object().expect("an object").keys().collect();
        assert_eq!(live, line);
        assert_eq!(finished.client.counters.completed(), messages("write", 3000));
        assert!(finished.client.counters.trouble().is_empty(), "{:?}", finished.client.counters.trouble());
    }
}

#[test]
fn what_failed_is_explained_with_qp_and_wqe_and_by_the_peer() {
    let program = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::InfiniBand);
    let quiet = fabric.start(&[&program, "-1", "polling"]);
    assert!(within(SOON, || quiet.program.output().contains("ready")), "{}", quiet.program.tail());
    let said = ctl_prints(&["explain", &pid_of(&quiet)]);
    assert!(said.starts_with("nothing failed yet in leave_open"), "{said}");
    assert_eq!(ctl_prints(&["explain", &pid_of(&quiet), "--json"]), "");
    let it = fabric.start(&[&program, "-1", "failing"]);
    assert!(within(SOON, || it.program.output().contains("ready")), "{}", it.program.tail());
    let text = ctl_prints(&["explain", &pid_of(&it), "--json"]);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |kind: &str| {
        lines.iter().find(|line| line["kind"] == kind).unwrap_or_else(|| panic!("{kind}: {text}"))
    };
    let failed = of("remote_access");
    let is_flush = |line: &&Value| line["kind"] == "flush" && line["qp"] == failed["qp"];
    assert!(failed["wqe"] == 0 && lines.iter().any(|line| is_flush(&line)), "{text}");
    let words = |line: &Value, words: &[&str]| {
        let line = line.as_str().expect("a line");
        assert!(words.iter().all(|word| line.contains(word)), "{words:?} not all in {line}");
    };
    words(&failed["why"], &["WQE 0: RDMA WRITE of 4096 bytes at 0x", "with rkey 0x", "refused it"]);
    words(&failed["peer"], &[&pid_of(&it), "RDMA WRITE of 4096 bytes", "names 0x", "register more"]);
    let refused = ["REG_MR", "remote write or atomic needs local write"];
    let is_of = |line: &&Value| {
        let why = line["why"].as_str().unwrap_or_default();
        line["kind"] == "command" && refused.iter().all(|word| why.contains(word))
    };
    assert!(lines.iter().any(|line| is_of(&line)), "{text}");
    let shown = ctl_prints(&["explain", &pid_of(&it)]);
    assert!(shown.lines().any(|line| line.contains(", WQE 0: RDMA WRITE")), "{shown}");
    // One line of each kind on its stderr, and none of the command.
    let output = it.program.output();
    let said = output.lines().filter(|line| line.contains("said once; `softnic ctl explain"));
    assert_eq!(said.count(), 2, "refused, and its completion: {output}");
}

#[test]
fn counters_are_watched_until_the_process_ends() {
    let program = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::InfiniBand);
    let mut it = fabric.start(&[&program, "-1", "polling"]);
    assert!(within(SOON, || it.program.output().contains("ready")), "{}", it.program.tail());
    let watch = |options: &[&str]| {
        let mut watch = Command::new(launcher());
        watch.args(["ctl", "counters", &pid_of(&it), "--watch", "0.05"]).args(options);
        let mut watch = watch.stdout(Stdio::piped()).spawn().expect("the launcher starts");
        let lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
        (watch, lines.map(|line| line.expect("text")))
    };
    let (mut of_text, lines) = watch(&[]);
    let (head, mut looks) = (format!("(pid {}, ", pid_of(&it)), 0);
    let text: Vec<String> =
        lines.take_while(|line| (looks += i32::from(line.contains(&head)), looks < 3).1).collect();
    of_text.kill().expect("a child of ours");
    of_text.wait().expect("a child of ours");
    // Two looks, each with a blank line behind it.
    let looks: Vec<&[String]> = text.split(String::is_empty).collect();
    assert!(looks.len() == 3 && looks[..2].iter().all(|look| look[0].contains(&head)), "{text:?}");
    let (mut watch, lines) = watch(&["--json"]);
    let mut text = Vec::new();
    for line in lines {
        text.push(line);
        // However long a look takes on a busy machine: it goes on until the process ends.
        if text.len() == 3 {
            it.program.signal(Signal::SIGINT);
        }
    }
    assert!(watch.wait().expect("a child of ours").success());
    assert!(text.len() >= 3, "{text:?}");
    for line in &text {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(line["counters"]["completed_write"], 3, "{line}");
    }
    it.program.succeed();
}

#[test]
fn a_watch_without_a_nic_says_that_it_waits_and_prints_the_first_nic() {
    let program = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::InfiniBand);
    let mut watch = Command::new(launcher());
    watch.args(["ctl", "counters", "--all", "--fabric", fabric.name(), "--json", "--watch", "0.05"]);
    watch.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watch = watch.spawn().expect("the launcher starts");
    let (out, err) = (watch.stdout.take().expect("a pipe"), watch.stderr.take().expect("a pipe"));
    let (said, saying) = mpsc::channel();
    for (name, lines) in [("out", Box::new(out) as Box<dyn Read + Send>), ("err", Box::new(err))] {
        let said = said.clone();
        std::thread::spawn(move || {
            let lines = BufReader::new(lines).lines().map_while(Result::ok);
            lines.map(|line| (name, line)).all(|line| said.send(line).is_ok())
        });
    }
    let next = || saying.recv_timeout(SOON).expect("a line in time");
    assert_eq!(next(), ("err", "waiting for a NIC; Ctrl-C ends".to_owned()));
    let it = fabric.start(&[&program, "-1", "polling"]);
    assert!(within(SOON, || it.program.output().contains("ready")), "{}", it.program.tail());
    let (name, line) = next();
    assert!(name == "out" && line.contains(&format!("\"pid\":{}", pid_of(&it))), "{name}: {line}");
    watch.kill().expect("a child of ours");
    watch.wait().expect("a child of ours");
}

#[test]
fn who_cannot_be_asked_is_told_why() {
    let dead = {
        let mut child = Command::new("true").spawn().expect("true");
        child.wait().expect("a child of ours");
        child.id().to_string()
    };
    let own = std::process::id().to_string();
    ctl_refuses(&["counters", &dead], &[&dead, "there is no process"]);
    ctl_refuses(&["counters", &own], &[&own, "has no NIC"]);
    ctl_refuses(
        &["counters", "--all", "--fabric", "nobody-is-here"],
        &["no process", "nobody-is-here", "`softnic ctl list`"],
    );
    ctl_refuses(&["counters"], &["PID", "--all", "`softnic ctl counters --help`"]);
    ctl_refuses(&["counters", "x"], &["'x'", "`softnic ctl counters --help`"]);
    ctl_refuses(&["inject", "1", "drop"], &["--qp", "`softnic ctl inject drop --help`"]);
    ctl_refuses(&["counters", "1", "--all"], &["--all"]);
    ctl_refuses(&["counters", &own, "--watch", "0"], &["--watch", "0.01 to 3600"]);
    ctl_refuses(&["dance"], &["dance", "`softnic ctl --help`"]);
    ctl_refuses(&[], &["softnic ctl COMMAND"]);
}

#[test]
fn another_users_nic_is_not_asked() {
    let program = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::InfiniBand);
    let fabric = measure::need!(fabric.for_nobody(), "the right to become another user");
    let program = fabric.for_everybody(&program);
    let it = fabric.start(&[&program, "-1", "polling"]);
    assert!(within(SOON, || it.program.output().contains("ready")), "{}", it.program.tail());
    ctl_refuses(&["counters", &pid_of(&it)], &["is of user 65534"]);
    assert_eq!(ctl_prints(&["list", "--json", "--fabric", fabric.name()]), "");
}

#[test]
fn a_stopped_process_is_not_waited_for_and_garbage_harms_nobody() {
    let program = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::InfiniBand);
    let mut it = fabric.start(&[&program, "-1", "polling"]);
    assert!(within(SOON, || it.program.output().contains("ready")), "{}", it.program.tail());
    let pid = pid_of(&it);
    it.program.signal(Signal::SIGSTOP);
    let begun = Instant::now();
    ctl_refuses(&["counters", &pid], &["did not answer", "stopped?"]);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let mut all = Command::new(launcher());
    let all =
        all.args(["ctl", "counters", "--all", "--fabric", fabric.name()]).output().expect("the launcher");
    let said = String::from_utf8_lossy(&all.stderr);
    assert!(said.contains("did not answer"), "one that does not answer is named among all: {said}");
    it.program.signal(Signal::SIGCONT);
    assert_eq!(count(&it, "completed_write"), 3);

    let views = FabricView::all().expect("/proc");
    let view = views.iter().find(|view| view.name == fabric.name()).expect("the fabric");
    let member = view.members()[0];
    for (number, garbage) in
        [&b"\0\0\0\0"[..], b"GET / HTTP/1.1\r\n\r\n", &encode(&Request::Counters)[..16]].iter().enumerate()
    {
        let call = u64::from(std::process::id()) << 32 | 0xffff_0000 | number as u64;
        let listener = listen(&socket_name(call));
        // The NIC takes one call at a time, and drops one that comes while it talks: the caller calls again.
        let mut came = None;
        assert!(within(SOON, || {
            view.call(&member, call);
            came = listener.accept().ok();
            came.is_some()
        }));
        use std::io::{Read, Write};
        let mut stream = came.expect("the NIC calls back").0;
        stream.set_nonblocking(false).expect("a socket");
        stream.write_all(garbage).expect("the NIC reads");
        stream.set_read_timeout(Some(SOON)).expect("a time");
        let mut heard = Vec::new();
        let end = stream.read_to_end(&mut heard);
        assert!(end.is_ok() || !heard.is_empty(), "the NIC lets go: {end:?}");
    }
    assert_eq!(count(&it, "completed_write"), 3, "and answers a proper request");
    // No thread and no socket stay.
    let threads = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
        tasks.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default()).collect::<Vec<_>>()
    };
    assert!(within(SOON, || !threads().iter().any(|name| name.trim_end() == THREAD_NAME)), "{:?}", threads());
    let sockets = || {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
        let targets = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    };
    assert_eq!(sockets(), 0);
    it.program.signal(Signal::SIGINT);
    it.program.succeed();
}

/// Listens on an abstract name, as any process of this user may.
fn listen(name: &str) -> std::os::unix::net::UnixListener {
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).expect("a name");
    let listener = std::os::unix::net::UnixListener::bind_addr(&address).expect("a fresh name");
    listener.set_nonblocking(true).expect("a socket");
    listener
}

#[test]
fn a_killed_caller_and_a_killed_program_leave_nothing() {
    let program = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::InfiniBand);
    let mut it = fabric.start(&[&program, "-1", "polling"]);
    assert!(within(SOON, || it.program.output().contains("ready")), "{}", it.program.tail());
    let mut callers = Vec::new();
    // Killed somewhere in its conversation, at another point each time.
    for after in 0..20 {
        let mut caller = Command::new(launcher());
        let caller = caller.args(["ctl", "counters", &pid_of(&it)]).stdout(std::process::Stdio::null());
        let mut caller = caller.stderr(std::process::Stdio::null()).spawn().expect("the launcher starts");
        std::thread::sleep(Duration::from_micros(700 * after));
        let _ = caller.kill();
        caller.wait().expect("a child of ours");
        callers.push(caller.id());
    }
    assert_eq!(count(&it, "completed_write"), 3);
    it.program.signal(Signal::SIGKILL);
    assert!(within(SOON, || it.program.exited().is_some()));
    ctl_refuses(&["counters", &pid_of(&it)], &["no process"]);
    let names = fs::read_to_string("/proc/net/unix").expect("proc(5)");
    for caller in callers {
        let name = socket_name(u64::from(caller) << 32);
        let left: Vec<_> = names.lines().filter(|line| line.contains(&name[..name.len() - 8])).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
