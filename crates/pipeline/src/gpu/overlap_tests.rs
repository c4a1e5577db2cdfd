//! What the kernel that stays does beside a running turn, on the host twin: the model waits for the test.

use measure::need;
use rdma_shim::kernel::{HostMemory, Source};
use rdma_shim::testing::wait_for;
use slots::layout::{Header, Status};

use super::resident_tests::{GOOD, LIMIT, add_one_at};
use super::runs::Threaded;
use super::tests::test_pipeline::{ANSWERS, Peer, RECORD, TestPipeline, geometry};
use super::tests::{PLANTED, has_compiler};
use super::*;

/// A test waits so long for what must not come.
const QUIET: Duration = Duration::from_millis(200);

/// A pipeline with a client of four slots, whose first request runs until the model is let go.
struct Running {
    pipeline: TestPipeline,
    peer: Peer,
    gate: HostMemory,
}

impl Running {
    /// `serve`: with a planted defect.
    fn new(serve: Option<&'static str>) -> Running {
        Running::of(serve, |_, _| ())
    }

    /// As [`Self::new`]; `prepare` is called before the kernel runs.
    fn of(serve: Option<&'static str>, prepare: impl FnOnce(&mut TestPipeline, &mut Peer)) -> Running {
        let mut running = Running::idle(serve, prepare);
        running.pipeline.ask(&mut running.peer, 1, 1.0);
        wait_for("the first request", || (running.sequence(0) == 1).then_some(()));
        running
    }

    /// As [`Self::of`], without a request.
    fn idle(serve: Option<&'static str>, prepare: impl FnOnce(&mut TestPipeline, &mut Peer)) -> Running {
        Running::with(4, serve, prepare)
    }

    /// As [`Self::idle`], whose client has so many slots.
    fn with(
        slots: u32,
        serve: Option<&'static str>,
        prepare: impl FnOnce(&mut TestPipeline, &mut Peer),
    ) -> Running {
        let mut pipeline = TestPipeline::of(Arrival::Flag, None, None, true);
        let mut peer = pipeline.join(0, 0, slots);
        pipeline.served.planted = serve.map(|name| (4, Source { twin: &PLANTED, ..resident::SOURCE }, name));
        let gate = pipeline.served.core.machine.host_memory(4096).unwrap();
        let entry = PLANTED.find(GOOD).unwrap().entry();
        let model = add_one_at(&pipeline.served, entry, 32, Some(&gate));
        pipeline.served.prepare_resident(model).unwrap();
        prepare(&mut pipeline, &mut peer);
        pipeline.served.start().unwrap();
        Running { pipeline, peer, gate }
    }

    /// Of the last request that was taken from a slot.
    fn sequence(&self, slot: u32) -> u32 {
        let core = &self.pipeline.served.core;
        let served: db_served = core.own[0].get(0).unwrap();
        let at = served.awaited - core.own[2].kernel_address() + 4 * u64::from(slot);
        core.own[2].get::<u32>(at as usize).unwrap() - 1
    }

    /// WQEs that the NIC was told of: two an answer.
    fn posted(&self) -> u32 {
        posted(&self.peer)
    }

    fn wait_posted(&self, count: u32) {
        wait_for("doorbell", || (self.posted() == count).then_some(()));
    }

