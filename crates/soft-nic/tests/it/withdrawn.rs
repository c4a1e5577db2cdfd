//! Memory back with the program: no peer sees what was not sent by then, and the NIC writes nothing there.
//!
//! Two NICs, of which the peer is not polled before the command has returned and the memory was used anew.

use mlx5_device::command::ModifyQp;
use mlx5_device::commands::*;
use mlx5_layout::{CqeOpcode, CqeSyndrome, SendOpcode};
use roce::ServiceType;
use roce::qp_state::AttrMask;
use soft_nic::dma::Host;
use soft_nic::testing::{Driver, QpId, QpShape, Region, Setup, WorkRequest};

use crate::operations::ALL;

/// In one record.
pub const LEN: u32 = 100_000;
/// More than a ring holds.
pub const LONG: u32 = 8 << 20;
pub const OLD: u8 = 0x11;
pub const NEW: u8 = 0xee;
pub const GUARD: u8 = 0x55;

/// What gives memory back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Destroy,
    Reset,
    Err,
    Dereg,
    Close,
}

pub const COMMANDS: [Command; 5] =
    [Command::Destroy, Command::Reset, Command::Err, Command::Dereg, Command::Close];

/// Two NICs with a connected pair, and another pair that shows that the channel goes on.
pub struct TwoNics {
    pub near: Driver<Host>,
    pub far: Driver<Host>,
    pub pair: (QpId, QpId),
    other: (QpId, QpId),
}

impl TwoNics {
    pub fn new(name: &str, service: ServiceType, change: fn(&mut soft_nic::config::Config)) -> TwoNics {
        let setup = |fabric: Option<String>| {
            let setup = Setup::new(name).with(change);
            Setup { fabric: fabric.unwrap_or(setup.fabric), ..setup }
        };
        let first = setup(None);
        let fabric = first.fabric.clone();
        let (mut near, mut far) = (Driver::new(first), Driver::new(setup(Some(fabric))));
        let shape = QpShape { service, sq_blocks: 256, ..QpShape::default() };
        let pair = (near.create_qp(shape), far.create_qp(shape));
        let other = (near.create_qp(QpShape::default()), far.create_qp(QpShape::default()));
        let mut nics = TwoNics { near, far, pair: other, other };
        nics.connect();
        nics.pair = pair;
        nics.connect();
        nics.check_other("before");
        nics
    }

    /// Brings both queues of the pair up.
    pub fn connect(&mut self) {
        let (a, b) = self.pair;
        let (qpn_a, qpn_b) = (self.near.qp(a).qpn, self.far.qp(b).qpn);
        self.near.bring_up(a, &self.near.attributes(qpn_b));
        self.far.bring_up(b, &self.far.attributes(qpn_a));
    }

    pub fn settle(&mut self) {
        for _ in 0..6 {
            run(&mut self.far);
            run(&mut self.near);
        }
    }

    /// A message each way on the other pair: both channels are open and whole.
    pub fn check_other(&mut self, name: &str) {
        let (a, b) = self.other;
        let (from, to) = (self.near.region(64, ALL), self.far.region(64, ALL));
        let bytes = from.fill(0, 8, 3);
        self.near.post(a, &WorkRequest::write(&from, 0, 8, &to, 0));
        self.far.post(b, &WorkRequest::write(&to, 32, 8, &from, 32));
        self.settle();
        assert_eq!(to.block.bytes(0, 8), bytes, "{name}: the other pair");
        let done = self.near.poll_send(a).and_then(|cqe| cqe.opcode());
        assert_eq!(done, Some(CqeOpcode::Requester), "{name}: the other pair");
        let done = self.far.poll_send(b).and_then(|cqe| cqe.opcode());
        assert_eq!(done, Some(CqeOpcode::Requester), "{name}: the other pair, back");
    }
}

/// Rounds enough for the NIC to notice all that was posted. It cannot rest: it may wait for the other.
pub fn run(driver: &mut Driver<Host>) {
    for _ in 0..60 {
        driver.now += 20_000;
        driver.poll();
    }
}

/// Lets time pass.
pub fn later(driver: &mut Driver<Host>, ms: u64) {
    for _ in 0..ms {
        driver.now += 1_000_000;
        driver.poll();
    }
}

pub fn filled(driver: &mut Driver<Host>, len: usize, byte: u8) -> Region {
    let region = driver.region(len, ALL);
    region.block.write(0, &vec![byte; region.block.len()]);
    region
}

pub fn is_all(region: &Region, byte: u8) -> bool {
    region.block.bytes(0, region.block.len()).iter().all(|b| *b == byte)
}

/// Whether the region shows nothing of the memory's next use.
pub fn is_old(region: &Region) -> bool {
    !region.block.bytes(0, region.block.len()).contains(&NEW)
}

