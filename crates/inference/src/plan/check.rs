//! Whether a plan's launches keep to its arena, constants and slots: engines ask before they launch anything.

use super::{Place, Plan, PlanError, Source, Step, Task, fuse};
use crate::graph::{Op, Shape};
use crate::shape;

impl Plan {
    /// Whether every launch keeps to the arena, the constants and the slots. Engines check it before
    /// launching: that kernels touch no other memory rests on it. A plan of [`Plan::in_format`] passes,
    /// unless its fields were changed.
    pub fn check(&self) -> Result<(), PlanError> {
        for step in &self.steps {
            check_step(self, step)
                .map_err(|problem| PlanError::Step { name: step.names.join(" "), problem })?;
        }
        Ok(())
    }
}

fn check_step(plan: &Plan, step: &Step) -> Result<(), String> {
    for (at, source) in step.reads.iter().enumerate() {
        let wanted = read_shape(step, at).ok_or_else(|| format!("it has no input {at}"))?;
        match (source, &step.task) {
            (Source::Input(number), Task::Compute { op, .. })
                if at == 0
                    && plan.inputs.get(*number) == Some(&wanted)
                    && fuse::reads_slot(plan.format, op, &wanted) => {}
            _ => check_source(plan, source, &wanted)?,
        }
    }
    if let Some(place) = &step.write {
        check_place(plan, place, &step.to)?;
        let [batch, _, rows, columns] = step.to.parts();
        let all = vec![batch, plan.channels_written(step), rows, columns];
        check_place(plan, place, &Shape::new(all).ok_or("more than 2^31 elements with its room")?)?;
    }
    match &step.task {
        Task::Load { number } if plan.inputs.get(*number) == Some(&step.to) && step.write.is_some() => Ok(()),
        Task::Store { number, block }
            if plan.outputs.get(*number) == Some(&step.to) && !step.reads.is_empty() =>
        {
            let stored = match block {
                1 => step.from.clone(),
                &block => shape::output(&Op::DepthToSpace { block }, &[&step.from], None)?,
            };
            if stored == step.to {
                Ok(())
            } else {
                Err(format!("it stores {stored}, its slot is for {}", step.to))
            }
        }
        Task::Copy
            if step.from.count() == step.to.count()
                && step.from.parts()[0] == step.to.parts()[0]
                && step.write.is_some()
                && step.reads.len() == 1 =>
        {
            Ok(())
        }
        Task::Compute { op, residual, .. } if step.write.is_some() => {
            residual.iter().try_for_each(|source| check_source(plan, source, &step.to))?;
            let shapes: Option<Vec<Shape>> = (0..step.reads.len()).map(|at| read_shape(step, at)).collect();
            let shapes = shapes.ok_or("an input without a shape")?;
            let shapes: Vec<&Shape> = shapes.iter().collect();
            let to = shape::output(op, &shapes, None)?;
            if to == step.to { Ok(()) } else { Err(format!("it writes {to}, its place is for {}", step.to)) }
        }
        _ => Err("it reads or writes nothing, or another shape".to_owned()),
    }
}

/// The shape that a step reads as its input `at`.
fn read_shape(step: &Step, at: usize) -> Option<Shape> {
    let op = match &step.task {
        Task::Compute { op, .. } => op,
        _ => return (at == 0).then(|| step.from.clone()),
    };
    let outputs = *step.to.extents().get(1)?;
    match (op, at) {
        (_, 0) => Some(step.from.clone()),
        (Op::Conv { window, groups }, 1) => {
            let inputs = step.from.extents().get(1)?.checked_div(*groups)?;
            Shape::new(vec![outputs, inputs, window.kernel[0], window.kernel[1]])
        }
        (Op::Excite { .. }, 1) => Shape::new(vec![outputs, *step.second.as_ref()?.extents().get(1)?, 1, 1]),
        (Op::Excite { .. }, 2) => Shape::new(vec![outputs]),
        (Op::Excite { .. }, 3) => step.second.clone(),
        (Op::Linear, 1) => Shape::new(vec![outputs, *step.from.extents().get(1)?]),
        (Op::Conv { .. } | Op::Linear, 2) => Shape::new(vec![outputs]),
        (Op::Add | Op::Mul, 1) => step.second.clone(),
        _ => None,
    }
}

fn check_source(plan: &Plan, source: &Source, shape: &Shape) -> Result<(), String> {
    match source {
        Source::Arena(place) => check_place(plan, place, shape),
        Source::Constant(number) => {
            let length = plan.constants.get(*number).map(|elements| elements.len());
            let problem = || format!("constant {number} has {length:?} elements, it reads {shape}");
            (length == Some(shape.count())).then_some(()).ok_or_else(problem)
        }
        Source::Input(number) => Err(format!("no kernel of this step reads input {number} in its slot")),
    }
}

fn check_place(plan: &Plan, place: &Place, shape: &Shape) -> Result<(), String> {
    let [images, channels, rows, columns] = shape.parts();
    if [place.image, place.channel, place.pixel].iter().any(|&stride| u32::try_from(stride).is_err()) {
        return Err(format!(
            "{shape} lies wider apart than kernels count, in 32 bits: {place:?}; use a smaller image"
        ));
    }
    let far = |count: usize, stride: usize| (count - 1).checked_mul(stride);
    let last = far(images, place.image)
        .and_then(|last| last.checked_add(far(channels, place.channel)?))
        .and_then(|last| last.checked_add(far(rows * columns, place.pixel)?)?.checked_add(place.offset));
    let piece = plan.pieces.get(place.piece).copied().zip(plan.arena.offsets.get(place.piece).copied());
    let bytes = plan.format.precision.bytes();
    let inside = piece.zip(last).is_some_and(|((elements, offset), last)| {
        let end = elements.checked_mul(bytes).and_then(|bytes| bytes.checked_add(offset));
        last < elements && end.is_some_and(|end| end <= plan.arena.bytes)
    });
    if inside { Ok(()) } else { Err(format!("{shape} does not lie in its piece of the arena: {place:?}")) }
}
