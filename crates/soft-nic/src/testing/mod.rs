//! The driver's side of the device, laid out in plain memory without libmlx5.
