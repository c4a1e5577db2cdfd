//! The whole of `figure` with stand-ins for its programs: shell scripts that say what the generator says.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use experiment::point::{self, Point};
use experiment::resume::Earlier;
use experiment::spec::Extent;
use experiment::verdict::Verdict;
use measure::{Label, json_lines};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::descendants::is_alive;
use crate::process::{one_test, script as script_file};
use crate::refused::Refused;

/// A folder of its own with a launcher and a generator, both fakes.
struct Stage {
    out: PathBuf,
    programs: Programs,
}

/// Prints what `apps/generator/README.md` lists; its rate is the payload size, and `BEND` alters the sender.
const GENERATOR: &str = r#"#!/bin/sh
case "$*" in
probe*) echo '{"kind":"probe","libraries":{"libibverbs":"1.14.44.0","libmlx5":"1.24.44.0"},"error":null,"devices":[{"name":"mlx5_0","ports":[{"port":1,"speed_gbps":100}]}]}';;
bench-post*) echo '{"kind":"bench-post","rows":[{"list":1,"doorbell":"8-bytes","ratio":0.4}]}';;
--listen*) echo '{"kind":"listening","address":"127.0.0.1:1"}';;
*) while [ $# -gt 0 ]; do case $1 in --payload) payload=$2;; --poster) poster=$2;; --batch) batch=$2;; esac; shift; done
   echo "$poster $payload" >> FOLDER/calls
   BEND
   echo '{"kind":"run","window":1024,"batch":'$batch',"posted":10,"completed":10,"received":10,"received_bytes":640,"verified":10,"torn":0,"lost":0,"content_ok":true,"msgs_per_s":1e6,"payload_gbps":'$payload',"wire_gbps":'$payload',"post_ns":25.5,"post":{"count":1,"min_ns":20,"p10_ns":20,"p50_ns":20.5,"p90_ns":30,"p99_ns":40,"p999_ns":40,"max_ns":40,"mean_ns":25.5},"interrupted":false,"error":null}';;
esac
"#;

fn stage(name: &str, bend: &str) -> Stage {
    let folder = std::env::temp_dir().join(format!("xtask-figure-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let script = |name: &str, text: String| {
        let path = folder.join(name);
        script_file(&path, &text);
        path
    };
    let generator = GENERATOR.replace("FOLDER", &folder.display().to_string()).replace("BEND", bend);
    let programs = Programs {
        generator: script("generator", generator),
        // softnic run --config FILE --fabric NAME -- COMMAND
        softnic: script("softnic", "#!/bin/sh\nshift 6\nexec \"$@\"\n".into()),
    };
    Stage { out: folder.join("out"), programs }
}

impl Stage {
    fn run(&self, options: &Options) -> Result<()> {
        execute(&small(), options, &self.out, &self.programs)
    }

    fn points(&self) -> Vec<Point> {
        json_lines::read(&self.out.join("results.jsonl")).unwrap().records
    }

    fn summary(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.out.join("summary.json")).unwrap()).unwrap()
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.out.with_file_name("calls")).unwrap_or_default().lines().count()
    }
}

/// Figure 5 with a grid of eight points.
fn small() -> Experiment {
    Experiment::small("fig5")
}

fn experiment(name: &str) -> Result<Experiment> {
    Experiment::read(&experiments(), name)
}

fn options(resume: bool) -> Options {
    Options { resume, peer_generator: "generator".into(), no_install: true, ..Options::default() }
}

/// The user can mend it, and its first line names what.
fn assert_refused(error: &anyhow::Error, words: &str) {
    assert!(error.is::<Refused>() && error.to_string().contains(words), "{words}: {error:#}");
}

