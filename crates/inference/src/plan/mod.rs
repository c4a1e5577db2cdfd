//! What is launched for a model, in order: fused operators, each value at a place in one arena.
//!
//! A place has a stride for images, channels and pixels, so that a slice of channels is a place in a larger
//! value: what a Concat joins is written where it is read. A Reshape is a second name of a place, if the
//! elements' order stays. The first step reads the input, and the last one writes the output, through a slot
//! that the caller names in memory.

pub mod arena;
mod check;
mod fold;
mod fuse;
mod join;
mod places;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arena::{Arena, Need};
use fuse::Fused;
use places::Places;

use crate::graph::{Activation, Graph, Op, Shape, ValueId};

/// Why a graph cannot be planned.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum PlanError {
    /// Values that lie one behind the other in memory only if the batch is 1.
    #[error("{name}: {problem}; export the model so that the batch stays the first axis")]
    Layout { name: String, problem: String },
    /// A step that would not keep to the plan's memory.
    #[error("step {name}: {problem}; plan the model again")]
    Step { name: String, problem: String },
    /// A constant that is not as long as its shape says, or that folding would make too long.
    #[error("constant {name}: {problem}")]
    Constant { name: String, problem: String },
    /// An operator that would write what is constant, or nothing.
    #[error("the model's output {name} does not depend on its input")]
    ConstantOutput { name: String },
}

/// How numbers lie in the arena; sums are of single precision in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32 bits.
    #[default]
    Single,
    /// 32 bits; libraries may round a product's factors to 10 bits (tensor cores). Own kernels do not.
    Tf32,
    /// 16 bits. Biases stay in single precision.
    Half,
}

impl Precision {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Precision::Single | Precision::Tf32 => 4,
            Precision::Half => 2,
        }
    }
}

/// Which axis of images is the fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// Columns: NCHW.
    #[default]
    ChannelsFirst,
    /// Channels: NHWC, as tensor cores read.
    ChannelsLast,
}

/// How values lie in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Format {
    /// How numbers lie.
    pub precision: Precision,
    /// How images lie.
    pub layout: Layout,
}

/// A place in the arena, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the piece of the arena.
    pub piece: usize,
    /// The first element, from the piece's begin.
    pub offset: usize,
    /// From one image of the batch to the next.
    pub image: usize,
    /// From one channel to the next; of what is no image, from one element to the next.
    pub channel: usize,
    /// From one pixel to the next.
    pub pixel: usize,
}

/// Where a step reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// What an earlier step wrote.
    Arena(Place),
    /// A constant, by its number in [`Plan::constants`].
    Constant(usize),
}

/// What a step computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Task {
    /// Copies input `number` of the model from its slot.
    Load {
        /// Which input.
        number: usize,
    },
    /// An operator, and what is fused with it.
    Compute {
        /// The operator; never a BatchNorm, Reshape or Concat.
        op: Op,
        /// Added to its result.
        residual: Option<Source>,
        /// Applied last.
        activation: Option<Activation>,
    },
    /// Copies a value to where a Concat wants it.
    Copy,
    /// Copies output `number` of the model to its slot.
    Store {
        /// Which output.
        number: usize,
        /// Channels become blocks of so many rows and columns on the way, as [`Op::DepthToSpace`] says; 1:
        /// they stay.
        block: usize,
    },
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The nodes of the file that it computes.
    pub names: Vec<String>,
    /// What it computes.
    pub task: Task,
    /// What it reads, in the operator's order.
    pub reads: Vec<Source>,
    /// The shape of what it reads first.
    pub from: Shape,
    /// The shape of what a sum or product reads second.
    pub second: Option<Shape>,
    /// Where it writes; a [`Task::Store`] writes to its slot.
    pub write: Option<Place>,
    /// The shape of what it writes.
    pub to: Shape,
}

/// A model that is ready to be launched.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The model's name.
    pub name: String,
    /// How values lie in the arena.
    pub format: Format,
    /// What is launched, in order.
    pub steps: Vec<Step>,
    /// Weights and other constants that steps read.
    pub constants: Vec<Arc<[f32]>>,
    /// Where the pieces lie, and how large they are together.
    pub arena: Arena,
    /// Elements of each piece of the arena.
    pub pieces: Vec<usize>,
    /// The model's inputs.
    pub inputs: Vec<Shape>,
    /// The model's outputs.
    pub outputs: Vec<Shape>,
}

impl Plan {
    /// The plan of a graph, in single precision, channels first.
    pub fn new(graph: &Graph) -> Result<Plan, PlanError> {
        Plan::in_format(graph, Format::default())
    }

