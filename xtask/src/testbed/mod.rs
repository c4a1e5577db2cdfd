//! `cargo xtask testbed`: two nodes here, each with its own network, host name and files, reached by ssh.
//!
//! Follows `network_namespaces(7)`, `mount_namespaces(7)` and `sshd_config(5)`. A supervisor owns both sshds,
//! so that `up` can return. Left out: PID and user namespaces; `/usr`, `/var`, `/home` are the machine's.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};

use crate::process::JsonProgram;
use crate::refused::refused;
use crate::setup::{self, Purpose};
use crate::{stop, workspace};

mod bed;
mod found;
pub mod hosts;
mod node;
pub mod playbook;
mod tool;

pub use bed::Testbed;
use found::Found;
pub use found::seconds;
use node::LISTENING;
pub use tool::program;
use tool::tool;

#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    what: Action,
    /// Folder of the testbed's keys, logs and ssh configuration [default: target/testbed].
    #[arg(long, value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Action {
    /// Make both nodes, and check a login to each.
    Up {
        /// Port of sshd on each node's own address.
        #[arg(long, default_value = "2222", value_parser = clap::value_parser!(u16).range(1..))]
        port: u16,
        /// Install nothing; if a package is missing, print the command and end with exit status 2.
        #[arg(long)]
        no_install: bool,
    },
    /// Say what of the testbed is there; exit status 0 when all of it is.
    Status,
    /// End and remove all of it, from any state, and check that nothing is left.
    Down,
    /// Own the sshds until a signal comes: `up` starts it.
    #[command(hide = true)]
    Hold,
}

impl Options {
    fn testbed(&self) -> Result<Testbed> {
        Testbed::at(&self.dir.clone().unwrap_or_else(|| workspace::target_dir().join("testbed")))
    }
}

pub fn run(options: &Options) -> Result<()> {
    let testbed = options.testbed()?;
    match options.what {
        Action::Hold => node::hold(&testbed),
        Action::Down => down(&testbed),
        Action::Status => status(&testbed),
        Action::Up { port, no_install } => {
            setup::prepare(Purpose::Testbed, no_install)?;
            if Found::of(&testbed).is_whole() {
                say!("testbed: already up in {}", testbed.dir().display());
            } else {
                up(&testbed, port)?;
                stop::removes_nothing();
            }
            testbed.use_lines().iter().for_each(|line| say!("  {line}"));
            Ok(())
        }
    }
}

/// Makes both nodes. A failure removes them, and so does a signal, until [`stop::removes_nothing`] is called.
pub fn up(testbed: &Testbed, port: u16) -> Result<()> {
    allowed()?;
    let found = Found::of(testbed);
    if !found.is_nothing() {
        let (dir, down) = (testbed.dir().display(), testbed.command("down"));
        let there = found.words().join(", ");
        return Err(refused(format!(
            "a part of a testbed is in {dir} ({there}); remove it with `{down}`, then try again"
        )));
    }
    let (since, to_remove) = (Instant::now(), testbed.clone());
    // From here on what is there is this command's.
    testbed.claim()?;
    stop::removes(move || found::remove(&to_remove).map(drop).map_err(|error| format!("{error:#}")));
    if let Err(error) = testbed.make(port).and_then(|()| start(testbed)) {
        let dir = testbed.dir().display();
        let error = match format!("{error:#}").contains("No space left on device") {
            true => error.context(format!(
                "no room for keys and logs in {dir}: make room there, or give another --dir"
            )),
            false => error,
        };
        return Err(match found::remove(testbed) {
            Ok(_) => error,
            Err(left) => error.context(format!("{left:#}")),
        });
    }
    say!("testbed: up in {:.1} s", since.elapsed().as_secs_f64());
    Ok(())
}

