//! NVRTC's calls with their errors, over the functions of one library file.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr::null_mut;

use super::BuildError;
use crate::sys::load::open_for_good;
use crate::sys::nvrtc as sys;

/// The compiler of one toolkit, loaded for good.
#[derive(Debug, Clone, Copy)]
pub struct Nvrtc(sys::Nvrtc);

/// What a unit becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Machine code of exactly this architecture.
    Cubin,
    /// NVIDIA's assembly, ending with a zero byte: a driver translates it for this architecture and newer.
    Ptx,
}

/// A compile that failed: `nvrtcResult`, its meaning, and the log.
#[derive(Debug)]
pub struct Failed {
    /// 0 when a good result came back empty.
    pub code: c_int,
    /// Its meaning.
    pub text: &'static str,
    /// The compiler's log.
    pub log: String,
}

/// One call and what it may say in its error.
macro_rules! good {
    ($code:expr) => {
        match $code {
            0 => Ok(()),
            code => Err(Failed { code, text: meaning(code), log: String::new() }),
        }
    };
}

impl Nvrtc {
    /// Loads builtins and compiler, in this order: without the first each compile fails.
    pub fn load(builtins: &Path, nvrtc: &Path) -> Result<Self, BuildError> {
        let load = |path: &Path| {
            open_for_good(path)
                .map_err(|reason| BuildError::Load { library: path.display().to_string(), reason })
        };
        load(builtins)?;
        let table = sys::Nvrtc::load(load(nvrtc)?, str::to_owned).map_err(|function| {
            BuildError::MissingFunction { library: nvrtc.display().to_string(), function }
        })?;
        Ok(Self(table))
    }

    /// Major and minor version; (0, 0) when it does not say.
    pub fn version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to integers of ours.
        let code = unsafe { (self.0.version)(&mut major, &mut minor) };
        if code == 0 { (major, minor) } else { (0, 0) }
    }

    /// Compiles `source`; gives the output and the log of what it warned of.
    pub fn compile(
        &self,
        name: &CStr,
        source: &CStr,
        headers: &[(CString, CString)],
        options: &[CString],
        form: Form,
    ) -> Result<(Vec<u8>, String), Failed> {
        let names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let texts: Vec<*const c_char> = headers.iter().map(|(_, text)| text.as_ptr()).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = null_mut();
        // SAFETY: all strings end with a zero and live through the call, which copies them; both lists have
        // as many members as said.
        let code = unsafe {
            (self.0.create)(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                names.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        good!(code)?;
        let program = Program { program, nvrtc: self };
        // SAFETY: the program is alive, the options end with zeros and live through the call.
        let code = unsafe { (self.0.compile)(program.program, options.len() as c_int, options.as_ptr()) };
        let log = program.log();
        if code != 0 {
            return Err(Failed { code, text: meaning(code), log });
        }
        let bytes = program.output(form)?;
        match bytes.is_empty() {
            true => Err(Failed { code: 0, text: "it gave nothing of the kind that was asked for", log }),
            false => Ok((bytes, log)),
        }
    }
}

/// A program of the compiler, destroyed when dropped.
struct Program<'a> {
    program: sys::Program,
    nvrtc: &'a Nvrtc,
}

impl Program<'_> {
    fn log(&self) -> String {
        let functions = &self.nvrtc.0;
        let mut bytes = 0;
        // SAFETY: the program is alive; the length goes to an integer of ours.
        let code = unsafe { (functions.log_bytes)(self.program, &mut bytes) };
        if code != 0 || bytes == 0 {
            return String::new();
        }
        let mut log = vec![0u8; bytes];
        // SAFETY: the buffer is as long as the library said that the log is, its last zero included.
        unsafe { (functions.log)(self.program, log.as_mut_ptr().cast()) };
        let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
        text.trim().to_owned()
    }

    fn output(&self, form: Form) -> Result<Vec<u8>, Failed> {
        let functions = &self.nvrtc.0;
        let (length, fetch) = match form {
            Form::Cubin => (functions.cubin_bytes, functions.cubin),
            Form::Ptx => (functions.ptx_bytes, functions.ptx),
        };
        let mut bytes = 0;
        // SAFETY: the program is alive; the length goes to an integer of ours.
        good!(unsafe { length(self.program, &mut bytes) })?;
        let mut buffer = vec![0u8; bytes];
        // SAFETY: the buffer is as long as the library said that the output is.
        good!(unsafe { fetch(self.program, buffer.as_mut_ptr().cast()) })?;
        Ok(buffer)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created by this library and is destroyed once.
        unsafe { (self.nvrtc.0.destroy)(&mut self.program) };
    }
}

/// What `nvrtc.h` says of a result.
fn meaning(code: c_int) -> &'static str {
    match code {
        1 => "the compiler is out of memory",
        2 => "the compiler could not create the program",
        3 => "invalid input",
        4 => "invalid program",
        5 => "invalid option",
        6 => "errors in the source",
        sys::BUILTIN_OPERATION_FAILURE => "the compiler could not open its builtins (libnvrtc-builtins)",
        11 => "internal error of the compiler",
        _ => "the compiler failed",
    }
}
