//! One launch: what it computes, where it reads and where it writes.

use std::fmt;

use crate::graph::{Activation, Op, Shape};

/// A place in the arena, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the piece of the arena.
    pub piece: usize,
    /// The first element, from the piece's begin.
    pub offset: usize,
    /// From one image of the batch to the next.
    pub image: usize,
    /// From one channel to the next; of what is no image, from one element to the next.
    pub channel: usize,
    /// From one pixel to the next.
    pub pixel: usize,
}

/// Where a step reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// What an earlier step wrote.
    Arena(Place),
    /// A constant, by its number in [`super::Plan::constants`].
    Constant(usize),
    /// An input of the model, by its number, in its slot: see `fuse::reads_slot`.
    Input(usize),
}

/// What a step computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Task {
    /// Copies input `number` of the model from its slot.
    Load {
        /// Which input.
        number: usize,
    },
    /// An operator, and what is fused with it.
    Compute {
        /// The operator; never a BatchNorm, Reshape or Concat.
        op: Op,
        /// Added to its result.
        residual: Option<Source>,
        /// Applied last.
        activation: Option<Activation>,
    },
    /// Copies a value to where a Concat wants it.
    Copy,
    /// Copies output `number` of the model to its slot.
    Store {
        /// Which output.
        number: usize,
        /// Channels become blocks of so many rows and columns on the way, as [`Op::DepthToSpace`] says; 1:
        /// they stay.
        block: usize,
    },
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The nodes of the file that it computes.
    pub names: Vec<String>,
    /// What it computes.
    pub task: Task,
    /// What it reads, in the operator's order.
    pub reads: Vec<Source>,
    /// The shape of what it reads first.
    pub from: Shape,
    /// Shape of a sum's or product's second operand; of an [`Op::Excite`], that of the one-pixel images.
    pub second: Option<Shape>,
    /// Where it writes; a [`Task::Store`] writes to its slot.
    pub write: Option<Place>,
    /// The shape of what it writes.
    pub to: Shape,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Task::Load { number } => write!(f, "Load {number}"),
            Task::Copy => write!(f, "Copy"),
            Task::Store { number, block: 1 } => write!(f, "Store {number}"),
            Task::Store { number, .. } => write!(f, "DepthToSpace+Store {number}"),
            Task::Compute { op, residual, activation } => {
                let add = if residual.is_some() { "+Add" } else { "" };
                let activation =
                    activation.map_or_else(String::new, |of| format!("+{}", Op::Activation(of).name()));
                write!(f, "{}{add}{activation}", op.name())
            }
        }
    }
}
