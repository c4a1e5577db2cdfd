//! What came of asking, and whether the service is still there.

use std::time::Duration;

use verbs::connect::{ConnectError, Session, Wait};

use crate::end::ServiceEnd;

#[derive(Debug, Default)]
pub struct Outcome {
    /// Nanoseconds of each round trip, in their order.
    pub times: Vec<u32>,
    /// Words of answers that were not what they should be.
    pub wrong_words: u32,
    /// Question of the first of them.
    pub first_wrong: Option<u32>,
    pub error: Option<String>,
}

/// Looks whether the service has ended before it was told to: why.
pub fn early_end(session: &mut Session, wait: Duration) -> Option<String> {
    // Takes what has come, which waiting for no time does not.
    let is_alive = session.is_alive();
    match session.receive::<ServiceEnd>("answers", Wait::at_most(wait)) {
        Err(ConnectError::Deadline { .. }) if is_alive => None,
        Err(ConnectError::Deadline { .. }) => Some("the service is gone".into()),
        Err(error) => Some(format!("the service is gone: {error}")),
        Ok(ServiceEnd { error: Some(error), .. }) => Some(format!("the service has ended: {error}")),
        Ok(_) => Some("the service has ended".into()),
    }
}
