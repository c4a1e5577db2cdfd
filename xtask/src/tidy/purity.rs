//! The pure crates stay pure (INV-2): no I/O, clock, thread, global or `unsafe` in them.

use super::source;
use crate::workspace::Tree;

/// Crates that only compute. One that is not there yet is nothing to check.
const PURE: [&str; 4] = ["mlx5-device", "mlx5-layout", "roce", "slots"];

/// What a pure crate must not name, by what it would be: words, apart by blanks.
const IMPURE: [(&str, &str); 9] = [
    ("I/O", "std::fs std::io std::net std::process std::env print! println! eprint! eprintln! dbg!"),
    ("the system", "std::os libc"),
    ("a clock", "std::time::* Instant SystemTime"),
    ("everything", "std::*"),
    ("a thread", "std::thread"),
    ("shared state", "std::sync"),
    ("a global", "thread_local! static"),
    ("a runtime", "async await"),
    ("`unsafe`", "unsafe"),
];

/// Looks at all of a pure crate but its tests.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for name in PURE {
        let folder = format!("crates/{name}/src/");
        for (path, text) in tree.rust().filter(|(path, _)| path.starts_with(&folder)) {
            if path == format!("{folder}lib.rs") && !text.contains("#![forbid(unsafe_code)]") {
                violations.push(format!("{path}:1: a pure crate says #![forbid(unsafe_code)] (INV-2)"));
            }
            let code = source::code(source::without_tests(path, text)).replace("'static", "       ");
            // Many may read what it holds, and none writes it.
            let code = code.replace("std::sync::Arc", "              ");
            let grouped = source::use_paths(&code);
            for (index, line) in code.lines().enumerate() {
                let in_group =
                    |word: &str| grouped.iter().any(|(at, path)| *at == index && begins(path, word));
                let is_named = |(word, _): &(&str, &str)| source::has_word(line, word) || in_group(word);
                violations.extend(source::words(&IMPURE).filter(is_named).map(|(word, what)| {
                    format!("{path}:{}: `{word}` is {what}; `{name}` only computes (INV-2)", index + 1)
                }));
            }
        }
    }
    violations
}

/// Whether a path is `word` or below it. `use std` and `use std::*` bring in what no later line spells out.
fn begins(path: &str, word: &str) -> bool {
    path == word
        || path.strip_prefix(word).is_some_and(|rest| rest.starts_with("::"))
        || word == "std::*" && matches!(path, "std" | "std::self")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: (&str, &str) = ("crates/roce/src/lib.rs", "//! x\n#![forbid(unsafe_code)]\n");

    #[test]
    fn each_impurity_is_named() {
        for (line, word) in [
            ("use std::net::UdpSocket;", "std::net"),
            ("let now = Instant::now();", "Instant"),
            ("static COUNT: u32 = 0;", "static"),
            ("println!(\"x\");", "println!"),
            ("print!(\"x\");", "print!"),
            ("eprint!(\"x\");", "eprint!"),
            ("eprintln!(\"x\");", "eprintln!"),
            ("dbg!(x);", "dbg!"),
            ("use std::{fmt, io};", "std::io"),
            ("use std::{fmt,\n    io::{self, Write}};", "std::io"),
            ("pub(crate) use std::{fmt, net::{TcpStream as T}};", "std::net"),
            ("use ::std::{thread};", "std::thread"),
            ("use std as s;", "std::*"),
            ("use std::{self as s, fmt};", "std::*"),
            ("use std::*;", "std::*"),
            ("use std::time::*;", "std::time::*"),
            ("use std::{fmt, time::{Duration, Instant}};", "Instant"),
            ("let x = unsafe { y };", "unsafe"),
        ] {
            let found = check(&Tree::of(&[LIB, ("crates/roce/src/psn.rs", line)]));
            assert!(!found.is_empty(), "{line}: nothing found");
            assert!(found.iter().all(|one| one.to_string().contains(word)), "{line}: {found:?}");
        }
    }

    #[test]
    fn computing_tests_and_words_in_text_pass() {
        let text = "// unsafe, static, print!()\nuse std::{fmt, time::Duration};\nfn a(x: &'static str) {}\n#[cfg(test)]\nmod tests {\n use std::fs;\n}\n";
        assert!(check(&Tree::of(&[LIB, ("crates/roce/src/psn.rs", text)])).is_empty());
        assert!(check(&Tree::of(&[("crates/verbs/src/a.rs", "use std::net::TcpStream;")])).is_empty());
    }

    #[test]
    fn the_forbid_must_stand_there() {
        assert_eq!(check(&Tree::of(&[("crates/roce/src/lib.rs", "//! x\n")])).len(), 1);
    }
}
