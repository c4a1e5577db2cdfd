//! Which NIC a figure runs on, and how programs are started on it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use measure::provenance::Host;
use measure::{Label, Provenance, Revision};
use serde::Deserialize;

use super::nodes::Nodes;
use super::samples;
use crate::packages::LIBRARY;
use crate::process::{Ended, JsonProgram, WAIT};
use crate::refused::refused;
use crate::shell::quoted;
use crate::testbed::hosts::until_stdin_ends;
use crate::workspace;
use experiment::Spec;

/// Port of a receiver on another host.
pub const PORT: u16 = 18515;

#[derive(Clone, Debug)]
pub struct Programs {
    pub generator: PathBuf,
    /// The launcher of the software NIC.
    pub softnic: PathBuf,
}

impl Programs {
    /// What `cargo build --release` leaves, or what a bundle carries.
    pub fn release() -> Programs {
        let folder = workspace::programs();
        Programs { generator: folder.join("generator"), softnic: folder.join("softnic") }
    }

    /// Release builds of the generator and of the software NIC; a bundle carries them.
    pub fn build() -> Result<()> {
        let packages = ["-p", "generator", "-p", "softnic"];
        workspace::build_programs("the generator and the software NIC", &packages)
    }

    /// Programs that were built elsewhere and carried here.
    pub fn in_folder(folder: &Path) -> Result<Programs> {
        // `softnic` runs a program that is named without a folder from `PATH`.
        let folder = std::path::absolute(folder).context("finding the folder of programs")?;
        for name in ["generator", "softnic", LIBRARY] {
            if !folder.join(name).is_file() {
                return Err(refused(format!(
                    "--bin {}: no {name} there; `cargo xtask bundle DIR` makes a folder with all programs",
                    folder.display()
                )));
            }
        }
        Ok(Programs { generator: folder.join("generator"), softnic: folder.join("softnic") })
    }
}

/// The NIC under the generator.
#[derive(Clone, Debug)]
pub enum Nic {
    /// The software NIC: both ends on this host, two processes.
    Software {
        config: PathBuf,
        /// Keeps this run apart from all others of the same user.
        fabric: String,
    },
    /// A card of this host: a receiver is on another one, a server and its clients both use this card.
    Card {
        /// `mlx5_0`
        device: String,
    },
    /// Two hosts that ansible reaches: the software NIC on both and RoCEv2 between them, or a card in each.
    Nodes(Box<Nodes>),
}

impl Nic {
    /// The software NIC with the options of `spec`; its processes leave counters for the samples.
    pub fn software(spec: &Spec, folder: &Path) -> Result<Nic> {
        let file = std::path::absolute(samples::counters_file(folder)).context("finding --out")?;
        let mut table = spec.nic.clone();
        table.insert("stats".into(), file.display().to_string().into());
        Nic::configured(&table, folder)
    }

    /// The software NIC with these options, which are written into `folder` as a file to look at.
    pub fn configured(table: &toml::Table, folder: &Path) -> Result<Nic> {
        let config = folder.join("nic.toml");
        let text = toml::to_string(table).context("writing nic.toml")?;
        fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        Ok(Nic::Software { config, fabric: format!("xtask-{}", std::process::id()) })
    }

