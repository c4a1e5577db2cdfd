//! The attribute from outside: tests in `tests/inner` that pass, fail, crash or are absent in the second run.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program of `tests/inner`, built as this one was.
fn inner() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let own = std::env::current_exe().unwrap();
        let folder = own.parent().and_then(Path::parent).expect("target/PROFILE/deps");
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(profile) => profile,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "test",
            "--package",
            "softnic-test",
            "--test",
            "inner",
            "--no-run",
            "--offline",
            "--locked",
        ]);
        cargo.args(["--message-format", "json", "--profile", profile, "--target-dir"]);
        let output =
            cargo.arg(folder.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let built = said.lines().find_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next());
        PathBuf::from(built.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr))))
    })
}

/// What it said of one of its tests: whether it passed, and its output.
fn run(test: &str, environment: &[(&str, &str)]) -> (bool, String) {
    let mut program = Command::new(inner());
    program.args(["--exact", test]).env_remove("SOFTNIC_TEST_NAME").envs(environment.iter().copied());
    let output = program.output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(said.contains("running 1 test"), "{said}");
    (output.status.success(), said)
}

/// The launcher, with its library and what that needs.
fn launcher() -> Result<String, String> {
    let named = std::env::var("SOFTNIC_TEST_LAUNCHER").unwrap_or_default();
    if !Path::new(&named).is_file() {
        return Err("SOFTNIC_TEST_LAUNCHER names no softnic".to_owned());
    }
    match verbs::devices() {
        Err(error @ verbs::Error::Load(_)) => Err(error.to_string()),
        _ => Ok(named),
    }
}

#[test]
fn a_test_on_the_nic_passes_and_its_options_count() {
    measure::need!(launcher(), softnic, "a release build of softnic, and libibverbs");
    for test in ["hello::a_write_arrives", "options_are_keywords"] {
        let (passed, said) = run(test, &[]);
        assert!(passed, "{said}");
    }
}

#[test]
fn a_test_that_fails_or_crashes_on_the_nic_fails_with_what_it_said() {
    measure::need!(launcher(), softnic, "a release build of softnic, and libibverbs");
    for (test, words) in [
        (
            "fails",
            &["seen before it failed", "right: 77", "fails failed on the software NIC: exit status: 101"][..],
        ),
        ("crashes", &["crashes failed on the software NIC: signal: 6"]),
    ] {
        let (passed, said) = run(test, &[]);
        assert!(!passed && words.iter().all(|word| said.contains(word)), "{test}: {said}");
    }
}

/// A launcher that starts something else: another test, all tests, or nothing.
fn stand_in(name: &str, script: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("softnic-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(name);
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    file
}

#[test]
fn a_test_that_did_not_run_on_the_nic_fails() {
    let counted = |passed| format!("echo 'test result: ok. {passed} passed; 0 failed; 0 ignored;'");
    for (name, script, passes) in [
        ("nothing", "true".to_owned(), false),
        ("none", counted(0), false),
        ("two", counted(2), false),
        ("one", counted(1), true),
        ("failed", counted(1) + "; exit 1", false),
        (
            "ours",
            r#"while [ "$1" != -- ]; do shift; done; shift; "$1" --exact no_such_test --nocapture"#
                .to_owned(),
            false,
        ),
    ] {
        let file = stand_in(name, &script);
        let (passed, said) = run("fails", &[("SOFTNIC_TEST_LAUNCHER", file.to_str().unwrap())]);
        assert_eq!(passed, passes, "{name}: {said}");
        assert!(passes || said.contains("on the software NIC"), "{name}: {said}");
    }
    let _ = std::fs::remove_dir_all(stand_in("last", "").parent().unwrap());
}

#[test]
fn without_a_launcher_a_test_fails_and_says_what_to_do() {
    let help = "put the folder of softnic into PATH, or name it in SOFTNIC_TEST_LAUNCHER";
    for (environment, words) in [
        (
            &[("SOFTNIC_TEST_LAUNCHER", "/nonexistent/softnic")][..],
            "names /nonexistent/softnic, which is no file",
        ),
        (&[("SOFTNIC_TEST_LAUNCHER", ""), ("PATH", "/nonexistent")], "softnic is not in PATH"),
    ] {
        let (passed, said) = run("fails", environment);
        assert!(!passed && said.contains(words) && said.contains(help), "{said}");
    }
}

#[test]
fn the_tutorial_shows_the_test() {
    let page = include_str!("../../../../docs/tutorials/rdma-developer.md");
    assert!(page.contains(concat!("```rust,ignore\n", include_str!("../inner/hello.rs"), "```")));
}
