//! The suites of `cargo xtask test`: one for each package of the workspace, with options where needed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::Result;
use measure::Loopback;
use serde::Deserialize;

use crate::files;
use crate::refused::{nearest, refused};
use crate::setup::Purpose;
use crate::wheels::{self, Wheels};

/// How a package's tests are run when the ordinary way is not enough.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RunOptions {
    /// The packages that they need, if not all of `xtask/packages.txt`: headers, programs of others, readers
    /// of our captures and pages. Programs of another set are not in their `PATH`.
    needs: Option<Purpose>,
    /// Arguments of its test programs.
    arguments: Vec<String>,
    /// The test programs need a NIC: `softnic run` starts each, once for each of these. A NIC is a link
    /// layer, and `-wire` behind it if messages go in packets.
    nics: Vec<String>,
    /// Tests that do not depend on every NIC: a part of their paths, and on how many of the NICs they run.
    few: BTreeMap<String, usize>,
    /// The tests compile and link device code: they get a toolkit, and may not skip for want of one.
    toolkit: bool,
    /// The tests compare with ONNX Runtime, and may not skip for want of it.
    reference: bool,
    /// Packages whose programs, of the same build, the tests start.
    starts: Vec<String>,
}

static WAYS: LazyLock<BTreeMap<String, RunOptions>> =
    LazyLock::new(|| toml::from_str(include_str!("../../suites.toml")).expect("tests read it"));

/// That of any other package.
static PLAIN: LazyLock<RunOptions> = LazyLock::new(RunOptions::default);

/// Packages that are built for a package's tests.
pub fn builds(package: &str) -> impl Iterator<Item = &str> {
    let starts = WAYS.get(package).map_or(&[][..], |way| &way.starts);
    [package].into_iter().chain(starts.iter().map(String::as_str))
}

/// How the NIC carries messages from one queue to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePath {
    Shared,
    /// In packets over UDP, on the loopback interface.
    Wire,
}

impl MessagePath {
    /// The NIC's configuration for `softnic run --config`, and the address in it that is this suite's.
    fn config(self) -> (String, Option<Loopback>) {
        match self {
            MessagePath::Shared => ("path = \"shm\"\n".into(), None),
            MessagePath::Wire => {
                let own = Loopback::unused();
                (format!("path = \"wire\"\nipv4 = \"{}\"\n", own.address()), Some(own))
            }
        }
    }
}

/// One suite: test programs that print libtest's results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// As in `floors.toml`.
    pub name: String,
    pub package: String,
    /// Arguments of each test program.
    pub arguments: &'static [String],
    /// Parts of the paths of tests that run on another NIC only.
    pub left_out: Vec<&'static str>,
    /// Environment on top of ours.
    pub environment: Vec<(String, String)>,
    pub nic: Option<UnderNic>,
}

