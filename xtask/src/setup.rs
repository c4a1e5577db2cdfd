//! `cargo xtask setup`: which packages a command needs, why, and their installation where it is allowed.
//!
//! A clean machine is Debian 12 or 13 or Ubuntu 24.04 with git, gcc and a stable Rust. Other systems get the
//! list and a check of what can be seen without a package manager.

use std::fs;
use std::io::IsTerminal;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use nix::unistd::geteuid;
use serde::Deserialize;
use zoo::onnx_runtime::Search;

use crate::carried;
use crate::process::{command, done, said};
use crate::refused::refused;
use crate::stop;
use crate::wheels::{self, Wheels};

#[derive(Args)]
pub struct Options {
    /// What the packages are for.
    #[arg(value_enum, default_value = "test")]
    purpose: Purpose,
    /// Print the command instead of running it, and exit 2 when something is missing.
    #[arg(long)]
    no_install: bool,
}

/// What a set of packages is for; each holds the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// Suites that only compute: what every machine has that builds Rust.
    #[value(skip)]
    Computing,
    /// Drawing figures: the run-time libraries.
    Figure,
    /// `bench-nic`: perftest as well.
    Bench,
    /// `testbed`: sshd and ansible as well.
    Testbed,
    /// The tests: headers, test programs, lint tools, and a CUDA compiler (133 MB).
    Test,
    /// `test --full`: what makes roots of other distributions and containers, and ansible-lint.
    Full,
}

/// One package, its first purpose, and why it is needed.
pub struct Package {
    name: &'static str,
    purpose: Purpose,
    /// Whether no other system has it.
    debian: bool,
    why: &'static str,
}

impl Package {
    /// Whether the system that calls itself so has it.
    fn is_of(&self, system: &str) -> bool {
        !self.debian || system.starts_with("Debian")
    }
}

/// Lines of purpose, name and reason, one a package; `@debian` after the purpose if others lack the name.
const LIST: &str = include_str!("../packages.txt");

fn list() -> impl Iterator<Item = Package> {
    LIST.lines().filter_map(|line| {
        let (purpose, rest) = line.split_once(' ')?;
        let (name, why) = rest.split_once(' ')?;
        let (purpose, system) = purpose.split_once('@').unwrap_or((purpose, ""));
        let purpose = Purpose::from_str(purpose, false).ok()?;
        Some(Package { name, purpose, debian: system == "debian", why })
    })
}

pub fn run(options: &Options) -> Result<()> {
    prepare(options.purpose, options.no_install)?;
    say!("setup: everything for `{}` is here", name(options.purpose));
    Ok(())
}

/// Makes sure that what `purpose` needs is installed; called by every command that needs something.
pub fn prepare(purpose: Purpose, no_install: bool) -> Result<()> {
    prepare_with(purpose, if purpose < Purpose::Test { &[] } else { &wheels::ALL }, no_install)
}

/// As [`prepare`], with these wheels of those that the tests need.
pub fn prepare_with(purpose: Purpose, wheels: &[&Wheels], no_install: bool) -> Result<()> {
    let needs_none = purpose == Purpose::Computing && wheels.is_empty();
    // Nothing can be fetched where a bundle is used; a command that misses something says so.
    if needs_none || carried::folder().is_some() {
        return Ok(());
    }
    let system = System::read();
    if !system.has_packages {
        // Not Debian or Ubuntu: say once what is expected, and let the run itself find out.
        let wanted = names(&wanted(purpose)).join(" ");
        say!("setup: no dpkg here; {} is expected to have: {wanted}", system.name);
        return tools(purpose, wheels, no_install, || {
            Err(refused("python3 has no pip, which fetches NVIDIA's run-time compiler; install it"))
        });
    }
    let missing = missing(purpose, &system);
    if !missing.is_empty() {
        say!("setup: {} lacks {} of the packages for `{}`:", system.name, missing.len(), name(purpose));
        missing.iter().for_each(|package| say!("  {:18} {}", package.name, package.why));
        let missing = names(&missing);
        match missing.contains(&SSH_SERVER) && !no_install {
            true => without_ssh_server(|| install(&missing, no_install))?,
            false => install(&missing, no_install)?,
        }
    }
    tools(purpose, wheels, no_install, || install(&["python3-pip"], false))
}

/// The testbed's nodes start this package's sshd; the package would start one for the machine, at each boot.
const SSH_SERVER: &str = "openssh-server";

/// Installs it without the machine's ssh server, which was absent before: tests open no port of the machine.
/// Its units are masked before the package comes, so that an interrupted set-up starts nothing either.
fn without_ssh_server(install: impl FnOnce() -> Result<()>) -> Result<()> {
    let is_systemd = Path::new("/run/systemd/system").exists();
    let Some(root) = as_root(true).filter(|_| is_systemd) else { return install() };
    let systemctl = |what: &str| {
        let words =
            [&root[..], &["systemctl", what, "ssh.service", "ssh.socket"].map(str::to_owned)].concat();
        say!("setup: {}", words.join(" "));
        said(&mut command(&words)).map(drop)
    };
    systemctl("mask")?;
    let installed = install();
    systemctl("unmask")?;
    installed?;
    systemctl("disable")
}

