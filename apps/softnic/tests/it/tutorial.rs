//! The program that the tutorial shows compiles as it stands, and does what the tutorial says.

use std::fs;
use std::process::Command;

use crate::ctl::SOON;
use crate::fabric::{Fabric, Layer, scratch};

const TUTORIAL: &str = include_str!("../../../../docs/tutorial.md");

#[test]
fn the_tutorials_program_writes_and_its_mistake_is_found() {
    measure::need!(
        fs::metadata("/usr/include/infiniband/verbs.h").map_err(|error| error.to_string()),
        "libibverbs-dev"
    );
    let (_, shown) = TUTORIAL.split_once("```c\n").expect("the tutorial shows a program");
    let (shown, _) = shown.split_once("```").expect("which ends");
    let said = "success: hello through a NIC";
    assert!(TUTORIAL.contains(&format!("`{said}`")) && TUTORIAL.contains("\nlocal protection error"));
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
        let fabric = Fabric::new(Layer::InfiniBand);
        let mut it = fabric.start(&[program.to_str().expect("a path of ours")]);
        let ended = it.program.wait(SOON);
        assert!(it.program.output().contains(words), "{name}: {ended:?}: {}", it.program.tail());
    }
}
