//! Regions in a GPU's memory: content of every operation, refusals and failures. On a stand-in of CUDA's
//! driver (`cuda_stand_in.c`) everywhere, and on a GPU where there is one (`gpu_*`).
//!
//! The stand-in shows how messages are routed, and what the NIC does when mover or driver fails; nothing of a
//! GPU. Both run the same modes of one program, whose sources are in this test executable.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::counters::Counters;
use crate::fabric::{Fabric, Layer, scratch};

/// Writes sources into a folder of this run and compiles the first; the error is why it cannot be done here.
fn compiled(
    folder: &Path,
    sources: &[(&str, &str)],
    output: &str,
    arguments: &[&str],
) -> Result<PathBuf, String> {
    for (name, text) in sources {
        fs::write(folder.join(name), text).map_err(|error| format!("writing {name}: {error}"))?;
    }
    let output = folder.join(output);
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .args([&output, &folder.join(sources[0].0)])
        .args(arguments)
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Ok(output)
}

/// The program.
fn program() -> Result<String, String> {
    static PROGRAM: OnceLock<Result<String, String>> = OnceLock::new();
    let compile = || {
        if !Path::new("/usr/include/infiniband/verbs.h").exists() {
            return Err("/usr/include/infiniband/verbs.h not found (package libibverbs-dev)".to_owned());
        }
        let sources = [
            ("gpu_memory.c", include_str!("../programs/gpu_memory.c")),
            ("gpu_ends.h", include_str!("../programs/gpu_ends.h")),
            ("gpu_given_up.h", include_str!("../programs/gpu_given_up.h")),
            ("gpu_host_pages.h", include_str!("../programs/gpu_host_pages.h")),
            ("gpu_mapped.h", include_str!("../programs/gpu_mapped.h")),
            ("gpu_traffic.h", include_str!("../programs/gpu_traffic.h")),
            ("loopback.h", include_str!("../programs/loopback.h")),
        ];
        compiled(&scratch("gpu_memory"), &sources, "gpu_memory", &["-libverbs", "-ldl"])
            .map(|program| program.display().to_string())
    };
    PROGRAM.get_or_init(compile).clone()
}

/// Folder of the stand-in: the driver by both names that it is looked for, one file.
fn stand_in() -> Result<PathBuf, String> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let compile = || {
        let folder = scratch("cuda_stand_in");
        let sources = [
            ("cuda_stand_in.c", include_str!("../programs/cuda_stand_in.c")),
            ("cuda_kernels.h", include_str!("../programs/cuda_kernels.h")),
            ("cuda_memory.h", include_str!("../programs/cuda_memory.h")),
        ];
        compiled(&folder, &sources, "libcuda.so.1", &["-shared", "-fPIC"])?;
        symlink("libcuda.so.1", folder.join("libcuda.so")).map_err(|error| error.to_string())?;
        Ok(folder)
    };
    FOLDER.get_or_init(compile).clone()
}

/// The program and the folder of the stand-in: what a test without a GPU needs.
fn with_stand_in() -> Result<(String, PathBuf), String> {
    Ok((program()?, stand_in()?))
}

/// A fabric whose programs find the stand-in, which does what `words` say.
fn on_stand_in(layer: Layer, folder: &Path, words: &str) -> Fabric {
    Fabric::new(layer)
        .with_environment("LD_LIBRARY_PATH", &folder.display().to_string())
        .with_environment("STAND_IN", words)
        .with_environment("QUICK", "1")
}

/// The mover's threads start late on busy cores: the NIC waits for it, without the copy engine as fallback.
fn patient(fabric: Fabric) -> Fabric {
    fabric.with_environment("SOFTNIC_GPU", "patient")
}

/// The index of the IPv4 GID, or none.
fn gid(layer: Layer) -> &'static str {
    match layer {
        Layer::InfiniBand => "-1",
        Layer::Roce => "3",
    }
}

fn value(counters: &Counters, name: &str) -> u64 {
    counters.value(name)
}

