//! What is recorded, as it happens: entries in a buffer, which goes to the file when it is full.
//!
//! The thread that holds the NIC's lock writes, so plain loads and stores are enough; they are atomics
//! because several parts of the device hold the recorder. Most answers are as guessed from the ones before,
//! and only counted. What the device asks and does has a digest.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mlx5_device::carrier::Addressing;
use mlx5_device::memory::Fault;
use roce::{Now, Packet};
use serde::Serialize;

use super::entry::{Digest, History, MOST_BYTES, MOST_VALUES, Place, Question, Tag, WQE_WORDS};
use super::format::{self, BLOCK_WORDS};
use super::message;
use crate::link::record::REQUEST_WORDS;
use crate::os::{locked, log, system};

/// What is in the buffer reaches the file after so long, ns: a program may be killed.
const FLUSH_NS: u64 = 200_000_000;

/// How long a process waits for another one that looks at the file that was asked for.
const CLAIM_WAIT: Duration = Duration::from_secs(1);

/// Most files with one process number behind their name.
const MAX_FILES: u32 = 100;

/// Most answers as guessed that one entry counts.
const MAX_GUESSED: u32 = 0xff;

/// The recording of one process.
pub struct Recorder {
    words: Box<[AtomicU64]>,
    /// Words that are in the buffer.
    used: AtomicUsize,
    /// Answers as guessed since the last entry.
    guessed: AtomicU32,
    digest: AtomicU64,
    /// Time of the last round or stamp.
    now: AtomicU64,
    flushed: AtomicU64,
    on: AtomicBool,
    history: History,
    output: Mutex<Output>,
}

#[derive(Debug)]
struct Output {
    file: PathBuf,
    len: u64,
    bytes: Vec<u8>,
}