    /// A card of this host.
    pub fn card(device: &str) -> Result<Nic> {
        // Below us must be silicon: what is measured on a card is called hardware.
        ensure!(
            std::env::var_os("SOFTNIC_CONFIG").is_none(),
            refused(format!(
                "--nic {device}: this command runs under `softnic run`, where every device is emulated; leave --nic out"
            ))
        );
        let folder = Path::new("/sys/class/infiniband");
        if !folder.join(device).exists() {
            let here = match &workspace::names_in(folder)[..] {
                [] => "there is none".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            return Err(refused(format!(
                "no RDMA device `{device}` on this host ({here}); without --nic the software NIC is used"
            )));
        }
        let driver = fs::read_link(folder.join(device).join("device/driver")).unwrap_or_default();
        let driver = driver.file_name().unwrap_or_default().display();
        let why = "only a ConnectX counts as hardware here";
        let wrong = format!("--nic {device}: its driver is `{driver}`, not mlx5_core; {why}");
        ensure!(driver.to_string() == "mlx5_core", refused(wrong));
        Ok(Nic::Card { device: device.to_owned() })
    }

    pub fn device(&self) -> &str {
        match self {
            Nic::Software { .. } => "mlx5_0",
            Nic::Nodes(nodes) => nodes.card().unwrap_or("mlx5_0"),
            Nic::Card { device } => device,
        }
    }

    /// Whether the sender's, or the server's, is silicon.
    pub fn is_card(&self) -> bool {
        match self {
            Nic::Software { .. } => false,
            Nic::Nodes(nodes) => nodes.card().is_some(),
            Nic::Card { .. } => true,
        }
    }

    /// A program on the NIC of this host; its options follow.
    pub fn command(&self, softnic: &Path, program: &Path) -> Command {
        let Nic::Software { config, fabric } = self else { return Command::new(program) };
        let mut command = Command::new(softnic);
        command.args(["run", "--config"]).arg(config).args(["--fabric", fabric, "--"]).arg(program);
        command
    }

    /// The generator on this NIC; options follow.
    pub fn generator(&self, programs: &Programs) -> Result<Command> {
        match self {
            Nic::Nodes(nodes) => nodes.generator(0),
            _ => Ok(self.command(&programs.softnic, &programs.generator)),
        }
    }

    /// The generator as an end of a point: it leaves its counters.
    pub fn end_of_point(&self, programs: &Programs) -> Result<Command> {
        if let Nic::Nodes(nodes) = self { nodes.sender() } else { self.generator(programs) }
    }
}

/// Options of the software NIC as a point carries them.
pub fn options(nic: &toml::Table) -> BTreeMap<String, serde_json::Value> {
    nic.iter().filter_map(|(key, value)| Some((key.clone(), serde_json::to_value(value).ok()?))).collect()
}

/// Where the sender finds its receiver.
#[derive(Debug)]
pub enum Receiver {
    /// A new one for each point, on this host.
    Each,
    /// One that serves every point, on another host.
    Standing {
        /// Host and port.
        address: String,
        /// The session that keeps it running, if this command started it.
        session: Option<Box<JsonProgram>>,
    },
}

/// A host whose receiver we start.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// As ssh knows it, and as the sender reaches it.
    pub host: &'a str,
    /// The generator there.
    pub generator: &'a str,
    /// The program that runs a command there.
    pub ssh: &'a Path,
    /// Where the receiver listens.
    pub port: u16,
}

impl Receiver {
    /// Starts another one in place of one that we started on another host and that has ended.
    pub fn renew(&mut self, nic: &Nic, peer: Option<Peer<'_>>, logs: &Path) -> Result<()> {
        let Receiver::Standing { session: Some(session), .. } = self else { return Ok(()) };
        let Some(ended) = session.child.poll()? else { return Ok(()) };
        say!("the receiver on the other host has ended ({ended:?}); another one is started");
        // A refusal would end the run.
        *self = Receiver::find(nic, peer, logs).map_err(|error| anyhow!("another receiver: {error:#}"))?;
        Ok(())
    }

    /// The receiver for `nic`: started over ssh on `peer`, or by hand on a host that the user then names.
    pub fn find(nic: &Nic, peer: Option<Peer<'_>>, logs: &Path) -> Result<Receiver> {
        let device = match nic {
            Nic::Software { .. } => return Ok(Receiver::Each),
            Nic::Nodes(nodes) => {
                let (address, session) = nodes.receiver(logs)?;
                return Ok(Receiver::Standing { address, session: Some(Box::new(session)) });
            }
            Nic::Card { device } => device,
        };
        let listen = |port: u16| format!("--listen 0.0.0.0:{port} --nic {device} --sessions 0 --json -");
        let Some(Peer { host, generator, ssh, port }) = peer else {
            say!(
                "Run this on the other host (its device may have another name), then type that host's address here:"
            );
            say!("  generator {}", listen(PORT));
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).context("reading the other host's address")?;
            let host = line.trim();
            let why = "no address of the other host was given; type it, or start again with --peer HOST";
            ensure!(!host.is_empty(), refused(why));
            return Ok(Receiver::Standing { address: format!("{host}:{PORT}"), session: None });
        };
        let mut command = Command::new(ssh);
        command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host]);
        let words: Vec<String> = until_stdin_ends(&[generator]).iter().map(|word| quoted(word)).collect();
        command.arg(format!("{} {}", words.join(" "), listen(port)));
        let mut session = JsonProgram::start(&mut command, &logs.join("receiver.log"))?;
        let Err(error) = session.json("listening", WAIT) else {
            let address = format!("{host}:{port}");
            return Ok(Receiver::Standing { address, session: Some(Box::new(session)) });
        };
        let error = format!("{error:#}");
        let by_hand = format!("run `generator {}` there and leave --peer out here", listen(port));
        Err(refused(match session.child.poll() {
            // As `ssh(1)` says that it has no connection.
            Ok(Some(Ended::Status(255))) => format!(
                "{host} does not answer: {error}; see that `ssh {host} true` logs in from here without a password, or {by_hand}"
            ),
            _ if error.contains("already in use") => {
                format!("no receiver on {host}: {error}; end what has port {port} there, then try again")
            }
            _ => format!(
                "no receiver on {host}: {error}; say where its generator is (--peer-generator PATH), or {by_hand}"
            ),
        }))
    }
}

