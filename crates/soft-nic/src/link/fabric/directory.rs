//! The directory's name, and the search for it. The version of its layout is in the name, so that a process
//! of another version is found without reading its memory.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::super::record;
use super::layout::{MAGIC, at};
use super::process::{SlotOwner, descriptors, descriptors_of};
use crate::os::{SharedMemory, system};

/// What all names begin with; the version follows. Every version keeps to this, and seals the memfd.
const PREFIX: &str = "softnic-fabric-v";

/// Name of the directory's memfd, with all that must agree: processes that cannot reach each other's `/proc`
/// entries, or that number processes differently, never meet.
pub(super) fn full_name(name: &str) -> io::Result<String> {
    Ok(format!("{}{name}", name_prefix()?))
}

/// What the names of all fabrics begin with that a process like this one could join.
pub(super) fn name_prefix() -> io::Result<String> {
    let inode = |kind: &str| std::fs::metadata(format!("/proc/self/ns/{kind}")).map(|it| it.ino());
    let (version, user) = (record::VERSION, system::user());
    Ok(format!("{PREFIX}{version}-{user}-{}-{}-", inode("net")?, inode("pid")?))
}

/// Name of the socket that locks joining: without the version, or two versions could join at once unseen.
pub(super) fn turn_name(full_name: &str) -> String {
    let rest = full_name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
    rest.map_or(full_name.to_owned(), |(_, place)| format!("softnic-fabric-{place}"))
}

/// What `/proc` says of a descriptor of the directory.
fn link_target(full_name: &str) -> String {
    format!("/memfd:{full_name} (deleted)")
}

/// Whether a process has the directory open where it said so; `exec` closes it.
///
/// Errors: `NotFound` when nothing is open under that number; else the kernel does not let us see.
pub(super) fn is_open_in(full_name: &str, owner: &SlotOwner) -> io::Result<bool> {
    let path = format!("/proc/{}/fd/{}", owner.pid, owner.descriptor.wrapping_sub(1));
    Ok(std::fs::read_link(path)? == Path::new(&link_target(full_name)))
}

/// The version and the rest of the name, if a descriptor leads to the directory of a fabric.
fn version_and_place(target: &Path) -> Option<(&str, &str)> {
    let name = target.to_str()?.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?;
    let (version, place) = name.strip_prefix(PREFIX)?.split_once('-')?;
    version.bytes().all(|b| b.is_ascii_digit()).then_some((version, place))
}

/// Looks for the directory among the descriptors of all processes of this user.
///
/// Errors: the process that has one of another version, and that version.
pub(super) fn find(full_name: &str) -> Result<Option<(OwnedFd, SharedMemory)>, (u32, String)> {
    let ours = link_target(full_name);
    let Some((version, place)) = version_and_place(Path::new(&ours)) else { return Ok(None) };
    for (pid, path, target) in descriptors() {
        let Some((theirs, there)) = version_and_place(&target) else { continue };
        if there != place {
            continue;
        }
        // What cannot be opened is gone meanwhile, or of another user under the same name.
        let Ok(fd) = system::open_memfd(&path.to_string_lossy()) else { continue };
        if system::sealed_len(&fd).is_none() {
            continue;
        }
        return match understood(&fd) {
            Some(directory) if theirs == version => Ok(Some((fd, directory))),
            _ if theirs == version => Err((pid, format!("{theirs} with another layout"))),
            _ => Err((pid, theirs.to_owned())),
        };
    }
    Ok(None)
}

/// The version of a fabric's layout that the NIC of a process has, where it is not ours.
pub fn other_version(pid: u32) -> Option<u32> {
    let version = |(_, _, target): (u32, PathBuf, PathBuf)| version_and_place(&target)?.0.parse().ok();
    descriptors_of(pid).ok()?.filter_map(version).find(|version| *version != record::VERSION)
}

pub(super) fn open_directory(path: &Path) -> Option<(OwnedFd, SharedMemory)> {
    let fd = system::open_memfd(path.to_str()?).ok()?;
    understood(&fd).map(|directory| (fd, directory))
}

/// Maps it, if it is a directory of this version.
fn understood(fd: &OwnedFd) -> Option<SharedMemory> {
    if system::sealed_len(fd)? != at::LEN {
        return None;
    }
    let directory = SharedMemory::map(fd, at::LEN).ok()?;
    let word = |offset| directory.word(offset).load(Ordering::Acquire);
    let ours = word(at::MAGIC) == MAGIC && word(at::VERSION) == u64::from(record::VERSION);
    ours.then_some(directory)
}

pub(super) fn found_new(full_name: &str) -> io::Result<(OwnedFd, SharedMemory)> {
    let fd = system::memfd(full_name, at::LEN)?;
    let directory = SharedMemory::map(&fd, at::LEN)?;
    directory.word(at::VERSION).store(record::VERSION.into(), Ordering::Relaxed);
    directory.word(at::KEY).store(system::secret()?, Ordering::Relaxed);
    directory.word(at::MAGIC).store(MAGIC, Ordering::Release);
    Ok((fd, directory))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::link::fabric::{Fabric, FabricError};

    /// As another version would make it: a sealed memfd with the version in its name; the rest is unknown.
    fn planted(name: &str, version: u32, len: usize) -> OwnedFd {
        let ours = full_name(name).unwrap();
        let theirs = ours.replacen(&format!("v{}-", record::VERSION), &format!("v{version}-"), 1);
        system::memfd(&theirs, len).unwrap()
    }

    #[test]
    fn a_process_joins_no_fabric_of_another_version_and_names_both() {
        let us = std::process::id();
        for (number, (version, len, theirs)) in [
            (record::VERSION - 1, 4096, (record::VERSION - 1).to_string()),
            (record::VERSION + 1, at::LEN, (record::VERSION + 1).to_string()),
            (record::VERSION, at::LEN + 4096, format!("{} with another layout", record::VERSION)),
            (record::VERSION, at::LEN, format!("{} with another layout", record::VERSION)),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("versions-{us}-{number}");
            let other = planted(&name, version, len);
            let error = Fabric::join(&name).unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, FabricError::Version { pid, .. } if pid == us), "{said}");
            let both = format!("in version {theirs}, this softnic in version {} ", record::VERSION);
            assert!(said.contains(&both), "{said}");
            // One of another name is in nobody's way, and with its last process the version is gone.
            Fabric::join(&format!("{name}-next")).unwrap();
            drop(other);
            // A program that another test starts just now has its descriptor until it begins.
            let since = Instant::now();
            while let Err(error) = Fabric::join(&name) {
                let passes = matches!(error, FabricError::Version { pid, .. } if pid != us);
                assert!(passes && since.elapsed() < Duration::from_secs(60), "{error}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    #[test]
    fn a_process_of_another_version_is_known_by_its_descriptors() {
        let name = format!("other-version-{}", std::process::id());
        let fd = planted(&name, 77, 4096);
        let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        assert!(version_and_place(&target).is_some_and(|(version, _)| version == "77"), "{target:?}");
        assert!(other_version(std::process::id()).is_some());
        for target in [
            "/memfd:softnic-fabric-vx-0-1-2-a (deleted)",
            "/memfd:softnic-fabric-v9-a",
            "/memfd:a-v9-0 (deleted)",
        ] {
            assert_eq!(version_and_place(Path::new(target)), None, "{target}");
        }
    }

    #[test]
    fn versions_take_the_same_turn() {
        let turn = |version| turn_name(&format!("softnic-fabric-v{version}-0-1-2-a-b"));
        assert_eq!((turn(8), turn(12)), ("softnic-fabric-0-1-2-a-b".to_owned(), turn(8)));
    }
}
