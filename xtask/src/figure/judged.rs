//! Which claims a run would judge: the last lines of a dry run (INV-10).

use experiment::Experiment;
use experiment::paper::Claim;
use experiment::spec::Judges;

/// A line for each file that states claims with their rules: those of the papers, then the spec's own.
pub fn judged(experiment: &Experiment, is_shaped: bool) -> Vec<String> {
    let Experiment { spec, papers, .. } = experiment;
    let of = |judges: &Judges| papers.iter().find(|paper| paper.name == judges.paper);
    let published = spec.judges.iter().filter_map(of).map(|paper| {
        let claims: Vec<&Claim> = paper.claim.iter().collect();
        (format!("{}/paper.toml", paper.name), claims)
    });
    let own = (format!("{}/spec.toml", spec.name), experiment.aims(is_shaped).collect());
    let with_claims = published.chain([own]).filter(|(_, claims)| !claims.is_empty());
    let line = |(file, claims): (String, Vec<&Claim>)| {
        let ids: Vec<&str> = claims.iter().map(|claim| claim.id.as_str()).collect();
        format!("judges {} claims of experiments/{file}: {}", ids.len(), ids.join(", "))
    };
    let lines: Vec<String> = with_claims.map(line).collect();
    if lines.is_empty() { vec!["judges no claim".into()] } else { lines }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::experiments;

    #[test]
    fn a_dry_run_counts_the_claims_of_the_papers_and_those_of_the_spec() {
        for (name, is_shaped, files) in [
            ("fig1", false, &[][..]),
            ("fig2", false, &[(3, "fig2/paper.toml: log-throughput, ")]),
            (
                "fig3",
                false,
                &[
                    (7, "fig3/paper.toml: graph-four, "),
                    (2, "fig3/spec.toml: graph-nothing-else, no-cpu-node"),
                ],
            ),
            (
                "fig4",
                false,
                &[(8, "fig4/paper.toml: saturate-100g, "), (4, "fig5/paper.toml: post-constant, ")],
            ),
            (
                "fig4",
                true,
                &[
                    (8, "fig4/paper.toml: saturate-100g, "),
                    (4, "fig5/paper.toml: post-constant, "),
                    (2, "fig4/spec.toml: fills-shaped-link, fills-from-the-knee"),
                ],
            ),
            (
                "fig6",
                false,
                &[(3, "fig6/paper.toml: superres-halved, "), (18, "fig6/spec.toml: not-slower-one, ")],
            ),
            ("bench-models", false, &[(13, "bench-models/spec.toml: fp32, ")]),
        ] {
            let lines = judged(&Experiment::read(&experiments(), name).unwrap(), is_shaped);
            let mut words: Vec<String> = files
                .iter()
                .map(|(count, ids)| format!("judges {count} claims of experiments/{ids}"))
                .collect();
            if words.is_empty() {
                words.push("judges no claim".into());
            }
            let is_said = lines.len() == words.len()
                && lines.iter().zip(&words).all(|(line, words)| line.starts_with(words.as_str()));
            assert!(is_said, "{name}: {words:?}: {lines:?}");
        }
        // An aim of one's own is judged on any link, unless it is about a shaped one.
        let mut own = Experiment::read(&experiments(), "fig4").unwrap();
        own.spec.judges.clear();
        own.spec.claims[1].rule = own.papers[0].claim[0].rule.clone();
        assert_eq!(
            judged(&own, false),
            ["judges 1 claims of experiments/fig4/spec.toml: fills-from-the-knee"]
        );
    }
}
