//! Which crate may use which (INV-1): `cargo metadata` and module imports by ARCHITECTURE.md's two tables.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::{markdown, source};
use crate::workspace::{Metadata, Tree};

const MAP: &str = "ARCHITECTURE.md";

/// Of a package: its floor, and which ones it may use.
type Rows = BTreeMap<String, (u32, Vec<String>)>;

/// Packages against the arrow table, modules against the module table.
pub fn check(tree: &Tree, metadata: &Metadata) -> Result<Vec<String>> {
    let map = tree.get(MAP).context("ARCHITECTURE.md is missing")?;
    let rows = arrow_table(map)?;
    let mut violations = package_arrows(&rows, metadata);
    for row in markdown::table(map, "module").context("ARCHITECTURE.md: no table with the header `module`")? {
        let (module, never) = (row[0].trim_matches('`'), row.get(1).map_or("", String::as_str));
        match never.strip_prefix(ROOMS) {
            Some(rooms) => violations.extend(room_arrows(tree, module, rooms)),
            None => violations.extend(module_arrows(tree, module, never)),
        }
    }
    Ok(violations)
}

/// The entries of a cell, apart by commas, with or without backticks.
fn list(cell: &str) -> Vec<&str> {
    cell.split(',').map(|one| one.trim().trim_matches('`')).filter(|one| !one.is_empty()).collect()
}

fn arrow_table(map: &str) -> Result<Rows> {
    let rows = markdown::table(map, "crate").context("ARCHITECTURE.md: no table with the header `crate`")?;
    let row = |cells: Vec<String>| {
        let floor = cells.get(1).and_then(|cell| cell.parse().ok());
        let floor = floor.with_context(|| format!("ARCHITECTURE.md: `{}` has no floor", cells[0]))?;
        let may_use = list(cells.get(2).map_or("", String::as_str)).into_iter().map(str::to_owned).collect();
        Ok((cells[0].clone(), (floor, may_use)))
    };
    rows.into_iter().map(row).collect()
}

fn package_arrows(rows: &Rows, metadata: &Metadata) -> Vec<String> {
    let ours = || metadata.packages.iter().filter(|package| package.source.is_none());
    let mut violations = Vec::new();
    for gone in rows.keys().filter(|name| ours().all(|package| package.name != **name)) {
        violations.push(format!("{MAP}: the arrow table lists `{gone}`, which is no package"));
    }
    for package in ours() {
        let Some((floor, may_use)) = rows.get(&package.name) else {
            violations.push(format!("{MAP}: the arrow table lacks `{}`", package.name));
            continue;
        };
        for used in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
            let place = format!("{} → {}", package.name, used.name);
            let lower = rows.get(&used.name).is_some_and(|(used, _)| used < floor);
            // Tests may look deeper: `measure` (for `need!`) and any lower crate's `testing` feature.
            if used.kind.as_deref() == Some("dev") {
                if used.name != "measure" && !lower && used.name != package.name {
                    let rule = "a dev-dependency must be `measure` or lie on a lower floor (INV-1)";
                    violations.push(format!("{place}: {rule}"));
                }
                continue;
            }
            if !may_use.contains(&used.name) {
                violations.push(format!("{place}: the arrow table does not allow this (INV-1)"));
            } else if !lower {
                violations.push(format!("{place}: arrows go to a lower floor only (INV-1)"));
            }
        }
    }
    violations
}

/// What a module's row says when it must not name anything of its crate outside itself.
const SIBLINGS: &str = "crate::*";

/// A whole crate's row begins with this, then its modules from the ground up: none names those after it.
const ROOMS: &str = "from the ground up: ";

fn room_arrows(tree: &Tree, source: &str, rooms: &str) -> Vec<String> {
    let rooms = list(rooms);
    let mut violations = Vec::new();
    for (place, room) in rooms.iter().enumerate() {
        let above = |room: &&str| format!("crate::{}", room.trim_end_matches(".rs"));
        let never: Vec<String> = rooms[place + 1..].iter().map(above).collect();
        violations.extend(module_arrows(tree, &format!("{source}/{room}"), &never.join(",")));
    }
    violations
}