/// What comes from no package of the system.
fn tools(purpose: Purpose, wheels: &[&Wheels], no_install: bool, pip: impl Fn() -> Result<()>) -> Result<()> {
    rust_tools(purpose, no_install)?;
    let long = (purpose == Purpose::Full).then_some(&wheels::ANSIBLE_LINT);
    wheels.iter().copied().chain(long).try_for_each(|wheels| wheels.prepare(no_install, &pip))
}

/// Makes sure that ONNX Runtime is there, for a command that needs no other wheels. A bundle fetches nothing:
/// there our programs' own search counts. Error: it cannot be had.
pub fn onnx_runtime(no_install: bool) -> Result<()> {
    if carried::folder().is_some() {
        let found = Search::here(None).find();
        return found.map(drop).map_err(|looked| {
            let command = wheels::ONNX_RUNTIME.by_hand();
            refused(format!("ONNX Runtime was not found ({looked}); fetch it with:\n  {command}"))
        });
    }
    fetched(&wheels::ONNX_RUNTIME, no_install)
}

/// Makes sure that these wheels are there. Error: they cannot be had.
pub fn fetched(wheels: &Wheels, no_install: bool) -> Result<()> {
    wheels.prepare(no_install, || install(&["python3-pip"], false))
}

/// Installs packages; error: the command that does, where that is not allowed.
pub fn install(packages: &[&str], no_install: bool) -> Result<()> {
    let as_root = as_root(!no_install);
    let prefix = as_root.clone().unwrap_or_else(|| vec!["sudo".into()]);
    let prefix: String = prefix.iter().map(|word| format!("{word} ")).collect();
    let command = format!(
        "{prefix}apt-get update && {prefix}apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    );
    let Some(root) = as_root.filter(|_| !no_install) else {
        let why =
            if no_install { "--no-install was given" } else { "neither root, nor a sudo that answers here" };
        return Err(refused(format!("packages are missing ({why}); install them with:\n  {command}")));
    };
    say!("setup: running {command}");
    // A container's image comes without package lists, so they are fetched first, always.
    apt(&root, &["update"])?;
    apt(&root, &[&["install", "-y", "--no-install-recommends"], packages].concat())?;
    match packages.iter().find(|package| !installed(package)) {
        Some(package) => bail!("apt-get says that it installed {package}, dpkg-query does not know it"),
        None => Ok(()),
    }
}

fn apt(root: &[String], arguments: &[&str]) -> Result<()> {
    let mut apt = command(&[root, &["apt-get".to_owned()]].concat());
    let _at_packages = stop::at_packages();
    // What apt says on the way is of interest only when it fails.
    said(apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive")).map(drop)
}

/// What goes before a command that needs root: nothing, `sudo -n`, or `None` when there is no right.
/// `may_ask`: sudo may ask for a password first, where there is a terminal; it then remembers the answer.
fn as_root(may_ask: bool) -> Option<Vec<String>> {
    if geteuid().is_root() {
        return Some(Vec::new());
    }
    let asks = || Command::new("sudo").arg("-v").status().is_ok_and(|status| status.success());
    let has_sudo = quiet("sudo", &["-n", "true"]) || (may_ask && std::io::stdin().is_terminal() && asks());
    has_sudo.then(|| vec!["sudo".into(), "-n".into()])
}

/// rustfmt and clippy, which a minimal toolchain lacks.
fn rust_tools(purpose: Purpose, no_install: bool) -> Result<()> {
    if purpose < Purpose::Test {
        return Ok(());
    }
    let mut missing = vec!["rustfmt", "clippy"];
    missing.retain(|component| !quiet("cargo", &[component.trim_start_matches("rust"), "--version"]));
    if missing.is_empty() {
        return Ok(());
    }
    let command = format!("rustup component add {}", missing.join(" "));
    if no_install || !quiet("rustup", &["--version"]) {
        let missing = missing.join(" and ");
        return Err(refused(format!("the Rust toolchain lacks {missing}; add them with:\n  {command}")));
    }
    say!("setup: running {command}");
    let _at_packages = stop::at_packages();
    done(Command::new("rustup").args(["component", "add"]).args(&missing))
}

/// What `doctor` prints: every package but those of the long tests alone, with its version, or none.
pub fn packages() -> Vec<(&'static str, &'static str, Option<String>)> {
    let all = wanted(Purpose::Test).into_iter();
    all.map(|package| (package.name, package.why, version(package.name))).collect()
}

/// The packages that `purpose` needs and this system lacks. Without dpkg none is found.
pub fn missing(purpose: Purpose, system: &System) -> Vec<Package> {
    let is_missing = |package: &Package| package.is_of(&system.name) && !installed(package.name);
    wanted(purpose).into_iter().filter(is_missing).collect()
}

pub fn wanted(purpose: Purpose) -> Vec<Package> {
    list().filter(|package| package.purpose <= purpose).collect()
}

pub fn names(packages: &[Package]) -> Vec<&'static str> {
    packages.iter().map(|package| package.name).collect()
}

fn installed(package: &str) -> bool {
    version(package).is_some()
}

/// Of a package that is installed.
pub fn version(package: &str) -> Option<String> {
    let said = said(Command::new("dpkg-query").args(["-W", "-f", "${Status}|${Version}", package]));
    installed_version(&said.ok()?)
}

/// Version in `dpkg-query`'s answer, when the package is really there and not just remembered.
fn installed_version(answer: &str) -> Option<String> {
    let (status, version) = answer.split_once('|')?;
    status.ends_with(" installed").then(|| version.to_owned())
}

fn quiet(program: &str, arguments: &[&str]) -> bool {
    said(Command::new(program).args(arguments)).is_ok()
}

fn name(purpose: Purpose) -> String {
    purpose.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

pub struct System {
    /// As it calls itself.
    pub name: String,
    /// Whether it has dpkg.
    pub has_packages: bool,
}

impl System {
    pub fn read() -> System {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        System { name: pretty_name(&release), has_packages: quiet("dpkg-query", &["--version"]) }
    }
}

fn pretty_name(release: &str) -> String {
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "this system".into(), |name| name.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;
    use crate::process::WAIT;
    use crate::refused::Refused;

    #[test]
    fn each_purpose_holds_the_ones_before_it() {
        let count = |purpose| wanted(purpose).len();
        assert!(
            [Purpose::Figure, Purpose::Bench, Purpose::Testbed, Purpose::Test, Purpose::Full]
                .map(count)
                .is_sorted_by(|one, next| one < next)
        );
        let lines = LIST.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!((count(Purpose::Full), lines > 10), (lines, true), "a line that is no package");
        let first = names(&wanted(Purpose::Figure));
        assert!(["libibverbs1", "g++", "iproute2"].iter().all(|name| first.contains(name)), "{first:?}");
    }

    #[test]
    fn a_package_that_debian_alone_has_is_asked_for_there_alone() {
        let all = wanted(Purpose::Test);
        let of = |system: &str| all.iter().filter(|package| package.is_of(system)).count();
        assert_eq!(of("Debian GNU/Linux 12 (bookworm)"), all.len());
        let off = all.iter().find(|package| !package.is_of("Ubuntu 24.04.1 LTS")).unwrap();
        assert_eq!((off.name, of("Ubuntu 24.04.1 LTS")), ("chromium-headless-shell", all.len() - 1));
    }

    #[test]
    fn a_removed_package_is_not_installed() {
        for (answer, version) in [
            ("install ok installed|44.0-2", Some("44.0-2")),
            ("deinstall ok config-files|44.0-2", None),
            ("unknown ok not-installed|", None),
            ("", None),
        ] {
            assert_eq!(installed_version(answer).as_deref(), version, "{answer}");
        }
    }

    #[test]
    fn no_install_prints_the_command_and_is_told_apart_from_a_failure() {
        let error = install(&["no-such-package"], true).unwrap_err();
        let refusal = error.downcast_ref::<Refused>().expect("exit status 2");
        assert!(refusal.to_string().contains("apt-get install -y --no-install-recommends no-such-package"));
    }

    /// The test below as the process that is stopped: the folder of its stand-in.
    const STAGE: &str = "XTASK_TEST_APT";

    #[test]
    fn a_signal_waits_for_apt_and_kills_nothing_below_it() {
        if let Some(folder) = std::env::var_os(STAGE).map(PathBuf::from) {
            stop::watch().unwrap();
            let ended = apt(&[folder.join("sudo").display().to_string()], &["install"]);
            panic!("it was not stopped: {ended:?}");
        }
        let folder = std::env::temp_dir().join(format!("xtask-apt-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        // dpkg runs below apt-get: any signal but SIGINT, which it does not hear, would leave half a package.
        let sudo = r#"#!/bin/sh
here=$(dirname "$0"); trap ': > "$here/asked"' INT
(sleep 1; : > "$here/whole") & : > "$here/at-work"; wait; wait; exit 100
"#;
        fs::write(folder.join("sudo"), sudo).unwrap();
        fs::set_permissions(folder.join("sudo"), fs::Permissions::from_mode(0o755)).unwrap();
        let name = "setup::tests::a_signal_waits_for_apt_and_kills_nothing_below_it";
        // Tests that a shell started in the background have SIGINT ignored, and no script could hear it.
        let mut us = Command::new("env");
        us.arg("--default-signal=INT").arg(std::env::current_exe().unwrap());
        us.args(["--exact", name, "--nocapture"]).env(STAGE, &folder);
        let us = us.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let since = Instant::now();
        while !folder.join("at-work").exists() {
            assert!(since.elapsed() < WAIT, "apt-get did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(Pid::from_raw(us.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        let ended = us.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!((ended.status.code(), said.lines().count()), (Some(130), 2), "{said}");
        assert!(said.contains("up to 120 s") && said.ends_with("stopped by a signal\n"), "{said}");
        assert!(folder.join("asked").exists(), "apt-get was not asked to end");
        assert!(folder.join("whole").exists(), "what apt-get had begun was cut off");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_system_names_itself() {
        assert_eq!(
            pretty_name("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)"
        );
        assert_eq!(pretty_name(""), "this system");
    }
}
