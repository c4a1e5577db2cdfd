//! SIDR_REPs that were sent, kept for SIDR_REQs that come again.

use std::collections::VecDeque;

use super::route::Route;
use crate::wire::mad::MAD_BYTES;

/// Most answers that are kept; a new one takes the place of the oldest.
const KEPT: usize = 64;

/// What tells one question from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SidrReqId {
    pub route: Route,
    /// The asking end's number of the request.
    pub request: u32,
    pub transaction: u64,
}

/// The latest answers, the oldest first.
#[derive(Debug, Default)]
pub(super) struct SidrReps(VecDeque<(SidrReqId, Box<[u8; MAD_BYTES]>)>);

impl SidrReps {
    pub fn keep(&mut self, question: SidrReqId, mad: Box<[u8; MAD_BYTES]>) {
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back((question, mad));
    }

    /// The answer that this question got.
    pub fn of(&self, question: SidrReqId) -> Option<&[u8; MAD_BYTES]> {
        self.0.iter().find(|(kept, _)| *kept == question).map(|(_, mad)| &**mad)
    }
}
