//! The energy counter on a stand-in of NVML, and on a GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gpu::Gpu;
use gpu::nvml::EnergyCounter;
use measure::need;

/// A library that knows one GPU, whose counter moves by 250 mJ with each look.
const LIBRARY: &str = r#"
#include <string.h>
int nvmlInit_v2(void) { return INIT; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    static int gpu;
    *device = &gpu;
    return strcmp(bus, "0000:17:00.0") ? 6 : 0;
}
#ifndef LACKS_ENERGY
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy) {
    *energy = 5000000000 + 250 * (*(int *)device)++;
    return ENERGY;
}
#endif
"#;

/// Compiles it with these macros. Error: there is no C compiler.
fn library(folder: &Path, name: &str, macros: &[&str]) -> Result<PathBuf, String> {
    let (source, library) = (folder.join("nvml.c"), folder.join(format!("{name}.so")));
    fs::write(&source, LIBRARY).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"])
        .args(macros)
        .arg("-o")
        .arg(&library)
        .arg(source);
    let said = cc.output().map_err(|error| format!("cc: {error}"))?;
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    Ok(library)
}

#[test]
fn energy_is_read_by_the_gpus_place_on_the_bus_and_what_is_missing_is_named() {
    let folder = std::env::temp_dir().join(format!("gpu-nvml-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let good = need!(library(&folder, "good", &["-DINIT=0", "-DENERGY=0"]), "a C compiler");
    let counter = EnergyCounter::at(&good, "0000:17:00.0").unwrap();
    let first = counter.read_mj().unwrap();
    assert_eq!((first, counter.read_mj().unwrap()), (5_000_000_250, 5_000_000_500));
    let other = |name, macros: &[&str]| library(&folder, name, macros).unwrap();
    for (library, bus, words) in [
        (good.clone(), "0000:99:00.0", "nvmlDeviceGetHandleByPciBusId_v2: no such GPU (6)"),
        (other("no-driver", &["-DINIT=9", "-DENERGY=0"]), "0000:17:00.0", "driver is not loaded (9)"),
        (other("mig", &["-DINIT=0", "-DENERGY=3"]), "0000:17:00.0", "not supported by this GPU"),
        (
            other("old", &["-DINIT=0", "-DLACKS_ENERGY"]),
            "0000:17:00.0",
            "it has no nvmlDeviceGetTotalEnergyConsumption",
        ),
        (folder.join("none.so"), "0000:17:00.0", "No such file"),
    ] {
        let error = EnergyCounter::at(&library, bus).unwrap_err().to_string();
        assert!(error.starts_with("NVML: ") && error.contains(words), "{words:?}: {error}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn gpu_energy_counter_moves() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    let counter = need!(EnergyCounter::of(gpu), nvml, "NVML, and a GPU with an energy counter");
    let (first, since) = (counter.read_mj().unwrap(), Instant::now());
    while counter.read_mj().unwrap() == first {
        assert!(since.elapsed() < Duration::from_secs(20), "the counter stands at {first} mJ");
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("TABLE the energy counter moved after {} ms", since.elapsed().as_millis());
}
