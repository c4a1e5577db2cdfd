//! The process around a kernel's responder, as captures and texts tell: regions, receives, its own stores.
//!
//! What the program stores between packets is on no wire: before a READ its bytes, before an atomic its word,
//! are set to what the kernel's answer found. All else in the memory comes from requests.

use std::collections::HashMap;
use std::ops::Range;

use roce::{
    Access, Atomic, Content, Opcode, Outcome, Receive, ReceiveCompletion, Region, RegionError, Resources,
    Work,
};

use crate::conversation::{Captured, Conversation, STEPPED};
use crate::pcap::text;

/// Bytes of the region of the captures with steps: the WRITE of step 29 ends 32 bytes behind it.
const REGION_BYTES: u64 = 64 << 10;

/// See the module.
pub struct Host {
    /// Memory by address.
    areas: Vec<(u64, Vec<u8>)>,
    /// What each key grants.
    keys: HashMap<u32, Range<u64>>,
    /// Capacity of the next receive; `None`: none is posted.
    receive: Option<u64>,
    /// SENDs of step 19 so far.
    unready: u32,
    reads: HashMap<u32, Vec<u8>>,
    atomics: HashMap<u32, u64>,
    path_mtu_bytes: u32,
    /// What receives completed with.
    pub received: Vec<ReceiveCompletion>,
}

fn hexadecimal(line: &str, name: &str) -> u64 {
    let word = line.split_whitespace().filter_map(|word| word.strip_prefix(name)).next_back().unwrap();
    u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap()
}

/// The region and the memory window that the client of a capture with steps was told of.
fn granted(capture: &str) -> Vec<(u32, Range<u64>)> {
    let client = text(&format!("{capture}.client.txt"));
    // The second key and address of the line are the peer's.
    let queue_pair = client.lines().find(|line| line.starts_with("C QP ")).unwrap();
    let va = hexadecimal(queue_pair, "va=");
    let key = u32::try_from(hexadecimal(queue_pair, "rkey=")).unwrap();
    let window = client.lines().find_map(|line| line.split_once("MW rkey 0x")).unwrap().1;
    let range = va..va + REGION_BYTES;
    vec![(key, range.clone()), (u32::from_str_radix(window, 16).unwrap(), range)]
}

/// Where no text tells, what requests named: in these captures the kernel refuses none.
fn named(conversation: &Conversation) -> Vec<(u32, Range<u64>)> {
    let ranges = conversation.messages().into_iter().filter(|message| !message.work.message.opcode.is_send());
    let mut keys: HashMap<u32, Range<u64>> = HashMap::new();
    for work in ranges.map(|message| message.work) {
        let end = work.remote_va + u64::from(work.message.length);
        let range = keys.entry(work.rkey).or_insert(work.remote_va..end);
        *range = range.start.min(work.remote_va)..range.end.max(end);
    }
    keys.into_iter().collect()
}

impl Host {
    /// What the responder of this conversation had around it.
    pub fn of(conversation: &Conversation) -> Host {
        let keys = match STEPPED.contains(&conversation.capture) {
            true => granted(conversation.capture),
            false => named(conversation),
        };
        // Two keys may name the same bytes.
        let mut areas: Vec<(u64, Vec<u8>)> = Vec::new();
        for (_, range) in &keys {
            if !areas.iter().any(|(va, bytes)| *va <= range.start && range.end <= va + bytes.len() as u64) {
                areas.push((range.start, vec![0; (range.end - range.start) as usize]));
            }
        }
        Host {
            areas,
            keys: keys.into_iter().collect(),
            receive: None,
            unready: 0,
            reads: conversation.read_bytes(),
            atomics: conversation.found_by_atomics(),
            path_mtu_bytes: conversation.path_mtu_bytes,
            received: Vec::new(),
        }
    }

    /// What the program did before this request: receives (README of the data, steps 19 and 30) and stores.
    pub fn before(&mut self, captured: &Captured) {
        self.receive = match captured.step {
            // For 60 ms none: the SEND and its first repetition find none.
            19 => {
                self.unready += 1;
                (self.unready > 2).then_some(u64::MAX)
            }
            30 => Some(32),
            _ => Some(u64::MAX),
        };
        let packet = captured.packet();
        match packet.content {
            Content::ReadRequest(reth) => {
                let packets = reth.dma_bytes.div_ceil(self.path_mtu_bytes);
                for index in 0..packets {
                    let psn = packet.psn.plus(index).value();
                    // Not there when the READ was refused.
                    if let Some(bytes) = self.reads.get(&psn).cloned() {
                        let at = reth.va + u64::from(index * self.path_mtu_bytes);
                        self.slice(at, bytes.len()).copy_from_slice(&bytes);
                    }
                }
            }
            Content::CompareSwap(eth) | Content::FetchAdd(eth) => {
                let found = self.atomics[&packet.psn.value()];
                self.slice(eth.va, 8).copy_from_slice(&found.to_le_bytes());
            }
            _ => {}
        }
    }

    /// Bytes by address.
    pub fn slice(&mut self, va: u64, length: usize) -> &mut [u8] {
        let within = |area: &&mut (u64, Vec<u8>)| va >= area.0 && va - area.0 < area.1.len() as u64;
        let (start, bytes) = self.areas.iter_mut().find(within).unwrap();
        let at = (va - *start) as usize;
        &mut bytes[at..at + length]
    }

    /// Does the work of a request.
    pub fn execute(&mut self, work: Work, payload: &[u8]) -> Outcome {
        match work {
            Work::Receive { completion, .. } => {
                if let Some(done) = completion.filter(|done| done.opcode == Opcode::SendInvalidate) {
                    self.keys.remove(&u32::from_be_bytes(done.imm));
                }
                self.received.extend(completion);
            }
            Work::Write { region, offset, completion, .. } => {
                if !payload.is_empty() {
                    self.slice(region.address + u64::from(offset), payload.len()).copy_from_slice(payload);
                }
                self.received.extend(completion.map(|(_, completion)| completion));
            }
            Work::Atomic { region, operation } => {
                let word = self.slice(region.address, 8);
                let old = u64::from_le_bytes((&*word).try_into().unwrap());
                let new = match operation {
                    Atomic::FetchAdd { add } => old.wrapping_add(add),
                    Atomic::CompareSwap { compare, swap } if compare == old => swap,
                    Atomic::CompareSwap { .. } => old,
                };
                word.copy_from_slice(&new.to_le_bytes());
                return Outcome::Atomic { old };
            }
        }
        Outcome::Done
    }

    /// The word at an address.
    pub fn word(&mut self, va: u64) -> u64 {
        u64::from_le_bytes((&*self.slice(va, 8)).try_into().unwrap())
    }
}

impl Resources for Host {
    fn region(&self, key: u32, va: u64, len: u64, _need: Access) -> Result<Region, RegionError> {
        let range = self.keys.get(&key).ok_or(RegionError::UnknownKey { key })?;
        let inside = va >= range.start && va.checked_add(len).is_some_and(|end| end <= range.end);
        if inside {
            Ok(Region { key, va, len, address: va, rights: Access(0) })
        } else {
            let length = range.end - range.start;
            Err(RegionError::OutOfBounds { key, va, len, start: range.start, length })
        }
    }

    fn take_receive(&mut self) -> Option<Receive> {
        Some(Receive { capacity: self.receive?, id: 0 })
    }

    fn may_invalidate(&self, rkey: u32) -> bool {
        self.keys.contains_key(&rkey)
    }
}
