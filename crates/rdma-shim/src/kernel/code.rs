//! Sources of the kernels, and the arguments that they are launched with.

use gpu::Unit;

use crate::twin;

/// One file of `kernels/`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    /// Its name, as `generate.cu`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

impl Source {
    /// As the compiler takes it.
    pub(super) fn unit(&self) -> Unit {
        crate::device::unit(self.name, self.text).header("kernel.h", include_str!("../../kernels/kernel.h"))
    }
}

/// Arguments of a kernel, in the order of its parameters.
#[derive(Debug, Default)]
pub(crate) struct Arguments(Vec<Argument>);

#[derive(Debug)]
enum Argument {
    Word(u32),
    Long(u64),
}

impl Arguments {
    /// None yet.
    pub(crate) fn new() -> Arguments {
        Arguments::default()
    }

    /// An address, or another number of 64 bits.
    pub(crate) fn u64(mut self, value: u64) -> Arguments {
        self.0.push(Argument::Long(value));
        self
    }

    /// A number of 32 bits.
    #[allow(dead_code, reason = "for kernels to come")]
    pub(crate) fn u32(mut self, value: u32) -> Arguments {
        self.0.push(Argument::Word(value));
        self
    }

    pub(super) fn for_gpu(&self) -> gpu::Arguments {
        self.0.iter().fold(gpu::Arguments::new(), |all, argument| match argument {
            Argument::Word(value) => all.u32(*value),
            Argument::Long(value) => all.u64(*value),
        })
    }

    pub(super) fn for_twin(&self) -> twin::Arguments {
        self.0.iter().fold(twin::Arguments::new(), |all, argument| match argument {
            Argument::Word(value) => all.push(*value),
            Argument::Long(value) => all.push(*value),
        })
    }
}
