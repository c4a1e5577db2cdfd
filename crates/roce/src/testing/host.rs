//! The process around a QP in tests: plain memory, all of it one region, and receives.

use std::collections::{HashSet, VecDeque};

use super::endpoint::{EndpointConfig, RKEY, VA};
use crate::{
    Access, Atomic, Fragment, GRH_BYTES, Opcode, Outcome, Psn, Receive, ReceiveCompletion, Region,
    RegionError, Resources, ServiceType, Status, Work,
};

/// A receive that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Its number, in the order of posting.
    pub id: u64,
    pub status: Status,
    /// What its completion says, when it ended well.
    pub completion: Option<ReceiveCompletion>,
    /// Its bytes; for datagrams without the space of the GRH.
    pub bytes: Vec<u8>,
}

/// The process around a QP.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) memory: Vec<u8>,
    access: Access,
    receives: VecDeque<Receive>,
    receives_posted: u64,
    buffer: Vec<u8>,
    pub(super) invalidated: Vec<u32>,
    /// Set when the region was deregistered.
    pub(super) revoked: bool,
    /// Atomics that ran.
    pub(super) atomics: u64,
    /// Their PSNs; no test is long enough to use one twice.
    atomic_psns: HashSet<u32>,
}

impl Resources for Host {
    fn region(&self, rkey: u32, va: u64, len: u64, need: Access) -> Result<Region, RegionError> {
        if rkey != RKEY || self.revoked {
            return Err(RegionError::UnknownKey { key: rkey });
        }
        if !self.access.contains(need) {
            return Err(RegionError::AccessDenied { key: rkey, need: need.0 });
        }
        let length = self.memory.len() as u64;
        let outside = RegionError::OutOfBounds { key: rkey, va, len, start: VA, length };
        let address = va.checked_sub(VA).ok_or(outside)?;
        let end = address.checked_add(len).ok_or(outside)?;
        if end > length {
            return Err(outside);
        }
        Ok(Region { key: rkey, va, len, address, rights: Access(0) })
    }

    fn take_receive(&mut self) -> Option<Receive> {
        self.receives.pop_front()
    }

    fn may_invalidate(&self, rkey: u32) -> bool {
        rkey != RKEY && !self.invalidated.contains(&rkey)
    }
}

impl Host {
    pub(super) fn new(config: &EndpointConfig) -> Host {
        Host {
            memory: vec![0; config.memory_bytes],
            access: config.access,
            receives: VecDeque::new(),
            receives_posted: 0,
            buffer: Vec::new(),
            invalidated: Vec::new(),
            revoked: false,
            atomics: 0,
            atomic_psns: HashSet::new(),
        }
    }

    pub(super) fn post_receive(&mut self, capacity: u64) {
        self.receives.push_back(Receive { capacity, id: self.receives_posted });
        self.receives_posted += 1;
    }

    pub(super) fn flush_receives(&mut self, first: Option<(Receive, Status)>, received: &mut Vec<Received>) {
        let queued = self.receives.drain(..).map(|receive| (receive, Status::Flushed));
        for (receive, status) in first.into_iter().chain(queued) {
            received.push(Received { id: receive.id, status, completion: None, bytes: Vec::new() });
        }
    }

    /// Bytes of a granted region.
    pub(super) fn read(&mut self, region: Region, part: Fragment) -> Vec<u8> {
        self.slice(region.address + u64::from(part.offset), part.length as usize).to_vec()
    }

    /// Does the work of the request at `psn` that brings bytes, and keeps the receives that it completes.
    /// Panics if an atomic runs again: at least once is not exactly once.
    pub(super) fn execute(
        &mut self,
        service: ServiceType,
        psn: Psn,
        work: Work,
        payload: &[u8],
        received: &mut Vec<Received>,
    ) -> Outcome {
        let mut record = |receive: Receive, completion: ReceiveCompletion, bytes| {
            let completion = Some(completion);
            received.push(Received { id: receive.id, status: Status::Success, completion, bytes });
        };
        match work {
            Work::Receive { receive, scatter_offset, completion, .. } => {
                let end = scatter_offset as usize + payload.len();
                if self.buffer.len() < end {
                    self.buffer.resize(end, 0);
                }
                self.buffer[scatter_offset as usize..end].copy_from_slice(payload);
                if let Some(completion) = completion {
                    if completion.opcode == Opcode::SendInvalidate {
                        self.invalidated.push(u32::from_be_bytes(completion.imm));
                    }
                    let grh = if service == ServiceType::Ud { GRH_BYTES } else { 0 };
                    let bytes = self.buffer.get(grh as usize..completion.byte_len as usize);
                    record(receive, completion, bytes.unwrap_or_default().to_vec());
                }
            }
            Work::Write { region, .. } if self.revoked && region.len > 0 => return Outcome::Revoked,
            Work::Write { region, offset, completion, .. } => {
                self.slice(region.address + u64::from(offset), payload.len()).copy_from_slice(payload);
                if let Some((receive, completion)) = completion {
                    record(receive, completion, Vec::new());
                }
            }
            Work::Atomic { region, operation } => {
                assert!(self.atomic_psns.insert(psn.value()), "the atomic at {psn:?} ran twice");
                self.atomics += 1;
                return Outcome::Atomic { old: self.atomic(region.address, operation) };
            }
        }
        Outcome::Done
    }

    pub(super) fn slice(&mut self, address: u64, length: usize) -> &mut [u8] {
        let start = usize::try_from(address).unwrap_or(usize::MAX);
        let end = start.saturating_add(length);
        self.memory.get_mut(start..end).unwrap_or_default()
    }

    fn atomic(&mut self, address: u64, operation: Atomic) -> u64 {
        let word = self.slice(address, 8);
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        let old = u64::from_ne_bytes(bytes);
        let new = match operation {
            Atomic::FetchAdd { add } => old.wrapping_add(add),
            Atomic::CompareSwap { compare, swap } if compare == old => swap,
            Atomic::CompareSwap { .. } => old,
        };
        word.copy_from_slice(&new.to_ne_bytes());
        old
    }
}
