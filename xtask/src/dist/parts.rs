//! What the programs are made of: crates of others and Rust's standard library, with their licences.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::process::said;
use crate::workspace::{self, Metadata};

/// A crate of others, or the standard library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    pub name: String,
    pub version: String,
    /// SPDX expression.
    pub licence: String,
    /// Where its source lies, or its terms alone.
    pub folder: PathBuf,
}

/// Beginnings of the names of files that hold terms.
const TEXTS: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "COPYRIGHT-LIBRARY"];

/// Rust's standard library as a part. It is linked into each program, and no package of cargo's.
const STD: &str = "rust-std";
/// Where it is published.
const DIST: &str = "https://static.rust-lang.org/dist";

/// What is linked into the programs of these packages.
pub fn of(metadata: &Metadata, packages: &[&str]) -> Result<Vec<Part>> {
    let mut cargo = workspace::cargo();
    cargo.args(["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    cargo.args(packages.iter().flat_map(|package| ["-p", package]));
    let mut parts = linked(metadata, &said(&mut cargo)?)?;
    parts.push(standard_library()?);
    Ok(parts)
}

/// The standard library of the toolchain that builds; its terms lie in the toolchain's documents.
fn standard_library() -> Result<Part> {
    let version = said(Command::new("rustc").arg("--version"))?;
    let version = version.split_whitespace().nth(1).context("rustc says no version")?.to_owned();
    let folder =
        Path::new(said(Command::new("rustc").args(["--print", "sysroot"]))?.trim()).join("share/doc/rust");
    let at = folder.display();
    ensure!(folder.is_dir(), "no {at}: a toolchain of rustup has the terms of Rust's library");
    Ok(Part { name: STD.into(), version, licence: "MIT OR Apache-2.0".into(), folder })
}

/// The crates of a listing, a line `NAME vVERSION …` each; ours have no source.
fn linked(metadata: &Metadata, listing: &str) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for line in listing.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let version = version.trim_start_matches('v');
        let found = metadata.packages.iter().find(|one| one.name == name && one.version == version);
        let package = found.with_context(|| format!("cargo metadata knows no {name} {version}"))?;
        if package.source.is_none() {
            continue;
        }
        let licence =
            package.license.clone().with_context(|| format!("{name} {version} states no licence"))?;
        let folder = package.manifest_path.parent().map(Path::to_owned).unwrap_or_default();
        parts.push(Part { name: name.to_owned(), version: version.to_owned(), licence, folder });
    }
    parts.sort();
    parts.dedup();
    Ok(parts)
}

/// Copies each crate's terms into a file of its name. A crate without such a file gets its SPDX expression.
pub fn licences(parts: &[Part], to: &Path) -> Result<()> {
    for part in parts {
        let names = workspace::names_in(&part.folder);
        let of_terms = names.iter().filter(|name| TEXTS.iter().any(|it| name.to_uppercase().starts_with(it)));
        let mut text = format!("{} {}: {}\n", part.name, part.version, part.licence);
        for name in of_terms {
            let path = part.folder.join(name);
            // Some keep a folder of terms; its crate names them.
            if path.is_file() {
                let terms = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                text.push_str(&format!("\n==== {name} ====\n\n{terms}"));
            }
        }
        fs::write(to.join(format!("{}-{}.txt", part.name, part.version)), text)?;
    }
    Ok(())
}

