//! What one run posts, how, and where: a case, and the kernel that it means.

#![forbid(unsafe_code)]

use super::nic::Cqes;
use rdma_shim::Order;
use serde::Serialize;

/// Lanes of a warp.
const WARP: u32 = 32;
/// Blocks of all rings together, of one (`DB_MAX_BLOCKS`), and of one that the shim shares
/// (`DB_SHARED_MAX_BLOCKS`), at most. The peer's shared ring is as long as the shim's.
pub(super) const ALL_BLOCKS: u32 = 1 << 18;
pub(super) const MOST_BLOCKS: u32 = 1 << 15;
const MOST_SHARED_BLOCKS: u32 = 1 << 14;
/// Producers at most: one for each multiprocessor of the largest GPU that was seen.
pub(super) const MOST_PRODUCERS: u32 = 160;
/// A shared queue's WQE that crosses a multiple of this asks for a completion, where nobody completes it.
const SIGNAL_EVERY: u32 = 1024;
/// Blocks of the ring, and entries of the CQ, of a queue whose WQEs a played NIC completes.
const STEADY_BLOCKS: u32 = 1024;
pub(super) const STEADY_CQES: u32 = 2048;

/// The code that posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poster {
    /// The shim, one WQE a call.
    Shim(Order),
    /// The shim, a doorbell's WQEs in one call (`db_try_post_writes`); one thread with a queue of its own.
    ShimList(Order),
    /// `doca_gpu_dev_verbs_put`, with a CQE of its own for each WQE.
    Peer,
    /// The same with a collapsed CQ: one CQE that the device overwrites.
    PeerCollapsed,
    /// The peer's pieces put together by hand: blocks for a doorbell's WQEs, each WQE, one mark, one
    /// submission. One thread with a queue of its own.
    PeerPieces,
    /// The original release's style: volatile words, a fence a step, a doorbell a WQE. One thread, own queue.
    Original,
    /// The original's own instructions, which order too little for a NIC: release stores of GPU scope.
    OriginalRelease,
}

/// What a producer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    Thread,
    /// 32 lanes that post together.
    Warp,
}

/// Whether producers share a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// No sharing: each producer has a queue.
    Exclusive,
    /// All other producers.
    Shared,
}

/// Whether posters look for room, and what they find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// They look, and the ring's first lap is known to have room.
    FirstLap,
    /// They look in the second lap: what the completions gave back has to be known, and is, without a poll.
    LaterLap,
    /// A played NIC completes what was posted, and posters wait for it: a short ring that fills repeatedly.
    /// Of the shim's WQEs one in `every` asks for a completion.
    Steady {
        /// A power of two.
        every: u32,
    },
    /// They do not look. The shim on a shared queue cannot leave it out: it compares two registers.
    Unchecked,
}

/// Where the ring lies; records and registers are in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Pinned host memory.
    Host,
    /// The GPU's own.
    Gpu,
}

/// What posts are made of, done by itself by one thread on a queue of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    pub kernel: &'static str,
    /// Whether it leaves WQEs in the ring.
    pub(super) writes_wqes: bool,
}

impl Floor {
    pub const ALL: [Floor; 8] = [
        // The stores of a WQE and of its slot.
        Floor { kernel: "bench_floor_wqe", writes_wqes: true },
        // With the fence in front of a doorbell, of system scope.
        Floor { kernel: "bench_floor_wqe_fence", writes_wqes: true },
        // With the fence in front of a shared queue's mark, of GPU scope.
        Floor { kernel: "bench_floor_wqe_mark_fence", writes_wqes: true },
        // A fence of system scope with nothing to wait for.
        Floor { kernel: "bench_floor_fence", writes_wqes: false },
        // Record and register, without fences.
        Floor { kernel: "bench_floor_doorbell", writes_wqes: false },
        // An atomic add in GPU memory, until its result is there.
        Floor { kernel: "bench_floor_add", writes_wqes: false },
        // The same with acquire and release.
        Floor { kernel: "bench_floor_add_acq_rel", writes_wqes: false },
        // A relaxed load from GPU memory, likewise.
        Floor { kernel: "bench_floor_load", writes_wqes: false },
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub poster: Poster,
    pub scope: Scope,
    pub sharing: Sharing,
    /// How many; a block each.
    pub producers: u32,
    /// WQEs a doorbell; of no meaning on a shared queue of the shim, which rings by itself.
    pub per_ring: u32,
    pub room: Room,
    pub place: Place,
    /// Posts of a run, about.
    pub posts: u32,
}

impl Case {
    /// The shim, on one thread with a queue of its own, which rings for each WQE.
    pub const LONE: Case = Case {
        poster: Poster::Shim(Order::Early),
        scope: Scope::Thread,
        sharing: Sharing::Exclusive,
        producers: 1,
        per_ring: 1,
        room: Room::FirstLap,
        place: Place::Host,
        posts: 16384,
    };

