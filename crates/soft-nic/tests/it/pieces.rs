//! Messages that travel in several records, and end between two of them: at a missing page, or with their
//! queue.

use mlx5_device::faults::Settings;
use mlx5_layout::{CqeOpcode, CqeSyndrome, SendOpcode};
use roce::ServiceType;
use roce::qp_state::QpState;
use soft_nic::dma::Host;
use soft_nic::testing::{Driver, QpId, QpShape, Region, Setup, WorkRequest};

use crate::operations::ALL;
use crate::two::{BOTH, By, MS, TIMEOUT_NS, Two, joined, sent};
use crate::withdrawn::{
    COMMANDS, Command, GUARD, NEW, OLD, TwoNics, filled, give_back, is_all, is_old, run, syndromes,
};

/// Several records, all in a ring at once.
const LEN: u32 = 1 << 20;
const PAGE: u32 = 4096;
/// More than a ring holds.
const LONGER: u32 = 3 << 20;

/// Syndromes of a queue's receives; none: success.
fn received(driver: &mut Driver<Host>, qp: QpId) -> Vec<Option<CqeSyndrome>> {
    std::iter::from_fn(|| driver.poll_receive(qp))
        .map(|cqe| if cqe.opcode() == Some(CqeOpcode::ResponderError) { cqe.error().known() } else { None })
        .collect()
}

#[test]
fn a_page_that_is_missing_in_a_later_record_ends_the_message_and_nothing_follows_it() {
    type Make = fn(&Region, &Region) -> WorkRequest;
    let write: Make = |near, far| WorkRequest::write(near, 0, LEN, far, 0);
    let send: Make = |near, _| WorkRequest::send(near, 0, LEN);
    let read: Make = |near, far| WorkRequest::read(near, 0, LEN, far, 0);
    let [here, there, flushed] =
        [CqeSyndrome::LocalProtection, CqeSyndrome::RemoteOperation, CqeSyndrome::WrFlush].map(Some);
    let (rc, uc) = (ServiceType::Rc, ServiceType::Uc);
    // The end whose page is missing; what both ends complete: the message and a SEND behind it, two receives.
    // A READ is answered while what follows is executed (IBTA vol. 1 §9.5).
    for (name, service, make, at_near, near_ends, far_ends) in [
        ("WRITE, source", rc, write, true, &[here, flushed][..], &[][..]),
        ("SEND, source", rc, send, true, &[here, flushed], &[]),
        ("READ, destination", rc, read, true, &[here, flushed], &[None]),
        ("WRITE, destination", rc, write, false, &[there, flushed], &[flushed, flushed]),
        ("SEND, receive", rc, send, false, &[there, flushed], &[here, flushed]),
        ("READ, source", rc, read, false, &[there, flushed], &[None, flushed]),
        ("UC WRITE, source", uc, write, true, &[here, flushed], &[]),
        ("UC SEND, source", uc, send, true, &[here, flushed], &[]),
    ] {
        let mut nics = TwoNics::new("later", service, |_| ());
        let (a, b) = nics.pair;
        let [near, word] = [LEN, 64].map(|len| filled(&mut nics.near, len as usize, OLD));
        let [far, behind] = [LEN, 64].map(|len| filled(&mut nics.far, len as usize, GUARD));
        let is_read = name.starts_with("READ");
        let first = if name.contains("SEND") { far.pointer(0, LEN) } else { behind.pointer(0, 64) };
        nics.far.post_receive(b, &[first]);
        nics.far.post_receive(b, &[behind.pointer(0, 64)]);
        nics.near.lay(a, &make(&near, &far));
        nics.near.post(a, &WorkRequest::send(&word, 0, 64));
        (if at_near { &near } else { &far }).block.protect((LEN - 1) as usize);
        nics.settle();
        assert_eq!(syndromes(&mut nics.near, a), near_ends, "{name}: the requester");
        assert_eq!(received(&mut nics.far, b), far_ends, "{name}: the responder's receives");
        let state = if at_near { QpState::Rts } else { QpState::Err };
        assert_eq!(nics.far.state(b), state.number(), "{name}: the responder");
        let state = if service == uc { QpState::Sqe } else { QpState::Err };
        assert_eq!(nics.near.state(a), state.number(), "{name}: the requester");
        // The first records have arrived; of the last page nothing, and nothing of what came behind.
        let (target, before, after) = if is_read { (&near, OLD, GUARD) } else { (&far, GUARD, OLD) };
        assert!(target.block.bytes(0, LEN as usize / 2).iter().all(|byte| *byte == after), "{name}");
        if at_near != is_read {
            let last = target.block.bytes((LEN - PAGE) as usize, PAGE as usize);
            assert!(last.iter().all(|byte| *byte == before), "{name}: the last page");
        }
        let came = if far_ends.contains(&None) { OLD } else { GUARD };
        assert!(is_all(&behind, came), "{name}: what came behind");
        nics.check_other(name);
    }
}

