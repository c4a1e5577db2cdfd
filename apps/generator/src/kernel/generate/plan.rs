//! The plan of the generator's senders: posting threads, messages, and the numbers that kernels rely on.

use std::time::Duration;

use clap::ValueEnum;
use rdma_shim::c_structs;
use rdma_shim::kernel::{HostMemory, KernelError, Room};
use serde::{Deserialize, Serialize};

c_structs! {
    /// `struct db_generate_plan` of `kernels/generate.h`.
    pub struct db_generate_plan {
        cancel: u64,
        run_ns: u64,
        patience_ns: u64,
        hurry_ns: u64,
        payload_bytes: u64,
        slot_bytes: u64,
        opcode: u32,
        send_flags: u32,
        source_slots: u32,
        target_slots: u32,
        batch: u32,
        doorbell_batch: u32,
        window: u32,
        producers: u32,
    }
}

/// Longest message: the next bit of a data segment's length says that it is inline.
const MOST_BYTES: u64 = (1 << 31) - 1;
/// Lanes of a warp.
pub(super) const WARP: u32 = 32;
/// Warps on one queue at most. A launch first checks that the machine runs those of all queues side by side.
pub const MAX_PRODUCERS: u32 = 128;

/// The threads that post on a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Thread,
    /// One thread, in the original release's style: a doorbell a message, WRITEs that are not inline.
    Original,
    /// One warp, 32 messages side by side.
    Warp,
    /// So many warps, on the same queue.
    Shared(u32),
}

impl Style {
    /// Threads that post on a queue pair.
    pub fn threads(self) -> u32 {
        match self {
            Style::Thread | Style::Original => 1,
            Style::Warp => WARP,
            Style::Shared(producers) => producers.saturating_mul(WARP),
        }
    }

    /// Blocks of a launch for a queue pair, and threads of each.
    pub(super) fn shape(self) -> [u32; 2] {
        match self {
            Style::Shared(producers) => [producers, WARP],
            _ => [1, self.threads()],
        }
    }
}

/// Operation that carries a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// RDMA WRITE; the message number is the payload's last word.
    Write,
    /// RDMA WRITE with immediate; the message number is the immediate.
    WriteImm,
    /// SEND; the message number is the payload's last word.
    Send,
}

impl Operation {
    /// Numbers of enum ibv_wr_opcode.
    pub(in crate::kernel) fn opcode(self) -> u32 {
        match self {
            Operation::Write => 0,
            Operation::WriteImm => 1,
            Operation::Send => 2,
        }
    }
}

/// What each queue pair sends, and how it is received. A slot holds its message at the end; slots take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub operation: Operation,
    /// Whether the payload travels in the WQE.
    pub inline: bool,
    pub payload_bytes: u64,
    /// Distance of slots at both ends, a multiple of 8.
    pub slot_bytes: u64,
    /// Slots that messages come from.
    pub source_slots: u32,
    /// Slots that they go to.
    pub target_slots: u32,
    /// Messages a completion.
    pub batch: u32,
    /// Messages a doorbell.
    pub doorbell_batch: u32,
    /// Outstanding messages at most.
    pub window: u32,
    /// How long to post; `None`: until each queue pair's share is posted.
    pub run: Option<Duration>,
    /// Nothing completes for so long: the end.
    pub patience: Duration,
    /// Likewise, once told to end.
    pub hurry: Duration,
    /// Receives that the receiver keeps posted.
    pub receives: u32,
    /// Each how many-th message's body it compares; 0: none.
    pub sample: u32,
    /// Whether the sender waits for its leave to use a slot again.
    pub has_credits: bool,
}

impl Plan {
    /// Whether a message, and where it has one its number, lies in its slot.
    pub(in crate::kernel) fn fits_slots(&self) -> bool {
        let least = if self.operation == Operation::WriteImm { 1 } else { 8 };
        (least..=self.slot_bytes.min(MOST_BYTES)).contains(&self.payload_bytes)
            && self.slot_bytes.is_multiple_of(8)
    }

    /// What the kernels rely on.
    pub(super) fn check(&self, style: Style) -> Result<(), KernelError> {
        let cycles = [self.source_slots, self.target_slots];
        let whole = style == Style::Thread && self.operation == Operation::Write && !self.inline;
        let good = self.fits_slots()
            && self.slot_bytes <= u64::from(u32::MAX)
            && (1..=self.batch).contains(&self.doorbell_batch)
            && cycles
                .iter()
                .all(|&slots| slots >= self.batch && (!whole || slots % self.doorbell_batch == 0))
            && (!whole || self.batch.is_multiple_of(self.doorbell_batch))
            && match style {
                Style::Thread => true,
                Style::Original => self.doorbell_batch == 1 && self.operation != Operation::Send && !self.inline,
                // A batch that fills no warp leaves the other lanes idle.
                Style::Warp if self.batch < WARP => self.doorbell_batch == self.batch,
                Style::Warp | Style::Shared(_) => {
                    cycles.iter().all(|&slots| slots >= WARP) && self.doorbell_batch.is_multiple_of(WARP)
                }
            }
            // A poster may have to wait for the last completion, and needs room for a warp's messages then.
            && (!matches!(style, Style::Shared(_))
                || !self.inline && self.window >= 2 * WARP && (1..=MAX_PRODUCERS).contains(&style.shape()[0]));
        if good { Ok(()) } else { Err(KernelError::Refused(format!("{self:?} cannot be sent by {style:?}"))) }
    }

    /// An error unless the queue holds a window's WQEs and, after an error, a flush for each. Only the window
    /// makes posters of a shared queue wait for room: a longer one would overwrite unread WQEs.
    pub(super) fn fits(&self, queue: &str, room: &Room) -> Result<(), KernelError> {
        let remote = if self.operation == Operation::Send { 0 } else { 16 };
        // Length, and what is padded to 16 bytes; or one data segment.
        let payload = if self.inline { (self.payload_bytes + 4).next_multiple_of(16) } else { 16 };
        let blocks = (16 + remote + payload).div_ceil(64);
        let needed = u64::from(self.window) * blocks;
        if needed <= u64::from(room.sends) && self.window <= room.flushes() {
            return Ok(());
        }
        Err(KernelError::Refused(format!(
            "{queue}: a window of {} messages of {blocks} blocks each does not fit {} blocks and {} completions, of which a \
             quarter is given back late",
            self.window, room.sends, room.completions
        )))
    }

    /// Messages between completions of a queue that many share: a power of two, at most half the window.
    pub(super) fn signal_every(&self) -> u32 {
        let most = self.batch.min(self.window / 2).max(1);
        1 << most.ilog2()
    }

    pub(super) fn told(&self, cancel: &HostMemory, style: Style) -> db_generate_plan {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        db_generate_plan {
            cancel: cancel.kernel_address(),
            run_ns: self.run.map_or(0, |run| ns(run).max(1)),
            patience_ns: ns(self.patience),
            hurry_ns: ns(self.hurry),
            payload_bytes: self.payload_bytes,
            slot_bytes: self.slot_bytes,
            opcode: self.operation.opcode(),
            send_flags: if self.inline { 8 } else { 0 },
            source_slots: self.source_slots,
            target_slots: self.target_slots,
            batch: self.batch,
            doorbell_batch: self.doorbell_batch,
            window: self.window,
            producers: style.shape()[0],
        }
    }
}
