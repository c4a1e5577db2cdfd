//! Sources of the kernels, and the arguments that they are launched with.

use gpu::Unit;

/// What kernels include beside the shim's headers.
const KERNEL_HEADERS: [(&str, &str); 3] = [
    ("generate.h", include_str!("../../kernels/generate.h")),
    ("kernel.h", include_str!("../../kernels/kernel.h")),
    ("post_original.h", include_str!("../../kernels/post_original.h")),
];

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
        let unit = crate::device::unit(self.name, self.text);
        KERNEL_HEADERS.iter().fold(unit, |unit, (name, text)| unit.header(*name, *text))
    }
}

/// Arguments of a kernel, in the order of its parameters: addresses, where it finds all else.
#[derive(Debug, Default)]
pub(crate) struct Arguments(Vec<u64>);

impl Arguments {
    /// None yet.
    pub(crate) fn new() -> Arguments {
        Arguments::default()
    }

    /// An address, or another number of 64 bits.
    pub(crate) fn u64(mut self, value: u64) -> Arguments {
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

#[cfg(test)]
mod tests {
    /// A compiler at run time reads no folder.
    #[test]
    fn every_header_that_a_kernel_of_a_wrapper_includes_is_in_its_unit() {
        use super::super::{echo, generate, receive};
        for source in [generate::SOURCE, generate::SHARED, generate::ORIGINAL, receive::SOURCE, echo::SOURCE]
        {
            let unit = source.unit();
            let texts = unit.headers.iter().map(|(_, text)| text.as_str()).chain([source.text]);
            for line in texts.flat_map(str::lines).filter(|line| line.starts_with("#include \"")) {
                let name = line.split('"').nth(1).unwrap_or_else(|| panic!("{line}"));
                // The twin's own, which is compiled beforehand.
                let there = name == "twin.h" || unit.headers.iter().any(|(header, _)| header == name);
                assert!(there, "{}: {line}", source.name);
            }
        }
    }
}
