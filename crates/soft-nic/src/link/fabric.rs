//! The fabric: which processes of this user have a NIC, and where their channels are.
//!
//! One memfd, the directory, is shared by all of them, lives as long as one of them does, and has no name in
//! any file system. A process finds it among the descriptors of its user's other processes. Joining is
//! serialised by binding an abstract socket, which the kernel releases with its process. One fabric has one
//! version (`record`); a process of another version is refused. `layout` has its words.
//!
//! A slot belongs to its process until that ends; then the next process to join reclaims it. QPNs carry the
//! slot, so slots are given out in turn: an old QPN must not name a new process's queue.

mod directory;
mod layout;
mod process;
mod services;
mod view;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

pub use directory::other_version;
use directory::{find, found_new, full_name, is_open_in, turn_name};
#[cfg(test)]
pub(super) use layout::at::ALL as LAYOUT;
pub use layout::{PORTS, SLOTS};
use layout::{SERVICES, at, slot_at, slot_index};
use process::Origin;
pub(super) use process::is_shortage;
pub use process::{Process, SlotOwner};
pub use services::{ServiceError, ServiceWord};
pub use view::{FabricMember, FabricView};

use crate::os::{NoForkSocket, SharedMemory, fork_generation, system};

/// How long joining waits for another process that is joining.
const JOIN_PATIENCE: Duration = Duration::from_secs(5);

mod bell {
    pub const AWAKE: u32 = 0;
    pub const ASLEEP: u32 = 1;
    /// Its own process wants it to look around before it sleeps.
    pub const ROUSED: u32 = 2;
}

/// In the word of an address: its process owns the address's port.
const OWNED: u64 = 1 << 63;

/// In place of a descriptor: the receiver could not attach.
const REFUSED: u64 = 0xffff_ffff;

/// Why a process could not join.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    #[error("fabric name {name:?}: 1 to 64 letters, digits, '-', '_' or '.'")]
    Name { name: String },
    #[error(
        "waited {seconds} s for another process to join fabric {name:?}; it holds abstract socket @{socket}"
    )]
    Busy { name: String, socket: String, seconds: u64 },
    #[error("fabric {name:?} is full: {SLOTS} processes have a NIC on it; end one or use another --fabric")]
    Full { name: String },
    #[error(
        "process {pid} has fabric {name:?} in version {theirs}, this softnic in version {} (softnic --version); start both programs by \
         one softnic, or give one another --fabric",
        super::VERSION
    )]
    Version { name: String, pid: u32, theirs: String },
    #[error("{what} for fabric {name:?}: {error}")]
    Kernel { what: &'static str, name: String, error: io::Error },
}

/// A process's slot on the fabric. Left on drop.
#[derive(Debug)]
pub struct Fabric {
    // Kept open: other processes find the directory by this descriptor.
    _fd: OwnedFd,
    directory: SharedMemory,
    full_name: String,
    slot: u8,
    generation: u32,
    fork_generation: u32,
    left: AtomicBool,
    key: u64,
    /// How often a slot's process was looked at.
    #[cfg(test)]
    pub looks: std::sync::atomic::AtomicUsize,
}

