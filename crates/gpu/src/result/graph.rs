//! The driver's calls about graphs, with their errors; what it says of a graph that it refuses is kept.

use std::mem::offset_of;
use std::ptr::null_mut;

use super::Result;
use super::call::{call, forwards, out};
use super::driver::{CUcontext, CUstream};
use crate::sys::driver as sys;

pub use sys::{CUgraph, CUgraphExec, CUgraphNode};

/// Without limits to what threads may do while a stream records.
const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

forwards! {
    /// Begins to record what is put into a stream; this and other threads are not limited meanwhile.
    capture_begin(stream: CUstream) = cuStreamBeginCapture_v2(stream, RELAXED);
    /// Destroys a graph; what was instantiated from it stays.
    destroy(graph: CUgraph) = cuGraphDestroy(graph);
    /// Puts it on the device, in a stream; needed before the device launches it.
    upload(exec: CUgraphExec, stream: CUstream) = cuGraphUpload(exec, stream);
    /// Launches it from the host.
    launch(exec: CUgraphExec, stream: CUstream) = cuGraphLaunch(exec, stream);
    exec_destroy(exec: CUgraphExec) = cuGraphExecDestroy(exec);
}

/// As [`capture_begin`], into a graph that is there.
pub unsafe fn capture_begin_into(stream: CUstream, graph: CUgraph) -> Result<()> {
    call!(cuStreamBeginCaptureToGraph(stream, graph, std::ptr::null(), std::ptr::null(), 0, RELAXED))
}

/// Adds a node that runs its body while a condition is not 0; each launch of the graph sets it to 1. Returns
/// the condition's handle, for kernels of the body, and the body, empty and owned by the node. The current
/// context does not count: both calls are told `context`, or the driver refuses them (201).
pub unsafe fn add_while(graph: CUgraph, context: CUcontext) -> Result<(u64, CUgraph)> {
    type Params = sys::CUgraphNodeParams;
    // SAFETY: all of it is numbers and pointers, for which zeros are values.
    let mut params: Params = unsafe { std::mem::zeroed() };
    let mut handle = 0;
    // `CU_GRAPH_COND_ASSIGN_DEFAULT`.
    call!(cuGraphConditionalHandleCreate(&mut handle, graph, context, 1, 1))?;
    params.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.__bindgen_anon_1.conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS {
        handle,
        type_: sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE,
        size: 1,
        phGraph_out: null_mut(),
        ctx: context,
    };
    let mut node = null_mut();
    call!(cuGraphAddNode_v2(&mut node, graph, std::ptr::null(), std::ptr::null(), 0, &mut params))?;
    // SAFETY: the driver has set the field of a conditional node.
    let bodies = unsafe { params.__bindgen_anon_1.conditional.phGraph_out };
    if bodies.is_null() {
        return Err(super::Error::Refused("the driver gave a WHILE node no body".into()));
    }
    // SAFETY: the driver's list of as many graphs as were asked for, one.
    Ok((handle, unsafe { bodies.read() }))
}

/// Makes a graph that the host alone may launch.
pub unsafe fn instantiate(graph: CUgraph) -> Result<CUgraphExec> {
    out(null_mut(), |exec| call!(cuGraphInstantiateWithFlags(exec, graph, 0)))
}

pub unsafe fn capture_end(stream: CUstream) -> Result<CUgraph> {
    out(null_mut(), |graph| call!(cuStreamEndCapture(stream, graph)))
}

pub unsafe fn create() -> Result<CUgraph> {
    out(null_mut(), |graph| call!(cuGraphCreate(graph, 0)))
}

/// All nodes, in the order in which they were made.
pub unsafe fn nodes(graph: CUgraph) -> Result<Vec<CUgraphNode>> {
    let mut count = 0;
    call!(cuGraphGetNodes(graph, null_mut(), &mut count))?;
    if count == 0 {
        // Room for none is an invalid value to the driver.
        return Ok(Vec::new());
    }
    let mut nodes = vec![null_mut(); count];
    call!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count))?;
    nodes.truncate(count);
    Ok(nodes)
}

/// A node's `CUgraphNodeType`, as the number that it is: a newer driver may know more of them.
pub unsafe fn node_type(node: CUgraphNode) -> Result<u32> {
    let mut kind: u32 = u32::MAX;
    call!(cuGraphNodeGetType(node, (&raw mut kind).cast()))?;
    Ok(kind)
}

/// One end of a copy node: its `CUmemorytype` as a number, and its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyEnd {
    /// 1 host, 2 device, 3 array, 4 unified.
    pub kind: u32,
    /// Address in its space.
    pub address: u64,
}

/// A structure that the driver fills, as words, never read as its type: its enumerations may hold numbers
/// that cudarc's do not know.
struct RawStructure<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> RawStructure<WORDS> {
    fn new() -> Self {
        RawStructure([0; WORDS])
    }

    fn u64(&self, offset: usize) -> u64 {
        self.0[offset / 8]
    }

    /// x86-64 is little endian.
    fn u32(&self, offset: usize) -> u32 {
        (self.0[offset / 8] >> (8 * (offset % 8))) as u32
    }
}

/// Source and destination of a copy node.
pub unsafe fn copy_ends(node: CUgraphNode) -> Result<[CopyEnd; 2]> {
    type Copy = sys::CUDA_MEMCPY3D;
    let mut copy = RawStructure::<{ size_of::<Copy>() / 8 }>::new();
    call!(cuGraphMemcpyNodeGetParams(node, copy.0.as_mut_ptr().cast()))?;
    let end = |kind, host, device| {
        let kind = copy.u32(kind);
        CopyEnd { kind, address: copy.u64(if kind == 1 { host } else { device }) }
    };
    Ok([
        end(offset_of!(Copy, srcMemoryType), offset_of!(Copy, srcHost), offset_of!(Copy, srcDevice)),
        end(offset_of!(Copy, dstMemoryType), offset_of!(Copy, dstHost), offset_of!(Copy, dstDevice)),
    ])
}

/// The graph of a child node.
pub unsafe fn child(node: CUgraphNode) -> Result<CUgraph> {
    out(null_mut(), |graph| call!(cuGraphChildGraphNodeGetGraph(node, graph)))
}

/// What the driver says of a graph that it does not instantiate.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// `CUgraphInstantiateResult`, as a number.
    pub result: u32,
    /// The node that it is about; null when it is about none.
    pub node: CUgraphNode,
}

/// Makes a graph that the device may launch. The second error is the driver's reason.
pub unsafe fn instantiate_for_device(
    graph: CUgraph,
) -> std::result::Result<CUgraphExec, (super::Error, Refusal)> {
    type Wanted = sys::CUDA_GRAPH_INSTANTIATE_PARAMS;
    let (mut exec, mut wanted) = (null_mut(), RawStructure::<{ size_of::<Wanted>() / 8 }>::new());
    let flag = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
    wanted.0[offset_of!(Wanted, flags) / 8] = u64::from(flag.0);
    let made = call!(cuGraphInstantiateWithParams(&mut exec, graph, wanted.0.as_mut_ptr().cast()));
    made.map(|()| exec).map_err(|error| {
        let result = wanted.u32(offset_of!(Wanted, result_out));
        // Only compared with handles that the graph's own list gives.
        let node = std::ptr::without_provenance_mut(wanted.u64(offset_of!(Wanted, hErrNode_out)) as usize);
        (error, Refusal { result, node })
    })
}