#[test]
fn a_message_whose_queue_goes_away_between_two_records_shows_its_peer_nothing_new() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        for sends in [false, true] {
            for command in COMMANDS {
                let name = format!("{service:?} {} {command:?}", if sends { "SEND" } else { "WRITE" });
                let mut nics = TwoNics::new("between", service, |_| ());
                let (a, b) = nics.pair;
                let from = filled(&mut nics.near, LONGER as usize, OLD);
                let to = filled(&mut nics.far, LONGER as usize, GUARD);
                nics.far.post_receive(b, &[to.pointer(0, LONGER)]);
                let request = match sends {
                    true => WorkRequest::send(&from, 0, LONGER),
                    false => WorkRequest::write(&from, 0, LONGER, &to, 0),
                };
                let word = filled(&mut nics.near, 64, NEW);
                let write = |at| WorkRequest::write(&word, 0, 64, &to, at);
                nics.near.post(a, &write(u64::from(LONGER) - 64));
                nics.settle();
                assert_eq!(syndromes(&mut nics.near, a), [None], "{name}");
                to.block.write(LONGER as usize - 64, &[GUARD; 64]);
                nics.near.post(a, &request);
                // As much as a ring holds is in flight.
                run(&mut nics.near);
                give_back(&mut nics.near, a, &from, command);
                nics.settle();
                assert!(is_old(&to), "{name}: the peer saw memory that was the program's again");
                let seen = to.block.bytes(0, LONGER as usize);
                assert!(seen.contains(&OLD) && seen.contains(&GUARD), "{name}: it was to be on its way");
                let wanted = match command {
                    Command::Err => vec![Some(CqeSyndrome::WrFlush)],
                    Command::Dereg => vec![Some(CqeSyndrome::LocalProtection)],
                    _ => vec![],
                };
                if command != Command::Destroy && command != Command::Close {
                    assert_eq!(syndromes(&mut nics.near, a), wanted, "{name}");
                }
                assert_eq!(received(&mut nics.far, b), [], "{name}: half a message");
                if command == Command::Reset {
                    // Nothing of the old message is left at either end.
                    nics.far.reset(b);
                    nics.connect();
                    nics.near.lay(a, &write(0)).post(a, &write(128));
                    nics.settle();
                    assert_eq!(syndromes(&mut nics.near, a), [None; 2], "{name}: the queue's next life");
                    assert_eq!(nics.far.counters().naks_sent, 0, "{name}: the queue's next life");
                    for (at, byte) in [(0, NEW), (64, OLD), (128, NEW), (192, OLD)] {
                        assert_eq!(to.block.bytes(at, 64), [byte; 64], "{name}: the queue's next life, {at}");
                    }
                }
                if command != Command::Close {
                    nics.check_other(&name);
                }
            }
        }
    }
}

