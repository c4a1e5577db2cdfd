//! MADs between the connection managers of one fabric: datagrams between QP1s, by way of each process's mailbox.
//!
//! On a wire a MAD goes to an address, and whoever owns QP1 there hands it on. Here the sender looks into the directory: a
//! request goes to the process that listens to its service, all else to the slot in the upper bits of the communication id that
//! it names. What nobody listens to comes back to the sender's own connection manager, which refuses it, as the owner of QP1
//! would. A mailbox that is full is tried again for a while; a MAD that is lost is sent again by its connection manager.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use roce::wire::Gid;
use roce::wire::cm::attribute;
use roce::wire::mad::{MAD_BYTES, MadHeader};

use super::fabric::{Fabric, Occupant, SLOTS, ServiceError, ServiceWord};
use crate::dma::mailbox::Mailbox;
use crate::dma::system;

/// Both addresses, then the MAD.
const LETTER_BYTES: usize = 32 + MAD_BYTES;
/// MADs that wait for room in mailboxes, at most.
const MAX_WAITING: usize = 4096;
/// MADs that one look takes.
const BUDGET: usize = 256;

/// A MAD between two QP1s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Address of the sender.
    pub from: Gid,
    /// Address of the receiver.
    pub to: Gid,
    /// The datagram.
    pub mad: Box<[u8; MAD_BYTES]>,
}

/// Carries MADs, and knows who listens.
pub trait MadPort: Send {
    /// Sends; what cannot be delivered is lost.
    fn send(&mut self, letter: Letter);
    /// What has arrived.
    fn receive(&mut self) -> Vec<Letter>;
    /// Listens to a service, at one address or at all. Errors: another process does; too many.
    fn announce(&mut self, service: u64, address: Option<Gid>) -> Result<(), ServiceError>;
    /// No longer.
    fn withdraw(&mut self, service: u64, address: Option<Gid>);
    /// Whether another process listens there.
    fn is_taken(&self, service: u64, address: Option<Gid>) -> bool;
    /// Whether something waits for room: call [`MadPort::receive`] again soon.
    fn is_waiting(&self) -> bool {
        false
    }
}

/// A seat's right to a mailbox.
#[derive(Debug, Clone)]
pub struct MadSeat {
    fabric: Arc<Fabric>,
}

impl MadSeat {
    pub(super) fn new(fabric: Arc<Fabric>) -> MadSeat {
        MadSeat { fabric }
    }

    /// Our slot.
    pub fn slot(&self) -> u8 {
        self.fabric.slot()
    }

    /// Opens the mailbox. Errors: the kernel's.
    pub fn open(&self) -> io::Result<(FabricMads, MadBell)> {
        let who = self.fabric.occupant(self.slot()).ok_or(io::ErrorKind::NotConnected)?;
        let name = mailbox_name(self.slot(), &who);
        let mailbox = Arc::new(Mailbox::open(&name)?);
        let bell = MadBell { mailbox: mailbox.clone(), name };
        let mads =
            FabricMads { fabric: self.fabric.clone(), mailbox, own: Vec::new(), waiting: VecDeque::new() };
        Ok((mads, bell))
    }
}

/// Name of an occupant's mailbox: its cookie is another one in each process.
fn mailbox_name(slot: u8, who: &Occupant) -> String {
    format!("softnic-cm-{}-{slot}-{}-{:x}", system::user(), who.pid, who.cookie)
}

/// Waits for MADs, without the port's lock.
#[derive(Debug, Clone)]
pub struct MadBell {
    mailbox: Arc<Mailbox>,
    name: String,
}

impl MadBell {
    /// Waits until something comes, somebody rings, or the time is over.
    pub fn wait(&self, max: Duration) {
        self.mailbox.wait(max);
    }

    /// Ends a wait.
    pub fn ring(&self) {
        // A full mailbox is bell enough.
        let _ = self.mailbox.post(&self.name, &[], &[]);
    }
}

/// The mailboxes of a fabric.
#[derive(Debug)]
pub struct FabricMads {
    fabric: Arc<Fabric>,
    mailbox: Arc<Mailbox>,
    /// What nobody listens to, and is ours to refuse.
    own: Vec<Letter>,
    waiting: VecDeque<(String, Letter)>,
}

/// Where a MAD goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Address {
    /// To who listens to this service.
    Service(u64),
    /// To who gave this communication id.
    Id(u32),
    /// To everybody: it names no id that its receiver would know it by.
    All,
}

fn address(mad: &[u8; MAD_BYTES]) -> Option<Address> {
    let header = MadHeader::parse(mad).ok()?;
    let word = |at: usize| mad[MadHeader::BYTES + at..][..4].try_into().map(u32::from_be_bytes).unwrap_or(0);
    Some(match header.attribute {
        attribute::REQ | attribute::SIDR_REQ => {
            Address::Service(u64::from(word(8)) << 32 | u64::from(word(12)))
        }
        attribute::SIDR_REP => Address::Id(word(0)),
        _ => match word(4) {
            0 => Address::All,
            id => Address::Id(id),
        },
    })
}

impl FabricMads {
    fn post(&mut self, slot: u8, letter: Letter) {
        if !self.fabric.is_ours() {
            return;
        }
        if let Some(who) = self.fabric.occupant(slot) {
            let name = mailbox_name(slot, &who);
            self.deliver(name, letter);
        }
    }

