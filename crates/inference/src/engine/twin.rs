//! The host twin as an engine: the kernels of a GPU on the host's processor, without any library. Slow, and
//! labelled as a substitute.

use std::sync::Arc;

use half::f16;
use host_twin::{Arguments, Kernel};

use super::{Engine, EngineError, KERNELS};
use crate::launch::{self, Argument, Launch};
use crate::plan::{Place, Plan, Precision, Step, Task};

/// Numbers in half precision, as memory holds them.
pub(super) fn halves(elements: &[f32]) -> Vec<u16> {
    elements.iter().map(|&element| f16::from_f32(element).to_bits()).collect()
}

/// A model on the host twin, with memory of its own.
#[derive(Debug)]
pub struct Twin {
    plan: Plan,
    launches: Vec<(Launch, Kernel)>,
    /// The arena, byte by byte: every piece begins at a multiple of 256 of its begin.
    arena: Vec<u64>,
    /// The constants in half precision, if the plan has it.
    halves: Vec<Vec<u16>>,
    inputs: Vec<Vec<f32>>,
    outputs: Vec<Vec<f32>>,
    /// Which slot the first and the last step use; there is one.
    slot: Box<u32>,
}

impl Twin {
    /// Memory for a plan, and its kernels. Errors: no C++ compiler was there when this crate was built.
    pub fn new(plan: Plan) -> Result<Twin, EngineError> {
        plan.check()?;
        let launches = launch::launches(&plan)?;
        let find = |(launch, step): (Launch, &Step)| match KERNELS.find(launch.kernel) {
            Ok(kernel) => Ok((launch, kernel)),
            Err(source) => Err(EngineError::Twin { step: step.names.join(" "), source }),
        };
        let launches = launches.into_iter().zip(&plan.steps).map(find).collect::<Result<Vec<_>, _>>()?;
        let zeros =
            |shapes: &[crate::graph::Shape]| shapes.iter().map(|shape| vec![0.0; shape.count()]).collect();
        let (inputs, outputs) = (zeros(&plan.inputs), zeros(&plan.outputs));
        // A value that a step reads before one writes it shows: it is no number in either precision.
        let arena = vec![u64::MAX; plan.arena.bytes / size_of::<u64>()];
        let halves = match plan.format.precision {
            Precision::Single | Precision::Tf32 => Vec::new(),
            Precision::Half => plan.constants.iter().map(|elements| halves(elements)).collect(),
        };
        Ok(Twin { plan, launches, arena, halves, inputs, outputs, slot: Box::new(0) })
    }

    /// The plan that it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Runs one step, after those before it have run, and says what it wrote.
    pub fn step(&mut self, at: usize) -> Result<Vec<f32>, EngineError> {
        self.launch(at)?;
        let step = &self.plan.steps[at];
        Ok(match (&step.task, &step.write) {
            (Task::Store { number, .. }, _) => self.outputs[*number].clone(),
            (_, Some(place)) => self.written(*place, step),
            _ => Vec::new(),
        })
    }

    /// Puts another constant in the place of one, and returns that. Panics unless it is as long.
    pub fn replace(&mut self, number: usize, elements: Arc<[f32]>) -> Arc<[f32]> {
        assert_eq!(elements.len(), self.plan.constants[number].len(), "a constant of another length");
        if let Some(of) = self.halves.get_mut(number) {
            *of = halves(&elements);
        }
        std::mem::replace(&mut self.plan.constants[number], elements)
    }

    /// Writes the inputs into their slot.
    pub fn bring(&mut self, inputs: &[&[f32]]) -> Result<(), EngineError> {
        let wanted: Vec<usize> = self.inputs.iter().map(Vec::len).collect();
        super::check_inputs(inputs, &wanted)?;
        for (input, to) in inputs.iter().zip(&mut self.inputs) {
            to.copy_from_slice(input);
        }
        Ok(())
    }

    /// What a step wrote, channel by channel, the images one behind the other.
    fn written(&self, place: Place, step: &Step) -> Vec<f32> {
        super::gathered(&self.plan, step, place, |byte| {
            let word = self.arena[byte / 8] >> (byte % 8 * 8);
            match self.plan.format.precision {
                Precision::Single | Precision::Tf32 => f32::from_bits(word as u32),
                Precision::Half => f16::from_bits(word as u16).to_f32(),
            }
        })
    }

