//! A machine without a kernel: pieces of memory in a map, and devices on one fabric.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use mlx5_device::Nic;
use mlx5_device::command::CommandError;
use mlx5_device::config::{LinkLayer, LinkPath, NicConfig};
use mlx5_device::memory::{Fault, Memory};
use mlx5_device::testing::{self, Block, Blocks, By, DriverOf, MakeNic, Sinks, Words};
use mlx5_layout::{Cqe, CqeSyndrome};
use roce::{Now, ServiceType};

use crate::fabric::{End, Fabric};

/// Every right of a region.
pub const ALL: u32 = 0xf;

const PAGE: usize = 4096;

/// A program with its device.
pub type Driver = DriverOf<Nic<Arena, End>>;

/// A device before it is made.
#[derive(Default)]
pub struct Setup {
    pub config: NicConfig,
    /// Devices on one fabric reach each other.
    pub fabric: Rc<RefCell<Fabric>>,
}

impl Setup {
    /// One ConnectX-6 on InfiniBand, on a fabric of its own.
    pub fn new(_name: &str) -> Setup {
        Setup::default()
    }

    /// The same with this change to the configuration.
    pub fn with(mut self, change: impl FnOnce(&mut NicConfig)) -> Setup {
        change(&mut self.config);
        self
    }
}

impl MakeNic for Setup {
    type Nic = Nic<Arena, End>;

    fn make(self, sinks: &Sinks, now: Now) -> Self::Nic {
        let memory = Arena::default();
        let end = End::join(&self.fabric, &self.config, memory.clone());
        Nic::new(&self.config, memory, end, Box::new(sinks.clone()), sinks.log(), now).unwrap()
    }
}

/// A device whose queues send packets to one another.
pub fn on_the_wire(name: &str) -> Setup {
    Setup::new(name).with(|config| (config.link_layer, config.path) = (LinkLayer::Roce, LinkPath::Wire))
}

/// Two devices on one fabric.
pub type Two = testing::Two<Nic<Arena, End>>;

pub fn joined(name: &str, service: ServiceType, by: By) -> Two {
    joined_with(name, service, by, |_| ())
}

/// With this in the requester's configuration.
pub fn joined_with(name: &str, service: ServiceType, by: By, of_left: impl FnOnce(&mut NicConfig)) -> Two {
    let setup = || if by == By::Wire { on_the_wire(name) } else { Setup::new(name) };
    let left = setup();
    let right = Setup { fabric: left.fabric.clone(), ..setup() };
    let right =
        right.with(|config| config.ipv4 = if by == By::Wire { [127, 0, 0, 9].into() } else { config.ipv4 });
    Two::of(left.with(of_left), right, service)
}

pub fn errno<T>(result: Result<T, CommandError>) -> i32 {
    result.map_or_else(|error| error.errno, |_| 0)
}

pub fn syndrome(cqe: &Cqe<Vec<u8>>) -> Option<CqeSyndrome> {
    cqe.error().known()
}

/// Memory of a program. Cloning gives another handle to it.
#[derive(Clone, Default)]
pub struct Arena(Arc<Mutex<BTreeMap<u64, Piece>>>);

/// A block, and how many bytes of it are mapped.
#[derive(Debug, Clone)]
struct Piece {
    block: Block,
    mapped: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Bytes {
    address: u64,
    words: Vec<AtomicU32>,
    mapped: Arc<AtomicUsize>,
}

impl Words for Bytes {
    fn address(&self) -> u64 {
        self.address
    }

    fn size(&self) -> usize {
        4 * self.words.len()
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        &self.words[offset / 4]
    }

    fn protect(&self, offset: usize) {
        assert!(offset < self.size());
        let page = (self.address as usize + offset) / PAGE * PAGE;
        self.mapped.store(page.saturating_sub(self.address as usize), Ordering::Relaxed);
    }
}

impl Blocks for Arena {
    /// The last byte is the last of a page, and behind that page is none.
    fn block(&self, len: usize) -> Block {
        let mut pieces = self.0.lock().unwrap();
        let size = len.max(1).next_multiple_of(64);
        let end = pieces.last_key_value().map_or(PAGE, |(start, last)| *start as usize + last.block.len());
        let address = (end + PAGE + size.next_multiple_of(PAGE) - size) as u64;
        let mapped = Arc::new(AtomicUsize::new(size));
        let words = (0..size / 4).map(|_| AtomicU32::new(0)).collect();
        let block = Block::of(Bytes { address, words, mapped: mapped.clone() });
        pieces.insert(address, Piece { block: block.clone(), mapped });
        block
    }
}

impl Arena {
    /// Runs `access` on the block with these bytes, with the offset of the first.
    fn at<T>(&self, addr: u64, len: usize, access: impl FnOnce(&Block, usize) -> T) -> Result<T, Fault> {
        let pieces = self.0.lock().unwrap();
        let (start, piece) = pieces.range(..=addr).next_back().ok_or(Fault { addr })?;
        let offset = (addr - start) as usize;
        let mapped = piece.mapped.load(Ordering::Relaxed);
        match offset.checked_add(len) {
            Some(end) if end <= mapped => Ok(access(&piece.block, offset)),
            _ => Err(Fault { addr: addr.max(start + mapped as u64) }),
        }
    }

    fn change64(&self, addr: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        self.at(addr, 8, |block, offset| {
            let mut old = [0; 8];
            block.read(offset, &mut old);
            let old = u64::from_ne_bytes(old);
            block.write(offset, &change(old).to_ne_bytes());
            old
        })
    }
}

impl Memory for Arena {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.at(addr, out.len(), |block, offset| block.read(offset, out))
    }

    fn load32(&self, addr: u64) -> Result<u32, Fault> {
        self.at(addr, 4, |block, offset| block.word(offset).load(Ordering::Acquire))
    }

    fn store32(&self, addr: u64, value: u32) -> Result<(), Fault> {
        self.at(addr, 4, |block, offset| block.word(offset).store(value, Ordering::Release))
    }

    fn write(&self, addr: u64, bytes: &[u8], _relaxed: bool) -> Result<(), Fault> {
        self.at(addr, bytes.len(), |block, offset| block.write(offset, bytes))
    }

    fn compare_swap32(&self, addr: u64, compare: u32, swap: u32) -> Result<u32, Fault> {
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let swapped = |block: &Block, at| block.word(at).compare_exchange(compare, swap, success, failure);
        self.at(addr, 4, swapped).map(|old| old.unwrap_or_else(|other| other))
    }

    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.change64(addr, |old| if old == compare { swap } else { old })
    }

    fn fetch_add64(&self, addr: u64, add: u64) -> Result<u64, Fault> {
        self.change64(addr, |old| old.wrapping_add(add))
    }

    fn probe(&self, addr: u64, len: u64, _write: bool) -> Result<(), Fault> {
        self.at(addr, len as usize, |_, _| ())
    }
}