    fn deliver(&mut self, name: String, letter: Letter) {
        let mut head = [0; 32];
        head[..16].copy_from_slice(&letter.from.0);
        head[16..].copy_from_slice(&letter.to.0);
        let full = self
            .mailbox
            .post(&name, &head, &*letter.mad)
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if full && self.waiting.len() < MAX_WAITING {
            self.waiting.push_back((name, letter));
        }
    }
}

impl MadPort for FabricMads {
    fn send(&mut self, letter: Letter) {
        match address(&letter.mad) {
            Some(Address::Service(service)) => {
                let word = ServiceWord::new(service, Some(letter.to.0));
                match word.and_then(|word| self.fabric.who_serves(word)) {
                    Some(slot) => self.post(slot, letter),
                    None => self.own.push(letter),
                }
            }
            Some(Address::Id(id)) => self.post(roce::cm::slot_of(id), letter),
            Some(Address::All) => {
                for slot in 0..SLOTS as u8 {
                    self.post(slot, letter.clone());
                }
            }
            None => {}
        }
    }

    fn receive(&mut self) -> Vec<Letter> {
        for (name, letter) in std::mem::take(&mut self.waiting) {
            self.deliver(name, letter);
        }
        let mut letters = std::mem::take(&mut self.own);
        let mut take = |bytes: &[u8]| {
            // A bell is empty; anything else of another length is nobody's.
            if let Ok(bytes) = <[u8; LETTER_BYTES]>::try_from(bytes) {
                let (mut from, mut to, mut mad) = (Gid::default(), Gid::default(), Box::new([0; MAD_BYTES]));
                from.0.copy_from_slice(&bytes[..16]);
                to.0.copy_from_slice(&bytes[16..32]);
                mad.copy_from_slice(&bytes[32..]);
                letters.push(Letter { from, to, mad });
            }
        };
        // An error is nothing received; the next look finds what there is.
        let _ = self.mailbox.collect(BUDGET, &mut take);
        letters
    }

    fn announce(&mut self, service: u64, address: Option<Gid>) -> Result<(), ServiceError> {
        ServiceWord::new(service, address.map(|gid| gid.0)).map_or(Ok(()), |word| self.fabric.announce(word))
    }

    fn withdraw(&mut self, service: u64, address: Option<Gid>) {
        if let Some(word) = ServiceWord::new(service, address.map(|gid| gid.0)) {
            self.fabric.withdraw(word);
        }
    }

    fn is_taken(&self, service: u64, address: Option<Gid>) -> bool {
        let word = ServiceWord::new(service, address.map(|gid| gid.0));
        word.is_some_and(|word| self.fabric.who_clashes(word).is_some())
    }

    fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.own.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use roce::wire::cm::{CmMad, Ids, Message, Req};

    use super::*;

    fn letter(message: Message) -> Letter {
        let mad = CmMad { transaction: 1, message, private: &[] }.encode().unwrap();
        Letter { from: Gid([1; 16]), to: Gid([2; 16]), mad: Box::new(mad) }
    }

    #[test]
    fn requests_go_to_who_listens_answers_to_who_asked_and_the_rest_comes_back() {
        let name = format!("mads-{}", std::process::id());
        let seats: Vec<MadSeat> =
            (0..2).map(|_| MadSeat::new(Arc::new(Fabric::join(&name).unwrap()))).collect();
        let [(mut a, _), (mut b, bell)] = [seats[0].open().unwrap(), seats[1].open().unwrap()];
        b.announce(0x106_1c06, None).unwrap();
        let ask = |service| letter(Message::Req(Req { service, local_id: 5, ..Req::default() }));
        a.send(ask(0x106_1c06));
        a.send(ask(0x106_1c07));
        assert_eq!(b.receive(), [ask(0x106_1c06)]);
        assert_eq!(a.receive(), [ask(0x106_1c07)], "nobody listens: ours to refuse");
        let id = u32::from(seats[0].slot()) << 25 | 77;
        let answer = letter(Message::Rtu(Ids { local: 9, remote: id }));
        b.send(answer.clone());
        assert_eq!((a.receive(), b.receive()), (vec![answer], vec![]));
        bell.ring();
        bell.wait(Duration::from_secs(60));
        assert_eq!(b.receive(), []);
    }

    #[test]
    fn a_full_mailbox_is_tried_again() {
        let name = format!("mads-full-{}", std::process::id());
        let seats: Vec<MadSeat> =
            (0..2).map(|_| MadSeat::new(Arc::new(Fabric::join(&name).unwrap()))).collect();
        let [(mut a, _), (mut b, _)] = [seats[0].open().unwrap(), seats[1].open().unwrap()];
        let id = u32::from(seats[1].slot()) << 25 | 1;
        let numbered = |local| letter(Message::Rtu(Ids { local, remote: id }));
        for local in 0..2000 {
            a.send(numbered(local));
        }
        assert!(a.is_waiting(), "no mailbox holds so many");
        let mut got = Vec::new();
        for _ in 0..10_000 {
            got.extend(b.receive());
            a.receive();
        }
        assert_eq!(got, (0..2000).map(numbered).collect::<Vec<_>>());
        assert!(!a.is_waiting());
    }
}
