//! Two connection managers on a virtual clock, with links that lose, duplicate and delay MADs by seed.

mod dialogues;
mod hostile;
mod lossy;

use std::collections::BTreeMap;

use super::*;
use crate::testing::Rng;
use crate::wire::cm::{Path, attribute};
use crate::wire::mad::MadHeader;

/// What both listen to.
pub const SERVICE: u64 = 0x0106_1c06;
/// QPNs of the two programs.
pub const QPNS: [u32; 2] = [0x11, 0x22];

pub fn gid(end: usize) -> Gid {
    Gid::from_ipv4([10, 9, 0, 1 + end as u8])
}

/// A request from end 0 as Linux makes it: codes 20, 15 retries, lifetime 18.
pub fn request() -> Req {
    let path = Path {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: gid(0),
        remote_gid: gid(1),
        hop_limit: 64,
        ack_timeout: 19,
        ..Path::default()
    };
    Req {
        service: SERVICE,
        ca_guid: 0xa,
        qpn: QPNS[0],
        responder_resources: 3,
        initiator_depth: 2,
        remote_response_timeout: 20,
        local_response_timeout: 20,
        starting_psn: 0x111,
        retry: 7,
        pkey: 0xffff,
        path_mtu: 3,
        rnr_retry: 6,
        max_cm_retries: 15,
        primary: path,
        ..Req::default()
    }
}

pub fn reply() -> Rep {
    Rep {
        qpn: QPNS[1],
        starting_psn: 0x222,
        responder_resources: 2,
        initiator_depth: 3,
        target_ack_delay: 15,
        rnr_retry: 5,
        ..Rep::default()
    }
}

pub fn cm(slot: u8) -> Cm {
    Cm::new(CmConfig { slot, seed: 0x77_0000_0100, max_connections: 100 })
}

/// Name of a MAD.
pub fn name(mad: &[u8]) -> &'static str {
    match MadHeader::parse(mad).map(|header| header.attribute) {
        Ok(attribute::REQ) => "REQ",
        Ok(attribute::MRA) => "MRA",
        Ok(attribute::REJ) => "REJ",
        Ok(attribute::REP) => "REP",
        Ok(attribute::RTU) => "RTU",
        Ok(attribute::DREQ) => "DREQ",
        Ok(attribute::DREP) => "DREP",
        Ok(attribute::SIDR_REQ) => "SIDR_REQ",
        Ok(attribute::SIDR_REP) => "SIDR_REP",
        _ => "?",
    }
}

/// What the link does, in percent, and how long a MAD takes at most.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    pub lost: u64,
    pub doubled: u64,
    pub delay_ns: u64,
}

/// Two ends and the link.
pub struct Net {
    pub ends: [Cm; 2],
    pub now: Now,
    pub trace: Vec<String>,
    faults: Faults,
    rng: Rng,
    flying: BTreeMap<(Now, u64), (usize, AddressedMad)>,
    serial: u64,
}

impl Net {
    pub fn new(seed: u64, faults: Faults) -> Net {
        Net {
            ends: [cm(1), cm(2)],
            now: Now(1_000),
            trace: Vec::new(),
            faults,
            rng: Rng::new(seed),
            flying: BTreeMap::new(),
            serial: 0,
        }
    }

    /// Takes what the ends want to send.
    pub fn collect(&mut self) {
        for end in 0..2 {
            while let Some(sent) = self.ends[end].poll_transmit() {
                self.trace.push(format!("{end}:{}", name(&*sent.mad)));
                let copies = u64::from(self.rng.next_u64() % 100 >= self.faults.lost)
                    * (1 + u64::from(self.rng.next_u64() % 100 < self.faults.doubled));
                for _ in 0..copies {
                    let delay = 1_000 + self.rng.next_u64() % (1 + self.faults.delay_ns);
                    self.serial += 1;
                    let key = (self.now.after(delay), self.serial);
                    self.flying.insert(key, (1 - end, sent.clone()));
                }
            }
        }
    }

    /// Goes on to what is next, not beyond `until`; false when nothing is left before.
    pub fn step(&mut self, until: Now) -> bool {
        self.collect();
        let arrival = self.flying.keys().next().map(|(at, _)| *at);
        let timer = self.ends.iter().filter_map(Cm::poll_timeout).min();
        let Some(next) = arrival.into_iter().chain(timer).min().filter(|next| *next <= until) else {
            return false;
        };
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let (_, (end, sent)) = self.flying.pop_first().expect("just seen");
            let route = Route { local: sent.to, remote: sent.from };
            // What the link doubled is dropped by the state, and that is fine.
            let _ = self.ends[end].handle_mad(self.now, route, &*sent.mad);
        } else {
            for end in &mut self.ends {
                end.handle_timeout(self.now);
            }
        }
        self.collect();
        true
    }

    /// Until nothing happens any more, or an event comes: of which end, and which.
    pub fn next_event(&mut self, until: Now) -> Option<(usize, Event)> {
        loop {
            for end in 0..2 {
                if let Some(event) = self.ends[end].poll_event() {
                    return Some((end, event));
                }
            }
            if !self.step(until) {
                return None;
            }
        }
    }

    /// Both ends connected, by programs that do what they are asked to.
    pub fn connect(&mut self) -> [ConnectionId; 2] {
        self.ends[1].listen(SERVICE, None, 8).unwrap();
        let asking = self.ends[0].connect(self.now, &request(), b"hello").unwrap();
        let Some((1, Event { id, cause: Cause::Received(Message::Req(_), _), .. })) =
            self.next_event(Now(u64::MAX))
        else {
            panic!()
        };
        self.ends[1].accept(self.now, id, &reply(), b"welcome").unwrap();
        let Some((0, Event { cause: Cause::Received(Message::Rep(_), _), .. })) =
            self.next_event(Now(u64::MAX))
        else {
            panic!()
        };
        self.ends[0].ready(asking, b"").unwrap();
        let Some((1, Event { cause: Cause::Received(Message::Rtu(_), _), .. })) =
            self.next_event(Now(u64::MAX))
        else {
            panic!()
        };
        [asking, id]
    }

    /// The MADs sent so far, in order, and forgets them.
    pub fn said(&mut self) -> String {
        self.collect();
        std::mem::take(&mut self.trace).join(" ")
    }
}
