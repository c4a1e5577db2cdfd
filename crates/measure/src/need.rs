//! Tests that cannot run: `need!` prints `SKIP name: what (why)` and ends the test, `REQUIRE` forbids it.
//!
//! Cargo counts a skipped test as passed, so `cargo xtask test` subtracts the SKIP lines (INV-9). The line
//! goes to the process's stderr itself, since libtest hides what `eprintln!` writes in a test that passes.

use std::fmt::Display;
use std::io::Write;

/// What a test can need: something that may be missing, and then says why.
pub trait Requirement {
    /// The thing itself.
    type Thing;
    /// The thing, or why there is none.
    fn have(self) -> Result<Self::Thing, String>;
}

impl<T> Requirement for Option<T> {
    type Thing = T;
    fn have(self) -> Result<T, String> {
        self.ok_or_else(|| "not found".into())
    }
}

impl<T, E: Display> Requirement for Result<T, E> {
    type Thing = T;
    fn have(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

impl Requirement for bool {
    type Thing = ();
    fn have(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "not so".into())
    }
}

/// Takes what a test needs out of an `Option`, `Result` or `bool`, or skips the test aloud.
///
/// `need!(Gpu::first(), "one CUDA device")`, or with the key that `REQUIRE` may name:
/// `need!(Gpu::first(), gpu, "one CUDA device")`. With no key, every word of the text is one.
#[macro_export]
macro_rules! need {
    (@ $have:expr, $keys:expr, $what:expr) => {
        match $crate::need::Requirement::have($have) {
            Ok(thing) => thing,
            Err(why) => $crate::skip!(@ $keys, &format!("{} ({why})", $what)),
        }
    };
    ($have:expr, $key:ident, $what:expr) => { $crate::need!(@ $have, stringify!($key), $what) };
    ($have:expr, $what:expr) => { $crate::need!(@ $have, $what, $what) };
}

/// Ends the test with a SKIP line. `skip!("reason")`, or `skip!(key, "reason")`.
#[macro_export]
macro_rules! skip {
    (@ $keys:expr, $why:expr) => {{
        $crate::need::skipped($crate::here!(), $keys, $why);
        return Default::default();
    }};
    ($key:ident, $why:expr) => { $crate::skip!(@ stringify!($key), &$why.to_string()) };
    ($why:expr) => { $crate::skip!(@ &$why.to_string(), &$why.to_string()) };
}

/// Whether the long matrices run too: `cargo xtask test --full` sets `SOFTNIC_TEST_FULL=1`.
pub fn is_full() -> bool {
    std::env::var("SOFTNIC_TEST_FULL").is_ok_and(|value| value == "1")
}

/// The path of the function it stands in, e.g. `softnic::tests::two_opens`.
#[doc(hidden)]
#[macro_export]
macro_rules! here {
    () => {{
        fn here() {}
        $crate::need::function_of(std::any::type_name_of_val(&here))
    }};
}

#[doc(hidden)]
pub fn function_of(inner: &'static str) -> &'static str {
    let outer = inner.strip_suffix("::here").unwrap_or(inner);
    outer.trim_end_matches("::{{closure}}")
}

/// Prints the SKIP line of `test`; panics when `REQUIRE` names one of `keys` (words of a text), or `all`.
#[doc(hidden)]
pub fn skipped(test: &str, keys: &str, reason: &str) {
    let require = std::env::var("REQUIRE").unwrap_or_default();
    if let Some(key) = required(&require, keys) {
        panic!("{test} may not be skipped, REQUIRE names `{key}`: {reason}");
    }
    // One write, so that lines of parallel tests do not mix. A closed stderr must not fail the test.
    let _ = std::io::stderr().write_all(format!("SKIP {test}: {reason}\n").as_bytes());
}

/// The key in `require` (comma-separated) that is a word of `keys`.
fn required<'a>(require: &'a str, keys: &str) -> Option<&'a str> {
    let words: Vec<String> = keys
        .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-'))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    require
        .split(',')
        .map(str::trim)
        .filter(|key| !key.is_empty())
        .find(|key| *key == "all" || words.contains(&key.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_it(it: Result<u32, &str>) -> u32 {
        need!(it, never_required, "a number, in a test of the macro itself")
    }

    #[test]
    fn need_hands_out_what_is_there() {
        assert_eq!(with_it(Ok(7)), 7);
        assert_eq!(Some(3).have(), Ok(3));
        assert!(true.have().is_ok());
    }

    #[test]
    fn what_is_missing_says_why() {
        assert_eq!(Err::<u32, _>("libcuda.so.1 not found").have(), Err("libcuda.so.1 not found".into()));
        assert_eq!(None::<u32>.have(), Err("not found".into()));
        assert!(false.have().is_err());
    }

    #[test]
    fn the_line_names_the_test_it_stands_in() {
        assert_eq!(here!(), "measure::need::tests::the_line_names_the_test_it_stands_in");
        let inside = || here!();
        assert_eq!(inside(), "measure::need::tests::the_line_names_the_test_it_stands_in");
    }

    #[test]
    fn require_names_a_key_or_a_word_or_all() {
        for (require, keys, found) in [
            ("gpu,softnic", "gpu", Some("gpu")),
            ("gpu, softnic", "softnic", Some("softnic")),
            ("softnic", "gpu", None),
            ("CUDA", "one CUDA device", Some("CUDA")),
            ("cuda", "one CUDA device", Some("cuda")),
            ("all", "anything", Some("all")),
            ("", "anything", None),
            (",", "anything", None),
        ] {
            assert_eq!(required(require, keys), found, "REQUIRE={require} against `{keys}`");
        }
    }
}
