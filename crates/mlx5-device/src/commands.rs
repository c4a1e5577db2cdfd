//! The commands of a device, a trait for each kind of object, declared and implemented where the object is. Handles are scoped to the
//! context. The NIC takes them, and in tests of the ABI a recorder.

use super::command::CommandError;

pub use super::ah::AhCommands;
pub use super::context::ContextCommands;
pub use super::cq::CqCommands;
pub use super::mr::MrCommands;
pub use super::pd::PdCommands;
pub use super::qp::QpCommands;
pub use super::srq::SrqCommands;
pub use super::uar::UarCommands;
pub use super::window::MwCommands;

/// A command's answer.
pub type Answer<T> = Result<T, CommandError>;

macro_rules! all {
    ($($kind:ident)+) => {
        /// Every command.
        pub trait Commands: $($kind +)+ Send {}

        impl<T: $($kind +)+ Send> Commands for T {}
    };
}

all! {
    ContextCommands UarCommands PdCommands MrCommands MwCommands CqCommands QpCommands SrqCommands AhCommands
}
