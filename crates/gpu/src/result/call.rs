//! A function of the driver, typed by cudarc's binding, but with its result as a number.
//!
//! cudarc gives `CUresult` as an enumeration, in which a newer driver's unknown number would be undefined. So
//! the binding lends only its parameters and is never called: the driver's own function is.

use std::ffi::c_void;
use std::sync::OnceLock;

use super::Result;
use super::library::function_at;
use crate::sys::driver::CUresult;

/// Calls a function of the driver, if both are there.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        static FOUND: $crate::result::call::ResolvedFunction = $crate::result::call::ResolvedFunction::new();
        let binding: unsafe fn($($crate::result::call::any!($argument)),*) -> _ = $crate::sys::driver::$function;
        FOUND.function(binding, stringify!($function)).and_then(|function| {
            // SAFETY: the driver's function of that name; its arguments are for our caller to keep.
            let result = unsafe { function($($argument),*) };
            $crate::result::library::good(stringify!($function), result)
        })
    }};
}
pub(super) use call;

/// Functions that hand their parameters to one of the driver's and give nothing but its error.
macro_rules! forwards {
    ($($(#[$about:meta])* $name:ident($($parameter:ident: $kind:ty),*) = $function:ident($($argument:expr),*);)*) => {$(
        $(#[$about])*
        pub unsafe fn $name($($parameter: $kind),*) -> $crate::result::Result<()> {
            $crate::result::call::call!($function($($argument),*))
        }
    )*};
}
pub(super) use forwards;

/// A value that a call sets.
pub fn out<T>(mut value: T, call: impl FnOnce(&mut T) -> Result<()>) -> Result<T> {
    call(&mut value)?;
    Ok(value)
}

/// A type that the compiler finds out.
macro_rules! any {
    ($argument:expr) => {
        _
    };
}
pub(super) use any;

/// Type of a binding.
pub trait Binding {
    /// The same as C has it, its result a number.
    type Function;
}

macro_rules! binding {
    ($($parameter:ident)*) => {
        impl<$($parameter),*> Binding for unsafe fn($($parameter),*) -> CUresult {
            type Function = unsafe extern "C" fn($($parameter),*) -> u32;
        }
    };
}

binding!();
binding!(A);
binding!(A B);
binding!(A B C);
binding!(A B C D);
binding!(A B C D E);
binding!(A B C D E F);
binding!(A B C D E F G);
binding!(A B C D E F G H);
binding!(A B C D E F G H I);
binding!(A B C D E F G H I J);
binding!(A B C D E F G H I J K);

/// Where a call site has found its function, asked once.
pub struct ResolvedFunction(OnceLock<Result<usize>>);

impl ResolvedFunction {
    /// Not looked for yet.
    pub const fn new() -> ResolvedFunction {
        ResolvedFunction(OnceLock::new())
    }

    /// The driver's function `name`, of which `_binding` is the binding. Errors: no driver; it lacks it.
    pub fn function<B: Binding>(&self, _binding: B, name: &'static str) -> Result<B::Function> {
        const { assert!(size_of::<B::Function>() == size_of::<*const c_void>()) };
        let found = self.0.get_or_init(|| function_at(name).map(|at| at.expose_provenance()));
        let at: *const c_void = std::ptr::with_exposed_provenance(found.clone()?);
        // SAFETY: not null, and the function of that name, whose parameters are the binding's; its result is
        // a 32-bit enumeration in `cuda.h`.
        Ok(unsafe { std::mem::transmute_copy::<*const c_void, B::Function>(&at) })
    }
}
