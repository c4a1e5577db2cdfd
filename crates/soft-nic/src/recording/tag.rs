//! The kinds of entries of a recording.

/// Declares [`Tag`] with the names that differences are told by.
macro_rules! tags {
    ($($(#[$doc:meta])* $tag:ident = $number:literal, $name:literal;)*) => {
        /// Kind of an entry.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Tag { $($(#[$doc])* $tag = $number),* }

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
        }
    };
}

tags! {
    Read = 1, "a read of memory";
    /// Of a packet's payload: only its place.
    Payload = 2, "a read of payload";
    Load = 3, "a load of 32 bits";
    Store = 4, "a store of 32 bits";
    Write = 5, "a write to memory";
    Swap32 = 6, "a compare and swap of 32 bits";
    Swap64 = 7, "a compare and swap of 64 bits";
    Add64 = 8, "a fetch and add";
    Probe = 9, "a look whether memory is mapped";
    Lagged = 10, "the question whether a copy took long";
    TakeRegister = 11, "a register to take";
    AnyRegister = 12, "a look at registers";
    Rings = 13, "the end of what shared memory brought";
    Wire = 14, "the end of what the wire brought";
    Message = 15, "a message that arrived";
    CopyInto = 16, "a copy of payload to memory";
    CopyToBuffer = 17, "a copy of payload to a CQE";
    RepliesWait = 18, "the question whether replies wait";
    LinkEvent = 19, "an event of the link";
    SendRequest = 20, "a request to send";
    SendReply = 21, "a reply to send";
    NoReplyRoom = 22, "the question for room of a reply";
    NotConsumed = 23, "the question whether a request was taken";
    NoWireRoom = 24, "the question for room of a packet";
    SendPacket = 25, "a packet to send";
    PacketsWait = 26, "the question whether packets wait";
    Words = 27, "words about a peer";
    Slot = 28, "the slot";
    HasWire = 29, "the question for a wire";
    Completion = 30, "a completion event";
    Asynchronous = 31, "an asynchronous event";
    Withdraw = 32, "a withdrawal of events";
    Threads = 33, "a look at threads";
    Time = 34, "a time";
    Command = 35, "a command";
    Answer = 36, "the answer to a command";
    Round = 64, "a round";
    LastRound = 65, "a last round";
    Stamp = 66, "a stamp of time";
    Fill = 67, "the payload of a packet";
    Usual = 68, "usual answers";
    End = 69, "the end";
}

impl Tag {
    /// From here on an entry is its head, with a number in it; before, the number is that of its words.
    pub const FIRST_VALUE: u8 = 64;
}
