//! Commands that were refused because this NIC lacks what they ask for, counted by name.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::os::{locked, log};

/// Names that get a line; a program that tries numbers must not fill its log.
const SAID: usize = 64;

/// What every libmlx5 asks at each open to learn what there is, and does without: a line for each would be noise in every
/// program's output.
const PROBED: [&str; 3] = ["DEVX method ", "GET_CONTEXT with DEVX", "QUERY_DEVICE: 0 bytes in"];

/// Whether this refusal is of what every open tries in vain.
pub fn is_probe(reason: &str) -> bool {
    PROBED.iter().any(|probe| reason.starts_with(probe))
}

/// Counts by name.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<BTreeMap<String, u64>>);

impl Refusals {
    /// Counts a refusal under its name: how often stands in the process's line of counters. The first is a line on stderr.
    pub fn note(&self, name: &str, line: &str) {
        let mut refused = locked(&self.0);
        let count = refused.entry(name.to_owned()).or_insert(0);
        *count += 1;
        let first = *count == 1 && refused.len() <= SAID;
        drop(refused);
        if first && !is_probe(name) {
            log(&format!("{line} (said once)"));
        }
    }

    /// Names and counts, for the stats file.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let refused = locked(&self.0);
        refused.iter().map(|(name, count)| (name.clone(), *count)).collect()
    }
}
