//! A Debian package of the NIC, from the tarball: `softnic`, library, manual, completions, shim headers.
//!
//! Follows deb-control(5) and dpkg-deb(1); `lintian` checks it where it is installed. Left out: the tarball's
//! other programs, whose names are too common for `/usr/bin`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::LIBRARY;
use super::target::{GLIBC, pkg_config};
use crate::files;
use crate::process::said;
use crate::workspace::names_in;

const NAME: &str = "softnic";
/// Debian and Ubuntu search these folders: pages, and completions by shell.
const MAN: &str = "usr/share/man/man1";
const COMPLETIONS: [(&str, &str); 3] = [
    ("share/bash-completion/completions/softnic.bash", "usr/share/bash-completion/completions/softnic"),
    ("share/zsh/site-functions/_softnic", "usr/share/zsh/vendor-completions/_softnic"),
    ("share/fish/vendor_completions.d/softnic.fish", "usr/share/fish/vendor_completions.d/softnic.fish"),
];
const DOC: &str = "usr/share/doc/softnic";

/// Time of files and changelog: the same files give the same package. 2000-01-01, since none may be of 1970.
const EPOCH: (&str, &str) = ("946684800", "Sat, 01 Jan 2000 00:00:00 +0000");
const MAINTAINER: &str = "The Doorbell authors <doorbell@noreply.github.com>";

/// Its file in that folder.
pub(super) fn file(folder: &Path, version: &str) -> PathBuf {
    folder.join(format!("{NAME}_{version}_amd64.deb"))
}

/// Makes the package of what lies in `folder`. `None`: this system has no dpkg-deb.
pub(super) fn pack(out: &Path, folder: &Path, version: &str) -> Result<Option<PathBuf>> {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        return Ok(None);
    }
    let stage = out.join("softnic-deb");
    files::remove(&stage)?;
    fill(&stage, folder, version).with_context(|| format!("filling {}", stage.display()))?;
    // Whatever the umask is.
    said(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(&stage))?;
    let package = file(out, version);
    let mut build = Command::new("dpkg-deb");
    // Not zstd, Ubuntu's default, which Debian 11 cannot read.
    build.args(["--root-owner-group", "-Zxz", "--build"]).args([&stage, &package]);
    said(build.env("SOURCE_DATE_EPOCH", EPOCH.0))?;
    files::remove(&stage)?;
    Ok(Some(package))
}

/// What lintian finds to be an error, if it is installed.
pub(super) fn lint(package: &Path) -> Result<Option<String>> {
    if Command::new("lintian").arg("--version").output().is_err() {
        return Ok(None);
    }
    let mut lintian = Command::new("lintian");
    said(lintian.args(["--fail-on", "error"]).arg(package)).map(Some)
}

fn fill(stage: &Path, folder: &Path, version: &str) -> Result<()> {
    let put = |from: &str, to: &str| files::copy(&folder.join(from), &stage.join(to));
    for (name, to, mode) in [("softnic", "usr/bin", 0o755), (LIBRARY, "usr/lib/softnic", 0o644)] {
        put(name, &format!("{to}/{name}"))?;
        fs::set_permissions(stage.join(to).join(name), fs::Permissions::from_mode(mode))?;
    }
    for name in names_in(&folder.join("include")) {
        put(&format!("include/{name}"), &format!("usr/include/doorbell/{name}"))?;
    }
    for name in names_in(&folder.join("share/man/man1")) {
        let page = name.strip_suffix(".1").unwrap_or(&name);
        if page == NAME || page.starts_with("softnic-") {
            put(&format!("share/man/man1/{name}"), &format!("{MAN}/{name}"))?;
            said(Command::new("gzip").arg("-9n").arg(stage.join(MAN).join(&name)))?;
        }
    }
    for (from, to) in COMPLETIONS {
        put(from, to)?;
    }
    for name in names_in(&folder.join("licences")) {
        put(&format!("licences/{name}"), &format!("{DOC}/licences/{name}"))?;
    }
    put("parts.spdx.json", &format!("{DOC}/parts.spdx.json"))?;
    let pkg_config = pkg_config(version).replace("/include\n", "/include/doorbell\n");
    files::write(&stage.join("usr/share/pkgconfig/doorbell.pc"), &pkg_config)?;
    files::write(&stage.join(DOC).join("copyright"), COPYRIGHT)?;
    let change = format!(
        "{NAME} ({version}) unstable; urgency=medium\n\n  * Made by cargo xtask dist.\n\n -- {MAINTAINER}  {}\n",
        EPOCH.1
    );
    files::write(&stage.join(DOC).join("changelog"), &change)?;
    said(Command::new("gzip").arg("-9n").arg(stage.join(DOC).join("changelog")))?;
    let sizes = files::below(stage, &[])?.into_iter().map(|file| Ok(fs::metadata(stage.join(file))?.len()));
    let kib = sizes.sum::<Result<u64>>()?.div_ceil(1024);
    files::write(&stage.join("DEBIAN/control"), &control(version, kib))
}

