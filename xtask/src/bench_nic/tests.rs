//! The whole of `bench-nic` with stand-ins: shell scripts that say what generator and perftest say.

use serde_json::Value;

use super::*;
use crate::packages::LIBRARY;
use crate::refused::Refused;

const GENERATOR: &str = r#"#!/bin/sh
case "$*" in
probe*) echo '{"kind":"probe","libraries":{"libibverbs":"1.14.44.0","libmlx5":"1.24.44.0"},"error":null,"devices":[{"name":"mlx5_0","ports":[]}]}';;
bench-post*) echo '{"kind":"bench-post","rows":[{"list":1,"doorbell":"blueflame","order":"strict","ratio":9},{"list":1,"doorbell":"8-bytes","order":"strict","ratio":0.4},{"list":16,"doorbell":"8-bytes","order":"strict","ratio":0.6}]}';;
baseline*) echo '{"kind":"baseline","half_round_trip":{"p50_ns":100},"per_second":1e7,"bytes_per_second":1e10}';;
--listen*) echo '{"kind":"listening","address":"127.0.0.1:1"}';;
*) echo '{"kind":"run","content_ok":true,"msgs_per_s":4e6,"first":{"p99_ns":3e6}}';;
esac
"#;

/// Runs the program, with the recording that is asked for.
const SOFTNIC: &str = r#"#!/bin/sh
while [ "$1" != -- ]; do [ "$1" = --record ] && echo recorded > "$2"; shift; done
shift
exec "$@"
"#;

/// Rows by the kind of tool; its server listens until it is killed or told, which no test waits for.
const NO_TOOL: &str = "#!/bin/sh\n[ \"$1\" = --version ] && echo Version: 6.06\nexit 1\n";

struct Stage {
    folder: PathBuf,
}

fn stage(name: &str, tool: &str) -> Stage {
    let folder = std::env::temp_dir().join(format!("xtask-bench-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let tools = ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_send_lat", "ib_write_lat"];
    let scripts = [
        ("generator", GENERATOR),
        ("softnic", SOFTNIC),
        ("device", "#!/bin/sh\necho \"{\\\"write_ns\\\":$1}\"\n"),
    ];
    for (name, text) in scripts.into_iter().chain(tools.map(|name| (name, tool))) {
        let path = folder.join(name);
        process::script(&path, text);
    }
    fs::write(folder.join(LIBRARY), "").unwrap();
    Stage { folder }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Stage {
    fn run(&self, only: &str, limit: Duration) -> (Result<()>, Value) {
        self.run_with(Options { only: Some(only.into()), ..Options::default() }, limit)
    }

    fn run_with(&self, options: Options, limit: Duration) -> (Result<()>, Value) {
        let options = Options {
            quick: true,
            out: Some(self.folder.join("out")),
            bin: Some(self.folder.clone()),
            ..options
        };
        let revision = Revision { commit: "0123456789".repeat(4), dirty: false };
        let programs = Programs::in_folder(&self.folder).unwrap();
        let result = execute(&options, chosen("bench-nic", &options).unwrap(), &programs, revision, limit);
        let written = fs::read(self.folder.join("out/summary.json")).unwrap();
        (result, serde_json::from_slice(&written).unwrap())
    }
}

/// An aim's verdict.
fn verdict<'a>(summary: &'a Value, id: &str) -> &'a Value {
    let verdicts = summary["verdicts"].as_array().unwrap();
    &verdicts.iter().find(|verdict| verdict["id"] == id).unwrap()["verdict"]
}

/// The points of the last run.
fn points(stage: &Stage) -> Vec<Point> {
    measure::json_lines::read(&stage.folder.join("out/results.jsonl")).unwrap().records
}

#[test]
fn what_was_measured_is_written_with_its_verdicts() {
    let stage = stage("whole", NO_TOOL);
    let (result, summary) = stage.run("8 B writes", LIMIT);
    result.unwrap();
    for aim in ["e-1000-qps", "e-10000-qps"] {
        assert_eq!(verdict(&summary, aim), "reproduced");
    }
    assert_eq!(summary["rows"].as_array().unwrap().len(), 3);
    let from = &summary["provenance"];
    assert_eq!((&from["nic_options"]["pump"], &from["device"]), (&false.into(), &"mlx5_0".into()));
    assert!(from["nic_options"]["cores"].is_string());
    let versions = &from["versions"];
    assert_eq!((&versions["libmlx5"], &versions["perftest"]), (&"1.24.44.0".into(), &"6.06".into()));
    let (result, summary) = stage.run("post", LIMIT);
    result.unwrap();
    // An 8-byte doorbell keeps the aim in the script's numbers, the same doorbell as libmlx5's misses it.
    for (aim, said) in [
        ("post-one", "reproduced"),
        ("post-one-same-doorbell", "not-reproduced"),
        ("post-list", "not-reproduced"),
    ] {
        assert_eq!(verdict(&summary, aim), said, "{aim}");
    }
    // The script says how many bytes its WRITE has.
    let (result, summary) = stage.run("device alone", LIMIT);
    result.unwrap();
    assert_eq!(verdict(&summary, "f-device-8"), "reproduced");
    assert!(points(&stage).iter().any(|point| point.values["value"] == 4096.0));
    let (result, summary) = stage.run("first", LIMIT);
    result.unwrap();
    assert_eq!(verdict(&summary, "d-first-write"), "not-reproduced");
    assert_eq!(points(&stage).len(), 1, "a long wait is taken once");
    let options =
        Options { quick: true, repeat: Some(3), only: Some("write 8 B".into()), ..Options::default() };
    let again = "go on with: cargo xtask bench-nic --quick --repeat 3 --only 'write 8 B' --resume --out OUT";
    assert_eq!(options.again("bench-nic", Path::new("OUT")), again);
}

