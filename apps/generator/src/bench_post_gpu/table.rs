//! The rows of `bench-post-gpu`: what is posted, in which way, compared with what, and the required ratio.

use generator::kernel::post_bench::{Case, Floor, Place, Poster, Room, Scope, Sharing};
use rdma_shim::Order;
use serde::Serialize;

/// Posts of a run; a run of the slowest way takes some 30 ms.
pub const POSTS: u32 = Case::LONE.posts;
/// With `--quick`.
pub const QUICK_POSTS: u32 = 4096;
/// Posts of a run in a steady state: 68 times the ring.
const STEADY_POSTS: u32 = 69_632;
const QUICK_STEADY_POSTS: u32 = 17_408;
/// WQEs a completion in a steady state, where it is not one a doorbell: a quarter of the ring, and half of
/// it. The ring allows none rarer.
const RARE: [u32; 2] = [256, 512];
/// The same of shared queues, whose doorbells are the ringer's.
const SHARED_OFTEN: u32 = 64;

/// How the shim is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// A call a WQE (or, of a warp, 32), as the peer's routine.
    One,
    /// A call for all WQEs of a doorbell, which the peer does not have.
    List,
}

/// What the shim is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Against {
    /// `doca_gpu_dev_verbs_put`.
    Gpunetio,
    /// The same with a collapsed CQ, which the shim cannot make.
    GpunetioCollapsed,
    /// The peer's pieces put together by hand.
    GpunetioPieces,
    /// The original release's style.
    OriginalVolatile,
    /// The original release's instructions.
    OriginalRelease,
}

/// The required ratio: a number of its own, or another row's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Required {
    /// Ours ÷ theirs.
    AtMost(f64),
    /// Theirs ÷ ours.
    AtLeast(f64),
}

impl Required {
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Required::AtMost(most) => ratio <= most,
            Required::AtLeast(least) => ratio >= least,
        }
    }
}

/// A row: three runs in turn, theirs, ours in the early order, ours in the strict one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The case; its poster is set for each of the three.
    case: Case,
    pub call: Call,
    pub against: Against,
    /// Of the ratio in the early order.
    pub required: Option<Required>,
}

impl Row {
    /// `exclusive/1-thread/per-16/list/first-lap/host`, and the other poster's name where it is not the peer.
    pub fn name(&self) -> String {
        let Case { producers, per_ring, .. } = self.case;
        let plural = if producers == 1 { "" } else { "s" };
        let end = match self.against {
            Against::Gpunetio => "",
            Against::GpunetioCollapsed => "/collapsed",
            Against::GpunetioPieces => "/pieces",
            Against::OriginalVolatile => "/original-volatile",
            Against::OriginalRelease => "/original-release",
        };
        let room = match self.signal_every() {
            Some(every) => format!("steady-{every}"),
            None => self.room().to_owned(),
        };
        let (sharing, scope) = (word(self.case.sharing), word(self.case.scope));
        let (call, place) = (word(self.call), word(self.case.place));
        format!("{sharing}/{producers}-{scope}{plural}/per-{per_ring}/{call}/{room}/{place}{end}")
    }