/// What `generator probe --json` says.
#[derive(Debug, Deserialize)]
pub struct Probe {
    #[serde(default)]
    host: Host,
    /// Versions of `libibverbs` and `libmlx5`.
    #[serde(default)]
    libraries: BTreeMap<String, Option<String>>,
    error: Option<String>,
    #[serde(default)]
    devices: Vec<Device>,
    /// The sender's host and the receiver's, where those are two.
    #[serde(skip)]
    hosts: Vec<Host>,
}

#[derive(Debug, Deserialize)]
struct Device {
    name: String,
    #[serde(default)]
    firmware: String,
    #[serde(default)]
    part_id: u32,
    #[serde(default)]
    ports: Vec<Port>,
}

#[derive(Debug, Deserialize)]
struct Port {
    #[serde(default)]
    active_mtu: u32,
    #[serde(default)]
    link_layer: String,
    speed_gbps: Option<f64>,
}

impl Probe {
    /// Asks the generator what it sees on `nic`, or on both hosts. Error, in its words: no library or device.
    pub fn ask(nic: &Nic, programs: &Programs, logs: &Path) -> Result<Probe> {
        let Nic::Nodes(nodes) = nic else {
            return Probe::of(nic.generator(programs)?, nic.device(), &logs.join("probe.log"));
        };
        let of = |end: usize| -> Result<Probe> {
            let (name, device) = (&nodes.hosts[end].name, nodes.device(end));
            let log = logs.join(format!("probe-{name}.log"));
            let mut probe = Probe::of(nodes.generator(end)?, device, &log).context(name.clone())?;
            // As the inventory calls it.
            probe.host.name = name.clone();
            probe.host.versions.extend(probe.versions(device));
            Ok(probe)
        };
        let (sender, receiver) = (of(0)?, of(1)?);
        Ok(Probe { hosts: vec![sender.host.clone(), receiver.host], ..sender })
    }

    fn of(mut generator: Command, device: &str, log: &Path) -> Result<Probe> {
        generator.args(["probe", "--json"]);
        let mut session = JsonProgram::start(&mut generator, log)?;
        let answer = session.json("probe", WAIT).context("asking the generator for devices")?;
        let ended = session.child.wait(WAIT)?;
        let probe: Probe = serde_json::from_value(answer).context("reading the generator's probe")?;
        if let Some(error) = &probe.error {
            return Err(refused(error.clone()));
        }
        ensure!(
            probe.devices.iter().any(|known| known.name == device),
            refused(format!("the generator sees no device `{device}` (it {ended}); see {}", log.display()))
        );
        debug_assert!(ended != Ended::TimedOut, "a probe answers and ends");
        Ok(probe)
    }

    /// Versions of the libraries, and of a device's firmware.
    fn versions(&self, device: &str) -> Vec<(String, String)> {
        let said = |version: &Option<String>| version.clone().unwrap_or_else(|| "missing".into());
        let libraries = self.libraries.iter().map(|(name, version)| (name.clone(), said(version)));
        let firmware = self.devices.iter().find(|it| it.name == device && !it.firmware.is_empty());
        libraries.chain(firmware.map(|it| ("firmware".to_owned(), it.firmware.clone()))).collect()
    }

    /// What the port says it carries, where that means something.
    pub fn link_gbps(&self, nic: &Nic) -> Option<f64> {
        let device = self.devices.iter().find(|device| device.name == nic.device());
        // Shared memory and the software NIC's UDP have no rate; the port's claim is for programs that ask.
        if nic.is_card() { device?.ports.first()?.speed_gbps } else { None }
    }

