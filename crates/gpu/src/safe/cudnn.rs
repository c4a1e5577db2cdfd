//! Convolutions by cuDNN: one operation graph for a convolution with what follows it, and the plans that the
//! library has for it.
//!
//! Follows the backend (graph) API of cuDNN 9. A plan is executed into a stream, which may be recorded into a
//! graph. Plans whose results differ from run to run are left out. The library is found when the program
//! runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::context::Context;
use super::stream::Stream;
use crate::result::cudnn::{Descriptor, Library, kind, name, of};
use crate::result::{Error, Result};

/// The variable that names the library, or its folder.
pub const VARIABLE: &str = "DOORBELL_CUDNN";
/// The library's name.
const NAME: &str = "libcudnn.so.9";

/// How numbers lie, and which units may multiply them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// 32 bits, and products of 32 bits.
    Single,
    /// 32 bits, and products whose factors are rounded to 10 bits (tensor cores).
    Tf32,
    /// 16 bits, and sums of 32.
    Half,
}

/// Extents and strides of batch, channels, rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorShape {
    pub extents: [i64; 4],
    pub strides: [i64; 4],
}

/// A convolution, and what follows it in the same kernel: the sum with another tensor, with a bias, and a
/// bound.
#[derive(Debug, Clone, PartialEq)]
pub struct Convolution {
    pub arithmetic: Arithmetic,
    pub from: TensorShape,
    /// Outputs, inputs of a group, rows, columns.
    pub weights: TensorShape,
    pub to: TensorShape,
    /// The tensor that is added first, as long as the result.
    pub residual: Option<TensorShape>,
    pub bias: bool,
    /// The least and the greatest result.
    pub bounds: Option<[f64; 2]>,
    pub stride: [i64; 2],
    pub dilation: [i64; 2],
    /// Above, left, below, right.
    pub pads: [i64; 4],
}

/// Addresses of what a convolution reads and writes. `bias`: one number of the tensors' type for each output.
#[derive(Debug, Clone, Copy)]
pub struct Pointers {
    pub from: u64,
    pub weights: u64,
    pub residual: u64,
    pub bias: u64,
    pub to: u64,
    /// As many bytes as [`ConvolutionPlan::workspace`] says.
    pub workspace: u64,
}

/// Numbers by which tensors are known in an operation graph.
mod id {
    pub const FROM: i64 = 1;
    pub const WEIGHTS: i64 = 2;
    pub const RESIDUAL: i64 = 3;
    pub const BIAS: i64 = 4;
    pub const TO: i64 = 5;
    /// The first of those in between.
    pub const BETWEEN: i64 = 6;
}

/// cuDNN in one context.
pub struct Cudnn {
    library: Library,
    context: Context,
    handle: Arc<Handle>,
}

struct Handle {
    library: Library,
    context: Context,
    raw: *mut std::ffi::c_void,
}

// SAFETY: a handle may be used by any thread, one at a time; `Cudnn` and its plans are not `Sync`.
unsafe impl Send for Handle {}
// SAFETY: no method of a shared handle changes it but under `&mut Cudnn`.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it is this value's own, in its context.
            unsafe { self.library.destroy(self.raw) };
        }
    }
}

impl fmt::Debug for Cudnn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cudnn({})", self.library.path().display())
    }
}