impl Fabric {
    /// Joins the fabric called `name` in this network and process namespace, or founds it.
    ///
    /// Errors: sentences for the user; see [`FabricError`].
    pub fn join(name: &str) -> Result<Fabric, FabricError> {
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
            return Err(FabricError::Name { name: name.to_owned() });
        }
        let kernel = |what| move |error| FabricError::Kernel { what, name: name.to_owned(), error };
        let full_name = full_name(name).map_err(kernel("reading the namespaces"))?;
        let _turn = lock_to_join(name, &turn_name(&full_name))?;
        let found = find(&full_name).map_err(|(pid, theirs)| {
            let name = name.to_owned();
            FabricError::Version { name, pid, theirs }
        })?;
        let (fd, directory) = match found {
            Some(found) => found,
            None => found_new(&full_name).map_err(kernel("making the directory"))?,
        };
        let origin = Origin::of(std::process::id()).map_err(kernel("reading /proc/self/stat"))?;
        let joined = take_slot(&fd, &directory, &origin);
        let (slot, generation) = joined.ok_or_else(|| FabricError::Full { name: name.to_owned() })?;
        let fork_generation = fork_generation();
        let key = directory.word(at::KEY).load(Ordering::Relaxed);
        let fabric = Fabric {
            _fd: fd,
            directory,
            full_name,
            slot,
            generation,
            fork_generation,
            left: AtomicBool::new(false),
            key,
            #[cfg(test)]
            looks: Default::default(),
        };
        fabric.publish_ports(std::iter::empty());
        Ok(fabric)
    }

    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// A number that only processes of this fabric know.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// What processes must have in common to meet here, as the name of the directory has it.
    pub fn place(&self) -> String {
        let mut parts = self.full_name.splitn(7, '-').skip(3).map(str::to_owned);
        let [user, network, process, name] = std::array::from_fn(|_| parts.next().unwrap_or_default());
        format!("fabric {name:?} of user {user}, network namespace {network}, process namespace {process}")
    }

    /// How many owners our slot has had.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether this is still the process that joined; a fork child must not touch the directory.
    pub fn is_ours(&self) -> bool {
        self.fork_generation == fork_generation() && !self.left.load(Ordering::Relaxed)
    }

    /// Gives the slot back; peers notice within milliseconds.
    pub fn leave(&self) {
        // Once: afterwards the slot may be another's.
        if self.is_ours() && !self.left.swap(true, Ordering::AcqRel) {
            self.directory.half(slot_at(self.slot) + at::PID).store(0, Ordering::Release);
        }
    }

    /// The process in a slot, if there is one.
    pub fn slot_owner(&self, slot: u8) -> Option<SlotOwner> {
        #[cfg(test)]
        self.looks.fetch_add(1, Ordering::Relaxed);
        slot_owner(&self.directory, slot)
    }

    /// Whether a living owner still runs the program that joined. `exec` keeps number and start time, but not
    /// descriptors or stack; a program may also close all its descriptors itself. If the kernel shows
    /// neither, the owner counts as here. Reads no memory of the owner.
    pub fn still_here(&self, owner: &SlotOwner) -> bool {
        match is_open_in(&self.full_name, owner) {
            Ok(true) => true,
            Err(error) if error.kind() != io::ErrorKind::NotFound => true,
            _ => owner.stack != 0 && Origin::of(owner.pid).is_ok_and(|now| now.stack == owner.stack),
        }
    }

    /// Publishes where other processes may hand packets to us: an address, our port there, and whether we own
    /// port 4791 there. At most [`PORTS`] count, see [`Link::join`]; an earlier owner's are gone.
    ///
    /// [`Link::join`]: super::Link::join
    pub fn publish_ports(&self, ports: impl Iterator<Item = (IpAddr, u16, bool)>) {
        let mut ports = ports.map(|(address, port, owned)| {
            folded(address) << 16 | u64::from(port) | if owned { OWNED } else { 0 }
        });
        for i in 0..PORTS {
            self.port_word(self.slot, i).store(ports.next().unwrap_or(0), Ordering::Release);
        }
    }

    pub fn port_of(&self, slot: u8, address: IpAddr) -> Option<u16> {
        self.port_at(slot, address).map(|word| word as u16)
    }

    /// Whether a process that is still there has said that it owns the port of this address.
    pub fn has_port_owner(&self, address: IpAddr) -> bool {
        let owns = |slot: &u8| self.port_at(*slot, address).is_some_and(|word| word & OWNED != 0);
        let mut owners = (0..SLOTS as u8).filter(owns).filter_map(|slot| self.slot_owner(slot));
        owners.any(|owner| owner.lives() && self.still_here(&owner))
    }

    fn port_at(&self, slot: u8, address: IpAddr) -> Option<u64> {
        let wanted = folded(address);
        let words = (0..PORTS).map(|i| self.port_word(slot, i).load(Ordering::Acquire));
        words.take_while(|word| *word != 0).find(|word| (word & !OWNED) >> 16 == wanted)
    }

    fn port_word(&self, slot: u8, i: usize) -> &AtomicU64 {
        self.word(slot, at::PORTS + 8 * (i % PORTS))
    }

    /// Publishes our channel to `slot`: descriptor and the generation it is meant for.
    pub fn publish_channel(&self, slot: u8, to_generation: u32, descriptor: RawFd) {
        let value = (descriptor as u64 + 1) | u64::from(to_generation) << 32;
        self.channel_word(self.slot, slot).store(value, Ordering::Release);
        let bit = 1 << (slot_index(self.slot) % 64);
        self.published_word(slot, slot_index(self.slot) / 64).fetch_or(bit, Ordering::SeqCst);
        self.wake(slot);
    }

    /// Whether the receiver refused to attach to our channel.
    pub fn was_refused(&self, slot: u8) -> bool {
        self.channel_word(self.slot, slot).load(Ordering::Acquire) & 0xffff_ffff == REFUSED
    }

    /// Tells the sender in `slot` that we cannot attach to its channel.
    pub fn refuse_channel(&self, slot: u8) {
        let word = self.channel_word(slot, self.slot);
        let value = word.load(Ordering::Acquire);
        let refused = value | REFUSED;
        // Only if it has not published another one meanwhile.
        let _ = word.compare_exchange(value, refused, Ordering::AcqRel, Ordering::Relaxed);
        self.wake(slot);
    }

    /// Takes the slots that published a channel for us since the last call, a bit each.
    pub fn take_published(&self) -> u128 {
        let [low, high] = [0, 1].map(|i| self.published_word(self.slot, i).swap(0, Ordering::AcqRel));
        u128::from(low) | u128::from(high) << 64
    }

    /// The descriptor of the channel that `slot` published for us, in its process.
    pub fn channel_from(&self, slot: u8) -> Option<u32> {
        let value = self.channel_word(slot, self.slot).load(Ordering::Acquire);
        let (descriptor, generation) = (value as u32, (value >> 32) as u32);
        (descriptor != 0 && descriptor != REFUSED as u32 && generation == self.generation)
            .then(|| descriptor - 1)
    }

    /// Whether a peer published a channel for us.
    pub fn has_published(&self) -> bool {
        (0..2).any(|i| self.published_word(self.slot, i).load(Ordering::Relaxed) != 0)
    }

    /// Takes the call of a `softnic ctl`, if there is one.
    pub fn take_call(&self) -> Option<u64> {
        let call = if self.has_call() { self.word(self.slot, at::CALL).swap(0, Ordering::AcqRel) } else { 0 };
        (call != 0).then_some(call)
    }

    /// Whether a `softnic ctl` calls: almost never, and in the cache line that every round looks at anyway.
    pub fn has_call(&self) -> bool {
        self.word(self.slot, at::CALL).load(Ordering::Relaxed) != 0
    }

    /// Prepares a sleep: from now on peers ring. True if [`Fabric::rouse`] was called since the last sleep;
    /// otherwise look for work once more before [`Fabric::sleep`].
    pub fn prepare_sleep(&self) -> bool {
        let roused = self.bell(self.slot).swap(bell::ASLEEP, Ordering::SeqCst) == bell::ROUSED;
        fence(Ordering::SeqCst);
        roused
    }

    pub fn sleep(&self, timeout: Duration) {
        system::futex_wait(self.bell(self.slot), bell::ASLEEP, timeout);
    }

    /// Ends the sleep: peers need not ring any more.
    pub fn end_sleep(&self) {
        self.bell(self.slot).store(bell::AWAKE, Ordering::Release);
    }

    /// Ends our own sleep, also one that is only about to begin.
    pub fn rouse(&self) {
        let bell = self.bell(self.slot);
        if self.is_ours() && bell.swap(bell::ROUSED, Ordering::SeqCst) == bell::ASLEEP {
            system::futex_wake(bell);
        }
    }

    /// Rings at `slot` if its NIC sleeps; true when it did. The caller has a full fence after what it wrote.
    pub fn ring(&self, slot: u8) -> bool {
        ring(self.bell(slot))
    }

    /// Fence and ring.
    pub fn wake(&self, slot: u8) -> bool {
        fence(Ordering::SeqCst);
        self.ring(slot)
    }

    fn bell(&self, slot: u8) -> &AtomicU32 {
        self.directory.half(slot_at(slot) + at::BELL)
    }

    fn word(&self, slot: u8, at: usize) -> &AtomicU64 {
        self.directory.word(slot_at(slot) + at)
    }

    fn channel_word(&self, from: u8, to: u8) -> &AtomicU64 {
        self.word(from, at::CHANNELS + 8 * slot_index(to))
    }

    fn published_word(&self, slot: u8, i: usize) -> &AtomicU64 {
        self.word(slot, at::PUBLISHED + 8 * i)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.leave();
    }
}

