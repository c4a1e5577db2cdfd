//! Bytes of a request and of an answer. Both begin with a header, which is followed by a table of tensors, by
//! the tensors, and by the tail flag. All numbers are little-endian, as a GPU and an x86 have them.
//!
//! # How the receiver learns that a message is whole
//!
//! Within one RDMA WRITE, bytes may arrive in any order. There are four ways, and both sides agree on one:
//!
//! - **Flag**, the usual one: the message is one WRITE, and [`flag`] of its sequence is a second WRITE of 8
//!   bytes behind it, into an array with a flag for each slot. A responder executes the requests of a queue
//!   pair in their order. The InfiniBand specification promises the order of bytes in memory only for what a
//!   completion or an atomic operation behind them tells of. NICs keep it for a second WRITE as well, if the
//!   region forbids relaxed ordering and if message and flag lie in the same memory: both the host's, or both
//!   one GPU's, whose threads must see the NIC's writes in order.
//! - **Tail flag**, as in the EdgeSys 2024 paper: the flag is the last 8 bytes of the message's own WRITE. It
//!   needs a NIC that writes a message in the order of its addresses, on top of what a flag needs. No
//!   specification promises that.
//! - **Completion**: the message is a WRITE with immediate data. The receiver polls the completion, whose
//!   immediate data are the slot's number.
//! - **Send**: the message is a SEND, and takes the receiver's oldest receive. The server posts one for the
//!   request of each slot, and a slot's next one before it answers there. So receives lie in the order of the
//!   answers. The client uses its slots in that order, and knows in which one a request will lie. An answer
//!   lies where the client has a receive, and its header names the slot. It needs a reliable connection: a
//!   lost SEND takes no receive.

/// How a receiver learns that a message is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// A second WRITE, of the flag.
    Flag,
    /// The last bytes of the message.
    Tail,
    /// A receive completion: WRITE with the slot's number as immediate data, most significant byte first.
    Completion,
    /// The receive completion of a SEND.
    Send,
}

impl Arrival {
    /// Whether a message takes a receive.
    pub const fn has_receives(self) -> bool {
        matches!(self, Arrival::Completion | Arrival::Send)
    }
}

/// A table of little-endian numbers with the offset of each: the structure, how it is read and written, and
/// the table.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident($bytes:literal) {
        $($(#[$field_doc:meta])* $field:ident: $number:ty = $at:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name { $($(#[$field_doc])* pub $field: $number,)* }

        impl $name {
            pub const BYTES: usize = $bytes;
            /// Name, offset and bytes of each field.
            pub const FIELDS: &[(&str, usize, usize)] =
                &[$((stringify!($field), $at, size_of::<$number>()),)*];

            /// Reads the first bytes of a slice. `None`: there are fewer than [`Self::BYTES`].
            pub fn read(bytes: &[u8]) -> Option<Self> {
                let bytes: &[u8; $bytes] = bytes.first_chunk()?;
                Some(Self { $($field: <$number>::from_le_bytes(*bytes[$at..].first_chunk()?),)* })
            }

            /// The bytes; those without a field are 0.
            pub fn bytes(&self) -> [u8; $bytes] {
                let mut bytes = [0; $bytes];
                $(bytes[$at..$at + size_of::<$number>()].copy_from_slice(&self.$field.to_le_bytes());)*
                bytes
            }
        }
    };
}

record! {
    /// What a request or an answer begins with.
    Header(64) {
        /// [`MAGIC`].
        magic: u32 = 0,
        /// [`VERSION`].
        version: u16 = 4,
        /// 0 in a request; in an answer a [`Status`].
        status: u16 = 6,
        /// The client's number of the request; an answer has that of its request.
        request_id: u64 = 8,
        model_id: u32 = 16,
        /// Number of the request among those of its slot, from 1; 0 follows no number.
        sequence: u32 = 20,
        /// Comes back with the answer as it was.
        cookie: u64 = 24,
        /// When the request was written, by the client's clock, in ns.
        sent_ns: u64 = 32,
        /// When the server began to compute, and when it had ended, by its clock, in ns; 0 in a request.
        begun_ns: u64 = 40,
        ended_ns: u64 = 48,
        /// Entries of the table.
        tensors: u16 = 56,
        /// In an answer: requests that the client may have outstanding from now on.
        credits: u16 = 58,
        slot: u32 = 60,
    }
}

record! {
    /// An entry of the table behind the header.
    Entry(16) {
        /// From the begin of the message, in bytes.
        offset: u32 = 0,
        /// In bytes.
        length: u32 = 4,
        /// A [`TensorKind`].
        kind: u32 = 8,
    }
}

