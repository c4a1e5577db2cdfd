//! Regions in a GPU's memory: found by their address when they are registered, and reached through CUDA by the process that
//! allocated them.
//!
//! No page of such memory can be mapped by a CPU, so whatever the NIC reads or writes there goes over a kernel of ours (`mover`)
//! when it is short, and over the copy engine (`engine`) when it is long or while no mover runs. Both are waited for, with a
//! deadline, by the caller: so payload, flag and CQE are in order because the NIC is. A process that has not loaded CUDA
//! pays one relaxed load an access (`ranges`), and the driver is never loaded because of the NIC.
//!
//! Left out: memory that moves by itself (managed) and pools that no NIC may reach, which are refused as by a card's
//! `nvidia_peermem`; queues in a GPU's memory, which need DEVX.

mod contexts;
mod counts;
mod engine;
mod host_pages;
mod mover;
mod pace;
mod ranges;
mod region;
mod timed_out;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use gpu::Allocation;
use mlx5_device::memory::{Fault, Memory};

use self::engine::{Copy, CopyClaim, CopyEngines, HALF, LIMIT, Launcher, Shared, Way};
use self::host_pages::GpuAccess;
use self::mover::{Command, Mover, Outcome};
use self::pace::Pace;
use self::ranges::Place;
use self::timed_out::By;
use self::worker::{Ticket, Worker};
use super::Host;
use super::host::last_word;
use crate::os::{ForgetInChild, PerProcess, locked};

pub use counts::counters;
pub use host_pages::HostPages;
pub use ranges::{exist, touched_by};
pub use region::{GpuError, GpuRegion};

static FORGETS: ForgetInChild = ForgetInChild::new(forget_all);

/// In a fork child: a GPU's memory is its parent's.
extern "C" fn forget_all() {
    ranges::forget_all();
    CARDS.forget();
}

/// Longest message that the mover takes by way of the NIC's pages.
const SHORT: u64 = 32 << 10;

/// Longest that one block of it takes, between pages that it sees (H200: 64 KiB out of the GPU 5 µs, by the copy engine 10; into it 11 and 18).
const ALONE: u64 = 128 << 10;

/// Longest that several blocks take. The copy engine is no slower from here on, and the wait for the mover's end must be short.
const LONG: u64 = 2 << 20;

/// From here on pages of the host are shown to the GPU, where the NIC's own would be on the way otherwise.
const SEEN: u64 = 4 << 10;

/// Whether a copy that was given up may still read or write there: such memory is used for nothing else, and stays where it is.
pub fn may_still_change(start: u64, len: u64) -> bool {
    timed_out::touches(start, len)
}

/// Whether a queue may lie there: not in a GPU's memory.
pub fn is_gpu_address(addr: u64) -> bool {
    let is_memory_of_one = |allocation: Allocation| !allocation.is_managed();
    ranges::find(addr, 1).is_some() || Allocation::at(addr).is_some_and(is_memory_of_one)
}

/// What is known of a range that lies in a GPU's allocation with a region. `None`: it lies in none.
pub(super) fn probe(addr: u64, end: u64) -> Option<Result<(), Fault>> {
    if !exist() {
        return None;
    }
    let place = ranges::find(addr, end.saturating_sub(addr))?;
    Some(if end <= place.end { Ok(()) } else { Err(Fault { addr: place.end }) })
}

/// A copy that takes longer has waited for another process's kernels, which have the GPU for some 2 ms at a time (H200).
const LAG: Duration = Duration::from_micros(500);

static LAGGED: AtomicBool = AtomicBool::new(false);

/// Whether a copy took longer than [`LAG`] since the last call.
pub fn has_lagged() -> bool {
    LAGGED.load(Ordering::Relaxed) && LAGGED.swap(false, Ordering::Relaxed)
}

/// What the NIC's thread has of one GPU.
struct NicGpu {
    card: u32,
    worker: &'static Worker<CopyEngines>,
    launcher: &'static Worker<Launcher>,
    shared: Shared,
    mover: Mover,
    pace: Pace,
    /// What was said on stderr, so that each thing is said once.
    said: Vec<&'static str>,
}

/// By CUDA's number. One lock: the NIC copies one thing at a time.
static CARDS: PerProcess<Mutex<BTreeMap<u32, NicGpu>>> = PerProcess::new(&FORGETS);

fn cards() -> MutexGuard<'static, BTreeMap<u32, NicGpu>> {
    locked(CARDS.get())
}

