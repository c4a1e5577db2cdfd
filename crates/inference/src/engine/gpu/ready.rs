//! Steps that are ready to be put into a stream.

use gpu::cudnn::Pointers;
use gpu::{Arguments, Error, Shape, Stream};

use super::code::Code;
use super::convolution;
use super::library_plan::LibraryPlan;
use super::memory::Memory;
use super::weights::{Form, Weights};
use crate::engine::resident;
use crate::launch::{Argument, Launch};
use crate::plan::{Plan, Step};

/// A step that is ready to be put into a stream.
#[derive(Debug, Clone)]
pub enum Ready {
    /// A kernel of ours.
    Own(Launch),
    /// A library's plan, with our kernels before it (for what it reads) and after it (the rest of the step).
    Library { before: Option<Launch>, plan: LibraryPlan, finish: Option<Launch> },
}

impl Ready {
    /// The constants that it reads, with their forms.
    pub fn constants(&self, plan: &Plan, step: &Step) -> Vec<(usize, Form)> {
        let (launch, mut constants) = match self {
            Ready::Own(launch) => (Some(launch), Vec::new()),
            Ready::Library { finish, .. } => (finish.as_ref(), convolution::constants(plan, step)),
        };
        let read =
            launch.into_iter().flat_map(|launch| &launch.arguments).filter_map(|argument| match *argument {
                Argument::Constant(number) => Some((number, Form::Plan)),
                Argument::Bias(number) => Some((number, Form::Single)),
                _ => None,
            });
        constants.extend(read);
        constants
    }
}

/// What steps are put into a stream with.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub code: &'a Code,
    pub plan: &'a Plan,
    pub weights: &'a Weights,
    pub memory: &'a Memory,
}

impl Place<'_> {
    /// Puts a step into a stream, or into what it records.
    ///
    /// # Safety
    /// `ready` is made of this step. Code, plans, weights and memory live until the stream is idle, or as
    /// long as what is recorded.
    pub unsafe fn put(&self, ready: &Ready, step: &Step, stream: &Stream) -> gpu::Result<()> {
        let launch = match ready {
            Ready::Own(launch) => Some(launch),
            Ready::Library { before, plan: library, finish } => {
                if let Some(launch) = before {
                    // SAFETY: the workspace is as long as the library's plan says, rows included; rest below.
                    unsafe { self.launch(launch, stream) }?;
                }
                let (arena, workspace) = (self.memory.arena.address(), self.memory.workspace.address());
                let pointers = convolution::pointers(self.plan, step, self.weights, arena, workspace);
                let missing = || Error::Refused("a constant of a library's step is not there".into());
                let pointers = pointers.ok_or_else(missing)?;
                match library {
                    // SAFETY: the plan's places lie in the arena, its constants are as long as its shapes
                    // say, and the workspace as the library says; the rest is the caller's promise.
                    LibraryPlan::Convolution(plan, of) => unsafe { plan.execute(stream, of, &pointers) },
                    LibraryPlan::Product(plan, rows) => {
                        let from = rows.as_ref().map_or(pointers.from, |rows| workspace + rows.start as u64);
                        let pointers = Pointers { from, ..pointers };
                        // SAFETY: as above; rows are as long as the product's shape says.
                        unsafe { plan.execute(stream, &pointers) }
                    }
                }?;
                finish.as_ref()
            }
        };
        let Some(launch) = launch else { return Ok(()) };
        // SAFETY: the caller's promise.
        unsafe { self.launch(launch, stream) }
    }

    /// # Safety
    /// As [`Self::put`]; the workspace is as long as the launch's arguments say.
    unsafe fn launch(&self, launch: &Launch, stream: &Stream) -> gpu::Result<()> {
        let shape = Shape { grid: launch.blocks, block: [launch.threads, 1, 1], shared_bytes: 0 };
        let arguments = self.arguments(launch)?;
        // SAFETY: the plan's places lie in the arena; constants and slots are as long as its shapes say. The
        // caller promises the rest.
        unsafe { stream.launch(self.code.function(launch.kernel)?, shape, &arguments) }
    }

    fn arguments(&self, launch: &Launch) -> gpu::Result<Arguments> {
        launch.arguments.iter().try_fold(Arguments::new(), |arguments, argument| {
            Ok(match argument {
                Argument::Input(_) | Argument::Output(_) => {
                    let words = self.words(argument)?;
                    arguments.bytes(&words.map(u64::to_le_bytes).concat())
                }
                Argument::Conv(words) => arguments.bytes(&words_of(words)),
                Argument::Pool(words) => arguments.bytes(&words_of(words)),
                Argument::Elements(words) => arguments.bytes(&words_of(words)),
                address => arguments.u64(self.words(address)?[0]),
            })
        })
    }

    /// `struct slot` of an input or output: base, index, stride, offset; of others the address comes first.
    pub fn words(&self, argument: &Argument) -> gpu::Result<[u64; 4]> {
        if let (Argument::Input(_) | Argument::Output(_), Some(slots)) = (argument, &self.memory.slots) {
            return Ok(resident::words_of(slots, argument));
        }
        let missing = || Error::Refused("a constant of a kernel is not there".into());
        let constant = |number, form| self.weights.address((number, form)).ok_or_else(missing);
        let address = match *argument {
            Argument::Arena(byte) => self.memory.arena.address() + byte as u64,
            Argument::Constant(number) => constant(number, Form::Plan)?,
            Argument::Bias(number) => constant(number, Form::Single)?,
            Argument::Input(number) => self.memory.inputs[number].address(),
            Argument::Output(number) => self.memory.outputs[number].address(),
            Argument::Workspace(byte) => self.memory.workspace.address() + byte as u64,
            Argument::Null | Argument::Conv(_) | Argument::Pool(_) | Argument::Elements(_) => 0,
        };
        Ok([address, self.memory.slot.address(), 0, 0])
    }
}

pub fn words_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
