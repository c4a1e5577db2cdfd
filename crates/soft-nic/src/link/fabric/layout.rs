//! Layout of a fabric's directory, word by word:
//!
//! ```text
//! 0       magic, version, key
//! 4096    128 slots of 2048 bytes:
//!           0    bell (futex word)
//!           8    slots that published a channel for this one: a bit each, 2 words
//!           24   the call of a `softnic ctl`, or 0
//!           64   pid, generation, start time, start of the stack, cookie, descriptor of the directory + 1
//!           128  channels that this slot published: 128 words, descriptor + 1 and the receiver's generation
//!           1152 UDP ports of this slot's process: 32 words, an address folded to 48 bits and the port there
//!           1408 services that its connection manager listens to: 64 words, see `services`
//! ```

use crate::config::{MAX_DEVICES, MAX_PORTS};

/// Most processes on one fabric.
pub const SLOTS: usize = 128;

/// UDP ports that a slot can name: one an address, of which each port of each device has one of either family.
pub const PORTS: usize = 2 * MAX_DEVICES as usize * MAX_PORTS as usize;

/// Services that one process may listen to.
pub const SERVICES: usize = 64;

pub const MAGIC: u64 = u64::from_be_bytes(*b"softfabr");

pub(super) mod at {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 8;
    pub const KEY: usize = 16;
    pub const SLOTS: usize = 4096;
    pub const SLOT_BYTES: usize = 2048;
    pub const BELL: usize = 0;
    pub const PUBLISHED: usize = 8;
    pub const CALL: usize = 24;
    pub const PID: usize = 64;
    pub const GENERATION: usize = 68;
    pub const START: usize = 72;
    pub const STACK: usize = 80;
    pub const COOKIE: usize = 88;
    pub const DESCRIPTOR: usize = 96;
    pub const CHANNELS: usize = 128;
    pub const PORTS: usize = 1152;
    pub const SERVICES: usize = PORTS + 8 * super::PORTS;
    const _: () = assert!(SERVICES + 8 * super::SERVICES <= SLOT_BYTES && SERVICES == 1408);
    pub const LEN: usize = SLOTS + super::SLOTS * SLOT_BYTES;
}

/// What a change of is a new version.
#[cfg(test)]
pub const LAYOUT: [usize; 18] = [
    at::MAGIC,
    at::VERSION,
    at::KEY,
    at::SLOTS,
    at::SLOT_BYTES,
    at::BELL,
    at::PUBLISHED,
    at::CALL,
    at::PID,
    at::GENERATION,
    at::START,
    at::STACK,
    at::COOKIE,
    at::DESCRIPTOR,
    at::CHANNELS,
    at::PORTS,
    at::SERVICES,
    at::LEN,
];

/// Place of a slot among the words of one, whatever a peer wrote.
pub fn slot_index(slot: u8) -> usize {
    usize::from(slot) % SLOTS
}

/// Where the words of a slot begin.
pub fn slot_at(slot: u8) -> usize {
    at::SLOTS + slot_index(slot) * at::SLOT_BYTES
}
