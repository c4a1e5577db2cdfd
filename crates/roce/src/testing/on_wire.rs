//! A link that carries packets as the bytes of a wire, and may damage them: flipped bits, lost tails.
//!
//! What arrives is read from the bytes alone. The ICRC makes damage a loss; what it does not cover (TTL,
//! traffic class) does not matter.

use super::faults::{Frame, Link, Rng};
use super::frame::{self, FrameBuilder};
use crate::wire::{Gid, IpHeader};
use crate::{Now, Packet};

pub struct OnWire {
    below: Box<dyn Link>,
    ip: IpHeader,
    /// Chances in a thousand that a bit is flipped, and that the end is cut off.
    flip: u64,
    cut: u64,
    rng: Rng,
}

impl OnWire {
    /// Carries packets as bytes over IPv6, damaged with these chances in a thousand.
    pub fn over(below: Box<dyn Link>, flip: u64, cut: u64, rng: Rng) -> Box<dyn Link> {
        let gid = |last| Gid([0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let ip = IpHeader::between(gid(1), gid(2), 0).expect("two addresses of IPv6");
        Box::new(OnWire { below, ip, flip, cut, rng })
    }
}

impl Link for OnWire {
    fn carry(&mut self, now: Now, frame: Frame, deliver: &mut dyn FnMut(Now, Frame)) {
        let Frame { packet, payload } = &frame;
        let packet = packet.to_wire(payload).expect("a packet that has an opcode");
        let mut bytes = Vec::new();
        let written = FrameBuilder { ip: self.ip, source_port: 0xc000, udp_checksum: 0, packet };
        written.append_to(&mut bytes).expect("a packet that fits");
        if self.rng.below(1000) < self.flip {
            let bit = self.rng.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        if self.rng.below(1000) < self.cut {
            bytes.truncate(self.rng.below(bytes.len() as u64) as usize);
        }
        let Ok(read) = frame::Frame::decode(&bytes) else { return };
        let packet = Packet::from_wire(&read.packet).expect("what was sent has a meaning");
        let payload = read.packet.payload.to_vec();
        self.below.carry(now, Frame { packet, payload }, deliver);
    }
}