    /// Whether that is so within a while; if it is due, the while is long.
    fn soon(&self, is_due: bool, is: impl Fn(&Running) -> bool) -> bool {
        let (since, patience) = (Instant::now(), if is_due { LIMIT } else { QUIET });
        while since.elapsed() < patience {
            if is(self) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Of the answer in the client's memory.
    fn header(&self, slot: u32) -> Header {
        let mut prefix = [0; slots::layout::PREFIX_BYTES];
        let at = ANSWERS + slot as usize * geometry().client_stride();
        self.peer.memory.read(at, &mut prefix).unwrap();
        Header::read(&prefix).unwrap()
    }

    fn let_go(&self) {
        self.gate.words()[0].store(u32::MAX, Ordering::Release);
    }

    fn end(mut self) {
        self.let_go();
        self.pipeline.served.stop(LIMIT).unwrap();
    }
}

fn posted(peer: &Peer) -> u32 {
    u32::from_be((peer.word(RECORD) >> 32) as u32)
}

#[test]
fn a_request_is_taken_beside_the_one_that_runs_and_answered_behind_it() {
    need!(has_compiler(), cc, "a C++ compiler");
    let mut running = Running::new(None);
    running.pipeline.ask(&mut running.peer, 2, 2.0);
    wait_for("the second request", || (running.sequence(1) == 1).then_some(()));
    // One ahead, no more.
    running.pipeline.ask(&mut running.peer, 3, 3.0);
    assert!(!running.soon(false, |running| running.sequence(2) == 1));
    assert_eq!(running.posted(), 0, "the model is not done");
    running.let_go();
    running.wait_posted(6);
    running.peer.execute(0);
    for (slot, value) in [(0, 2.0), (1, 3.0), (2, 4.0)] {
        assert_eq!(running.peer.answer(slot).unwrap(), (Status::Ok, Some(value)));
    }
    let begun = [0, 1].map(|slot| running.header(slot).begun_ns);
    assert!(begun[1] - begun[0] >= QUIET.as_nanos() as u64, "{begun:?}: it began behind the one that ran");
    running.end();
    let mut planted = Running::new(Some("serve+DB_DEFECT_NOT_DONE"));
    planted.pipeline.ask(&mut planted.peer, 2, 2.0);
    assert!(
        planted.soon(true, |running| running.posted() == 2),
        "an answer before its end: the defect is not seen"
    );
    planted.end();
}

/// Whether the answer of a request is posted at once while no other comes, and no wait ends by itself.
fn is_sent_alone(serve: Option<&'static str>) -> bool {
    let long = Duration::from_secs(600).as_nanos() as u64;
    let running = Running::of(serve, |pipeline, _| {
        pipeline.served.core.tell(offset_of!(db_served, wait_ns), &long.to_ne_bytes()).unwrap();
    });
    running.let_go();
    let sent = running.soon(serve.is_none(), |running| running.posted() == 2);
    running.end();
    sent
}

#[test]
fn a_lone_request_is_sent_as_soon_as_it_is_done() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert!(is_sent_alone(None));
    assert!(!is_sent_alone(Some("serve+DB_DEFECT_LOOKS_ON")), "the defect is not seen");
}

#[test]
fn a_slot_whose_request_runs_is_not_looked_at() {
    need!(has_compiler(), cc, "a C++ compiler");
    let is_taken = |serve| {
        let mut running = Running::new(serve);
        // Its client does not wait for the answer.
        let prefix = running.peer.client.ask(2, 0, 0, u64::MAX).unwrap().prefix;
        let early = Header { sequence: 2, slot: 0, ..Header::read(&prefix).unwrap() };
        running.pipeline.arrive(&mut running.peer, 0, 2, &geometry().request.prefix(&early), 70.0);
        let taken = running.soon(serve.is_some(), |running| running.sequence(0) == 2);
        running.end();
        taken
    };
    assert!(!is_taken(None));
    assert!(is_taken(Some("serve+DB_DEFECT_NO_SENDING")), "the defect is not seen");
}

#[test]
fn a_client_whose_request_runs_leaves_only_after_its_answer() {
    need!(has_compiler(), cc, "a C++ compiler");
    let leaves = |serve| {
        let running = Running::new(serve);
        running.pipeline.served.want(0);
        let gone = running.soon(serve.is_some(), |running| running.pipeline.served.is_done(0));
        running.let_go();
        wait_for("the client to be gone", || running.pipeline.served.is_done(0).then_some(()));
        let answered = running.pipeline.served.answered(0).unwrap()[0];
        running.end();
        (gone, answered)
    };
    assert_eq!(leaves(None), (false, 1));
    assert!(leaves(Some("serve+DB_DEFECT_NOT_HELD")).0, "the defect is not seen");
}

/// Status of a request that comes while another one of its client runs.
fn second(serve: Option<&'static str>, id: u64, limit: Option<u16>) -> Status {
    let mut running = Running::of(serve, |pipeline, _| {
        limit.into_iter().for_each(|limit| pipeline.served.limit(limit).unwrap());
    });
    let request = running.peer.client.ask(2, 0, 0, u64::MAX).unwrap();
    let header = Header { request_id: id, ..Header::read(&request.prefix).unwrap() };
    running.pipeline.arrive(&mut running.peer, 1, 1, &geometry().request.prefix(&header), 2.0);
    wait_for("the second request", || (running.sequence(1) == 1).then_some(()));
    running.let_go();
    running.wait_posted(4);
    running.peer.execute(0);
    let status = Status::of(running.header(1).status).unwrap();
    running.end();
    status
}

#[test]
fn the_request_that_runs_is_outstanding_for_the_next_one() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(second(None, 2, None), Status::Ok);
    assert_eq!(second(None, 1, None), Status::DuplicateId);
    assert_eq!(second(Some("serve+DB_DEFECT_TWICE"), 1, None), Status::Ok, "the defect is not seen");
    assert_eq!(second(None, 2, Some(2)), Status::Ok);
    assert_eq!(second(None, 2, Some(1)), Status::NoCredit);
    assert_eq!(second(Some("serve+DB_DEFECT_NO_LIMIT"), 2, Some(1)), Status::Ok, "the defect is not seen");
}

