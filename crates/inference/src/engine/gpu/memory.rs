//! The memory of one instance, in which its kernels work.

use gpu::{Context, DeviceMemory, SlotTensors};

use crate::engine::EngineError;
use crate::engine::resident;
use crate::plan::Plan;
use crate::plan::arena::ALIGNMENT;

/// Memory of one instance, in which its kernels work.
#[derive(Debug)]
pub struct Memory {
    pub arena: DeviceMemory,
    pub workspace: DeviceMemory,
    pub inputs: Vec<DeviceMemory>,
    pub outputs: Vec<DeviceMemory>,
    /// Which slot is served; there is one here.
    pub slot: DeviceMemory,
    /// Where inputs and outputs lie instead, if not here.
    pub slots: Option<SlotTensors>,
}

impl Memory {
    /// Memory for a plan whose libraries need so many bytes; `slots`: where its inputs and outputs lie, if not in memory of its own.
    /// Errors: slots of other lengths; out of memory.
    pub fn new(
        context: &Context,
        plan: &Plan,
        workspace: usize,
        slots: Option<&SlotTensors>,
    ) -> Result<Memory, EngineError> {
        slots.map_or(Ok(()), |slots| resident::check(slots, plan))?;
        let own =
            |shapes: &'_ [crate::graph::Shape]| if slots.is_some() { Vec::new() } else { shapes.to_vec() };
        let of = |what, bytes| memory(context, plan, what, bytes);
        let all = |what, shapes: &[crate::graph::Shape]| {
            shapes
                .iter()
                .map(|shape| of(what, shape.count() * size_of::<f32>()))
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(Memory {
            arena: of("the arena", plan.arena.bytes)?,
            workspace: of("the libraries' workspace", workspace)?,
            inputs: all("the input", &own(&plan.inputs))?,
            outputs: all("the output", &own(&plan.outputs))?,
            slot: of("the slot's number", size_of::<u32>())?,
            slots: slots.cloned(),
        })
    }
}

/// Memory for a part of a model, some bytes at least. Error: the GPU has no room, with the part's name.
pub fn memory(
    context: &Context,
    plan: &Plan,
    what: &'static str,
    bytes: usize,
) -> Result<DeviceMemory, EngineError> {
    DeviceMemory::new(context, bytes.max(ALIGNMENT)).map_err(|error| {
        if error.code() == Some(gpu::code::OUT_OF_MEMORY) {
            EngineError::Memory { model: plan.name.clone(), what, reason: error.to_string() }
        } else {
            error.into()
        }
    })
}
