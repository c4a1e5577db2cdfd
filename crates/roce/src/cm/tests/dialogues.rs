//! Conversations without faults, one rule each.

use super::*;

const END: Now = Now(u64::MAX);

#[test]
fn a_connection_is_made_and_ended_as_linux_does_it() {
    let mut net = Net::new(1, Faults::default());
    let [asking, asked] = net.connect();
    assert_eq!(net.said(), "0:REQ 1:REP 0:RTU");
    let ours = net.ends[0].attributes(asking).unwrap();
    let theirs = net.ends[1].attributes(asked).unwrap();
    assert_eq!((ours.qpn, theirs.qpn), (QPNS[1], QPNS[0]));
    // Each end names the PSN that the other sends with.
    assert_eq!((ours.starting_psn, theirs.starting_psn), (0x222, 0x111));
    assert_eq!((ours.responder_resources, ours.initiator_depth), (3, 2));
    assert_eq!((theirs.responder_resources, theirs.initiator_depth), (2, 3));
    assert_eq!((ours.rnr_retry, theirs.rnr_retry, ours.retry, theirs.retry), (5, 6, 7, 7));
    assert_eq!((ours.primary.ack_timeout, theirs.primary.ack_timeout), (19, 19));
    assert_eq!((ours.primary.local_gid, theirs.primary.local_gid), (gid(0), gid(1)));
    assert_eq!((ours.primary.remote_gid, theirs.primary.remote_gid), (gid(1), gid(0)));

    net.ends[0].disconnect(net.now, asking, b"").unwrap();
    let Some((1, Event { cause: Cause::Received(Message::Dreq(_), _), .. })) = net.next_event(END) else {
        panic!()
    };
    net.ends[1].disconnect(net.now, asked, b"").unwrap();
    let Some((0, Event { cause: Cause::Received(Message::Drep(_), _), .. })) = net.next_event(END) else {
        panic!()
    };
    assert_eq!(net.said(), "0:DREQ 1:DREP");
    for _ in 0..2 {
        assert!(matches!(net.next_event(END), Some((_, Event { cause: Cause::TimeWaitOver, .. }))));
    }
    assert_eq!((net.ends[0].connections(), net.ends[1].connections()), (0, 0));
    assert_eq!(net.ends[1].poll_timeout(), None);
}

#[test]
fn private_data_arrives_in_both_directions_and_too_much_of_it_is_refused() {
    let mut net = Net::new(1, Faults::default());
    net.ends[1].listen(SERVICE, None, 8).unwrap();
    let long = [7; 93];
    let refused = net.ends[0].connect(net.now, &request(), &long);
    assert_eq!(refused, Err(CmError::PrivateData { have: 93 }));
    assert_eq!(net.ends[0].connections(), 0, "nothing was begun");
    net.ends[0].connect(net.now, &request(), &long[..92]).unwrap();
    let Some((1, Event { id, cause: Cause::Received(Message::Req(_), private), .. })) = net.next_event(END)
    else {
        panic!()
    };
    assert_eq!(private, [7; 92]);
    // Before it is answered: what they hold, we may have outstanding, and the other way round.
    let asked = net.ends[1].attributes(id).unwrap();
    assert_eq!((asked.responder_resources, asked.initiator_depth), (2, 3));
    assert!(net.ends[1].accept(net.now, id, &reply(), &[8; 197]).is_err());
    net.ends[1].accept(net.now, id, &reply(), &[8; 196]).unwrap();
    let Some((0, Event { cause: Cause::Received(Message::Rep(_), private), .. })) = net.next_event(END)
    else {
        panic!()
    };
    assert_eq!(private, [8; 196]);
}

#[test]
fn a_request_is_refused_by_nobody_listening_by_the_program_and_by_letting_it_go() {
    for (listens, by, why) in
        [(false, "", reason::INVALID_SERVICE_ID), (true, "reject", 28), (true, "release", 28)]
    {
        let mut net = Net::new(1, Faults::default());
        if listens {
            net.ends[1].listen(SERVICE, Some(gid(1)), 8).unwrap();
        }
        let asking = net.ends[0].connect(net.now, &request(), b"").unwrap();
        if listens {
            let Some((1, Event { id, cause: Cause::Received(Message::Req(_), _), .. })) = net.next_event(END)
            else {
                panic!()
            };
            match by {
                "reject" => net.ends[1].reject(net.now, id, reason::CONSUMER, &[], b"no").unwrap(),
                _ => net.ends[1].release_connection(net.now, id),
            }
        }
        let Some((0, Event { cause: Cause::Received(Message::Rej(rej), private), .. })) = net.next_event(END)
        else {
            panic!("{by}")
        };
        assert_eq!((rej.reason, rej.message), (why, 0), "{by}");
        assert_eq!(private.len(), 148);
        assert_eq!(private.starts_with(b"no"), by == "reject");
        assert_eq!(net.said(), "0:REQ 1:REJ");
        assert_eq!(net.ends[0].state(asking), None);
        assert_eq!(net.ends[1].connections(), 0);
    }
}

