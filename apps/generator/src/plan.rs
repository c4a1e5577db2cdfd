//! What is to be sent: decided by the sender, told to the receiver, checked by both.

use clap::ValueEnum;
pub use generator::kernel::generate::Operation as Op;
use serde::{Deserialize, Serialize};

/// Bytes of the sequence word at the end of a message.
pub const SEQUENCE_BYTES: usize = 8;

/// Largest message: every card takes it (ConnectX's `max_msg_sz` is 1 GiB), and it bounds memory sensibly.
pub const MAX_PAYLOAD_BYTES: u64 = 64 << 20;
/// Queue pairs that one run may use.
pub const MAX_QPS: u32 = 1024;
/// Messages outstanding on one queue pair.
pub const MAX_WINDOW: u32 = 4096;

/// Memory that a window of slots of all queue pairs together may take; either end holds up to two of them.
const SOURCE_BYTES: u64 = 64 << 20;
const CACHE_LINE_BYTES: u64 = 64;

/// Transport service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: what is lost stays lost, and is counted.
    Uc,
}

/// What the receiver looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Every slot, after the last completion; nothing while messages flow.
    End,
    /// Every message number, and the body of each 61st message; slots are overwritten with leave only.
    Sample,
    /// Every message before its slot may be overwritten.
    All,
}

impl Verify {
    /// Whether the sender waits for the receiver's leave to overwrite a slot.
    pub fn uses_credits(self) -> bool {
        self != Verify::End
    }

    /// Each how many-th message's body is compared on arrival; 0: none.
    pub fn every(self) -> u32 {
        match self {
            Verify::End => 0,
            // A prime, so that samples do not fall into step with the slots.
            Verify::Sample => 61,
            Verify::All => 1,
        }
    }

    /// Whether the body of this message is compared on arrival.
    pub fn looks_at(self, message: u64) -> bool {
        self.every() > 0 && message.is_multiple_of(self.every().into())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub op: Op,
    pub service: Service,
    pub payload_bytes: u64,
    /// Queue pairs, used in turn.
    pub qps: u32,
    /// Messages a completion.
    pub batch: u32,
    /// Messages a doorbell.
    pub doorbell_batch: u32,
    /// Outstanding messages of one queue pair at most, and source slots.
    pub window: u32,
    /// Whether the payload travels in the WQE.
    pub inline: bool,
    pub verify: Verify,
}

impl Plan {
    /// Chooses batch and window where not given (the plan's own do not count). Makes the numbers fit, or says
    /// which one cannot and what it may be.
    pub fn fitted(self, batch: Option<u32>, window: Option<u32>) -> Result<Plan, String> {
        within("--payload", self.payload_bytes, self.least_bytes(), MAX_PAYLOAD_BYTES, "bytes")?;
        within("--qps", self.qps.into(), 1, MAX_QPS.into(), "queue pairs")?;
        let (stride, doorbell_batch) = (slot_bytes(self.payload_bytes), self.doorbell_batch);
        let room = (SOURCE_BYTES / u64::from(self.qps) / stride).clamp(2, 512) as u32;
        let batch = batch.unwrap_or_else(|| {
            let fitting = 64.min(room / 2).max(doorbell_batch);
            fitting - fitting % doorbell_batch.max(1)
        });
        within("--batch", batch.into(), 1, (MAX_WINDOW / 2).into(), "messages a completion")?;
        let of_batch = "messages a doorbell (--batch)";
        within("--doorbell-batch", doorbell_batch.into(), 1, batch.into(), of_batch)?;
        if !batch.is_multiple_of(doorbell_batch) {
            return Err(format!("--batch {batch} must be a multiple of --doorbell-batch {doorbell_batch}"));
        }
        // Two batches at least: one is posted while the other is in flight. Whole batches: each starts at the
        // same slots, and a list of requests can be made once.
        let window = window.unwrap_or(room.max(2 * batch));
        // As it was given, before it is cut to whole batches.
        let least = "messages, two batches at least";
        within("--window", window.into(), (2 * batch).into(), MAX_WINDOW.into(), least)?;
        let plan = Plan { batch, window: window - window % batch, ..self };
        plan.check()?;
        Ok(plan)
    }

    fn least_bytes(&self) -> u64 {
        if self.op == Op::WriteImm { 1 } else { SEQUENCE_BYTES as u64 }
    }

    /// What a receiver asks of a plan that it did not make.
    pub fn check(&self) -> Result<(), String> {
        within("payload", self.payload_bytes, self.least_bytes(), MAX_PAYLOAD_BYTES, "bytes")?;
        within("qps", self.qps.into(), 1, MAX_QPS.into(), "queue pairs")?;
        within("window", self.window.into(), 2, MAX_WINDOW.into(), "messages")?;
        within("batch", self.batch.into(), 1, (self.window / 2).into(), "messages a completion")?;
        within("doorbell_batch", self.doorbell_batch.into(), 1, self.batch.into(), "messages a doorbell")?;
        if self.service == Service::Uc && self.op == Op::Write && self.verify == Verify::End {
            // A plain WRITE completes nothing at the receiver, and on UC the last one proves none before it.
            return Err("UC WRITEs cannot be counted at the end: use --op write-imm, or --verify all".into());
        }
        let bytes = u64::from(self.qps) * self.slot_bytes() as u64 * 2 * u64::from(self.window);
        within("qps × window × payload", bytes, 0, 8 << 30, "bytes of memory")
    }

