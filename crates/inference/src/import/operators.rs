//! ONNX's operators, one by one, into [`Op`]s.

use zoo::onnx;

use super::attributes::Attributes;
use super::error::{ImportError, label};
use super::importer::{Importer, Known};
use crate::graph::{Activation, Op, Shape, ValueId};

/// Adds the nodes that an operator of the file becomes, and says what it writes.
type Read = fn(&mut Reader<'_>) -> Result<Known, ImportError>;

/// The operators that are known, by their names in ONNX.
const OPERATORS: [(&str, Read); 25] = [
    ("Add", |reader| reader.both(Op::Add)),
    ("AveragePool", |reader| reader.average_pool()),
    ("BatchNormalization", |reader| reader.batch_norm()),
    ("Clip", |reader| reader.clip()),
    ("Concat", |reader| reader.concat()),
    ("Constant", |reader| reader.constant()),
    ("Conv", |reader| reader.conv()),
    ("DepthToSpace", |reader| reader.depth_to_space()),
    ("Dropout", |reader| reader.same()),
    ("Flatten", |reader| reader.flatten()),
    ("Gemm", |reader| reader.gemm()),
    ("GlobalAveragePool", |reader| reader.global_average_pool()),
    ("HardSigmoid", |reader| reader.hard_sigmoid()),
    ("HardSwish", |reader| reader.activation(Activation::HardSwish)),
    ("Identity", |reader| reader.same()),
    ("MatMul", |reader| reader.linear(false, 1.0, 1.0)),
    ("MaxPool", |reader| reader.max_pool()),
    ("Mul", |reader| reader.both(Op::Mul)),
    ("ReduceMean", |reader| reader.reduce_mean()),
    ("Relu", |reader| reader.activation(Activation::Relu)),
    ("Reshape", |reader| reader.reshape()),
    ("Sigmoid", |reader| reader.activation(Activation::Sigmoid)),
    ("Squeeze", |reader| reader.squeeze(true)),
    ("Transpose", |reader| reader.transpose()),
    ("Unsqueeze", |reader| reader.squeeze(false)),
];

/// Adds a node of the file to the graph.
pub(super) fn import(importer: &mut Importer, node: &onnx::Node) -> Result<(), ImportError> {
    let is_own = node.domain.is_empty() || node.domain == "ai.onnx";
    let found = OPERATORS.iter().find(|(name, _)| is_own && *name == node.op_type);
    let (_, read) = found.ok_or_else(|| ImportError::Operator {
        node: label(node),
        op: format!("{}{}{}", node.domain, if node.domain.is_empty() { "" } else { "." }, node.op_type),
        known: OPERATORS.map(|(name, _)| name).join(", "),
    })?;
    let mut reader = Reader { importer, node, attributes: Attributes::new(node) };
    let known = read(&mut reader)?;
    reader.attributes.finish()?;
    importer.alias(node, known)
}

/// One node, as it is read.
struct Reader<'a> {
    importer: &'a mut Importer,
    node: &'a onnx::Node,
    attributes: Attributes<'a>,
}

