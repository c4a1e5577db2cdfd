//! A plan as the steps of one resident kernel (`kernels/resident.cu`), and that kernel on the host twin.
//!
//! A resident kernel of another crate calls `db_model` with the steps' address ([`gpu::ResidentModel`]). With
//! requests and answers in slots ([`SlotTensors`]) the first step reads the grid's, the last writes it.

use std::time::Duration;

use gpu::{ResidentModel, SlotTensor, SlotTensors};
use host_twin::{Arguments, Launch as Shape, TwinError, Visibility};

use super::twin::Twin;
use super::{Engine, EngineError, KERNELS};
use crate::graph::Shape as Extents;
use crate::launch::{Argument, Launch};
use crate::plan::Plan;

/// Threads of a block of a resident kernel.
pub const THREADS: u32 = 256;
/// The operators of `kernels/resident.cu` by number.
const OPERATIONS: [&str; 13] = [
    "conv_tiled",
    "conv_grouped",
    "linear",
    "pool",
    "mean",
    "elementwise",
    "depth_to_space",
    "load",
    "store",
    "conv_load",
    "excite",
    "depthwise",
    "pointwise",
];
/// The longest that a block waits for the others at a step's end.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// An error unless the tensors are as long as the model's.
pub(super) fn check(slots: &SlotTensors, plan: &Plan) -> Result<(), EngineError> {
    let bytes = |tensors: &[SlotTensor]| tensors.iter().map(SlotTensor::bytes).collect();
    check_bytes([bytes(&slots.inputs), bytes(&slots.outputs)], plan)
}

/// The same of the lengths of inputs and outputs.
fn check_bytes([inputs, outputs]: [Vec<usize>; 2], plan: &Plan) -> Result<(), EngineError> {
    let check = |what, given: Vec<usize>, shapes: &[Extents]| {
        let wanted: Vec<usize> = shapes.iter().map(|shape| shape.count() * size_of::<f32>()).collect();
        if given == wanted { Ok(()) } else { Err(EngineError::Slots { what, given, wanted }) }
    };
    check("inputs", inputs, &plan.inputs)?;
    check("outputs", outputs, &plan.outputs)
}

/// `struct slot` of `kernels/operators.h` for the tensor that an argument names.
pub(super) fn words_of(slots: &SlotTensors, argument: &Argument) -> [u64; 4] {
    match *argument {
        Argument::Input(number) => slots.inputs[number].words(),
        Argument::Output(number) => slots.outputs[number].words(),
        _ => [0; 4],
    }
}

/// The sources of `db_model` for a GPU.
pub fn units() -> [gpu::Unit; 1] {
    let (name, text) = gpu::GRID_HEADER;
    let unit = gpu::Unit::new("resident.cu", include_str!("../../kernels/resident.cu"));
    [unit
        .header(name, text)
        .header("operators.h", include_str!("../../kernels/operators.h"))
        .header("pointwise.h", include_str!("../../kernels/pointwise.h"))
        .header("tensor_cores.h", include_str!("../../kernels/tensor_cores.h"))]
}

/// `struct steps`: a plan's launches. `place`: `struct slot` of in- and outputs; of others the address first.
pub(super) fn table<E>(
    launches: &[Launch],
    mut place: impl FnMut(&Argument) -> Result<[u64; 4], E>,
) -> Result<Vec<u64>, E> {
    let mut table = vec![launches.len() as u64];
    for launch in launches {
        let name = launch.kernel.strip_suffix("_half");
        let operation = OPERATIONS.iter().position(|known| *known == name.unwrap_or(launch.kernel));
        let operation =
            operation.expect("a plan's steps are these operators; a library's rest is none") as u32;
        let [x, y, z] = launch.blocks;
        let (mut pointers, mut slot, mut shape) = (Vec::new(), [0; 4], [0; 30]);
        for argument in &launch.arguments {
            match argument {
                Argument::Conv(words) => shape[..words.len()].copy_from_slice(words),
                Argument::Pool(words) => shape[..words.len()].copy_from_slice(words),
                Argument::Elements(words) => shape[..words.len()].copy_from_slice(words),
                Argument::Input(_) | Argument::Output(_) => slot = place(argument)?,
                other => pointers.push(place(other)?[0]),
            }
        }
        pointers.resize(5, 0);
        let head = [operation, u32::from(name.is_some()), x, y, z, launch.threads];
        let pairs = |words: &[u32]| -> Vec<u64> {
            words.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).collect()
        };
        table.extend(pairs(&head));
        table.extend(pointers);
        table.extend(slot);
        table.extend(pairs(&shape));
    }
    Ok(table)
}

/// A model as a resident kernel on the host twin.
#[derive(Debug)]
pub struct TwinResident {
    twin: Twin,
    steps: Vec<u64>,
    /// Blocks of the kernel when it runs alone.
    blocks: u32,
    kernel: host_twin::Kernel,
    model: host_twin::Kernel,
    /// Keeps their memory.
    _slots: Option<SlotTensors>,
}

