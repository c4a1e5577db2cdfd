//! Each client gets its answers, and prints them in one line of JSON.

use cli::testing::Program;
use measure::need;
use serde_json::json;

use crate::ends::{ECHO, asking, device, gpu, service, twin};

/// Asks a service `count` questions: both end well, and say the same.
fn asks(service_options: &[&str], options: &[&str], count: u64, bytes: u64) {
    let (mut service, address) = service(service_options);
    let count_option = count.to_string();
    let bytes_option = bytes.to_string();
    let all = [&["--count", &count_option, "--payload", &bytes_option], options].concat();
    let (asked, served) = (asking(&address, &all).end(), service.end());
    assert_eq!((asked.code, served.code), (Some(0), Some(0)), "{options:?}: {asked:?} {served:?}");
    let (run, answered) = (asked.line(), served.line());
    assert_eq!((&run["answered"], &answered["answered"]), (&json!(count), &json!(count)), "{run} {answered}");
    assert_eq!((&run["wrong_words"], &run["payload_bytes"]), (&json!(0), &json!(bytes)), "{run}");
    assert_eq!((&run["error"], &answered["error"]), (&json!(null), &json!(null)));
    let (times, warm_up) = (&run["round_trip"], run["warm_up"].as_u64().unwrap());
    assert_eq!(times["count"], count - warm_up, "{run}");
    assert!(times["p50_ns"].as_u64().unwrap() > 0 && times["p50_ns"].as_u64() <= times["p99_ns"].as_u64());
    println!(
        "TABLE {bytes} bytes, {}: p50 {} ns, p99 {} ns (nic {}, gpu {}, link {})",
        options.join(" "),
        times["p50_ns"],
        times["p99_ns"],
        run["nic"],
        run["gpu"],
        run["link"]
    );
}

#[test]
fn a_kernel_of_the_twin_answers_kernels_and_programs() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    for (machine, bytes) in [("twin", 8), ("twin", 4096), ("cpu", 8), ("cpu", 1 << 16)] {
        asks(&["--machine", "twin"], &["--machine", machine], 300, bytes);
    }
}

#[test]
fn a_service_answers_one_after_the_other() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    let (mut service, address) = service(&["--machine", "twin", "--sessions", "3", "--window", "1"]);
    for machine in ["cpu", "twin", "cpu"] {
        let asked = asking(&address, &["--machine", machine, "--count", "20"]).end();
        assert_eq!((asked.code, &asked.line()["answered"]), (Some(0), &json!(20)), "{asked:?}");
        assert_eq!(service.next_line()["answered"], 20);
    }
    assert_eq!(service.end().code, Some(0));
}

#[test]
fn a_label_says_what_took_part() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    let nic = if std::env::var_os("SOFTNIC_FABRIC").is_some() { "emulated" } else { "hardware" };
    for (machine, gpu, label) in [("twin", "emulated", "emulated"), ("cpu", "none", nic)] {
        let (mut service, address) = service(&["--machine", "twin"]);
        let asked = asking(&address, &["--machine", machine, "--count", "1"]).end();
        let run = asked.line();
        assert_eq!(
            (&run["nic"], &run["link"], &run["gpu"]),
            (&json!(nic), &json!(nic), &json!(gpu)),
            "{run}"
        );
        assert_eq!((&run["label"], &run["timer"]["name"]), (&json!(label), &json!("round_trip_ns")), "{run}");
        assert_eq!(service.end().code, Some(0));
    }
}

/// Both ends in one process: it ends well, and says so.
fn asks_itself(machine: &str, count: u64, bytes: u64) {
    let (count_option, bytes_option) = (count.to_string(), bytes.to_string());
    let options = ["--loopback", "--machine", machine, "--count", &count_option, "--payload", &bytes_option];
    let asked = Program::start(&ECHO, &options).end();
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let (run, times) = (asked.line(), &asked.line()["round_trip"]);
    assert_eq!((&run["answered"], &run["wrong_words"]), (&json!(count), &json!(0)), "{run}");
    println!(
        "TABLE {bytes} bytes, {machine} in one process: p50 {} ns, p99 {} ns (nic {}, gpu {}, link {})",
        times["p50_ns"], times["p99_ns"], run["nic"], run["gpu"], run["link"]
    );
}

#[test]
fn a_process_that_is_both_ends_answers_itself() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    asks_itself("twin", 300, 64);
}

#[test]
fn gpu_kernel_answers_a_kernel_of_its_process() {
    need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "one CUDA device");
    [8, 64, 4096].into_iter().for_each(|bytes| asks_itself("gpu", 20_000, bytes));
}

/// Two processes take turns on one GPU, some milliseconds each: few questions.
#[test]
fn gpu_kernel_answers_kernels_and_programs() {
    need!(device(), nic, "an RDMA device");
    need!(gpu(), gpu, "one CUDA device");
    for (machine, bytes, count) in [("gpu", 64, 50), ("cpu", 64, 5000)] {
        asks(&["--machine", "gpu"], &["--machine", machine], count, bytes);
    }
}
