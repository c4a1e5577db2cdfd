//! What the model asks of a conversation: in shared memory, or by packet.

use super::model::Setting;
use crate::testing::{EndpointConfig, Pair};

/// A way to carry packets, as the model sees it.
pub(super) trait Subject {
    fn pair(config: EndpointConfig) -> Pair;
    /// Whether bytes of a message may be visible before it is executed as a whole.
    fn splits(setting: &Setting) -> bool;
}

/// Several packets in one.
pub(super) struct Shared;

/// One by one.
pub(super) struct OnWire;

impl Subject for Shared {
    fn pair(config: EndpointConfig) -> Pair {
        Pair::new(config)
    }

    fn splits(setting: &Setting) -> bool {
        setting.fragment_bytes.max(setting.path_mtu_bytes) < 700
    }
}

impl Subject for OnWire {
    fn pair(config: EndpointConfig) -> Pair {
        Pair::by_packet(config)
    }

    fn splits(setting: &Setting) -> bool {
        setting.path_mtu_bytes < 700
    }
}
