//! Bounds of copies and runs.

use std::time::Duration;

/// The longest that a copy or a run of a model may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Longest time of a way to compute a step, once or in a timed graph of twenty runs: a thousand times what
/// the slowest takes. After one that does not end, the program starts again.
pub const STRETCH: Duration = Duration::from_secs(10);

/// Bytes of workspace that a library's plan has at most.
pub const WORKSPACE: usize = 64 << 20;

/// Bytes that are copied to the GPU and back at a time.
pub const BETWEEN: usize = 4 << 20;
