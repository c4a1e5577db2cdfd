//! `unsafe` lives on named floors (INV-3); clippy's `undocumented_unsafe_blocks` checks SAFETY comments.

use super::source;
use crate::workspace::Tree;

/// Folders and files where the word may stand, beside kernels of apps. The last ones: the generator's pair of
/// processes without a NIC, the interposer, and the launcher's file that asks for the user and file rights.
const FLOORS: [&str; 12] = [
    "vendor/",
    "crates/verbs/",
    "crates/gpu/",
    "crates/host-twin/",
    "crates/rdma-shim/",
    "crates/inference/src/engine/",
    "crates/pipeline/src/gpu/",
    "crates/soft-nic/src/dma/",
    "crates/soft-nic/src/os/",
    "apps/generator/src/baseline/",
    "apps/softnic/src/preload/",
    "apps/softnic/src/program.rs",
];

/// Whether a file is of the module of an app that launches its kernels.
fn launches_kernels(path: &str) -> bool {
    let below = path.strip_prefix("apps/").and_then(|path| Some(path.split_once('/')?.1));
    below.is_some_and(|path| path == "src/kernel.rs" || path.starts_with("src/kernel/"))
}

/// Every `unsafe` off the floors, tests included.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    let allowed = |path: &str| launches_kernels(path) || FLOORS.iter().any(|floor| path.starts_with(floor));
    for (path, text) in tree.rust().filter(|(path, _)| !allowed(path)) {
        let code = source::code(text);
        for (index, _) in code.lines().enumerate().filter(|(_, line)| source::has_word(line, "unsafe")) {
            violations.push(format!("{path}:{}: `unsafe` off its floors (INV-3)", index + 1));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_off_the_floors_is_named() {
        for (path, count) in [
            ("crates/mlx5-device/src/qp.rs", 1),
            ("crates/measure/src/lib.rs", 1),
            ("xtask/src/main.rs", 1),
            ("crates/inference/src/plan/mod.rs", 1),
            ("crates/inference/src/engine/twin.rs", 0),
            ("crates/soft-nic/src/dma/host.rs", 0),
            ("crates/verbs/src/sys/load.rs", 0),
            ("apps/softnic/src/preload/hooks.rs", 0),
            ("apps/softnic/src/program.rs", 0),
            ("apps/echo/src/kernel.rs", 0),
            ("apps/generator/src/kernel/post_bench/gpu_bench.rs", 0),
            ("apps/generator/src/baseline/processes.rs", 0),
            ("apps/generator/src/baseline.rs", 1),
            ("apps/generator/src/kernel_sender.rs", 1),
            ("apps/generator/tests/it/kernel/a.rs", 1),
            ("apps/softnic/src/launch.rs", 1),
            ("apps/softnic/tests/it/launcher.rs", 1),
        ] {
            let found = check(&Tree::of(&[(path, "//! x\nfn f() { unsafe { g() } }\n")]));
            assert_eq!(found.len(), count, "{path}");
        }
    }

    #[test]
    fn the_word_in_a_comment_a_string_or_a_lint_passes() {
        let text = "//! unsafe\n#![forbid(unsafe_code)]\nconst WORD: &str = \"unsafe\"; // unsafe\n";
        assert!(check(&Tree::of(&[("crates/roce/src/lib.rs", text)])).is_empty());
    }
}
