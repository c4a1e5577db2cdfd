//! Kernels that post: by the host twin wherever there is a compiler, and on a GPU where there is one.

use std::time::Duration;

use cli::testing::{Signal, until_loaded};
use measure::need;
use serde_json::Value;

use crate::ends::{Generator, command, device};
use crate::transfer::{transfer, transfer_to};

/// Whether this build holds kernels for the twin.
pub fn twin() -> Result<(), String> {
    device()?;
    let output = command(&["--connect", "127.0.0.1:1", "--poster", "host-twin"]).output();
    let said = String::from_utf8_lossy(&output.map_err(|e| e.to_string())?.stderr).into_owned();
    if said.contains("no C++ compiler") { Err(said) } else { Ok(()) }
}

/// Whether a GPU, its driver and a toolkit are here: `Err` is what the generator says.
fn gpu() -> Result<(), String> {
    device()?;
    let output = command(&["--connect", "127.0.0.1:1", "--poster", "gpu-thread"]).output();
    let said = String::from_utf8_lossy(&output.map_err(|e| e.to_string())?.stderr).into_owned();
    // With a GPU the first thing that fails is the connection.
    if said.contains("is a receiver listening there?") { Ok(()) } else { Err(said) }
}

const OPERATIONS: [&str; 6] = [
    "--op write",
    "--op write-imm --verify sample",
    "--op send --verify all",
    "--op write --verify all --payload 200 --qps 2",
    "--service uc --op write-imm --verify all",
    "--payload 4096 --op send",
];

fn all_arrive(poster: &str, gpu: &str) {
    let takes = |operation: &&&str| !poster.contains("original") || !operation.contains("--op send");
    for operation in OPERATIONS.iter().filter(takes) {
        let run = transfer(&format!("{poster} {operation} --count 1003 --batch 32"));
        for field in ["posted", "completed", "received"] {
            assert_eq!(run[field], 1003, "{poster} {operation}: {field}");
        }
        assert_eq!(run["gpu"], gpu, "{run}");
        assert!(run["post_ns"].as_f64().unwrap() > 0.0 && run["machine"].is_string(), "{run}");
        // A batch that is not whole is no sample; of warps that share a queue, the first one's are.
        let (bursts, qps) = (run["post"]["count"].as_u64().unwrap_or(0), run["qps"].as_u64().unwrap());
        let whole = if qps == 2 { 30 } else { 31 };
        assert!(bursts == whole || bursts < whole && run["producers"] != 1, "{run}");
    }
}

#[test]
fn every_kernel_of_the_twin_sends_what_arrives_whole() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    for kernel in ["thread", "warp", "shared --producers 3", "original"] {
        all_arrive(&format!("--poster host-twin --kernel {kernel}"), "emulated");
    }
    for kernel in ["thread", "warp"] {
        transfer(&format!(
            "--poster host-twin --kernel {kernel} --inline --payload 8 --count 500 --batch 32"
        ));
    }
    // Fewer messages than lanes, as many as slots.
    transfer(
        "--poster host-twin --kernel warp --batch 3 --doorbell-batch 3 --window 6 --verify all --count 200",
    );
}

/// Rows: the sender's options, and how many messages are looked at.
const RECEIVED: [(&str, u64); 6] = [
    ("--op send --verify all", 703),
    ("--op write-imm --verify all --payload 4097", 703),
    ("--op write --verify all --payload 100 --qps 2", 703),
    ("--op send --verify sample", 12),
    ("--op write-imm --window 64", 64),
    ("--op write --window 64", 64),
];

#[test]
fn a_kernel_of_the_twin_receives_counts_and_compares() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    for (options, checked) in RECEIVED {
        let run = transfer_to(&["--receiver", "host-twin"], &format!("{options} --count 703 --batch 32"));
        assert_eq!((&run["received"], &run["checked"]), (&703.into(), &checked.into()), "{options}");
    }
    let both = "--poster host-twin --kernel warp --op send --verify all --count 300 --batch 32";
    transfer_to(&["--receiver", "host-twin", "--twin-seed", "3"], both);
}

