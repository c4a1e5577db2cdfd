//! cuBLASLt's calls with their errors, over the functions of one library file, and descriptors that are
//! destroyed when dropped.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};

use super::{Error, Result};
use crate::sys::cublaslt as sys;
use crate::sys::load::open_for_good;

pub use crate::sys::cublaslt::{Algorithm, Heuristic, compute, element, name};

/// cuBLASLt, loaded for good.
#[derive(Debug, Clone)]
pub struct Library {
    functions: sys::CublasLt,
    path: PathBuf,
}

fn good(code: c_int, call: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::Refused(format!("cuBLASLt: {call}: {} ({code})", meaning(code)))),
    }
}

/// `cublasStatus_t`.
fn meaning(code: c_int) -> &'static str {
    match code {
        1 => "not initialised",
        3 => "out of memory",
        7 => "bad parameter",
        8 => "not for this GPU",
        13 => "execution failed",
        14 => "internal error",
        15 => "not supported",
        _ => "unknown",
    }
}

/// A product of two matrices: the operation, and the layouts of its factors and of its result.
#[derive(Debug)]
pub struct Matrices {
    pub product: Descriptor,
    pub a: Descriptor,
    pub b: Descriptor,
    pub to: Descriptor,
}

/// Addresses of the GPU that a product reads and writes.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    pub a: u64,
    pub b: u64,
    pub to: u64,
    pub workspace: u64,
}