/// `module`: a folder or file; `never`: module paths it must not name, in backticks or bare, comma-separated,
/// or `crate::*` for all but its own.
fn module_arrows(tree: &Tree, module: &str, never: &str) -> Vec<String> {
    let never = list(never);
    let mut violations = Vec::new();
    if !tree.holds(module) {
        violations.push(format!("{MAP}: the module table lists `{module}`, which is not there"));
    }
    let inside =
        |path: &str| path == module || path.starts_with(&format!("{}/", module.trim_end_matches('/')));
    for (path, text) in tree.rust().filter(|(path, _)| inside(path)) {
        let code = source::code(source::without_tests(path, text));
        let used = source::use_paths(&code);
        let inner = path.strip_prefix(module).map_or(0, |inner| inner.split('/').count() - 1);
        let depth = if path.ends_with("/mod.rs") { inner - 1 } else { inner };
        for (index, line) in code.lines().enumerate() {
            let mut say = |what: &str| {
                violations.push(format!("{path}:{}: {module} must not name {what} (INV-1)", index + 1));
            };
            if never.contains(&SIBLINGS) && leaves(line, module, depth) {
                say("what lies beside it");
            }
            let imports = |never: &str| {
                let below = |path: &str| {
                    path.strip_prefix(never).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
                };
                used.iter().any(|(at, path)| *at == index && below(path))
            };
            never.iter().filter(|never| names(line, never) || imports(never)).for_each(|never| say(never));
        }
    }
    violations
}

/// Whether a line of code names the module `path`, spelled out or in a `use crate::{…}` of one line.
fn names(line: &str, path: &str) -> bool {
    let Some(last) = path.strip_prefix("crate::") else { return source::has_word(line, path) };
    source::has_word(line, path)
        || line.contains("crate::{") && source::has_word(line, last)
        || line.contains(&format!("super::{last}::"))
}

