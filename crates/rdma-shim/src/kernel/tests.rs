//! Launching without a NIC: kernels that end, that listen, and that do not.

use std::time::{Duration, Instant};

use measure::need;

use super::code::{Arguments, Source};
use super::error::KernelError;
use super::machine::{Kernel, Machine};
use host_twin::{TwinError, Visibility};

static COUNT: Source = Source {
    name: "vote.cu",
    text: include_str!("../../tests/kernels/vote.cu"),
    headers: &[],
    twin: &crate::kernels::KERNELS,
};
static MISUSE: Source =
    Source { name: "misuse.cu", text: include_str!("../../tests/kernels/misuse.cu"), ..COUNT };

fn twin() -> Result<Machine, String> {
    // A build without a C++ compiler has no kernels.
    let found = crate::kernels::KERNELS.find("vote").map(|_| Machine::twin(Visibility::InOrder));
    found.map_err(|error| error.to_string())
}

#[test]
fn a_kernel_gives_back_what_it_held_when_it_has_ended() {
    let machine = need!(twin(), cc, "a C++ compiler");
    let kernel = Kernel::prepare(&machine, &COUNT, "vote").unwrap();
    let (words, cancel) = (machine.host_memory(4096).unwrap(), machine.host_memory(4).unwrap());
    words.words().iter().for_each(|word| word.store(7, std::sync::atomic::Ordering::Relaxed));
    let arguments = Arguments::new().u64(words.kernel_address());
    // SAFETY: the kernel writes a word a lane to what it is given, which is held.
    let running = unsafe { kernel.launch([2, 64], &arguments, cancel, words.clone()) }.unwrap();
    let words = running.end(Duration::from_secs(60)).unwrap();
    let seen: Vec<u32> =
        words.words()[..128].iter().map(|word| word.load(std::sync::atomic::Ordering::Relaxed)).collect();
    assert_eq!(seen, vec![0; 128]);
}

#[test]
fn a_kernel_that_does_not_listen_is_given_up_and_named() {
    let machine = need!(twin(), cc, "a C++ compiler");
    let kernel = Kernel::prepare(&machine, &MISUSE, "endless_poll").unwrap();
    let (word, cancel) = (machine.host_memory(4).unwrap(), machine.host_memory(4).unwrap());
    let arguments = Arguments::new().u64(word.kernel_address());
    // SAFETY: the kernel reads the word that it is given, which is held.
    let running = unsafe { kernel.launch([1, 32], &arguments, cancel, word) }.unwrap();
    assert!(!running.wait(Duration::from_millis(20)).unwrap());
    let (since, error) = (Instant::now(), running.end(Duration::from_millis(10)).unwrap_err());
    assert!(matches!(&error, KernelError::Twin(TwinError::Deadline { .. })), "{error}");
    assert!(error.to_string().contains("kernel endless_poll did not end"), "{error}");
    assert!(since.elapsed() < Duration::from_secs(30));
}

#[test]
fn lanes_that_can_never_go_on_are_an_error_at_once() {
    let machine = need!(twin(), cc, "a C++ compiler");
    let kernel = Kernel::prepare(&machine, &MISUSE, "absent_lane").unwrap();
    let (word, cancel) = (machine.host_memory(4).unwrap(), machine.host_memory(4).unwrap());
    let arguments = Arguments::new().u64(word.kernel_address());
    // SAFETY: as above.
    let running = unsafe { kernel.launch([1, 32], &arguments, cancel, word) }.unwrap();
    let error = running.end(Duration::from_secs(60)).unwrap_err();
    assert!(matches!(&error, KernelError::Twin(TwinError::Deadlock { .. })), "{error}");
}