    /// Why it cannot be run, if it cannot.
    pub fn impossible(&self) -> Option<String> {
        let lone = self.scope == Scope::Thread && self.sharing == Sharing::Exclusive;
        let (steady, checked) = (self.is_steady(), self.room != Room::Unchecked);
        let rings_each = self.sharing == Sharing::Exclusive || self.per_ring == self.step();
        let fits = match self.poster {
            Poster::Shim(_) => rings_each,
            // Producers that hold doorbells back may fill a shared ring with WQEs for which none rings.
            Poster::Peer => !steady || rings_each,
            Poster::PeerCollapsed => steady && rings_each,
            Poster::PeerPieces => lone && checked,
            Poster::ShimList(_) => lone,
            Poster::Original | Poster::OriginalRelease => lone && self.per_ring == 1 && !steady,
        };
        match self {
            Case { room: Room::Steady { every }, .. }
                if self.queues() != 1
                    || self.place != Place::Host
                    || !every.is_power_of_two()
                    || !(self.per_ring..=STEADY_BLOCKS / 2).contains(every) =>
            {
                Some(format!(
                    "a completion for {every} WQEs: a power of two, of one queue in host memory, from {} to {} can be",
                    self.per_ring,
                    STEADY_BLOCKS / 2
                ))
            }
            _ if !(1..=MOST_PRODUCERS).contains(&self.producers) => {
                Some(format!("{} producers: 1 to {MOST_PRODUCERS} can be", self.producers))
            }
            _ if self.per_ring == 0 || self.per_ring > 64 || !self.per_ring.is_multiple_of(self.step()) => {
                Some(format!(
                    "{} WQEs a doorbell: a multiple of {} up to 64 can be",
                    self.per_ring,
                    self.step()
                ))
            }
            _ if !fits => Some(format!("{:?} does not post in this way", self.poster)),
            _ => None,
        }
    }

    /// WQEs of one call.
    fn step(&self) -> u32 {
        if self.scope == Scope::Warp { WARP } else { 1 }
    }

    /// Whether a played NIC takes part.
    pub fn is_steady(&self) -> bool {
        matches!(self.room, Room::Steady { .. })
    }

    pub fn is_peers(&self) -> bool {
        matches!(self.poster, Poster::Peer | Poster::PeerCollapsed | Poster::PeerPieces)
    }

    /// How a played NIC writes CQEs: the peer gives none back.
    pub(super) fn cqes(&self) -> Cqes {
        match self.poster {
            Poster::PeerCollapsed => Cqes::Collapsed,
            _ if self.is_peers() => Cqes::Overwritten,
            _ => Cqes::InOrder,
        }
    }

    pub fn queues(&self) -> u32 {
        if self.sharing == Sharing::Shared { 1 } else { self.producers }
    }

    pub fn blocks(&self) -> u32 {
        if self.is_steady() {
            return STEADY_BLOCKS;
        }
        let share = ALL_BLOCKS / self.queues();
        let most = if self.sharing == Sharing::Shared { MOST_SHARED_BLOCKS } else { MOST_BLOCKS };
        // The power of two below.
        (1 << (31 - share.leading_zeros())).min(most)
    }

    /// Posts of one producer: whole doorbells, and no more than its share of a ring that is never emptied.
    pub fn posts_of_one(&self) -> u32 {
        let most = if self.is_steady() { self.posts } else { self.queues() * self.blocks() / self.producers };
        let unit = self.per_ring.max(self.step());
        ((self.posts / self.producers).clamp(unit, most) / unit) * unit
    }

    pub fn posts_of_all(&self) -> u32 {
        self.posts_of_one() * self.producers
    }