/// The list of parts as SPDX 2.3 has it.
pub fn spdx(parts: &[Part], version: &str) -> Result<String> {
    let id = |name: &str| {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        format!("SPDXRef-{}", name.chars().map(plain).collect::<String>())
    };
    let whole = json!({
        "name": "doorbell", "SPDXID": id("doorbell"), "versionInfo": version, "licenseConcluded": "Apache-2.0",
        "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
    });
    let of = |part: &Part| {
        let Part { name, version, licence, .. } = part;
        let (from, purl) = match name.as_str() {
            STD => (format!("{DIST}/rust-std-{version}-x86_64-unknown-linux-gnu.tar.xz"), "generic"),
            _ => (format!("https://crates.io/crates/{name}/{version}"), "cargo"),
        };
        json!({
            "name": name, "SPDXID": id(&format!("{name}-{version}")), "versionInfo": version,
            // `/` is the old spelling of OR.
            "licenseConcluded": licence.replace('/', " OR "), "filesAnalyzed": false,
            "downloadLocation": from,
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                "referenceLocator": format!("pkg:{purl}/{name}@{version}"),
            }],
        })
    };
    let contains = |part: &Part| {
        let to = id(&format!("{}-{}", part.name, part.version));
        json!({ "spdxElementId": id("doorbell"), "relationshipType": "CONTAINS", "relatedSpdxElement": to })
    };
    let describes = json!({
        "spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": id("doorbell"),
    });
    let document = json!({
        "spdxVersion": "SPDX-2.3", "SPDXID": "SPDXRef-DOCUMENT", "dataLicense": "CC0-1.0",
        "name": format!("doorbell-{version}"),
        "documentNamespace": format!("https://spdx.org/spdxdocs/doorbell-{version}"),
        // The same sources give the same bytes: the time of the build is no part of it.
        "creationInfo": { "created": "1970-01-01T00:00:00Z", "creators": ["Tool: cargo-xtask-dist"] },
        "packages": std::iter::once(whole).chain(parts.iter().map(of)).collect::<Vec<_>>(),
        "relationships": std::iter::once(describes).chain(parts.iter().map(contains)).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"packages": [
        {"name": "ours", "version": "0.0.0", "license": "Apache-2.0", "source": null, "dependencies": []},
        {"name": "b", "version": "1.0.0", "license": "MIT/Apache-2.0", "source": "x", "dependencies": [], "manifest_path": "/c/b/Cargo.toml"},
        {"name": "b", "version": "2.0.0", "license": null, "source": "x", "dependencies": []}
    ]}"#;

    #[test]
    fn crates_of_others_are_listed_once_with_their_licences() {
        let metadata: Metadata = serde_json::from_str(METADATA).unwrap();
        let parts = linked(&metadata, "ours v0.0.0 (/x)\nb v1.0.0\n\nb v1.0.0 (*)\n").unwrap();
        assert_eq!(parts.len(), 1);
        assert_eq!((parts[0].name.as_str(), parts[0].folder.as_path()), ("b", Path::new("/c/b")));
        let text: serde_json::Value = serde_json::from_str(&spdx(&parts, "1").unwrap()).unwrap();
        assert_eq!(text["packages"][1]["licenseConcluded"], "MIT OR Apache-2.0");
        assert_eq!(text["packages"][1]["SPDXID"], text["relationships"][1]["relatedSpdxElement"]);
        for (listing, why) in [("b v2.0.0", "b 2.0.0 states no licence"), ("c v1.0.0", "knows no c 1.0.0")] {
            let error = linked(&metadata, listing).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_standard_library_is_a_part_with_its_terms() {
        let parts = of(&Metadata::read(&workspace::root()).unwrap(), &["big-endian"]).unwrap();
        let part = parts.into_iter().next_back().unwrap();
        let to = std::env::temp_dir().join(format!("xtask-dist-std-{}", std::process::id()));
        fs::create_dir_all(&to).unwrap();
        licences(std::slice::from_ref(&part), &to).unwrap();
        let text = fs::read_to_string(to.join(format!("rust-std-{}.txt", part.version))).unwrap();
        assert!(["Permission is hereby granted", "Apache License"].iter().all(|words| text.contains(words)));
        let list: serde_json::Value = serde_json::from_str(&spdx(&[part], "1").unwrap()).unwrap();
        assert_eq!(list["packages"][1]["name"], "rust-std");
        assert!(!list["packages"][1].to_string().contains("crates.io"), "{list}");
        fs::remove_dir_all(to).unwrap();
    }

    #[test]
    fn each_crate_brings_its_terms() {
        let top = std::env::temp_dir().join(format!("xtask-dist-{}", std::process::id()));
        let (from, to) = (top.join("b"), top.join("licences"));
        fs::create_dir_all(from.join("LICENSES")).unwrap();
        fs::create_dir_all(&to).unwrap();
        fs::write(from.join("license-MIT"), "MIT terms\n").unwrap();
        fs::write(from.join("lib.rs"), "no terms\n").unwrap();
        let part = Part { name: "b".into(), version: "1.0.0".into(), licence: "MIT".into(), folder: from };
        licences(&[part], &to).unwrap();
        let text = fs::read_to_string(to.join("b-1.0.0.txt")).unwrap();
        assert_eq!(text, "b 1.0.0: MIT\n\n==== license-MIT ====\n\nMIT terms\n");
        fs::remove_dir_all(top).unwrap();
    }
}
