//! `bench-post-gpu` as far as it goes without a GPU: its rows by name, and requests that cannot be.

use gpu::Gpu;
use measure::need;

use crate::ends::command;

/// Exit code, standard output, standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = command(&[&["bench-post-gpu"], arguments].concat()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn rows_are_listed_and_chosen_by_name_without_a_gpu() {
    let names = |arguments: &[&str]| -> Vec<String> {
        let (code, said, errors) = run(&[&["--list"], arguments].concat());
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        said.lines().map(str::to_owned).collect()
    };
    let all = names(&[]);
    for name in [
        "exclusive/1-thread/per-16/list/first-lap/host",
        "shared/132-warps/per-32/one/first-lap/host",
        "exclusive/32-threads/per-1/one/first-lap/host",
        "exclusive/1-warp/per-32/one/unchecked/host",
        "shared/4-threads/per-1/one/first-lap/gpu",
        "exclusive/1-thread/per-1/one/first-lap/host/original-volatile",
        "floor/wqe-fence",
    ] {
        assert!(all.iter().any(|row| row == name), "{name} is not in {all:?}");
    }
    let quick = names(&["--quick"]);
    assert!(quick.len() < all.len() && quick.iter().all(|name| all.contains(name)));
    let shared = names(&["--only", "shared/4-"]);
    assert!(!shared.is_empty() && shared.iter().all(|name| name.starts_with("shared/4-")), "{shared:?}");
}

#[test]
fn what_cannot_be_measured_is_one_line() {
    for (arguments, words) in [
        (&["--rounds", "0"][..], &["--rounds 0", "1 to 1000"][..]),
        (&["--rounds", "1001"], &["--rounds 1001", "1 to 1000"]),
        (&["--rounds", "many"], &["--rounds", "many"]),
        (&["--only", "no-such-row"], &["--only no-such-row", "--list"]),
        (
            &["--peer-headers", "/no/such/folder"],
            &["/no/such/folder/doca_gpunetio_device.h", "No such file", "nvidia-nvshmem-cu13"],
        ),
    ] {
        let (code, _, said) = run(arguments);
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{arguments:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
    }
}

#[test]
fn a_host_without_a_gpu_is_told_what_is_missing() {
    let none = match Gpu::first() {
        Ok(gpu) => Err(format!("{gpu} is here")),
        Err(error) => Ok(error.to_string()),
    };
    let missing = need!(none, none, "a host without a GPU");
    let (code, out, said) = run(&["--quick", "--json", "-"]);
    assert_eq!((code, out.as_str(), said.lines().count()), (Some(2), "", 1), "{said}");
    assert!(said.contains(missing.split(';').next().unwrap()), "{said}");
    assert!(said.contains("without a GPU, `generator bench-post`"), "{said}");
}
