//! What a context keeps: for as long as a library may return to it, and under graphs older than its memory.

use std::time::Duration;

use gpu::cache::Cache;
use gpu::{
    Arguments, Context, Form, Gpu, GpuTimer, Graph, ImageBuilder, Module, PinnedMemory, Priority,
    SelfLaunching, Shape, Stream, Toolkit, Unit,
};
use measure::need;

use crate::bench::{Bench, soon};
use crate::process;

/// Says to a test that keeps its context that it has a process of its own. The stand-in reads it too.
const ALONE: &str = "GPU_TEST_ALONE";
const LIMIT: Duration = Duration::from_secs(10);

/// A kernel with a little local memory for each thread, and one with much: indexed at run time only.
const SOURCE: &str = r#"
template <int N> __device__ void turn(unsigned *out, unsigned seed)
{
    unsigned own[N], at = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned i = 0; i < N; i++)
        own[(i + seed) % N] = i + at;
    out[at] = own[(at + seed) % N];
}
extern "C" __global__ void little(unsigned *out, unsigned seed) { turn<64>(out, seed); }
extern "C" __global__ void much(unsigned *out, unsigned seed) { turn<4096>(out, seed); }
"#;

/// What a thread leaves.
fn expected(at: u32, length: u32) -> u32 {
    at % length + at
}

/// Whether this process is for one test. Else runs it in one, since other tests share the context.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let log = std::env::temp_dir().join(format!("gpu-context-{}-{test}", std::process::id()));
    let set = |us: &mut std::process::Command| {
        us.env(ALONE, "1");
    };
    let name = format!("context::{test}");
    let (said, good) = process::us(&["--exact", &name, "--nocapture"], set, &log, Duration::from_secs(60));
    let _ = std::fs::remove_file(&log);
    assert!(good && said.contains("1 passed"), "{said}");
    false
}

#[test]
fn gpu_context_that_is_kept_outlives_its_shares() {
    let gpu = need!(Gpu::first(), gpu, "one CUDA device");
    if !is_alone("gpu_context_that_is_kept_outlives_its_shares") {
        return;
    }
    drop(Context::new(gpu).unwrap());
    assert!(!gpu.has_context().unwrap(), "nothing has a share in it");
    let context = Context::new(gpu).unwrap();
    context.keep();
    drop(context);
    assert!(gpu.has_context().unwrap(), "it is kept");
}

/// A graph that still launches itself is cancelled, then its memory is freed. On the stand-in, a destroyed
/// graph, module or timer ends the process.
#[test]
fn gpu_context_that_is_kept_frees_memory_and_nothing_that_was_launched() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    if !is_alone("gpu_context_that_is_kept_frees_memory_and_nothing_that_was_launched") {
        return;
    }
    bench.context.keep();
    // Before the graph runs, which ends only when dropped: loading a module may wait for what runs.
    let again = Module::load(&bench.context, &bench.image).unwrap();
    let counter = PinnedMemory::new(&bench.context, 64).unwrap();
    let address = counter.words().as_ptr() as u64;
    let add = Arguments::new().u64(counter.device_address()).u32(1);
    let record = |stream: &Stream| bench.launch(stream, "add", add.clone());
    // SAFETY: the context keeps memory and module until the graph has ended.
    let mut running = unsafe { SelfLaunching::of_capture(&bench.module, 0, None, record) }.unwrap();
    // SAFETY: as above.
    unsafe { running.start() }.unwrap();
    soon("a hundred turns", || running.turns() > 100);
    let (stream, mut timer) = (bench.stream(), GpuTimer::new(&bench.context).unwrap());
    timer.begin(&stream).unwrap();
    timer.finish(&stream).unwrap();
    timer.elapsed(LIMIT).unwrap();
    drop((running, counter, timer, stream, again));
    assert!(bench.context.at_rest(LIMIT) && bench.kept() == 0, "{} are kept", bench.kept());
    assert!(!bench.context.is_pinned(address).unwrap(), "memory is freed");
}

/// The driver gives all concurrent threads local memory, as much as the neediest kernel's. It grows under
/// graphs that were instantiated for the device before.
#[test]
fn gpu_graph_runs_after_threads_got_more_memory_of_their_own() {
    let gpu = need!(Gpu::first(), gpu, "one CUDA device");
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let unit = Unit::new("own_memory.cu", SOURCE);
    let image =
        ImageBuilder::new(toolkit, Cache::off()).image(&[unit], gpu.arch().unwrap(), Form::Cubin).unwrap();
    let context = Context::new(gpu).unwrap();
    let module = Module::load(&context, &image).unwrap();
    let stream = Stream::new(&context, Priority::Least).unwrap();
    let (little, much) = (module.function("little").unwrap(), module.function("much").unwrap());
    let blocks = 4 * gpu.multiprocessors().unwrap() as u32;
    let shape = Shape { grid: [blocks, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
    let count = 256 * blocks;
    let out = PinnedMemory::new(&context, 4 * count as usize).unwrap();
    let arguments = Arguments::new().u64(out.device_address()).u32(0);
    let record = |stream: &Stream| {
        // SAFETY: module and memory live until the graph is gone.
        (0..3).try_for_each(|_| unsafe { stream.launch(&little, shape, &arguments) })
    };
    // SAFETY: as above.
    let graph = unsafe { Graph::capture(&stream, record) }.unwrap().instantiate().unwrap();
    graph.upload(&stream).unwrap();
    let holds = |what: &str, length: u32| {
        let mut bytes = vec![0; out.len()];
        out.read(0, &mut bytes).unwrap();
        out.write(0, &vec![0xff; bytes.len()]).unwrap();
        let wrong = bytes
            .as_chunks()
            .0
            .iter()
            .zip(0..)
            .find(|(bytes, at)| u32::from_le_bytes(**bytes) != expected(*at, length));
        assert!(wrong.is_none(), "{what}: {wrong:?}");
    };
    for turn in 0..4 {
        // SAFETY: as above.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.wait("a graph", LIMIT).unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        holds("the graph", 64);
        // SAFETY: as above.
        unsafe { stream.launch(&much, shape, &arguments) }.unwrap();
        stream.wait("threads with much memory", LIMIT).unwrap();
        holds("threads with much memory", 4096);
    }
}
