//! `bench-post --gpu`: what a GPU spends on posting, as `generator bench-post-gpu` measures it; here its provenance and a file are added.
//!
//! The generator says JSON lines (`apps/generator/README.md`): first its provenance, as far as it knows it, then a row a line. Rows
//! are kept as they are: which styles there are is the generator's matter. `cargo xtask import` puts the file into `experiments/bench-post-gpu`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use measure::{Label, Part, Provenance, json_lines};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::figure::{self, Programs};
use crate::gpu_machine::GpuMachine;
use crate::process::{Ended, run_logged};
use crate::refused::refused;
use crate::setup::{self, Purpose};
use crate::{measured, workspace};

/// Name of the experiment, of its file in `--out`, and of what the generator is asked for.
pub const NAME: &str = "bench-post-gpu";
/// All styles, orders and numbers of producers.
const LIMIT: Duration = Duration::from_secs(9 * 60);

/// What is asked for.
pub struct Options<'a> {
    /// Fewer rounds.
    pub quick: bool,
    /// Where results go.
    pub out: Option<&'a Path>,
    /// Folder with the device headers of the library that is measured beside ours.
    pub peer_headers: Option<&'a Path>,
    /// Install nothing.
    pub no_install: bool,
}

/// One run; `bench-post-gpu.json` holds it, and `measured.json` keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Processor and cores.
    pub machine: String,
    /// What the GPU was: nothing else takes part.
    pub label: Label,
    /// `quick` or `full`.
    pub extent: String,
    /// Where it comes from.
    pub provenance: Provenance,
    /// What the generator says of all rows: payload, rounds, step of the timer.
    pub about: Map<String, Value>,
    /// What was measured, in the generator's words.
    pub rows: Vec<Value>,
}

impl measured::Entry for Run {
    experiment::where_from!();

    fn empty(&self) -> Option<&'static str> {
        match () {
            () if self.rows.is_empty() => Some("has no rows"),
            () if !self.rows.iter().all(|row| row["content_ok"] == true) => {
                Some("has rows whose rings did not hold what was posted")
            }
            () => None,
        }
    }
}

/// Measures, and writes `bench-post-gpu.json`.
pub fn run(options: &Options<'_>) -> Result<()> {
    if let Some(folder) = options.peer_headers.filter(|folder| !folder.is_dir()) {
        return Err(refused(format!("--peer-headers {}: there is no such folder", folder.display())));
    }
    let machine = GpuMachine::ask()?;
    needs_gpu(&machine)?;
    setup::prepare(Purpose::Figure, options.no_install)?;
    figure::build()?;
    let out = options.out.map_or_else(|| workspace::results(NAME), PathBuf::from);
    execute(options, &machine, &Programs::release(), &out)
}

/// Refuses a machine without a GPU, and says what runs there.
fn needs_gpu(machine: &GpuMachine) -> Result<()> {
    match machine.gpu() {
        Some(_) => Ok(()),
        None => Err(refused(format!(
            "bench-post --gpu: no GPU here: {}; it has no twin, whose times would say nothing: without a GPU, `bench-post` times the \
             posts of a processor",
            machine.why_none()
        ))),
    }
}

fn execute(options: &Options<'_>, machine: &GpuMachine, programs: &Programs, out: &Path) -> Result<()> {
    fs::create_dir_all(out.join("logs"))
        .map_err(|error| refused(format!("--out {}: {error}", out.display())))?;
    let lines = out.join(format!("{NAME}.jsonl"));
    // What an earlier run left must not be taken for this one's.
    let _ = fs::remove_file(&lines);
    let mut command = Command::new(&programs.generator);
    command.args([NAME, "--json"]).arg(&lines).args(options.quick.then_some("--quick"));
    if let Some(folder) = options.peer_headers {
        command.arg("--peer-headers").arg(folder);
    }
    command.envs(machine.toolkit.iter().map(|toolkit| (crate::cuda_wheels::VARIABLE, toolkit)));
    let log = out.join("logs").join(format!("{NAME}.log"));
    let ended = run_logged(&mut command, &log, LIMIT)?;
    let said = fs::read_to_string(&log).unwrap_or_default();
    let last = said.lines().last().unwrap_or("it said nothing").to_owned();
    match ended {
        // 1: a row says what went wrong with it.
        Ended::Well | Ended::Status(1) => {}
        Ended::Status(2) => return Err(refused(last)),
        ended => bail!("generator {NAME} {ended:?}: {last} (whole log: {})", log.display()),
    }
    say!("{}", said.trim_end());
    let mut provenance = Provenance::of(workspace::revision(), &[]);
    provenance.versions.insert("profile".into(), workspace::profile()?);
    let (about, rows) =
        read(&lines, &mut provenance).with_context(|| format!("generator {NAME} {ended:?}: {last}"))?;
    machine.name_in(&mut provenance);
    provenance.gpu = Label::Hardware;
    let run = Run {
        machine: provenance.machine.clone(),
        label: provenance.label(&[Part::Gpu]),
        extent: if options.quick { "quick" } else { "full" }.to_owned(),
        provenance,
        about,
        rows,
    };
    let path = out.join(format!("{NAME}.json"));
    let text = serde_json::to_string_pretty(&run).context("writing the results")? + "\n";
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    say!("{} rows; {}", run.rows.len(), experiment::point::standing(run.label, &run.provenance));
    say!("results in {}", out.display());
    let broken = run.rows.iter().filter(|row| row["content_ok"] != true).count();
    if broken > 0 || ended != Ended::Well {
        bail!("{broken} of {} rows went wrong, they say how; such a run is not imported", run.rows.len());
    }
    Ok(())
}

