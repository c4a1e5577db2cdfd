//! A report of the committed figures and of made-up results, as text; `browser` looks at it in Chromium.

use std::fs;
use std::slice::from_ref;

use experiment::measured::Measured;
use experiment::point::{Point, example};
use experiment::spec::Extent;

use super::*;
use crate::refused::Refused;

mod browser;

/// A folder for what a test writes.
struct Stage(PathBuf);

impl Stage {
    fn new(name: &str) -> Stage {
        let folder = std::env::temp_dir().join(format!("xtask-report-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Stage(folder)
    }

    fn out(&self) -> PathBuf {
        self.0.join("out")
    }

    /// A quick run of figure 4 without a GPU, as `figure 4 --quick --out` leaves it.
    fn run(&self, change: impl Fn(&mut Point)) -> PathBuf {
        self.run_of("fig4", Extent::Quick, "results", change)
    }

    /// Results in `folder`. Figure 6 has the series that the host twin measures.
    fn run_of(&self, name: &str, extent: Extent, folder: &str, change: impl Fn(&mut Point)) -> PathBuf {
        let experiment = experiment::Experiment::read(&root().join("experiments"), name).unwrap();
        let mut grid = experiment.spec.grid(extent);
        match name {
            "fig6" => grid.series.retain(|series| series.starts_with("gpu-fair-")),
            _ => drop(grid.without_gpu()),
        }
        let mut lines = String::new();
        for key in grid.keys() {
            let mut point = example(&key.series, key.x);
            (point.experiment, point.at, point.repetition) = (name.to_owned(), key.at, key.repetition);
            change(&mut point);
            lines += &(serde_json::to_string(&point).unwrap() + "\n");
        }
        let results = self.0.join(folder);
        fs::create_dir_all(&results).unwrap();
        fs::write(results.join("results.jsonl"), lines).unwrap();
        let summary =
            serde_json::json!({ "experiment": name, "extent": extent.name(), "ratios": null }).to_string();
        fs::write(results.join("summary.json"), summary).unwrap();
        results
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn committed() -> Vec<Figure> {
    gathered(&root(), &[], &[]).unwrap().0
}

/// The page's figures with `add`, all of which can be added.
fn with(add: &[PathBuf]) -> Vec<Figure> {
    let (figures, left_out) = gathered(&root(), &[], add).unwrap();
    assert_eq!(left_out, Vec::<String>::new());
    figures
}

/// Elements opened and not closed, or closed and not opened; the text of `script` and `style` is no markup.
fn unbalanced(html: &str) -> Option<String> {
    const VOID: [&str; 8] = ["meta", "link", "br", "input", "!DOCTYPE", "hr", "img", "wbr"];
    let (mut open, mut rest): (Vec<&str>, &str) = (Vec::new(), html);
    while let Some(at) = rest.find('<') {
        let Some(end) = rest[at..].find('>').map(|end| at + end) else {
            return Some("`<` without `>`".into());
        };
        let tag = &rest[at + 1..end];
        if tag.contains('<') || tag.matches('"').count() % 2 == 1 {
            return Some(format!("<{tag}>"));
        }
        rest = &rest[end + 1..];
        let name = tag.split([' ', '\n']).next().unwrap_or_default();
        if let Some(closed) = name.strip_prefix('/') {
            if open.pop() != Some(closed) {
                return Some(format!("</{closed}> after <{open:?}>"));
            }
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
            if ["script", "style"].contains(&name) {
                rest = &rest[rest.find(&format!("</{name}>")).unwrap_or(0)..];
            }
        }
    }
    (!open.is_empty()).then(|| format!("open at the end: {open:?}"))
}

/// The page of figures as it is written.
fn whole(figures: &[Figure]) -> String {
    page::page(figures, &Claims::of(figures)).unwrap()
}

#[test]
fn the_page_is_well_formed_and_fetches_nothing() {
    let page = whole(&committed());
    assert_eq!(unbalanced(&page), None);
    assert!(unbalanced("<p><b></p></b>").is_some() && unbalanced("<p>a < b</p>").is_some());
    for fetching in [
        " src=",
        "@import",
        "url(\"",
        "url(h",
        "<link rel=\"stylesheet",
        "<iframe",
        "fetch(",
        "XMLHttpRequest",
        "import(",
    ] {
        assert!(!page.contains(fetching), "{fetching}");
    }
    // What leads elsewhere is the paper's page and the namespace of SVG.
    let elsewhere = page.match_indices("http").map(|(at, _)| &page[at..page[at..].find('"').unwrap() + at]);
    for target in elsewhere {
        assert!(target.starts_with("https://doi.org/") || target == "http://www.w3.org/2000/svg", "{target}");
    }
    // An anchor that is linked to is there.
    for (at, _) in page.match_indices("href=\"#") {
        let name = page[at + 7..].split('"').next().unwrap();
        assert!(page.contains(&format!(" id=\"{name}\"")), "#{name}");
    }
}

#[test]
fn all_36_claims_are_listed_each_with_verdict_evidence_and_provenance() {
    let figures = committed();
    let claims = Claims::of(&figures);
    let (lines, page) = (&claims.lines, page::page(&figures, &claims).unwrap());
    assert_eq!((lines.len(), page.matches("<tr data-standing=").count()), (36, 36));
    assert_eq!(claims.counts.values().sum::<usize>(), 36);
    // README.md says what its picture shows.
    let counts = format!("]({}), {}", "docs/artifact.md", claims.counted());
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(
        readme.contains(&counts),
        "README.md, and docs/report.png (`report --recorded --picture docs/report.png`): {counts}"
    );
    for line in lines {
        assert!(page.contains(&format!("<code>{}</code>", line.claim.id)), "{}", line.claim.id);
        // What was judged names its entries; what was not says why.
        assert!(line.judged.is_empty() == line.by.is_none() && (line.by.is_some() || line.reason.is_some()));
    }
    let of = |id: &str| lines.iter().find(|line| line.claim.id == id).unwrap();
    assert_eq!(of("clock-l40").said, "background");
    assert_eq!(of("same-api").said, "reproduced");
    assert_eq!(of("loop-one-thread").said, "not reproduced");
    assert_eq!(of("graph-four").said, "reproduced", "by the entry with a GPU");
    assert_eq!(of("saturate-100g").said, "needs hardware (link, nic)", "what the entry with a GPU lacks");
    for figure in figures.iter().filter(|figure| figure.shown.is_empty()) {
        let claim = of(&figure.paper.claim[0].id);
        let command = format!("cargo xtask figure {} --record", figure.number());
        assert!(claim.said == "not recorded" && claim.reason.as_ref().unwrap().contains(&command));
        assert!(page.contains(&format!("<code>{command}</code> measures and records it")));
    }
}

#[test]
fn every_drawing_and_number_lies_beside_the_page_too() {
    let (stage, figures) = (Stage::new("files"), committed());
    let page = written(&figures, &Claims::of(&figures), &stage.out()).unwrap();
    let text = fs::read_to_string(&page).unwrap();
    let start = |file: &str| fs::read(stage.out().join(file)).unwrap()[..4].to_vec();
    for figure in &figures {
        assert!(start(&format!("{}.csv", figure.name())).starts_with(b"sour"));
        for (stem, svg) in figure.files() {
            assert_eq!(start(&format!("{stem}.png")), b"\x89PNG");
            assert_eq!(start(&format!("{stem}.pdf")), b"%PDF");
            assert_eq!(fs::read_to_string(stage.out().join(format!("{stem}.svg"))).unwrap(), svg);
            assert!(
                ["svg", "png", "pdf"].iter().all(|kind| text.contains(&format!("href=\"{stem}.{kind}\"")))
            );
        }
        assert!(figure.files().count() > 0, "{}", figure.name());
    }
    // Nothing half-written is left.
    let names: Vec<String> = crate::workspace::names_in(&stage.out());
    assert!(
        names.iter().all(|name| ["csv", "svg", "png", "pdf", "html"].iter().any(|end| name.ends_with(end)))
    );
    assert!(text.contains("download=\"fig4.csv\" href=\"data:text/csv;charset=utf-8,source,machine,"));
}

#[test]
fn what_comes_from_files_is_escaped() {
    let mut figures = committed();
    let bad = "<script>alert(\"1\")</script>&'";
    let figure = figures.iter_mut().find(|figure| figure.number() == 4).unwrap();
    figure.paper.claim[0].text = bad.into();
    figure.paper.claim[0].note = Some(bad.into());
    figure.paper.paper.source = bad.into();
    figure.experiment.spec.title = bad.into();
    let shown = &mut figure.shown[0];
    (shown.entry.machine, shown.from) = (bad.into(), bad.into());
    shown.entry.rows[0].series = bad.into();
    let provenance = &mut shown.entry.provenance;
    (provenance.machine, provenance.device, provenance.gpu_device) = (bad.into(), bad.into(), bad.into());
    provenance.versions.insert(bad.into(), bad.into());
    provenance.nic_options.insert(bad.into(), bad.into());
    shown.judged.iter_mut().for_each(|one| {
        (one.evidence, one.criterion) = (vec![bad.into(); 4], bad.into());
    });
    figures::finish(&mut figures, &root()).unwrap();
    let page = whole(&figures);
    assert_eq!(unbalanced(&page), None);
    assert_eq!((page.matches("<script").count(), page.matches("alert(\"1\")</script").count()), (1, 0));
    assert!(page.matches("&#60;script&#62;alert(").count() > 20);
}

#[test]
fn results_of_a_user_stand_beside_the_recorded_ones_and_stay_as_they_are() {
    let stage = Stage::new("added");
    let mut samples = experiment::Samples::default();
    samples.gauge("cpu_watts", &[70.0, 90.0]);
    samples.absent.insert("gpu_watts".into(), "no <nvidia-smi>".into());
    let results = stage.run(|point| {
        point.provenance.machine = "my card".into();
        point.samples = Some(samples.clone());
    });
    let recorded = committed();
    let count = |figures: &[Figure]| figures.iter().map(|figure| figure.shown.len()).sum::<usize>();
    let other = stage.0.join("fig2");
    fs::create_dir_all(&other).unwrap();
    fs::copy(root().join("experiments/fig2/measured.json"), other.join("measured.json")).unwrap();
    let before = fs::read(results.join("results.jsonl")).unwrap();
    // A folder, a file in it, a measured.json, a folder that holds one.
    let add = [results.clone(), results.join("summary.json"), other.join("measured.json"), other];
    let figures = with(&add);
    assert_eq!(count(&figures), count(&recorded) + 4);
    let fig4 = figures.iter().find(|figure| figure.number() == 4).unwrap();
    let mine = fig4.shown.last().unwrap();
    assert!(mine.from.ends_with("(added, not recorded)") && mine.id == "4e" && mine.day.is_none());
    let lines = Claims::of(&figures).lines;
    let own = lines.iter().find(|line| line.claim.id == "own-equals-vanilla").unwrap();
    assert_eq!(
        (own.judged[4].0.id.as_str(), own.judged[4].1.said().as_str(), own.judged.len()),
        ("4e", "reproduced", 5)
    );
    let page = whole(&figures);
    assert!(
        page.contains("<b>4e</b> my card (hardware), added, quick")
            && page.contains("not in this repository")
    );
    for words in ["<code>cpu_watts</code></td><td>80.00 (70.00–90.00)", "n/a: no &#60;nvidia-smi&#62;"] {
        assert!(page.contains(words), "{words}");
    }
    assert_eq!(fs::read(results.join("results.jsonl")).unwrap(), before);
}

#[test]
fn added_results_move_no_claim_and_say_what_they_are() {
    let stage = Stage::new("headline");
    // A card is a stronger label than the software NIC, and this one is slower than it should be.
    let slow = |point: &mut Point| {
        point.others = Some(point.provenance.cores as f64);
        let share = if point.series == "cpu-shim" { 0.01 } else { 1.0 };
        point.values.values_mut().for_each(|value| *value *= share);
    };
    let quick = stage.run_of("fig4", Extent::Quick, "quick", slow);
    let smoke = stage.run_of("fig4", Extent::Smoke, "smoke", slow);
    let measured = stage.0.join("fig4");
    fs::create_dir_all(&measured).unwrap();
    fs::copy(root().join("experiments/fig4/measured.json"), measured.join("measured.json")).unwrap();
    let (recorded, figures) = (committed(), with(&[quick, smoke, measured]));
    let (before, after) = (Claims::of(&recorded), Claims::of(&figures));
    assert_eq!(before.counts, after.counts);
    for (old, new) in before.lines.iter().zip(&after.lines) {
        let of =
            |line: &claims::Line<'_>| (line.standing, line.said.clone(), line.by.map(|by| by.id.clone()));
        assert_eq!(of(old), of(new), "{}", old.claim.id);
    }
    let own = after.lines.iter().find(|line| line.claim.id == "own-equals-vanilla").unwrap();
    let ids: Vec<&str> = own.judged.iter().map(|(shown, _)| shown.id.as_str()).collect();
    assert_eq!(&ids[..6], ["4a", "4b", "4c", "4d", "4f", "4g"], "4e is the smoke run");
    let (_, judged) = own.judged[3];
    assert_eq!(judged.said(), "not reproduced, under load");
    let is_by_medians = |judged: &&experiment::verdict::Judged| {
        judged.evidence.iter().any(|line| line.contains("kept medians"))
    };
    assert_eq!(
        own.judged.iter().map(|(_, judged)| is_by_medians(judged)).collect::<Vec<_>>()[3..5],
        [false, true]
    );
    let page = whole(&figures);
    for words in [
        "not reproduced, under load <small>label hardware, added, quick</small>",
        "<a href=\"#e4e\">4e</a>, added, smoke",
        "<td>smoke: not judged</td>",
    ] {
        assert!(page.contains(words), "{words}");
    }
    let newer = |figures: &[Figure]| whole(figures).matches("newer than the run").count();
    assert_eq!(newer(&figures), newer(&recorded));
}

#[test]
fn a_run_by_the_host_twin_is_left_out_and_the_page_is_of_the_others() {
    let stage = Stage::new("twin");
    let twin = stage.run_of("fig6", Extent::Quick, "all/fig6", |point| {
        point.provenance.gpu = measure::Label::Emulated;
        point.provenance.gpu_device.clear();
    });
    let none = |_: &str| PathBuf::new();
    let error = experiment::import::imported(&root().join("experiments"), &twin, Some(&none)).unwrap_err();
    assert!(error.is::<experiment::import::ByHostTwin>(), "{error:#}");
    stage.run_of("fig4", Extent::Quick, "all/fig4", |_| ());
    // As `figure all --out` leaves it: a folder of folders.
    let figures = with(&[stage.0.join("all")]);
    let added: Vec<&str> = figures
        .iter()
        .flat_map(|figure| &figure.shown)
        .filter(|shown| shown.is_added)
        .map(|shown| shown.id.as_str())
        .collect();
    assert_eq!(added, ["4d"]);
}

#[test]
fn what_figure_left_in_the_checkout_is_shown_once_and_a_recorded_run_not_again() {
    let stage = Stage::new("here");
    std::os::unix::fs::symlink(root().join("experiments"), stage.0.join("experiments")).unwrap();
    stage.run_of("fig4", Extent::Quick, "results/fig4", |_| ());
    stage.run_of("fig4", Extent::Quick, "results/fig4-100", |_| ());
    let cut = stage.run_of("fig5", Extent::Quick, "results/fig5", |_| ());
    fs::remove_file(cut.join("summary.json")).unwrap();
    let results = stage.0.join("results");
    assert_eq!(added::here(&stage.0, &[]), [results.join("fig4"), cut.clone()]);
    assert_eq!(added::here(&stage.0, &[results.join("fig4")]), [cut], "it is named");
    let (mut figures, left_out) = gathered(&root(), &added::here(&stage.0, &[]), &[]).unwrap();
    assert_eq!(left_out, [""; 0], "one that was cut is said, and no failure");
    let ids = |figures: &[Figure]| -> Vec<String> {
        let shown = figures.iter().flat_map(|figure| &figure.shown);
        shown.filter(|shown| shown.is_added).map(|shown| shown.id.clone()).collect()
    };
    assert_eq!(ids(&figures), ["4d"]);
    // The same run, recorded.
    figures[3].shown.iter_mut().for_each(|shown| shown.is_added = false);
    added::add(&mut figures, &root(), &results.join("fig4")).unwrap();
    assert_eq!((ids(&figures), figures[3].shown.len()), (vec![], 4));
}

#[test]
fn an_interrupted_run_is_named_with_the_command_that_goes_on_with_it() {
    let stage = Stage::new("unfinished");
    let results = stage.run(|_| ());
    fs::remove_file(results.join("summary.json")).unwrap();
    let (_, left_out) = gathered(&root(), &[], from_ref(&results)).unwrap();
    let command =
        format!("unfinished: go on with `cargo xtask figure 4 --resume --out {}`", results.display());
    assert!(left_out.len() == 1 && left_out[0].contains(&command), "{left_out:?}");
}

#[test]
fn results_that_are_damaged_or_of_another_version_are_refused_and_the_page_is_of_the_others() {
    let stage = Stage::new("refused");
    let results = stage.run(|_| ());
    let file = results.join("results.jsonl");
    let good = fs::read_to_string(&file).unwrap();
    let empty = stage.0.join("empty");
    let fig4 = stage.0.join("fig4");
    let nameless = stage.0.join("nameless");
    for folder in [&empty, &fig4, &nameless] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(fig4.join("measured.json"), "{\"entries\": [{\"machine\"").unwrap();
    let recorded = fs::read(root().join("experiments/fig4/measured.json")).unwrap();
    fs::write(nameless.join("measured.json"), recorded).unwrap();
    let newer = good.replacen("\"series\"", "\"lane\":1,\"series\"", 1);
    let fewer = good.lines().skip(1).map(|line| line.to_owned() + "\n").collect::<String>();
    let cut = good[..good.len() - 9].to_owned();
    for (results, text, words) in [
        (empty, &good, "neither summary.json nor measured.json"),
        (fig4, &good, "measured.json: EOF"),
        (nameless, &good, "names no figure"),
        (results.clone(), &newer, "lane"),
        (results.clone(), &fewer, "1 of them are missing"),
        (results.clone(), &cut, "cut after"),
    ] {
        fs::write(&file, text).unwrap();
        let (figures, left_out) = gathered(&root(), &[], from_ref(&results)).unwrap();
        let [line] = &left_out[..] else { panic!("{left_out:?}") };
        let what =
            [words, &results.display().to_string(), "measure with this version", "the page is without it"];
        assert!(line.lines().count() == 1 && what.iter().all(|what| line.contains(what)), "{words}: {line}");
        assert!(figures.iter().all(|figure| figure.shown.iter().all(|shown| !shown.is_added)), "{words}");
        assert_eq!(fs::read_to_string(&file).unwrap(), *text);
    }
    // The command writes the page and is refused.
    let options =
        Options { out: Some(stage.out()), add: vec![results], recorded: true, ..Options::default() };
    let error = run(&options).unwrap_err();
    assert!(error.is::<Refused>() && error.to_string().contains("cut after"), "{error:#}");
    assert!(stage.out().join(PAGE).is_file());
    let refused = |results: PathBuf| gathered(&root(), &[], &[results]).unwrap().1.remove(0);
    let error = refused(stage.0.join("gone"));
    assert!(error.contains("gone: there is no such file or folder; give the --out"), "{error}");
    let bench = root().join("experiments/bench-nic/measured.json");
    let error = refused(bench);
    assert!(error.contains("it is of bench-nic, and the page has fig1, fig2"), "{error}");
}

#[test]
fn a_report_that_cannot_be_written_leaves_the_old_page() {
    let (stage, figures) = (Stage::new("whole"), committed());
    fs::create_dir_all(stage.out().join("fig5.csv")).unwrap();
    fs::write(stage.out().join(PAGE), "old").unwrap();
    let error = format!("{:#}", written(&figures, &Claims::of(&figures), &stage.out()).unwrap_err());
    assert!(error.contains("writing") && error.contains("fig5.csv"), "{error}");
    assert_eq!(fs::read_to_string(stage.out().join(PAGE)).unwrap(), "old");
    fs::write(stage.0.join("file"), "").unwrap();
    let error =
        format!("{:#}", written(&figures, &Claims::of(&figures), &stage.0.join("file/below")).unwrap_err());
    assert!(error.contains("--out") && error.contains("file/below"), "{error}");
}

/// The verdicts of a claim's entries, and the one that is the claim's.
#[test]
fn a_claims_verdict_is_that_of_the_strongest_label_and_of_the_least_favourable_among_equals() {
    use claims::ClaimStatus;
    use experiment::verdict::Verdict::{InPart, NeedsHardware, NotReproduced, Reproduced};
    use measure::Label::{Emulated, Hardware, None as NoLabel};
    let needs = |parts: &[&str]| NeedsHardware(parts.iter().map(|part| (*part).to_owned()).collect());
    let file = root().join("experiments/fig4/measured.json");
    for (verdicts, standing, by) in [
        (vec![(Emulated, Reproduced), (Emulated, NotReproduced)], ClaimStatus::NotReproduced, "4b"),
        (vec![(Hardware, Reproduced), (Emulated, NotReproduced)], ClaimStatus::Reproduced, "4a"),
        (vec![(Emulated, InPart), (Emulated, Reproduced)], ClaimStatus::InPart, "4a"),
        (
            vec![(NoLabel, needs(&["gpu", "nic"])), (NoLabel, needs(&["nic"]))],
            ClaimStatus::NeedsHardware,
            "4b",
        ),
        (vec![(NoLabel, needs(&["nic"])), (NoLabel, Reproduced)], ClaimStatus::Reproduced, "4b"),
    ] {
        let mut figures = committed();
        let figure = figures.iter_mut().find(|figure| figure.number() == 4).unwrap();
        let entry = Measured::read(&file).unwrap().entries.remove(0);
        let of = |_| figures::Shown::new(&figure.experiment, entry.clone(), String::new());
        figure.shown = (0..verdicts.len()).map(of).collect();
        for ((shown, (label, verdict)), id) in figure.shown.iter_mut().zip(&verdicts).zip(["4a", "4b"]) {
            id.clone_into(&mut shown.id);
            let one = shown.judged.iter_mut().find(|one| one.id == "single-thread").unwrap();
            (one.label, one.verdict) = (*label, verdict.clone());
        }
        let lines = Claims::of(&figures).lines;
        let line = lines.iter().find(|line| line.claim.id == "single-thread").unwrap();
        assert_eq!((line.standing, line.by.unwrap().id.as_str()), (standing, by), "{verdicts:?}");
    }
}