    /// The plan of a graph whose values lie so in the arena.
    pub fn in_format(graph: &Graph, format: Format) -> Result<Plan, PlanError> {
        let mut graph = fold::fold(graph)?;
        if format.layout == Layout::ChannelsLast {
            join::join(&mut graph);
        }
        let mut fused = fuse::fuse(&graph);
        let stores = stores(&graph, &mut fused);
        let places = Places::new(&graph, &fused, format)?;
        let mut planner = Planner {
            graph: &graph,
            places,
            steps: Vec::new(),
            constants: Vec::new(),
            numbers: HashMap::new(),
        };
        for number in 0..graph.inputs.len() {
            planner.load(number);
        }
        for one in &fused {
            planner.compute(one);
        }
        for (number, blocks) in stores.into_iter().enumerate() {
            planner.store(number, blocks)?;
        }
        let needs = needs(&planner.steps, planner.places.sizes(), format.precision.bytes());
        let shapes = |ids: &[ValueId]| ids.iter().map(|&id| graph.shape(id).clone()).collect();
        let plan = Plan {
            name: graph.name.clone(),
            format,
            arena: arena::place(&needs),
            pieces: planner.places.sizes().to_vec(),
            steps: planner.steps,
            constants: planner.constants,
            inputs: shapes(&graph.inputs),
            outputs: shapes(&graph.outputs),
        };
        plan.check()?;
        Ok(plan)
    }

    /// Whether every launch keeps to the arena, the constants and the slots. Engines ask before they launch
    /// anything: that their kernels touch no other memory rests on it.
    pub fn check(&self) -> Result<(), PlanError> {
        check::check(self)
    }

    /// Channels that a library's kernel may write for a step: those that fill a pixel's room, if no other
    /// value lies in it.
    pub fn channels_written(&self, step: &Step) -> usize {
        let [_, channels, ..] = step.to.parts();
        let Task::Compute { op: Op::Conv { groups: 1, .. }, residual: None, .. } = &step.task else {
            return channels;
        };
        let Some(place) = step.write.filter(|place| place.channel == 1 && place.pixel > channels) else {
            return channels;
        };
        let writes_there = |other: &&Step| other.write.is_some_and(|there| there.piece == place.piece);
        if self.steps.iter().filter(writes_there).count() == 1 { place.pixel } else { channels }
    }

    /// The byte of the arena at which a place begins.
    pub fn byte(&self, place: &Place) -> usize {
        self.arena.offsets[place.piece] + place.offset * self.format.precision.bytes()
    }
}

/// For each output the DepthToSpace that only it reads: storing it does that as well. Takes them out of what
/// is computed.
fn stores(graph: &Graph, fused: &mut Vec<Fused>) -> Vec<Option<Fused>> {
    let uses = fold::uses(graph);
    let alone = |one: &Fused, id: ValueId| {
        let blocks = matches!(one.op, Op::DepthToSpace { .. }) && one.activation.is_none();
        blocks && one.output == id && uses[id.0] == 1
    };
    let mut of_output = |id: ValueId| {
        let at = fused.iter().position(|one| alone(one, id))?;
        graph.constant(fused[at].inputs[0]).is_none().then(|| fused.remove(at))
    };
    graph.outputs.iter().map(|&id| of_output(id)).collect()
}

/// The life of each piece: from the first step that writes it to the last one that uses it.
fn needs(steps: &[Step], sizes: &[usize], bytes: usize) -> Vec<Need> {
    let mut needs: Vec<Need> =
        sizes.iter().map(|size| Need { bytes: size * bytes, first: steps.len(), last: 0 }).collect();
    for (at, step) in steps.iter().enumerate() {
        let residual = match &step.task {
            Task::Compute { residual, .. } => *residual,
            _ => None,
        };
        let read = step.reads.iter().copied().chain(residual).filter_map(|source| match source {
            Source::Arena(place) => Some(place),
            Source::Constant(_) => None,
        });
        for place in read.chain(step.write) {
            let need = &mut needs[place.piece];
            (need.first, need.last) = (need.first.min(at), need.last.max(at));
        }
    }
    needs
}

/// Steps in the making.
struct Planner<'a> {
    graph: &'a Graph,
    places: Places,
    steps: Vec<Step>,
    constants: Vec<Arc<[f32]>>,
    /// Constants that have a number.
    numbers: HashMap<ValueId, usize>,
}

