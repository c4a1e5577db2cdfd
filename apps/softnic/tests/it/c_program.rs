//! Small C programs of this folder, compiled against the distribution's libibverbs when a test needs them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::fabric::scratch;

/// Compiles `tests/programs/NAME.c`, once for all tests; the error is why it cannot be done on this machine.
///
/// Panics when compiler and headers are there but the program does not compile: the program is at fault.
pub fn compile(name: &str, arguments: &[&str]) -> Result<PathBuf, String> {
    compile_as(name, name, arguments)
}

/// [`compile`] of `source`.c, as the program `name`.
pub fn compile_as(name: &str, source: &str, arguments: &[&str]) -> Result<PathBuf, String> {
    static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    // Held meanwhile: nobody is to start a program that another test is writing.
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = compiled.get(name) {
        return Ok(program.clone());
    }
    let program = compile_now(name, source, arguments)?;
    compiled.insert(name.to_owned(), program.clone());
    Ok(program)
}

fn compile_now(name: &str, source: &str, arguments: &[&str]) -> Result<PathBuf, String> {
    let header = Path::new("/usr/include/infiniband/verbs.h");
    if !header.exists() {
        return Err(format!("{} not found (package libibverbs-dev)", header.display()));
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{source}.c"));
    let program = scratch("programs").join(name);
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .args(arguments)
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    assert!(compiled.status.success(), "{name}:\n{}", String::from_utf8_lossy(&compiled.stderr));
    Ok(program)
}

/// Compiles a program that uses verbs.
pub fn verbs_program(name: &str) -> Result<String, String> {
    compile(name, &["-libverbs"]).map(|program| program.display().to_string())
}
