//! `tidy large`: nothing that is fetched or dumped gets into git. `tidy sizes`: no file is long, no comment
//! is wider than code, and in the NIC no function is long and no structure wide. `tidy --report`: production
//! lines, which cannot fail.

use std::collections::BTreeMap;

use super::source;
use crate::workspace::{LARGE, Tree};

/// Longest file that is not suspected of hiding a second unit, tests included.
const LONG: usize = 600;
/// Columns of a comment, as `max_width` in rustfmt.toml bounds code.
const COLUMNS: usize = 110;
/// Longest function of the NIC, tests included.
const LONG_FUNCTION: usize = 80;
/// Most public fields of a structure of the NIC.
const WIDE: usize = 12;

/// The NIC's crates.
const NIC: [&str; 5] =
    ["apps/softnic/", "crates/mlx5-device/", "crates/mlx5-layout/", "crates/roce/", "crates/soft-nic/"];

/// Structures of the NIC that are wider, each with why.
const WIDE_ANYWAY: [(&str, &str, &str); 5] = [
    ("crates/mlx5-layout/src/cqe.rs", "CqeFields", "a CQE has them"),
    ("crates/mlx5-device/src/command.rs", "CreateQp", "QP.CREATE and its mlx5 part have them"),
    ("crates/mlx5-device/src/command.rs", "ModifyQp", "`struct ib_uverbs_modify_qp` has them"),
    (
        "crates/soft-nic/src/rdma_cm/ids.rs",
        "Id",
        "what the commands of a `struct rdma_cm_id` set, one by one",
    ),
    ("crates/roce/src/cm/connection.rs", "Connection", "a state of the connection manager, private to it"),
];

/// Files that git would carry for ever.
pub fn large(tree: &Tree) -> Vec<String> {
    let large = tree.large.iter();
    large
        .map(|(path, bytes)| format!("{path}: {bytes} bytes; git keeps no file above {LARGE}: take it out"))
        .collect()
}

/// Comments of Rust, C and CUDA sources that are wider than code may be; not those behind code.
fn wide_comments(tree: &Tree) -> impl Iterator<Item = String> {
    let sources = tree.files().filter(|(path, text)| source::is_code(path) && !is_generated(path, text));
    sources.flat_map(|(path, text)| {
        let left = source::uncommented(text);
        let lines = text.lines().zip(left.lines()).zip(1..).filter(|((_, left), _)| left.trim().is_empty());
        let wide =
            lines.map(|((line, _), at)| (line.chars().count(), at)).filter(|(width, _)| *width > COLUMNS);
        let tell = |(width, at)| format!("{path}:{at}: a comment of {width} columns, {COLUMNS} at most");
        wide.map(tell).collect::<Vec<_>>()
    })
}

/// Files, comments, functions and structures above their size.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut violations: Vec<String> = wide_comments(tree).collect();
    let mut wide = Vec::new();
    for (path, text) in tree.rust().filter(|(path, text)| !is_generated(path, text)) {
        let lines = text.lines().count();
        if lines > LONG {
            violations.push(format!("{path}: {lines} lines, {LONG} at most: take a unit out of it"));
        }
        if !NIC.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let code = source::code(text);
        for Item { line, kind, name, lines, public } in items(&code) {
            let at = format!("{path}:{line}: {kind} {name}");
            if kind == "fn" && lines > LONG_FUNCTION {
                violations.push(format!("{at} has {lines} lines, {LONG_FUNCTION} at most"));
            }
            if kind == "struct" && public > WIDE && !source::is_test_file(path) {
                match WIDE_ANYWAY.iter().find(|(file, known, _)| (*file, *known) == (path, name)) {
                    Some(known) => wide.push(known),
                    None => violations.push(format!("{at} has {public} public fields, {WIDE} at most")),
                }
            }
        }
    }
    let gone = WIDE_ANYWAY.iter().filter(|known| tree.get(known.0).is_some() && !wide.contains(known));
    violations.extend(gone.map(|(file, name, why)| {
        format!("{file}: {name} is not wide, and an exception ({why}): take it out of WIDE_ANYWAY")
    }));
    violations
}

/// A function or structure as rustfmt lays it out.
pub(super) struct Item<'a> {
    /// Counted from one.
    pub(super) line: usize,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) lines: usize,
    /// Public fields of a structure.
    public: usize,
}

/// The functions and structures; `code` is what [`source::code`] leaves.
pub(super) fn items(code: &str) -> Vec<Item<'_>> {
    let lines: Vec<&str> = code.lines().map(str::trim_end).collect();
    let mut items = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let mut words = line.split(|c| !source::is_name(c)).filter(|word| !word.is_empty());
        let is_before =
            |word: &&str| ["pub", "crate", "super", "const", "async", "unsafe", "extern"].contains(word);
        let Some(kind @ ("fn" | "struct")) = words.find(|word| !is_before(word)) else { continue };
        let Some(name) = words.next() else { continue };
        let is_end = |line: &&str| {
            let own = line.len() - line.trim_start().len();
            own == indent && (line.ends_with([';', '}']) || line.trim_start().starts_with('}'))
        };
        let Some(more) = lines[first..].iter().position(is_end) else { continue };
        let body = &lines[first..=first + more];
        let is_public = |line: &&&str| line.len() > indent + 4 && line[indent..].starts_with("    pub");
        let public = body.iter().filter(is_public).count();
        items.push(Item { line: first + 1, kind, name, lines: body.len(), public });
    }
    items
}

