//! What came of a mutant: right requests have their whole effect, invalid ones none that shows.

use mlx5_layout::{Cqe, CqeOpcode};
use soft_nic::testing::QpId;

use super::{Effect, Pair, Plan, Role, Tally, Traffic};

impl Traffic {
    /// Looks at what came of a mutant, and puts the pair in order again.
    pub(super) fn judge(&mut self, tally: &mut Tally, pair: usize, plan: Plan) {
        let Pair { role, service, a, b, srq, .. } = self.pairs[pair];
        let cqs = [(a, true), (b, false), (a, false), (b, true)];
        let mut found: Vec<(QpId, Cqe<Vec<u8>>)> = Vec::new();
        for (qp, send) in cqs {
            let state = self.driver.qp(qp);
            let cq = if send { state.send_cq } else { state.recv_cq };
            let mut budget = 65;
            while let Some(cqe) = self.driver.poll_cq(cq) {
                found.push((qp, cqe));
                budget -= 1;
                assert!(budget > 0, "more CQEs than the CQ has room for");
            }
        }
        for (qp, cqe) in &found {
            let opcode = cqe.opcode().expect("a CQE opcode that exists");
            assert_eq!(cqe.qpn(), self.driver.qp(*qp).qpn, "a CQE of another QP");
            if opcode.is_error() {
                let syndrome = cqe.error().known().expect("a syndrome that exists");
                *tally.syndromes.entry(syndrome.to_u8()).or_default() += 1;
            }
        }
        match plan {
            Plan::Right { effect, index } => {
                let sent: Vec<_> = found.iter().filter(|(qp, _)| *qp == a).map(|(_, cqe)| cqe).collect();
                let received: Vec<_> = found.iter().filter(|(qp, _)| *qp == b).map(|(_, cqe)| cqe).collect();
                let what =
                    || format!("round {}, {service:?} pair {pair}: {:?}", self.rounds, self.driver.state(a));
                assert_eq!(sent.len(), 1, "{}: completions", what());
                assert_eq!(
                    (sent[0].opcode(), sent[0].wqe_counter()),
                    (Some(CqeOpcode::Requester), index),
                    "{}",
                    what()
                );
                assert_eq!(received.len(), usize::from(effect.receives), "{}: receives", what());
                let carrier = if effect.to_requester { sent.first() } else { received.first() };
                self.check(pair, &effect, carrier.copied(), &what());
                if let (Some(srq), Some(cqe)) = (srq, received.first()) {
                    self.driver.free_shared(srq, cqe.wqe_counter());
                }
                tally.succeeded += 1;
            }
            Plan::Invalid { kind, silent } => {
                let executed =
                    found.iter().any(|(qp, cqe)| *qp == a && cqe.opcode() == Some(CqeOpcode::Requester));
                assert!(!(silent && executed), "executed without a doorbell that covers it");
                let waits = role == Role::Nobody && found.is_empty();
                if kind == 6 && self.driver.counters().cq_overruns > 0 {
                    self.driver.replace_qp(a);
                    self.driver.replace_qp(b);
                    if srq.is_some() {
                        self.driver.replace_shared(b);
                    }
                    self.build_walls();
                    self.connect(pair);
                } else if srq.is_some() {
                    // Nobody knows which entries are left in the list, and it may be dead.
                    self.driver.reset(a);
                    self.driver.replace_shared(b);
                    self.build_walls();
                    self.connect(pair);
                } else if !waits {
                    self.driver.reset(a);
                    self.driver.reset(b);
                    self.connect(pair);
                } else if self.driver.qp(a).posted > 24 {
                    // What waits for its time-out must not lap the ring: the next ones come later.
                    self.wait();
                }
            }
        }
    }

    /// Compares memory with the effect that a right request has.
    fn check(&self, pair: usize, effect: &Effect, carrier: Option<&Cqe<Vec<u8>>>, what: &str) {
        let Pair { near, far, .. } = &self.pairs[pair];
        let inline = carrier.and_then(|cqe| cqe.inline_payload().expect("a place that holds it"));
        let region = if effect.to_requester { near } else { far };
        let bytes = match inline {
            Some(bytes) => bytes.to_vec(),
            None => region.block.bytes(effect.at as usize, effect.bytes.len()),
        };
        assert!(bytes == effect.bytes, "{what}: {} other bytes", bytes.len());
        if let Some((place, new)) = effect.word {
            assert_eq!(far.block.bytes(place as usize, 8), new.to_ne_bytes(), "{what}: the atomic's word");
        }
    }
}
