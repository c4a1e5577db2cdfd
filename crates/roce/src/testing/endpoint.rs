//! What an end of a [`super::Pair`] is made of, and what it sends.

use crate::{Access, Opcode, Psn, RequesterConfig, ResponderConfig, SendWindow, ServiceType};

/// Key of each end's only region.
pub const RKEY: u32 = 0x1234;

/// Address by which requests name the region's first byte.
pub const VA: u64 = 0x7000_0000;

/// What an end is made of.
#[derive(Debug, Clone, Copy)]
pub struct EndpointConfig {
    pub service: ServiceType,
    /// First PSN of both directions.
    pub first_psn: Psn,
    /// Packet size.
    pub path_mtu_bytes: u32,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Ack time-out code.
    pub timeout: u8,
    /// Depth as initiator and as responder.
    pub rd_atomic: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Messages outstanding.
    pub window_messages: u32,
    /// What QP and region grant.
    pub access: Access,
    /// Bytes of memory, all of it registered.
    pub memory_bytes: usize,
    /// Bytes that a packet has at most in shared memory, where it may stand for several.
    pub fragment_bytes: u32,
    /// Packets in flight on a wire.
    pub send_window: SendWindow,
    /// Packets that one acknowledgement waits for on a wire.
    pub ack_every: u32,
}

impl Default for EndpointConfig {
    fn default() -> EndpointConfig {
        EndpointConfig {
            service: ServiceType::Rc,
            first_psn: Psn::new(0x100),
            path_mtu_bytes: 1024,
            retry_count: 7,
            rnr_retry: 7,
            timeout: 8,
            rd_atomic: 4,
            min_rnr_timer: 12,
            window_messages: 64,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            memory_bytes: 64 << 10,
            fragment_bytes: u32::MAX,
            send_window: SendWindow::default(),
            ack_every: 8,
        }
    }
}

impl EndpointConfig {
    pub fn requester(&self) -> RequesterConfig {
        RequesterConfig {
            service: self.service,
            first_psn: self.first_psn,
            path_mtu_bytes: self.path_mtu_bytes,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            timeout: self.timeout,
            max_rd_atomic: self.rd_atomic,
            window_messages: self.window_messages,
        }
    }

    /// The responder half of a QP whose peer is `peer_qpn`.
    pub fn responder(&self, peer_qpn: u32) -> ResponderConfig {
        ResponderConfig {
            service: self.service,
            peer_qpn: (self.service != ServiceType::Ud).then_some(peer_qpn),
            expected_psn: self.first_psn,
            path_mtu_bytes: self.path_mtu_bytes,
            access: self.access,
            max_dest_rd_atomic: self.rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            qkey: 0,
        }
    }
}

/// A send work request with its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalWork {
    pub opcode: Opcode,
    /// Bytes of a SEND or WRITE.
    pub payload: Vec<u8>,
    pub read_bytes: u32,
    /// Where a READ puts them, from the start of the own memory.
    pub read_into: usize,
    /// Target, from the start of the peer's region.
    pub remote_offset: u64,
    pub rkey: u32,
    pub imm: [u8; 4],
    pub swap_add: u64,
    pub compare: u64,
    pub fence: bool,
    /// Q_Key.
    pub qkey: u32,
}

impl Default for LocalWork {
    fn default() -> LocalWork {
        LocalWork {
            opcode: Opcode::Send,
            payload: Vec::new(),
            read_bytes: 0,
            read_into: 0,
            remote_offset: 0,
            rkey: RKEY,
            imm: [0; 4],
            swap_add: 0,
            compare: 0,
            fence: false,
            qkey: 0,
        }
    }
}

impl LocalWork {
    pub fn send(payload: &[u8]) -> LocalWork {
        LocalWork { payload: payload.to_vec(), ..LocalWork::default() }
    }

    pub fn write(remote_offset: u64, payload: &[u8]) -> LocalWork {
        LocalWork { opcode: Opcode::Write, remote_offset, payload: payload.to_vec(), ..LocalWork::default() }
    }

    pub fn write_imm(remote_offset: u64, payload: &[u8], imm: [u8; 4]) -> LocalWork {
        LocalWork { opcode: Opcode::WriteImm, imm, ..LocalWork::write(remote_offset, payload) }
    }

    pub fn read(remote_offset: u64, read_bytes: u32, read_into: usize) -> LocalWork {
        LocalWork { opcode: Opcode::Read, remote_offset, read_bytes, read_into, ..LocalWork::default() }
    }

    pub fn fetch_add(remote_offset: u64, add: u64) -> LocalWork {
        LocalWork { opcode: Opcode::FetchAdd, remote_offset, swap_add: add, ..LocalWork::default() }
    }

    pub fn compare_swap(remote_offset: u64, compare: u64, swap: u64) -> LocalWork {
        LocalWork {
            opcode: Opcode::CompareSwap,
            remote_offset,
            compare,
            swap_add: swap,
            ..LocalWork::default()
        }
    }

    pub(super) fn length(&self) -> u32 {
        match self.opcode {
            Opcode::Read => self.read_bytes,
            Opcode::CompareSwap | Opcode::FetchAdd => 8,
            _ => u32::try_from(self.payload.len()).unwrap_or(u32::MAX),
        }
    }
}
