//! Requests that something else computes than the thread that serves: a GPU, which the CPU drives.

use super::{CpuError, Endpoint, Job};
use crate::trace::OffloadTimes;

/// Computes answers out of slots, beside the thread that serves. It finds the tensors of a request in its
/// slot, and leaves those of the answer there.
pub trait Offload: Send {
    /// Whether it posts the answers, too.
    fn posts(&self) -> bool {
        false
    }

    /// Serves a client from now on.
    fn admit(&mut self, _client: u32, _endpoint: &Endpoint) -> Result<(), CpuError> {
        Ok(())
    }

    /// Serves it no longer: nothing uses its queue from here on. Error: something still does.
    fn remove(&mut self, _client: u32) -> Result<(), CpuError> {
        Ok(())
    }

    /// Notes from now on how long the steps of a request take. Before the first one. Error: it cannot.
    fn trace(&mut self) -> Result<(), CpuError> {
        Err(CpuError::Offload("steps are not traced here".into()))
    }

    /// Where it posts: turns that it was given, and those of them that have begun.
    fn turns(&self) -> [u64; 2] {
        [0, u64::MAX]
    }

    /// Whether it takes a further request now.
    fn has_room(&self) -> bool;

    /// Begins a request, and does not wait for its end.
    fn begin(&mut self, job: Job) -> Result<(), CpuError>;

    /// Whether the posts to a client's queue have failed: why.
    fn failure(&self, _client: u32) -> Option<String> {
        None
    }

    /// A request that has ended, in the order in which they began; none where the offload posts answers
    /// itself. Errors: what failed in the request.
    fn ended(&mut self) -> Result<Option<Job>, CpuError>;

    /// How long the steps took of the request that [`Self::ended`] returned last, if noted. Asked for behind
    /// the answer's doorbell, so that reading them is no part of its service.
    fn times(&mut self) -> Result<OffloadTimes, CpuError> {
        Ok(OffloadTimes::default())
    }
}