#[test]
fn messages_to_and_from_a_gpu_arrive_whole_by_either_way_of_moving_them() {
    let (program, folder) = measure::need!(with_stand_in(), "a C compiler and libibverbs-dev");
    for layer in Layer::BOTH {
        let fabric = patient(on_stand_in(layer, &folder, ""));
        let (said, counters) = fabric.run(&[&program, "one", gid(layer)]);
        assert!(said.contains("108 messages"), "{said}");
        for moved in ["gpu_mover_commands", "gpu_engine_copies"] {
            assert!(value(&counters, moved) > 20, "{moved} {}: {said}", value(&counters, moved));
        }
        assert!(value(&counters, "gpu_mover_helped") > 0, "long messages, and nobody helped: {said}");
        assert_eq!(value(&counters, "gpu_faults"), 0);
    }
}

#[test]
fn between_processes_the_owner_of_a_gpu_moves_its_memory_whether_the_other_has_cuda_or_not() {
    let (program, folder) = measure::need!(with_stand_in(), "a C compiler and libibverbs-dev");
    for (mode, messages) in [("pair", "108 messages"), ("pair-host", "36 messages")] {
        for layer in Layer::BOTH {
            let fabric = on_stand_in(layer, &folder, "");
            let (said, _) = fabric.run(&[&program, mode, gid(layer)]);
            assert!(said.contains(messages), "{said}");
        }
        let wired = on_stand_in(Layer::Roce, &folder, "").with_options(&["--path", "wire"]);
        let (said, _) = wired.run(&[&program, mode, "3"]);
        assert!(said.contains(messages), "{said}");
    }
}

#[test]
fn where_no_mover_runs_or_it_ends_too_early_or_pages_are_refused_messages_arrive_all_the_same() {
    let (program, folder) = measure::need!(with_stand_in(), "a C compiler and libibverbs-dev");
    for (words, counter, some) in [
        ("no-mover", "gpu_mover_commands", false),
        // Nobody waits a millisecond for what was refused.
        ("refused-mover", "gpu_mover_late", false),
        ("late-mover", "gpu_mover_late", true),
        ("short-mover", "gpu_mover_launches", true),
        ("no-register", "gpu_host_pages", false),
    ] {
        let fabric = on_stand_in(Layer::InfiniBand, &folder, words);
        // A command left by one mover must not be the next one's: seen only if every message asks it.
        let patiently = ["short-mover", "refused-mover"].contains(&words);
        let fabric = if patiently { patient(fabric) } else { fabric };
        let (said, counters) = fabric.run(&[&program, "one", "-1"]);
        assert!(said.contains("108 messages"), "{words}: {said}");
        assert_eq!(value(&counters, counter) > 0, some, "{words}: {counter} {}", value(&counters, counter));
        assert_eq!(said.contains("the copy engine moves all messages"), words == "no-mover", "{said}");
    }
}

#[test]
fn what_no_nic_may_reach_is_refused_with_the_reason() {
    let (program, folder) = measure::need!(with_stand_in(), "a C compiler and libibverbs-dev");
    let (said, _) = on_stand_in(Layer::InfiniBand, &folder, "").run(&[&program, "refusals", "-1"]);
    assert!(said.contains("is managed memory, which moves between host and GPU"), "{said}");
}

#[test]
fn what_goes_wrong_under_a_message_is_its_error_and_the_nic_goes_on() {
    let (program, folder) = measure::need!(with_stand_in(), "a C compiler and libibverbs-dev");
    for (mode, words, sentence) in [
        ("freed", "", "memory was freed under its region"),
        ("lost", "", "(700)"),
        ("reset", "", "the program has reset it"),
        ("stuck", "stuck", "CUDA's driver has not answered for 3 s"),
    ] {
        let (said, counters) = on_stand_in(Layer::InfiniBand, &folder, words).run(&[&program, mode, "-1"]);
        assert!(said.contains(sentence), "{mode}: {said}");
        assert!(value(&counters, "gpu_faults") > 0, "{mode}: {said}");
    }
}