#[test]
fn an_answer_that_comes_in_pieces_is_not_asked_for_again_while_it_comes() {
    let setup = || Setup::new("slow-answer");
    let (mut left, mut right) = (Driver::new(setup()), Driver::new(setup()));
    let (a, b) = (left.create_qp(QpShape::default()), right.create_qp(QpShape::default()));
    let (into, of) = (left.region(1 << 22, ALL), right.region(1 << 22, ALL));
    let mut two = Two { left, right, a, b, from: into, to: of };
    two.connect(a, b);
    let read = |two: &Two, len: u32| {
        WorkRequest::new(SendOpcode::RdmaRead).remote(&two.to, 0).pointer(&two.from, 0, len)
    };
    // A short one first, so that the channels are there.
    let short = read(&two, 8);
    two.left.post(a, &short);
    two.rounds(100);
    assert!(two.left.poll_send(a).is_some());
    let bytes = two.to.fill(0, 1 << 22, 7);
    let long = read(&two, 1 << 22);
    two.left.post(a, &long);
    let begun = two.left.now;
    // The responder sends a piece of 128 KiB every 50 ms; the time-out is 67 ms.
    let cqe = 'end: loop {
        for _ in 0..10 {
            two.left.now += 5_000_000;
            two.left.poll();
            if let Some(cqe) = two.left.poll_send(a) {
                break 'end cqe;
            }
        }
        two.right.now = two.left.now;
        two.right.poll();
        assert!(two.left.now < begun + 10_000_000_000, "an end");
    };
    assert_eq!((cqe.opcode(), cqe.byte_count()), (Some(CqeOpcode::Requester), 1 << 22));
    assert!(two.from.block.bytes(0, 1 << 22) == bytes);
    assert!(
        two.left.now > begun + 1_000_000_000,
        "as long as several time-outs: {} ns",
        two.left.now - begun
    );
    assert_eq!(two.count(true, "retransmissions"), 0);
}

/// Its first record takes the whole's time, and the others do not wait, or the peer would answer none.
#[test]
fn a_message_of_many_records_leaves_at_once_and_is_not_repeated_whatever_the_rate() {
    let mut two = joined("cut", ServiceType::Rc, By::Memory);
    // 168 ms for 1 MiB.
    let rate = Settings { rate_gbps: Some(Some(0.05)), ..Settings::default() };
    two.left.nic.set(&rate).expect("a possible rate");
    let (from, to) = (two.left.region(1 << 20, ALL), two.right.region(1 << 20, ALL));
    let bytes = from.fill(0, 1 << 20, 3);
    two.left.post(two.a, &WorkRequest::write(&from, 0, 1 << 20, &to, 0));
    two.pass(20 * MS);
    assert_eq!(sent(&mut two.left, two.a), Some(Ok(())));
    assert_eq!(to.block.bytes(0, 1 << 20), bytes);
    assert_eq!((two.count(true, "retransmissions"), two.count(false, "duplicates")), (0, 0));
    assert!(two.right.nic.link().counters().received > 1, "it is one record");
}

#[test]
fn the_rest_of_a_message_that_goes_on_after_a_wait_is_lost_with_its_port() {
    for by in BOTH {
        let mut two = joined("rest", ServiceType::Rc, by);
        let (from, to) = (two.left.region(200_000, ALL), two.right.region(200_000, ALL));
        let write = WorkRequest::write(&from, 0, 200_000, &to, 0);
        let write = WorkRequest { opcode: SendOpcode::RdmaWriteImm, ..write };
        two.left.post(two.a, &write);
        two.rounds(300);
        assert!(two.count(false, "rnr_naks_sent") > 0, "{by:?}: only the end is missing");
        two.left.nic.set_link(0, 1, false).expect("device 0");
        two.right.post_receive(two.b, &[]);
        two.pass(3 * MS);
        assert_eq!((two.count(false, "receives_consumed"), sent(&mut two.left, two.a)), (0, None), "{by:?}");
        assert!(two.count(true, "lost_port_down") > 0, "{by:?}");
        two.left.nic.set_link(0, 1, true).expect("device 0");
        two.pass(5 * TIMEOUT_NS);
        assert_eq!(
            (two.count(false, "receives_consumed"), sent(&mut two.left, two.a)),
            (1, Some(Ok(()))),
            "{by:?}"
        );
    }
}
