//! Traces of a pipeline whose kernels note when they take the steps of a request ([`crate::trace`]).
//!
//! Kernels write a record for each answer into a ring in host memory, which is read when a client has left.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};

use rdma_shim::kernel::HostMemory;
use verbs::Context;

use super::layout::{db_served, db_steps, db_traced};
use super::time::MachineClock;
use super::traces::{RECORDS, Traces};
use super::{Arrival, Served, ServedError, refuse};
use crate::trace::Trace;

impl Served {
    /// Has kernels note the steps of each request from now on. Before it is started. Errors: arrivals without
    /// a timestamp; a CPU that posts; no memory.
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

    /// Has kernels note steps: the ring of records. Without a receive completion no request has `arrived`.
    pub(super) fn note_steps(&mut self) -> Result<HostMemory, ServedError> {
        self.is_new()?;
        let machine = &self.core.machine;
        let steps = machine.zeroed_memory(self.core.slot_count as usize * size_of::<db_steps>())?;
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

    /// Takes a departed client's trace; `None`: nothing is traced. Error: a clock that cannot be read.
    pub fn traced(&mut self, place: u32) -> Result<Option<Trace>, ServedError> {
        let Some(traces) = &mut self.traces else { return Ok(None) };
        let read = traces.read(|| self.core.counters().answered);
        // Taken after an error too: the place's next client has a trace of its own.
        let trace = traces.of.remove(&place).unwrap_or_default();
        read.map(|()| Some(trace))
    }
}
