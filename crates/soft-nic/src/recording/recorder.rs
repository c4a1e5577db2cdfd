//! What is recorded, as it happens: words in a buffer, which goes to the file when it is full.
//!
//! The thread that holds the NIC's lock writes, so that plain loads and stores are enough; they are atomics because several parts of the device
//! hold the recorder. Most answers are the usual one (nothing was rung, no message came, the record is as it was): these are counted.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mlx5_device::memory::Fault;
use roce::Now;

use super::format::{self, BLOCK_WORDS};
use super::tag::Tag;
use super::values::{Put, Sink};
use crate::os::{log, system};

/// Most words of an entry: a longer one ends the recording.
const ENTRY_WORDS: usize = 8 * 1024;

/// What is in the buffer reaches the file after so long, ns: a program may be killed.
const FLUSH_NS: u64 = 200_000_000;

/// How long a process waits for another one that looks at the file that was asked for.
const CLAIM_WAIT: Duration = Duration::from_secs(1);

/// Most files with one process number behind their name.
const MAX_FILES: u32 = 100;

/// The first word of an entry. Below [`Tag::FIRST_VALUE`] the number is that of the words that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub tag: u8,
    /// Usual answers before this entry, and a sum of what was asked.
    pub usual: Usual,
    pub number: u32,
}

impl Head {
    pub fn word(self) -> u64 {
        let usual = u64::from(self.usual.count) << 8 | u64::from(self.usual.sum) << 20;
        u64::from(self.tag) | usual | u64::from(self.number) << 32
    }

    pub fn of(word: u64) -> Head {
        let usual = Usual { count: (word >> 8) as u16 & Usual::MOST, sum: (word >> 20) as u16 & 0xfff };
        Head { tag: word as u8, usual, number: (word >> 32) as u32 }
    }
}

/// Usual answers in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usual {
    pub count: u16,
    /// 12 bits.
    pub sum: u16,
}

impl Usual {
    pub const MOST: u16 = 0xfff;

    pub fn and(self, tag: Tag) -> Usual {
        Usual { count: self.count + 1, sum: (self.sum.wrapping_mul(33) ^ tag as u16) & 0xfff }
    }
}

/// The value that was loaded last from each of a few addresses: doorbell records are loaded again and again.
#[derive(Debug)]
pub struct Loads([(AtomicU64, AtomicU64); 64]);

impl Default for Loads {
    fn default() -> Loads {
        Loads(std::array::from_fn(|_| (AtomicU64::new(u64::MAX), AtomicU64::new(0))))
    }
}

impl Loads {
    fn place(&self, addr: u64) -> &(AtomicU64, AtomicU64) {
        &self.0[(addr >> 2 ^ addr >> 8 ^ addr >> 14) as usize % self.0.len()]
    }

    pub fn last(&self, addr: u64) -> Option<u32> {
        let (at, value) = self.place(addr);
        (at.load(Relaxed) == addr).then(|| value.load(Relaxed) as u32)
    }

    pub fn note(&self, addr: u64, value: u32) {
        let (at, last) = self.place(addr);
        at.store(addr, Relaxed);
        last.store(value.into(), Relaxed);
    }
}

/// The recording of one process.
#[derive(Debug)]
pub struct Recorder {
    words: Box<[AtomicU64]>,
    /// Words that are in the buffer.
    used: AtomicUsize,
    /// The usual answers since the last entry, as a [`Head`] has them.
    usual: AtomicU64,
    /// Time of the last round or stamp.
    now: AtomicU64,
    flushed: AtomicU64,
    on: AtomicBool,
    /// A packet's payload is being read.
    filling: AtomicBool,
    loads: Loads,
    output: Mutex<Output>,
}

#[derive(Debug)]
struct Output {
    file: PathBuf,
    len: u64,
    bytes: Vec<u8>,
}

impl Output {
    /// Opens the file each time: the program may close descriptors that are not its own, and open other files by their numbers.
    fn append(&mut self) -> io::Result<()> {
        let len = self.len + self.bytes.len() as u64;
        system::check_file_size(len)?;
        let mut file = OpenOptions::new().append(true).open(&self.file)?;
        if let Err(error) = file.write_all(&self.bytes) {
            // A part of a block is of no use.
            let _ = file.set_len(self.len);
            return Err(error);
        }
        self.len = len;
        Ok(())
    }
}

/// Locks the file. False: another process has kept the lock for as long as [`CLAIM_WAIT`].
fn lock(file: &File) -> io::Result<bool> {
    let deadline = Instant::now() + CLAIM_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Ok(false),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Writes the header into the file that was asked for, unless another process has that.
fn claim_first(file: &Path, header: &[u8]) -> io::Result<bool> {
    let file = OpenOptions::new().append(true).open(file)?;
    if !lock(&file)? {
        return Ok(false);
    }
    let is_free = file.metadata().map(|held| held.len() == 0);
    let claimed =
        is_free.and_then(|free| if free { (&file).write_all(header).map(|()| true) } else { Ok(false) });
    // The copy of the descriptor in a fork child would keep the lock.
    file.unlock()?;
    claimed
}

/// The file of this process: the one that was asked for, or, when another process has that, a new one with the process number behind
/// its name. The launcher has made the first, empty.
fn claim(file: &Path, header: &[u8]) -> io::Result<PathBuf> {
    if claim_first(file, header)? {
        return Ok(file.to_owned());
    }
    let pid = std::process::id();
    for number in 1..=MAX_FILES {
        let mut name = file.as_os_str().to_owned();
        name.push(if number == 1 { format!(".{pid}") } else { format!(".{pid}.{number}") });
        // It holds keys of regions and inline data.
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made?.write_all(header).map(|()| name.into()),
        }
    }
    Err(io::Error::other(format!("{MAX_FILES} files of process {pid} are there already; remove them")))
}

