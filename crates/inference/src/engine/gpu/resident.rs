//! A model on a GPU as the steps of one kernel that stays there.

use std::sync::Arc;

use gpu::{Arguments, DeviceMemory, Function, PinnedMemory, Priority, ResidentModel, Shape, Staging, Stream};

use super::code;
use super::libraries::By;
use super::limits::{BETWEEN, LIMIT};
use super::loaded::Loaded;
use super::memory::{Memory, memory};
use super::ready::{Place, Ready};
use crate::engine::resident::{self, THREADS, late, table};
use crate::engine::{Engine, EngineError};
use crate::launch::Launch;

/// The steps of a model, and the memory that they work in, for a kernel that calls `db_model`.
#[derive(Debug)]
pub struct Resident {
    steps: DeviceMemory,
    memory: Memory,
    loaded: Arc<Loaded>,
}

impl Resident {
    /// Memory for one more instance; `slots`: where inputs and outputs lie if not there. Errors: a step
    /// computed by a library, with both names; slots of other lengths; out of memory.
    pub fn new(loaded: &Arc<Loaded>, slots: Option<&gpu::SlotTensors>) -> Result<Resident, EngineError> {
        let Loaded { code, plan, weights, .. } = &**loaded;
        let launches = own(loaded)?;
        let of_instance = Memory::new(&code.context, plan, 0, slots)?;
        let place = Place { code, plan, weights, memory: &of_instance };
        let words = table(&launches, |argument| place.words(argument))?;
        let raw: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let steps = memory(&code.context, plan, "the steps of the resident kernel", raw.len())?;
        let stream = Stream::new(&code.context, Priority::Least)?;
        let between = PinnedMemory::new(&code.context, BETWEEN)?;
        of_instance.slot.fill(0, &stream)?;
        steps.write(0, &raw, Staging { stream: &stream, between: &between, limit: LIMIT })?;
        Ok(Resident { steps, memory: of_instance, loaded: loaded.clone() })
    }

    /// The kernel that runs the model alone. Errors: the compiler's, the GPU's.
    pub fn alone(self) -> Result<ResidentAlone, EngineError> {
        let code = &self.loaded.code;
        let module = code::module(&code.context, &code.builder, &resident::units())?;
        let function = module.function("resident")?;
        let blocks = function.resident_blocks(THREADS)?;
        Ok(ResidentAlone {
            stream: Stream::new(&code.context, Priority::Least)?,
            between: PinnedMemory::new(&code.context, BETWEEN)?,
            words: DeviceMemory::new(&code.context, 8)?,
            function,
            blocks,
            resident: self,
        })
    }
}

impl From<Resident> for ResidentModel {
    fn from(model: Resident) -> ResidentModel {
        let (units, address) = (resident::units().into(), model.steps.address());
        // SAFETY: the steps keep to the instance's memory, slots and what was loaded; `model` keeps them all.
        unsafe { ResidentModel::new(units, 0, address, THREADS, model) }
    }
}

/// The steps, if all are our kernels. Error: the first one that a library computes.
fn own(loaded: &Loaded) -> Result<Vec<Launch>, EngineError> {
    let all = loaded.ready.iter().zip(&loaded.plan.steps).zip(&loaded.chosen);
    let launch = |((ready, step), chosen): ((&Ready, &crate::plan::Step), &super::Chosen)| match ready {
        Ready::Own(launch) => Ok(launch.clone()),
        Ready::Library { .. } => Err(EngineError::NotOwn {
            model: loaded.plan.name.clone(),
            step: step.names.join(" "),
            by: match &chosen.by {
                By::Own => "a library".to_owned(),
                by => by.to_string(),
            },
        }),
    };
    all.map(launch).collect()
}

/// A model in one kernel that runs by itself, as often as it is told.
#[derive(Debug)]
pub struct ResidentAlone {
    stream: Stream,
    between: PinnedMemory,
    /// Of the grid's barrier.
    words: DeviceMemory,
    function: Function,
    blocks: u32,
    resident: Resident,
}

impl ResidentAlone {
    /// Blocks of the kernel.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Runs the model `turns` times in one launch, and waits. Errors: the GPU's; a block missed the barrier.
    pub fn launch(&mut self, turns: u64) -> Result<(), EngineError> {
        let ResidentAlone {
            stream, words, function, blocks, resident: Resident { steps, loaded, .. }, ..
        } = &*self;
        words.fill(0, stream)?;
        let arguments = Arguments::new()
            .u64(steps.address())
            .u64(words.address())
            .u64(resident::LIMIT.as_nanos() as u64)
            .u64(turns);
        let shape = Shape { grid: [*blocks, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
        // SAFETY: the steps keep to the instance's memory and to what was loaded, which this value keeps. It
        // lives until its stream is idle, or the context keeps its memory.
        unsafe { stream.launch_cooperative(function, shape, &arguments) }?;
        stream.wait("a resident kernel", LIMIT)?;
        let mut read = [0; 8];
        words.read(0, &mut read, self.way())?;
        late(&loaded.plan, u32::from_le_bytes([read[4], read[5], read[6], read[7]]))
    }

    fn way(&self) -> Staging<'_> {
        Staging { stream: &self.stream, between: &self.between, limit: LIMIT }
    }
}

impl Engine for ResidentAlone {
    fn name(&self) -> &'static str {
        "own kernels, resident"
    }

    fn run(&mut self, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>, EngineError> {
        let Resident { memory, loaded, .. } = &self.resident;
        memory.bring(&loaded.plan, inputs, self.way())?;
        self.launch(1)?;
        let Resident { memory, loaded, .. } = &self.resident;
        memory.outputs(&loaded.plan, self.way())
    }
}
