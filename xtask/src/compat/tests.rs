//! The list and its recorded results, the judgement of rows, rows that fail by design, and rows of every run.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::bench::{Bench, Outcome, Side, judge};
use super::programs::{Count, Program, Row, list, parse};
use super::*;
use crate::process::{Ended, script};
use crate::workspace::target_dir;

#[test]
fn every_row_of_the_list_has_a_result_of_what_it_runs() {
    let recorded = Recorded::read(&root().join(RESULTS)).unwrap();
    let all = list().unwrap();
    let rows: Vec<(&Program, &Row)> =
        all.iter().flat_map(|program| program.rows.iter().map(move |row| (program, row))).collect();
    for (program, row) in &rows {
        let found = recorded.rows.iter().filter(|it| (&it.program, &it.row) == (&program.name, &row.name));
        let ran: Vec<&str> = found.map(|it| it.ran.as_str()).collect();
        assert_eq!(ran, [row.ran()], "{}, {}: `cargo xtask compat --record`", program.name, row.name);
    }
    assert_eq!(recorded.rows.len(), rows.len(), "results of rows that are gone");
    for row in &recorded.rows {
        assert!(
            row.verdict == Verdict::Works || !row.why.is_empty(),
            "{}, {}: no reason",
            row.program,
            row.row
        );
        assert!(!row.why.contains(&root().display().to_string()), "{}: a folder of this machine", row.why);
    }
    let works = recorded.rows.iter().filter(|row| row.verdict >= Verdict::InPart).count();
    assert!(works >= 45, "{works} rows work at least in part");
}

#[test]
fn a_row_that_another_suite_runs_is_named_by_its_test() {
    let rows: Vec<Row> = list().unwrap().into_iter().flat_map(|program| program.rows).collect();
    let shared: Vec<&Row> = rows.iter().filter(|row| row.tests.is_some()).collect();
    for row in &shared {
        let text = fs::read_to_string(root().join(row.test_file().unwrap())).unwrap();
        let command = row.commands().pop().unwrap();
        let program = command.split(['/', ' ']).find(|word| text.contains(*word) && word.len() > 4);
        assert!(program.is_some(), "{}: {command}", row.name);
    }
    assert!(shared.len() >= 20 && !shared.iter().any(|row| row.ci), "a program runs twice");
}

#[test]
fn a_dry_run_says_which_rows_would_run_and_why_others_would_not() {
    let text = "[[program]]\nname = \"p\"\n[[program.row]]\nname = \"a\"\ncommand = \"c\"\nbytes = 1\n[[program.row]]\n\
                name = \"b\"\nnot_run = \"no port\"\n[[program.row]]\nname = \"g\"\ncommand = \"d\"\nbytes = 1\ngpus = 2\n";
    let all = parse(text).unwrap();
    let said = |words: &[&str]| {
        let options = given(words);
        dry_run(&chosen(&all, &options).unwrap(), &options, Path::new("DIR"))
    };
    let lines = said(&[]);
    let (head, rows) = lines.split_once("results: DIR\n").unwrap();
    assert!(head.contains("1 of 3 rows, 1 programs") && head.contains("another process"), "{head}");
    assert_eq!(rows, "p, a: softnic run -- c\np, b: not run: no port\np, g: not run: needs 2 GPUs");
    let on_gpu = said(&["--gpu", "--record"]);
    assert!(
        on_gpu.contains("1 of 1 rows") && on_gpu.contains("p, g: softnic run -- d\nrecords: "),
        "{on_gpu}"
    );
}

/// The options of a command line.
fn given(words: &[&str]) -> Options {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }
    let words = ["compat"].iter().chain(words);
    <Line as clap::Parser>::try_parse_from(words).ok().unwrap().options
}

#[test]
fn a_row_without_a_command_or_a_proof_is_refused() {
    let row =
        |text: &str| parse(&format!("[[program]]\nname = \"p\"\n[[program.row]]\nname = \"r\"\n{text}"));
    for (text, is_good) in [
        ("command = \"c\"\nbytes = 1", true),
        ("server = \"s\"\nsays = [\"x\"]", true),
        ("not_run = \"why\"", true),
        ("command = \"c\"", false),
        ("bytes = 1", false),
        ("command = \"c\"\nbytes = 1\nbites = 1", false),
    ] {
        assert_eq!(row(text).is_ok(), is_good, "{text}");
    }
}

