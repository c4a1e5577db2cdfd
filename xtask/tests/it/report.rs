//! `report` as a user starts it.

use std::fs;
use std::process::Command;
use std::time::Instant;

use measure::need;

use crate::ansible::released;
use crate::bed::{ProgramOutput, say_if_beyond};

#[test]
fn a_report_is_made_within_its_limit_and_handed_to_the_desktop() {
    let folder = std::env::temp_dir().join(format!("xtask-it-report-{}", std::process::id()));
    let (bin, opened) = (folder.join("bin"), folder.join("opened"));
    fs::create_dir_all(&bin).unwrap();
    let opener = format!(
        "printf '#!/bin/sh\\necho \"$@\" > {0}.part; mv {0}.part {0}\\n' > {1}/xdg-open",
        opened.display(),
        bin.display()
    );
    assert!(
        ProgramOutput::of(
            Command::new("sh").args(["-c", &format!("{opener}; chmod +x {}/xdg-open", bin.display())])
        )
        .ok
    );
    let out = folder.join("out");
    let report =
        format!("time {} report --recorded --open --out {}", env!("CARGO_BIN_EXE_xtask"), out.display());
    let mut bash = Command::new("bash");
    bash.args([
        "-c",
        &format!("TIMEFORMAT='cpu %U %S'; {report}; until test -s {}; do sleep 0.01; done", opened.display()),
    ]);
    let said =
        ProgramOutput::of(bash.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())));
    let page = out.join("index.html");
    said.has(&["36 claims: ", &format!("report: {}", page.display())]);
    assert_eq!(fs::read_to_string(&opened).unwrap(), format!("{}\n", page.display()));
    let times = said.text.split("cpu ").nth(1).unwrap().split_whitespace();
    let cpu_s: f64 = times.map(|seconds| seconds.parse::<f64>().unwrap()).sum();
    // Four times that of two quiet cores: other programs change the CPU time little.
    assert!(cpu_s > 0.0 && cpu_s < 8.0, "the report took {cpu_s} s of CPU time");
    fs::remove_dir_all(folder).unwrap();
}

/// Of the long run alone: the profiler, which no other test starts, is built in the release profile first.
#[test]
fn all_figures_are_measured_and_stand_on_one_page() {
    need!(measure::need::is_full(), full, "`cargo xtask test --full`");
    need!(released(), softnic, "release builds");
    let folder = std::env::temp_dir().join(format!("xtask-it-figures-{}", std::process::id()));
    let out = folder.join("all");
    let xtask = |words: &[&str], at: &std::path::Path| {
        let said =
            Command::new(env!("CARGO_BIN_EXE_xtask")).args(words).arg("--out").arg(at).output().unwrap();
        let text = [said.stdout, said.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (said.status.success(), text.concat())
    };
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--locked", "--quiet"]);
    for package in ["softnic", "generator", "profiler", "pipeline", "inference-server", "client"] {
        build.args(["-p", package]);
    }
    assert!(build.status().unwrap().success());
    let since = Instant::now();
    let (mut is_whole, mut said) = xtask(&["figure", "all", "--smoke"], &out);
    // On a busy machine a program may be silent for a minute; its figure fails, and says how to go on.
    for _ in 0..4 {
        if is_whole || !said.contains("go on with: cargo xtask figure all --smoke --resume ") {
            break;
        }
        (is_whole, said) = xtask(&["figure", "all", "--smoke", "--resume"], &out);
    }
    assert!(is_whole, "{said}");
    say_if_beyond(90.0, since.elapsed().as_secs_f64(), "figure all --smoke after the build");
    let came = |figure: u32, how: &str| said.contains(&format!("figure {figure}: {how}"));
    for figure in 1..=7 {
        let is_of_a_gpu = figure > 5;
        assert!(
            came(figure, "measured in ") || (is_of_a_gpu && came(figure, "left out: no GPU here")),
            "{said}"
        );
    }
    assert!(said.contains(&format!("cargo xtask report --add {}\n", out.display())), "{said}");
    let (is_whole, said) = xtask(&["report", "--add", &out.display().to_string()], &folder.join("page"));
    assert!(is_whole, "{said}");
    for figure in 1..=5 {
        let line = said.lines().find(|line| line.starts_with(&format!("figure {figure}: ")));
        assert!(line.unwrap().ends_with(" added"), "{said}");
    }
    fs::remove_dir_all(folder).unwrap();
}