    /// Index of the first WQE of each ring.
    pub fn start(&self) -> u64 {
        if self.room == Room::LaterLap { u64::from(self.blocks()) } else { 0 }
    }

    /// A WQE after which the queue's index is a multiple of this asks for a completion.
    pub(super) fn signal_every(&self) -> u32 {
        match (self.poster, self.sharing, self.room) {
            (Poster::Shim(_) | Poster::ShimList(_), _, Room::Steady { every }) => every,
            (Poster::Shim(_) | Poster::ShimList(_), Sharing::Exclusive, _) => self.per_ring,
            (Poster::Shim(_) | Poster::ShimList(_), Sharing::Shared, _) => SIGNAL_EVERY,
            // It holds completions back with doorbells, of threads alone.
            (Poster::PeerCollapsed, ..) if self.scope == Scope::Thread => self.per_ring,
            _ => 1,
        }
    }

    /// The shim's order; `strict` where the poster has none.
    pub(super) fn order(&self) -> Order {
        match self.poster {
            Poster::Shim(order) | Poster::ShimList(order) => order,
            _ => Order::Strict,
        }
    }

    pub(super) fn kernel(&self) -> &'static str {
        let unchecked = self.room == Room::Unchecked;
        match (self.poster, self.sharing, self.scope, unchecked) {
            (Poster::Shim(_), Sharing::Exclusive, Scope::Thread, _) if self.is_steady() => "bench_steady_one",
            (Poster::Shim(_), Sharing::Exclusive, Scope::Warp, _) if self.is_steady() => "bench_steady_warp",
            (Poster::ShimList(_), ..) if self.is_steady() => "bench_steady_list",
            (Poster::PeerCollapsed, Sharing::Exclusive, Scope::Thread, _) => "bench_put_alone_collapsed",
            (Poster::PeerCollapsed, Sharing::Exclusive, Scope::Warp, _) => "bench_put_alone_collapsed_warp",
            (Poster::PeerCollapsed, Sharing::Shared, Scope::Thread, _) => "bench_put_shared_collapsed",
            (Poster::PeerCollapsed, Sharing::Shared, Scope::Warp, _) => "bench_put_shared_collapsed_warp",
            (Poster::PeerPieces, ..) => "bench_put_pieces",
            (Poster::Shim(_), Sharing::Exclusive, Scope::Thread, false) => "bench_post_one",
            (Poster::Shim(_), Sharing::Exclusive, Scope::Thread, true) => "bench_post_one_unchecked",
            (Poster::Shim(_), Sharing::Exclusive, Scope::Warp, false) => "bench_post_warp",
            (Poster::Shim(_), Sharing::Exclusive, Scope::Warp, true) => "bench_post_warp_unchecked",
            (Poster::Shim(_), Sharing::Shared, Scope::Thread, _) => "bench_post_shared",
            (Poster::Shim(_), Sharing::Shared, Scope::Warp, _) => "bench_post_shared_warp",
            (Poster::ShimList(_), .., false) => "bench_post_list",
            (Poster::ShimList(_), .., true) => "bench_post_list_unchecked",
            (Poster::Original, ..) => "bench_post_original",
            (Poster::OriginalRelease, ..) => "bench_post_original_release",
            (Poster::Peer, Sharing::Exclusive, Scope::Thread, false) => "bench_put_alone",
            (Poster::Peer, Sharing::Exclusive, Scope::Thread, true) => "bench_put_alone_unchecked",
            (Poster::Peer, Sharing::Exclusive, Scope::Warp, false) => "bench_put_alone_warp",
            (Poster::Peer, Sharing::Exclusive, Scope::Warp, true) => "bench_put_alone_unchecked_warp",
            (Poster::Peer, Sharing::Shared, Scope::Thread, false) => "bench_put_shared",
            (Poster::Peer, Sharing::Shared, Scope::Thread, true) => "bench_put_shared_unchecked",
            (Poster::Peer, Sharing::Shared, Scope::Warp, false) => "bench_put_shared_warp",
            (Poster::Peer, Sharing::Shared, Scope::Warp, true) => "bench_put_shared_unchecked_warp",
        }
    }

