//! Compiles one CUDA unit with NVRTC: headers in memory, machine code or assembly out, the log in the error.
//!
//! Units are compiled as relocatable code, which pre-declares `cudaGraphLaunch` and its kin. Functions are
//! for the device unless marked, so headers shared with the host need no marks. NVRTC has no `stdint.h`: a
//! shared header brings its types. Left out: C++ names (kernels are `extern "C"`), precompiled headers.

#![forbid(unsafe_code)]

use std::ffi::CString;
use std::fmt;
use std::str::FromStr;

use super::toolkit::Toolkit;
use crate::result::BuildError;
use crate::result::nvrtc::Nvrtc;

pub use crate::result::nvrtc::Form;

/// An architecture by its compute capability: 9.0 with no letter is `sm_90`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Ten times the major version, and the minor one.
    pub number: u32,
    /// `a` or `f`, for what only this architecture, or its family, has.
    pub letter: Option<char>,
}

impl Arch {
    /// `sm_NUMBER`.
    pub const fn sm(number: u32) -> Arch {
        Arch { number, letter: None }
    }

    fn named(self, kind: &str) -> String {
        format!("{kind}_{}{}", self.number, self.letter.map(String::from).unwrap_or_default())
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named("sm"))
    }
}

impl FromStr for Arch {
    type Err = BuildError;

    /// Reads `sm_90`, `90` or `sm_90a`.
    fn from_str(text: &str) -> Result<Arch, BuildError> {
        let wrong =
            || BuildError::Refused(format!("`{text}` is no architecture; one is named as sm_90 or sm_90a"));
        let digits = text.strip_prefix("sm_").unwrap_or(text);
        let (digits, letter) = match digits.strip_suffix(['a', 'f']) {
            Some(digits) => (digits, text.chars().next_back()),
            None => (digits, None),
        };
        if digits.len() > 4 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        Ok(Arch { number: digits.parse().map_err(|_| wrong())?, letter })
    }
}

/// One unit of CUDA source and all that its compile depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Name, as it stands in messages and in `#line`.
    pub name: String,
    /// Source text.
    pub text: String,
    /// Headers by the name by which they are included; nothing is read from disk but what `flags` point to.
    pub headers: Vec<(String, String)>,
    /// Options of the compiler beside the architecture's.
    pub flags: Vec<String>,
}

/// Options that a unit begins with.
const FLAGS: [&str; 3] = ["--std=c++17", "--relocatable-device-code=true", "-default-device"];

impl Unit {
    /// A unit without headers, with the usual options.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Unit {
        let flags = FLAGS.map(str::to_owned).into();
        Unit { name: name.into(), text: text.into(), headers: Vec::new(), flags }
    }

    /// Adds a header in memory.
    pub fn header(mut self, name: impl Into<String>, text: impl Into<String>) -> Unit {
        self.headers.push((name.into(), text.into()));
        self
    }

    /// Adds an option.
    pub fn flag(mut self, flag: impl Into<String>) -> Unit {
        self.flags.push(flag.into());
        self
    }
}

/// A unit's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// Name of the unit.
    pub name: String,
    /// What the bytes are.
    pub form: Form,
    /// Machine code, or text without the zero at its end.
    pub bytes: Vec<u8>,
    /// What the compiler warned of; empty when it had nothing to say.
    pub log: String,
}

/// The compiler of a toolkit.
#[derive(Debug, Clone, Copy)]
pub struct Compiler(Nvrtc);

impl Compiler {
    /// Loads it. Error: a library that cannot be loaded, or lacks a function.
    pub fn load(toolkit: &Toolkit) -> Result<Compiler, BuildError> {
        Nvrtc::load(&toolkit.builtins, &toolkit.nvrtc).map(Compiler)
    }

    /// `13.0`.
    pub fn version(&self) -> String {
        let (major, minor) = self.0.version();
        format!("{major}.{minor}")
    }

    /// Compiles `unit` for `arch`; takes 20 to 100 ms for our units. Error: the compiler's, with its log.
    pub fn compile(&self, unit: &Unit, arch: Arch, form: Form) -> Result<Compiled, BuildError> {
        let target = arch.named(if form == Form::Cubin { "sm" } else { "compute" });
        let mut options = vec![c_string(&format!("--gpu-architecture={target}"), "an option")?];
        for flag in &unit.flags {
            options.push(c_string(flag, "an option")?);
        }
        let headers = unit.headers.iter().map(|(name, text)| {
            Ok((c_string(name, "a header's name")?, c_string(text, &format!("header {name}"))?))
        });
        let headers: Vec<(CString, CString)> = headers.collect::<Result<_, BuildError>>()?;
        let name = c_string(&unit.name, "a unit's name")?;
        let text = c_string(&unit.text, &format!("unit {}", unit.name))?;
        let compiled = self.0.compile(&name, &text, &headers, &options, form);
        let (mut bytes, log) = compiled.map_err(|failed| BuildError::Compile {
            source_name: unit.name.clone(),
            target,
            code: failed.code,
            text: failed.text,
            log: failed.log,
        })?;
        if form == Form::Ptx {
            bytes.retain(|byte| *byte != 0);
        }
        Ok(Compiled { name: unit.name.clone(), form, bytes, log })
    }
}

/// `text` for a C library.
pub(super) fn c_string(text: &str, what: &str) -> Result<CString, BuildError> {
    CString::new(text).map_err(|_| BuildError::ZeroByte { what: what.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_read_and_written_by_name() {
        for (text, number, letter, name) in [
            ("sm_90", 90, None, "sm_90"),
            ("100", 100, None, "sm_100"),
            ("sm_90a", 90, Some('a'), "sm_90a"),
            ("120f", 120, Some('f'), "sm_120f"),
        ] {
            let arch: Arch = text.parse().unwrap();
            assert_eq!((arch, arch.to_string().as_str()), (Arch { number, letter }, name));
        }
        for text in ["", "sm_", "native", "sm_9x", "compute_90", "sm_90aa", "99999", "sm_+9"] {
            assert!(text.parse::<Arch>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_zero_byte_is_named_and_not_cut_off() {
        let error = c_string("int a;\0int b;", "unit ring.cu").unwrap_err();
        assert!(error.to_string().starts_with("unit ring.cu holds a zero byte"), "{error}");
    }
}