impl Reader<'_> {
    // ---- inputs ----

    /// The name of an input, if it is given.
    fn given(&self, at: usize) -> Option<&str> {
        self.node.input.get(at).map(String::as_str).filter(|name| !name.is_empty())
    }

    fn input_error(&self, at: usize, problem: &str) -> ImportError {
        let input = self.given(at).map_or_else(|| format!("number {at}"), str::to_owned);
        ImportError::Input { node: label(self.node), input, problem: problem.to_owned() }
    }

    fn known(&self, at: usize) -> Result<&Known, ImportError> {
        let name = self.given(at).ok_or_else(|| self.input_error(at, "it is missing"))?;
        self.importer.known.get(name).ok_or_else(|| self.input_error(at, "no node before this one writes it"))
    }

    fn tensor(&self, at: usize) -> Result<ValueId, ImportError> {
        match self.known(at)? {
            Known::Tensor(id) => Ok(*id),
            Known::Ints(_) => Err(self.input_error(at, "whole numbers, where a tensor of f32 is read")),
            Known::Shuffled(_) => Err(self.input_error(at, "transposed blocks, which only a Reshape reads")),
        }
    }

    fn constant_tensor(&self, at: usize) -> Result<ValueId, ImportError> {
        let id = self.tensor(at)?;
        let constant = self.importer.graph.constant(id).is_some();
        constant
            .then_some(id)
            .ok_or_else(|| self.input_error(at, "it is computed; only constants are possible here"))
    }

    fn ints(&self, at: usize) -> Result<Vec<i64>, ImportError> {
        match self.known(at)? {
            Known::Ints(ints) => Ok(ints.clone()),
            Known::Tensor(_) | Known::Shuffled(_) => {
                Err(self.input_error(at, "a tensor of f32, where constant whole numbers are read"))
            }
        }
    }

    fn scalar(&self, at: usize, default: f32) -> Result<f32, ImportError> {
        if self.given(at).is_none() {
            return Ok(default);
        }
        let elements = self.importer.graph.constant(self.constant_tensor(at)?);
        match elements.map(|elements| &**elements) {
            Some(&[element]) => Ok(element),
            _ => Err(self.input_error(at, "more than one number")),
        }
    }

    /// A node's first input is all that decides the type of most operators.
    fn shape(&self, id: ValueId) -> &Shape {
        self.importer.graph.shape(id)
    }

    fn problem(&self, problem: String) -> ImportError {
        ImportError::Shape { node: label(self.node), problem }
    }

    /// Rows and columns of images.
    fn sides(&self, id: ValueId) -> Result<[usize; 2], ImportError> {
        let shape = self.shape(id);
        let [.., rows, columns] = shape.image().ok_or_else(|| {
            self.problem(format!("the input is {shape}; only images of two axes are possible"))
        })?;
        Ok([rows, columns])
    }

    fn node(&mut self, op: Op, inputs: Vec<ValueId>, reshaped: Option<Shape>) -> Result<Known, ImportError> {
        self.importer.node(self.node, op, inputs, reshaped).map(Known::Tensor)
    }

    // ---- operators ----

    fn both(&mut self, op: Op) -> Result<Known, ImportError> {
        let inputs = vec![self.tensor(0)?, self.tensor(1)?];
        self.node(op, inputs, None)
    }

    fn activation(&mut self, activation: Activation) -> Result<Known, ImportError> {
        let input = self.tensor(0)?;
        self.node(Op::Activation(activation), vec![input], None)
    }

    fn hard_sigmoid(&mut self) -> Result<Known, ImportError> {
        let (alpha, beta) = (self.attributes.float("alpha", 0.2)?, self.attributes.float("beta", 0.5)?);
        self.activation(Activation::HardSigmoid { alpha, beta })
    }

    fn clip(&mut self) -> Result<Known, ImportError> {
        // Attributes before operator set 11, inputs since.
        let (low, high) = (self.attributes.float("min", f32::MIN)?, self.attributes.float("max", f32::MAX)?);
        let (low, high) = (self.scalar(1, low)?, self.scalar(2, high)?);
        if low > high {
            return Err(self.attributes.wrong("min", format!("{low} is above the greatest, {high}")));
        }
        self.activation(Activation::Clip { low, high })
    }

    fn conv(&mut self) -> Result<Known, ImportError> {
        let (input, weights) = (self.tensor(0)?, self.constant_tensor(1)?);
        let sides = self.sides(weights)?;
        let window = self.attributes.window(Some(sides), self.sides(input)?)?;
        let groups = self.attributes.int("group", 1)?;
        let groups =
            usize::try_from(groups).map_err(|_| self.attributes.wrong("group", format!("{groups}")))?;
        let mut inputs = vec![input, weights];
        if self.given(2).is_some() {
            inputs.push(self.constant_tensor(2)?);
        }
        self.node(Op::Conv { window, groups }, inputs, None)
    }

    fn gemm(&mut self) -> Result<Known, ImportError> {
        self.attributes.only("transA", 0, "rows are the batch here; export the model without it")?;
        let transposed = self.attributes.int("transB", 0)? != 0;
        let (alpha, beta) = (self.attributes.float("alpha", 1.0)?, self.attributes.float("beta", 1.0)?);
        self.linear(transposed, alpha, beta)
    }

    /// `transposed`: whether the weights are (outputs, inputs) already.
    fn linear(&mut self, transposed: bool, alpha: f32, beta: f32) -> Result<Known, ImportError> {
        let mut inputs = vec![self.tensor(0)?, self.constant_tensor(1)?];
        let weights = self.shape(inputs[1]).clone();
        let [outer, inner] = weights
            .matrix()
            .ok_or_else(|| self.problem(format!("the weights are {weights}, not a matrix")))?;
        if !transposed || alpha != 1.0 {
            let elements = self.importer.graph.constant(inputs[1]).expect("it is a constant").clone();
            let element = |row, column| {
                alpha
                    * if transposed { elements[row * inner + column] } else { elements[column * inner + row] }
            };
            let (rows, columns) = if transposed { (outer, inner) } else { (inner, outer) };
            let turned = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            let turned = turned.map(|(row, column)| element(row, column)).collect();
            let shape = Shape::new(vec![rows, columns]).expect("as many elements as before");
            inputs[1] = self.derived(inputs[1], shape, turned);
        }
        if self.given(2).is_some() {
            inputs.push(self.bias(beta, if transposed { outer } else { inner })?);
        }
        self.node(Op::Linear, inputs, None)
    }

    /// The third input of a product: one number for each output, times `beta`.
    fn bias(&mut self, beta: f32, outputs: usize) -> Result<ValueId, ImportError> {
        let bias = self.constant_tensor(2)?;
        let shape = self.shape(bias).clone();
        let elements = self.importer.graph.constant(bias).expect("it is a constant").clone();
        if shape.count() != outputs || *shape.extents().last().unwrap_or(&0) != outputs {
            return Err(self.input_error(2, &format!("{shape} is no number for each of {outputs} outputs")));
        }
        let scaled = elements.iter().map(|element| beta * element).collect();
        Ok(self.derived(bias, Shape::new(vec![outputs]).expect("as many elements as before"), scaled))
    }

    /// A constant made of another.
    fn derived(&mut self, of: ValueId, shape: Shape, elements: Vec<f32>) -> ValueId {
        let name = self.importer.graph.value(of).name.clone();
        self.importer.value(&name, shape, Some(elements))
    }

    fn batch_norm(&mut self) -> Result<Known, ImportError> {
        let epsilon = self.attributes.float("epsilon", 1e-5)?;
        self.attributes.ignore("momentum");
        self.attributes.only("training_mode", 0, "export the model for inference")?;
        let mut inputs = vec![self.tensor(0)?];
        for at in 1..5 {
            inputs.push(self.constant_tensor(at)?);
        }
        let variance = self.importer.graph.constant(inputs[4]).expect("it is a constant");
        if let Some(&wrong) = variance.iter().find(|&&variance| variance + epsilon <= 0.0) {
            return Err(self.input_error(4, &format!("a variance of {wrong}; the weights are damaged")));
        }
        self.node(Op::BatchNorm { epsilon }, inputs, None)
    }

    fn max_pool(&mut self) -> Result<Known, ImportError> {
        self.attributes.only("storage_order", 0, "only rows first is possible")?;
        if self.node.output.get(1).is_some_and(|indices| !indices.is_empty()) {
            return Err(self.problem("its second output, indices, is not possible".to_owned()));
        }
        let input = self.tensor(0)?;
        let window = self.attributes.pool(self.sides(input)?)?;
        self.node(Op::MaxPool { window }, vec![input], None)
    }

    fn average_pool(&mut self) -> Result<Known, ImportError> {
        let count_pads = self.attributes.int("count_include_pad", 0)? != 0;
        let input = self.tensor(0)?;
        let window = self.attributes.pool(self.sides(input)?)?;
        self.node(Op::AveragePool { window, count_pads }, vec![input], None)
    }

    fn global_average_pool(&mut self) -> Result<Known, ImportError> {
        let input = self.tensor(0)?;
        self.node(Op::GlobalAveragePool, vec![input], None)
    }

    fn reduce_mean(&mut self) -> Result<Known, ImportError> {
        let input = self.tensor(0)?;
        self.sides(input)?;
        let keeps = self.attributes.int("keepdims", 1)? != 0;
        self.attributes.only("noop_with_empty_axes", 0, "only the mean of rows and columns is possible")?;
        let axes = match self.attributes.ints("axes")? {
            Some(axes) => axes.to_vec(),
            None => self.ints(1)?,
        };
        let mut axes: Vec<i64> =
            axes.into_iter().map(|axis| if axis < 0 { axis.saturating_add(4) } else { axis }).collect();
        axes.sort_unstable();
        if axes != [2, 3] {
            return Err(self
                .problem(format!("axes {axes:?}; only the mean of rows and columns, 2 and 3, is possible")));
        }
        let mean = self.importer.node(self.node, Op::GlobalAveragePool, vec![input], None)?;
        if keeps {
            return Ok(Known::Tensor(mean));
        }
        let flat = Shape::new(self.shape(mean).extents()[..2].to_vec());
        self.node(Op::Reshape, vec![mean], flat)
    }

    fn concat(&mut self) -> Result<Known, ImportError> {
        let inputs = (0..self.node.input.len()).map(|at| self.tensor(at)).collect::<Result<Vec<_>, _>>()?;
        let axes = inputs.first().map_or(0, |&id| self.shape(id).extents().len());
        let axis = self.attributes.int("axis", i64::MAX)?;
        let axis = self.axis(axis, axes)?;
        self.node(Op::Concat { axis }, inputs, None)
    }

    /// An axis, which may be counted from the end.
    fn axis(&self, axis: i64, axes: usize) -> Result<usize, ImportError> {
        let from_start = if axis < 0 { axis.checked_add(axes as i64) } else { Some(axis) };
        let found = from_start.and_then(|axis| usize::try_from(axis).ok()).filter(|&axis| axis <= axes);
        found.ok_or_else(|| self.attributes.wrong("axis", format!("{axis} of {axes} axes")))
    }

    fn depth_to_space(&mut self) -> Result<Known, ImportError> {
        let mode = self.attributes.text("mode", "DCR")?;
        if mode != "CRD" {
            return Err(self
                .attributes
                .wrong("mode", format!("{mode}; only CRD, as pixel shuffles are exported, is possible")));
        }
        let block = self.attributes.int("blocksize", 0)?;
        let block =
            u16::try_from(block).map_err(|_| self.attributes.wrong("blocksize", format!("{block}")))?;
        let input = self.tensor(0)?;
        self.node(Op::DepthToSpace { block: block.into() }, vec![input], None)
    }

    /// Whether a Reshape's first extent is the file's batch, which another one replaces.
    fn is_batch(&self, input: ValueId, extent: i64) -> bool {
        let of_file = self.importer.file_batch.is_some_and(|batch| usize::try_from(extent) == Ok(batch));
        let first = self.shape(input).extents().first() == Some(&self.importer.batch);
        of_file && first && self.importer.graph.constant(input).is_none()
    }

    fn flatten(&mut self) -> Result<Known, ImportError> {
        let input = self.tensor(0)?;
        let extents = self.shape(input).extents().to_vec();
        let axis = self.attributes.int("axis", 1)?;
        let axis = self.axis(axis, extents.len())?;
        let flat = Shape::new(vec![extents[..axis].iter().product(), extents[axis..].iter().product()]);
        self.node(Op::Reshape, vec![input], flat)
    }

    fn reshape(&mut self) -> Result<Known, ImportError> {
        self.attributes.only("allowzero", 0, "an axis of 0 is an empty tensor")?;
        let (shuffled, wanted) = (matches!(self.known(0)?, Known::Shuffled(_)), self.ints(1)?);
        let input = if let Known::Shuffled(images) = *self.known(0)? { images } else { self.tensor(0)? };
        let (extents, count) = (self.shape(input).extents().to_vec(), self.shape(input).count());
        let mut shape: Vec<Option<usize>> = Vec::new();
        for (axis, &extent) in wanted.iter().enumerate() {
            shape.push(match extent {
                -1 => None,
                0 => {
                    Some(*extents.get(axis).ok_or_else(|| {
                        self.problem(format!("{wanted:?} copies axis {axis} of {extents:?}"))
                    })?)
                }
                // The file's batch stands where the batch stands.
                extent if axis == 0 && self.is_batch(input, extent) => Some(self.importer.batch),
                extent => Some(
                    usize::try_from(extent).map_err(|_| self.problem(format!("a shape of {wanted:?}")))?,
                ),
            });
        }
        let known = shape.iter().flatten().try_fold(1_usize, |count, &extent| count.checked_mul(extent));
        let known =
            known.filter(|&known| known > 0 && shape.iter().filter(|extent| extent.is_none()).count() <= 1);
        let known = known.ok_or_else(|| self.problem(format!("a shape of {wanted:?}")))?;
        let extents: Vec<usize> = shape.into_iter().map(|extent| extent.unwrap_or(count / known)).collect();
        if !shuffled {
            return self.node(Op::Reshape, vec![input], Shape::new(extents));
        }
        // An extent of 0 would copy one of the six axes.
        if extents != self.shape(input).extents() || wanted.iter().skip(2).any(|&extent| extent == 0) {
            let images = self.shape(input);
            return Err(self.problem(format!("a shape of {wanted:?}; the shuffled pixels are {images}")));
        }
        Ok(Known::Tensor(input))
    }

    /// Blocks of pixels that a Reshape took from channels go between rows and columns, as older exporters
    /// write a DepthToSpace; another Reshape follows.
    fn transpose(&mut self) -> Result<Known, ImportError> {
        let (input, order) = (self.tensor(0)?, self.attributes.ints("perm")?);
        let graph = &mut self.importer.graph;
        let before = graph.nodes.last().filter(|node| node.op == Op::Reshape && node.output == input);
        let images = before.map(|node| node.inputs[0]);
        let from = images.and_then(|images| graph.shape(images).image());
        let to = graph.shape(input).extents();
        let (
            Some(images),
            Some([batch, channels, rows, columns]),
            &[_, outputs, block, ..],
            Some([0, 1, 4, 2, 5, 3]),
        ) = (images, from, to, order)
        else {
            return Err(self.no_shuffle());
        };
        if to != [batch, outputs, block, block, rows, columns] || outputs * block * block != channels {
            return Err(self.no_shuffle());
        }
        // What the Reshape wrote has no other reader so far, and must not have a later one.
        graph.nodes.pop();
        self.importer.known.retain(|_, known| !matches!(known, Known::Tensor(id) if *id == input));
        let shuffled = self.importer.node(self.node, Op::DepthToSpace { block }, vec![images], None)?;
        Ok(Known::Shuffled(shuffled))
    }

    fn no_shuffle(&self) -> ImportError {
        let only = "only that of a pixel shuffle is possible, of [0, 1, 4, 2, 5, 3] right behind a Reshape of images to \
                    batch x channels x n x n x rows x columns";
        self.attributes.wrong("perm", only)
    }

    /// `away`: whether axes of 1 go; else they come.
    fn squeeze(&mut self, away: bool) -> Result<Known, ImportError> {
        let input = self.tensor(0)?;
        let mut extents = self.shape(input).extents().to_vec();
        let axes = match self.attributes.ints("axes")? {
            Some(axes) => axes.to_vec(),
            None => self.ints(1)?,
        };
        let count = if away { extents.len() } else { extents.len() + axes.len() };
        let mut axes = axes.iter().map(|&axis| self.axis(axis, count)).collect::<Result<Vec<_>, _>>()?;
        axes.sort_unstable();
        if axes.windows(2).any(|two| two[0] == two[1]) {
            return Err(self.problem(format!("axes {axes:?} name one twice")));
        }
        if away {
            for &axis in axes.iter().rev() {
                if extents.get(axis) != Some(&1) {
                    return Err(self.problem(format!("axis {axis} of {extents:?} is not 1")));
                }
                extents.remove(axis);
            }
        } else {
            for &axis in &axes {
                if axis > extents.len() {
                    return Err(self.problem(format!("there is no axis {axis} of {extents:?}")));
                }
                extents.insert(axis, 1);
            }
        }
        self.node(Op::Reshape, vec![input], Shape::new(extents))
    }

    fn same(&mut self) -> Result<Known, ImportError> {
        self.attributes.ignore("ratio");
        self.attributes.ignore("seed");
        if self.given(2).is_some() {
            return Err(self.input_error(2, "a mode of training; export the model for inference"));
        }
        self.known(0).cloned()
    }

    fn constant(&mut self) -> Result<Known, ImportError> {
        let tensor = self.attributes.tensor("value")?;
        let tensor = tensor.ok_or_else(|| self.attributes.wrong("value", "it is missing, or no tensor"))?;
        let name = self.node.output.first().map_or("", String::as_str);
        self.importer.constant(name, tensor)
    }
}
