//! What of a testbed is on this machine, found in `/proc` and `/run/netns` without a record, and its removal.
//!
//! After `proc_pid_mountinfo(5)`, `proc_pid_ns(5)`, `ip-netns(8)`. A killed supervisor or `up` hides nothing.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::bed::Testbed;
use super::tool::tool;
use crate::descendants::{is_alive, parent, processes};

/// Longest that processes may take to end after each signal.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub struct Found {
    supervisors: Vec<u32>,
    nodes: [NodeState; 2],
    /// Processes that see a node's private mount, in no namespace of its names: a login that lives on.
    strays: Vec<u32>,
    folder: bool,
}

#[derive(Debug, Default)]
struct NodeState {
    namespace: bool,
    processes: Vec<u32>,
    /// The sshd that accepts logins.
    sshd: Option<u32>,
}

impl Found {
    pub fn of(testbed: &Testbed) -> Found {
        let nodes = testbed.nodes();
        let places = nodes.each_ref().map(|node| Path::new("/run/netns").join(&node.namespace));
        let mut found = Found { folder: testbed.is_folder(), ..Found::default() };
        // `ip netns add` that was cut leaves a plain file of that name.
        let namespaces = places.each_ref().map(|place| identity(place));
        for (node, place) in found.nodes.iter_mut().zip(&places) {
            node.namespace = place.exists();
        }
        let dir = testbed.dir().display().to_string();
        let holds = format!("\0testbed\0hold\0--dir\0{dir}\0");
        // `proc_pid_mountinfo(5)`: the mount point stands between spaces.
        let mounts = nodes.each_ref().map(|node| format!(" {}/private ", node.folder.display()));
        for process in processes().filter(|process| is_alive(*process)) {
            let of = |name: &str| PathBuf::from(format!("/proc/{process}/{name}"));
            let network = identity(&of("ns/net"));
            let line = fs::read(of("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).ends_with(&holds) {
                found.supervisors.push(process);
            } else if let Some(at) = namespaces.iter().position(|one| one.is_some() && *one == network) {
                found.nodes[at].processes.push(process);
            } else if fs::read_to_string(of("mountinfo")).is_ok_and(|all| sees_one(&all, &mounts)) {
                found.strays.push(process);
            }
        }
        for node in &mut found.nodes {
            let is_sshd = |process: &&u32| {
                let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
                let is_started = parent(**process).is_some_and(|parent| found.supervisors.contains(&parent));
                name.trim() == "sshd" && is_started
            };
            node.sshd = node.processes.iter().find(is_sshd).copied();
        }
        found
    }

    pub fn is_nothing(&self) -> bool {
        self.words().is_empty()
    }

    /// Whether all of it is there and can be used.
    pub fn is_whole(&self) -> bool {
        self.folder
            && self.supervisors.len() == 1
            && self.nodes.iter().all(|node| node.namespace && node.sshd.is_some())
    }

    /// What is there, a phrase a kind.
    pub fn words(&self) -> Vec<String> {
        let namespaces = self.nodes.iter().filter(|node| node.namespace).count();
        let counts = [
            (self.supervisors.len(), "supervisor"),
            (self.processes().len() - self.supervisors.len(), "process of the nodes"),
            (namespaces, "network namespace"),
            (usize::from(self.folder), "folder with keys and logs"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        counts.map(|(count, what)| format!("{count} × {what}")).collect()
    }

    /// What `status` prints.
    pub fn lines(&self, testbed: &Testbed) -> Vec<String> {
        let id = |process: Option<&u32>| process.map_or("none".to_owned(), u32::to_string);
        let mut lines: Vec<String> = Vec::new();
        for (node, found) in testbed.nodes().iter().zip(&self.nodes) {
            let namespace = if found.namespace { &node.namespace } else { "none" };
            let (sshd, count) = (id(found.sshd.as_ref()), found.processes.len());
            let (name, address) = (&node.name, &node.address);
            lines.push(format!("{name}  {address}  namespace {namespace}  sshd {sshd}  {count} processes"));
        }
        lines.push(format!("supervisor {}", id(self.supervisors.first())));
        if !self.strays.is_empty() {
            lines.push(format!("processes without a namespace of the testbed: {:?}", self.strays));
        }
        lines
    }

    /// Everything that runs: the supervisor, what is in the nodes, and what sees their mounts.
    fn processes(&self) -> BTreeSet<u32> {
        let of_nodes = self.nodes.iter().flat_map(|node| &node.processes);
        let all = self.supervisors.iter().chain(of_nodes).chain(&self.strays).copied();
        all.filter(|process| *process != std::process::id()).collect()
    }
}

/// Ends and removes everything, whatever is there, and returns what was. Error: what is left.
pub fn remove(testbed: &Testbed) -> Result<Found> {
    let before = Found::of(testbed);
    let mut wrong = Vec::new();
    // The supervisor ends what it started; all else is asked, then killed.
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        end(testbed, signal);
    }
    for node in testbed.nodes() {
        if Path::new("/run/netns").join(&node.namespace).exists() {
            wrong.extend(tool(&["ip", "netns", "del", &node.namespace]).err());
        }
    }
    wrong.extend(testbed.remove_folder().err());
    let left = Found::of(testbed);
    if left.is_nothing() && wrong.is_empty() {
        return Ok(before);
    }
    let wrong: String = wrong.iter().map(|error| format!("{error:#}; ")).collect();
    let (dir, left) = (testbed.dir().display(), left.words().join(", "));
    bail!("testbed: not all of {dir} could be removed: {wrong}left: {left}")
}

/// Sends the signal to every process, those included that appear meanwhile, and waits for their end.
fn end(testbed: &Testbed, signal: Signal) {
    let (since, mut asked) = (Instant::now(), BTreeSet::new());
    while since.elapsed() < PATIENCE {
        let running = Found::of(testbed).processes();
        if running.is_empty() {
            return;
        }
        for process in running.iter().filter(|process| asked.insert(**process)) {
            let _ = i32::try_from(*process).map(|process| kill(Pid::from_raw(process), signal));
        }
        sleep(Duration::from_millis(20));
    }
}

/// Processor seconds of all that runs on the nodes, and of what ended there and was waited for.
pub fn seconds(testbed: &Testbed) -> f64 {
    Found::of(testbed).processes().into_iter().filter_map(measure::background_load::seconds_of).sum()
}

/// Whether a `mountinfo` has one of these mount points.
fn sees_one(mountinfo: &str, mounts: &[String]) -> bool {
    mounts.iter().any(|mount| mountinfo.contains(mount))
}

/// What tells one namespace from another.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `down` kills what it finds, as root.
    #[test]
    fn a_process_is_a_testbeds_by_the_private_mount_of_a_node_alone() {
        let of = |dir: &str| [1, 2].map(|number| format!(" {dir}/node{number}/private "));
        let mountinfo = "22 1 0:20 / /sys rw shared:2 - sysfs sysfs rw\n\
                         30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                         99 1 0:90 / /t/bed/node2/private rw - tmpfs tmpfs rw\n";
        assert!(sees_one(mountinfo, &of("/t/bed")));
        for dir in ["/sys", "/t", "/t/be", "/"] {
            assert!(!sees_one(mountinfo, &of(dir)), "{dir}");
        }
        // A folder without a testbed has nothing to end, whatever runs.
        let testbed = Testbed::at(Path::new("/sys")).unwrap();
        assert!(Found::of(&testbed).is_nothing());
    }
}
