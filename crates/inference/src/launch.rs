//! The kernels of `kernels/operators.cu` that a plan launches, with their shapes and arguments: the same for
//! a GPU and the host twin.

use crate::graph::{Activation, Op, Shape, Window};
use crate::plan::{Place, Plan, Precision, Source, Step, Task};

/// Outputs of a block of `conv_tiled` and `conv_tiled_half`, the former's pixels: TILE in `operators.h`.
const TILE: u32 = 64;
/// Pixels of a block of `conv_tiled_half`: HALF_PIXELS of `kernels/tensor_cores.h`.
const HALF_PIXELS: u32 = 128;
/// Channels and pixels of a block of `excite`: EXCITED and EXCITED_PIXELS of `kernels/operators.h`.
const EXCITED: u32 = 8;
const EXCITED_PIXELS: u32 = 64;
/// Outputs and pixels of a product of `pointwise`, terms of a sum for one warp, and warps of a block: as in
/// `kernels/pointwise.h`.
const POINTWISE: u32 = 4;
const POINTWISE_DEPTH: u32 = 128;
const POINTWISE_WARPS: u32 = 8;
/// Pixels above which a block of `mean` computes one channel, and its warps: as in `kernels/operators.h`.
const MEAN: u32 = 512;
const MEAN_WARPS: u32 = 8;
/// Most elements that `pointwise` writes: 32 tiles of `conv_tiled`, a quarter of a large GPU's at once.
const FEW: u32 = 1 << 17;
/// Elements that a thread of `store` stores: STORED of `kernels/operators.h`.
const STORED: u32 = 4;

/// An argument of a kernel. Arrays are the kernel's structs, word by word.
#[derive(Debug, Clone, PartialEq)]
pub enum Argument {
    /// The address of this byte of the arena.
    Arena(usize),
    /// The address of a constant of the plan, in the plan's precision.
    Constant(usize),
    /// The address of a bias, in single precision.
    Bias(usize),
    /// The address of this byte of the libraries' workspace.
    Workspace(usize),
    /// The null pointer.
    Null,
    /// `struct slot`: where input `number` is read.
    Input(usize),
    /// `struct slot`: where output `number` is written.
    Output(usize),
    /// `struct convolution`.
    Conv([u32; 30]),
    /// `struct pooling`.
    Pool([u32; 23]),
    /// `struct elements`.
    Elements([u32; 22]),
}

/// The names of a kernel in single and in half precision.
macro_rules! both {
    ($kernel:literal) => {
        [$kernel, concat!($kernel, "_half")]
    };
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// The kernel's name.
    pub kernel: &'static str,
    /// Blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block, along x.
    pub threads: u32,
    /// What it is given.
    pub arguments: Vec<Argument>,
}

/// Why a plan cannot be launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// More blocks than a launch has along y or z.
    #[error("{step}: {blocks:?} blocks; a launch has 65535 along y and z at most: use a smaller batch")]
    Blocks {
        /// The nodes that it computes.
        step: String,
        /// Along x, y and z.
        blocks: [u32; 3],
    },
    /// A step that is no convolution and no product of matrices.
    #[error("{step}: it has no window")]
    NoWindow {
        /// The nodes that it computes.
        step: String,
    },
}

/// The launches of a plan, one for each step.
pub fn launches(plan: &Plan) -> Result<Vec<Launch>, LaunchError> {
    plan.steps.iter().map(|step| launch(plan, step)).collect()
}

