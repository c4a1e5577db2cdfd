//! The NIC's end of the mover kernel (`mover.ptx`): commands left in pinned memory, and answers.
//!
//! A command is left only for an instance that has said that it runs. An instance ends by itself and says so
//! after its last look. So a command left too late is known not to have been taken, and is taken back before
//! the next launch. Nothing here calls the driver: launches are the worker's.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpu::PinnedMemory;

use super::super::guard::Atomic;
use super::state::{Event, Seen, State, StateMachine};
use super::worker::Ticket;

/// The kernel, as text that ends with a zero.
pub const ASSEMBLY: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("mover.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("no zero in the text"),
    };

/// Threads of each of its blocks.
pub const THREADS: u32 = 256;
/// Blocks for long copies, with which all but the first help; these fill the bus (H200: 1 MiB out of the GPU
/// takes one block 29 µs, four 25, eight 25; into the GPU 98, 45 and 32).
pub const BLOCKS: u32 = 8;
/// How long it waits for a command.
pub const IDLE_NS: u32 = 200_000;
/// How long it runs at most; a program that waits for the whole GPU waits for this.
pub const LIFE_NS: u32 = 1_000_000;
pub const MAIL_BYTES: usize = 4096;

/// How long a launch may take before the copy engine is asked instead.
const START: Duration = Duration::from_millis(1);
/// How long a command may take: microseconds, but a debugger may have stopped the GPU.
const ANSWER: Duration = Duration::from_secs(1);

/// Indices of words of the mail, 32 or (`LONG_`) 64 bits. The first line is the NIC's, the rest the mover's.
mod at {
    /// The command: each word has its number above and 32 bits of it below. One look at all shows the mover
    /// that a command is complete (looking for the number first would wait for the bus twice).
    pub const LONG_COMMAND: usize = 0;
    pub const COMMAND_WORDS: usize = 10;
    pub const ANSWERED: usize = 32;
    pub const LONG_OLD: usize = 17;
    /// Counts on from instance to instance.
    pub const HELPED: usize = 36;
    pub const STARTED: usize = 64;
    pub const ENDED: usize = 65;
}

/// What the mover is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// `tail`: bytes of the destination's last naturally aligned word, which is stored last; 0: any order.
    Copy {
        to: u64,
        from: u64,
        len: u64,
        /// 0, 1, 2, 4 or 8.
        tail: u64,
        /// The last word is not stored but answered: the NIC stores it, which waits for the bus once less.
        bring: bool,
    },
    Atomic {
        at: u64,
        operation: Atomic,
    },
}

impl Command {
    /// First bytes written and read, and how many of each.
    pub fn ends(self) -> ([u64; 2], u64) {
        match self {
            Command::Copy { to, from, len, .. } => ([to, from], len),
            Command::Atomic { at, operation } => ([at; 2], operation.bytes()),
        }
    }

    /// As in the mail: operation, first byte written, first byte read, bytes, two operands.
    fn words(self) -> [u32; at::COMMAND_WORDS] {
        let (number, to, from, len, a, b) = match self {
            Command::Copy { to, from, len, tail, bring } => {
                (if bring { 4 } else { 0 }, to, from, len, tail, 0)
            }
            Command::Atomic { at, operation } => match operation {
                Atomic::CompareSwap { compare, swap } => (1, at, 0, 0, compare, swap),
                Atomic::FetchAdd { add } => (2, at, 0, 0, add, 0),
                Atomic::CompareSwap32 { compare, swap } => (3, at, 0, 0, compare.into(), swap.into()),
            },
        };
        let [low, high] = [|word: u64| word as u32, |word: u64| (word >> 32) as u32];
        [number, low(to), high(to), low(from), high(from), low(len), low(a), high(a), low(b), high(b)]
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done {
        /// The old value of an atomic, or the last word of a copy that is to bring it.
        old: u64,
        /// Pieces of a long copy that other blocks than the first took.
        helped: u32,
    },
    /// The instance had ended before it looked: nothing has been done.
    NotTaken,
    /// It does not answer. Whether it has been done, or will be, is not known.
    Silent,
}

#[derive(Debug)]
pub struct Mover {
    mail: Arc<PinnedMemory>,
    /// Number of the last command that was left, and of the last one that was done.
    number: u32,
    done: u32,
    /// As the mover's count of pieces that were helped with stood then.
    helped: u32,
    pub instance: u32,
    pub states: StateMachine,
    /// Of the present instance.
    blocks: u32,
    /// A long copy is to come, now and again: the next launch is one of several blocks.
    pub expects_long: bool,
    /// The present instance's launch, until the driver has answered.
    launch: Option<Ticket<Result<(), gpu::Error>>>,
    start: Duration,
}

impl Mover {
    /// Not launched yet. `patient`: a launch is waited for as long as a command, and no mover is too slow.
    pub fn new(mail: Arc<PinnedMemory>, patient: bool) -> Mover {
        Mover {
            mail,
            number: 0,
            done: 0,
            helped: 0,
            instance: 0,
            states: StateMachine::new(patient),
            blocks: 0,
            expects_long: false,
            launch: None,
            start: if patient { ANSWER } else { START },
        }
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        &self.mail.words()[index]
    }

