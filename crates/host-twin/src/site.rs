//! Where in a kernel a lane is, and what it does there: for reports.

use std::ffi::{CStr, c_char};

/// What a lane does at a place.
#[allow(missing_docs, reason = "reports have the names")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum LaneAction {
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
const ALL: [(LaneAction, &str); 12] = [
    (LaneAction::Start, "the start"),
    (LaneAction::Load, "a load"),
    (LaneAction::Store, "a store"),
    (LaneAction::Atomic, "an atomic"),
    (LaneAction::Fence, "a fence"),
    (LaneAction::Time, "the clock"),
    (LaneAction::SyncWarp, "__syncwarp"),
    (LaneAction::Ballot, "__ballot_sync"),
    (LaneAction::Any, "__any_sync"),
    (LaneAction::All, "__all_sync"),
    (LaneAction::Shuffle, "__shfl_sync"),
    (LaneAction::SyncThreads, "__syncthreads"),
];

impl LaneAction {
    /// That number of `twin.h`.
    pub fn of(number: u32) -> Option<LaneAction> {
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
    pub what: LaneAction,
    /// Address of the file's name, a string of the program that lives as long as it; 0 for none.
    file: usize,
    /// Line in it.
    pub line: u32,
}

impl Site {
    /// No place.
    pub fn nowhere(what: LaneAction) -> Site {
        Site { what, file: 0, line: 0 }
    }

    /// A place that a kernel gave.
    ///
    /// # Safety
    /// `file` is null or a string that is never freed (`__builtin_FILE()`).
    pub unsafe fn new(what: LaneAction, file: *const c_char, line: u32) -> Site {
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
        let site = unsafe { Site::new(LaneAction::Ballot, c"a/b/vote.cu".as_ptr(), 17) };
        assert_eq!((site.place().as_str(), site.what.name()), ("vote.cu:17", "__ballot_sync"));
        assert_eq!(Site::nowhere(LaneAction::Start).place(), "the kernel's beginning");
    }

    #[test]
    fn numbers_and_names_agree() {
        for (number, (what, _)) in ALL.into_iter().enumerate() {
            assert_eq!((what as usize, LaneAction::of(number as u32)), (number, Some(what)));
        }
        assert_eq!(LaneAction::of(ALL.len() as u32), None);
    }
}
