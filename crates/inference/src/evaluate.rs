//! Operators computed plainly, one element after the other: for constants that a plan folds, and as the
//! reference of tests.
//!
//! Sums are of `f64`, rounded once, so that results are those that faster orders of summation come near.

use crate::graph::{Activation, Graph, Node, Op, Shape, ValueId, Window};

/// All values of a graph for these inputs; `None` for a value that depends on an input that is missing.
pub fn run(graph: &Graph, inputs: &[Vec<f32>]) -> Vec<Option<Vec<f32>>> {
    let mut values: Vec<Option<Vec<f32>>> =
        graph.values.iter().map(|value| value.constant.as_ref().map(|elements| elements.to_vec())).collect();
    for (&id, input) in graph.inputs.iter().zip(inputs) {
        values[id.0] = Some(input.clone());
    }
    for node in &graph.nodes {
        let read: Option<Vec<&[f32]>> = node.inputs.iter().map(|id| values[id.0].as_deref()).collect();
        let written = read.map(|read| self::node(graph, node, &read));
        values[node.output.0] = written;
    }
    values
}

/// What a node writes.
pub fn node(graph: &Graph, node: &Node, read: &[&[f32]]) -> Vec<f32> {
    let (shape, output) = (|at: usize| graph.shape(node.inputs[at]), graph.shape(node.output));
    match &node.op {
        Op::Conv { window, groups } => conv(window, *groups, image(shape(0)), image(output), read),
        Op::Linear => linear(shape(0), output, read),
        Op::BatchNorm { epsilon } => {
            let [_, channels, rows, columns] = image(output);
            let normal = |(at, &element): (usize, &f32)| {
                let channel = at / (rows * columns) % channels;
                let root = f64::from(read[4][channel] + epsilon).sqrt();
                let normal = f64::from(element - read[3][channel]) / root;
                (normal * f64::from(read[1][channel]) + f64::from(read[2][channel])) as f32
            };
            read[0].iter().enumerate().map(normal).collect()
        }
        Op::Activation(activation) => read[0].iter().map(|&element| activate(*activation, element)).collect(),
        Op::Add => read[0].iter().zip(read[1]).map(|(one, two)| one + two).collect(),
        Op::Mul => {
            let (mut long, mut short) = (read[0], read[1]);
            if long.len() < short.len() {
                (long, short) = (short, long);
            }
            let run = long.len() / short.len();
            long.iter().enumerate().map(|(at, element)| element * short[at / run]).collect()
        }
        Op::MaxPool { window } => pool(window, image(shape(0)), image(output), read[0], |seen, _| {
            seen.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        }),
        Op::AveragePool { window, count_pads } => {
            pool(window, image(shape(0)), image(output), read[0], |seen, with_pads| {
                let count = if *count_pads { with_pads } else { seen.len() };
                mean(seen, count)
            })
        }
        Op::GlobalAveragePool => {
            let [.., rows, columns] = image(shape(0));
            read[0].chunks(rows * columns).map(|channel| mean(channel, channel.len())).collect()
        }
        Op::Excite { activation } => {
            let sums = linear(shape(3), output, &[read[3], read[1], read[2]]);
            let run = read[0].len() / sums.len();
            let of_pixels = |(pixels, sum): (&[f32], f32)| -> Vec<f32> {
                pixels.iter().map(|pixel| pixel * activate(*activation, sum)).collect()
            };
            read[0].chunks_exact(run).zip(sums).flat_map(of_pixels).collect()
        }
        Op::Concat { axis } => {
            let inner = |shape: &Shape| shape.extents()[*axis..].iter().product::<usize>();
            let outer: usize = output.extents()[..*axis].iter().product();
            let parts = || read.iter().zip(node.inputs.iter().map(|&id| inner(graph.shape(id))));
            let row = |at: usize| parts().flat_map(move |(elements, inner)| &elements[at * inner..][..inner]);
            (0..outer).flat_map(row).copied().collect()
        }
        Op::DepthToSpace { block } => {
            let [_, channels, rows, columns] = image(output);
            let of = |at: usize| {
                let (column, row) = (at % columns, at / columns % rows);
                let (channel, batch) = (at / (columns * rows) % channels, at / (columns * rows * channels));
                let from = (channel * block + row % block) * block + column % block;
                let from = (batch * channels * block * block + from) * (rows / block) + row / block;
                read[0][from * (columns / block) + column / block]
            };
            (0..output.count()).map(of).collect()
        }
        Op::Reshape => read[0].to_vec(),
    }
}

