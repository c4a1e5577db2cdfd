//! The order of requests, which one is refused, and when one is whole.

use super::*;

/// One thread looks at all slots, some at once; a second warp looks for numbers that are outstanding.
const THREADS: [u32; 3] = [1, 32, 64];

/// The clients of six turns; one has four slots and one has two, and each has a request in each.
fn clients(threads: u32, planted: Option<(usize, &'static str)>) -> Vec<u32> {
    let pipeline = TestPipeline::by(threads, Arrival::Flag, None, planted, false);
    let mut peers = [pipeline.join(0, 0, 4), pipeline.join(1, 4, 2)];
    for peer in &mut peers {
        for id in 0..u64::from(peer.count) {
            pipeline.ask(peer, id, 0.0);
        }
    }
    (0..6).map(|_| pipeline.turn().0.client).collect()
}

#[test]
fn clients_have_their_turn_however_many_slots_one_has() {
    need!(has_compiler(), cc, "a C++ compiler");
    for threads in THREADS {
        assert_eq!(clients(threads, None), [0, 1, 0, 1, 0, 0], "{threads} threads");
    }
    let planted = clients(32, Some((0, "wait_inputs+DB_DEFECT_SLOTS_IN_TURN")));
    assert_ne!(planted, [0, 1, 0, 1, 0, 0], "the defect is not seen");
}

/// The clients of six turns; one has a slot, one has five, and each asks again in a slot once answered there.
fn clients_that_ask_again(planted: Option<(usize, &'static str)>) -> Vec<u32> {
    let pipeline = TestPipeline::new(Arrival::Flag, None, planted);
    // What the NIC has sent is seen by chance otherwise.
    pipeline.served.core.tell(offset_of!(db_served, attend_ns), &u64::MAX.to_ne_bytes()).unwrap();
    let mut peers = [pipeline.join(0, 0, 1), pipeline.join(1, 1, 5)];
    for peer in &mut peers {
        for id in 0..u64::from(peer.count) {
            pipeline.ask(peer, id, 0.0);
        }
    }
    let mut turn = |nth: u64| {
        let turn = pipeline.turn().0;
        let peer = &mut peers[turn.client as usize];
        peer.execute(0);
        peer.answer(turn.slot).unwrap();
        pipeline.ask(peer, 100 + nth, 0.0);
        turn.client
    };
    (0..6).map(&mut turn).collect()
}

#[test]
fn a_client_of_one_slot_has_its_turn_beside_one_that_has_always_a_request() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(clients_that_ask_again(None), [0, 1, 0, 1, 0, 1]);
    let planted = clients_that_ask_again(Some((0, "wait_inputs+DB_DEFECT_PASSED_FOR_LONG")));
    assert_eq!(planted, [0, 1, 1, 1, 1, 1], "the defect is not seen");
}

/// Statuses of three requests that wait together, of a client that may have two and has four slots.
fn beyond_the_limit(threads: u32, planted: Option<(usize, &'static str)>) -> Vec<Option<Status>> {
    let mut pipeline = TestPipeline::by(threads, Arrival::Flag, None, planted, false);
    pipeline.served.limit(2).unwrap();
    // Its state machine is not told.
    let mut peer = pipeline.join(0, 0, 4);
    for id in 0..3 {
        pipeline.ask(&mut peer, id, 0.0);
    }
    (0..3).map(|_| Status::of(pipeline.turn().0.status as u16)).collect()
}

#[test]
fn a_request_beyond_the_client_s_limit_is_refused() {
    need!(has_compiler(), cc, "a C++ compiler");
    let [refused, served] = [Some(Status::NoCredit), Some(Status::Ok)];
    for threads in THREADS {
        assert_eq!(beyond_the_limit(threads, None), [refused, served, served], "{threads} threads");
    }
    let planted = beyond_the_limit(32, Some((0, "wait_inputs+DB_DEFECT_NO_LIMIT")));
    assert_eq!(planted, [served; 3], "the defect is not seen");
}

/// Statuses of two requests of one number, and of a third one when both are answered.
fn of_one_number(threads: u32, planted: Option<(usize, &'static str)>) -> [u32; 3] {
    let pipeline = TestPipeline::by(threads, Arrival::Flag, Some(3), planted, false);
    let mut peer = pipeline.join(0, 0, 2);
    pipeline.ask(&mut peer, 1, 1.0);
    let second = peer.client.ask(2, 0, 0, u64::MAX).unwrap();
    let header = Header { request_id: 1, ..Header::read(&second.prefix).unwrap() };
    pipeline.arrive(&mut peer, second.slot, second.sequence, &geometry().request.prefix(&header), 2.0);
    let [one, two] = [(), ()].map(|()| pipeline.turn().0.status);
    peer.execute(0);
    pipeline.idle();
    let third = Header { sequence: 2, ..header };
    pipeline.arrive(&mut peer, second.slot, 2, &geometry().request.prefix(&third), 3.0);
    [one, two, pipeline.turn().0.status]
}

#[test]
fn a_number_that_is_outstanding_is_refused_and_may_be_used_again_when_it_is_answered() {
    need!(has_compiler(), cc, "a C++ compiler");
    let [ok, twice] = [Status::Ok, Status::DuplicateId].map(|status| u32::from(status.number()));
    for threads in THREADS {
        assert_eq!(of_one_number(threads, None), [ok, twice, ok], "{threads} threads");
    }
    let planted = of_one_number(32, Some((0, "wait_inputs+DB_DEFECT_TWICE")));
    assert_eq!(planted, [ok, ok, ok], "the defect is not seen");
}

/// What the client has of an answer read only after two idle turns, while the slot's next request arrives.
fn read_while_nothing_is_served(planted: Option<(usize, &'static str)>) -> Option<f32> {
    let pipeline = TestPipeline::of(Arrival::Flag, Some(6), planted, true);
    let mut peer = pipeline.join(0, 0, 1);
    let request = pipeline.ask(&mut peer, 1, 7.0);
    assert_eq!(pipeline.turn().1, State::Request);
    // The client's next request has begun to arrive: its flag has not.
    let at = geometry().request.entries()[0].offset as usize;
    pipeline.served.core.slots.write(at, &50.0_f32.to_le_bytes().repeat(FLOATS)).unwrap();
    pipeline.idle();
    pipeline.idle();
    peer.execute(0);
    peer.answer(request.slot).ok().and_then(|(_, value)| value)
}

#[test]
fn a_model_in_the_slots_writes_nobodys_answer_while_nothing_is_served() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(read_while_nothing_is_served(None), Some(8.0));
    // With the slot of the request before in the place of the spare one.
    let planted = read_while_nothing_is_served(Some((0, "wait_inputs+DB_DEFECT_ALWAYS_IN_SLOT")));
    assert_ne!(planted, Some(8.0), "the defect is not seen");
}

/// Whether a bad request's slot is left alone by a model that works in slots.
#[test]
fn a_bad_request_is_computed_in_the_spare_slot() {
    need!(has_compiler(), cc, "a C++ compiler");
    let pipeline = TestPipeline::of(Arrival::Flag, None, None, true);
    let mut peer = pipeline.join(0, 0, 2);
    let slot = pipeline.ask_bad(&mut peer, 1);
    let (turn, state) = pipeline.turn();
    assert_eq!((state, turn.slot, turn.model_slot), (State::Request, slot, 6));
    peer.execute(0);
    assert_eq!(peer.answer(slot).unwrap().0, Status::BadModel);
    let tensor = geometry().answer_offset() + geometry().answer.entries()[0].offset as usize;
    let computed: u64 =
        pipeline.served.core.slots.get(slot as usize * geometry().server_stride() + tensor).unwrap();
    assert_eq!(computed, 0, "the model wrote into the slot of a bad request");
}

#[test]
fn a_client_whose_requests_come_as_completions_has_no_flag_to_write() {
    need!(has_compiler(), cc, "a C++ compiler");
    let pipeline = TestPipeline::new(Arrival::Completion, None, None);
    let _peer = pipeline.join(0, 0, 2);
    pipeline.idle();
    pipeline.served.core.flags.put(0, &flag(1)).unwrap();
    pipeline.idle();
}

/// States after a request's flag, and after its last bytes.
fn of_half_a_request(unreliable: u32, planted: Option<(usize, &'static str)>) -> [State; 2] {
    let pipeline = TestPipeline::new(Arrival::Flag, Some(4), planted);
    let mut peer = pipeline.join_by(0, 0, 1, unreliable);
    let request = pipeline.ask(&mut peer, 1, 1.0);
    let before = pipeline.turn().1;
    pipeline.served.core.slots.put(geometry().request.tail, &flag(request.sequence)).unwrap();
    [before, pipeline.turn().1]
}

#[test]
fn without_a_reliable_connection_a_flag_is_believed_with_the_last_bytes_alone() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(of_half_a_request(1, None), [State::None, State::Request]);
    assert_eq!(of_half_a_request(0, None), [State::Request, State::None]);
    let planted = of_half_a_request(1, Some((0, "wait_inputs+DB_DEFECT_NO_TAIL")));
    assert_eq!(planted, [State::Request, State::None], "the defect is not seen");
}

/// Status of a request whose flag precedes its header, while one of an earlier header's number is served.
fn behind_its_flag(planted: Option<(usize, &'static str)>) -> u32 {
    let pipeline = TestPipeline::new(Arrival::Flag, Some(4), planted);
    let mut peer = pipeline.join_by(0, 0, 2, 1);
    let end = |slot: usize| {
        let tail = slot * geometry().server_stride() + geometry().request.tail;
        pipeline.served.core.slots.put(tail, &flag(1)).unwrap();
    };
    pipeline.ask(&mut peer, 1, 1.0);
    let second = peer.client.ask(2, 0, 0, u64::MAX).unwrap();
    let earlier = Header { request_id: 1, ..Header::read(&second.prefix).unwrap() };
    pipeline.arrive(&mut peer, 1, 1, &geometry().request.prefix(&earlier), 0.0);
    end(0);
    assert_eq!(pipeline.turn().0.slot, 0);
    pipeline.arrive(&mut peer, 1, 1, &second.prefix, 2.0);
    end(1);
    pipeline.turn().0.status
}

#[test]
fn the_number_of_half_a_request_is_not_compared() {
    need!(has_compiler(), cc, "a C++ compiler");
    let [ok, twice] = [Status::Ok, Status::DuplicateId].map(|status| u32::from(status.number()));
    assert_eq!(behind_its_flag(None), ok);
    assert_eq!(behind_its_flag(Some((3, "send_outputs+DB_DEFECT_NO_TAIL"))), twice, "the defect is not seen");
}

#[test]
fn requests_are_refused_when_all_are_to_be() {
    need!(has_compiler(), cc, "a C++ compiler");
    let mut pipeline = TestPipeline::new(Arrival::Flag, None, None);
    pipeline.served.refuse(Some(Status::Stopping)).unwrap();
    let mut peer = pipeline.join(0, 0, 1);
    pipeline.ask(&mut peer, 1, 1.0);
    assert_eq!(pipeline.turn().0.status, u32::from(Status::Stopping.number()));
    peer.execute(0);
    assert_eq!(peer.answer(0).unwrap().0, Status::Stopping);
    pipeline.served.refuse(None).unwrap();
    pipeline.ask(&mut peer, 2, 1.0);
    pipeline.turn();
    peer.execute(0);
    assert_eq!(peer.answer(0).unwrap(), (Status::Ok, Some(2.0)));
}

#[test]
fn a_queue_that_fails_ends_the_chain_of_turns() {
    need!(has_compiler(), cc, "a C++ compiler");
    let pipeline = TestPipeline::new(Arrival::Flag, Some(2), None);
    let cancel = &pipeline.served.core.shared;
    pipeline.served.ends(cancel.kernel_address()).unwrap();
    let mut peer = pipeline.join(0, 0, 1);
    pipeline.ask(&mut peer, 1, 1.0);
    assert_eq!(pipeline.turn().1, State::Request);
    assert_eq!(cancel.words()[0].load(Ordering::Acquire), 0);
    // An error CQE of a requester.
    peer.execute(13);
    // On a busy machine the time of a wait may be over before its first look, many times in a row.
    let since = Instant::now();
    let mut last = State::None;
    while last == State::None && since.elapsed() < Duration::from_secs(60) {
        last = pipeline.turn().1;
    }
    assert_eq!(last, State::Stop);
    assert_eq!(cancel.words()[0].load(Ordering::Acquire), 1);
    assert!(pipeline.served.failure(0).unwrap().is_some());
}

/// How many requests of a client that always has one in each slot find a receive, of 40.
fn received(planted: Option<(usize, &'static str)>) -> usize {
    let pipeline = TestPipeline::new(Arrival::Completion, None, planted);
    let mut peer = pipeline.join(0, 0, 2);
    let mut asked = 0;
    for _ in 0..40 {
        // A slot's next request arrives as soon as its answer does.
        while asked < 40 && peer.client.outstanding() < 2 {
            if !peer.has_receive() {
                return asked;
            }
            pipeline.ask(&mut peer, asked as u64, 1.0);
            asked += 1;
        }
        let (turn, state) = pipeline.turn();
        assert_eq!(state, State::Request);
        peer.execute(0);
        assert_eq!(peer.answer(turn.slot).unwrap(), (Status::Ok, Some(2.0)));
    }
    asked
}

#[test]
fn each_request_of_a_client_finds_a_receive() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(received(None), 40);
    assert!(received(Some((0, "wait_inputs+DB_DEFECT_LATE_REFILL"))) < 40, "the defect is not seen");
}

/// Stray completions that one turn takes which serves the request of the first completion.
fn taken_of_a_flood(planted: Option<(usize, &'static str)>) -> u64 {
    let pipeline = TestPipeline::new(Arrival::Completion, None, planted);
    let mut peer = pipeline.join(0, 0, 2);
    pipeline.ask(&mut peer, 1, 1.0);
    (0..9).for_each(|_| peer.receive(5));
    assert_eq!(pipeline.turn().1, State::Request);
    pipeline.served.counters().strays
}

#[test]
fn a_flood_of_completions_does_not_hold_up_a_turn() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert!(taken_of_a_flood(None) < 2);
    assert_eq!(taken_of_a_flood(Some((0, "wait_inputs+DB_DEFECT_FLOOD"))), 9, "the defect is not seen");
}

#[test]
fn a_client_that_takes_no_answer_is_given_up_after_a_while() {
    need!(has_compiler(), cc, "a C++ compiler");
    let pipeline = TestPipeline::new(Arrival::Flag, None, None);
    let patience = Duration::from_millis(1).as_nanos() as u64;
    pipeline.served.core.tell(offset_of!(db_served, patience_ns), &patience.to_ne_bytes()).unwrap();
    let mut peers = [pipeline.join(0, 0, 1), pipeline.join(1, 1, 1)];
    pipeline.ask(&mut peers[0], 1, 1.0);
    assert_eq!(pipeline.turn().1, State::Request);
    assert_eq!(pipeline.served.failure(0).unwrap(), None);
    // A wait lasts for longer than that.
    pipeline.idle();
    let failure = pipeline.served.failure(0).unwrap().unwrap();
    assert_eq!((failure.reason, failure.qpn), (rdma_shim::kernel::Reason::Deadline, QPN));
    pipeline.ask(&mut peers[1], 1, 2.0);
    assert_eq!(pipeline.turn().0.slot, 1);
    peers[1].execute(0);
    pipeline.idle();
    assert_eq!(pipeline.served.failure(1).unwrap(), None);
}
