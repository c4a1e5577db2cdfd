//! Several runs of a step in one graph, timed by the GPU.

use std::time::Duration;

use gpu::{DeviceGraph, GpuTimer, Graph, Stream};

use super::limits::{LIMIT, STRETCH};
use crate::engine::EngineError;

/// A graph of several runs, with a timer.
pub struct Timed {
    graph: DeviceGraph,
    timer: GpuTimer,
    times: usize,
}

impl Timed {
    /// Records so many runs of what `put` puts into a stream. Errors: the GPU cannot launch such a graph.
    pub fn new(
        stream: &Stream,
        times: usize,
        put: impl Fn(&Stream) -> gpu::Result<()>,
    ) -> Result<Timed, EngineError> {
        stream.wait("a stream before it records", LIMIT)?;
        let record = |stream: &Stream| (0..times).try_for_each(|_| put(stream));
        // SAFETY: the caller keeps the code of what is recorded.
        let graph = unsafe { Graph::capture(stream, record) }?.instantiate()?;
        let mut timed = Timed { graph, timer: GpuTimer::new(stream.context())?, times };
        timed.graph.upload(stream)?;
        timed.run(stream)?;
        Ok(timed)
    }

    /// The GPU's time of one run.
    pub fn run(&mut self, stream: &Stream) -> Result<Duration, EngineError> {
        self.timer.begin(stream)?;
        // SAFETY: the caller keeps what the graph uses.
        unsafe { self.graph.launch(stream) }?;
        self.timer.finish(stream)?;
        let elapsed = self.timer.elapsed(STRETCH)?;
        stream.wait("a timed graph", STRETCH)?;
        Ok(elapsed / self.times as u32)
    }
}