#[test]
fn a_row_with_a_kernel_is_run_with_that_option_alone_and_shows_the_other_end() {
    let all = list().unwrap();
    let (with, without) = (given(&["--kernel"]), given(&[]));
    let (with, without) = (chosen(&all, &with).unwrap(), chosen(&all, &without).unwrap());
    assert!(with.len() >= 20 && with.iter().all(|(_, row)| row.kernel.is_some()), "{}", with.len());
    assert!(without.iter().all(|(_, row)| row.kernel.is_none()));
    for words in [&["--only", "kernel's soft-RoCE"][..], &["--kernel", "--only", "perftest"]] {
        let error = chosen(&all, &given(words)).unwrap_err();
        assert!(error.is::<crate::refused::Refused>() && error.to_string().contains("--kernel"), "{error}");
    }
    for (name, nearest) in [("perftets", "perftest"), ("ib_sendbw, it serves", "ib_send_bw, it serves")] {
        let error = chosen(&all, &given(&["--only", name])).unwrap_err().to_string();
        assert!(error.contains(&format!("the nearest is `{nearest}`; programs are: ")), "{error}");
    }
    for end in [kernel::End::Server, kernel::End::Client] {
        for loss in [false, true] {
            let is_one = |row: &Row| row.kernel == Some(end) && row.nic.is_empty() != loss;
            assert!(with.iter().filter(|(_, row)| is_one(row)).count() >= 2, "{end:?} {loss}");
        }
    }
    let ran = |name: &str| with.iter().find(|(_, row)| row.name == name).unwrap().1.ran();
    let nic = "softnic run --link-layer roce --path wire --ipv4 10.9.0.254";
    assert_eq!(
        ran("ib_send_bw, it serves"),
        format!("{nic} -- ib_send_bw -F -d mlx5_0 -x 3 -u 18 -p {{port}} -n 200 10.9.0.1")
    );
    assert_eq!(
        ran("ib_send_bw with 1 % loss, it asks"),
        format!("{nic} --loss 0.01 -- ib_send_bw -F -d mlx5_0 -x 3 -u 18 -p {{port}} -n 200")
    );
    let odd = "[[program]]\nname = \"p\"\n[[program.row]]\nname = \"r\"\nbytes = 1\nserver = \"c\"\nkernel = \"both\"";
    assert!(parse(odd).is_err());
}

