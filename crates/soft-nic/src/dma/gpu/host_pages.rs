//! Pages of the host that the GPU may write and read by itself: regions of the program and rings of the NIC.
//!
//! Registering pages with CUDA takes 0.3 ms, and up to 0.1 s a gigabyte with a lock held that copies wait for
//! (H200). So it is done once, beside the messages, for the piece of a region that a long GPU message first
//! meets. Until the driver answers they are staged. So is what lies in two pieces: no engine copy may use
//! both. Pages that the program registered itself are used by the copy engine only: it may unregister them at
//! any time, and a kernel that goes there then costs it its context. A program that registers after the NIC
//! is refused by the driver (`CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`).
//!
//! Ending a registration waits for every kernel of the process, in the driver, with a lock held that copies
//! wait for (`cuMemHostUnregister`, measured). So a thread first waits without it while a kernel runs, and
//! the thread that deregisters waits a moment at most. Meanwhile the NIC uses nothing at these addresses.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use gpu::{Allocation, Registered};

use super::threads::threads;
use super::timed_out;
use super::worker::Ticket;
use crate::os::system::PAGE;
use crate::os::{PerProcess, fork_generation, locked, log};

/// Shorter ones are not noted: what they take is staged.
pub const LEAST: u64 = 64 << 10;

/// Pieces of a region: this long the driver keeps copies waiting at most, some 25 ms.
const PIECE: u64 = 256 << 20;

/// How long deregistering a region waits for the end of its registration: what ordinary kernels take.
const GRACE: Duration = Duration::from_millis(250);

/// The parts of a GPU that may use pages of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuAccess {
    /// None: the pages are staged.
    None,
    /// None, and they were not registered with a GPU yet.
    Unasked,
    Engine,
    /// The mover too.
    Kernels,
}

#[derive(Debug)]
enum State {
    /// No GPU was met.
    Plain,
    /// The driver was asked, and has not answered.
    Asked(Ticket<Result<(Registered, bool), gpu::Error>>),
    /// Registered by the NIC; whether it may use that.
    Ours(Registered, bool),
    /// Registered by the program, under this number of the driver's.
    Theirs(u64),
    /// The driver would not: it is staged.
    Refused,
}

#[derive(Debug)]
struct Entry {
    users: usize,
    /// Of each piece that was asked for, by its first byte.
    pieces: BTreeMap<u64, State>,
}

/// Pages that are being unregistered: whole ones, from `start` to `end`. The job that does it holds this.
#[derive(Debug)]
struct Unregistering {
    start: u64,
    end: u64,
    /// A deregistration has waited for it in vain.
    late: AtomicBool,
}

#[derive(Debug, Default)]
struct Registrations {
    /// By first byte and length.
    entries: BTreeMap<(u64, u64), Entry>,
    unregistering: Vec<Weak<Unregistering>>,
}

static REGISTRATIONS: PerProcess<Mutex<Registrations>> = PerProcess::empty();

fn registrations() -> MutexGuard<'static, Registrations> {
    locked(REGISTRATIONS.get())
}

/// A run of pages that stays as long as this lives.
#[derive(Debug)]
pub struct HostPages {
    start: u64,
    len: u64,
    generation: u32,
}

impl HostPages {
    /// Notes a region in the host's memory; `None`: too short to matter.
    pub fn note(start: u64, len: u64) -> Option<HostPages> {
        if len < LEAST {
            return None;
        }
        let entry = || Entry { users: 0, pieces: BTreeMap::new() };
        registrations().entries.entry((start, len)).or_insert_with(entry).users += 1;
        Some(HostPages { start, len, generation: fork_generation() })
    }

    /// Unregisters them and drops `kept`, which has them mapped, once no GPU sees them any more and no
    /// timed-out copy is in flight there. Returns at once.
    pub fn end_with(self, kept: impl Send + 'static) {
        self.leave(kept, true);
        // There is nothing left to drop.
        std::mem::forget(self);
    }