/// Whether a line of code, `depth` modules below `module`, names something of its crate outside `module`.
fn leaves(line: &str, module: &str, depth: usize) -> bool {
    let own =
        module.split_once("/src/").map_or("", |(_, own)| own).trim_end_matches(".rs").replace('/', "::");
    let foreign = |(at, word): (usize, &str)| {
        let below = line[at + word.len()..].strip_prefix(own.as_str());
        !line[..at].ends_with(source::is_name) && below.is_none_or(|below| below.starts_with(source::is_name))
    };
    line.match_indices("crate::").any(foreign) || line.contains(&"super::".repeat(depth + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::{Dependency, Package};

    const TABLE: &str = "| crate | floor | may use | notable |\n|---|---|---|---|\n\
        | bytes | 1 | | x |\n| measure | 1 | | |\n| verbs | 2 | bytes | |\n| app | 5 | verbs, peer | |\n| peer | 5 | | |\n";

    fn package(name: &str, uses: &[(&str, Option<&str>)]) -> Package {
        let dependencies = uses.iter().map(|(name, kind)| Dependency {
            name: (*name).into(),
            kind: kind.map(str::to_owned),
            path: Some("x".into()),
        });
        Package {
            name: name.into(),
            version: "0.0.0".into(),
            license: None,
            source: None,
            dependencies: dependencies.collect(),
            manifest_path: Default::default(),
        }
    }

    fn found(changed: Package) -> Vec<String> {
        let mut packages: Vec<Package> =
            ["bytes", "measure", "verbs", "app", "peer"].map(|name| package(name, &[])).into();
        packages.retain(|package| package.name != changed.name);
        packages.push(changed);
        let rows = arrow_table(TABLE).unwrap();
        package_arrows(&rows, &Metadata { packages })
    }

    #[test]
    fn an_allowed_arrow_passes() {
        assert!(found(package("verbs", &[("bytes", None), ("measure", Some("dev"))])).is_empty());
        assert!(found(package("app", &[("bytes", Some("dev"))])).is_empty());
    }

    #[test]
    fn each_wrong_arrow_is_named() {
        for (changed, place) in [
            (package("bytes", &[("verbs", None)]), "bytes → verbs"),
            (package("verbs", &[("measure", Some("build"))]), "verbs → measure"),
            (package("bytes", &[("verbs", Some("dev"))]), "bytes → verbs"),
            (package("app", &[("peer", None)]), "app → peer"),
            (package("stranger", &[]), "the arrow table lacks `stranger`"),
        ] {
            let found = found(changed);
            assert!(found.len() == 1 && found[0].contains(place), "{place}: {found:?}");
        }
    }

    #[test]
    fn a_row_without_a_package_is_named() {
        let found = package_arrows(&arrow_table(TABLE).unwrap(), &Metadata { packages: vec![] });
        assert_eq!(found.len(), 5);
    }

    #[test]
    fn a_module_that_looks_up_is_named() {
        let tree = Tree::of(&[
            (
                "crates/nic/src/dma/host.rs",
                "use crate::dma::Fault;\n// crate::device in a comment\nuse crate::device::Qp;\n",
            ),
            ("crates/nic/src/dma/gpu.rs", "use crate::{device, link};\n"),
            ("crates/nic/src/dma/move.rs", "use crate::{\n    dma::Fault,\n    device::{self, Qp},\n};\n"),
            ("crates/nic/src/device/qp.rs", "use crate::dma::Memory;\n"),
        ]);
        let found = module_arrows(&tree, "crates/nic/src/dma", "`crate::device`, `crate::abi`");
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found[2].starts_with("crates/nic/src/dma/move.rs:3:")
                && found[0].starts_with("crates/nic/src/dma/gpu.rs:1:")
                && found[1].starts_with("crates/nic/src/dma/host.rs:3:")
        );
        assert_eq!(module_arrows(&tree, "crates/gone", "crate::x").len(), 1);
    }

    #[test]
    fn a_room_that_looks_up_is_named_and_one_that_looks_down_is_not() {
        let tree = Tree::of(&[
            ("crates/nic/src/config.rs", "use crate::os::Page;\n"),
            ("crates/nic/src/os/page.rs", "use crate::config::Config;\nuse crate::abi::{self, Mr};\n"),
            ("crates/nic/src/abi/mr.rs", "use crate::os::Page;\nuse crate::config::Config;\n"),
        ]);
        let found = room_arrows(&tree, "crates/nic/src", "`config.rs`, `os`, `abi`, `gone`");
        assert_eq!(found.len(), 3, "{found:?}");
        for (at, found) in
            ["nic/src/config.rs:1:", "nic/src/os/page.rs:2:", "nic/src/gone"].iter().zip(&found)
        {
            assert!(found.contains(at), "{found}");
        }
    }

    #[test]
    fn a_module_that_looks_beside_itself_is_named() {
        let tree = Tree::of(&[
            (
                "crates/roce/src/wire/bth.rs",
                "use super::psn::Psn;\nuse crate::Psn;\nuse super::super::Now;\n",
            ),
            ("crates/roce/src/wire/mod.rs", "pub use psn::Psn;\nuse super::Now;\nuse crate::{wire, Now};\n"),
            ("crates/roce/src/wire/cm/req.rs", "use super::super::Gid;\nuse crate::wire::mad;\n"),
            ("crates/roce/src/wired.rs", "use crate::Now;\n"),
        ]);
        let found = module_arrows(&tree, "crates/roce/src/wire", "`crate::*`");
        assert_eq!(found.len(), 4, "{found:?}");
        for (at, found) in ["bth.rs:2:", "bth.rs:3:", "mod.rs:2:", "mod.rs:3:"].iter().zip(&found) {
            assert!(found.starts_with(&format!("crates/roce/src/wire/{at}")), "{found}");
        }
    }
}
