//! Launching without a NIC: kernels that end, that listen, and that do not.

use std::time::{Duration, Instant};

use measure::need;

use super::code::{Arguments, Source};
use super::error::KernelError;
use super::machine::{Kernel, Machine};
use crate::twin::{TwinError, Visibility};

const COUNT: Source = Source { name: "vote.cu", text: include_str!("../../kernels/vote.cu") };
const MISUSE: Source = Source { name: "misuse.cu", text: include_str!("../../kernels/misuse.cu") };

fn twin() -> Result<Machine, String> {
    // A build without a C++ compiler has no kernels.
    let found = crate::twin::Kernel::find("vote").map(|_| Machine::twin(Visibility::InOrder));
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

/// Its memory is kept, other kernels of the process run meanwhile, and when its word comes at last the process can end.
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
