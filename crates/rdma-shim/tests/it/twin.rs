//! The host twin itself: what lanes learn from one another, what a missing barrier or release does, and what
//! is said of kernels that do not end. Needs no NIC.

use std::time::{Duration, Instant};

use crate::{KERNELS, PLANTED};
use host_twin::{Arguments, Kernel, Launch, LaunchReport, TwinError, Visibility, run};
use measure::need;

/// Two blocks of two warps.
const BLOCKS: u32 = 2;
const THREADS: u32 = 64;
const LANES: usize = (BLOCKS * THREADS) as usize;
/// Far above what a busy machine needs.
const DEADLINE: Duration = Duration::from_secs(60);
/// Each seed is another order of stores and other interruptions.
const SEEDS: std::ops::Range<u64> = 1..9;

fn compiler() -> Result<(), String> {
    KERNELS.find("vote").map(drop).map_err(|error| error.to_string())
}

fn launch(seed: u64) -> Launch {
    Launch { visibility: Visibility::Weak { seed }, deadline: DEADLINE, ..Launch::new(BLOCKS, THREADS) }
}

fn find(name: &str) -> Kernel {
    if name.contains('+') { PLANTED.find(name).unwrap() } else { KERNELS.find(name).unwrap() }
}

/// Runs a kernel whose pointers lead into vectors that the caller holds until this returns.
fn run_on(kernel: &str, launch: &Launch, arguments: Arguments) -> Result<LaunchReport, TwinError> {
    // SAFETY: as said above, and each test gives what the kernel's source asks for.
    unsafe { run(find(kernel), launch, arguments) }
}

#[test]
fn twin_lanes_vote_and_shuffle_as_on_a_gpu() {
    need!(compiler(), cc, "a C++ compiler");
    for seed in SEEDS {
        let mut out = vec![u32::MAX; LANES];
        let arguments = Arguments::new().pointer(out.as_mut_ptr());
        run_on("vote", &launch(seed), arguments).unwrap();
        assert_eq!(out, vec![0; LANES], "the number of the first step that went wrong, by lane; seed {seed}");
    }
}

#[test]
fn twin_atomics_count_and_a_lock_keeps_others_out() {
    need!(compiler(), cc, "a C++ compiler");
    const ROUNDS: usize = 5;
    for visibility in [Visibility::Weak { seed: 3 }, Visibility::InOrder] {
        let mut words = vec![0_u64; 4 + LANES * ROUNDS];
        let arguments = Arguments::new().pointer(words.as_mut_ptr()).push(ROUNDS as u32);
        run_on("count", &Launch { visibility, ..launch(0) }, arguments).unwrap();
        let all = (LANES * ROUNDS) as u64;
        assert_eq!(
            words[..4],
            [all, all - 1, 0, all],
            "counter, maximum, lock, what it guards; {visibility:?}"
        );
        assert!(words[4..].iter().all(|&mark| mark == 1), "each number once; {visibility:?}");
    }
}

/// How many of a reduction's sums are wrong.
fn wrong_sums(kernel: &str, seed: u64) -> usize {
    const ROUNDS: usize = 30;
    let mut sums = vec![0_u64; BLOCKS as usize * ROUNDS];
    let arguments = Arguments::new().pointer(sums.as_mut_ptr()).push(ROUNDS as u32);
    run_on(kernel, &launch(seed), arguments).unwrap();
    let of_threads = u64::from(THREADS * (THREADS + 1) / 2);
    let expected = (0..BLOCKS as u64)
        .flat_map(|block| (0..ROUNDS as u64).map(move |round| (round + 1) * (block + 1) * of_threads));
    sums.iter().zip(expected).filter(|(sum, expected)| **sum != *expected).count()
}

#[test]
fn twin_shared_memory_is_each_blocks_own_and_sums_are_right_under_every_seed() {
    need!(compiler(), cc, "a C++ compiler");
    for seed in SEEDS {
        assert_eq!(wrong_sums("reduce", seed), 0, "seed {seed}");
    }
}

#[test]
fn twin_shows_a_missing_syncwarp() {
    need!(compiler(), cc, "a C++ compiler");
    for seed in SEEDS {
        assert!(wrong_sums("reduce+no-warp-sync", seed) > 0, "seed {seed}");
    }
}

/// Hand-overs between two blocks with other words than stored before the flag, and what the launch did.
fn bad_hand_overs(kernel: &str, seed: u64) -> (u32, LaunchReport) {
    const ROUNDS: u32 = 10;
    let mut channels = vec![[0_u64; 8]; THREADS as usize];
    let (mut bad, mut late) = (0_u32, 0_u32);
    let patience = (DEADLINE / 2).as_nanos() as u64;
    let arguments = Arguments::new()
        .pointer(channels.as_mut_ptr())
        .push(ROUNDS)
        .push(patience)
        .pointer(&raw mut bad)
        .pointer(&raw mut late);
    let ran = run_on(kernel, &launch(seed), arguments).unwrap();
    assert_eq!(late, 0, "lanes that waited {patience} ns; seed {seed}");
    assert!(channels.iter().all(|channel| channel[..2] == [u64::from(ROUNDS); 2]), "seed {seed}");
    (bad, ran)
}

