//! What a GPU lacks or loses under our kernels: an error in bounded time that says what. The process goes on,
//! or says that the context is lost. What needs no GPU is tried on the host twin as well.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpu::{Context, Form, Gpu, ImageBuilder, Kind, Module, Priority, Registered, Shape, Stream};
use host_twin::Visibility;
use measure::need;
use rdma_shim::kernel::{
    Arguments, HostMemory, Kernel, KernelError, Machine, Place, Region, Running, Source,
};
use verbs::Pd;
use verbs::code::Access;

use crate::KERNELS;
use crate::twin_queue::compiler;
use rdma_shim::testing::device;

static ENDLESS: Source =
    Source { name: "misuse.cu", text: include_str!("../kernels/misuse.cu"), headers: &[], twin: &KERNELS };

/// In which whatever fails has failed.
const SOON: Duration = Duration::from_secs(15);

/// More memory than any machine has. Host: more than there are addresses, since a system that overcommits
/// would have it registered page by page. GPU: what its driver takes for a length.
fn far_too_many(place: Place) -> usize {
    if place == Place::Gpu { 1 << 46 } else { 1 << 50 }
}

fn gpu_machine() -> Result<Machine, String> {
    Machine::gpu(None, None).map_err(|error| error.to_string())
}

/// Launches a kernel that waits for the word to be set.
fn waiting(machine: &Machine) -> (Running<HostMemory>, HostMemory) {
    let (word, cancel) = (machine.host_memory(4096).unwrap(), machine.host_memory(4).unwrap());
    let kernel = Kernel::prepare(machine, &ENDLESS, "endless_poll").unwrap();
    let arguments = Arguments::new().u64(word.kernel_address());
    // SAFETY: the kernel reads the word that it is given, which is held.
    (unsafe { kernel.launch([1, 32], &arguments, cancel, word.clone()) }.unwrap(), word)
}

/// Asks for far too much, and then for what there is: a kernel runs as before.
fn goes_on_without_memory(machine: &Machine, pd: &Pd, places: &[Place]) {
    for place in places {
        let (since, bytes) = (Instant::now(), far_too_many(*place));
        let error = Region::new(machine, pd, *place, bytes, Access::ALL).unwrap_err().to_string();
        // The system's words, or the driver's.
        let refused = error.contains("Cannot allocate memory") || error.contains("CUDA_ERROR_OUT_OF_MEMORY");
        assert!(refused && error.contains(&bytes.to_string()), "{place:?}: {error}");
        assert!(since.elapsed() < SOON && error.lines().count() == 1, "{error}");
    }
    Region::new(machine, pd, Place::Host, 4096, Access::ALL).unwrap();
    let (running, word) = waiting(machine);
    word.words()[0].store(1, Ordering::Release);
    running.end(SOON).unwrap();
}

#[test]
fn twin_goes_on_without_memory() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let twin = Machine::twin(Visibility::Weak { seed: 1 });
    goes_on_without_memory(&twin, &context.alloc_pd().unwrap(), &[Place::Host]);
}

#[test]
fn gpu_goes_on_without_memory() {
    let context = need!(device(), nic, "an mlx5 device");
    let machine = need!(gpu_machine(), gpu, "one CUDA device");
    goes_on_without_memory(&machine, &context.alloc_pd().unwrap(), &[Place::Gpu, Place::Host]);
}

/// A write-protected page stands for a card's page that the driver does not give: both refusals are reported,
/// with what can be done.
#[test]
fn gpu_refuses_a_doorbell_page_with_the_reasons_and_a_way_out() {
    let context = need!(device(), nic, "an mlx5 device");
    let machine = need!(gpu_machine(), gpu, "one CUDA device");
    let gpu = Context::new(Gpu::first().unwrap()).unwrap();
    // SAFETY: a mapping of our own, which nobody uses.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    let page = NonNull::new(page.cast::<u8>()).unwrap();
    // SAFETY: the page stays mapped until the process ends.
    let error = unsafe { Registered::new(&gpu, page, 8, Kind::Doorbell) }.unwrap_err().to_string();
    for words in [
        "the GPU may not write to this doorbell page",
        "as memory:",
        "PeerMappingOverride=1",
        "let the CPU ring",
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
    println!("TABLE {error}");
    goes_on_without_memory(&machine, &context.alloc_pd().unwrap(), &[]);
}

/// While a kernel runs, another kernel of the process stores to an invalid address. The first ends with this
/// reason, and every later call to the GPU says the same.
#[test]
fn gpu_destructive_illegal_address_ends_a_kernel_and_says_that_the_context_is_lost() {
    let machine = need!(gpu_machine(), gpu, "one CUDA device");
    let gpu = Context::new(Gpu::first().unwrap()).unwrap();
    let stray =
        gpu::Unit::new("stray.cu", "extern \"C\" __global__ void stray(unsigned *word) { *word = 1; }");
    let builder = ImageBuilder::new(gpu::Toolkit::find(None).unwrap(), gpu::cache::Cache::off());
    let image = builder.image(&[stray], gpu.gpu().arch().unwrap(), Form::Cubin).unwrap();
    let function = Module::load(&gpu, &image).unwrap().function("stray").unwrap();
    let stream = Stream::new(&gpu, Priority::Least).unwrap();
    let (running, _word) = waiting(&machine);
    let since = Instant::now();
    let one = Shape { grid: [1; 3], block: [1; 3], shared_bytes: 0 };
    // SAFETY: the address is none, which is what is tried; the process ends with this test.
    unsafe { stream.launch(&function, one, &gpu::Arguments::new().u64(0x10)) }.unwrap();
    let error = running.end(SOON).unwrap_err();
    let KernelError::Gpu(lost) = &error else { panic!("{error}") };
    assert!(lost.is_context_lost(), "{error}");
    assert!(error.to_string().contains("its context is lost"), "{error}");
    println!("TABLE {error} ({:?} after the launch)", since.elapsed());
    let next = machine.host_memory(4096).map(drop).unwrap_err().to_string();
    assert!(next.contains("its context is lost"), "{next}");
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
}