fn launch(plan: &Plan, step: &Step) -> Result<Launch, LaunchError> {
    let step_of = StepOf { plan, step };
    let launch = match &step.task {
        Task::Compute { op: Op::Conv { window, groups: 1 }, residual: None, activation }
            if is_linear(window, step) =>
        {
            step_of.linear(*activation)
        }
        Task::Compute { op: Op::Conv { window, groups }, residual, activation } => {
            step_of.conv(window, *groups as u32, *residual, *activation)
        }
        Task::Compute { op: Op::Linear, activation, .. } => step_of.linear(*activation),
        Task::Compute { op: Op::MaxPool { window }, .. } => step_of.pool(window, 0),
        Task::Compute { op: Op::AveragePool { window, count_pads }, .. } => {
            step_of.pool(window, if *count_pads { 2 } else { 1 })
        }
        Task::Compute { op: Op::GlobalAveragePool, activation, .. } => {
            let (batch, [channels, rows, columns]) = parts(&step.from);
            let blocks = if rows * columns > MEAN { channels } else { channels.div_ceil(MEAN_WARPS) };
            let shape = Argument::Elements(step_of.elements(*activation, 0));
            let arguments = vec![step_of.read(0), step_of.write()];
            step_of.launch(both!("mean"), [blocks, batch, 1], 32 * MEAN_WARPS, arguments, shape)
        }
        Task::Compute { op: Op::DepthToSpace { block }, .. } => {
            let shape = step_of.elements(None, *block as u32);
            step_of.each(both!("depth_to_space"), vec![step_of.read(0), step_of.write()], shape)
        }
        Task::Compute { op: Op::Excite { activation }, .. } => step_of.excite(*activation),
        Task::Compute { op, activation, .. } => step_of.elementwise(op, *activation),
        Task::Copy => step_of.elementwise(&Op::Reshape, None),
        Task::Load { number } => {
            let arguments = vec![Argument::Input(*number), step_of.write()];
            step_of.each(both!("load"), arguments, step_of.elements(None, 0))
        }
        Task::Store { number, block } => {
            let shape = step_of.elements(None, *block as u32);
            step_of.some(STORED, both!("store"), vec![Argument::Output(*number), step_of.read(0)], shape)
        }
    };
    check_blocks(launch, step)
}

/// The window of a convolution and its groups; a product of matrices has one of a pixel.
pub fn window_of(step: &Step) -> Option<(Window, usize)> {
    match &step.task {
        Task::Compute { op: Op::Conv { window, groups }, .. } => Some((*window, *groups)),
        Task::Compute { op: Op::Linear, .. } => {
            let [kernel, stride, dilation] = [[1, 1]; 3];
            Some((Window { kernel, stride, pads: [0; 4], dilation, round_up: false }, 1))
        }
        _ => None,
    }
}

/// Whether a convolution is a product of matrices: of images of one pixel, without pads, in which its only
/// window may lie.
fn is_linear(window: &Window, step: &Step) -> bool {
    let pixels = [&step.from, &step.to].map(|shape| shape.parts()[2..].iter().product::<usize>());
    window.kernel == [1, 1] && window.pads == [0; 4] && pixels == [1, 1]
}

/// What is left of a convolution or a product when a library has computed its first parts; see
/// [`finishing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// The activation.
    Activation,
    /// The sums with bias and residual, and the activation.
    Sums,
}

/// The launch that computes the rest of such a step, in place.
pub fn finishing(plan: &Plan, step: &Step, rest: Rest) -> Result<Launch, LaunchError> {
    let step_of = StepOf { plan, step };
    let (residual, activation) = match &step.task {
        Task::Compute { residual, activation, .. } => (residual.filter(|_| rest == Rest::Sums), *activation),
        _ => (None, None),
    };
    let (batch, [outputs, rows, columns]) = parts(&step.to);
    let words = step_of.convolution_words(residual, activation);
    let bias = if rest == Rest::Sums { step_of.bias() } else { Argument::Null };
    let residual = residual.map_or(Argument::Null, |source| step_of.argument(source));
    let blocks = [(rows * columns * outputs).div_ceil(128), 1, batch];
    let arguments = vec![bias, residual, step_of.write()];
    let launch = step_of.launch(both!("conv_finish"), blocks, 128, arguments, Argument::Conv(words));
    check_blocks(launch, step)
}

/// The launch that writes what each output of a convolution sees, a row a pixel, from byte `at` of the
/// workspace on. Channels are last, and there is one group.
pub fn im2col(plan: &Plan, step: &Step, at: usize) -> Result<Launch, LaunchError> {
    let step_of = StepOf { plan, step };
    let (window, _) = window_of(step).ok_or_else(|| LaunchError::NoWindow { step: step.names.join(" ") })?;
    let (batch, [_, rows, columns]) = parts(&step.to);
    let (_, [channels, ..]) = parts(&step.from);
    let mut words = step_of.convolution_words(None, None);
    words[18..26].copy_from_slice(&window_words(&window));
    // As many channels a thread as in the kernel.
    let of_place = if channels.is_multiple_of(4) { channels / 4 } else { channels };
    let count = rows * columns * words[18] * words[19] * of_place;
    let arguments = vec![step_of.read(0), Argument::Workspace(at)];
    let blocks = [count.div_ceil(256), batch, 1];
    let launch = step_of.launch(both!("im2col"), blocks, 256, arguments, Argument::Conv(words));
    check_blocks(launch, step)
}

