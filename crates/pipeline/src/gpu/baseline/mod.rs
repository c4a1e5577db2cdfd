//! The baselines of the paper's figure 6: the CPU waits, drives a model on a GPU, and posts. [`Faithful`]
//! works as the paper's release, [`Fair`] as well as a CPU can. Both are an [`Offload`](crate::cpu::Offload)
//! of [`cpu::Served`](crate::cpu::Served) over the same slots, whose answers libibverbs posts.
//!
//! On the host twin the CPU makes copies when they are asked for, and nothing runs side by side. That shows
//! the answers, and no time.

mod fair;
mod faithful;
mod instance;
#[cfg(test)]
mod tests;

pub use super::by_cpu::Model;
pub use fair::Fair;
pub use faithful::Faithful;
pub use instance::Instance;

/// Which baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    Fair,
    Faithful,
}

impl Baseline {
    pub const ALL: [Baseline; 2] = [Baseline::Fair, Baseline::Faithful];

    /// The name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Baseline::Fair => "fair",
            Baseline::Faithful => "faithful",
        }
    }
}