impl Cudnn {
    /// The library that is given, or that [`VARIABLE`] names, or the system's. Errors name what was looked
    /// at.
    pub fn new(context: &Context, given: Option<&Path>) -> Result<Cudnn> {
        let named = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()).map(PathBuf::from);
        let path = match given.map(Path::to_owned).or(named) {
            Some(folder) if folder.is_dir() => folder.join(NAME),
            Some(file) => file,
            None => PathBuf::from(NAME),
        };
        let library = Library::load(&path)?;
        context.enter()?;
        // SAFETY: the context is current, and `Handle` makes it current again before it ends.
        let raw = unsafe { library.create() }?;
        let handle = Arc::new(Handle { library: library.clone(), context: context.clone(), raw });
        Ok(Cudnn { library, context: context.clone(), handle })
    }

    /// The version, as `9.19.0`.
    pub fn version(&self) -> Result<String> {
        let [major, minor, patch] = self.library.version()?;
        Ok(format!("{major}.{minor}.{patch}"))
    }

    /// Plans for a convolution, those that the library recommends first; none if it has none.
    pub fn convolution(&self, wanted: &Convolution) -> Result<Vec<ConvolutionPlan>> {
        self.context.enter()?;
        let graph = self.graph(wanted)?;
        let mut plans = Vec::new();
        // `CUDNN_HEUR_MODE_A`, then `CUDNN_HEUR_MODE_FALLBACK`.
        for mode in [3, 2] {
            let heuristics = self.library.descriptor(kind::ENGINE_HEURISTICS)?;
            let heuristics = heuristics.others(name::HEURISTICS_GRAPH, &[&graph])?;
            let heuristics = heuristics.choice(name::HEURISTICS_MODE, of::HEURISTICS_MODE, mode)?;
            let Ok(heuristics) = heuristics.finalize() else { continue };
            let empty = (0..MOST_CONFIGURATIONS).map(|_| self.library.descriptor(kind::ENGINE_CONFIG));
            let configurations = empty.collect::<Result<Vec<_>>>()?;
            let configurations = heuristics.read_others(name::HEURISTICS_RESULTS, configurations)?;
            plans.extend(
                configurations.into_iter().filter_map(|found| self.plan(wanted, found).ok().flatten()),
            );
        }
        // A graph is named by the configurations of its plans.
        let graph = Arc::new(graph);
        Ok(plans.into_iter().map(|plan| ConvolutionPlan { graph: Some(graph.clone()), ..plan }).collect())
    }

    /// A plan of a configuration, if its engine computes what is wanted.
    fn plan(&self, wanted: &Convolution, configuration: Descriptor) -> Result<Option<ConvolutionPlan>> {
        let engine = vec![self.library.descriptor(kind::ENGINE)?];
        let engine = configuration.read_others(name::CONFIG_ENGINE, engine)?.pop();
        let engine =
            engine.ok_or_else(|| Error::Refused("cuDNN: a configuration without an engine".into()))?;
        let notes = engine.read_choices(name::ENGINE_NUMERICAL_NOTE, of::NUMERICAL_NOTE, 16)?;
        let number = engine.read_ints(name::ENGINE_INDEX, 1)?.first().copied().unwrap_or(-1);
        let rounds = notes.contains(&note::TENSOR_CORE) || notes.contains(&note::DOWN_CONVERT_INPUTS);
        let winograd = notes.contains(&note::WINOGRAD_6X6) || notes.contains(&note::WINOGRAD_13X13);
        if notes.contains(&note::NONDETERMINISTIC)
            || winograd
            || (wanted.arithmetic == Arithmetic::Single && rounds)
        {
            return Ok(None);
        }
        let plan = self.library.descriptor(kind::EXECUTION_PLAN)?;
        let plan =
            plan.pointers(name::PLAN_HANDLE, of::HANDLE, &[self.handle.raw.expose_provenance() as u64])?;
        let plan = plan.keeping(name::PLAN_CONFIG, configuration)?.finalize()?;
        let workspace = plan.read_ints(name::PLAN_WORKSPACE, 1)?.first().copied().unwrap_or(0);
        let workspace = usize::try_from(workspace).unwrap_or(0);
        Ok(Some(ConvolutionPlan {
            plan,
            graph: None,
            handle: self.handle.clone(),
            workspace,
            engine: number,
        }))
    }

    /// The operation graph.
    fn graph(&self, wanted: &Convolution) -> Result<Descriptor> {
        let (operations, kept) = operations(&self.library, wanted)?;
        let graph = self.library.descriptor(kind::OPERATION_GRAPH)?;
        let graph =
            graph.pointers(name::GRAPH_HANDLE, of::HANDLE, &[self.handle.raw.expose_provenance() as u64])?;
        let named: Vec<&Descriptor> = operations.iter().collect();
        let graph = graph.others(name::GRAPH_OPERATIONS, &named)?;
        graph.keep(operations).keep(kept).finalize()
    }
}

