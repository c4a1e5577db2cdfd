//! Misuse of `softnic run`: one line that says what is wrong, and exit status 2, before anything is started.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use crate::c_program::compile;
use crate::fabric::{launcher, scratch};

fn softnic(arguments: &[&str]) -> Output {
    Command::new(launcher()).args(arguments).output().expect("the launcher starts")
}

/// Demands status 2, one line on stderr that holds every one of `words`, and silence on stdout.
fn refused(what: &str, output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{what}: {said}");
    assert_eq!(said.lines().count(), 1, "{what}: not one line:\n{said}");
    let missing: Vec<&&str> = words.iter().filter(|word| !said.contains(**word)).collect();
    assert!(missing.is_empty(), "{what}: {missing:?} not named in: {said}");
    assert!(output.stdout.is_empty(), "{what}: {}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn wrong_options_are_named() {
    for (arguments, words) in [
        (&["run", "--frobnicate", "--", "true"][..], &["--frobnicate"][..]),
        (&["run", "--link-layer", "token-ring", "--", "true"], &["link", "token-ring", "ib", "roce"]),
        (&["run", "--devices", "0", "--", "true"], &["devices", "0"]),
        (&["run", "--devices", "9", "--", "true"], &["devices", "9"]),
        (&["run", "--devices", "many", "--", "true"], &["devices", "many"]),
        (&["run", "--path", "carrier-pigeon", "--", "true"], &["path", "carrier-pigeon"]),
        (&["run", "--rate-gbps", "-1", "--", "true"], &["rate", "-1"]),
        (&["run", "--rate-gbps", "nan", "--", "true"], &["rate"]),
        (&["run", "--seed", "3", "true"], &["--seed", "`seed` is a key of the configuration file"]),
        (&["run", "--fabric", "a/b", "--", "true"], &["fabric", "a/b"]),
        (&["run"], &["COMMAND"]),
        (&["run", "--"], &["COMMAND"]),
        (&["walk"], &["walk"]),
        (&[], &["run"]),
    ] {
        refused(&format!("{arguments:?}"), &softnic(arguments), words);
    }
}

#[test]
fn short_help_says_what_an_option_may_be() {
    let help = String::from_utf8(softnic(&["run", "-h"]).stdout).expect("text");
    for allowed in ["\"cx6dx\"", "\"roce\"", "from 1 to 8", "250us"] {
        assert!(help.contains(allowed), "{allowed}:\n{help}");
    }
}

#[test]
fn help_is_an_option_and_a_command() {
    for (command, option) in [
        (&["help"][..], &["--help"][..]),
        (&["help", "run"], &["run", "--help"]),
        (&["help", "ctl"], &["ctl", "--help"]),
        (&["help", "ctl", "inject", "drop"], &["ctl", "inject", "drop", "--help"]),
        (&["ctl", "help", "set"], &["ctl", "set", "--help"]),
    ] {
        let [by_command, by_option] = [command, option].map(softnic);
        assert!(by_command.status.success() && by_command.stderr.is_empty(), "{command:?}");
        let [by_command, by_option] =
            [by_command, by_option].map(|output| String::from_utf8(output.stdout).expect("text"));
        assert!(
            by_command.contains("Usage: softnic") && by_command == by_option,
            "{command:?}: {by_command}"
        );
    }
    refused("help of no command", &softnic(&["help", "walk"]), &["walk"]);
}

#[test]
fn a_reader_that_closes_early_makes_help_no_error() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = Command::new(launcher()).arg("--help").stdout(writer).output().expect("the launcher starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn wrong_configurations_are_named_with_their_file() {
    let file = scratch("launcher").join("wrong.toml");
    let name = file.display().to_string();
    for (toml, words) in [
        ("colour = \"red\"\n", &["colour"][..]),
        ("mtu = 1500\n", &["mtu", "1500", "4096"]),
        ("devices = 99\n", &["devices", "99"]),
        ("devices = \"two\"\n", &["devices", "two"]),
        ("model = \"cx4\"\n", &["model", "cx4", "cx7"]),
        ("rate_gbps = 0\n", &["rate_gbps"]),
        ("mtu = 4096\nthis is not toml\n", &["line 2"]),
        ("mtu = 4096\nmtu = 4096\n", &["line 2", "duplicate"]),
    ] {
        fs::write(&file, toml).unwrap();
        let output = softnic(&["run", "--config", &name, "--", "true"]);
        refused(toml, &output, &[&[name.as_str()], words].concat());
    }
    let absent = softnic(&["run", "--config", "/nonexistent/nic.toml", "--", "true"]);
    refused("a file that is not there", &absent, &["/nonexistent/nic.toml"]);
    // The environment's file counts where no option names one.
    let named = |value: &str, arguments: &[&str]| {
        let mut softnic = Command::new(launcher());
        softnic.env("SOFTNIC_NIC_TOML", value).args(arguments).output().unwrap()
    };
    fs::write(&file, "mtu = 1500\n").unwrap();
    refused("the environment's file", &named(&name, &["run", "--", "true"]), &[&name, "mtu", "1500"]);
    let absent = named("/nonexistent/nic.toml", &["run", "--", "true"]);
    refused("a file that is not there", &absent, &["SOFTNIC_NIC_TOML", "/nonexistent/nic.toml"]);
    let good = scratch("launcher").join("good.toml").display().to_string();
    fs::write(&good, "mtu = 1024\n").unwrap();
    for (value, arguments) in
        [(name.as_str(), &["run", "--config", &good, "--", "true"][..]), ("", &["run", "--", "true"])]
    {
        let output = named(value, arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn reordering_in_shared_memory_is_said_to_do_nothing() {
    let file = scratch("launcher").join("reorder.toml");
    let in_memory = "softnic: reorder does nothing between NICs of this host's fabric: shared memory keeps its order; take path wire\n";
    for (toml, said) in [
        ("reorder = 0.1\npath = \"shm\"\n", in_memory),
        ("reorder = 0.1\npath = \"auto\"\n", in_memory),
        ("reorder = 0.0\npath = \"shm\"\n", ""),
        ("reorder = 0.1\npath = \"wire\"\nlink_layer = \"roce\"\n", ""),
    ] {
        fs::write(&file, toml).unwrap();
        let output = softnic(&["run", "--config", file.to_str().unwrap(), "--", "true"]);
        assert!(output.status.success(), "{toml}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), said, "{toml}");
    }
}

#[test]
fn programs_that_cannot_be_started_are_named() {
    refused("no such program", &softnic(&["run", "--", "no-such-program-here"]), &["no-such-program-here"]);
    refused("no such path", &softnic(&["run", "--", "/nonexistent/program"]), &["/nonexistent/program"]);
    refused("a folder", &softnic(&["run", "--", "/tmp"]), &["/tmp"]);
    let file = scratch("launcher").join("not-executable");
    fs::write(&file, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let name = file.display().to_string();
    refused("not executable", &softnic(&["run", "--", &name]), &[&name]);
}

#[test]
fn static_programs_are_refused() {
    let program = measure::need!(compile("static_program", &["-static"]), "C compiler");
    let name = program.display().to_string();
    refused("a static program", &softnic(&["run", "--", &name]), &[&name, "static"]);
}

#[test]
fn programs_of_musl_are_refused() {
    // Header, one program header (PT_INTERP), and the interpreter's name.
    let name = b"/lib/ld-musl-x86_64.so.1\0";
    let mut elf = vec![0; 64 + 56];
    elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    (elf[16], elf[18], elf[20], elf[32], elf[52], elf[54], elf[56]) = (3, 62, 1, 64, 64, 56, 1);
    (elf[64], elf[64 + 8], elf[64 + 32]) = (3, 64 + 56, name.len() as u8);
    elf.extend(name);
    let file = scratch("launcher").join("musl");
    fs::write(&file, elf).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let name = file.display().to_string();
    refused("a program of musl", &softnic(&["run", "--", &name]), &[&name, "musl", "glibc"]);
}

#[test]
fn a_program_with_address_sanitizer_runs() {
    let arguments = ["-fsanitize=address", "-libverbs"];
    let program = measure::need!(compile("sanitized", &arguments), "C compiler and libibverbs-dev");
    let output = softnic(&["run", "--", &program.display().to_string()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "devices 1, opened 1, errno 0\n");
}

#[test]
fn programs_of_another_user_s_rights_are_refused() {
    // The loader ignores LD_PRELOAD where the effective user differs from the real one.
    let file = scratch("launcher").join("set-uid");
    fs::copy("/bin/true", &file).unwrap();
    let me = fs::metadata(&file).unwrap().uid();
    let name = if std::os::unix::fs::chown(&file, Some(me + 1), None).is_ok() {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        file.display().to_string()
    } else {
        let candidates = ["/usr/bin/su", "/usr/bin/passwd", "/usr/bin/mount", "/bin/su"];
        let set_uid =
            |path: &&str| fs::metadata(path).is_ok_and(|it| it.mode() & 0o4000 != 0 && it.uid() != me);
        measure::need!(candidates.into_iter().find(set_uid), "a set-uid program of another user").to_owned()
    };
    refused("a set-uid program", &softnic(&["run", "--", &name]), &[&name, "set-uid"]);
}

#[test]
fn a_missing_library_is_named() {
    // The launcher looks beside itself; a copy in an empty folder finds nothing there.
    let folder = scratch("alone");
    let copy = folder.join("softnic");
    fs::copy(launcher(), &copy).unwrap();
    let output = Command::new(&copy).args(["run", "--", "true"]).output().unwrap();
    refused("no library", &output, &["libsoftnic_preload.so"]);
}

#[test]
fn an_installed_launcher_finds_its_library_in_the_package_s_folder() {
    let (built, folder) = (launcher(), scratch("installed"));
    let library = Path::new("lib/softnic/libsoftnic_preload.so");
    for place in [Path::new("bin/softnic"), library] {
        let to = folder.join(place);
        fs::create_dir_all(to.parent().expect("a folder")).unwrap();
        let from = built.with_file_name(place.file_name().expect("a file"));
        fs::copy(&from, &to).unwrap_or_else(|error| panic!("copying {}: {error}", from.display()));
    }
    let mut softnic = Command::new(folder.join("bin/softnic"));
    let output = softnic.args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let wanted = fs::canonicalize(folder.join(library)).unwrap();
    let named = said.trim().split(':').filter_map(|it| fs::canonicalize(it).ok()).any(|it| it == wanted);
    assert!(named, "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_exit_status_is_the_program_s() {
    for status in [0, 1, 42] {
        let output = softnic(&["run", "--", "sh", "-c", &format!("exit {status}")]);
        assert_eq!(output.status.code(), Some(status));
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_program_without_verbs_runs_as_ever_and_leaves_no_counters() {
    let folder = scratch("plain");
    let stats = folder.join("stats.jsonl");
    let text = "unchanged text";
    let output =
        softnic(&["run", "--stats", &stats.display().to_string(), "--", "sh", "-c", &format!("echo {text}")]);
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{text}\n"));
    assert!(!Path::new(&stats).exists() || fs::read_to_string(&stats).unwrap().is_empty());
}

#[test]
fn an_earlier_preload_is_kept() {
    let mut softnic = Command::new(launcher());
    softnic.env("LD_PRELOAD", "libm.so.6").args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let output = softnic.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("libsoftnic_preload.so") && said.contains("libm.so.6"), "{said}");
}
