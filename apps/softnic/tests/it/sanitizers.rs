//! Programs under a sanitizer or valgrind: only the NIC's access to freed memory is reported.

use std::process::{Command, Output};

use crate::c_program::compile_as;
use crate::fabric::launcher;
use crate::program::find;

fn run(before: &[&str], program: &str, arguments: &[&str]) -> (Output, String) {
    let mut softnic = Command::new(launcher());
    // Frees while the program runs are what is looked for, not what libmlx5 keeps to its end.
    softnic.env("ASAN_OPTIONS", "detect_leaks=0");
    softnic.args(["run", "--fabric", &format!("sanitizers-{}", std::process::id()), "--"]);
    let output = softnic.args(before).arg(program).args(arguments).output().expect("the launcher starts");
    let said =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    (output, said)
}

fn passes(before: &[&str], program: &str) {
    let (output, said) = run(before, program, &[]);
    assert!(output.status.success() && said == "ten writes\n", "{program}: {said}");
}

#[test]
fn address_sanitizer_reports_the_nics_access_to_freed_memory_and_nothing_else() {
    let program = measure::need!(
        compile_as("late_write_address", "late_write", &["-g", "-fsanitize=address", "-libverbs"]),
        "C compiler and libibverbs-dev"
    );
    let program = program.display().to_string();
    passes(&[], &program);
    for (freed, access) in [("target", "WRITE of size "), ("source", "READ of size ")] {
        let (output, said) = run(&[], &program, &[freed]);
        assert!(!output.status.success() && !said.contains("late write:"), "{freed}: {said}");
        for words in ["heap-use-after-free", access, "thread T1", "freed by thread T0", "late_write.c"] {
            assert!(said.contains(words), "{freed}: no {words:?} in {said}");
        }
    }
}

#[test]
fn thread_sanitizer_reports_nothing_of_the_nics() {
    let program = measure::need!(
        compile_as("late_write_thread", "late_write", &["-g", "-fsanitize=thread", "-libverbs"]),
        "C compiler and libibverbs-dev"
    );
    let program = program.display().to_string();
    // Before gcc 14 its library does not know the address space of newer kernels.
    let starts = || {
        let alone = Command::new(&program).output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&alone.stderr).into_owned();
        if said.contains("unexpected memory mapping") { Err(said) } else { Ok(()) }
    };
    measure::need!(starts(), "a ThreadSanitizer that this kernel runs");
    passes(&[], &program);
}

#[test]
fn valgrind_reports_the_nics_access_to_freed_memory_and_nothing_else() {
    measure::need!(find("valgrind"), "valgrind");
    let program = measure::need!(
        compile_as("late_write", "late_write", &["-g", "-libverbs"]),
        "C compiler and libibverbs-dev"
    );
    let (program, valgrind) = (program.display().to_string(), ["valgrind", "-q", "--error-exitcode=9"]);
    passes(&valgrind, &program);
    let (output, said) = run(&valgrind, &program, &["target"]);
    assert_eq!(output.status.code(), Some(9), "{said}");
    for words in ["softnic-nic", "Invalid write of size", "inside a block of size 8,192 free'd"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
}
