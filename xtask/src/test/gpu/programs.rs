//! Test programs and their tests named `gpu_*`: which cargo built, and which a program lists.
//!
//! A test that needs a GPU is a function named `gpu_…`, in any module. One that may lose the context or hang
//! the driver is named `gpu_destructive_…` and gets its own process. A kernel of NVIDIA's libraries may lose
//! it too: tests `gpu_MODEL_by_libraries` share a process with those of the same model alone.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::suites::Suite;
use crate::carried::TestProgram;
use crate::packages::PACKAGES;
use crate::process::{WAIT, output};
use crate::refused::{nearest, refused};
use crate::workspace::cargo;

/// How the name of such a test begins.
const GPU: &str = "gpu_";
/// How the name of one begins that must not share a process.
const DESTRUCTIVE: &str = "gpu_destructive_";
/// What follows the model's name where libraries compute it.
const BY_LIBRARIES: &str = "_by_libraries";

/// The packages that were asked for; all that may have such tests when none was.
pub fn packages(wanted: &[String]) -> Result<Vec<&'static str>> {
    let all: Vec<&str> =
        PACKAGES.iter().filter(|package| package.gpu_tests).map(|package| package.name).collect();
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(&name.as_str())) {
        let what = format!("no package `{unknown}` has tests for a GPU{}", nearest(unknown, &all));
        return Err(refused(format!("{what}; there are: {}", all.join(", "))));
    }
    let is_wanted = |name: &&str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    Ok(all.into_iter().filter(is_wanted).collect())
}

/// Builds the test programs of these packages, of the dev profile.
pub fn build(packages: &[&str]) -> Result<Vec<TestProgram>> {
    let mut programs = Vec::new();
    for package in packages {
        let mut cargo = cargo();
        // One package at a time, as its suite is built: together they would get the features of all.
        cargo.args(["test", "--no-run", "--quiet", "--locked", "-p", package]);
        cargo.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
        let output = cargo.output().context("starting cargo test --no-run")?;
        ensure!(output.status.success(), "cargo test --no-run -p {package} failed");
        let said = String::from_utf8_lossy(&output.stdout);
        programs.extend(said_by_cargo(&said, |_| Some((*package).to_owned()))?);
    }
    Ok(programs)
}

/// Test programs in cargo's messages, one JSON object a line. `package_of`: the package of a `Cargo.toml`.
pub fn said_by_cargo(said: &str, package_of: impl Fn(&Path) -> Option<String>) -> Result<Vec<TestProgram>> {
    let mut programs = Vec::new();
    for line in said.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("reading what cargo says")?;
        let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
        let Some(path) = message["executable"].as_str().filter(|_| is_test) else { continue };
        let (target, manifest) = (&message["target"], message["manifest_path"].as_str().unwrap_or_default());
        let name = target["name"].as_str();
        let name = name.with_context(|| format!("{manifest}: cargo names no target of {path}"))?;
        let kind = target["kind"][0].as_str().unwrap_or("lib");
        let package = package_of(Path::new(manifest));
        let package = package.with_context(|| format!("{manifest}: no package of the workspace"))?;
        programs.push(TestProgram { package, target: format!("{kind}-{name}"), path: path.into() });
    }
    Ok(programs)
}

/// Those of them that have a test for a GPU.
pub fn with_gpu_tests(programs: Vec<TestProgram>) -> Result<Vec<TestProgram>> {
    let mut kept = Vec::new();
    for program in programs {
        if !Tests::of(&program.path)?.is_empty() {
            kept.push(program);
        }
    }
    Ok(kept)
}

/// Tests of one program that need a GPU, by their paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tests {
    /// Groups that share a process.
    pub together: Vec<Vec<String>>,
    /// Those that have one each.
    pub alone: Vec<String>,
}

impl Tests {
    pub fn of(program: &Path) -> Result<Tests> {
        let said = output(Command::new(program).args(["--list", "--format", "terse"]), WAIT);
        Ok(Tests::listed(&said.with_context(|| format!("asking {} for its tests", program.display()))?))
    }

