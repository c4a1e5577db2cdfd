//! How far messages have gone out as packets, and how many packets may be in flight.

use crate::Psn;

/// How many packets go out, and how often they ask for an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendWindow {
    /// Request packets in flight at most: sent, not acknowledged; fewer after losses. A READ or atomic is
    /// one, however many PSNs its response takes; with as many response packets due, no further one is sent.
    pub packets: u32,
    /// AckReq at least on every so many-th packet, besides on the last of each message.
    pub ack_every: u32,
}

impl SendWindow {
    /// As many packets of this path MTU as hold `bytes`; AckReq on every 16th, at least 4 times a window.
    pub const fn of_bytes(bytes: u32, path_mtu_bytes: u32) -> SendWindow {
        let mtu = if path_mtu_bytes == 0 { 1 } else { path_mtu_bytes };
        let packets = bytes.div_ceil(mtu);
        let often = packets.div_ceil(4);
        SendWindow { packets, ack_every: if often < 16 { often } else { 16 } }
    }
}

impl Default for SendWindow {
    /// 64 packets: 256 KiB of the largest path MTU. A loss costs up to a window: all sent behind it is
    /// resent. The resulting goodput is in `src/tests/snapshots/goodput.txt`.
    fn default() -> SendWindow {
        SendWindow::of_bytes(256 << 10, 4096)
    }
}

/// Where within their messages the moments of the queue lie.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// On a wire; shared memory loses nothing, and is full by itself.
    pub(super) window: Option<SendWindow>,
    /// Packets of the message at `done` that are acknowledged, by a READ response too.
    pub(super) acked: u32,
    /// Packets of the message at `next_send` that this pass has sent.
    pub(super) sent: u32,
    /// This pass has sent some of them, and not all.
    pub(super) is_cut: bool,
    /// Packets since the last AckReq.
    pub(super) unasked: u32,
    /// Packets that could be in flight right after the last loss, until that has grown to the window again.
    pub(super) after_loss: Option<u32>,
    /// The first PSN that was not acknowledged then, or a later one: see [`Progress::through`].
    pub(super) lost_at: Psn,
}

impl Progress {
    /// Packets that came through since the last loss, at most `most`. `lost_at` follows, because PSNs wrap.
    pub(super) fn through(&mut self, oldest: Psn, most: u32) -> u32 {
        if oldest.distance_from(self.lost_at) > most {
            self.lost_at = oldest.minus(most);
        }
        oldest.distance_from(self.lost_at)
    }
}