    pub(super) fn threads(&self) -> u32 {
        self.step()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn every_run_fits_its_rings_and_consists_of_whole_doorbells() {
        for producers in [1, 2, 4, 32, 132, MOST_PRODUCERS] {
            for (scope, per_ring) in [
                (Scope::Thread, 1),
                (Scope::Thread, 16),
                (Scope::Thread, 64),
                (Scope::Warp, 32),
                (Scope::Warp, 64),
            ] {
                for sharing in [Sharing::Exclusive, Sharing::Shared] {
                    for posts in [1, 1000, 16384, 1 << 20] {
                        let case = Case { producers, scope, per_ring, sharing, posts, ..Case::LONE };
                        let (one, all) = (case.posts_of_one(), case.posts_of_all());
                        assert!(one > 0 && one.is_multiple_of(per_ring), "{case:?}: {one}");
                        assert!(all <= case.queues() * case.blocks(), "{case:?}: {all} posts");
                        assert!(case.queues() * case.blocks() <= ALL_BLOCKS, "{case:?}");
                        assert!(case.blocks().is_power_of_two() && case.blocks() <= MOST_BLOCKS, "{case:?}");
                    }
                }
            }
        }
    }

    /// The rule is `db_shared_init`'s: 16,384 blocks, and three quarters of the CQ's entries hold them.
    #[test]
    fn a_shared_ring_is_one_that_the_shim_shares() {
        for producers in 1..=MOST_PRODUCERS {
            for posts in [1, 16384, 1 << 20] {
                let case = Case { sharing: Sharing::Shared, producers, posts, ..Case::LONE };
                assert!((64..=16_384).contains(&case.blocks()), "{case:?}: {} blocks", case.blocks());
                assert!(
                    case.blocks() <= MOST_BLOCKS / 4 * 3 && SIGNAL_EVERY <= case.blocks() / 2,
                    "{case:?}"
                );
                assert!(case.posts_of_all() <= case.blocks(), "{case:?}");
            }
        }
        assert_eq!(Case::LONE.blocks(), 32_768, "one queue of a poster's own");
    }

    #[test]
    fn what_a_poster_cannot_do_is_said() {
        let early = Poster::Shim(Order::Early);
        for (case, words) in [
            (Case { producers: 0, ..Case::LONE }, Some("0 producers")),
            (Case { producers: 161, ..Case::LONE }, Some("161 producers")),
            (Case { scope: Scope::Warp, ..Case::LONE }, Some("1 WQEs a doorbell")),
            (Case { per_ring: 65, ..Case::LONE }, Some("65 WQEs")),
            (Case { poster: Poster::Original, per_ring: 16, ..Case::LONE }, Some("Original does not")),
            (
                Case { poster: Poster::Original, sharing: Sharing::Shared, ..Case::LONE },
                Some("Original does not"),
            ),
            (
                Case { poster: early, sharing: Sharing::Shared, per_ring: 16, ..Case::LONE },
                Some("does not post"),
            ),
            (Case { poster: Poster::Peer, sharing: Sharing::Shared, per_ring: 16, ..Case::LONE }, None),
            (Case::LONE, None),
            (
                Case {
                    poster: Poster::Peer,
                    sharing: Sharing::Shared,
                    per_ring: 16,
                    room: Room::Steady { every: 64 },
                    ..Case::LONE
                },
                Some("Peer does not"),
            ),
            (Case { room: Room::Steady { every: 512 }, ..Case::LONE }, None),
            (Case { room: Room::Steady { every: 1024 }, ..Case::LONE }, Some("from 1 to 512")),
            (Case { room: Room::Steady { every: 48 }, ..Case::LONE }, Some("a power of two")),
            (Case { room: Room::Steady { every: 1 }, per_ring: 16, ..Case::LONE }, Some("from 16 to 512")),
            (Case { room: Room::Steady { every: 1 }, producers: 2, ..Case::LONE }, Some("of one queue")),
            (Case { room: Room::Steady { every: 1 }, place: Place::Gpu, ..Case::LONE }, Some("host memory")),
            (Case { poster: Poster::PeerCollapsed, ..Case::LONE }, Some("PeerCollapsed does not")),
            (
                Case { poster: Poster::PeerPieces, room: Room::Unchecked, ..Case::LONE },
                Some("PeerPieces does not"),
            ),
        ] {
            let said = case.impossible();
            match words {
                Some(words) => assert!(said.as_ref().is_some_and(|said| said.contains(words)), "{said:?}"),
                None => assert_eq!(said, None, "{case:?}"),
            }
        }
    }
}
