//! Entries of a recording: kinds, how an answer is guessed from those before it, the digest of what is asked.
//!
//! An entry is whole words of 64 bits. The first has, from its low bits on:
//!
//! | bits | an entry of values | of bytes | of a time |
//! |---|---|---|---|
//! | 8 | kind, [`Tag`] | the same | the same |
//! | 8 | answers since the entry before it that were as guessed | the same | the same |
//! | 48 | 8: count; 16: bits of those wrong | 16: 0; 32: count | 16: digest's; 32: ns since the last time |
//!
//! An entry has at most [`MOST_VALUES`] values or [`MOST_BYTES`] bytes. A value is wrong if it was not as
//! guessed. Then come, for each wrong value, the difference from the guess; and the bytes, padded with zeros.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub const MOST_VALUES: usize = 16;

/// Most bytes of an entry of bytes.
pub const MOST_BYTES: usize = (1 << 24) - 1;

/// Words of the longest WQE that is read at once.
pub const WQE_WORDS: usize = 8;

/// Kinds of entries, at most.
const KINDS: usize = 64;

/// Addresses whose last loads are remembered.
const LOADS: usize = 64;

const PLACES: usize = MOST_VALUES * KINDS + LOADS;

/// How an entry goes on after its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Values,
    Bytes,
    Time,
}

/// Declares [`Tag`] with the names that differences are told by.
macro_rules! tags {
    ($($tag:ident = $number:literal, $form:ident, $name:literal;)*) => {
        /// Kind of an entry, and of a question.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Tag { $($tag = $number),* }

        $(const _: () = assert!($number < KINDS);)*

        impl Tag {
            pub fn of(number: u8) -> Option<Tag> {
                match number {
                    $($number => Some(Tag::$tag),)*
                    _ => None,
                }
            }

            pub fn name(self) -> &'static str {
                match self { $(Tag::$tag => $name),* }
            }

            pub fn form(self) -> Form {
                match self { $(Tag::$tag => Form::$form),* }
            }
        }
    };
}

tags! {
    Read = 1, Values, "a read of memory";
    ReadLong = 2, Bytes, "a long read of memory";
    Load = 3, Values, "a load of 32 bits";
    Store = 4, Values, "a store of 32 bits";
    Write = 5, Values, "a write to memory";
    Swap32 = 6, Values, "a compare and swap of 32 bits";
    Swap64 = 7, Values, "a compare and swap of 64 bits";
    Add64 = 8, Values, "a fetch and add";
    Probe = 9, Values, "the question whether memory is mapped";
    Lagged = 10, Values, "the question whether a copy took long";
    TakeRegister = 11, Values, "a register to take";
    AnyRegister = 12, Values, "the question whether a register was written";
    Rings = 13, Values, "the end of what shared memory brought";
    Wire = 14, Values, "the end of what the wire brought";
    Record = 15, Values, "a packet of shared memory that arrived";
    Datagram = 16, Values, "a datagram that arrived";
    Packet = 18, Values, "a packet that arrived";
    CopyInto = 19, Values, "a copy of payload to memory";
    CopyToBuffer = 20, Bytes, "a copy of payload to a CQE";
    RepliesWait = 21, Values, "the question whether replies wait";
    SendRecord = 23, Values, "a packet to send through shared memory";
    ReplyRoom = 25, Values, "the question for room of a reply";
    Consumed = 26, Values, "the question whether a request was taken";
    WireRoom = 27, Values, "the question for room of a packet";
    SendPacket = 28, Values, "a packet to send";
    ReadPayload = 29, Values, "the payload of a packet that is sent later";
    PacketsWait = 30, Values, "the question whether packets wait";
    Slot = 32, Values, "the slot";
    HasWire = 33, Values, "the question for a wire";
    Bells = 44, Values, "the bells";
    Delay = 45, Values, "a delay";
    Completion = 34, Values, "a completion event";
    Asynchronous = 35, Values, "an asynchronous event";
    Withdraw = 36, Values, "a withdrawal of events";
    Failed = 38, Bytes, "a failure";
    Clock = 39, Values, "a time";
    Guessed = 40, Values, "answers as guessed";
    Arguments = 41, Bytes, "the arguments of a command";
    End = 42, Values, "the end";
    // What the device does without an answer: in the digest alone.
    Disposition = 43, Values, "the end of a message";
    Command = 48, Time, "a command";
    Round = 49, Time, "a round";
    LastRound = 50, Time, "a last round";
    Stamp = 51, Time, "a stamp of time";
}

