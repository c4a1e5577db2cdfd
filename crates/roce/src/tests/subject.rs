//! What the model asks of an end, whether whole messages or packets travel.

use super::model::Setting;
use crate::Completion;
use crate::testing::{End, Endpoint, EndpointConfig, LocalWork, PacketEnd, Pair, Received};

/// An end in a conversation, as the model sees it.
pub(super) trait Subject: End + Sized {
    fn pair(config: EndpointConfig) -> Pair<Self>;
    fn post(&mut self, work: LocalWork) -> bool;
    fn post_receive(&mut self, capacity: u64);
    fn memory(&self) -> &[u8];
    fn memory_mut(&mut self) -> &mut [u8];
    fn completions(&self) -> &[Completion];
    fn received(&self) -> &[Received];
    fn executed(&self) -> u64;
    fn retransmitted(&self) -> u64;
    /// Whether bytes of a message may be visible before it is executed as a whole.
    fn splits(setting: &Setting) -> bool;
}

impl Subject for Endpoint {
    fn pair(config: EndpointConfig) -> Pair<Endpoint> {
        Pair::new(config)
    }

    fn post(&mut self, work: LocalWork) -> bool {
        Endpoint::post(self, work)
    }

    fn post_receive(&mut self, capacity: u64) {
        Endpoint::post_receive(self, capacity);
    }

    fn memory(&self) -> &[u8] {
        Endpoint::memory(self)
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        Endpoint::memory_mut(self)
    }

    fn completions(&self) -> &[Completion] {
        &self.completions
    }

    fn received(&self) -> &[Received] {
        &self.received
    }

    fn executed(&self) -> u64 {
        self.responder.counters().messages
    }

    fn retransmitted(&self) -> u64 {
        self.requester.counters().retransmitted
    }

    fn splits(setting: &Setting) -> bool {
        setting.fragment_bytes != u32::MAX
    }
}

impl Subject for PacketEnd {
    fn pair(config: EndpointConfig) -> Pair<PacketEnd> {
        Pair::by_packet(config)
    }

    fn post(&mut self, work: LocalWork) -> bool {
        PacketEnd::post(self, work)
    }

    fn post_receive(&mut self, capacity: u64) {
        PacketEnd::post_receive(self, capacity);
    }

    fn memory(&self) -> &[u8] {
        PacketEnd::memory(self)
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        PacketEnd::memory_mut(self)
    }

    fn completions(&self) -> &[Completion] {
        &self.completions
    }

    fn received(&self) -> &[Received] {
        &self.received
    }

    fn executed(&self) -> u64 {
        self.connection.responder().counters().messages
    }

    fn retransmitted(&self) -> u64 {
        self.connection.requester().counters().retransmitted
    }

    fn splits(setting: &Setting) -> bool {
        setting.path_mtu_bytes < 700
    }
}
