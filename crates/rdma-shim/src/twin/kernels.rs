//! The kernels that this build holds, and their arguments.
//!
//! `build.rs` compiles each source of `kernels/` and writes the tables that are read here (`struct db_twin_kernel`, `twin.h`).

use std::ffi::{CStr, c_char, c_void};

use super::TwinError;

/// `struct db_twin_kernel`.
#[repr(C)]
struct Entry {
    name: *const c_char,
    runs: *const Run,
    blocks: u32,
    parameters: u32,
    sizes: *const u32,
}

/// A kernel's code: takes pointers to its arguments.
pub(super) type Run = unsafe extern "C" fn(*mut *mut c_void);

unsafe extern "C" {
    static db_twin_has_compiler: u32;
    static db_twin_kernel_count: u32;
    static db_twin_kernels: [*const Entry; 0];
    static db_twin_planted_count: u32;
    static db_twin_planted: [*const Entry; 0];
}

/// A kernel of this build.
#[derive(Clone, Copy)]
pub struct Kernel(&'static Entry);

// SAFETY: the tables are constants.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernel({})", self.name())
    }
}

impl Kernel {
    /// The kernel of that name, as its source writes it.
    pub fn find(name: &str) -> Result<Kernel, TwinError> {
        // SAFETY: a constant of the build's tables.
        let (table, count) = (&raw const db_twin_kernels, unsafe { db_twin_kernel_count });
        find_in(table.cast(), count, name)
    }

    /// A kernel compiled with a defect: `name+defect`, as `build.rs` lists them. For tests that see the defect found.
    pub fn find_planted(name: &str) -> Result<Kernel, TwinError> {
        // SAFETY: a constant of the build's tables.
        let (table, count) = (&raw const db_twin_planted, unsafe { db_twin_planted_count });
        find_in(table.cast(), count, name)
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        // SAFETY: a literal of the build's tables.
        unsafe { CStr::from_ptr(self.0.name) }.to_str().unwrap_or("a name that is not UTF-8")
    }

    /// Sizes of its parameters in bytes.
    pub fn parameters(&self) -> &'static [u32] {
        // SAFETY: the build's table has as many sizes as it says.
        unsafe { std::slice::from_raw_parts(self.0.sizes, self.0.parameters as usize) }
    }

    /// Its code: one for each block that can run at a time, or one for all.
    pub(super) fn runs(&self) -> &'static [Run] {
        // SAFETY: the build's table has as many entries as it says.
        unsafe { std::slice::from_raw_parts(self.0.runs, self.0.blocks as usize) }
    }

    /// What tells it from other kernels.
    pub(super) fn key(&self) -> usize {
        std::ptr::from_ref(self.0).addr()
    }
}

fn find_in(table: *const *const Entry, count: u32, name: &str) -> Result<Kernel, TwinError> {
    let mut known = Vec::new();
    for index in 0..count as usize {
        // SAFETY: the build's table has `count` pointers.
        let entry = unsafe { table.wrapping_add(index).read() };
        // SAFETY: each to a constant.
        let kernel = Kernel(unsafe { &*entry });
        if kernel.name() == name {
            return Ok(kernel);
        }
        known.push(kernel.name());
    }
    // SAFETY: a constant of the build's tables.
    if unsafe { db_twin_has_compiler } == 0 {
        return Err(TwinError::NoCompiler { kernel: name.to_owned() });
    }
    Err(TwinError::UnknownKernel { kernel: name.to_owned(), known: known.join(", ") })
}

/// The arguments of a launch, in the order of the kernel's parameters.
#[derive(Debug, Default)]
pub struct Arguments {
    /// Each in words of its own, as long as itself.
    values: Vec<(Box<[u128]>, usize)>,
}

impl Arguments {
    /// None.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    /// One more: a pointer.
    pub fn pointer<T>(self, to: *mut T) -> Arguments {
        self.push(to.expose_provenance())
    }

    /// One more: a number, or a `repr(C)` struct that the kernel takes by value.
    pub fn push<T: Copy>(mut self, value: T) -> Arguments {
        const { assert!(align_of::<T>() <= align_of::<u128>()) };
        let bytes = size_of::<T>();
        let mut words = vec![0_u128; bytes.div_ceil(size_of::<u128>()).max(1)].into_boxed_slice();
        // SAFETY: the words are at least as long and as aligned as a `T`.
        unsafe { words.as_mut_ptr().cast::<T>().write(value) };
        self.values.push((words, bytes));
        self
    }

    /// Whether they are what the kernel takes, as far as sizes tell.
    pub(super) fn check(&self, kernel: Kernel) -> Result<(), TwinError> {
        let (given, wanted) = (self.values.iter().map(|(_, bytes)| *bytes), kernel.parameters());
        if given.clone().eq(wanted.iter().map(|&bytes| bytes as usize)) {
            return Ok(());
        }
        Err(TwinError::Arguments {
            kernel: kernel.name(),
            given: given.collect(),
            wanted: wanted.iter().map(|&bytes| bytes as usize).collect(),
        })
    }

    /// Pointers to each, for one lane: kernels may not change what these lead to, since lanes share it.
    pub(super) fn pointers(&self) -> Vec<*mut c_void> {
        self.values.iter().map(|(words, _)| words.as_ptr().cast_mut().cast()).collect()
    }
}
