//! The demo by stand-ins that say what the programs say, and by the programs that cargo built beside.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::descendants::{descendants, is_alive};
use crate::packages::LIBRARY;
use crate::process::script;

/// `softnic run --fabric NAME -- COMMAND`
const SOFTNIC: &str = "#!/bin/sh\nshift 4\nexec \"$@\"\n";
/// Writes the file that it is told to.
const PROFILER: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do [ $1 = --out ] && echo reference > "$2"; shift; done
"#;
const SERVER: &str = r#"#!/bin/sh
echo '{"kind":"listening","address":"127.0.0.1:1"}'
while [ ! -e FOLDER/asked ]; do sleep 0.01; done
echo '{"kind":"served","answered":40}'
"#;
const CLIENT: &str = r#"#!/bin/sh
echo '{"kind":"live","seconds":1.0,"rate":20,"p50_ms":1.5,"p99_ms":2.5,"answered":20,"wrong":0,"lost":0,"late":0,"duplicate":0}'
echo '{"kind":"run","sent":40,"answered":40,"wrong":0,"first_wrong":null,"lost":0,"late":0,"duplicate":0,"refused":{},"reference":true,"nic":"emulated","link":"emulated","latency":{"p50_ns":1500000,"p99_ns":2500000},"answers_per_second":20.5,"error":null}'
touch FOLDER/asked
"#;

struct Stage(PathBuf);

