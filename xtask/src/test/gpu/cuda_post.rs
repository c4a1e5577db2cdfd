//! `examples/cuda_post`: the program for CUDA programmers to copy, built by `nvcc` with the very line in its
//! comment, and run on the software NIC.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

use super::super::outcome::Outcome;
use crate::files;
use crate::gpu_machine::GpuMachine;
use crate::process::{Ended, on_path, run_logged};
use crate::workspace;

pub const NAME: &str = "examples/cuda_post";
const HEADERS: &str = "crates/rdma-shim/include";
/// How the line begins, in any of its files, that builds it in its own folder; it has to say `-o NAME`.
const LINE: &str = "nvcc ";
/// WRITEs for which the NIC may write one CQE: each CQE costs the GPU a trip across PCIe.
const WRITES_A_CQE: u64 = 100;
/// Compiling, and running.
const LIMIT: Duration = Duration::from_secs(120);

/// Copies example and headers of the tree at `root` below `out`, builds and runs it there. Error: what is
/// wrong; `text` is what was said.
pub fn run(root: &Path, out: &Path, machine: &GpuMachine, text: &mut String) -> Result<Outcome> {
    let skip = |why: &str| Outcome { skips: vec![format!("SKIP {NAME}: {why}")], ..Outcome::default() };
    if !root.join(NAME).is_dir() {
        return Ok(skip(&format!("there is no {NAME} here")));
    }
    let Some(nvcc) = nvcc(machine.toolkit.as_deref()) else {
        return Ok(skip("nvcc is neither in the toolkit nor in PATH"));
    };
    let scratch = out.join("scratch");
    let _ = fs::remove_dir_all(&scratch);
    for folder in [NAME, HEADERS] {
        for file in files::below(&root.join(folder), &[])? {
            files::copy(&root.join(folder).join(&file), &scratch.join(folder).join(&file))?;
        }
    }
    let folder = scratch.join(NAME);
    let (line, program) = line(&folder)?
        .with_context(|| format!("no line in {NAME} begins with `{LINE}` and says `-o NAME`"))?;
    let mut build = Command::new(nvcc);
    build.args(line.split_whitespace().skip(1)).current_dir(&folder);
    let stats = out.join("logs/cuda_post-counters.jsonl");
    let _ = fs::remove_file(&stats);
    let mut program_run = Command::new(workspace::programs().join("softnic"));
    program_run
        .args(["run", "--stats"])
        .arg(&stats)
        .arg("--")
        .arg(folder.join(&program))
        .current_dir(&folder);
    for (what, command) in [("nvcc", &mut build), (program.as_str(), &mut program_run)] {
        let log = out.join("logs").join(format!("cuda_post-{what}.log"));
        let ended = run_logged(command, &log, LIMIT)?;
        if ended != Ended::Well {
            *text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
            bail!("{what} {ended} ({line})");
        }
    }
    *text = fs::read_to_string(&stats).unwrap_or_default();
    few_completions(text)?;
    text.clear();
    Ok(Outcome { passed: 1, ..Outcome::default() })
}

/// Error: what is wrong with the number of completions, by a line of the NIC's counters.
fn few_completions(counters: &str) -> Result<()> {
    let counters: serde_json::Value = serde_json::from_str(counters.trim()).unwrap_or_default();
    let [cqes, writes] = ["cqes", "posted_write"].map(|name| counters["counters"][name].as_u64());
    let (cqes, writes) = cqes.zip(writes).context("the NIC's counters have no `cqes` and `posted_write`")?;
    let most = writes / WRITES_A_CQE;
    ensure!(cqes <= most, "{cqes} CQEs for {writes} WRITEs are more than one for {WRITES_A_CQE}");
    Ok(())
}

/// The compiler: the toolkit's, else the first in `PATH`.
fn nvcc(toolkit: Option<&Path>) -> Option<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let homes = toolkit.map(Path::to_owned).into_iter().chain(homes).chain(["/usr/local/cuda".into()]);
    let mut found = homes.map(|home| home.join("bin/nvcc"));
    found.find(|nvcc| nvcc.is_file()).or_else(|| on_path(&["nvcc"], &[]))
}

/// The line that builds it, and the name of what it makes.
fn line(folder: &Path) -> Result<Option<(String, String)>> {
    let built = |line: &str| {
        let line = line.trim_start_matches(['/', '*', ' ', '$']).trim_end();
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "-o").filter(|_| line.starts_with(LINE))?;
        Some((line.to_owned(), words.get(at + 1)?.trim_start_matches("./").to_owned()))
    };
    let texts = files::below(folder, &[])?.into_iter().map(|file| fs::read_to_string(folder.join(file)));
    Ok(texts.flatten().find_map(|text| text.lines().find_map(built)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_machine::example;
    use crate::process::script;

    #[test]
    fn more_than_a_completion_for_a_hundred_writes_is_a_failure() {
        let with = |cqes: u64| {
            let counters = serde_json::json!({"cqes": cqes, "posted_write": 50176});
            few_completions(&format!("{}\n", serde_json::json!({"counters": counters})))
        };
        let said = |result: Result<()>| result.unwrap_err().to_string();
        // Of the 50,176 WRITEs of `thread` the last of each 128, each 64 and each 32 asks for one.
        with(392).unwrap();
        for cqes in [784, 1568] {
            assert!(said(with(cqes)).starts_with(&format!("{cqes} CQEs for 50176 WRITEs")));
        }
        assert!(said(few_completions("")).contains("no `cqes`"));
    }

    #[test]
    fn the_line_that_is_told_is_the_line_that_is_run() {
        let root = std::env::temp_dir().join(format!("xtask-cuda-post-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let mut machine = example();
        machine.toolkit = Some(root.join("toolkit"));
        let out = root.join("out");
        fs::create_dir_all(out.join("logs")).unwrap();
        let tried = || {
            let mut said = String::new();
            (run(&root, &out, &machine, &mut said).map_err(|why| why.to_string()), said)
        };
        assert_eq!(tried().0.unwrap().skips, [format!("SKIP {NAME}: there is no {NAME} here")]);
        fs::create_dir_all(root.join("toolkit/bin")).unwrap();
        script(
            &root.join("toolkit/bin/nvcc"),
            "#!/bin/sh\nls ../../crates/rdma-shim/include/doorbell.h || exit 4\necho \"$*\"; exit 3\n",
        );
        fs::create_dir_all(root.join(HEADERS)).unwrap();
        fs::write(root.join(HEADERS).join("doorbell.h"), "").unwrap();
        fs::create_dir_all(root.join(NAME)).unwrap();
        let source = root.join(NAME).join("cuda_post.cu");
        fs::write(&source, "// nvcc is needed.\n").unwrap();
        assert!(tried().0.unwrap_err().contains("no line"));
        fs::write(
            &source,
            "// Posts.\n//     nvcc -I ../../crates/rdma-shim/include -o cuda_post cuda_post.cu\n",
        )
        .unwrap();
        let (failed, said) = tried();
        let why = failed.unwrap_err();
        assert!(why.starts_with("nvcc ended with status 3"), "{why}");
        assert!(said.contains("-o cuda_post cuda_post.cu"), "{said}");
        fs::remove_dir_all(&root).unwrap();
    }
}
