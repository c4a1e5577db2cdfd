//! Graphs that the GPU may launch by itself: recorded from a stream, judged, instantiated, uploaded.
//!
//! Judged twice: by `graph_rules`, which says what is wrong in our words, and by the driver, whose reason and
//! node are kept when it refuses. cudarc's safe layer loses both.

use std::fmt;
use std::time::Duration;

use super::context::Context;
use super::discarded::Discarded;
use super::module::Function;
use super::stream::Stream;
use crate::graph_rules::{self, MOST_DEEP, Node, NodeKind, Place};
use crate::result::graph::{self, CUgraph, CUgraphExec, CUgraphNode};
use crate::result::{Error, Result};

/// More than any graph takes to be put on the device.
const UPLOAD: Duration = Duration::from_secs(60);

/// Work that can be put into a stream again and again: a model.
///
/// # Safety
/// What it puts there keeps to memory and code that the value keeps, and takes no longer than a turn may.
pub unsafe trait Recorded: Send {
    /// Puts the work into a stream, or into what it records.
    fn record(&self, stream: &Stream) -> Result<()>;
}

/// A graph that is being made.
pub struct Graph {
    context: Context,
    graph: CUgraph,
    /// Nodes of the body of its WHILE node, if it has one: the driver has no way from that node to them.
    body: Vec<Node>,
    /// Code that its nodes run stays loaded.
    functions: Vec<Function>,
}

// SAFETY: a graph is used by one thread at a time, since all that changes it takes the value alone.
unsafe impl Send for Graph {}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:p})", self.graph)
    }
}

impl Graph {
    fn of(context: &Context, graph: CUgraph) -> Graph {
        Graph { context: context.clone(), graph, body: Vec::new(), functions: Vec::new() }
    }

    /// Records what `record` puts into `stream`; none of it runs. Errors: those of `record`, and the
    /// driver's, e.g. when it did what cannot be recorded.
    ///
    /// # Safety
    /// Code that the recorded kernels run stays loaded while the graph, or what is made of it, lives.
    pub unsafe fn capture(stream: &Stream, record: impl FnOnce(&Stream) -> Result<()>) -> Result<Graph> {
        // SAFETY: the stream lives, and its context is current when it begins.
        let graph = recorded(stream, true, || unsafe { graph::capture_begin(stream.handle()) }, record)?;
        Ok(Graph::of(stream.context(), graph))
    }

    /// A graph that repeats what `record` puts into `stream` while its condition is not 0. `record` gets the
    /// condition's handle. Errors: as [`Self::capture`]; a driver before CUDA 12.3.
    ///
    /// # Safety
    /// As [`Self::capture`].
    pub unsafe fn capture_while(
        stream: &Stream,
        record: impl FnOnce(&Stream, u64) -> Result<()>,
    ) -> Result<Graph> {
        stream.context().enter()?;
        // SAFETY: the context is current.
        let mut whole = Graph::of(stream.context(), unsafe { graph::create() }?);
        // SAFETY: the graph lives, and its context is current.
        let (handle, body) = unsafe { graph::add_while(whole.graph, whole.context.handle()) }?;
        // SAFETY: as above, and the stream lives.
        let begin = || unsafe { graph::capture_begin_into(stream.handle(), body) };
        recorded(stream, false, begin, |stream| record(stream, handle))?;
        whole.body = describe(body, 1)?;
        Ok(whole)
    }

    /// Keeps a kernel's code loaded as long as the graph.
    pub fn keep(&mut self, function: Function) {
        self.functions.push(function);
    }

    /// Its nodes, in the order in which they were made.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        self.context.enter()?;
        let mut nodes = describe(self.graph, 0)?;
        let is_loop = |node: &&mut Node| node.kind == NodeKind::Conditional;
        if let Some(node) = nodes.iter_mut().find(is_loop) {
            node.children.clone_from(&self.body);
        }
        Ok(nodes)
    }

    /// Makes it launchable by the GPU. Errors: `Refused` with the node and our reason, or the driver's.
    pub fn instantiate(self) -> Result<DeviceGraph> {
        let nodes = self.nodes()?;
        graph_rules::check_device_launch(&nodes).map_err(|why| Error::Refused(why.to_string()))?;
        // SAFETY: the graph lives, and its context is current.
        match unsafe { graph::instantiate_for_device(self.graph) } {
            Ok(exec) => Ok(DeviceGraph { exec, graph: self, node_count: nodes.len() }),
            Err((error, refusal)) => Err(self.refused(&nodes, &error, refusal)),
        }
    }

    /// Makes it one that the host alone may launch.
    pub fn instantiate_for_host(self) -> Result<DeviceGraph> {
        let node_count = self.nodes()?.len();
        // SAFETY: the graph lives, and its context is current.
        let exec = unsafe { graph::instantiate(self.graph) }?;
        Ok(DeviceGraph { exec, graph: self, node_count })
    }

    fn refused(&self, nodes: &[Node], error: &Error, refusal: graph::Refusal) -> Error {
        // SAFETY: the graph lives, and its context is current.
        let handles = unsafe { graph::nodes(self.graph) }.unwrap_or_default();
        let at = handles.iter().position(|node| *node == refusal.node && !node.is_null());
        let node = match at.and_then(|at| Some((at, nodes.get(at)?))) {
            Some((at, node)) => format!("node {at}, {}", node.kind),
            None => "no node in particular".into(),
        };
        Error::Refused(format!(
            "the driver does not let the GPU launch this graph of {} nodes: {} ({node}); {error}",
            nodes.len(),
            graph_rules::refusal(refusal.result)
        ))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.context.is_kept() && self.context.enter().is_ok() {
            // SAFETY: it is this value's own; what was instantiated from it needs it no more.
            let _ = unsafe { graph::destroy(self.graph) };
        }
    }
}