#[test]
fn release_r1_a_run_leaves_points_plots_and_verdicts() {
    let stage = stage("whole", "");
    stage.run(&options(false)).unwrap();
    let points = stage.points();
    assert_eq!(points.len(), 8);
    assert!(
        points.iter().all(
            |point| point.label == Label::Emulated && point.provenance.versions["libmlx5"] == "1.24.44.0"
        )
    );
    assert_eq!(points[0].provenance.nic_options["pump"], false);
    assert_eq!((points[0].values["post_ns"], points[0].values["post_mean_ns"]), (20.5, 25.5));
    for file in ["post-time.svg", "post-time.png", "summary.json", "nic.toml"] {
        assert!(fs::metadata(stage.out.join(file)).unwrap().len() > 0, "{file}");
    }
    let summary = stage.summary();
    assert_eq!(summary["ratios"]["rows"][0]["ratio"], 0.4);
    let verdict = |id: &str| {
        let verdicts = summary["verdicts"].as_array().unwrap();
        let one = verdicts.iter().find(|verdict| verdict["id"] == id).unwrap();
        serde_json::from_value::<Verdict>(one["verdict"].clone()).unwrap()
    };
    assert_eq!(verdict("post-constant-api"), Verdict::Reproduced);
    assert_eq!(verdict("post-gpu-slower"), Verdict::NeedsHardware(vec!["gpu".into()]));
}