#[test]
fn nobody_there_is_unreachable_exactly_when_the_request_says() {
    let mut net = Net::new(1, Faults { lost: 100, ..Faults::default() });
    let begun = net.now;
    net.ends[0].connect(net.now, &request(), b"").unwrap();
    assert!(matches!(net.next_event(END), Some((0, Event { cause: Cause::Unreachable, .. }))));
    // The first and 15 more, each 4.096 us * 2^20 for the answer and twice 4.096 us * 2^18 for the way.
    let each = (4_096 << 20) + 2 * (4_096 << 18);
    assert_eq!(net.now.0 - begun.0, 16 * each);
    assert_eq!(net.said(), ["0:REQ"; 16].join(" "));
    assert_eq!(net.ends[0].counters().repeated, 15);
}

#[test]
fn a_program_that_takes_its_time_is_waited_for() {
    let mut net = Net::new(1, Faults::default());
    net.ends[1].listen(SERVICE, None, 8).unwrap();
    net.ends[0].connect(net.now, &request(), b"").unwrap();
    let Some((1, Event { id, cause: Cause::Received(Message::Req(_), _), .. })) = net.next_event(END) else {
        panic!()
    };
    net.ends[1].postpone(id, 24).unwrap();
    assert_eq!(net.said(), "0:REQ", "nothing is said before it is asked again");
    assert_eq!(net.next_event(Now(60_000_000_000)), None);
    assert_eq!(net.said(), "0:REQ 1:MRA");
    net.ends[1].accept(net.now, id, &reply(), b"").unwrap();
    assert!(matches!(
        net.next_event(END),
        Some((0, Event { cause: Cause::Received(Message::Rep(_), _), .. }))
    ));
}

#[test]
fn answers_that_were_lost_are_given_again() {
    for (lost, said) in [("REP", "0:REQ 1:REP 0:REQ 1:REP 0:RTU"), ("RTU", "0:REQ 1:REP 0:RTU 1:REP 0:RTU")] {
        let mut net = Net::new(1, Faults::default());
        net.ends[1].listen(SERVICE, None, 8).unwrap();
        let mut req = request();
        // The side that must not ask again first is slow.
        let slow = |code: &mut u8| *code = 24;
        if lost == "REP" {
            slow(&mut req.local_response_timeout)
        } else {
            slow(&mut req.remote_response_timeout)
        }
        let asking = net.ends[0].connect(net.now, &req, b"").unwrap();
        let Some((1, Event { id, cause: Cause::Received(Message::Req(_), _), .. })) = net.next_event(END)
        else {
            panic!()
        };
        net.ends[1].accept(net.now, id, &reply(), b"").unwrap();
        if lost == "REP" {
            net.collect();
            net.flying.clear();
        }
        let Some((0, Event { cause: Cause::Received(Message::Rep(_), _), .. })) = net.next_event(END) else {
            panic!()
        };
        net.ends[0].ready(asking, b"").unwrap();
        if lost == "RTU" {
            net.collect();
            net.flying.clear();
        }
        let Some((1, Event { cause: Cause::Received(Message::Rtu(_), _), .. })) = net.next_event(END) else {
            panic!()
        };
        assert_eq!(net.said(), said, "{lost}");
        assert_eq!(net.ends.iter().map(|end| end.counters().answered_again).sum::<u64>(), 1);
    }
}

#[test]
fn who_has_forgotten_a_connection_answers_its_end_and_the_other_rests() {
    let mut net = Net::new(1, Faults::default());
    let [asking, _] = net.connect();
    net.ends[1] = cm(2);
    net.said();
    net.ends[0].disconnect(net.now, asking, b"").unwrap();
    let Some((0, Event { cause: Cause::Received(Message::Drep(_), _), .. })) = net.next_event(END) else {
        panic!()
    };
    assert_eq!(net.said(), "0:DREQ 1:DREP");
    assert_eq!(net.ends[0].state(asking), Some(State::TimeWait));
}

