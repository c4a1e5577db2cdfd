//! `--where netns` and `--where INVENTORY`: a transfer between two hosts that ansible reaches by ssh.
//!
//! `ansible/site.yml` sets the hosts up; then each point's sender runs on the first one by ssh, its receiver on the second. With
//! `netns` they are the nodes of a testbed, which is brought up for the run and removed after it. Posters of a GPU are left out, and
//! the sender's busy threads are not counted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};
use experiment::{Experiment, Spec};
use measure::BackgroundLoad;

use super::nic::Receiver;
use super::{Nic, Options, Programs};
use crate::process::{JsonProgram, WAIT, output};
use crate::refused::refused;
use crate::setup::{self, Purpose};
use crate::testbed::hosts::{self, Host};
use crate::testbed::playbook::{self, Inventory};
use crate::testbed::{self, Testbed};
use crate::{stop, workspace};

/// Port of sshd on the nodes of a testbed.
const SSH_PORT: u16 = 2222;

/// Where both ends of a transfer run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this host, or with --nic here and on --peer.
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

    /// Refuses what is not there or cannot be made, before anything is.
    pub fn allowed(&self, out: &Path) -> Result<()> {
        match self {
            Place::Local => Ok(()),
            Place::Netns => testbed_of(out).map(drop),
            Place::Inventory(file) => match std::fs::metadata(file) {
                Ok(_) => Ok(()),
                Err(error) => Err(refused(format!(
                    "--where {}: {error}; give an ansible inventory of two hosts: ansible/inventories/two-hosts.yml is an example",
                    file.display()
                ))),
            },
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
}

/// Both hosts, as a figure uses them.
#[derive(Clone, Debug)]
pub struct Nodes {
    hosts: [Host; 2],
    /// How the folders begin that hosts have for counters during the run.
    counters: String,
    /// The testbed that the nodes are of, if any.
    testbed: Option<Testbed>,
    /// What was tuned on each host, if anything was.
    settings: Option<String>,
}

impl Nodes {
    /// The fabric of the software NICs, so that counters of programs outside of such runs are not read.
    pub const FABRIC: &str = "doorbell-figure";

    pub fn new(hosts: [Host; 2], testbed: Option<Testbed>) -> Nodes {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let counters = format!("/tmp/doorbell-{}-{}", std::process::id(), since.as_nanos());
        Nodes { hosts, counters, testbed, settings: None }
    }

    /// The sender's host, then the receiver's.
    pub fn hosts(&self) -> &[Host; 2] {
        &self.hosts
    }

    /// What was tuned on each host, if anything was.
    pub fn settings(&self) -> Option<String> {
        self.settings.clone()
    }

    /// The folder for counters on the host of the `sender` or `receiver`, which is there while they are read.
    pub fn counters(&self, end: &str) -> String {
        format!("{}-{end}", self.counters)
    }

    /// The RDMA device of each; `None`: both have the software NIC.
    fn devices(&self) -> Option<[&str; 2]> {
        let devices = self.hosts.each_ref().map(|host| host.device.as_str());
        (devices != [""; 2]).then_some(devices)
    }

    /// The sender's card.
    pub fn card(&self) -> Option<&str> {
        self.devices().map(|[device, _]| device)
    }

    /// `between node1 and node2`
    pub fn in_words(&self) -> String {
        let [sender, receiver] = &self.hosts;
        format!("between {} and {}", sender.name, receiver.name)
    }

    /// The generator on the NIC of each host, and the host's name and device; options follow.
    pub fn generators(&self) -> Result<[(Command, String, String); 2]> {
        let of = |host: &Host| -> Result<_> {
            let device = if host.device.is_empty() { "mlx5_0" } else { &host.device };
            Ok((host.command(&generator(host, &[], &[]))?, host.name.clone(), device.to_owned()))
        };
        let [sender, receiver] = &self.hosts;
        Ok([of(sender)?, of(receiver)?])
    }

    /// The generator on the sender's NIC, which leaves its counters as it ends; options follow.
    pub fn sender(&self) -> Result<Command> {
        let [sender, _] = &self.hosts;
        let ended = format!("{}/ended", self.counters("sender"));
        sender.command(&generator(sender, &["--stats", &ended], &[]))
    }

    /// Starts the receiver on the second host, which serves every point.
    pub fn receiver(&self, logs: &Path) -> Result<Receiver> {
        let [_, receiver] = &self.hosts;
        let address = format!("{}:{}", receiver.address, receiver.port);
        let device = self.devices().map_or("mlx5_0", |[_, device]| device);
        let listen = ["--listen", &address, "--nic", device, "--sessions", "0", "--json", "-"];
        let mut command = receiver.command(&generator(receiver, &[], &listen))?;
        let mut session = JsonProgram::start(&mut command, &logs.join("receiver.log"))?;
        let listening = session.json("listening", WAIT);
        listening.with_context(|| format!("starting the receiver on {}", receiver.name))?;
        Ok(Receiver::standing(address, session))
    }

    /// Whether they are this machine's own.
    pub fn are_here(&self) -> bool {
        self.testbed.is_some()
    }

    /// Processor seconds of all programs on the nodes so far, where these are this machine's.
    pub fn seconds(&self) -> Option<f64> {
        self.testbed.as_ref().map(testbed::seconds)
    }

    /// Begins to count what programs beside the nodes' take; the answer is in cores. No process of a node is waited for here.
    pub fn others(&self) -> Option<impl Fn() -> Option<f64>> {
        let (before, others) = (self.seconds()?, BackgroundLoad::watch());
        Some(move || others.as_ref()?.cores_beside(self.seconds()? - before))
    }

    /// Refuses a device that is not there, or is no ConnectX: what is measured on a card is called hardware.
    fn check_cards(&self) -> Result<()> {
        let Some(devices) = self.devices() else { return Ok(()) };
        for (host, device) in self.hosts.iter().zip(devices) {
            let link = format!("{}/class/infiniband/{device}/device/driver", host.sys);
            // An error is then one of the login.
            let words = ["sh", "-c", "readlink \"$1\" || true", "sh", &link];
            let said = output(&mut host.command(&words)?, WAIT)
                .with_context(|| format!("looking for the card of {}", host.name))?;
            let driver = said.trim().rsplit('/').next().unwrap_or_default();
            let why = match driver {
                "mlx5_core" => continue,
                "" => "is not there".to_owned(),
                driver => format!(
                    "has the driver `{driver}`, not mlx5_core; only a ConnectX counts as hardware here"
                ),
            };
            return Err(refused(format!(
                "{}: its experiment_device `{device}` {why}; an empty experiment_device is the software NIC",
                host.name
            )));
        }
        Ok(())
    }
}

/// The generator on a host's NIC with these options, and those of the software NIC; it ends with its stdin, and so with this command.
fn generator(host: &Host, of_nic: &[&str], options: &[&str]) -> Vec<String> {
    let Host { prefix, address, .. } = host;
    let [softnic, config, generator] =
        ["bin/softnic", "nic.toml", "bin/generator"].map(|file| format!("{prefix}/{file}"));
    let fixed = [&softnic, "run", "--config", &config, "--ipv4", address, "--fabric", Nodes::FABRIC];
    let nic = if host.device.is_empty() { [&fixed, of_nic, &["--"]].concat() } else { Vec::new() };
    hosts::until_stdin_ends(&[&nic, &[generator.as_str()][..], options].concat())
}

/// What a run on hosts changes in the spec. Error: an option that means a card of this host, or the committed results.
pub fn prepare(spec: &mut Spec, options: &Options, place: &str) -> Result<()> {
    let given = [
        (options.nic.is_some(), "--nic", "the hosts have NICs of their own"),
        (options.record, "--record", "such a run is not recorded, `report --add` shows it"),
    ];
    if let Some((_, option, why)) = given.iter().find(|(given, ..)| *given) {
        return Err(refused(format!("{place}: {why}; leave {option} out")));
    }
    spec.nic.insert("path".into(), "wire".into());
    spec.nic.insert("link_layer".into(), "roce".into());
    spec.keep(|series| !experiment::point::needs_gpu(series));
    Ok(())
}

/// The testbed of a run, if one can be made.
fn testbed_of(out: &Path) -> Result<Testbed> {
    testbed::allowed()?;
    Testbed::at(&out.join("testbed"))
}

/// Measures between two hosts. With `netns` a testbed is brought up first, and removed however that ended.
pub fn execute(place: &Place, experiment: &Experiment, options: &Options, out: &Path) -> Result<()> {
    if let Place::Inventory(file) = place {
        return measure(&Inventory::of_file(file)?, None, experiment, options, out);
    }
    let testbed = testbed_of(out)?;
    // Of a run that was killed: the lock of `out` says that nothing uses it.
    testbed::clear(&testbed)?;
    testbed::up(&testbed, SSH_PORT)?;
    let inventory = Inventory::of_testbed(&testbed);
    let measured = measure(&inventory, Some(testbed.clone()), experiment, options, out);
    let removed = testbed::down(&testbed);
    stop::removes_nothing();
    match (measured, removed) {
        (Err(error), Err(left)) => Err(error.context(format!("{left:#}"))),
        (measured, removed) => measured.and(removed),
    }
}

/// Sets both hosts up by the playbook, and measures between them.
fn measure(
    inventory: &Inventory,
    testbed: Option<Testbed>,
    experiment: &Experiment,
    options: &Options,
    out: &Path,
) -> Result<()> {
    let logs = out.join("logs");
    let nodes = Nodes::new(hosts::of(inventory, &logs)?, testbed);
    if let (Some(card), Some(_)) = (nodes.card(), options.rate_gbps) {
        let file = inventory.file.display();
        return Err(refused(format!(
            "{file}: the hosts have cards ({card}), whose rate is their own; leave --rate-gbps out"
        )));
    }
    // Written into `out` as a run on this host writes it, and copied from there.
    let _ = Nic::configured(&experiment.spec.nic, out)?;
    let of = |path: &Path| std::path::absolute(path).map(|path| path.display().to_string());
    let mut variables = vec![format!("doorbell_nic_config={}", of(&out.join("nic.toml"))?)];
    // An inventory may have a build for each host, or hosts where they were installed by hand.
    if nodes.hosts.iter().all(|host| host.programs.is_empty()) {
        variables.push(format!("doorbell_programs={}", of(&workspace::programs())?));
    }
    say!("setting both hosts up by ansible/site.yml ({})", nodes.in_words());
    playbook::run(inventory, "site.yml", &variables, &logs.join("site.log"))?;
    nodes.check_cards()?;
    let measure = |nodes: Nodes| {
        super::execute_on(&Nic::Nodes(Box::new(nodes)), None, experiment, options, out, &Programs::release())
    };
    if !options.tune {
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
    let measured = tuned(inventory, &logs).and_then(|settings| measure(Nodes { settings, ..nodes }));
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
    playbook::run(
        inventory,
        "tune.yml",
        &[format!("tuned_file={}", file.display())],
        &logs.join("tune.log"),
    )?;
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
    use crate::process::{one_test, script};
    use crate::refused::Refused;

    /// What is wrong with the cards of two hosts that a stand-in for ssh logs in to.
    fn fault(name: &str, ssh: &str) -> Option<anyhow::Error> {
        let program = std::env::temp_dir().join(format!("xtask-cards-{}-{name}", std::process::id()));
        script(&program, &format!("#!/bin/sh\n{ssh}\n"));
        let host = |name: &str| {
            let changes = [
                ("name", name.into()),
                ("device", "mlx5_none".into()),
                ("ssh", program.display().to_string().into()),
            ];
            serde_json::from_str(&hosts::tests::line(&changes)).unwrap()
        };
        let found = Nodes::new([host("a"), host("b")], None).check_cards().err();
        std::fs::remove_file(program).unwrap();
        found
    }

    #[test]
    fn a_card_that_is_none_is_told_from_a_login_that_fails() {
        assert!(fault("card", "echo ../../../../bus/pci/drivers/mlx5_core").is_none());
        for (name, ssh, words) in [
            // As ssh does: what follows the options and the host goes to a shell.
            ("none", "shift 5; exec sh -c \"$*\"", "a: its experiment_device `mlx5_none` is not there"),
            ("other", "echo ../drivers/mlx4_core", "has the driver `mlx4_core`, not mlx5_core"),
        ] {
            let error = fault(name, ssh).unwrap();
            assert!(error.is::<Refused>() && error.to_string().contains(words), "{error:#}");
        }
        let error = fault("login", "exit 255").unwrap();
        let said = format!("{error:#}");
        assert!(
            said.starts_with("looking for the card of a: ") && said.ends_with("ended with status 255"),
            "{said}"
        );
    }

    /// The test below as the process that is stopped: its folder.
    const STAGE: &str = "XTASK_TEST_RESTORE";

    /// Stands in for `ansible-playbook -i INVENTORY PLAYBOOK -e VARIABLE`: nothing can be tuned, and the first restore does not end.
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
            let experiment = Experiment::read(&workspace::root().join("experiments"), "fig4").unwrap();
            let ended = measure(
                &inventory,
                None,
                &experiment,
                &Options { tune: true, ..Options::default() },
                &folder,
            );
            panic!("it was not stopped: {ended:?}");
        }
        let folder = std::env::temp_dir().join(format!("xtask-restored-{}", std::process::id()));
        fs::create_dir_all(folder.join("logs")).unwrap();
        script(&folder.join("ansible-playbook"), PLAYBOOKS);
        let line = |name: &str| hosts::tests::line(&[("name", name.into()), ("programs", "x".into())]);
        fs::write(folder.join("lines"), format!("{}\n{}\n", line("a"), line("b"))).unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let mut us = one_test("figure::nodes::tests::a_signal_while_the_hosts_are_restored_restores_them");
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
