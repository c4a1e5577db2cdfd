//! Why a pipeline does not run.

use std::time::Duration;

use rdma_shim::kernel::KernelError;

/// Why a pipeline does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServedError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Gpu(#[from] gpu::Error),
    #[error("{0}")]
    Refused(String),
    #[error("{what} has not happened within {limit:?}")]
    Deadline { what: String, limit: Duration },
    #[error("the thread that launches the kernels: {0}")]
    Thread(std::io::Error),
    #[error("the model: {0}")]
    Model(String),
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
}

pub(super) fn refuse<T>(why: impl Into<String>) -> Result<T, ServedError> {
    Err(ServedError::Refused(why.into()))
}