/// A function of one element.
pub fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Relu => x.max(0.0),
        Activation::Clip { low, high } => x.max(low).min(high),
        Activation::Sigmoid => (1.0 / (1.0 + (-f64::from(x)).exp())) as f32,
        Activation::HardSigmoid { alpha, beta } => (alpha * x + beta).clamp(0.0, 1.0),
        Activation::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
    }
}

fn image(shape: &Shape) -> [usize; 4] {
    shape.image().expect("the operator's inputs are images")
}

fn mean(elements: &[f32], count: usize) -> f32 {
    (elements.iter().map(|&element| f64::from(element)).sum::<f64>() / count as f64) as f32
}

/// Where the window at one output sees the image along one axis: places in the kernel and in the image.
fn seen(
    window: &Window,
    axis: usize,
    output: usize,
    extent: usize,
) -> impl Iterator<Item = (usize, usize)> + Clone {
    let (begin, pads) = (output * window.stride[axis], window.pads[axis]);
    let place = move |at: usize| (begin + at * window.dilation[axis]).checked_sub(pads);
    (0..window.kernel[axis])
        .filter_map(move |at| place(at).filter(|&place| place < extent).map(|place| (at, place)))
}

fn conv(window: &Window, groups: usize, from: [usize; 4], to: [usize; 4], read: &[&[f32]]) -> Vec<f32> {
    let ([_, inputs, rows, columns], [batch, outputs, out_rows, out_columns]) = (from, to);
    let (of_group, [kernel_rows, kernel_columns]) = (inputs / groups, window.kernel);
    let mut written = Vec::with_capacity(to.iter().product());
    for (image, output) in (0..batch).flat_map(|image| (0..outputs).map(move |output| (image, output))) {
        let bias = read.get(2).map_or(0.0, |bias| f64::from(bias[output]));
        let first = output / (outputs / groups) * of_group;
        for (row, column) in (0..out_rows).flat_map(|row| (0..out_columns).map(move |column| (row, column))) {
            let mut sum = bias;
            for channel in 0..of_group {
                let weights = (output * of_group + channel) * kernel_rows;
                let channel = (image * inputs + first + channel) * rows;
                for (at_row, row) in seen(window, 0, row, rows) {
                    for (at_column, column) in seen(window, 1, column, columns) {
                        let weight = read[1][(weights + at_row) * kernel_columns + at_column];
                        sum += f64::from(weight) * f64::from(read[0][(channel + row) * columns + column]);
                    }
                }
            }
            written.push(sum as f32);
        }
    }
    written
}

fn linear(from: &Shape, to: &Shape, read: &[&[f32]]) -> Vec<f32> {
    let depth = from.extents()[1];
    let outputs = to.extents()[1];
    let dot = |row: &[f32], output: usize| {
        let weights = &read[1][output * depth..][..depth];
        let sum: f64 = row.iter().zip(weights).map(|(&one, &two)| f64::from(one) * f64::from(two)).sum();
        (sum + read.get(2).map_or(0.0, |bias| f64::from(bias[output]))) as f32
    };
    read[0].chunks(depth).flat_map(|row| (0..outputs).map(move |output| dot(row, output))).collect()
}

fn pool(
    window: &Window,
    from: [usize; 4],
    to: [usize; 4],
    read: &[f32],
    of_seen: impl Fn(&[f32], usize) -> f32,
) -> Vec<f32> {
    let ([.., rows, columns], [batch, channels, out_rows, out_columns]) = (from, to);
    let mut written = Vec::with_capacity(to.iter().product());
    // Pads count up to the end of the last ones, not beyond.
    let padded = |axis: usize, output: usize, extent: usize| {
        let (begin, end) = (output * window.stride[axis], extent + window.pads[axis] + window.pads[axis + 2]);
        (0..window.kernel[axis]).filter(|at| begin + at * window.dilation[axis] < end).count()
    };
    for channel in 0..batch * channels {
        let image = &read[channel * rows * columns..][..rows * columns];
        for (row, column) in (0..out_rows).flat_map(|row| (0..out_columns).map(move |column| (row, column))) {
            let of_row = seen(window, 1, column, columns);
            let window = seen(window, 0, row, rows)
                .flat_map(|(_, row)| of_row.clone().map(move |(_, column)| image[row * columns + column]));
            let elements: Vec<f32> = window.collect();
            written.push(of_seen(&elements, padded(0, row, rows) * padded(1, column, columns)));
        }
    }
    written
}

/// The elements of constants by which a node that reads constants alone is replaced, if it is such a node.
pub fn folded(graph: &Graph, node: &Node) -> Option<Vec<f32>> {
    let read: Option<Vec<&[f32]>> =
        node.inputs.iter().map(|&id: &ValueId| graph.constant(id).map(|elements| &**elements)).collect();
    read.map(|read| self::node(graph, node, &read))
}
