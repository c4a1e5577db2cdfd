//! The programs that the tutorials show compile as they stand, and do what the tutorials say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use measure::Loopback;

use crate::ctl::SOON;
use crate::fabric::{Fabric, Layer, launcher, scratch};
use crate::program::find;

const VERBS: &str = include_str!("../../../../docs/tutorials/rdma-developer.md");
const KERNEL: &str = include_str!("../../../../docs/tutorials/own-kernel.md");

/// The first block of a language behind some words of a page.
fn block<'a>(page: &'a str, behind: &str, language: &str) -> &'a str {
    let (_, page) = page.split_once(behind).unwrap_or_else(|| panic!("the page has no «{behind}»"));
    let (_, shown) = page.split_once(&format!("```{language}\n")).expect("the page shows a file");
    shown.split_once("```").expect("which ends").0
}

fn headers() -> Result<fs::Metadata, String> {
    fs::metadata("/usr/include/infiniband/verbs.h").map_err(|error| error.to_string())
}

#[test]
fn the_tutorials_program_writes_and_its_mistake_is_found() {
    measure::need!(headers(), "libibverbs-dev");
    let shown = block(VERBS, "Save this as `hello.c`", "c");
    let said = "success: hello through a NIC";
    assert!(VERBS.contains(&format!("`{said}`")) && VERBS.contains("\nlocal protection error"));
    for (name, source, words) in [
        ("hello", shown.to_owned(), said),
        ("mistake", shown.replace("mr->lkey}", "mr->lkey + 1}"), "local protection error"),
    ] {
        let (file, program) = (scratch("tutorial").join(format!("{name}.c")), scratch("tutorial").join(name));
        fs::write(&file, source).expect("a folder of ours");
        let compiled = Command::new("gcc")
            .arg(&file)
            .args(["-Wall", "-Werror", "-libverbs", "-o"])
            .arg(&program)
            .output();
        let compiled = compiled.expect("gcc, which links Rust here, starts");
        assert!(compiled.status.success(), "{name}: {}", String::from_utf8_lossy(&compiled.stderr));
        let layers =
            if name == "hello" { vec![Layer::InfiniBand, Layer::Roce] } else { vec![Layer::InfiniBand] };
        for layer in layers {
            let fabric = Fabric::new(layer);
            let mut it = fabric.start(&[program.to_str().expect("a path of ours")]);
            let ended = it.program.wait(SOON);
            assert!(it.program.output().contains(words), "{name}: {ended:?}: {}", it.program.tail());
        }
    }
}

/// What stands before a step of the page: its pauses last until the program runs, or the capture does.
const PAUSES: &str = "sleep() {
    command sleep $1
    until softnic ctl list | grep -q hello && { [ $1 != 0.2 ] || [ -s hello.pcapng ]; }; do command sleep 0.05; done
}
";

/// Runs a step of the page as it stands and checks its output. A request is lost within 1 s, and a packet
/// while ten are captured: on a busy machine the step is run again.
fn step(folder: &Path, text: &str, is_right: impl Fn(&str) -> bool) {
    let softnic = launcher();
    let bin = softnic.parent().expect("a folder").display().to_string();
    let mut said = String::new();
    for _ in 0..4 {
        let mut bash = Command::new("timeout");
        bash.args(["--kill-after=1", "60", "bash", "-c", &format!("exec 2>&1; {PAUSES}{text}")]);
        bash.current_dir(folder).env("PATH", format!("{bin}:{}", std::env::var("PATH").expect("a PATH")));
        said = String::from_utf8_lossy(&bash.output().expect("bash starts").stdout).into_owned();
        if is_right(&said) {
            return;
        }
        let _ = fs::remove_file(folder.join("hello.pcapng"));
    }
    panic!("{text}\n{said}");
}

