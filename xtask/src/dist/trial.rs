//! Tarball and Debian package in another distribution's root: unpacked, installed, and used by its programs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::files;
use crate::process::{Ended, done, last_words, output, run_logged};
use crate::refused::refused;
use crate::workspace::target_dir;

/// Programs of the root that are run on the NIC.
const WANTED: [&str; 2] = ["usr/bin/ibv_devinfo", "usr/bin/ib_write_bw"];
/// Longer than both take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Debian 11, whose glibc is the oldest that the programs run on, with the programs of others.
const DEBOOTSTRAP: [&str; 4] =
    ["debootstrap", "--variant=minbase", "--include=ibverbs-utils,perftest", "bullseye"];
/// Longest that it may take to fetch and unpack its packages.
const MAKING: Duration = Duration::from_secs(20 * 60);

/// Run in the unpacked folder: the manual is there, a device shown as a ConnectX-7, WRITEs between processes.
const STEPS: &str = "set -e
test -s share/man/man1/softnic-run.1 -a -s share/bash-completion/completions/softnic.bash
./softnic run --model cx7 -- ibv_devinfo
./softnic run -- ib_write_bw > /tmp/server.log 2>&1 & server=$!
for try in $(seq 100); do ./softnic run -- ib_write_bw 127.0.0.1 && break; sleep 0.1; done
wait $server";

/// The package, `$deb`: installed, used by its name, and removed without a trace.
const PACKAGE_STEPS: &str = "
dpkg --install \"$deb\"
test -s /usr/share/man/man1/softnic-run.1.gz -a -s /usr/include/doorbell/doorbell.h -a -s /usr/share/pkgconfig/doorbell.pc
cd / && softnic run --model cx7 -- ibv_devinfo > /tmp/packaged.txt
grep -q PORT_ACTIVE /tmp/packaged.txt && echo PACKAGED
dpkg --purge softnic
test ! -e /usr/bin/softnic -a ! -e /usr/lib/softnic -a ! -e /usr/include/doorbell && echo PURGED";

/// Makes such a root. A cut or failed attempt leaves none.
pub fn make(root: &Path) -> Result<()> {
    let mut beside = root.as_os_str().to_owned();
    beside.push(".part");
    files::remove(Path::new(&beside))?;
    let log = target_dir().join("xtask-test/debootstrap.log");
    say!("making {} by debootstrap (log: {})", root.display(), log.display());
    // What it mounts in the root goes with it, however it ends.
    let mut debootstrap = Command::new("unshare");
    debootstrap.arg("--mount").args(DEBOOTSTRAP).arg(&beside);
    let (ended, at) = (run_logged(&mut debootstrap, &log, MAKING)?, log.display());
    ensure!(ended == Ended::Well, "debootstrap {ended}: {} (whole log: {at})", last_words(&log));
    fs::rename(&beside, root).with_context(|| format!("naming {}", root.display()))
}

/// Refuses what is no such root.
pub fn check(root: &Path) -> Result<()> {
    for wanted in WANTED {
        if !root.join(wanted).exists() {
            let (root, makes) = (root.display(), DEBOOTSTRAP.join(" "));
            return Err(refused(format!(
                "--try-in {root}: it has no /{wanted}; give a folder that does not exist yet, or one that was made with: {makes} {root}"
            )));
        }
    }
    Ok(())
}

/// Unpacks and runs it there, and installs the package, if there is one.
pub fn run(root: &Path, tarball: &Path, name: &str, package: Option<&Path>) -> Result<()> {
    let place = root.join("tmp");
    let _ = fs::remove_dir_all(place.join(name));
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(tarball).arg("-C").arg(&place);
    done(&mut tar).with_context(|| format!("unpacking into {}", place.display()))?;
    // Of its own: processes that a test leaves, and /proc and /dev as a booted system has them.
    // The caller's PATH names folders that the root lacks.
    let inside = "mount -t proc proc \"$1/proc\" && mount --rbind /dev \"$1/dev\" && \
                  PATH=/usr/sbin:/usr/bin:/sbin:/bin exec chroot \"$1\" /bin/sh -c \"$0\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inside]);
    let mut steps = format!("cd '/tmp/{name}'\n{STEPS}");
    if let Some(package) = package {
        files::copy(package, &place.join("softnic.deb"))?;
        steps += &format!("\ndeb=/tmp/softnic.deb{PACKAGE_STEPS}");
    }
    command.arg(steps).arg(root);
    let said = output(&mut command, LIMIT).context("the tarball in its root")?;
    said.lines().for_each(|line| say!("  {line}"));
    let problems = missing(&said, package.is_some());
    ensure!(problems.is_empty(), "{}: {}", root.display(), problems.join("; "));
    let more = if package.is_some() { "; the package was installed and removed" } else { "" };
    say!("{}: the NIC was found there, and WRITEs passed between two processes{more}", root.display());
    Ok(())
}

/// Whether perftest says a rate: its row has bytes, iterations and three rates.
pub(super) fn shows_rate(said: &str) -> bool {
    said.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.len() >= 4 && words[0] == "65536" && words[3].parse::<f64>().is_ok_and(|rate| rate > 0.0)
    })
}

/// What the programs did not say; of the package, where it `is_packaged`.
fn missing(said: &str, is_packaged: bool) -> Vec<&'static str> {
    let is_device = said.contains("hca_id:") && said.contains("PORT_ACTIVE");
    let has = |word: &str| !is_packaged || said.lines().any(|line| line == word);
    let all = [
        (is_device, "ibv_devinfo shows no active port"),
        (shows_rate(said), "ib_write_bw shows no rate"),
        (has("PACKAGED"), "the installed softnic shows no active port"),
        (has("PURGED"), "the removed package left files"),
    ];
    all.into_iter().filter_map(|(is_there, what)| (!is_there).then_some(what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_do_not_say_what_they_should_are_named() {
        let said = "hca_id: mlx5_0\n state: PORT_ACTIVE (4)\n 65536      5000             3000.00            2900.50		   0.046\n";
        assert_eq!(missing(said, false), [""; 0]);
        assert_eq!(
            missing(&said.replace("PORT_ACTIVE", "PORT_DOWN"), false),
            ["ibv_devinfo shows no active port"]
        );
        assert_eq!(missing(&said.replace("2900.50", "0.00"), false), ["ib_write_bw shows no rate"]);
        assert_eq!(
            missing(said, true),
            ["the installed softnic shows no active port", "the removed package left files"]
        );
        assert_eq!(missing(&format!("{said}PACKAGED\nPURGED\n"), true), [""; 0]);
    }

    #[test]
    fn a_folder_without_the_programs_is_refused_with_the_command_that_makes_a_root() {
        let error = check(Path::new("/proc/self")).unwrap_err().to_string();
        assert!(
            error.contains("it has no /usr/bin/ibv_devinfo; give a folder that does not exist yet, or"),
            "{error}"
        );
        assert!(error.ends_with("perftest bullseye /proc/self"), "{error}");
    }
}
