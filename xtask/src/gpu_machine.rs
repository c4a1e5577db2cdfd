//! This machine's GPUs, driver and compiler, from `gpu-probe --json`: this program links nothing of CUDA.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use measure::Provenance;
use serde::Deserialize;

use crate::process::{Ended, WAIT, output, run_logged};
use crate::refused::refused;
use crate::workspace::{cargo, target_dir};
use crate::{carried, wheels};

const PROBE: &str = "gpu-probe";
/// Building it, from nothing.
const BUILD: Duration = Duration::from_secs(10 * 60);

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct GpuMachine {
    /// Version of the kernel's driver, as `580.95.05`.
    pub driver: Option<String>,
    /// CUDA version of the driver, as `13.0`.
    pub cuda: Option<String>,
    /// Folder of compiler and linker.
    pub toolkit: Option<PathBuf>,
    /// Version of the run-time compiler.
    pub nvrtc: Option<String>,
    /// Version of the linker.
    pub nvjitlink: Option<String>,
    /// Version of cuDNN, as `9.19.0`; or why it is not used.
    pub cudnn: Option<String>,
    pub why_no_cudnn: Option<String>,
    /// Every GPU that a process may use.
    pub gpus: Vec<Gpu>,
    /// What is missing, a sentence each.
    pub missing: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Gpu {
    /// `NVIDIA H200`.
    pub name: String,
    /// `sm_90`.
    pub arch: String,
    /// Its place on the PCI bus, as `0000:17:00.0`.
    pub bus: Option<String>,
}

impl GpuMachine {
    pub fn ask() -> Result<GpuMachine> {
        let said = output(probe()?.arg("--json").args(spare_toolkit()), WAIT).context("asking gpu-probe")?;
        GpuMachine::read(&said)
    }

    pub fn read(said: &str) -> Result<GpuMachine> {
        serde_json::from_str(said).context("reading what gpu-probe says")
    }

    /// Name and architecture of the first GPU, which is the one that programs take.
    pub fn gpu(&self) -> Option<String> {
        self.gpus.first().map(|gpu| format!("{}, {}", gpu.name, gpu.arch))
    }

    /// The first GPU's place on the PCI bus, by which other programs know it.
    pub fn bus(&self) -> Option<String> {
        self.gpus.first()?.bus.clone()
    }

    /// Why there is no GPU to use, in a sentence.
    pub fn why_none(&self) -> String {
        self.missing.first().cloned().unwrap_or_else(|| "the driver finds none".into())
    }

    /// Refuses a machine without a GPU. `words`: the refusal, of why there is none.
    pub fn has_gpu(&self, words: impl FnOnce(String) -> String) -> Result<()> {
        self.gpu().map(drop).ok_or_else(|| refused(words(self.why_none())))
    }

    /// Says of a result which GPU and which versions it stands on.
    pub fn name_in(&self, provenance: &mut Provenance) {
        provenance.gpu_device = self.gpu().unwrap_or_default();
        let versions = [&self.driver, &self.cuda, &self.nvrtc, &self.nvjitlink];
        for (name, version) in ["nvidia-driver", "cuda", "nvrtc", "nvjitlink"].iter().zip(versions) {
            provenance.versions.extend(version.iter().map(|version| ((*name).to_owned(), version.clone())));
        }
    }
}

/// The program, carried in a bundle, else built now.
pub fn probe() -> Result<Command> {
    if let Some(bundle) = carried::folder() {
        return Ok(Command::new(bundle.join(PROBE)));
    }
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--locked", "-p", "gpu", "--bin", PROBE]);
    if !target_dir().join("debug").join(PROBE).exists() {
        tell!("building gpu-probe, which takes a minute");
    }
    let log = target_dir().join("xtask-test/gpu-probe.log");
    match run_logged(&mut cargo, &log, BUILD)? {
        Ended::Well => Ok(Command::new(target_dir().join("debug").join(PROBE))),
        ended => bail!("{PROBE} was not built (it {ended}, see {})", log.display()),
    }
}

/// A toolkit that is looked at when there is no other: the wheels that were fetched.
pub fn spare_toolkit() -> Vec<std::ffi::OsString> {
    let folder = wheels::CUDA.folder();
    if folder.is_dir() { vec!["--toolkit".into(), folder.into()] } else { Vec::new() }
}

#[cfg(test)]
pub use tests::example;

#[cfg(test)]
mod tests {
    use super::*;
    use experiment::point;

    /// A machine with one H200, for tests.
    pub fn example() -> GpuMachine {
        let said = r#"{"kind":"gpu-probe","driver":"580.95.05","cuda":"13.0","toolkit":"/usr/local/cuda","nvrtc":"13.0",
            "nvjitlink":"13.0","cudnn":"9.19.0","why_no_cudnn":null,"gpus":[{"ordinal":0,"name":"NVIDIA H200","arch":"sm_90","memory_mib":143771,"bus":"0000:17:00.0"}],
            "missing":[]}"#;
        GpuMachine::read(said).expect("as gpu-probe writes it")
    }

    #[test]
    fn a_result_names_the_gpu_and_its_versions() {
        let mut provenance = point::example("gpu-thread", 64).provenance;
        example().name_in(&mut provenance);
        assert_eq!(provenance.gpu_device, "NVIDIA H200, sm_90");
        assert_eq!(
            (&*provenance.versions["nvidia-driver"], &*provenance.versions["nvrtc"]),
            ("580.95.05", "13.0")
        );
    }

    #[test]
    fn a_machine_without_a_gpu_says_why() {
        let said = r#"{"kind":"gpu-probe","driver":null,"cuda":null,"toolkit":null,"nvrtc":null,"nvjitlink":null,"gpus":[],
            "missing":["no CUDA driver: libcuda.so.1: cannot open","no CUDA toolkit"]}"#;
        let machine = GpuMachine::read(said).unwrap();
        assert_eq!(
            (machine.gpu(), machine.why_none().as_str()),
            (None, "no CUDA driver: libcuda.so.1: cannot open")
        );
        let mut provenance = point::example("cpu-shim", 64).provenance;
        machine.name_in(&mut provenance);
        assert!(provenance.gpu_device.is_empty() && !provenance.versions.contains_key("cuda"));
        assert!(GpuMachine::read("CUDA driver\tnone").is_err());
    }
}
