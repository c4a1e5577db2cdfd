//! Circles of files inside a crate: files that name each other's items in a loop, also through re-exports and
//! `super::`, or that call each other's methods of one type, by `self` or `Self`.
//!
//! Two searches: one follows names, the other names and calls. In the second, two kinds of names do not
//! count, because Rust needs them to split a type's methods over files. A file names the type whose methods
//! it has, and a child module names items of its parent. A method that is called on anything but `self` names
//! no file, and types of one name count as one.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{self, is_name};
use crate::workspace::Tree;

/// Re-exports of re-exports that are followed.
const MOST_DEEP: u32 = 8;

/// Names that a file uses of another.
type Names = BTreeSet<String>;
/// From a file to another.
type Arrows<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Names>>;

/// A file as a module of its crate.
struct Module<'a> {
    file: &'a str,
    /// Without comments, tests and `use` items.
    code: String,
    items: BTreeSet<String>,
    uses: Vec<Use>,
}

struct Use {
    path: Vec<String>,
    /// A re-export.
    is_public: bool,
}

/// The modules of a crate by their paths.
struct Modules<'a> {
    name: String,
    all: BTreeMap<Vec<String>, Module<'a>>,
}

/// Circles of files, each with the names that make it.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
    for (path, text) in tree.rust() {
        let Some((folder, inner)) = path.split_once("/src/") else { continue };
        let text = source::without_tests(path, text);
        let name = folder.rsplit('/').next().unwrap_or(folder).replace('-', "_");
        let modules = crates.entry(folder).or_insert_with(|| Modules { name, all: BTreeMap::new() });
        modules.all.insert(module_path(inner), Module::of(path, &source::code(text)));
    }
    let mut violations = Vec::new();
    for modules in crates.values() {
        let names = modules.names();
        let joined = modules.joined(&names);
        let of_both = circles(&joined);
        violations.extend(of_both.iter().map(|circle| in_words(circle, &joined)));
        let is_new = |circle: &&Vec<&str>| !of_both.iter().any(|known| known.contains(&circle[0]));
        violations.extend(circles(&names).iter().filter(is_new).map(|circle| in_words(circle, &names)));
    }
    violations
}

fn in_words(circle: &[&str], arrows: &Arrows<'_>) -> String {
    let mut said = format!("{}: a circle of {} files (INV-1)", circle[0], circle.len());
    for from in circle {
        for (to, names) in arrows[from].iter().filter(|(to, _)| circle.contains(to)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            said += &format!("\n    {from} → {to}: {}", names.join(", "));
        }
    }
    said
}

/// Sets of two or more files each of which reaches all the others.
fn circles<'a>(arrows: &Arrows<'a>) -> Vec<Vec<&'a str>> {
    let reached = |from: &'a str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            let there = arrows.get(at).into_iter().flat_map(BTreeMap::keys).copied();
            next.extend(there.filter(|to| seen.insert(*to)));
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = arrows.keys().map(|from| (*from, reached(from))).collect();
    let circle = |(from, there): (&&'a str, &BTreeSet<&'a str>)| {
        let back = |to: &&str| reached.get(to).is_some_and(|back| back.contains(from));
        there.iter().copied().filter(back).collect::<Vec<_>>()
    };
    let mut circles: Vec<Vec<&str>> =
        reached.iter().map(circle).filter(|circle| !circle.is_empty()).collect();
    circles.sort();
    circles.dedup();
    circles
}

/// Of `wire/mod.rs`: `wire`; of `lib.rs`: nothing.
fn module_path(inner: &str) -> Vec<String> {
    let mut path: Vec<String> = inner.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        path.pop();
    }
    path
}