impl Recorder {
    /// Begins a recording. `settings` are those of the NIC.
    pub fn create(file: &Path, settings: &str, now: Now) -> io::Result<Recorder> {
        let header = format::header(settings, now.0);
        system::check_file_size(header.len() as u64)?;
        let output = Output { file: claim(file, &header)?, len: header.len() as u64, bytes: Vec::new() };
        Ok(Recorder {
            words: (0..BLOCK_WORDS).map(|_| AtomicU64::new(0)).collect(),
            used: AtomicUsize::new(0),
            usual: AtomicU64::new(0),
            now: AtomicU64::new(now.0),
            flushed: AtomicU64::new(now.0),
            on: AtomicBool::new(true),
            filling: AtomicBool::new(false),
            loads: Loads::default(),
            output: Mutex::new(output),
        })
    }

    /// Nothing follows.
    pub fn end(&self) {
        self.value(Tag::End, 0);
        self.flush();
        self.on.store(false, Relaxed);
    }

    /// The usual answer to this question.
    #[inline]
    pub fn usual(&self, tag: Tag) {
        let usual = Head::of(self.usual.load(Relaxed)).usual.and(tag);
        self.usual.store(Head { tag: 0, usual, number: 0 }.word(), Relaxed);
        if usual.count == Usual::MOST {
            self.value(Tag::Usual, 0);
        }
    }

    /// An entry with what was asked or said, and the answer.
    #[inline]
    pub fn entry(&self, tag: Tag, words: impl Put) {
        if !self.on.load(Relaxed) {
            return;
        }
        let used = self.used.load(Relaxed);
        if self.words.len() - used < ENTRY_WORDS {
            self.flush();
            return self.entry(tag, words);
        }
        let mut entry = Entry { words: &self.words[used..], len: 1 };
        words.put(&mut entry);
        let len = entry.len;
        if len > self.words.len() - used {
            return self.fail("an entry is too long");
        }
        self.finish(tag, (len - 1) as u32, used, len);
    }

    /// An entry without words.
    #[inline]
    pub fn value(&self, tag: Tag, number: u32) {
        if self.on.load(Relaxed) {
            let used = self.used.load(Relaxed);
            self.finish(tag, number, used, 1);
        }
    }

    #[inline]
    fn finish(&self, tag: Tag, number: u32, used: usize, len: usize) {
        let usual = Head::of(self.usual.load(Relaxed)).usual;
        self.usual.store(0, Relaxed);
        let head = Head { tag: tag as u8, usual, number };
        self.words[used].store(head.word(), Relaxed);
        self.used.store(used + len, Relaxed);
        if used + len == self.words.len() {
            self.flush();
        }
    }

    /// A time that the device was told.
    #[inline]
    pub fn time(&self, tag: Tag, now: Now) {
        let last = self.now.load(Relaxed);
        self.now.store(now.0, Relaxed);
        let passed = now.0.checked_sub(last).and_then(|ns| u32::try_from(ns).ok());
        if passed.is_none() {
            self.entry(Tag::Time, now.0);
        }
        self.value(tag, passed.unwrap_or(0));
        if now.0.saturating_sub(self.flushed.load(Relaxed)) >= FLUSH_NS {
            self.flushed.store(now.0, Relaxed);
            self.flush();
        }
    }

    pub fn fill(&self, len: Option<usize>) {
        self.filling.store(len.is_some(), Relaxed);
        if let Some(len) = len {
            self.value(Tag::Fill, len as u32);
        }
    }

    /// What was read; of a packet's payload, only from where.
    pub fn read(&self, addr: u64, bytes: &[u8], read: Result<(), Fault>) {
        if self.filling.load(Relaxed) {
            return self.entry(Tag::Payload, (addr, bytes.len(), read));
        }
        self.entry(Tag::Read, (addr, bytes.len(), read.map(|()| bytes)));
    }

    pub fn load(&self, addr: u64, loaded: Result<u32, Fault>) {
        if let Ok(value) = loaded {
            if self.loads.last(addr) == Some(value) {
                return self.usual(Tag::Load);
            }
            self.loads.note(addr, value);
        }
        self.entry(Tag::Load, (addr, loaded));
    }

    /// Brings the buffer to the file. The recording ends when that cannot be; the program goes on.
    fn flush(&self) {
        let used = self.used.swap(0, Relaxed);
        if used == 0 || !self.on.load(Relaxed) {
            return;
        }
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        format::block(self.words[..used].iter().map(|word| word.load(Relaxed)), &mut output.bytes);
        if let Err(error) = output.append() {
            drop(output);
            self.fail(&error.to_string());
        }
    }

    #[cold]
    fn fail(&self, why: &str) {
        self.on.store(false, Relaxed);
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, len) = (output.file.display(), output.len);
        log(&format!(
            "recording {file}: {why}; it ends after {len} bytes and the program goes on; give a file with room to grow"
        ));
    }
}

/// A device that panicked is dropped without its end: its recording has all until the panic, so that a replay panics too.
impl Drop for Recorder {
    fn drop(&mut self) {
        if Head::of(self.usual.load(Relaxed)).usual.count > 0 {
            self.value(Tag::Usual, 0);
        }
        self.flush();
    }
}

/// The words of an entry that is being written. What is beyond the room is only counted.
struct Entry<'a> {
    words: &'a [AtomicU64],
    len: usize,
}

impl Sink for Entry<'_> {
    #[inline]
    fn push(&mut self, word: u64) {
        if let Some(place) = self.words.get(self.len) {
            place.store(word, Relaxed);
        }
        self.len += 1;
    }
}
