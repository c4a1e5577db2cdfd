//! A process's NIC asked by callers, good ones and bad ones.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mlx5_device::Span;
use mlx5_device::faults::{Injection, InjectionKind};
use serde::de::DeserializeOwned;

use super::*;
use crate::config::Config;
use crate::link::{FabricMember, FabricView};
use crate::os::testing::become_user;
use crate::os::unix_stream::Listener;
use crate::runtime::Process;
use crate::sysfs::Machine;

/// Longest wait for what a NIC does at once, or after its time-out of a second.
const PATIENCE: Duration = Duration::from_secs(20);

/// A NIC of this process on a fabric of its own, and where it sits.
struct Running {
    process: Process,
    view: FabricView,
    member: FabricMember,
}

impl Running {
    fn start(devices: u8) -> Running {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let fabric = format!("control-{}-{number}", std::process::id());
        let config = Config { fabric: fabric.clone(), devices, ..Config::default() };
        let machine = Machine { processors: 1, interface: "lo".into(), interface_index: 1 };
        let process = Process::start(config, machine, |_| ()).unwrap();
        let view = FabricView::all().unwrap().into_iter().find(|view| view.name == fabric).unwrap();
        let member = view.members()[0];
        Running { process, view, member }
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, CallError> {
        call(&self.view, &self.member, request).map(|(answer, _)| answer)
    }

    /// How many ports its NIC says that it has.
    fn ports(&self) -> usize {
        self.ask::<Vec<PortStatus>>(&Request::Status).unwrap().len()
    }

    /// Calls as a caller that says `bytes`, and returns what it is told before the NIC goes away.
    fn say(&self, number: u64, bytes: &[u8]) -> String {
        self.say_at(&Listener::bind(&socket_name(number)).unwrap(), number, bytes)
    }

    /// The same, with the socket that the NIC is to call.
    fn say_at(&self, listener: &Listener, number: u64, bytes: &[u8]) -> String {
        let begun = Instant::now();
        let (stream, peer) = loop {
            self.view.call(&self.member, number);
            if let Some(came) = listener.accept(Duration::from_millis(20)).unwrap() {
                break came;
            }
            assert!(begun.elapsed() < PATIENCE, "nobody calls back");
        };
        assert_eq!(peer.pid, std::process::id());
        let until = Instant::now() + PATIENCE;
        let _ = stream.send(bytes, until);
        let (mut heard, mut byte) = (Vec::new(), [0]);
        let end = loop {
            match stream.receive(&mut byte, until) {
                Ok(()) => heard.push(byte[0]),
                Err(error) => break error.kind(),
            }
        };
        assert_ne!(end, io::ErrorKind::TimedOut, "the NIC holds on to a caller");
        String::from_utf8_lossy(&heard).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.end();
    }
}

/// A socket's number: unique among processes that run these tests, and none that [`call`] counts from 1.
fn unique(number: u64) -> u64 {
    u64::from(std::process::id()) << 32 | 1 << 31 | number
}

fn threads_that_talk() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let name =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.map(name).filter(|name| name.trim_end() == THREAD_NAME).count()
}

#[test]
fn a_nic_says_what_it_has_and_counts_by_the_names_of_the_stats_line() {
    let nic = Running::start(2);
    let ports: Vec<PortStatus> = nic.ask(&Request::Status).unwrap();
    let port = |name: &str| PortStatus { name: name.to_owned(), is_up: true, qps: 0, delay: Span(0) };
    assert_eq!(ports, [port("mlx5_0"), port("mlx5_1")]);
    let asked: Vec<(String, u64)> = nic.ask(&Request::Counters).unwrap();
    let report = nic.process.end().unwrap();
    let names = |name: &str| name.to_owned();
    // Those of each port stand behind, with the port's name in front.
    let (by_port, whole): (Vec<String>, Vec<String>) =
        asked.into_iter().map(|(name, _)| name).partition(|name| name.contains('.'));
    assert_eq!(whole, report.counters.iter().map(|(name, _)| names(name)).collect::<Vec<_>>());
    let of_port = ["messages_sent", "wire_bytes_sent", "requests_received", "dropped_port_down"];
    let ports = ["mlx5_0", "mlx5_1"].iter().flat_map(|port| of_port.map(|what| format!("{port}.{what}")));
    assert_eq!(by_port, ports.collect::<Vec<_>>());
}

