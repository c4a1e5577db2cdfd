//! `--where`: a figure on this host, or between two hosts that are set up for the run.
//!
//! `ansible/site.yml` sets the hosts up. With `netns` they are the nodes of a testbed, which is brought up
//! for the run and removed after it. The caller measures between them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use experiment::Spec;
use serde_json::json;

use super::nic::Nic;
use super::nodes::Nodes;
use crate::refused::refused;
use crate::setup::{self, Purpose};
use crate::testbed::playbook::{self, Inventory};
use crate::testbed::{self, Testbed, hosts};
use crate::{stop, workspace};

/// Port of sshd on the nodes of a testbed.
const SSH_PORT: u16 = 2222;

/// Measures between two hosts that are set up.
type Measure<'a> = &'a dyn Fn(Nodes) -> Result<()>;

/// What a figure's NIC is made of, and what hosts are set up with.
pub struct HostSetup<'a> {
    pub spec: &'a Spec,
    /// Folder of the results.
    pub out: &'a Path,
    /// What runs on the first host and on the second.
    pub ends: [&'static str; 2],
    /// Variables of the playbook, each `NAME=VALUE` or JSON.
    pub variables: &'a [String],
    /// The rate of the software NIC's link is limited.
    pub is_shaped: bool,
    /// What ansible's host role tunes is set for the run.
    pub tune: bool,
}

/// Where both ends of a figure run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// On this host, or of a transfer with --nic here and on --peer.
    #[default]
    Local,
    /// On two nodes that are made for the run: network namespaces of this machine.
    Netns,
    /// On the two hosts of an ansible inventory.
    Inventory(PathBuf),
}

impl Place {
    /// The place that a value of `--where` names. Error: it is neither `local` nor `netns`, nor a path.
    pub fn parse(text: &str) -> Result<Place, String> {
        match text {
            "local" => Ok(Place::Local),
            "netns" => Ok(Place::Netns),
            file if file.contains(['.', '/']) => Ok(Place::Inventory(file.into())),
            _ => Err("give local, netns, or the path of an ansible inventory of two hosts".into()),
        }
    }

    /// The option, where both ends run on hosts that ansible reaches.
    pub fn on_nodes(&self) -> Option<String> {
        match self {
            Place::Local => None,
            Place::Netns => Some("--where netns".into()),
            Place::Inventory(file) => Some(format!("--where {}", file.display())),
        }
    }

    /// The NICs of a place where none is named.
    pub fn nic_in_words(&self) -> &'static str {
        match self {
            Place::Local => "the software NIC, a process for each end",
            Place::Netns => "the software NIC on two nodes, RoCEv2 between them",
            Place::Inventory(_) => "those of the inventory's hosts, the software NIC where it names none",
        }
    }

    /// Refuses what is not there or cannot be made, before anything is.
    pub fn allowed(&self, out: &Path) -> Result<()> {
        match self {
            Place::Local => Ok(()),
            Place::Netns => testbed_of(out).map(drop),
            Place::Inventory(file) => fs::metadata(file).map(drop).map_err(|error| {
                refused(format!(
                    "--where {}: {error}; give an ansible inventory of two hosts: ansible/inventories/two-hosts.yml is an example",
                    file.display()
                ))
            }),
        }
    }

    /// Installs what it needs of packages.
    pub fn set_up(&self, no_install: bool) -> Result<()> {
        if !matches!(self, Place::Inventory(_)) {
            let purpose = if *self == Place::Netns { Purpose::Testbed } else { Purpose::Figure };
            return setup::prepare(purpose, no_install);
        }
        let needed = [("ansible-playbook", "ansible-core"), ("ssh", "openssh-client")];
        let missing = needed.into_iter().filter(|(program, _)| testbed::program(program).is_err());
        let missing: Vec<&str> = missing.map(|(_, package)| package).collect();
        if missing.is_empty() { Ok(()) } else { setup::install(&missing, no_install) }
    }

    /// Runs `measure` between two hosts. With `netns` a testbed is brought up first, and removed in any case.
    pub fn execute(&self, setup: &HostSetup<'_>, measure: Measure<'_>) -> Result<()> {
        if let Place::Inventory(file) = self {
            return between(&Inventory::of_file(file)?, None, setup, measure);
        }
        let testbed = testbed_of(setup.out)?;
        // Of a run that was killed: the lock of `out` says that nothing uses it.
        testbed::clear(&testbed)?;
        testbed::up(&testbed, SSH_PORT)?;
        let inventory = Inventory::of_testbed(&testbed);
        let measured = between(&inventory, Some(testbed.clone()), setup, measure);
        let removed = testbed::down(&testbed);
        stop::removes_nothing();
        match (measured, removed) {
            (Err(error), Err(left)) => Err(error.context(format!("{left:#}"))),
            (measured, removed) => measured.and(removed),
        }
    }

    /// Whether both ends run on this machine, so that its GPU and its samples are theirs.
    pub fn is_here(&self) -> bool {
        !matches!(self, Place::Inventory(_))
    }
}

/// The testbed of a run, if one can be made.
fn testbed_of(out: &Path) -> Result<Testbed> {
    testbed::allowed()?;
    Testbed::at(&out.join("testbed"))
}

