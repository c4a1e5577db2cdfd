//! The shape of what an operator writes, from the shapes of what it reads.

use crate::graph::{Op, Shape, Window};

/// The output's shape, or what does not fit, for a message. `reshaped` is what the file asks of a
/// [`Op::Reshape`].
pub fn output(op: &Op, inputs: &[&Shape], reshaped: Option<Shape>) -> Result<Shape, String> {
    match op {
        Op::Conv { window, groups } => conv(window, *groups, inputs),
        Op::Linear => linear(inputs),
        Op::BatchNorm { .. } => batch_norm(inputs),
        Op::Activation(_) => Ok(first(inputs)?.clone()),
        Op::Add | Op::Mul => elementwise(op, inputs),
        Op::MaxPool { window, .. } | Op::AveragePool { window, .. } => pool(window, first(inputs)?),
        Op::GlobalAveragePool => {
            let [batch, channels, ..] = image(first(inputs)?)?;
            shape(vec![batch, channels, 1, 1])
        }
        Op::Excite { .. } => excite(inputs),
        Op::Concat { axis } => concat(*axis, inputs),
        Op::DepthToSpace { block } => depth_to_space(*block, first(inputs)?),
        Op::Reshape => reshape(first(inputs)?, reshaped),
    }
}

fn shape(extents: Vec<usize>) -> Result<Shape, String> {
    let wanted = format!("{extents:?}");
    Shape::new(extents)
        .ok_or_else(|| format!("a tensor of extents {wanted} is empty, or larger than 2^31 elements"))
}

fn first<'a>(inputs: &[&'a Shape]) -> Result<&'a Shape, String> {
    inputs.first().copied().ok_or_else(|| "the operator has no input".to_owned())
}

fn image(shape: &Shape) -> Result<[usize; 4], String> {
    shape.image().ok_or_else(|| format!("the input is {shape}, not batch x channels x rows x columns"))
}

fn slide(window: &Window, rows: usize, columns: usize) -> Result<[usize; 2], String> {
    if window.kernel.contains(&0) || window.stride.contains(&0) || window.dilation.contains(&0) {
        return Err("a kernel, stride or dilation of 0".to_owned());
    }
    let extent = |axis, extent| {
        window.output(axis, extent).ok_or_else(|| {
            format!(
                "a window of {:?} does not fit in {rows}x{columns} with pads {:?}",
                window.kernel, window.pads
            )
        })
    };
    Ok([extent(0, rows)?, extent(1, columns)?])
}

fn conv(window: &Window, groups: usize, inputs: &[&Shape]) -> Result<Shape, String> {
    let [batch, channels, rows, columns] = image(first(inputs)?)?;
    let weights = inputs.get(1).ok_or("there are no weights")?;
    let [outputs, of_group, kernel_rows, kernel_columns] =
        weights.image().ok_or_else(|| format!("the weights are {weights}, not four axes"))?;
    if [kernel_rows, kernel_columns] != window.kernel {
        return Err(format!("the weights are {weights}, the attribute kernel_shape is {:?}", window.kernel));
    }
    if groups == 0 || outputs % groups != 0 || of_group.checked_mul(groups) != Some(channels) {
        return Err(format!("{channels} channels in {groups} groups do not fit weights of {weights}"));
    }
    if let Some(bias) = inputs.get(2)
        && bias.extents() != [outputs]
    {
        return Err(format!("a bias of {bias} for {outputs} outputs"));
    }
    let [rows, columns] = slide(window, rows, columns)?;
    shape(vec![batch, outputs, rows, columns])
}

fn linear(inputs: &[&Shape]) -> Result<Shape, String> {
    let rows = first(inputs)?;
    let [batch, depth] = rows.matrix().ok_or_else(|| format!("the input is {rows}, not a matrix"))?;
    let weights = inputs.get(1).ok_or("there are no weights")?;
    let [outputs, inner] =
        weights.matrix().ok_or_else(|| format!("the weights are {weights}, not a matrix"))?;
    if inner != depth {
        return Err(format!("rows of {depth} and weights of {inner}"));
    }
    if let Some(bias) = inputs.get(2)
        && bias.extents() != [outputs]
    {
        return Err(format!("a bias of {bias} for {outputs} outputs"));
    }
    shape(vec![batch, outputs])
}

