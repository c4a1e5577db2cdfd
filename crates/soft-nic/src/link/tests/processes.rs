//! Child processes of the tests: the test binary, started again, in a role.
//!
//! A child talks to its parent by lines on its standard input and output, and ends when its input is closed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mlx5_device::carrier::{Carrier as _, Inbound as _};
use mlx5_device::carrier::{Disposition, PathAddress, Payload, Unsent};
use mlx5_device::memory::{Order, Segment};
use roce::packet::{Aeth, Deth, Reth, Syndrome};
use roce::{Content, Fragment, Opcode, Packet, Position, Psn};

use crate::link::{Inbound, Link, LinkConfig, Room};

/// Path MTU of the queues, in bytes.
pub const MTU: u32 = 4096;

const ROLE: &str = "SOFTNIC_TEST_ROLE";
const FABRIC: &str = "SOFTNIC_TEST_FABRIC";

/// Where every child begins. Run as a test of its own it has no role and nothing to do.
#[test]
fn entry_of_child_processes() {
    match std::env::var(ROLE).as_deref() {
        Ok("sink") => sink(),
        Ok("changeling") => changeling(),
        Ok("node") => super::crowded::node(),
        Ok("writer") => super::visibility::writer(),
        Ok(role) => panic!("no role {role}"),
        Err(_) => {}
    }
}

/// A fabric name that no other test uses.
pub fn fabric_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Configuration of a test's link.
pub fn config(fabric: &str) -> LinkConfig {
    LinkConfig { fabric: fabric.to_owned(), ..LinkConfig::default() }
}

/// A child process in a role.
pub struct Peer {
    pub child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(role: &str, fabric: &str) -> Peer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "link::tests::processes::entry_of_child_processes", "--nocapture", "--quiet"])
            .env(ROLE, role)
            .env(FABRIC, fabric)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Peer { child, input, output }
    }

    /// The next line that starts with `word`, its numbers.
    pub fn read_line(&mut self, word: &str) -> Vec<u64> {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child ended before it said {word}");
            // The harness of the child may have begun the line with its own words.
            if let Some(at) = line.find(word) {
                return line[at + word.len()..].split_whitespace().map(|n| n.parse().unwrap()).collect();
            }
        }
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Closes the child's input and waits for it.
    pub fn finish(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }

    /// Closes the child's input.
    pub fn hang_up(&mut self) {
        drop(self.input.take());
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn child_config() -> LinkConfig {
    config(&std::env::var(FABRIC).unwrap())
}

/// Becomes true when the parent closes the input.
pub fn end_flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines() {}
        set.store(true, Ordering::Relaxed);
    });
    flag
}

/// A request of `length` bytes from `link` to `qpn`.
pub fn request(link: &Link, dst_qpn: u32, opcode: Opcode, psn: u32, va: u64, length: u32) -> Packet {
    Packet {
        dst_qpn,
        psn: Psn::new(psn),
        ack_requested: true,
        deth: Deth { qkey: 0, src_qpn: mlx5_device::first_qpn(link.slot()) + 0x40 },
        content: Content::request(opcode, [0; 4], Reth { va, rkey: 1, dma_bytes: length }, [0; 2]),
        payload: Fragment { offset: 0, length: if opcode.carries_payload() { length } else { 0 } },
        ..Packet::default()
    }
}

/// So many bytes of a packet have left: the rest of it. True: there is none.
pub fn go_on(packet: &mut Packet, carried: u32) -> bool {
    packet.payload.offset += carried;
    packet.payload.length -= carried;
    packet.psn = packet.psn.plus(carried / MTU);
    match &mut packet.content {
        Content::Send { position, .. } | Content::ReadResponse { position, .. } => *position = Position::Last,
        Content::Write { position, reth, .. } => (*position, *reth) = (Position::Last, Reth::default()),
        _ => {}
    }
    packet.payload.length == 0
}

/// Where the packets of a WRITE go, one behind the other.
#[derive(Default)]
pub struct Target {
    at: u64,
}

