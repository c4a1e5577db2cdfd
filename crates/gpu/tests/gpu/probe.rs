//! `gpu-probe --json`, which names GPU, driver and compiler beside other programs' numbers.

use std::process::Command;

use gpu::{Gpu, Toolkit};
use measure::need;

/// What it says. Where the tests were carried to another machine, the environment says where the program lies.
fn said() -> String {
    let program = std::env::var_os("CARGO_BIN_EXE_gpu-probe");
    let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_gpu-probe").into());
    let output = Command::new(program).arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_probe_answers_in_one_line_whatever_is_missing() {
    let said = said();
    assert!(said.starts_with("{\"kind\":\"gpu-probe\",") && said.ends_with("]}\n"), "{said}");
    assert_eq!(said.lines().count(), 1);
    assert_eq!(said.contains("\"cuda\":null"), said.contains("no CUDA driver"), "{said}");
}

#[test]
fn gpu_and_its_driver_are_named_by_the_probe() {
    let gpu = need!(Gpu::first(), gpu, "one CUDA device");
    need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let said = said();
    let (name, arch) = (gpu.name().unwrap(), gpu.arch().unwrap());
    for part in [
        &*format!("\"name\":\"{name}\",\"arch\":\"{arch}\","),
        "\"missing\":[]",
        "\"driver\":\"",
        "\"nvrtc\":\"",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
