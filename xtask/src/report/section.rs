//! What `section.html` says of a figure and of its entries, in words.

use experiment::point::revision;
use experiment::table;
use experiment::verdict::Judged;
use measure::provenance::Host;

use super::figures::{Drawn, Figure, Shown};
use crate::figure::serving;

impl Figure {
    /// The medians of an entry, titles first.
    pub fn numbers(&self, shown: &Shown) -> Vec<Vec<String>> {
        table::cells(&self.experiment.spec, &shown.entry.rows)
    }

    /// Id and text of its claims, and of the aims that an entry has a verdict of.
    pub fn judged(&self) -> Vec<(&str, &str)> {
        let mut all: Vec<(&str, &str)> =
            self.paper.claim.iter().map(|claim| (claim.id.as_str(), claim.text.as_str())).collect();
        for aim in self.shown.iter().flat_map(|shown| &shown.judged).filter(|one| one.aim) {
            if all.iter().all(|(id, _)| *id != aim.id) {
                all.push((&aim.id, &aim.text));
            }
        }
        all
    }

    pub fn csv(&self) -> String {
        experiment::csv(&self.entries(), &self.paper)
    }
}

impl Drawn {
    /// Its SVG after the first tag's name, for a tag with a role and a label.
    pub fn shapes(&self) -> &str {
        self.picture.svg.split_once("<svg ").map_or("", |(_, shapes)| shapes)
    }
}

impl Shown {
    /// Cores of each of a server's threads, titles first, where it has them.
    pub fn threads(&self) -> Vec<Vec<String>> {
        serving::threads::table(&self.entry.rows)
    }

    /// Its verdict on a claim or aim.
    pub fn verdict(&self, id: &str) -> Option<&Judged> {
        self.judged.iter().find(|one| one.id == id)
    }

    /// Where it comes from.
    pub fn provenance(&self) -> Vec<(&'static str, String)> {
        let (entry, from) = (&self.entry, &self.entry.provenance);
        let device = |name: &str| if name.is_empty() { String::new() } else { format!(" ({name})") };
        let load =
            from.load.map_or_else(String::new, |load| format!(", load in the minute before: {load:.1}"));
        let list = |all: Vec<String>| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        let versions = from.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        let options = from.nic_options.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let of_host = |host: &Host| {
            let versions = host.versions.iter().map(|(name, version)| format!(", {name} {version}"));
            format!("{}: {}{}", host.name, host.machine, versions.collect::<String>())
        };
        let hosts = from.hosts.iter().map(of_host).collect::<Vec<_>>().join("; ");
        let (what, machine) =
            if hosts.is_empty() { ("machine", &from.machine) } else { ("sender; receiver", &hosts) };
        vec![
            ("label", format!("{}: the weakest part", entry.label)),
            (what, format!("{machine}{load}")),
            ("NIC", format!("{}{}", from.nic, device(&from.device))),
            ("GPU", format!("{}{}", from.gpu, device(&from.gpu_device))),
            ("link", from.link.to_string()),
            ("repetitions", format!("{}, extent {}", self.repetitions(), entry.extent.name())),
            ("source", self.source()),
            ("versions", list(versions)),
            ("NIC's options", list(options)),
            ("kept in", self.from.clone()),
        ]
    }

    /// Revision, and the day of its commit.
    pub fn source(&self) -> String {
        let day = self.day.as_ref().map_or("(not in this repository)".to_owned(), |day| format!("of {day}"));
        format!("{} {day}", revision(&self.entry.provenance))
    }

    /// Least and most of its rows.
    pub fn repetitions(&self) -> String {
        let counts = || self.entry.rows.iter().map(|row| row.repetitions);
        match (counts().min().unwrap_or(0), counts().max().unwrap_or(0)) {
            (least, most) if least == most => most.to_string(),
            (least, most) => format!("{least} to {most}"),
        }
    }
}
