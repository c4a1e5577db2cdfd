//! A testbed's folder: names that follow from it alone, keys made on the fly, and what ssh and sshd read.
//!
//! Follows `ssh_config(5)`, `sshd_config(5)`, and `sshd(8)` for known hosts. Host keys are always checked.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::tool::tool;
use crate::files;
use crate::refused::refused;
use crate::shell::quoted;
use crate::workspace;

/// Of the link between the nodes: a path MTU of 4096 and room for headers.
pub const MTU: u32 = 4200;
/// ssh's control sockets lie in the folder, and a Unix socket's path has 108 bytes.
const LONGEST_DIR: usize = 70;
/// Where a node keeps sshd's files: in its own /etc, as its /tmp and /root may hide the testbed's folder.
pub const SSHD_FILES: &str = "/etc/doorbell-testbed";
/// Name of the file by which `down` knows a folder that it may remove.
const MARK: &str = ".doorbell-testbed";

/// A testbed, there or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Testbed {
    dir: PathBuf,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub address: String,
    /// Network namespace, as `ip netns` knows it.
    pub namespace: String,
    /// Of the testbed's folder, seen by both the machine and the node until its own mounts hide it.
    pub folder: PathBuf,
}

impl Testbed {
    /// The testbed in this folder. Error: a path that ssh's configuration cannot hold.
    pub fn at(dir: &Path) -> Result<Testbed> {
        let dir = std::path::absolute(dir).with_context(|| format!("--dir {}", dir.display()))?;
        // Not a link's name: the kernel lists mounts by their real paths.
        let parent = dir.parent().and_then(|parent| fs::canonicalize(parent).ok());
        let real = parent.zip(dir.file_name()).map(|(parent, name)| parent.join(name));
        let dir = real.unwrap_or(dir);
        let text = dir.display().to_string();
        if quoted(&text) != text || text.contains(['%', ',', ':']) {
            return Err(refused(format!(
                "testbed in {text}: give a path of letters, digits and / . _ - + = @ alone"
            )));
        }
        if text.len() > LONGEST_DIR {
            return Err(refused(format!(
                "testbed in {text}: its {} bytes leave no room for ssh's sockets; give a path of {LONGEST_DIR} at most",
                text.len()
            )));
        }
        Ok(Testbed { dir })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn nodes(&self) -> [Node; 2] {
        [1, 2].map(|number| Node {
            name: format!("node{number}"),
            address: format!("10.77.0.{number}"),
            namespace: format!("doorbell-{:08x}-node{number}", tag(&self.dir.display().to_string())),
            folder: self.dir.join(format!("node{number}")),
        })
    }

    /// A program that logs in as `ssh` does, from the first node's network: `NODE [COMMAND]`.
    pub fn ssh(&self) -> PathBuf {
        self.dir.join("ssh")
    }

    /// The command of this name for this testbed.
    pub fn command(&self, what: &str) -> String {
        let default = self.dir == workspace::target_dir().join("testbed");
        let dir = if default { String::new() } else { format!(" --dir {}", self.dir.display()) };
        format!("{} testbed {what}{dir}", workspace::us())
    }

    pub fn use_lines(&self) -> Vec<String> {
        let inventory = format!("-i inventories/netns.yml -e testbed_dir={}", self.dir.display());
        vec![
            format!("log in:  {} node1", self.ssh().display()),
            format!("set up:  (cd ansible && ansible-playbook {inventory} site.yml)"),
            format!("remove:  {}", self.command("down")),
        ]
    }

    /// Makes the folder, empty but for its mark. Error: refused where there is something, another `up`'s too.
    pub fn claim(&self) -> Result<()> {
        let dir = self.dir.display();
        fs::create_dir_all(self.dir.parent().context("a folder below another")?)?;
        // Fails where another `up` was quicker.
        DirBuilder::new().mode(0o700).create(&self.dir).map_err(|error| {
            refused(format!("--dir {dir}: {error}; give a folder that does not exist yet"))
        })?;
        self.write(MARK, &self.mark())
    }

    /// Fills it with keys and configurations.
    pub fn make(&self, port: u16) -> Result<()> {
        let dir = self.dir.display();
        let key = |path: &Path| {
            let path = path.display().to_string();
            tool(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "testbed", "-f", &path])
        };
        key(&self.dir.join("client"))?;
        let mut known = String::new();
        for node in self.nodes() {
            fs::create_dir_all(node.folder.join("private"))?;
            key(&node.folder.join("host_key"))?;
            let public = fs::read_to_string(node.folder.join("host_key.pub"))?;
            known += &format!("[{}]:{port} {public}", node.address);
            self.write(&format!("{}/sshd.conf", node.name), &sshd_config(&node, port))?;
        }
        self.write("known_hosts", &known)?;
        self.write("ssh_config", &self.ssh_config(port))?;
        let [from, _] = self.nodes();
        let ssh = format!(
            "#!/bin/sh\n# As ssh, from the network of {}.\nPATH=$PATH:/usr/sbin:/sbin\nexec ip netns exec {} ssh -F {dir}/ssh_config \"$@\"\n",
            from.name, from.namespace
        );
        self.write("ssh", &ssh)?;
        fs::set_permissions(self.ssh(), fs::Permissions::from_mode(0o755)).context("making ssh executable")
    }

