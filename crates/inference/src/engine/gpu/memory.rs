//! The memory of one instance, in which its kernels work.

use gpu::{Context, DeviceMemory, SlotTensors, Staging, Stream};

use crate::engine::{EngineError, check_inputs, resident};
use crate::graph::Shape;
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
    /// Memory for a plan whose libraries need `workspace` bytes; `slots`: where inputs and outputs lie,
    /// unless in its own memory. Errors: slots of other lengths; out of memory.
    pub fn new(
        context: &Context,
        plan: &Plan,
        workspace: usize,
        slots: Option<&SlotTensors>,
    ) -> Result<Memory, EngineError> {
        slots.map_or(Ok(()), |slots| resident::check(slots, plan))?;
        let own = |shapes: &'_ [Shape]| if slots.is_some() { Vec::new() } else { shapes.to_vec() };
        let of = |what, bytes| memory(context, plan, what, bytes);
        let all = |what, shapes: &[Shape]| {
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

    /// Error: the inputs and outputs lie in slots.
    fn has_own(&self) -> Result<(), EngineError> {
        if self.slots.is_none() { Ok(()) } else { Err(EngineError::InSlots) }
    }

    /// Copies inputs into the memory that the first step reads. Errors: other lengths; inputs lie in slots.
    pub fn bring(&self, plan: &Plan, inputs: &[&[f32]], way: Staging<'_>) -> Result<(), EngineError> {
        self.has_own()?;
        check_inputs(inputs, &plan.inputs.iter().map(Shape::count).collect::<Vec<_>>())?;
        for (input, memory) in inputs.iter().zip(&self.inputs) {
            memory.write(0, bytes(input), way)?;
        }
        Ok(())
    }

    /// Overwrites the outputs with what no model computes: every byte is 0xff. Error: they lie in slots.
    pub fn wipe(&self, stream: &Stream) -> Result<(), EngineError> {
        self.has_own()?;
        Ok(self.outputs.iter().try_for_each(|memory| memory.fill(0xff, stream))?)
    }

    /// Reads the outputs, which the last step wrote. Error: they lie in slots.
    pub fn outputs(&self, plan: &Plan, way: Staging<'_>) -> Result<Vec<Vec<f32>>, EngineError> {
        self.has_own()?;
        let all = plan.outputs.iter().zip(&self.outputs);
        Ok(all.map(|(shape, memory)| floats(memory, shape.count(), way)).collect::<gpu::Result<_>>()?)
    }
}

/// The bytes of some numbers, as the GPU reads them.
pub fn bytes(elements: &[f32]) -> &[u8] {
    // SAFETY: the slice has that many initialised bytes, for as long as it is borrowed; bytes have no
    // alignment.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// Reads `count` numbers of single precision from the start of `memory`.
pub fn floats(memory: &DeviceMemory, count: usize, way: Staging<'_>) -> gpu::Result<Vec<f32>> {
    let mut raw = vec![0; count * size_of::<f32>()];
    memory.read(0, &mut raw, way)?;
    Ok(raw.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
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