    /// What stays until they are given back, if they have to be.
    fn leave(&self, kept: impl Send + 'static, sure: bool) -> Option<Weak<Unregistering>> {
        if self.generation != fork_generation() {
            return None;
        }
        let key = (self.start, self.len);
        let mut registrations = registrations();
        let entry = registrations.entries.get_mut(&key)?;
        entry.users -= 1;
        if entry.users > 0 {
            return None;
        }
        let (mut asked, mut ours) = (Vec::new(), Vec::new());
        for state in registrations.entries.remove(&key)?.pieces.into_values() {
            match state {
                State::Plain | State::Theirs(_) | State::Refused => {}
                State::Asked(ticket) => asked.push(ticket),
                State::Ours(registered, _) => ours.push(registered),
            }
        }
        if asked.is_empty() && ours.is_empty() {
            return None;
        }
        let Ok(threads) = threads() else {
            // The pages stay, since no thread can wait for what uses them.
            std::mem::forget((asked, ours, kept));
            return None;
        };
        let (start, end) = pages_of(key);
        let unregistering = Arc::new(Unregistering { start, end, late: AtomicBool::new(false) });
        let noted = Arc::downgrade(&unregistering);
        registrations.unregistering.retain(|other| other.strong_count() > 0);
        registrations.unregistering.push(noted.clone());
        // The thread that registers does one thing after the other: what it was asked for it has done then.
        threads.contexts.post(move |_, _| {
            let answers = asked.into_iter().filter_map(|ticket| ticket.take()?.ok());
            ours.extend(answers.map(|(registered, _)| registered));
            threads.unregistrations.post(move |(), _| {
                if sure {
                    timed_out::await_end(key.0, key.1, true);
                }
                for registered in ours {
                    // A context that is lost has nothing registered.
                    let _ = registered.end();
                }
                drop(kept);
                drop(unregistering);
            });
        });
        Some(noted)
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        if self.generation == fork_generation() {
            // The engine writes there by itself.
            timed_out::await_end(self.start, self.len, false);
        }
        let Some(noted) = self.leave((), false) else { return };
        // Behind one that is late this one is late too.
        let is_late = |other: Arc<Unregistering>| other.late.load(Ordering::Relaxed);
        let behind = registrations().unregistering.iter().filter_map(Weak::upgrade).any(is_late);
        let limit = if behind { Duration::ZERO } else { GRACE };
        let since = Instant::now();
        while noted.strong_count() > 0 && since.elapsed() < limit {
            std::thread::sleep(Duration::from_micros(50));
        }
        let Some(unregistering) = noted.upgrade() else { return };
        unregistering.late.store(true, Ordering::Relaxed);
        if limit == GRACE {
            log(
                "pages of a region that is deregistered stay registered with CUDA until the kernels that run now \
                 have ended: what is mapped in their place before that is no memory for cudaMemcpy",
            );
        }
    }
}

/// What may use `addr..addr + len` now. `asks`: a noted piece that no GPU sees yet is registered. Only while
/// the program's context takes calls: a registration waiting for its lock holds one that all copies wait for.
pub fn gpu_access(card: u32, addr: u64, len: u64, asks: bool) -> GpuAccess {
    let mut registrations = registrations();
    let Registrations { entries, unregistering } = &mut *registrations;
    let end = addr.saturating_add(len);
    let mut plain = None;
    // Regions may lie in each other; the one that begins last is looked at first.
    for (key, entry) in entries.range_mut(..=(addr, u64::MAX)).rev() {
        if !lies_in(*key, addr, end) {
            continue;
        }
        let piece = piece_of(*key, addr);
        if !lies_in(piece, addr, end) {
            continue;
        }
        let state = entry.pieces.entry(piece.0).or_insert(State::Plain);
        state.look();
        match state {
            State::Ours(_, true) => return GpuAccess::Kernels,
            State::Theirs(number) if Allocation::id_at(addr) == Some(*number) => return GpuAccess::Engine,
            // The program has let them go: from now on they are pages as all others.
            State::Theirs(_) => *state = State::Plain,
            State::Asked(_) => return GpuAccess::None,
            State::Plain | State::Ours(_, false) | State::Refused => {}
        }
        let (first, last) = pages_of(piece);
        let overlaps = |other: Arc<Unregistering>| other.start < last && first < other.end;
        if unregistering.iter().filter_map(Weak::upgrade).any(overlaps) {
            return GpuAccess::None;
        }
        if matches!(state, State::Plain) && plain.is_none() {
            plain = Some((piece, state));
        }
    }
    let Some(((start, len), state)) = plain else { return GpuAccess::None };
    if let Some(pinned) = Allocation::pinned_at(start)
        && pinned.id() != 0
        && lies_in((pinned.start(), pinned.len()), start, start.saturating_add(len))
    {
        *state = State::Theirs(pinned.id());
        return GpuAccess::Engine;
    }
    if !asks {
        return GpuAccess::Unasked;
    }
    let Ok(threads) = threads() else { return GpuAccess::None };
    *state = State::Asked(threads.contexts.post(move |contexts, _| contexts.register(card, start, len)));
    GpuAccess::None
}

impl State {
    /// Takes the driver's answer, when it has come.
    fn look(&mut self) {
        if let State::Asked(ticket) = self
            && let Some(answer) = ticket.take()
        {
            *self = answer.map_or(State::Refused, |(registered, usable)| State::Ours(registered, usable));
        }
    }
}

/// First byte and length of the piece of a region that `addr` lies in; all but the first begin on a page.
fn piece_of((start, len): (u64, u64), addr: u64) -> (u64, u64) {
    let base = start / PAGE as u64 * PAGE as u64;
    let first = base + (addr - base) / PIECE * PIECE;
    let end = first.saturating_add(PIECE).min(start.saturating_add(len));
    (first.max(start), end - first.max(start))
}