    /// The state by the words that the present instance has written.
    fn look(&mut self, now: Instant) -> State {
        // In this order: an instance that has ended has started before.
        let ended = self.word(at::ENDED).load(Ordering::Acquire) == self.instance;
        let begun = self.word(at::STARTED).load(Ordering::Acquire) == self.instance;
        let seen = match (ended, begun) {
            (true, _) => Seen::Ended,
            (_, true) => Seen::Begun,
            _ => Seen::Nothing,
        };
        self.states.on(Event::Seen(seen), now)
    }

    /// The state that the next command finds. Launches an instance if none runs, and waits a while for it.
    ///
    /// Error: the driver refused the launch.
    pub fn ready(
        &mut self,
        launch: impl FnOnce(u32, u32, u32) -> Ticket<Result<(), gpu::Error>>,
    ) -> Result<State, gpu::Error> {
        let since = Instant::now();
        let mut now = since;
        if self.look(now) == State::Ended {
            self.instance = self.instance.wrapping_add(1).max(1);
            self.blocks = if std::mem::take(&mut self.expects_long) { BLOCKS } else { 1 };
            self.launch = Some(launch(self.done, self.instance, self.blocks));
            self.states.on(Event::Launch, now);
        }
        while matches!(self.look(now), State::Launched | State::Late) {
            let answered = self.launch.take_if(|ticket| ticket.is_done()).and_then(|ticket| ticket.take());
            if let Some(Err(error)) = answered {
                self.states.on(Event::LaunchRefused, now);
                return Err(error);
            }
            if self.states.state() == State::Late {
                break;
            }
            std::hint::spin_loop();
            now = Instant::now();
            if now - since >= self.start {
                self.states.on(Event::StartTimedOut, now);
            }
        }
        // Begun and ended in between: an instance that is taken from its core for so long need not hurry.
        Ok(self.states.state())
    }

    /// Whether the present instance was launched with blocks that help.
    pub fn is_helped(&self) -> bool {
        self.blocks > 1
    }

    /// The number in the command's first word.
    fn leave(&self, number: u32, first: u32) {
        let word = u64::from(number) << 32 | u64::from(first);
        self.mail.long_words()[at::LONG_COMMAND].store(word, Ordering::Release);
    }

