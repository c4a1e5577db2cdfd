//! Records of steps, read from the ring in host memory, as traces of clients.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{Ordering, fence};

use rdma_shim::kernel::{HostMemory, Memory};
use slots::Status;
use verbs::{Clock, Context};

use super::error::ServedError;
use super::layout::{db_steps, db_traced};
use super::time::{ClockSample, MachineClock, between};
use crate::trace::{Sample, Step, Trace};

/// Records of the ring: answers between two departures of clients that are not lost.
pub(super) const RECORDS: u32 = 1 << 17;

/// What the CPU has of the traces.
#[derive(Debug)]
pub(super) struct Traces {
    pub(super) context: Context,
    pub(super) clock: MachineClock,
    pub(super) records: HostMemory,
    pub(super) last: ClockSample,
    /// Answers whose records were read.
    pub(super) read: u64,
    /// By place.
    pub(super) of: BTreeMap<u32, Trace>,
}

/// The sample of a record, and by how much its receive completion is later than the moment when it was found.
fn sample(steps: &db_steps, nic: &Clock, clocks: &[ClockSample; 2]) -> (Sample, u64) {
    let unix = |machine_ns: u64| between(&clocks[0], &clocks[1], machine_ns);
    let (arrived, looks, begun) = (nic.unix_ns(steps.arrived), unix(steps.looks), unix(steps.begun));
    let mut sample = Sample { service_ns: unix(steps.rung).saturating_sub(arrived), ..Sample::default() };
    sample.set(Step::Queue, looks.saturating_sub(arrived));
    sample.set(Step::Wait, begun.saturating_sub(looks.max(arrived)));
    for (step, from, to) in [
        (Step::CopyIn, steps.takes, steps.taken),
        (Step::Run, steps.taken, steps.puts),
        (Step::CopyOut, steps.puts, steps.put),
        (Step::Send, steps.put, steps.rung),
    ] {
        sample.set(step, to.saturating_sub(from));
    }
    (sample, arrived.saturating_sub(begun))
}

/// What a place of the ring has of an answer.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Record,
    /// The record of the lap before: the kernel has counted the answer, whose record is not here yet.
    Due,
    /// Another one has been written over it, or is.
    Lost,
}

/// `written`: the place's number before its record was read; `answered`: how many answers were, behind that.
fn found(number: u64, written: u32, answered: u64) -> Found {
    let lap = u64::from(RECORDS);
    let before = number.checked_sub(lap).map_or(0, |before| (before as u32).wrapping_add(1));
    if written == before {
        Found::Due
    // A kernel may be storing the record of the next answer.
    } else if written == (number as u32).wrapping_add(1) && number + lap > answered {
        Found::Record
    } else {
        Found::Lost
    }
}

impl Traces {
    /// Reads the records of all answers so far. `count`: of answers.
    pub(super) fn read(&mut self, count: impl Fn() -> u64) -> Result<(), ServedError> {
        let answered = count();
        let (now, nic) = (self.clock.meet()?, self.context.clock()?);
        let clocks = [self.last, now];
        let error_ns = self.last.error_ns.max(now.error_ns);
        let (first, all) =
            (answered.saturating_sub(RECORDS.into()).max(self.read), Memory::from(self.records.clone()));
        // The clients of records that were written over are not known any more.
        let mut lost = first - self.read;
        let mut read = answered;
        let number_at = |at: usize| (at + offset_of!(db_traced, number)) / 4;
        for number in first..answered {
            let at = (number % u64::from(RECORDS)) as usize * size_of::<db_traced>();
            let written = self.records.words()[number_at(at)].load(Ordering::Acquire);
            let record: db_traced = all.get(at)?;
            // The record is read before the count. A kernel counts an answer before the next one's record.
            fence(Ordering::Acquire);
            match found(number, written, count()) {
                Found::Record if record.status == u32::from(Status::Ok.number()) => {
                    let trace = self.of.entry(record.client).or_default();
                    let (sample, late_ns) = sample(&record.steps, &nic, &clocks);
                    trace.push(sample, late_ns, error_ns);
                }
                Found::Record => {}
                Found::Lost => lost += 1,
                Found::Due => {
                    read = number;
                    break;
                }
            }
        }
        self.read = read;
        self.last = now;
        for trace in self.of.values_mut() {
            trace.lost += lost;
            trace.clock_error_ns = trace.clock_error_ns.max(error_ns);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_may_be_written_over_while_it_is_read_is_lost_and_one_under_way_is_due() {
        let lap = u64::from(RECORDS);
        for (number, written, answered, wanted) in [
            (0, 0, 1, Found::Due),
            (0, 1, 1, Found::Record),
            (0, 1, lap - 1, Found::Record),
            (0, 1, lap, Found::Lost),
            (0, RECORDS + 1, lap + 1, Found::Lost),
            (lap + 5, 6, lap + 6, Found::Due),
            (lap + 5, RECORDS + 6, lap + 6, Found::Record),
            (u64::from(u32::MAX), 0, 1 << 32, Found::Record),
        ] {
            assert_eq!(found(number, written, answered), wanted, "{number} {written} {answered}");
        }
    }
}