    /// Provenance of every point of a run.
    /// `options`: `nic.toml` of the software NIC; a card's are what its driver says.
    pub fn provenance(&self, nic: &Nic, options: &toml::Table, revision: Revision) -> Result<Provenance> {
        let mut provenance = Provenance { revision, ..workspace::provenance()? };
        let label = if nic.is_card() { Label::Hardware } else { Label::Emulated };
        (provenance.nic, provenance.link) = (label, label);
        provenance.device = nic.device().to_owned();
        let libraries = self.versions(nic.device()).into_iter().filter(|(name, _)| name != "firmware");
        provenance.versions.extend(libraries);
        if let Nic::Nodes(nodes) = nic {
            let settings = nodes.settings.iter();
            provenance
                .versions
                .extend(settings.map(|settings| ("host_settings".to_owned(), settings.clone())));
        }
        if let [sender, _] = &self.hosts[..] {
            let Host { machine, cores, load, versions, .. } = sender.clone();
            provenance = Provenance { machine, cores, load, hosts: self.hosts.clone(), ..provenance };
            provenance.versions.extend(versions.into_iter().filter(|(name, _)| name == "kernel"));
        }
        provenance.nic_options =
            if nic.is_card() { self.card_options(nic.device()) } else { self::options(options) };
        Ok(provenance)
    }

    /// What a card's driver says of the device and of its first port.
    fn card_options(&self, name: &str) -> BTreeMap<String, serde_json::Value> {
        let Some(device) = self.devices.iter().find(|device| device.name == name) else {
            return BTreeMap::new();
        };
        let port = device.ports.first();
        let facts = [
            ("firmware", Some(device.firmware.clone().into())),
            ("part_id", Some(device.part_id.into())),
            ("active_mtu", port.map(|port| port.active_mtu.into())),
            ("link_layer", port.map(|port| port.link_layer.clone().into())),
            ("speed_gbps", port.and_then(|port| port.speed_gbps).map(Into::into)),
            ("pump", Some(false.into())),
        ];
        facts.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::script;
    use crate::refused::Refused;

    #[test]
    fn a_card_that_is_not_here_is_refused() {
        let error = Nic::card("mlx5_77").unwrap_err();
        assert!(error.is::<Refused>() && error.to_string().contains("mlx5_77"), "{error:#}");
    }

    /// A network whose only cable ends at an interface with another MAC address: packets are dropped there.
    const SWALLOWS: &str = "#!/bin/sh
exec unshare -n sh -c 'ip link add d0 type veth peer name d1 && ip link set d1 up && ip addr add 10.99.0.1/24 dev d0 &&
ip link set d0 up && ip neigh add 10.99.0.2 lladdr 02:00:00:00:00:99 dev d0 && exec \"$@\"' sh REST
";

    fn find(name: &str, rest: &str) -> Result<Receiver> {
        let folder = std::env::temp_dir().join(format!("xtask-peer-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let ssh = folder.join("ssh");
        script(&ssh, rest);
        let peer = Peer { host: "10.99.0.2", generator: "generator", ssh: &ssh, port: PORT };
        let found = Receiver::find(&Nic::Card { device: "mlx5_0".into() }, Some(peer), &folder);
        fs::remove_dir_all(folder).unwrap();
        found
    }

    #[test]
    fn a_host_that_does_not_answer_is_told_from_one_without_a_receiver() {
        let makes = |line: &str| {
            let status = Command::new("sh").args(["-c", line]).stderr(std::process::Stdio::null()).status();
            status.is_ok_and(|status| status.success()).then_some(()).ok_or(line.to_owned())
        };
        measure::need!(
            makes("unshare -n ip link add d0 type veth peer name d1 && command -v ssh > /dev/null"),
            "root, ip and ssh"
        );
        // Its first value of an option counts: a second is enough.
        let error = find("silent", &SWALLOWS.replace("REST", "ssh -o ConnectTimeout=1 \"$@\"")).unwrap_err();
        let said = error.to_string();
        for words in ["10.99.0.2 does not answer", "timed out", "`ssh 10.99.0.2 true`", "leave --peer out"] {
            assert!(error.is::<crate::refused::Refused>() && said.contains(words), "{words}: {said}");
        }
        // It answers, and the port is another program's.
        let taken = "#!/bin/sh\necho 'listening on 0.0.0.0:18515: Address already in use (os error 98)' >&2; exit 2\n";
        let said = find("taken", taken).unwrap_err().to_string();
        for words in ["no receiver on 10.99.0.2", "Address already in use", "end what has port 18515 there"] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}
