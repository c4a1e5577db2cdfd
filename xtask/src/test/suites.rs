//! The suites of `cargo xtask test`: one for each package of the workspace, and those that need a word of their own.

use std::collections::BTreeMap;
use std::path::Path;

/// How a package's tests are run when the ordinary way is not enough.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// With optimisation: millions of messages, or a rate that a test looks at.
    release: bool,
    /// Arguments after `--`.
    arguments: &'static [&'static str],
    /// The test programs need a NIC: each is started by `softnic run`, once for each link layer.
    on_softnic: bool,
}

const RELEASE: Way = Way { release: true, arguments: &[], on_softnic: false };

/// Packages that are not run as `cargo test -p NAME` in the dev profile.
const WAYS: &[(&str, Way)] = &[
    ("soft-nic", RELEASE),
    ("generator", Way { on_softnic: true, ..RELEASE }),
    ("rdma-shim", Way { on_softnic: true, ..RELEASE }),
    ("verbs", Way { release: false, on_softnic: true, ..RELEASE }),
    // Two programs on two cores each: these take turns, or their timing tests measure one another.
    ("softnic", Way { arguments: &["--test-threads=2"], ..RELEASE }),
];

/// NICs that one suite runs on: link layer, and the way that messages take.
const NICS: [(&str, &str); 2] = [("ib", "shm"), ("roce", "auto")];

/// Cargo starts test programs by what this variable says.
const RUNNER: &str = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER";

/// One suite: a program that prints libtest's results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// As in `floors.toml`.
    pub name: String,
    /// Package that it tests.
    pub package: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment on top of ours.
    pub environment: Vec<(String, String)>,
}

/// All suites, in the order in which they run: the fast and small first, so that a mistake shows early.
/// `softnic`: the launcher, for those that need a NIC.
pub fn all(packages: &[&str], softnic: &Path) -> Vec<Suite> {
    let ways: BTreeMap<&str, Way> = WAYS.iter().copied().collect();
    let mut suites: Vec<(bool, Suite)> = packages
        .iter()
        .flat_map(|package| {
            let way = ways.get(package).copied().unwrap_or_default();
            let names = match way.on_softnic {
                true => NICS.map(|nic| (format!("{package}-{}", nic.0), Some(nic))).to_vec(),
                false => vec![((*package).to_owned(), None)],
            };
            names.into_iter().map(move |(name, nic)| {
                let environment =
                    nic.map(|nic| [(RUNNER.to_owned(), runner(softnic, &name, nic)), require()]);
                let environment = environment.into_iter().flatten().collect();
                let package = (*package).to_owned();
                (way.release, Suite { name, command: command(&package, way), package, environment })
            })
        })
        .collect();
    suites.sort_by(|(left_release, left), (right_release, right)| {
        (left_release, &left.name).cmp(&(right_release, &right.name))
    });
    suites.into_iter().map(|(_, suite)| suite).collect()
}

/// A fabric of its own, so that no other program of this user is seen.
fn runner(softnic: &Path, name: &str, (layer, path): (&str, &str)) -> String {
    format!("{} run --fabric test-{name} --link-layer {layer} --path {path} --", softnic.display())
}

/// On the software NIC there is a NIC: a test that skips for want of one hides something. What the user asks for stays.
fn require() -> (String, String) {
    ("REQUIRE".into(), std::env::var("REQUIRE").unwrap_or_else(|_| "nic,softnic".into()))
}

fn command(package: &str, way: Way) -> Vec<String> {
    let mut words = vec!["cargo", "test", "--locked", "-p", package];
    if way.release {
        words.push("--release");
    }
    if !way.arguments.is_empty() {
        words.push("--");
        words.extend(way.arguments);
    }
    words.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_a_suite_and_optimised_ones_come_last() {
        let suites = all(&["softnic", "roce", "measure"], Path::new("softnic"));
        let names: Vec<&str> = suites.iter().map(|suite| suite.name.as_str()).collect();
        assert_eq!(names, ["measure", "roce", "softnic"]);
        assert!(suites[2].command.contains(&"--release".to_owned()));
        assert_eq!(suites[1].command, ["cargo", "test", "--locked", "-p", "roce"]);
    }

    #[test]
    fn a_package_that_needs_a_nic_runs_on_each_link_layer() {
        let suites = all(&["verbs"], Path::new("target/softnic"));
        let names: Vec<&str> = suites.iter().map(|suite| suite.name.as_str()).collect();
        assert_eq!(names, ["verbs-ib", "verbs-roce"]);
        let runner = "target/softnic run --fabric test-verbs-roce --link-layer roce --path auto --";
        assert_eq!(suites[1].environment, [(RUNNER.to_owned(), runner.to_owned()), require()]);
    }
}