#[test]
fn where_no_guest_boots_a_row_with_a_kernel_is_not_run() {
    let folder = scratch("no-guest");
    let bench = Bench::new(folder.join("softnic"), folder.join("logs"));
    // Its folder has no kernel.
    let text = "[[program]]\nname = \"no guest of a test\"\n[[program.row]]\nname = \"r\"\nbytes = 1\nserver = \"c\"\nkernel = \"server\"";
    let planted = parse(text).unwrap();
    let outcome = bench.run(&planted[0], &planted[0].rows[0]);
    assert!(outcome.verdict == Verdict::NotRun && outcome.why.starts_with("no guest: "), "{outcome:?}");
    drop(bench);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_row_is_judged_by_its_ends_its_words_and_the_bytes() {
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let proof = Row { says: text(&["done"]), never: text(&["wrong"]), bytes: 100, ..Row::default() };
    let tests = Row {
        count: Some(Count {
            add: " passed;".into(),
            subtract: vec!["skipped=".into(), "failures=".into()],
            at_least: 3,
        }),
        ..Row::default()
    };
    let noted = Row { note: Some("known".into()), ..proof.clone() };
    let well = Some(Ended::Well);
    for (row, ended, said, bytes, verdict, why) in [
        (&proof, well, "done", 100, Verdict::Works, ""),
        (&proof, None, "done", 100, Verdict::Works, ""),
        (&proof, well, "done", 99, Verdict::Fails, "99 bytes went over the NIC, at least 100 have to"),
        (&proof, well, "", 100, Verdict::Fails, "`done` is not said"),
        (&proof, well, "done, wrong", 100, Verdict::Fails, "`wrong` is said"),
        (
            &proof,
            Some(Ended::Status(3)),
            "one\nbad error\ndone",
            100,
            Verdict::Fails,
            "it ended with status 3: bad error",
        ),
        (&proof, Some(Ended::TimedOut), "done", 100, Verdict::Fails, "it took longer than it may: done"),
        (
            &noted,
            Some(Ended::Signal(11)),
            "done",
            100,
            Verdict::InPart,
            "its data is right, then it was ended by SIGSEGV: known",
        ),
        (
            &noted,
            Some(Ended::TimedOut),
            "done",
            100,
            Verdict::Fails,
            "it took longer than it may: done (known)",
        ),
        (
            &noted,
            Some(Ended::Signal(11)),
            "",
            100,
            Verdict::Fails,
            "it was ended by SIGSEGV: it said nothing; `done` is not said (known)",
        ),
        (&tests, well, "2 passed; 1 passed;", 0, Verdict::Works, ""),
        (&tests, well, "2 passed; ", 0, Verdict::Fails, "2 tests passed, at least 3 have to"),
        (&tests, well, "9 passed; skipped=5", 0, Verdict::InPart, "4 tests passed, 5 were skipped"),
        (
            &tests,
            Some(Ended::Status(1)),
            "9 passed; failures=8",
            0,
            Verdict::Fails,
            "it ended with status 1: 9 passed; failures=8; 1 tests passed, at least 3 have to",
        ),
        (&tests, well, "9 passed; skipped=7", 0, Verdict::Fails, "2 tests passed, at least 3 have to"),
        (
            &tests,
            Some(Ended::Status(1)),
            "a FAILED\n4 passed;",
            0,
            Verdict::InPart,
            "4 tests passed; it ended with status 1: a FAILED",
        ),
        (
            &tests,
            Some(Ended::Status(1)),
            "2 passed;",
            0,
            Verdict::Fails,
            "it ended with status 1: 2 passed;; 2 tests passed, at least 3 have to",
        ),
    ] {
        let side = Side { ended, said: said.into() };
        assert_eq!(judge(row, &[side], [0, bytes]), Outcome::of(verdict, why), "{ended:?} {said} {bytes}");
    }
}

#[test]
fn what_differs_from_run_to_run_is_not_in_a_reason() {
    let place = target_dir().join("nixl/x.py").display().to_string();
    let said = format!("softnic[12]: fine\n[1795.6] [vm:7:0] UCX ERROR {place} softnic[13]: end");
    let sides = [Side { ended: Some(Ended::Status(1)), said }];
    assert_eq!(
        judge(&Row::default(), &sides, [0; 2]).why,
        "it ended with status 1: UCX ERROR nixl/x.py softnic: end"
    );
}

/// A launcher that runs the command without a NIC, and leaves counts of one message of 64 bytes.
const LAUNCHER: &str = r#"#!/bin/sh
while [ "$1" != -- ]; do [ "$1" = --stats ] && stats=$2; shift; done
shift
echo '{"counters":{"messages_received":1,"bytes_received":64,"messages_sent":0,"bytes_sent":0}}' > "$stats"
exec "$@"
"#;

/// Programs planted to fail, and two that do not.
const PLANTED: &str = r#"
[[program]]
name = "planted"
[[program.row]]
name = "works"
command = "echo done"
says = ["done"]
bytes = 64
[[program.row]]
name = "pair works"
server = "echo ready; sleep 0.2; echo served"
client = "echo asked"
ready = "ready"
says = ["asked"]
server_says = ["served"]
bytes = 128
[[program.row]]
name = "status"
command = "echo done; echo 'no such queue' >&2; exit 4"
says = ["done"]
[[program.row]]
name = "signal"
command = "echo done; kill -SEGV $$"
says = ["done"]
[[program.row]]
name = "other way"
command = "echo done"
says = ["done"]
bytes = 65
[[program.row]]
name = "hangs"
command = "echo done; sleep 60"
says = ["done"]
deadline_s = 1
[[program.row]]
name = "server ends"
server = "echo 'cannot bind'; exit 1"
client = "echo asked"
ready = "ready"
says = ["asked"]
[[program.row]]
name = "server fails late"
server = "echo ready; sleep 0.3; exit 9"
client = "echo asked"
ready = "ready"
says = ["asked"]
[[program.row]]
name = "loses a race, always"
command = "echo lost a race; exit 1"
says = ["done"]
races = ["lost a race"]
"#;

#[test]
fn planted_failures_are_found_and_nothing_of_them_lives_on() {
    let folder = scratch("planted");
    script(&folder.join("softnic"), LAUNCHER);
    let bench = Bench::new(folder.join("softnic"), folder.join("logs"));
    let planted = parse(PLANTED).unwrap();
    planted[0].prepare().unwrap();
    let since = Instant::now();
    let said: Vec<String> = planted[0]
        .rows
        .iter()
        .map(|row| {
            let outcome = bench.run(&planted[0], row);
            format!("{}: {:?}: {}", row.name, outcome.verdict, outcome.why)
        })
        .collect();
    assert_eq!(
        said,
        [
            "works: Works: ",
            "pair works: Works: ",
            "status: Fails: it ended with status 4: no such queue",
            "signal: Fails: it was ended by SIGSEGV: done",
            "other way: Fails: 64 bytes went over the NIC, at least 65 have to",
            "hangs: Fails: it took longer than it may: done",
            "server ends: Fails: the server ended with status 1: cannot bind",
            "server fails late: Fails: the server ended with status 9: ready",
            "loses a race, always: Fails: it ended with status 1: lost a race; `done` is not said",
        ]
    );
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    let here = std::process::id();
    assert!(!crate::descendants::descendants(here).iter().any(|process| {
        let words = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        words.contains("echo done; sleep 60")
    }));
    fs::remove_dir_all(folder).unwrap();
}

fn tried(verdict: Verdict, why: &str, ran: &str) -> RowResult {
    let [program, row, version, on, revision, day] = ["p", "r", "1", "s", "0", "d"].map(str::to_owned);
    RowResult { program, row, version, ran: ran.into(), verdict, why: why.into(), on, revision, day }
}

#[test]
fn a_missing_package_is_a_fault_and_so_is_a_row_that_got_worse() {
    let missing = tried(Verdict::NotRun, "package x is missing", "c");
    for (row, before, count) in [
        (&missing, Verdict::Works, 1),
        (&tried(Verdict::NotRun, "needs a GPU", "c"), Verdict::NotRun, 0),
        (&tried(Verdict::Fails, "x", "c"), Verdict::Works, 1),
        (&tried(Verdict::InPart, "x", "c"), Verdict::Works, 1),
        (&tried(Verdict::Fails, "x", "c"), Verdict::Fails, 0),
        (&tried(Verdict::Works, "", "c"), Verdict::Fails, 0),
    ] {
        let recorded = Recorded { rows: vec![tried(before, "", "c")] };
        let found = faults(std::slice::from_ref(row), &recorded);
        assert_eq!(found.len(), count, "{row:?} {before:?} {found:?}");
    }
}

#[test]
fn what_was_not_run_here_replaces_no_result_of_another_machine() {
    let all = parse("[[program]]\nname = \"p\"\n[[program.row]]\nname = \"r\"\ncommand = \"c\"\nbytes = 1")
        .unwrap();
    for (old, new, ran, kept) in [
        (Verdict::Works, Verdict::NotRun, "c", true),
        (Verdict::Works, Verdict::NotRun, "changed", false),
        (Verdict::NotRun, Verdict::NotRun, "c", false),
        (Verdict::Works, Verdict::Fails, "c", false),
    ] {
        let (old, new) = (tried(old, "old", "c"), tried(new, "new", ran));
        let rows = Recorded { rows: vec![old.clone()] }.with(vec![new.clone()], &all).rows;
        assert_eq!(rows, [if kept { old } else { new }]);
    }
}

/// The rows marked `ci`, on the release build: programs that no other test runs.
#[test]
fn programs_of_others_work() {
    let softnic = measure::need!(released(), "the release build of softnic");
    let folder = scratch("ci");
    let bench = Bench::new(softnic, folder.clone());
    let all = list().unwrap();
    let mut count = 0;
    for program in &all {
        let rows: Vec<&Row> = program.rows.iter().filter(|row| row.ci).collect();
        if rows.is_empty() {
            continue;
        }
        measure::need!(program.lacks().map_or(Ok(()), Err), "packages of programs that are run");
        program.prepare().unwrap();
        for row in rows {
            let outcome = bench.run(program, row);
            assert_eq!(outcome, Outcome::of(Verdict::Works, ""), "{}, {}", program.name, row.name);
            count += 1;
        }
    }
    assert!(count >= 3, "{count} rows are run");
    fs::remove_dir_all(folder).unwrap();
}

fn released() -> Result<PathBuf, String> {
    let named = std::env::var_os("CARGO_BIN_EXE_softnic").map(PathBuf::from);
    let path = named.unwrap_or_else(|| target_dir().join("release/softnic"));
    if path.is_file() { Ok(path) } else { Err(format!("{} not found", path.display())) }
}

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("xtask-compat-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn rows_that_need_gpus_say_what_they_lack() {
    let row = |gpus| Row { gpus, ..Row::default() };
    for (gpus, there, lacks) in [
        (0, None, None),
        (1, None, Some("needs a GPU")),
        (2, None, Some("needs 2 GPUs")),
        (2, Some(1), Some("needs 2 GPUs, and there are 1")),
        (2, Some(2), None),
        (1, Some(0), Some("needs a GPU, and there are 0")),
    ] {
        assert_eq!(row(gpus).lacks(there).as_deref(), lacks, "{gpus} of {there:?}");
    }
}

#[test]
fn results_of_another_machine_are_taken_for_rows_of_the_list_alone() {
    let all = list().unwrap();
    let (program, row) = (&all[0], &all[0].rows[0]);
    let (name, of) = (program.name.clone(), row.name.clone());
    let tried = RowResult { program: name, row: of, ..tried(Verdict::Works, "", &row.ran()) };
    let file = scratch("import").join("results.json");
    let write = |rows: Vec<RowResult>| Recorded { rows }.write(&file).unwrap();
    write(vec![tried.clone()]);
    assert_eq!(Recorded::from_elsewhere(&file, &all).unwrap().rows, std::slice::from_ref(&tried));
    write(vec![RowResult { ran: "softnic run -- other".into(), ..tried.clone() }]);
    let error = Recorded::from_elsewhere(&file, &all).unwrap_err().to_string();
    assert!(error.contains("no such row is run here") && error.contains(&row.name), "{error}");
    write(vec![]);
    let error = Recorded::from_elsewhere(&file, &all).unwrap_err().to_string();
    assert!(error.contains("no results in it"), "{error}");
    fs::write(&file, "{").unwrap();
    assert!(Recorded::from_elsewhere(&file, &all).is_err());
    assert!(Recorded::read(&file.join("below a file")).unwrap().rows.is_empty());
}

/// Stands in for PyTorch: the second rank ends at once, the first one never.
const TORCH: &str = "import os, sys, time\nif sys.argv[2] == '0':\n    time.sleep(600)\nos._exit(0)\n";

#[test]
fn a_rank_of_pytorch_that_never_ends_is_killed_at_the_deadline() {
    let folder = std::env::temp_dir().join(format!("xtask-ranks-{}", std::process::id()));
    fs::create_dir_all(folder.join("torch")).unwrap();
    fs::write(folder.join("torch/__init__.py"), TORCH).unwrap();
    let text = fs::read_to_string(root().join("apps/softnic/tests/programs/two_ranks.py")).unwrap();
    assert!(text.contains("\nDEADLINE = 100\n"));
    let ranks = folder.join("two_ranks.py");
    fs::write(&ranks, text.replace("\nDEADLINE = 100\n", "\nDEADLINE = 1\n")).unwrap();
    let mut command = Command::new("timeout");
    command.args(["60", "python3"]).arg(ranks).arg("train").env("PYTHONPATH", &folder);
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!((ended.status.code(), &*said), (Some(1), "rank 0 did not end within 1 s\n"));
    fs::remove_dir_all(folder).unwrap();
}
