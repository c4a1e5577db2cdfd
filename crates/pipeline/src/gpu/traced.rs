//! Traces of a pipeline whose kernels note when they take the steps of a request ([`crate::trace`]).
//!
//! Kernels write a record for each answer into a ring in host memory, which is read when a client has left.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering;

use rdma_shim::kernel::{HostMemory, Memory};
use slots::Status;
use verbs::{Clock, Context};

use super::layout::{db_served, db_steps, db_traced};
use super::time::{ClockSample, MachineClock, between};
use super::{Arrival, Served, ServedError, refuse};
use crate::trace::{Sample, Step, Trace};

/// Records of the ring: answers between two departures of clients that are not lost.
const RECORDS: u32 = 1 << 17;

/// What the CPU has of the traces.
#[derive(Debug)]
pub(super) struct Traces {
    context: Context,
    clock: MachineClock,
    records: HostMemory,
    last: ClockSample,
    /// Answers whose records were read.
    read: u64,
    /// By place.
    of: BTreeMap<u32, Trace>,
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

impl Served {
    /// Has kernels note the steps of each request from now on. Before it is started. Errors: arrivals that have no timestamp; a CPU
    /// that posts; no memory.
    pub fn trace(&mut self, context: &Context) -> Result<(), ServedError> {
        if self.arrival != Arrival::Completion || self.poster.is_some() {
            return refuse("steps are traced where requests arrive as receive completions and kernels post");
        }
        let clock = MachineClock::new(&self.core.machine)?;
        let last = clock.meet()?;
        let records = self.note_steps()?;
        let context = context.clone();
        self.traces = Some(Traces { context, clock, records, last, read: 0, of: BTreeMap::new() });
        Ok(())
    }

    /// Has kernels note the steps: the ring of records. However requests arrive: without a receive completion none has `arrived`.
    pub(super) fn note_steps(&mut self) -> Result<HostMemory, ServedError> {
        self.is_new()?;
        let machine = &self.core.machine;
        let steps = machine.own_memory(self.core.slot_count as usize * size_of::<db_steps>())?;
        steps.fill(0)?;
        let records = machine.host_memory(RECORDS as usize * size_of::<db_traced>())?;
        for (field, address) in [
            (offset_of!(db_served, steps), steps.kernel_address()),
            (offset_of!(db_served, traced), records.kernel_address()),
        ] {
            self.core.tell(field, &address.to_ne_bytes())?;
        }
        self.core.tell(offset_of!(db_served, traced_count), &RECORDS.to_ne_bytes())?;
        match self.core.traced.set((steps, records.clone())) {
            Ok(()) => Ok(records),
            Err(_) => refuse("it is traced already"),
        }
    }

    /// Takes what was traced of a client that has left; `None`: nothing is traced. Error: a clock that cannot be read.
    pub fn traced(&mut self, place: u32) -> Result<Option<Trace>, ServedError> {
        let answered = self.counters().answered;
        let Some(traces) = &mut self.traces else { return Ok(None) };
        let read = traces.read(answered);
        // Taken after an error too: the place's next client has a trace of its own.
        let trace = traces.of.remove(&place).unwrap_or_default();
        read.map(|()| Some(trace))
    }
}

impl Traces {
    /// Reads the records up to that answer.
    fn read(&mut self, answered: u64) -> Result<(), ServedError> {
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