fn batch_norm(inputs: &[&Shape]) -> Result<Shape, String> {
    let [_, channels, ..] = image(first(inputs)?)?;
    if inputs.len() != 5 || inputs[1..].iter().any(|of_channels| of_channels.extents() != [channels]) {
        return Err(format!("scale, offset, mean and variance are not {channels} each: {:?}", &inputs[1..]));
    }
    Ok(inputs[0].clone())
}

fn elementwise(op: &Op, inputs: &[&Shape]) -> Result<Shape, String> {
    let [left, right] = inputs else {
        return Err(format!("{} inputs; it takes two", inputs.len()));
    };
    let of_channels = |image: &Shape, other: &Shape| match (image.image(), other.image()) {
        (Some([batch, channels, ..]), Some(extents)) => extents == [batch, channels, 1, 1],
        _ => false,
    };
    match op {
        _ if left == right => Ok((*left).clone()),
        Op::Mul if of_channels(left, right) => Ok((*left).clone()),
        Op::Mul if of_channels(right, left) => Ok((*right).clone()),
        _ => Err(format!("{left} and {right} do not fit")),
    }
}

fn pool(window: &Window, input: &Shape) -> Result<Shape, String> {
    let [batch, channels, rows, columns] = image(input)?;
    let [rows, columns] = slide(window, rows, columns)?;
    shape(vec![batch, channels, rows, columns])
}

fn excite(inputs: &[&Shape]) -> Result<Shape, String> {
    let [images, weights, bias, squeezed] = inputs else {
        return Err(format!("{} inputs; it takes four", inputs.len()));
    };
    let ([batch, channels, ..], [of_squeezed, depth, rows, columns]) = (image(images)?, image(squeezed)?);
    let fits = weights.extents() == [channels, depth, 1, 1] && bias.extents() == [channels];
    if !fits || [of_squeezed, rows, columns] != [batch, 1, 1] {
        return Err(format!("{images}, weights of {weights}, a bias of {bias} and {squeezed} do not fit"));
    }
    Ok((*images).clone())
}

fn concat(axis: usize, inputs: &[&Shape]) -> Result<Shape, String> {
    let mut extents = first(inputs)?.extents().to_vec();
    if axis >= extents.len() {
        return Err(format!("there is no axis {axis} of {}", inputs[0]));
    }
    for other in &inputs[1..] {
        let fits = |(at, (&one, &two)): (usize, (&usize, &usize))| at == axis || one == two;
        if other.extents().len() != extents.len()
            || !extents.iter().zip(other.extents()).enumerate().all(fits)
        {
            return Err(format!("{} and {other} do not fit along axis {axis}", inputs[0]));
        }
        extents[axis] = extents[axis].saturating_add(other.extents()[axis]);
    }
    shape(extents)
}

fn depth_to_space(block: usize, input: &Shape) -> Result<Shape, String> {
    let [batch, channels, rows, columns] = image(input)?;
    let blocks = block.checked_mul(block).filter(|&blocks| blocks > 0 && channels % blocks == 0);
    let blocks =
        blocks.ok_or_else(|| format!("{channels} channels do not make blocks of {block}x{block}"))?;
    let side = |extent: usize| extent.checked_mul(block).ok_or_else(|| format!("{extent} times {block}"));
    shape(vec![batch, channels / blocks, side(rows)?, side(columns)?])
}

fn reshape(input: &Shape, wanted: Option<Shape>) -> Result<Shape, String> {
    let wanted = wanted.ok_or("the new shape is not known before the model runs")?;
    if wanted.count() != input.count() {
        return Err(format!("{input} has not as many elements as {wanted}"));
    }
    Ok(wanted)
}
