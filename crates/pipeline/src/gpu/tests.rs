//! The kernels on the host twin, in order and with weak memory, before a NIC that the test plays on command.

use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::gpu::{Arch, Compiler, Form, Toolkit, Unit};
use host_twin::Visibility;
use measure::need;
use rdma_shim::device::HEADERS;
use rdma_shim::kernel::{Source, db_kernel_queue};
use rdma_shim::sys::{db_cq, db_rq, db_sq};
use rdma_shim::testing::compile_and_link;
use slots::layout::{Header, PREFIX_BYTES, Status, flag};
use slots::{Tensor, TensorKind};

use super::*;

pub mod chain;
mod release;
pub mod test_pipeline;
mod turns;

use test_pipeline::*;

host_twin::include_kernels!("planted");

/// The PTX of a kernel, where `planted` has taken the place of a text in one of its sources.
pub fn ptx(compiler: &Compiler, source: &Source, planted: Option<(&str, &str)>) -> String {
    let mut changed = 0;
    let mut plant = |text: &str| {
        let Some((old, new)) = planted else { return text.to_owned() };
        changed += text.matches(old).count();
        text.replace(old, new)
    };
    let unit = Unit::new(source.name, plant(source.text));
    let headers = HEADERS.iter().chain(source.headers);
    let unit = headers.fold(unit, |unit, (name, text)| unit.header(*name, plant(text)));
    assert_eq!(changed, usize::from(planted.is_some()), "{planted:?}");
    let compiled = compiler.compile(&unit, Arch::sm(90), Form::Ptx).unwrap_or_else(|error| panic!("{error}"));
    String::from_utf8(compiled.bytes).unwrap()
}

const ARRIVALS: [Arrival; 3] = [Arrival::Flag, Arrival::Tail, Arrival::Completion];

