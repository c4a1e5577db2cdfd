//! A testbed of a test's own, and what it left on the machine, looked up without xtask.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longest that a command of these tests takes on a machine that is busy with others.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Prints a wall time that misses its aim, that of two quiet cores; how busy a machine is fails no test.
pub fn say_if_beyond(aim_s: f64, seconds: f64, what: &str) {
    if seconds > aim_s {
        let said = format!("{what}: {seconds:.1} s, at most {aim_s} s are the aim on two quiet cores\n");
        // The harness keeps what a passing test prints to itself, but for this.
        let _ = std::io::stderr().write_all(said.as_bytes());
    }
}

/// Removed when it is dropped.
pub struct Bed {
    pub dir: PathBuf,
}

impl Bed {
    /// A folder of that name where no testbed is yet; ssh's sockets need a short path.
    pub fn new(name: &str) -> Bed {
        Bed { dir: std::env::temp_dir().join(format!("tb-{name}-{}", std::process::id())) }
    }

    /// The same with both nodes up.
    pub fn up(name: &str) -> Bed {
        let bed = Bed::new(name);
        let up = bed.testbed("up");
        assert!(up.ok, "{up:?}");
        bed
    }

    pub fn command(&self, what: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(["testbed", what, "--dir"]).arg(&self.dir).stdin(Stdio::null());
        if what == "up" {
            command.arg("--no-install");
        }
        command
    }

    pub fn testbed(&self, what: &str) -> ProgramOutput {
        ProgramOutput::of(&mut self.command(what))
    }

    pub fn start(&self, what: &str) -> Child {
        self.command(what).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a line of shell on a node.
    pub fn on(&self, node: &str, line: &str) -> ProgramOutput {
        ProgramOutput::of(Command::new(self.dir.join("ssh")).args([node, line]))
    }

    /// Puts programs before those of the machine on a node: name, and text of a shell script.
    pub fn stand_ins(&self, node: &str, programs: &[(&str, &str)]) {
        let mut line = "mkdir -p /root/bin; echo 'PATH=/root/bin:$PATH' > /root/.bashrc".to_owned();
        for (name, text) in programs {
            line += &format!(
                "; printf '%s\\n' '#!/bin/sh' '{text}' > /root/bin/{name}; chmod +x /root/bin/{name}"
            );
        }
        assert!(self.on(node, &line).ok, "{line}");
    }

    /// What is left on this machine: names of namespaces, processes, mounts, the folder.
    pub fn left(&self) -> Vec<String> {
        let dir = self.dir.display().to_string();
        let mut left = Vec::new();
        for name in self.namespaces() {
            left.push(format!("network namespace {name}"));
        }
        for process in fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()) {
            let command = fs::read(process.join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            if command.contains(&dir) {
                left.push(format!("process {command}"));
            }
            if fs::read_to_string(process.join("mountinfo")).is_ok_and(|mounts| mounts.contains(&dir)) {
                left.push(format!("mount seen by {} {command}", process.display()));
            }
        }
        if let Ok(entries) = fs::read_dir(&self.dir) {
            let names = entries.flatten().map(|entry| entry.file_name());
            left.push(format!("{dir} with {:?}", names.collect::<Vec<_>>()));
        }
        left
    }

    /// Namespaces of this testbed, whose names hold the 32-bit FNV-1a of its folder.
    fn namespaces(&self) -> Vec<String> {
        let dir = self.dir.display().to_string();
        let tag =
            dir.bytes().fold(0x811c_9dc5_u32, |tag, byte| (tag ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let there = fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let there = there.map(|entry| entry.file_name().into_string().unwrap());
        there.filter(|name| name.contains(&format!("-{tag:08x}-"))).collect()
    }

    /// Asserts that the machine has both namespaces, so that a test for what is left looks for these.
    pub fn has_namespaces(&self) {
        assert_eq!(self.namespaces().len(), 2, "{:?}", self.namespaces());
    }

    /// The process that owns the sshds.
    pub fn supervisor(&self) -> u32 {
        let status = self.testbed("status").text;
        let line = status.lines().find_map(|line| line.trim().strip_prefix("supervisor "));
        line.unwrap().parse().unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.testbed("down");
    }
}

/// How a program ended and what it said on both streams.
#[derive(Debug)]
pub struct ProgramOutput {
    pub ok: bool,
    pub code: Option<i32>,
    pub text: String,
}

impl ProgramOutput {
    /// Of a program that ends within [`LIMIT`]. It has its own stdin: ssh makes its stdin non-blocking for
    /// every process that shares it, which ansible refuses.
    pub fn of(command: &mut Command) -> ProgramOutput {
        ProgramOutput::within(LIMIT, command)
    }

    /// Of a program that ends within this time.
    pub fn within(limit: Duration, command: &mut Command) -> ProgramOutput {
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (id, (tell, said)) = (child.id(), channel());
        std::thread::spawn(move || tell.send(child.wait_with_output()));
        let Ok(output) = said.recv_timeout(limit) else {
            let _ = Command::new("sh").args(["-c", &format!("kill -9 {id}")]).status();
            panic!("{command:?} has not ended within {limit:?}");
        };
        let Output { status, stdout, stderr } = output.unwrap();
        let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        ProgramOutput { ok: status.success(), code: status.code(), text }
    }

    #[track_caller]
    pub fn has(&self, words: &[&str]) {
        assert!(words.iter().all(|word| self.text.contains(word)), "{words:?}: {self:?}");
    }
}

/// Whether a testbed can be made here.
pub fn machine() -> Result<(), String> {
    let setup = ProgramOutput::of(Command::new(env!("CARGO_BIN_EXE_xtask")).args([
        "setup",
        "testbed",
        "--no-install",
    ]));
    let programs = ["ip", "sshd", "ssh", "ssh-keygen", "unshare", "ansible-playbook"];
    if let Some(missing) = programs.iter().find(|name| !has(name)) {
        return Err(format!("there is no {missing}"));
    }
    let made = ProgramOutput::of(Command::new("unshare").args(["-nmu", "true"]));
    [setup, made].into_iter().find(|said| !said.ok).map_or(Ok(()), |said| Err(said.text.replace('\n', " ")))
}

fn has(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.any(|folder| folder.join(name).is_file())
}
