//! Libraries by absolute path, opened for good.
//!
//! NVRTC opens its builtins by bare name at its first compile and has no path of its own to look in. A
//! library opened before, wherever it lies, is found by its name: so no `LD_LIBRARY_PATH` is needed.

use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// Opens `path` and keeps it open until the process ends. Error: the dynamic loader's words, without the
/// leading path, since callers name it.
pub fn open_for_good(path: &Path) -> Result<&'static Library, String> {
    // SAFETY: the initialisers of NVIDIA's libraries only fill their own tables; callers name no others.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    // Closing is not safe: the compiler starts threads and keeps handlers.
    let library = library.map_err(|error| {
        let (words, named) = (sentence(&error), format!("{}: ", path.display()));
        words.strip_prefix(&named).unwrap_or(&words).to_owned()
    });
    Ok(Box::leak(Box::new(library?)))
}

/// libloading's errors keep the loader's words in `source`.
pub fn sentence(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// Declares a table of functions and its loading from a library; `load`'s error is the missing name.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($field:ident = $name:literal: fn($($argument:ty),*);)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $table {
            $(#[doc = $name] pub $field: unsafe extern "C" fn($($argument),*) -> ::std::ffi::c_int,)*
        }

        impl $table {
            /// Takes every function out of `library`, where it is called what `exported` makes of its name.
            pub fn load(
                library: &'static ::libloading::os::unix::Library,
                exported: impl Fn(&str) -> String,
            ) -> Result<Self, String> {
                Ok(Self { $($field: {
                    let name = exported($name);
                    // SAFETY: the type is the function's in NVIDIA's header of this library; the library is
                    // never closed.
                    let function = unsafe { library.get(name.as_str()) };
                    *function.map_err(|_| name)?
                },)* })
            }
        }
    };
}
pub(crate) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_told_in_the_loaders_words_without_its_path() {
        let words = open_for_good(Path::new("/no/such/libnvrtc.so.13")).unwrap_err();
        assert!(words.starts_with("cannot open") && words.contains("No such file"), "{words}");
    }
}
