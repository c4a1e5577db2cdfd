//! The plan of a graph: operators fused, values given their places, steps in order.

use std::collections::HashMap;
use std::sync::Arc;

use super::arena::{self, Need};
use super::fuse::{self, Fused};
use super::places::Places;
use super::{Format, Layout, Plan, PlanError, Source, Step, Task, excite, fold, join};
use crate::graph::{Graph, Op, Shape, ValueId};

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
        excite::join(&mut graph);
        let mut fused = fuse::fuse(&graph);
        let stores = stores(&graph, &mut fused);
        let in_slots = fuse::in_slots(&graph, &fused, format);
        let places = Places::new(&graph, &fused, &in_slots, format)?;
        let mut planner = Planner {
            graph: &graph,
            places,
            in_slots,
            steps: Vec::new(),
            constants: Vec::new(),
            numbers: HashMap::new(),
        };
        for (number, id) in graph.inputs.iter().enumerate() {
            if !planner.in_slots.contains(id) {
                planner.load(number);
            }
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
            Source::Constant(_) | Source::Input(_) => None,
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
    /// Inputs that no step loads.
    in_slots: Vec<ValueId>,
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
            let input = self.graph.inputs.iter().position(|input| *input == id);
            let input = input.filter(|_| self.in_slots.contains(&id));
            return input.map_or_else(|| Source::Arena(self.places.of(id)), Source::Input);
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
        let second = match one.op {
            Op::Add | Op::Mul => Some(self.shape(one.inputs[1])),
            Op::Excite { .. } => Some(self.shape(one.inputs[3])),
            _ => None,
        };
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
