//! What `--record` and `import` keep of a run.

use measure::{Label, Provenance};
use serde::{Deserialize, Serialize};

use crate::measured;
use crate::table::Row;
use crate::verdict::Judged;

/// One machine's last recorded run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub ratios: serde_json::Value,
}

impl measured::Entry for Entry {
    crate::where_from!();

    fn empty(&self) -> Option<&'static str> {
        match () {
            () if self.rows.is_empty() => Some("has no points"),
            () if !self.rows.iter().all(|row| row.content_ok) => {
                Some("has points whose messages were not whole")
            }
            () => None,
        }
    }
}