/// Gives memory back on `driver`; then the program uses it anew.
pub fn give_back(driver: &mut Driver<Host>, qp: QpId, region: &Region, command: Command) {
    let handle = driver.qp(qp).handle;
    match command {
        Command::Destroy => drop(driver.nic.destroy_qp(driver.context, handle).expect("the QP")),
        Command::Reset => driver.reset(qp),
        Command::Err => {
            let request = ModifyQp { state: 6, mask: AttrMask::STATE.0, ..ModifyQp::default() };
            driver.modify(qp, &request).expect("ERR is always allowed");
        }
        Command::Dereg => driver.nic.dereg_mr(driver.context, region.handle).expect("the region"),
        Command::Close => driver.nic.close_context(driver.context),
    }
    region.block.write(0, &vec![NEW; region.block.len()]);
}

pub fn syndromes(driver: &mut Driver<Host>, qp: QpId) -> Vec<Option<CqeSyndrome>> {
    std::iter::from_fn(|| driver.poll_send(qp))
        .map(|cqe| if cqe.opcode() == Some(CqeOpcode::RequesterError) { cqe.error().known() } else { None })
        .collect()
}

#[test]
fn memory_that_a_requester_gave_back_after_it_was_sent_shows_its_peer_nothing_new() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        for opcode in [SendOpcode::Send, SendOpcode::RdmaWrite, SendOpcode::RdmaWriteImm] {
            for command in COMMANDS {
                let name = format!("{service:?} {opcode:?} {command:?}");
                let mut nics = TwoNics::new("given-back", service, |_| ());
                let (a, b) = nics.pair;
                let from = filled(&mut nics.near, LEN as usize, OLD);
                let to = filled(&mut nics.far, LEN as usize, GUARD);
                nics.far.post_receive(b, &[to.pointer(0, LEN)]);
                let mut request = WorkRequest::new(opcode).pointer(&from, 0, LEN);
                if opcode.has_remote_address() {
                    request = request.remote(&to, 0);
                }
                let before = nics.near.nic.link().counters().requests_sent;
                nics.near.post(a, &request);
                run(&mut nics.near);
                assert_eq!(nics.near.nic.link().counters().requests_sent, before + 1, "{name}");
                give_back(&mut nics.near, a, &from, command);
                // The peer first: what was sent arrives, as from a wire.
                nics.settle();
                if service == ServiceType::Rc {
                    let wanted = match command {
                        Command::Err => vec![Some(CqeSyndrome::WrFlush)],
                        Command::Dereg => vec![None],
                        _ => vec![],
                    };
                    assert_eq!(syndromes(&mut nics.near, a), wanted, "{name}");
                }
                assert!(is_old(&to), "{name}: the peer saw memory that was the program's again");
                assert!(to.block.bytes(0, LEN as usize).iter().all(|byte| *byte == OLD), "{name}");
                if command != Command::Close {
                    nics.check_other(&name);
                }
            }
        }
    }
}

#[test]
fn memory_that_a_responder_gave_back_after_it_answered_shows_the_requester_nothing_new() {
    for command in COMMANDS {
        let name = format!("READ, the responder: {command:?}");
        let mut nics = TwoNics::new("answer-back", ServiceType::Rc, |_| ());
        let (a, b) = nics.pair;
        let into = filled(&mut nics.near, LEN as usize, GUARD);
        let from = filled(&mut nics.far, LEN as usize, OLD);
        nics.near.post(a, &WorkRequest::read(&into, 0, LEN, &from, 0));
        run(&mut nics.near);
        let before = nics.far.nic.link().counters().replies_sent;
        run(&mut nics.far);
        assert_eq!(nics.far.nic.link().counters().replies_sent, before + 1, "{name}: it is answered");
        give_back(&mut nics.far, b, &from, command);
        nics.settle();
        assert!(into.block.bytes(0, LEN as usize).iter().all(|byte| *byte == OLD), "{name}");
        assert_eq!(syndromes(&mut nics.near, a), [None], "{name}");
        if command != Command::Close {
            nics.check_other(&name);
        }
    }
}

#[test]
fn a_reads_answer_is_not_placed_in_memory_that_the_requester_gave_back() {
    for len in [64, LEN] {
        for command in COMMANDS {
            let name = format!("READ of {len}, the requester: {command:?}");
            let mut nics = TwoNics::new("into-back", ServiceType::Rc, |_| ());
            let (a, b) = nics.pair;
            let into = filled(&mut nics.near, len as usize, GUARD);
            let from = filled(&mut nics.far, len as usize, OLD);
            nics.near.post(a, &WorkRequest::read(&into, 0, len, &from, 0));
            run(&mut nics.near);
            run(&mut nics.far);
            give_back(&mut nics.near, a, &into, command);
            nics.settle();
            assert!(
                is_all(&into, NEW),
                "{name}: the answer was written to memory that was the program's again"
            );
            if command == Command::Dereg {
                assert_eq!(syndromes(&mut nics.near, a), [Some(CqeSyndrome::LocalProtection)], "{name}");
            }
            assert_eq!(nics.far.state(b), 3, "{name}: the responder has done nothing wrong");
        }
    }
}

