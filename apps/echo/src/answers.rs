//! What a service needs of the code that answers its clients.

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use verbs::connect::Session;

use crate::end::ServiceEnd;

/// What answers clients, one after the other.
pub trait Answers {
    /// Makes all that needs memory, before a client waits for it and before a launch.
    fn prepare(&mut self) -> Result<()>;
    /// Connects a client.
    fn join(&mut self, session: &mut Session, stop: &AtomicBool) -> Result<()>;
    /// Answers it until it is through or gone, what answers has failed, or a signal came.
    fn serve(&mut self, session: &mut Session, stop: &AtomicBool) -> Result<ServiceEnd>;
}
