//! The suites of `cargo xtask test`: one for each package of the workspace, and those that need a word of their own.

use std::collections::BTreeMap;

/// How a package's tests are run when the ordinary way is not enough.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// With optimisation: millions of messages, or a rate that a test looks at.
    release: bool,
    /// Arguments after `--`.
    arguments: &'static [&'static str],
}

/// Packages that are not run as `cargo test -p NAME` in the dev profile.
const WAYS: &[(&str, Way)] = &[
    ("soft-nic", Way { release: true, arguments: &[] }),
    ("rdma-shim", Way { release: true, arguments: &[] }),
    ("generator", Way { release: true, arguments: &[] }),
    // Two programs on two cores each: these take turns, or their timing tests measure one another.
    ("softnic", Way { release: true, arguments: &["--test-threads=2"] }),
];

/// One suite: a program that prints libtest's results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// As in `floors.toml`.
    pub name: String,
    /// Program and arguments.
    pub command: Vec<String>,
}

/// All suites, in the order in which they run: the fast and small first, so that a mistake shows early.
pub fn all(packages: &[&str]) -> Vec<Suite> {
    let ways: BTreeMap<&str, Way> = WAYS.iter().copied().collect();
    let mut suites: Vec<(bool, Suite)> = packages
        .iter()
        .map(|package| {
            let way = ways.get(package).copied().unwrap_or_default();
            (way.release, Suite { name: (*package).to_owned(), command: command(package, way) })
        })
        .collect();
    suites.sort_by(|(left_release, left), (right_release, right)| {
        (left_release, &left.name).cmp(&(right_release, &right.name))
    });
    suites.into_iter().map(|(_, suite)| suite).collect()
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
        let suites = all(&["softnic", "roce", "measure"]);
        let names: Vec<&str> = suites.iter().map(|suite| suite.name.as_str()).collect();
        assert_eq!(names, ["measure", "roce", "softnic"]);
        assert!(suites[2].command.contains(&"--release".to_owned()));
        assert_eq!(suites[1].command, ["cargo", "test", "--locked", "-p", "roce"]);
    }
}
