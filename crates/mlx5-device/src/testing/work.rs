//! Work requests of the mock driver, and their WQEs.

use mlx5_layout::SendOpcode;
use mlx5_layout::send_wqe::{AddressVector, CQ_UPDATE, Control, DataPointer, FENCE, SOLICITED};
use mlx5_layout::testing::{SendWqeBuilder, WqeTooLong};
use mlx5_layout::umr::Umr;

use super::shapes::Region;

/// Local side of a work request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// A piece of a region.
    Pointer(DataPointer),
    /// Bytes in the WQE.
    Inline(Vec<u8>),
}

/// A send work request; signalled unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkRequest {
    pub opcode: SendOpcode,
    /// Remote address and key.
    pub remote: Option<(u64, u32)>,
    /// Swap or add, compare.
    pub atomic: Option<(u64, u64)>,
    pub datagram: Option<AddressVector>,
    /// Local side.
    pub data: Vec<Data>,
    /// What is to be done to the key that the immediate field names.
    pub umr: Option<Umr>,
    pub immediate: [u8; 4],
    /// CQE wanted.
    pub signalled: bool,
    pub solicited: bool,
    pub fence: bool,
}

impl WorkRequest {
    pub fn new(opcode: SendOpcode) -> WorkRequest {
        WorkRequest {
            opcode,
            remote: None,
            atomic: None,
            datagram: None,
            data: Vec::new(),
            umr: None,
            immediate: [0; 4],
            signalled: true,
            solicited: false,
            fence: false,
        }
    }

    /// SEND of a piece of a region.
    pub fn send(from: &Region, offset: u64, len: u32) -> WorkRequest {
        WorkRequest::new(SendOpcode::Send).pointer(from, offset, len)
    }

    pub fn write(from: &Region, offset: u64, len: u32, to: &Region, at: u64) -> WorkRequest {
        WorkRequest::new(SendOpcode::RdmaWrite).remote(to, at).pointer(from, offset, len)
    }

    pub fn read(into: &Region, offset: u64, len: u32, from: &Region, at: u64) -> WorkRequest {
        WorkRequest::new(SendOpcode::RdmaRead).remote(from, at).pointer(into, offset, len)
    }

    /// Compare and swap, the old value into 8 bytes of `into`.
    pub fn compare_swap(
        into: &Region,
        offset: u64,
        at: (&Region, u64),
        compare: u64,
        swap: u64,
    ) -> WorkRequest {
        let request =
            WorkRequest::new(SendOpcode::AtomicCompareSwap).remote(at.0, at.1).pointer(into, offset, 8);
        WorkRequest { atomic: Some((swap, compare)), ..request }
    }

    pub fn fetch_add(into: &Region, offset: u64, at: (&Region, u64), add: u64) -> WorkRequest {
        let request =
            WorkRequest::new(SendOpcode::AtomicFetchAdd).remote(at.0, at.1).pointer(into, offset, 8);
        WorkRequest { atomic: Some((add, 0)), ..request }
    }

    pub fn remote(self, region: &Region, at: u64) -> WorkRequest {
        WorkRequest { remote: Some((region.address + at, region.rkey)), ..self }
    }

    pub fn pointer(mut self, region: &Region, offset: u64, len: u32) -> WorkRequest {
        self.data.push(Data::Pointer(region.pointer(offset, len)));
        self
    }

    pub fn inline(mut self, bytes: &[u8]) -> WorkRequest {
        self.data.push(Data::Inline(bytes.to_vec()));
        self
    }

    /// With this immediate, and the opcode that carries one.
    pub fn immediate(self, immediate: [u8; 4]) -> WorkRequest {
        let opcode = match self.opcode {
            SendOpcode::Send => SendOpcode::SendImm,
            SendOpcode::RdmaWrite => SendOpcode::RdmaWriteImm,
            other => other,
        };
        WorkRequest { opcode, immediate, ..self }
    }

    pub fn unsignalled(self) -> WorkRequest {
        WorkRequest { signalled: false, ..self }
    }

    /// The WQE's bytes: whole 16-byte units.
    pub fn wqe(&self, qpn: u32, wqe_index: u16) -> Result<Vec<u8>, WqeTooLong> {
        let mut fm_ce_se = if self.signalled { CQ_UPDATE } else { 0 };
        fm_ce_se |= if self.solicited { SOLICITED } else { 0 };
        fm_ce_se |= if self.fence { FENCE } else { 0 };
        let control = Control {
            wqe_index,
            opcode: self.opcode.to_u8(),
            qpn,
            fm_ce_se,
            immediate: self.immediate,
            ..Control::default()
        };
        let mut builder = SendWqeBuilder::new(control);
        if let Some(vector) = &self.datagram {
            builder = builder.datagram(vector);
        }
        if let Some((va, rkey)) = self.remote {
            builder = builder.remote(va, rkey);
        }
        if let Some((swap_add, compare)) = self.atomic {
            builder = builder.atomic(swap_add, compare);
        }
        if let Some(umr) = &self.umr {
            builder = builder.raw(&umr.emit());
        }
        for data in &self.data {
            builder = match data {
                Data::Pointer(p) => builder.pointer(p.byte_count, p.lkey, p.va),
                Data::Inline(bytes) => builder.inline(bytes),
            };
        }
        builder.finish()
    }
}
