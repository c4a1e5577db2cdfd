//! `tidy large`: nothing that is fetched or dumped gets into git. And `tidy --report`: the measures of the style card as they are
//! today, of which nothing fails.

use super::{Violation, source};
use crate::workspace::{LARGE, Tree};

/// Longest file that is not suspected of hiding a second unit.
const LONG: usize = 600;

/// Files that git would carry for ever.
pub fn large(tree: &Tree) -> Vec<Violation> {
    let tell = |(path, bytes): &(String, u64)| {
        Violation::new(path, format!("{bytes} bytes; git keeps no file above {LARGE}: take it out"))
    };
    tree.large().iter().map(tell).collect()
}

/// The report, ready to print.
pub fn report(tree: &Tree) -> String {
    let files: Vec<(&str, &str)> = tree.rust().collect();
    let mut sizes: Vec<(usize, &str)> =
        files.iter().map(|(path, text)| (source::without_tests(path, text).lines().count(), *path)).collect();
    sizes.sort_unstable();
    let of_code: Vec<usize> = sizes.iter().map(|(size, _)| *size).filter(|size| *size > 0).collect();
    let all_lines: usize = files.iter().map(|(_, text)| text.lines().count()).sum();
    let code_lines: usize = sizes.iter().map(|(size, _)| size).sum();
    let comments = count(&files, |line| line.starts_with("//"));
    let non_blank = count(&files, |line| !line.is_empty()).max(1);
    let openings = files.iter().filter(|(_, text)| text.starts_with("//!")).count();
    let unwraps: usize = files
        .iter()
        .map(|(path, text)| source::code(source::without_tests(path, text)).matches(".unwrap()").count())
        .sum();

    let mut lines = vec![
        format!("Rust files                           {}", files.len()),
        format!("lines, tests included                {all_lines}"),
        format!("non-test lines of a file, median     {}", of_code.get(of_code.len() / 2).unwrap_or(&0)),
        format!("comment share of non-blank lines     {} %", comments * 100 / non_blank),
        format!("files that open with //!             {} of {}", openings, files.len()),
        format!(
            "test share of lines                  {} %",
            (all_lines - code_lines) * 100 / all_lines.max(1)
        ),
        format!(".unwrap() outside tests              {unwraps}"),
    ];
    for (size, path) in sizes.iter().rev().take_while(|(size, _)| *size > LONG) {
        lines.push(format!("more than {LONG} non-test lines            {path} ({size})"));
    }
    lines.join("\n")
}

fn count(files: &[(&str, &str)], is: impl Fn(&str) -> bool) -> usize {
    files.iter().flat_map(|(_, text)| text.lines()).filter(|line| is(line.trim())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_in_the_tree_is_named() {
        let folder = std::env::temp_dir().join(format!("xtask-large-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in [("core", LARGE + 1), ("fits", LARGE)] {
            std::fs::File::create(folder.join(name)).unwrap().set_len(bytes).unwrap();
        }
        let violations = large(&Tree::read(&folder).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
        let said: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["core: 1048577 bytes; git keeps no file above 1048576: take it out"]);
    }

    #[test]
    fn the_report_counts_tests_apart_and_lists_long_files() {
        let long = format!("//! x\n{}", "fn f() {}\n".repeat(700));
        let report = report(&Tree::of(&[("a.rs", &long), ("b.rs", "//! y\n#[cfg(test)]\nmod tests {\n}\n")]));
        assert!(report.contains("a.rs (701)"), "{report}");
        assert!(report.contains("files that open with //!             2 of 2"), "{report}");
    }
}
