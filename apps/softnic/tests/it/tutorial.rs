//! The programs that the tutorials show compile as they stand, and do what the tutorials say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ctl::SOON;
use crate::fabric::{Fabric, Layer, scratch};

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
        // Versions that are here already. Cargo leaves out what it does not need, so that the text is kept beside.
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
