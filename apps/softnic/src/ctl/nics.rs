//! The NICs that run, which of them is meant, and where answers are shown.

use std::io::Write;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use soft_nic::control::{self, Request};
use soft_nic::link::{self, FabricMember, FabricView};

/// A process that has a NIC, and the fabric where it has it.
pub struct Target {
    pub view: usize,
    pub member: FabricMember,
}

/// The processes that have a NIC, on the fabric of this name or on all fabrics.
pub struct RunningNics {
    views: Vec<FabricView>,
    pub targets: Vec<Target>,
}

impl RunningNics {
    pub fn find(fabric: Option<&str>) -> Result<RunningNics> {
        let mut views = FabricView::all().context("looking for fabrics in /proc")?;
        views.retain(|view| fabric.is_none_or(|name| view.name == name));
        let members =
            |view: usize| views[view].members().into_iter().map(move |member| Target { view, member });
        let targets = (0..views.len()).flat_map(members).collect();
        Ok(RunningNics { views, targets })
    }

    pub fn view(&self, target: &Target) -> &FabricView {
        &self.views[target.view]
    }

    pub fn of_process(pid: u32) -> Result<(RunningNics, Target)> {
        let mut nics = Self::find(None)?;
        match nics.targets.iter().position(|target| target.member.pid == pid) {
            Some(at) => {
                let target = nics.targets.swap_remove(at);
                Ok((nics, target))
            }
            None => bail!("{}", why_not(pid)),
        }
    }

    pub fn ask<T: DeserializeOwned>(&self, target: &Target, request: &Request) -> Result<T> {
        Ok(control::call(self.view(target), &target.member, request)?)
    }
}

/// Why a process cannot be asked, and what to do.
fn why_not(pid: u32) -> String {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::metadata("/proc/self").map(|own| own.uid()).ok();
    match std::fs::metadata(format!("/proc/{pid}")) {
        Err(_) => format!("there is no process {pid}; `softnic ctl list` shows those that have a NIC"),
        Ok(its) if Some(its.uid()) != own => {
            format!("process {pid} is of user {}; its NIC can be asked by that user alone", its.uid())
        }
        Ok(_) => match link::other_version(pid) {
            Some(theirs) => format!(
                "process {pid} has a NIC of fabric version {theirs}, this softnic has version {}; use the softnic that started it",
                link::VERSION
            ),
            None => format!(
                "process {pid} has no NIC that can be reached (it opened no device yet, or runs in another namespace); \
                 `softnic ctl list` shows those that have one"
            ),
        },
    }
}

/// Name of a process's program; empty when it has ended.
pub fn program_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    control::printable(name.trim_end())
}

/// Writes to stdout. False: as of [`put`].
pub fn show(text: &str) -> Result<bool> {
    put(&mut std::io::stdout().lock(), text.as_bytes()).context("writing to stdout")
}

/// Writes all of it. False: a reader as `head` has closed its end early and wants no more.
pub fn put(out: &mut impl Write, bytes: &[u8]) -> std::io::Result<bool> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}
