//! A graph that launches itself, turn after turn, until it is told to end: the CPU only looks on.
//!
//! The kernel of `kernels/relaunch.cu` tells turns and end through 16 bytes of pinned memory. Where it is
//! last, a turn costs some 5.5 µs beside its kernels' 0.5 µs each, and no CPU time. The flag is seen once a
//! turn. Beside the last kernels ([`SelfLaunching::of_capture_beside`]) it costs less.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::compile::Unit;
use super::device_graph::{DeviceGraph, Graph};
use super::event::{Event, GpuTimer, StreamEnd};
use super::memory::PinnedMemory;
use super::module::{Arguments, Function, Module};
use super::stamps::{Stamps, with_stamp};
use super::stream::{Priority, Stream};
use super::wait;
use crate::graph_rules::Node;
use crate::result::driver::Shape;
use crate::result::{Error, Result};

/// The unit to compile into the module, beside the kernels of the graph.
pub fn relaunch_unit() -> Unit {
    with_stamp("relaunch.cu", include_str!("../../kernels/relaunch.cu"))
}

/// The unit to compile into a module for [`SelfLaunching::of_while`].
pub fn again_unit() -> Unit {
    with_stamp("again.cu", include_str!("../../kernels/again.cu"))
}

const KERNEL: &str = "doorbell_relaunch";
const AGAIN: &str = "doorbell_again";
/// Words of the control block, as `relaunch.cu` has them.
const CANCEL: usize = 0;
const TURNS: usize = 1;
const END: usize = 2;
const ERROR: usize = 3;

/// Why there was no further turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was told to end.
    Cancelled,
    /// It had as many turns as it was allowed.
    LimitReached,
    /// The launch failed, with this `cudaError_t`.
    LaunchFailed(u32),
    Unknown(u32),
}

fn end_of(word: u32, error: u32) -> Option<End> {
    match word {
        0 => None,
        1 => Some(End::Cancelled),
        2 => Some(End::LimitReached),
        3 => Some(End::LaunchFailed(error)),
        other => Some(End::Unknown(other)),
    }
}

/// A graph with its relaunching kernel, its stream, and its control block.
#[derive(Debug)]
pub struct SelfLaunching {
    graph: DeviceGraph,
    stream: Stream,
    control: PinnedMemory,
    /// The relaunching kernel is beside the last ones: it counts a turn, and tells the end, before they end.
    is_beside: bool,
}

