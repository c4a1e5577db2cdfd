//! The other end of a row with `kernel`: a Linux kernel's soft-RoCE (`rdma_rxe`) in `qemu-system-x86_64`.
//!
//! The guest is Debian's kernel with programs of this machine (`xtask/compat/kernel`). Its Ethernet is a tap
//! in a network namespace, where the NIC's end of each row runs too; without root it is in a user namespace.
//! Commands go in and results out by files of a shared folder (9p). All of it ends with this command.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::geteuid;
use serde::Deserialize;

use crate::process::{ChildGuard, Ended, JsonProgram, WAIT, wait_for};

/// Address of the guest, whose RDMA device is `rxe0` with the RoCE v2 GID of this address at index 1.
const GUEST: &str = "10.9.0.1";
/// Address of the NIC's end, whose GID of it is at index 3.
const HOST: &str = "10.9.0.254";
/// From power-on to a device: twenty times what it took on two busy cores.
const BOOT: Duration = Duration::from_secs(160);
/// Longest that a guest lives, if all that ends it fails, in seconds.
const LIFE_S: u32 = 3600;
/// Makes the tap, and holds the namespace until stdin ends.
const HOLD: &str = "PATH=$PATH:/usr/sbin:/sbin; set -e; ip link set lo up; ip tuntap add dev tap0 mode tap; \
    ip addr add HOST/24 dev tap0; ip link set tap0 up; echo '{\"kind\":\"ready\"}'; exec cat";

/// The machine. Without `romfile` it tries to boot from the network first.
const QEMU: &str = "qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m 512 -smp 2 -nodefaults -nographic \
    -no-reboot -monitor none -netdev tap,id=net,ifname=tap0,script=no,downscript=no,vnet_hdr=off \
    -device virtio-net-pci,netdev=net,romfile=,csum=off,gso=off -device virtio-rng-pci";

/// Which end of a row the kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Server,
    Client,
}

/// Options of `softnic run` for the other end.
pub fn on_the_wire() -> Vec<String> {
    ["--link-layer", "roce", "--path", "wire", "--ipv4", HOST].map(str::to_owned).to_vec()
}

/// A command with device, GID and server address filled in, as `end` runs it if `kernel` is the kernel.
pub fn filled(command: &str, end: End, kernel: End) -> String {
    let (device, gid) = if end == kernel { ("rxe0", "1") } else { ("mlx5_0", "3") };
    let server = if kernel == End::Server { GUEST } else { HOST };
    command.replace("{device}", device).replace("{gid}", gid).replace("{server}", server)
}

/// A command of the guest, ended after `limit`, whose Ethernet loses 1 % of what leaves it meanwhile; then
/// what was sent and lost.
pub fn losing(command: &str, limit: Duration) -> String {
    let seconds = limit.as_secs();
    let tc = "/usr/bin/tc qdisc";
    format!(
        "{tc} replace dev eth0 root netem loss 1% || exit; timeout {seconds} {command}; rc=$?\n/usr/bin/tc -s qdisc show dev eth0\n\
         {tc} del dev eth0 root; exit $rc"
    )
}

/// Packets that the guest's Ethernet sent and lost, by what `tc` said behind a command.
pub fn sent_and_lost(said: &str) -> Option<[u64; 2]> {
    let (_, shown) = said.rsplit_once("qdisc netem")?;
    let number = |behind: &str, before: &str| {
        let word = shown.split_once(behind)?.1.split_once(before)?.0;
        word.split(' ').next_back()?.parse().ok()
    };
    Some([number("Sent ", " pkt")?, number("(dropped ", ",")?])
}

pub struct Guest {
    /// Ends before the namespace.
    qemu: ChildGuard,
    namespace: JsonProgram,
    share: PathBuf,
    jobs: Cell<u32>,
}

/// A command that runs in the guest.
pub struct Job<'a> {
    guest: &'a Guest,
    number: u32,
}

