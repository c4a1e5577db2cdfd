//! The host twin's test kernels: NVIDIA's compiler takes the same sources, a GPU gives plain Rust's results.
//!
//! The twin's own tests compare it with the same plain Rust, so that twin and GPU are compared too.

use std::time::Duration;

use gpu::cache::Cache;
use gpu::{
    Arch, Arguments, Context, Form, Gpu, Image, ImageBuilder, Module, PinnedMemory, Priority, Shape, Stream,
    Toolkit, Unit,
};
use measure::need;

#[path = "../../../host-twin/tests/it/reference.rs"]
mod reference;

use reference::{fractions, half_value, nearest_half, numbers, product};

/// A launch and its wait take microseconds.
const LIMIT: Duration = Duration::from_secs(5);
const SOURCE: &str = include_str!("../../../host-twin/tests/kernels/ordinary.cu");

fn image(toolkit: Toolkit, arch: Arch) -> Image {
    let folders = toolkit.include.iter().map(|folder| format!("-I{}", folder.display())).collect::<Vec<_>>();
    // CCCL's, which wheels lack. The compiler has its macros, and cooperative groups have their own traits.
    let unit = folders
        .into_iter()
        .fold(Unit::new("ordinary.cu", SOURCE).header("nv/target", ""), Unit::flag)
        .flag("-D_CG_LIMIT_INCLUDED_DEPENDENCIES");
    let image = ImageBuilder::new(toolkit, Cache::off()).image(&[unit], arch, Form::Cubin);
    image.unwrap_or_else(|error| panic!("{arch}: {error}"))
}

#[test]
fn kernels_that_the_host_twin_runs_compile_for_a_gpu() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let functions = image(toolkit, Arch::sm(90)).facts.functions;
    for name in ["tiled_product", "reduce_by_shuffles", "histogram", "axpy_half", "scan_block", "sum_of_grid"]
    {
        assert!(functions.contains(name), "no {name} in {functions:?}");
    }
}

/// A GPU with the kernels, and memory that it sees.
struct Bench {
    context: Context,
    module: Module,
    stream: Stream,
}

impl Bench {
    fn new() -> Result<Bench, String> {
        let gpu = Gpu::first().map_err(|error| error.to_string())?;
        let toolkit = Toolkit::find(None).map_err(|error| error.to_string())?;
        let context = Context::new(gpu).map_err(|error| error.to_string())?;
        let module = Module::load(&context, &image(toolkit, gpu.arch().unwrap())).unwrap();
        let stream = Stream::new(&context, Priority::Least).unwrap();
        Ok(Bench { context, module, stream })
    }

    fn memory(&self, bytes: &[u8]) -> PinnedMemory {
        let memory = PinnedMemory::new(&self.context, bytes.len()).unwrap();
        memory.write(0, bytes).unwrap();
        memory
    }

    /// Runs a kernel on what lies in `inputs`, the last of which it changes: that one's bytes afterwards.
    fn run(&self, kernel: &str, shape: Shape, inputs: &[&[u8]], number: Option<u32>) -> Vec<u8> {
        let memories: Vec<PinnedMemory> = inputs.iter().map(|bytes| self.memory(bytes)).collect();
        let addresses = memories.iter().map(PinnedMemory::device_address);
        let arguments = addresses.fold(Arguments::new(), Arguments::u64);
        let arguments = number.into_iter().fold(arguments, Arguments::u32);
        let function = self.module.function(kernel).unwrap();
        // SAFETY: the memories live until the stream is idle, and are as long as the kernel's source needs.
        unsafe { self.stream.launch(&function, shape, &arguments) }.unwrap();
        self.stream.wait(kernel, LIMIT).unwrap();
        let mut bytes = vec![0; memories[memories.len() - 1].len()];
        memories[memories.len() - 1].read(0, &mut bytes).unwrap();
        bytes
    }
}

fn shape(blocks: [u32; 2], threads: [u32; 2], shared_bytes: u32) -> Shape {
    Shape { grid: [blocks[0], blocks[1], 1], block: [threads[0], threads[1], 1], shared_bytes }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Products of fractions of 64 are exact in `float`, sums of 64 of them too: contraction changes nothing.
#[test]
fn gpu_leaves_what_the_host_twin_leaves() {
    let bench = need!(Bench::new(), gpu, "one CUDA device and a toolkit");
    let (a, b) = (fractions(64 * 64), fractions(64 * 64 + 1)[1..].to_vec());
    let inputs = [floats(&a), floats(&b), vec![0xff; 4 * a.len()]];
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let c = bench.run("tiled_product", shape([4, 4], [16, 16], 0), &inputs, Some(64));
    assert_eq!(c, floats(&product(&a, &b, 64)));

    let all = numbers(10_000, 1000);
    let sums =
        bench.run("reduce_by_shuffles", shape([7, 1], [256, 1], 0), &[&words(&all), &[0; 28]], Some(10_000));
    let mut expected = vec![0; 7];
    all.iter().enumerate().for_each(|(at, number)| expected[at / 256 % 7] += number);
    assert_eq!(words_of(&sums), expected);

    let bytes: Vec<u8> = all.iter().map(|number| *number as u8).collect();
    let counts = bench.run("histogram", shape([9, 1], [256, 1], 0), &[&bytes, &[0; 1024]], Some(10_000));
    let mut expected = vec![0; 256];
    bytes.iter().for_each(|&byte| expected[usize::from(byte)] += 1);
    assert_eq!(words_of(&counts), expected);

    let sums =
        bench.run("scan_block", shape([5, 1], [500, 1], 4000), &[&words(&all[..2500]), &[0; 10_000]], None);
    let scan = |block: &[u32]| {
        block
            .iter()
            .scan(0, |sum, n| {
                Some({
                    *sum += n;
                    *sum
                })
            })
            .collect::<Vec<u32>>()
    };
    assert_eq!(words_of(&sums), all[..2500].chunks(500).flat_map(scan).collect::<Vec<u32>>());

    let half = |value: f32| nearest_half(f64::from(value));
    let (xs, ys): (Vec<f32>, Vec<f32>) = (fractions(1000), fractions(1001)[1..].to_vec());
    let results = bench.run(
        "half_arithmetic",
        shape([4, 1], [256, 1], 0),
        &[&floats(&xs), &floats(&ys), &vec![0; 12_000]],
        Some(1000),
    );
    let found: Vec<u16> = results.as_chunks().0.iter().map(|bits| u16::from_le_bytes(*bits)).collect();
    for (at, (&x, &y)) in xs.iter().zip(&ys).enumerate() {
        let (x, y) = (half_value(half(x)), half_value(half(y)));
        // Not the quotient, which `__hdiv` of CUDA gets by another way, and not the root, an approximation.
        for (row, exact) in [(0, x), (1, x + y), (2, x * y), (4, x.mul_add(y, x))] {
            let expected = nearest_half(exact);
            // A zero's sign is not looked at.
            let (found, both) = (found[row * 1000 + at], 0x7fff);
            assert!(
                found == expected || (found | expected) & both == 0,
                "row {row} of {x} and {y}: {found:#06x}"
            );
        }
    }
}
