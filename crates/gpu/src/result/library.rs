//! The driver's library: opened once, its functions by their names, and its errors in the driver's words.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null;
use std::sync::OnceLock;

use super::{Error, Result};
use crate::sys::driver as sys;
use crate::sys::load::sentence;

/// Names that are tried, the usual one last, as cudarc tries them.
const LOOKED: &str = "libcuda.so, libcuda.so.13, libcuda.so.12 and libcuda.so.1";

/// The function that tells the driver's version.
const VERSION: &str = "cuDriverGetVersion";

/// Driver there and initialised, or why not; found out once.
pub fn ready() -> Result<()> {
    static READY: OnceLock<Result<()>> = OnceLock::new();
    let find = || {
        // SAFETY: libcuda's initialisers are its own affair; opening it is what this crate is for.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoDriver { looked: LOOKED, reason: loaders_words() });
        }
        let Some(init) = symbol::<unsafe extern "C" fn(c_uint) -> u32>("cuInit") else {
            return Err(Error::MissingFunction { function: "cuInit", version: "unknown".into() });
        };
        // SAFETY: the driver's, of the type in `cuda.h`; it takes no pointer.
        good("cuInit", unsafe { init(0) })
    };
    READY.get_or_init(find).clone()
}

/// Why the usual name cannot be opened.
fn loaders_words() -> String {
    // SAFETY: as in `ready`; here it is not there, or damaged.
    match unsafe { libloading::Library::new("libcuda.so.1") } {
        Ok(_) => "libcuda.so.1 opens by itself".into(),
        Err(error) => sentence(&error),
    }
}

/// A function of the driver that was found, of the type that the caller gives it.
fn symbol<F: Copy>(function: &str) -> Option<F> {
    // SAFETY: the driver is there, so this does not panic.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbol is only looked for; calling it is unsafe.
    unsafe { library.get::<F>(function) }.ok().map(|symbol| *symbol)
}

/// A function of the driver, of the caller's unsafe type. Errors: no driver; it lacks the function.
pub(super) fn named<F: Copy>(function: &'static str) -> Result<F> {
    ready()?;
    symbol(function).ok_or_else(|| missing(function))
}

/// Where the driver that is called here has a function.
pub fn function_at(function: &'static str) -> Result<*const c_void> {
    named::<unsafe extern "C" fn()>(function).map(|at| at as *const c_void)
}

fn missing(function: &'static str) -> Error {
    // One that does not even tell its version must not be asked for it.
    let version = if function == VERSION { None } else { driver_version().ok() };
    let version = version.map_or_else(|| "unknown".into(), |(major, minor)| format!("{major}.{minor}"));
    Error::MissingFunction { function, version }
}

/// CUDA version of the driver: (13, 0).
pub fn driver_version() -> Result<(u32, u32)> {
    let version_of = named::<unsafe extern "C" fn(*mut c_int) -> u32>(VERSION)?;
    let mut version = 0;
    // SAFETY: the driver's, of the type in `cuda.h`; it sets the number.
    good(VERSION, unsafe { version_of(&mut version) })?;
    Ok((version as u32 / 1000, version as u32 % 1000 / 10))
}

/// `CUDA_SUCCESS`, or an error with the driver's words. A newer driver may return an unknown number.
pub fn good(call: &'static str, code: u32) -> Result<()> {
    type Words = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;
    if code == 0 {
        return Ok(());
    }
    let (mut name, mut text) = (null(), null());
    if let (Some(name_of), Some(text_of)) =
        (symbol::<Words>("cuGetErrorName"), symbol::<Words>("cuGetErrorString"))
    {
        // SAFETY: the driver's, of the type in `cuda.h`; it sets the pointer to its own text or to null.
        unsafe { name_of(code, &mut name) };
        // SAFETY: as above.
        unsafe { text_of(code, &mut text) };
    }
    Err(Error::Call {
        call,
        what: String::new(),
        code,
        name: words(name, "unknown error"),
        text: words(text, "no text"),
    })
}

fn words(text: *const c_char, otherwise: &str) -> String {
    if text.is_null() {
        return otherwise.to_owned();
    }
    // SAFETY: the driver's texts end with a zero and stay for good.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
