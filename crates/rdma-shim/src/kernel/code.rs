//! Sources of kernels, and the arguments that they are launched with.

use gpu::Unit;

/// A source of kernels, which a GPU's compiler and the host twin take from the same file.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// File name, as `generate.cu`; no other source of the program has it.
    pub name: &'static str,
    /// Text of the file.
    pub text: &'static str,
    /// Names and texts of the headers that it includes beside the shim's.
    pub headers: &'static [(&'static str, &'static str)],
    /// Table of the build script that compiled it for the host twin.
    pub twin: &'static host_twin::Kernels,
}

impl Source {
    /// The source as a GPU's compiler takes it, with all its headers in memory.
    pub fn unit(&self) -> Unit {
        let unit = crate::device::unit(self.name, self.text);
        self.headers.iter().fold(unit, |unit, (name, text)| unit.header(*name, *text))
    }
}

/// Arguments of a kernel, in the order of its parameters: addresses, where it finds all else.
#[derive(Debug, Default)]
pub struct Arguments(Vec<u64>);

impl Arguments {
    /// No arguments yet.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    /// Adds an address, or another number of 64 bits.
    pub fn u64(mut self, value: u64) -> Arguments {
        self.0.push(value);
        self
    }

    pub(super) fn for_gpu(&self) -> gpu::Arguments {
        self.0.iter().fold(gpu::Arguments::new(), |all, value| all.u64(*value))
    }

    pub(super) fn for_twin(&self) -> host_twin::Arguments {
        self.0.iter().fold(host_twin::Arguments::new(), |all, value| all.push(*value))
    }
}
