//! What a number stands on: `hardware`, `emulated`, `modelled` or `none`; of several the weakest counts.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What one part (NIC, GPU or link) of a measurement was. Ordered from the strongest to the weakest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Label {
    /// A device that one can hold.
    Hardware,
    /// Software that behaves as the device, under the unmodified driver stack.
    Emulated,
    /// A formula.
    Modelled,
    /// The part took no role.
    None,
}

/// A part of the machine that a claim may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The RDMA device.
    Nic,
    /// The GPU.
    Gpu,
    /// What joins the two ends: a cable, or what stands in for it.
    Link,
}

impl Label {
    /// The label of a claim that needs all of `parts`: the weakest of theirs, and `None` for no part at all.
    pub fn weakest(parts: impl IntoIterator<Item = Label>) -> Label {
        parts.into_iter().max().unwrap_or(Label::None)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Label::Hardware => "hardware",
            Label::Emulated => "emulated",
            Label::Modelled => "modelled",
            Label::None => "none",
        })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Nic => "nic",
            Part::Gpu => "gpu",
            Part::Link => "link",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weakest_part_names_the_claim() {
        use Label::*;
        for (parts, label) in [
            (vec![Hardware, Hardware], Hardware),
            (vec![Hardware, Emulated], Emulated),
            (vec![Modelled, Emulated, Hardware], Modelled),
            (vec![Hardware, None], None),
            (vec![], None),
        ] {
            assert_eq!(Label::weakest(parts.clone()), label, "{parts:?}");
        }
    }

    #[test]
    fn json_and_print_use_the_same_word() {
        for label in [Label::Hardware, Label::Emulated, Label::Modelled, Label::None] {
            assert_eq!(serde_json::to_string(&label).unwrap(), format!("\"{label}\""));
        }
        for part in [Part::Nic, Part::Gpu, Part::Link] {
            assert_eq!(serde_json::to_string(&part).unwrap(), format!("\"{part}\""));
        }
    }
}
