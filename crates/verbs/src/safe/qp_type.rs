//! The service of a queue pair, and its sizes.

use crate::result::raw;

/// Transport service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpType {
    pub(super) fn to_raw(self) -> raw::ibv_qp_type {
        match self {
            Self::Rc => raw::IBV_QPT_RC,
            Self::Uc => raw::IBV_QPT_UC,
            Self::Ud => raw::IBV_QPT_UD,
        }
    }
}

impl std::fmt::Display for QpType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}

/// Sizes of a queue pair: wanted ones, or those that it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCapacity {
    pub send_requests: u32,
    pub receive_requests: u32,
    /// Scatter/gather entries of a send.
    pub send_sges: u32,
    /// Scatter/gather entries of a receive.
    pub receive_sges: u32,
    /// Inline bytes of a send.
    pub inline_bytes: u32,
}

impl QpCapacity {
    pub(super) fn to_raw(self) -> raw::ibv_qp_cap {
        raw::ibv_qp_cap {
            max_send_wr: self.send_requests,
            max_recv_wr: self.receive_requests,
            max_send_sge: self.send_sges,
            max_recv_sge: self.receive_sges,
            max_inline_data: self.inline_bytes,
        }
    }

    pub(super) fn from_raw(raw: raw::ibv_qp_cap) -> Self {
        Self {
            send_requests: raw.max_send_wr,
            receive_requests: raw.max_recv_wr,
            send_sges: raw.max_send_sge,
            receive_sges: raw.max_recv_sge,
            inline_bytes: raw.max_inline_data,
        }
    }
}