impl Tag {
    /// Of the lengths of WQEs, reads have entries of values.
    #[inline(always)]
    pub fn of_read(len: usize) -> Tag {
        if matches!(len, 16 | 32 | 64) { Tag::Read } else { Tag::ReadLong }
    }
}

/// Guessed next value of each place of each kind, and its last step: WQEs, PSNs and positions repeat one.
pub struct History([(AtomicU64, AtomicU64); PLACES]);

/// Where the values of an answer are remembered, and whether their steps are.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    first: usize,
    steps: bool,
}

impl Place {
    #[inline(always)]
    pub fn of(tag: Tag) -> Place {
        use Tag::{Datagram, Packet, Read, Record, SendRecord, TakeRegister};
        let steps = matches!(tag, Read | TakeRegister | Record | Datagram | Packet | SendRecord);
        Place { first: MOST_VALUES * tag as usize, steps }
    }

    /// Doorbell records are loaded again and again.
    #[inline(always)]
    pub fn of_load(addr: u64) -> Place {
        let place = (addr >> 2 ^ addr >> 8 ^ addr >> 14) as usize % LOADS;
        Place { first: MOST_VALUES * KINDS + place, steps: false }
    }
}

impl Default for History {
    fn default() -> History {
        History(std::array::from_fn(|_| (AtomicU64::new(0), AtomicU64::new(0))))
    }
}

impl History {
    /// Whether all values are as guessed; where not, they become their differences from the guesses.
    #[inline(always)]
    pub fn is_as_guessed(&self, place: Place, values: &mut [u64]) -> bool {
        let places = &self.0[place.first..][..values.len()];
        let differs =
            |any, ((guess, _), value): (&(AtomicU64, AtomicU64), &u64)| any | guess.load(Relaxed) ^ value;
        if places.iter().zip(&*values).fold(0, differs) == 0 {
            if place.steps {
                for (guess, step) in places {
                    guess.store(guess.load(Relaxed).wrapping_add(step.load(Relaxed)), Relaxed);
                }
            }
            return true;
        }
        for (value, at) in values.iter_mut().zip(places) {
            *value = value.wrapping_sub(at.0.load(Relaxed));
            learn(place, at, *value);
        }
        false
    }

    /// Makes of differences from the guesses the values.
    pub fn apply(&self, place: Place, differences: &mut [u64]) {
        for (value, at) in differences.iter_mut().zip(&self.0[place.first..]) {
            let difference = *value;
            *value = at.0.load(Relaxed).wrapping_add(difference);
            learn(place, at, difference);
        }
    }
}

/// A value was so far from its guess. The next is as far from it as it was from the one before, or the same.
fn learn(place: Place, (guess, step): &(AtomicU64, AtomicU64), difference: u64) {
    let by = if place.steps { step.load(Relaxed).wrapping_add(difference) } else { 0 };
    guess.store(guess.load(Relaxed).wrapping_add(difference).wrapping_add(by), Relaxed);
    step.store(by, Relaxed);
}

/// Something that the device asks or does, as the digest has it.
pub trait Question: Hash + Debug {}

impl<T: Hash + Debug> Question for T {}

/// Of all that the device asked and did, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest(pub u64);

impl Digest {
    #[inline(always)]
    pub fn note(&mut self, tag: Tag, asked: &impl Question) {
        self.0 = (self.0 ^ tag as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        asked.hash(self);
    }

    /// What an entry of a time has of it.
    #[inline(always)]
    pub fn short(self) -> u16 {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
    }
}

macro_rules! hashed {
    ($($name:ident: $type:ty),*) => { $(
        #[inline(always)]
        fn $name(&mut self, value: $type) {
            self.write_u64(value as u64);
        }
    )* };
}

/// Same on every machine for one source. Two steps a word, spread by one multiplication in [`Digest::note`].
impl Hasher for Digest {
    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        self.0 = self.0.rotate_left(23) ^ word;
    }

    hashed! { write_u8: u8, write_u16: u16, write_u32: u32, write_usize: usize, write_isize: isize }

    #[inline(always)]
    fn write(&mut self, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks();
        whole.iter().for_each(|eight| self.write_u64(u64::from_le_bytes(*eight)));
        if !rest.is_empty() {
            self.write_u64(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