/// Launches have bounds along y and z.
fn check_blocks(launch: Launch, step: &Step) -> Result<Launch, LaunchError> {
    if launch.blocks[1..].iter().any(|&blocks| blocks > 65535) {
        return Err(LaunchError::Blocks { step: step.names.join(" "), blocks: launch.blocks });
    }
    Ok(launch)
}

/// A step with its plan.
struct StepOf<'a> {
    plan: &'a Plan,
    step: &'a Step,
}

impl StepOf<'_> {
    fn launch(
        &self,
        [single, half]: [&'static str; 2],
        blocks: [u32; 3],
        threads: u32,
        mut arguments: Vec<Argument>,
        shape: Argument,
    ) -> Launch {
        arguments.push(shape);
        let kernel = match self.plan.format.precision {
            Precision::Single | Precision::Tf32 => single,
            Precision::Half => half,
        };
        Launch { kernel, blocks, threads, arguments }
    }

    /// An element of an image a thread.
    fn each(&self, kernel: [&'static str; 2], arguments: Vec<Argument>, shape: [u32; 22]) -> Launch {
        self.some(1, kernel, arguments, shape)
    }

    /// So many elements of an image a thread.
    fn some(
        &self,
        some: u32,
        kernel: [&'static str; 2],
        arguments: Vec<Argument>,
        shape: [u32; 22],
    ) -> Launch {
        let (batch, image) = parts(&self.step.to);
        let count: u32 = image.iter().product();
        let blocks = [count.div_ceil(256 * some), batch, 1];
        self.launch(kernel, blocks, 256, arguments, Argument::Elements(shape))
    }

    fn linear(&self, activation: Option<Activation>) -> Launch {
        let words = self.convolution_words(None, activation);
        if self.is_pointwise(&words) {
            return self.pointwise(None, words);
        }
        let (batch, [outputs, ..]) = parts(&self.step.to);
        let arguments = vec![self.read(0), self.read(1), self.bias(), self.write()];
        let shape = Argument::Elements(self.elements(activation, 0));
        self.launch(both!("linear"), [outputs.div_ceil(4), batch, 1], 128, arguments, shape)
    }

    fn conv(
        &self,
        window: &Window,
        groups: u32,
        residual: Option<Source>,
        activation: Option<Activation>,
    ) -> Launch {
        let (batch, [outputs, rows, columns]) = parts(&self.step.to);
        let mut words = self.convolution_words(residual, activation);
        words[18..26].copy_from_slice(&window_words(window));
        words[29] = groups;
        let is_single = matches!(window, Window { kernel: [1, 1], stride: [1, 1], pads: [0, 0, 0, 0], .. });
        if groups == 1 && is_single && self.is_pointwise(&words) {
            return self.pointwise(residual, words);
        }
        let arguments = self.convolution_arguments(residual);
        let (kernel, blocks, threads) = if groups == 1 {
            let pixels = if self.plan.format.precision == Precision::Half { HALF_PIXELS } else { TILE };
            let of_slot = matches!(self.step.reads[0], Source::Input(_));
            let kernel = if of_slot { both!("conv_load") } else { both!("conv_tiled") };
            (kernel, [(rows * columns).div_ceil(pixels), outputs.div_ceil(TILE), batch], 256)
        } else {
            let [_, channels, ..] = self.step.from.parts();
            let alone = groups == outputs && groups as usize == channels;
            let kernel = if alone && matches!(window.kernel, [3, 3] | [5, 5]) {
                both!("depthwise")
            } else {
                both!("conv_grouped")
            };
            (kernel, [(rows * columns * outputs).div_ceil(128), 1, batch], 128)
        };
        self.launch(kernel, blocks, threads, arguments, Argument::Conv(words))
    }

    /// Whether `pointwise`, which loads four numbers at once, computes a 1x1 convolution or a product of
    /// matrices. `words`: its `struct convolution`.
    fn is_pointwise(&self, words: &[u32; 30]) -> bool {
        let Source::Arena(place) = self.step.reads[0] else { return false };
        let [channels, _, _, image, channel, pixel, outputs, rows, columns] =
            std::array::from_fn(|at| words[at]);
        let batch = self.step.to.parts()[0] as u32;
        let are_fours = channels.is_multiple_of(4)
            && (rows * columns == 1 || pixel.is_multiple_of(4))
            && (batch == 1 || image.is_multiple_of(4));
        let is_aligned = self.plan.byte(&place).is_multiple_of(4 * self.plan.format.precision.bytes());
        channel == 1 && are_fours && is_aligned && batch * outputs * rows * columns <= FEW
    }

    fn pointwise(&self, residual: Option<Source>, words: [u32; 30]) -> Launch {
        let (batch, [outputs, rows, columns]) = parts(&self.step.to);
        let warps = words[0].div_ceil(POINTWISE_DEPTH).next_power_of_two().min(POINTWISE_WARPS);
        let of_block = POINTWISE * POINTWISE_WARPS / warps;
        let blocks = [(rows * columns).div_ceil(POINTWISE), outputs.div_ceil(of_block), batch];
        let arguments = self.convolution_arguments(residual);
        self.launch(both!("pointwise"), blocks, 32 * POINTWISE_WARPS, arguments, Argument::Conv(words))
    }

    /// What a kernel of a convolution is given before its shape.
    fn convolution_arguments(&self, residual: Option<Source>) -> Vec<Argument> {
        let residual = residual.map_or(Argument::Null, |source| self.argument(source));
        vec![self.read(0), self.read(1), self.bias(), residual, self.write()]
    }

    /// `struct convolution` without window and groups.
    fn convolution_words(&self, residual: Option<Source>, activation: Option<Activation>) -> [u32; 30] {
        let mut words = [0; 30];
        words[..6].copy_from_slice(&self.extent(self.step.reads.first().copied(), &self.step.from));
        words[6..12].copy_from_slice(&self.extent(self.step.write.map(Source::Arena), &self.step.to));
        words[12..18].copy_from_slice(&self.extent(residual, &self.step.to));
        words[26..29].copy_from_slice(&activation_words(activation));
        words
    }

    fn pool(&self, window: &Window, mean: u32) -> Launch {
        let ((batch, [channels, rows, columns]), (_, [_, from_rows, from_columns])) =
            (parts(&self.step.to), parts(&self.step.from));
        let mut words = [0; 23];
        words[..6].copy_from_slice(&self.extent(Some(self.step.reads[0]), &self.step.from));
        words[6..12].copy_from_slice(&self.extent(self.step.write.map(Source::Arena), &self.step.to));
        words[12..20].copy_from_slice(&window_words(window));
        words[20] = mean;
        words[21] = from_rows + (window.pads[0] + window.pads[2]) as u32;
        words[22] = from_columns + (window.pads[1] + window.pads[3]) as u32;
        let blocks = [(channels * rows * columns).div_ceil(256), batch, 1];
        self.launch(both!("pool"), blocks, 256, vec![self.read(0), self.write()], Argument::Pool(words))
    }

    fn excite(&self, activation: Activation) -> Launch {
        let (batch, [channels, rows, columns]) = parts(&self.step.to);
        let squeezed = self.step.second.as_ref().expect("the planner gives it");
        let mut words = self.elements(Some(activation), 0);
        words[12..18].copy_from_slice(&self.extent(Some(self.step.reads[3]), squeezed));
        let arguments = vec![self.read(0), self.read(1), self.bias(), self.read(3), self.write()];
        let blocks = [(rows * columns).div_ceil(EXCITED_PIXELS), channels.div_ceil(EXCITED), batch];
        self.launch(both!("excite"), blocks, 256, arguments, Argument::Elements(words))
    }

    /// A sum, a product, an activation, or a copy.
    fn elementwise(&self, op: &Op, activation: Option<Activation>) -> Launch {
        let activation = match op {
            Op::Activation(activation) => Some(*activation),
            _ => activation,
        };
        // The longer factor comes first.
        let swapped = self.step.reads.len() == 2 && parts(&self.step.from).1 != parts(&self.step.to).1;
        let (first, second) = if swapped { (1, 0) } else { (0, 1) };
        let operation = match op {
            Op::Add => 1,
            Op::Mul if self.of_channels(second) => 3,
            Op::Mul => 2,
            _ => 0,
        };
        let mut words = self.elements(activation, operation);
        if swapped {
            words[..6].copy_from_slice(&self.extent(Some(self.step.reads[first]), &self.step.to));
        }
        let arguments = vec![self.read(first), self.optional(second), self.write()];
        words[12..18]
            .copy_from_slice(&self.extent(self.step.reads.get(second).copied(), &self.second_shape(second)));
        self.each(both!("elementwise"), arguments, words)
    }

    /// Whether an operand is a number for each channel: its images are as long as there are channels.
    fn of_channels(&self, operand: usize) -> bool {
        self.second_shape(operand) != self.step.to
    }

    fn second_shape(&self, operand: usize) -> Shape {
        if operand == 0 {
            self.step.from.clone()
        } else {
            self.step.second.clone().unwrap_or_else(|| self.step.to.clone())
        }
    }

    fn elements(&self, activation: Option<Activation>, operation: u32) -> [u32; 22] {
        let mut words = [0; 22];
        words[..6].copy_from_slice(&self.extent(self.step.reads.first().copied(), &self.step.from));
        words[6..12].copy_from_slice(&self.extent(self.step.write.map(Source::Arena), &self.step.to));
        words[18..21].copy_from_slice(&activation_words(activation));
        words[21] = operation;
        words
    }

    /// `struct extent`: of a value there, or of a constant or a slot, whose elements follow one another.
    fn extent(&self, at: Option<Source>, shape: &Shape) -> [u32; 6] {
        let (_, [channels, rows, columns]) = parts(shape);
        let pixels = rows * columns;
        match at {
            Some(Source::Arena(Place { image, channel, pixel, .. })) => {
                [channels, rows, columns, image as u32, channel as u32, pixel as u32]
            }
            _ => [channels, rows, columns, channels * pixels, pixels, 1],
        }
    }

    fn argument(&self, source: Source) -> Argument {
        match source {
            Source::Arena(place) => Argument::Arena(self.plan.byte(&place)),
            Source::Constant(number) => Argument::Constant(number),
            Source::Input(number) => Argument::Input(number),
        }
    }

    fn read(&self, at: usize) -> Argument {
        self.argument(self.step.reads[at])
    }

    fn optional(&self, at: usize) -> Argument {
        self.step.reads.get(at).map_or(Argument::Null, |&source| self.argument(source))
    }

    /// The third input of a convolution or product.
    fn bias(&self) -> Argument {
        match self.step.reads.get(2) {
            Some(&Source::Constant(number)) => Argument::Bias(number),
            _ => Argument::Null,
        }
    }

    fn write(&self) -> Argument {
        self.step.write.map_or(Argument::Null, |place| self.argument(Source::Arena(place)))
    }
}

/// [`Shape::parts`] as kernels count: a shape has at most 2^31 elements.
fn parts(shape: &Shape) -> (u32, [u32; 3]) {
    let [batch, channels, rows, columns] = shape.parts().map(|extent| extent as u32);
    (batch, [channels, rows, columns])
}

fn window_words(window: &Window) -> [u32; 8] {
    let Window { kernel, stride, pads, dilation, .. } = *window;
    [kernel[0], kernel[1], stride[0], stride[1], pads[0], pads[1], dilation[0], dilation[1]]
        .map(|word| word as u32)
}

/// `struct activation`.
fn activation_words(activation: Option<Activation>) -> [u32; 3] {
    let (kind, alpha, beta) = match activation {
        None => (0, 0.0, 0.0),
        Some(Activation::Relu) => (1, 0.0, f32::INFINITY),
        Some(Activation::Clip { low, high }) => (1, low, high),
        Some(Activation::Sigmoid) => (2, 0.0, 0.0),
        Some(Activation::HardSigmoid { alpha, beta }) => (3, alpha, beta),
        Some(Activation::HardSwish) => (4, 0.0, 0.0),
    };
    [kind, alpha.to_bits(), beta.to_bits()]
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use zoo::Architecture;

    use super::*;
    use crate::engine::resident::THREADS;
    use crate::import::import;
    use crate::plan::fuse::TERMS;
    use crate::plan::{Format, Layout};

    fn mobilenet(layout: Layout, batch: usize) -> Plan {
        let file = Architecture::MobileNetV3Small.build(batch).encode_to_vec();
        let graph = import(&file, batch).expect("the zoo's models are imported");
        Plan::in_format(&graph, Format { precision: Precision::Single, layout }).expect("it is planned")
    }

    fn kernel(plan: &Plan, name: &str) -> &'static str {
        let step = plan.steps.iter().find(|step| step.names[0] == name).expect("the model has it");
        launch(plan, step).expect("it is small").kernel
    }

    #[test]
    fn few_outputs_of_single_pixels_have_a_kernel_of_their_own() {
        let last = mobilenet(Layout::ChannelsLast, 1);
        for (name, wanted) in [
            ("features.0.0", "conv_tiled"),
            ("features.1.block.0.0", "depthwise"),
            ("features.2.block.0.0", "conv_tiled"), // 225,792 outputs
            ("features.2.block.2.0", "pointwise"),
            ("features.11.block.2.fc1", "pointwise"),
            ("classifier.3", "pointwise"),
        ] {
            assert_eq!(kernel(&last, name), wanted, "{name}");
        }
        let first = mobilenet(Layout::ChannelsFirst, 1);
        assert_eq!(kernel(&first, "features.2.block.2.0"), "conv_tiled");
        assert_eq!(kernel(&first, "classifier.3"), "pointwise");
        // 56,448 outputs of an image.
        assert_eq!(kernel(&last, "features.9.block.0.0"), "pointwise");
        assert_eq!(kernel(&mobilenet(Layout::ChannelsLast, 3), "features.9.block.0.0"), "conv_tiled");
    }

    #[test]
    fn what_cannot_be_loaded_in_fours_has_another_kernel() {
        let plan = mobilenet(Layout::ChannelsLast, 1);
        let name = "features.4.block.3.0";
        let at = plan.steps.iter().position(|step| step.names[0] == name).expect("the model has it");
        let changed = |change: fn(&mut Step, &mut Place)| {
            let mut plan = plan.clone();
            let step = &mut plan.steps[at];
            let Source::Arena(mut place) = step.reads[0] else { panic!("{name} reads the arena") };
            change(step, &mut place);
            step.reads[0] = Source::Arena(place);
            kernel(&plan, name)
        };
        fn window(step: &mut Step) -> &mut Window {
            match &mut step.task {
                Task::Compute { op: Op::Conv { window, .. }, .. } => window,
                task => panic!("it is {task:?}"),
            }
        }
        assert_eq!(changed(|_, _| ()), "pointwise");
        assert_eq!(changed(|_, place| place.pixel += 1), "conv_tiled");
        assert_eq!(changed(|_, place| place.offset += 3), "conv_tiled", "a part begins at any channel");
        assert_eq!(changed(|_, place| place.channel = 2), "conv_tiled");
        assert_eq!(changed(|step, _| window(step).stride = [1, 2]), "conv_tiled");
        assert_eq!(changed(|step, _| window(step).pads = [0, 1, 0, 0]), "conv_tiled");
    }

    #[test]
    fn blocks_are_as_large_as_the_kernels_say() {
        let text = concat!(
            include_str!("../kernels/operators.h"),
            include_str!("../kernels/pointwise.h"),
            include_str!("../kernels/tensor_cores.h"),
            include_str!("../kernels/resident.cu")
        );
        for (name, ours) in [
            ("TILE", TILE),
            ("HALF_OUTPUTS", TILE),
            ("HALF_PIXELS", HALF_PIXELS),
            ("HALF_DEPTH", TERMS as u32),
            ("DEPTHWISE", 128),
            ("MEAN", MEAN),
            ("MEAN_WARPS", MEAN_WARPS),
            ("POINTWISE", POINTWISE),
            ("POINTWISE_DEPTH", POINTWISE_DEPTH),
            ("POINTWISE_WARPS", POINTWISE_WARPS),
            ("EXCITED", EXCITED),
            ("EXCITED_PIXELS", EXCITED_PIXELS),
            ("STORED", STORED),
            ("RESIDENT_THREADS", THREADS),
        ] {
            let begin = format!("#define {name} ");
            let rest = text.lines().find_map(|line| line.strip_prefix(&begin)).expect(name);
            let number = rest.split_once(' ').map_or(rest, |(number, _)| number);
            assert_eq!(number.parse(), Ok(ours), "{name}");
        }
    }
}