/// The operations: the convolution, and a sum, a sum and a bound behind it; and the tensors between them.
fn operations(library: &Library, wanted: &Convolution) -> Result<(Vec<Descriptor>, Vec<Descriptor>)> {
    let Convolution { arithmetic, from, weights, to, residual, .. } = *wanted;
    let following =
        usize::from(residual.is_some()) + usize::from(wanted.bias) + usize::from(wanted.bounds.is_some());
    let mut left = following;
    let mut between = id::BETWEEN;
    // What an operation writes: the result, or something in between, which lies nowhere.
    let mut written = || {
        let last = left == 0;
        left = left.saturating_sub(1);
        between += 1;
        if last {
            tensor(library, arithmetic, to, id::TO, false)
        } else {
            tensor(library, Arithmetic::Single, to, between, true)
        }
    };
    let window = library.descriptor(kind::CONVOLUTION)?;
    let window = window.choice(name::CONVOLUTION_COMP_TYPE, of::DATA_TYPE, FLOAT)?;
    // `CUDNN_CROSS_CORRELATION`.
    let window = window.choice(name::CONVOLUTION_MODE, of::CONVOLUTION_MODE, 1)?;
    let window = window.ints(name::CONVOLUTION_SPATIAL_DIMS, &[2])?;
    let window = window.ints(name::CONVOLUTION_STRIDES, &wanted.stride)?;
    let window = window.ints(name::CONVOLUTION_DILATIONS, &wanted.dilation)?;
    let window = window.ints(name::CONVOLUTION_PRE_PADDINGS, &wanted.pads[..2])?;
    let window = window.ints(name::CONVOLUTION_POST_PADDINGS, &wanted.pads[2..])?.finalize()?;
    let mut last = written()?;
    let forward = library.descriptor(kind::OPERATION_CONVOLUTION_FORWARD)?;
    let forward = forward.float(name::FORWARD_ALPHA, 1.0)?.float(name::FORWARD_BETA, 0.0)?;
    let forward = forward.keeping(name::FORWARD_CONVOLUTION, window)?;
    let forward = forward.keeping(name::FORWARD_X, tensor(library, arithmetic, from, id::FROM, false)?)?;
    let forward =
        forward.keeping(name::FORWARD_W, tensor(library, arithmetic, weights, id::WEIGHTS, false)?)?;
    let mut operations = vec![forward.others(name::FORWARD_Y, &[&last])?.finalize()?];
    let mut kept = Vec::new();
    let outputs = to.extents[1];
    let of_bias = TensorShape { extents: [1, outputs, 1, 1], strides: [outputs, 1, outputs, outputs] };
    let summands = [residual.map(|shape| (shape, id::RESIDUAL)), wanted.bias.then_some((of_bias, id::BIAS))];
    for (shape, id) in summands.into_iter().flatten() {
        let next = written()?;
        let mode = library.descriptor(kind::POINTWISE)?;
        let mode = mode.choice(name::POINTWISE_MODE, of::POINTWISE_MODE, ADD)?;
        let mode = mode.choice(name::POINTWISE_MATH_PREC, of::DATA_TYPE, FLOAT)?.finalize()?;
        let sum = library.descriptor(kind::OPERATION_POINTWISE)?.keeping(name::OPERATION_POINTWISE, mode)?;
        let sum = sum.others(name::OPERATION_X, &[&last])?.others(name::OPERATION_Y, &[&next])?;
        let sum = sum.keeping(name::OPERATION_B, tensor(library, arithmetic, shape, id, false)?)?;
        operations.push(sum.finalize()?);
        kept.push(std::mem::replace(&mut last, next));
    }
    if let Some([low, high]) = wanted.bounds {
        let next = written()?;
        let mode = library.descriptor(kind::POINTWISE)?;
        let mode = mode.choice(name::POINTWISE_MODE, of::POINTWISE_MODE, RELU)?;
        let mode = mode.choice(name::POINTWISE_MATH_PREC, of::DATA_TYPE, FLOAT)?;
        let mode = mode.double(name::POINTWISE_RELU_LOWER_CLIP, low)?;
        let mode = mode.double(name::POINTWISE_RELU_UPPER_CLIP, high)?.finalize()?;
        let bound =
            library.descriptor(kind::OPERATION_POINTWISE)?.keeping(name::OPERATION_POINTWISE, mode)?;
        let bound = bound.others(name::OPERATION_X, &[&last])?.others(name::OPERATION_Y, &[&next])?;
        operations.push(bound.finalize()?);
        kept.push(std::mem::replace(&mut last, next));
    }
    kept.push(last);
    Ok((operations, kept))
}

/// `CUDNN_DATA_FLOAT` and `CUDNN_DATA_HALF`.
const FLOAT: i32 = 0;
const HALF: i32 = 2;
/// `CUDNN_POINTWISE_ADD` and `CUDNN_POINTWISE_RELU_FWD`.
const ADD: i32 = 0;
const RELU: i32 = 100;
/// More configurations than cuDNN has for one graph.
const MOST_CONFIGURATIONS: usize = 64;

/// `cudnnBackendNumericalNote_t`.
mod note {
    pub const TENSOR_CORE: i32 = 0;
    pub const DOWN_CONVERT_INPUTS: i32 = 1;
    pub const NONDETERMINISTIC: i32 = 4;
    pub const WINOGRAD_6X6: i32 = 7;
    pub const WINOGRAD_13X13: i32 = 8;
}

fn tensor(
    library: &Library,
    arithmetic: Arithmetic,
    shape: TensorShape,
    id: i64,
    between: bool,
) -> Result<Descriptor> {
    let element = if arithmetic == Arithmetic::Half { HALF } else { FLOAT };
    let tensor = library.descriptor(kind::TENSOR)?.choice(name::TENSOR_TYPE, of::DATA_TYPE, element)?;
    let tensor =
        tensor.ints(name::TENSOR_DIMENSIONS, &shape.extents)?.ints(name::TENSOR_STRIDES, &shape.strides)?;
    let tensor = tensor.ints(name::TENSOR_UNIQUE_ID, &[id])?.ints(name::TENSOR_ALIGNMENT, &[16])?;
    tensor.flag(name::TENSOR_IS_VIRTUAL, between)?.finalize()
}