#[test]
fn an_end_that_is_not_answered_is_an_end_all_the_same() {
    let mut net = Net::new(1, Faults::default());
    let [asking, asked] = net.connect();
    net.faults.lost = 100;
    net.ends[0].disconnect(net.now, asking, b"").unwrap();
    let Some((0, Event { cause: Cause::Unanswered, .. })) = net.next_event(END) else { panic!() };
    assert_eq!(net.ends[1].state(asked), Some(State::Established));
}

#[test]
fn both_ends_may_end_a_connection_at_once() {
    let mut net = Net::new(1, Faults::default());
    let [asking, asked] = net.connect();
    net.ends[0].release_connection(net.now, asking);
    net.ends[1].release_connection(net.now, asked);
    assert_eq!(net.next_event(END), None, "nobody is left to tell");
    assert_eq!((net.ends[0].connections(), net.ends[1].connections()), (0, 0));
    assert_eq!(net.said(), "0:REQ 1:REP 0:RTU 0:DREQ 1:DREQ 1:DREP 0:DREP");
}

#[test]
fn a_queue_pair_that_asks_anew_ends_its_old_connection() {
    let mut net = Net::new(1, Faults::default());
    let [_, asked] = net.connect();
    // Its process began anew, with other ids.
    net.ends[0] = Cm::new(CmConfig { slot: 1, seed: 0x9999, max_connections: 9 });
    net.said();
    net.ends[0].connect(net.now, &request(), b"").unwrap();
    let mut told = Vec::new();
    while let Some((end, event)) = net.next_event(Now(net.now.0 + 10_000_000)) {
        told.push(match event {
            Event { cause: Cause::Received(Message::Rej(rej), _), .. } => {
                format!("{end} rejected {}", rej.reason)
            }
            Event { cause: Cause::Received(Message::Drep(_), _), .. } => format!("{end} Answered"),
            other => format!("{end} {other:?}"),
        });
    }
    assert_eq!(told, ["0 rejected 10", "1 Answered"]);
    assert_eq!(net.said(), "0:REQ 1:REJ 1:DREQ 0:DREP");
    assert_eq!(net.ends[1].state(asked), Some(State::TimeWait));
}

#[test]
fn a_listener_takes_as_many_as_its_backlog_and_the_rest_asks_again() {
    let mut net = Net::new(1, Faults::default());
    net.ends[1].listen(SERVICE, None, 2).unwrap();
    for qpn in 0..3 {
        net.ends[0].connect(net.now, &Req { qpn, ..request() }, b"").unwrap();
    }
    let soon = Now(1_000_000);
    let mut asked = Vec::new();
    while let Some((1, Event { id, cause: Cause::Received(Message::Req(_), _), .. })) = net.next_event(soon) {
        asked.push(id);
    }
    assert_eq!((asked.len(), net.ends[1].counters().full), (2, 1));
    net.ends[1].accept(net.now, asked[0], &reply(), b"").unwrap();
    let third = std::iter::from_fn(|| net.next_event(Now(20_000_000_000))).any(|(end, event)| {
        end == 1 && matches!(event, Event { cause: Cause::Received(Message::Req(_), _), .. })
    });
    assert!(third, "asked again, and there is room");
}

#[test]
fn a_datagram_service_is_found_refused_or_not_there_and_asked_once() {
    for (listens, answers, status) in [(true, true, 0), (true, false, 2), (false, false, 1)] {
        let mut net = Net::new(1, Faults { doubled: 100, delay_ns: 500, ..Faults::default() });
        if listens {
            net.ends[1].listen(SERVICE, None, 8).unwrap();
        }
        let question = Req { max_cm_retries: 3, ..request() };
        net.ends[0].send_sidr_req(net.now, &question, b"ask").unwrap();
        if listens {
            let Some((1, Event { id, cause: Cause::Received(Message::SidrReq(_), private), .. })) =
                net.next_event(END)
            else {
                panic!()
            };
            assert_eq!((private.len(), &private[..3]), (216, &b"ask"[..]));
            if answers {
                let rep = SidrRep {
                    request: 0,
                    status: 0,
                    info_bytes: 0,
                    qpn: 0x14,
                    service: 0,
                    qkey: 0x0123_4567,
                    info: [0; 72],
                };
                net.ends[1].send_sidr_rep(id, &rep, b"me").unwrap();
            } else {
                net.ends[1].release_connection(net.now, id);
            }
        }
        let Some((0, Event { cause: Cause::Received(Message::SidrRep(rep), private), .. })) =
            net.next_event(END)
        else {
            panic!()
        };
        assert_eq!((rep.status, rep.service, private.len()), (status, SERVICE, 136));
        assert_eq!(rep.qpn, if answers { 0x14 } else { 0 });
        if answers {
            assert_eq!(net.next_event(END), None, "the doubled question asks nobody again");
        }
        assert_eq!(net.ends[0].connections(), 0);
    }
}

