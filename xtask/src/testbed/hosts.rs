//! The two hosts of an inventory: how ansible reaches them, and so how a program is started there by ssh.
//!
//! `ansible/hosts.yml` writes a JSON line for each, named by ansible's «special variables», the ssh plug-in's
//! «connection variables» and the roles. Left out: connections but ssh, becoming root but by sudo, passwords.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;

use super::playbook::{self, Inventory};
use crate::refused::refused;
use crate::shell::quoted;

/// Run by `sh` with a program's words: ends it when stdin ends, as when ssh or this command is gone.
const UNTIL_STDIN_ENDS: &str = "exec 3<&0; \"$@\" 3<&- & own=$!; \
    { cat <&3; kill $own; sleep 5; kill -9 $own; } >/dev/null 2>&1 & with=$!; \
    exec 3<&-; wait $own; status=$?; kill $with; exit $status";

/// A host, and how a login there is made.
#[derive(Clone, Debug, Deserialize)]
pub struct Host {
    /// In the inventory.
    pub name: String,
    /// As ssh knows it.
    host: String,
    connection: String,
    /// The program that logs in, and its options as one line of a shell.
    ssh: String,
    options: String,
    ssh_port: String,
    user: String,
    key: String,
    r#become: bool,
    become_method: String,
    become_user: String,
    /// At which packets of the other host reach this one.
    pub address: String,
    /// Where the receiver or the server listens.
    pub port: String,
    /// Where its sysfs is.
    pub sys: String,
    /// RDMA device; empty: the software NIC.
    pub device: String,
    /// Folder of our programs there.
    pub prefix: String,
    /// Where the inventory has the programs from; empty: it does not say.
    pub programs: String,
}

impl Host {
    /// Runs these words there. Words that are added to the command have to be plain ones: a shell reads them.
    pub fn command<W: AsRef<str>>(&self, words: &[W]) -> Result<Command> {
        let mut command = Command::new(&self.ssh);
        command.args(self.options()?).args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
        for (option, value) in [("-p", &self.ssh_port), ("-l", &self.user), ("-i", &self.key)] {
            if !value.is_empty() {
                command.args([option, value]);
            }
        }
        command.arg(&self.host);
        if self.r#become {
            command.args(["sudo", "-n", "-u", &self.become_user]);
        }
        command.args(words.iter().map(|word| quoted(word.as_ref())));
        Ok(command)
    }

    /// Where a file of our folder is.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// The error of a program that did not listen there, and what frees its port if that is taken.
    pub fn with_remedy(&self, error: anyhow::Error) -> anyhow::Error {
        let (said, Host { port, name, .. }) = (format!("{error:#}"), self);
        match said.contains("already in use") {
            // No refusal: the program of the point before may still be ending.
            true => {
                anyhow!("{said}; end what has port {port} on {name}, or set experiment_port in the inventory")
            }
            false => error,
        }
    }

    fn options(&self) -> Result<Vec<String>> {
        let Host { name, options, .. } = self;
        let not = || refused(format!("{name}: ansible's options of ssh are no words of a shell: {options}"));
        shlex::split(options).ok_or_else(not)
    }

    /// Why it cannot be used.
    fn fault(&self) -> Option<String> {
        let name = &self.name;
        if self.address.is_empty() {
            return Some(format!(
                "{name} has no experiment_address, the IP address at which the other host's packets reach it"
            ));
        }
        if self.connection != "ssh" {
            let connection = &self.connection;
            return Some(format!(
                "{name} is reached by `{connection}` (ansible_connection), and programs are started by ssh"
            ));
        }
        let method = &self.become_method;
        (self.r#become && method != "sudo")
            .then(|| format!("{name} has ansible_become_method {method}, and programs are started by sudo"))
    }
}

/// These words of a program as those of one that ends with its stdin. Words may follow.
pub fn until_stdin_ends<W: AsRef<str>>(words: &[W]) -> Vec<String> {
    let first = ["sh", "-c", UNTIL_STDIN_ENDS, "sh"].into_iter();
    first.chain(words.iter().map(AsRef::as_ref)).map(str::to_owned).collect()
}

/// The first host sends or serves, the second receives or asks. Error: what the inventory lacks.
pub fn of(inventory: &Inventory, folder: &Path) -> Result<[Host; 2]> {
    let file = std::path::absolute(folder.join("hosts.json")).context("the folder of logs")?;
    let variable = format!("hosts_file={}", file.display());
    playbook::run(inventory, "hosts.yml", &[variable], &folder.join("hosts.log"))?;
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let at = inventory.file.display();
    parse(&text).map_err(|error| match error {
        Fault::Inventory(why) => {
            refused(format!("{at}: {why}; ansible/inventories/two-hosts.yml is an example to copy"))
        }
        Fault::Line(error) => anyhow::Error::from(error).context(format!("reading {}", file.display())),
    })
}

#[derive(Debug)]
enum Fault {
    Inventory(String),
    Line(serde_json::Error),
}

fn parse(text: &str) -> Result<[Host; 2], Fault> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let hosts: Vec<Host> = lines.map(serde_json::from_str).collect::<Result<_, _>>().map_err(Fault::Line)?;
    let hosts = <[Host; 2]>::try_from(hosts).map_err(|hosts| {
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        let (count, names) = (names.len(), names.join(", "));
        Fault::Inventory(match count {
            0 => "there is no group `nodes` with hosts in it".into(),
            _ => format!(
                "the group `nodes` has {count} of the two hosts, the sender and the receiver: {names}"
            ),
        })
    })?;
    let is_mixed = hosts[0].device.is_empty() != hosts[1].device.is_empty();
    let mixed = is_mixed.then(|| {
        "one host has the software NIC and the other one a card: give both an experiment_device, or none"
            .into()
    });
    match hosts.iter().find_map(Host::fault).or(mixed) {
        Some(why) => Err(Fault::Inventory(why)),
        None => Ok(hosts),
    }
}

#[cfg(test)]
pub mod tests;
