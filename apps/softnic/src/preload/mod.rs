//! The interposer: replaces libc functions for paths and descriptors that are the emulated device's.

mod descriptors;
mod directories;
mod exit;
mod files;
mod manager;
mod nic;
mod paths;
mod pump;
mod raw;
mod sanitizer;
mod stats;
mod table;
mod virtual_tree;
