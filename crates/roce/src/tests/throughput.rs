//! How many messages a second both halves together take on one core; printed, not judged.

use std::time::Instant;

use crate::{
    Access, Fragment, Now, Opcode, Outcome, PostedMessage, Psn, Receive, Region, RegionError, Request,
    Requester, RequesterConfig, Resources, Responder, ResponderConfig, ServiceType, Verdict,
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
