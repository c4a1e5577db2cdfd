//! An image on the GPU, its kernels, and the arguments that they are launched with.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use super::context::Context;
use super::discarded::Discarded;
use super::image_builder::Image;
use crate::result::driver::{self, CUfunction, CUmodule};
use crate::result::{Error, Result};

/// A loaded image; unloaded when the last of its functions is gone.
#[derive(Debug, Clone)]
pub struct Module(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    context: Context,
    module: CUmodule,
}

// SAFETY: the driver's calls about a module may come from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Module {
    /// Loads it. Errors: it is for another architecture; the driver's, e.g. a name that it does not supply.
    pub fn load(context: &Context, image: &Image) -> Result<Module> {
        let arch = context.gpu().arch()?;
        context.enter()?;
        // SAFETY: the context is current; the image was checked to be one, and the driver copies it.
        let loaded = unsafe { driver::module_load(&image.bytes) };
        let module = loaded
            .map_err(|error| error.of(format_args!("an image for {} on a GPU of {arch}", image.arch)))?;
        Ok(Module(Arc::new(Loaded { context: context.clone(), module })))
    }

    /// Loads a kernel's assembly, which the driver translates for its GPU. Errors: the driver is too old for
    /// the text's version; a mistake in it.
    pub fn from_assembly(context: &Context, ptx: &std::ffi::CStr) -> Result<Module> {
        context.enter()?;
        // SAFETY: the context is current; the text ends with a zero, by which the driver knows its end.
        let loaded = unsafe { driver::module_load(ptx.to_bytes_with_nul()) };
        let module = loaded.map_err(|error| error.of("assembly that the driver is to translate"))?;
        Ok(Module(Arc::new(Loaded { context: context.clone(), module })))
    }

    /// A kernel by its name, loaded now: the first launch of one that was not loaded waits for the device.
    pub fn function(&self, name: &str) -> Result<Function> {
        let text =
            CString::new(name).map_err(|_| Error::Refused(format!("{name:?} is no name of a kernel")))?;
        self.0.context.enter()?;
        // SAFETY: the module lives, in the context that is current.
        let handle = unsafe { driver::function(self.0.module, &text) }?;
        // SAFETY: as above.
        match unsafe { driver::function_load(handle) } {
            // A driver that has no such function loads all at once.
            Ok(()) | Err(Error::MissingFunction { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut parameters = Some(Vec::new());
        for index in 0.. {
            // SAFETY: as above.
            match unsafe { driver::parameter_bytes(handle, index) } {
                Ok(Some(bytes)) => parameters.iter_mut().for_each(|list| list.push(bytes)),
                Ok(None) => break,
                // Before CUDA 12.4 a driver does not tell.
                Err(Error::MissingFunction { .. }) => {
                    parameters = None;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Function { module: self.clone(), handle, name: name.to_owned(), parameters })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // Code that runs must stay.
        self.context.discard(Discarded::Module(self.module));
    }
}

/// A kernel.
#[derive(Debug, Clone)]
pub struct Function {
    module: Module,
    handle: CUfunction,
    name: String,
    /// Sizes in bytes, where the driver tells.
    parameters: Option<Vec<usize>>,
}

// SAFETY: the driver's calls about a function may come from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn handle(&self) -> CUfunction {
        self.handle
    }

    pub(super) fn context(&self) -> &Context {
        &self.module.0.context
    }

    /// Blocks for a kernel that stays on the GPU: [`Self::max_blocks`] less one multiprocessor's, so that
    /// others' short kernels, such as a NIC's copies, find room. Of one multiprocessor: one block.
    pub fn resident_blocks(&self, threads: u32) -> Result<u32> {
        let (all, processors) = (self.max_blocks(threads)?, self.context().gpu().multiprocessors()?);
        Ok((all - all / processors.max(1)).max(1))
    }

    /// Blocks of so many threads, without dynamic shared memory, that its GPU runs side by side when idle
    /// otherwise. Those of a larger launch wait until others have ended.
    pub fn max_blocks(&self, threads: u32) -> Result<u32> {
        self.context().enter()?;
        // No block has as many as that: the driver's answer is 0.
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the function lives as its module does, in the context that is current.
        let each = unsafe { driver::blocks_a_multiprocessor(self.handle, threads) }?.max(0) as u32;
        Ok(each.saturating_mul(self.context().gpu().multiprocessors()?))
    }

    /// An error unless there are as many arguments, of such sizes, as the kernel takes.
    pub(super) fn accepts(&self, arguments: &Arguments) -> Result<()> {
        match &self.parameters {
            Some(wanted) => matches(&self.name, wanted, &arguments.sizes()),
            None => Ok(()),
        }
    }
}

fn matches(name: &str, wanted: &[usize], given: &[usize]) -> Result<()> {
    match wanted == given {
        true => Ok(()),
        false => Err(Error::Refused(format!(
            "kernel `{name}` takes parameters of {wanted:?} bytes, and was given {given:?}"
        ))),
    }
}

/// Arguments of a kernel, in their order, each copied as the bytes that it is.
#[derive(Debug, Clone, Default)]
pub struct Arguments(Vec<Box<[u8]>>);

impl Arguments {
    pub fn new() -> Arguments {
        Arguments::default()
    }

    /// An address, or another number of 64 bits.
    pub fn u64(self, value: u64) -> Arguments {
        self.bytes(&value.to_ne_bytes())
    }

    /// A number of 32 bits.
    pub fn u32(self, value: u32) -> Arguments {
        self.bytes(&value.to_ne_bytes())
    }

    /// A structure that is passed by value, laid out as the device's compiler lays it.
    pub fn bytes(mut self, value: &[u8]) -> Arguments {
        self.0.push(value.into());
        self
    }

    fn sizes(&self) -> Vec<usize> {
        self.0.iter().map(|value| value.len()).collect()
    }

    /// What the driver wants; it reads through these, bytes of no particular alignment, and never writes.
    pub(super) fn pointers(&self) -> Vec<*mut c_void> {
        self.0.iter().map(|value| value.as_ptr().cast_mut().cast()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_a_kernel_does_not_take_are_refused_before_the_launch() {
        let arguments = Arguments::new().u64(1).u32(2).bytes(&[0; 48]);
        assert_eq!((arguments.sizes(), arguments.pointers().len()), (vec![8, 4, 48], 3));
        assert!(matches("post", &[8, 4, 48], &arguments.sizes()).is_ok());
        for wanted in [&[8, 4][..], &[4, 8, 48], &[8, 4, 48, 4], &[]] {
            let text = matches("post", wanted, &arguments.sizes()).unwrap_err().to_string();
            assert!(
                text.starts_with("kernel `post` takes parameters of") && text.ends_with("given [8, 4, 48]"),
                "{text}"
            );
        }
    }
}
