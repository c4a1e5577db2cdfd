//! A machine without a kernel: memory as one vector, a register page as a map, events and log lines that nothing reads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use mlx5_device::Reason;
use mlx5_device::command::{ContextId, EventSink};
use mlx5_device::memory::{Fault, Memory, Registers};

/// Address of the first byte.
const BASE: u64 = 0x1_0000;

/// Memory of a program. Cloning gives another handle to it.
#[derive(Clone)]
pub struct Arena(Arc<Mutex<Vec<u8>>>);

impl Arena {
    pub fn new(len: usize) -> Arena {
        Arena(Arc::new(Mutex::new(vec![0; len])))
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap()
    }

    /// Runs `look` over the bytes at an address.
    fn at<T>(&self, addr: u64, len: usize, look: impl FnOnce(&mut [u8]) -> T) -> Result<T, Fault> {
        let fault = Fault { addr };
        let start = addr.checked_sub(BASE).ok_or(fault)? as usize;
        let end = start.checked_add(len).ok_or(fault)?;
        self.bytes().get_mut(start..end).map(look).ok_or(fault)
    }

    pub fn load(&self, addr: u64, len: usize) -> Vec<u8> {
        self.at(addr, len, |bytes| bytes.to_vec()).unwrap()
    }

    pub fn store(&self, addr: u64, bytes: &[u8]) {
        self.at(addr, bytes.len(), |place| place.copy_from_slice(bytes)).unwrap();
    }

    fn word64(&self, addr: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        self.at(addr, 8, |place| {
            let old = u64::from_ne_bytes(place.try_into().unwrap());
            place.copy_from_slice(&change(old).to_ne_bytes());
            old
        })
    }
}

/// Gives out pieces of an arena, aligned to pages.
pub struct Allocator(u64);

impl Allocator {
    pub fn new() -> Allocator {
        Allocator(BASE)
    }

    pub fn take(&mut self, len: usize) -> u64 {
        let at = self.0;
        self.0 += len.next_multiple_of(4096) as u64;
        at
    }
}

impl Memory for Arena {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.at(addr, out.len(), |bytes| out.copy_from_slice(bytes))
    }

    fn load32(&self, addr: u64) -> Result<u32, Fault> {
        self.at(addr, 4, |bytes| u32::from_ne_bytes((&*bytes).try_into().unwrap()))
    }

    fn store32(&self, addr: u64, value: u32) -> Result<(), Fault> {
        self.at(addr, 4, |place| place.copy_from_slice(&value.to_ne_bytes()))
    }

    fn write(&self, addr: u64, bytes: &[u8], _relaxed: bool) -> Result<(), Fault> {
        self.at(addr, bytes.len(), |place| place.copy_from_slice(bytes))
    }

    fn compare_swap32(&self, addr: u64, compare: u32, swap: u32) -> Result<u32, Fault> {
        self.at(addr, 4, |place| {
            let old = u32::from_ne_bytes((&*place).try_into().unwrap());
            if old == compare {
                place.copy_from_slice(&swap.to_ne_bytes());
            }
            old
        })
    }

    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.word64(addr, |old| if old == compare { swap } else { old })
    }

    fn fetch_add64(&self, addr: u64, add: u64) -> Result<u64, Fault> {
        self.word64(addr, |old| old.wrapping_add(add))
    }

    fn probe(&self, addr: u64, len: u64, _write: bool) -> Result<(), Fault> {
        self.at(addr, len as usize, |_| ())
    }
}

/// A UAR page: what was rung and not taken.
#[derive(Clone, Default)]
pub struct Page(Arc<Mutex<BTreeMap<usize, [u8; 8]>>>);

impl Page {
    pub fn ring(&self, offset: usize, bytes: [u8; 8]) {
        self.0.lock().unwrap().insert(offset, bytes);
    }
}

impl Registers for Page {
    fn take(&self, offset: usize) -> Option<[u8; 8]> {
        self.0.lock().unwrap().remove(&offset)
    }

    fn any(&self, offsets: &[usize]) -> bool {
        let rung = self.0.lock().unwrap();
        offsets.iter().any(|offset| rung.contains_key(offset))
    }
}

/// Events are delivered nowhere; a line of the log fails the test that did not expect it.
pub struct Quiet;

impl EventSink for Quiet {
    fn explain(&mut self, reason: Reason) {
        panic!("something failed: {reason}");
    }

    fn completion(&mut self, _channel: u32, _cq_user_handle: u64) -> bool {
        true
    }

    fn asynchronous(&mut self, _context: ContextId, _element: u64, _event_type: u32) -> bool {
        true
    }

    fn withdraw_completions(&mut self, _channel: u32, _cq_user_handle: u64) -> u32 {
        0
    }

    fn withdraw_asynchronous(&mut self, _context: ContextId, _element: u64) -> u32 {
        0
    }
}
