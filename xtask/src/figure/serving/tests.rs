//! Figure 7 with stand-ins: a server that works as long as it is told to, and a client that prints its lines.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use experiment::resume;
use measure::{Label, Provenance};

use super::*;
use crate::figure::nic::Nic;
use crate::figure::nodes::Nodes;
use crate::figure::place::Place;
use crate::gpu_machine::GpuMachine;
use crate::process::script;
use crate::testbed::hosts;
use crate::workspace::root;

/// `softnic run OPTIONS -- COMMAND`, and what it says of a NIC's counters.
const SOFTNIC: &str = r#"#!/bin/sh
[ $1 = ctl ] && { echo '{"counters":{"cqes":1,"turnarounds":7}}'; exit; }
until [ $1 = -- ]; do shift; done
shift
exec "$@"
"#;
/// `generator probe`
const GENERATOR: &str = r#"#!/bin/sh
echo '{"kind":"probe","libraries":{"libmlx5":"1.24.44.0"},"devices":[{"name":"mlx5_0"},{"name":"mlx5_3","firmware":"28.1"}]}'
"#;
const PROBE: &str = r#"#!/bin/sh
[ "$*" = --json ] && [ $(cat /proc/$PPID/comm) = timeout ] &&
    exec echo '{"gpus":[{"name":"A","arch":"sm_80","bus":"0"}],"missing":[]}'
mj=7; while [ "$*" = "--energy 0" ] && read -r asked; do mj=$((mj+2500)); echo "{\"kind\":\"answer\",\"energy_mj\":$mj}"; done
"#;
/// Works all the time if told to spin, and ends by SIGTERM. The client waits until it has worked for 0.4 s.
const SERVER: &str = r#"#!/bin/sh
trap 'echo "{\"kind\":\"served\"}"; exit 0' TERM
trap 'echo "{\"kind\":\"status\"}"' USR1
echo "$@" >> FOLDER/server-options
echo $0 >> FOLDER/server-program
echo $$ > FOLDER/server
rm -f FOLDER/spins
echo '{"kind":"listening","address":"127.0.0.1:1"}'
case "$*" in
*'--sleep spin'*) touch FOLDER/spins; while :; do :; done ;;
*) while :; do sleep 0.05; done ;;
esac
"#;
const CLIENT: &str = r#"#!/bin/sh
echo "$@" >> FOLDER/client-options
echo $0 >> FOLDER/client-program
echo '{"kind":"live","seconds":1.0}'
sleep 1
server=$(cat FOLDER/server)
used() { set -- $(cat /proc/$server/stat) && echo $((${14} + ${15})); }
if [ -e FOLDER/spins ]; then
  goal=$(($(used) + 40))
  while [ $(used) -lt $goal ]; do sleep 0.1; done
fi
echo '{"kind":"live","seconds":2.0}'
echo '{"kind":"run","sent":40,"answered":40,"wrong":0,"lost":0,"duplicate":0,"refused":{},"reference":true,"latency":{"p50_ns":1500000,"p99_ns":2500000},"answers_per_second":20.5}'
"#;

