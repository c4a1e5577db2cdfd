//! What is launched for a model, in order: fused operators, each value at a place in one arena.
//!
//! A place has a stride for images, channels and pixels, so that a slice of channels is a place in a larger
//! value: what a Concat joins is written where it is read. A Reshape is a second name of a place, if the
//! elements' order stays. The first step reads the input, and the last one writes the output, through a slot
//! that the caller names in memory.

pub mod arena;
mod check;
mod error;
mod excite;
mod fold;
mod format;
pub(crate) mod fuse;
mod join;
mod places;
mod planner;
mod step;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use arena::Arena;
pub use error::PlanError;
pub use format::{Format, Layout, Precision};
pub use step::{Place, Source, Step, Task};

use crate::graph::{Op, Shape};

/// A model that is ready to be launched.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The model's name.
    pub name: String,
    /// How values lie in the arena.
    pub format: Format,
    /// What is launched, in order.
    pub steps: Vec<Step>,
    /// Weights and other constants that steps read.
    pub constants: Vec<Arc<[f32]>>,
    /// Where the pieces lie, and how large they are together.
    pub arena: Arena,
    /// Elements of each piece of the arena.
    pub pieces: Vec<usize>,
    /// The model's inputs.
    pub inputs: Vec<Shape>,
    /// The model's outputs.
    pub outputs: Vec<Shape>,
}

impl Plan {
    /// Channels that a library's kernel may write for a step: those that fill a pixel's room, if no other
    /// value lies in it.
    pub fn channels_written(&self, step: &Step) -> usize {
        let [_, channels, ..] = step.to.parts();
        let Task::Compute { op: Op::Conv { groups: 1, .. }, residual: None, .. } = &step.task else {
            return channels;
        };
        let Some(place) = step.write.filter(|place| place.channel == 1 && place.pixel > channels) else {
            return channels;
        };
        let writes_there = |other: &&Step| other.write.is_some_and(|there| there.piece == place.piece);
        if self.steps.iter().filter(writes_there).count() == 1 { place.pixel } else { channels }
    }

    /// The byte of the arena at which a place begins.
    pub fn byte(&self, place: &Place) -> usize {
        self.arena.offsets[place.piece] + place.offset * self.format.precision.bytes()
    }
}

impl fmt::Display for Plan {
    /// The steps one a line, and the sizes: what a snapshot keeps.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fused: usize = self.steps.iter().map(|step| step.names.len() - 1).sum();
        let weights: usize = self.constants.iter().map(|elements| size_of_val(&**elements)).sum();
        let Arena { bytes, bound, sum, .. } = self.arena;
        writeln!(f, "{}: {} steps, {fused} operators fused into others", self.name, self.steps.len())?;
        writeln!(
            f,
            "arena {bytes} B, bound by what lives at once {bound} B, without sharing {sum} B, constants {weights} B"
        )?;
        for (at, step) in self.steps.iter().enumerate() {
            let place = step.write.map_or_else(
                || "slot".to_owned(),
                |place| {
                    format!(
                        "{}+{}",
                        self.arena.offsets[place.piece],
                        place.offset * self.format.precision.bytes()
                    )
                },
            );
            writeln!(
                f,
                "{at:4} {:24} {:>16} -> {:16} at {place:20} {}",
                step.task.to_string(),
                step.from,
                step.to,
                step.names.join(" ")
            )?;
        }
        Ok(())
    }
}
