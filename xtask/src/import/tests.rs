//! Results of a made-up machine and everything that may be wrong with them; the tree is its own repository.

use measure::{Label, Revision};
use serde_json::Value;

use super::*;
use crate::figure;
use crate::refused::Refused;
use experiment::point::{Point, example};

/// A tree with two commits and a third beside them, and a folder of results.
struct Stage {
    folder: PathBuf,
    /// The checked-out commit, the one before it, and one that is in the repository but no ancestor.
    commits: [String; 3],
}

impl Stage {
    fn new(name: &str) -> Stage {
        let folder = std::env::temp_dir().join(format!("xtask-import-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("tree/experiments")).unwrap();
        fs::create_dir_all(folder.join("results")).unwrap();
        let mut stage = Stage { folder, commits: Default::default() };
        stage.git(&["init", "-q"]);
        let commit = |message: &str| {
            let who = ["-c", "user.name=t", "-c", "user.email=t@t"];
            stage.git(&[&who[..], &["commit", "-q", "--allow-empty", "-m", message]].concat());
            stage.git(&["rev-parse", "HEAD"])
        };
        let first = commit("first");
        let beside = commit("beside");
        stage.git(&["reset", "-q", "--hard", &first]);
        let head = commit("head");
        stage.commits = [head, first, beside];
        stage
    }

    fn git(&self, arguments: &[&str]) -> String {
        let output =
            Command::new("git").arg("-C").arg(self.folder.join("tree")).args(arguments).output().unwrap();
        assert!(output.status.success(), "git {arguments:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn results(&self) -> PathBuf {
        self.folder.join("results")
    }

    /// A quick run of figure 4 as `figure 4 --quick --out` leaves it, but for the plots.
    fn figure(&self, revision: &Revision, change: impl Fn(&mut Point)) {
        let experiment = experiment::Experiment::read(&root().join("experiments"), "fig4").unwrap();
        let mut lines = String::new();
        for key in experiment.spec.grid(experiment::spec::Extent::Quick).keys() {
            let mut point = example(&key.series, key.x);
            (point.at, point.repetition, point.label) = (key.at, key.repetition, Label::Emulated);
            point.provenance.revision = revision.clone();
            point.provenance.gpu_device = "NVIDIA H200, sm_90".into();
            point.provenance.versions.insert("profile".into(), "release".into());
            change(&mut point);
            lines += &(serde_json::to_string(&point).unwrap() + "\n");
        }
        fs::write(self.results().join("results.jsonl"), lines).unwrap();
        let summary = r#"{"experiment":"fig4","title":"t","extent":"quick","ratios":null,"more":1}"#;
        fs::write(self.results().join("summary.json"), summary).unwrap();
    }

    fn clean(&self) -> Revision {
        Revision { commit: self.commits[0].clone(), dirty: false }
    }

    fn import(&self) -> Result<PathBuf> {
        self.import_as(false)
    }

    fn import_as(&self, part: bool) -> Result<PathBuf> {
        let tree = self.folder.join("tree");
        let options = Options { folder: self.results(), part };
        into(&options, &tree.join("experiments"), &tree)
    }

    /// The one line with which it is refused; nothing may have been written.
    fn refusal(&self) -> String {
        let error = self.import().unwrap_err();
        assert!(error.is::<Refused>(), "exit status 2: {error:#}");
        let line = format!("{error:#}");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(!self.folder.join("tree/experiments/fig4").exists(), "{line}");
        line
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_figure_of_this_revision_or_an_earlier_one_is_recorded() {
    let stage = Stage::new("good");
    for at in [0, 1] {
        let revision = Revision { commit: stage.commits[at].clone(), dirty: false };
        stage.figure(&revision, |_| ());
        let path = stage.import().unwrap();
        assert_eq!(path, stage.folder.join("tree/experiments/fig4/measured.json"));
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(measured::problems(&text), [""; 0]);
        let recorded: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(recorded["entries"].as_array().unwrap().len(), 1, "the newer takes the older one's place");
        let entry = &recorded["entries"][0];
        assert_eq!(entry["provenance"]["revision"]["commit"], *stage.commits[at]);
        assert_eq!((&entry["extent"], &entry["label"]), (&"quick".into(), &"emulated".into()));
        assert!(
            entry["rows"].as_array().unwrap().len() > 5 && !entry["verdicts"].as_array().unwrap().is_empty()
        );
    }
}

#[test]
fn a_machine_without_a_gpu_lacks_only_what_needs_one() {
    let stage = Stage::new("cpu");
    stage.figure(&stage.clean(), |point| point.provenance.gpu_device.clear());
    assert!(stage.refusal().contains("are others"), "series of a GPU without one");
    let file = stage.results().join("results.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let cpu = text.lines().filter(|line| !line.contains("\"series\":\"gpu-"));
    fs::write(&file, cpu.map(|line| line.to_owned() + "\n").collect::<String>()).unwrap();
    stage.import().unwrap();
}

#[test]
fn a_revision_that_this_history_does_not_show_is_refused() {
    let stage = Stage::new("revision");
    for (commit, dirty, words) in [
        (&*stage.commits[0], true, "with changes"),
        ("", true, "names no revision"),
        ("0123456789abcdef", false, "names no revision"),
        ("--upload-pack=/bin/sh-000000000000000000", false, "names no revision"),
        (&*"0123456789".repeat(4), false, "is foreign: no revision 012345678901 is in this repository"),
        (&*stage.commits[2], false, "is none of those that the checked-out one comes from"),
    ] {
        stage.figure(&Revision { commit: commit.to_owned(), dirty }, |_| ());
        let line = stage.refusal();
        assert!(line.contains(words), "{commit}: {line}");
    }
    stage.figure(&stage.clean(), |point| {
        point.provenance.versions.insert("profile".into(), "dev".into());
    });
    assert!(stage.refusal().contains("profile `dev`"));
}

#[test]
fn damaged_incomplete_and_unknown_results_are_refused() {
    let stage = Stage::new("damaged");
    assert!(stage.refusal().contains("no summary.json"));
    let (summary, points) = (stage.results().join("summary.json"), stage.results().join("results.jsonl"));
    fs::write(&summary, "garbage").unwrap();
    assert!(stage.refusal().ends_with("not as it was written there: carry the folder here again"));
    let good = || stage.figure(&stage.clean(), |_| ());
    let edit = |path: &Path, edit: &dyn Fn(String) -> String| {
        good();
        fs::write(path, edit(fs::read_to_string(path).unwrap())).unwrap();
        stage.refusal()
    };
    for (path, change, words) in [
        (
            &summary,
            &(|text: String| text.replace("fig4", "fig44")) as &dyn Fn(String) -> String,
            "no experiment `fig44`; the nearest is `fig4`; there are: ",
        ),
        (&summary, &|text| text.replace("fig4", "fig5"), "a point is of fig4, summary.json of fig5"),
        (&summary, &|text| text.replace("quick", "endless"), "unknown variant `endless`"),
        (&summary, &|text| text.replace("quick", "full"), "a full run of fig4 has"),
        (&summary, &|text| text[..30].to_owned(), "summary.json: EOF"),
        (&points, &|text| text[..text.len() - 20].to_owned(), "its last line is cut"),
        (&points, &|text| text.replacen("\"series\"", "\"serie\"", 1), "line 1: unknown field `serie`"),
        (
            &points,
            &|text| text.lines().skip(3).map(|line| line.to_owned() + "\n").collect(),
            "here 3 of them are missing and 0 are others",
        ),
        (
            &points,
            &|text| text.replacen("\"provenance\":{", "\"provenance\":null,\"x\":{", 1),
            "line 1: invalid type: null",
        ),
        (&points, &|text| text.replacen("\"label\":", "\"missing\":\"1 lost\",\"label\":", 1), "not whole"),
        (&points, &|text| text.replacen("a machine", "another", 1), "its points are of two runs"),
        (&points, &|_| String::new(), "holds no points"),
    ] {
        let line = edit(path, change);
        assert!(line.contains(words), "{words}: {line}");
    }
    good();
    fs::remove_file(&points).unwrap();
    assert!(stage.refusal().contains("holds no points"));
}

#[test]
fn a_part_has_whole_series() {
    let stage = Stage::new("part");
    stage.figure(&stage.clean(), |_| ());
    let points = stage.results().join("results.jsonl");
    let all: Vec<String> = fs::read_to_string(&points).unwrap().lines().map(str::to_owned).collect();
    let series = |line: &str| serde_json::from_str::<Value>(line).unwrap()["series"].to_string();
    let (first, mut rest): (Vec<String>, Vec<String>) =
        all.iter().cloned().partition(|line| series(line) == series(&all[0]));
    fs::write(&points, rest.join("\n") + "\n").unwrap();
    assert!(stage.refusal().contains(&format!("{} of them are missing", first.len())));
    stage.import_as(true).unwrap();
    rest.pop();
    fs::write(&points, rest.join("\n") + "\n").unwrap();
    assert!(stage.import_as(true).unwrap_err().to_string().contains("1 of them are missing"));
}

#[test]
fn parts_of_one_revision_become_one_entry() {
    let stage = Stage::new("parts");
    stage.figure(&stage.clean(), |point| {
        point.values = [("gbps".to_owned(), point.x as f64)].into();
        point.spread = [("gbps".to_owned(), [1.0, 1e9])].into();
    });
    let points = stage.results().join("results.jsonl");
    let all: Vec<String> = fs::read_to_string(&points).unwrap().lines().map(str::to_owned).collect();
    let said = |line: &str| serde_json::from_str::<Point>(line).unwrap();
    let once: Vec<String> = all.iter().filter(|line| said(line).repetition == 0).cloned().collect();
    let summary = r#"{"experiment":"fig4","extent":"quick","repeat":1}"#;
    fs::write(stage.results().join("summary.json"), summary).unwrap();
    let write = |lines: &[&String]| {
        fs::write(&points, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    };
    let recorded =
        |path: &PathBuf| -> Value { serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap() };
    let whole_of = |lines: &[String]| {
        write(&lines.iter().collect::<Vec<_>>());
        recorded(&stage.import().unwrap())
    };
    let whole = whole_of(&once);
    fs::remove_dir_all(stage.folder.join("tree/experiments/fig4")).unwrap();
    let (one, other): (Vec<&String>, Vec<&String>) =
        once.iter().partition(|line| said(line).series == said(&once[0]).series);
    write(&one);
    let path = stage.import_as(true).unwrap();
    assert!(
        recorded(&path)["entries"][0]["rows"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["series"] == said(one[0]).series)
    );
    // The first again: the part before is replaced. The other: it is joined.
    stage.import_as(true).unwrap();
    write(&other);
    stage.import_as(true).unwrap();
    assert_eq!(recorded(&path), whole);
    // Figure 4's claims compare series: of another revision nothing is joined.
    let older: Vec<String> =
        one.iter().map(|line| line.replace(&*stage.commits[0], &stage.commits[1])).collect();
    write(&older.iter().collect::<Vec<_>>());
    stage.import_as(true).unwrap();
    assert_ne!(recorded(&path), whole);
    assert_eq!(recorded(&path)["entries"].as_array().unwrap().len(), 1);
    // Of rows of several points their points are not known any more.
    let twice = |lines: &[&String]| -> Vec<String> {
        let again = |line: &&String| serde_json::to_string(&Point { repetition: 1, ..said(line) }).unwrap();
        lines.iter().map(|line| (*line).clone()).chain(lines.iter().map(again)).collect()
    };
    fs::write(stage.results().join("summary.json"), summary.replace("\"repeat\":1", "\"repeat\":2")).unwrap();
    for (lines, is_taken) in [(twice(&one), true), (twice(&other), false)] {
        write(&lines.iter().collect::<Vec<_>>());
        let result = stage.import_as(true);
        assert_eq!(result.is_ok(), is_taken, "{result:?}");
        assert!(is_taken || result.unwrap_err().to_string().contains("measure all parts in one folder"));
    }
}

#[test]
fn a_part_of_another_revision_replaces_its_series_and_the_others_keep_their_revision() {
    let stage = Stage::new("revisions");
    let experiment = experiment::Experiment::read(&root().join("experiments"), "bench-models").unwrap();
    let grid = experiment.spec.grid(experiment::spec::Extent::Normal);
    fs::write(
        stage.results().join("summary.json"),
        r#"{"experiment":"bench-models","extent":"normal","repeat":1}"#,
    )
    .unwrap();
    let import = |precision: &str, commit: &str, ratio: f64, said: &str| -> Vec<(String, String, f64)> {
        let line = |series: &String| {
            let mut point = example(series, 0).with("ratio", ratio);
            (point.experiment, point.label) = ("bench-models".into(), Label::Hardware);
            point.at.clear();
            point.provenance.gpu = Label::Hardware;
            point.provenance.gpu_device = "NVIDIA H200, sm_90".into();
            point.provenance.versions.insert("profile".into(), "release".into());
            point.provenance.revision = Revision { commit: commit.to_owned(), dirty: false };
            serde_json::to_string(&point).unwrap() + "\n"
        };
        let own = grid.series.iter().filter(|series| series.starts_with(precision));
        fs::write(stage.results().join("results.jsonl"), own.map(line).collect::<String>()).unwrap();
        let text = fs::read_to_string(stage.import_as(true).unwrap()).unwrap();
        assert_eq!(measured::problems(&text), [""; 0]);
        let mut entries = serde_json::from_str::<measured::Measured>(&text).unwrap().entries;
        let entry = entries.remove(0);
        assert!(
            entries.is_empty() && entry.provenance.revision.commit == commit,
            "one entry, of the newest part"
        );
        let verdict = entry.verdicts.iter().find(|one| one.id == "fp32").unwrap();
        assert_eq!(verdict.said(), said);
        let row = |row: &experiment::table::Row| {
            let from = entry.of(row).revision.commit.clone();
            (row.series.clone(), from, row.values["ratio"][0])
        };
        entry.rows.iter().map(row).collect()
    };
    let [new, old] = [&*stage.commits[0], &*stage.commits[1]];
    assert_eq!(import("gpu-", old, 0.9, "aim met").len(), 18);
    let rows = import("gpu-fp32/", new, 1.5, "aim not met");
    assert_eq!(rows.len(), 18);
    for (series, commit, ratio) in &rows {
        let wanted = if series.starts_with("gpu-fp32/") { (new, 1.5) } else { (old, 0.9) };
        assert_eq!((commit.as_str(), *ratio), wanted, "{series}");
    }
    // A third part: what was of two revisions stays so, and the entry's own rows name theirs.
    let rows = import("gpu-fp32/squeezenet-1.1", old, 0.8, "aim not met");
    let count = |commit: &str| rows.iter().filter(|(_, from, _)| from == commit).count();
    assert_eq!((count(new), count(old)), (5, 13));
}

#[test]
fn rows_that_the_program_names_are_taken_as_they_are() {
    let stage = Stage::new("posts");
    let mut point = example("gpu-thread", 0);
    (point.experiment, point.series) = (figure::posts::NAME.into(), "exclusive/1-thread/host".into());
    point.at.clear();
    point.provenance.versions.insert("profile".into(), "release".into());
    point.provenance.revision = stage.clean();
    fs::write(stage.results().join("results.jsonl"), serde_json::to_string(&point).unwrap() + "\n").unwrap();
    let summary = r#"{"experiment":"bench-post-gpu","extent":"full"}"#;
    fs::write(stage.results().join("summary.json"), summary).unwrap();
    let path = stage.import().unwrap();
    assert!(path.ends_with("experiments/bench-post-gpu/measured.json"));
    assert_eq!(measured::problems(&fs::read_to_string(path).unwrap()), [""; 0]);
}

#[test]
fn a_run_without_the_series_that_its_machine_cannot_measure_is_taken() {
    let stage = Stage::new("wire");
    let experiment = experiment::Experiment::read(&root().join("experiments"), "bench-nic").unwrap();
    let mut grid = experiment.spec.grid(experiment::spec::Extent::Full);
    let (wire, here): (Vec<String>, Vec<String>) =
        grid.series.drain(..).partition(|series| series.contains("wire") || series.contains("iperf3"));
    (grid.series, grid.repeat) = (here, 2);
    let line = |key: experiment::point::Key| {
        let mut point = example(&key.series, 0).with("value", 1.0);
        (point.experiment, point.at, point.repetition) = ("bench-nic".into(), key.at, key.repetition);
        point.provenance.versions.insert("profile".into(), "release".into());
        point.provenance.revision = stage.clean();
        serde_json::to_string(&point).unwrap() + "\n"
    };
    let lines: String = grid.keys().into_iter().map(line).collect();
    fs::write(stage.results().join("results.jsonl"), lines).unwrap();
    for (left_out, repeat, why) in [
        (&[][..], 2, "are missing"),
        (&wire[1..], 2, "are missing"),
        (&wire, 3, "are missing"),
        (&wire, 1, "are others"),
        (&wire, 2, ""),
    ] {
        let summary = serde_json::json!({
            "experiment": "bench-nic", "extent": "full", "repeat": repeat, "left_out": left_out,
        });
        fs::write(stage.results().join("summary.json"), summary.to_string()).unwrap();
        match stage.import() {
            Ok(path) => assert!(why.is_empty() && path.ends_with("bench-nic/measured.json"), "{summary}"),
            Err(error) => assert!(!why.is_empty() && error.to_string().contains(why), "{error:#}"),
        }
    }
}

#[test]
fn a_busy_machine_is_no_refusal_and_is_said() {
    let stage = Stage::new("busy");
    let said = |load: Option<f64>| {
        stage.figure(&stage.clean(), |point| point.provenance.load = load);
        stage.import().unwrap();
        experiment::import::imported(&root().join("experiments"), &stage.results(), None).unwrap().2
    };
    let line = said(Some(1.9)).unwrap();
    assert!(line.starts_with("load 1.9 on 2 cores in the minute before the run: other programs"), "{line}");
    assert_eq!((said(Some(0.9)), said(None)), (None, None));
}

#[test]
fn a_measured_json_that_cannot_be_read_is_left_as_it_is() {
    let stage = Stage::new("whole");
    let path = stage.folder.join("tree/experiments/fig4/measured.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "nonsense").unwrap();
    stage.figure(&stage.clean(), |_| ());
    assert!(stage.import().is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "nonsense");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
}
