//! `report` as a user starts it.

use std::fs;
use std::process::Command;

use crate::bed::ProgramOutput;

/// Seconds that the page may take on two quiet cores. They are compared with the CPU time, which other programs change little, times
/// [`SLOWER`].
const LIMIT_S: f64 = 2.0;
/// How much more this build, which is not optimised, may take on a busy machine.
const SLOWER: f64 = 4.0;

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
    let cpu: f64 = times.map(|seconds| seconds.parse::<f64>().unwrap()).sum();
    assert!(cpu > 0.0 && cpu < SLOWER * LIMIT_S, "{cpu} s of CPU time");
    fs::remove_dir_all(folder).unwrap();
}