/// Writes a reference. Otherwise it has a tenth less of its rate beside a server.
const PROFILER: &str = r#"#!/bin/sh
[ $1 = reference ] && echo $2 >> FOLDER/references
rate=1000
[ -e FOLDER/server ] && kill -0 $(cat FOLDER/server) 2> FOLDER/kill && rate=900
while [ $# -gt 0 ]; do [ $1 = --out ] && echo reference > "$2"; [ $1 = --json ] && echo "{\"runs_per_s\":$rate}" > "$2"; shift; done
exit 0
"#;

fn fig7() -> Experiment {
    Experiment::read(&root().join("experiments"), "fig7").unwrap()
}

pub fn how(out: PathBuf, extent: Extent) -> resume::Options {
    resume::Options { extent, resume: true, record: false, out, again: "again".into() }
}

impl ServerFigure {
    /// By the stand-ins in a folder.
    pub fn of_tests(folder: &Path, how: resume::Options, machine: Machine) -> ServerFigure {
        let here = match machine {
            Machine::Gpu => crate::gpu_machine::example(),
            Machine::Twin => GpuMachine::default(),
        };
        let (programs, options) = (Programs::of(folder), Options::default());
        ServerFigure { how, machine, here, programs, options, _locked: None }
    }
}

pub struct Stage(pub PathBuf);

impl Stage {
    pub fn new(name: &str, bend: impl Fn(&str) -> String) -> Stage {
        let folder = std::env::temp_dir().join(format!("xtask-fig7-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("out")).unwrap();
        let programs = Programs::of(&folder);
        for (path, text) in [
            (&programs.softnic, SOFTNIC),
            (&programs.server, SERVER),
            (&programs.client, CLIENT),
            (&programs.profiler, PROFILER),
            (&folder.join("generator"), GENERATOR),
        ] {
            script(path, &bend(text).replace("FOLDER", &folder.display().to_string()));
        }
        Stage(folder)
    }

    /// Quick runs of the lines `event` and `spin`, and of what polling takes; by the twin of `event` alone.
    fn run(&self, machine: Machine) -> Result<Value> {
        let mut experiment = fig7();
        experiment.spec.keep(|series| !series.contains("block"));
        let figure = self.figure(machine);
        // Which says a line each second.
        let smi = self.0.join("nvidia-smi");
        script(&smi, "#!/bin/sh\nwhile :; do echo '1980, 2619, 70'; sleep 0.05; done\n");
        let gpu = match machine {
            Machine::Gpu => Gpu::by(Command::new(smi), Command::new("true"), "0000:17:00.0"),
            Machine::Twin => Gpu::of_run(false),
        };
        execute(&experiment, &figure, gpu)?;
        Ok(serde_json::from_str(&fs::read_to_string(figure.how.out.join("summary.json"))?)?)
    }

    fn figure(&self, machine: Machine) -> ServerFigure {
        ServerFigure::of_tests(&self.0, how(self.0.join("out"), Extent::Quick), machine)
    }

    /// A quick run of the line `event` on this NIC.
    fn run_on(&self, nic: Nic, machine: Machine) -> Result<()> {
        let (experiment, figure) = (fig7(), self.figure(machine));
        let (mut grid, _) = grid(&experiment.spec, Extent::Quick, Machine::Gpu);
        grid.series.retain(|series| series.contains("event") || series.contains(STEALS));
        fs::create_dir_all(figure.how.out.join("logs")).unwrap();
        let bench = ServerBench::of(&figure, &experiment.spec, nic)?;
        execute_on(&bench, &experiment, (&grid, &[]), Gpu::of_run(false))
    }

    fn asked(&self, end: &str) -> String {
        fs::read_to_string(self.0.join(format!("{end}-options"))).unwrap()
    }

    /// Models whose references were made, in their order.
    pub fn references(&self) -> Vec<String> {
        let made = fs::read_to_string(self.0.join("references")).unwrap_or_default();
        made.lines().map(str::to_owned).collect()
    }

    pub fn points(&self) -> Vec<Point> {
        measure::json_lines::read(&self.0.join("out/results.jsonl")).unwrap().records
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

fn verdict(summary: &Value, id: &str) -> Value {
    let all = summary["verdicts"].as_array().unwrap();
    all.iter().find(|one| one["id"] == id).unwrap_or_else(|| panic!("{id}"))["verdict"].clone()
}

#[test]
fn a_server_that_spins_is_told_from_one_that_sleeps() {
    let stage = Stage::new("gpu", str::to_owned);
    let summary = stage.run(Machine::Gpu).unwrap();
    let points = stage.points();
    let of = |series: &str, value: &str| {
        points.iter().find(|point| point.series == series).unwrap().values.get(value).copied().unwrap()
    };
    let [event, spin] = ["gpu-event-squeezenet-1.1", "gpu-spin-squeezenet-1.1"];
    let own = |series: &str| {
        let point = points.iter().find(|point| point.series == series).unwrap();
        point.detail["cpu_seconds"]["serving"]["own"].as_f64().unwrap()
    };
    assert!(own(spin) >= 0.3 && own(event) < 0.3, "{} {}", own(event), own(spin));
    assert!(of(spin, "serving_cores") > 0.0);
    assert_eq!(
        (of(event, "nic_cores"), of(event, "p50_us"), of(event, "answers_per_s")),
        (0.0, 1500.0, 20.5)
    );
    let asleep = points.iter().filter(|point| point.values.contains_key("woken_ms"));
    assert!(asleep.map(|point| point.series.as_str()).eq([event]));
    assert!(of(event, "stopped_ms") > 0.0 && of(spin, "stopped_ms") > 0.0);
    let thread = |series: &str| {
        let values = &points.iter().find(|point| point.series == series).unwrap().values;
        values.iter().find(|(name, _)| name.starts_with("thread ")).map(|(_, cores)| *cores)
    };
    assert!(thread(spin).is_some_and(|cores| cores > 0.0) && thread(event).is_some());
    assert!(of(event, "serving_s") >= 0.9 && of(event, "end_s") < 30.0);
    assert!(of(event, "switches_per_s") > 0.0, "it wakes up to sleep again");
    assert_eq!(of(event, "gpu_watts"), 70.0);
    for id in ["few-wakes", "few-wakes-of-ours"] {
        assert_ne!(verdict(&summary, id), json!({ "needs-hardware": ["gpu"] }));
    }
    let drawn = |point: &&Point| point.detail["cores"].as_array().is_some_and(|cores| cores.len() >= 2);
    assert_eq!(points.iter().filter(drawn).count(), 2, "{points:?}");
    let drawn = fs::read_to_string(stage.0.join("out/spin-squeezenet-1_1.svg")).unwrap();
    assert!(
        drawn.contains("run 1")
            && drawn.contains("cudaDeviceSynchronize")
            && !drawn.contains("interruptible")
    );
    let asked = fs::read_to_string(stage.0.join("server-options")).unwrap();
    assert!(asked.lines().all(|options| options.contains("--warmup 1 ")), "{asked}");
    let lines: Vec<&str> = asked.lines().collect();
    assert!(
        lines[0].contains("--mode gpu-graph --machine gpu --sleep event --model squeezenet-1.1"),
        "{asked}"
    );
    assert!(lines.len() == 3 && lines[1].contains("--sleep spin"), "{asked}");
    assert_eq!(stage.references(), ["squeezenet-1.1"], "once a model");
    let versions = &points[0].provenance.versions;
    assert_eq!(versions["libmlx5"], "1.24.44.0");
    let made = &versions["reference-squeezenet-1.1"];
    let digest = ::zoo::Digest::of(b"reference\n").to_string();
    assert!(made.starts_with("engine ") && made.ends_with(&format!(", sha256 {digest}")), "{made}");
    let clients = fs::read_to_string(stage.0.join("client-options")).unwrap();
    let file = stage.0.join("out/reference-squeezenet-1.1.f32");
    let compared = format!("--reference {} --tolerance 1e-3", file.display());
    assert!(
        clients.lines().count() == 2 && clients.lines().all(|line| line.contains(&compared)),
        "{clients}"
    );
    let stolen = of("gpu-steals-squeezenet-1.1", "stolen");
    assert!((stolen - 0.1).abs() < 1e-9 && lines[2].contains("--sleep event"), "{stolen} {asked}");
    assert_eq!(verdict(&summary, "polling-takes"), "reported");
    assert!(fs::read_to_string(stage.0.join("client-options")).unwrap().contains("--seconds 6 "));
    // What is there is not measured again.
    stage.run(Machine::Gpu).unwrap();
    assert_eq!(stage.points().len(), 3);
}

#[test]
fn a_run_goes_on_whose_series_have_times_of_their_own() {
    let stage = Stage::new("times", str::to_owned);
    let mut experiment = fig7();
    let two = ["gpu-event-squeezenet-1.1", "gpu-steals-squeezenet-1.1"];
    experiment.spec.keep(|series| two.contains(&series));
    let mut grid = experiment.spec.grid(Extent::Normal);
    (grid.repeat, grid.seconds) = (1, 0.5);
    experiment.spec.set_grid(grid);
    let how = how(stage.0.join("out"), Extent::Normal);
    let figure = ServerFigure::of_tests(&stage.0, how, Machine::Gpu);
    for _ in 0..2 {
        execute(&experiment, &figure, Gpu::of_run(false)).unwrap();
    }
    let seconds: Vec<f64> = stage.points().iter().map(|point| point.seconds).collect();
    assert_eq!(seconds, [0.5, 5.0]);
    assert!(stage.points().iter().all(|point| point.took_s > Some(0.0)), "{:?}", stage.points());
}

#[test]
fn by_the_twin_nothing_is_judged_and_the_label_says_so() {
    let stage = Stage::new("twin", str::to_owned);
    let summary = stage.run(Machine::Twin).unwrap();
    assert_eq!(summary["label"], "emulated");
    assert_eq!(stage.points().len(), 1, "the twin has one line");
    for id in ["cpu-100", "cpu-0", "few-wakes", "no-perf-cost"] {
        assert_eq!(verdict(&summary, id), json!({ "needs-hardware": ["gpu"] }), "{id}");
    }
    assert!(stage.points().iter().all(|point| point.provenance.gpu == Label::Emulated));
    assert!(stage.points().iter().all(|point| !point.values.contains_key("gpu_watts")));
    assert!(fs::read_to_string(stage.0.join("server-options")).unwrap().contains("--machine twin"));
}

#[test]
fn between_hosts_each_end_has_its_own_files_and_the_servers_threads_are_read_there() {
    let stage = Stage::new("nodes", str::to_owned);
    let ssh = stage.0.join("ssh");
    // As ssh does: what follows the options and the host goes to a shell.
    script(&ssh, &format!("#!/bin/sh\nshift 5; PATH={}:$PATH; exec sh -c \"$*\"\n", stage.0.display()));
    let smi = stage.0.join("nvidia-smi");
    // It does not end by itself: what starts it there ends it.
    let ends = "grep -qa 'exec 3<&0' /proc/$PPID/cmdline || exit";
    script(&smi, &format!("#!/bin/sh\n{ends}\nwhile :; do echo '1980, 2619, 70'; sleep 0.05; done\n"));
    for name in ["a", "b"] {
        fs::create_dir_all(stage.0.join(name)).unwrap();
        std::os::unix::fs::symlink(&stage.0, stage.0.join(name).join("bin")).unwrap();
    }
    let host = |name: &str| {
        let prefix = stage.0.join(name);
        let path = |path: PathBuf| path.display().to_string().into();
        let own = [
            ("name", name.into()),
            ("ssh", path(ssh.clone())),
            ("prefix", path(prefix)),
            ("port", "7".into()),
        ];
        serde_json::from_str(&hosts::tests::line(&own)).unwrap()
    };
    let nodes = || {
        let nodes = Nodes::new([host("a"), host("b")], ["server", "client"], None);
        Nic::Nodes(Box::new(nodes.tuned(Some("a: mtu".into()))))
    };
    let probe = stage.0.join("gpu-probe");
    script(&probe, "#!/bin/sh\necho '{\"gpus\":[],\"missing\":[\"no CUDA driver\"]}'\n");
    let error = stage.run_on(nodes(), Machine::Gpu).unwrap_err();
    let words = "fig7: no GPU on a: no CUDA driver; --machine twin tries the command";
    let status = error.downcast_ref::<crate::refused::Refused>().map(|refused| refused.status);
    assert!(status == Some(crate::refused::NO_GPU) && error.to_string().starts_with(words), "{error:#}");
    // It is asked by what ends it there, but for the energy.
    script(&probe, PROBE);
    stage.run_on(nodes(), Machine::Gpu).unwrap();
    for (end, program) in [("server", "a/bin/inference-server"), ("client", "b/bin/doorbell-client")] {
        let started = fs::read_to_string(stage.0.join(format!("{end}-program"))).unwrap();
        assert_eq!(started.trim_end(), stage.0.join(program).display().to_string());
    }
    let (server, client) = (stage.asked("server"), stage.asked("client"));
    let at = |host: &str, file: &str| format!("{}/{host}/data/{file}", stage.0.display());
    let words = format!("--listen 192.0.2.1:7 --manifests {} --nic mlx5_0", at("a", "models"));
    assert!(server.trim_end().ends_with(&words) && !server.contains("--store"), "{server}");
    let reference = at("b", "reference-squeezenet-1.1.f32");
    let words =
        format!("--manifests {} --reference {reference} --tolerance 1e-3 --nic mlx5_0", at("b", "models"));
    assert!(client.starts_with("--connect 127.0.0.1:1 ") && client.trim_end().ends_with(&words), "{client}");
    let [point] = <[Point; 1]>::try_from(stage.points()).unwrap();
    assert_eq!(point.series, "gpu-event-squeezenet-1.1", "no steals");
    let has = |name: &str| point.values.contains_key(name);
    assert!(has("switches_per_s") && has("end_s") && !has("woken_ms") && !has("stopped_ms"), "{point:?}");
    assert!(point.values.keys().any(|name| name.starts_with("thread ")), "{:?}", point.values);
    let Provenance { gpu_device, hosts, nic, gpu, versions, .. } = &point.provenance;
    assert_eq!(versions["host_settings"], "a: mtu");
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!((gpu_device.as_str(), names), ("A, sm_80", vec!["a", "b"]));
    assert_eq!((*nic, *gpu), (Label::Emulated, Label::Hardware));
    let (experiment, figure) = (fig7(), stage.figure(Machine::Gpu));
    let bench = ServerBench::of(&figure, &experiment.spec, nodes()).unwrap();
    let (mut server, _) = bench.listening(&[], &figure.log("asked")).unwrap();
    // That of this machine is not asked.
    let counters = server.process.nic_counters(Path::new("/no/such/softnic")).unwrap();
    assert_eq!(counters["turnarounds"], 7);
    bench::end(&mut server).unwrap();
    script(&stage.0.join("inference-server"), "#!/bin/sh\necho 'Address already in use' >&2; exit 1\n");
    let error = bench.listening(&[], &figure.log("taken")).err().unwrap();
    let remedy = "; end what has port 7 on a, or set experiment_port in the inventory";
    assert!(!error.is::<crate::refused::Refused>() && error.to_string().ends_with(remedy), "{error:#}");
    let samples = point.samples.unwrap();
    assert!(
        samples.absent.contains_key("programs_cores") && !samples.absent.contains_key("nic"),
        "{samples:?}"
    );
    assert_eq!(samples.counts["server.gpu_joules"], 2.5);
    assert_eq!(samples.gauges["server.gpu_watts"], [70.0; 3]);
    assert!(["server.cpu_cores", "client.cpu_cores"].iter().all(|name| samples.gauges.contains_key(*name)));
}

#[test]
fn on_a_card_of_this_host_both_ends_use_it_and_no_software_nic() {
    let stage = Stage::new("card", str::to_owned);
    script(&stage.0.join("softnic"), "#!/bin/sh\nexit 7\n");
    stage.run_on(Nic::Card { device: "mlx5_3".into() }, Machine::Gpu).unwrap();
    for end in ["server", "client"] {
        let asked = stage.asked(end);
        assert!(asked.lines().all(|options| options.ends_with(" --nic mlx5_3")), "{asked}");
    }
    let points = stage.points();
    let Provenance { nic, link, device, nic_options, .. } = &points[0].provenance;
    // Packets do not leave the card.
    assert_eq!((*nic, *link, device.as_str()), (Label::Hardware, Label::None, "mlx5_3"));
    assert_eq!(nic_options["firmware"], "28.1");
    assert!(points.len() == 2 && points[0].values.contains_key("woken_ms"), "{points:?}");
}

#[test]
fn what_goes_wrong_is_named_with_its_log() {
    for (name, from, to, words, refused) in [
        ("refused", "rm -f FOLDER/spins\n", "echo 'server: no --sleep' >&2; exit 2\n", "no --sleep", true),
        ("died", "sleep 1\n", "exit 3\n", "the client", false),
        ("status", "exit 0' TERM", "exit 5' TERM", "the server ended with status 5", false),
        // The client ends with 1 then.
        ("lost", "\"lost\":0", "\"lost\":4", "4 lost of 40 requests", false),
        ("refusals", "{},\"reference\"", "{\"stopping\":3},\"reference\"", "3 refused of 40 requests", false),
        ("compared", "\"reference\":true", "\"reference\":false", "no answer was compared", false),
        ("reference", "echo reference >", "cat <", "the profiler", false),
    ] {
        let stage = Stage::new(name, |text| match text.replace(from, to) {
            bent if bent.contains("\"run\"") && bent != text => format!("{bent}exit 1\n"),
            bent => bent,
        });
        let error = stage.run(Machine::Twin).unwrap_err();
        let said = format!("{error:#}");
        assert!(said.contains(words), "{name}: {said}");
        assert_eq!(error.is::<crate::refused::Refused>(), refused, "{name}: {said}");
    }
}

#[test]
fn a_dry_run_says_lines_models_and_times() {
    let experiment = fig7();
    let of = |options: &Options| dry_run(&experiment, options).unwrap();
    let whole = of(&Options { nic: Some("mlx5_7".into()), ..Options::default() });
    for words in [
        "37 points: 9 series × 5 repetitions at most, 1405 s of serving",
        "--mode gpu-while --machine gpu --sleep event --model squeezenet-1.1",
        "--mode gpu-persistent --machine gpu --sleep event --model super-resolution-x1",
        "gpu-event-squeezenet-1.1, 60 s",
        "nic: mlx5_7;",
        "gpu-spin-super-resolution-x1, 30 s",
        "--sleep block",
        "--seconds 61",
        "judges 6 claims of experiments/fig7/paper.toml: cpu-100, ",
        "judges 8 claims of experiments/fig7/spec.toml: block-alone, ",
    ] {
        assert!(whole.contains(words), "{words}: {whole}");
    }
    let between = of(&Options { place: Some(Place::Netns), ..Options::default() });
    for words in ["32 points: 8 series", "left out: gpu-steals-squeezenet-1.1\n"] {
        assert!(between.contains(words), "{words}: {between}");
    }
    let quick = of(&Options { quick: true, machine: Some(Machine::Twin), ..Options::default() });
    for words in [
        "1 points: 1 series × 1 repetitions at most, 5 s",
        "left out: gpu-block",
        "--machine twin",
        "no claim",
    ] {
        assert!(quick.contains(words), "{words}: {quick}");
    }
    let lines = experiment.spec.grid(Extent::Normal).keys();
    let first: Vec<&str> = lines.iter().take(3).map(|key| key.series.as_str()).collect();
    assert_eq!(
        first,
        ["gpu-event-squeezenet-1.1", "gpu-block-squeezenet-1.1", "gpu-spin-squeezenet-1.1"],
        "in turns"
    );
    assert!(
        (BEGIN + END + Duration::from_secs(61) + SILENCE + bench::REFERENCE) < Duration::from_secs(9 * 60)
    );
}
