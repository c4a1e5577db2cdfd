//! The fair baseline: pinned slots, a stream for each direction of copies and one for the model. Two
//! instances of the model take turns, so that copies and computing overlap; one thread for all of it.

use std::collections::VecDeque;
use std::time::Instant;

use gpu::{Context, DeviceGraph, Event, Graph, Priority, Recorded, Stream};
use rdma_shim::kernel::Machine;

use super::Model;
use super::instance::{Instance, LIMIT, copy, failed, places};
use crate::cpu::{CpuError, Job, Memory, Offload};
use crate::gpu::{ServedError, buffers, launch, refuse};
use crate::trace::OffloadTimes;

/// Instances of the model.
const LANES: usize = 2;

enum Lane {
    Twin { model: Box<crate::gpu::Model>, times: OffloadTimes },
    // The graph first: it uses the model's memory.
    Gpu { graph: DeviceGraph, points: Points, _model: Box<dyn Recorded> },
}

/// Points of a request's way through the streams.
struct Points {
    arrived: Event,
    computed: Event,
    copied: Event,
    /// Where the copy to the GPU and the model begin, if they are traced.
    begins: Option<[Event; 2]>,
}

impl Points {
    fn new(event: impl Fn() -> gpu::Result<Event>, is_traced: bool) -> gpu::Result<Points> {
        let begins = if is_traced { Some([event()?, event()?]) } else { None };
        Ok(Points { arrived: event()?, computed: event()?, copied: event()?, begins })
    }

    /// How long the steps took between points that are reached.
    fn times(&self) -> gpu::Result<OffloadTimes> {
        let Some([copies, computes]) = &self.begins else { return Ok(OffloadTimes::default()) };
        Ok(OffloadTimes {
            // Its input is there, and the other instance still runs.
            queue_ns: computes.ns_since(&self.arrived)?,
            to_gpu_ns: self.arrived.ns_since(copies)?,
            run_ns: self.computed.ns_since(computes)?,
            to_cpu_ns: self.copied.ns_since(&self.computed)?,
            ..OffloadTimes::default()
        })
    }
}

#[derive(Debug)]
struct Streams {
    copies_in: Stream,
    compute: Stream,
    copies_out: Stream,
}

/// See the module.
pub struct Fair {
    lanes: Vec<(Lane, Vec<u64>, Vec<u64>)>,
    streams: Option<Streams>,
    slots: Memory,
    /// Slots as the CPU and as kernels address them.
    start: [u64; 2],
    /// Requests that were begun, each in the next lane.
    begun: usize,
    in_flight: VecDeque<Job>,
}

impl Fair {
    /// Two instances of one model, for slots that are pinned for the machine. Errors: pageable slots; buffers
    /// that are not the model's; the GPU's.
    pub fn new(machine: &Machine, slots: &Memory, instances: [Instance; LANES]) -> Result<Fair, ServedError> {
        let Some(shown) = slots.shown() else {
            return refuse("the fair baseline copies from pinned slots, and these are pageable");
        };
        let context = machine.context();
        let streams = context.map(|context| {
            let stream = || Stream::new(context, Priority::Least);
            Ok::<_, gpu::Error>(Streams { copies_in: stream()?, compute: stream()?, copies_out: stream()? })
        });
        let streams = streams.transpose()?;
        let lane = |instance: Instance| {
            buffers(&instance.inputs, slots.geometry.request.entries().len(), "inputs")?;
            buffers(&instance.outputs, slots.geometry.answer.entries().len(), "outputs")?;
            let lane = match (instance.model, context, &streams) {
                (Model::Called(model), None, _) => Lane::Twin { model, times: OffloadTimes::default() },
                (Model::Recorded(model), Some(context), Some(streams)) => {
                    lane_of(context, &streams.compute, model)?
                }
                _ => return refuse("a model of another kind of machine: one that is called is the twin's"),
            };
            Ok((lane, instance.inputs, instance.outputs))
        };
        let lanes = instances.into_iter().map(lane).collect::<Result<Vec<_>, ServedError>>()?;
        let start = [shown.address(), shown.kernel_address()];
        Ok(Fair { lanes, streams, slots: slots.clone(), start, begun: 0, in_flight: VecDeque::new() })
    }

