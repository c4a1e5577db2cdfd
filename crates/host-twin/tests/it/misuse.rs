//! Kernels that do what CUDA forbids, or never end: each ends by its deadline with an error naming the place.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use host_twin::{Arguments, Launch, MAX_SHARED_BYTES, TwinError};
use measure::need;

use crate::{compiler, run_on};

const DEADLINE: Duration = Duration::from_secs(60);

fn on_word(kernel: &str, launch: &Launch, word: &mut i32) -> Result<(), TwinError> {
    run_on(kernel, launch, Arguments::new().pointer(word)).map(drop)
}

/// Rows: kernel, the error, and what it names.
#[test]
fn lanes_that_wait_for_ever_are_named_at_once() {
    need!(compiler(), cc, "a C++ compiler");
    let rows: [(&str, &[&str]); 4] = [
        (
            "divergent_barrier",
            &[
                "wait for lanes that cannot come: ",
                "block 0 lanes 0-15 wait at __syncthreads (misuse.cu:",
                "block 0 lanes 16-31 wait at __syncwarp of mask 0xffffffff (misuse.cu:",
            ],
        ),
        (
            "returned_lane",
            &["cannot come", "lanes 0-2,4-31 wait at __syncwarp of mask 0xffffffff (misuse.cu:"],
        ),
        (
            "returned_lane_beside_a_poll",
            &[
                "cannot come",
                "lanes 0 last did an atomic",
                "lanes 1-2,4-31 wait at __syncwarp of mask 0xfffffffe",
            ],
        ),
        ("foreign_mask", &["a mask does not name", "lanes 0 last did __syncwarp (misuse.cu:"]),
    ];
    for (kernel, words) in rows {
        let begun = Instant::now();
        let error = on_word(kernel, &Launch::new(1, 32), &mut 0).unwrap_err().to_string();
        assert!(begun.elapsed() < DEADLINE / 2, "{kernel}: found before the deadline");
        for text in words {
            assert!(error.contains(text), "{kernel}: {error}");
        }
    }
}

#[test]
fn lanes_that_return_do_not_keep_others_at_the_barrier() {
    need!(compiler(), cc, "a C++ compiler");
    let mut word = 0;
    on_word("early_return", &Launch::new(3, 100), &mut word).unwrap();
    assert_eq!(word, 150);
}

#[test]
fn a_lane_that_waits_by_atomics_ends_at_the_deadline() {
    need!(compiler(), cc, "a C++ compiler");
    let launch = Launch { deadline: Duration::from_millis(200), ..Launch::new(2, 64) };
    let error = on_word("endless_atomics", &launch, &mut 0).unwrap_err().to_string();
    for text in [
        "kernel endless_atomics did not end within 200ms",
        "lanes 0 last did an atomic (misuse.cu:",
        "block 1 lanes 1-63 wait at __syncthreads (misuse.cu:",
    ] {
        assert!(error.contains(text), "{error}");
    }
    // Its lanes are gone: the same kernel runs again.
    on_word("endless_atomics", &launch, &mut 1).unwrap();
}

/// Runs the test of that name in a process of its own, which finds the variable. None: this is that process.
fn in_a_process(test: &str) -> Option<Output> {
    const CHILD: &str = "HOST_TWIN_CHILD";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("misuse::{test}"), "--nocapture"]).env(CHILD, "1");
    std::env::var_os(CHILD).is_none().then(|| command.output().unwrap())
}

/// A lane that makes none of the twin's calls cannot be stopped: a process of its own is given up.
#[test]
fn a_lane_that_cannot_be_stopped_is_said_to_end_the_process() {
    need!(compiler(), cc, "a C++ compiler");
    if let Some(output) = in_a_process("a_lane_that_cannot_be_stopped_is_said_to_end_the_process") {
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{text}");
        assert!(
            text.contains("kernel endless_loads: 1 of its lanes cannot be stopped, end the process"),
            "{text}"
        );
        return;
    }
    let word: &'static mut i32 = Box::leak(Box::new(0));
    let launch = Launch { deadline: Duration::from_millis(100), ..Launch::new(1, 2) };
    eprintln!("{}", on_word("endless_loads", &launch, word).unwrap_err());
    std::process::exit(7);
}

/// An array that is too large would lie in another lane's stack: the process ends before it is written.
#[test]
fn a_frame_beyond_the_stack_ends_the_process() {
    need!(compiler(), cc, "a C++ compiler");
    if let Some(output) = in_a_process("a_frame_beyond_the_stack_ends_the_process") {
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{:?} {text}", output.status);
        return;
    }
    on_word("large_array", &Launch::new(1, 64), &mut 0).unwrap();
}

/// A process with room for three blocks' stacks runs eight, though each thread wants more than one at once.
#[test]
fn blocks_wait_for_stacks_where_memory_is_short() {
    need!(compiler(), cc, "a C++ compiler");
    if let Some(output) = in_a_process("blocks_wait_for_stacks_where_memory_is_short") {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let bytes = pages * 4096 + (500 << 20);
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: it is given a struct of its own.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let mut blocks = 0;
    on_word("sleepy", &Launch::new(8, 1024), &mut blocks).unwrap();
    assert_eq!(blocks, 8);
}

/// Rows: the element that is written, of 32 static ones or, negative, of 32 dynamic ones.
#[test]
fn a_write_behind_shared_memory_is_found() {
    need!(compiler(), cc, "a C++ compiler");
    for (element, found) in
        [(31, None), (32, Some("numbers (128 bytes)")), (-40, Some("the dynamic part (128 bytes)"))]
    {
        let launch = Launch { shared_bytes: 128, ..Launch::new(1, 32) };
        let error = on_word("overrun", &launch, &mut { element }).err().map(|error| error.to_string());
        let expected =
            found.map(|what| format!("kernel overrun: a lane wrote behind the end of the shared {what}"));
        assert_eq!(error, expected, "{element}");
    }
}

#[test]
fn shapes_and_memory_that_a_gpu_has_not_are_refused() {
    need!(compiler(), cc, "a C++ compiler");
    let with = |shared_bytes| Launch { shared_bytes, ..Launch::new(1, 32) };
    let many = Launch { cooperative: true, ..Launch::new(1_000_000, 1024) };
    for (kernel, launch, words) in [
        (
            "early_return",
            Launch::new(1, 1025),
            "kernel early_return on 1 blocks of 1025 lanes: a block has 1 to 1024 lanes",
        ),
        ("early_return", Launch::new(1, (32, 33)), "on 1 blocks of 32x33 lanes"),
        ("early_return", Launch::new(1, (1, 1, 65)), "at most 64 along z"),
        ("early_return", Launch::new(0, 32), "a block has 1 to 1024 lanes"),
        ("early_return", Launch::new((1, 70_000), 1), "a grid has at most"),
        (
            "early_return",
            with(MAX_SHARED_BYTES as u32 + 1),
            "232449 bytes of dynamic shared memory, and a block has 232448",
        ),
        ("early_return", many, "a cooperative launch runs all blocks side by side"),
        ("too_much", Launch::new(1, 32), "no room for the shared numbers, 262144 bytes: a block has 232448"),
    ] {
        let error = on_word(kernel, &launch, &mut 0).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// More blocks than cores wait for one another without a cooperative launch, as on a GPU with enough room.
#[test]
fn blocks_that_wait_for_others_let_them_begin() {
    need!(compiler(), cc, "a C++ compiler");
    let mut word = 0;
    on_word("wait_for_last", &Launch::new(100, 32), &mut word).unwrap();
    assert_eq!(word, 1);
}
