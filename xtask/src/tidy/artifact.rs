//! `docs/artifact.md` has a row a claim: command, recorded verdict, machine, measuring time; `cargo xtask
//! docs --tables` writes them. `Cargo.toml` has the version of `CITATION.cff` and `CHANGELOG.md`.

use std::path::PathBuf;

use experiment::measured::{Entry, Measured};
use experiment::paper::Rule;
use experiment::point::needs_gpu;
use experiment::spec::Extent;
use experiment::verdict::{Judged, Verdict};
use experiment::{Experiment, Paper, Spec};

use crate::workspace::Tree;

const PAGE: &str = "docs/artifact.md";

/// The rows as `docs --tables` writes them, titles first.
pub fn rows(tree: &Tree) -> Vec<Vec<String>> {
    let titles = ["claim", "the paper says", "command", "time", "recorded verdict", "by"].map(str::to_owned);
    [titles].into_iter().chain(claims(tree)).map(Vec::from).collect()
}

/// A page without the table of claims, and files that name another version. `links` checks the table's rows.
pub fn check(tree: &Tree) -> Vec<String> {
    let text = tree.get(PAGE).unwrap_or_default();
    let gone =
        (!text.contains("\n<!-- table: claims -->\n")).then(|| format!("{PAGE}: has no table of claims"));
    gone.into_iter().chain(versions(tree)).collect()
}

/// Files that name another version than the workspace's.
fn versions(tree: &Tree) -> Vec<String> {
    let after = |file: &str, start: &str| {
        let lines = tree.get(file).unwrap_or_default().lines();
        let found =
            lines.filter_map(|line| line.strip_prefix(start)).find(|rest| !rest.starts_with("Unreleased"));
        found.and_then(|rest| rest.split(['"', ']']).next()).unwrap_or("none")
    };
    let own = after("Cargo.toml", "version = \"");
    let wrong = |(file, start): (&str, &str)| {
        let version = after(file, start);
        (version != own).then(|| format!("{file}: its version is «{version}», that of Cargo.toml «{own}»"))
    };
    [("CITATION.cff", "version: "), ("CHANGELOG.md", "## [")].into_iter().filter_map(wrong).collect()
}

/// Of each claim, in the order of figures and papers: its id, the paper's words, the figure's command, how
/// long the judging entry's points were measured, its verdict, and its machine, label and GPU.
fn claims(tree: &Tree) -> Vec<[String; 6]> {
    let mut all = Vec::new();
    for (path, text) in tree.files() {
        let figure = path.strip_prefix("experiments/fig").and_then(|rest| rest.strip_suffix("/paper.toml"));
        let paper = figure.and_then(|figure| Some((figure, toml::from_str::<Paper>(text).ok()?)));
        let Some((figure, paper)) = paper else { continue };
        let paper = Paper { name: format!("fig{figure}"), ..paper };
        let beside = |name: &str| tree.get(&format!("experiments/fig{figure}/{name}"));
        let measured = beside("measured.json").and_then(|text| serde_json::from_str(text).ok());
        let measured: Measured = measured.unwrap_or_default();
        let spec = beside("spec.toml").and_then(|text| Spec::parse(&format!("fig{figure}"), text).ok());
        let claims = paper.claim.clone();
        let experiment = spec.map(|spec| Experiment { spec, folder: PathBuf::new(), papers: vec![paper] });
        let judged: Vec<(Judged, &Entry)> = experiment
            .iter()
            .flat_map(|experiment| {
                let of = |entry| experiment.judge_recorded(entry).map(move |(judged, _)| (judged, entry));
                measured.entries.iter().flat_map(of)
            })
            .collect();
        let spec = experiment.as_ref().map(|experiment| &experiment.spec);
        all.extend(claims.into_iter().map(|claim| {
            let [command, time, verdict, by] = match claim.rule {
                Rule::Background {} => ["none", "none", "background", "none"].map(str::to_owned),
                _ => {
                    let [options, time, verdict, by] = recorded(&judged, spec, &claim.id);
                    [format!("`cargo xtask figure {figure}{options}`"), time, verdict, by]
                }
            };
            [format!("`{}`", claim.id), claim.text, command, time, verdict, by]
        }));
    }
    all
}

