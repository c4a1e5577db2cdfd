//! One GPU as the NIC's thread uses it: moves each message by mover or copy engine, and words its failure.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mlx5_device::memory::Fault;

use super::counts;
use super::engine::{Copy, HALF, LIMIT, Shared, Way, on_card};
use super::host_pages::{self, GpuAccess};
use super::mover::{Command, Mover, Outcome};
use super::ranges::Place;
use super::state::{Event, State};
use super::threads::Threads;
use super::timed_out::{self, By};
use super::worker::Ticket;
use crate::dma::guard::{Atomic, CpuMemory, last_word};
use crate::os::{PerProcess, locked, log};

/// Longest message that the mover takes by way of the NIC's pages.
const SHORT: u64 = 32 << 10;

/// Longest for one block between pages it sees (H200, 64 KiB: from the GPU 5 µs, engine 10; into it 11, 18).
const ALONE: u64 = 128 << 10;

/// Longest for several blocks: beyond, the engine is no slower, and the wait for the mover must be short.
const LONG: u64 = 2 << 20;

/// From here on pages of the host are shown to the GPU, where the NIC's own would be on the way otherwise.
const SEEN: u64 = 4 << 10;

/// A longer copy waited for another process's kernels, which hold the GPU for some 2 ms at a time (H200).
const LAG: Duration = Duration::from_micros(500);

/// Whether a copy took longer than [`LAG`].
pub static LAGGED: AtomicBool = AtomicBool::new(false);

/// What the NIC's thread has of one GPU.
pub struct NicGpu {
    card: u32,
    host: CpuMemory,
    threads: &'static Threads,
    pub shared: Shared,
    mover: Mover,
    /// What was said on stderr, so that each thing is said once.
    said: Vec<&'static str>,
}

/// By CUDA's number. One lock: the NIC copies one thing at a time.
static CARDS: PerProcess<Mutex<BTreeMap<u32, NicGpu>>> = PerProcess::empty();

pub fn cards() -> MutexGuard<'static, BTreeMap<u32, NicGpu>> {
    locked(CARDS.get())
}

/// A copy that was posted to the worker and has not been waited for.
struct InFlightCopy {
    ticket: Ticket<Result<(), gpu::Error>>,
    copy: Copy,
}

impl NicGpu {
    pub fn new(card: u32, host: CpuMemory, threads: &'static Threads, shared: Shared) -> NicGpu {
        // For tests on few cores, where a stand-in's threads begin late and are slow.
        let patient = std::env::var_os("SOFTNIC_GPU").is_some_and(|value| value == "patient");
        let mover = Mover::new(shared.mail.clone(), patient);
        NicGpu { card, host, threads, shared, mover, said: Vec::new() }
    }

    fn say_once(&mut self, what: &'static str, detail: &str) {
        if !self.said.contains(&what) {
            self.said.push(what);
            log(&format!("GPU {}: {what}{detail}", self.card));
        }
    }

    /// Copies between places of which one at least is on this GPU.
    pub fn copy(
        &mut self,
        (to, target): (u64, Option<Place>),
        (from, source): (u64, Option<Place>),
        len: u64,
        last: bool,
    ) -> Result<(), Fault> {
        if len == 0 {
            return Ok(());
        }
        if let Some(place) = [target, source].into_iter().flatten().find(|place| len > place.end - place.addr)
        {
            return Err(Fault { addr: place.addr });
        }
        let since = Instant::now();
        let reset = self.check_context(to);
        let copied = match (target, source) {
            _ if reset.is_err() => reset,
            (Some(target), Some(source)) => self.within(target, source, len, last),
            (Some(target), None) => self.inward(target, from, len, last),
            (None, Some(source)) => self.outward(to, source, len, last),
            (None, None) => Err(Fault { addr: to }),
        };
        LAGGED.fetch_or(since.elapsed() > LAG, Ordering::Relaxed);
        copied.inspect_err(|_| counts::FAULTS.add(1))
    }

    /// From the host into the GPU.
    fn inward(&mut self, target: Place, from: u64, len: u64, last: bool) -> Result<(), Fault> {
        let to = target.addr;
        let tail = if last { last_word(to, len) as u64 } else { 0 };
        let access = self.gpu_access(from, len, target);
        // Alike modulo 16, so that the mover copies 16 bytes at a time.
        let direct = access == GpuAccess::Kernels && to % 16 == from % 16;
        if len <= longest(direct) && self.mover_may_use(&[target], len)? {
            let stage = if direct { from } else { self.shared.short() + to % 16 };
            if !direct {
                self.host.copy_bytes(stage, from, len as usize, true)?;
            }
            if self.command(Command::Copy { to, from: stage, len, tail, bring: false }, to)?.is_some() {
                return Ok(());
            }
        }
        if access != GpuAccess::None {
            return self.engine(Copy { tail, ..Copy::new(Way::FromHost, to, from, len) }, target);
        }
        // Before anything goes to the stage, which an earlier message's copy may be reading still.
        self.need_no_other(to)?;
        let mut before: Option<InFlightCopy> = None;
        let mut done = 0;
        while done < len {
            let (stage, piece) = self.stage(done, len);
            let staged = self.host.copy_bytes(stage, from + done, piece as usize, true);
            if let Some(copy) = before.take() {
                self.settle(copy, to)?;
            }
            staged?;
            let tail = if done + piece == len { tail.min(piece) } else { 0 };
            let copy = Copy { tail, ..Copy::new(Way::FromHost, to + done, stage, piece) };
            before = Some(self.begin(copy, target)?);
            done += piece;
        }
        before.map_or(Ok(()), |copy| self.settle(copy, to))
    }

