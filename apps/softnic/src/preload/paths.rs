//! From the path a program names to a node of the tree, cheaply for the many paths that are not ours.

use std::ffi::{CStr, CString, c_char, c_int};

use soft_nic::sysfs::tree::{Lookup, Node};
use soft_nic::sysfs::{CLASS_MARK, MANAGER_MARK, PCI_MARK};

use super::raw::{Failure, fail};
use super::table::{self, Entry};
use super::virtual_tree::virtual_tree;

/// Answers a call about a path. `kernel` takes, from a directory, a path that leads out of the tree; `ours`
/// takes a node with its resolved path. `follow`: also when the path ends in a link.
pub fn answer<T: Failure>(
    directory: c_int,
    path: *const c_char,
    follow: bool,
    kernel: impl FnOnce(c_int, *const c_char) -> T,
    ours: impl FnOnce(String, &'static Node) -> Result<T, c_int>,
) -> T {
    let real = match look_up(directory, path, follow) {
        Some(Lookup::Node { path, node }) => return ours(path, node).unwrap_or_else(fail),
        Some(Lookup::Missing(errno)) => return fail(errno),
        Some(Lookup::Outside(real)) => CString::new(real).ok(),
        Some(Lookup::Foreign) | None => None,
    };
    // The program's own, or the real path that a link of the tree leads to.
    match real {
        Some(real) => kernel(libc::AT_FDCWD, real.as_ptr()),
        None => kernel(directory, path),
    }
}

/// Looks a path up in the tree; `None`: it begins elsewhere.
fn look_up(directory: c_int, path: *const c_char, follow: bool) -> Option<Lookup<'static>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the program passes a C string to a function that takes one.
    let path = unsafe { CStr::from_ptr(path) };
    let bytes = path.to_bytes();
    let absolute = bytes.first() == Some(&b'/');
    let in_ours = !absolute && directory != libc::AT_FDCWD && table::get(directory) != Entry::Foreign;
    if !in_ours && !may_be_ours(bytes) {
        return None;
    }
    let text = path.to_str().ok()?;
    let whole = match absolute {
        true => text.to_owned(),
        false if text.is_empty() => base(directory)?,
        false => format!("{}/{text}", base(directory)?),
    };
    Some(virtual_tree().tree.lookup(&whole, follow))
}

/// A test without system calls that lets every path of ours through, and few others.
fn may_be_ours(path: &[u8]) -> bool {
    // Absolute paths of ours start with /sys or /dev; `//` and `/.` are spelt so by nobody else's luck.
    if path.first() == Some(&b'/') && !matches!(path.get(1), Some(b's' | b'd' | b'/' | b'.')) {
        return false;
    }
    let holds = |mark: &str| path.windows(mark.len()).any(|window| window == mark.as_bytes());
    holds(CLASS_MARK) || holds(PCI_MARK) || holds(MANAGER_MARK)
}

/// The path of the directory that a relative path starts from.
fn base(directory: c_int) -> Option<String> {
    if let Entry::Directory(number) = table::verified(directory) {
        return virtual_tree().tree.directory(number).map(str::to_owned);
    }
    let link = if directory == libc::AT_FDCWD {
        "/proc/self/cwd".to_owned()
    } else {
        format!("/proc/self/fd/{directory}")
    };
    let target = std::fs::read_link(link).ok()?;
    target.to_str().filter(|path| path.starts_with('/')).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_paths_are_told_apart_without_a_look() {
        for (path, ours) in [
            ("/sys/class/infiniband", true),
            ("/dev/infiniband/uverbs0", true),
            ("sys/class/infiniband_verbs", true),
            ("/sys/bus/pci/devices/5074:00:00.0", true),
            ("/sys/class/misc/rdma_cm/abi_version", true),
            ("//sys/class/infiniband", true),
            ("/usr/lib/x86_64-linux-gnu/infiniband/libmlx5.so", false),
            ("/etc/libibverbs.d/mlx5.driver", false),
            ("/sys/class/net", false),
            ("/dev/null", false),
            ("", false),
        ] {
            assert_eq!(may_be_ours(path.as_bytes()), ours, "{path}");
        }
    }
}