/// A convolution that is ready to run.
pub struct ConvolutionPlan {
    // Dropped in this order: a plan names its graph.
    plan: Descriptor,
    graph: Option<Arc<Descriptor>>,
    handle: Arc<Handle>,
    workspace: usize,
    engine: i64,
}

impl fmt::Debug for ConvolutionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ConvolutionPlan(engine {}, {} bytes, {})",
            self.engine,
            self.workspace,
            self.graph.is_some()
        )
    }
}

impl ConvolutionPlan {
    /// Bytes that it needs beside its tensors.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// The library's number of its engine.
    pub fn engine(&self) -> i64 {
        self.engine
    }

    /// Puts it into a stream, or into what the stream records.
    ///
    /// # Safety
    /// The pointers lead to tensors of the convolution's shapes, which live until the stream is idle, or as
    /// long as what is recorded.
    pub unsafe fn execute(&self, stream: &Stream, wanted: &Convolution, pointers: &Pointers) -> Result<()> {
        let Handle { library, context, raw } = &*self.handle;
        stream.same_context(context, "the plan")?;
        context.enter()?;
        let all = [
            (id::FROM, pointers.from, true),
            (id::WEIGHTS, pointers.weights, true),
            (id::RESIDUAL, pointers.residual, wanted.residual.is_some()),
            (id::BIAS, pointers.bias, wanted.bias),
            (id::TO, pointers.to, true),
        ];
        let (ids, addresses): (Vec<i64>, Vec<u64>) =
            all.iter().filter(|(.., used)| *used).map(|&(id, address, _)| (id, address)).unzip();
        let pack = library.descriptor(kind::VARIANT_PACK)?;
        let pack =
            pack.pointers(name::PACK_POINTERS, of::POINTER, &addresses)?.ints(name::PACK_UNIQUE_IDS, &ids)?;
        let pack = pack.pointers(name::PACK_WORKSPACE, of::POINTER, &[pointers.workspace])?.finalize()?;
        // SAFETY: handle and stream live, in the context that is current.
        unsafe { library.set_stream(*raw, stream.handle().cast()) }?;
        // SAFETY: as above; the pointers are the caller's promise.
        unsafe { library.execute(*raw, &self.plan, &pack) }
    }
}

#[cfg(test)]
mod tests {
    use measure::need;

    use super::*;

    fn images(extents: [i64; 4]) -> TensorShape {
        let [_, channels, rows, columns] = extents;
        TensorShape { extents, strides: [channels * rows * columns, 1, columns * channels, channels] }
    }

    /// A convolution of 32 channels to 64, with everything behind it.
    fn example(arithmetic: Arithmetic) -> Convolution {
        let to = images([1, 64, 28, 28]);
        Convolution {
            arithmetic,
            from: images([1, 32, 28, 28]),
            weights: images([64, 32, 3, 3]),
            to,
            residual: Some(to),
            bias: true,
            bounds: Some([0.0, f64::from(f32::MAX)]),
            stride: [1, 1],
            dilation: [1, 1],
            pads: [1, 1, 1, 1],
        }
    }

    fn library() -> std::result::Result<Library, String> {
        let named = std::env::var_os(VARIABLE).ok_or(format!("{VARIABLE} is not set"))?;
        Library::load(&PathBuf::from(named).join(NAME)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let said = Library::load(Path::new("/no/such/libcudnn.so.9")).unwrap_err().to_string();
        assert!(said.contains("/no/such/libcudnn.so.9"), "{said}");
    }

    #[test]
    fn operations_are_taken_by_the_library_without_a_gpu() {
        let library = need!(library(), "cuDNN");
        assert_eq!(library.version().unwrap()[0], 9);
        for arithmetic in [Arithmetic::Single, Arithmetic::Tf32, Arithmetic::Half] {
            let (operations, between) = operations(&library, &example(arithmetic)).unwrap();
            assert_eq!((operations.len(), between.len()), (4, 4));
            let alone = Convolution { residual: None, bias: false, bounds: None, ..example(arithmetic) };
            assert_eq!(super::operations(&library, &alone).unwrap().0.len(), 1);
        }
        let wrong = Convolution { stride: [0, 1], ..example(Arithmetic::Half) };
        let said = super::operations(&library, &wrong).unwrap_err().to_string();
        assert!(said.contains("bad parameter"), "{said}");
    }
}
