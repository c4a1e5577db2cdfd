//! Completions as the shim read them from CQEs.

use std::fmt;

use verbs::code::{WcOpcode, WcStatus};

use crate::sys::db_completion;

/// How a request ended: what libibverbs can say, and two answers of the shim's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// As `ibv_wc.status`.
    Verbs(WcStatus),
    /// The device put the payload into the CQE, not the buffer: the queue was created with scatter-to-CQE on.
    ScatteredToCqe,
    /// The CQE names a queue pair, or a request, that is not outstanding here.
    Stale,
}

impl Status {
    /// Ended well.
    pub const SUCCESS: Status = Status::Verbs(WcStatus::Success);

    pub(crate) fn from_raw(raw: u32) -> Status {
        match raw {
            0x100 => Status::ScatteredToCqe,
            0x101 => Status::Stale,
            verbs => Status::Verbs(WcStatus::from_raw(verbs)),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Verbs(status) => status.fmt(f),
            Status::ScatteredToCqe => {
                f.write_str("payload in the CQE instead of the buffer (scatter-to-CQE is on)")
            }
            Status::Stale => f.write_str("completion of a request that is not outstanding"),
        }
    }
}

/// One completion. After an error only `id`, `qpn`, `is_send`, `status` and the two syndromes mean anything.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Completion(pub(crate) db_completion);

impl Completion {
    /// The number that was given with the request.
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Success, or what went wrong.
    pub fn status(&self) -> Status {
        Status::from_raw(self.0.status)
    }

    /// Whether it ended well.
    pub fn is_success(&self) -> bool {
        self.0.status == 0
    }

    /// What ended.
    pub fn opcode(&self) -> WcOpcode {
        WcOpcode::from_raw(self.0.opcode)
    }

    /// Whether a send request ended, not a receive.
    pub fn is_send(&self) -> bool {
        self.0.is_send != 0
    }

    /// Bytes received or read.
    pub fn byte_count(&self) -> u32 {
        self.0.byte_len
    }

    /// Immediate data, in network order, if some came.
    pub fn immediate(&self) -> Option<[u8; 4]> {
        (self.0.has_imm != 0).then(|| self.0.imm_data.to_ne_bytes())
    }

    /// The local queue pair.
    pub fn qpn(&self) -> u32 {
        self.0.qpn
    }

    /// 16-bit index of the WQE that ended.
    pub fn wqe_index(&self) -> u32 {
        self.0.wqe_index
    }

    /// The device's syndrome as it wrote it; 0 on success.
    pub fn syndrome(&self) -> u8 {
        self.0.syndrome as u8
    }

    /// The device's vendor syndrome; 0 on success.
    pub fn vendor_syndrome(&self) -> u8 {
        self.0.vendor_syndrome as u8
    }

    /// When the device wrote a receive's completion, by its own clock (`verbs::Clock`); 0 for a send.
    pub fn timestamp(&self) -> u64 {
        self.0.timestamp
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.id())
            .field("status", &self.status())
            .field("opcode", &self.opcode())
            .field("byte_count", &self.byte_count())
            .field("qpn", &self.qpn())
            .field("syndrome", &self.syndrome())
            .field("vendor_syndrome", &self.vendor_syndrome())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_beyond_libibverbs_are_told_apart() {
        for (raw, status) in [
            (0, Status::SUCCESS),
            (13, Status::Verbs(WcStatus::RnrRetryExceeded)),
            (0x100, Status::ScatteredToCqe),
            (0x101, Status::Stale),
            (0xff, Status::Verbs(WcStatus::Other(0xff))),
        ] {
            let completion = Completion(db_completion { status: raw, ..db_completion::default() });
            assert_eq!(completion.status(), status);
            assert_eq!(completion.is_success(), raw == 0);
        }
    }
}
