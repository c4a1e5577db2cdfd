//! Rust tests on a software NIC: `#[softnic_test::test]` instead of `#[test]`.
//!
//! ```text
//! #[softnic_test::test]
//! fn a_device_opens() {
//!     verbs::open(None).unwrap();
//! }
//!
//! #[softnic_test::test(link_layer = "roce", model = "cx7")]
//! fn a_port_is_ethernet() -> Result<(), verbs::Error> { … }
//! ```
//!
//! The test starts its own program again, as `softnic run -- PROGRAM --exact THE_TEST --nocapture`, and
//! passes if exactly that test passed there. So only the test has a NIC, and its crash is a failed test. Each
//! test has a fabric of its own. The launcher is the `softnic` of a shell's path, or what
//! `SOFTNIC_TEST_LAUNCHER` names. Left out: `should_panic` and async functions, which do not compile.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

pub use softnic_test_attribute::test;

/// Names the launcher where it is not in PATH.
const LAUNCHER: &str = "SOFTNIC_TEST_LAUNCHER";
/// Names, in the second run, the test that has the NIC.
const TEST: &str = "SOFTNIC_TEST_NAME";

/// What a test returns when it passed in the second run.
#[doc(hidden)]
pub trait Passed {
    fn passed() -> Self;
}

impl Passed for () {
    fn passed() {}
}

impl<E> Passed for Result<(), E> {
    fn passed() -> Self {
        Ok(())
    }
}

/// Runs the test at `path` again on a NIC with these options. False: this is that run. Panics if it fails.
#[doc(hidden)]
pub fn ran(path: &str, options: &[&str]) -> bool {
    // Test programs name their tests without the crate.
    let name = path.split_once("::").map_or(path, |(_, name)| name);
    if env::var(TEST).is_ok_and(|test| test == name) {
        return false;
    }
    let output = again(name, options).unwrap_or_else(|why| panic!("{why}"));
    let said = String::from_utf8_lossy(&output.stdout);
    // Captured, as the output of the test itself would be.
    print!("{said}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} failed on the software NIC: {}", output.status);
    let passed = said.lines().any(|line| line.starts_with("test result: ok. 1 passed; 0 failed;"));
    assert!(
        passed,
        "{name} did not run on the software NIC: its program has no such test there, or another harness"
    );
    true
}

fn again(name: &str, options: &[&str]) -> Result<Output, String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let program = env::current_exe().map_err(|error| format!("the test program's own file: {error}"))?;
    let launcher = launcher()?;
    let mut softnic = Command::new(&launcher);
    softnic.arg("run").args(options).env(TEST, name);
    if !options.contains(&"--fabric") {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        softnic.args(["--fabric", &format!("test-{}-{number}", std::process::id())]);
    }
    softnic.arg("--").arg(program).args(["--exact", name, "--nocapture", "--include-ignored"]);
    softnic.output().map_err(|error| format!("starting {}: {error}", launcher.display()))
}

/// The launcher's file. Error: what to do.
fn launcher() -> Result<PathBuf, String> {
    let how = "put the folder of softnic into PATH, or name it in SOFTNIC_TEST_LAUNCHER; Doorbell's tarball and package have it, and \
               `cargo build --release -p softnic` makes it";
    if let Some(named) = env::var_os(LAUNCHER).filter(|named| !named.is_empty()).map(PathBuf::from) {
        let missing = || format!("{LAUNCHER} names {}, which is no file: {how}", named.display());
        return if named.is_file() { Ok(named) } else { Err(missing()) };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|folder: PathBuf| folder.join("softnic"));
    places
        .find(|place: &PathBuf| Path::is_file(place))
        .ok_or_else(|| format!("softnic is not in PATH: {how}"))
}
