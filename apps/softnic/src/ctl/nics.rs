//! The NICs that run, which of them is meant, and where answers are shown.

use std::io::Write;
use std::rc::Rc;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use soft_nic::control::{self, Request};
use soft_nic::link::{self, FabricMember, FabricView};

/// A process that has a NIC, and the fabric where it has it.
pub struct Target {
    pub view: Rc<FabricView>,
    pub member: FabricMember,
}

impl Target {
    /// The processes that have a NIC, on the fabric of this name or on all fabrics.
    pub fn all(fabric: Option<&str>) -> Result<Vec<Target>> {
        let mut views = FabricView::all().context("looking for fabrics in /proc")?;
        views.retain(|view| fabric.is_none_or(|name| view.name == name));
        Ok(views.into_iter().flat_map(|view| Target::of_fabric(&Rc::new(view))).collect())
    }

    pub fn of_fabric(view: &Rc<FabricView>) -> Vec<Target> {
        view.members().into_iter().map(|member| Target { view: view.clone(), member }).collect()
    }

    pub fn of_process(pid: u32) -> Result<Target> {
        let named = Self::all(None)?.into_iter().find(|target| target.member.pid == pid);
        named.with_context(|| why_not(pid))
    }

    pub fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        Ok(control::call(&self.view, &self.member, request)?.0)
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