impl Guest {
    /// Boots the guest that lies in `folder`; its console, and a folder of jobs, go to `logs`.
    pub fn boot(folder: &Path, logs: &Path) -> Result<Guest> {
        let share = logs.join("jobs");
        let _ = fs::remove_dir_all(&share);
        fs::create_dir_all(&share).with_context(|| format!("making {}", share.display()))?;
        let (hold, rights) = (HOLD.replace("HOST", HOST), if geteuid().is_root() { "-n" } else { "-rn" });
        let mut unshare = Command::new("unshare");
        unshare.args([rights, "sh", "-c", &hold]);
        let mut namespace = JsonProgram::start(&mut unshare, &logs.join("namespace.log"))?;
        namespace.json("ready", WAIT).context("a network namespace with a tap (/dev/net/tun)")?;
        let console = logs.join("console.log");
        let mut qemu = inside(&namespace, "timeout");
        qemu.args(["--kill-after=1", &LIFE_S.to_string(), "setpriv", "--pdeathsig", "KILL"]);
        qemu.args(QEMU.split(' ')).arg("-serial").arg(format!("file:{}", console.display()));
        qemu.arg("-kernel").arg(folder.join("vmlinuz")).arg("-initrd").arg(folder.join("initrd.gz"));
        qemu.args(["-append", "console=ttyS0 quiet panic=-1 net.ifnames=0"]);
        let shared = format!("local,path={},mount_tag=host,security_model=none", share.display());
        qemu.args(["-virtfs", &shared]);
        say!("compat: booting a guest with Debian's kernel under QEMU, without KVM");
        let qemu = ChildGuard::logged(&mut qemu, &logs.join("qemu.log"))?;
        let mut guest = Guest { qemu, namespace, share, jobs: Cell::new(0) };
        let (since, file, console) = (Instant::now(), guest.share.join("link"), console.display());
        let booted = wait_for(BOOT, || match (file.exists(), guest.qemu.poll()?) {
            (true, _) => Ok(Some(())),
            (false, None) => Ok(None),
            (false, Some(ended)) => bail!(
                "QEMU {ended} before the guest could make its RDMA device; see {console} and qemu.log beside it"
            ),
        })?;
        let limit = BOOT.as_secs();
        ensure!(booted.is_some(), "the guest did not make its RDMA device within {limit} s; see {console}");
        let link = fs::read_to_string(file).context("reading what the guest says")?;
        let link = link.trim();
        ensure!(
            link.contains("state ACTIVE"),
            "the guest has no RDMA device (`rdma link`: {link}); see {console}"
        );
        say!("compat: the guest has {link} after {:.0} s", since.elapsed().as_secs_f64());
        Ok(guest)
    }

    /// A program of this machine in the guest's network.
    pub fn beside(&self, program: &Path) -> Command {
        inside(&self.namespace, program)
    }

    /// Starts a command there, ended after `limit`. `ready`: a shell's condition for its `wait_until_ready`.
    pub fn start(&self, command: &str, ready: &str, limit: Duration) -> Result<Job<'_>> {
        let number = self.jobs.get() + 1;
        self.jobs.set(number);
        let script = script(command, limit, ready, &format!("/host/{number}.ready"));
        // The guest looks for the name.
        let (new, job) = (self.share.join("new"), self.share.join(format!("{number}.sh")));
        fs::write(&new, script)
            .and_then(|()| fs::rename(&new, &job))
            .with_context(|| format!("writing {}", job.display()))?;
        Ok(Job { guest: self, number })
    }
}

impl Job<'_> {
    fn file(&self, kind: &str) -> PathBuf {
        self.guest.share.join(format!("{}.{kind}", self.number))
    }

    pub fn said(&self) -> String {
        fs::read(self.file("log")).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }

    /// Waits until its condition holds. Error: it has ended before.
    pub fn wait_until_ready(&self) -> Result<()> {
        let ready = wait_for(WAIT, || match (self.file("ready").exists(), self.ended()) {
            (true, _) => Ok(Some(())),
            (false, None) => Ok(None),
            (false, Some(ended)) => bail!("the server in the guest {ended}: {}", self.said().trim()),
        });
        ready?.with_context(|| format!("the server in the guest does not get ready: {}", self.said().trim()))
    }

    fn ended(&self) -> Option<Ended> {
        let text = fs::read_to_string(self.file("rc")).ok()?;
        Some(match text.trim().parse().ok()? {
            0 => Ended::Well,
            // As busybox's `timeout` ends it, and as a shell tells of signals.
            143 => Ended::TimedOut,
            code @ 129..160 => Ended::Signal(code - 128),
            code => Ended::Status(code),
        })
    }

    /// How it ended, if within `limit`.
    pub fn wait(&self, limit: Duration) -> Ended {
        let ended = wait_for(limit, || Ok(self.ended()));
        ended.ok().flatten().unwrap_or(Ended::TimedOut)
    }
}

