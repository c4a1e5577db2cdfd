//! Two NICs that talk, a requester's and a responder's, on one virtual clock.

use mlx5_layout::{CqeOpcode, CqeSyndrome};
use roce::ServiceType;

use super::driver::{DriverOf, MakeNic, TestNic};
use super::shapes::{QpId, QpShape, Region};
use super::work::WorkRequest;
use crate::command::ModifyQp;

pub const MS: u64 = 1_000_000;

/// Time-out of [`DriverOf::attributes`], 4.096 µs times 2 to the 14th, in ns.
pub const TIMEOUT_NS: u64 = 4096 << 14;

/// The way that messages take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Memory,
    Wire,
}

pub const BOTH: [By; 2] = [By::Memory, By::Wire];

/// A requester's NIC and a responder's, a QP on each, memory on each.
pub struct Two<N> {
    pub left: DriverOf<N>,
    pub right: DriverOf<N>,
    pub a: QpId,
    pub b: QpId,
    pub from: Region,
    pub to: Region,
}

impl<N: TestNic> Two<N> {
    /// Makes both, with a connected pair of QPs and a region on either side.
    pub fn of(left: impl MakeNic<Nic = N>, right: impl MakeNic<Nic = N>, service: ServiceType) -> Two<N> {
        let (mut left, mut right) = (DriverOf::new(left), DriverOf::new(right));
        let shape = QpShape { service, ..QpShape::default() };
        let (a, b) = (left.create_qp(shape), right.create_qp(shape));
        let (from, to) = (left.region(1 << 17, 0xf), right.region(1 << 17, 0xf));
        let mut two = Two { left, right, a, b, from, to };
        two.connect(a, b);
        two
    }

    pub fn connect(&mut self, a: QpId, b: QpId) {
        let (qpn_a, qpn_b) = (self.left.qp(a).qpn, self.right.qp(b).qpn);
        let (near, far) = (self.left.address(), self.right.address());
        self.left.bring_up(a, &ModifyQp { address: far, ..self.left.attributes(qpn_b) });
        self.right.bring_up(b, &ModifyQp { address: near, ..self.right.attributes(qpn_a) });
    }

    /// A SEND of `len` bytes, to the other side's QP.
    pub fn send(&self, service: ServiceType, len: u32) -> WorkRequest {
        let datagram = (service == ServiceType::Ud).then(|| self.right.vector(self.b, 0x1111_1111));
        WorkRequest { datagram, ..WorkRequest::send(&self.from, 0, len) }
    }

    /// Opens the channel from left to right, by a request that arrives.
    pub fn open_channel(&mut self, request: &WorkRequest) {
        self.left.post(self.a, request);
        self.rounds(100);
        assert_eq!(sent(&mut self.left, self.a), Some(Ok(())));
    }

    /// Rounds of both, a µs each.
    pub fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.left.poll();
            self.right.poll();
        }
    }

    /// Lets time pass for both, in steps of 100 µs.
    pub fn pass(&mut self, ns: u64) {
        for _ in 0..ns / 100_000 {
            for driver in [&mut self.left, &mut self.right] {
                driver.now += 100_000 - 1_000;
                driver.poll();
            }
        }
    }

    pub fn count(&self, on_left: bool, name: &str) -> u64 {
        let driver = if on_left { &self.left } else { &self.right };
        driver.counters().fields().find(|field| field.0 == name).expect("a counter").1
    }
}

/// `Requester` for a success, the syndrome for an error.
pub fn sent<N: TestNic>(driver: &mut DriverOf<N>, qp: QpId) -> Option<Result<(), CqeSyndrome>> {
    let cqe = driver.poll_send(qp)?;
    Some(match cqe.opcode() {
        Some(CqeOpcode::Requester) => Ok(()),
        _ => Err(cqe.error().known().expect("a known syndrome")),
    })
}
