//! `cargo xtask doctor`: what this machine has and lacks, and which tests and figures it runs. Changes only
//! `target/`, where it builds `gpu-probe`; a bundle carries one. `docs/hardware.md` explains every message.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use clap::Args;
use measure::provenance::library_version;
use zoo::onnx_runtime::Search;

use crate::process::{WAIT, output, said};
use crate::{carried, gpu_machine, onnx_runtime, setup, wheels, workspace};

mod conclusion;
#[cfg(test)]
mod explained_tests;
mod hardware;

#[derive(Args)]
pub struct Options {
    /// What emulation could not confirm, each with its command, expected line, and whether it can be tried.
    #[arg(long)]
    hardware: bool,
    /// Library of ONNX Runtime, or its folder, that a program would be given by its option of this name.
    #[arg(long, value_name = "PATH")]
    onnxruntime: Option<PathBuf>,
}

pub fn run(options: &Options) -> Result<()> {
    if options.hardware {
        say!("{}", hardware::list(&hardware::Found::below(Path::new("/")), carried::folder()).trim_end());
        return Ok(());
    }
    let provenance = measure::Provenance::of(workspace::revision(), &[]);
    let system = setup::System::read();
    row("system", &format!("{}, kernel {}", system.name, provenance.versions["kernel"]));
    row("machine", &provenance.machine);
    let (name, rustc) = compiler(carried::folder(), &provenance.versions["rustc"]);
    row(name, &rustc);
    row("revision", &workspace::in_words(&provenance.revision));
    say!();
    // A bundle's user has no cargo to set up with.
    let mend = if carried::folder().is_some() { "" } else { "; `cargo xtask setup`" };
    for (name, why, version) in setup::packages() {
        row(name, &version.unwrap_or_else(|| format!("MISSING: {why}{mend}")));
    }
    say!();
    for library in conclusion::LIBRARIES {
        row(library, &library_version(library).unwrap_or_else(|| "not found".into()));
    }
    // Where CUDA lies is `gpu-probe`'s to say, which looks in more places than the system's folders.
    for (library, version) in ["libcuda.so", "libnvrtc.so"].map(|name| (name, library_version(name))) {
        version.iter().for_each(|version| row(library, version));
    }
    row("RDMA devices", &listed("/sys/class/infiniband", "none: everything runs on the software NIC"));
    row("GPUs", &gpus());
    if carried::folder().is_none() {
        row("CUDA compiler", &wheels::CUDA.state());
    }
    row("ONNX Runtime", &onnx_runtime::state(&Search::here(options.onnxruntime.as_deref())));
    say!();
    let cuda = cuda().unwrap_or_else(|error| vec![("CUDA".into(), format!("not asked: {error:#}"))]);
    cuda.iter().for_each(|(name, value)| row(name, value));
    say!();
    let conclusion = conclusion::Conclusion::of(&system, &cuda);
    row("runs here", &conclusion.runs());
    row("missing", &conclusion.missing());
    Ok(())
}

/// The compiler of these programs. That of a bundle is the builder's: the machine that runs it needs none.
fn compiler(bundle: Option<&Path>, rustc: &str) -> (&'static str, String) {
    match bundle {
        Some(_) => ("bundle", format!("built elsewhere with {rustc}")),
        None => ("Rust", rustc.to_owned()),
    }
}

fn row(name: &str, value: &str) {
    say!("{name:18} {value}");
}

/// What `gpu-probe` says.
fn cuda() -> Result<Vec<(String, String)>> {
    Ok(facts(&output(gpu_machine::probe()?.args(gpu_machine::spare_toolkit()), WAIT)?))
}

/// Lines of a name, a tab, and a value.
fn facts(said: &str) -> Vec<(String, String)> {
    said.lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, value)| (name.trim().to_owned(), value.to_owned()))
        .collect()
}

fn listed(folder: &str, none: &str) -> String {
    let names = workspace::names_in(Path::new(folder));
    if names.is_empty() { none.to_owned() } else { names.join(" ") }
}

fn gpus() -> String {
    let names = said(Command::new("nvidia-smi").args(["--query-gpu=name", "--format=csv,noheader"]));
    let none = "none: GPU tests skip, GPU claims say what hardware they need";
    names.map_or_else(|_| none.into(), |names| names.trim().replace('\n', ", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_probe_says_is_read_line_by_line() {
        let said =
            "CUDA driver\tno CUDA driver: libcuda.so.1: cannot open\nGPU 0 \tNVIDIA H200\tsm_90\nnoise\n";
        let read = facts(said);
        assert_eq!(read.len(), 2);
        assert_eq!(read[1], ("GPU 0".to_owned(), "NVIDIA H200\tsm_90".to_owned()));
    }

    #[test]
    fn the_compiler_that_built_a_bundle_is_no_part_of_the_machine_that_runs_it() {
        assert_eq!(compiler(None, "rustc 1.89"), ("Rust", "rustc 1.89".to_owned()));
        let of_bundle = compiler(Some(Path::new("/bundle")), "rustc 1.89");
        assert_eq!(of_bundle, ("bundle", "built elsewhere with rustc 1.89".to_owned()));
    }

    #[test]
    fn an_empty_folder_reads_as_such() {
        assert_eq!(listed("/no/such/folder", "none"), "none");
    }
}