    /// Whether posters look for room, and where in the ring's life.
    pub fn room(&self) -> &'static str {
        match self.case.room {
            Room::FirstLap => "first-lap",
            Room::Steady { .. } => "steady",
            Room::LaterLap => "later-lap",
            Room::Unchecked => "unchecked",
        }
    }

    /// How many of our WQEs share one completion, in a steady state.
    pub fn signal_every(&self) -> Option<u32> {
        match self.case.room {
            Room::Steady { every } => Some(every),
            _ => None,
        }
    }

    /// Calls for the WQEs of a doorbell: ours and theirs. A shared queue of ours rings when its ringer does.
    pub fn calls(&self) -> [u32; 2] {
        let step = if self.case.scope == Scope::Warp { 32 } else { 1 };
        let each = self.case.per_ring / step;
        [
            if self.call == Call::List { 1 } else { each },
            if self.against == Against::GpunetioPieces { 1 } else { each },
        ]
    }

    /// The case of ours in an order.
    pub fn ours(&self, order: Order) -> Case {
        let poster = match self.call {
            Call::One => Poster::Shim(order),
            Call::List => Poster::ShimList(order),
        };
        Case { poster, ..self.case }
    }

    pub fn is_beside_peer(&self) -> bool {
        !matches!(self.against, Against::OriginalVolatile | Against::OriginalRelease)
    }

    pub fn theirs(&self) -> Case {
        let poster = match self.against {
            Against::Gpunetio => Poster::Peer,
            Against::GpunetioCollapsed => Poster::PeerCollapsed,
            Against::GpunetioPieces => Poster::PeerPieces,
            Against::OriginalVolatile => Poster::Original,
            Against::OriginalRelease => Poster::OriginalRelease,
        };
        Case { poster, ..self.case }
    }

    /// Ours ÷ theirs, for the original theirs ÷ ours.
    pub fn ratio(&self, ours_ns: f64, theirs_ns: f64) -> f64 {
        match self.against {
            _ if self.is_beside_peer() => ours_ns / theirs_ns,
            _ => theirs_ns / ours_ns,
        }
    }
}

/// All rows; `quick`: those with a requirement, with fewer posts.
pub fn rows(quick: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for (room, place) in [
        (Room::FirstLap, Place::Host),
        (Room::LaterLap, Place::Host),
        (Room::Unchecked, Place::Host),
        (Room::FirstLap, Place::Gpu),
    ] {
        let judged = (room, place) == (Room::FirstLap, Place::Host);
        for (scope, sharing, producers, per_ring, call, most) in WAYS {
            let posts = if quick { QUICK_POSTS } else { POSTS };
            let case = Case { scope, sharing, producers, per_ring, room, place, posts, ..Case::LONE };
            // Of many queues one setting will do.
            if judged || sharing == Sharing::Shared || producers == 1 {
                let required = most.filter(|_| judged).map(Required::AtMost);
                rows.push(Row { case, call, against: Against::Gpunetio, required });
            }
        }
        if room == Room::FirstLap {
            let lone = Row { call: Call::One, ..rows[0] };
            let case = Case { room, place, ..lone.case };
            let required = judged.then_some(Required::AtLeast(2.5));
            rows.push(Row { case, against: Against::OriginalVolatile, required, ..lone });
            rows.push(Row { case, against: Against::OriginalRelease, required: None, ..lone });
        }
    }
    rows.extend(pieces(quick).chain(steady(quick)));
    rows.retain(|row| !quick || row.required.is_some());
    rows
}

/// Our call for a doorbell against the peer's pieces, also one call: in the first lap and the steady state.
fn pieces(quick: bool) -> impl Iterator<Item = Row> {
    [16, 64].into_iter().flat_map(move |per_ring| {
        let lap = (Room::FirstLap, if quick { QUICK_POSTS } else { POSTS });
        let steady = (Room::Steady { every: per_ring }, steady_posts(quick));
        [lap, steady].map(|(room, posts)| Row {
            case: Case { room, posts, per_ring, ..Case::LONE },
            call: Call::List,
            against: Against::GpunetioPieces,
            required: (per_ring == 64).then_some(Required::AtMost(0.6)),
        })
    })
}

/// Rows with a played NIC: completions as often as the put's (one a call); rare ones; a collapsed CQ.
fn steady(quick: bool) -> impl Iterator<Item = Row> {
    let ways = WAYS.into_iter().filter(|(_, sharing, producers, per_ring, call, _)| match sharing {
        Sharing::Exclusive => *producers == 1 && (*per_ring <= 32 || *call == Call::List),
        Sharing::Shared => true,
    });
    ways.flat_map(move |(scope, sharing, producers, per_ring, call, _)| {
        let often = if sharing == Sharing::Shared { SHARED_OFTEN } else { per_ring };
        let same = [(Against::Gpunetio, Some(1.0)), (Against::GpunetioCollapsed, None)];
        let same = same.map(|(against, most)| (often, against, most));
        let rare = RARE.map(|every| (every, Against::Gpunetio, Some(0.5)));
        same.into_iter().chain(rare).map(move |(every, against, most)| Row {
            case: Case {
                scope,
                sharing,
                producers,
                per_ring,
                room: Room::Steady { every },
                posts: steady_posts(quick),
                ..Case::LONE
            },
            call,
            against,
            required: most.map(Required::AtMost),
        })
    })
}

