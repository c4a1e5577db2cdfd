//! `experiments/*/measured.json`: what was measured where, one entry for each machine, label, GPU and shaped rate; `--record` and
//! `import` write it.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use measure::{Label, Provenance, Revision};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::refused::refused;

/// The extent of a run that is only to show that it works.
const QUICK: &str = "quick";

/// One machine's last recorded run of an experiment.
pub trait Entry: Serialize + DeserializeOwned {
    /// Processor and cores.
    fn machine(&self) -> &str;
    /// Weakest label of the run.
    fn label(&self) -> Label;
    /// `quick`, or how much more.
    fn extent(&self) -> &str;
    /// Where it comes from.
    fn provenance(&self) -> &Provenance;
    /// Why its numbers say nothing, if they do not.
    fn empty(&self) -> Option<&'static str>;
}

/// What an [`Entry`] says of itself out of its fields of these names.
#[macro_export]
macro_rules! where_from {
    () => {
        fn machine(&self) -> &str {
            &self.machine
        }

        fn label(&self) -> ::measure::Label {
            self.label
        }

        fn extent(&self) -> &str {
            &self.extent
        }

        fn provenance(&self) -> &::measure::Provenance {
            &self.provenance
        }
    };
}
pub use where_from;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured<E> {
    entries: Vec<E>,
}

/// Refuses a tree with changes: a recorded number must name the source that gave it.
pub fn allowed(revision: &Revision) -> Result<()> {
    match revision.dirty {
        false => Ok(()),
        true => {
            Err(refused("--record: the tree has changes, so no revision names this source; commit first"))
        }
    }
}

/// Whose numbers they are, in words: two entries with the same are the same measurement at two times.
fn whose(entry: &impl Entry) -> String {
    let from = entry.provenance();
    let gpu = if from.gpu_device.is_empty() { String::new() } else { format!(", {}", from.gpu_device) };
    let rate = from.nic_options.get("rate_gbps");
    let rate = rate.map_or_else(String::new, |rate| format!(", shaped to {rate} Gbit/s"));
    format!("{} ({}{gpu}{rate})", entry.machine(), entry.label())
}

/// Puts `entry` in the place of the one of the same machine, label, GPU and rate, or at the end. A quick run takes no other's
/// place but a quick one's. The file is replaced whole or not at all.
pub fn record<E: Entry>(path: &Path, entry: E) -> Result<()> {
    let mut measured: Measured<E> = match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Measured { entries: Vec::new() },
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    match measured.entries.iter_mut().find(|old| whose(*old) == whose(&entry)) {
        Some(old) if entry.extent() == QUICK && old.extent() != QUICK => {
            return Err(refused(format!(
                "a quick run does not take the place of the {} one that {} has of {}",
                old.extent(),
                path.display(),
                whose(&entry)
            )));
        }
        Some(old) => *old = entry,
        None => measured.entries.push(entry),
    }
    let text = serde_json::to_string_pretty(&measured).context("writing measured.json")? + "\n";
    let beside = path.with_extension(format!("json.{}", std::process::id()));
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written.with_context(|| format!("writing {}", path.display()))
}

/// What is wrong with a committed file, one line each.
pub fn problems<E: Entry>(text: &str) -> Vec<String> {
    let measured: Measured<E> = match serde_json::from_str(text) {
        Ok(measured) => measured,
        Err(error) => return vec![format!("is not what --record writes: {error}")],
    };
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in &measured.entries {
        let who = whose(entry);
        let revision = &entry.provenance().revision;
        if revision.dirty || revision.commit.len() != 40 {
            problems.push(format!("{who}: no clean revision names its source"));
        }
        problems.extend(entry.empty().map(|why| format!("{who}: {why}")));
        if !seen.insert(who.clone()) {
            problems.push(format!("{who} stands there twice"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::example;

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Plain {
        machine: String,
        label: Label,
        extent: String,
        provenance: Provenance,
    }

    impl Entry for Plain {
        where_from!();
        fn empty(&self) -> Option<&'static str> {
            self.extent.is_empty().then_some("has no numbers")
        }
    }

    fn entry(machine: &str, label: Label, extent: &str) -> Plain {
        let mut provenance = example("cpu-shim", 64).provenance;
        provenance.revision.commit = "0123456789".repeat(4);
        Plain { machine: machine.into(), label, extent: extent.into(), provenance }
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
        let error = record(&path, entry("a", Label::Emulated, "quick")).unwrap_err();
        assert!(error.to_string().contains("does not take the place of the full one"), "{error}");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(problems::<Plain>(&text), [""; 0]);
        let measured: Measured<Plain> = serde_json::from_str(&text).unwrap();
        let entries: Vec<(&str, &str)> =
            measured.entries.iter().map(|entry| (entry.machine.as_str(), entry.extent.as_str())).collect();
        assert_eq!(entries, [("a", "full"), ("a", "quick"), ("b", "quick")]);
    }

    #[test]
    fn another_gpu_and_another_rate_are_other_measurements() {
        let path = std::env::temp_dir().join(format!("xtask-measured-gpu-{}.json", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let plain = || entry("a", Label::Emulated, "full");
        let mut on_gpu = plain();
        on_gpu.provenance.gpu_device = "NVIDIA H200, sm_90".into();
        let mut shaped = entry("a", Label::Emulated, "full");
        shaped.provenance.nic_options.insert("rate_gbps".into(), 100.into());
        for entry in [plain(), on_gpu, shaped, plain()] {
            record(&path, entry).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(problems::<Plain>(&text), [""; 0]);
        assert_eq!(serde_json::from_str::<Measured<Plain>>(&text).unwrap().entries.len(), 3);
    }

    #[test]
    fn what_record_would_not_write_is_named() {
        let good = || entry("a", Label::Emulated, "quick");
        let mut dirty = good();
        dirty.provenance.revision.dirty = true;
        let mut nameless = good();
        nameless.provenance.revision.commit.clear();
        for (entries, what) in [
            (vec![good(), good()], "twice"),
            (vec![dirty], "no clean revision"),
            (vec![nameless], "no clean revision"),
            (vec![entry("a", Label::Emulated, "")], "has no numbers"),
        ] {
            let found = problems::<Plain>(&serde_json::to_string(&Measured { entries }).unwrap());
            assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
        }
        for text in ["", "{}", "{\"entries\":[{}]}", "{\"entries\":[],\"more\":1}"] {
            assert_eq!(problems::<Plain>(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_tree_with_changes_is_not_recorded() {
        let revision = |dirty| Revision { commit: "abc".into(), dirty };
        assert!(allowed(&revision(false)).is_ok());
        assert!(allowed(&revision(true)).unwrap_err().is::<crate::refused::Refused>());
    }

    #[test]
    fn a_file_that_is_not_ours_is_left_alone() {
        let path = std::env::temp_dir().join(format!("xtask-measured-bad-{}.json", std::process::id()));
        std::fs::write(&path, "nonsense").unwrap();
        assert!(record(&path, entry("a", Label::Emulated, "quick")).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "nonsense");
        std::fs::remove_file(&path).unwrap();
    }
}
