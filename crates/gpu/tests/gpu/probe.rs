//! `gpu-probe`: `--json` names GPU, driver, compiler for others' numbers; `--energy` counts a GPU's energy.

use std::io::Write;
use std::process::{Command, Stdio};

use gpu::{Gpu, Toolkit};
use measure::need;

/// Where the tests were carried to another machine, the environment says where the program lies.
fn probe(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO_BIN_EXE_gpu-probe");
    let mut command = Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_gpu-probe").into()));
    command.args(arguments);
    command
}

/// What it says.
fn said() -> String {
    let output = probe(&["--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_probe_answers_in_one_line_whatever_is_missing() {
    let said = said();
    assert!(said.starts_with("{\"kind\":\"gpu-probe\",") && said.ends_with("]}\n"), "{said}");
    assert_eq!(said.lines().count(), 1);
    assert_eq!(said.contains("\"cuda\":null"), said.contains("no CUDA driver"), "{said}");
    // Programs print this; `doctor` prints the rows, which say where was looked.
    assert!(!said.contains("LD_LIBRARY_PATH"), "{said}");
    let rows = String::from_utf8(probe(&[]).output().unwrap().stdout).unwrap();
    assert_eq!(rows.contains("no CUDA driver"), rows.contains("LD_LIBRARY_PATH, /etc/ld.so.cache"), "{rows}");
    let output = probe(&["--json"]).env(gpu::cudnn::VARIABLE, "/nowhere/libcudnn.so.9").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("\"cudnn\":null,\"why_no_cudnn\":\"cuDNN: /nowhere/libcudnn.so.9"), "{said}");
}

#[test]
fn a_folder_that_holds_no_toolkit_is_named_with_what_it_lacks() {
    for arguments in [&["--json", "--toolkit", "/nonexistent"][..], &["--toolkit", "/nonexistent", "--json"]]
    {
        // Found nowhere else either.
        let mut probe = probe(arguments);
        let output = probe.env("DOORBELL_CUDA", "/nowhere").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for folder in ["/nowhere (", "/nonexistent ("] {
            assert!(said.contains(folder), "{folder}: {said}");
        }
    }
}

#[test]
fn an_option_without_its_value_is_one_line() {
    for (option, words) in [("--toolkit", "give the folder"), ("--energy", "give the GPU's place on the bus")]
    {
        let output = probe(&[option]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.starts_with(&format!("gpu-probe: {option}: {words}")), "{said}");
    }
}

/// What it answers to two lines of stdin.
fn energies(bus: &str, library: Option<&str>) -> Vec<String> {
    let mut probe = probe(&["--energy", bus]);
    probe.envs(library.map(|library| (gpu::nvml::VARIABLE, library)));
    let mut child = probe.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"{}\n{}\n").unwrap();
    let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    said.lines().map(str::to_owned).collect()
}

#[test]
fn each_question_for_the_energy_is_answered_also_without_a_counter() {
    let said = energies("0000:17:00.0", Some("/nowhere/libnvidia-ml.so.1"));
    let begin = "{\"kind\":\"answer\",\"why\":\"NVML: /nowhere/libnvidia-ml.so.1";
    assert!(said.len() == 2 && said.iter().all(|line| line.starts_with(begin)), "{said:?}");
}

#[test]
fn gpu_energy_is_counted_by_the_probe() {
    let gpu = need!(Gpu::first(), gpu, "one CUDA device");
    let bus = gpu.bus_id().unwrap();
    need!(gpu::nvml::EnergyCounter::on_bus(&bus), nvml, "NVML, and a GPU with an energy counter");
    let said = energies(&bus, None);
    let begin = "{\"kind\":\"answer\",\"energy_mj\":";
    assert!(said.len() == 2 && said.iter().all(|line| line.starts_with(begin)), "{said:?}");
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
