//! Convolutions by cuDNN: one operation graph for a convolution with what follows it, and the plans that the
//! library has for it.
//!
//! Follows the backend (graph) API of cuDNN 9. A plan is executed into a stream, which may be recorded into a
//! graph. Engines whose results differ from run to run are left out. A plan can be written down as a text,
//! from which it is made again without its kernels being compiled again. The library is found when the
//! program runs.

mod candidate;
mod operations;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use candidate::Candidate;

use super::context::Context;
use super::discarded::Discarded;
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
    /// The tensor's address is a multiple of so many bytes, 16 at most.
    pub alignment: i64,
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
#[derive(Clone)]
pub struct Cudnn(Arc<Handle>);

struct Handle {
    library: Library,
    context: Context,
    raw: *mut std::ffi::c_void,
    /// A handle has one stream at a time.
    in_use: Mutex<()>,
}

// SAFETY: a handle may be used by any thread, one at a time.
unsafe impl Send for Handle {}
// SAFETY: what changes it is done under its lock.
unsafe impl Sync for Handle {}

impl Handle {
    fn number(&self) -> u64 {
        self.raw.expose_provenance() as u64
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (library, raw) = (self.library.clone(), self.raw);
        // SAFETY: it is this value's own, and ends once, when nothing runs that uses it, in its context.
        let end = move || unsafe { library.destroy(raw) };
        self.context.discard(Discarded::Handle(Box::new(end)));
    }
}

impl fmt::Debug for Cudnn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cudnn({})", self.path().display())
    }
}

/// A library's file: `given` (a folder or a file), else what the variable names, else the system's.
pub(super) fn file(given: Option<&Path>, variable: &str, name: &str) -> PathBuf {
    let named = std::env::var_os(variable).filter(|named| !named.is_empty()).map(PathBuf::from);
    match given.map(Path::to_owned).or(named) {
        Some(folder) if folder.is_dir() => folder.join(name),
        Some(file) => file,
        None => PathBuf::from(name),
    }
}

/// Finds the library that is given, or that [`VARIABLE`] names, or the system's.
fn library(given: Option<&Path>) -> Result<Library> {
    let library = Library::load(&file(given, VARIABLE, NAME))?;
    of_major("cuDNN", library.path(), library.version()?, 9)?;
    Ok(library)
}

/// Error: this version is not of the major one that is needed.
pub(super) fn of_major(what: &str, path: &Path, [major, ..]: [i32; 3], needed: i32) -> Result<()> {
    let path = path.display();
    let other =
        || Error::Refused(format!("{what}: {path} is of version {major}; version {needed} is needed"));
    if major == needed { Ok(()) } else { Err(other()) }
}

pub(super) fn in_words([major, minor, patch]: [i32; 3]) -> String {
    format!("{major}.{minor}.{patch}")
}

/// The version of the library that [`Cudnn::new`] would find, as `9.19.0`; no GPU is asked. Errors: its.
pub fn version(given: Option<&Path>) -> Result<String> {
    Ok(in_words(library(given)?.version()?))
}

impl Cudnn {
    /// The library that is given, or that [`VARIABLE`] names, or the system's. Errors name what was looked
    /// at.
    pub fn new(context: &Context, given: Option<&Path>) -> Result<Cudnn> {
        let library = library(given)?;
        context.enter()?;
        // SAFETY: the context is current, and is again where the handle is ended.
        let raw = unsafe { library.create() }?;
        context.keep();
        Ok(Cudnn(Arc::new(Handle { library, context: context.clone(), raw, in_use: Mutex::new(()) })))
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        self.0.library.path()
    }

    /// The version, as `9.19.0`.
    pub fn version(&self) -> Result<String> {
        Ok(in_words(self.0.library.version()?))
    }

    /// The plan that [`ConvolutionPlan::text`] wrote. Errors: the text is of another version of the library
    /// or for another GPU, or is no plan.
    pub fn read(&self, text: &[u8]) -> Result<ConvolutionPlan> {
        self.0.context.enter()?;
        let plan = self.0.library.descriptor(kind::EXECUTION_PLAN)?;
        let plan = plan.pointers(name::PLAN_HANDLE, of::HANDLE, &[self.0.number()])?;
        let plan = plan.text(name::PLAN_JSON, text)?;
        // Setting the text ends the filling already in some versions.
        let plan = if plan.read_ints(name::PLAN_WORKSPACE, 1).is_ok() { plan } else { plan.finalize()? };
        ConvolutionPlan::of(self, plan, None)
    }
}

/// A convolution that is ready to run.
pub struct ConvolutionPlan {
    // Dropped in this order, when nothing runs that uses them: a plan names its graph.
    plan: Arc<Descriptor>,
    graph: Option<Arc<Descriptor>>,
    cudnn: Cudnn,
    workspace: usize,
}

impl Drop for ConvolutionPlan {
    fn drop(&mut self) {
        let parts = (self.plan.clone(), self.graph.clone());
        self.cudnn.0.context.discard(Discarded::Library(Box::new(parts)));
    }
}

impl fmt::Debug for ConvolutionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = if self.graph.is_some() { "a graph" } else { "a text" };
        write!(f, "ConvolutionPlan({} bytes, from {from})", self.workspace)
    }
}

impl ConvolutionPlan {
    fn of(cudnn: &Cudnn, plan: Descriptor, graph: Option<Arc<Descriptor>>) -> Result<ConvolutionPlan> {
        let workspace = plan.read_ints(name::PLAN_WORKSPACE, 1)?.first().copied().unwrap_or(0);
        let workspace = usize::try_from(workspace).unwrap_or(0);
        Ok(ConvolutionPlan { plan: Arc::new(plan), graph, cudnn: cudnn.clone(), workspace })
    }

    /// Bytes that it needs beside its tensors.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// The plan with its compiled kernels, for [`Cudnn::read`].
    pub fn text(&self) -> Result<Vec<u8>> {
        self.cudnn.0.context.enter()?;
        self.plan.read_text(name::PLAN_JSON)
    }

    /// Puts it into a stream, or into what the stream records.
    ///
    /// # Safety
    /// `wanted` is the convolution of the plan. The pointers lead to tensors of its shapes, which live until
    /// the stream is idle, or as long as what is recorded.
    pub unsafe fn execute(&self, stream: &Stream, wanted: &Convolution, pointers: &Pointers) -> Result<()> {
        let Handle { library, context, raw, in_use } = &*self.cudnn.0;
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
        let _mine = in_use.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: handle and stream live, in the context that is current.
        unsafe { library.set_stream(*raw, stream.handle().cast()) }?;
        // SAFETY: as above; the pointers are the caller's promise.
        unsafe { library.execute(*raw, &self.plan, &pack) }
    }
}