#[test]
fn a_kernel_that_receives_refuses_what_it_cannot_and_outlives_no_sender() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    for (plan, words) in [
        ("--service uc --op write-imm", "--service rc alone"),
        ("--op send --qps 9", "288 lanes at the receiver"),
    ] {
        let (mut receiver, address) = Generator::receiver(&["--receiver", "host-twin"]);
        let options = format!("--connect {address} {plan} --count 10");
        let sent = Generator::start(&options.split_whitespace().collect::<Vec<_>>()).end();
        let ended = receiver.end();
        assert_eq!((sent.code, ended.code), (Some(2), Some(2)), "{sent:?} {ended:?}");
        assert!(sent.stderr.contains(words) && ended.stderr.contains(words), "{sent:?} {ended:?}");
    }
    let (mut receiver, address) = Generator::receiver(&["--receiver", "host-twin"]);
    let sender = Generator::start(&["--connect", &address, "--op", "send", "--seconds", "600"]);
    std::thread::sleep(std::time::Duration::from_millis(700));
    sender.signal(Signal::SIGKILL);
    let ended = receiver.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.line()["error"].as_str().is_some_and(|error| error.contains("gone")), "{ended:?}");
}

/// Stores that become visible late and reordered, the payload's too: what a doorbell's fences are for.
#[test]
fn the_twins_kernels_send_what_arrives_under_weak_memory_too() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    // The original's volatile stores are seen at once here: of it this shows what its polls and credits do.
    for kernel in ["thread", "warp", "shared --producers 2", "original"] {
        for seed in 1..4 {
            transfer(&format!(
                "--poster host-twin --kernel {kernel} --twin-seed {seed} --count 320 --batch 32 --verify all"
            ));
        }
    }
}

#[test]
fn a_kernel_ends_when_its_time_is_up_and_when_it_is_interrupted() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    for kernel in ["thread", "warp", "shared --producers 2"] {
        let run = transfer(&format!("--poster host-twin --kernel {kernel} --seconds 0.3"));
        let seconds = run["seconds"].as_f64().unwrap();
        assert!((0.3..3.0).contains(&seconds) && run["posted"] == run["received"], "{run}");
    }
    let ended = until_loaded(Duration::from_millis(700), |load| {
        let (mut receiver, address) = Generator::receiver(&[]);
        let options = ["--connect", &address, "--poster", "host-twin", "--seconds", "600"];
        let mut sender = Generator::start(&options);
        std::thread::sleep(load);
        let before = sender.signal(Signal::SIGINT);
        let ended = sender.end_since(before);
        let has_posted = ended.lines.first().is_some_and(|line| line["posted"].as_u64() > Some(0));
        has_posted.then(|| (ended, receiver.end()).0)
    });
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let counted = |field: &str| ended.line()[field].as_u64().unwrap();
    assert_eq!(ended.line()["interrupted"], true, "{ended:?}");
    assert!(counted("received") >= counted("completed"), "{ended:?}");
}

#[test]
fn a_receiver_that_goes_away_ends_the_kernel_too() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    let (receiver, address) = Generator::receiver(&[]);
    let mut sender = Generator::start(&["--connect", &address, "--poster", "host-twin", "--seconds", "600"]);
    std::thread::sleep(std::time::Duration::from_millis(700));
    receiver.signal(Signal::SIGKILL);
    let ended = sender.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let error = ended.line()["error"].as_str().unwrap_or_default();
    assert!(error.contains("gone") || error.contains("QP 0x"), "{ended:?}");
}

