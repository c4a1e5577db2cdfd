//! The device under a mock driver: every operation, every error, every way to ring a doorbell wrongly.

mod changed;
mod commands;
mod doorbells;
mod errors;
mod faults;
mod hostile;
mod limits;
mod operations;
mod order;
mod queues;
mod read_once;
mod shared_receive;
mod windows;
mod windows_in_flight;
mod withdrawn;
