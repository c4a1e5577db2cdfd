//! The device under a mock driver: every operation, every error, every way to ring a doorbell wrongly.

mod operations;
