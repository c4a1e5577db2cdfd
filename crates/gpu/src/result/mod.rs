//! Middle floor: each call of CUDA with its error, still unsafe where the caller must keep something. Imported by `safe` only.
//!
//! Here stands the guard: what may be absent (driver, compiler, linker, one of their functions) is asked for before it is
//! called, and its absence is an error that names it and where it was looked for, never a panic.

pub mod jit_link;
pub mod nvrtc;

/// Why source did not become an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A library of the toolkit could not be loaded.
    #[error("cannot load {library}: {reason}")]
    Load {
        /// The file.
        library: String,
        /// The dynamic loader's words.
        reason: String,
    },
    /// A library of the toolkit is another version than we know.
    #[error("{library} has no {function}: CUDA 12 and 13 are supported")]
    MissingFunction {
        /// The file.
        library: String,
        /// The name that it should export.
        function: String,
    },
    /// A text that goes to the compiler or linker holds a zero byte.
    #[error("{what} holds a zero byte, which neither compiler nor linker takes")]
    ZeroByte {
        /// Which text.
        what: String,
    },
    /// The compiler refused.
    #[error("compiling {source_name} for {target}: {text} ({code}){}", after_line(log))]
    Compile {
        /// Name of the unit.
        source_name: String,
        /// What was asked for, as `sm_90`.
        target: String,
        /// The `nvrtcResult`.
        code: i32,
        /// Its meaning.
        text: &'static str,
        /// The compiler's log.
        log: String,
    },
    /// The linker refused.
    #[error("linking {units} for {arch}: {call} gave {code}{}", after_line(log))]
    Link {
        /// Names of the units.
        units: String,
        /// What was asked for, as `sm_90`.
        arch: String,
        /// Function that refused.
        call: &'static str,
        /// The `nvJitLinkResult`.
        code: i32,
        /// The linker's log.
        log: String,
    },
    /// Asked for something that does not go together.
    #[error("{0}")]
    Refused(String),
    /// What came out is no image that could be loaded.
    #[error("what {units} became: {reason}")]
    Image {
        /// Names of the units.
        units: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A log goes below the sentence; without one there is nothing.
fn after_line(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\n{log}") }
}