impl Target {
    pub fn next(&mut self, packet: &Packet) -> Segment {
        let Content::Write { position, reth, .. } = packet.content else { panic!("a WRITE: {packet:?}") };
        let addr = if position.starts() { reth.va } else { self.at };
        self.at = addr + u64::from(packet.payload.length);
        Segment { addr, len: packet.payload.length.into() }
    }
}

/// An answer to a request, with all of the bytes that it asks for where it has some.
pub fn answer(request: &Packet, content: Content) -> Packet {
    let length = match request.content {
        Content::ReadRequest(reth) if matches!(content, Content::ReadResponse { .. }) => reth.dma_bytes,
        _ => 0,
    };
    Packet {
        dst_qpn: request.deth.src_qpn,
        psn: request.psn,
        deth: Deth { qkey: 0, src_qpn: request.dst_qpn },
        content,
        payload: Fragment { offset: 0, length },
        ..Packet::default()
    }
}

pub fn acknowledge(request: &Packet, msn: u32) -> Packet {
    answer(request, Content::Acknowledge(Aeth { syndrome: Syndrome::Ack, msn }))
}

pub fn read_response(request: &Packet) -> Packet {
    let aeth = Aeth { syndrome: Syndrome::Ack, msn: 0 };
    answer(request, Content::ReadResponse { position: Position::Only, aeth: Some(aeth) })
}

/// What an acknowledgement counts to.
pub fn msn(packet: &Packet) -> u32 {
    let Content::Acknowledge(aeth) = packet.content else { panic!("an acknowledgement: {packet:?}") };
    aeth.msn
}

/// Sends the whole message, polling (and dropping what arrives by `handler`) while there is no room.
pub fn send(
    link: &mut Link,
    request: &Packet,
    payload: Payload<'_>,
    mut handler: impl FnMut(&mut Inbound<'_>) -> Disposition,
) {
    let mut request = *request;
    loop {
        match link.send_record(&request, MTU, &PathAddress::default(), payload) {
            Ok(sent) if go_on(&mut request, sent.carried) => return,
            Ok(_) => {}
            Err(Unsent::Full) => {
                link.ring_bells();
                link.poll(64, &mut handler);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until there is room in a ring to `slot`.
pub fn connect(link: &mut Link, slot: u8) {
    loop {
        match link.room(slot) {
            Room::Yes => return,
            Room::Full => link.ring_bells(),
            Room::NoPeer(reason) => panic!("{reason}"),
        }
        link.poll(64, |_| Disposition::Consumed);
    }
}

/// Joins, attaches to its parent's channel, and becomes another program, under the same number, when told.
fn changeling() {
    let mut link = Link::join(child_config()).unwrap();
    println!("changeling {}", link.slot());
    let told = end_flag();
    while !told.load(Ordering::Relaxed) {
        link.poll(64, |_| Disposition::Consumed);
        link.ring_bells();
    }
    let error = std::os::unix::process::CommandExt::exec(Command::new("sleep").arg("60"));
    panic!("{error}");
}

/// Takes WRITEs into a buffer of 2 MiB, acknowledges once a round with their number, and answers READs.
fn sink() {
    let mut link = Link::join(child_config()).unwrap();
    let memory: Vec<AtomicU64> = (0..1 << 18).map(|_| AtomicU64::new(0)).collect();
    println!("sink {} {}", link.slot(), memory.as_ptr() as u64);
    let end = end_flag();
    let (mut received, mut target) = (0_u32, Target::default());
    while !end.load(Ordering::Relaxed) {
        let mut last = None;
        link.poll(64, |inbound| {
            let request = *inbound.packet;
            if !request.content.is_request() {
                return Disposition::Consumed;
            }
            let to = [target.next(&request)];
            inbound.copy_into(&to, Order::Increasing).unwrap();
            received += u32::from(request.content.position().ends());
            last = Some(request);
            Disposition::Consumed
        });
        if let Some(request) = last {
            while let Err(error) = link.send_record(
                &acknowledge(&request, received),
                MTU,
                &PathAddress::default(),
                Payload::Nothing,
            ) {
                assert_eq!(error, Unsent::Full);
                link.ring_bells();
            }
        }
        link.ring_bells();
    }
}
