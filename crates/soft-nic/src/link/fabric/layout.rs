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
//!           1152 UDP ports of this slot's process: 32 words, the port there in the low bits, an address
//!                folded to 47 bits, and whether the process owns port 4791 of the address
//!           1408 services that its connection manager listens to: 64 words, see `services`
//! ```

use crate::config::{MAX_DEVICES, MAX_PORTS};

/// Most processes on one fabric.
pub const SLOTS: usize = 128;

/// UDP ports that a slot can name: one an address; each port of each device has an address of each family.
pub const PORTS: usize = 2 * MAX_DEVICES as usize * MAX_PORTS as usize;

/// Services that one process may listen to.
pub const SERVICES: usize = 64;

pub const MAGIC: u64 = u64::from_be_bytes(*b"softfabr");

pub mod at {
    crate::link::record::places! {
        MAGIC = 0;
        VERSION = 8;
        KEY = 16;
        SLOTS = 4096;
        SLOT_BYTES = 2048;
        BELL = 0;
        PUBLISHED = 8;
        CALL = 24;
        PID = 64;
        GENERATION = 68;
        START = 72;
        STACK = 80;
        COOKIE = 88;
        DESCRIPTOR = 96;
        CHANNELS = 128;
        PORTS = 1152;
        SERVICES = PORTS + 8 * super::PORTS;
        LEN = SLOTS + super::SLOTS * SLOT_BYTES;
    }
    const _: () = assert!(SERVICES + 8 * super::SERVICES <= SLOT_BYTES && SERVICES == 1408);
}

/// Place of a slot among the words of one, whatever a peer wrote.
pub fn slot_index(slot: u8) -> usize {
    usize::from(slot) % SLOTS
}

/// Where the words of a slot begin.
pub fn slot_at(slot: u8) -> usize {
    at::SLOTS + slot_index(slot) * at::SLOT_BYTES
}