/// Sets both hosts up by the playbook, and has `measure` measure between them.
fn between(
    inventory: &Inventory,
    testbed: Option<Testbed>,
    setup: &HostSetup<'_>,
    measure: Measure<'_>,
) -> Result<()> {
    let HostSetup { spec, out, ends, variables, is_shaped, tune } = *setup;
    let logs = out.join("logs");
    let nodes = Nodes::new(hosts::of(inventory, &logs)?, ends, testbed);
    if let Some(card) = nodes.card().filter(|_| is_shaped) {
        let file = inventory.file.display();
        return Err(refused(format!(
            "{file}: the hosts have cards ({card}), whose rate is their own; leave --rate-gbps out"
        )));
    }
    // Written into `out` as a run on this host writes it, and copied from there.
    let _ = Nic::configured(&spec.nic, out)?;
    let of = |path: &Path| std::path::absolute(path).map(|path| path.display().to_string());
    let mut variables = variables.to_vec();
    // As JSON: ansible takes `NAME=VALUE` apart at spaces.
    variables.push(json!({ "doorbell_nic_config": of(&out.join("nic.toml"))? }).to_string());
    // An inventory may have a build for each host, or hosts where they were installed by hand.
    if nodes.hosts.iter().all(|host| host.programs.is_empty()) {
        variables.push(json!({ "doorbell_programs": of(&workspace::programs())? }).to_string());
    }
    say!("setting both hosts up by ansible/site.yml ({})", nodes.in_words());
    playbook::run(inventory, "site.yml", &variables, &logs.join("site.log"))?;
    nodes.check_cards()?;
    if !tune {
        return measure(nodes);
    }
    let restore_log = logs.join("restore.log");
    // The nodes of a testbed are removed with what was set on them.
    if !nodes.are_here() {
        let (inventory, log) = (inventory.clone(), restore_log.clone());
        stop::removes(move || playbook::restore(&inventory, &log));
    }
    say!("setting what ansible's host role tunes, by ansible/tune.yml");
    let is_here = nodes.are_here();
    let measured = tuned(inventory, &logs).and_then(|settings| measure(nodes.tuned(settings)));
    let restored = playbook::restore(inventory, &restore_log);
    // A signal ends the restore above: the handler then restores, and needs its removal.
    stop::hold_if_soon();
    if !is_here {
        stop::removes_nothing();
    }
    match (measured, restored) {
        (Err(error), Err(left)) => Err(error.context(left)),
        (measured, restored) => measured.and(restored.map_err(anyhow::Error::msg)),
    }
}

/// Tunes both hosts. Returns which settings were set on each, as `node1: eth0/mtu 4200; node2: nothing`.
fn tuned(inventory: &Inventory, logs: &Path) -> Result<Option<String>> {
    let file = std::path::absolute(logs.join("tuned"))?;
    let variable = [format!("tuned_file={}", file.display())];
    playbook::run(inventory, "tune.yml", &variable, &logs.join("tune.log"))?;
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    Ok(Some(text.lines().collect::<Vec<_>>().join("; ")))
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;
    use crate::process::{WAIT, one_test, script};

    /// The test below as the process that is stopped: its folder.
    const STAGE: &str = "XTASK_TEST_RESTORE";

    /// Stands in for `ansible-playbook -i INVENTORY PLAYBOOK -e VARIABLE`: no tuning, first restore hangs.
    const PLAYBOOKS: &str = r#"#!/bin/sh
here=$(dirname "$0")
case $3 in
hosts.yml) cp "$here/lines" "${5#hosts_file=}" ;;
tune.yml) exit 1 ;;
restore.yml) [ -e "$here/began" ] && exec touch "$here/restored"; touch "$here/began"; exec sleep 600 ;;
esac
"#;

    #[test]
    fn a_signal_while_the_hosts_are_restored_restores_them() {
        if let Some(folder) = std::env::var_os(STAGE).map(PathBuf::from) {
            stop::watch().unwrap();
            let inventory = Inventory::of_file(&folder.join("mine.yml")).unwrap();
            let spec = Spec::read(&workspace::experiments().join("fig4")).unwrap();
            let ends = ["sender", "receiver"];
            let setup =
                HostSetup { spec: &spec, out: &folder, ends, variables: &[], is_shaped: false, tune: true };
            let ended = between(&inventory, None, &setup, &|_| panic!("nothing could be tuned"));
            panic!("it was not stopped: {ended:?}");
        }
        let folder = std::env::temp_dir().join(format!("xtask-restored-{}", std::process::id()));
        fs::create_dir_all(folder.join("logs")).unwrap();
        script(&folder.join("ansible-playbook"), PLAYBOOKS);
        let line = |name: &str| hosts::tests::line(&[("name", name.into()), ("programs", "x".into())]);
        fs::write(folder.join("lines"), format!("{}\n{}\n", line("a"), line("b"))).unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let mut us = one_test("figure::place::tests::a_signal_while_the_hosts_are_restored_restores_them");
        let us = us.env(STAGE, &folder).env("PATH", path).stdout(Stdio::null()).stderr(Stdio::piped());
        let us = us.spawn().unwrap();
        let since = Instant::now();
        while !folder.join("began").exists() {
            assert!(since.elapsed() < WAIT, "no restore began");
            sleep(Duration::from_millis(5));
        }
        kill(Pid::from_raw(us.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        let ended = us.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), folder.join("restored").exists()), (Some(130), true), "{said}");
        assert!(folder.join("logs/restore.log").exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