/// What the guest's shell runs: the command, and `ready_file` once the condition holds while it runs.
fn script(command: &str, limit: Duration, ready: &str, ready_file: &str) -> String {
    let (seconds, quoted) = (limit.as_secs(), crate::shell::quoted(command));
    format!(
        "timeout {seconds} sh -c {quoted} & own=$!\nwhile kill -0 $own 2>/dev/null; do\n\
         if {ready}; then : > {ready_file}; break; fi\nusleep 50000\ndone\nwait $own\n"
    )
}

/// A guest shell's condition: a TCP socket, or an id if the words are `rdma_cm`'s, listens on the port.
pub fn ready(words: Option<&str>, port: u16) -> String {
    match words {
        Some(words) if words.starts_with("rdma_cm ") => {
            "/usr/bin/rdma resource show cm_id | grep -q LISTEN".into()
        }
        // `proc_net_tcp(5)`: state 0A.
        _ => format!("grep -q ':{port:04X} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6"),
    }
}

/// A program in the namespace that a process holds.
fn inside(namespace: &JsonProgram, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["-t", &namespace.child.0.id().to_string()]);
    if !geteuid().is_root() {
        command.args(["-U", "--preserve-credentials"]);
    }
    command.arg("-n").arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_told_its_device_and_the_servers_address() {
        let command = "x -d {device} -x {gid} {server}";
        for (end, kernel, filled) in [
            (End::Server, End::Server, "x -d rxe0 -x 1 10.9.0.1"),
            (End::Client, End::Server, "x -d mlx5_0 -x 3 10.9.0.1"),
            (End::Server, End::Client, "x -d mlx5_0 -x 3 10.9.0.254"),
            (End::Client, End::Client, "x -d rxe0 -x 1 10.9.0.254"),
        ] {
            assert_eq!(super::filled(command, end, kernel), filled);
        }
    }

    #[test]
    fn what_the_guest_lost_is_told_by_tc() {
        let shown = "x\nqdisc netem 8001: root refcnt 2 limit 1000 loss 1%\n Sent 1638 bytes 1234 pkt (dropped 12, overlimits 0 requeues 0)\n";
        assert_eq!(sent_and_lost(shown), Some([1234, 12]));
        assert_eq!(sent_and_lost("Error: Exclusivity flag on, cannot modify."), None);
    }

    #[test]
    fn a_server_that_ended_was_never_ready() {
        let folder = std::env::temp_dir().join(format!("xtask-job-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let ready = |name: &str, command: &str, condition: &str| {
            let file = folder.join(name);
            let text = script(command, WAIT, condition, &file.display().to_string());
            let text = text.replace("usleep 50000", "sleep 0.02");
            let status = Command::new("sh").args(["-c", &text]).status().unwrap();
            (file.exists(), status.code())
        };
        let go = folder.join("go");
        let waits = format!("until [ -e {} ]; do sleep 0.02; done; exit 4", go.display());
        assert_eq!(ready("ended", "exit 3", "false"), (false, Some(3)));
        assert_eq!(ready("runs", &waits, &format!("touch {}", go.display())), (true, Some(4)));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_listening_socket_is_told_by_the_kernels_table() {
        let table = "   1: 00000000:4853 00000000:0000 0A 0\n   2: 0100007F:1000 0100007F:4853 01 0\n";
        let listens = |port| {
            let condition = ready(None, port).replace(" /proc/net/tcp /proc/net/tcp6", "");
            let line = format!("printf '{table}' | {condition}");
            Command::new("sh").args(["-c", &line]).status().unwrap().success()
        };
        assert_eq!([18515, 4096].map(listens), [true, false]);
        assert!(ready(Some("rdma_cm LISTEN -> ()"), 1).contains("cm_id"));
    }
}
