//! Services that a fabric's connection managers listen to: words of each slot, written only by its process.
//!
//! A word is 0, or: bit 63 set; bits 25 to 56 the address (IPv4, or an IPv6 address folded; 0 for every
//! address); bits 0 to 24 the service id. Service ids of IP are below 2^25 (1, the protocol, the port: Annex
//! A11); others are not announced.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use roce::wire::Gid;

use super::Fabric;
use super::layout::{SERVICES, SLOTS, at};

const SERVICE_BITS: u32 = 25;
const IN_USE: u64 = 1 << 63;

/// A service at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceWord(u64);

impl ServiceWord {
    /// For this service id; `address`: `None` for every address. `None` when it is no service of IP.
    pub fn new(service: u64, address: Option<Gid>) -> Option<ServiceWord> {
        (service >> SERVICE_BITS == 0).then(|| {
            let address = u64::from(address.map_or(0, folded));
            ServiceWord(IN_USE | address << SERVICE_BITS | service)
        })
    }

    /// Whether it is of this service, and of this address or every one.
    fn serves(self, asked: ServiceWord) -> bool {
        let any = self.0 & !(u64::from(u32::MAX) << SERVICE_BITS);
        self == asked || self.0 == any && any == asked.0 & !(u64::from(u32::MAX) << SERVICE_BITS)
    }

    /// Whether both want the same messages.
    fn clashes(self, other: ServiceWord) -> bool {
        self.serves(other) || other.serves(self)
    }
}

/// A GID as 32 bits: the address of a mapped IPv4 address, never 0.
fn folded(gid: Gid) -> u32 {
    (super::folded(IpAddr::from(gid.0).to_canonical()) as u32).max(1)
}

/// Why a service was not announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    #[error("slot {0} of the fabric listens to this service")]
    Taken(u8),
    #[error("a process listens to {SERVICES} services at most")]
    Full,
}

impl Fabric {
    /// Announces that this process listens. Writes the word before it checks, so that two processes that
    /// announce at once cannot both succeed.
    pub fn announce(&self, service: ServiceWord) -> Result<(), ServiceError> {
        let free = (0..SERVICES).find(|index| self.service(self.slot(), *index).is_none());
        let index = free.ok_or(ServiceError::Full)?;
        self.store_service(index, service.0);
        match self.clashing_slot(service) {
            None => Ok(()),
            Some(slot) => {
                self.store_service(index, 0);
                Err(ServiceError::Taken(slot))
            }
        }
    }

    /// Takes it back.
    pub fn withdraw(&self, service: ServiceWord) {
        for index in 0..SERVICES {
            if self.service(self.slot(), index) == Some(service) {
                self.store_service(index, 0);
            }
        }
    }

    /// The slot that listens to a service at an address: one that named the address goes first.
    pub fn serving_slot(&self, service: ServiceWord) -> Option<u8> {
        let named = self.find_service(|_, word| word == service);
        named.or_else(|| self.find_service(|_, word| word.serves(service)))
    }

    /// Another process whose service is in the way of this one.
    pub fn clashing_slot(&self, service: ServiceWord) -> Option<u8> {
        self.find_service(|slot, word| slot != self.slot() && word.clashes(service))
    }

    /// The first running process with such a word.
    fn find_service(&self, is_it: impl Fn(u8, ServiceWord) -> bool) -> Option<u8> {
        (0..SLOTS as u8).find(|slot| {
            let mut words = (0..SERVICES).filter_map(|index| self.service(*slot, index));
            // Asking the kernel takes five system calls, and any host of the network may make us ask.
            words.any(|word| is_it(*slot, word)) && self.slot_owner(*slot).is_some_and(|owner| owner.lives())
        })
    }

    fn service(&self, slot: u8, index: usize) -> Option<ServiceWord> {
        let word = self.word(slot, at::SERVICES + 8 * index).load(Ordering::SeqCst);
        (word & IN_USE != 0).then_some(ServiceWord(word))
    }

    fn store_service(&self, index: usize, word: u64) {
        if self.is_ours() {
            self.word(self.slot(), at::SERVICES + 8 * index).store(word, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(last: u8) -> Option<Gid> {
        Some(Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, last]))
    }

    #[test]
    fn a_service_is_one_process_s_and_the_named_address_goes_first() {
        let name = format!("services-{}", std::process::id());
        let (a, b) = (Fabric::join(&name).unwrap(), Fabric::join(&name).unwrap());
        let word = |service, address| ServiceWord::new(service, address).unwrap();
        let (any, first, second) =
            (word(0x106_1c06, None), word(0x106_1c06, mapped(1)), word(0x106_1c06, mapped(2)));
        a.announce(any).unwrap();
        assert_eq!(b.announce(any), Err(ServiceError::Taken(a.slot())));
        assert_eq!(b.announce(first), Err(ServiceError::Taken(a.slot())));
        assert_eq!(
            (b.serving_slot(first), b.serving_slot(word(0x106_1c07, mapped(1)))),
            (Some(a.slot()), None)
        );
        a.withdraw(any);
        assert_eq!(b.serving_slot(first), None);
        b.announce(first).unwrap();
        a.announce(second).unwrap();
        assert_eq!((a.serving_slot(first), a.serving_slot(second)), (Some(b.slot()), Some(a.slot())));
        b.leave();
        assert_eq!(a.serving_slot(first), None, "a process that has left serves nothing");
        assert_eq!(ServiceWord::new(1 << 25, None), None);
    }

    #[test]
    fn there_are_so_many_words_and_no_more() {
        let fabric = Fabric::join(&format!("many-services-{}", std::process::id())).unwrap();
        for port in 0..SERVICES as u64 {
            fabric.announce(ServiceWord::new(0x106_0000 + port, None).unwrap()).unwrap();
        }
        let more = ServiceWord::new(0x106_ffff, None).unwrap();
        assert_eq!(fabric.announce(more), Err(ServiceError::Full));
        fabric.withdraw(ServiceWord::new(0x106_0007, None).unwrap());
        fabric.announce(more).unwrap();
    }
}