    /// Reads `path::of::a_test: test`, a line each.
    fn listed(said: &str) -> Tests {
        let names = said.lines().filter_map(|line| line.strip_suffix(": test"));
        let mut tests = Tests::default();
        let mut models: Vec<Option<&str>> = Vec::new();
        for name in names {
            let last = name.rsplit("::").next().unwrap_or_default();
            if last.starts_with(DESTRUCTIVE) {
                tests.alone.push(name.to_owned());
            } else if last.starts_with(GPU) {
                let model = last.split_once(BY_LIBRARIES).map(|(model, _)| model);
                let at = models.iter().position(|other| *other == model).unwrap_or(models.len());
                if at == models.len() {
                    models.push(model);
                    tests.together.push(Vec::new());
                }
                tests.together[at].push(name.to_owned());
            }
        }
        tests
    }

    pub fn of_suite(mut self, suite: &Suite) -> Tests {
        self.together.iter_mut().for_each(|group| group.retain(|test| suite.has(test)));
        self.together.retain(|group| !group.is_empty());
        self.alone.retain(|test| suite.has(test));
        self
    }

    pub fn is_empty(&self) -> bool {
        self.together.is_empty() && self.alone.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::Refused;

    #[test]
    fn test_programs_are_those_that_cargo_names() {
        let artifact = |kind: &str, name: &str, test: bool, executable: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"package_id\":\"path+file:///t/crates/gpu#0.0.0\",\"target\":{{\"kind\":[\"{kind}\"],\
                 \"name\":\"{name}\",\"test\":true}},\"profile\":{{\"opt_level\":\"1\",\"test\":{test}}},\"executable\":{executable}}}\n"
            )
        };
        let said = artifact("lib", "measure", false, "null")
            + &artifact("lib", "gpu", true, "\"/t/deps/gpu-1\"")
            + &artifact("bin", "gpu-probe", false, "\"/t/gpu-probe\"")
            + "\nwarning: for people\n"
            + &artifact("test", "gpu", true, "\"/t/deps/gpu-2\"")
            + "{\"reason\":\"build-finished\",\"success\":true}\n";
        let programs = said_by_cargo(&said, |_| Some("gpu".into())).unwrap();
        let found: Vec<(&str, &Path)> =
            programs.iter().map(|program| (program.target.as_str(), program.path.as_path())).collect();
        assert_eq!(
            found,
            [("lib-gpu", Path::new("/t/deps/gpu-1")), ("test-gpu", Path::new("/t/deps/gpu-2"))]
        );
        assert!(said_by_cargo("{\"reason\":", |_| None).is_err());
    }

    #[test]
    fn a_test_needs_a_gpu_by_its_own_name_not_by_its_modules() {
        let said = "device::gpu_says: test\nstand_in::what_a_gpu_is: test\ngpu_tests::other: test\n\
            device::gpu_destructive_hang: test\ngpu_top: test\nbench::gpu_speed: benchmark\n\n5 tests\n";
        assert_eq!(
            Tests::listed(said),
            Tests {
                together: vec![vec!["device::gpu_says".into(), "gpu_top".into()]],
                alone: vec!["device::gpu_destructive_hang".into()]
            }
        );
        assert!(Tests::listed("a::b: test\n").is_empty());
    }

    #[test]
    fn tests_of_a_model_by_libraries_share_a_process() {
        let said = "gpu::gpu_a: test\nlibraries::gpu_x_by_libraries: test\nlibraries::gpu_x_by_libraries_at_batch_8: test\n\
            libraries::gpu_y_by_libraries: test\nmutations::gpu_x_by_libraries_with_changed_weights: test\nz::gpu_z: test\n";
        let groups: Vec<String> = Tests::listed(said).together.iter().map(|group| group.join(" ")).collect();
        let of_x = "libraries::gpu_x_by_libraries libraries::gpu_x_by_libraries_at_batch_8 \
                    mutations::gpu_x_by_libraries_with_changed_weights";
        assert_eq!(groups, ["gpu::gpu_a z::gpu_z", of_x, "libraries::gpu_y_by_libraries"]);
    }

    #[test]
    fn this_very_program_lists_no_test_for_a_gpu() {
        assert!(Tests::of(&std::env::current_exe().unwrap()).unwrap().is_empty());
    }

    #[test]
    fn a_package_without_such_tests_is_refused() {
        assert!(packages(&[]).unwrap().contains(&"generator"));
        assert_eq!(packages(&["verbs".into(), "gpu".into()]).unwrap(), ["gpu", "verbs"]);
        let error = packages(&["roce".into()]).unwrap_err();
        assert!(error.is::<Refused>() && error.to_string().contains("soft-nic"), "{error}");
    }
}
