//! Every operation moves the bytes it should, and says what happened.

use measure::need;
use verbs::code::{WcOpcode, WcStatus};
use verbs::{
    AddressHandle, Datagram, InlineSlice, Payload, QpBuilder, QpType, ReceiveRequest, Remote, SendFlags,
    SendList, SendOperation, SendRequest, Sge,
};

use crate::pair::{self, Pair, QKEY};

#[test]
fn every_operation_of_rc_moves_its_bytes() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let mut pair = Pair::rc(&context);
    let [here, there] = [0, 1];
    pair.memory[here].write(0, b"what is sent");
    pair.memory[there].write(100, &41u64.to_ne_bytes()[..4]);
    pair.memory[there].word64(200).store(41, std::sync::atomic::Ordering::Relaxed);
    let source = [pair.memory[here].sge(0..8).unwrap(), pair.memory[here].sge(8..12).unwrap()];
    let answer = [pair.memory[here].sge(64..72).unwrap()];
    let remote = pair.memory[there].remote(1000).unwrap();
    let atomic = pair.memory[there].remote(200).unwrap();
    let inline = [InlineSlice::new(b"what "), InlineSlice::new(b"is sent")];
    let gather = Payload::Gather(&source);
    let immediate = [1, 2, 3, 4];
    for (id, operation, payload, sent, received) in [
        (1, SendOperation::Send, gather, WcOpcode::Send, Some((WcOpcode::Receive, None))),
        (
            2,
            SendOperation::SendImm(immediate),
            gather,
            WcOpcode::Send,
            Some((WcOpcode::Receive, Some(immediate))),
        ),
        (3, SendOperation::Send, Payload::Inline(&inline), WcOpcode::Send, Some((WcOpcode::Receive, None))),
        (4, SendOperation::Write(remote), gather, WcOpcode::Write, None),
        (
            5,
            SendOperation::WriteImm(remote, immediate),
            Payload::Inline(&inline),
            WcOpcode::Write,
            Some((WcOpcode::ReceiveWriteImm, Some(immediate))),
        ),
        (6, SendOperation::Read(remote), Payload::Gather(&answer), WcOpcode::Read, None),
        (
            7,
            SendOperation::CompareSwap { remote: atomic, compare: 41, swap: 50 },
            Payload::Gather(&answer),
            WcOpcode::CompareSwap,
            None,
        ),
        (
            8,
            SendOperation::FetchAdd { remote: atomic, add: 5 },
            Payload::Gather(&answer),
            WcOpcode::FetchAdd,
            None,
        ),
    ] {
        let place = 2000 + 100 * id as usize;
        if received.is_some() {
            let scatter = [pair.memory[there].sge(place..place + 64).unwrap()];
            pair.qps[there].post_receive(&ReceiveRequest { id: 100 + id, scatter: &scatter }).unwrap();
        }
        pair.qps[here].post_send(&SendRequest::new(id, operation, payload)).unwrap();
        let done = pair.completion(here);
        assert_eq!((done.id(), done.status(), done.opcode()), (id, WcStatus::Success, sent), "{operation:?}");
        if let Some((opcode, immediate)) = received {
            let done = pair.completion(there);
            assert_eq!((done.id(), done.status(), done.opcode()), (100 + id, WcStatus::Success, opcode));
            assert_eq!((done.byte_count(), done.immediate()), (12, immediate), "{operation:?}");
        }
        let mut bytes = [0; 12];
        match operation {
            SendOperation::Send | SendOperation::SendImm(_) => pair.memory[there].read(place, &mut bytes),
            SendOperation::Write(_) | SendOperation::WriteImm(..) => {
                pair.memory[there].read(1000, &mut bytes)
            }
            _ => pair.memory[here].read(64, &mut bytes),
        }
        match id {
            6 => assert_eq!(&bytes[..8], b"what is "),
            7 => assert_eq!(bytes[..8], 41u64.to_ne_bytes()),
            8 => assert_eq!(bytes[..8], 50u64.to_ne_bytes()),
            _ => assert_eq!(&bytes, b"what is sent", "{operation:?}"),
        }
    }
    assert_eq!(pair.memory[there].word64(200).load(std::sync::atomic::Ordering::Relaxed), 55);
}

#[test]
fn a_list_is_posted_at_once_and_completes_in_order() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let mut pair = Pair::rc(&context);
    let source: Vec<[Sge; 1]> = (0..16).map(|i| [pair.memory[0].sge(8 * i..8 * i + 8).unwrap()]).collect();
    for round in 0..3u64 {
        let mut list = SendList::with_capacity(16);
        for (index, sges) in source.iter().enumerate() {
            pair.memory[0]
                .word64(8 * index)
                .store(round * 16 + index as u64, std::sync::atomic::Ordering::Relaxed);
            let remote = pair.memory[1].remote(8 * index).unwrap();
            let mut request =
                SendRequest::new(index as u64, SendOperation::Write(remote), Payload::Gather(sges));
            if index % 4 != 3 {
                request.flags = SendFlags::NONE;
            }
            list.push(&request);
        }
        pair.qps[0].post_send_list(&mut list).unwrap();
        let ids: Vec<u64> = (0..4).map(|_| pair.completion(0).id()).collect();
        assert_eq!(ids, [3, 7, 11, 15]);
        for index in 0..16 {
            let word = pair.memory[1].word64(8 * index).load(std::sync::atomic::Ordering::Acquire);
            assert_eq!(word, round * 16 + index as u64);
        }
    }
}

