//! Finds libibverbs and libmlx5 at run time.
//!
//! Supports rdma-core 39 to 64. A function that the installed version lacks fails the call that needs it.

use std::ffi::CStr;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::ibverbs::Ibverbs;
use super::mlx5::Mlx5;

/// A library of rdma-core that could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot load {file}: {reason} (searched as the dynamic loader does: LD_LIBRARY_PATH, /etc/ld.so.cache, the system's \
     library directories); it comes with rdma-core: apt-get install {debian}, or dnf install {fedora}"
)]
pub struct LoadError {
    /// File name that was asked for.
    pub file: &'static str,
    /// The dynamic loader's words.
    pub reason: String,
    /// Package of Debian and Ubuntu.
    pub debian: &'static str,
    /// Package of Fedora and its kin.
    pub fedora: &'static str,
}

/// libibverbs, loaded once for the process.
pub fn ibverbs() -> Result<&'static Ibverbs, LoadError> {
    static LOADED: OnceLock<Result<Ibverbs, LoadError>> = OnceLock::new();
    let error =
        |reason| LoadError { file: "libibverbs.so.1", reason, debian: "libibverbs1", fedora: "libibverbs" };
    let loaded = LOADED.get_or_init(|| {
        open(c"libibverbs.so.1")
            .and_then(|scope| {
                // SAFETY: the struct is generated from this library's header; symbols keep their types.
                unsafe { Ibverbs::from_library(scope) }
            })
            .map_err(|e| error(sentence(&e)))
    });
    loaded.as_ref().map_err(LoadError::clone)
}

/// libmlx5, loaded once for the process.
pub fn mlx5() -> Result<&'static Mlx5, LoadError> {
    static LOADED: OnceLock<Result<Mlx5, LoadError>> = OnceLock::new();
    let error = |reason| LoadError {
        file: "libmlx5.so.1",
        reason,
        debian: "ibverbs-providers",
        fedora: "libibverbs",
    };
    let loaded = LOADED.get_or_init(|| {
        ibverbs()?;
        open(c"libmlx5.so.1")
            .and_then(|scope| {
                // SAFETY: as above, for mlx5dv.h.
                unsafe { Mlx5::from_library(scope) }
            })
            .map_err(|e| error(sentence(&e)))
    });
    loaded.as_ref().map_err(LoadError::clone)
}

/// Loads a library for good and returns the process's global scope, which finds its symbols in the order of a
/// program linked at build time. Closing rdma-core is not safe: providers register themselves.
fn open(file: &CStr) -> Result<Library, libloading::Error> {
    let name = file.to_str().unwrap_or_default();
    // SAFETY: the initialisers of rdma-core's libraries only fill tables of their own.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }?;
    std::mem::forget(library);
    Ok(Library::this())
}

/// libloading's errors keep the loader's words in `source`.
fn sentence(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let reason = sentence(&open(c"libibverbs-that-is-not.so.1").map(|_| ()).unwrap_err());
        let error =
            LoadError { file: "libibverbs.so.1", reason, debian: "libibverbs1", fedora: "libibverbs" };
        let text = error.to_string();
        for part in ["libibverbs.so.1", "No such file", "LD_LIBRARY_PATH", "apt-get install libibverbs1"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    }
}