pub fn has_compiler() -> Result<(), String> {
    PLANTED.find("layout+none").map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn requests_are_answered_by_every_way_of_arrival_and_under_every_seed() {
    need!(has_compiler(), cc, "a C++ compiler");
    for (arrival, seed) in
        ARRIVALS.iter().flat_map(|way| [None, Some(1), Some(2), Some(3)].map(|seed| (*way, seed)))
    {
        let pipeline = TestPipeline::of(arrival, seed, None, seed.is_some_and(|seed| seed < 3));
        let mut peers = [pipeline.join(0, 0, 4), pipeline.join(1, 4, 2)];
        for round in 0..3_u64 {
            let mut asked = Vec::new();
            for (nth, peer) in peers.iter_mut().enumerate() {
                for id in 0..u64::from(peer.count) {
                    let value = (round * 100 + id * 10) as f32 + nth as f32;
                    asked.push((nth, pipeline.ask(peer, round * 10 + id, value).slot, value));
                }
            }
            for _ in &asked {
                assert_eq!(pipeline.turn().1, State::Request, "{arrival:?} {seed:?}");
            }
            for (nth, slot, value) in asked {
                peers[nth].execute(0);
                if arrival == Arrival::Flag {
                    let nth_flag = FLAGS + 8 * (slot - peers[nth].first) as usize;
                    assert_eq!(peers[nth].word(nth_flag), flag(round as u32 + 1));
                }
                let answer = peers[nth].answer(slot).unwrap();
                assert_eq!(answer, (Status::Ok, Some(value + 1.0)), "{arrival:?} {seed:?} slot {slot}");
            }
        }
        pipeline.idle();
        let counters = pipeline.served.counters();
        assert_eq!(
            (counters.answered, counters.refused, counters.sent),
            (18, 0, 18),
            "{arrival:?} {counters:?}"
        );
    }
}

/// The next request of a slot comes before the NIC has read the answer of the one before.
fn read_late(planted: Option<(usize, &'static str)>) -> Option<f32> {
    let pipeline = TestPipeline::new(Arrival::Flag, Some(5), planted);
    let mut peer = pipeline.join(0, 0, 1);
    let request = pipeline.ask(&mut peer, 1, 7.0);
    assert_eq!(pipeline.turn().1, State::Request);
    let next = Header { sequence: 2, request_id: 2, ..Header::read(&request.prefix).unwrap() };
    pipeline.arrive(&mut peer, 0, 2, &geometry().request.prefix(&next), 70.0);
    let second = pipeline.turn().1;
    peer.execute(0);
    let answer = peer.answer(0).ok().and_then(|(_, value)| value);
    if planted.is_none() {
        assert_eq!(second, State::None, "the answer before is still read");
        let after = pipeline.turn();
        assert_eq!((after.1, after.0.sequence), (State::Request, 2));
    }
    answer
}

#[test]
fn an_answer_stays_until_the_nic_has_read_it() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(read_late(None), Some(8.0));
    assert_ne!(read_late(Some((0, "wait_inputs+DB_DEFECT_NO_SENDING"))), Some(8.0), "the defect is not seen");
}

fn status_of(byte: usize, planted: Option<(usize, &'static str)>) -> Option<Status> {
    let pipeline = TestPipeline::new(Arrival::Flag, None, planted);
    let mut peer = pipeline.join(0, 0, 2);
    let mut request = peer.client.ask(1, 0, 0, u64::MAX).unwrap();
    request.prefix[byte] ^= 2;
    pipeline.arrive(&mut peer, 0, 1, &request.prefix, 3.0);
    let (turn, state) = pipeline.turn();
    assert_eq!(state, State::Request);
    peer.execute(0);
    // Of a refused request nothing but the prefix is sent.
    let tensor = ANSWERS + geometry().answer.entries()[0].offset as usize;
    assert_eq!(peer.word(tensor) == 0, turn.status != 1);
    // The sequence goes on behind a bad request.
    let next = Header {
        sequence: 2,
        request_id: 9,
        ..Header::read(&peer.client.ask(9, 0, 0, 9).unwrap().prefix).unwrap()
    };
    let prefix = geometry().request.prefix(&Header { slot: 0, ..next });
    pipeline.arrive(&mut peer, 0, 2, &prefix, 3.0);
    assert_eq!((pipeline.turn().0.status, pipeline.served.counters().answered), (1, 2));
    Status::of(turn.status as u16)
}

#[test]
fn a_bad_request_is_answered_with_its_status_and_nothing_else_of_the_slot() {
    need!(has_compiler(), cc, "a C++ compiler");
    for (byte, status) in [
        (0, Status::BadHeader),
        (4, Status::BadHeader),
        (6, Status::BadHeader),
        (16, Status::BadModel),
        (20, Status::BadSequence),
        (56, Status::BadTensors),
        (60, Status::BadSequence),
        (Header::BYTES, Status::BadTensors),
        (PREFIX_BYTES - 1, Status::BadTensors),
    ] {
        assert_eq!(status_of(byte, None), Some(status), "byte {byte}");
    }
    let planted = Some((0, "wait_inputs+DB_DEFECT_NO_TABLE"));
    assert_eq!(status_of(Header::BYTES, planted), Some(Status::Ok), "the defect is not seen");
}

fn strays(planted: Option<(usize, &'static str)>) -> (State, u64) {
    let pipeline = TestPipeline::new(Arrival::Completion, Some(1), planted);
    let (mut peer, _other) = (pipeline.join(0, 0, 2), pipeline.join(1, 2, 2));
    for slot in [2, 6, u32::MAX] {
        peer.receive(slot);
    }
    (pipeline.turn().1, pipeline.served.counters().strays)
}

#[test]
fn a_completion_that_names_another_clients_slot_counts_and_changes_nothing() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(strays(None), (State::None, 3));
    let planted = strays(Some((0, "wait_inputs+DB_DEFECT_ANY_SLOT")));
    assert_eq!(planted.0, State::Request, "the defect is not seen");
}

#[test]
fn a_queue_that_fails_is_given_up_and_others_go_on() {
    need!(has_compiler(), cc, "a C++ compiler");
    let pipeline = TestPipeline::new(Arrival::Flag, Some(2), None);
    let mut peers = [pipeline.join(0, 0, 2), pipeline.join(1, 2, 2)];
    pipeline.ask(&mut peers[0], 1, 1.0);
    assert_eq!(pipeline.turn().1, State::Request);
    // An error CQE of a requester.
    peers[0].execute(13);
    pipeline.ask(&mut peers[1], 1, 2.0);
    assert_eq!(pipeline.turn().0.slot, 2);
    pipeline.idle();
    pipeline.ask(&mut peers[0], 2, 1.0);
    pipeline.idle();
    let failure = pipeline.served.failure(0).unwrap().unwrap();
    assert_eq!((failure.qpn, pipeline.served.failure(1).unwrap()), (QPN, None));
    peers[1].execute(0);
    assert_eq!(peers[1].answer(2).unwrap(), (Status::Ok, Some(3.0)));
    // It leaves, and another one takes its place and slots: a request of before is none of its.
    pipeline.served.want(0);
    pipeline.idle();
    assert!(pipeline.served.is_done(0));
    let mut peer = pipeline.join(0, 0, 2);
    pipeline.idle();
    pipeline.ask(&mut peer, 1, 5.0);
    assert_eq!(pipeline.turn().0.slot, 0);
    peer.execute(0);
    assert_eq!(peer.answer(0).unwrap(), (Status::Ok, Some(6.0)));
}

fn order(planted: Option<(usize, &'static str)>) -> Vec<u32> {
    let pipeline = TestPipeline::new(Arrival::Flag, None, planted);
    let mut peer = pipeline.join(0, 0, 6);
    for id in 0..2 {
        pipeline.ask(&mut peer, id, 0.0);
    }
    let mut order: Vec<u32> = (0..2).map(|_| pipeline.turn().0.slot).collect();
    peer.execute(0);
    pipeline.idle();
    peer.answer(0).unwrap();
    for id in 10..15 {
        pipeline.ask(&mut peer, id, 0.0);
    }
    order.extend((0..5).map(|_| pipeline.turn().0.slot));
    order
}

#[test]
fn slots_have_their_turn() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(order(None), [0, 1, 2, 3, 4, 5, 0]);
    let planted = order(Some((0, "wait_inputs+DB_DEFECT_FROM_SLOT_0")));
    assert_eq!(planted, [0, 1, 0, 2, 3, 4, 5], "the defect is not seen");
}

fn old_flag(planted: Option<(usize, &'static str)>) -> State {
    let pipeline = TestPipeline::new(Arrival::Flag, None, planted);
    let _peer = pipeline.join(0, 0, 2);
    pipeline.served.core.flags.put(0, &flag(2)).unwrap();
    pipeline.turn().1
}

#[test]
fn a_flag_of_another_request_is_none() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(old_flag(None), State::None);
    assert_eq!(
        old_flag(Some((0, "wait_inputs+DB_DEFECT_ANY_FLAG"))),
        State::Request,
        "the defect is not seen"
    );
}

/// Whether an answer's prefix was sent as it is, under one seed.
fn is_whole(threads: u32, seed: u64, planted: Option<(usize, &'static str)>) -> bool {
    let pipeline = TestPipeline::by(threads, Arrival::Flag, Some(seed), planted, false);
    let mut peer = pipeline.join(0, 0, 1);
    pipeline.ask(&mut peer, 1, 1.0);
    for step in 0..3 {
        pipeline.steps.run(step, pipeline.served.core.wait, Arc::clone(&pipeline.served.core)).unwrap();
    }
    std::thread::scope(|scope| {
        let peer = &mut peer;
        let nic = scope.spawn(move || {
            let since = Instant::now();
            while peer.word(RECORD) >> 32 == 0 && since.elapsed() < Duration::from_secs(20) {
                std::hint::spin_loop();
            }
            peer.execute(0);
        });
        pipeline.steps.run(3, pipeline.served.core.wait, Arc::clone(&pipeline.served.core)).unwrap();
        nic.join().unwrap();
    });
    peer.answer(0).is_ok()
}

#[test]
fn an_answer_is_whole_before_the_nic_is_told_of_it() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert!([1, 32, 64].into_iter().all(|threads| (1..5).all(|seed| is_whole(threads, seed, None))));
    // The ringer has not met the threads that wrote the prefix. Mostly one of the first seeds shows it.
    let planted = Some((3, "send_outputs+DB_DEFECT_NO_SEND_SYNC"));
    assert!(!(1..1000).all(|seed| is_whole(32, seed, planted)), "the defect is not seen");
}

#[test]
fn a_pipeline_that_cannot_be_is_refused() {
    let machine = Machine::twin(Visibility::InOrder);
    let geometry = geometry();
    let good = Setting {
        geometry: &geometry,
        slots: 1,
        clients: 1,
        arrival: Arrival::Flag,
        place: Place::Gpu,
        inputs: &[64],
        outputs: &[64],
        wait: Duration::ZERO,
        threads: 1,
        copying: [1, 1],
    };
    for bad in
        [Setting { slots: 0, ..good }, Setting { inputs: &[], ..good }, Setting { outputs: &[65], ..good }]
    {
        assert!(matches!(Served::new(&machine, bad), Err(ServedError::Refused(_))));
    }
    let served = Served::new(&machine, good).unwrap();
    let error = served.wait_done(0, Duration::ZERO);
    assert!(error.is_ok() && served.is_done(0) && !served.is_running().unwrap());
}

#[test]
fn every_kernel_compiles_and_links() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    compile_and_link(toolkit, &units(), need::is_full());
}
