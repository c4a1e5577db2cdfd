//! Middle floor: CUDA's calls with their errors, unsafe where the caller must keep something. Used by `safe`.
//!
//! What may be absent (driver, compiler, linker, one of their functions) is asked for before it is called.
//! Its absence is an error that names it, never a panic.

pub mod address;
mod call;
pub mod cublaslt;
pub mod cudnn;
pub mod driver;
pub mod graph;
pub mod jit_link;
pub mod library;
pub mod nvml;
pub mod nvrtc;

use std::time::Duration;

/// Why a call of the driver failed, or was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no CUDA driver: {reason}; `cargo xtask doctor` says where it was looked for")]
    NoDriver {
        /// Names that were tried, in words.
        looked: &'static str,
        /// The dynamic loader's words about the usual name.
        reason: String,
    },
    #[error("the CUDA driver here (CUDA {version}) has no {function}: a newer driver is needed")]
    MissingFunction {
        function: &'static str,
        /// What the driver says of itself, as `13.0`.
        version: String,
    },
    #[error("{call}{what}: {name} ({code}): {text}{}", what_to_do(*code))]
    Call {
        call: &'static str,
        /// What it was asked for, starting with a blank, or nothing.
        what: String,
        code: u32,
        name: String,
        text: String,
    },
    /// Something did not end in time. What it uses must stay, and does.
    #[error("{what} has not ended after {} ms", waited.as_millis())]
    Deadline { what: String, waited: Duration },
    #[error("{0}")]
    Refused(String),
    /// A library, or one of its engines, does not do this here, and never will.
    #[error("{0}")]
    NotSupported(String),
}

/// Result of the driver's part of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// `CUDA_ERROR_*` that this crate decides by, from `cuda.h` of CUDA 13.0.
pub mod code {
    #![allow(missing_docs)]
    pub const INVALID_VALUE: u32 = 1;
    pub const OUT_OF_MEMORY: u32 = 2;
    pub const DEINITIALIZED: u32 = 4;
    pub const STUB_LIBRARY: u32 = 34;
    pub const NO_DEVICE: u32 = 100;
    pub const ECC_UNCORRECTABLE: u32 = 214;
    pub const NOT_FOUND: u32 = 500;
    pub const NOT_READY: u32 = 600;
    pub const ILLEGAL_ADDRESS: u32 = 700;
    pub const LAUNCH_TIMEOUT: u32 = 702;
    pub const CONTEXT_IS_DESTROYED: u32 = 709;
    pub const ASSERT: u32 = 710;
    pub const HOST_MEMORY_ALREADY_REGISTERED: u32 = 712;
    pub const HARDWARE_STACK_ERROR: u32 = 714;
    pub const ILLEGAL_INSTRUCTION: u32 = 715;
    pub const MISALIGNED_ADDRESS: u32 = 716;
    pub const INVALID_ADDRESS_SPACE: u32 = 717;
    pub const INVALID_PC: u32 = 718;
    pub const LAUNCH_FAILED: u32 = 719;
    pub const NOT_PERMITTED: u32 = 800;
    pub const NOT_SUPPORTED: u32 = 801;
    pub const SYSTEM_DRIVER_MISMATCH: u32 = 803;
    pub const STREAM_CAPTURE_UNSUPPORTED: u32 = 900;
    pub const LAST_OF_CAPTURES: u32 = 908;
}

