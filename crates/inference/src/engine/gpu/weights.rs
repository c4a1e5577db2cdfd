//! A plan's constants in a GPU's memory, each in the forms in which kernels read them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use gpu::{Context, DeviceMemory, PinnedMemory, Priority, Staging, Stream};

use super::limits::{BETWEEN, LIMIT};
use super::memory::{bytes, memory};
use crate::engine::EngineError;
use crate::engine::twin::halves;
use crate::plan::arena::ALIGNMENT;
use crate::plan::{Plan, Precision};

/// How a constant's elements lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// In the file's order, in the plan's precision.
    Plan,
    /// In the file's order, in single precision.
    Single,
    /// Weights of so many outputs, inputs, rows and columns: by outputs, rows, columns and inputs (KRSC), in
    /// the plan's precision. Outputs that the file does not have are zeros. A bias has one input.
    ChannelsLast([usize; 4]),
}

/// Constants on a GPU, read by all instances.
#[derive(Debug)]
pub struct Weights {
    memory: DeviceMemory,
    offsets: BTreeMap<(usize, Form), usize>,
}

impl Weights {
    /// Copies these constants there, each in this form. Errors: out of memory.
    pub fn new(
        context: &Context,
        plan: &Plan,
        wanted: impl Iterator<Item = (usize, Form)>,
    ) -> Result<Weights, EngineError> {
        let mut offsets: BTreeMap<(usize, Form), usize> = wanted.map(|key| (key, 0)).collect();
        let mut end = 0;
        for (key, offset) in &mut offsets {
            *offset = end;
            end += length(plan, *key) * element_bytes(plan, key.1);
            end = end.next_multiple_of(ALIGNMENT);
        }
        let memory = memory(context, plan, "the weights", end)?;
        let stream = Stream::new(context, Priority::Least)?;
        let between = PinnedMemory::new(context, BETWEEN)?;
        let way = Staging { stream: &stream, between: &between, limit: LIMIT };
        for (&(number, form), &offset) in &offsets {
            memory.write(offset, &content(plan, number, form), way)?;
        }
        Ok(Weights { memory, offsets })
    }

    /// Where a constant lies in that form.
    pub fn address(&self, key: (usize, Form)) -> Option<u64> {
        Some(self.memory.address() + *self.offsets.get(&key)? as u64)
    }
}

/// Elements of a constant in a form.
fn length(plan: &Plan, (number, form): (usize, Form)) -> usize {
    match form {
        Form::ChannelsLast(extents) => extents.iter().product(),
        Form::Plan | Form::Single => plan.constants[number].len(),
    }
}

fn element_bytes(plan: &Plan, form: Form) -> usize {
    if form == Form::Single { size_of::<f32>() } else { plan.format.precision.bytes() }
}

fn content(plan: &Plan, number: usize, form: Form) -> Vec<u8> {
    let elements = &plan.constants[number];
    let elements = match form {
        Form::ChannelsLast(extents) => Cow::Owned(channels_last(elements, extents)),
        Form::Plan | Form::Single => Cow::Borrowed(&elements[..]),
    };
    match plan.format.precision {
        Precision::Half if form != Form::Single => {
            halves(&elements).iter().flat_map(|half| half.to_le_bytes()).collect()
        }
        _ => bytes(&elements).to_vec(),
    }
}

/// Weights by outputs, inputs, rows and columns in the order outputs, rows, columns, inputs, and zeros to the
/// last output.
fn channels_last(elements: &[f32], [outputs, inputs, rows, columns]: [usize; 4]) -> Vec<f32> {
    let pixels = rows * columns;
    let of_output = |weights: &[f32]| {
        let places = (0..pixels).flat_map(|pixel| (0..inputs).map(move |input| input * pixels + pixel));
        places.map(|at| weights[at]).collect::<Vec<f32>>()
    };
    let mut turned: Vec<f32> = elements.chunks_exact((inputs * pixels).max(1)).flat_map(of_output).collect();
    turned.resize(outputs * inputs * pixels, 0.0);
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_with_channels_last_are_found_where_a_library_looks() {
        let [outputs, inputs, rows, columns] = [2, 3, 2, 4];
        let elements: Vec<f32> = (0..outputs * inputs * rows * columns).map(|at| at as f32).collect();
        let turned = channels_last(&elements, [outputs + 1, inputs, rows, columns]);
        for (output, input, row, column) in [(0, 0, 0, 0), (1, 2, 1, 3), (1, 0, 1, 2), (0, 2, 0, 1)] {
            let there = ((output * rows + row) * columns + column) * inputs + input;
            let here = ((output * inputs + input) * rows + row) * columns + column;
            assert_eq!(turned[there], elements[here]);
        }
        let (ours, more) = turned.split_at(elements.len());
        assert!(ours.len() == elements.len() && more == [0.0; 24], "an output more than the file has");
    }
}
