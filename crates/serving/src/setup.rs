//! What client and server exchange before the first request, as lines of a [`verbs::connect::Session`].
//!
//! 1. The client sends a [`SetupRequest`].
//! 2. The server sends a [`Reply`]: a [`Grant`], or why there is none.
//! 3. Both exchange a [`verbs::connect::Hello`] with one queue pair and the regions named at [`REGIONS`].
//! 4. After a barrier the client may write requests. The session stays until the client or the server ends.
//!
//! Granted slots lie in a row in a region of this client alone, and so do their flags. Slot `i` is at `i`
//! times [`Geometry::server_stride`], its flag at `i` times [`FLAG_BYTES`](slots::layout::FLAG_BYTES). The
//! client's own slots, for answers, have [`Geometry::client_stride`]. A server's queue pair has its own
//! protection domain: no client's key opens another's slots.

use serde::{Deserialize, Serialize};
pub use slots::Arrival;
use slots::{Geometry, Message};

/// Version of these messages; both sides must have the same.
pub const VERSION: u32 = 2;
/// Regions that each side offers, in this order: slots (the client's: where answers go), and their flags.
pub const REGIONS: usize = 2;

/// The queue pairs' service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Rc,
    /// A message may be lost; the client counts it.
    Uc,
}

/// The transports and arrivals by their names, for command lines.
pub const TRANSPORTS: [(&str, &str); 2] =
    [("rc", "Reliable connection"), ("uc", "Unreliable connection: messages may be lost")];
pub const ARRIVALS: [(&str, &str); 4] = [
    ("flag", "A second WRITE, of a flag"),
    ("tail", "The last bytes of the message"),
    ("completion", "A receive completion"),
    ("send", "The receive completion of a SEND; not on UC"),
];

/// The model, slots and transport that a client asks for: its first message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupRequest {
    /// [`VERSION`].
    pub serving: u32,
    /// The manifest's name of the model.
    pub model: String,
    /// Requests in flight at most.
    pub slots: u16,
    pub arrival: Arrival,
    pub transport: Transport,
    /// Bytes of a request and of an answer, by the client's manifest.
    pub bytes: [usize; 2],
}

/// The slots that a server gives a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The client's number.
    pub client: u32,
    pub model_id: u32,
    /// Number of the first slot; the others follow.
    pub first: u32,
    /// The sequence of each slot's last request.
    pub sequences: Vec<u32>,
    /// Requests that the client may have outstanding; one beyond them is refused.
    pub credits: u16,
}

impl Grant {
    /// Number and last sequence of each slot, as [`slots::Client::new`] takes them.
    pub fn slots(&self) -> Vec<(u32, u32)> {
        let numbers = (0u32..).map(|index| self.first.wrapping_add(index));
        numbers.zip(self.sequences.iter().copied()).collect()
    }
}

/// The server's answer to a [`SetupRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    Granted(Grant),
    /// Why there is none, for people.
    Refused(String),
}

/// What cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    #[error("version {theirs} of the set-up, this program has version {VERSION}: use the same build")]
    Version { theirs: u32 },
    #[error("a request of {} and an answer of {} bytes, the server's manifest of the model says {} and {}", theirs[0], theirs[1], ours[0], ours[1])]
    Bytes { theirs: [usize; 2], ours: [usize; 2] },
    #[error("a grant of {given} slots where {wanted} were wanted")]
    Slots { given: usize, wanted: u16 },
}

/// Bytes of request and answer.
pub fn bytes(geometry: &Geometry) -> [usize; 2] {
    [&geometry.request, &geometry.answer].map(Message::bytes)
}

impl SetupRequest {
    pub fn new(
        model: &str,
        geometry: &Geometry,
        slots: u16,
        arrival: Arrival,
        transport: Transport,
    ) -> SetupRequest {
        SetupRequest {
            serving: VERSION,
            model: model.to_owned(),
            slots,
            arrival,
            transport,
            bytes: bytes(geometry),
        }
    }

    /// Whether the server's `geometry` is the one that the client has.
    ///
    /// # Errors
    /// Another version or other sizes.
    pub fn check(&self, geometry: &Geometry) -> Result<(), SetupError> {
        if self.serving != VERSION {
            return Err(SetupError::Version { theirs: self.serving });
        }
        let ours = bytes(geometry);
        if self.bytes == ours { Ok(()) } else { Err(SetupError::Bytes { theirs: self.bytes, ours }) }
    }

    /// Whether a grant is what was wanted.
    ///
    /// # Errors
    /// Another number of slots, or numbers that do not exist.
    pub fn accepts(&self, grant: &Grant) -> Result<(), SetupError> {
        let given = grant.sequences.len();
        let fits = u32::try_from(given).ok().and_then(|given| grant.first.checked_add(given)).is_some();
        if fits && given == usize::from(self.slots) {
            Ok(())
        } else {
            Err(SetupError::Slots { given, wanted: self.slots })
        }
    }
}

#[cfg(test)]
mod tests {
    use slots::{Tensor, TensorKind};

    use super::*;

    fn geometry(count: usize) -> Geometry {
        let tensor = |count| Tensor { kind: TensorKind::F32, count };
        Geometry::new(3, &[tensor(count)], &[tensor(1)]).unwrap()
    }

    fn setup_request() -> SetupRequest {
        SetupRequest::new("small", &geometry(5), 2, Arrival::Flag, Transport::Rc)
    }

    #[test]
    fn a_wish_for_another_model_or_of_another_version_is_refused() {
        assert_eq!(setup_request().check(&geometry(5)), Ok(()));
        let error = setup_request().check(&geometry(500)).unwrap_err().to_string();
        assert!(error.contains("the server's manifest"), "{error}");
        let other = SetupRequest { serving: 9, ..setup_request() };
        assert_eq!(other.check(&geometry(5)), Err(SetupError::Version { theirs: 9 }));
    }

    #[test]
    fn a_grant_of_other_slots_than_were_wanted_is_refused() {
        let grant =
            |first, count| Grant { client: 0, model_id: 3, first, sequences: vec![7; count], credits: 1 };
        assert_eq!(setup_request().accepts(&grant(4, 2)), Ok(()));
        assert_eq!(grant(4, 2).slots(), [(4, 7), (5, 7)]);
        for wrong in [grant(4, 1), grant(4, 3), grant(u32::MAX, 2)] {
            assert!(setup_request().accepts(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn messages_are_lines_that_people_can_read() {
        let line = serde_json::to_string(&Reply::Refused("no slot is free".into())).unwrap();
        assert_eq!(line, r#"{"refused":"no slot is free"}"#);
        let line = serde_json::to_string(&setup_request()).unwrap();
        assert!(line.contains(r#""arrival":"flag","transport":"rc""#), "{line}");
    }
}