    /// Runs one step, after those before it have run.
    pub fn launch(&mut self, at: usize) -> Result<(), EngineError> {
        let (launch, kernel) = self.launches[at].clone();
        let mut arguments = Arguments::new();
        for argument in &launch.arguments {
            arguments = match argument {
                Argument::Conv(words) => arguments.push(*words),
                Argument::Pool(words) => arguments.push(*words),
                Argument::Elements(words) => arguments.push(*words),
                Argument::Input(_) | Argument::Output(_) => arguments.push(self.slot(argument)),
                address => arguments.push(self.address(address)),
            };
        }
        let [x, y, z] = launch.blocks;
        let shape = host_twin::Launch::new((x, y, z), launch.threads);
        // SAFETY: the plan's places lie in the arena, its constants and slots are as long as its shapes say,
        // and all of them live until the kernel has ended.
        let ran = unsafe { host_twin::run(kernel, &shape, arguments) };
        ran.map(|_| ())
            .map_err(|source| EngineError::Twin { step: self.plan.steps[at].names.join(" "), source })
    }

    /// Where what an argument names lies; 0 for one that names nothing.
    pub(super) fn address(&mut self, argument: &Argument) -> u64 {
        let address = match *argument {
            Argument::Arena(byte) => {
                self.arena.as_mut_ptr().cast::<u8>().wrapping_add(byte).expose_provenance()
            }
            Argument::Constant(number) if !self.halves.is_empty() => {
                self.halves[number].as_mut_ptr().expose_provenance()
            }
            Argument::Constant(number) | Argument::Bias(number) => {
                self.plan.constants[number].as_ptr().expose_provenance()
            }
            Argument::Input(number) => self.inputs[number].as_mut_ptr().expose_provenance(),
            Argument::Output(number) => self.outputs[number].as_mut_ptr().expose_provenance(),
            Argument::Workspace(_) | Argument::Null => 0,
            Argument::Conv(_) | Argument::Pool(_) | Argument::Elements(_) => 0,
        };
        address as u64
    }

    /// `struct slot` of an input or output; of another argument the address alone counts.
    pub(super) fn slot(&mut self, argument: &Argument) -> [u64; 4] {
        [self.address(argument), std::ptr::from_mut(&mut *self.slot).expose_provenance() as u64, 0, 0]
    }

    /// The launches of its steps.
    pub(super) fn launches(&self) -> Vec<Launch> {
        self.launches.iter().map(|(launch, _)| launch.clone()).collect()
    }

    /// What the last run wrote.
    pub(super) fn outputs(&self) -> Vec<Vec<f32>> {
        self.outputs.clone()
    }
}