#[test]
fn where_there_is_no_gpu_the_reason_is_one_line() {
    if let Err(error) = Machine::gpu(Some(99), None) {
        let text = error.to_string();
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

/// Its memory is kept, other kernels run meanwhile, and when its word comes at last the process can end.
#[test]
fn gpu_destructive_kernel_that_does_not_listen_is_given_up_and_others_go_on() {
    let machine = need!(Machine::gpu(None, None).map_err(|e| e.to_string()), gpu, "one CUDA device");
    let endless = Kernel::prepare(&machine, &MISUSE, "endless_poll").unwrap();
    let vote = Kernel::prepare(&machine, &COUNT, "vote").unwrap();
    let memory = || machine.host_memory(4096).unwrap();
    let (word, cancel, words, its_cancel) = (memory(), memory(), memory(), memory());
    let arguments = Arguments::new().u64(word.kernel_address());
    // SAFETY: the kernel reads the word that it is given, which is held.
    let running = unsafe { endless.launch([1, 32], &arguments, cancel, word.clone()) }.unwrap();
    let (since, error) = (Instant::now(), running.end(Duration::from_millis(10)).unwrap_err());
    assert!(matches!(&error, KernelError::NeverEnds { .. }), "{error}");
    assert!(error.to_string().starts_with("kernel endless_poll has not ended"), "{error}");
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    println!("TABLE {error}");
    let arguments = Arguments::new().u64(words.kernel_address());
    // SAFETY: the kernel writes a word a lane to what it is given, which is held.
    let running = unsafe { vote.launch([2, 64], &arguments, its_cancel, words) }.unwrap();
    running.end(Duration::from_secs(10)).unwrap();
    word.words()[0].store(1, std::sync::atomic::Ordering::Release);
}

/// A second launch of a kernel does not wait for the first, which goes on. Each launch reports its own end.
#[test]
fn gpu_second_launch_of_a_kernel_runs_beside_the_first_and_ends_before_it() {
    let machine = need!(Machine::gpu(None, None).map_err(|e| e.to_string()), gpu, "one CUDA device");
    let kernel = Kernel::prepare(&machine, &MISUSE, "endless_poll").unwrap();
    let memory = || machine.host_memory(4096).unwrap();
    let (first_word, second_word) = (memory(), memory());
    let (first_cancel, second_cancel) = (memory(), memory());
    let set = |word: &super::HostMemory| word.words()[0].store(1, std::sync::atomic::Ordering::Release);
    let launch = |word: &super::HostMemory, cancel| {
        let arguments = Arguments::new().u64(word.kernel_address());
        // SAFETY: the kernel reads the word that it is given, which is held.
        unsafe { kernel.launch([1, 32], &arguments, cancel, word.clone()) }.unwrap()
    };
    let first = launch(&first_word, first_cancel);
    set(&second_word);
    let second = launch(&second_word, second_cancel);
    let over = second.wait(Duration::from_secs(10)).unwrap();
    let first_was_over = first.is_over().unwrap();
    // Whatever was seen, nothing of it stays on the GPU.
    set(&first_word);
    assert!(over && !first_was_over, "the second: {over}, the first: {first_was_over}");
    first.end(Duration::from_secs(10)).unwrap();
    second.end(Duration::from_secs(10)).unwrap();
    // Both streams are free again, and are enough for what follows.
    for word in [first_word, second_word] {
        launch(&word, memory()).end(Duration::from_secs(10)).unwrap();
    }
}

/// A GPU without order for NIC writes to its memory: watchers of arrivals are refused it and get the host's.
#[test]
fn gpu_memory_that_sees_arrivals_in_no_order_is_refused_to_who_looks_at_them() {
    let machine = need!(Machine::gpu(None, None).map_err(|e| e.to_string()), gpu, "one CUDA device");
    let context = need!(verbs::open(None).map_err(|e| e.to_string()), nic, "an RDMA device");
    let pd = context.alloc_pd().unwrap();
    let region = |machine: &Machine, place| {
        super::Region::new(machine, &pd, place, 4096, verbs::code::Access::ALL).map_err(|e| e.to_string())
    };
    let far = need!(region(&machine, super::Place::Gpu), gpu, "a NIC that takes a GPU's memory");
    println!("TABLE {}: arrivals in its memory: {:?}", machine.name(), far.takes_arrivals(&machine));
    drop(far);
    let machine = machine.with_write_ordering(0);
    let far = region(&machine, super::Place::Gpu).unwrap();
    let text = far.takes_arrivals(&machine).unwrap_err().to_string();
    assert!(text.contains("GPU_DIRECT_RDMA_WRITES_ORDERING is 0"), "{text}");
    region(&machine, super::Place::Host).unwrap().takes_arrivals(&machine).unwrap();
}