impl Output {
    /// Opens the file each time: the program may close descriptors not its own, and reuse their numbers.
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

/// The file of this process: the one that was asked for, or, if another process has that, a new one with the
/// process number behind its name. The launcher has made the first, empty.
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
            guessed: AtomicU32::new(0),
            digest: AtomicU64::new(Digest::default().0),
            now: AtomicU64::new(now.0),
            flushed: AtomicU64::new(now.0),
            on: AtomicBool::new(true),
            history: History::default(),
            output: Mutex::new(output),
        })
    }

    /// Nothing follows.
    pub fn end(&self) {
        let digest = self.digest.load(Relaxed);
        self.put(Tag::End, &[digest]);
        self.write_out();
        self.on.store(false, Relaxed);
    }

    /// Something that the device asked or did.
    #[inline(always)]
    pub fn note(&self, tag: Tag, asked: &impl Question) {
        let mut digest = Digest(self.digest.load(Relaxed));
        digest.note(tag, asked);
        self.digest.store(digest.0, Relaxed);
    }

    /// The values of the answer to it: an entry, unless they are as guessed.
    #[inline(always)]
    pub fn values(&self, tag: Tag, place: Place, values: &mut [u64]) {
        if self.history.is_as_guessed(place, values) {
            self.guessed();
        } else {
            self.put(tag, values);
        }
    }

    /// There is no answer, and why.
    pub fn failed(&self, failure: &impl Serialize) {
        self.bytes(Tag::Failed, &encoded(failure));
    }

    /// What comes seldom or unasked: an entry in any case.
    #[inline(always)]
    pub fn entry<const N: usize>(&self, tag: Tag, mut values: [u64; N]) {
        const { assert!(N <= MOST_VALUES) };
        if self.history.is_as_guessed(Place::of(tag), &mut values) {
            values = [0; N];
        }
        self.put(tag, &values);
    }

    #[inline(always)]
    pub fn guessed(&self) {
        let guessed = self.guessed.load(Relaxed) + 1;
        self.guessed.store(guessed, Relaxed);
        if guessed == MAX_GUESSED {
            self.put(Tag::Guessed, &[]);
        }
    }

    /// An entry of values, by their differences from the guesses.
    #[inline(never)]
    fn put(&self, tag: Tag, differences: &[u64]) {
        let mut missed = 0_u64;
        for (at, difference) in differences.iter().enumerate() {
            missed |= u64::from(*difference != 0) << at;
        }
        self.push(self.head(tag) | (differences.len() as u64) << 16 | missed << 24);
        let wrong = differences.iter().filter(|difference| **difference != 0);
        wrong.for_each(|difference| self.push(*difference));
    }

    /// An entry of bytes. Where it cannot have so many, the recording ends.
    pub fn bytes(&self, tag: Tag, bytes: &[u8]) {
        if bytes.len() > MOST_BYTES {
            self.stop();
            let (name, len) = (tag.name(), bytes.len());
            let why = format!("{name} has {len} bytes, at most {MOST_BYTES} can be recorded");
            return self.end_early(&locked(&self.output), &why);
        }
        self.push(self.head(tag) | (bytes.len() as u64) << 32);
        for piece in bytes.chunks(8) {
            self.push(piece.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    /// Kind, and the answers as guessed before it.
    #[inline]
    fn head(&self, tag: Tag) -> u64 {
        let guessed = self.guessed.load(Relaxed);
        self.guessed.store(0, Relaxed);
        tag as u64 | u64::from(guessed) << 8
    }

    #[inline]
    fn push(&self, word: u64) {
        let used = self.used.load(Relaxed);
        self.words[used].store(word, Relaxed);
        self.used.store(used + 1, Relaxed);
        if used + 1 == self.words.len() {
            self.write_out();
        }
    }

    /// A time that the device was told.
    #[inline]
    pub fn time(&self, tag: Tag, now: Now) {
        let last = self.now.load(Relaxed);
        let passed = now.0.wrapping_sub(last);
        if passed > u32::MAX.into() {
            self.entry(Tag::Clock, [now.0]);
        }
        self.now.store(now.0, Relaxed);
        let passed = u32::try_from(passed).unwrap_or(0);
        let short = Digest(self.digest.load(Relaxed)).short();
        self.push(self.head(tag) | u64::from(short) << 16 | u64::from(passed) << 32);
        if now.0.saturating_sub(self.flushed.load(Relaxed)) >= FLUSH_NS {
            self.flushed.store(now.0, Relaxed);
            self.write_out();
        }
    }

    pub fn command<A: Serialize>(&self, number: u64, asked: &impl Serialize, run: impl FnOnce() -> A) -> A {
        self.time(Tag::Command, Now(self.now.load(Relaxed)));
        self.bytes(Tag::Arguments, &encoded(&(number, asked)));
        let answer = self.guarded(run);
        self.note(Tag::Command, &&*encoded(&answer));
        answer
    }

    /// Runs the device. On a panic all entries reach the file at once: it is unknown if anything runs later.
    #[inline]
    pub fn guarded<T>(&self, run: impl FnOnce() -> T) -> T {
        let guard = OnPanic(self);
        let result = run();
        std::mem::forget(guard);
        result
    }

    /// A packet that arrived, before the device has it; of one of shared memory the header of its record.
    pub fn packet(&self, packet: &Packet, words: &[u64; REQUEST_WORDS], addressing: &Addressing) {
        match (addressing.addresses, &addressing.path) {
            (Some((from, at)), _) => self.entry(Tag::Packet, message::of_packet(packet, from, at)),
            (None, None) => {
                self.entry(Tag::Record, message::of_record(words, packet.content.is_request()));
            }
            (None, Some(path)) => self.entry(Tag::Datagram, message::of_datagram(words, path)),
        }
    }

    #[inline]
    pub fn read(&self, addr: u64, bytes: &[u8], read: Result<(), Fault>) {
        let tag = Tag::of_read(bytes.len());
        self.note(tag, &(addr, bytes.len()));
        if tag == Tag::ReadLong || read.is_err() {
            return self.copy(tag, bytes, read);
        }
        let mut words = [0; WQE_WORDS];
        let words = &mut words[..bytes.len() / 8];
        message::read_words(bytes, words);
        self.values(tag, Place::of(tag), words);
    }

    /// Bytes that the memory, or a message, gave.
    pub fn copy(&self, tag: Tag, bytes: &[u8], copied: Result<(), Fault>) {
        match copied {
            Ok(()) => self.bytes(tag, bytes),
            Err(fault) => self.failed(&fault),
        }
    }

    /// Writes all out, also the answers behind the last entry: a replay gets to where the device stopped.
    fn stop(&self) {
        if self.guessed.load(Relaxed) > 0 {
            self.put(Tag::Guessed, &[]);
        }
        self.write_out();
    }

    /// Brings all entries to the file. The recording ends when that cannot be; the program goes on.
    #[cold]
    fn write_out(&self) {
        let used = self.used.swap(0, Relaxed);
        if used == 0 || !self.on.load(Relaxed) {
            return;
        }
        let mut output = locked(&self.output);
        format::block(self.words[..used].iter().map(|word| word.load(Relaxed)), &mut output.bytes);
        if let Err(error) = output.append() {
            self.end_early(&output, &format!("{error}, give a file with room to grow"));
        }
    }

    /// Ends the recording with a line, once; the program goes on.
    fn end_early(&self, output: &Output, why: &str) {
        if self.on.swap(false, Relaxed) {
            let (file, len) = (output.file.display(), output.len);
            log(&format!("recording {file}: {why}; it ends after {len} bytes and the program goes on"));
        }
    }
}

fn encoded(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("memory for a few numbers and a sentence")
}

/// A device may be dropped without its end.
impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
    }
}

struct OnPanic<'a>(&'a Recorder);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