    /// Removes the folder, if it is a testbed's.
    pub fn remove_folder(&self) -> Result<()> {
        if self.is_folder() { files::remove(&self.dir) } else { Ok(()) }
    }

    /// Whether the folder is a testbed's: it has the mark, or only the beginning of one, as a killed `up` may
    /// leave it.
    pub fn is_folder(&self) -> bool {
        let Ok(entries) = fs::read_dir(&self.dir) else { return false };
        let is_alone = entries.flatten().all(|entry| entry.file_name() == MARK);
        let (text, mark) = (fs::read_to_string(self.dir.join(MARK)).unwrap_or_default(), self.mark());
        text == mark || (is_alone && mark.starts_with(&text))
    }

    /// What the mark says: a folder that was copied or moved is no testbed's.
    fn mark(&self) -> String {
        format!("{} was made by `cargo xtask testbed up`, and is removed by `down`\n", self.dir.display())
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        files::write(&self.dir.join(name), text)
    }

    fn ssh_config(&self, port: u16) -> String {
        let dir = self.dir.display();
        let hosts = self.nodes().map(|node| format!("Host {}\n  HostName {}\n", node.name, node.address));
        format!(
            "{}Host *\n  User root\n  Port {port}\n  IdentityFile {dir}/client\n  IdentitiesOnly yes\n  \
             UserKnownHostsFile {dir}/known_hosts\n  GlobalKnownHostsFile none\n  StrictHostKeyChecking yes\n  \
             BatchMode yes\n  ConnectTimeout 5\n  ControlMaster auto\n  ControlPath {dir}/mux-%n\n  ControlPersist 30\n",
            hosts.concat()
        )
    }
}

fn sshd_config(node: &Node, port: u16) -> String {
    let own = SSHD_FILES;
    // Keys lie outside a home folder, and a container may have no PAM set up.
    format!(
        "ListenAddress {}:{port}\nHostKey {own}/host_key\nAuthorizedKeysFile {own}/authorized_keys\nPidFile none\n\
         StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         PermitRootLogin prohibit-password\nUseDNS no\nPrintMotd no\nSubsystem sftp internal-sftp\n",
        node.address
    )
}

/// 32-bit FNV-1a: the names of a folder's namespaces are the same in every build.
fn tag(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_the_folder_alone() {
        // Test vectors of the FNV reference code.
        assert_eq!([tag(""), tag("a"), tag("foobar")], [0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968]);
        let [one, two] = Testbed::at(Path::new("/tmp/a")).unwrap().nodes();
        let [other, _] = Testbed::at(Path::new("/tmp/b")).unwrap().nodes();
        assert!(one.namespace != two.namespace && one.namespace != other.namespace, "{one:?} {other:?}");
        assert_eq!((one.name.as_str(), two.address.as_str()), ("node1", "10.77.0.2"));
    }

    #[test]
    fn a_folder_that_ssh_cannot_take_is_refused_before_anything_is_made() {
        let long = format!("/tmp/{}", "x".repeat(80));
        for (dir, words) in [("/tmp/a b", "letters"), ("/tmp/50%", "letters"), (&long, "85 bytes")] {
            let error = Testbed::at(Path::new(dir)).unwrap_err().to_string();
            assert!(error.contains(dir) && error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_folder_of_something_else_is_neither_used_nor_removed() {
        let dir = std::env::temp_dir().join(format!("xtask-testbed-{}", std::process::id()));
        fs::create_dir_all(dir.join("testbed")).unwrap();
        fs::write(dir.join("kept"), "").unwrap();
        let testbed = Testbed::at(&dir).unwrap();
        let error = testbed.claim().unwrap_err().to_string();
        assert!(error.contains("does not exist yet"), "{error}");
        for mark in ["", "/elsewhere was made by `cargo xtask testbed up`, and is removed by `down`\n"] {
            testbed.remove_folder().unwrap();
            assert!(dir.join("kept").exists() && !testbed.is_folder());
            fs::write(dir.join(MARK), mark).unwrap();
        }
        fs::remove_dir_all(&dir).unwrap();
        // What a killed `up` leaves before anything is in it, and what is another's.
        assert!(!testbed.is_folder());
        for (mark, is_ours) in [(None, true), (Some(""), true), (Some("/else"), false)] {
            fs::create_dir_all(&dir).unwrap();
            mark.iter().for_each(|mark| fs::write(dir.join(MARK), mark).unwrap());
            testbed.remove_folder().unwrap();
            assert_eq!(!dir.exists(), is_ours, "{mark:?}");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
