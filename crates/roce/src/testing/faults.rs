//! Links, and faults as links stacked on links: lose, duplicate or delay picked frames.
//!
//! A frame delayed past its successors is reordering. Every choice comes from a count or from a seed.

use crate::{Now, Packet};

/// What a link carries: a packet with its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub packet: Packet,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn kind(&self) -> Kind {
        if self.packet.content.is_request() { Kind::Request } else { Kind::Reply }
    }
}

/// Kinds of frames, as faults pick them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Request,
    /// Replies.
    Reply,
}

/// Carries frames one way.
pub trait Link {
    /// Takes a frame at `now`; hands `deliver` each copy that arrives, with the time of its arrival.
    fn carry(&mut self, now: Now, frame: Frame, deliver: &mut dyn FnMut(Now, Frame));
}

/// The bottom of every stack: each frame arrives once, `latency_ns` later.
#[derive(Debug, Clone, Copy)]
pub struct Wire {
    /// One-way delay.
    pub latency_ns: u64,
}

impl Link for Wire {
    fn carry(&mut self, now: Now, frame: Frame, deliver: &mut dyn FnMut(Now, Frame)) {
        deliver(now.after(self.latency_ns), frame);
    }
}

/// A link that takes time for each byte: a frame leaves when all before it have left. Links below lose and
/// delay what has left, so a lost frame has taken its time too.
pub struct Line {
    below: Box<dyn Link>,
    ps_per_byte: u64,
    /// When the last frame has left, in ps.
    free_at_ps: u64,
}

impl Line {
    /// Bytes of a frame beside BTH and all behind it: preamble, Ethernet header and FCS, gap, IPv4, UDP.
    const AROUND_BYTES: u64 = 8 + 14 + 4 + 12 + 20 + 8;

    /// Carries `gbps` Gbit/s.
    pub fn over(below: Box<dyn Link>, gbps: u64) -> Box<dyn Link> {
        Box::new(Line { below, ps_per_byte: 8000 / gbps.max(1), free_at_ps: 0 })
    }
}

impl Link for Line {
    fn carry(&mut self, now: Now, frame: Frame, deliver: &mut dyn FnMut(Now, Frame)) {
        let Frame { packet, payload } = &frame;
        let transport = packet.to_wire(payload).map_or(payload.len(), |packet| packet.wire_bytes());
        let bytes = Line::AROUND_BYTES + transport as u64;
        self.free_at_ps = self.free_at_ps.max(now.0 * 1000) + bytes * self.ps_per_byte;
        self.below.carry(Now(self.free_at_ps.div_ceil(1000)), frame, deliver);
    }
}

/// A small generator of pseudo-random numbers (splitmix64, public domain by S. Vigna).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64().checked_rem(bound).unwrap_or(0)
    }
}

/// Which frames a fault hits.
#[derive(Debug, Clone)]
pub enum Pick {
    /// The n-th frame of this kind, counted from 1.
    Nth(Kind, u64),
    /// Every frame of this kind from the n-th on.
    From(Kind, u64),
    /// Each frame, with this chance in a thousand.
    Chance(u64, Rng),
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Lose,
    Duplicate { after_ns: u64 },
    Delay { ns: u64 },
}

/// One fault on top of another link.
pub struct Fault {
    below: Box<dyn Link>,
    pick: Pick,
    action: Action,
    seen: u64,
}

impl Fault {
    fn on(below: Box<dyn Link>, pick: Pick, action: Action) -> Box<dyn Link> {
        Box::new(Fault { below, pick, action, seen: 0 })
    }

    /// Picked frames never arrive.
    pub fn lose(below: Box<dyn Link>, pick: Pick) -> Box<dyn Link> {
        Fault::on(below, pick, Action::Lose)
    }

    /// Picked frames arrive twice, the second time `after_ns` later.
    pub fn duplicate(below: Box<dyn Link>, pick: Pick, after_ns: u64) -> Box<dyn Link> {
        Fault::on(below, pick, Action::Duplicate { after_ns })
    }

    /// Picked frames arrive `ns` later than they should, behind what follows them.
    pub fn delay(below: Box<dyn Link>, pick: Pick, ns: u64) -> Box<dyn Link> {
        Fault::on(below, pick, Action::Delay { ns })
    }

    fn hits(&mut self, frame: &Frame) -> bool {
        match &mut self.pick {
            Pick::Chance(per_mille, rng) => rng.below(1000) < *per_mille,
            Pick::Nth(kind, n) if *kind == frame.kind() => {
                self.seen += 1;
                self.seen == *n
            }
            Pick::From(kind, n) if *kind == frame.kind() => {
                self.seen += 1;
                self.seen >= *n
            }
            Pick::Nth(..) | Pick::From(..) => false,
        }
    }
}

impl Link for Fault {
    fn carry(&mut self, now: Now, frame: Frame, deliver: &mut dyn FnMut(Now, Frame)) {
        if !self.hits(&frame) {
            return self.below.carry(now, frame, deliver);
        }
        match self.action {
            Action::Lose => {}
            Action::Duplicate { after_ns } => {
                self.below.carry(now, frame.clone(), deliver);
                self.below.carry(now.after(after_ns), frame, deliver);
            }
            Action::Delay { ns } => self.below.carry(now.after(ns), frame, deliver),
        }
    }
}