impl Stage {
    fn new(name: &str) -> Stage {
        let folder = std::env::temp_dir().join(format!("xtask-demo-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("out/logs")).unwrap();
        Stage(folder)
    }

    /// Stand-ins; the client's and the server's text may be bent.
    fn stand_ins(&self, bend: impl Fn(String) -> String) -> Programs {
        let programs = Programs::of(&self.0);
        let texts =
            [SOFTNIC.to_owned(), bend(SERVER.to_owned()), bend(CLIENT.to_owned()), PROFILER.to_owned()];
        let paths = [&programs.softnic, &programs.server, &programs.client, &programs.profiler];
        for (path, text) in paths.into_iter().zip(texts) {
            script(path, &text.replace("FOLDER", &self.0.display().to_string()));
        }
        programs
    }

    fn run(&self, programs: &Programs, engine: Engine) -> Result<(), String> {
        execute(programs, &self.0.join("out"), engine, 40).map_err(|error| format!("{error:#}"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

#[test]
fn only_a_run_whose_answers_all_came_once_and_were_right_is_right() {
    let stage = Stage::new("right");
    stage.run(&stage.stand_ins(|text| text), Engine::Onnx).unwrap();
    for (name, old, new, words) in [
        ("wrong", r#""wrong":0,"first"#, r#""wrong":1,"first"#, "1 wrong"),
        ("lost", r#""lost":0,"late":0,"duplicate":0,"r"#, r#""lost":2,"late":0,"duplicate":0,"r"#, "2 lost"),
        ("late", r#""late":0,"duplicate":0,"r"#, r#""late":3,"duplicate":0,"r"#, "3 late"),
        ("twice", r#""duplicate":0,"r"#, r#""duplicate":4,"r"#, "4 duplicate"),
        ("uncounted", r#""duplicate":0,"r"#, r#""r"#, "does not count duplicate"),
        ("refused", r#""refused":{}"#, r#""refused":{"stopping":5}"#, "5 refused: stopping"),
        ("first", r#""first_wrong":null"#, r#""first_wrong":"request 7""#, "request 7"),
        ("error", r#""error":null"#, r#""error":"the server is gone""#, "the server is gone"),
        ("fewer", r#""sent":40,"answered":40"#, r#""sent":40,"answered":39"#, "39 answers, not 40"),
        ("more", r#""served","answered":40"#, r#""served","answered":41"#, "41 answers by the server's"),
        ("compared", r#""reference":true"#, r#""reference":false"#, "no answer was compared"),
        ("status", "touch FOLDER/asked", "touch FOLDER/asked; exit 1", "the client ended with status 1"),
        ("server", "done\necho", "done\nkill -KILL $$; echo", "was ended by SIGKILL"),
        ("no line", r#"echo '{"kind":"run""#, r#"exit 3; echo '{"kind":"run""#, "ended with status 3"),
        ("no server", r#"echo '{"kind":"listening""#, "echo no device >&2; exit 2; echo '", "no device"),
    ] {
        let stage = Stage::new(name);
        let bent = |text: String| text.replace(old, new);
        assert!(bent(SERVER.into()) != SERVER || bent(CLIENT.into()) != CLIENT, "{name}: nothing was bent");
        let error = stage.run(&stage.stand_ins(bent), Engine::Twin).unwrap_err();
        assert!(error.contains(words), "{name}: {error}");
    }
}

#[test]
fn a_client_that_prints_lines_and_does_not_end_is_not_waited_for() {
    let stage = Stage::new("endless");
    let (program, log) = (stage.0.join("client"), stage.0.join("client.log"));
    script(&program, "#!/bin/sh\necho '{\"kind\":\"live\"}'\nexit 3\n");
    let mut client = JsonProgram::start(&mut Command::new(&program), &log).unwrap();
    let error = table(&mut client, Duration::ZERO).unwrap_err().to_string();
    assert!(error.starts_with("it did not end within 0 s"), "{error}");
}

#[test]
fn the_label_says_what_was_no_hardware_and_which_engine_computed() {
    let run = serde_json::json!({ "nic": "emulated", "link": "emulated", "answered": 40 });
    for (engine, words) in
        [(Engine::Onnx, "GPU none; engine: ONNX Runtime"), (Engine::Twin, "GPU emulated; engine: our CUDA")]
    {
        let lines = summary(&run, engine, Duration::ZERO);
        let label = lines.iter().find(|line| line.starts_with("label: ")).unwrap();
        assert!(label.starts_with("label: NIC emulated, link emulated") && label.contains(words), "{label}");
        // Beside the twin's label the one command that brings the usual engine.
        let command =
            lines.last().unwrap().split_once("instead of the twin by: ").map(|(_, command)| command);
        let wanted = (engine == Engine::Twin).then(|| wheels::ONNX_RUNTIME.by_hand());
        assert_eq!(command, wanted.as_deref());
    }
    assert!(verdict(Engine::Onnx, 40).starts_with("verdict: right: 40 of 40 answers"));
    assert!(verdict(Engine::Twin, 40).starts_with("verdict: 0 answers are judged: no ONNX Runtime"));
    for (seconds, words) in
        [(60, "60.0 s after the build, at most 60 are the aim: aim met"), (61, "aim not met")]
    {
        let said = summary(&run, Engine::Onnx, Duration::from_secs(seconds));
        assert!(said.iter().any(|line| line.starts_with("time: ") && line.ends_with(words)), "{said:?}");
    }
}

#[test]
fn the_line_about_the_twin_has_no_long_command() {
    let refusal = "ONNX Runtime is missing (--no-install was given); fetch it with:\n  python3 -m pip install …\nthen cp …";
    let line = twin_instead(refusal);
    assert!(
        line.starts_with("demo: ONNX Runtime is missing (--no-install was given): the host twin"),
        "{line}"
    );
    assert!(!line.contains("pip") && line.contains("doctor"), "{line}");
}

/// The programs that cargo has built, and the better engine of this machine.
fn built() -> Option<(Programs, Engine)> {
    let programs = Programs::of(&workspace::target_dir().join("debug"));
    let Programs { softnic, server, client, profiler } = &programs;
    let library = softnic.with_file_name(LIBRARY);
    let all = [softnic, &library, server, client, profiler].into_iter().all(|file| file.is_file());
    let engine = if wheels::ONNX_RUNTIME.used().exists() { Engine::Onnx } else { Engine::Twin };
    all.then_some((programs, engine))
}

#[test]
fn the_programs_answers_are_right_and_a_reference_with_one_other_number_makes_them_wrong() {
    let (programs, engine) =
        measure::need!(built(), softnic, "`cargo build` of softnic, profiler, inference-server, client");
    let stage = Stage::new("built");
    stage.run(&programs, engine).unwrap();
    let real = programs.profiler.display();
    // The exponent of the 301st value of the third input's reference.
    let at = 4 * (2 * 1000 + 300) + 3;
    let spoil = format!(
        "#!/bin/sh\n{real} \"$@\"\nwhile [ $# -gt 0 ]; do\n[ $1 = --out ] && printf '\\100' | dd of=\"$2\" bs=1 seek={at} \
         conv=notrunc status=none\nshift; done\n"
    );
    let profiler = stage.0.join("profiler");
    script(&profiler, &spoil);
    let error = stage.run(&Programs { profiler, ..programs }, engine).unwrap_err();
    // Of 40 requests three have the third input.
    assert!(error.contains("3 wrong") && error.contains("input 2: value 300"), "{error}");
}

/// The test below as the process that is stopped: its folder.
const STAGE: &str = "XTASK_TEST_DEMO";

#[test]
fn a_signal_ends_the_programs_and_a_server_that_dies_ends_the_run() {
    let (programs, engine) =
        measure::need!(built(), softnic, "`cargo build` of softnic, profiler, inference-server, client");
    if let Some(folder) = std::env::var_os(STAGE).map(PathBuf::from) {
        stop::watch().unwrap();
        let ended = execute(&programs, &folder.join("out"), engine, 1_000_000);
        tell!("{ended:?}");
        // As `main`: where a signal came, the process ends by it.
        stop::hold();
        std::process::exit(1);
    }
    for (signal, code, words) in
        [(Some(Signal::SIGINT), 130, "stopped by a signal"), (None, 1, "was ended by SIGKILL")]
    {
        let stage = Stage::new(&format!("stopped-{code}"));
        let name = "demo::tests::a_signal_ends_the_programs_and_a_server_that_dies_ends_the_run";
        // Tests that a shell started in the background have SIGINT ignored.
        let mut us = Command::new("env");
        us.arg("--default-signal=INT").arg(std::env::current_exe().unwrap());
        us.args(["--exact", name, "--nocapture"]).env(STAGE, &stage.0);
        let us = us.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let named = |process: &u32, name: &str| {
            fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|comm| comm.trim() == name)
        };
        let since = Instant::now();
        let all = loop {
            let all = descendants(us.id());
            if all.iter().any(|process| named(process, "doorbell-client")) {
                break all;
            }
            assert!(since.elapsed() < LIMIT, "the client did not start");
            sleep(Duration::from_millis(20));
        };
        sleep(Duration::from_millis(500));
        let server = all.iter().find(|process| named(process, "inference-serve")).unwrap();
        let (target, sent) = signal.map_or((*server, Signal::SIGKILL), |signal| (us.id(), signal));
        kill(Pid::from_raw(target.try_into().unwrap()), sent).unwrap();
        let ended = us.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "{said}");
        for process in all {
            assert!(!is_alive(process), "{process} still runs");
        }
    }
}
