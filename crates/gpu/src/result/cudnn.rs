//! cuDNN's calls with their errors, over the functions of one library file, and descriptors that are
//! destroyed when dropped.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use super::{Error, Result};
use crate::sys::cudnn as sys;
use crate::sys::load::open_for_good;

pub use crate::sys::cudnn::{kind, name, of};

/// cuDNN, loaded for good.
#[derive(Debug, Clone)]
pub struct Library {
    functions: sys::Cudnn,
    path: PathBuf,
}

/// One call and what it may say in its error.
macro_rules! good {
    ($code:expr, $call:literal) => {
        match $code {
            0 => Ok(()),
            code => {
                let text = format!("cuDNN: {}: {} ({code})", $call, meaning(code));
                Err(if (3000..4000).contains(&code) {
                    Error::NotSupported(text)
                } else {
                    Error::Refused(text)
                })
            }
        }
    };
}

impl Library {
    /// Loads it. It looks for its parts by name: those that lie beside it are opened before it.
    pub fn load(path: &Path) -> Result<Library> {
        let wrong = |reason: String| Error::Refused(format!("cuDNN: {}: {reason}", path.display()));
        let parts = [
            "graph",
            "ops",
            "cnn",
            "ext",
            "engines_precompiled",
            "engines_runtime_compiled",
            "engines_tensor_ir",
            "heuristic",
        ];
        let beside = |part| Some(path.parent()?.join(format!("libcudnn_{part}.so.9")));
        for part in parts.iter().filter_map(beside).filter(|part| part.is_file()) {
            // A part that cannot be opened here, as without a driver, is missed when it is needed.
            let _ = open_for_good(&part);
        }
        let library = open_for_good(path).map_err(wrong)?;
        let functions = sys::Cudnn::load(library, str::to_owned)
            .map_err(|function| wrong(format!("it has no {function}")))?;
        Ok(Library { functions, path: path.to_owned() })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major, minor and patch version.
    pub fn version(&self) -> Result<[c_int; 3]> {
        let mut version = [0; 3];
        for (property, number) in version.iter_mut().enumerate() {
            // SAFETY: `number` is a local integer.
            good!(unsafe { (self.functions.property)(property as c_int, number) }, "cudnnGetProperty")?;
        }
        Ok(version)
    }

    /// A handle in the current context.
    ///
    /// # Safety
    /// A context is current, and is when the handle is used and destroyed.
    pub unsafe fn create(&self) -> Result<sys::Handle> {
        let mut handle = null_mut();
        // SAFETY: a context is current, as this function requires; `handle` is a local pointer.
        good!(unsafe { (self.functions.create)(&mut handle) }, "cudnnCreate")?;
        Ok(handle)
    }

    /// Ends a handle.
    ///
    /// # Safety
    /// It is one of this library, and used no more.
    pub unsafe fn destroy(&self, handle: sys::Handle) {
        // SAFETY: the caller's promise.
        let _ = unsafe { (self.functions.destroy)(handle) };
    }

    /// The stream that calls of a handle are put into.
    ///
    /// # Safety
    /// Handle and stream live, in the current context.
    pub unsafe fn set_stream(&self, handle: sys::Handle, stream: *mut c_void) -> Result<()> {
        // SAFETY: the caller's promise.
        good!(unsafe { (self.functions.set_stream)(handle, stream) }, "cudnnSetStream")
    }

    /// Puts a plan's kernels into the handle's stream.
    ///
    /// # Safety
    /// All live, in the current context, and the pack's pointers lead to what the plan's tensors say.
    pub unsafe fn execute(&self, handle: sys::Handle, plan: &Descriptor, pack: &Descriptor) -> Result<()> {
        // SAFETY: the caller's promise.
        good!(unsafe { (self.functions.execute)(handle, plan.raw, pack.raw) }, "cudnnBackendExecute")
    }

    /// A descriptor that is being filled.
    pub fn descriptor(&self, kind: c_int) -> Result<Descriptor> {
        let mut raw = null_mut();
        // SAFETY: `raw` is a local pointer.
        good!(unsafe { (self.functions.create_descriptor)(kind, &mut raw) }, "cudnnBackendCreateDescriptor")?;
        Ok(Descriptor { raw, functions: self.functions, kept: Vec::new() })
    }
}

/// A descriptor of the backend API, with those that it names.
#[derive(Debug)]
pub struct Descriptor {
    raw: sys::Descriptor,
    functions: sys::Cudnn,
    kept: Vec<Descriptor>,
}

// SAFETY: a descriptor belongs to no thread.
unsafe impl Send for Descriptor {}
// SAFETY: what a shared descriptor allows only reads it.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    fn put(&mut self, name: c_int, of: c_int, count: usize, elements: *const c_void) -> Result<()> {
        // SAFETY: `elements` points to as many elements of that type: the callers below see to it.
        let code = unsafe { (self.functions.set)(self.raw, name, of, count as i64, elements) };
        good!(code, "cudnnBackendSetAttribute")
            .map_err(|error| Error::Refused(format!("{error}, attribute {name}")))
    }

    /// Sets numbers: enumerations, sizes.
    pub fn ints(mut self, name: c_int, values: &[i64]) -> Result<Descriptor> {
        self.put(name, of::INT64, values.len(), values.as_ptr().cast())?;
        Ok(self)
    }

    /// Sets a value of an enumeration of type `of`.
    pub fn choice(mut self, name: c_int, of: c_int, value: c_int) -> Result<Descriptor> {
        self.put(name, of, 1, (&raw const value).cast())?;
        Ok(self)
    }

    /// Sets a truth value.
    pub fn flag(mut self, name: c_int, value: bool) -> Result<Descriptor> {
        self.put(name, of::BOOLEAN, 1, (&raw const value).cast())?;
        Ok(self)
    }

    /// Sets a number.
    pub fn float(mut self, name: c_int, value: f32) -> Result<Descriptor> {
        self.put(name, of::FLOAT, 1, (&raw const value).cast())?;
        Ok(self)
    }

    /// Sets a number in double precision.
    pub fn double(mut self, name: c_int, value: f64) -> Result<Descriptor> {
        self.put(name, of::DOUBLE, 1, (&raw const value).cast())?;
        Ok(self)
    }

    /// Sets pointers: a handle, or addresses of the GPU.
    pub fn pointers(mut self, name: c_int, of: c_int, values: &[u64]) -> Result<Descriptor> {
        self.put(name, of, values.len(), values.as_ptr().cast())?;
        Ok(self)
    }

    /// Names other descriptors, which the caller keeps.
    pub fn others(mut self, name: c_int, values: &[&Descriptor]) -> Result<Descriptor> {
        let raw: Vec<sys::Descriptor> = values.iter().map(|other| other.raw).collect();
        self.put(name, of::DESCRIPTOR, raw.len(), raw.as_ptr().cast())?;
        Ok(self)
    }

    /// Names another descriptor and keeps it.
    pub fn keeping(self, name: c_int, value: Descriptor) -> Result<Descriptor> {
        let mut with = self.others(name, &[&value])?;
        with.kept.push(value);
        Ok(with)
    }

    /// Keeps descriptors that it names already.
    pub fn keep(mut self, others: Vec<Descriptor>) -> Descriptor {
        self.kept.extend(others);
        self
    }

    /// Ends its filling.
    pub fn finalize(self) -> Result<Descriptor> {
        // SAFETY: the descriptor lives.
        good!(unsafe { (self.functions.finalize)(self.raw) }, "cudnnBackendFinalize")?;
        Ok(self)
    }

    /// Numbers of an attribute, at most `most`.
    pub fn read_ints(&self, name: c_int, most: usize) -> Result<Vec<i64>> {
        let mut values = vec![0_i64; most];
        let count = self.read(name, of::INT64, most, values.as_mut_ptr().cast())?;
        values.truncate(count);
        Ok(values)
    }

    /// Values of an enumeration, at most `most`.
    pub fn read_choices(&self, name: c_int, of: c_int, most: usize) -> Result<Vec<c_int>> {
        let mut values = vec![0; most];
        let count = self.read(name, of, most, values.as_mut_ptr().cast())?;
        values.truncate(count);
        Ok(values)
    }

    /// Sets a text.
    pub fn text(mut self, name: c_int, text: &[u8]) -> Result<Descriptor> {
        self.put(name, of::CHAR, text.len(), text.as_ptr().cast())?;
        Ok(self)
    }

    /// A text of any length.
    pub fn read_text(&self, name: c_int) -> Result<Vec<u8>> {
        let mut length = 0;
        // SAFETY: there is room for no element, and none is written.
        let code = unsafe { (self.functions.get)(self.raw, name, of::CHAR, 0, &mut length, null_mut()) };
        good!(code, "cudnnBackendGetAttribute")?;
        let mut text = vec![0; usize::try_from(length).unwrap_or(0)];
        let read = self.read(name, of::CHAR, text.len(), text.as_mut_ptr().cast())?;
        text.truncate(read);
        Ok(text)
    }

    /// Descriptors of an attribute: `empty` are filled, and those that were not go.
    pub fn read_others(&self, name: c_int, mut empty: Vec<Descriptor>) -> Result<Vec<Descriptor>> {
        let mut raw: Vec<sys::Descriptor> = empty.iter().map(|other| other.raw).collect();
        let count = self.read(name, of::DESCRIPTOR, raw.len(), raw.as_mut_ptr().cast())?;
        empty.truncate(count);
        Ok(empty)
    }

    fn read(&self, name: c_int, of: c_int, most: usize, to: *mut c_void) -> Result<usize> {
        let mut count = 0;
        // SAFETY: `to` has room for `most` elements of that type: the callers above see to it.
        let code = unsafe { (self.functions.get)(self.raw, name, of, most as i64, &mut count, to) };
        good!(code, "cudnnBackendGetAttribute")
            .map_err(|error| Error::Refused(format!("{error}, attribute {name}")))?;
        Ok((count.max(0) as usize).min(most))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it is this value's own.
        let _ = unsafe { (self.functions.destroy_descriptor)(self.raw) };
    }
}

/// `cudnnStatus_t`, by its hundreds.
fn meaning(code: c_int) -> &'static str {
    match code {
        1001 => "not initialised",
        2000..=2999 => "bad parameter",
        3000..=3999 => "not supported",
        4000..=4999 => "internal error",
        5000..=5999 => "execution failed",
        1002.. => "version or sub-library mismatch",
        _ => "unknown",
    }
}