    fn launch(&mut self, job: Job) -> Result<(), ServedError> {
        let geometry = &self.slots.geometry;
        let (lane, inputs, outputs) = &mut self.lanes[self.begun % LANES];
        let requests = places(geometry, job.slot, &geometry.request, 0).zip(inputs);
        let answers = places(geometry, job.slot, &geometry.answer, geometry.answer_offset()).zip(outputs);
        let host = |at: usize| self.start[0] + at as u64;
        match (lane, &self.streams) {
            (Lane::Gpu { graph, points, .. }, Some(streams)) => {
                let Points { arrived, computed, copied, begins } = points;
                if let Some([copies, _]) = begins {
                    copies.record(&streams.copies_in)?;
                }
                for ((at, bytes), input) in requests {
                    // SAFETY: slots and buffers are kept, and `Drop` waits for the streams before they go.
                    unsafe { streams.copies_in.copy_from_host(*input, host(at), bytes) }?;
                }
                arrived.record(&streams.copies_in)?;
                arrived.hold(&streams.compute)?;
                if let Some([_, computes]) = begins {
                    computes.record(&streams.compute)?;
                }
                // SAFETY: as above; `Recorded` promises the same of the model's memory.
                unsafe { graph.launch(&streams.compute) }?;
                computed.record(&streams.compute)?;
                computed.hold(&streams.copies_out)?;
                for ((at, bytes), output) in answers {
                    // SAFETY: as above.
                    unsafe { streams.copies_out.copy_to_host(host(at), *output, bytes) }?;
                }
                copied.record(&streams.copies_out)?;
            }
            (Lane::Twin { model, times }, _) => {
                let begun = Instant::now();
                for ((at, bytes), input) in requests {
                    // SAFETY: slots and the model's buffers are there, and reached through atomics.
                    unsafe { copy(*input, self.start[1] + at as u64, bytes) };
                }
                let computes = begun.elapsed();
                launch::run(model)?;
                let computed = begun.elapsed();
                for ((at, bytes), output) in answers {
                    // SAFETY: as above.
                    unsafe { copy(self.start[1] + at as u64, *output, bytes) };
                }
                *times = OffloadTimes {
                    to_gpu_ns: computes.as_nanos() as u64,
                    run_ns: (computed - computes).as_nanos() as u64,
                    to_cpu_ns: (begun.elapsed() - computed).as_nanos() as u64,
                    ..OffloadTimes::default()
                };
            }
            (Lane::Gpu { .. }, None) => return refuse("a GPU's model without streams"),
        }
        self.begun += 1;
        self.in_flight.push_back(job);
        Ok(())
    }

    fn oldest_is_done(&self) -> gpu::Result<bool> {
        match &self.lanes[(self.begun - self.in_flight.len()) % LANES].0 {
            Lane::Twin { .. } => Ok(true),
            Lane::Gpu { points, .. } => points.copied.is_reached(),
        }
    }
}

fn lane_of(context: &Context, compute: &Stream, model: Box<dyn Recorded>) -> Result<Lane, ServedError> {
    // SAFETY: the lane keeps the model as long as its graph.
    let graph = unsafe { Graph::capture(compute, |stream| model.record(stream)) }?;
    let graph = graph.instantiate_for_host()?.uploaded(compute)?;
    Ok(Lane::Gpu { graph, points: Points::new(|| Event::new(context), false)?, _model: model })
}

impl Offload for Fair {
    fn trace(&mut self) -> Result<(), CpuError> {
        let Some(streams) = &self.streams else { return Ok(()) };
        let context = streams.compute.context();
        for (lane, ..) in &mut self.lanes {
            if let Lane::Gpu { points, .. } = lane {
                *points = Points::new(|| Event::timed(context), true).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.in_flight.len() < LANES
    }

    fn begin(&mut self, job: Job) -> Result<(), CpuError> {
        self.launch(job).map_err(failed)
    }

    fn ended(&mut self) -> Result<Option<Job>, CpuError> {
        if self.in_flight.is_empty() || !self.oldest_is_done().map_err(failed)? {
            return Ok(None);
        }
        Ok(self.in_flight.pop_front())
    }

    fn times(&mut self) -> Result<OffloadTimes, CpuError> {
        // No request has begun since, so that its lane is not used again.
        let Some(last) = self.begun.checked_sub(self.in_flight.len() + 1) else {
            return Ok(OffloadTimes::default());
        };
        match &self.lanes[last % LANES].0 {
            Lane::Gpu { points, .. } => points.times().map_err(failed),
            Lane::Twin { times, .. } => Ok(*times),
        }
    }
}

impl Drop for Fair {
    fn drop(&mut self) {
        let Some(Streams { copies_in, compute, copies_out }) = &self.streams else { return };
        let ended = [copies_in, compute, copies_out].map(|stream| stream.wait("a baseline's work", LIMIT));
        if ended.iter().any(Result::is_err) {
            std::mem::forget((std::mem::take(&mut self.lanes), self.slots.clone()));
        }
    }
}