const COPYRIGHT: &str = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Doorbell
Comment: licences/ beside this file has the terms of the crates that are linked in, parts.spdx.json their list.

Files: *
Copyright: 2026 The Doorbell authors
License: Apache-2.0
 /usr/share/common-licenses/Apache-2.0 has the text on Debian systems.
";

fn control(version: &str, installed_kib: u64) -> String {
    format!(
        "Package: {NAME}\nVersion: {version}\nArchitecture: amd64\nMaintainer: {MAINTAINER}\nInstalled-Size: {installed_kib}\n\
         Depends: libc6 (>= {}.{}), libgcc-s1, libibverbs1, ibverbs-providers\nSection: net\nPriority: optional\n\
         Description: software ConnectX beneath an unmodified libibverbs and libmlx5\n \
         RDMA programs run and are tested without a card, a kernel module or root:\n \
         softnic run -- ibv_devinfo. The headers in /usr/include/doorbell post\n \
         requests to mlx5 queues without libmlx5, on the host and in CUDA kernels.\n",
        GLIBC.0, GLIBC.1
    )
}

#[cfg(test)]
mod tests {
    use measure::need;

    use super::*;

    fn stand_ins(folder: &Path) {
        for (name, text) in [
            ("softnic", "#!/bin/sh\necho \"stand-in $@\"\n"),
            (LIBRARY, "library"),
            ("include/doorbell.h", "int x;\n"),
            ("share/man/man1/softnic.1", "page"),
            ("share/man/man1/softnic-run.1", "page"),
            ("share/man/man1/generator.1", "another program's"),
            (COMPLETIONS[0].0, "bash"),
            (COMPLETIONS[1].0, "zsh"),
            (COMPLETIONS[2].0, "fish"),
            ("licences/clap-4.txt", "MIT"),
            ("parts.spdx.json", "{}"),
        ] {
            files::write(&folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn the_package_holds_the_nic_its_manual_and_the_headers_and_is_made_the_same_twice() {
        let known = || {
            Command::new("dpkg-deb").arg("--version").output().map(drop).map_err(|error| error.to_string())
        };
        need!(known(), dpkg_deb, "dpkg-deb");
        let out = std::env::temp_dir().join(format!("xtask-dist-deb-{}", std::process::id()));
        let folder = out.join("files");
        stand_ins(&folder);
        let package = pack(&out, &folder, "1.2+ab").unwrap().expect("dpkg-deb is here");
        let first = fs::read(&package).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert!(
            fs::read(pack(&out, &folder, "1.2+ab").unwrap().unwrap()).unwrap() == first,
            "the same files"
        );
        assert!(package.ends_with("softnic_1.2+ab_amd64.deb"), "{}", package.display());
        let fields = said(Command::new("dpkg-deb").arg("--field").arg(&package)).unwrap();
        for field in [
            "Package: softnic",
            "Version: 1.2+ab",
            "Depends: libc6 (>= 2.31), libgcc-s1, libibverbs1, ibverbs-providers",
        ] {
            assert!(fields.lines().any(|line| line == field), "{field}: {fields}");
        }
        let listed = said(Command::new("dpkg-deb").arg("--contents").arg(&package)).unwrap();
        let is_listed = |mode: &str, path: &str| {
            listed.lines().any(|line| {
                line.starts_with(&format!("{mode} root/root ")) && line.ends_with(&format!(" ./{path}"))
            })
        };
        for (mode, path) in [
            ("-rwxr-xr-x", "usr/bin/softnic"),
            ("-rw-r--r--", &format!("usr/lib/softnic/{LIBRARY}")),
            ("-rw-r--r--", "usr/include/doorbell/doorbell.h"),
            ("-rw-r--r--", "usr/share/man/man1/softnic-run.1.gz"),
            ("-rw-r--r--", COMPLETIONS[0].1),
            ("-rw-r--r--", COMPLETIONS[1].1),
            ("-rw-r--r--", COMPLETIONS[2].1),
            ("-rw-r--r--", "usr/share/pkgconfig/doorbell.pc"),
            ("-rw-r--r--", "usr/share/doc/softnic/copyright"),
        ] {
            assert!(is_listed(mode, path), "{mode} {path}: {listed}");
        }
        assert!(!listed.contains("generator"), "{listed}");
        let there = out.join("there");
        said(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&there)).unwrap();
        assert_eq!(said(Command::new(there.join("usr/bin/softnic")).arg("run")).unwrap(), "stand-in run\n");
        let found = fs::read_to_string(there.join("usr/share/pkgconfig/doorbell.pc")).unwrap();
        assert!(
            found.contains("prefix=${pcfiledir}/../..\n") && found.contains("-I${prefix}/include/doorbell\n"),
            "{found}"
        );
        fs::remove_dir_all(out).unwrap();
    }
}
