//! How many messages, and how many packets, a second both halves together take on one core; printed, not judged.

use std::time::Instant;

use crate::{
    Access, Arrival, Connection, Fragment, Now, Opcode, Outcome, PostedMessage, Psn, Receive, Region,
    RegionError, Request, Requester, RequesterConfig, Resources, Responder, ResponderConfig, SendWindow,
    ServiceType, Verdict, WorkRequest,
};

struct Plenty;

impl Resources for Plenty {
    fn region(&self, key: u32, va: u64, len: u64, _: Access) -> Result<Region, RegionError> {
        Ok(Region { key, va, len, address: va })
    }

    fn take_receive(&mut self) -> Option<Receive> {
        Some(Receive { capacity: 64, id: 0 })
    }

    fn invalidate(&mut self, _: u32) -> bool {
        true
    }
}

fn message(psn: Psn, opcode: Opcode, ack_requested: bool) -> Request {
    Request {
        src_qpn: 1,
        dst_qpn: 2,
        service: ServiceType::Rc,
        opcode,
        psn,
        solicited: false,
        ack_requested,
        imm: [0; 4],
        remote_va: 0x1000,
        rkey: 1,
        length: 8,
        swap_add: 1,
        compare: 0,
        qkey: 0,
        fragment: Fragment { offset: 0, length: 8 },
    }
}

/// `messages` of one kind in bursts of 32; returns how many completed.
fn converse(opcode: Opcode, messages: u64) -> u64 {
    let (service, path_mtu_bytes, first) = (ServiceType::Rc, 4096, Psn::new(0));
    let mut requester = Requester::new(RequesterConfig {
        service,
        peer_qpn: Some(2),
        first_psn: first,
        path_mtu_bytes,
        retry_count: 7,
        rnr_retry: 7,
        timeout: 14,
        max_rd_atomic: 16,
        window_messages: 128,
    });
    let mut responder = Responder::new(ResponderConfig {
        service,
        qpn: 2,
        peer_qpn: Some(1),
        expected_psn: first,
        path_mtu_bytes,
        access: Access(0xf),
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        qkey: 0,
    });
    let (mut completed, mut now) = (0, Now(0));
    while completed < messages {
        for _ in 0..32 {
            if !requester.can_post(opcode, false) {
                break;
            }
            requester.post(PostedMessage { opcode, length: 8, fence: false });
        }
        now = now.after(1000);
        while let Some(transmit) = requester.poll_transmit(now) {
            let request = message(transmit.psn, opcode, transmit.ack_requested);
            if let Verdict::Execute(_) = responder.handle_request(&request, &mut Plenty) {
                let done = if opcode.is_atomic() { Outcome::Atomic { old: 1 } } else { Outcome::Done };
                responder.executed(done);
            }
        }
        while let Some(reply) = responder.poll_reply() {
            requester.handle_reply(now, &reply);
        }
        while responder.poll_event().is_some() {}
        completed += std::iter::from_fn(|| requester.poll_completion()).count() as u64;
    }
    completed
}

#[test]
fn throughput_of_both_halves_is_printed() {
    for (opcode, messages) in
        [(Opcode::Write, 2_000_000), (Opcode::Send, 2_000_000), (Opcode::FetchAdd, 500_000)]
    {
        let start = Instant::now();
        let completed = converse(opcode, messages);
        let seconds = start.elapsed().as_secs_f64();
        let rate = completed as f64 / seconds;
        println!("{opcode:?} 8 B: {:.1} M messages/s, {:.0} ns both halves", rate / 1e6, 1e9 / rate);
        assert!(completed >= messages);
    }
}

/// `packets` of one endless WRITE of 1 MiB messages between two connections; returns how many went each way.
fn converse_in_packets(packets: u64) -> (u64, u64) {
    let (service, path_mtu_bytes, first) = (ServiceType::Rc, 4096, Psn::new(0));
    let connection = |qpn, peer| {
        let requester = RequesterConfig {
            service,
            peer_qpn: Some(peer),
            first_psn: first,
            path_mtu_bytes,
            retry_count: 7,
            rnr_retry: 7,
            timeout: 14,
            max_rd_atomic: 16,
            window_messages: 16,
        };
        let responder = ResponderConfig {
            service,
            qpn,
            peer_qpn: Some(peer),
            expected_psn: first,
            path_mtu_bytes,
            access: Access(0xf),
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            qkey: 0,
        };
        Connection::new(requester, SendWindow::default(), responder, 16)
    };
    let (mut a, mut b) = (connection(1, 2), connection(2, 1));
    let (mut there, mut back, mut now) = (0, 0, Now(0));
    while there < packets {
        while a.requester().can_post(Opcode::Write, false) {
            a.post(WorkRequest {
                message: PostedMessage { opcode: Opcode::Write, length: 1 << 20, fence: false },
                solicited: false,
                imm: [0; 4],
                remote_va: 0x1000,
                rkey: 1,
                swap_add: 0,
                compare: 0,
                dst_qpn: 2,
                qkey: 0,
            });
        }
        now = now.after(1000);
        while let Some(outgoing) = a.poll_transmit(now) {
            there += 1;
            if let Arrival::Request(Verdict::Execute(_)) = b.handle_packet(now, &outgoing.packet, &mut Plenty)
            {
                b.executed(Outcome::Done);
            }
        }
        while let Some(outgoing) = b.poll_transmit(now) {
            back += 1;
            a.handle_packet(now, &outgoing.packet, &mut Plenty);
        }
        while b.poll_event().is_some() {}
        while a.poll_event().is_some() {}
    }
    assert_eq!(a.requester().counters().retransmitted, 0);
    (there, back)
}

#[test]
fn throughput_in_packets_is_printed() {
    let start = Instant::now();
    let (there, back) = converse_in_packets(3_000_000);
    let seconds = start.elapsed().as_secs_f64();
    let rate = there as f64 / seconds;
    println!(
        "WRITE 1 MiB, path MTU 4096: {:.1} M packets/s there, {:.0} ns both ends; {back} acknowledgements",
        rate / 1e6,
        1e9 / rate
    );
    assert!(there >= 3_000_000 && back > 0);
}