fn ring(bell: &AtomicU32) -> bool {
    let awake = |old| (old == bell::ASLEEP).then_some(bell::AWAKE);
    // Look first: a NIC at work keeps the line to itself.
    if bell.load(Ordering::Relaxed) != bell::ASLEEP
        || bell.fetch_update(Ordering::AcqRel, Ordering::Relaxed, awake).is_err()
    {
        return false;
    }
    system::futex_wake(bell);
    true
}

/// 47 bits for an address: IPv4 as it is; IPv6 as its FNV-1a hash, which keeps a host's few addresses apart.
fn folded(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(v4) => u64::from(u32::from(v4)) | 1 << 46,
        IpAddr::V6(v6) => {
            let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            v6.octets().into_iter().fold(0xcbf2_9ce4_8422_2325, fnv) >> 18
        }
    }
}

fn slot_owner(directory: &SharedMemory, slot: u8) -> Option<SlotOwner> {
    let half = |at| directory.half(slot_at(slot) + at).load(Ordering::Acquire);
    let word = |at| directory.word(slot_at(slot) + at).load(Ordering::Acquire);
    let pid = half(at::PID);
    (pid != 0).then(|| SlotOwner {
        pid,
        generation: half(at::GENERATION),
        start: word(at::START),
        stack: word(at::STACK),
        cookie: word(at::COOKIE),
        descriptor: half(at::DESCRIPTOR),
    })
}

