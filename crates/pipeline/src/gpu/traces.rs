//! Records of steps, read from the ring in host memory, as traces of clients.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering;

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

impl Traces {
    /// Reads the records up to that answer.
    pub(super) fn read(&mut self, answered: u64) -> Result<(), ServedError> {
        let (now, nic) = (self.clock.meet()?, self.context.clock()?);
        let clocks = [self.last, now];
        let error_ns = self.last.error_ns.max(now.error_ns);
        let (first, all) =
            (answered.saturating_sub(RECORDS.into()).max(self.read), Memory::from(self.records.clone()));
        // The clients of records that were written over are not known any more.
        let mut lost = first - self.read;
        let number_at = |at: usize| (at + offset_of!(db_traced, number)) / 4;
        for number in first..answered {
            let at = (number % u64::from(RECORDS)) as usize * size_of::<db_traced>();
            let written = self.records.words()[number_at(at)].load(Ordering::Acquire);
            let record: db_traced = all.get(at)?;
            if written != (number as u32).wrapping_add(1) {
                lost += 1;
            } else if record.status == u32::from(Status::Ok.number()) {
                let trace = self.of.entry(record.client).or_default();
                let (sample, late_ns) = sample(&record.steps, &nic, &clocks);
                trace.push(sample, late_ns, error_ns);
            }
        }
        self.read = answered;
        self.last = now;
        for trace in self.of.values_mut() {
            trace.lost += lost;
            trace.clock_error_ns = trace.clock_error_ns.max(error_ns);
        }
        Ok(())
    }
}