impl Planner<'_> {
    fn shape(&self, id: ValueId) -> Shape {
        self.graph.shape(id).clone()
    }

    fn source(&mut self, id: ValueId) -> Source {
        let Some(elements) = self.graph.constant(id) else {
            return Source::Arena(self.places.of(id));
        };
        let number = *self.numbers.entry(id).or_insert_with(|| {
            self.constants.push(elements.clone());
            self.constants.len() - 1
        });
        Source::Constant(number)
    }

    fn load(&mut self, number: usize) {
        let id = self.graph.inputs[number];
        let (shape, names) = (self.shape(id), vec![self.graph.value(id).name.clone()]);
        let (task, write) = (Task::Load { number }, Some(self.places.of(id)));
        self.steps.push(Step {
            names,
            task,
            reads: Vec::new(),
            from: shape.clone(),
            second: None,
            write,
            to: shape,
        });
    }

    fn compute(&mut self, one: &Fused) {
        let task = match one.op {
            Op::Concat { .. } | Op::Reshape => return self.copies(one),
            ref op => Task::Compute {
                op: op.clone(),
                residual: one.residual.map(|id| self.source(id)),
                activation: one.activation,
            },
        };
        let reads = one.inputs.iter().map(|&id| self.source(id)).collect();
        let write = Some(self.places.of(one.output));
        let (from, to) = (self.shape(one.inputs[0]), self.shape(one.output));
        let second = matches!(one.op, Op::Add | Op::Mul).then(|| self.shape(one.inputs[1]));
        self.steps.push(Step { names: one.names.clone(), task, reads, from, second, write, to });
    }

    /// Copies of what a Concat or Reshape reads and no step writes to the right place.
    fn copies(&mut self, one: &Fused) {
        for (at, place) in self.places.missing(self.graph, one) {
            let from = self.shape(one.inputs[at]);
            let to = if one.op == Op::Reshape { self.shape(one.output) } else { from.clone() };
            let (reads, write) = (vec![self.source(one.inputs[at])], Some(place));
            self.steps.push(Step {
                names: one.names.clone(),
                task: Task::Copy,
                reads,
                from,
                second: None,
                write,
                to,
            });
        }
    }

    fn store(&mut self, number: usize, blocks: Option<Fused>) -> Result<(), PlanError> {
        let id = self.graph.outputs[number];
        let name = self.graph.value(id).name.clone();
        if self.graph.constant(id).is_some() {
            return Err(PlanError::ConstantOutput { name });
        }
        let (read, block, mut names) = match blocks {
            Some(Fused { op: Op::DepthToSpace { block }, inputs, names, .. }) => (inputs[0], block, names),
            _ => (id, 1, Vec::new()),
        };
        names.push(name);
        let (from, to, reads) = (self.shape(read), self.shape(id), vec![self.source(read)]);
        let task = Task::Store { number, block };
        self.steps.push(Step { names, task, reads, from, second: None, write: None, to });
        Ok(())
    }
}

impl fmt::Display for Plan {
    /// The steps one a line, and the sizes: what a snapshot keeps.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fused: usize = self.steps.iter().map(|step| step.names.len() - 1).sum();
        let weights: usize = self.constants.iter().map(|elements| size_of_val(&**elements)).sum();
        let Arena { bytes, bound, sum, .. } = self.arena;
        writeln!(f, "{}: {} steps, {fused} operators fused into others", self.name, self.steps.len())?;
        writeln!(
            f,
            "arena {bytes} B, bound by what lives at once {bound} B, without sharing {sum} B, constants {weights} B"
        )?;
        for (at, step) in self.steps.iter().enumerate() {
            let place = step.write.map_or_else(
                || "slot".to_owned(),
                |place| {
                    format!(
                        "{}+{}",
                        self.arena.offsets[place.piece],
                        place.offset * self.format.precision.bytes()
                    )
                },
            );
            writeln!(
                f,
                "{at:4} {:24} {:>16} -> {:16} at {place:20} {}",
                step.task.to_string(),
                step.from,
                step.to,
                step.names.join(" ")
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Task::Load { number } => write!(f, "Load {number}"),
            Task::Copy => write!(f, "Copy"),
            Task::Store { number, block: 1 } => write!(f, "Store {number}"),
            Task::Store { number, .. } => write!(f, "DepthToSpace+Store {number}"),
            Task::Compute { op, residual, activation } => {
                let add = if residual.is_some() { "+Add" } else { "" };
                let activation =
                    activation.map_or_else(String::new, |of| format!("+{}", Op::Activation(of).name()));
                write!(f, "{}{add}{activation}", op.name())
            }
        }
    }
}
