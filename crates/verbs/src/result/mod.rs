//! Middle floor: each call of rdma-core with its error, still unsafe. Imported by `safe` only.
//!
//! Return codes follow the man pages: null or -1 leave errno, other numbers are the errno itself. Objects are
//! raw pointers whose life the caller keeps; nothing is freed here on its own.

pub mod code;
pub mod object;
pub mod queue_pair;
pub mod raw;

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

pub use crate::sys::LoadError;

/// Why a call of rdma-core failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The library is there, in a version without this function.
    #[error(
        "the installed {library} has no {function}: rdma-core 39 to 64 are supported, and this one is another, or damaged"
    )]
    MissingFunction { function: &'static str, library: &'static str },
    #[error("{call}{what}: {source}{}", what_to_do(call, source.raw_os_error()))]
    Call {
        call: &'static str,
        /// What it was asked for, starting with a blank, or nothing.
        what: String,
        source: io::Error,
    },
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// The errno, when rdma-core gave one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Adds what the call was asked for: `of("mlx5_0 port 1")` gives «ibv_query_port of mlx5_0 port 1: …».
    pub(crate) fn of(mut self, thing: &str) -> Self {
        if let Self::Call { what, .. } = &mut self {
            *what = format!(" of {thing}");
        }
        self
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Takes a function out of a loaded library.
macro_rules! function {
    ($library:ident, $file:literal, $name:ident) => {
        match &$crate::sys::$library()?.$name {
            Ok(function) => *function,
            Err(_) => {
                return Err($crate::result::Error::MissingFunction {
                    function: stringify!($name),
                    library: $file,
                });
            }
        }
    };
    ($name:ident) => {
        function!(ibverbs, "libibverbs.so.1", $name)
    };
}
pub(crate) use function;

/// What the user can do about a refusal of the system, not the device, as a sentence's end; else nothing.
fn what_to_do(call: &str, errno: Option<i32>) -> &'static str {
    let locks_memory = call.starts_with("ibv_reg_mr")
        || ["ibv_create_cq", "ibv_create_qp", "ibv_create_qp_ex", "mlx5dv_create_qp"].contains(&call);
    match errno {
        Some(libc::EACCES | libc::EPERM) if call == "ibv_open_device" => {
            "; this user may not open the device file: see `ls -l /dev/infiniband`, then join its group or add a udev \
             rule (in a container: pass the device in)"
        }
        Some(libc::ENOSYS) if call == "ibv_get_device_list" => {
            "; no RDMA device is here, and the kernel has no driver for any"
        }
        // The kernel's `ib_umem_get`: EPERM when nothing may be locked at all.
        Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM) if locks_memory => {
            "; this locks memory: see `ulimit -l`, and raise it (limits.conf, or LimitMEMLOCK of a service)"
        }
        _ => "",
    }
}

fn last_error(call: &'static str) -> Error {
    Error::Call { call, what: String::new(), source: io::Error::last_os_error() }
}

/// 0 is success, -1 leaves errno, other numbers are errno values (some providers negate them).
fn check(call: &'static str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(last_error(call)),
        code => {
            Err(Error::Call { call, what: String::new(), source: io::Error::from_raw_os_error(code.abs()) })
        }
    }
}

fn not_null<T>(call: &'static str, pointer: *mut T) -> Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(|| last_error(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_by_the_system_says_what_to_do() {
        let (file, memory) = ("ls -l /dev/infiniband", "ulimit -l");
        for (call, errno, hint) in [
            ("ibv_open_device", libc::EACCES, Some(file)),
            ("ibv_open_device", libc::EPERM, Some(file)),
            ("ibv_open_device", libc::ENODEV, None),
            ("ibv_reg_mr", libc::ENOMEM, Some(memory)),
            ("ibv_reg_mr_iova2", libc::EAGAIN, Some(memory)),
            ("ibv_reg_mr", libc::EPERM, Some(memory)),
            ("ibv_reg_mr", libc::EFAULT, None),
            ("ibv_create_cq", libc::ENOMEM, Some(memory)),
            ("ibv_create_qp", libc::ENOMEM, Some(memory)),
            ("mlx5dv_create_qp", libc::ENOMEM, Some(memory)),
            ("ibv_create_qp", libc::EINVAL, None),
            ("ibv_modify_qp", libc::EPERM, None),
            ("ibv_alloc_pd", libc::ENOMEM, None),
        ] {
            let error = check(call, errno).unwrap_err().of("mlx5_0").to_string();
            let start = format!("{call} of mlx5_0: {}", io::Error::from_raw_os_error(errno));
            let rest = error.strip_prefix(&start).unwrap_or_else(|| panic!("{error}"));
            match hint {
                Some(hint) => assert!(rest.starts_with("; ") && rest.contains(hint), "{error}"),
                None => assert_eq!(rest, "", "{error}"),
            }
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn codes_of_all_three_conventions_become_the_same_error() {
        for (code, errno) in [(libc::EINVAL, libc::EINVAL), (-libc::ENOMEM, libc::ENOMEM)] {
            assert_eq!(check("ibv_modify_qp", code).unwrap_err().errno(), Some(errno));
        }
        assert!(check("ibv_modify_qp", 0).is_ok());
        let text = check("ibv_modify_qp", libc::EINVAL).unwrap_err().of("QP 0x40 to RTR").to_string();
        assert_eq!(text, "ibv_modify_qp of QP 0x40 to RTR: Invalid argument (os error 22)");
    }
}
