//! The NIC that `--nic` and `--where` name, and what these options mean for a spec and its provenance.

use std::fs;

use anyhow::{Context, Result};
use experiment::Spec;
use measure::{Label, Provenance};

use super::nic::{self, Nic};
use super::options::Options;
use super::place::{HostSetup, Place};
use crate::refused::refused;
use crate::workspace;

/// What a run on hosts changes in the spec. Error: an option for a card of this host, or `--record`.
pub fn prepare(spec: &mut Spec, options: &Options) -> Result<()> {
    let Some(place) = options.on_nodes() else { return Ok(()) };
    let given = [
        (options.nic.is_some(), "--nic", "the hosts have NICs of their own"),
        (options.record, "--record", "such a run is not recorded, `report --add` shows it"),
    ];
    if let Some((_, option, why)) = given.iter().find(|(given, ..)| *given) {
        return Err(refused(format!("{place}: {why}; leave {option} out")));
    }
    spec.nic.insert("path".into(), "wire".into());
    spec.nic.insert("link_layer".into(), "roce".into());
    Ok(())
}

/// Provenance of a run as far as it is known before the programs are built; the rest as in `old`.
pub fn known(old: &Provenance, spec: &Spec, options: &Options) -> Provenance {
    let ours = Provenance::of(workspace::revision(), &[]);
    if !options.place().is_here() {
        // Its hosts tell the rest, later.
        return Provenance { revision: ours.revision, ..old.clone() };
    }
    let mut known = Provenance { revision: ours.revision, machine: ours.machine, ..old.clone() };
    for name in ["kernel", "rustc"] {
        known.versions.extend(ours.versions.get(name).map(|version| (name.to_owned(), version.clone())));
    }
    match &options.nic {
        None => (known.nic, known.nic_options) = (Label::Emulated, nic::options(&spec.nic)),
        Some(device) => (known.nic, known.device) = (Label::Hardware, device.clone()),
    }
    known
}

/// Runs `measure` on the NIC asked for: this host's, or those of two hosts, which are set up first.
pub fn on_nic(options: &Options, setup: &HostSetup<'_>, measure: &dyn Fn(Nic) -> Result<()>) -> Result<()> {
    let out = setup.out;
    fs::create_dir_all(out.join("logs")).with_context(|| format!("--out {}", out.display()))?;
    match (options.place(), &options.nic) {
        (Place::Local, None) => measure(Nic::software(setup.spec, out)?),
        (Place::Local, Some(device)) => measure(Nic::card(device)?),
        (place, _) => place.execute(setup, &|nodes| measure(Nic::Nodes(Box::new(nodes)))),
    }
}
