//! Tables of compiled kernels, and the arguments of a launch.
//!
//! Build scripts compile kernels and write the tables that are read here (`struct db_twin_table`, `twin.h`).

use std::ffi::{CStr, c_char, c_void};

use crate::TwinError;

/// A kernel's code: takes pointers to its arguments.
pub(crate) type Run = unsafe extern "C" fn(*mut *mut c_void);

/// `struct db_twin_kernel`.
#[repr(C)]
struct Entry {
    name: *const c_char,
    run: Run,
    parameters: u32,
    sizes: *const u32,
}

/// `struct db_twin_table`.
#[repr(C)]
pub struct Table {
    count: u32,
    kernels: *const *const Entry,
}

/// The kernels of one table, as a build script compiled them ([`crate::include_kernels`]).
#[derive(Debug, Clone, Copy)]
pub struct Kernels(Result<*const Table, &'static str>);

// SAFETY: the tables are constants.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// A table without kernels, and why it has none.
    pub const fn none(reason: &'static str) -> Kernels {
        Kernels(Err(reason))
    }

    /// A table that `host_twin_build` wrote.
    ///
    /// # Safety
    /// It is one.
    pub const unsafe fn of(table: *const Table) -> Kernels {
        Kernels(Ok(table))
    }

    /// The kernel of that name, as its source writes it; of one compiled with a defect, `name+defect`.
    pub fn find(&self, name: &str) -> Result<Kernel, TwinError> {
        let table = self.0.map_err(|reason| TwinError::NoKernels { kernel: name.to_owned(), reason })?;
        // SAFETY: `of`'s caller vouches for the table, which is a constant.
        let table = unsafe { &*table };
        // SAFETY: it has as many pointers as it says.
        let entries = unsafe { std::slice::from_raw_parts(table.kernels, table.count as usize) };
        // SAFETY: each leads to a constant.
        let kernel = |entry: &*const Entry| Kernel(unsafe { &**entry });
        entries.iter().map(kernel).find(|kernel| kernel.name() == name).ok_or_else(|| {
            let known: Vec<&str> = entries.iter().map(|entry| kernel(entry).name()).collect();
            TwinError::UnknownKernel { kernel: name.to_owned(), known: known.join(", ") }
        })
    }
}

/// One kernel of a table.
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

    /// Address of its code, which takes an array of pointers to its arguments. For a kernel of another table
    /// that calls it, as a GPU's kernel calls a function of another unit.
    pub fn entry(&self) -> u64 {
        self.0.run as usize as u64
    }

    /// Its code.
    pub(crate) fn run(&self) -> Run {
        self.0.run
    }
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
    pub(crate) fn check(&self, kernel: Kernel) -> Result<(), TwinError> {
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
    pub(crate) fn pointers(&self) -> Vec<*mut c_void> {
        self.values.iter().map(|(words, _)| words.as_ptr().cast_mut().cast()).collect()
    }
}
