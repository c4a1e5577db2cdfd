//! What a test says of a driver and its objects before they are made, and what it gets back.

use crate::command::Handle;
use mlx5_layout::send_wqe::DataPointer;
use roce::ServiceType;

use super::blocks::Block;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqId(pub(super) usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpId(pub(super) usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqId(pub(super) usize);

#[derive(Debug, Clone, Copy)]
pub struct CqShape {
    pub entries: u32,
    /// 64 or 128.
    pub cqe_size: u32,
    pub channel: Option<u32>,
    /// A full ring is overwritten.
    pub ignore_overrun: bool,
}

impl Default for CqShape {
    fn default() -> Self {
        CqShape { entries: 256, cqe_size: 64, channel: None, ignore_overrun: false }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct QpShape {
    pub service: ServiceType,
    /// Send blocks.
    pub sq_blocks: u32,
    /// Receive entries.
    pub rq_entries: u32,
    /// log2 of a receive entry's bytes.
    pub rq_shift: u32,
    /// Send CQ; none: a new one.
    pub send_cq: Option<CqId>,
    /// Receive CQ; none: a new one.
    pub recv_cq: Option<CqId>,
    /// Shared receive queue; none: receive entries of its own.
    pub srq: Option<SrqId>,
    /// `MLX5_QP_FLAG_*`.
    pub mlx5_flags: u32,
    /// `sq_sig_all`.
    pub signal_all: bool,
    /// UAR page, by its place among the driver's; none: a new one.
    pub page: Option<usize>,
    /// Register of the page: 0 or 1.
    pub register: usize,
}

impl Default for QpShape {
    fn default() -> Self {
        QpShape {
            service: ServiceType::Rc,
            sq_blocks: 64,
            rq_entries: 64,
            rq_shift: 6,
            send_cq: None,
            recv_cq: None,
            srq: None,
            mlx5_flags: 1 << 10,
            signal_all: false,
            page: None,
            register: 0,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Region {
    pub block: Block,
    /// Address of its first byte, as work requests name it.
    pub address: u64,
    pub lkey: u32,
    pub rkey: u32,
    pub handle: Handle,
}

impl Region {
    pub fn pointer(&self, offset: u64, len: u32) -> DataPointer {
        DataPointer { byte_count: len, lkey: self.lkey, va: self.address + offset }
    }

    /// Fills a piece with bytes made of `seed`.
    pub fn fill(&self, offset: usize, len: usize, seed: u8) -> Vec<u8> {
        let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        self.block.write(offset, &bytes);
        bytes
    }
}