#[test]
fn a_process_that_ended_without_a_word_is_spoken_for() {
    let mut net = Net::new(1, Faults::default());
    let [asking, asked] = net.connect();
    net.said();
    net.ends[0].close_process(net.now, 3, &[], |_| true);
    net.ends[0].close_process(net.now, 2, &[], |address| address != gid(1));
    assert_eq!(net.ends[0].state(asking), Some(State::Established), "another slot, or another host");
    net.ends[0].close_process(net.now, 2, &[], |address| address == gid(1));
    assert!(matches!(
        net.ends[0].poll_event(),
        Some(Event { cause: Cause::Received(Message::Dreq(_), _), .. })
    ));
    // Halfway: a program that was about to answer is told that it need not.
    let other = net.ends[0].connect(net.now, &Req { qpn: 5, ..request() }, b"").unwrap();
    let Some((1, Event { id, cause: Cause::Received(Message::Req(_), _), .. })) = net.next_event(END) else {
        panic!()
    };
    net.ends[1].accept(net.now, id, &Rep { qpn: 6, ..reply() }, b"").unwrap();
    net.ends[1].close_process(net.now, 1, &[], |_| true);
    let told: Vec<Event> = std::iter::from_fn(|| net.ends[1].poll_event()).collect();
    assert!(
        matches!(
            told[..],
            [
                Event { cause: Cause::Received(Message::Dreq(_), _), .. },
                Event { cause: Cause::Received(Message::Rej(_), _), .. }
            ]
        ),
        "{told:?}"
    );
    assert_eq!((net.ends[1].state(asked), net.ends[1].state(id)), (Some(State::DreqReceived), None));
    assert!(net.ends[0].state(other).is_some());
    // A process that took a request and said nothing is known by the request alone.
    let [mine, another] =
        [7, 8].map(|qpn| net.ends[0].connect(net.now, &Req { qpn, ..request() }, b"").unwrap());
    while net.ends[0].poll_event().is_some() {}
    net.ends[0].close_process(net.now, 2, &[mine.0], |address| address != gid(1));
    assert_eq!(net.ends[0].poll_event(), None, "another host");
    net.ends[0].close_process(net.now, 2, &[mine.0], |_| true);
    let Some(Event { id, cause: Cause::Received(Message::Rej(rej), _), .. }) = net.ends[0].poll_event()
    else {
        panic!("not refused")
    };
    assert_eq!((id, rej.reason), (mine, reason::CONSUMER));
    assert_eq!(net.ends[0].state(another), Some(State::ReqSent));
}

#[test]
fn the_owner_of_qp1_refuses_for_who_is_not_there() {
    let of = |message| {
        let mad = CmMad { transaction: 9, message, private: &[] }.encode().unwrap();
        refuse(&mad).map(|answer| {
            let answer = CmMad::decode(&*answer).unwrap();
            assert_eq!(answer.transaction, 9);
            (name(&answer_bytes(&answer)), answer.message)
        })
    };
    fn answer_bytes(mad: &CmMad<'_>) -> [u8; MAD_BYTES] {
        CmMad { private: &[], ..*mad }.encode().unwrap()
    }
    let ids = Ids { local: 1, remote: 2 };
    assert!(matches!(of(Message::Req(request())), Some(("REJ", Message::Rej(Rej { reason: 8, .. })))));
    let question = Message::SidrReq(SidrReq { request: 7, pkey: 0xffff, service: SERVICE });
    assert!(matches!(of(question), Some((_, Message::SidrRep(SidrRep { request: 7, status: 1, .. })))));
    let over = Message::Drep(Ids { local: 2, remote: 1 });
    assert_eq!(of(Message::Dreq(Dreq { ids, qpn: 3 })), Some(("DREP", over)));
    assert_eq!(of(Message::Rtu(ids)), None);
    assert_eq!(refuse(&[7; 256]), None);
}