#[test]
fn a_program_that_fails_is_named_with_its_last_words_and_the_rest_goes_on() {
    // A server that listens, and a client that says why it fails.
    let tool = "#!/bin/sh\necho '-----'; echo 'Failed status 12: wr_id 0' >&2; exit 3\n";
    let stage = stage("fails", tool);
    let (result, summary) = stage.run("64 KiB", LIMIT);
    let error = result.unwrap_err();
    assert!(!error.is::<Refused>(), "exit status 1");
    let error = error.to_string();
    assert!(error.contains("8 of 10 points") && error.contains("Failed status 12: wr_id 0"), "{error}");
    let of =
        |series: &str| points(&stage).into_iter().filter(|point| point.series == series).collect::<Vec<_>>();
    let broken = of("read 64 KiB");
    assert!(broken.iter().all(|point| !point.is_whole() && point.values.is_empty()), "{broken:?}");
    assert!(broken[0].missing.as_ref().unwrap().contains("ended with status 3"), "{broken:?}");
    assert!(of("process_vm_writev 64 KiB").iter().all(|point| point.values["value"] == 10.0));
    assert_eq!(verdict(&summary, "a-write-64k"), "needs-data");
}

#[test]
fn a_run_that_was_cut_goes_on_with_the_points_that_are_missing() {
    let stage = stage("cut", NO_TOOL);
    let asked = |resume| Options { only: Some("8 B writes".into()), resume, ..Options::default() };
    stage.run_with(asked(false), LIMIT).0.unwrap();
    let path = stage.folder.join("out/results.jsonl");
    let whole = fs::read_to_string(&path).unwrap();
    let first = whole.lines().take(2).fold(String::new(), |text, line| text + line + "\n");
    fs::write(&path, &first).unwrap();
    let (result, summary) = stage.run_with(asked(true), LIMIT);
    result.unwrap();
    let now = fs::read_to_string(&path).unwrap();
    assert!(now.starts_with(&first) && now.lines().count() == whole.lines().count(), "{now}");
    assert_eq!(verdict(&summary, "e-1000-qps"), "reproduced");
}

#[test]
fn an_error_quotes_what_a_log_ends_with() {
    let folder = std::env::temp_dir().join(format!("xtask-last-words-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let log = folder.join("log");
    fs::write(&log, "1\none\n----\ntwo\n 8 9 10\nthree\nCompletion with error at client\n\n").unwrap();
    assert_eq!(pair::last_words(&log), "two | three | Completion with error at client");
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(pair::last_words(&log), "it said nothing");
}

#[test]
fn a_program_that_hangs_is_ended_at_its_deadline() {
    let since = std::time::Instant::now();
    let stage = stage("hangs", "#!/bin/sh\nsleep 60\n");
    let (result, _) = stage.run("read 64", Duration::from_millis(200));
    assert!(result.unwrap_err().to_string().contains("read 64 KiB"));
    assert_eq!(points(&stage).len(), 2);
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
}

#[test]
fn a_folder_without_our_programs_is_refused() {
    let stage = stage("empty", NO_TOOL);
    fs::remove_file(stage.folder.join(LIBRARY)).unwrap();
    let error = Programs::in_folder(&stage.folder).unwrap_err();
    assert!(error.is::<Refused>() && error.to_string().contains(LIBRARY), "{error}");
    let options = Options { only: Some("wriet 8 B".into()), ..Options::default() };
    let error = chosen("bench-nic", &options).unwrap_err();
    assert!(error.is::<Refused>() && error.to_string().contains("the nearest is `write 8 B`"), "{error}");
}

#[test]
fn every_number_says_its_source_and_every_aim_names_numbers_that_exist_once() {
    for name in ["bench-nic", "bench-gpu"] {
        let experiment = chosen(name, &Options::default()).unwrap();
        let series = experiment.spec.grid(Extent::Full).series;
        let count = |name: &str| series.iter().filter(|series| *series == name).count();
        for name in &series {
            Source::of(&experiment.spec, name).unwrap();
            assert!(count(name) == 1 && experiment.spec.series[name].unit.is_some(), "{name}");
        }
        for claim in &experiment.spec.claims {
            let experiment::paper::Rule::Bound { by, .. } = &claim.rule else { panic!("{}", claim.id) };
            assert!(claim.series.iter().chain(by).all(|name| count(name) == 1), "{}", claim.id);
        }
        // What holds with the pump is judged without it as well, each under its name.
        for pumped in experiment.spec.claims.iter().filter_map(|claim| claim.id.strip_suffix("-pump")) {
            let plain = experiment.spec.claims.iter().filter(|claim| claim.id == pumped).count();
            assert_eq!(plain, usize::from(pumped != "c-send"), "{pumped}");
        }
    }
}

#[test]
fn the_configuration_differs_in_the_pump_alone() {
    let mut plain = chosen("bench-nic", &Options::default()).unwrap().spec.nic;
    let mut pumped = with_pump(&plain);
    assert_eq!((plain.remove("pump"), pumped.remove("pump")), (Some(false.into()), Some(true.into())));
    assert_eq!(plain, pumped);
}
