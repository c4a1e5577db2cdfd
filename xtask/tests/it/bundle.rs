//! A bundle as a user starts it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::bed::ProgramOutput;

/// Writes a `python3` without pip. `package`: the folder of its `onnxruntime`, empty if it has none.
fn python(to: &Path, package: &str) {
    let text = format!("case \"$*\" in *pip*) exit 1 ;; esac\necho {package}");
    // Another process writes it: a child of this test that starts meanwhile would keep the file open.
    let line = format!("printf '#!/bin/sh\\n%s\\n' '{text}' > {0}; chmod +x {0}", to.display());
    assert!(ProgramOutput::of(Command::new("sh").args(["-c", &line])).ok);
}

#[test]
fn models_in_a_bundle_run_by_pythons_onnx_runtime_and_pip_fetches_nothing() {
    // Not in cargo's folder, where our programs find what set-up fetched.
    let folder = std::env::temp_dir().join(format!("bundle-{}", std::process::id()));
    let (package, bin) = (folder.join("site/onnxruntime"), folder.join("bin"));
    for needed in [&package.join("capi"), &bin, &folder.join("experiments/bench-models")] {
        fs::create_dir_all(needed).unwrap();
    }
    fs::write(package.join("capi/libonnxruntime.so.1.31.1"), "").unwrap();
    fs::write(folder.join("bundle.json"), r#"{ "profile": "release", "tests": [] }"#).unwrap();
    let spec = "experiments/bench-models/spec.toml";
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::copy(tree.join(spec), folder.join(spec)).unwrap();
    // By another process, as above.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_xtask")).arg(folder.join("xtask")).status();
    assert!(copied.unwrap().success());
    for (package, words) in [
        (&*package.display().to_string(), &["seeded.onnx: not built", "zoo build"][..]),
        ("", &["ONNX Runtime was not found", "has no package onnxruntime", "--require-hashes"]),
    ] {
        python(&bin.join("python3"), package);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut xtask = Command::new(folder.join("xtask"));
        xtask.arg("bench-models").arg("--out").arg(folder.join("out")).env("PATH", path);
        let said = ProgramOutput::of(xtask.env_remove("DOORBELL_ONNXRUNTIME").env_remove("CARGO_TARGET_DIR"));
        assert_eq!(said.code, Some(2), "{said:?}");
        said.has(words);
    }
    fs::remove_dir_all(folder).unwrap();
}