impl<'a> Module<'a> {
    fn of(file: &'a str, code: &str) -> Module<'a> {
        let (mut kept, mut uses, mut from) = (String::new(), Vec::new(), 0);
        // An item of its own: a word at the beginning of a line, behind a visibility.
        let begins = |at: usize| {
            let line = code[..at].rsplit('\n').next().unwrap_or_default().trim_start();
            line.is_empty() || line.starts_with("pub") && line.ends_with(' ')
        };
        while let Some(at) = code[from..].find("use ").map(|found| from + found) {
            let Some(end) = code[at..].find(';').filter(|_| begins(at)).map(|found| at + found + 1) else {
                kept += &code[from..at + 4];
                from = at + 4;
                continue;
            };
            let is_public = code[..at].ends_with("pub ") || code[..at].ends_with(") ");
            uses.extend(source::use_paths(&code[at..end]).into_iter().map(|(_, path)| {
                let path = path.split("::").filter(|part| *part != "self" || path.starts_with("self"));
                Use { path: path.map(str::to_owned).collect(), is_public }
            }));
            kept += &code[from..at];
            from = end;
        }
        kept += &code[from..];
        let declares = |line: &&str| {
            line.ends_with(';')
                && (line.starts_with("mod ") || line.starts_with("pub") && line.contains(" mod "))
        };
        let kept: String =
            kept.lines().filter(|line| !declares(line)).flat_map(|line| [line, "\n"]).collect();
        let items = kept.lines().filter_map(item).collect();
        Module { file, code: kept, items, uses }
    }
}

/// The item that a line begins, outside of any block: rustfmt indents what is in one.
fn item(line: &str) -> Option<String> {
    const KINDS: [&str; 9] =
        ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules!"];
    let mut words = line.split(|c| !(is_name(c) || c == '!')).filter(|word| !word.is_empty());
    line.chars().next().filter(|first| first.is_alphabetic())?;
    words.find(|word| KINDS.contains(word))?;
    words.find(|word| !KINDS.contains(word)).map(str::to_owned)
}

/// The lines of `impl` blocks, each with the type and whether a trait is implemented.
fn impl_lines(code: &str) -> impl Iterator<Item = (&str, bool, &str)> {
    let mut of = None;
    code.lines().filter_map(move |line| {
        if let Some(head) = line.strip_prefix("impl") {
            // Behind the parameters, which may have bounds.
            let mut depth = 0;
            let begins = head.find(|c: char| {
                depth += i32::from(c == '<') - i32::from(c == '>');
                depth == 0 && c == ' '
            });
            let head = &head[begins.unwrap_or(0)..];
            let (is_trait, named) =
                head.split_once(" for ").map_or((false, head), |(_, named)| (true, named));
            let name = named.split(['<', '{', ' ']).find(|word| !word.is_empty()).unwrap_or_default();
            of = Some((name.rsplit(':').next().unwrap_or_default(), is_trait));
        }
        if line.starts_with('}') {
            of = None;
        }
        of.map(|(name, is_trait)| (name, is_trait, line))
    })
}

/// Paths of two parts or more in a text, as `a::b::c`.
fn paths(code: &str) -> impl Iterator<Item = Vec<String>> {
    let words = code.split(|c| !(is_name(c) || c == ':')).filter(|word| word.contains("::"));
    let parts = |word: &str| word.split("::").map(|part| part.trim_matches(':').to_owned()).collect();
    words.map(move |word| parts(word.trim_end_matches("::")))
}

impl<'a> Modules<'a> {
    fn names(&self) -> Arrows<'a> {
        let mut arrows: Arrows<'a> = BTreeMap::new();
        for (at, module) in &self.all {
            let to = arrows.entry(module.file).or_default();
            let used = |one: &&Use| {
                !one.is_public || one.path.last().is_some_and(|last| source::has_word(&module.code, last))
            };
            let named = module.uses.iter().filter(used).map(|one| one.path.clone());
            for path in named.chain(paths(&module.code)) {
                let Some(whole) = self.absolute(at, &path, MOST_DEEP) else { continue };
                if let Some(file) = self.file(&whole, MOST_DEEP).filter(|file| *file != module.file) {
                    to.entry(file).or_default().insert(path.last().cloned().unwrap_or_default());
                }
            }
            for there in module.uses.iter().filter_map(|one| self.behind_glob(at, one)) {
                let named = there.items.iter().filter(|item| source::has_word(&module.code, item)).cloned();
                let named: Names = named.filter(|_| there.file != module.file).collect();
                if !named.is_empty() {
                    to.entry(there.file).or_default().extend(named);
                }
            }
        }
        arrows
    }