/// Options of the entry whose verdict counts, how long its points were measured, that verdict, whose entry.
fn recorded(judged: &[(Judged, &Entry)], spec: Option<&Spec>, id: &str) -> [String; 4] {
    let of_claim = judged.iter().filter(|(one, _)| one.id == id && !one.aim);
    let Some((one, entry)) = of_claim.max_by_key(|(one, _)| one.verdict.rank(one.label)) else {
        return ["", "none", "not recorded", "none"].map(str::to_owned);
    };
    // The parts are another page's to name. A verdict by another rule counts as none.
    let said = match &one.verdict {
        Verdict::NeedsHardware(_) => "needs hardware".to_owned(),
        Verdict::NeedsData => "not recorded".to_owned(),
        verdict => verdict.to_string(),
    };
    [options(entry), spec.map_or_else(String::new, |spec| time(entry, spec)), said, entry.subject()]
}

/// The options that measure such an entry. A shaped run has a folder of its own.
fn options(entry: &Entry) -> String {
    let extent = match entry.extent {
        Extent::Normal => String::new(),
        extent => format!(" --{}", extent.name()),
    };
    let rate = entry.provenance.nic_options.get("rate_gbps").and_then(serde_json::Value::as_f64);
    let rate = rate.map_or_else(String::new, |rate| format!(" --rate-gbps {rate} --out results/shaped"));
    extent + &rate
}