#[test]
fn twin_flags_hand_over_what_was_stored_before_them_under_every_seed() {
    need!(compiler(), cc, "a C++ compiler");
    for seed in SEEDS {
        let (bad, ran) = bad_hand_overs("hand_over", seed);
        assert_eq!(bad, 0, "seed {seed}");
        assert!(ran.overtook > 100, "stores were to overtake one another: {ran:?}; seed {seed}");
    }
}

#[test]
fn twin_shows_a_dropped_release() {
    need!(compiler(), cc, "a C++ compiler");
    for seed in SEEDS {
        let (bad, _) = bad_hand_overs("hand_over+no-release", seed);
        assert!(bad > 0, "seed {seed}");
    }
}

/// Rows: kernel, how it is refused, and what the report names.
#[test]
fn twin_names_lanes_that_wait_for_ever_at_once() {
    need!(compiler(), cc, "a C++ compiler");
    type Is = fn(&TwinError) -> bool;
    let deadlock: Is = |error| matches!(error, TwinError::Deadlock { .. });
    let mask: Is = |error| matches!(error, TwinError::Mask { .. });
    let rows: [(&str, Is, &[&str]); 3] = [
        ("absent_lane", deadlock, &["lanes 0-2,4-31 wait at __syncwarp of mask 0xffffffff (misuse.cu:"]),
        (
            "divergence",
            deadlock,
            &[
                "lanes 0-15 wait at __syncwarp",
                "lanes 16-31 wait at __ballot_sync of mask 0xffffffff (misuse.cu:",
            ],
        ),
        ("foreign_mask", mask, &["lanes 0 last did __syncwarp (misuse.cu:"]),
    ];
    for (kernel, is, words) in rows {
        let (mut word, start) = (0_u32, Instant::now());
        let launch = Launch { threads: 32.into(), ..launch(1) };
        let error = run_on(kernel, &launch, Arguments::new().pointer(&raw mut word)).unwrap_err();
        assert!(start.elapsed() < DEADLINE / 2, "{kernel}: it was to be found before the deadline");
        assert!(is(&error), "{kernel}: {error}");
        for text in words {
            assert!(error.to_string().contains(text), "{kernel}: {error}");
        }
    }
}

#[test]
fn twin_ends_a_kernel_at_its_deadline_and_says_where_each_lane_was() {
    need!(compiler(), cc, "a C++ compiler");
    let mut word = 0_u32;
    let launch = Launch { deadline: Duration::from_millis(300), ..launch(1) };
    let start = Instant::now();
    let error = run_on("endless_poll", &launch, Arguments::new().pointer(&raw mut word)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, TwinError::Deadline { .. }), "{text}");
    assert!(start.elapsed() >= launch.deadline);
    assert!(text.contains("kernel endless_poll did not end within 300ms"), "{text}");
    for block in 0..BLOCKS {
        assert!(text.contains(&format!("block {block} lanes 0 last did a load (misuse.cu:")), "{text}");
        assert!(
            text.contains(&format!("block {block} lanes 1-63 wait at __syncthreads (misuse.cu:")),
            "{text}"
        );
    }
    // Its lanes are gone: the same kernel runs again.
    word = 1;
    run_on("endless_poll", &launch, Arguments::new().pointer(&raw mut word)).unwrap();
}

/// A lane that makes none of the twin's calls cannot be stopped: a process of its own is given up.
#[test]
fn twin_says_that_the_process_must_end_when_lanes_cannot_be_stopped() {
    need!(compiler(), cc, "a C++ compiler");
    const CHILD: &str = "DOORBELL_TWIN_SPINS";
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "twin::twin_says_that_the_process_must_end_when_lanes_cannot_be_stopped"])
            .args(["--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{text}");
        assert!(
            text.contains("kernel endless_spin: 1 of its lanes cannot be stopped, end the process"),
            "{text}"
        );
        return;
    }
    let word: &'static mut u32 = Box::leak(Box::new(0));
    let launch =
        Launch { blocks: 1.into(), threads: 2.into(), deadline: Duration::from_millis(100), ..launch(1) };
    let error = run_on("endless_spin", &launch, Arguments::new().pointer(&raw mut *word)).unwrap_err();
    eprintln!("{error}");
    std::process::exit(7);
}

#[test]
fn twin_refuses_what_it_cannot_launch() {
    need!(compiler(), cc, "a C++ compiler");
    let error = KERNELS.find("absent").unwrap_err().to_string();
    assert!(error.contains("no kernel absent; there are: ") && error.contains("vote"), "{error}");
    let mut word = 0_u32;
    let address = &raw mut word;
    let one = || Arguments::new().pointer(address);
    for (kernel, shape, arguments, words) in [
        ("vote", (1, 32), Arguments::new(), "kernel vote takes arguments of [8] bytes and was given []"),
        ("vote", (1, 32), Arguments::new().push(1_u32), "takes arguments of [8] bytes and was given [4]"),
        (
            "vote",
            (0, 32),
            one(),
            "kernel vote on 0 blocks of 32 lanes: the twin runs 1 to 256 lanes with weak memory",
        ),
        ("vote", (3, 100), one(), "3 blocks of 100 lanes: the twin runs 1 to 256 lanes with weak memory"),
    ] {
        let launch = Launch { blocks: shape.0.into(), threads: shape.1.into(), ..launch(1) };
        let error = run_on(kernel, &launch, arguments).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