impl TwinResident {
    /// A plan's steps with memory of their own; `slots`: where inputs and outputs lie if not there. Errors:
    /// the plan's; slots of other lengths; no C++ compiler when this crate was built.
    pub fn new(plan: Plan, slots: Option<&SlotTensors>, blocks: u32) -> Result<TwinResident, EngineError> {
        let find = |name| KERNELS.find(name).map_err(|source| twin_error(&plan, source));
        let (kernel, model) = (find("resident")?, find("db_model")?);
        slots.map_or(Ok(()), |slots| check(slots, &plan))?;
        let mut twin = Twin::new(plan)?;
        let launches = twin.launches();
        let steps = table(&launches, |argument| {
            Ok::<_, EngineError>(match (argument, slots) {
                (Argument::Input(_) | Argument::Output(_), Some(slots)) => words_of(slots, argument),
                (argument, _) => twin.slot(argument),
            })
        })?;
        Ok(TwinResident { twin, steps, blocks, kernel, model, _slots: slots.cloned() })
    }

    fn address(&self) -> u64 {
        self.steps.as_ptr().expose_provenance() as u64
    }

    /// Runs it alone with what lies where the first step reads.
    fn launch(&mut self) -> Result<(), EngineError> {
        let mut words = [0_u32; 2];
        let arguments = Arguments::new()
            .push(self.address())
            .pointer(words.as_mut_ptr())
            .push(LIMIT.as_nanos() as u64)
            .push(1_u64);
        let shape =
            Shape { cooperative: true, visibility: Visibility::InOrder, ..Shape::new(self.blocks, THREADS) };
        // SAFETY: steps lead to the plan's memory, as in `Twin::launch`; it and the words outlive the kernel.
        let ran = unsafe { host_twin::run(self.kernel, &shape, arguments) };
        ran.map_err(|source| twin_error(self.twin.plan(), source))?;
        late(self.twin.plan(), words[1])
    }
}

/// An error if the second word of the grid's barrier says that a block waited too long.
pub(super) fn late(plan: &Plan, word: u32) -> Result<(), EngineError> {
    if word == 0 { Ok(()) } else { Err(EngineError::Late { model: plan.name.clone(), limit: LIMIT }) }
}

fn twin_error(plan: &Plan, source: TwinError) -> EngineError {
    EngineError::Twin { step: format!("all of {}", plan.name), source }
}

impl From<TwinResident> for ResidentModel {
    fn from(model: TwinResident) -> ResidentModel {
        let (entry, address) = (model.model.entry(), model.address());
        // SAFETY: the steps lead to the plan's memory and to slots, and `model` keeps both.
        unsafe { ResidentModel::new(Vec::new(), entry, address, THREADS, model) }
    }
}

impl Engine for TwinResident {
    fn name(&self) -> &'static str {
        "host twin, resident"
    }

    fn run(&mut self, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>, EngineError> {
        self.twin.bring(inputs)?;
        self.launch()?;
        Ok(self.twin.outputs())
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use zoo::Architecture;

    use super::*;
    use crate::import::import;
    use crate::layers::Random;
    use crate::plan::{Format, Layout, Precision};

    host_twin::include_kernels!("planted");

    fn bits(outputs: &[Vec<f32>]) -> Vec<u32> {
        outputs.iter().flatten().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn slots_of_other_lengths_are_refused_with_both() {
        let architecture = Architecture::SuperResolution { factor: 1, height: 24, width: 20 };
        let plan = Plan::new(&import(&architecture.build(1).encode_to_vec(), 1).unwrap()).unwrap();
        let said = |inputs, outputs| check_bytes([inputs, outputs], &plan).unwrap_err().to_string();
        assert_eq!(said(vec![1920], vec![1916]), "slots have [1916] bytes of outputs, the model [1920]");
        assert_eq!(said(vec![], vec![1920]), "slots have [] bytes of inputs, the model [1920]");
        check_bytes([vec![1920], vec![1920]], &plan).unwrap();
    }

    #[test]
    fn a_model_in_a_resident_kernel_computes_what_launches_do() {
        measure::need!(crate::engine::has_twin(), cc, "a C++ compiler");
        let architecture = Architecture::SuperResolution { factor: 1, height: 24, width: 20 };
        let graph = import(&architecture.build(1).encode_to_vec(), 1).unwrap();
        let half = Format { precision: Precision::Half, layout: Layout::ChannelsLast };
        let plans = [half, Format::default()].map(|format| Plan::in_format(&graph, format).unwrap());
        let input = Random(3).tensor(plans[0].inputs[0].count());
        let alone = |plan: &Plan| bits(&Twin::new(plan.clone()).unwrap().run(&[&input]).unwrap());
        let wanted = plans.each_ref().map(alone);
        for (plan, wanted) in plans.iter().zip(&wanted) {
            for blocks in [1, 5] {
                let mut resident = TwinResident::new(plan.clone(), None, blocks).unwrap();
                for run in 0..2 {
                    let found = bits(&resident.run(&[&input]).unwrap());
                    assert!(found == *wanted, "{:?}, {blocks} blocks, run {run}", plan.format);
                }
            }
        }
        let ([_, plan], [_, wanted]) = (plans, wanted);
        // Without the barrier the first block computes its share of all steps while a thread begins the
        // others. There are more blocks than the twin has threads.
        let kernel = PLANTED.find("resident+DB_DEFECT_NO_GRID_BARRIER").unwrap();
        let mut planted = TwinResident { kernel, ..TwinResident::new(plan, None, 20).unwrap() };
        assert!(bits(&planted.run(&[&input]).unwrap()) != wanted, "the defect is not seen");
    }
}
