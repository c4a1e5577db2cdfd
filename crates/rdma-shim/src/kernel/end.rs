//! How a kernel says that it ended: `struct db_kernel_end` of `doorbell_kernel.h`.

use std::fmt;

use super::memory::c_structs;
use crate::{Completion, Status};

c_structs! {
    /// `struct db_kernel_end`, as a kernel wrote it.
    #[allow(missing_docs, reason = "fields of C")]
    pub struct db_kernel_end {
        pub wr_id: u64,
        pub code: u32,
        pub qpn: u32,
        pub status: u32,
        pub syndrome: u32,
        pub vendor_syndrome: u32,
        pub is_send: u32,
    }
}

const COMPLETION: u32 = 0x10000;

/// Why a kernel gave up a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The queue pair.
    pub qpn: u32,
    /// The number that was given with the request.
    pub wr_id: u64,
    /// What happened.
    pub reason: Reason,
}

/// See [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// An error completion.
    Completion {
        /// What it says.
        status: Status,
        /// As the device wrote it.
        syndrome: u8,
        /// Likewise.
        vendor_syndrome: u8,
        /// Whether of a send request.
        is_send: bool,
    },
    /// Nothing happened until the deadline.
    Deadline,
    /// The host told it to end.
    Cancelled,
    /// A queue that many share has failed.
    QueueFailed,
    /// The request can never be posted on this queue; or a CQE that cannot be read.
    Invalid,
    /// The queue had no room where the kernel counted on some.
    Full,
    /// A number that we do not know.
    Other(u32),
}

impl db_kernel_end {
    /// Of an error completion that the CPU took.
    pub fn of(done: &Completion) -> db_kernel_end {
        let done = done.0;
        db_kernel_end {
            wr_id: done.wr_id,
            code: COMPLETION,
            qpn: done.qpn,
            status: done.status,
            syndrome: done.syndrome,
            vendor_syndrome: done.vendor_syndrome,
            is_send: done.is_send,
        }
    }

    /// The failure that it tells of; `None` when all went well.
    pub fn failure(&self) -> Option<Failure> {
        let reason = match self.code {
            0 => return None,
            COMPLETION => Reason::Completion {
                status: Status::from_raw(self.status),
                syndrome: self.syndrome as u8,
                vendor_syndrome: self.vendor_syndrome as u8,
                is_send: self.is_send != 0,
            },
            5 => Reason::QueueFailed,
            12 => Reason::Full,
            22 | 95 => Reason::Invalid,
            110 => Reason::Deadline,
            125 => Reason::Cancelled,
            other => Reason::Other(other),
        };
        Some(Failure { qpn: self.qpn, wr_id: self.wr_id, reason })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#x}, request {}: ", self.qpn, self.wr_id)?;
        match self.reason {
            Reason::Completion { status, syndrome, vendor_syndrome, is_send } => {
                let kind = if is_send { "" } else { "receive: " };
                write!(f, "{kind}{status} (syndrome {syndrome:#x}, vendor syndrome {vendor_syndrome:#x})")
            }
            Reason::Deadline => f.write_str("nothing completed until the deadline"),
            Reason::Cancelled => f.write_str("the kernel was told to end"),
            Reason::QueueFailed => f.write_str("the shared queue has failed"),
            Reason::Invalid => f.write_str("it cannot be posted on this queue, or its CQE cannot be read"),
            Reason::Full => f.write_str("the queue had no room"),
            Reason::Other(code) => write!(f, "the kernel says {code}"),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_says_becomes_a_sentence_with_queue_and_request() {
        assert_eq!(db_kernel_end::default().failure(), None);
        let end = db_kernel_end { wr_id: 7, code: COMPLETION, qpn: 0x49, status: 10, ..Default::default() };
        let end = db_kernel_end { syndrome: 0x13, vendor_syndrome: 0x88, is_send: 1, ..end };
        for (end, words) in [
            (end, "QP 0x49, request 7: remote access"),
            (db_kernel_end { code: 110, ..end }, "nothing completed until the deadline"),
            (db_kernel_end { code: 125, ..end }, "told to end"),
            (db_kernel_end { code: 5, ..end }, "shared queue has failed"),
            (db_kernel_end { code: 22, ..end }, "cannot be posted"),
            (db_kernel_end { code: 77, ..end }, "the kernel says 77"),
        ] {
            let text = end.failure().unwrap().to_string();
            assert!(text.contains(words) && text.starts_with("QP 0x49, request 7: "), "{text}");
        }
        assert!(end.failure().unwrap().to_string().ends_with("(syndrome 0x13, vendor syndrome 0x88)"));
    }
}
