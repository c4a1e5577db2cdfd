//! Own kernels on a GPU: compiled when they are needed, recorded into a graph that the host or the GPU itself
//! may launch.
//!
//! [`Loaded`] holds what instances of a model share and only read: code and weights. An [`Instance`] has an
//! arena, inputs, outputs and a slot number of its own, so that several run side by side.

mod instance;
mod libraries;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpu::cache::Cache;
use gpu::{
    Context, DeviceMemory, Form, Function, Gpu, ImageBuilder, Module, PinnedMemory, Priority, Stream,
    Toolkit, Unit, Way, relaunch_unit,
};

use super::EngineError;
use super::twin::halves;
use crate::launch::{self, Argument, Launch};
use crate::plan::{Plan, Precision, arena::ALIGNMENT};

pub use instance::{Instance, SelfLaunchingInstance};
pub use libraries::{By, Chosen, Libraries, Tried};

/// The longest that a copy or a run of a model may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes that are copied to the GPU and back at a time.
const BETWEEN: usize = 4 << 20;

/// The units of all kernels.
pub fn units() -> [Unit; 2] {
    [
        Unit::new("operators.cu", include_str!("../../../kernels/operators.cu")),
        Unit::new("preprocess.cu", include_str!("../../../kernels/preprocess.cu")),
    ]
}

/// A model's code and weights on a GPU.
#[derive(Debug)]
pub struct Loaded {
    context: Context,
    module: Module,
    functions: BTreeMap<&'static str, Function>,
    plan: Plan,
    launches: Vec<Launch>,
    weights: DeviceMemory,
    /// Where each constant begins in `weights`, in the plan's precision or (`true`) in single precision.
    offsets: BTreeMap<(usize, bool), usize>,
    /// How each step runs.
    chosen: Vec<Chosen>,
    libraries: String,
}

impl Loaded {
    /// Puts a model on a GPU. Kernels are compiled by the toolkit, or come from the cache. Errors: the plan's,
    /// the compiler's, the GPU's; a library that is needed was not found.
    pub fn new(
        gpu: Gpu,
        toolkit: Toolkit,
        plan: Plan,
        libraries: &Libraries,
    ) -> Result<Arc<Loaded>, EngineError> {
        plan.check()?;
        if let libraries::Wanted::Needed(_) = libraries.cudnn {
            return Err(EngineError::Gpu(gpu::Error::Refused("cuDNN: no engine uses it yet".into())));
        }
        let context = Context::new(gpu)?;
        let builder = ImageBuilder::new(toolkit, Cache::usual());
        let units: Vec<Unit> = units().into_iter().chain([relaunch_unit()]).collect();
        let image = builder.image(&units, gpu.arch()?, Form::Cubin);
        let module = Module::load(
            &context,
            &image.map_err(|error| EngineError::Compile { reason: error.to_string() })?,
        )?;
        let launches = launch::launches(&plan)?;
        let mut functions = BTreeMap::new();
        for launch in &launches {
            if !functions.contains_key(launch.kernel) {
                functions.insert(launch.kernel, module.function(launch.kernel)?);
            }
        }
        let contents = contents(&plan, &launches);
        let mut end = 0;
        let mut offsets = BTreeMap::new();
        for (argument, bytes) in &contents {
            offsets.insert(*argument, end);
            end += bytes.len().next_multiple_of(ALIGNMENT);
        }
        let weights = DeviceMemory::new(&context, end.max(ALIGNMENT))?;
        let stream = Stream::new(&context, Priority::Least)?;
        let between = PinnedMemory::new(&context, BETWEEN)?;
        let way = Way { stream: &stream, between: &between, limit: LIMIT };
        for (argument, bytes) in contents {
            weights.write(offsets[&argument], &bytes, way)?;
        }
        let chosen = vec![Chosen::default(); plan.steps.len()];
        let libraries = "none".to_owned();
        Ok(Arc::new(Loaded {
            context,
            module,
            functions,
            plan,
            launches,
            weights,
            offsets,
            chosen,
            libraries,
        }))
    }

    /// The plan that it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How each step of the plan runs.
    pub fn chosen(&self) -> &[Chosen] {
        &self.chosen
    }

    /// The libraries that compute steps, with their versions; or why there is none.
    pub fn libraries(&self) -> &str {
        &self.libraries
    }

    /// Bytes that an instance has beside its arena, for libraries.
    pub fn workspace(&self) -> usize {
        self.chosen.iter().map(|chosen| chosen.workspace).max().unwrap_or(0)
    }

    /// The address of a constant; `single`: of its elements in single precision.
    fn constant(&self, number: usize, single: bool) -> u64 {
        self.weights.address() + self.offsets[&(number, single)] as u64
    }
}

/// The bytes of each constant that a launch reads: in the plan's precision, or of a bias (`true`) in single
/// precision.
fn contents<'a>(plan: &'a Plan, launches: &[Launch]) -> BTreeMap<(usize, bool), Cow<'a, [u8]>> {
    let read = launches.iter().flat_map(|launch| &launch.arguments).filter_map(|argument| match *argument {
        Argument::Constant(number) => Some((number, false)),
        Argument::Bias(number) => Some((number, true)),
        _ => None,
    });
    let bytes_of = |(number, single): (usize, bool)| {
        let elements = &plan.constants[number];
        match plan.format.precision {
            Precision::Half if !single => {
                Cow::Owned(halves(elements).iter().flat_map(|half| half.to_le_bytes()).collect())
            }
            _ => Cow::Borrowed(bytes(elements)),
        }
    };
    read.map(|key| (key, bytes_of(key))).collect()
}

fn bytes(elements: &[f32]) -> &[u8] {
    // SAFETY: every byte of an `f32` is a byte.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
