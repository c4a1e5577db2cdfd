//! What a user can mend: one line that says what, where and what to do, and exit status 2.

/// The error that `main` turns into its exit status.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    text: String,
    pub status: u8,
}

/// Exit status where the host of a server has no GPU; 2 for all else.
pub const NO_GPU: u8 = 3;

/// A refusal as an error.
pub fn refused(text: impl Into<String>) -> anyhow::Error {
    refused_with(2, text)
}

/// As [`refused`], with an exit status of its own.
pub fn refused_with(status: u8, text: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Refused { text: text.into(), status })
}

/// Least similarity of a misspelt name: `roec` and `roce` have 0.92.
const SIMILAR: f64 = 0.8;

/// `; the nearest is` and a name, for a refusal of `name`. Empty if none is near, or two are equally so.
pub fn nearest(name: &str, names: &[impl AsRef<str>]) -> String {
    let similarity = |one: &str| strsim::jaro(&name.to_lowercase(), &one.to_lowercase());
    let mut near: Vec<(f64, &str)> =
        names.iter().map(|one| (similarity(one.as_ref()), one.as_ref())).collect();
    let most = near.iter().map(|(similarity, _)| *similarity).fold(SIMILAR, f64::max);
    near.retain(|(similarity, _)| *similarity >= most);
    match near.first() {
        Some((_, one)) if near.iter().all(|(_, other)| other == one) => format!("; the nearest is `{one}`"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_gets_the_nearest_one_if_there_is_one() {
        let names = ["fig1", "fig4", "bench-nic", "roce", "verbs-ib", "verbs-roce", "UCX", "UCX"];
        for (name, nearest_one) in [
            ("roec", "roce"),
            ("verbs-rocce", "verbs-roce"),
            ("bench_nic", "bench-nic"),
            ("ucx", "UCX"),
            ("fig44", "fig4"),
            // As near to figure 1 as to figure 4.
            ("fig9", ""),
            ("nosuchsuite", ""),
            ("", ""),
        ] {
            let said = if nearest_one.is_empty() {
                String::new()
            } else {
                format!("; the nearest is `{nearest_one}`")
            };
            assert_eq!(nearest(name, &names), said, "{name}");
        }
    }
}