fn steady_posts(quick: bool) -> u32 {
    if quick { QUICK_STEADY_POSTS } else { STEADY_POSTS }
}

/// A word of a row's name, as its line in JSON has it.
fn word(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|word| Some(word.as_str()?.to_owned())).unwrap_or_default()
}

/// What posts are made of, with names like `floor/wqe-fence`; measured with the ring in host memory.
pub fn floors(quick: bool) -> impl Iterator<Item = (Floor, String)> {
    let name = |floor: Floor| floor.kernel.replacen("bench_floor_", "floor/", 1).replace('_', "-");
    Floor::ALL.into_iter().filter(move |_| !quick).map(move |floor| (floor, name(floor)))
}

/// Scope, sharing, producers, WQEs a doorbell, how ours is called, and the most that ours ÷ gpunetio may be.
const WAYS: [(Scope, Sharing, u32, u32, Call, Option<f64>); 21] = {
    use Call::{List, One};
    use Scope::{Thread, Warp};
    use Sharing::{Exclusive, Shared};
    [
        (Thread, Exclusive, 1, 1, One, Some(1.0)),
        (Thread, Exclusive, 1, 16, One, Some(0.35)),
        (Thread, Exclusive, 1, 16, List, Some(0.35)),
        (Thread, Exclusive, 1, 64, One, Some(0.25)),
        (Thread, Exclusive, 1, 64, List, Some(0.25)),
        (Warp, Exclusive, 1, 32, One, Some(0.7)),
        (Warp, Exclusive, 1, 64, One, None),
        (Thread, Shared, 1, 1, One, Some(0.8)),
        (Thread, Shared, 4, 1, One, Some(0.4)),
        (Thread, Shared, 32, 1, One, Some(0.4)),
        (Thread, Shared, 132, 1, One, Some(0.4)),
        (Warp, Shared, 1, 32, One, Some(0.8)),
        (Warp, Shared, 4, 32, One, Some(0.45)),
        (Warp, Shared, 32, 32, One, Some(0.45)),
        (Warp, Shared, 132, 32, One, Some(0.45)),
        (Thread, Exclusive, 4, 1, One, None),
        (Thread, Exclusive, 32, 1, One, None),
        (Thread, Exclusive, 132, 1, One, None),
        (Warp, Exclusive, 4, 32, One, None),
        (Warp, Exclusive, 32, 32, One, None),
        (Warp, Exclusive, 132, 32, One, None),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_can_be_run_by_all_three() {
        for quick in [false, true] {
            let rows = rows(quick);
            let mut names: Vec<_> = rows.iter().map(Row::name).collect();
            for row in &rows {
                for case in [row.theirs(), row.ours(Order::Early), row.ours(Order::Strict)] {
                    assert_eq!(case.impossible(), None, "{}", row.name());
                }
            }
            names.extend(floors(quick).map(|(_, name)| name));
            let all = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all, "two rows of one name");
        }
    }

    /// The requirements, typed from where they are written down, and the rows that they are about.
    #[test]
    fn each_requirement_stands_at_its_rows() {
        let required = |ending: &str| {
            let row = rows(false).into_iter().find(|row| row.name() == ending);
            row.unwrap_or_else(|| panic!("no row {ending}")).required
        };
        for (name, expected) in [
            ("exclusive/1-thread/per-1/one/first-lap/host", Some(Required::AtMost(1.0))),
            ("exclusive/1-thread/per-16/one/first-lap/host", Some(Required::AtMost(0.35))),
            ("exclusive/1-thread/per-16/list/first-lap/host", Some(Required::AtMost(0.35))),
            ("exclusive/1-thread/per-64/list/first-lap/host", Some(Required::AtMost(0.25))),
            ("exclusive/1-warp/per-32/one/first-lap/host", Some(Required::AtMost(0.7))),
            ("shared/1-thread/per-1/one/first-lap/host", Some(Required::AtMost(0.8))),
            ("shared/132-threads/per-1/one/first-lap/host", Some(Required::AtMost(0.4))),
            ("shared/1-warp/per-32/one/first-lap/host", Some(Required::AtMost(0.8))),
            ("shared/4-warps/per-32/one/first-lap/host", Some(Required::AtMost(0.45))),
            ("exclusive/1-thread/per-1/one/first-lap/host/original-volatile", Some(Required::AtLeast(2.5))),
            ("exclusive/1-thread/per-1/one/first-lap/host/original-release", None),
            ("exclusive/1-thread/per-1/one/first-lap/gpu/original-volatile", None),
            ("exclusive/1-thread/per-1/one/unchecked/host", None),
            ("exclusive/1-thread/per-1/one/later-lap/host", None),
            ("exclusive/132-warps/per-32/one/first-lap/host", None),
            ("shared/32-warps/per-32/one/first-lap/gpu", None),
            ("exclusive/1-thread/per-64/list/first-lap/host/pieces", Some(Required::AtMost(0.6))),
            ("exclusive/1-thread/per-16/list/steady-16/host/pieces", None),
            ("exclusive/1-thread/per-1/one/steady-1/host", Some(Required::AtMost(1.0))),
            ("exclusive/1-thread/per-1/one/steady-1/host/collapsed", None),
            ("exclusive/1-warp/per-32/one/steady-512/host", Some(Required::AtMost(0.5))),
            ("shared/32-warps/per-32/one/steady-64/host", Some(Required::AtMost(1.0))),
            ("shared/4-warps/per-32/one/steady-256/host", Some(Required::AtMost(0.5))),
        ] {
            assert_eq!(required(name), expected, "{name}");
        }
        let judged = rows(false).iter().filter(|row| row.required.is_some()).count();
        // Of steady rows three for each of thirteen ways are judged, and two of those with pieces.
        assert_eq!((judged, rows(true).len()), (15 + 3 * 13 + 2, 15 + 3 * 13 + 2));
    }

    #[test]
    fn calls_of_a_doorbell_are_counted_on_both_sides() {
        for (name, calls) in [
            ("exclusive/1-thread/per-16/list/first-lap/host", [1, 16]),
            ("exclusive/1-thread/per-16/one/first-lap/host", [16, 16]),
            ("exclusive/1-thread/per-64/list/first-lap/host/pieces", [1, 1]),
            ("exclusive/1-warp/per-64/one/first-lap/host", [2, 2]),
        ] {
            let rows = rows(false);
            let row = rows.iter().find(|row| row.name() == name).unwrap_or_else(|| panic!("no row {name}"));
            assert_eq!(row.calls(), calls, "{name}");
        }
    }

    #[test]
    fn a_ratio_says_how_much_faster_ours_is() {
        let row = |against| Row { against, ..rows(false)[0] };
        for (against, required, ratio, met) in [
            (Against::Gpunetio, Required::AtMost(0.35), 0.3, true),
            (Against::Gpunetio, Required::AtMost(0.3), 0.3, true),
            (Against::Gpunetio, Required::AtMost(0.25), 0.3, false),
            (Against::OriginalVolatile, Required::AtLeast(2.5), 1.0 / 0.3, true),
            (Against::OriginalVolatile, Required::AtLeast(4.0), 1.0 / 0.3, false),
        ] {
            let found = row(against).ratio(30.0, 100.0);
            assert!((found - ratio).abs() < 1e-9, "{found}");
            assert_eq!(required.is_met(found), met, "{required:?} {found}");
        }
    }
}