    /// Out of the GPU to the host.
    fn outward(&mut self, to: u64, source: Place, len: u64, last: bool) -> Result<(), Fault> {
        let from = source.addr;
        let tail = if last { last_word(to, len) as u64 } else { 0 };
        let access = self.gpu_access(to, len, source);
        let direct = access == GpuAccess::Kernels && to % 16 == from % 16;
        if len <= longest(direct) && self.mover_may_use(&[source], len)? {
            let stage = if direct { to } else { self.shared.short() + from % 16 };
            let brought = if direct { tail } else { 0 };
            let command = Command::Copy { to: stage, from, len, tail: brought, bring: true };
            match self.command(command, from)? {
                Some(_) if !direct => return self.host.copy_piece(to, stage, len, true, last),
                Some(word) => return self.host.store_last(to, len, tail, &raw const word as u64),
                None => {}
            }
        }
        if access != GpuAccess::None {
            let tail_to = self.shared.half(0);
            self.engine(Copy { tail, tail_to, ..Copy::new(Way::ToHost, to, from, len) }, source)?;
            return self.host.store_last(to, len, tail, tail_to);
        }
        let begin = |nic_gpu: &mut Self, done: u64| {
            let (stage, piece) = nic_gpu.stage(done, len);
            nic_gpu.begin(Copy::new(Way::ToHost, stage, from + done, piece), source)
        };
        let mut copy = begin(self, 0)?;
        let mut done = 0;
        loop {
            self.settle(copy, from)?;
            let (stage, piece) = self.stage(done, len);
            // The next piece is on its way while this one is stored.
            let next = if done + piece < len { Some(begin(self, done + piece)?) } else { None };
            let stored = self.host.copy_piece(to + done, stage, piece, true, last && next.is_none());
            let Some(next) = next else { return stored };
            if stored.is_err() {
                return self.settle(next, from).and(stored);
            }
            (copy, done) = (next, done + piece);
        }
    }

    /// Where the piece of a staged message that begins behind `done` bytes lies meanwhile, and its length.
    fn stage(&self, done: u64, len: u64) -> (u64, u64) {
        (self.shared.half((done / HALF as u64) as usize % 2), (len - done).min(HALF as u64))
    }

    /// What may use host pages for a message. A mover that runs was just launched in the program's context.
    fn gpu_access(&mut self, addr: u64, len: u64, place: Place) -> GpuAccess {
        if len < SEEN {
            return GpuAccess::None;
        }
        // Without the list's lock: a mover may be launched here, and program threads register regions.
        match host_pages::gpu_access(self.card, addr, len, false) {
            GpuAccess::Unasked if !place.kind.kernels || self.mover_may_use(&[place], 0).unwrap_or(false) => {
                host_pages::gpu_access(self.card, addr, len, true)
            }
            GpuAccess::Unasked => GpuAccess::None,
            known => known,
        }
    }

    /// Between two places on GPUs.
    fn within(&mut self, target: Place, source: Place, len: u64, last: bool) -> Result<(), Fault> {
        let (to, from) = (target.addr, source.addr);
        let tail = if last { last_word(to, len) as u64 } else { 0 };
        // Only by 16 bytes at a time it is faster.
        let short = source.card == target.card && len <= longest(to % 16 == from % 16);
        if short
            && self.mover_may_use(&[target, source], len)?
            && self.command(Command::Copy { to, from, len, tail, bring: false }, to)?.is_some()
        {
            return Ok(());
        }
        if !source.is_alive() {
            return Err(self.freed(from));
        }
        let copied = self.engine(Copy { tail, ..Copy::new(Way::OnDevice, to, from, len) }, target);
        // The source may have gone since; which side is to blame decides the message's error.
        copied.map_err(|fault| if source.is_alive() { fault } else { self.freed(from) })
    }

