//! Whole suites with a stand-in for a test program: a script lists, passes, fails, hangs, crashes and skips.

use std::path::PathBuf;

use super::*;
use crate::gpu_machine::example;
use crate::process::script;

/// As libtest says it with one thread: the name first, flushed.
const PROGRAM: &str = r#"#!/bin/sh
if [ "$1" = --list ]; then for name in NAMES; do echo "m::$name: test"; done; exit 0; fi
echo "$REQUIRE" >> FOLDER/required
passed=0 failed=0 lost=
echo; echo "running $# tests"
case "$*" in *again*)
  if [ ! -e FOLDER/again ]; then
    touch FOLDER/again; echo 'test m::gpu_pass ... ok'
    case "$*" in *early*) echo 'test m::gpu_early ... FAILED';; esac
    echo 'doorbell: step conv1: an engine failed; this program starts again'; exec "$0" "$@"
  fi;;
esac
for name in "$@"; do
  case $name in --*) continue;; esac
  case $lost$name in
  lost*|*lose*) printf 'test %s ... ' $name; echo FAILED; failed=$((failed + 1)) lost=lost;;
  *pass*|*again*) printf 'test %s ... ' $name; echo ok; passed=$((passed + 1));;
  *fail*) printf 'test %s ... ' $name; echo FAILED; failed=$((failed + 1));;
  *skip*) printf 'test %s ... ' $name; echo "SKIP $name: two GPUs (one)"; echo ok; passed=$((passed + 1));;
  *hang*) printf 'test %s ... ' $name; sleep 60;;
  *crash*) printf 'test %s ... ' $name; kill -SEGV $$;;
  esac
done
[ -z "$lost" ] || echo "cuX: CUDA_ERROR_X (719): its context is lost until the process ends"
echo
echo "test result: x. $passed passed; $failed failed; 0 ignored; 0 measured; 9 filtered out"
[ $failed = 0 ]
"#;

struct Stage {
    folder: PathBuf,
    programs: Vec<TestProgram>,
    floors: Floors,
    deadline: Duration,
}