#[test]
fn a_copy_that_was_given_up_puts_no_byte_where_it_does_not_belong() {
    let (program, folder) = measure::need!(with_stand_in(), "a C compiler and libibverbs-dev");
    // Each waits for seconds and does nothing: side by side.
    std::thread::scope(|scope| {
        for (mode, words) in [
            ("torn", "no-register inward=300"),
            ("late", "no-register inward=3000"),
            ("queued", "no-register no-mover"),
            ("mute", "mute-mover"),
            ("pair-left", "no-mover outward=3800"),
            ("pair-taken", "no-mover inward=3600"),
            ("late-forks", "no-register inward=3000"),
            ("mixed", "no-register"),
        ] {
            let (fabric, program) = (on_stand_in(Layer::InfiniBand, &folder, words), &program);
            let fabric = if mode == "mute" { patient(fabric) } else { fabric };
            scope.spawn(move || {
                let (said, _) = fabric.run(&[program, mode, "-1"]);
                assert!(
                    said.contains(mode.trim_start_matches("pair-").trim_start_matches("late-")),
                    "{mode}: {said}"
                );
                let closed = said.contains("the channel is closed");
                assert_eq!(closed, mode.starts_with("pair"), "{mode}: {said}");
            });
        }
    });
}

/// The stand-in's driver frees nothing while a kernel runs: it shows whether the mover goes only where memory
/// was seen. CUDA frees while the copy engine copies (`docs/gpu-memory.md`): no GPU runs this test.
#[test]
fn memory_that_is_freed_at_any_moment_under_its_region_is_an_error_at_most() {
    let (program, folder) = measure::need!(with_stand_in(), "a C compiler and libibverbs-dev");
    let fabric = patient(on_stand_in(Layer::InfiniBand, &folder, ""));
    let (said, counters) = fabric.run(&[&program, "churn", "-1"]);
    assert!(said.contains("regions refused") && said.contains("mapped pieces"), "{said}");
    assert!(value(&counters, "gpu_mover_commands") > 0, "{said}");
}

#[test]
fn what_a_program_calls_beside_its_traffic_ends_and_kernels_get_what_they_wait_for() {
    let (program, folder) = measure::need!(with_stand_in(), "a C compiler and libibverbs-dev");
    for (mode, words) in [("calls", ""), ("waits", ""), ("waits", "no-context-events"), ("blocked", "")] {
        on_stand_in(Layer::InfiniBand, &folder, words).run(&[&program, mode, "-1"]);
    }
}

#[test]
fn pages_of_the_host_may_go_at_any_time_and_their_registration_keeps_no_message_waiting() {
    let (program, folder) = measure::need!(with_stand_in(), "a C compiler and libibverbs-dev");
    let slow = "slow-register";
    for (mode, words) in [("pages", ""), ("pages", slow), ("forks", slow), ("big", "")] {
        let (said, counters) =
            patient(on_stand_in(Layer::InfiniBand, &folder, words)).run(&[&program, mode, "-1"]);
        assert!(said.contains(mode), "{mode}: {said}");
        assert!(value(&counters, "gpu_mover_commands") > 0, "{mode}: {said}");
    }
}

#[test]
fn memory_that_is_mapped_into_a_reserved_range_is_taken_piece_by_piece() {
    let (program, folder) = measure::need!(with_stand_in(), "a C compiler and libibverbs-dev");
    for mode in ["mapped", "mapped-alone"] {
        let fabric = patient(on_stand_in(Layer::InfiniBand, &folder, ""));
        let (said, counters) = fabric.run(&[&program, mode, "-1"]);
        assert!(said.contains("mapped\n") && said.contains("memory was freed under its region"), "{said}");
        // The mover serves it as it serves an allocation.
        assert!(value(&counters, "gpu_mover_commands") > 0, "{mode}: the copy engine moved all: {said}");
    }
}

