//! Licences: what we use is on the allow list (`xtask/licences.toml`), and no GPL text is in the tree.

use anyhow::{Context, Result};
use serde::Deserialize;
use spdx::{Expression, LicenseReq, ParseMode};

use crate::workspace::{Metadata, Package, Tree};

const LIST: &str = "xtask/licences.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowList {
    allow: Vec<String>,
}

pub fn check(tree: &Tree, metadata: &Metadata) -> Result<Vec<String>> {
    let list = tree.get(LIST).context("xtask/licences.toml is missing")?;
    let list: AllowList = toml::from_str(list).context(LIST)?;
    Ok([packages(metadata, &list.allow), texts(tree)].concat())
}

fn packages(metadata: &Metadata, allow: &[String]) -> Vec<String> {
    let violation = |package: &Package| {
        let licence = package.license.as_deref().unwrap_or("no licence");
        (!satisfied(licence, allow))
            .then(|| format!("{} {}: `{licence}` is not allowed by {LIST}", package.name, package.version))
    };
    metadata.packages.iter().filter_map(violation).collect()
}

/// Whether an SPDX expression can be met by allowed licences alone; `/` is the old spelling of OR.
fn satisfied(expression: &str, allow: &[String]) -> bool {
    let mode = ParseMode { allow_unknown: true, allow_imprecise_license_names: false, ..ParseMode::LAX };
    let is_allowed = |licence: &LicenseReq| allow.contains(&licence.to_string());
    Expression::parse_mode(expression, mode).is_ok_and(|expression| expression.evaluate(is_allowed))
}

/// Sentences that only a GPL notice or licence text holds. Spelled in halves, so that this file holds none.
const NOTICES: [&str; 4] = [
    concat!("gnu general ", "public license"),
    concat!("gnu lesser general ", "public license"),
    concat!("gnu affero general ", "public license"),
    concat!("spdx-license-identifier: ", "gpl"),
];

fn texts(tree: &Tree) -> Vec<String> {
    let violation = |(path, text): (&str, &str)| {
        // Notices wrap; a licence text is found by its words in a row.
        let flat = text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
        let notice = NOTICES.iter().find(|notice| flat.contains(**notice))?;
        Some(format!("{path}: holds \"{notice}\""))
    };
    tree.files().filter_map(violation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_means_them() {
        let allowed =
            ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause"].map(str::to_owned);
        for (expression, met) in [
            ("MIT", true),
            ("MIT OR GPL-3.0", true),
            ("MIT AND GPL-3.0", false),
            ("MIT/Apache-2.0", true),
            ("(MIT OR GPL-3.0) AND Apache-2.0", true),
            ("(MIT AND GPL-3.0) OR Zlib", false),
            ("Apache-2.0 WITH LLVM-exception OR Zlib", true),
            ("MIT OR", false),
            ("(MIT", false),
            ("MIT MIT", false),
            // Each may be one of several.
            ("BSD", false),
            ("apache", false),
            ("mit", false),
            ("", false),
        ] {
            assert_eq!(satisfied(expression, &allowed), met, "{expression}");
        }
    }

    #[test]
    fn a_package_off_the_list_is_named() {
        let package = |name: &str, license: Option<&str>| Package {
            name: name.into(),
            version: "1.2.3".into(),
            license: license.map(str::to_owned),
            source: Some("registry".into()),
            dependencies: vec![],
            manifest_path: Default::default(),
        };
        let packages_of =
            vec![package("good", Some("MIT")), package("bad", Some("GPL-3.0")), package("silent", None)];
        let found = packages(&Metadata { packages: packages_of }, &["MIT".into()]);
        assert!(
            found.len() == 2 && found[0].starts_with("bad 1.2.3") && found[1].starts_with("silent"),
            "{found:?}"
        );
    }

    #[test]
    fn a_notice_in_the_tree_is_named_and_a_mention_is_not() {
        let notice = NOTICES[0].replace(' ', "\n * ").to_uppercase();
        let tree = Tree::of(&[("a.c", &notice.replace("\n * ", "\n ")), ("b.md", "No GPL here.")]);
        let found = texts(&tree);
        assert!(found.len() == 1 && found[0].to_string().starts_with("a.c"), "{found:?}");
    }
}
