//! `experiments/figN/measured.json`: what was measured where, one entry for each machine and label; `--record` writes it.

use std::path::Path;

use anyhow::{Context, Result};
use measure::{Label, Provenance};
use serde::{Deserialize, Serialize};

use super::table::Row;
use crate::refused::refused;
use crate::report::compare::Judged;

/// One machine's last recorded run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Processor and cores.
    pub machine: String,
    /// Weakest label of the run.
    pub label: Label,
    /// `quick`, `normal` or `full`.
    pub extent: String,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Medians and ranges.
    pub rows: Vec<Row>,
    /// Verdicts.
    pub verdicts: Vec<Judged>,
    /// What was compared within one run, by name.
    pub ratios: serde_json::Value,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Measured {
    entries: Vec<Entry>,
}

/// Refuses a tree with changes: a recorded number must name the source that gave it.
pub fn allowed(revision: &measure::Revision) -> Result<()> {
    match revision.dirty {
        false => Ok(()),
        true => {
            Err(refused("--record: the tree has changes, so no revision names this source; commit first"))
        }
    }
}

/// Puts `entry` in the place of the one with the same machine and label, or at the end.
pub fn record(path: &Path, entry: Entry) -> Result<()> {
    let mut measured: Measured = match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Measured::default(),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let same = |old: &&mut Entry| old.machine == entry.machine && old.label == entry.label;
    match measured.entries.iter_mut().find(same) {
        Some(old) => *old = entry,
        None => measured.entries.push(entry),
    }
    let text = serde_json::to_string_pretty(&measured).context("writing measured.json")? + "\n";
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::point::example;

    fn entry(machine: &str, label: Label, extent: &str) -> Entry {
        Entry {
            machine: machine.into(),
            label,
            extent: extent.into(),
            provenance: example("cpu-shim", 64).provenance,
            rows: vec![],
            verdicts: vec![],
            ratios: serde_json::Value::Null,
        }
    }

    #[test]
    fn there_is_one_entry_for_each_machine_and_label() {
        let path = std::env::temp_dir().join(format!("xtask-measured-{}.json", std::process::id()));
        let _ = std::fs::remove_file(&path);
        for (machine, label, extent) in [
            ("a", Label::Emulated, "quick"),
            ("a", Label::Hardware, "quick"),
            ("b", Label::Emulated, "quick"),
            ("a", Label::Emulated, "full"),
        ] {
            record(&path, entry(machine, label, extent)).unwrap();
        }
        let measured: Measured = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let entries: Vec<(&str, &str)> =
            measured.entries.iter().map(|entry| (entry.machine.as_str(), entry.extent.as_str())).collect();
        assert_eq!(entries, [("a", "full"), ("a", "quick"), ("b", "quick")]);
    }

    #[test]
    fn a_tree_with_changes_is_not_recorded() {
        let revision = |dirty| measure::Revision { commit: "abc".into(), dirty };
        assert!(allowed(&revision(false)).is_ok());
        assert!(allowed(&revision(true)).unwrap_err().is::<crate::refused::Refused>());
    }

    #[test]
    fn a_file_that_is_not_ours_is_left_alone() {
        let path = std::env::temp_dir().join(format!("xtask-measured-bad-{}.json", std::process::id()));
        std::fs::write(&path, "nonsense").unwrap();
        assert!(record(&path, entry("a", Label::Emulated, "quick")).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "nonsense");
    }
}