/// Whether `addr..end` lies in a region's range, whatever length the program gave it.
fn lies_in((start, len): (u64, u64), addr: u64, end: u64) -> bool {
    start <= addr && end <= start.saturating_add(len)
}

/// Whole pages around it.
fn pages_of((start, len): (u64, u64)) -> (u64, u64) {
    let page = PAGE as u64;
    (start / page * page, start.saturating_add(len).checked_next_multiple_of(page).unwrap_or(u64::MAX))
}

/// Runs of pages that GPUs see because of this.
pub fn registered() -> usize {
    let registrations = registrations();
    let states = registrations.entries.values().flat_map(|entry| entry.pieces.values());
    states.filter(|state| matches!(state, State::Ours(_, true))).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing::true_in_fork_child;

    #[test]
    fn a_length_that_leaves_the_address_space_is_no_overflow() {
        for (range, addr, end, inside) in [
            ((0x1000, 0x1000), 0x1000, 0x2000, true),
            ((0x1000, 0x1000), 0x1001, 0x2001, false),
            ((0x1000, 0x1000), 0xfff, 0x1800, false),
            ((0x1000, u64::MAX), 0x1000, 0x2000, true),
            ((u64::MAX, u64::MAX), 0x1000, 0x2000, false),
        ] {
            assert_eq!(lies_in(range, addr, end), inside, "{range:x?} {addr:#x}..{end:#x}");
        }
        assert_eq!(pages_of((0x1001, u64::MAX)), (0x1000, u64::MAX));
        assert_eq!(pages_of((0x1001, 0x1000)), (0x1000, 0x3000));
    }

    #[test]
    fn a_fork_child_notes_regions_of_its_own_whoever_held_the_lock_in_its_parent() {
        let ours = HostPages::note(0x9000_0000, LEAST).unwrap();
        let held = registrations();
        assert!(true_in_fork_child(|| {
            let own = HostPages::note(0x9000_0000, LEAST);
            let users = |key| registrations().entries.get(&key).map(|entry| entry.users);
            // The inherited one takes nothing along.
            ours.leave((), false);
            own.is_some() && users((0x9000_0000, LEAST)) == Some(1)
        }));
        drop(held);
    }

    #[test]
    fn while_pages_are_given_back_no_gpu_is_asked_to_see_what_lies_in_their_place() {
        let start = 0xa000_0000;
        let pages = HostPages::note(start + 100, LEAST).unwrap();
        let state = || format!("{:?}", registrations().entries[&(start + 100, LEAST)].pieces[&(start + 100)]);
        // They share the last page of those that go.
        let (before, late) = (start - PAGE as u64, AtomicBool::new(false));
        let unregistering = Arc::new(Unregistering { start: before, end: start + 1, late });
        registrations().unregistering.push(Arc::downgrade(&unregistering));
        assert_eq!((gpu_access(9, start + 200, 4096, true), state()), (GpuAccess::None, "Plain".to_owned()));
        drop(unregistering);
        assert_eq!(
            (gpu_access(9, start + 200, 4096, false), state()),
            (GpuAccess::Unasked, "Plain".to_owned())
        );
        assert_eq!((gpu_access(9, start + 200, 4096, true), &state()[..5]), (GpuAccess::None, "Asked"));
        drop(pages);
        assert_eq!(gpu_access(9, start + 200, 4096, true), GpuAccess::None);
    }

    #[test]
    fn a_region_falls_into_pieces_that_begin_on_pages() {
        let start = 0x7000_0123;
        let page = 0x7000_0000;
        for (len, addr, piece) in [
            (LEAST, start, (start, LEAST)),
            (PIECE - 0x123, start + 5, (start, PIECE - 0x123)),
            (PIECE, start + 5, (start, PIECE - 0x123)),
            (PIECE, page + PIECE, (page + PIECE, 0x123)),
            (5 * PIECE, page + 3 * PIECE + 7, (page + 3 * PIECE, PIECE)),
            (u64::MAX, page + 3 * PIECE + 7, (page + 3 * PIECE, PIECE)),
        ] {
            assert_eq!(piece_of((start, len), addr), piece, "{len:#x} {addr:#x}");
        }
    }

    #[test]
    fn what_lies_in_two_pieces_is_staged_and_asks_for_none() {
        let start = 0xb000_0000;
        let before = HostPages::note(start - LEAST, LEAST).unwrap();
        let pages = HostPages::note(start, 2 * PIECE).unwrap();
        assert_eq!(gpu_access(9, start + PIECE - 4096, 8192, true), GpuAccess::None);
        assert!(registrations().entries[&(start, 2 * PIECE)].pieces.is_empty());
        drop((before, pages));
    }
}
