//! The NIC's end of the mover kernel (`mover.ptx`): commands left in pinned memory, and answers.
//!
//! A command is left only for an instance that has said that it runs. An instance ends by itself and says so after its last
//! look, so that a command that was left too late is known not to have been taken, and is taken back before the next launch.
//! Nothing here calls the driver: launches are the worker's.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpu::PinnedMemory;

use super::worker::Ticket;

/// The kernel, as text that ends with a zero.
pub const ASSEMBLY: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("mover.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("no zero in the text"),
    };

/// Threads of each of its blocks.
pub const THREADS: u32 = 256;
/// Blocks where there are long copies, of which all but the first help with these alone: what fills the bus (H200: 1 MiB out of the GPU takes one
/// block 29 µs, four 25, eight 25; into the GPU 98, 45 and 32).
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

/// Indices of words of the mail: of 32 bits, and (`LONG_`) of 64. The first line is the NIC's, the others the mover's.
mod at {
    /// The command: in each word its number above, and 32 bits of it below, so that the mover sees with one look at all of them
    /// that a command is there whole (one that looked for the number first would wait for the bus twice).
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
    /// `tail`: bytes of the last naturally aligned word of the destination, which is stored last; 0: in any order.
    Copy {
        to: u64,
        from: u64,
        len: u64,
        /// 0, 1, 2, 4 or 8.
        tail: u64,
        /// The last word is not stored but answered: the NIC stores it, which waits for the bus once less.
        bring: bool,
    },
    /// 64 bits.
    CompareSwap { at: u64, compare: u64, swap: u64 },
    /// 64 bits.
    FetchAdd { at: u64, add: u64 },
    /// 32 bits.
    CompareSwap32 { at: u64, compare: u32, swap: u32 },
}

impl Command {
    /// First bytes written and read, and how many of each.
    pub fn ends(self) -> ([u64; 2], u64) {
        match self {
            Command::Copy { to, from, len, .. } => ([to, from], len),
            Command::CompareSwap { at, .. } | Command::FetchAdd { at, .. } => ([at; 2], 8),
            Command::CompareSwap32 { at, .. } => ([at; 2], 4),
        }
    }

    /// As in the mail: operation, first byte written, first byte read, bytes, two operands.
    fn words(self) -> [u32; at::COMMAND_WORDS] {
        let (operation, to, from, len, a, b) = match self {
            Command::Copy { to, from, len, tail, bring } => {
                (if bring { 4 } else { 0 }, to, from, len, tail, 0)
            }
            Command::CompareSwap { at, compare, swap } => (1, at, 0, 0, compare, swap),
            Command::FetchAdd { at, add } => (2, at, 0, 0, add, 0),
            Command::CompareSwap32 { at, compare, swap } => (3, at, 0, 0, compare.into(), swap.into()),
        };
        let [low, high] = [|word: u64| word as u32, |word: u64| (word >> 32) as u32];
        [operation, low(to), high(to), low(from), high(from), low(len), low(a), high(a), low(b), high(b)]
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

/// Where the present instance stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// None was launched, or it has ended.
    None,
    /// Launched; it has not begun, and is waited for until then, at first.
    Launched {
        /// Waited for in vain once: the copy engine does what comes until it begins.
        late: bool,
    },
    Runs,
}

#[derive(Debug)]
pub struct Mover {
    mail: Arc<PinnedMemory>,
    /// Number of the last command that was left, and of the last one that was done.
    number: u32,
    done: u32,
    /// As the mover's count of pieces that were helped with stood then.
    helped: u32,
    instance: u32,
    stage: Stage,
    /// Of the present instance.
    blocks: u32,
    /// There was a long copy since the last launch.
    long: bool,
    /// The present instance's launch, until the driver has answered.
    launch: Option<Ticket<Result<(), gpu::Error>>>,
    silent: bool,
    start: Duration,
}

impl Mover {
    /// One that was not launched yet. `patient`: a launch is waited for as long as a command.
    pub fn new(mail: Arc<PinnedMemory>, patient: bool) -> Mover {
        let start = if patient { ANSWER } else { START };
        Mover {
            mail,
            number: 0,
            done: 0,
            helped: 0,
            instance: 0,
            stage: Stage::None,
            blocks: 0,
            long: false,
            launch: None,
            silent: false,
            start,
        }
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        &self.mail.words()[index]
    }

    fn look(&mut self) {
        // In this order: an instance that has ended has started before.
        let ended = self.word(at::ENDED).load(Ordering::Acquire) == self.instance;
        let started = self.word(at::STARTED).load(Ordering::Acquire) == self.instance;
        self.stage = match self.stage {
            Stage::None => Stage::None,
            _ if ended => Stage::None,
            _ if started => Stage::Runs,
            other => other,
        };
    }

    /// The driver's refusal of the present launch, if it has come.
    fn refused(&mut self) -> Option<gpu::Error> {
        let answer = self.launch.take_if(|ticket| ticket.is_done())?.take()?;
        answer.err().inspect(|_| self.stage = Stage::None)
    }

    /// The instance that runs; has one launched, when none does, and waits a while for it to begin. `None`: it has not
    /// begun, or does not answer. Error: the driver refused the launch.
    pub fn running(
        &mut self,
        launch: impl FnOnce(u32, u32, u32) -> Ticket<Result<(), gpu::Error>>,
    ) -> Result<Option<u32>, gpu::Error> {
        if self.silent {
            return Ok(None);
        }
        self.look();
        match self.stage {
            Stage::Runs => return Ok(Some(self.instance)),
            Stage::Launched { late: true } => return self.refused().map_or(Ok(None), Err),
            Stage::Launched { late: false } => {}
            Stage::None => {
                self.instance = self.instance.wrapping_add(1).max(1);
                self.blocks = if std::mem::take(&mut self.long) { BLOCKS } else { 1 };
                self.launch = Some(launch(self.done, self.instance, self.blocks));
                self.stage = Stage::Launched { late: false };
            }
        }
        let since = Instant::now();
        loop {
            self.look();
            match self.stage {
                Stage::Runs => return Ok(Some(self.instance)),
                // Begun and ended in between: one that is taken from its core for so long need not hurry.
                Stage::None => return Ok(None),
                Stage::Launched { .. } if since.elapsed() >= self.start => break,
                Stage::Launched { .. } => std::hint::spin_loop(),
            }
            if let Some(error) = self.refused() {
                return Err(error);
            }
        }
        self.stage = Stage::Launched { late: true };
        Ok(None)
    }

    /// A long copy is to come, now and again: the next launch is one of several blocks.
    pub fn expect_long(&mut self) {
        self.long = true;
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
                self.stage = Stage::None;
                return Outcome::NotTaken;
            }
            looks += 1;
            if looks.is_multiple_of(1024) && since.elapsed() >= ANSWER {
                // One that goes on after all, as behind a debugger, is not to find it.
                self.leave(self.done, 0);
                self.silent = true;
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
        let command = Command::CompareSwap { at: 7, compare: 0x8_0000_0009, swap: 0xa_0000_000b };
        assert_eq!(command.words(), [1, 7, 0, 0, 0, 0, 9, 8, 0xb, 0xa]);
        for (place, load) in
            [(0, "%op, [order]"), (4, "%x0, [order+4]"), (20, "%x0, [order+20]"), (24, "%x0, [order+24]")]
        {
            assert!(text.contains(&format!("ld.shared.u32 {load};")), "{place}");
        }
    }
}