fn start(testbed: &Testbed) -> Result<()> {
    let [one, two] = testbed.nodes();
    for node in [&one, &two] {
        // Behind a signal this would come back after its removal.
        stop::hold();
        tool(&["ip", "netns", "add", &node.namespace])?;
    }
    // No name of a namespace or an address has a blank.
    let ip = |words: String| tool(&format!("ip {words}").split(' ').collect::<Vec<_>>());
    let end = |node: &bed::Node| format!("eth0 mtu {} netns {}", bed::MTU, node.namespace);
    ip(format!("link add {} type veth peer name {}", end(&one), end(&two)))?;
    for bed::Node { namespace, address, .. } in [&one, &two] {
        ip(format!("-n {namespace} link set lo up"))?;
        ip(format!("-n {namespace} addr add {address}/24 dev eth0"))?;
        ip(format!("-n {namespace} link set eth0 up"))?;
    }
    let us = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(us);
    command.args(["testbed", "hold", "--dir"]).arg(testbed.dir());
    let mut supervisor = JsonProgram::start(&mut command, &testbed.dir().join("supervisor.log"))?;
    supervisor.json("up", LISTENING).context("starting sshd on both nodes")?;
    // It outlives this command: dropping it would end it.
    std::mem::forget(supervisor);
    for node in [&one, &two] {
        let said = tool(&[&testbed.ssh().display().to_string(), &node.name, "hostname"])
            .with_context(|| format!("logging in to {}", node.name))?;
        ensure!(said.trim() == node.name, "{} calls itself `{}`", node.name, said.trim());
    }
    Ok(())
}

/// Removes what a killed command left, if it left something.
pub fn clear(testbed: &Testbed) -> Result<()> {
    if Found::of(testbed).is_nothing() { Ok(()) } else { down(testbed) }
}

/// Removes all of it, and says what is left. A second call finds nothing, which is no error.
pub fn down(testbed: &Testbed) -> Result<()> {
    if Found::of(testbed).is_nothing() {
        say!("testbed: there is none in {}", testbed.dir().display());
        return Ok(());
    }
    let since = Instant::now();
    let removed = found::remove(testbed)?;
    let seconds = since.elapsed().as_secs_f64();
    say!("testbed: removed in {seconds:.1} s: {}; nothing is left", removed.words().join(", "));
    Ok(())
}

fn status(testbed: &Testbed) -> Result<()> {
    let (found, dir) = (Found::of(testbed), testbed.dir().display());
    ensure!(!found.is_nothing(), "testbed: there is none in {dir}; `{}` makes it", testbed.command("up"));
    let state = if found.is_whole() { "up" } else { "not whole" };
    say!("testbed: {state} in {dir}");
    found.lines(testbed).iter().for_each(|line| say!("  {line}"));
    let down = testbed.command("down");
    ensure!(found.is_whole(), "testbed: it is not whole; `{down}` removes what is there");
    testbed.use_lines().iter().for_each(|line| say!("  {line}"));
    Ok(())
}

/// Refuses a process that may not make the namespaces, before anything is made.
pub fn allowed() -> Result<()> {
    let lacks = |why: &str| {
        refused(format!(
            "testbed: {why}; making network and mount namespaces takes CAP_SYS_ADMIN and CAP_NET_ADMIN: run it as root, in a \
             container with these capabilities. `{} figure 4 --where local` measures without a testbed",
            workspace::us()
        ))
    };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(name) = missing_right(&status) {
        return Err(lacks(&format!("this process lacks {name}")));
    }
    // A container's filter of system calls may forbid it too.
    tool(&["unshare", "-nmu", "true"]).map(drop).map_err(|error| lacks(&format!("{error:#}")))
}

/// The first missing capability, by `CapEff` of `proc_pid_status(5)`; numbers as in `linux/capability.h`.
fn missing_right(status: &str) -> Option<&'static str> {
    let effective = stop::mask(status, "CapEff:");
    let rights = [("CAP_SYS_ADMIN", 21), ("CAP_NET_ADMIN", 12)];
    rights.into_iter().find(|(_, bit)| effective >> bit & 1 == 0).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_right_is_named() {
        let status = |mask: &str| format!("Name:\tx\nCapEff:\t{mask}\nCapBnd:\t0\n");
        for (mask, missing) in [
            ("000001ffffffffff", None),
            ("000001ffffdfffff", Some("CAP_SYS_ADMIN")),
            ("0000000000200000", Some("CAP_NET_ADMIN")),
            ("0000000000000000", Some("CAP_SYS_ADMIN")),
            ("?", Some("CAP_SYS_ADMIN")),
        ] {
            assert_eq!(missing_right(&status(mask)), missing, "{mask}");
        }
    }
}