/// Captures what `record` puts into a stream after `begin`. A graph that is not `owned` is a node's body.
fn recorded(
    stream: &Stream,
    owned: bool,
    begin: impl FnOnce() -> Result<()>,
    record: impl FnOnce(&Stream) -> Result<()>,
) -> Result<CUgraph> {
    let context = stream.context();
    context.enter()?;
    // While it records, no query tells whether earlier work has ended, and what that uses would be freed.
    if !stream.is_idle()? {
        return Err(Error::Refused("a stream that still works cannot be recorded: wait for it first".into()));
    }
    // Before it records: from then on another thread's look at it would end the record.
    stream.records(true);
    if let Err(error) = begin() {
        stream.records(false);
        return Err(error);
    }
    let done = record(stream);
    let entered = context.enter();
    // SAFETY: the stream lives, and its context is current. Always ended, or the stream would be useless.
    let ended = unsafe { graph::capture_end(stream.handle()) };
    stream.records(false);
    entered?;
    let graph = ended?;
    if done.is_err() && owned {
        // SAFETY: it was recorded just now, and nothing was made of it.
        let _ = unsafe { graph::destroy(graph) };
    }
    done.map(|()| graph)
}

fn describe(of: CUgraph, deep: usize) -> Result<Vec<Node>> {
    // SAFETY: the graph lives: the caller has it, or the graph that it is a child of.
    let nodes = unsafe { graph::nodes(of) }?;
    nodes.into_iter().map(|node| describe_node(node, deep)).collect()
}

fn describe_node(handle: CUgraphNode, deep: usize) -> Result<Node> {
    // SAFETY: the node is of a graph that lives.
    let mut node = Node::of(NodeKind::of_number(unsafe { graph::node_type(handle) }?));
    match node.kind {
        NodeKind::Copy => {
            // SAFETY: as above, and it is a copy.
            let ends = unsafe { graph::copy_ends(handle) }?;
            node.places = ends.iter().map(|end| Place::of_number(end.kind)).collect();
        }
        // What lies deeper is refused without a look.
        NodeKind::Child if deep < MOST_DEEP => {
            // SAFETY: as above, and it is a child graph.
            node.children = describe(unsafe { graph::child(handle) }?, deep + 1)?;
        }
        _ => {}
    }
    Ok(node)
}

/// A graph that the GPU may launch, once it was uploaded.
pub struct DeviceGraph {
    exec: CUgraphExec,
    graph: Graph,
    node_count: usize,
}

// SAFETY: as `Graph`.
unsafe impl Send for DeviceGraph {}

impl fmt::Debug for DeviceGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceGraph({} nodes)", self.node_count)
    }
}

impl DeviceGraph {
    /// How many nodes it has, those of child graphs not counted.
    pub fn node_count(&self) -> usize {
        self.node_count
    }

    /// Its nodes, in the order in which they were made.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        self.graph.nodes()
    }

    /// Puts it on the device, in `stream`: needed before the GPU launches it, and after each change.
    pub fn upload(&self, stream: &Stream) -> Result<()> {
        stream.same_context(&self.graph.context, "the graph")?;
        self.graph.context.enter()?;
        // SAFETY: graph and stream live, and their context is current.
        unsafe { graph::upload(self.exec, stream.handle()) }
    }

    /// As [`Self::upload`], and waits for its end.
    pub fn uploaded(self, stream: &Stream) -> Result<DeviceGraph> {
        self.upload(stream)?;
        stream.wait("the upload of a graph", UPLOAD)?;
        Ok(self)
    }

    /// Launches it from the host, in `stream`; the stream is idle when neither it nor what it launched runs.
    ///
    /// # Safety
    /// As [`Stream::launch`], for each of its kernels, and for each time that it launches itself.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        stream.same_context(&self.graph.context, "the graph")?;
        self.graph.context.enter()?;
        // SAFETY: as above; what it does is the caller's.
        unsafe { graph::launch(self.exec, stream.handle()) }
    }
}

impl Drop for DeviceGraph {
    fn drop(&mut self) {
        // One that launches itself must not go under itself.
        self.graph.context.discard(Discarded::Graph(self.exec));
    }
}
