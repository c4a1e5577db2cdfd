//! Quotients of two series: their parts, what is left out, and what does not resolve.

use super::*;

#[test]
fn a_quotient_says_which_parts_make_the_difference() {
    let point = |series: &str, repetition, values: [f64; 4]| {
        let point = Point { repetition, ..example(series, 0) };
        ["all", "copy", "run", "rest"]
            .into_iter()
            .zip(values)
            .fold(point, |point, (name, value)| point.with(name, value))
    };
    let points = [
        point("cpu", 0, [100.0, 30.0, 50.0, 20.0]),
        point("gpu", 0, [60.0, 0.0, 52.0, 8.0]),
        // Twice as slow, both of them: parts are compared within a repetition.
        point("cpu", 1, [200.0, 60.0, 100.0, 40.0]),
        point("gpu", 1, [120.0, 0.0, 104.0, 16.0]),
    ];
    let text = "id = \"i\"\ntext = \"t\"\nsource = \"s\"\nseries = [\"gpu\"]\nrule = \"bound\"\nfield = \"all\"\n\
                by = \"cpu\"\nat_most = 0.5";
    let mut claim: Claim = toml::from_str(text).unwrap();
    let parts = |names: &[&str]| {
        std::collections::BTreeMap::from([(
            "all".to_owned(),
            names.iter().map(|name| (*name).to_owned()).collect(),
        )])
    };
    claim.rule.made_of(&parts(&["copy", "run", "rest", "absent"]));
    let said = "fails: gpu / cpu: 0.60; of the parts' difference -60.0: copy -45.0 (75 %), rest -18.0 (30 %)";
    assert_eq!(judge(&claim, &points).evidence, [said]);
    claim.rule.made_of(&parts(&["absent"]));
    assert_eq!(judge(&claim, &points).evidence, ["fails: gpu / cpu: 0.60"]);
}

#[test]
fn a_series_that_something_else_limits_is_not_judged_and_the_evidence_says_what() {
    let text = "id = \"i\"\ntext = \"t\"\nsource = \"s\"\nseries = [\"gpu-*\"]\nrule = \"bound\"\nfield = \"us\"\n\
                by = \"cpu-*\"\nat_most = 1.0\nunless = [\"limited\", \"the NIC limits\"]";
    let claim: Claim = toml::from_str(text).unwrap();
    let point =
        |series: &str, us: f64, limited: f64| example(series, 0).with("us", us).with("limited", limited);
    let of = |a: [f64; 2], b: [f64; 2]| {
        let points = [
            point("cpu-a", 10.0, a[0]),
            point("gpu-a", 9.0, a[1]),
            point("cpu-b", 10.0, b[0]),
            point("gpu-b", 11.0, b[1]),
        ];
        let judged = Judged { aim: true, ..judge(&claim, &points) };
        (judged.said(), judged.evidence)
    };
    let (said, evidence) = of([0.0, 0.0], [1.0, 0.0]);
    assert_eq!(said, "aim met where judged");
    assert_eq!(evidence, ["gpu-b / cpu-b: not judged: the NIC limits (cpu-b)", "holds: gpu-a / cpu-a: 0.90"]);
    assert_eq!(of([0.0, 1.0], [0.0, 0.0]).0, "aim not met");
    assert_eq!(of([1.0, 1.0], [0.0, 1.0]).0, "needs data");
    // A run that did not ask, and points that are missing, are no reason to call an aim met.
    let without = [example("cpu-a", 0).with("us", 10.0), example("gpu-a", 0).with("us", 9.0)];
    let judged = judge(&claim, &without);
    assert_eq!(judged.evidence, ["gpu-a / cpu-a: not judged: the run has no limited (cpu-a)"]);
    assert_eq!(judged.verdict, Verdict::NeedsData);
    let missing = Judged {
        aim: true,
        verdict: Verdict::InPart,
        evidence: vec!["holds: gpu-a / cpu-a: 0.90".into(), "gpu-b / cpu-b: no points to judge it by".into()],
        ..judged
    };
    assert_eq!(missing.said(), "aim open: not all was judged");
    let failing = [vec!["fails: gpu-c / cpu-c: 1.10".into()], missing.evidence.clone()].concat();
    assert_eq!(Judged { evidence: failing, ..missing }.said(), "aim not met");
}

#[test]
fn a_quotient_whose_repetitions_scatter_across_a_bound_is_not_judged() {
    let text = "id = \"i\"\ntext = \"t\"\nsource = \"s\"\nseries = [\"gpu\"]\nrule = \"bound\"\nfield = \"us\"\n\
                by = \"cpu\"\nat_least = 0.98\nat_most = 1.02\nresolved = true";
    let claim: Claim = toml::from_str(text).unwrap();
    let points = |quotients: &[f64]| -> Vec<Point> {
        let point = |(repetition, us): (u32, f64), series: &str| Point {
            repetition,
            ..example(series, 0).with("us", us)
        };
        let all = (0..).zip(quotients).flat_map(|(repetition, quotient)| {
            [point((repetition, 100.0), "cpu"), point((repetition, 100.0 * quotient), "gpu")]
        });
        all.collect()
    };
    let found = |points: &[Point]| {
        let judged = judge(&claim, points);
        (judged.verdict, judged.evidence.concat())
    };
    let judged = |quotients: &[f64]| found(&points(quotients));
    assert_eq!(judged(&[0.99, 1.0, 1.01]), (Verdict::Reproduced, "holds: gpu / cpu: 1.00".into()));
    assert_eq!(judged(&[1.03, 1.2, 1.5]), (Verdict::NotReproduced, "fails: gpu / cpu: 1.20".into()));
    // The median is within the bounds; in the second case no repetition is.
    for (quotients, said) in [
        (&[0.61, 1.0, 1.1][..], "3 repetitions scatter from 0.61 to 1.10"),
        (&[0.9, 1.1], "2 repetitions scatter from 0.90 to 1.10"),
        (&[1.0], "one repetition alone, 1.00"),
    ] {
        let evidence = format!("gpu / cpu: not judged: not resolved: {said}");
        assert_eq!(judged(quotients), (Verdict::NeedsData, evidence));
    }
    // A recorded run has the distribution of each series alone: no quotient of these is one of a repetition.
    let run = points(&[0.99, 1.0, 1.01]);
    let entry = crate::measured::Entry {
        machine: "m".into(),
        label: run[0].label,
        extent: crate::spec::Extent::Normal,
        provenance: run[0].provenance.clone(),
        rows: crate::table::rows(&run),
        verdicts: Vec::new(),
        ratios: serde_json::Value::Null,
        samples: crate::Samples::default(),
    };
    let evidence = "gpu / cpu: not judged: the recorded run keeps no quotient of each repetition";
    assert_eq!(found(&entry.points("e")), (Verdict::NeedsData, evidence.into()));
}