    /// Calls by `self` or `Self` of methods of the same type that another file alone has.
    fn methods(&self) -> Arrows<'a> {
        let mut there: BTreeMap<[&str; 2], BTreeSet<&str>> = BTreeMap::new();
        for module in self.all.values() {
            for (of, _, line) in impl_lines(&module.code).filter(|(_, is_trait, _)| !is_trait) {
                // rustfmt indents a method by four.
                let words = line.strip_prefix("    ").filter(|line| !line.starts_with(' '));
                let mut words = words.unwrap_or_default().split(|c| !is_name(c));
                if let Some(name) = words.find(|word| *word == "fn").and_then(|_| words.next()) {
                    there.entry([of, name]).or_default().insert(module.file);
                }
            }
        }
        let mut arrows: Arrows<'a> = BTreeMap::new();
        for module in self.all.values() {
            let to = arrows.entry(module.file).or_default();
            for (of, _, line) in impl_lines(&module.code) {
                for call in ["self.", "Self::"].iter().flat_map(|by| line.split(by).skip(1)) {
                    let name = call.split(|c| !is_name(c)).next().unwrap_or_default();
                    let files = there.get(&[of, name]).filter(|_| call[name.len()..].starts_with('('));
                    let file = files.filter(|files| files.len() == 1).and_then(BTreeSet::first);
                    if let Some(file) = file.filter(|file| **file != module.file) {
                        to.entry(file).or_default().insert(format!("{of}::{name}"));
                    }
                }
            }
        }
        arrows
    }

    /// Calls of methods, and the names that count beside them.
    fn joined(&self, names: &Arrows<'a>) -> Arrows<'a> {
        let mut arrows = self.methods();
        for (at, module) in &self.all {
            let own: BTreeSet<&str> = impl_lines(&module.code).map(|(of, ..)| of).collect();
            let parent = at.split_last().and_then(|(_, parent)| self.all.get(parent));
            let others = names[module.file].iter().filter(|(to, _)| parent.is_none_or(|it| it.file != **to));
            for (to, named) in others {
                let named: Names =
                    named.iter().filter(|name| !own.contains(name.as_str())).cloned().collect();
                if !named.is_empty() {
                    arrows.entry(module.file).or_default().entry(to).or_default().extend(named);
                }
            }
        }
        arrows
    }

    /// A path as the crate's root would write it. `None`: it is not of this crate, or a local name.
    fn absolute(&self, at: &[String], path: &[String], deep: u32) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let deep = deep.checked_sub(1)?;
        let up = path.iter().take_while(|part| *part == "super").count();
        match first.as_str() {
            "crate" => return Some(rest.to_vec()),
            "self" => return Some([at, rest].concat()),
            "super" => return Some([at.get(..at.len().checked_sub(up)?)?, &path[up..]].concat()),
            own if own == self.name => return Some(rest.to_vec()),
            _ => {}
        }
        let (module, here) = (self.all.get(at)?, [at, path].concat());
        if module.items.contains(first) || self.all.contains_key(&here[..=at.len()]) {
            return Some(here);
        }
        let named = module.uses.iter().filter(|one| one.path.len() > 1 && one.path.last() == Some(first));
        let named =
            named.filter_map(|one| Some([self.absolute(at, &one.path, deep)?, rest.to_vec()].concat()));
        named.chain(self.through_globs(at, path, deep)).next()
    }

    /// The module all of whose items a `use a::*` takes.
    fn behind_glob(&self, at: &[String], one: &Use) -> Option<&Module<'a>> {
        let (_, path) = one.path.split_last().filter(|(last, _)| *last == "*" && !one.is_public)?;
        self.all.get(&self.absolute(at, path, MOST_DEEP)?)
    }

    /// What a path is behind each `use a::*` of a module.
    fn through_globs(&self, at: &[String], path: &[String], deep: u32) -> Vec<Vec<String>> {
        let uses = self.all.get(at).into_iter().flat_map(|module| &module.uses);
        let globs = uses.filter(|one| one.path.last().is_some_and(|last| last == "*"));
        let whole = globs.filter_map(|one| {
            let mut whole = self.absolute(at, &one.path, deep)?;
            whole.pop();
            Some([whole, path.to_vec()].concat())
        });
        whole.filter(|whole| self.file(whole, deep).is_some()).collect()
    }

    /// The file of an item. `None`: the path is of a module, or of nothing that is known.
    fn file(&self, whole: &[String], deep: u32) -> Option<&'a str> {
        let deep = deep.checked_sub(1)?;
        let long = (0..whole.len()).rev().find(|length| self.all.contains_key(&whole[..*length]))?;
        if self.all.contains_key(whole) {
            return None;
        }
        let (at, rest) = whole.split_at(long);
        let module = &self.all[at];
        if module.items.contains(&rest[0]) {
            return Some(module.file);
        }
        self.file(&self.absolute(at, rest, deep)?, deep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files))
    }

    #[test]
    fn a_circle_through_super_a_re_export_and_a_glob_is_named_with_its_names() {
        let files = [
            (
                "crates/n-c/src/lib.rs",
                "mod a;\nmod b;\nmod c;\npub use b::deep::Inner as _;\npub use b::deep::Inner;\n",
            ),
            ("crates/n-c/src/a.rs", "use super::Inner;\n\npub const WIDTH: u32 = 3;\nstruct A(Inner);\n"),
            ("crates/n-c/src/b/mod.rs", "pub mod deep;\n"),
            (
                "crates/n-c/src/b/deep.rs",
                "pub struct Inner;\nfn width() -> u32 {\n    n_c::c::hand::WIDTH\n}\n",
            ),
            ("crates/n-c/src/c/mod.rs", "pub mod hand;\n"),
            ("crates/n-c/src/c/hand.rs", "pub use crate::a::*;\n"),
        ];
        let found = found(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        for words in [
            "crates/n-c/src/a.rs: a circle of 2",
            "a.rs → crates/n-c/src/b/deep.rs: Inner",
            "deep.rs → crates/n-c/src/a.rs: WIDTH",
        ] {
            assert!(found[0].contains(words), "{words}: {found:?}");
        }
    }

    #[test]
    fn a_circle_through_a_glob_of_what_lies_above_is_named_and_a_declared_module_is_no_name() {
        let files = [
            (
                "x/src/a/mod.rs",
                "mod b;\nmod shape;\npub use b::B;\npub use shape::shape;\npub struct A(b::B);\n",
            ),
            ("x/src/a/b.rs", "use super::*;\npub struct B;\nfn of(a: &A) {}\n"),
            ("x/src/a/shape.rs", "use super::A;\npub fn shape(a: &A) {}\n"),
        ];
        let found = found(&files);
        assert!(found.len() == 1 && found[0].contains("a circle of 2"), "{found:?}");
        assert!(found[0].contains("b.rs → x/src/a/mod.rs: A"), "{found:?}");
    }

    #[test]
    fn a_circle_of_one_type_s_methods_in_two_files_is_named() {
        let above = "mod below;\npub struct A<T: Copy>(T);\nimpl<T: Copy> A<T> {\n    pub fn begin(&self) {\n        self.end()\n    }\n\n    \
                     fn fact(&self) {}\n}\nimpl<T> B<T> {\n    fn own(&self) {}\n}\n";
        let below = |call: &str| {
            format!(
                "use super::A;\nimpl<T: Copy> A<T> {{\n    pub(super) fn end(&self) {{\n        self.{call}()\n    }}\n}}\n"
            )
        };
        let found = |call: &str| found(&[("x/src/a.rs", above), ("x/src/a/below.rs", &below(call))]);
        assert!(found("own").is_empty(), "{:?}", found("own"));
        let circle = found("fact");
        assert!(circle.len() == 1 && circle[0].contains("a/below.rs → x/src/a.rs: A::fact"), "{circle:?}");
    }

    #[test]
    fn a_circle_of_one_method_and_one_name_is_named() {
        let [core, begin] =
            ["pub struct Core;\n", "impl Core {\n    fn begin(&self) {\n        self.end()\n    }\n}\n"];
        let end = "impl Core {\n    pub(super) fn end(&self) {}\n}\n";
        let found = |[of_a, of_b]: [&str; 2]| {
            let use_core = "use super::core::Core;\n";
            let [a, b] = [[use_core, of_a, begin].concat(), [use_core, of_b, end].concat()];
            found(&[("x/src/core.rs", core), ("x/src/a.rs", &a), ("x/src/b.rs", &b)])
        };
        assert!(found(["pub const MOST: u32 = 3;\n", ""]).is_empty());
        let child = "use super::{A, MOST};\nimpl A {\n    fn end(&self) {}\n}\n";
        let parent = "mod b;\npub const MOST: u32 = 3;\npub struct A;\nimpl A {\n    fn begin(&self) {\n        self.end()\n    }\n}\n";
        assert!(
            check(&Tree::of(&[("x/src/a.rs", parent), ("x/src/a/b.rs", child)])).is_empty(),
            "a parent and its child"
        );
        let circle = found(["pub const MOST: u32 = 3;\n", "use super::a::MOST;\n"]);
        for words in ["a.rs → x/src/b.rs: Core::end", "b.rs → x/src/a.rs: MOST"] {
            assert!(circle.len() == 1 && circle[0].contains(words), "{words}: {circle:?}");
        }
    }

    #[test]
    fn tests_comments_methods_and_declared_modules_make_no_circle() {
        let files = [
            ("crates/n/src/lib.rs", "mod a;\nmod b;\npub use a::A;\n/// [`b::B`]\npub struct Root;\n"),
            (
                "crates/n/src/a.rs",
                "use crate::Root;\npub struct A(Root);\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n",
            ),
            ("crates/n/src/b.rs", "use crate::a::A;\npub struct B(A);\nfn f(a: &A) {\n    a.fate()\n}\n"),
        ];
        assert!(found(&files).is_empty(), "{:?}", found(&files));
    }
}