/// "SLOT".
pub const MAGIC: u32 = u32::from_le_bytes(*b"SLOT");
/// Of this layout.
pub const VERSION: u16 = 1;
/// Tensors of a message at most.
pub const MOST_TENSORS: usize = 8;
/// The header with its table.
pub const PREFIX_BYTES: usize = Header::BYTES + MOST_TENSORS * Entry::BYTES;
/// Each tensor and each message begins at a multiple of so many bytes: a cache line.
pub const ALIGNMENT: usize = 64;
/// A flag, at a multiple of as many: it is written and read whole.
pub const FLAG_BYTES: usize = 8;
const MARK: u32 = 0x5f1a_9b1e;

/// The flag of a message. Neither half alone is it, and 0 is none.
pub const fn flag(sequence: u32) -> u64 {
    (sequence as u64) << 32 | (sequence ^ MARK) as u64
}

/// Stop flag of the host's own slot, which no client has: that of sequence 0, which no request has.
pub const STOP: u64 = flag(0);

/// The sequence of the next request in a slot.
pub const fn next(sequence: u32) -> u32 {
    match sequence.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

/// Numbers of one kind, as the header and the table have them, with their names in C.
macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident: $number:ty { $($(#[$one_doc:meta])* $one:ident = $value:literal $c:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$one_doc])* $one,)* }

        impl $name {
            pub const ALL: &[($name, &str)] = &[$(($name::$one, $c),)*];

            pub const fn number(self) -> $number {
                match self { $($name::$one => $value,)* }
            }

            /// `None`: no such number is known.
            pub const fn of(number: $number) -> Option<$name> {
                match number { $($value => Some($name::$one),)* _ => None }
            }
        }
    };
}

numbers! {
    /// How a request ended.
    Status: u16 {
        Ok = 1 "OK",
        /// Magic or version are not ours, or a request has a status.
        BadHeader = 2 "BAD_HEADER",
        /// The slot serves another model.
        BadModel = 3 "BAD_MODEL",
        /// The table is not that of the model.
        BadTensors = 4 "BAD_TENSORS",
        /// The sequence is not the next one of the slot, or the slot's number is another one.
        BadSequence = 5 "BAD_SEQUENCE",
        /// A request of the same client with this number is outstanding.
        DuplicateId = 6 "DUPLICATE_ID",
        ModelFailed = 7 "MODEL_FAILED",
        /// The server ends: the request was not computed.
        Stopping = 8 "STOPPING",
        /// The client has more requests outstanding than its credits allow.
        NoCredit = 9 "NO_CREDIT",
    }
}

numbers! {
    /// What a tensor's elements are.
    TensorKind: u32 {
        F32 = 1 "F32",
        F16 = 2 "F16",
        U8 = 3 "U8",
        I32 = 4 "I32",
        I64 = 5 "I64",
    }
}

impl TensorKind {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            TensorKind::U8 => 1,
            TensorKind::F16 => 2,
            TensorKind::F32 | TensorKind::I32 => 4,
            TensorKind::I64 => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_behind_one_another_at_multiples_of_their_size() {
        for (fields, whole) in [(Header::FIELDS, Header::BYTES), (Entry::FIELDS, Entry::BYTES)] {
            let mut end = 0;
            for &(name, at, bytes) in fields {
                assert!(at >= end && at % bytes == 0, "{name} at {at}");
                end = at + bytes;
            }
            assert!(end <= whole);
        }
        assert_eq!((PREFIX_BYTES % ALIGNMENT, ALIGNMENT % FLAG_BYTES), (0, 0));
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header =
            Header { magic: MAGIC, request_id: 0x0102, slot: 7, ended_ns: u64::MAX, ..Header::default() };
        let bytes = header.bytes();
        assert_eq!((&bytes[..5], bytes[8..10].to_vec()), (&b"SLOT\0"[..], vec![2, 1]));
        assert_eq!((Header::read(&bytes), Header::read(&bytes[1..])), (Some(header), None));
    }

    #[test]
    fn a_sequence_is_never_0_and_its_flag_is_its_own() {
        assert_eq!([next(0), next(1), next(u32::MAX)], [1, 2, 1]);
        assert!((1..1000).all(|one| flag(one) != flag(next(one)) && ![0, STOP].contains(&flag(one))));
        assert_eq!(flag(0x1234_5678) >> 32, 0x1234_5678);
    }

    #[test]
    fn a_number_is_read_as_it_was_written() {
        assert!(Status::ALL.iter().all(|(one, _)| Status::of(one.number()) == Some(*one)));
        assert!(TensorKind::ALL.iter().all(|(one, _)| TensorKind::of(one.number()) == Some(*one)));
        assert_eq!((Status::of(0), Status::of(99), TensorKind::of(0)), (None, None, None));
    }
}
