//! A figure's two hosts, which ansible reaches by ssh: how programs start there, and what is known of them.
//!
//! A transfer's sender runs on the first host by ssh, its receiver on the second; GPU posters are left out,
//! and the sender's busy threads are not counted. A server runs on the first host, its clients on the second.

use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};
use measure::BackgroundLoad;

use crate::process::{JsonProgram, WAIT, output};
use crate::refused::refused;
use crate::testbed::hosts::{self, Host};
use crate::testbed::{self, Testbed};

/// Both hosts, as a figure uses them.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// The sender's or the server's, then the other one.
    pub hosts: [Host; 2],
    /// What runs on each, as counters and logs call it.
    pub ends: [&'static str; 2],
    /// How the folders begin that hosts have for counters during the run.
    counters: String,
    /// The testbed that the nodes are of, if any.
    testbed: Option<Testbed>,
    /// What was tuned on each host, if anything was.
    pub settings: Option<String>,
}

impl Nodes {
    /// The fabric of the software NICs, so that counters of programs outside of such runs are not read.
    pub const FABRIC: &str = "doorbell-figure";

    pub fn new(hosts: [Host; 2], ends: [&'static str; 2], testbed: Option<Testbed>) -> Nodes {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let counters = format!("/tmp/doorbell-{}-{}", std::process::id(), since.as_nanos());
        Nodes { hosts, ends, counters, testbed, settings: None }
    }

    /// The same hosts, after this was tuned on each.
    pub fn tuned(self, settings: Option<String>) -> Nodes {
        Nodes { settings, ..self }
    }

    /// The folder for counters on the host of this end, which is there while they are read.
    pub fn counters(&self, end: usize) -> String {
        format!("{}-{}", self.counters, self.ends[end])
    }

    /// The RDMA device of each; `None`: both have the software NIC.
    fn devices(&self) -> Option<[&str; 2]> {
        let devices = self.hosts.each_ref().map(|host| host.device.as_str());
        (devices != [""; 2]).then_some(devices)
    }

    /// The RDMA device of an end.
    pub fn device(&self, end: usize) -> &str {
        self.devices().map_or("mlx5_0", |devices| devices[end])
    }

    /// The first host's card.
    pub fn card(&self) -> Option<&str> {
        self.devices().map(|[device, _]| device)
    }

    /// `between node1 and node2`
    pub fn in_words(&self) -> String {
        let [sender, receiver] = &self.hosts;
        format!("between {} and {}", sender.name, receiver.name)
    }

    /// The generator on the NIC of an end's host; options follow.
    pub fn generator(&self, end: usize) -> Result<Command> {
        let host = &self.hosts[end];
        host.command(&hosts::until_stdin_ends(&on_nic(host, "generator", &[])))
    }

    /// The generator on the sender's NIC, which leaves its counters as it ends; options follow.
    pub fn sender(&self) -> Result<Command> {
        let [sender, _] = &self.hosts;
        sender.command(&hosts::until_stdin_ends(&on_nic(sender, "generator", &["--stats", &self.ended(0)])))
    }

    /// Where the software NICs of an end leave their counters.
    fn ended(&self, end: usize) -> String {
        format!("{}/ended", self.counters(end))
    }

    /// A program on an end's NIC: it prints its process before it begins, and leaves its counters as it ends.
    pub fn program(&self, end: usize, name: &str, options: &[String]) -> Result<Command> {
        let host = &self.hosts[end];
        let words = on_nic(host, name, &["--stats", &self.ended(end)]);
        let words = [["sh", "-c", SAYS_PROCESS, "sh"].map(str::to_owned).to_vec(), words, options.to_vec()];
        host.command(&hosts::until_stdin_ends(&words.concat()))
    }

    /// Starts the receiver on the second host, which serves every point; also where the sender finds it.
    pub fn receiver(&self, logs: &Path) -> Result<(String, JsonProgram)> {
        let [_, receiver] = &self.hosts;
        let address = format!("{}:{}", receiver.address, receiver.port);
        let listen = ["--listen", &address, "--nic", self.device(1), "--sessions", "0", "--json", "-"];
        let words = [on_nic(receiver, "generator", &[]), listen.map(str::to_owned).to_vec()].concat();
        let mut command = receiver.command(&hosts::until_stdin_ends(&words))?;
        let mut session = JsonProgram::start(&mut command, &logs.join("receiver.log"))?;
        let listening = session.json("listening", WAIT);
        let listening = listening.with_context(|| format!("starting the receiver on {}", receiver.name));
        listening.map_err(|error| receiver.with_remedy(error))?;
        Ok((address, session))
    }

    /// Whether they are this machine's own.
    pub fn are_here(&self) -> bool {
        self.testbed.is_some()
    }

    /// Processor seconds of all programs on the nodes so far, where these are this machine's.
    pub fn seconds(&self) -> Option<f64> {
        self.testbed.as_ref().map(testbed::seconds)
    }

    /// Counts, in cores, programs other than the nodes', whose processes are not waited for here.
    pub fn others(&self) -> Option<impl Fn() -> Option<f64>> {
        let (before, others) = (self.seconds()?, BackgroundLoad::watch());
        Some(move || others.as_ref()?.cores_beside(self.seconds()? - before))
    }

    /// Refuses a device that is absent, no ConnectX, or one card for both hosts: two cards count as hardware.
    pub fn check_cards(&self) -> Result<()> {
        let Some(devices) = self.devices() else { return Ok(()) };
        let mut cards = Vec::new();
        for (host, device) in self.hosts.iter().zip(devices) {
            let card = format!("{}/class/infiniband/{device}", host.sys);
            // An error is then one of the login.
            let words = [
                "sh",
                "-c",
                "echo \"$(readlink \"$1/device/driver\")\"; cat \"$1/node_guid\" || true",
                "sh",
                &card,
            ];
            let said = output(&mut host.command(&words)?, WAIT)
                .with_context(|| format!("looking for the card of {}", host.name))?;
            let (link, guid) = said.split_once('\n').unwrap_or((&said, ""));
            cards.push(guid.trim().to_owned());
            let driver = link.trim().rsplit('/').next().unwrap_or_default();
            let why = match driver {
                "mlx5_core" if guid.trim().is_empty() => "has no node GUID that can be read".to_owned(),
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
        // That of a virtual function may be unset, which is all zeros.
        let is_set = cards[0].contains(|digit| !matches!(digit, '0' | ':'));
        if cards[0] == cards[1] && is_set {
            let [one, other] = [0, 1].map(|end| format!("`{}` of {}", devices[end], self.hosts[end].name));
            return Err(refused(format!(
                "{one} and {other} are one card (node GUID {}): packets would not leave it; name two cards, or measure there with --nic",
                cards[0]
            )));
        }
        Ok(())
    }
}

/// Run by `sh` with a program's words: says the process, which becomes that program.
const SAYS_PROCESS: &str = r#"echo "{\"kind\":\"process\",\"process\":$$}"; exec "$@""#;

/// A program on a host's NIC, and the software NIC's options.
fn on_nic(host: &Host, program: &str, of_nic: &[&str]) -> Vec<String> {
    let (softnic, config) = (host.file("bin/softnic"), host.file("nic.toml"));
    let fixed = [&*softnic, "run", "--config", &config, "--ipv4", &host.address, "--fabric", Nodes::FABRIC];
    let nic = if host.device.is_empty() { [&fixed, of_nic, &["--"]].concat() } else { Vec::new() };
    let program = host.file(&format!("bin/{program}"));
    nic.into_iter().chain([&*program]).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::script;
    use crate::refused::Refused;

    /// What comes of two hosts that a stand-in for ssh logs in to.
    fn with_ssh<T>(name: &str, ssh: &str, on: impl FnOnce(Nodes) -> T) -> T {
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
        let found = on(Nodes::new([host("a"), host("b")], ["sender", "receiver"], None));
        std::fs::remove_file(program).unwrap();
        found
    }

    /// What is wrong with their cards.
    fn fault(name: &str, ssh: &str) -> Option<anyhow::Error> {
        with_ssh(name, ssh, |nodes| nodes.check_cards().err())
    }

    #[test]
    fn a_receiver_whose_port_is_taken_fails_with_what_frees_it() {
        let said = |ssh: &str| {
            let error = with_ssh("port", ssh, |nodes| nodes.receiver(&std::env::temp_dir()).err()).unwrap();
            (error.is::<Refused>(), format!("{error:#}"))
        };
        let (is_refused, taken) =
            said("echo 'listening on 192.0.2.1:18515: Address already in use (os error 98)' >&2; exit 1");
        let remedy = "; end what has port 18515 on b, or set experiment_port in the inventory";
        assert!(
            !is_refused && taken.starts_with("starting the receiver on b: ") && taken.ends_with(remedy),
            "{taken}"
        );
        let (_, other) = said("echo 'no device' >&2; exit 1");
        assert!(other.contains("no device") && !other.contains("experiment_port"), "{other}");
    }

    #[test]
    fn a_card_that_is_none_is_told_from_a_login_that_fails() {
        let unset = "echo ../../../../bus/pci/drivers/mlx5_core; echo 0000:0000:0000:0000";
        assert!(fault("card", unset).is_none());
        for (name, ssh, words) in [
            ("silent", "echo ../mlx5_core", "`mlx5_none` has no node GUID that can be read; an empty"),
            // As ssh does: what follows the options and the host goes to a shell.
            ("none", "shift 5; exec sh -c \"$*\"", "a: its experiment_device `mlx5_none` is not there"),
            ("other", "echo ../drivers/mlx4_core", "has the driver `mlx4_core`, not mlx5_core"),
        ] {
            let error = fault(name, ssh).unwrap();
            assert!(error.is::<Refused>() && error.to_string().contains(words), "{error:#}");
        }
        let said = "echo ../mlx5_core; echo 3f2a";
        let error = fault("one", said).unwrap();
        assert!(
            error.is::<Refused>() && error.to_string().contains("of b are one card (node GUID 3f2a)"),
            "{error:#}"
        );
        let error = fault("login", "exit 255").unwrap();
        let said = format!("{error:#}");
        assert!(
            said.starts_with("looking for the card of a: ") && said.ends_with("ended with status 255"),
            "{said}"
        );
    }
}