#[test]
fn release_r2_a_cut_run_resumes_where_it_was_cut() {
    let stage = stage("resume", "");
    stage.run(&options(false)).unwrap();
    let file = stage.out.join("results.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    // Five whole lines and a torn one.
    fs::write(&file, format!("{}\n{}", lines[..5].join("\n"), &lines[5][..40])).unwrap();
    let before = stage.calls();
    stage.run(&options(true)).unwrap();
    assert_eq!(stage.calls() - before, 3);
    let keys: BTreeSet<point::Key> = stage.points().iter().map(Point::key).collect();
    assert_eq!((stage.points().len(), keys.len()), (8, 8));
}

#[test]
fn points_of_another_run_are_not_mixed_in() {
    let stage = stage("mixed", "");
    stage.run(&options(false)).unwrap();
    let file = stage.out.join("results.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    for (from, to, named) in [
        ("\"commit\":\"", "\"commit\":\"0", "another revision: `0"),
        (
            "\"pump\":false",
            "\"pump\":false,\"rate_gbps\":100.0",
            "was measured with another NIC option rate_gbps: `100.0` there, `none` in this run; give another --out, or leave \
             --resume out",
        ),
        (
            "\"libmlx5\":\"1.24",
            "\"libmlx5\":\"1.27",
            "another version of libmlx5: `1.27.44.0` there, `1.24.44.0` in this run",
        ),
        (
            "\"seconds\":0.01",
            "\"seconds\":0.5",
            "another time a point in seconds: `0.5` there, `0.01` in this run",
        ),
        (
            "\"settings\":{\"batch\":32",
            "\"settings\":{\"batch\":16",
            "another batch of cpu-ibverbs at 64 B: `16` there, `32` in this run",
        ),
        (
            "\"settings\":{\"batch\":32,",
            "\"settings\":{",
            "another batch of cpu-ibverbs at 64 B: `not said` there, `32` in this run",
        ),
        ("\"x\":4096", "\"x\":4097", "at 4097 B"),
    ] {
        assert!(text.contains(from), "{from}");
        fs::write(&file, text.replace(from, to)).unwrap();
        let error = stage.run(&options(true)).unwrap_err();
        assert_refused(&error, named);
        assert_eq!(error.to_string().lines().count(), 1, "{error:#}");
        // All but what the programs must be asked for is known before they are built.
        let before = checked(&stage.out, &small(), true);
        assert_eq!(before.is_err(), !from.contains("libmlx5"), "{named}: {before:?}");
    }
}

#[test]
fn a_window_of_another_spec_is_not_mixed_in() {
    let stage = stage("window", "");
    stage.run(&options(false)).unwrap();
    // Figure 5 leaves the window to the generator, which chose 1024; figure 4 has one for each size.
    checked(&stage.out, &small(), true).unwrap();
    let mut other = small();
    other.spec.options.insert("working_set_bytes".into(), (12 << 20).into());
    let error = checked(&stage.out, &other, true).unwrap_err().to_string();
    let words = "another window of cpu-ibverbs at 64 B: `1024` there, `512` in this run; give another --out";
    assert!(error.contains(words), "{error}");
}

#[test]
fn a_tree_with_changes_is_not_gone_on_with_in_silence() {
    let stage = stage("changes", "");
    stage.run(&options(false)).unwrap();
    let clean = Provenance { revision: revision(false), ..stage.points()[0].provenance.clone() };
    let changed = Provenance { revision: revision(true), ..clean.clone() };
    let file = stage.out.join("results.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let ours = serde_json::to_string(&stage.points()[0].provenance.revision).unwrap();
    let earlier = |there: &Provenance, here: &Provenance| {
        let there = serde_json::to_string(&there.revision).unwrap();
        fs::write(&file, text.replace(&ours, &there)).unwrap();
        left(&stage, true, here)
    };
    assert!(earlier(&clean, &clean).unwrap().said.is_empty());
    let both = earlier(&changed, &changed).unwrap();
    assert!(both.points.len() == 8 && both.said[0].contains("of a tree with changes"), "{both:?}");
    for (there, here, words) in [
        (&changed, &clean, "`with changes` there, `without changes` in"),
        (&clean, &changed, "`without changes` there, `with changes` in"),
    ] {
        let error = earlier(there, here).unwrap_err();
        assert_refused(&error, &format!("another state of the tree: {words}"));
    }
}

fn revision(dirty: bool) -> measure::Revision {
    measure::Revision { commit: "abc".into(), dirty }
}

#[test]
fn points_of_a_tree_with_changes_are_not_recorded() {
    let stage = stage("dirty", "");
    stage.run(&options(false)).unwrap();
    let file = stage.out.join("results.jsonl");
    let text = fs::read_to_string(&file).unwrap().replace("\"dirty\":false", "\"dirty\":true");
    fs::write(&file, text).unwrap();
    let error = stage.run(&Options { record: true, ..options(true) }).unwrap_err();
    assert_refused(&error, "--record");
}

/// What is said of `--out` before anything is built.
fn checked(out: &Path, experiment: &Experiment, resume: bool) -> Result<()> {
    check(experiment, &Options { out: Some(out.to_owned()), ..options(resume) }).map(drop)
}

/// What an earlier run left for one with this provenance.
fn left(stage: &Stage, resume: bool, provenance: &Provenance) -> Result<Earlier> {
    let (experiment, options) = (small(), Options { out: Some(stage.out.clone()), ..options(resume) });
    let (spec, transfer) = (&experiment.spec, Transfer::of(&experiment.spec)?);
    let grid = spec.grid(Extent::Normal);
    let asked = |key: &point::Key| transfer.asked(spec, key);
    resume::earlier(&experiment, &options.how(&experiment), provenance, &grid, &asked)
}

/// What `--resume`, or a run without it, says of the results that are there.
fn said(stage: &Stage, resume: bool) -> Result<Earlier> {
    let provenance = match stage.points().first() {
        Some(point) => point.provenance.clone(),
        None => point::example("cpu-shim", 64).provenance,
    };
    let mut earlier = left(stage, resume, &provenance)?;
    // These tests run in trees with changes too; what is said of those has a test of its own.
    earlier.said.retain(|line| !line.contains("of a tree with changes"));
    Ok(earlier)
}

#[test]
fn old_results_and_plots_are_moved_aside_together_and_never_overwritten() {
    let stage = stage("aside", "");
    stage.run(&options(false)).unwrap();
    let names = ["results-1.jsonl", "summary-1.json", "post-time-1.svg", "post-time-1.png"];
    let earlier = said(&stage, false).unwrap();
    assert!(
        earlier.points.is_empty() && names.iter().all(|name| earlier.said[0].contains(name)),
        "{earlier:?}"
    );
    // As a cut run leaves it: nothing old stands beside what is new.
    for name in ["results.jsonl", "summary.json", "post-time.svg", "post-time.png"] {
        assert!(!stage.out.join(name).exists(), "{name}");
    }
    assert!(said(&stage, false).unwrap().said.is_empty(), "there is nothing to move");
    stage.run(&options(false)).unwrap();
    stage.run(&options(false)).unwrap();
    assert!(names.iter().all(|name| stage.out.join(name).exists()));
    assert!(names.iter().all(|name| stage.out.join(name.replace('1', "2")).exists()));
    assert_eq!(stage.points().len(), 8);
}

#[test]
fn a_resume_of_nothing_says_that_a_fresh_run_begins() {
    let stage = stage("fresh", "");
    for what in ["does not exist: this is a fresh run", "holds no points: this is a fresh run"] {
        let earlier = said(&stage, true).unwrap();
        assert!(earlier.said[0].ends_with(what), "{:?}", earlier.said);
        fs::create_dir_all(&stage.out).unwrap();
        fs::write(stage.out.join("results.jsonl"), "").unwrap();
    }
    stage.run(&options(true)).unwrap();
    assert_eq!(stage.points().len(), 8);
    assert!(said(&stage, true).unwrap().said.is_empty(), "there is something to go on with");
}

#[test]
fn a_file_for_a_folder_and_another_figure_s_results_are_refused_before_the_build() {
    let stage = stage("before", "");
    stage.run(&options(false)).unwrap();
    let figure_4 = experiment("fig4").unwrap();
    checked(&stage.out, &small(), true).unwrap();
    checked(&stage.out, &figure_4, false).unwrap();
    let file = stage.out.join("results.jsonl");
    let below = file.join("new");
    for (out, words) in [
        (&file, &["--out", "is a file; give a folder"][..]),
        (&below, &["results.jsonl/new: ", "results.jsonl is a file; give a folder"]),
        (&stage.out, &["--resume", "points of fig5, not of fig4; give another --out"]),
    ] {
        let error = checked(out, &figure_4, true).unwrap_err();
        words.iter().for_each(|word| assert_refused(&error, word));
    }
}

/// A sender of which half did not complete although all arrived, as long as the file `healed` is not there.
const LOSSY: &str = r#"[ $payload = 4096 ] && [ ! -e FOLDER/healed ] && { echo '{"kind":"run","window":1024,"batch":32,"posted":256,"completed":128,"received":256,"received_bytes":9,"verified":9,"torn":0,"lost":0,"content_ok":false,"msgs_per_s":1,"payload_gbps":1,"wire_gbps":1,"post_ns":1,"interrupted":false,"error":"128 messages did not complete"}'; exit 1; }"#;

fn lossy(name: &str) -> Stage {
    let folder = std::env::temp_dir().join(format!("xtask-figure-{}-{name}", std::process::id()));
    stage(name, &LOSSY.replace("FOLDER", &folder.display().to_string()))
}

#[test]
fn points_that_are_not_whole_are_drawn_and_then_fail_the_run_with_what_is_missing() {
    let stage = lossy("lossy");
    let error = stage.run(&options(false)).unwrap_err().to_string();
    for words in [
        "4 of 8 points are not whole, the first: cpu-ibverbs at 4096 B, list 1, repetition 0: posted 256, completed 128, \
         received 256 (128 without completion)",
        "load in the minute before the run: ",
        "to measure these again, go on with: cargo xtask figure 5 --no-install --resume --out ",
    ] {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(
        (error.lines().count(), stage.points().iter().filter(|point| !point.is_whole()).count()),
        (1, 4)
    );
    let svg = fs::read_to_string(stage.out.join("post-time.svg")).unwrap();
    assert!(svg.contains("4 points not whole"));
    let summary = fs::read_to_string(stage.out.join("summary.json")).unwrap();
    assert!(summary.contains("rests on 2 points that are not whole"), "{summary}");
}

#[test]
fn a_rate_of_messages_that_were_not_counted_is_no_number() {
    let run = r#"echo '{"kind":"run","window":1,"batch":1,"posted":10,"completed":0,"received":0,"verified":0,"torn":0,"lost":0,"content_ok":false,"msgs_per_s":0,"payload_gbps":0,"wire_gbps":0,"post_ns":25.5,"post":null,"interrupted":false,"error":null}'; exit 1"#;
    let stage = stage("uncounted", run);
    assert!(stage.run(&options(false)).is_err());
    for point in stage.points() {
        let has = |name| point.values.contains_key(name);
        assert!(
            has("post_ns") && !has("msgs_per_s") && !has("payload_gbps") && !has("wire_gbps"),
            "{point:?}"
        );
    }
}

#[test]
fn points_that_are_not_whole_are_measured_again_and_the_newer_line_counts() {
    let stage = lossy("again");
    stage.run(&options(false)).unwrap_err();
    let before = stage.calls();
    // Still not whole: the newest lines count, and none is deleted.
    stage.run(&options(true)).unwrap_err();
    assert_eq!((stage.calls() - before, stage.points().len()), (4, 12));
    let earlier = said(&stage, true).unwrap();
    assert_eq!((earlier.points.len(), earlier.replaced.len()), (4, 8));
    assert!(
        earlier.said[0].starts_with("4 of 8 points were not whole and are measured again"),
        "{earlier:?}"
    );
    fs::write(stage.out.with_file_name("healed"), "").unwrap();
    stage.run(&options(true)).unwrap();
    assert_eq!((stage.calls() - before, stage.points().len()), (8, 16));
    let summary = stage.summary();
    assert_eq!(summary["replaced"].as_array().unwrap().len(), 8);
    assert!(summary["rows"].as_array().unwrap().iter().all(|row| row["content_ok"] == true), "{summary}");
    // And from then on there is nothing to do.
    stage.run(&options(true)).unwrap();
    let earlier = said(&stage, true).unwrap();
    assert_eq!((stage.calls() - before, earlier.points.len(), earlier.said.len()), (8, 8, 0));
}

/// Says to the test below that it is to build.
const BUILDS: &str = "XTASK_TEST_BUILDS";

#[test]
fn a_build_is_announced_and_cargo_s_own_progress_passed_on() {
    if std::env::var_os(BUILDS).is_some() {
        assert!(Programs::build().is_err(), "the stand-in builds nothing");
        return;
    }
    let mut us = one_test("figure::tests::a_build_is_announced_and_cargo_s_own_progress_passed_on");
    let cargo = std::env::temp_dir().join(format!("xtask-figure-{}-cargo", std::process::id()));
    script_file(&cargo, "#!/bin/sh\necho \"   Compiling $*\" >&2\nexit 1\n");
    let said = us.env(BUILDS, "1").env("CARGO", &cargo).output().unwrap();
    fs::remove_file(cargo).unwrap();
    let [out, progress] = [said.stdout, said.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(out.contains("(release), some minutes the first time\n"), "{out}");
    assert!(progress.contains("   Compiling build --release") && !progress.contains("--quiet"), "{progress}");
}

#[test]
fn what_the_generator_refuses_is_refused_in_its_words() {
    let stage = stage("refuses", "echo 'generator: MTU 1024 here, 4096 there' >&2; exit 2");
    let error = stage.run(&options(false)).unwrap_err();
    assert!(error.is::<Refused>() && format!("{error:#}").contains("MTU 1024 here"), "{error:#}");
}

#[test]
fn a_generator_that_dies_names_the_point_and_the_others_are_measured() {
    let stage = stage(
        "dies",
        "here=$(dirname $0); [ $poster = cpu-ibverbs ] && [ ! -e $here/healed ] && kill -SEGV $$",
    );
    let error = format!("{:#}", stage.run(&options(false)).unwrap_err());
    let words = "4 of 8 points are not whole, the first: cpu-ibverbs at 64 B, list 1, repetition 0: ";
    assert!(error.starts_with(words) && error.contains("SIGSEGV"), "{error}");
    let missing: Vec<String> =
        stage.points().into_iter().filter(|point| !point.is_whole()).map(|point| point.series).collect();
    assert_eq!((stage.points().len(), missing), (8, vec!["cpu-ibverbs".to_owned(); 4]));
    fs::write(stage.out.with_file_name("healed"), "").unwrap();
    let before = stage.calls();
    stage.run(&options(true)).unwrap();
    assert_eq!(stage.calls() - before, 4);
}

#[test]
fn an_unknown_figure_is_refused_with_the_ones_there_are() {
    let error = run("fig99", &options(false)).unwrap_err();
    assert_refused(&error, "fig4, fig5");
    // What is taken is refused for the next reason, before anything is built.
    let with = |resume| Options { resume, dry_run: !resume, quick: true, record: true, ..options(false) };
    let refused = |name, resume| run(name, &with(resume)).unwrap_err();
    assert_refused(&refused("bench-nic", true), "--record keeps whole runs");
    assert_refused(&refused("bench-nic", false), "are no transfers");
    assert_refused(&refused("bench-post-gpu", true), "are no transfers");
}

/// A script that starts a program on a fabric of this test.
fn on_softnic(stage: &Stage, name: &str, command: &str) -> PathBuf {
    let built = Programs::release();
    let text = format!(
        "#!/bin/sh\nfor last; do :; done\nprintf '%s\\n' \"$@\" > {folder}/{name}-arguments\n\
         exec {softnic} run --fabric xtask-peer-{id} --link-layer ib -- {command}\n",
        folder = stage.out.with_file_name("").display(),
        softnic = built.softnic.display(),
        id = std::process::id(),
    );
    let path = stage.out.with_file_name(name);
    script_file(&path, &text);
    path
}

#[test]
fn a_card_s_receiver_is_started_over_ssh_and_takes_every_point() {
    let built = Programs::release();
    let both = built.softnic.is_file() && built.generator.is_file();
    measure::need!(both, softnic, "release builds of generator and softnic");
    // Two devices of one fabric stand in for two hosts; the generator and what it is told are real.
    let stage = stage("peer", "");
    fs::create_dir_all(stage.out.join("logs")).unwrap();
    let there = stage.out.with_file_name("the peer's generator");
    std::os::unix::fs::symlink(&built.generator, &there).unwrap();
    let ssh = on_softnic(&stage, "ssh", "/bin/sh -c \"exec $last\"");
    let here = on_softnic(&stage, "here", &format!("{} \"$@\"", built.generator.display()));
    let programs = Programs { generator: here, softnic: "no-softnic-on-a-card".into() };
    let nic = Nic::Card { device: "mlx5_0".into() };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let generator = there.to_str().unwrap();
    let peer = Peer { host: "127.0.0.1", generator, ssh: &ssh, port };
    let mut experiment = small();
    experiment.spec.options.insert("bench_post".into(), false.into());
    execute_on(&nic, Some(peer), &experiment, &options(false), &stage.out, &programs).unwrap();
    let points = stage.points();
    assert_eq!((points.len(), points.iter().all(Point::is_whole)), (8, true));
    let from = &points[0].provenance.nic_options;
    assert_eq!((&from["active_mtu"], &from["link_layer"]), (&4096.into(), &"ib".into()));
    assert!(!from["firmware"].as_str().unwrap().is_empty());
    let said = fs::read_to_string(stage.out.with_file_name("ssh-arguments")).unwrap();
    let words: Vec<&str> = said.lines().collect();
    assert!(words.contains(&"BatchMode=yes") && words[words.len() - 2] == "127.0.0.1", "{said}");
    assert!(words[words.len() - 1].contains("peer'\\''s generator' --listen 0.0.0.0:"), "{said}");
    assert!(!said.contains(&programs.generator.display().to_string()), "{said}");

    // One that ends after three points is followed by another; the point that it ends in may be missing.
    fs::remove_dir_all(&stage.out).unwrap();
    fs::create_dir_all(stage.out.join("logs")).unwrap();
    let three = "/bin/sh -c \"exec $(echo \"$last\" | sed 's/--sessions 0/--sessions 3/')\"";
    let peer = Peer { ssh: &on_softnic(&stage, "ssh", three), ..peer };
    let _ = execute_on(&nic, Some(peer), &experiment, &options(false), &stage.out, &programs);
    let whole = stage.points().iter().filter(|point| point.is_whole()).count();
    assert!(whole > 3, "{whole} points");
    // A peer without our generator is refused with what can be done.
    let peer = Peer { generator: "no-such-generator", ..peer };
    let error =
        execute_on(&nic, Some(peer), &experiment, &options(false), &stage.out, &programs).unwrap_err();
    assert!(format!("{error:#}").contains("--peer-generator"), "{error:#}");
}

#[test]
fn a_dry_run_says_grid_plots_curves_and_claims() {
    for number in [4, 5] {
        let text = dry_run(&experiment(&format!("fig{number}")).unwrap(), &options(false), Path::new("out"))
            .unwrap();
        for part in [
            "points: 2 series",
            // 330 and 660 points of 0.5 s and 0.3 s, and as long again for what each starts.
            if number == 4 { "0.5 s each; about 6 min after the build" } else { "s each; about " },
            "draws: post-time",
            "gpu-l40 (33 points)",
            "post-constant",
            "--poster cpu-shim",
        ] {
            assert!(text.contains(part), "figure {number}: no `{part}` in\n{text}");
        }
        let windows = match number {
            4 => {
                "at most: 64 to 2048 B: 512, 32; 4000 to 4096 B: 256, 32; 7500 to 10000 B: 128, 32; 15000 to 21000 B: 64, 32; 22040 to \
                  40000 B: 8, 4; 60000 B: 4, 2; 65536 B: 16, 8; 100000 to 131072 B: 8, 4; 262144 B: 4, 2; 524288 to 1048576 B: 2, 1\n"
            }
            _ => "at most: 64 to 1048576 B: the generator's own window, 32\n",
        };
        assert!(text.contains(windows) && !text.contains("shaped"), "figure {number}:\n{text}");
    }
    let shaped = Options { rate_gbps: Some(100.0), ..options(false) };
    let text = dry_run(&experiment("fig4").unwrap(), &shaped, Path::new("out")).unwrap();
    let words =
        "link: shaped to 100 Gbit/s of wire bytes; measured.json keeps such a run apart from unshaped ones";
    assert!(text.contains(words) && text.contains("/spec.toml: fills-shaped-link"), "{text}");
}

#[test]
fn a_run_ends_with_the_command_that_shows_it() {
    let out = Some(PathBuf::from("a b"));
    let of = |name, dry_run| shown_by(name, &Options { out: out.clone(), dry_run, ..options(false) });
    let words = "beside the recorded ones: cargo xtask report --add 'a b'";
    assert_eq!(of("fig4", false).as_deref(), Some(words));
    assert_eq!((of("fig4", true), of("bench-nic", false)), (None, None));
    let here = shown_by("fig4", &options(false));
    assert_eq!(here.as_deref(), Some("beside the recorded ones: cargo xtask report"), "it finds them there");
}

/// The test below as the process that is stopped: its folder.
const STAGE: &str = "XTASK_TEST_STAGE";

#[test]
fn a_signal_to_us_alone_ends_what_we_started_and_says_how_to_go_on() {
    if let Some(folder) = std::env::var_os(STAGE).map(PathBuf::from) {
        let programs = Programs { generator: folder.join("generator"), softnic: folder.join("softnic") };
        crate::stop::watch().unwrap();
        let ended = Stage { out: folder.join("out"), programs }.run(&options(false));
        fs::write(folder.join("went-on"), format!("{ended:?}")).unwrap();
        panic!("it was not stopped: {ended:?}");
    }
    // Tests may run under nohup. At execve a handled signal gets its default action; an ignored one stays so.
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Default::default()).unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // Asked to end, it first starts one more child; its children do not end by themselves.
        let bend = r#"here=$(dirname "$0"); [ $payload = 4096 ] && [ ! -e "$here/awake" ] && { deaf() { (trap '' TERM INT HUP; exec sleep 60) > /dev/null 2>&1 & }; trap 'deaf; echo $! >> "$here/asleep"; exit' TERM; deaf; echo $! $$ > "$here/asleep"; wait; }"#;
        let stage = stage(&format!("stopped-{signal}"), bend);
        let folder = stage.out.parent().unwrap();
        let name = "figure::tests::a_signal_to_us_alone_ends_what_we_started_and_says_how_to_go_on";
        let mut us = one_test(name);
        let us = us.env(STAGE, folder).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let asleep = || fs::read_to_string(folder.join("asleep")).unwrap_or_default();
        let since = Instant::now();
        while !asleep().ends_with('\n') {
            assert!(since.elapsed() < WAIT, "the generator did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(Pid::from_raw(us.id().try_into().unwrap()), signal).unwrap();
        let since = Instant::now();
        let ended = us.wait_with_output().unwrap();
        let (after, said) = (since.elapsed(), String::from_utf8_lossy(&ended.stderr).into_owned());
        // Beside the lines of progress.
        let of_the_end = said.lines().filter(|line| !line.contains(" of 8: ")).count();
        assert_eq!((ended.status.code(), of_the_end), (Some(130), 1), "{signal}: {said}");
        let out = stage.out.display();
        let file = format!("finished points are in {out}/results.jsonl");
        let again = format!("go on with: cargo xtask figure 5 --no-install --resume --out {out}");
        assert!(said.contains(&file) && said.contains(&again), "{signal}: {said}");
        assert!(after < WAIT, "{signal}: {after:?}");
        assert_eq!(asleep().split_whitespace().count(), 3, "{signal}: it was not asked to end");
        for process in asleep().split_whitespace() {
            assert!(!is_alive(process.parse().unwrap()), "{signal}: {process} still runs");
        }
        assert!(!folder.join("went-on").exists(), "{signal}: a program's end was taken for a failure");
        assert_eq!(stage.points().len(), 2, "{signal}");
        fs::write(folder.join("awake"), "").unwrap();
        stage.run(&options(true)).unwrap();
        assert_eq!(stage.points().len(), 8, "{signal}");
    }
}