    /// An atomic: the old value.
    pub fn atomic(&mut self, place: Place, operation: Atomic) -> Result<u64, Fault> {
        let (addr, bytes) = (place.addr, operation.bytes());
        if bytes > place.end - addr {
            return Err(Fault { addr });
        }
        self.check_context(addr)?;
        if self.mover_may_use(&[place], bytes)?
            && let Some(old) = self.command(Command::Atomic { at: addr, operation }, addr)?
        {
            return Ok(old);
        }
        // By the copy engine: out, changed, and back.
        let stage = self.shared.half(0);
        self.engine(Copy::new(Way::ToHost, stage, addr, bytes), place)?;
        let mut word = [0; 8];
        self.host.copy_bytes(word.as_mut_ptr() as u64, stage, bytes as usize, true)?;
        let old = u64::from_le_bytes(word);
        if let Some(new) = operation.of(old) {
            self.host.copy_bytes(stage, new.to_le_bytes().as_ptr() as u64, bytes as usize, true)?;
            self.engine(Copy::new(Way::FromHost, addr, stage, bytes), place)?;
        }
        Ok(old)
    }

    /// Whether a mover runs that may go there, with help for what is long. Error: the memory has been freed.
    fn mover_may_use(&mut self, places: &[Place], len: u64) -> Result<bool, Fault> {
        if !places.iter().all(|place| place.kind.kernels) {
            return Ok(false);
        }
        if len > ALONE {
            self.mover.expects_long = true;
        }
        let (launches, card) = (&self.threads.launches, self.card);
        let since = Instant::now();
        let ready = self.mover.ready(|done, instance, blocks| {
            counts::MOVER_LAUNCHES.add(1);
            launches.post(move |cards, _| on_card(cards, card)?.launch(done, instance, blocks))
        });
        let state = match ready {
            Ok(state) => state,
            Err(error) => {
                self.say_once("the mover was not launched: ", &error.to_string());
                return Ok(false);
            }
        };
        match state {
            State::Runs => {}
            State::Ended | State::Launched | State::Late => counts::MOVER_LATE.add(1),
            State::Rests { .. } | State::Refused { .. } | State::Silent | State::Reset => return Ok(false),
        }
        // Where it was late, the next launch would be as late.
        counts::MOVER_SLOW.add(self.mover.states.note_launch(since, Instant::now()).into());
        if state != State::Runs || len > ALONE && !self.mover.is_helped() {
            return Ok(false);
        }
        let instance = self.mover.instance;
        // Asked while it runs: until it ends the driver frees nothing, so it cannot meet a freed page, which
        // would cost the program its context.
        match places.iter().find(|place| !place.is_alive_for(instance)) {
            Some(place) => Err(self.freed(place.addr)),
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
        counts::MOVER_SLOW.add(self.mover.states.note_command(since, now, len).into());
        match outcome {
            Outcome::Done { old, helped } => {
                counts::MOVER_HELPED.add(helped.into());
                Ok(Some(old))
            }
            Outcome::NotTaken => Ok(None),
            Outcome::Silent => {
                let card = self.card;
                let asked = self.threads.launches.post(move |cards, _| on_card(cards, card)?.is_idle());
                let why = match asked.wait(LIMIT) {
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
    fn engine(&mut self, copy: Copy, place: Place) -> Result<(), Fault> {
        let copy = self.begin(copy, place)?;
        self.settle(copy, place.addr)
    }

    fn begin(&mut self, copy: Copy, place: Place) -> Result<InFlightCopy, Fault> {
        self.need_no_other(place.addr)?;
        if !place.is_alive() {
            return Err(self.freed(place.addr));
        }
        counts::ENGINE_COPIES.add(1);
        counts::ENGINE_BYTES.add(copy.len);
        let card = self.card;
        let ticket = self.threads.copies.post(move |cards, job| on_card(cards, card)?.copy(copy, job));
        Ok(InFlightCopy { ticket, copy })
    }

    /// A timed-out copy may still be executed in the same memory, and a blocked thread blocks all copies:
    /// until that ends all fail at once.
    fn need_no_other(&mut self, addr: u64) -> Result<(), Fault> {
        if timed_out::keeps_engine(self.card) { Err(Fault { addr }) } else { Ok(()) }
    }

    fn settle(&mut self, copy: InFlightCopy, addr: u64) -> Result<(), Fault> {
        let since = Instant::now();
        let InFlightCopy { ticket, copy } = copy;
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
                // Not begun, it never will be: its memory is free now, the engine once the worker gets to it.
                note(if ticket.cancel() { 0 } else { copy.len }, Some(ticket));
                let what = "CUDA's driver has not answered for 3 s, and a message fails: does the program free or load, \
                            while a kernel waits for that message?";
                self.say_once(what, "");
                Err(Fault { addr })
            }
        }
    }

    fn check_context(&mut self, addr: u64) -> Result<(), Fault> {
        if !self.shared.is_there() {
            self.mover.states.on(Event::ContextReset, Instant::now());
        }
        if self.mover.states.state() != State::Reset {
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

/// Longest message that the mover takes: where it sees both ends; else, or where it copies single bytes.
fn longest(direct: bool) -> u64 {
    if direct { LONG } else { SHORT }
}