/// Rows of the generator's lines, and what it says of all of them; what its first line says of NIC, link and versions goes into
/// `provenance`. The source and the GPU are known here.
fn read(lines: &Path, provenance: &mut Provenance) -> Result<(Map<String, Value>, Vec<Value>)> {
    let records = json_lines::read::<Map<String, Value>>(lines)?;
    if records.torn_bytes > 0 {
        bail!("{}: its last line was cut", lines.display());
    }
    let mut records = records.records.into_iter();
    let Some(mut about) = records.next().filter(|first| first.get("kind").is_some_and(|kind| kind == NAME))
    else {
        bail!("{}: its first line is no provenance", lines.display());
    };
    let mut said = |name: &str| about.remove(name).unwrap_or_default();
    for (name, label) in [("nic", &mut provenance.nic), ("link", &mut provenance.link)] {
        *label = serde_json::from_value(said(name)).with_context(|| format!("its label `{name}`"))?;
    }
    for (name, version) in said("versions").as_object().into_iter().flatten() {
        let version = version.as_str().map_or_else(|| version.to_string(), str::to_owned);
        provenance.versions.entry(name.clone()).or_insert(version);
    }
    // The rest of its provenance is known better here.
    let known = serde_json::to_value(&*provenance).context("writing provenance")?;
    about.retain(|name, _| known.get(name).is_none() && !["kind", "gpu_device"].contains(&name.as_str()));
    let rows: Vec<Value> = records.map(Value::Object).collect();
    if rows.is_empty() {
        bail!("{}: no row behind the provenance", lines.display());
    }
    Ok((about, rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_machine::example;
    use crate::process;
    use crate::refused::Refused;
    use experiment::measured::Entry;

    fn tried(name: &str, script: &str) -> (Result<()>, PathBuf) {
        let folder = std::env::temp_dir().join(format!("xtask-bench-gpu-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let generator = folder.join("generator");
        process::script(&generator, &format!("#!/bin/sh\nshift 2; json=$1\n{script}\n"));
        let programs = Programs { generator, softnic: folder.join("softnic") };
        let options = Options { quick: true, out: None, peer_headers: None, no_install: true };
        let out = folder.join("out");
        (execute(&options, &example(), &programs, &out), out)
    }

    const FIRST: &str = r#"{"kind":"bench-post-gpu","nic":"none","gpu":"hardware","link":"none","device":"","nic_options":{},
        "machine":"m","cores":1,"versions":{"gpunetio":"3.8.0"},"revision":{"commit":"","dirty":true},"rounds":7}"#;

    fn lines(rows: &[&str]) -> String {
        let first = FIRST.replace('\n', "");
        let line = |line: &str| format!("echo '{line}' >> $json; ");
        line(&first) + &rows.iter().map(|row| line(row)).collect::<String>()
    }

    #[test]
    fn a_machine_without_a_gpu_is_told_what_runs_there() {
        needs_gpu(&example()).unwrap();
        let mut machine = example();
        machine.gpus.clear();
        let error = needs_gpu(&machine).unwrap_err();
        assert!(
            error.is::<Refused>() && error.to_string().contains("without a GPU, `bench-post`"),
            "{error}"
        );
    }

    #[test]
    fn rows_are_kept_with_the_gpu_that_gave_them() {
        let script = lines(&[r#"{"row":"early","content_ok":true,"ns":39}"#]) + "echo done";
        let (result, out) = tried("good", &script);
        result.unwrap();
        let run: Run = serde_json::from_slice(&fs::read(out.join("bench-post-gpu.json")).unwrap()).unwrap();
        assert_eq!((run.label, run.rows.len(), run.empty()), (Label::Hardware, 1, None));
        assert_eq!(run.provenance.gpu_device, "NVIDIA H200, sm_90");
        assert_eq!((&*run.provenance.versions["gpunetio"], run.provenance.nic), ("3.8.0", Label::None));
        assert_eq!(run.about, serde_json::json!({"rounds": 7}).as_object().unwrap().clone());
        fs::remove_dir_all(out.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_row_that_went_wrong_is_kept_and_not_recorded() {
        let script =
            lines(&[r#"{"row":"a","content_ok":true}"#, r#"{"row":"b","content_ok":false}"#]) + "exit 1";
        let (result, out) = tried("row", &script);
        assert!(result.unwrap_err().to_string().contains("1 of 2 rows went wrong"));
        let run: Run = serde_json::from_slice(&fs::read(out.join("bench-post-gpu.json")).unwrap()).unwrap();
        assert!(run.empty().is_some());
        fs::remove_dir_all(out.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_is_no_result_is_said_so() {
        for (name, script, words, is_refused) in [
            (
                "refused",
                "echo 'generator: no right to register a page' >&2; exit 2".to_owned(),
                "no right",
                true,
            ),
            ("crashed", "echo 'half way'; exit 3".into(), "Status(3): half way", false),
            ("failed", "echo 'the context is lost'; exit 1".into(), "context is lost: ", false),
            ("nothing", "true".into(), "first line is no provenance", false),
            (
                "rows",
                "echo '{\"kind\":\"bench-post-gpu-row\"}' > $json".into(),
                "first line is no provenance",
                false,
            ),
            ("empty", lines(&[]), "no row", false),
            ("torn", lines(&[]) + "printf '{\"ro' >> $json", "was cut", false),
            ("label", lines(&[]).replace("\"nic\":\"none\"", "\"nic\":\"maybe\""), "its label `nic`", false),
        ] {
            let (result, out) = tried(name, &script);
            let error = result.unwrap_err();
            assert!(format!("{error:#}").contains(words), "{name}: {error:#}");
            assert_eq!(error.is::<Refused>(), is_refused, "{name}");
            assert!(!out.join("bench-post-gpu.json").exists(), "{name}");
            fs::remove_dir_all(out.parent().unwrap()).unwrap();
        }
    }
}
