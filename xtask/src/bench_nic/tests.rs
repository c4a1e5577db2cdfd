//! The whole of `bench-nic` with stand-ins for its programs: shell scripts that say what generator and perftest say.

use super::*;
use crate::bench_nic::measures::{AIMS, Verdict};
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

/// Rows by the kind of tool; its server listens until it is killed or told, which no test waits for.
const NO_TOOL: &str = "#!/bin/sh\nexit 3\n";

struct Stage {
    folder: PathBuf,
}

fn stage(name: &str, tool: &str) -> Stage {
    let folder = std::env::temp_dir().join(format!("xtask-bench-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let tools = ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_send_lat", "ib_write_lat"];
    let scripts = [("generator", GENERATOR), ("softnic", "#!/bin/sh\nshift 6\nexec \"$@\"\n")];
    for (name, text) in scripts.into_iter().chain(tools.map(|name| (name, tool))) {
        let path = folder.join(name);
        process::script(&path, text);
    }
    fs::write(folder.join("libsoftnic_preload.so"), "").unwrap();
    Stage { folder }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Stage {
    fn run(&self, only: &str, limit: Duration) -> (Result<Run>, Run) {
        let options = Options {
            quick: true,
            out: Some(self.folder.join("out")),
            only: Some(only.into()),
            bin: Some(self.folder.clone()),
            ..Options::default()
        };
        let revision = Revision { commit: "0123456789".repeat(4), dirty: false };
        let programs = Programs::in_folder(&self.folder).unwrap();
        let result = execute(&options, &chosen(&options).unwrap(), &programs, revision, limit);
        let written = fs::read(self.folder.join("out/bench-nic.json")).unwrap();
        (result, serde_json::from_slice(&written).unwrap())
    }
}

#[test]
fn what_was_measured_is_written_with_its_verdicts() {
    let stage = stage("whole", NO_TOOL);
    let (result, _) = stage.run("8 B writes", LIMIT);
    let run = result.unwrap();
    assert_eq!(run.aims.len(), 2);
    for aim in &run.aims {
        assert_eq!((aim.measured, aim.verdict), (Some(1.0), Verdict::Met));
    }
    assert_eq!(run.provenance.nic_options["pump"], false);
    assert_eq!(run.provenance.device, "mlx5_0");
    assert_eq!(run.provenance.versions["libmlx5"], "1.24.44.0");
    let (_, run) = stage.run("post", LIMIT);
    let verdicts: Vec<Verdict> = run.aims.iter().map(|aim| aim.verdict).collect();
    assert_eq!(verdicts, [Verdict::Met, Verdict::NotMet]);
    let (_, run) = stage.run("first", LIMIT);
    assert_eq!((run.aims[0].measured, run.aims[0].verdict), (Some(3.0), Verdict::NotMet));
}

#[test]
fn a_program_that_fails_is_named_and_the_rest_goes_on() {
    let (result, run) = stage("fails", NO_TOOL).run("64 KiB", LIMIT);
    let error = result.unwrap_err();
    assert!(!error.is::<Refused>(), "exit status 1");
    let error = error.to_string();
    assert!(error.contains("4 of 5 numbers") && error.contains("read 64 KiB"), "{error}");
    assert!(!error.contains("process_vm_writev"), "{error}");
    assert_eq!(run.numbers[0].values, [None, None]);
    assert!(run.numbers[0].errors[0].contains("Status(3)"), "{:?}", run.numbers[0].errors);
    assert_eq!(run.numbers[1].median, Some(10.0));
    assert_eq!(run.aims[0].verdict, Verdict::NotMeasured);
}

#[test]
fn a_program_that_hangs_is_ended_at_its_deadline() {
    let since = std::time::Instant::now();
    let (result, run) = stage("hangs", "#!/bin/sh\nsleep 60\n").run("read 64", Duration::from_millis(200));
    assert!(result.unwrap_err().to_string().contains("read 64 KiB"));
    assert_eq!(run.numbers[0].errors.len(), 2, "{run:?}");
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
}

#[test]
fn a_folder_without_our_programs_is_refused() {
    let stage = stage("empty", NO_TOOL);
    fs::remove_file(stage.folder.join("libsoftnic_preload.so")).unwrap();
    let error = Programs::in_folder(&stage.folder).unwrap_err();
    assert!(error.is::<Refused>() && error.to_string().contains("libsoftnic_preload.so"), "{error}");
    let options = Options { only: Some("nothing".into()), ..Options::default() };
    assert!(chosen(&options).unwrap_err().is::<Refused>());
}

/// What another machine's whole run brings: every number once.
fn full(of: &Run) -> Run {
    let mut run = Run { extent: "full".into(), ..of.clone() };
    run.numbers = MEASURES.iter().map(Number::of).collect();
    for number in &mut run.numbers {
        [2.0, 1.0, 9.0].into_iter().for_each(|value| number.add(Ok(value)));
    }
    run.provenance.cores = 16;
    run.aims = judge(&run.numbers, 16);
    run
}

const SMALL_WRITES: &str = "(b) WRITE 8 B, messages/s";

fn small_writes(run: &mut Run) -> &mut table::Judged {
    run.aims.iter_mut().find(|aim| aim.name == SMALL_WRITES).unwrap()
}

#[test]
fn another_machine_s_run_is_recorded_when_it_is_whole_and_names_its_source() {
    let stage = stage("record", NO_TOOL);
    let (_, two_of_all) = stage.run("8 B writes", LIMIT);
    let whole = full(&two_of_all);
    let (file, path) = (stage.folder.join("run.json"), stage.folder.join("measured.json"));
    let record = |run: &Run| {
        fs::write(&file, serde_json::to_string(run).unwrap()).unwrap();
        record_from(&file, &path)
    };
    record(&whole).unwrap();
    let kept = fs::read_to_string(&path).unwrap();
    type Bend = fn(&mut Run);
    let refusals: [(Bend, &str); 10] = [
        (|run| run.provenance.revision.dirty = true, "no clean revision"),
        (|run| run.extent = "quick".into(), "is a quick run; measure again, without --quick"),
        (|run| run.numbers.truncate(2), "exactly once"),
        (|run| run.numbers[1] = run.numbers[0].clone(), "exactly once"),
        (|run| run.numbers.push(run.numbers[0].clone()), "exactly once"),
        (|run| run.numbers[0].add(Err(anyhow::anyhow!("no"))), "not measured"),
        (|run| run.numbers[0].values[1] = None, "not measured"),
        (|run| run.numbers[3].median = Some(2.1), "median"),
        (|run| small_writes(run).verdict = Verdict::Met, "`(b) WRITE 8 B, messages/s`"),
        (|run| small_writes(run).measured = Some(4e6), "`(b) WRITE 8 B, messages/s`"),
    ];
    let bent = refusals.map(|(bend, why)| {
        let mut run = whole.clone();
        bend(&mut run);
        (run, why)
    });
    for (run, why) in bent.into_iter().chain([(two_of_all, "is a quick run")]) {
        let error = record(&run).unwrap_err();
        let said = error.to_string();
        assert!(error.is::<Refused>() && said.contains(why) && said.lines().count() == 1, "{why}: {said}");
        assert_eq!(fs::read_to_string(&path).unwrap(), kept, "{why}");
    }
    fs::write(&file, "{}").unwrap();
    assert!(record_from(&file, &path).unwrap_err().to_string().contains("no bench-nic.json"));
    // Written before an aim came, and while another was lower; printed with fewer digits.
    let mut older = whole;
    older.aims.remove(0);
    small_writes(&mut older).aim = "≥ 1".into();
    small_writes(&mut older).verdict = Verdict::Met;
    older.numbers[0].median = Some(2.000_000_000_1);
    record(&older).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(measured::problems::<Run>(&text), [""; 0]);
    let entries: serde_json::Value = serde_json::from_str(&text).unwrap();
    let aims = entries["entries"][0]["aims"].as_array().unwrap();
    let verdict = aims.iter().find(|aim| aim["name"] == SMALL_WRITES).map(|aim| &aim["verdict"]);
    assert_eq!((aims.len(), verdict), (AIMS.len(), Some(&"not-met".into())));
}

#[test]
fn the_configuration_differs_in_the_pump_alone() {
    let (mut plain, mut pumped) = (nic_toml(false), nic_toml(true));
    assert_eq!((plain.remove("pump"), pumped.remove("pump")), (Some(false.into()), Some(true.into())));
    assert_eq!(plain, pumped);
    assert!(AIMS.len() < MEASURES.len());
}