/// Copies where an end is a GPU's memory. `None`: none is. `last`: the last word goes last, by a release store.
pub(super) fn copy(host: &Host, to: u64, from: u64, len: u64, last: bool) -> Option<Result<(), Fault>> {
    let (target, source) = (ranges::find(to, len), ranges::find(from, len));
    let place = target.or(source)?;
    let mut cards = cards();
    let Some(nic_gpu) = cards.get_mut(&place.card) else { return Some(Err(Fault { addr: place.start })) };
    Some(nic_gpu.copy(host, (to, target), (from, source), len, last))
}

/// An atomic in a GPU's memory: the old value. `None`: the address is none of a GPU's.
pub(super) fn atomic(host: &Host, addr: u64, operation: Atomic) -> Option<Result<u64, Fault>> {
    let place = ranges::find(addr, 8)?;
    let mut cards = cards();
    let Some(nic_gpu) = cards.get_mut(&place.card) else { return Some(Err(Fault { addr })) };
    Some(nic_gpu.atomic(host, addr, place, operation))
}

/// What is done atomically; only the NIC does RDMA atomics, so that it is atomic among them whether mover or copy engine does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Atomic {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
    CompareSwap32 { compare: u32, swap: u32 },
}

/// A copy that was posted to the worker and has not been waited for.
struct InFlightCopy {
    ticket: Ticket<Result<(), gpu::Error>>,
    claim: Arc<CopyClaim>,
    copy: Copy,
}

impl Shared {
    fn is_same(&self, other: &Shared) -> bool {
        std::sync::Arc::ptr_eq(&self.mail, &other.mail)
    }

    /// Whether all that was made in the context is still there: a reset of the GPU frees the NIC's memory and streams too, and
    /// none of them may be touched after that.
    fn is_there(&self) -> bool {
        Allocation::id_at(self.mail.address().as_ptr() as u64) == self.mail_id
    }

    /// Where the NIC finds one of the halves.
    fn half(&self, index: usize) -> u64 {
        self.stage.address().as_ptr() as u64 + (index * HALF) as u64
    }

    /// What the mover reads and writes, apart from copies that were given up and may still be under way.
    fn short(&self) -> u64 {
        self.half(2)
    }
}

impl NicGpu {
    fn new(
        card: u32,
        (worker, launcher): (&'static Worker<CopyEngines>, &'static Worker<Launcher>),
        shared: Shared,
    ) -> NicGpu {
        // For tests on few cores, where a stand-in's threads begin late and are slow.
        let patient = std::env::var_os("SOFTNIC_GPU").is_some_and(|value| value == "patient");
        let mover = Mover::new(shared.mail.clone(), patient);
        NicGpu { card, worker, launcher, shared, mover, pace: Pace::new(patient), said: Vec::new() }
    }

    fn say_once(&mut self, what: &'static str, detail: &str) {
        if !self.said.contains(&what) {
            self.said.push(what);
            eprintln!("softnic: GPU {}: {what}{detail}", self.card);
        }
    }

    fn copy(
        &mut self,
        host: &Host,
        (to, target): (u64, Option<Place>),
        (from, source): (u64, Option<Place>),
        len: u64,
        last: bool,
    ) -> Result<(), Fault> {
        if len == 0 {
            return Ok(());
        }
        for (addr, place) in [(to, target), (from, source)] {
            if place.is_some_and(|place| len > place.end - addr) {
                return Err(Fault { addr });
            }
        }
        let since = Instant::now();
        let reset = self.check_context(to);
        let copied = match (target, source) {
            _ if reset.is_err() => reset,
            (Some(target), Some(source)) => self.within(to, target, from, source, len, last),
            (Some(target), None) => self.inward(host, to, target, from, len, last),
            (None, Some(source)) => self.outward(host, to, from, source, len, last),
            (None, None) => Err(Fault { addr: to }),
        };
        LAGGED.fetch_or(since.elapsed() > LAG, Ordering::Relaxed);
        copied.inspect_err(|_| counts::FAULTS.add(1))
    }

