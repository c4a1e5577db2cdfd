//! Two network namespaces with a cable between them: two hosts, as far as programs can tell.
//!
//! Made by `unshare`, `nsenter` (util-linux) and `ip` (iproute2), as root or in a new user namespace; gone
//! with the processes that hold them.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub struct Hosts {
    holders: [NamespaceHolder; 2],
    /// We are root in a user namespace that was made for this.
    of_own_user: bool,
}

/// A process that does nothing but be in a namespace.
#[derive(Debug)]
struct NamespaceHolder(Child);

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Hosts {
    /// IPv4 addresses of the two sides.
    pub const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
    /// IPv6 addresses of the two sides.
    pub const ADDRESSES_6: [&str; 2] = ["fd77::1", "fd77::2"];

    /// Two hosts whose interfaces carry packets of `mtu` bytes. Error: why machine or user cannot.
    pub fn new(mtu: u32) -> Result<Self, String> {
        let of_own_user = !allowed(&["unshare", "-n", "true"]);
        if of_own_user && !allowed(&["unshare", "-r", "-n", "true"]) {
            return Err("neither root nor user namespaces are allowed here".into());
        }
        let first: &[&str] = if of_own_user { &["unshare", "-r", "-n"] } else { &["unshare", "-n"] };
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let one = hold(words(first))?;
        let mut inside = entered(&one, of_own_user);
        inside.extend(words(&["unshare", "-n"]));
        let other = hold(inside)?;
        let pair = Hosts { holders: [one, other], of_own_user };
        let (mtu, peer) = (mtu.to_string(), pair.holders[1].0.id().to_string());
        pair.ip(
            0,
            &[
                "link", "add", "wire", "mtu", &mtu, "type", "veth", "peer", "name", "wire", "mtu", &mtu,
                "netns", &peer,
            ],
        )?;
        for side in [0, 1] {
            for (family, address) in [
                ("-4", format!("{}/24", Self::ADDRESSES[side])),
                ("-6", format!("{}/64", Self::ADDRESSES_6[side])),
            ] {
                let mut words = vec![family, "addr", "add", &address, "dev", "wire"];
                words.extend((family == "-6").then_some("nodad"));
                pair.ip(side, &words)?;
            }
            for interface in ["lo", "wire"] {
                pair.ip(side, &["link", "set", interface, "up"])?;
            }
        }
        // The kernel puts a queue behind an interface shortly after carrier, within a second on a busy
        // machine. What is sent before is lost, and the third lost ARP request makes a connect fail.
        for side in [0, 1] {
            let says_up = || pair.ip(side, &["link", "show", "wire"]).map(|said| said.contains("state UP"));
            until("the cable is not up", || says_up().unwrap_or(false))?;
        }
        Ok(pair)
    }

    /// What goes before a command that is to run on a side.
    pub fn enter(&self, side: usize) -> Vec<String> {
        entered(&self.holders[side], self.of_own_user)
    }

    /// What `ip` says on a side.
    fn ip(&self, side: usize, arguments: &[&str]) -> Result<String, String> {
        let mut words = self.enter(side);
        words.push("ip".into());
        words.extend(arguments.iter().map(|&argument| argument.to_owned()));
        let output =
            Command::new(&words[0]).args(&words[1..]).output().map_err(|e| format!("{}: {e}", words[0]))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("ip {}: {said}", arguments.join(" ")))
        }
    }
}

fn allowed(command: &[&str]) -> bool {
    let mut command_line = Command::new(command[0]);
    command_line.args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null());
    command_line.status().is_ok_and(|status| status.success())
}

/// Waits for ten seconds at most. Error: `late`.
fn until(late: &str, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > Duration::from_secs(10) {
            return Err(late.to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Starts a process that stays in the namespace that the words lead to, and waits until it is there.
fn hold(mut words: Vec<String>) -> Result<NamespaceHolder, String> {
    words.extend(["sleep".to_owned(), "3600".to_owned()]);
    let child = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).spawn();
    let holder = NamespaceHolder(child.map_err(|error| format!("{}: {error}", words[0]))?);
    let is_sleeping = || {
        fs::read_to_string(format!("/proc/{}/comm", holder.0.id())).is_ok_and(|name| name.trim() == "sleep")
    };
    until(&format!("{} does not begin", words.join(" ")), is_sleeping)?;
    Ok(holder)
}

fn entered(holder: &NamespaceHolder, of_own_user: bool) -> Vec<String> {
    let mut words = vec!["nsenter".to_owned(), "-t".to_owned(), holder.0.id().to_string(), "-n".to_owned()];
    if of_own_user {
        words.extend(["-U".to_owned(), "--preserve-credentials".to_owned()]);
    }
    words
}
