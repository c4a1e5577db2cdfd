//! Runs of an instance, timed by the GPU's global timer: graphs whose first and last kernel stamp, and
//! outputs that are looked at while a graph runs.

use std::ops::Range;
use std::time::Duration;

use gpu::{GpuTimer, Graph, Staging, Stamp, Stamps, Stream, stamp_unit};

use super::code::module;
use super::instance::{self, Instance, SelfLaunchingInstance};
use super::limits::LIMIT;
use crate::engine::EngineError;

/// Runs that are enqueued together, one behind the other, before one synchronisation.
const ENQUEUED: usize = 100;

impl Instance {
    /// Graphs that launch themselves, made from now on, stamp each run; so many of the last ones are kept.
    pub fn stamp(&mut self, runs: usize) -> Result<(), EngineError> {
        self.stamps = Some(self.new_stamps(runs)?);
        Ok(())
    }

    fn new_stamps(&self, runs: usize) -> Result<Stamps, EngineError> {
        let code = &self.loaded.code;
        let module = module(&code.context, &code.builder, &[stamp_unit()])?;
        Ok(Stamps::new(&module, runs, self.way())?)
    }

    /// Median GPU times of a run that the host launches, `(span, stamped)`: from the first kernel's begin to
    /// the last one's end, and with the gap to the stamps before and behind them. Each gap is taken to be as
    /// long as the time of a graph of the two stamps alone.
    pub fn spans(&self, runs: usize) -> Result<(Duration, Duration), EngineError> {
        let stamps = self.new_stamps(runs)?;
        let empty = self.stamped(&stamps, runs, |_| Ok(()))?;
        stamps.clear(self.way())?;
        let model = |stream: &Stream| instance::put_all(&self.loaded, &self.memory, stream);
        let stamped = self.stamped(&stamps, runs, model)?;
        Ok((stamped.saturating_sub(2 * empty), stamped))
    }

    /// The GPU's time of a turn of the graph that launches itself, without stamps: the mean of so many. The
    /// first one's launch is in it.
    pub fn turn(&self, turns: u32) -> Result<Duration, EngineError> {
        let mut timer = GpuTimer::new(self.stream.context())?;
        let mut graph = self.relaunched(turns.max(1), None)?;
        // SAFETY: what the kernels use lives until the graph has ended, or the context keeps it.
        unsafe { graph.start_timed(&mut timer) }?;
        graph.wait(LIMIT)?;
        Ok(timer.elapsed(LIMIT)? / turns.max(1))
    }

    /// The median, from stamp to stamp, of runs that follow one another, with these kernels between.
    fn stamped(
        &self,
        stamps: &Stamps,
        runs: usize,
        between: impl Fn(&Stream) -> gpu::Result<()>,
    ) -> Result<Duration, EngineError> {
        let record = |stream: &Stream| {
            // SAFETY: the stamps live as long as the graph, whose runs follow one another.
            unsafe { stamps.begin(stream) }?;
            between(stream)?;
            // SAFETY: as above.
            unsafe { stamps.end(stream) }
        };
        // SAFETY: code, memory and stamps live until the stream is idle, or the context keeps them.
        let graph = unsafe { Graph::capture(&self.stream, record) }?.instantiate()?;
        for first in (0..runs).step_by(ENQUEUED) {
            for _ in first..runs.min(first + ENQUEUED) {
                // SAFETY: as above; runs of one stream follow one another.
                unsafe { graph.launch(&self.stream) }?;
            }
            self.wait()?;
        }
        let (found, _) = stamps.read(0..runs as u64, self.way())?;
        let mut spans: Vec<u64> = found.iter().map(|run| run.end_ns.saturating_sub(run.start_ns)).collect();
        spans.sort_unstable();
        Ok(Duration::from_nanos(spans.get(spans.len() / 2).copied().unwrap_or_default()))
    }
}

impl SelfLaunchingInstance {
    /// Stamps of these turns, counted from the instance's first one, and how many of them were overwritten.
    /// None for an instance that does not stamp. Error: it runs.
    pub fn stamps(&self, turns: Range<u64>) -> Result<(Vec<Stamp>, u64), EngineError> {
        self.at_rest()?;
        match &self.instance.stamps {
            Some(stamps) => Ok(stamps.read(turns, self.instance.way())?),
            None => Ok((Vec::new(), 0)),
        }
    }

    /// What lies in the outputs while it runs: each element is of the run that goes on, or of the one before
    /// it, which have the same inputs. `None`: they were not copied in this time, since the GPU does other
    /// work first.
    pub fn outputs_meanwhile(&self, limit: Duration) -> Result<Option<Vec<Vec<f32>>>, EngineError> {
        let way = Staging { limit: limit.min(LIMIT), ..self.instance.way() };
        match self.instance.outputs_by(way) {
            Ok(outputs) => Ok(Some(outputs)),
            Err(EngineError::Gpu(gpu::Error::Deadline { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
