//! What the driver says of an address, asked without loading the driver, starting it, or making a context.
//!
//! For memory that another part of this process allocated: where CUDA has not been used nothing here has an
//! effect. The current context stays. Attribute numbers are those of `CUpointer_attribute` in `cuda.h`.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libloading::os::unix::{Library, RTLD_NOW};

use super::driver::CUdeviceptr;
use super::library::function_at;
use super::{Error, Result};

/// `cuPointerGetAttributes`, with an integer result: a newer driver may return one that no enumeration knows.
type GetAttributes = unsafe extern "C" fn(c_uint, *const c_uint, *const *mut c_void, CUdeviceptr) -> c_uint;

/// `CU_MEMORYTYPE_HOST`.
pub const MEMORY_TYPE_HOST: u32 = 1;

/// `CU_MEMORYTYPE_DEVICE`.
pub const MEMORY_TYPE_DEVICE: u32 = 2;

/// `CUDA_ERROR_NOT_INITIALIZED` and `CUDA_ERROR_DEINITIALIZED`.
const NOT_RUNNING: [u32; 2] = [3, 4];

/// What the driver tells of one address; 0 and `false` where it tells nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointerAttributes {
    /// Context it was made in, as a number; 0: in none, as pool memory and memory mapped page by page.
    pub context: usize,
    /// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`; 0 for an address that CUDA does not know.
    pub memory_type: u32,
    /// Number that no other allocation of the process ever gets.
    pub buffer_id: u64,
    /// Moves between host and GPU by itself.
    pub managed: bool,
    /// GPU, as CUDA counts them.
    pub ordinal: i32,
    /// First byte of the allocation, or of the range of addresses that was reserved for it.
    pub start: u64,
    pub len: usize,
    /// Something is mapped there.
    pub mapped: bool,
    /// A NIC may reach it (GPUDirect RDMA).
    pub gpu_direct: bool,
}

const RTLD_NOLOAD: c_int = libc::RTLD_NOLOAD;

/// How many objects the loader has loaded since the process began. Asked without the lock that it holds while
/// it runs an object's initialisers.
fn taken_in() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, count: *mut c_void) -> c_int {
        // SAFETY: the loader's description lives through the call.
        let adds = unsafe { (*info).dlpi_adds };
        // SAFETY: the word below.
        unsafe { count.cast::<u64>().write(adds) };
        1
    }
    let mut count = 0u64;
    // SAFETY: the callback keeps to its description and to `count`, and ends the walk at the first object.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut count).cast()) };
    count
}

/// The driver that this process has loaded, if any; it stays loaded from then on. Without one, looks again
/// when the loader has loaded something.
fn loaded() -> Option<GetAttributes> {
    static LOADED: OnceLock<GetAttributes> = OnceLock::new();
    static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
    if let Some(function) = LOADED.get() {
        return Some(*function);
    }
    let now = taken_in();
    if LOOKED_AT.load(Ordering::Relaxed) == now {
        return None;
    }
    let function = look();
    match function {
        Some(function) => _ = LOADED.set(function),
        None => LOOKED_AT.store(now, Ordering::Relaxed),
    }
    function
}

fn look() -> Option<GetAttributes> {
    #[cfg(test)]
    tests::LOOKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: nothing is loaded, so that no initialiser runs.
    let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_NOLOAD) }.ok()?;
    let library = Box::leak(Box::new(library));
    // SAFETY: the type is the function's in `cuda.h`, except for the result, a 32-bit enumeration there.
    let function = unsafe { library.get::<GetAttributes>("cuPointerGetAttributes") }.ok()?;
    Some(*function)
}

/// The number of the allocation that `address` lies in: `CU_POINTER_ATTRIBUTE_BUFFER_ID` alone, in 60 ns
/// where all of [`ask`] take some hundred.
pub fn buffer_id(address: u64) -> Option<u64> {
    let function = loaded()?;
    let (attributes, mut id): ([c_uint; 1], u64) = ([7], 0);
    let places: [*mut c_void; 1] = [(&raw mut id).cast()];
    // SAFETY: as many places as attributes, as wide as the driver writes.
    let result = unsafe { function(1, attributes.as_ptr(), places.as_ptr(), address) };
    (result == 0 && id != 0).then_some(id)
}

/// Whether this process has loaded the driver.
pub fn is_loaded() -> bool {
    loaded().is_some()
}

/// What the driver tells of `address`. `None`: there is no driver in this process, or it was not started.
pub fn ask(address: u64) -> Option<PointerAttributes> {
    let function = loaded()?;
    let mut told = PointerAttributes {
        context: 0,
        memory_type: 0,
        buffer_id: 0,
        managed: false,
        ordinal: -1,
        start: 0,
        len: 0,
        mapped: false,
        gpu_direct: false,
    };
    // CU_POINTER_ATTRIBUTE_CONTEXT, MEMORY_TYPE, BUFFER_ID, IS_MANAGED, DEVICE_ORDINAL, RANGE_START_ADDR,
    // RANGE_SIZE, MAPPED and IS_GPU_DIRECT_RDMA_CAPABLE. Booleans have one byte or four, so they get eight.
    let attributes: [c_uint; 9] = [1, 2, 7, 8, 9, 11, 12, 13, 15];
    let (mut managed, mut mapped, mut gpu_direct) = (0u64, 0u64, 0u64);
    let places: [*mut c_void; 9] = [
        (&raw mut told.context).cast(),
        (&raw mut told.memory_type).cast(),
        (&raw mut told.buffer_id).cast(),
        (&raw mut managed).cast(),
        (&raw mut told.ordinal).cast(),
        (&raw mut told.start).cast(),
        (&raw mut told.len).cast(),
        (&raw mut mapped).cast(),
        (&raw mut gpu_direct).cast(),
    ];
    // SAFETY: as many places as attributes, each as wide as the driver writes; unknown addresses give 0.
    let result =
        unsafe { function(attributes.len() as c_uint, attributes.as_ptr(), places.as_ptr(), address) };
    if result != 0 {
        return (!NOT_RUNNING.contains(&result)).then_some(told);
    }
    told.managed = managed as u8 != 0;
    told.mapped = mapped as u8 != 0;
    told.gpu_direct = gpu_direct as u8 != 0;
    Some(told)
}

/// An error unless the driver that this crate calls is the one that the process has loaded.
///
/// cudarc looks for `libcuda.so` first, which may be a toolkit's stub for linking.
pub fn same_driver() -> Result<()> {
    let ours = function_at("cuPointerGetAttributes")?;
    match loaded() {
        Some(theirs) if theirs as *const c_void == ours => Ok(()),
        _ => Err(Error::Refused(
            "two CUDA drivers are in this process: take the toolkit's stubs out of LD_LIBRARY_PATH".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub static LOOKS: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn the_driver_is_looked_for_once_for_whatever_the_loader_takes_in() {
        let before = taken_in();
        assert!(before > 0 && taken_in() == before, "{before}");
        for _ in 0..1000 {
            loaded();
        }
        // Other tests may load something meanwhile.
        let looks = || LOOKS.load(Ordering::Relaxed);
        assert!(looks() < 100, "{}", looks());
        let so_far = looks();
        // SAFETY: libraries of the system's whose initialisers do nothing.
        let taken =
            ["libutil.so.1", "libresolv.so.2"].map(|name| unsafe { Library::open(Some(name), RTLD_NOW) });
        if taken_in() > before && taken.iter().any(|library| library.is_ok()) && !is_loaded() {
            assert!(looks() > so_far, "what was taken in may have been the driver");
        }
    }
}
