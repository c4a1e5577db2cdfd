//! Where in a kernel a lane is, and what it does there: for reports.

use std::ffi::{CStr, c_char};

/// What a lane does at a place.
#[allow(missing_docs, reason = "reports have the names")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum What {
    /// It has done nothing yet that the twin sees.
    Start,
    Load,
    Store,
    Atomic,
    Fence,
    /// `__nanosleep`, or a look at the clock.
    Time,
    /// `__syncwarp`.
    SyncWarp,
    /// `__ballot_sync`.
    Ballot,
    /// `__any_sync`.
    Any,
    /// `__all_sync`.
    All,
    /// `__shfl_sync` and its kin.
    Shuffle,
    /// `__syncthreads`.
    SyncThreads,
}

/// By their numbers in `twin.h`.
const ALL: [(What, &str); 12] = [
    (What::Start, "the start"),
    (What::Load, "a load"),
    (What::Store, "a store"),
    (What::Atomic, "an atomic"),
    (What::Fence, "a fence"),
    (What::Time, "the clock"),
    (What::SyncWarp, "__syncwarp"),
    (What::Ballot, "__ballot_sync"),
    (What::Any, "__any_sync"),
    (What::All, "__all_sync"),
    (What::Shuffle, "__shfl_sync"),
    (What::SyncThreads, "__syncthreads"),
];

impl What {
    /// That number of `twin.h`.
    pub fn of(number: u32) -> Option<What> {
        ALL.get(number as usize).map(|&(what, _)| what)
    }

    /// As a report calls it.
    pub fn name(self) -> &'static str {
        ALL[self as usize].1
    }
}

/// A place in a kernel's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// What is done there.
    pub what: What,
    /// Address of the file's name, a string of the program that lives as long as it; 0 for none.
    file: usize,
    /// Line in it.
    pub line: u32,
}

impl Site {
    /// No place.
    pub fn nowhere(what: What) -> Site {
        Site { what, file: 0, line: 0 }
    }

    /// A place that a kernel gave.
    ///
    /// # Safety
    /// `file` is null or a string that is never freed (`__builtin_FILE()`).
    pub unsafe fn new(what: What, file: *const c_char, line: u32) -> Site {
        Site { what, file: file.expose_provenance(), line }
    }

    /// `file.cu:12`, the file without its folder.
    pub fn place(&self) -> String {
        if self.file == 0 {
            return "the kernel's beginning".into();
        }
        let name = std::ptr::with_exposed_provenance::<c_char>(self.file);
        // SAFETY: `new` was given a string that is never freed, and nothing else makes an address.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        format!("{}:{}", name.rsplit('/').next().unwrap_or(&name), self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_says_file_and_line() {
        // SAFETY: a literal.
        let site = unsafe { Site::new(What::Ballot, c"a/b/vote.cu".as_ptr(), 17) };
        assert_eq!((site.place().as_str(), site.what.name()), ("vote.cu:17", "__ballot_sync"));
        assert_eq!(Site::nowhere(What::Start).place(), "the kernel's beginning");
    }

    #[test]
    fn numbers_and_names_agree() {
        for (number, (what, _)) in ALL.into_iter().enumerate() {
            assert_eq!((what as usize, What::of(number as u32)), (number, Some(what)));
        }
        assert_eq!(What::of(ALL.len() as u32), None);
    }
}
