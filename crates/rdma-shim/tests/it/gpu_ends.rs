//! What a GPU lacks or loses under kernels of ours: each is an error in bounded time that says what, and the process goes on, or
//! says that the context is lost. What can be without a GPU is tried on the host twin as well.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use gpu::{Arguments, Context, Form, Gpu, ImageBuilder, Kind, Module, Priority, Registered, Shape, Stream};
use measure::need;
use rdma_shim::kernel::{KernelError, Place, Region};
use verbs::code::Access;

use crate::echo::{Bench, PATIENCE, message};
use crate::ends::device;
use crate::twin_queue::compiler;

/// In which whatever fails has failed.
const SOON: Duration = Duration::from_secs(15);

/// More memory than any machine has: of the host more than there are addresses, since a system that gives addresses for
/// which it has no memory would have it registered page by page; of a GPU what its driver takes for a length.
fn far_too_many(place: Place) -> usize {
    if place == Place::Gpu { 1 << 46 } else { 1 << 50 }
}

/// Asks for far too much, and then for what there is: a service is none the worse.
fn goes_on_without_memory(bench: &Bench, places: &[Place]) {
    for place in places {
        let (since, bytes) = (Instant::now(), far_too_many(*place));
        let error =
            Region::new(&bench.machine, &bench.pd, *place, bytes, Access::ALL).unwrap_err().to_string();
        // The system's words, or the driver's.
        let refused = error.contains("Cannot allocate memory") || error.contains("CUDA_ERROR_OUT_OF_MEMORY");
        assert!(refused && error.contains(&bytes.to_string()), "{place:?}: {error}");
        assert!(since.elapsed() < SOON && error.lines().count() == 1, "{error}");
    }
    let mut service = bench.service(2, PATIENCE);
    service.expect_answer(0);
    service.ask(0, &message(0, 64));
    service.answer();
    assert_eq!(service.cancel(), 1);
}

#[test]
fn twin_goes_on_without_memory() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    goes_on_without_memory(&Bench::twin(&context, 1), &[Place::Host]);
}

#[test]
fn gpu_goes_on_without_memory() {
    let context = need!(device(), nic, "an mlx5 device");
    let bench = need!(Bench::gpu(&context), gpu, "one CUDA device");
    goes_on_without_memory(&bench, &[Place::Gpu, Place::Host]);
}

/// A page that nobody may write stands for a card's page that the driver does not give: both refusals are said, and what can be
/// done.
#[test]
fn gpu_refuses_a_doorbell_page_with_the_reasons_and_a_way_out() {
    let context = need!(device(), nic, "an mlx5 device");
    let bench = need!(Bench::gpu(&context), gpu, "one CUDA device");
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
    goes_on_without_memory(&bench, &[]);
}

/// Another kernel of the process stores to an address that is none, while a service runs: the service ends with that reason, and
/// whatever is asked of the GPU afterwards says the same. Queue pairs are libmlx5's, and go as ever.
#[test]
fn gpu_destructive_illegal_address_ends_a_service_and_says_that_the_context_is_lost() {
    let context = need!(device(), nic, "an mlx5 device");
    let bench = need!(Bench::gpu(&context), gpu, "one CUDA device");
    let gpu = Context::new(Gpu::first().unwrap()).unwrap();
    let stray =
        gpu::Unit::new("stray.cu", "extern \"C\" __global__ void stray(unsigned *word) { *word = 1; }");
    let builder = ImageBuilder::new(gpu::Toolkit::find(None).unwrap(), gpu::cache::Cache::off());
    let image = builder.image(&[stray], gpu.gpu().arch().unwrap(), Form::Cubin).unwrap();
    let function = Module::load(&gpu, &image).unwrap().function("stray").unwrap();
    let stream = Stream::new(&gpu, Priority::Least).unwrap();
    let mut service = bench.service(2, PATIENCE);
    service.expect_answer(0);
    service.ask(0, &message(0, 64));
    service.answer();
    let since = Instant::now();
    let one = Shape { grid: [1; 3], block: [1; 3], shared_bytes: 0 };
    // SAFETY: the address is none, which is what is tried; the process ends with this test.
    unsafe { stream.launch(&function, one, &Arguments::new().u64(0x10)) }.unwrap();
    let error = service.running.end(SOON).unwrap_err();
    let KernelError::Gpu(lost) = &error else { panic!("{error}") };
    assert!(lost.is_context_lost(), "{error}");
    assert!(error.to_string().contains("its context is lost"), "{error}");
    println!("TABLE {error} ({:?} after the launch)", since.elapsed());
    let next = bench.machine.host_memory(4096).map(drop).unwrap_err().to_string();
    assert!(next.contains("its context is lost"), "{next}");
    drop(service.peer);
    drop(service.region);
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
}
