//! Links units with nvJitLink, which needs no driver and no GPU, and with `libcudadevrt.a`.
//!
//! The device runtime is always given: code that launches graphs is documented to need it, and without it its
//! other functions are undefined names. It makes an image of some 200 KiB out of one of 8.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::ffi::CString;

use super::compile::{Arch, Compiled, Form, c_string};
use super::toolkit::Toolkit;
use crate::result::BuildError;
use crate::result::jit_link::{JitLink, input};

/// The linker of a toolkit.
#[derive(Debug, Clone)]
pub struct Linker {
    linker: JitLink,
    device_runtime: CString,
}

impl Linker {
    /// Loads it. Error: a library that cannot be loaded, or is of no version that we know.
    pub fn load(toolkit: &Toolkit) -> Result<Linker, BuildError> {
        let path = &toolkit.device_runtime;
        let text = path.to_str().ok_or_else(|| {
            BuildError::Refused(format!("{}: the linker takes no path that is not UTF-8", path.display()))
        })?;
        let device_runtime = c_string(text, "the path of libcudadevrt.a")?;
        Ok(Linker { linker: JitLink::load(&toolkit.jit_link)?, device_runtime })
    }

    /// The version that the names of its functions carry, as `13_0`.
    pub fn version(&self) -> &'static str {
        self.linker.version()
    }

    /// Links `units`, all of one form, into an image for `arch`. Errors: `Refused` for none or mixed forms,
    /// else the linker's, with its log.
    pub fn link(&self, units: &[Compiled], arch: Arch) -> Result<Vec<u8>, BuildError> {
        let names = units.iter().map(|unit| unit.name.as_str()).collect::<Vec<_>>().join(", ");
        let form = units.first().map(|unit| unit.form);
        let Some(form) = form.filter(|form| units.iter().all(|unit| unit.form == *form)) else {
            return Err(BuildError::Refused(format!(
                "units to link must be of one form, and at least one: {names:?}"
            )));
        };
        let options = [c_string(&format!("-arch={arch}"), "an option")?];
        let kind = if form == Form::Cubin { input::CUBIN } else { input::PTX };
        // Text ends with a zero that counts, as NVRTC gives it out. Without one the linker reads past the
        // end, and now and then finds that it is no text.
        let text = |unit: &Compiled| [unit.bytes.as_slice(), &[0]].concat();
        let bytes: Vec<Cow<'_, [u8]>> = units
            .iter()
            .map(|unit| if form == Form::Ptx { text(unit).into() } else { unit.bytes.as_slice().into() })
            .collect();
        let inputs = units
            .iter()
            .zip(&bytes)
            .map(|(unit, bytes)| Ok((kind, c_string(&unit.name, "a unit's name")?, bytes.as_ref())));
        let inputs = inputs.collect::<Result<Vec<_>, BuildError>>()?;
        let linked = self.linker.link(&options, &inputs, Some(&self.device_runtime));
        linked.map_err(|failed| BuildError::Link {
            units: names,
            arch: arch.to_string(),
            call: failed.call,
            code: failed.code,
            log: failed.log,
        })
    }
}