/// The lock to join: an abstract socket that only one process can have. Its name has the user's number, so
/// that no other user has it by accident. A fork child does not keep it.
fn lock_to_join(name: &str, full_name: &str) -> Result<NoForkSocket, FabricError> {
    let kernel = |error| FabricError::Kernel { what: "taking a turn", name: name.to_owned(), error };
    let begun = Instant::now();
    loop {
        match NoForkSocket::lock(full_name).map_err(kernel)? {
            Some(socket) => return Ok(socket),
            None if begun.elapsed() < JOIN_PATIENCE => std::thread::sleep(Duration::from_millis(1)),
            None => {
                let (name, socket) = (name.to_owned(), full_name.to_owned());
                return Err(FabricError::Busy { name, socket, seconds: JOIN_PATIENCE.as_secs() });
            }
        }
    }
}

/// Takes the free slot that was used least. Only called with the lock to join.
fn take_slot(fd: &OwnedFd, directory: &SharedMemory, origin: &Origin) -> Option<(u8, u32)> {
    let generation = |slot: u8| directory.half(slot_at(slot) + at::GENERATION).load(Ordering::Acquire);
    let free = |slot: &u8| slot_owner(directory, *slot).is_none_or(|owner| !owner.lives());
    let slot = (0..SLOTS as u8).filter(free).min_by_key(|slot| (generation(*slot), *slot))?;
    let half = |at, value| directory.half(slot_at(slot) + at).store(value, Ordering::SeqCst);
    let word = |at, value| directory.word(slot_at(slot) + at).store(value, Ordering::SeqCst);
    // First no process, then all the rest, then ours: a peer that looks now sees a whole entry or none.
    half(at::PID, 0);
    let ours = generation(slot).wrapping_add(1);
    half(at::GENERATION, ours);
    let lists =
        [(at::CHANNELS, SLOTS), (at::SERVICES, SERVICES), (at::PUBLISHED, 2), (at::BELL, 1), (at::CALL, 1)];
    for offset in lists.into_iter().flat_map(|(first, count)| (0..count).map(move |i| first + 8 * i)) {
        word(offset, 0);
    }
    let pid = std::process::id();
    word(at::START, origin.start);
    word(at::STACK, origin.stack);
    word(at::COOKIE, system::monotonic_ns() ^ u64::from(pid) << 40);
    half(at::DESCRIPTOR, fd.as_raw_fd() as u32 + 1);
    half(at::PID, pid);
    Some((slot, ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing::true_in_fork_child;

    #[test]
    fn a_fork_child_does_not_keep_its_parents_turn() {
        let name = format!("softnic-turn-test-{}", std::process::id());
        let turn = lock_to_join("test", &name).unwrap();
        let listed = || std::fs::read_link(format!("/proc/self/fd/{}", turn.as_raw_fd())).is_ok();
        assert!(listed());
        assert!(true_in_fork_child(|| !listed()));
        assert!(NoForkSocket::lock(&name).unwrap().is_none(), "the parent still has it");
        drop(turn);
        // A program that another test starts at this moment has the socket until it has begun.
        let begun = std::time::Instant::now();
        while NoForkSocket::lock(&name).unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the child keeps it");
        }
    }
}