fn stage(name: &str, names: &str, floors: &str) -> Stage {
    let folder = std::env::temp_dir().join(format!("xtask-gpu-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("logs")).unwrap();
    let path = folder.join("gpu-test");
    script(&path, &PROGRAM.replace("NAMES", names).replace("FOLDER", &folder.display().to_string()));
    let program = TestProgram { package: "gpu".into(), target: "test-gpu".into(), path };
    // What hangs is waited for.
    let deadline = Duration::from_secs(if names.contains("hang") { 1 } else { 60 });
    Stage { folder, programs: vec![program], floors: toml::from_str(floors).unwrap(), deadline }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Stage {
    fn run(&self, resume: bool) -> Vec<Row> {
        let machine = example();
        let run = Run {
            machine: &machine,
            gpu: machine.gpu().unwrap(),
            floors: &self.floors,
            programs: &self.programs,
            out: &self.folder,
            resume,
            deadline: self.deadline,
        };
        run.suites(&[]).unwrap()
    }

    fn processes(&self) -> usize {
        fs::read_to_string(self.folder.join("required")).unwrap_or_default().lines().count()
    }
}

fn counts(row: &Row) -> (usize, usize, usize) {
    (row.outcome.passed, row.outcome.failed, row.outcome.skips.len())
}

#[test]
fn what_passes_is_counted_against_its_floor() {
    let stage = stage("good", "gpu_pass gpu_pass_too gpu_skip other", "[suite.gpu]\ntests = 0\ngpu = 2\n");
    let rows = stage.run(false);
    assert_eq!((rows.len(), counts(&rows[0]), rows[0].floor), (1, (2, 0, 1), Some(2)));
    assert_eq!(rows[0].complaint, None);
    // The suite that runs this test may have a variable of its own, which is passed on.
    let required = std::env::var("REQUIRE").unwrap_or_else(|_| "gpu,toolkit".into());
    assert!(fs::read_to_string(stage.folder.join("required")).unwrap().starts_with(&required));
}

#[test]
fn a_suite_below_its_floor_or_without_one_fails() {
    for (floors, words) in [
        ("[suite.gpu]\ntests = 0\ngpu = 2\n", "executed 1 tests on the GPU, its floor is 2"),
        ("[suite.gpu]\ntests = 0\n", "no `gpu` floor"),
    ] {
        let rows = stage("floor", "gpu_pass gpu_skip", floors).run(false);
        assert_eq!(counts(&rows[0]), (1, 1, 1));
        assert!(rows[0].complaint.as_ref().unwrap().contains(words), "{:?}", rows[0].complaint);
    }
    // A floor whose tests have gone.
    let rows = stage("gone", "other", "[suite.gpu]\ntests = 0\ngpu = 1\n").run(false);
    assert!(rows[0].complaint.as_ref().unwrap().contains("executed 0"), "{:?}", rows[0].complaint);
}

#[test]
fn a_program_that_hangs_is_killed_named_and_gone_on_with_behind_it() {
    let stage = stage("hang", "gpu_pass gpu_hang gpu_pass_behind", "[suite.gpu]\ntests = 0\ngpu = 3\n");
    let rows = stage.run(false);
    assert_eq!(counts(&rows[0]), (2, 1, 0));
    assert_eq!(rows[0].complaint.as_deref(), Some("hung, and was killed after 1 s in `m::gpu_hang`"));
    assert_eq!(stage.processes(), 2);
}

#[test]
fn a_gpu_that_is_lost_is_not_tried_for_ever() {
    let names = "gpu_crash_1 gpu_crash_2 gpu_crash_3 gpu_crash_4 gpu_crash_5";
    let stage = stage("lost", names, "[suite.gpu]\ntests = 0\ngpu = 0\n");
    let rows = stage.run(false);
    assert_eq!((counts(&rows[0]), stage.processes()), ((0, 3, 0), 3));
    assert!(
        rows[0].complaint.as_ref().unwrap().ends_with("2 tests behind it did not run"),
        "{:?}",
        rows[0].complaint
    );
}

#[test]
fn a_destructive_test_has_a_process_of_its_own() {
    let names = "gpu_destructive_hang gpu_pass gpu_destructive_pass gpu_pass_too";
    let stage = stage("alone", names, "[suite.gpu]\ntests = 0\ngpu = 4\n");
    let rows = stage.run(false);
    assert_eq!((counts(&rows[0]), stage.processes()), ((3, 1, 0), 3));
    assert!(
        rows[0].complaint.as_ref().unwrap().contains("in `m::gpu_destructive_hang`"),
        "{:?}",
        rows[0].complaint
    );
}

#[test]
fn a_context_that_a_library_loses_fails_the_tests_of_one_model() {
    let names = "gpu_pass gpu_lose_by_libraries gpu_lose_by_libraries_pass gpu_pass_by_libraries gpu_pass_by_libraries_too";
    let stage = stage("context", names, "[suite.gpu]\ntests = 0\ngpu = 5\n");
    let rows = stage.run(false);
    assert_eq!((counts(&rows[0]), stage.processes()), ((3, 2, 0), 3));
    let words =
        "2 of 2 tests failed in the process from `m::gpu_lose_by_libraries` on, whose context was lost";
    assert_eq!(rows[0].complaint.as_deref(), Some(words));
    assert_eq!(rows[0].outcome.failures, ["m::gpu_lose_by_libraries", "m::gpu_lose_by_libraries_pass"]);
}

#[test]
fn a_program_that_starts_again_without_an_engine_is_counted_once_and_says_so() {
    let rows = stage("again", "gpu_pass gpu_again", "[suite.gpu]\ntests = 0\ngpu = 2\n").run(false);
    assert_eq!((counts(&rows[0]), rows[0].complaint.clone()), ((2, 0, 0), None));
    assert_eq!(rows[0].outcome.failures, [""; 0]);
    let said = "doorbell: step conv1: an engine failed; this program starts again";
    assert_eq!(rows[0].outcome.table, [said]);
    let rows = stage("early", "gpu_early_pass gpu_again", "[suite.gpu]\ntests = 0\ngpu = 2\n").run(false);
    let words = "m::gpu_early failed before the program started again";
    assert_eq!((counts(&rows[0]), rows[0].complaint.as_deref()), ((2, 1, 0), Some(words)));
}

#[test]
fn a_failed_test_is_no_complaint_but_a_failure() {
    let rows = stage("failed", "gpu_fail gpu_pass", "[suite.gpu]\ntests = 0\ngpu = 2\n").run(false);
    assert_eq!((counts(&rows[0]), rows[0].complaint.clone()), ((1, 1, 0), None));
}

#[test]
fn a_suite_that_passed_is_not_repeated_until_its_program_changes() {
    let stage = stage("resume", "gpu_pass gpu_skip", "[suite.gpu]\ntests = 0\ngpu = 1\n");
    assert_eq!((counts(&stage.run(false)[0]), stage.processes()), ((1, 0, 1), 1));
    assert_eq!((counts(&stage.run(true)[0]), stage.processes()), ((1, 0, 1), 1));
    let program = &stage.programs[0].path;
    let text = fs::read_to_string(program).unwrap() + "# changed\n";
    script(program, &text);
    stage.run(true);
    assert_eq!(stage.processes(), 2);
    stage.run(false);
    assert_eq!(stage.processes(), 3);
}

#[test]
fn of_a_suite_that_failed_what_passed_in_processes_of_its_own_is_not_repeated() {
    let names = "gpu_fail gpu_pass gpu_pass_by_libraries gpu_destructive_pass gpu_destructive_fail";
    let stage = stage("repeated", names, "[suite.gpu]\ntests = 0\ngpu = 5\n");
    let first = stage.run(false);
    assert_eq!((counts(&first[0]), stage.processes()), ((3, 2, 0), 4));
    let second = stage.run(true);
    assert_eq!((counts(&second[0]), stage.processes()), ((3, 2, 0), 6), "two of four");
    assert_eq!(second[0].complaint, first[0].complaint);
}