impl Error {
    /// The `CUresult`, when the driver gave one.
    pub fn code(&self) -> Option<u32> {
        match self {
            Self::Call { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the context is lost: every later call in it fails until the process ends.
    pub fn is_context_lost(&self) -> bool {
        self.code().is_some_and(|code| LOST.contains(&code))
    }

    /// Whether the driver has ended, as it does while the process exits: nothing runs any more.
    pub fn is_driver_gone(&self) -> bool {
        self.code() == Some(code::DEINITIALIZED)
    }

    /// Whether an error says that nothing runs any more, or ever will. One that passes does not: during a
    /// capture (the 900s), or where there is no memory.
    pub(crate) fn ends_all(&self) -> bool {
        let passes = |code| {
            code == code::OUT_OF_MEMORY
                || (code::STREAM_CAPTURE_UNSUPPORTED..=code::LAST_OF_CAPTURES).contains(&code)
        };
        self.code().is_none_or(|code| !passes(code))
    }

    /// Adds what the call was asked for: `of("4096 bytes")` gives «cuMemAlloc of 4096 bytes: …».
    pub(crate) fn of(mut self, thing: impl std::fmt::Display) -> Self {
        if let Self::Call { what, .. } = &mut self {
            *what = format!(" of {thing}");
        }
        self
    }
}

/// What the user can do about a refusal, as the end of a sentence; else nothing.
/// Behind these nothing runs in the context any more.
const LOST: [u32; 11] = [
    code::ECC_UNCORRECTABLE,
    code::ILLEGAL_ADDRESS,
    code::LAUNCH_TIMEOUT,
    code::CONTEXT_IS_DESTROYED,
    code::ASSERT,
    code::HARDWARE_STACK_ERROR,
    code::ILLEGAL_INSTRUCTION,
    code::MISALIGNED_ADDRESS,
    code::INVALID_ADDRESS_SPACE,
    code::INVALID_PC,
    code::LAUNCH_FAILED,
];

fn what_to_do(code: u32) -> &'static str {
    match code {
        code::STUB_LIBRARY => {
            "; the libcuda that was found is the toolkit's stub for linking: take its folder out of LD_LIBRARY_PATH"
        }
        code::NO_DEVICE => "; see `nvidia-smi`, and CUDA_VISIBLE_DEVICES",
        code::SYSTEM_DRIVER_MISMATCH => {
            "; libcuda and the kernel's driver are of different versions: reboot, or install the same"
        }
        code::ILLEGAL_ADDRESS
        | code::LAUNCH_FAILED
        | code::MISALIGNED_ADDRESS
        | code::ILLEGAL_INSTRUCTION => "; a kernel did this, and its context is lost until the process ends",
        _ if LOST.contains(&code) => "; its context is lost until the process ends",
        _ => "",
    }
}

/// Why source did not become an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    #[error("cannot load {library}: {reason}")]
    Load { library: String, reason: String },
    #[error("{library} has no {function}: CUDA 12 and 13 are supported")]
    MissingFunction { library: String, function: String },
    /// A text that goes to the compiler or linker holds a zero byte.
    #[error("{what} holds a zero byte, which neither compiler nor linker takes")]
    ZeroByte { what: String },
    #[error("compiling {source_name} for {target}: {text} ({code}){}", after_line(log))]
    Compile { source_name: String, target: String, code: i32, text: &'static str, log: String },
    #[error("linking {units} for {arch}: {call} gave {code}{}", after_line(log))]
    Link { units: String, arch: String, call: &'static str, code: i32, log: String },
    #[error("{0}")]
    Refused(String),
    #[error("what {units} became: {reason}")]
    Image { units: String, reason: String },
}

/// A log goes below the sentence; without one there is nothing.
fn after_line(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\n{log}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(code: u32) -> Error {
        let (name, text) = ("CUDA_ERROR_X".into(), "words".into());
        Error::Call { call: "cuX", what: String::new(), code, name, text }
    }

    #[test]
    fn a_refusal_says_what_was_asked_for_and_what_to_do() {
        let text = call(code::OUT_OF_MEMORY).of("4096 bytes").to_string();
        assert_eq!(text, "cuX of 4096 bytes: CUDA_ERROR_X (2): words");
        for (code, words) in [
            (code::STUB_LIBRARY, "LD_LIBRARY_PATH"),
            (code::NO_DEVICE, "CUDA_VISIBLE_DEVICES"),
            (code::ILLEGAL_ADDRESS, "its context is lost"),
            (code::ECC_UNCORRECTABLE, "its context is lost"),
        ] {
            let text = call(code).to_string();
            assert!(text.contains(words) && text.lines().count() == 1, "{text}");
        }
    }

    #[test]
    fn an_error_that_passes_does_not_say_that_nothing_runs() {
        for (code, ends) in [
            (code::ILLEGAL_ADDRESS, true),
            (code::DEINITIALIZED, true),
            (code::CONTEXT_IS_DESTROYED, true),
            (code::OUT_OF_MEMORY, false),
            (code::STREAM_CAPTURE_UNSUPPORTED, false),
            (901, false),
        ] {
            assert_eq!(call(code).ends_all(), ends, "{code}");
        }
    }

    #[test]
    fn errors_that_kill_the_context_are_told_from_others() {
        for (code, lost) in [
            (code::ILLEGAL_ADDRESS, true),
            (code::LAUNCH_FAILED, true),
            (code::ASSERT, true),
            (code::OUT_OF_MEMORY, false),
            (code::NOT_READY, false),
            (code::HOST_MEMORY_ALREADY_REGISTERED, false),
        ] {
            assert_eq!(call(code).is_context_lost(), lost, "{code}");
        }
        assert!(!Error::Refused("no".into()).is_context_lost());
    }

    #[test]
    fn an_absent_driver_is_said_in_short_with_the_command_that_says_more() {
        let error = Error::NoDriver { looked: "libcuda.so", reason: "not there".into() };
        let words = "no CUDA driver: not there; `cargo xtask doctor` says where it was looked for";
        assert_eq!(error.to_string(), words);
    }
}