    /// From the host into the GPU.
    fn inward(
        &mut self,
        host: &Host,
        to: u64,
        target: Place,
        from: u64,
        len: u64,
        last: bool,
    ) -> Result<(), Fault> {
        let tail = if last { last_word(to, len) as u64 } else { 0 };
        let access = self.gpu_access(from, len, (to, target));
        // Alike modulo 16, so that the mover copies 16 bytes at a time.
        let direct = access == GpuAccess::Kernels && to % 16 == from % 16;
        if len <= longest(direct) && self.mover_may_use(&[(to, target)], len)? {
            let stage = if direct { from } else { self.shared.short() + to % 16 };
            if !direct {
                host.copy_bytes_of_host(stage, from, len as usize, true)?;
            }
            if self.command(Command::Copy { to, from: stage, len, tail, bring: false }, to)?.is_some() {
                return Ok(());
            }
        }
        if access != GpuAccess::None {
            return self.engine(Copy { to, from, len, tail, tail_to: 0, way: Way::FromHost }, target, to);
        }
        // Before anything goes to the stage, which an earlier message's copy may be reading still.
        self.need_no_other(to)?;
        let mut before: Option<InFlightCopy> = None;
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(HALF as u64);
            let stage = self.shared.half((done / HALF as u64) as usize % 2);
            let staged = host.copy_bytes_of_host(stage, from + done, piece as usize, true);
            if let Some(copy) = before.take() {
                self.settle(copy, to)?;
            }
            staged?;
            let ends = done + piece == len;
            let tail = if ends { tail.min(piece) } else { 0 };
            let copy = Copy { to: to + done, from: stage, len: piece, tail, tail_to: 0, way: Way::FromHost };
            before = Some(self.begin(copy, target, to)?);
            done += piece;
        }
        before.map_or(Ok(()), |copy| self.settle(copy, to))
    }

    /// Out of the GPU to the host.
    fn outward(
        &mut self,
        host: &Host,
        to: u64,
        from: u64,
        source: Place,
        len: u64,
        last: bool,
    ) -> Result<(), Fault> {
        let access = self.gpu_access(to, len, (from, source));
        let direct = access == GpuAccess::Kernels && to % 16 == from % 16;
        if len <= longest(direct) && self.mover_may_use(&[(from, source)], len)? {
            let stage = if direct { to } else { self.shared.short() + from % 16 };
            let tail = if direct && last { last_word(to, len) as u64 } else { 0 };
            let brought = self.command(Command::Copy { to: stage, from, len, tail, bring: true }, from)?;
            match brought {
                Some(_) if !direct => return host.copy_piece_of_host(to, stage, len, true, last),
                Some(_) if tail == 0 => return Ok(()),
                Some(word) => {
                    let word = &raw const word as u64;
                    return host.copy_piece_of_host(to + len - tail, word, tail, true, true);
                }
                None => {}
            }
        }
        if access != GpuAccess::None {
            let tail = if last { last_word(to, len) as u64 } else { 0 };
            let tail_to = self.shared.half(0);
            self.engine(Copy { to, from, len, tail, tail_to, way: Way::ToHost }, source, from)?;
            return if tail > 0 {
                host.copy_piece_of_host(to + len - tail, tail_to, tail, true, true)
            } else {
                Ok(())
            };
        }
        let piece_at = |done: u64| (len - done).min(HALF as u64);
        let stage_at = |nic_gpu: &Self, done: u64| nic_gpu.shared.half((done / HALF as u64) as usize % 2);
        let begin = |nic_gpu: &mut Self, done: u64| {
            let to = stage_at(nic_gpu, done);
            let copy =
                Copy { to, from: from + done, len: piece_at(done), tail: 0, tail_to: 0, way: Way::ToHost };
            nic_gpu.begin(copy, source, from)
        };
        let mut ticket = begin(self, 0)?;
        let mut done = 0;
        loop {
            self.settle(ticket, from)?;
            let piece = piece_at(done);
            // The next piece is on its way while this one is stored.
            let next = if done + piece < len { Some(begin(self, done + piece)?) } else { None };
            let stage = stage_at(self, done);
            let stored = host.copy_piece_of_host(to + done, stage, piece, true, last && next.is_none());
            done += piece;
            match (next, stored) {
                (Some(next), Ok(())) => ticket = next,
                (Some(next), Err(fault)) => {
                    self.settle(next, from)?;
                    return Err(fault);
                }
                (None, stored) => return stored,
            }
        }
    }

    /// What may use pages of the host for a message to or from a place on the GPU. A mover that runs was launched in the program's context just now.
    fn gpu_access(&mut self, addr: u64, len: u64, gpu: (u64, Place)) -> GpuAccess {
        if len < SEEN {
            return GpuAccess::None;
        }
        // Not with the list's lock held: a mover may have to be launched, and the program's threads register regions.
        match host_pages::gpu_access(self.card, addr, len, false) {
            GpuAccess::Unasked if !gpu.1.kernels || self.mover_may_use(&[gpu], 0).unwrap_or(false) => {
                host_pages::gpu_access(self.card, addr, len, true)
            }
            GpuAccess::Unasked => GpuAccess::None,
            known => known,
        }
    }

    /// Between two places on GPUs.
    fn within(
        &mut self,
        to: u64,
        target: Place,
        from: u64,
        source: Place,
        len: u64,
        last: bool,
    ) -> Result<(), Fault> {
        let tail = if last { last_word(to, len) as u64 } else { 0 };
        let one_card = source.card == target.card;
        // Only by 16 bytes at a time it is faster.
        let most = longest(to % 16 == from % 16);
        let moved = one_card && len <= most && self.mover_may_use(&[(to, target), (from, source)], len)?;
        if moved && self.command(Command::Copy { to, from, len, tail, bring: false }, to)?.is_some() {
            return Ok(());
        }
        if !source.is_alive() {
            return Err(self.freed(from));
        }
        let copied = self.engine(Copy { to, from, len, tail, tail_to: 0, way: Way::OnDevice }, target, to);
        // The source may have gone since it was looked at; which side is to blame decides about the error of the message.
        copied.map_err(|fault| if source.is_alive() { fault } else { self.freed(from) })
    }

    fn atomic(&mut self, host: &Host, addr: u64, place: Place, operation: Atomic) -> Result<u64, Fault> {
        let bytes = if matches!(operation, Atomic::CompareSwap32 { .. }) { 4 } else { 8 };
        if bytes > place.end - addr {
            return Err(Fault { addr });
        }
        self.check_context(addr)?;
        if self.mover_may_use(&[(addr, place)], bytes)? {
            let command = match operation {
                Atomic::CompareSwap { compare, swap } => Command::CompareSwap { at: addr, compare, swap },
                Atomic::FetchAdd { add } => Command::FetchAdd { at: addr, add },
                Atomic::CompareSwap32 { compare, swap } => Command::CompareSwap32 { at: addr, compare, swap },
            };
            if let Some(old) = self.command(command, addr)? {
                return Ok(old);
            }
        }
        // By the copy engine: out, changed, and back.
        let stage = self.shared.half(0);
        let out = Copy { to: stage, from: addr, len: bytes, tail: 0, tail_to: 0, way: Way::ToHost };
        self.engine(out, place, addr)?;
        let mut word = [0; 8];
        host.read(stage, &mut word[..bytes as usize])?;
        let old = u64::from_le_bytes(word);
        let new = match operation {
            Atomic::CompareSwap { compare, swap } => (old == compare).then_some(swap),
            Atomic::FetchAdd { add } => Some(old.wrapping_add(add)),
            Atomic::CompareSwap32 { compare, swap } => (old == u64::from(compare)).then_some(u64::from(swap)),
        };
        if let Some(new) = new {
            host.write(stage, &new.to_le_bytes()[..bytes as usize], false)?;
            let back = Copy { to: addr, from: stage, len: bytes, tail: 0, tail_to: 0, way: Way::FromHost };
            self.engine(back, place, addr)?;
        }
        Ok(old)
    }

    /// Whether a mover runs that may go there, with help for what is long. Error: the memory has been freed.
    fn mover_may_use(&mut self, places: &[(u64, Place)], len: u64) -> Result<bool, Fault> {
        if !places.iter().all(|(_, place)| place.kernels) {
            return Ok(false);
        }
        if len > ALONE {
            self.mover.expect_long();
        }
        if self.pace.rests_at(Instant::now()) {
            return Ok(false);
        }
        let (launcher, card) = (self.launcher, self.card);
        let since = Instant::now();
        let running = self.mover.running(|done, instance, blocks| {
            counts::MOVER_LAUNCHES.add(1);
            launcher.post(move |launcher| launcher.launch(card, done, instance, blocks))
        });
        let instance = match running {
            Ok(Some(instance)) => instance,
            Ok(None) => {
                counts::MOVER_LATE.add(1);
                // The next launch would be as late.
                counts::MOVER_SLOW.add(self.pace.note_launch(since, Instant::now()).into());
                return Ok(false);
            }
            Err(error) => {
                self.say_once("the mover was not launched: ", &error.to_string());
                self.pace.rest_longest(Instant::now());
                return Ok(false);
            }
        };
        counts::MOVER_SLOW.add(self.pace.note_launch(since, Instant::now()).into());
        if len > ALONE && !self.mover.is_helped() {
            return Ok(false);
        }
        // Asked while it runs: until it ends the driver frees nothing, so that it cannot come upon a page that is gone,
        // which would cost the program its context.
        match places.iter().find(|(_, place)| !place.is_alive_for(instance)) {
            Some((addr, _)) => Err(self.freed(*addr)),
            None => Ok(true),
        }
    }

    /// `None`: nothing has been done, and the copy engine is to.
    fn command(&mut self, command: Command, addr: u64) -> Result<Option<u64>, Fault> {
        counts::MOVER_COMMANDS.add(1);
        let since = Instant::now();
        let (ends, len) = command.ends();
        let outcome = self.mover.command(command);
        let now = Instant::now();
        counts::MOVER_NS.add((now - since).as_nanos() as u64);
        counts::MOVER_SLOW.add(self.pace.note_command(since, now, len).into());
        match outcome {
            Outcome::Done { old, helped } => {
                counts::MOVER_HELPED.add(helped.into());
                Ok(Some(old))
            }
            Outcome::NotTaken => Ok(None),
            Outcome::Silent => {
                let card = self.card;
                let state = self.launcher.post(move |launcher| launcher.mover_state(card)).wait(LIMIT);
                let why = match state {
                    Some(Err(error)) => error.to_string(),
                    Some(Ok(_)) => "it runs and says nothing".to_owned(),
                    None => "the driver says nothing either".to_owned(),
                };
                timed_out::note(card, By::Mover, ends, len, None);
                self.say_once("the mover does not answer, a message fails: ", &why);
                Err(Fault { addr })
            }
        }
    }

    /// Has the copy engine do it, and waits.
    fn engine(&mut self, copy: Copy, place: Place, addr: u64) -> Result<(), Fault> {
        let copy = self.begin(copy, place, addr)?;
        self.settle(copy, addr)
    }

    fn begin(&mut self, copy: Copy, place: Place, addr: u64) -> Result<InFlightCopy, Fault> {
        self.need_no_other(addr)?;
        if !place.is_alive() {
            return Err(self.freed(addr));
        }
        counts::ENGINE_COPIES.add(1);
        counts::ENGINE_BYTES.add(copy.len);
        let (card, claim) = (self.card, Arc::new(CopyClaim::default()));
        let theirs = claim.clone();
        let ticket = self.worker.post(move |engines| engines.copy(card, copy, &theirs));
        Ok(InFlightCopy { ticket, claim, copy })
    }

    /// What was given up may still be under way, in the same memory, and a worker that is blocked is so for all; while it is, all fails at once.
    fn need_no_other(&mut self, addr: u64) -> Result<(), Fault> {
        if timed_out::keeps_engine(self.card) { Err(Fault { addr }) } else { Ok(()) }
    }

    fn settle(&mut self, copy: InFlightCopy, addr: u64) -> Result<(), Fault> {
        let since = Instant::now();
        let InFlightCopy { ticket, claim, copy } = copy;
        let note = |len, job| timed_out::note(self.card, By::Engine, [copy.to, copy.from], len, job);
        let answer = ticket.wait(LIMIT + LIMIT / 2);
        counts::ENGINE_NS.add(since.elapsed().as_nanos() as u64);
        match answer {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                // Its engine may be at it still.
                note(copy.len, None);
                self.say_once("a copy fails: ", &error.to_string());
                Err(Fault { addr })
            }
            None => {
                // One that has not begun never will: the memory is free at once, and the engine when the worker has come to it.
                note(if claim.cancel() { 0 } else { copy.len }, Some(ticket));
                let what = "CUDA's driver has not answered for 3 s, and a message fails: does the program free or load, \
                            while a kernel waits for that message?";
                self.say_once(what, "");
                Err(Fault { addr })
            }
        }
    }

    fn check_context(&mut self, addr: u64) -> Result<(), Fault> {
        if self.shared.is_there() {
            return Ok(());
        }
        self.say_once("the program has reset it: messages to and from its memory fail", "");
        Err(Fault { addr })
    }

    fn freed(&mut self, addr: u64) -> Fault {
        self.say_once("memory was freed under its region: ", &format!("{addr:#x}"));
        Fault { addr }
    }
}

/// Longest message that the mover takes: where it sees both ends, and where it does not or copies single bytes.
fn longest(direct: bool) -> u64 {
    if direct { LONG } else { SHORT }
}

/// Addresses that count as a GPU's for as long as this lives: for tests where there is none.
#[cfg(test)]
pub(crate) fn counts_as_a_gpus(start: u64, len: u64) -> impl Drop {
    let kind = ranges::Kind::Whole { kernels: false };
    ranges::Known::new(start, start + len, u64::MAX, 0, kind).expect("a free place")
}
