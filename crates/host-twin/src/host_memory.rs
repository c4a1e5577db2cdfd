//! This process' memory, as lanes reach it: by atomic accesses of the size that the kernel gave.
//!
//! Addresses are a kernel's: the caller that starts a launch vouches for them ([`crate::start`]).

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::memory::Memory;

/// All of it.
pub(crate) struct HostMemory;

/// A word of memory that a kernel names.
fn word_at<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl Memory for HostMemory {
    fn store(&mut self, address: u64, bytes: &[u8]) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        match (bytes.len(), address % 8) {
            (8, 0) => {
                // SAFETY: the kernel may write there, as its launcher vouches; it is aligned.
                unsafe { AtomicU64::from_ptr(word_at(address)) }.store(word, Ordering::Release);
            }
            (4, 0 | 4) => {
                // SAFETY: as above.
                unsafe { AtomicU32::from_ptr(word_at(address)) }.store(word as u32, Ordering::Release);
            }
            (2, 0 | 2 | 4 | 6) => {
                // SAFETY: as above.
                unsafe { AtomicU16::from_ptr(word_at(address)) }.store(word as u16, Ordering::Release);
            }
            _ => {
                for (at, byte) in (address..).zip(bytes) {
                    // SAFETY: as above.
                    unsafe { AtomicU8::from_ptr(word_at(at)) }.store(*byte, Ordering::Release);
                }
            }
        }
    }

    fn load(&self, address: u64, out: &mut [u8]) {
        match (out.len(), address % 8) {
            (8, 0) => {
                // SAFETY: the kernel may read there, as its launcher vouches; it is aligned.
                let word = unsafe { AtomicU64::from_ptr(word_at(address)) }.load(Ordering::Acquire);
                out.copy_from_slice(&word.to_le_bytes());
            }
            (4, 0 | 4) => {
                // SAFETY: as above.
                let word = unsafe { AtomicU32::from_ptr(word_at(address)) }.load(Ordering::Acquire);
                out.copy_from_slice(&word.to_le_bytes());
            }
            (2, 0 | 2 | 4 | 6) => {
                // SAFETY: as above.
                let word = unsafe { AtomicU16::from_ptr(word_at(address)) }.load(Ordering::Acquire);
                out.copy_from_slice(&word.to_le_bytes());
            }
            _ => {
                for (at, byte) in (address..).zip(out) {
                    // SAFETY: as above.
                    *byte = unsafe { AtomicU8::from_ptr(word_at(at)) }.load(Ordering::Acquire);
                }
            }
        }
    }
}

/// An atomic on a word of 4 or 8 bytes: the old value. Panics if unaligned, which kills a GPU kernel too.
pub(crate) fn change_word(address: u64, bytes: usize, change: impl Fn(u64) -> u64) -> u64 {
    let whole = matches!(bytes, 4 | 8) && address.is_multiple_of(bytes as u64);
    assert!(whole, "a kernel's atomic of {bytes} bytes at {address:#x}");
    let both = Ordering::SeqCst;
    if bytes == 8 {
        // SAFETY: the kernel may write there, as its launcher vouches; it is aligned.
        let word = unsafe { AtomicU64::from_ptr(word_at(address)) };
        return word.fetch_update(both, both, |old| Some(change(old))).unwrap_or_else(|old| old);
    }
    // SAFETY: as above.
    let word = unsafe { AtomicU32::from_ptr(word_at(address)) };
    word.fetch_update(both, both, |old| Some(change(old.into()) as u32)).unwrap_or_else(|old| old).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_every_size_and_place_are_stored_and_loaded() {
        for len in 1..=8_usize {
            for at in 0..=8 - len {
                let mut memory = [u64::MAX; 2];
                let address = memory.as_mut_ptr().expose_provenance() as u64 + 4 + at as u64;
                let bytes: Vec<u8> = (1..=len as u8).collect();
                HostMemory.store(address, &bytes);
                let mut out = vec![0; len];
                HostMemory.load(address, &mut out);
                let all: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
                assert_eq!((&out, &all[4 + at..4 + at + len]), (&bytes, &bytes[..]), "{len} bytes at {at}");
                assert_eq!(all.iter().filter(|&&byte| byte == u8::MAX).count(), 16 - len);
            }
        }
    }

    #[test]
    fn an_atomic_changes_its_word_alone() {
        let mut memory = [7_u32, 8, 9, 10];
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        assert_eq!(change_word(address + 4, 4, |old| old + 1), 8);
        assert_eq!(memory, [7, 9, 9, 10]);
    }
}