/// A line a crate, and their sum: non-test lines of .rs, .h and .cu files, with comments and blank lines,
/// without generated files.
pub fn report(tree: &Tree) -> String {
    let mut rows: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    let is_source = |path: &str| [".rs", ".h", ".cu"].iter().any(|end| path.ends_with(end));
    for (path, text) in tree.files().filter(|(path, text)| is_source(path) && !is_generated(path, text)) {
        let [sum, rust] = rows.entry(crate_of(tree, path)).or_default();
        let lines = source::without_tests(path, text).lines().count();
        *sum += lines;
        *rust += if path.ends_with(".rs") { lines } else { 0 };
    }
    let total = rows.values().fold([0; 2], |sum, row| std::array::from_fn(|at| sum[at] + row[at]));
    let rows = rows.into_iter().filter(|(_, row)| *row != [0; 2]).chain([("total".to_owned(), total)]);
    let line = |[name, sum, rust]: [&str; 3]| format!("{name:<28} {sum:>16} {rust:>12}");
    let title = line(["crate", "production lines", "of them Rust"]);
    let rows = rows.map(|(name, row)| line([&name, &row[0].to_string(), &row[1].to_string()]));
    [title].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

/// The folder of the nearest `Cargo.toml` above a file; its path's first folder if it has none.
fn crate_of(tree: &Tree, path: &str) -> String {
    let mut folder = path;
    while let Some((above, _)) = folder.rsplit_once('/') {
        if tree.get(&format!("{above}/Cargo.toml")).is_some() {
            return above.to_owned();
        }
        folder = above;
    }
    if folder == path { ".".to_owned() } else { folder.to_owned() }
}

fn is_generated(path: &str, text: &str) -> bool {
    path.contains("/generated/") || text.lines().take(5).any(|line| line.starts_with(" * Generated by "))
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
        let said = violations;
        assert_eq!(said, ["core: 1048577 bytes; git keeps no file above 1048576: take it out"]);
    }

    #[test]
    fn a_long_file_a_long_function_and_a_wide_structure_are_named() {
        let function = |name: &str, lines: usize| {
            format!(
                "    pub fn {name}(\n        a: u8,\n    ) {{\n{}    }}\n",
                "        f();\n".repeat(lines - 4)
            )
        };
        let implementation = format!("impl A {{\n{}{}}}\n", function("fits", 80), function("long", 81));
        let wide = |name: &str, fields: usize| {
            let fields: String =
                (0..fields).map(|n| format!("    /// x\n    pub(super) f{n}: u8,\n")).collect();
            format!("pub struct {name} {{\n    own: u8,\n{fields}}}\n")
        };
        let declared = "trait T {\n    fn declared(\n        a: u8,\n    );\n}\nfn short() {}\n";
        let nic = format!("//! x\n{declared}{implementation}{}{}", wide("Fits", 12), wide("Wide", 13));
        let (fits, long) = ("// x\n".repeat(LONG), "// x\n".repeat(LONG + 1));
        let known = wide("CqeFields", 13);
        let tree = Tree::of(&[
            ("crates/roce/src/a.rs", &nic),
            ("crates/roce/tests/it/a.rs", &nic),
            ("crates/gpu/src/a.rs", &nic),
            (
                "crates/gpu/kernels/b.cu",
                &format!(
                    "/* {}\n   {}\n */\nchar x[] = \"\\\n * {}\";\n",
                    "µ".repeat(107),
                    "µ".repeat(108),
                    "x".repeat(200)
                ),
            ),
            ("crates/gpu/src/fits.rs", &fits),
            ("crates/gpu/tests/long.rs", &long),
            ("crates/gpu/src/generated/long.rs", &long),
            ("crates/mlx5-layout/src/cqe.rs", &known),
            ("crates/soft-nic/src/rdma_cm/ids.rs", "pub struct Id {\n    pub a: u8,\n}\n"),
        ]);
        let wanted = [
            "crates/gpu/kernels/b.cu:2: a comment of 111 columns, 110 at most",
            "crates/gpu/tests/long.rs: 601 lines, 600 at most: take a unit out of it",
            "crates/roce/src/a.rs:89: fn long has 81 lines, 80 at most",
            "crates/roce/src/a.rs:198: struct Wide has 13 public fields, 12 at most",
            "crates/roce/tests/it/a.rs:89: fn long has 81 lines, 80 at most",
            "crates/soft-nic/src/rdma_cm/ids.rs: Id is not wide, and an exception (what the commands of a `struct \
             rdma_cm_id` set, one by one): take it out of WIDE_ANYWAY",
        ];
        assert_eq!(check(&tree), wanted);
    }

    #[test]
    fn production_lines_are_counted_by_crate_without_tests_and_generated_files() {
        let report = report(&Tree::of(&[
            ("crates/a/Cargo.toml", "[package]\n"),
            ("crates/a/src/lib.rs", "//! x\n\nfn f() {}\n#[cfg(test)]\nmod tests {\n}\n"),
            ("crates/a/src/b_tests.rs", "//! x\n"),
            ("crates/a/src/generated/c.rs", "//! x\n"),
            ("crates/a/include/d.h", "/* x\n */\n"),
            ("crates/a/include/e.h", "/*! x\n *\n * Generated by y.\n */\n"),
            ("crates/a/kernels/f.cu", "// x\n"),
            ("crates/a/tests/it/g.cu", "// x\n"),
            ("examples/h/h.cu", "// x\n"),
            ("docs/i.md", "x\n"),
        ]));
        let rows: Vec<Vec<&str>> =
            report.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows, [["crates/a", "6", "3"], ["examples", "1", "0"], ["total", "7", "3"]]);
    }
}
