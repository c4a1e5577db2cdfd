//! The libraries that compute steps.

use std::fmt;

/// A library that computes steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// Convolutions, and products of matrices as convolutions of one pixel.
    Cudnn,
    /// Products of matrices.
    CublasLt,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Cudnn => "cuDNN",
            Library::CublasLt => "cuBLASLt",
        })
    }
}