impl Library {
    /// Loads it.
    pub fn load(path: &Path) -> Result<Library> {
        let wrong = |reason: String| Error::Refused(format!("cuBLASLt: {}: {reason}", path.display()));
        let library = open_for_good(path).map_err(wrong)?;
        let functions = sys::CublasLt::load(library, str::to_owned)
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
            good(unsafe { (self.functions.property)(property as c_int, number) }, "cublasLtGetProperty")?;
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
        good(unsafe { (self.functions.create)(&mut handle) }, "cublasLtCreate")?;
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

    /// A product whose factors are rounded and summed so, scaled in single precision.
    pub fn product(&self, compute: c_int) -> Result<Descriptor> {
        let mut raw = null_mut();
        // SAFETY: `raw` is a local pointer.
        let code = unsafe { (self.functions.create_product)(&mut raw, compute, element::FLOAT) };
        good(code, "cublasLtMatmulDescCreate")?;
        Ok(Descriptor { raw, set: self.functions.set_product, destroy: self.functions.destroy_product })
    }

    /// A matrix whose columns begin `stride` elements apart.
    pub fn layout(&self, element: c_int, rows: u64, columns: u64, stride: i64) -> Result<Descriptor> {
        let mut raw = null_mut();
        // SAFETY: `raw` is a local pointer.
        let code = unsafe { (self.functions.create_layout)(&mut raw, element, rows, columns, stride) };
        good(code, "cublasLtMatrixLayoutCreate")?;
        Ok(Descriptor { raw, set: self.functions.set_layout, destroy: self.functions.destroy_layout })
    }

    /// What an algorithm may need and do.
    pub fn preference(&self) -> Result<Descriptor> {
        let mut raw = null_mut();
        // SAFETY: `raw` is a local pointer.
        good(unsafe { (self.functions.create_preference)(&mut raw) }, "cublasLtMatmulPreferenceCreate")?;
        Ok(Descriptor { raw, set: self.functions.set_preference, destroy: self.functions.destroy_preference })
    }

    /// The algorithms that the library has for a product, the best first, at most `most`.
    ///
    /// # Safety
    /// The handle is one of this library, in the current context.
    pub unsafe fn algorithms(
        &self,
        handle: sys::Handle,
        of: &Matrices,
        preference: &Descriptor,
        most: usize,
    ) -> Result<Vec<Heuristic>> {
        let (mut all, mut count) = (vec![Heuristic::default(); most], 0);
        // SAFETY: the descriptors live, and `all` has room for `most`; the rest is the caller's promise.
        let code = unsafe {
            (self.functions.heuristic)(
                handle,
                of.product.raw,
                of.a.raw,
                of.b.raw,
                of.to.raw,
                of.to.raw,
                preference.raw,
                most as c_int,
                all.as_mut_ptr(),
                &mut count,
            )
        };
        good(code, "cublasLtMatmulAlgoGetHeuristic")?;
        all.truncate(count.max(0) as usize);
        all.retain(|one| one.status == 0);
        Ok(all)
    }

    /// Whether an algorithm computes a product on this GPU, and with how many bytes of workspace.
    ///
    /// # Safety
    /// As for [`Self::algorithms`].
    pub unsafe fn check(&self, handle: sys::Handle, of: &Matrices, algorithm: &Algorithm) -> Result<usize> {
        let mut found = Heuristic::default();
        let Matrices { product, a, b, to } = of;
        // SAFETY: the descriptors live, and `found` is a local value; the rest is the caller's promise.
        let code = unsafe {
            (self.functions.check)(handle, product.raw, a.raw, b.raw, to.raw, to.raw, algorithm, &mut found)
        };
        good(code, "cublasLtMatmulAlgoCheck")?;
        good(found.status, "cublasLtMatmulAlgoCheck")?;
        Ok(found.workspace)
    }

    /// A setting of an algorithm, by its number in `cublasLtMatmulAlgoConfigAttributes_t`.
    pub fn setting(&self, algorithm: &Algorithm, attribute: c_int) -> Result<u32> {
        let (mut value, mut written) = (0_u32, 0);
        // The shapes of instructions and clusters have 16 bits.
        let bytes = if attribute < 7 { 4 } else { 2 };
        let to = (&raw mut value).cast();
        // SAFETY: `value` has room for so many bytes; an algorithm is read only.
        let code = unsafe { (self.functions.configuration)(algorithm, attribute, to, bytes, &mut written) };
        good(code, "cublasLtMatmulAlgoConfigGetAttribute")?;
        Ok(value)
    }

    /// Puts a product into a stream.
    ///
    /// # Safety
    /// Handle and stream live, in the current context. The addresses are of matrices of these layouts, and of
    /// a workspace of `workspace` bytes.
    pub unsafe fn multiply(
        &self,
        handle: sys::Handle,
        of: &Matrices,
        (algorithm, workspace): (&Algorithm, usize),
        at: Addresses,
        stream: *mut c_void,
    ) -> Result<()> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        let to = with_exposed_provenance_mut(at.to as usize);
        // SAFETY: the factors are read before the call returns; the rest is the caller's promise.
        let code = unsafe {
            (self.functions.multiply)(
                handle,
                of.product.raw,
                (&raw const one).cast(),
                with_exposed_provenance(at.a as usize),
                of.a.raw,
                with_exposed_provenance(at.b as usize),
                of.b.raw,
                (&raw const zero).cast(),
                to,
                of.to.raw,
                to,
                of.to.raw,
                algorithm,
                with_exposed_provenance_mut(at.workspace as usize),
                workspace,
                stream,
            )
        };
        good(code, "cublasLtMatmul")
    }
}

/// A descriptor of any kind.
#[derive(Debug)]
pub struct Descriptor {
    raw: sys::Descriptor,
    set: sys::Set,
    destroy: sys::Destroy,
}

impl Descriptor {
    fn put(self, name: c_int, from: *const c_void, bytes: usize) -> Result<Descriptor> {
        // SAFETY: `from` points to so many bytes: the callers below see to it.
        good(unsafe { (self.set)(self.raw, name, from, bytes) }, "setting an attribute")
            .map_err(|error| Error::Refused(format!("{error}, attribute {name}")))?;
        Ok(self)
    }

    /// Sets an attribute of 32 bits.
    pub fn int(self, name: c_int, value: u32) -> Result<Descriptor> {
        self.put(name, (&raw const value).cast(), size_of_val(&value))
    }

    /// Sets an attribute of 64 bits: a number, a mask, an address of the GPU.
    pub fn long(self, name: c_int, value: u64) -> Result<Descriptor> {
        self.put(name, (&raw const value).cast(), size_of_val(&value))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it is this value's own.
        let _ = unsafe { (self.destroy)(self.raw) };
    }
}
