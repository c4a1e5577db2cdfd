//! The supervisor: starts sshd in each node's namespaces, says when both listen, ends them at a signal.
//!
//! Follows `unshare(1)`, `ip-netns(8)` and the kernel's `Documentation/filesystems/overlayfs.rst`. A node's
//! mounts belong to its processes alone and go with the last of them.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::unistd::setsid;

use super::bed::{Node, SSHD_FILES, Testbed};
use super::tool::program;
use crate::process::ChildGuard;
use crate::refused::refused;

/// Longest until both sshds listen.
pub const LISTENING: Duration = Duration::from_secs(10);

/// Run by `sh` in the namespaces of a node, with its name, its folder and sshd's path; becomes sshd.
const SCRIPT: &str = r#"set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
name=$1 folder=$2 sshd=$3
hostname "$name"
cd "$folder"
mount -t tmpfs -o mode=755 tmpfs private
cd private
mkdir -m 755 etc etc.work opt opt.work
mount -t overlay -o lowerdir=/etc,upperdir=etc,workdir=etc.work overlay /etc
mount -t overlay -o lowerdir=/opt,upperdir=opt,workdir=opt.work overlay /opt
# What follows would otherwise write the machine's own files.
for at in /etc /opt; do
    grep -q "^overlay $at overlay " /proc/self/mounts || { echo "no overlay is mounted on $at" >&2; exit 1; }
done
echo "$name" > /etc/hostname
printf '127.0.0.1 localhost\n10.77.0.1 node1\n10.77.0.2 node2\n' > /etc/hosts
sed -i 's/^root:!/root:*/' /etc/shadow
mkdir -m 700 SSHD_FILES
cp "$folder/host_key" "$folder/sshd.conf" SSHD_FILES/
cp "$folder/../client.pub" SSHD_FILES/authorized_keys
for at in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $at; done
for at in /run /root; do mount -t tmpfs -o mode=755 tmpfs $at; done
mkdir -m 755 /run/sshd
cd /
exec "$sshd" -D -e -f SSHD_FILES/sshd.conf
"#;

/// What a node's sshd says.
enum SshdMessage {
    Listening,
    /// Its last line, where its output ended.
    Ended(String),
}

/// Starts both nodes, and holds them until a signal ends this process and all below. Error: one ended alone.
pub fn hold(testbed: &Testbed) -> Result<()> {
    // The terminal of `up` may hang up.
    setsid().context("leaving the session")?;
    let (tell, said) = channel();
    let mut sshds = Vec::new();
    for node in testbed.nodes() {
        sshds.push(ChildGuard(start(&node, tell.clone())?));
    }
    let until = Instant::now() + LISTENING;
    for _ in 0..sshds.len() {
        match said.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((_, SshdMessage::Listening)) => {}
            Ok((node, SshdMessage::Ended(last))) => return Err(refused(ended(&node, &last))),
            Err(_) => bail!("sshd did not listen within {} s", LISTENING.as_secs()),
        }
    }
    say!("{}", serde_json::json!({ "kind": "up" }));
    match said.recv() {
        Ok((node, SshdMessage::Ended(last))) => bail!(ended(&node, &last)),
        _ => bail!("nothing is heard of sshd any more"),
    }
}

/// Why a node has no sshd, with the remedy where there is one.
fn ended(node: &str, last: &str) -> String {
    let remedy = match last {
        last if last.contains("in use") || last.contains("Cannot bind") => {
            "; end what has that port, or give `up` another --port"
        }
        last if last.contains("overlay") || last.contains("mount") => {
            "; this kernel or container lets no overlay be mounted there"
        }
        _ => "",
    };
    format!("{node}: sshd ended: {last}{remedy}")
}

fn start(node: &Node, tell: Sender<(String, SshdMessage)>) -> Result<Child> {
    let script = SCRIPT.replace("SSHD_FILES", SSHD_FILES);
    let mut child = Command::new(program("ip")?)
        .args(["netns", "exec", &node.namespace, "unshare", "-mu", "--propagation", "private"])
        .args(["sh", "-c", &script, "sh", &node.name])
        .args([&node.folder, &program("sshd")?])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting ip netns exec")?;
    let stderr = child.stderr.take().context("stderr was piped")?;
    let path = node.folder.join("sshd.log");
    let mut log = OpenOptions::new().create(true).append(true).open(&path).context("writing sshd.log")?;
    let name = node.name.clone();
    // Ends with sshd and all logins, which share its stderr.
    std::thread::spawn(move || {
        let mut last = "it said nothing".to_owned();
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let _ = writeln!(log, "{line}");
            if line.starts_with("Server listening on") {
                let _ = tell.send((name.clone(), SshdMessage::Listening));
            }
            // That it cannot bind is told before that it has nothing to listen on.
            if !last.contains("in use") {
                last = line.trim().to_owned();
            }
        }
        tell.send((name, SshdMessage::Ended(last)))
    });
    Ok(child)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_sshd_ended_comes_with_its_remedy() {
        let taken = "error: Bind to port 2222 on 10.77.0.1 failed: Address already in use.";
        for (last, words) in [
            (taken, &["node1", taken, "--port"][..]),
            ("mount: /etc: wrong fs type", &["wrong fs type", "no overlay"]),
            ("sshd: no hostkeys available -- exiting.", &["no hostkeys"]),
        ] {
            let said = ended("node1", last);
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }
}
