//! Our kernels on a GPU.

use std::collections::BTreeMap;

use gpu::cache::Cache;
use gpu::{Context, Form, Function, Gpu, ImageBuilder, Module, Toolkit, Unit, again_unit, relaunch_unit};

use crate::engine::EngineError;

/// The units of all kernels.
pub fn units() -> [Unit; 2] {
    [
        Unit::new("operators.cu", include_str!("../../../kernels/operators.cu"))
            .header("operators.h", include_str!("../../../kernels/operators.h"))
            .header("pointwise.h", include_str!("../../../kernels/pointwise.h"))
            .header("tensor_cores.h", include_str!("../../../kernels/tensor_cores.h")),
        Unit::new("preprocess.cu", include_str!("../../../kernels/preprocess.cu")),
    ]
}

/// Our kernels on a GPU.
#[derive(Debug)]
pub struct Code {
    pub context: Context,
    pub module: Module,
    pub builder: ImageBuilder,
    functions: BTreeMap<&'static str, Function>,
}

impl Code {
    /// Kernels are compiled by the toolkit, or come from the cache.
    pub fn new(gpu: Gpu, toolkit: Toolkit) -> Result<Code, EngineError> {
        let context = Context::new(gpu)?;
        let builder = ImageBuilder::new(toolkit, Cache::usual());
        let units: Vec<Unit> = units().into_iter().chain([relaunch_unit()]).collect();
        let module = module(&context, &builder, &units)?;
        Ok(Code { context, module, builder, functions: BTreeMap::new() })
    }

    /// The kernel at the end of a WHILE node's body.
    pub fn again(&self) -> Result<Module, EngineError> {
        module(&self.context, &self.builder, &[again_unit()])
    }

    /// Makes these kernels ready to be launched.
    pub fn prepare(&mut self, launches: impl Iterator<Item = &'static str>) -> Result<(), EngineError> {
        for kernel in launches {
            if !self.functions.contains_key(kernel) {
                self.functions.insert(kernel, self.module.function(kernel)?);
            }
        }
        Ok(())
    }

    pub fn function(&self, kernel: &str) -> gpu::Result<&Function> {
        let missing = || gpu::Error::Refused(format!("kernel {kernel} was not prepared"));
        self.functions.get(kernel).ok_or_else(missing)
    }
}

pub fn module(context: &Context, builder: &ImageBuilder, units: &[Unit]) -> Result<Module, EngineError> {
    let image = builder.image(units, context.gpu().arch()?, Form::Cubin);
    Ok(Module::load(context, &image.map_err(|error| EngineError::Compile { reason: error.to_string() })?)?)
}
