//! Models on a GPU: each step is our kernel or a library's plan, and all of them are recorded into
//! one graph that the host or the GPU itself may launch.
//!
//! [`Loaded`] holds what instances of a model share and only read: code, plans and weights. An [`Instance`]
//! has an arena, a workspace, inputs, outputs and a slot number of its own, so that several run side by side.
//! Which of the two computes a step is chosen by timing ([`Libraries`], [`Chosen`]).

mod choose;
mod code;
mod convolution;
mod fastest;
mod images;
mod instance;
mod kept;
mod libraries;
mod library;
mod library_plan;
mod limits;
mod loaded;
mod memory;
mod ready;
mod resident;
mod restart;
mod stamped;
mod timed;
mod trial;
mod weights;

pub use code::units;
pub use fastest::{Fastest, fastest};
pub use images::Images;
pub use instance::{Instance, SelfLaunchingInstance};
pub use libraries::{By, Chosen, Libraries, Tried};
pub use library::Library;
pub use loaded::{Loaded, Took};
pub use resident::{Resident, ResidentAlone};
pub use restart::start_again;