impl Suite {
    /// What its test programs are told.
    pub fn words(&self) -> impl Iterator<Item = &'static str> {
        let left_out = self.left_out.iter().flat_map(|part| ["--skip", part]);
        self.arguments.iter().map(String::as_str).chain(left_out)
    }

    /// Starts one of its test programs, on its NIC if it has one.
    pub fn command(&self, program: &Path) -> Command {
        let runner = self.nic.iter().flat_map(|nic| &nic.runner).map(Path::new);
        let mut words = runner.chain([program]);
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words);
        command
    }

    /// Whether a test is one of its own.
    pub fn has(&self, test: &str) -> bool {
        !self.left_out.iter().any(|part| test.contains(part))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderNic {
    message_path: MessagePath,
    /// What starts a program on it: the launcher and its options, the last of them `--`.
    pub runner: Vec<String>,
    config: PathBuf,
    /// Where each process leaves its counters.
    stats: PathBuf,
}

impl UnderNic {
    /// Writes the configuration, and removes an earlier run's counts. Returns the address held for the suite.
    pub fn prepare(&self) -> Result<Option<Loopback>> {
        let (config, own) = self.message_path.config();
        files::write(&self.config, &config)?;
        files::remove(&self.stats)?;
        Ok(own)
    }

    /// What is wrong with the way that the messages took, by the NIC's own counters.
    pub fn complaint(&self) -> Option<String> {
        match fs::read_to_string(&self.stats) {
            Ok(lines) => astray(self.message_path, &lines),
            Err(error) => Some(format!("no counters of the NIC in {}: {error}", self.stats.display())),
        }
    }
}

/// What counter lines say against `message_path`: suites on the wire must have sent packets and nothing else,
/// and others none.
fn astray(message_path: MessagePath, lines: &str) -> Option<String> {
    let sum = |name: &str| {
        let one = |line: &str| {
            let counters: serde_json::Value = serde_json::from_str(line).ok()?;
            counters["counters"][name].as_u64()
        };
        lines.lines().map(one).sum::<Option<u64>>()
    };
    let names = ["wire_packets_sent", "link_requests_sent"];
    let [Some(packets), Some(records)] = names.map(sum) else {
        return Some(format!("the NIC left a line of counters without one of {}", names.join(", ")));
    };
    match message_path {
        MessagePath::Wire if packets == 0 => Some("no packet was sent, so no test saw the wire".into()),
        MessagePath::Wire if records > 0 => Some(format!("{records} messages went through shared memory")),
        MessagePath::Shared if packets > 0 => Some(format!("{packets} packets were sent")),
        _ => None,
    }
}

/// All suites by their names.
/// `softnic`: the launcher, for those that need a NIC; `folder`: where their configurations and counters lie.
pub fn all(packages: &[&str], softnic: &Path, folder: &Path) -> Vec<Suite> {
    let mut suites: Vec<Suite> = Vec::new();
    for package in packages {
        let way = WAYS.get(*package).unwrap_or(&PLAIN);
        let plain = Suite {
            name: (*package).to_owned(),
            package: (*package).to_owned(),
            arguments: &way.arguments,
            left_out: Vec::new(),
            environment: environment(way),
            nic: None,
        };
        for (place, nic) in way.nics.iter().enumerate() {
            let elsewhere = way.few.iter().filter(|(_, nics)| place >= **nics);
            let left_out = elsewhere.map(|(part, _)| part.as_str()).collect();
            suites.push(on(Suite { left_out, ..plain.clone() }, nic, softnic, folder));
        }
        if way.nics.is_empty() {
            suites.push(plain);
        }
    }
    suites.sort_by(|left, right| left.name.cmp(&right.name));
    suites
}

/// Keeps suites with these names or packages; all if there are none. Error: no such suite, of which `kind`.
pub fn keep(suites: &mut Vec<Suite>, wanted: &[String], kind: &str) -> Result<()> {
    let is = |suite: &Suite, wanted: &String| suite.name == *wanted || suite.package == *wanted;
    if let Some(unknown) = wanted.iter().find(|name| !suites.iter().any(|suite| is(suite, name))) {
        let names: Vec<&str> = suites.iter().map(|suite| &*suite.name).collect();
        let packages: Vec<&str> = suites.iter().map(|suite| &*suite.package).collect();
        let nearest = nearest(unknown, &[&names[..], &packages].concat());
        return Err(refused(format!("no suite `{unknown}`{kind}{nearest}; there are: {}", names.join(", "))));
    }
    suites.retain(|suite| wanted.is_empty() || wanted.iter().any(|wanted| is(suite, wanted)));
    Ok(())
}

/// The suite on a NIC, on a fabric of its own, so that no other program of this user is seen.
fn on(plain: Suite, nic: &str, softnic: &Path, folder: &Path) -> Suite {
    let (layer, message_path) =
        nic.strip_suffix("-wire").map_or((nic, MessagePath::Shared), |layer| (layer, MessagePath::Wire));
    let name = format!("{}-{nic}", plain.name);
    let (config, stats) = (folder.join(format!("{name}.toml")), folder.join(format!("{name}.stats.jsonl")));
    let [softnic, of_config, of_stats] = [softnic, &config, &stats].map(|path| path.display().to_string());
    let fabric = format!("test-{name}-{}", std::process::id());
    let on_files = [&softnic, "run", "--config", &of_config, "--stats", &of_stats];
    let runner = [&on_files[..], &["--fabric", &fabric, "--link-layer", layer, "--"]].concat();
    let runner = runner.into_iter().map(str::to_owned).collect();
    // Beside a toolkit and a reference, if the package has one.
    let mut environment = plain.environment.clone();
    let own = environment.pop_if(|(name, _)| name == "REQUIRE").map(|(_, keys)| keys);
    let keys = own.map_or_else(String::new, |keys| format!(",{keys}"));
    environment.push(require(&format!("nic,softnic{keys}")));
    Suite { name, environment, nic: Some(UnderNic { message_path, runner, config, stats }), ..plain }
}

/// Where a package's compiler and linker, and its reference, are. A GPU is not required: without one its
/// tests are counted as skipped.
fn environment(way: &RunOptions) -> Vec<(String, String)> {
    let wanted =
        [(way.toolkit, &wheels::CUDA, "toolkit"), (way.reference, &wheels::ONNX_RUNTIME, "reference")];
    let (mut environment, mut keys) = (Vec::new(), Vec::new());
    for (_, wheels, key) in wanted.into_iter().filter(|(wanted, ..)| *wanted) {
        environment.push((wheels.variable.into(), wheels.used().display().to_string()));
        keys.push(key);
    }
    environment.extend((!keys.is_empty()).then(|| require(&keys.join(","))));
    environment
}

/// The set of packages that the tests of a package need, where it is another one than [`Purpose::Test`].
pub fn purpose(package: &str) -> Option<Purpose> {
    WAYS.get(package)?.needs
}

/// What set-up brings for these suites: the largest of their package sets, and the wheels they are told of.
pub fn needs(suites: &[Suite]) -> (Purpose, Vec<&'static Wheels>) {
    let purposes = suites.iter().map(|suite| purpose(&suite.package).unwrap_or(Purpose::Test));
    let is_told = |wheels: &&Wheels| {
        suites.iter().flat_map(|suite| &suite.environment).any(|(name, _)| name == wheels.variable)
    };
    (purposes.max().unwrap_or(Purpose::Computing), wheels::ALL.into_iter().filter(is_told).collect())
}

/// What is there by our own doing: a test that skips without it hides something. The user's wish stays.
fn require(ours: &str) -> (String, String) {
    ("REQUIRE".into(), std::env::var("REQUIRE").unwrap_or_else(|_| ours.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(packages: &[&str]) -> Vec<Suite> {
        all(packages, Path::new("target/softnic"), Path::new("target/logs"))
    }

    fn names(suites: &[Suite]) -> Vec<&str> {
        suites.iter().map(|suite| suite.name.as_str()).collect()
    }

    #[test]
    fn every_package_is_a_suite() {
        let suites = named(&["softnic", "roce", "measure"]);
        assert_eq!(names(&suites), ["measure", "roce", "softnic"]);
        assert_eq!(suites[1].arguments, ["--show-output"]);
        assert!(suites.iter().all(|suite| suite.nic.is_none()));
    }

    #[test]
    fn device_code_is_compiled_with_a_toolkit_that_may_not_be_missing() {
        let suites = named(&["gpu", "measure"]);
        let names: Vec<&str> = suites[0].environment.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["DOORBELL_CUDA", "REQUIRE"]);
        assert_eq!(suites[0].environment[1], require("toolkit"));
        assert!(suites[1].environment.is_empty());
    }

    #[test]
    fn models_are_compared_with_a_reference_that_may_not_be_missing() {
        let suites = named(&["inference"]);
        let names: Vec<&str> = suites[0].environment.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["DOORBELL_CUDA", "DOORBELL_ONNXRUNTIME", "REQUIRE"]);
        assert_eq!(suites[0].environment[2], require("toolkit,reference"));
    }

    #[test]
    fn only_what_the_wanted_suites_need_is_set_up() {
        for (packages, purpose, wheels) in [
            (&["roce", "slots"][..], Purpose::Computing, &[][..]),
            (&["roce", "verbs"], Purpose::Figure, &[]),
            (&["gpu"], Purpose::Figure, &["DOORBELL_CUDA"]),
            (&["roce", "rdma-shim"], Purpose::Test, &["DOORBELL_CUDA"]),
            (&["profiler"], Purpose::Figure, &["DOORBELL_ONNXRUNTIME"]),
            // Their servers run models, which their tests compute once more.
            (&["client"], Purpose::Figure, &["DOORBELL_ONNXRUNTIME"]),
            (&["inference-server"], Purpose::Figure, &["DOORBELL_ONNXRUNTIME"]),
            (&["inference", "roce"], Purpose::Figure, &["DOORBELL_CUDA", "DOORBELL_ONNXRUNTIME"]),
            (&["roce", "manual"], Purpose::Test, &[]),
        ] {
            let (found, told) = needs(&named(packages));
            let told: Vec<&str> = told.iter().map(|wheels| wheels.variable).collect();
            assert_eq!((found, &*told), (purpose, wheels), "{packages:?}");
        }
    }

    #[test]
    fn packages_with_a_way_of_their_own_are_of_this_workspace() {
        let metadata = crate::workspace::Metadata::ours(&crate::workspace::root()).unwrap();
        for (name, way) in WAYS.iter() {
            assert!(metadata.packages.iter().any(|package| package.name == *name), "{name}");
            assert!(way.nics.iter().all(|nic| ["ib", "roce", "roce-wire"].contains(&&**nic)), "{name}");
        }
    }

    #[test]
    fn packages_that_compute_need_no_compiler_of_kernels() {
        let metadata = crate::workspace::Metadata::ours(&crate::workspace::root()).unwrap();
        let is_computing = |(_, way): &(_, &RunOptions)| way.needs == Some(Purpose::Computing);
        let packages: Vec<&str> = WAYS.iter().filter(is_computing).map(|(name, _)| name.as_str()).collect();
        assert!(packages.len() > 10, "{packages:?}");
        for package in packages {
            let (mut seen, mut next) = (std::collections::BTreeSet::new(), vec![package]);
            while let Some(name) = next.pop() {
                let of = metadata.packages.iter().filter(|package| package.name == name && seen.insert(name));
                next.extend(of.flat_map(|package| &package.dependencies).map(|dependency| &*dependency.name));
            }
            let compiles = package != "host-twin-build" && seen.contains("host-twin-build");
            assert!(!compiles, "{package}");
        }
    }

    #[test]
    fn a_package_that_needs_both_gets_a_nic_and_a_toolkit() {
        for suite in named(&["rdma-shim"]) {
            let names: Vec<&str> = suite.environment.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["DOORBELL_CUDA", "REQUIRE"]);
            assert_eq!(suite.environment[1], require("nic,softnic,toolkit"));
        }
    }

    #[test]
    fn a_package_that_needs_a_nic_runs_on_each_link_layer_and_way() {
        let suites = named(&["verbs", "rdma-shim"]);
        assert_eq!(
            names(&suites),
            ["rdma-shim-ib", "rdma-shim-roce", "verbs-ib", "verbs-roce", "verbs-roce-wire"]
        );
        let runner = format!(
            "target/softnic run --config target/logs/verbs-roce-wire.toml \
             --stats target/logs/verbs-roce-wire.stats.jsonl \
             --fabric test-verbs-roce-wire-{} --link-layer roce --",
            std::process::id()
        );
        let nic = suites[4].nic.as_ref().unwrap();
        assert_eq!((nic.runner.join(" "), nic.message_path), (runner, MessagePath::Wire));
        assert_eq!(suites[4].environment, [require("nic,softnic")]);
    }

    #[test]
    fn tests_that_do_not_depend_on_the_nic_run_on_the_first_ones() {
        let suites = named(&["generator", "echo"]);
        for (suite, test, is_there) in [
            ("generator-ib", "plan::tests::a_plan", true),
            ("generator-roce", "plan::tests::a_plan", false),
            ("generator-roce", "wrappers::twin_senders", true),
            ("generator-roce-wire", "wrappers::twin_senders", false),
            ("generator-roce-wire", "transfer::each_operation", true),
            ("generator-roce", "bad_input::an_option", true),
            ("generator-roce-wire", "bad_input::an_option", false),
        ] {
            let found = suites.iter().find(|one| one.name == suite).unwrap();
            assert_eq!(found.has(test), is_there, "{suite}: {test}");
        }
        let words = suites.iter().find(|suite| suite.name == "echo-roce").unwrap().words();
        let skips = ["--skip", "kernel::", "--skip", "modes::", "--skip", "signals::"];
        assert_eq!(words.collect::<Vec<_>>()[2..], skips);
    }

    #[test]
    fn a_suite_whose_messages_took_another_way_is_named() {
        let line = |packets, records| {
            format!(
                "{{\"pid\":7,\"counters\":{{\"wire_packets_sent\":{packets},\
                 \"link_requests_sent\":{records}}}}}\n"
            )
        };
        let (shared, wire) = (line(0, 1) + &line(0, 0), line(9, 0) + &line(0, 0));
        assert_eq!(astray(MessagePath::Wire, &wire), None);
        assert!(astray(MessagePath::Wire, &line(0, 0)).unwrap().contains("no packet"));
        assert!(astray(MessagePath::Wire, &line(9, 2)).unwrap().contains("2 messages"));
        assert!(astray(MessagePath::Shared, &wire).unwrap().contains("9 packets"));
        assert_eq!(astray(MessagePath::Shared, &shared), None);
        assert!(astray(MessagePath::Shared, "{}\n").unwrap().contains("without one of wire_packets_sent"));
    }

    #[test]
    fn counters_of_an_earlier_run_do_not_count() {
        let folder = std::env::temp_dir().join(format!("xtask-suites-{}", std::process::id()));
        let suites = all(&["verbs"], Path::new("softnic"), &folder);
        let nic = suites[2].nic.as_ref().unwrap();
        nic.prepare().unwrap();
        fs::write(&nic.stats, "{\"counters\":{\"wire_packets_sent\":5,\"link_requests_sent\":0}}\n").unwrap();
        assert_eq!(nic.complaint(), None);
        let own = nic.prepare().unwrap().expect("packets need an address").address();
        assert!(nic.complaint().unwrap().contains("no counters"));
        let config = fs::read_to_string(&nic.config).unwrap();
        assert!(config.contains("wire") && config.contains(&format!("{own:?}")), "{config}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