/// What a recorded run's points took, or at least: what they asked for, by its rows and the spec's grid. Then
/// their count, and the spec's for such a machine if it differs.
fn time(entry: &Entry, spec: &Spec) -> String {
    let mut grid = spec.grid(entry.extent);
    let asked = entry.rows.iter().map(|row| row.repetitions as f64 * grid.seconds_of(&row.series)).sum();
    let (least, seconds) = entry.took_s().map_or(("≥ ", asked), |took| ("", took));
    let points: usize = entry.rows.iter().map(|row| row.repetitions).sum();
    // A processor's series may stand in for that of a GPU.
    let is_gpus = |series: &String| {
        series.strip_prefix("cpu-").is_some_and(|rest| grid.series.contains(&format!("gpu-{rest}")))
    };
    let is_left_out = |series: &String| match entry.provenance.gpu_device.is_empty() {
        true => needs_gpu(series),
        false => is_gpus(series),
    };
    grid.series = grid.series.iter().filter(|series| !is_left_out(series)).cloned().collect();
    let today = Some(grid.keys().len()).filter(|all| *all != points);
    let today = today.map_or_else(String::new, |all| format!(" (today {all})"));
    match seconds {
        seconds if seconds < 10.0 => "seconds".to_owned(),
        seconds if seconds < 100.0 => format!("{least}{seconds:.0} s, {points} points{today}"),
        seconds => format!("{least}{:.0} min, {points} points{today}", seconds / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::docs::tables;

    const PAPER: &str = r#"
        series = []
        [paper]
        doi = "d"
        figure = 9
        x = "x"
        y = "y"
        columns = ["a", "b", "c", "d"]
        source = "s"
        extraction = "e"
        tolerance = "t"
        left_out = "l"
        [[claim]]
        id = "a"
        text = "t"
        source = "s"
        series = ["s"]
        rule = "equals"
        field = "v"
        value = 1.0
        [[claim]]
        id = "b"
        text = "t"
        source = "s"
        rule = "background"
    "#;
    const SPEC: &str = "title = \"t\"\napp = \"bench-nic\"\njudges = [{ paper = \"fig9\" }]\nvalues = [\"v\"]\nrange = \"v\"\nquick = { repeat = 1, seconds = 1.0 }\n\
        full = { repeat = 1, seconds = 2.0 }\ngrid = { series = [\"s\", \"t\"], repeat = 1, seconds = 20.0 }\n";
    const A: &str =
        "| `a` | t | `cargo xtask figure 9` | ≥ 3 min, 9 points (today 2) | in part | m (emulated) |\n";
    const B: &str = "| `b` | t | none | none | background | none |\n";

    /// Entries that gave claim `a` their verdicts when its rule asked for `asked`.
    fn measured(took_s: Option<f64>, asked: u32, values: &Value) -> String {
        let row = |series: &str, repetitions: u32| json!({ "series": series, "x": 0, "repetitions": repetitions, "took_s": took_s, "content_ok": true, "values": values });
        let provenance = experiment::point::example("s", 0).provenance;
        let entry = |(label, verdict): (&str, Value)| {
            let verdict = json!({
                "id": "a", "text": "t", "source": "s", "evidence": ["holds: s: 1.00"], "label": label,
                "verdict": verdict,
                "criterion": format!("holds when v is {asked} everywhere"),
            });
            json!({
                "machine": "m", "label": label, "extent": "normal", "provenance": provenance,
                "rows": [row("s", 5), row("t", 4)], "verdicts": [verdict],
            })
        };
        let entries = [
            ("emulated", "reproduced".into()),
            ("emulated", "in-part".into()),
            ("modelled", "not-reproduced".into()),
            ("hardware", json!({ "needs-hardware": ["nic"] })),
        ];
        json!({ "entries": entries.map(entry) }).to_string()
    }

    /// Whether `docs --tables` would leave these rows as they are.
    fn is_right(rows: &str, measured: &str) -> bool {
        let titles = "| claim | the paper says | command | time | recorded verdict | by |\n|---|---|---|---|---|---|\n";
        let page = format!("\n<!-- table: claims -->\n{titles}{rows}<!-- end of table -->\n");
        let files = [
            ("experiments/fig9/paper.toml", PAPER),
            ("experiments/fig9/measured.json", measured),
            ("experiments/fig9/spec.toml", SPEC),
        ];
        tables::renewed(&Tree::of(&files), &page).unwrap() == page
    }

    #[test]
    fn each_claim_has_a_row_with_its_command_and_its_recorded_verdict() {
        let row = |a: &str| format!("{a}{B}");
        let one = json!({ "v": [1.0, 1.0, 1.0] });
        let by_rule = measured(None, 1, &one);
        assert!(is_right(&row(A), &by_rule));
        assert!(is_right(&row(&A.replace("≥ 3 min", "60 s")), &measured(Some(30.0), 1, &one)));
        for wrong in [
            A.to_owned(),
            row(&A.repeat(2)),
            row(&A.replace("figure 9", "figure 4")),
            row(&A.replace("9 points", "8 points")),
            row(&A.replace("(emulated)", "(hardware)")),
            row(&A.replace("in part", "reproduced")),
        ] {
            assert!(!is_right(&wrong, &by_rule), "{wrong}");
        }
        // Verdicts by another rule do not count: the kept rows are judged, and say nothing if they lack it.
        for (values, said) in [(one, "reproduced"), (json!({}), "not recorded")] {
            let now = A.replace("in part", said).replace("(emulated)", "(hardware)");
            assert!(is_right(&row(&now), &measured(None, 2, &values)), "{said}");
        }
    }

    #[test]
    fn a_page_without_the_table_is_named() {
        let found = |page: &str| check(&Tree::of(&[(PAGE, page)]));
        assert!(found("# Claims\n\n<!-- table: claims -->\n").iter().all(|one| !one.contains(PAGE)));
        assert!(found("# Claims\n")[0].contains("docs/artifact.md: has no table of claims"));
    }

    #[test]
    fn a_file_with_another_version_is_named() {
        let of = |citation: &str, changes: &str| {
            let files = [
                ("Cargo.toml", "version = \"0.2.0\"\n"),
                ("CITATION.cff", citation),
                ("CHANGELOG.md", changes),
            ];
            versions(&Tree::of(&files))
        };
        assert_eq!(of("version: 0.2.0\n", "## [Unreleased]\n## [0.2.0] — day\n## [0.1.0]\n"), [""; 0]);
        let found = of("version: 0.1.0\n", "## [Unreleased]\n");
        assert!(
            found.len() == 2 && found[0].contains("CITATION.cff") && found[0].contains("«0.1.0»"),
            "{found:?}"
        );
        assert!(
            found[1].contains("CHANGELOG.md") && found[1].contains("that of Cargo.toml «0.2.0»"),
            "{found:?}"
        );
    }

    #[test]
    fn the_page_has_the_36_claims_of_the_paper() {
        assert_eq!(claims(&Tree::read(&crate::workspace::root()).unwrap()).len(), 36);
    }
}