#[test]
fn what_a_peer_has_copied_is_out_and_deregistration_is_no_error() {
    for len in [64, LEN] {
        let mut nics = TwoNics::new("out", ServiceType::Rc, |_| ());
        let (a, _) = nics.pair;
        let from = filled(&mut nics.near, len as usize, OLD);
        let to = filled(&mut nics.far, len as usize, GUARD);
        nics.near.post(a, &WorkRequest::write(&from, 0, len, &to, 0));
        run(&mut nics.near);
        run(&mut nics.far);
        give_back(&mut nics.near, a, &from, Command::Dereg);
        nics.settle();
        assert!(to.block.bytes(0, len as usize).iter().all(|byte| *byte == OLD), "{len} bytes");
        assert_eq!(syndromes(&mut nics.near, a), [None], "{len} bytes");
    }
}

#[test]
fn a_message_sent_again_from_a_region_that_is_gone_is_a_local_protection_error() {
    for len in [64, LEN] {
        let mut nics = TwoNics::new("again", ServiceType::Rc, |_| ());
        let (a, b) = nics.pair;
        let from = filled(&mut nics.near, len as usize, OLD);
        let to = filled(&mut nics.far, len as usize, GUARD);
        // The first copy meets a queue that does not receive yet.
        nics.far.reset(b);
        nics.near.post(a, &WorkRequest::write(&from, 0, len, &to, 0));
        run(&mut nics.near);
        nics.settle();
        give_back(&mut nics.near, a, &from, Command::Dereg);
        let attributes = nics.far.attributes(nics.near.qp(a).qpn);
        nics.far.bring_up(b, &attributes);
        later(&mut nics.near, 150);
        nics.settle();
        assert!(is_all(&to, GUARD), "{len} bytes: the program's memory went out");
        assert_eq!(syndromes(&mut nics.near, a), [Some(CqeSyndrome::LocalProtection)], "{len} bytes");
    }
}

#[test]
fn a_region_that_goes_away_between_two_pieces_ends_the_message_there() {
    type Make = fn(&Region, &Region) -> WorkRequest;
    let write: Make = |near, far| WorkRequest::write(near, 0, LONG, far, 0);
    let send: Make = |near, _| WorkRequest::send(near, 0, LONG);
    let read: Make = |near, far| WorkRequest::read(near, 0, LONG, far, 0);
    for (name, make, at_near, wanted) in [
        ("WRITE, source", write, true, CqeSyndrome::LocalProtection),
        ("SEND, source", send, true, CqeSyndrome::LocalProtection),
        ("READ, destination", read, true, CqeSyndrome::LocalProtection),
        ("WRITE, destination", write, false, CqeSyndrome::RemoteAccess),
        ("SEND, receive", send, false, CqeSyndrome::RemoteOperation),
        ("READ, source", read, false, CqeSyndrome::RemoteAccess),
    ] {
        let mut nics = TwoNics::new("pieces", ServiceType::Rc, |_| ());
        let (a, b) = nics.pair;
        let (near, far) = (filled(&mut nics.near, LONG as usize, 0), filled(&mut nics.far, LONG as usize, 0));
        let (gone, other) = if at_near { (&near, &far) } else { (&far, &near) };
        gone.block.write(0, &vec![OLD; LONG as usize]);
        other.block.write(0, &vec![GUARD; LONG as usize]);
        nics.far.post_receive(b, &[far.pointer(0, LONG)]);
        nics.near.post(a, &make(&near, &far));
        run(&mut nics.near);
        // As much as a ring holds is under way, and the first of it has arrived.
        run(&mut nics.far);
        run(&mut nics.near);
        nics.far.poll();
        let driver = if at_near { &mut nics.near } else { &mut nics.far };
        driver.nic.dereg_mr(driver.context, gone.handle).expect("the region");
        gone.block.write(0, &vec![NEW; LONG as usize]);
        nics.settle();
        assert!(is_all(gone, NEW), "{name}: written to");
        let seen = other.block.bytes(0, LONG as usize);
        assert!(seen.iter().all(|byte| *byte != NEW), "{name}: read");
        assert!(seen.contains(&GUARD), "{name}: the message was not to be through before");
        assert_eq!(syndromes(&mut nics.near, a), [Some(wanted)], "{name}");
        nics.check_other(name);
    }
}

#[test]
fn an_atomics_result_is_not_placed_in_a_region_that_is_gone() {
    let mut nics = TwoNics::new("atomic", ServiceType::Rc, |_| ());
    let (a, _) = nics.pair;
    let into = filled(&mut nics.near, 64, GUARD);
    let at = filled(&mut nics.far, 64, OLD);
    nics.near.post(a, &WorkRequest::fetch_add(&into, 0, (&at, 0), 1));
    run(&mut nics.near);
    give_back(&mut nics.near, a, &into, Command::Dereg);
    nics.settle();
    assert!(is_all(&into, NEW));
    assert_eq!(syndromes(&mut nics.near, a), [Some(CqeSyndrome::LocalProtection)]);
}
