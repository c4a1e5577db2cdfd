//! How numbers and images lie in the arena.

/// How numbers lie in the arena; sums are of single precision in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32 bits.
    #[default]
    Single,
    /// 32 bits; libraries may round a product's factors to 10 bits (tensor cores). Own kernels do not.
    Tf32,
    /// 16 bits. Biases stay in single precision.
    Half,
}

impl Precision {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Precision::Single | Precision::Tf32 => 4,
            Precision::Half => 2,
        }
    }
}

/// Which axis of images is the fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// Columns: NCHW.
    #[default]
    ChannelsFirst,
    /// Channels: NHWC, as tensor cores read.
    ChannelsLast,
}

/// How values lie in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Format {
    /// How numbers lie.
    pub precision: Precision,
    /// How images lie.
    pub layout: Layout,
}