impl SelfLaunching {
    /// A graph of what `record` puts into a stream, e.g. a library's kernels, and `module`'s relaunching
    /// kernel ([`relaunch_unit`]); at most `turns` turns, 0: any number. With `stamps` each turn is a stamped
    /// run, from before the record to the relaunching kernel's begin. Errors: the driver's, our graph rules'.
    ///
    /// # Safety
    /// As [`Graph::capture`] and [`Stream::launch`], for every turn; the stamps outlive the graph.
    pub unsafe fn of_capture(
        module: &Module,
        turns: u32,
        stamps: Option<&Stamps>,
        record: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<SelfLaunching> {
        let relaunch = module.function(KERNEL)?;
        let (stream, control) = Self::parts(&relaunch)?;
        let with_relaunch = |stream: &Stream| {
            // SAFETY: the stamps live as long as the graph; a turn follows the one before it.
            stamps.map_or(Ok(()), |stamps| unsafe { stamps.begin(stream) })?;
            record(stream)?;
            // SAFETY: the control block lives as long as the graph, and so do the stamps.
            unsafe { stream.launch(&relaunch, ONE_THREAD, &arguments(&control, turns, stamps)) }
        };
        // SAFETY: the graph's function below keeps the module; the recorded kernels' code is the caller's.
        let mut graph = unsafe { Graph::capture(&stream, with_relaunch) }?;
        graph.keep(relaunch);
        Self::finish(graph, stream, control, false)
    }

    /// As [`Self::of_capture`], of what `first` and then `last` record, with the relaunching kernel beside
    /// `last`. It reads the flag when `first` has ended: if `last` sets it, one more turn may follow. For
    /// some us it takes room of a multiprocessor; a kernel with a block for each then waits. Stamped runs end
    /// with a kernel behind all, which others do not have.
    ///
    /// # Safety
    /// As [`Self::of_capture`].
    pub unsafe fn of_capture_beside(
        module: &Module,
        turns: u32,
        stamps: Option<&Stamps>,
        first: impl FnOnce(&Stream) -> Result<()>,
        last: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<SelfLaunching> {
        let relaunch = module.function(KERNEL)?;
        let (context, (stream, control)) = (relaunch.context(), Self::parts(&relaunch)?);
        let beside = Stream::new(context, Priority::Least)?;
        let (fork, join) = (Event::new(context)?, Event::new(context)?);
        let launch = arguments(&control, turns, None);
        let with_relaunch = |stream: &Stream| {
            // SAFETY: as in `of_capture`.
            stamps.map_or(Ok(()), |stamps| unsafe { stamps.begin(stream) })?;
            first(stream)?;
            fork.record(stream)?;
            // From now on it records as well: no other thread may ask it whether it is idle.
            beside.records(true);
            fork.hold(&beside)?;
            // SAFETY: the control block lives as long as the graph.
            unsafe { beside.launch(&relaunch, ONE_THREAD, &launch) }?;
            join.record(&beside)?;
            last(stream)?;
            join.hold(stream)?;
            // SAFETY: as in `of_capture`.
            stamps.map_or(Ok(()), |stamps| unsafe { stamps.end(stream) })
        };
        // SAFETY: the graph's function below keeps the module; the recorded kernels' code is the caller's.
        let graph = unsafe { Graph::capture(&stream, with_relaunch) };
        beside.records(false);
        let mut graph = graph?;
        graph.keep(relaunch);
        Self::finish(graph, stream, control, true)
    }

    /// As [`Self::of_capture`], as the body of a WHILE node: the graph is launched once and has its turns by
    /// itself. `module` is of [`again_unit`].
    ///
    /// # Safety
    /// As [`Self::of_capture`].
    pub unsafe fn of_while(
        module: &Module,
        turns: u32,
        stamps: Option<&Stamps>,
        record: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<SelfLaunching> {
        let again = module.function(AGAIN)?;
        let (stream, control) = Self::parts(&again)?;
        let with_end = |stream: &Stream, handle| {
            // SAFETY: as in `of_capture`.
            stamps.map_or(Ok(()), |stamps| unsafe { stamps.begin(stream) })?;
            record(stream)?;
            // SAFETY: as in `of_capture`.
            unsafe { stream.launch(&again, ONE_THREAD, &arguments(&control, turns, stamps).u64(handle)) }
        };
        // SAFETY: as in `of_capture`.
        let mut graph = unsafe { Graph::capture_while(&stream, with_end) }?;
        graph.keep(again);
        Ok(SelfLaunching { graph: graph.instantiate_for_host()?, stream, control, is_beside: false })
    }

    fn parts(relaunch: &Function) -> Result<(Stream, PinnedMemory)> {
        let context = relaunch.context();
        // A cache line of its own: no other stores make the GPU's reads wait.
        Ok((Stream::new(context, Priority::Least)?, PinnedMemory::new(context, 128)?))
    }

    fn finish(graph: Graph, stream: Stream, control: PinnedMemory, is_beside: bool) -> Result<SelfLaunching> {
        let graph = graph.instantiate()?.uploaded(&stream)?;
        Ok(SelfLaunching { graph, stream, control, is_beside })
    }

    /// A turn's nodes in the order of their making; of [`Self::of_while`] the WHILE node, with these inside.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        self.graph.nodes()
    }

    /// Launches the first turn. Error: it still runs.
    ///
    /// # Safety
    /// As [`Stream::launch`], for every turn.
    pub unsafe fn start(&mut self) -> Result<()> {
        self.renew()?;
        // SAFETY: the caller's, as above.
        unsafe { self.graph.launch(&self.stream) }
    }

    /// As [`Self::start`]; `timer` has the time from before the first turn to behind the last one.
    ///
    /// # Safety
    /// As [`Self::start`].
    pub unsafe fn start_timed(&mut self, timer: &mut GpuTimer) -> Result<()> {
        self.renew()?;
        timer.begin(&self.stream)?;
        // SAFETY: the caller's, as above.
        unsafe { self.graph.launch(&self.stream) }?;
        timer.finish(&self.stream)
    }

    /// Makes the control block that of a graph which has not begun. Error: it still runs.
    fn renew(&mut self) -> Result<()> {
        if !self.stream.is_idle()? {
            return Err(Error::Refused("the graph still runs: it is started again when it has ended".into()));
        }
        self.control.words()[..=ERROR].iter().for_each(|word| word.store(0, Ordering::Release));
        Ok(())
    }

    /// Whether nothing of it runs. Error: what went wrong in one of its kernels.
    pub fn is_idle(&self) -> Result<bool> {
        self.stream.is_idle()
    }

    /// The end of the started chain of turns, to sleep for. What a graph launches itself belongs to its
    /// launch: the stream goes on behind the last turn.
    pub fn end(&self) -> Result<StreamEnd> {
        self.stream.end()
    }

    /// Where kernels find the word that [`Self::cancel`] sets: a turn that sets it is the last one.
    pub fn cancel_address(&self) -> u64 {
        self.control.device_address()
    }

    /// Tells it to end after the turn that sees it.
    pub fn cancel(&self) {
        self.control.words()[CANCEL].store(1, Ordering::Release);
    }

    /// Turns that have ended since the start.
    pub fn turns(&self) -> u32 {
        let is_over = self.control.words()[END].load(Ordering::Acquire) != 0;
        let turns = self.control.words()[TURNS].load(Ordering::Acquire);
        // A kernel beside the others counts the turn that it is in.
        let runs = self.is_beside && !(is_over && self.stream.is_idle().unwrap_or(false));
        if runs { turns.saturating_sub(1) } else { turns }
    }

    /// How it ended; `None` while it runs. Error: what went wrong in one of its kernels.
    pub fn ended(&self) -> Result<Option<End>> {
        let word = self.control.words()[END].load(Ordering::Acquire);
        let end = end_of(word, self.control.words()[ERROR].load(Ordering::Acquire));
        // The word may come before the last turn has ended, and a graph that says nothing may have died.
        let is_idle = self.stream.is_idle()?;
        Ok(end.filter(|_| is_idle))
    }

    /// Waits at most `limit` for the end. Errors: as [`Self::ended`], `Deadline`.
    pub fn wait(&self, limit: Duration) -> Result<End> {
        let mut end = None;
        wait::until("a graph that launches itself", limit, || {
            end = self.ended()?;
            Ok(end.is_some())
        })?;
        end.ok_or_else(|| Error::Refused("the graph has ended without saying how".into()))
    }
}

impl Drop for SelfLaunching {
    fn drop(&mut self) {
        // Or it would run for as long as the process, and what it uses be kept.
        self.cancel();
    }
}

const ONE_THREAD: Shape = Shape::line(1, 1);

fn arguments(control: &PinnedMemory, turns: u32, stamps: Option<&Stamps>) -> Arguments {
    Arguments::new().u64(control.device_address()).u32(turns).u64(stamps.map_or(0, Stamps::address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read_as_it_writes_them() {
        let source = relaunch_unit().text;
        for (word, error, end, text) in [
            (0, 0, None, "0: there will"),
            (1, 0, Some(End::Cancelled), "1 cancelled"),
            (2, 0, Some(End::LimitReached), "2 `limit` reached"),
            (3, 719, Some(End::LaunchFailed(719)), "3 the launch failed"),
            (9, 0, Some(End::Unknown(9)), "control[2] = end"),
        ] {
            assert_eq!(end_of(word, error), end);
            assert!(source.contains(text), "{text:?} is not in relaunch.cu");
        }
        for (index, line) in
            [(CANCEL, "[0] cancel"), (TURNS, "[1] turns"), (END, "[2] why"), (ERROR, "[3] the cudaError_t")]
        {
            assert!(line.starts_with(&format!("[{index}]")) && source.contains(line), "{line}");
        }
    }
}