fn refused(arguments: &str, words: &[&str]) {
    let arguments: Vec<_> =
        format!("--connect h:1 {arguments}").split_whitespace().map(str::to_owned).collect();
    let output = command(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{arguments:?}: {said}");
    assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
}

#[test]
fn what_kernels_cannot_do_is_refused_by_name() {
    for (arguments, words) in [
        ("--poster host-twin --qps 300", &["--qps 300", "256"][..]),
        ("--poster host-twin --kernel warp --qps 9", &["288 lanes of 32 each", "256"]),
        ("--poster host-twin --kernel warp --doorbell-batch 16", &["--doorbell-batch 16", "multiple of 32"]),
        (
            "--poster host-twin --kernel warp --batch 16 --doorbell-batch 8",
            &["--doorbell-batch 8", "--batch"],
        ),
        ("--poster gpu-original --doorbell-batch 16", &["--doorbell-batch 16", "each message"]),
        ("--poster gpu-original --op send", &["--op send", "WRITEs"]),
        ("--poster gpu-original --order early", &["original", "--order early"]),
        ("--poster host-twin --payload-memory gpu", &["--payload-memory gpu", "no GPU memory"]),
        ("--poster cpu-shim --payload-memory gpu", &["--payload-memory gpu", "use a gpu poster"]),
        ("--poster gpu-thread --payload-memory gpu-dma-buf --inline", &["--inline", "gpu-dma-buf"]),
        ("--poster host-twin --pause 1 --count 1", &["--pause", "host-twin"]),
        ("--poster host-twin --kernel shared --producers 9", &["288 lanes", "256"]),
        ("--poster host-twin --kernel shared --inline --payload 8", &["share", "--inline"]),
        ("--poster host-twin --kernel shared --doorbell blueflame", &["share", "blueflame"]),
        ("--poster host-twin --kernel shared --doorbell-batch 64", &["--doorbell-batch 64", "32"]),
        ("--poster gpu-shared --producers 0", &["--producers", "1..=128"]),
        ("--poster gpu-block", &["gpu-block", "gpu-warp"]),
        ("--receiver gpu-warp", &["--receiver", "host-twin"]),
        ("--poster host-twin --twin-seed x", &["--twin-seed", "x"]),
    ] {
        refused(arguments, words);
    }
}

#[test]
fn a_machine_without_a_gpu_or_toolkit_says_what_is_missing() {
    // Where there is a GPU, a toolkit that is nowhere.
    refused("--poster gpu-thread --cuda /nowhere/at/all", &["CUDA", "without a GPU: --poster host-twin"]);
    let arguments = ["--listen", "127.0.0.1:0", "--payload-memory", "gpu", "--cuda", "/nowhere/at/all"];
    let output = command(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("CUDA") && said.contains("leave out --payload-memory"), "{said}");
}

/// Whether this NIC takes a GPU's memory so: `Err` is its refusal.
fn takes(memory: &str) -> Result<(), String> {
    gpu()?;
    let options = ["--connect", "127.0.0.1:1", "--poster", "gpu-thread", "--payload-memory", memory];
    let output = command(&options).output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("is a receiver listening there?") { Ok(()) } else { Err(said) }
}

/// Messages from and to GPU memory; kernels of two processes take turns of ms on one GPU: only a few.
const FEW: [(&str, u64); 4] = [
    ("--op send --verify all", 97),
    ("--op write-imm --verify all --payload 4097", 97),
    ("--op write --verify all --payload 100 --qps 2", 97),
    ("--op write --window 64", 64),
];

fn from_and_to(memory: &str) {
    for (options, checked) in FEW {
        let options =
            format!("--poster gpu-thread --payload-memory {memory} {options} --count 97 --batch 32");
        let run = transfer_to(&["--receiver", "gpu"], &options);
        assert_eq!((&run["checked"], &run["payload_memory"]), (&checked.into(), &memory.into()), "{options}");
        let to = ["--receiver", "gpu", "--payload-memory", memory];
        let run = transfer_to(&to, &options);
        assert_eq!(run["checked"], checked, "{options} to {memory}");
    }
    for (payload, to) in
        [(64, &["--payload-memory", memory][..]), (1 << 20, &["--payload-memory", memory]), (1 << 20, &[])]
    {
        let run = transfer_to(
            to,
            &format!("--poster gpu-warp --payload-memory {memory} --payload {payload} --seconds 0.3"),
        );
        println!("{memory} to {to:?}, {payload} bytes: {} payload {}", line(&run), run["payload_gbps"]);
    }
}

#[test]
fn gpu_memory_by_its_addresses_is_sent_from_and_to() {
    need!(device(), nic, "an RDMA device");
    need!(takes("gpu"), gpu, "a GPU whose memory the NIC takes by its addresses");
    from_and_to("gpu");
}

#[test]
fn gpu_memory_by_a_dma_buf_is_sent_from_and_to() {
    need!(device(), nic, "an RDMA device");
    need!(takes("gpu-dma-buf"), gpu, "a GPU whose memory the NIC takes by a dma-buf");
    from_and_to("gpu-dma-buf");
}

fn line(run: &Value) -> String {
    format!("{} {} {}", run["machine"], run["msgs_per_s"], run["post"]["p50_ns"])
}

#[test]
fn gpu_kernels_send_what_arrives_whole() {
    need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "a GPU with a toolkit");
    for poster in ["gpu-thread", "gpu-warp", "gpu-shared", "gpu-original"] {
        all_arrive(&format!("--poster {poster}"), "hardware");
    }
    for (options, checked) in RECEIVED {
        let options = format!("--poster gpu-warp {options} --count 703 --batch 32");
        let run = transfer_to(&["--receiver", "gpu"], &options);
        assert_eq!((&run["received"], &run["checked"]), (&703.into(), &checked.into()), "{options}");
    }
    let run = transfer("--poster gpu-thread --doorbell-batch 16 --seconds 0.5");
    println!("gpu-thread, 64 bytes, a doorbell per 16: {}", line(&run));
}
