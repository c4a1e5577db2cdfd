//! What measures the points of an experiment, and the options of `figure` that it takes.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use experiment::{Experiment, Spec, resume};
use measure::Provenance;

use super::options::Options;
use crate::refused::refused;
use crate::{measured, workspace};

/// Provenance of a run as far as it is known before anything is built; the rest as in `old`.
pub fn known(old: &Provenance) -> Provenance {
    let ours = Provenance::of(workspace::revision(), &[]);
    Provenance { revision: ours.revision, machine: ours.machine, ..old.clone() }
}

/// Refuses what the user can mend, before minutes of building, and locks the folder of results.
pub fn begin(
    spec: &Spec,
    how: &resume::Options,
    known: &dyn Fn(&Provenance) -> Provenance,
) -> Result<resume::Locked> {
    resume::check(spec, how, known, &|_| BTreeMap::new())?;
    if how.record {
        measured::allowed(&workspace::revision())?;
    }
    resume::lock(&how.out)
}

/// What measures.
pub struct App {
    /// `app` in the spec.
    pub name: &'static str,
    /// The options of `figure` that it takes, as on command lines.
    pub takes: &'static [&'static str],
    /// Why no other NIC can be given, if that has a reason of its own.
    pub own_nic: Option<&'static str>,
    pub run: fn(Experiment, &Options) -> Result<()>,
}

impl App {
    fn options(&self) -> impl Iterator<Item = &'static str> {
        self.takes.iter().flat_map(|options| options.split(' '))
    }

    /// Refuses an option that is given and that it does not take.
    pub fn refuse_others(&self, experiment: &str, options: &Options) -> Result<()> {
        let why = "--tune is of hosts that ansible reaches (--where); leave it out";
        ensure!(!options.tune || options.on_nodes().is_some(), refused(format!("{experiment}: {why}")));
        // Switches last: --where is named before --tune.
        let given = options.given();
        let is_other = |(option, _): &&(&str, _)| !self.options().any(|one| one == *option);
        let Some((option, value)) = given.iter().rev().find(is_other) else { return Ok(()) };
        let why = match (*option, self.own_nic) {
            ("--counters-hook", _) => "nothing is sampled there; leave --counters-hook out".to_owned(),
            ("--smoke", _) => "--smoke is of figures 1 to 7; leave it out".to_owned(),
            ("--where", _) => {
                let place = value.as_deref().unwrap_or("HOSTS");
                format!("--where {place} is of figures 4 to 7 and bench-clients; leave it out")
            }
            ("--machine", _) => "--machine is of figures 6, 7 and bench-clients; leave it out".to_owned(),
            ("--nic" | "--peer" | "--peer-generator" | "--rate-gbps", Some(why)) => {
                format!("{why}; leave --nic and --rate-gbps out")
            }
            _ => {
                let takes = self.options().collect::<Vec<_>>().join(", ");
                let (others, last) = takes.rsplit_once(", ").unwrap_or_default();
                format!("its points are no transfers; it takes {others} and {last}")
            }
        };
        Err(refused(format!("{experiment}: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::options::Machine;
    use crate::figure::place::Place;
    use crate::figure::{APPS, run};
    use crate::refused::Refused;

    fn all() -> Options {
        Options {
            smoke: true,
            quick: true,
            full: true,
            tune: true,
            resume: true,
            record: true,
            dry_run: true,
            no_install: true,
            place: Some(Place::Netns),
            nic: Some("mlx5_0".into()),
            peer: Some("host".into()),
            rate_gbps: Some(100.0),
            counters_hook: Some("hook".into()),
            machine: Some(Machine::Twin),
            out: Some("out".into()),
            ..Options::default()
        }
    }

    #[test]
    fn an_option_that_an_app_does_not_take_is_refused_before_anything_is_built() {
        let Options { nic, rate_gbps, counters_hook, machine, .. } = all();
        let none = Options::default;
        for (name, options, words) in [
            (
                "bench-nic",
                Options { full: true, ..none() },
                "are no transfers; it takes --quick, --resume, --record, --out and --no-install",
            ),
            ("bench-gpu", Options { rate_gbps, ..none() }, "are no transfers; it takes --quick, --resume, "),
            (
                "bench-post-gpu",
                Options { resume: true, ..none() },
                "are no transfers; it takes --quick, --record, --out and --no-install",
            ),
            (
                "bench-models",
                Options { dry_run: true, ..none() },
                "are no transfers; it takes --quick, --record, ",
            ),
            ("bench-models", none(), "give the command of that name"),
            (
                "fig1",
                Options { nic: nic.clone(), ..none() },
                "it needs no NIC; leave --nic and --rate-gbps out",
            ),
            ("fig3", Options { counters_hook, ..none() }, "nothing is sampled there"),
            ("fig3", Options { rate_gbps, ..none() }, "it needs no NIC"),
            (
                "fig7",
                Options { nic: nic.clone(), peer: Some("host".into()), ..none() },
                "are no transfers; it takes --quick, ",
            ),
            ("bench-wait", Options { nic, ..none() }, "it needs no NIC; leave --nic and --rate-gbps out"),
            ("bench-wait", Options { smoke: true, ..none() }, "--smoke is of figures 1 to 7; leave it out"),
            (
                "fig2",
                Options { place: Some(Place::Netns), tune: true, ..none() },
                "--where netns is of figures 4 to 7 and bench-clients; leave it out",
            ),
            ("fig2", Options { tune: true, ..none() }, "--tune is of hosts that ansible reaches"),
            ("fig4", Options { tune: true, ..none() }, "--tune is of hosts that ansible reaches"),
            (
                "fig4",
                Options { machine, ..none() },
                "--machine is of figures 6, 7 and bench-clients; leave it out",
            ),
        ] {
            let error = run(name, &options).unwrap_err();
            let said = error.to_string();
            assert!(
                error.is::<Refused>() && said.starts_with(name) && said.contains(words),
                "{words}: {said}"
            );
        }
    }

    #[test]
    fn what_an_app_takes_are_options_of_figure() {
        let names: Vec<&str> = all().given().iter().map(|(name, _)| *name).collect();
        for app in APPS {
            assert!(app.options().all(|option| names.contains(&option)), "{}: {:?}", app.name, app.takes);
        }
    }
}