#[test]
fn a_full_queue_says_where_it_was_full() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let mut pair = Pair::rc(&context);
    let capacity = pair.qps[0].capacity().send_requests as usize;
    let sges = [pair.memory[0].sge(0..8).unwrap()];
    let remote = pair.memory[1].remote(0).unwrap();
    let mut list = SendList::with_capacity(capacity + 5);
    for id in 0..capacity + 5 {
        list.push(&SendRequest::new(id as u64, SendOperation::Write(remote), Payload::Gather(&sges)));
    }
    let error = pair.qps[0].post_send_list(&mut list).unwrap_err();
    assert!(error.is_full());
    assert_eq!(error.index, capacity, "{error}");
}

#[test]
fn a_wrong_rkey_is_refused_by_the_peer_and_flushes_the_rest() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let mut pair = Pair::rc(&context);
    let sges = [pair.memory[0].sge(0..8).unwrap()];
    let right = pair.memory[1].remote(0).unwrap();
    let wrong = Remote { rkey: right.rkey ^ 0xff00, ..right };
    for (id, remote) in [(1, wrong), (2, right)] {
        // The second post may be refused already: the queue pair is in error then.
        let _ = pair.qps[0].post_send(&SendRequest::new(
            id,
            SendOperation::Write(remote),
            Payload::Gather(&sges),
        ));
    }
    let first = pair.completion(0);
    assert_eq!((first.id(), first.status()), (1, WcStatus::RemoteAccess));
    let second = pair.completion(0);
    assert_eq!((second.id(), second.status()), (2, WcStatus::WrFlush));
}

#[test]
fn unreliable_services_carry_sends() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    for kind in [QpType::Uc, QpType::Ud] {
        let mut pair = Pair::new(&context, &QpBuilder::new(kind));
        pair.memory[0].write(0, b"datagram");
        let handle = AddressHandle::new(&pair.pd, &pair::own_address(&context)).unwrap();
        let grh = if kind == QpType::Ud { 40 } else { 0 };
        let scatter = [pair.memory[1].sge(0..128).unwrap()];
        pair.qps[1].post_receive(&ReceiveRequest { id: 7, scatter: &scatter }).unwrap();
        let source = [pair.memory[0].sge(0..8).unwrap()];
        let datagram = Datagram { handle: &handle, qpn: pair.qps[1].number(), qkey: QKEY };
        let mut request = SendRequest::new(6, SendOperation::Send, Payload::Gather(&source));
        request.datagram = (kind == QpType::Ud).then_some(datagram);
        pair.qps[0].post_send(&request).unwrap();
        assert_eq!(pair.completion(0).status(), WcStatus::Success);
        let done = pair.completion(1);
        assert_eq!((done.id(), done.status(), done.byte_count()), (7, WcStatus::Success, 8 + grh), "{kind}");
        if kind == QpType::Ud {
            assert_eq!(done.source_qpn(), pair.qps[0].number());
        }
        let mut bytes = [0; 8];
        pair.memory[1].read(grh as usize, &mut bytes);
        assert_eq!(&bytes, b"datagram", "{kind}");
    }
}

/// Above 16 KiB the software NIC no longer carries payloads in its rings, but copies or stages them.
#[test]
fn long_messages_arrive_whole_by_every_operation() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let mut pair = Pair::rc(&context);
    let [here, there] = [0, 1];
    const LENGTH: usize = 300_001;
    for (id, seed) in [(1u64, 3usize), (2, 5), (3, 7)] {
        let wanted: Vec<u8> = (0..LENGTH).map(|i| (i * seed + (i >> 8)) as u8).collect();
        let (from, to) = if id == 3 { (there, here) } else { (here, there) };
        pair.memory[from].write(64, &wanted);
        let gather =
            [pair.memory[here].sge(64..5064).unwrap(), pair.memory[here].sge(5064..64 + LENGTH).unwrap()];
        let answer = [
            pair.memory[here].sge(400_000..400_007).unwrap(),
            pair.memory[here].sge(400_007..400_000 + LENGTH).unwrap(),
        ];
        let scatter = [
            pair.memory[there].sge(400_000..400_100).unwrap(),
            pair.memory[there].sge(400_100..400_000 + LENGTH).unwrap(),
        ];
        let (operation, payload) = match id {
            1 => (SendOperation::Write(pair.memory[there].remote(400_000).unwrap()), &gather),
            2 => (SendOperation::Send, &gather),
            _ => (SendOperation::Read(pair.memory[there].remote(64).unwrap()), &answer),
        };
        pair.qps[there].post_receive(&ReceiveRequest { id: 100 + id, scatter: &scatter }).unwrap();
        pair.qps[here].post_send(&SendRequest::new(id, operation, Payload::Gather(payload))).unwrap();
        let done = pair.completion(here);
        assert_eq!((done.id(), done.status()), (id, WcStatus::Success), "{operation:?}");
        if id == 2 {
            // The receive of the WRITE before it was the first in the queue.
            let done = pair.completion(there);
            assert_eq!((done.id(), done.byte_count() as usize), (101, LENGTH));
        }
        let mut bytes = vec![0; LENGTH];
        pair.memory[to].read(400_000, &mut bytes);
        assert!(bytes == wanted, "{operation:?}: other bytes");
    }
}