#[test]
fn a_refused_request_takes_no_credit_of_those_behind_it() {
    need!(has_compiler(), cc, "a C++ compiler");
    let mut running = Running::idle(None, |pipeline, peer| {
        pipeline.served.limit(2).unwrap();
        for id in 1..=4 {
            pipeline.ask(peer, id, 1.0);
        }
    });
    running.let_go();
    running.wait_posted(8);
    running.peer.execute(0);
    let statuses = [0, 1, 2, 3].map(|slot| Status::of(running.header(slot).status).unwrap());
    let [refused, served] = [Status::NoCredit, Status::Ok];
    assert_eq!(statuses, [refused, refused, served, served]);
    running.end();
}

#[test]
fn a_queue_that_fails_beside_its_request_is_told_of_no_answer() {
    need!(has_compiler(), cc, "a C++ compiler");
    let told = |serve| {
        let mut running = Running::new(serve);
        running.let_go();
        running.wait_posted(2);
        running.gate.words()[0].store(0, Ordering::Release);
        running.pipeline.ask(&mut running.peer, 2, 2.0);
        wait_for("the second request", || (running.sequence(1) == 1).then_some(()));
        // An error CQE of a requester.
        running.peer.execute(13);
        wait_for("the failure", || running.pipeline.served.failure(0).unwrap());
        running.let_go();
        running.pipeline.served.wait_end(LIMIT).unwrap();
        running.posted()
    };
    assert_eq!(told(None), 2);
    assert_eq!(told(Some("serve+DB_DEFECT_SENDS_ANYWAY")), 4, "the defect is not seen");
}

/// A pipeline whose blocks wait so long for one another, and whose I/O block so long for a request.
fn limited(served: &mut Served, limit: Duration, wait: Duration) {
    let Runs::Thread { of: Threaded::Resident(kernel), .. } = &mut served.runs else {
        panic!("a resident kernel")
    };
    Arc::get_mut(kernel).unwrap().limit = limit;
    let wait = wait.as_nanos() as u64;
    served.core.tell(offset_of!(db_served, wait_ns), &wait.to_ne_bytes()).unwrap();
}

