//! The device: rung doorbell → validated work → completion.

pub mod command;