#[test]
fn the_tutorials_faults_and_its_capture_are_what_it_says() {
    measure::need!(headers(), "libibverbs-dev");
    measure::need!(find("tshark"), "tshark");
    let folder = scratch("tutorial-steps");
    fs::write(folder.join("hello.c"), block(VERBS, "Save this as `hello.c`", "c")).expect("a folder of ours");
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "hello.c", "-libverbs", "-o", "hello"]).current_dir(&folder);
    assert!(gcc.status().expect("gcc, which links Rust here, starts").success());
    step(&folder, block(VERBS, "## 4. Inject a fault", "sh"), |said| {
        let counted = |name: &str| {
            let count = said.lines().find_map(|line| line.trim().strip_prefix(name));
            count.and_then(|count| count.trim().parse::<u32>().ok()).is_some_and(|count| count > 0)
        };
        said.contains(" hello ")
            && counted("injected_lost_requests")
            && counted("retransmissions")
            && said.contains("\nremote access error: hello through a NIC")
    });
    let own = Loopback::unused();
    let captured = block(VERBS, "## 5. Read a capture", "sh");
    assert_eq!(captured.matches("127.0.0.1").count(), 1);
    step(&folder, &captured.replace("127.0.0.1", &own.address().to_string()), |said| {
        let packets: Vec<Vec<&str>> = said
            .lines()
            .map(|line| line.split('\t').collect())
            .filter(|fields: &Vec<&str>| fields.len() == 4)
            .collect();
        let of = |opcode: &str| packets.iter().filter(|fields| fields[1] == opcode).count();
        // One number, sent with a wrong checksum and again with the right one.
        let is_again = |one: &Vec<&str>| {
            packets.iter().any(|other| one[2] == other[2] && one[1] == other[1] && one[3] != other[3])
        };
        packets.len() == 10 && of("10") + of("17") == 10 && packets.iter().any(is_again)
    });
}

/// Built in a folder that stays, so that only the first run builds the crates that it uses.
#[test]
fn the_tutorials_kernel_writes_on_the_host_twin_and_its_mistake_is_found() {
    measure::need!(headers(), "libibverbs-dev");
    measure::need!(Command::new("g++").arg("--version").output().map_err(|error| error.to_string()), "g++");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = target.join("tutorial");
    let here = |text: &str| text.replace("../doorbell", root.to_str().expect("a path in UTF-8"));
    let kernel = block(KERNEL, "`kernels/hello.cu` is", "c");
    for (place, text) in [
        // A workspace of its own, below ours.
        ("Cargo.toml", here(block(KERNEL, "`Cargo.toml`:", "toml")) + "\n[workspace]\n"),
        ("build.rs", here(block(KERNEL, "`build.rs` compiles", "rust,ignore"))),
        ("src/main.rs", here(block(KERNEL, "`src/main.rs` makes", "rust,ignore"))),
        // Versions that are here already. Cargo drops unused ones, so the lock file is kept beside.
        ("Cargo.lock.whole", fs::read_to_string(root.join("Cargo.lock")).expect("the lock file")),
    ] {
        let path = folder.join(place);
        fs::create_dir_all(path.parent().expect("a file's folder")).expect("a folder of ours");
        if fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            if place == "Cargo.lock.whole" {
                fs::write(folder.join("Cargo.lock"), &text).expect("a folder of ours");
            }
            fs::write(path, text).expect("a folder of ours");
        }
    }
    fs::create_dir_all(folder.join("kernels")).expect("a folder of ours");
    for (text, words) in [
        (kernel.to_owned(), "host twin: 1 WRITEs in "),
        (kernel.replace("run->lkey}", "run->lkey + 1}"), "request 0: local protection error (syndrome 0x4"),
    ] {
        fs::write(folder.join("kernels/hello.cu"), text).expect("a folder of ours");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--offline", "--quiet", "--target-dir"]).arg(folder.join("target"));
        cargo.current_dir(&folder).env("CARGO_PROFILE_DEV_DEBUG", "0");
        let built = cargo.output().expect("cargo, which builds this test, starts");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let fabric = Fabric::new(Layer::InfiniBand);
        let mut it =
            fabric.start(&[folder.join("target/debug/hello-kernel").to_str().expect("a path of ours")]);
        let ended = it.program.wait(SOON);
        assert!(it.program.output().contains(words), "{words}: {ended:?}: {}", it.program.tail());
    }
}
