//! Committed results (`experiments/*/measured.json`) are what `--record` and `import` write: whole, each from a clean revision (INV-10).

use super::Violation;
use crate::workspace::Tree;
use crate::{bench_nic, bench_post_gpu, measured};

/// Every such file, by the experiment whose folder it lies in.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with("measured.json")) {
        let problems = match path.split('/').collect::<Vec<_>>()[..] {
            ["experiments", "bench-nic", "measured.json"] => measured::problems::<bench_nic::Run>(text),
            ["experiments", bench_post_gpu::NAME, "measured.json"] => {
                measured::problems::<bench_post_gpu::Run>(text)
            }
            ["experiments", figure, "measured.json"] if figure.starts_with("fig") => {
                measured::problems::<experiment::record::Entry>(text)
            }
            _ => vec!["belongs to no experiment".to_owned()],
        };
        violations.extend(problems.into_iter().map(|problem| Violation::new(path, problem)));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[test]
    fn a_file_that_nobody_recorded_is_named() {
        for (path, text, count) in [
            ("experiments/fig4/measured.json", "{\"entries\":[]}", 0),
            ("experiments/bench-nic/measured.json", "{\"entries\":[]}", 0),
            ("experiments/fig4/measured.json", "{\"entries\":[{\"machine\":\"a\"}]}", 1),
            ("experiments/bench-nic/measured.json", "nonsense", 1),
            ("experiments/bench-post-gpu/measured.json", "{\"entries\":[]}", 0),
            ("experiments/bench-post-gpu/measured.json", "{\"entries\":[{\"rows\":[]}]}", 1),
            ("experiments/other/measured.json", "{\"entries\":[]}", 1),
            ("measured.json", "{\"entries\":[]}", 1),
        ] {
            assert_eq!(check(&Tree::of(&[(path, text)])).len(), count, "{path}: {text}");
        }
    }

    #[test]
    fn what_is_committed_passes() {
        assert!(check(&Tree::read(&root()).unwrap()).is_empty());
    }
}
