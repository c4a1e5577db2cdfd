//! Options of `cargo xtask figure`, and the command line that goes on with a cut run.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use experiment::spec::Extent;
use experiment::{Experiment, resume};

use super::place::Place;
use crate::{shell, workspace};

#[derive(Args, Clone, Default)]
pub struct Options {
    /// Fewer and shorter points; --dry-run says how many.
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// Figures 1 to 7: a smoke test of at most two points a series, once each; figures 6 and 7 of one model.
    #[arg(long, conflicts_with_all = ["quick", "full", "record"])]
    pub smoke: bool,
    /// Figures 4 to 7 and bench-clients: where both ends run: local, netns (two nodes made for the run), or
    /// an ansible inventory of two hosts, of which the first one sends or serves [default: local].
    #[arg(long = "where", value_name = "WHERE", value_parser = Place::parse)]
    pub place: Option<Place>,
    /// With --where: set the hosts' governor, idle states, MTU and GPU for the run only (docs/testbed.md).
    #[arg(long, requires = "place")]
    pub tune: bool,
    /// Every published size, more and longer repetitions.
    #[arg(long)]
    pub full: bool,
    /// Continue an earlier run: measure missing points, and repeat those that failed or were not whole.
    #[arg(long)]
    pub resume: bool,
    /// Update the committed `measured.json`; refuses a tree with changes.
    #[arg(long)]
    pub record: bool,
    /// Say what would be measured, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Folder of the results [default: results/figN for figure N, else results/NAME].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Shape the software NIC's link to X Gbit/s of wire bytes, 100 as in the paper; use a separate --out.
    #[arg(long, value_name = "X", conflicts_with = "nic", value_parser = rate_gbps)]
    pub rate_gbps: Option<f64>,
    /// Use a card of this host, e.g. mlx5_0, instead of the software NIC; a server and its clients share it.
    #[arg(long, value_name = "DEVICE")]
    pub nic: Option<String>,
    /// Figures 4 and 5: host of the receiver, which is started there over ssh; with --nic.
    #[arg(long, value_name = "HOST", requires = "nic")]
    pub peer: Option<String>,
    /// The generator on that host: a path there, or a name in its PATH.
    #[arg(long, value_name = "PATH", requires = "peer", default_value = "generator")]
    pub peer_generator: String,
    /// Figures 6, 7, bench-clients: what runs the kernels; by the twin nothing is judged [default: gpu].
    #[arg(long, value_enum, conflicts_with = "record")]
    pub machine: Option<Machine>,
    /// Run this command before and after each point; keep how much its counters, lines `name,value`, grew.
    #[arg(long, value_name = "COMMAND")]
    pub counters_hook: Option<String>,
    /// Install nothing; if a package is missing, print the command and end with exit status 2.
    #[arg(long)]
    pub no_install: bool,
}

impl Options {
    /// What of it needs the source tree, and so cannot be had in a bundle.
    pub fn needs_tree(&self) -> Option<&'static str> {
        let by_ansible = match self.place() {
            Place::Local => None,
            Place::Netns => Some("--where netns"),
            Place::Inventory(_) => Some("--where INVENTORY"),
        };
        self.record.then_some("--record").or(by_ansible)
    }

    /// Where both ends run.
    pub fn place(&self) -> Place {
        self.place.clone().unwrap_or_default()
    }

    /// What runs a server's kernels.
    pub fn machine(&self) -> Machine {
        self.machine.unwrap_or_default()
    }

    /// The NIC, in words.
    pub fn nic_in_words(&self) -> String {
        self.nic.clone().unwrap_or_else(|| self.place().nic_in_words().to_owned())
    }

    /// `--where`, where both ends run on hosts that ansible reaches.
    pub fn on_nodes(&self) -> Option<String> {
        self.place().on_nodes()
    }

    /// The options that are given, with their values: switches first.
    pub fn given(&self) -> Vec<(&'static str, Option<String>)> {
        let switches = [
            ("--smoke", self.smoke),
            ("--quick", self.quick),
            ("--full", self.full),
            ("--tune", self.tune),
            ("--resume", self.resume),
            ("--record", self.record),
            ("--dry-run", self.dry_run),
            ("--no-install", self.no_install),
        ];
        let place = self.on_nodes().and_then(|option| Some(option.split_once(' ')?.1.to_owned()));
        let values = [
            ("--where", place),
            ("--nic", self.nic.clone()),
            ("--peer", self.peer.clone()),
            ("--peer-generator", self.peer.as_ref().map(|_| self.peer_generator.clone())),
            ("--rate-gbps", self.rate_gbps.map(|rate| rate.to_string())),
            ("--counters-hook", self.counters_hook.clone()),
            ("--machine", self.machine.map(|machine| machine.name().to_owned())),
            ("--out", self.out.as_ref().map(|out| out.display().to_string())),
        ];
        let switches = switches.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| (name, None));
        switches.chain(values.into_iter().filter(|(_, value)| value.is_some())).collect()
    }

    /// The command line that has these options, after the program's name.
    pub fn words(&self, figure: &str) -> Vec<String> {
        let given = self.given().into_iter().flat_map(|(name, value)| [Some(name.to_owned()), value]);
        ["figure", figure].map(str::to_owned).into_iter().chain(given.flatten()).collect()
    }

    /// How an experiment is measured with these options.
    pub fn how(&self, experiment: &Experiment) -> resume::Options {
        let name = &experiment.spec.name;
        let out = self.out.clone().unwrap_or_else(|| workspace::results(name));
        let again = format!("go on with: {}", self.resuming(name.trim_start_matches("fig"), &out));
        resume::Options { extent: self.extent(), resume: self.resume, record: self.record, out, again }
    }

    /// The command that goes on with a cut run, for a shell.
    pub fn resuming(&self, figure: &str, out: &Path) -> String {
        let new = Options { resume: false, dry_run: false, out: None, ..self.clone() };
        let (words, out) = (shell::line(&new.words(figure)), shell::quoted(&out.display().to_string()));
        format!("{} {words} --resume --out {out}", workspace::us())
    }

    pub fn extent(&self) -> Extent {
        match (self.quick, self.full) {
            _ if self.smoke => Extent::Smoke,
            (true, _) => Extent::Quick,
            (_, true) => Extent::Full,
            _ => Extent::Normal,
        }
    }
}

/// What runs the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Machine {
    #[default]
    Gpu,
    /// The host twin: the command is tried, nothing is judged.
    Twin,
}

impl Machine {
    pub fn name(self) -> &'static str {
        match self {
            Machine::Gpu => "gpu",
            Machine::Twin => "twin",
        }
    }
}

/// As `softnic run --rate-gbps` takes it.
fn rate_gbps(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    match (0.001..=1000.0).contains(&rate) {
        true => Ok(rate),
        false => Err(format!("{rate} is not within 0.001 to 1000")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_goes_on_names_what_was_asked_for() {
        let plain = || Options { peer_generator: "generator".into(), no_install: true, ..Options::default() };
        let all = Options {
            full: true,
            record: true,
            nic: Some("mlx5_0".into()),
            peer: Some("host".into()),
            ..plain()
        };
        assert_eq!(
            all.resuming("4", Path::new("my results")),
            "cargo xtask figure 4 --full --record --no-install --nic mlx5_0 --peer host --peer-generator generator --resume --out 'my results'"
        );
        assert_eq!(
            Options { rate_gbps: Some(100.0), ..plain() }.resuming("4", Path::new("r")),
            "cargo xtask figure 4 --no-install --rate-gbps 100 --resume --out r"
        );
    }
}
