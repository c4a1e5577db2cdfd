//! AddressSanitizer, if the program is built with it: NIC copies count as the program's own loads and stores.
//!
//! Its run-time library checks ranges for code without inline checks (`__asan_loadN`, `__asan_storeN` of
//! compiler-rt's `asan_rtl.cpp`), reports, and ends the program. Looked up once, since nothing here is linked
//! to it. Left out: doorbell records, which are read by words.

use std::ffi::CStr;
use std::sync::OnceLock;

/// Takes an address and a number of bytes.
type Check = unsafe extern "C" fn(usize, usize);

#[derive(Debug, Clone, Copy)]
struct Checks {
    load: Check,
    store: Check,
}

/// Empty where the program is built without it.
static CHECKS: OnceLock<Checks> = OnceLock::new();

/// Looks for the library in this process.
pub(super) fn find() {
    if let (Some(load), Some(store)) = (check(c"__asan_loadN"), check(c"__asan_storeN")) {
        CHECKS.get_or_init(|| Checks { load, store });
    }
}

fn check(name: &CStr) -> Option<Check> {
    // SAFETY: `name` is a C string; nothing is loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: null, or a function of AddressSanitizer's, with these arguments in every version.
    unsafe { std::mem::transmute::<*mut libc::c_void, Option<Check>>(found) }
}

/// Reports what may not be read of `from`, or not written of `to`.
#[inline]
pub(super) fn copies(to: u64, from: u64, len: usize) {
    if let Some(checks) = CHECKS.get() {
        // SAFETY: reads the shadow of the range alone.
        unsafe { (checks.load)(from as usize, len) }
        // SAFETY: as above.
        unsafe { (checks.store)(to as usize, len) }
    }
}

/// Reports these bytes if they may not be written.
#[inline]
pub(super) fn stores(addr: u64, len: usize) {
    if let Some(checks) = CHECKS.get() {
        // SAFETY: reads the shadow of the range alone.
        unsafe { (checks.store)(addr as usize, len) }
    }
}