    /// Slots of one queue pair at the sender: two windows. Successive messages in a target slot come from
    /// different source slots with different bodies; requests repeat soon enough to make all once.
    pub fn source_slots(&self) -> u32 {
        2 * self.window
    }

    /// Slots of one queue pair at the receiver. A WRITE names its slot, which is never given to two messages
    /// in flight. A SEND finds the next receive: of nearly two windows, so that a slightly late receiver
    /// causes no RNR NAK. It is one less than two for the reason at [`Plan::source_slots`].
    pub fn target_slots(&self) -> u32 {
        if self.op == Op::Send { 2 * self.window - 1 } else { self.window }
    }

    /// Receives kept posted on a queue pair. WRITEs with immediate put nothing into them, so there may be
    /// more than slots: a slightly late receiver then causes no RNR NAK.
    pub fn receives(&self) -> u32 {
        match self.op {
            Op::Write => 0,
            Op::WriteImm => 4 * self.window,
            Op::Send => self.target_slots(),
        }
    }

    /// What a message carries as immediate: its place among the source slots, more than can be outstanding.
    pub fn immediate(&self, message: u64) -> u32 {
        self.source_slot(message) as u32
    }

    pub fn slot_bytes(&self) -> usize {
        slot_bytes(self.payload_bytes) as usize
    }

    /// Payload without the sequence word, if it has one.
    pub fn body_bytes(&self) -> usize {
        self.payload_bytes as usize - if self.op == Op::WriteImm { 0 } else { SEQUENCE_BYTES }
    }

    pub fn source_slot(&self, message: u64) -> u64 {
        message % u64::from(self.source_slots())
    }

    pub fn target_slot(&self, message: u64) -> u64 {
        message % u64::from(self.target_slots())
    }

    /// How many of `count` messages a queue pair takes.
    pub fn share(&self, count: u64, qp: u32) -> u64 {
        let qps = u64::from(self.qps);
        count / qps + u64::from(u64::from(qp) < count % qps)
    }
}

fn slot_bytes(payload_bytes: u64) -> u64 {
    payload_bytes.next_multiple_of(CACHE_LINE_BYTES)
}

fn within(what: &str, value: u64, low: u64, high: u64, unit: &str) -> Result<(), String> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(format!("{what} {value} is out of range: {low} to {high} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISH: Plan = Plan {
        op: Op::Write,
        service: Service::Rc,
        payload_bytes: 64,
        qps: 1,
        batch: 0,
        doorbell_batch: 1,
        window: 0,
        inline: false,
        verify: Verify::End,
    };

    #[test]
    fn every_wish_that_is_granted_holds_together() {
        for payload_bytes in [8, 64, 1000, 4096, 80_000, 1 << 20, MAX_PAYLOAD_BYTES] {
            for qps in [1, 8, 1024] {
                for doorbell_batch in [1, 2, 16, 48] {
                    let wish = Plan { payload_bytes, qps, doorbell_batch, ..WISH };
                    let Ok(plan) = wish.clone().fitted(None, None) else {
                        // Refused only where the smallest window (two batches of a doorbell) is too large.
                        let least =
                            4 * u64::from(doorbell_batch) * slot_bytes(payload_bytes) * u64::from(qps);
                        assert!(least > 8 << 30, "{wish:?}");
                        continue;
                    };
                    assert!(
                        plan.window.is_multiple_of(plan.batch) && plan.window >= 2 * plan.batch,
                        "{plan:?}"
                    );
                    assert!(plan.batch.is_multiple_of(plan.doorbell_batch), "{plan:?}");
                    let (one, next) = (5, 5 + u64::from(plan.target_slots()));
                    assert_eq!(plan.target_slot(one), plan.target_slot(next));
                    assert_ne!(plan.source_slot(one), plan.source_slot(next), "{plan:?}");
                    let shares: u64 = (0..qps).map(|qp| plan.share(1_000_003, qp)).sum();
                    assert_eq!(shares, 1_000_003);
                }
            }
        }
    }

    #[test]
    fn a_number_that_does_not_fit_is_named_with_its_range() {
        for (wish, batch, window, words) in [
            (Plan { payload_bytes: 7, ..WISH }, None, None, ["--payload 7", "8 to"]),
            (
                Plan { payload_bytes: MAX_PAYLOAD_BYTES + 1, ..WISH },
                None,
                None,
                ["--payload", "to 67108864 bytes"],
            ),
            (Plan { qps: 0, ..WISH }, None, None, ["--qps 0", "1 to 1024"]),
            (WISH, Some(0), None, ["--batch 0", "1 to 2048"]),
            (
                Plan { doorbell_batch: 3, ..WISH },
                Some(10),
                None,
                ["--batch 10", "multiple of --doorbell-batch 3"],
            ),
            (Plan { doorbell_batch: 0, ..WISH }, None, None, ["--doorbell-batch 0", "1 to"]),
            (WISH, Some(64), Some(64), ["--window 64", "128 to 4096"]),
            (Plan { service: Service::Uc, ..WISH }, None, None, ["UC WRITEs", "--op write-imm"]),
        ] {
            let error = wish.fitted(batch, window).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
}