#[test]
fn a_program_without_cuda_does_not_get_it_from_the_nic() {
    let (cuda_program, folder) = measure::need!(with_stand_in(), "a C compiler and libibverbs-dev");
    let program =
        measure::need!(crate::c_program::verbs_program("dma_buf"), "a C compiler and libibverbs-dev");
    let loud = || on_stand_in(Layer::InfiniBand, &folder, "loud");
    let (said, _) = loud().run(&[&program, "refusals"]);
    assert!(!said.contains("stand-in driver"), "{said}");
    // It would be heard: a program that loads it, and leaves with pages on their way out.
    let (said, _) = loud().run(&[&cuda_program, "leaves", "-1"]);
    assert!(said.contains("stand-in driver: loaded") && said.contains("leaves"), "{said}");
}

// On a GPU.

/// The program, where there is a GPU.
fn on_a_gpu() -> Result<String, String> {
    let there = Path::new("/dev/nvidiactl").exists();
    if there { program() } else { Err("/dev/nvidiactl not found".to_owned()) }
}

#[test]
fn gpu_messages_of_every_operation_direction_and_size_arrive_whole() {
    let program = measure::need!(on_a_gpu(), gpu, "a GPU, a C compiler and libibverbs-dev");
    for layer in Layer::BOTH {
        for (mode, options) in
            [("one", &[][..]), ("pair", &[]), ("pair-host", &[]), ("pair-host", &["--path", "wire"])]
        {
            if layer == Layer::InfiniBand && !options.is_empty() {
                continue;
            }
            let fabric = Fabric::new(layer).with_options(options);
            let fabric = if options.is_empty() { fabric } else { fabric.with_environment("QUICK", "1") };
            let (said, counters) = fabric.run(&[&program, mode, gid(layer)]);
            assert!(said.contains(" messages"), "{said}");
            assert!(value(&counters, "gpu_mover_commands") > 0, "{mode}: {said}");
            // Some thirty long messages, each of dozens of pieces; between processes they go by the engine.
            let helped = value(&counters, "gpu_mover_helped");
            println!("TABLE {layer:?} {mode}: others than the first block took {helped} pieces");
            assert!(helped > 0 || mode != "one", "no block helped: {said}");
        }
    }
}

#[test]
fn gpu_memory_that_no_nic_may_reach_is_refused_and_what_goes_wrong_is_a_message_s_error() {
    let program = measure::need!(on_a_gpu(), gpu, "a GPU, a C compiler and libibverbs-dev");
    for (mode, sentence) in [
        ("refusals", "dma-buf"),
        ("freed", "memory was freed under its region"),
        ("lost", "lost: "),
        ("mapped", "mapped"),
    ] {
        let (said, _) = Fabric::new(Layer::InfiniBand).run(&[&program, mode, "-1"]);
        assert!(said.contains(sentence), "{mode}: {said}");
    }
}

#[test]
fn gpu_programs_go_on_beside_traffic_and_kernels_get_what_they_wait_for() {
    let program = measure::need!(on_a_gpu(), gpu, "a GPU, a C compiler and libibverbs-dev");
    let alone = "calls waits slots pages big forks speed".split(' ').map(|mode| (mode, ""));
    // With threads that help to copy out of the ring, and without.
    let pairs = ["pair-host-speed", "pair-speed"];
    let pairs = pairs.into_iter().flat_map(|mode| [(mode, ""), (mode, "copy_threads = \"auto\"\n")]);
    for (mode, toml) in alone.chain(pairs) {
        let (said, counters) = Fabric::new(Layer::InfiniBand).with_config(toml).run(&[&program, mode, "-1"]);
        println!("TABLE {mode} {toml}");
        for name in ["commands", "launches", "late", "slow", "helped"] {
            let name = format!("gpu_mover_{name}");
            println!("TABLE {mode}: {name} {}", value(&counters, &name));
        }
        let [commands, late, helped] =
            ["commands", "late", "helped"].map(|name| value(&counters, &format!("gpu_mover_{name}")));
        match mode {
            // If nothing started behind the helpers, all four hundred messages would find the mover late.
            "slots" => assert!(late < 50 && said.contains("SLOTS"), "{late} late: {said}"),
            // Of the 32 pieces of each 1 MiB they take most.
            "speed" => assert!(helped > commands, "{helped} pieces, {commands} commands: {said}"),
            _ => {}
        }
        said.lines()
            .filter(|line| line.starts_with(['C', 'W', 'P', 'S']))
            .for_each(|line| println!("TABLE {line}"));
    }
}