#[test]
fn a_block_that_another_waits_for_too_long_ends_the_kernel() {
    need!(has_compiler(), cc, "a C++ compiler");
    let ends = |running: &mut Running| running.pipeline.served.wait_end(LIMIT).unwrap_err().to_string();
    // The I/O block waits for the model: for its end, and between two looks for a request.
    for wait in [5 * QUIET, Duration::from_millis(1)] {
        let mut running = Running::of(None, |pipeline, _| limited(&mut pipeline.served, QUIET / 2, wait));
        std::thread::sleep(QUIET);
        running.let_go();
        let error = ends(&mut running);
        assert!(error.contains("waited longer than 100ms"), "{wait:?}: {error}");
    }
    // The model waits for an offer.
    let mut running = Running::idle(None, |pipeline, _| limited(&mut pipeline.served, QUIET / 2, 2 * QUIET));
    let error = ends(&mut running);
    assert!(error.contains("waited longer than 100ms"), "{error}");
}

/// The clients of six turns that run one by one; one has a slot, one has five, and each asks again in a slot
/// once answered there.
fn clients_that_ask_again(serve: Option<&'static str>) -> Vec<usize> {
    let mut many = None;
    let mut running = Running::with(1, serve, |pipeline, one| {
        // What the NIC has sent is seen by chance otherwise.
        pipeline.served.core.tell(offset_of!(db_served, attend_ns), &u64::MAX.to_ne_bytes()).unwrap();
        let mut peer = pipeline.join(1, 1, 5);
        pipeline.ask(one, 0, 0.0);
        for id in 0..5 {
            pipeline.ask(&mut peer, id, 0.0);
        }
        many = Some(peer);
    });
    let mut many = many.unwrap();
    let turn = |nth: u32| {
        let before = [posted(&running.peer), posted(&many)];
        running.gate.words()[0].store(nth, Ordering::Release);
        let client = wait_for("an answer", || {
            let now = [posted(&running.peer), posted(&many)];
            (0..2).find(|&client| now[client] == before[client] + 2)
        });
        let (peer, slot) =
            if client == 0 { (&mut running.peer, 0) } else { (&mut many, 1 + before[1] / 2 % 5) };
        peer.execute(0);
        peer.answer(slot).unwrap();
        running.pipeline.ask(peer, u64::from(100 + nth), 0.0);
        client
    };
    let clients = (1..=6).map(turn).collect();
    running.end();
    clients
}

#[test]
fn a_client_of_one_slot_has_its_turn_beside_one_that_has_always_a_request() {
    need!(has_compiler(), cc, "a C++ compiler");
    // Its next request comes beside the second turn. The third may have been found before.
    let clients = clients_that_ask_again(None);
    assert!(clients[0] == 0 && clients[2..5].contains(&0), "{clients:?}");
    let planted = clients_that_ask_again(Some("serve+DB_DEFECT_PASSED_FOR_LONG"));
    assert_eq!(planted, [0, 1, 1, 1, 1, 1], "the defect is not seen");
}

/// Answers of four requests that wait, of which the first one runs when the host wants the end.
fn answers_of_a_stop(serve: Option<&'static str>) -> u32 {
    let mut running = Running::new(serve);
    for id in 2..=4 {
        running.pipeline.ask(&mut running.peer, id, 1.0);
    }
    wait_for("the second request", || (running.sequence(1) == 1).then_some(()));
    running.pipeline.served.mark_stop().unwrap();
    running.let_go();
    running.pipeline.served.wait_end(LIMIT).unwrap();
    running.posted() / 2
}

#[test]
fn a_stop_ends_it_though_there_are_requests() {
    need!(has_compiler(), cc, "a C++ compiler");
    // The wait for the third request sees the mark.
    assert_eq!(answers_of_a_stop(None), 3);
    assert_eq!(answers_of_a_stop(Some("serve+DB_DEFECT_STOPS_LATE")), 4, "the defect is not seen");
}
