//! Memory that a test and the NIC use at the same time: words as atomics, bytes made of them.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::Registers;

const PAGE: usize = 4096;

/// A piece of application memory, of the machine that the test runs on.
pub trait Words: Debug + Send + Sync {
    /// Address of the first byte.
    fn address(&self) -> u64;

    /// Bytes.
    fn size(&self) -> usize;

    /// The word at a byte offset that is a multiple of 4.
    fn word(&self, offset: usize) -> &AtomicU32;

    /// Takes every right to the pages from that of this byte on away, as if the program had unmapped them.
    /// Only the NIC may touch them afterwards.
    fn protect(&self, offset: usize);

    /// Copies bytes out.
    fn read(&self, offset: usize, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            let at = offset + i;
            *byte = self.word(at & !3).load(Ordering::Acquire).to_ne_bytes()[at & 3];
        }
    }

    /// Copies bytes in, in increasing addresses.
    fn write(&self, offset: usize, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (word, from) = (self.word(at & !3), at & 3);
            let take = (4 - from).min(rest.len());
            let mut value = word.load(Ordering::Relaxed).to_ne_bytes();
            value[from..from + take].copy_from_slice(&rest[..take]);
            word.store(u32::from_ne_bytes(value), Ordering::Release);
            at += take;
            rest = &rest[take..];
        }
    }
}

/// Memory that pieces can be had of.
pub trait Blocks {
    /// `len` zero bytes, rounded up to a multiple of 64 and aligned to it; whole pages are aligned to pages.
    /// Nothing is mapped behind the last byte.
    fn block(&self, len: usize) -> Block;
}

/// A piece of application memory. Cloning gives another handle to the same memory.
#[derive(Debug, Clone)]
pub struct Block(Arc<dyn Words>);

impl Block {
    pub fn of(words: impl Words + 'static) -> Block {
        Block(Arc::new(words))
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    pub fn len(&self) -> usize {
        self.0.size()
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// See [`Words::word`].
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        self.0.word(offset)
    }

    /// See [`Words::protect`].
    pub fn protect(&self, offset: usize) {
        self.0.protect(offset);
    }

    /// See [`Words::read`].
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.0.read(offset, out);
    }

    /// The bytes from `offset` on.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.read(offset, &mut out);
        out
    }

    /// See [`Words::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }
}

/// A UAR page as a driver and the NIC share it.
#[derive(Debug, Clone)]
pub struct RegisterPage(Arc<[AtomicU64; PAGE / 8]>);

impl Default for RegisterPage {
    fn default() -> Self {
        RegisterPage(Arc::new([const { AtomicU64::new(0) }; PAGE / 8]))
    }
}

impl RegisterPage {
    /// Stores 8 bytes at `offset`, as a driver rings.
    pub fn store(&self, offset: usize, bytes: [u8; 8]) {
        self.0[offset / 8].store(u64::from_ne_bytes(bytes), Ordering::Release);
    }
}

impl Registers for RegisterPage {
    fn take(&self, offset: usize) -> Option<[u8; 8]> {
        let word = self.0.get(offset / 8)?;
        if word.load(Ordering::Acquire) == 0 {
            return None;
        }
        Some(word.swap(0, Ordering::AcqRel)).filter(|value| *value != 0).map(u64::to_ne_bytes)
    }

    fn any(&self, offsets: &[usize]) -> bool {
        let rung = |offset: &usize| self.0.get(offset / 8).is_some_and(|w| w.load(Ordering::Acquire) != 0);
        offsets.iter().any(rung)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_doorbells_are_two_doorbells() {
        let page = RegisterPage::default();
        for _ in 0..2 {
            page.store(0x800, [1; 8]);
            assert_eq!((page.take(0x800), page.take(0x800)), (Some([1; 8]), None));
        }
    }
}