    /// Has the instance that runs do something, and waits for it.
    pub fn command(&mut self, command: Command) -> Outcome {
        let words = command.words();
        self.number = self.number.wrapping_add(1);
        for (index, word) in words.into_iter().enumerate().skip(1) {
            let tagged = u64::from(self.number) << 32 | u64::from(word);
            self.mail.long_words()[at::LONG_COMMAND + index].store(tagged, Ordering::Relaxed);
        }
        self.leave(self.number, words[0]);
        let answered = |mover: &Self| mover.word(at::ANSWERED).load(Ordering::Acquire) == mover.number;
        let since = Instant::now();
        let mut looks = 0u32;
        loop {
            if answered(self) {
                self.done = self.number;
                let old = self.mail.long_words()[at::LONG_OLD].load(Ordering::Relaxed);
                let counted = self.word(at::HELPED).load(Ordering::Relaxed);
                let helped = counted.wrapping_sub(self.helped);
                self.helped = counted;
                return Outcome::Done { old, helped };
            }
            if self.word(at::ENDED).load(Ordering::Acquire) == self.instance && !answered(self) {
                // It looks no more: what it has not taken it never will, nor will the next one.
                self.leave(self.done, 0);
                self.states.on(Event::Seen(Seen::Ended), Instant::now());
                return Outcome::NotTaken;
            }
            looks += 1;
            if looks.is_multiple_of(1024) && since.elapsed() >= ANSWER {
                // One that goes on after all, as behind a debugger, is not to find it.
                self.leave(self.done, 0);
                self.states.on(Event::CommandTimedOut, Instant::now());
                return Outcome::Silent;
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use gpu::{Arch, Compiled, Form, Linker, Toolkit};

    use super::*;

    #[test]
    fn the_mover_is_assembled_for_every_architecture_that_we_build_for() {
        let toolkit = measure::need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
        let linker = measure::need!(Linker::load(&toolkit), toolkit, "its linker");
        // nvJitLink knows assembly by its first word.
        let text = include_str!("mover.ptx");
        let bytes = text.as_bytes()[text.find(".version").expect("it says its version")..].to_vec();
        let assembly = Compiled { name: "mover.ptx".to_owned(), form: Form::Ptx, bytes, log: String::new() };
        for number in [80, 90, 100] {
            let image = linker.link(std::slice::from_ref(&assembly), Arch::sm(number));
            let image = image.unwrap_or_else(|error| panic!("sm_{number}: {error}"));
            let name = b"softnic_mover";
            assert!(image.windows(name.len()).any(|bytes| bytes == name), "sm_{number}");
        }
    }

    #[test]
    fn the_words_of_the_mail_are_where_the_assembly_has_them() {
        let text = include_str!("mover.ptx");
        for (index, bytes, instruction) in [
            (at::LONG_COMMAND, 8, "ld.acquire.sys.u64 %word, [%at]"),
            (at::ANSWERED, 4, "st.release.sys.u32 [%mail+128], %done"),
            (at::LONG_OLD, 8, "st.relaxed.sys.u64 [%mail+136], %old"),
            (at::HELPED, 4, "st.relaxed.sys.u32 [%mail+144], %helped"),
            (at::HELPED, 4, "ld.relaxed.sys.u32 %helped, [%mail+144]"),
            (at::STARTED, 4, "st.release.sys.u32 [%mail+256], %instance"),
            (at::ENDED, 4, "st.release.sys.u32 [%mail+260], %instance"),
        ] {
            let place = index * bytes;
            let wanted = if place == 0 { "[%at]".to_owned() } else { format!("[%mail+{place}]") };
            assert!(text.contains(instruction) && instruction.contains(&wanted), "{instruction}: {place}");
        }
        // Each lane of a warp has a word; those behind the last look at the last.
        let lanes = format!("min.u32 %x0, %thread, {};", at::COMMAND_WORDS - 1);
        assert!(text.contains(&lanes) && at::COMMAND_WORDS <= 32, "{lanes}");
        let command = Command::Copy { to: 0x1_0000_0002, from: 0x3_0000_0004, len: 5, tail: 6, bring: true };
        assert_eq!(command.words(), [4, 2, 1, 4, 3, 5, 6, 0, 0, 0]);
        let operation = Atomic::CompareSwap { compare: 0x8_0000_0009, swap: 0xa_0000_000b };
        let command = Command::Atomic { at: 7, operation };
        assert_eq!(command.words(), [1, 7, 0, 0, 0, 0, 9, 8, 0xb, 0xa]);
        for (place, load) in
            [(0, "%op, [order]"), (4, "%x0, [order+4]"), (20, "%x0, [order+20]"), (24, "%x0, [order+24]")]
        {
            assert!(text.contains(&format!("ld.shared.u32 {load};")), "{place}");
        }
    }
}