/// The script with two ranks of PyTorch, where that finds a GPU.
fn torch_on_a_gpu() -> Result<String, String> {
    if !Path::new("/dev/nvidiactl").exists() {
        return Err("/dev/nvidiactl not found".to_owned());
    }
    let asked =
        Command::new("python3").args(["-c", "import torch; assert torch.cuda.is_available()"]).output();
    let asked = asked.map_err(|error| format!("python3: {error}"))?;
    let reason = String::from_utf8_lossy(&asked.stderr).lines().last().unwrap_or_default().to_owned();
    let script = scratch("two_ranks").join("two_ranks.py");
    fs::write(&script, include_str!("../programs/two_ranks.py")).map_err(|error| error.to_string())?;
    if asked.status.success() { Ok(script.display().to_string()) } else { Err(reason) }
}

/// A fabric on which NCCL takes two ranks of one machine for two hosts. `direct`: GPUDirect.
fn for_nccl(direct: bool) -> Fabric {
    let direct = if direct { "SYS" } else { "LOC" };
    [
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_SHM_DISABLE", "1"),
        ("NCCL_NET_GDR_LEVEL", direct),
        ("NCCL_DMABUF_ENABLE", "1"),
        ("NCCL_SOCKET_IFNAME", "lo"),
        ("NCCL_IB_HCA", "mlx5"),
        ("NCCL_DEBUG", "WARN"),
        ("MLX5_SCATTER_TO_CQE", "0"),
    ]
    .into_iter()
    .fold(Fabric::new(Layer::InfiniBand), |fabric, (name, value)| fabric.with_environment(name, value))
}

/// Runs the script to its end and prints what its ranks measured; returns the sum of both NICs' counters.
fn both_ranks(
    fabric: Fabric,
    script: &str,
    what: &str,
    label: &str,
) -> (String, impl Fn(&str) -> u64 + use<>) {
    let mut started = fabric.start(&["python3", script, what]);
    let said = started.program.succeed();
    let all = started.all_counters();
    let sum = move |name: &str| all.iter().filter_map(|counters| counters.find(name)).sum();
    said.lines().filter(|line| line.starts_with("RANK")).for_each(|line| println!("TABLE {label}: {line}"));
    for name in ["mover_commands", "mover_late", "mover_slow", "mover_ns", "engine_copies", "engine_ns"] {
        println!("TABLE {label}: {name} {}", sum(&format!("gpu_{name}")));
    }
    (said, sum)
}

#[test]
fn gpu_ranks_of_pytorch_train_with_the_gradients_of_the_whole_batch() {
    let script = measure::need!(torch_on_a_gpu(), gpu, "python3 with PyTorch and a GPU");
    let (said, sum) = both_ranks(for_nccl(true), &script, "train", "train");
    assert_eq!(said.matches(": 100 steps").count(), 2, "{said}");
    assert!(sum("gpu_engine_copies") + sum("gpu_mover_commands") > 1000, "{said}");
    assert_eq!(sum("gpu_faults"), 0, "{said}");
}

/// Times of all-reduces with and without GPUDirect, and with `cuMemCreate` (NCCL's default) or `cudaMalloc`.
#[test]
fn gpu_all_reduces_with_and_without_gpudirect_are_printed() {
    let script = measure::need!(torch_on_a_gpu(), gpu, "python3 with PyTorch and a GPU");
    for (what, direct, mapped) in [
        ("GPUDirect", true, "1"),
        ("no GPUDirect", false, "1"),
        ("GPUDirect, cudaMalloc", true, "0"),
        ("GPUDirect again", true, "1"),
    ] {
        let fabric = for_nccl(direct).with_environment("NCCL_CUMEM_ENABLE", mapped);
        let (said, sum) = both_ranks(fabric, &script, "reduce", what);
        let moved = sum("gpu_engine_copies") + sum("gpu_mover_commands");
        assert_eq!(moved > 0, direct, "{what}: {said}");
    }
}
