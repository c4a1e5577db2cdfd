//! nvJitLink's calls with their errors, over the functions of one library file.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::path::Path;
use std::ptr::null_mut;

use super::BuildError;
use crate::sys::jit_link as sys;
use crate::sys::load::open_for_good;

pub use sys::input;

/// The linker of one toolkit, loaded for good.
#[derive(Debug, Clone, Copy)]
pub struct JitLink {
    functions: sys::JitLink,
    version: &'static str,
}

#[derive(Debug)]
pub struct Failed {
    /// Function that refused.
    pub call: &'static str,
    pub code: c_int,
    /// The linker's log.
    pub log: String,
}

impl JitLink {
    /// Loads the linker, by the newest of the versions that its names carry.
    pub fn load(path: &Path) -> Result<Self, BuildError> {
        let library = path.display().to_string();
        let opened =
            open_for_good(path).map_err(|reason| BuildError::Load { library: library.clone(), reason })?;
        let mut missing = String::new();
        for version in sys::VERSIONS {
            match sys::JitLink::load(opened, |name| sys::exported(name, version)) {
                Ok(functions) => return Ok(Self { functions, version }),
                Err(function) => missing = function,
            }
        }
        Err(BuildError::MissingFunction { library, function: missing })
    }

    /// The version that its names carry, as `13_0`.
    pub fn version(&self) -> &'static str {
        self.version
    }

    /// Links `units` (kind of input, name, bytes) with `library`.
    pub fn link(
        &self,
        options: &[CString],
        units: &[(c_int, CString, &[u8])],
        library: Option<&CStr>,
    ) -> Result<Vec<u8>, Failed> {
        let functions = &self.functions;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut handle = null_mut();
        // SAFETY: the options end with zeros and outlive the handle, which this function destroys.
        let code = unsafe { (functions.create)(&mut handle, options.len() as c_uint, options.as_ptr()) };
        if code != 0 {
            return Err(Failed { call: "nvJitLinkCreate", code, log: String::new() });
        }
        let link = Link { handle, functions };
        for (kind, name, bytes) in units {
            // SAFETY: the bytes are as long as said. nvJitLink keeps the pointer to the name until it has
            // completed, and the names belong to the caller.
            let code = unsafe {
                (functions.add_bytes)(link.handle, *kind, bytes.as_ptr().cast(), bytes.len(), name.as_ptr())
            };
            link.good("nvJitLinkAddData", code)?;
        }
        if let Some(library) = library {
            // SAFETY: the path ends with a zero and belongs to the caller, as the names do.
            let code = unsafe { (functions.add_file)(link.handle, input::LIBRARY, library.as_ptr()) };
            link.good("nvJitLinkAddFile", code)?;
        }
        // SAFETY: the handle is alive, and so is all that it was given.
        link.good("nvJitLinkComplete", unsafe { (functions.complete)(link.handle) })?;
        let mut bytes = 0;
        // SAFETY: the handle is alive; the length goes to an integer of ours.
        let code = unsafe { (functions.cubin_bytes)(link.handle, &mut bytes) };
        link.good("nvJitLinkGetLinkedCubinSize", code)?;
        let mut cubin = vec![0u8; bytes];
        // SAFETY: the buffer is as long as the library said that the image is.
        let code = unsafe { (functions.cubin)(link.handle, cubin.as_mut_ptr().cast()) };
        link.good("nvJitLinkGetLinkedCubin", code)?;
        Ok(cubin)
    }
}

/// A link under way, destroyed when dropped.
struct Link<'a> {
    handle: sys::Handle,
    functions: &'a sys::JitLink,
}

impl Link<'_> {
    fn good(&self, call: &'static str, code: c_int) -> Result<(), Failed> {
        if code == 0 { Ok(()) } else { Err(Failed { call, code, log: self.log() }) }
    }

    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: the handle is alive; the length goes to an integer of ours.
        let code = unsafe { (self.functions.log_bytes)(self.handle, &mut bytes) };
        if code != 0 || bytes == 0 {
            return String::new();
        }
        // Whether the last zero is counted differs between versions.
        let mut log = vec![0u8; bytes + 1];
        // SAFETY: the buffer is longer than the library said that the log is.
        unsafe { (self.functions.log)(self.handle, log.as_mut_ptr().cast()) };
        let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
        text.trim().to_owned()
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle was created by this library and is destroyed once.
        unsafe { (self.functions.destroy)(&mut self.handle) };
    }
}