impl Engine for Twin {
    fn name(&self) -> &'static str {
        "host twin"
    }

    fn run(&mut self, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>, EngineError> {
        self.bring(inputs)?;
        for at in 0..self.launches.len() {
            self.launch(at)?;
        }
        Ok(self.outputs())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use prost::Message;
    use zoo::Architecture;
    use zoo::onnx::{Attribute, Model};

    use super::*;
    use crate::engine::onnx_runtime::Runtime;
    use crate::graph::{Op, Window};
    use crate::import::import;
    use crate::launch::{Rest, finishing};
    use crate::layers::{Layers, Random, distance, tolerance};
    use crate::plan::{Format, Layout, Source};

    /// As where a library computes the first parts of a step.
    #[test]
    fn a_step_in_two_parts_writes_what_it_writes_as_one() {
        measure::need!(crate::engine::has_twin(), "a C++ compiler");
        let file = Architecture::MobileNetV3Small.build(1).encode_to_vec();
        let graph = import(&file, 1).expect("the zoo's models are imported");
        for (precision, layout, tolerance) in
            [(Precision::Single, Layout::ChannelsFirst, 0.0), (Precision::Half, Layout::ChannelsLast, 2e-3)]
        {
            let plan = Plan::in_format(&graph, Format { precision, layout }).expect("it is planned");
            let mut twin = Twin::new(plan.clone()).expect("there is a compiler");
            let input = Random(5).tensor(plan.inputs[0].count());
            twin.bring(&[&input]).expect("it is the model's");
            let mut compared = 0;
            for (at, step) in plan.steps.iter().enumerate() {
                let whole = twin.step(at).expect("it runs");
                let (launch, kernel) = twin.launches[at].clone();
                let [.., bias, residual, _, Argument::Conv(words)] = &launch.arguments[..] else { continue };
                for rest in [Rest::Activation, Rest::Sums] {
                    let (mut first, mut words) = (launch.clone(), *words);
                    words[26..29].fill(0);
                    let sums = if rest == Rest::Sums { [&Argument::Null; 2] } else { [bias, residual] };
                    first.arguments[2] = sums[0].clone();
                    first.arguments[3] = sums[1].clone();
                    first.arguments[5] = Argument::Conv(words);
                    twin.launches[at] = (first, kernel);
                    twin.launch(at).expect("it runs");
                    let second = finishing(&plan, step, rest).expect("it is small");
                    let finish = KERNELS.find(second.kernel).expect("it is compiled");
                    twin.launches[at] = (second, finish);
                    let parts = twin.step(at).expect("it runs");
                    let apart = distance(precision, &parts, &whole);
                    assert!(apart <= tolerance, "{}: {rest:?}: {apart}", step.names.join(" "));
                    compared += 1;
                }
                // The next steps read the output of the parts, compared above.
                twin.launches[at] = (launch, kernel);
            }
            // In single precision, channels first, convolutions of one pixel are products of matrices.
            assert!(compared > 60, "{compared} steps in parts");
        }
    }

    /// The twin takes long for these whole models in half precision. Some blocks of each layer run, and read
    /// what ONNX Runtime's layer before it writes.
    #[test]
    fn first_middle_and_last_layer_in_half_precision_are_those_of_onnx_runtime() {
        measure::need!(crate::engine::has_twin(), "a C++ compiler");
        let found = Runtime::load(None).map_err(|error| error.to_string());
        let runtime = measure::need!(found, reference, "ONNX Runtime");
        let super_resolution = Architecture::SuperResolution { factor: 3, height: 224, width: 224 };
        for model in [Architecture::SqueezeNet, super_resolution] {
            let file = model.build(1).encode_to_vec();
            let graph = import(&file, 1).expect("the zoo's models are imported");
            let format = Format { precision: Precision::Half, layout: Layout::ChannelsLast };
            let plan = Plan::in_format(&graph, format).expect("it is planned");
            let input = Random(3).tensor(plan.inputs[0].count());
            let layers = Layers::compute(&runtime, &file, &graph, &[&input]).expect("it runs");
            let has_weights = |at: &usize| matches!(plan.steps[*at].reads.get(1), Some(Source::Constant(_)));
            let all: Vec<usize> = (0..plan.steps.len()).filter(has_weights).collect();
            for (which, at) in
                [("first", all[0]), ("middle", all[all.len() / 2]), ("last", all[all.len() - 1])]
            {
                let mut twin = Twin::new(plan.clone()).expect("there is a compiler");
                twin.bring(&[&input]).expect("it is the model's");
                if at > 0 {
                    write(&mut twin, at - 1, layers.of(&plan.steps[at - 1]).expect("it is no load"));
                }
                twin.launches[at].0.blocks = twin.launches[at].0.blocks.map(|blocks| blocks.min(2));
                let (written, step) = (twin.step(at).expect("it runs"), &plan.steps[at]);
                // Halves of the arena that no step wrote.
                let never = f16::from_bits(u16::MAX).to_f32().to_bits();
                let both = written.iter().zip(layers.of(step).expect("it is no load"));
                let (found, wanted): (Vec<f32>, Vec<f32>) =
                    both.filter(|(one, _)| one.to_bits() != never).unzip();
                let apart = distance(Precision::Half, &found, &wanted);
                let what = format!("{}, FP16, {which} layer ({})", plan.name, step.names.join(" "));
                println!("TABLE {what}: {apart:.1e} in {} of {} numbers", found.len(), written.len());
                assert!(found.len() > 200 && apart < tolerance(Precision::Half), "{what}: {apart:.1e}");
            }
        }
    }

    /// Writes what a step would have written, in half precision. The next step reads it.
    fn write(twin: &mut Twin, at: usize, elements: &[f32]) {
        let step = &twin.plan.steps[at];
        let place = step.write.expect("it is no store");
        assert_eq!(twin.plan.steps[at + 1].reads[0], Source::Arena(place), "the next step reads another one");
        let bytes = RefCell::new(Vec::new());
        let note = |byte| {
            bytes.borrow_mut().push(byte);
            0.0
        };
        crate::engine::gathered(&twin.plan, step, place, note);
        for (byte, half) in bytes.into_inner().into_iter().zip(halves(elements)) {
            let shift = byte % 8 * 8;
            let word = &mut twin.arena[byte / 8];
            *word = *word & !(0xffff << shift) | u64::from(half) << shift;
        }
    }

    /// The im2col matrix times the weights, as cuBLASLt multiplies them on a GPU.
    #[test]
    fn a_convolution_is_the_product_of_what_its_outputs_see() {
        measure::need!(crate::engine::has_twin(), "a C++ compiler");
        let small = Architecture::SuperResolution { factor: 3, height: 8, width: 6 };
        for (precision, tolerance) in [(Precision::Single, 1e-5), (Precision::Half, 2e-3)] {
            // Windows of 5x5 and 3x3 with pads, one with strides; a 3x3 one with a stride, of three channels.
            // In half precision the first one of either reads a slot. That of MobileNet is then one of 1x1.
            let of_small = if precision == Precision::Half { 3 } else { 4 };
            let mobilenet = Architecture::MobileNetV3Small.build(1);
            for (model, batch, count) in [(with_strides(small.build(2)), 2, of_small), (mobilenet, 1, 1)] {
                let file = model.encode_to_vec();
                let graph = import(&file, batch).expect("the zoo's models are imported");
                let format = Format { precision, layout: Layout::ChannelsLast };
                let plan = Plan::in_format(&graph, format).expect("it is planned");
                let mut twin = Twin::new(plan.clone()).expect("there is a compiler");
                let input = Random(5).tensor(plan.inputs[0].count());
                twin.bring(&[&input]).expect("it is the model's");
                let mut compared = 0;
                for (at, step) in plan.steps.iter().enumerate() {
                    if let Task::Compute { op: Op::Conv { window, groups: 1 }, .. } = &step.task
                        && let Source::Arena(_) = step.reads[0]
                        && step.to.parts()[2] > 1
                    {
                        let sums = sums(&mut twin, at);
                        let found = products(&mut twin, step, window);
                        let apart = distance(precision, &found, &sums);
                        assert!(apart <= tolerance, "{} {precision:?}: {apart}", step.names.join(" "));
                        compared += 1;
                    }
                    if compared == count {
                        break;
                    }
                    twin.launch(at).expect("it runs");
                }
                assert_eq!(compared, count, "{}", plan.name);
            }
        }
    }

    /// The model, whose second convolution now has strides; what comes out is smaller.
    fn with_strides(mut model: Model) -> Model {
        let graph = model.graph.as_mut().expect("it has one");
        let mut convolutions = graph.node.iter_mut().filter(|node| node.op_type == "Conv");
        let second = convolutions.nth(1).expect("it has four");
        second.attribute.retain(|attribute| attribute.name != "strides");
        second.attribute.push(Attribute::ints("strides", &[2, 3]));
        graph.output[0].r#type = None;
        model
    }

    /// What a convolution writes without bias, residual and activation.
    fn sums(twin: &mut Twin, at: usize) -> Vec<f32> {
        let (launch, kernel) = twin.launches[at].clone();
        let mut bare = launch.clone();
        let Some(Argument::Conv(words)) = bare.arguments.last_mut() else { panic!("it is a convolution") };
        words[26..29].fill(0);
        bare.arguments[2..4].fill(Argument::Null);
        twin.launches[at] = (bare, kernel);
        let sums = twin.step(at).expect("it runs");
        twin.launches[at] = (launch, kernel);
        sums
    }

    /// The rows of `im2col` times the weights, by rows, columns and channels; channel by channel.
    fn products(twin: &mut Twin, step: &Step, window: &Window) -> Vec<f32> {
        let ([batch, outputs, rows, columns], [_, channels, ..]) = (step.to.parts(), step.from.parts());
        let places = window.kernel[0] * window.kernel[1];
        let launch = launch::im2col(&twin.plan, step, 0).expect("it is small");
        let is_half = twin.plan.format.precision == Precision::Half;
        let mut seen = vec![u32::MAX; batch * rows * columns * places * channels];
        let [from, _, Argument::Conv(words)] = &launch.arguments[..] else { panic!("three arguments") };
        let arguments = Arguments::new().push(twin.address(from));
        let arguments = arguments.push(seen.as_mut_ptr().expose_provenance() as u64).push(*words);
        let [x, y, z] = launch.blocks;
        let shape = host_twin::Launch::new((x, y, z), launch.threads);
        let kernel = KERNELS.find(launch.kernel).expect("it is compiled");
        // SAFETY: the place lies in the arena, and the rows are as long as the kernel writes, at least.
        unsafe { host_twin::run(kernel, &shape, arguments) }.expect("it runs");
        let element = |at: usize| match is_half {
            true => f16::from_bits((seen[at / 2] >> (at % 2 * 16)) as u16).to_f32(),
            false => f32::from_bits(seen[at]),
        };
        let Source::Constant(weights) = step.reads[1] else { panic!("weights are constants") };
        let weights = &twin.plan.constants[weights];
        let of = |image: usize, output: usize, pixel: usize| {
            let row = (image * rows * columns + pixel) * places * channels;
            let each = (0..places).flat_map(|place| (0..channels).map(move |channel| (place, channel)));
            let weight = |place, channel| weights[(output * channels + channel) * places + place];
            each.map(|(place, channel)| {
                f64::from(element(row + place * channels + channel)) * f64::from(weight(place, channel))
            })
            .sum::<f64>() as f32
        };
        let pixels = 0..rows * columns;
        let all = (0..batch).flat_map(|image| (0..outputs).map(move |output| (image, output)));
        all.flat_map(|(image, output)| pixels.clone().map(move |pixel| (image, output, pixel)))
            .map(|(image, output, pixel)| of(image, output, pixel))
            .collect()
    }
}