#[test]
fn bad_callers_are_told_so_or_left_alone_and_the_nic_goes_on() {
    let nic = Running::start(1);
    let mut header = encode(&Request::Status);
    header[8] = 77;
    let late = Request::Inject(Injection { qpn: 64, kind: InjectionKind::DelayRead(60_000_001) });
    for (number, bytes, words) in [
        (1, &b"GET / HTTP/1.1\r\n\r\n"[..], "what came is no message of softnic ctl"),
        (2, &header, "version 77"),
        (3, b"softnctl\x04\0\0\0\xff\xff\xff\xff", "a message of 4294967295 bytes, 1024 are allowed"),
        (4, b"softnctl\x04\0\0\0\x01\0\0\0\xff", "a message that this softnic does not know"),
        (5, &encode(&"reboot"), "a message that this softnic does not know"),
        (6, &encode(&()), "a message that this softnic does not know"),
        (7, &encode(&late), "a delay of 60000001 µs; 60000000 is the longest"),
    ] {
        let heard = nic.say(unique(number), bytes);
        assert!(heard.starts_with("softnctl") && heard.contains(words), "{bytes:?}: {heard}");
    }
    // Half a header, then silence: left alone after a second.
    assert_eq!(nic.say(unique(11), b"softn"), "");
    // Nobody is where the call says.
    nic.view.call(&nic.member, unique(8));
    assert_eq!(nic.ports(), 1, "still answers");
    assert!(!nic.process.server.nic.is_wanted());
}

#[test]
fn a_caller_of_another_user_gets_no_answer() {
    const NOBODY: u32 = 65534;
    // The kernel keeps credentials for each thread, and a socket those of the thread that listens.
    let name = socket_name(unique(9));
    let bind = move || become_user(NOBODY).then(|| Listener::bind(&name).unwrap());
    let listener = std::thread::spawn(bind).join().unwrap();
    let listener = measure::need!(listener, "the right to become another user");
    let nic = Running::start(1);
    assert_eq!(nic.say_at(&listener, unique(9), &encode(&Request::Status)), "", "not a byte");
    assert_eq!(nic.ports(), 1, "its own user is answered");
}

#[test]
fn random_bytes_harm_nothing() {
    let nic = Running::start(1);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..60 {
        let mut message = encode(&Request::Counters);
        for _ in 0..1 + round % 4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % message.len();
            message[at] = (state >> 56) as u8;
        }
        // A length that was made longer is waited for; say no more, so that the test does not wait.
        let announced = message[12..16].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        if announced <= MAX_REQUEST_BYTES {
            message.resize(16 + announced, b'x');
        }
        let heard = nic.say(unique(1 << 8 | round), &message);
        assert!(heard.starts_with("softnctl"), "{message:?}: {heard}");
    }
    assert_eq!(nic.ports(), 1);
}

#[test]
fn a_thread_talks_only_while_somebody_does() {
    let nic = Running::start(1);
    let listener = Listener::bind(&socket_name(unique(10))).unwrap();
    nic.view.call(&nic.member, unique(10));
    let (stream, _) = listener.accept(PATIENCE).unwrap().expect("called back");
    assert!(threads_that_talk() >= 1);
    drop(stream);
    let begun = Instant::now();
    // Other tests of this process talk too; their conversations end.
    while threads_that_talk() > 0 {
        assert!(begun.elapsed() < PATIENCE, "a thread stays");
        std::thread::sleep(Duration::from_millis(5));
    }
}
