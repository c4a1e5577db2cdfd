//! Memory windows: what a bind opens, and to which peer; refusals; and the three ways to close one.

use mlx5_device::command::{RegMr, event_type};
use mlx5_device::commands::*;
use mlx5_device::errno;
use mlx5_device::testing::{Data, Opening, QpId, QpShape, Region, Window, WorkRequest};
use mlx5_device::{Counters, rereg_change};
use mlx5_layout::CqeSyndrome::{LocalQpOperation, MwBind};
use mlx5_layout::send_wqe::DataPointer;
use mlx5_layout::umr::{change, flag, right};
use mlx5_layout::{CqeOpcode, CqeSyndrome};
use roce::ServiceType;

use crate::machine::{ALL, Driver, Setup, errno, syndrome};

/// `IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND`: nothing of the region is open to peers but through windows.
const BINDABLE: u32 = 1 | 1 << 4;
const READ: u8 = right::REMOTE_READ;
const WRITE: u8 = right::REMOTE_WRITE;
const EVERY: u8 = READ | WRITE | right::ATOMIC;

/// A pair of queues, of which `b` opens windows to `theirs` and `a` uses them.
struct WindowPair {
    driver: Driver,
    a: QpId,
    b: QpId,
    ours: Region,
    theirs: Region,
}

impl WindowPair {
    fn new(name: &str) -> WindowPair {
        WindowPair::of(name, ServiceType::Rc)
    }

    fn of(name: &str, service: ServiceType) -> WindowPair {
        let mut driver = Driver::new(Setup::new(&format!("windows-{name}")));
        let (a, b) = driver.pair(QpShape { service, ..QpShape::default() });
        let (ours, theirs) = (driver.region(4096, ALL), driver.region(4096, BINDABLE));
        WindowPair { driver, a, b, ours, theirs }
    }

    fn opening(&self, offset: u64, len: u64, rights: u8) -> Opening<'_> {
        Opening { region: &self.theirs, offset, len, rights }
    }

    /// Binds and expects it to work; returns the key.
    fn bind(&mut self, window: &Window, tag: u8, offset: u64, len: u64, rights: u8) -> u32 {
        let request = self.driver.bind(self.b, window, tag, &self.opening(offset, len, rights));
        assert_eq!(self.done(self.b, &request), None, "a bind");
        window.key(tag)
    }

    /// Posts, settles, and gives the error of the completion, if there is one.
    fn done(&mut self, qp: QpId, request: &WorkRequest) -> Option<CqeSyndrome> {
        self.driver.post(qp, request).settle();
        let ends = self.ends(qp);
        assert_eq!(ends.len(), 1, "one completion: {ends:?}");
        ends[0]
    }

    /// The errors of all completions of a send queue; none for one that ended well.
    fn ends(&mut self, qp: QpId) -> Vec<Option<CqeSyndrome>> {
        let completions = std::iter::from_fn(|| self.driver.poll_send(qp));
        completions
            .map(|c| if c.opcode() == Some(CqeOpcode::Requester) { None } else { syndrome(&c) })
            .collect()
    }

    fn write(&self, at: u64, len: u32, key: u32) -> WorkRequest {
        WorkRequest::write(&self.ours, 0, len, &self.theirs, at).through(key)
    }

    fn read(&self, at: u64, len: u32, key: u32) -> WorkRequest {
        WorkRequest::read(&self.ours, 1024, len, &self.theirs, at).through(key)
    }

    /// Another queue on `b`'s side, connected with a partner of its own.
    fn others(&mut self) -> (QpId, QpId) {
        self.driver.pair(QpShape::default())
    }
}

fn count(counters: &Counters, name: &str) -> u64 {
    counters.fields().find(|field| field.0 == name).map_or(0, |field| field.1)
}

#[test]
fn what_a_window_opens_a_peer_can_use() {
    for kind in [1, 2] {
        let mut s = WindowPair::new("opens");
        let window = s.driver.window(kind);
        let key = s.bind(&window, 7, 64, 128, EVERY);
        let sent = s.ours.fill(0, 128, 3);
        let write = s.write(64, 128, key);
        assert_eq!(s.done(s.a, &write), None);
        assert_eq!(s.theirs.block.bytes(64, 128), sent, "type {kind}");
        let read = s.read(72, 120, key);
        assert_eq!(s.done(s.a, &read), None);
        assert_eq!(s.ours.block.bytes(1024, 120), sent[8..], "type {kind}");
        s.theirs.block.write(64, &41u64.to_ne_bytes());
        let add = WorkRequest::fetch_add(&s.ours, 0, (&s.theirs, 64), 1).through(key);
        assert_eq!(s.done(s.a, &add), None);
        assert_eq!(s.theirs.block.bytes(64, 8), 42u64.to_ne_bytes(), "type {kind}");
        assert_eq!(count(&s.driver.counters(), "completed_umr"), 1);
    }
}

#[test]
fn through_a_window_goes_what_it_was_opened_for_and_nothing_else() {
    type Make = fn(&mut WindowPair, u32) -> (QpId, WorkRequest);
    let cases: [(&str, u8, Make); 10] = [
        ("one byte before", 2, |s, key| (s.a, s.write(63, 8, key))),
        ("one byte past", 2, |s, key| (s.a, s.write(64, 129, key))),
        ("past its end", 2, |s, key| (s.a, s.read(192, 1, key))),
        ("an address that wraps", 2, |s, key| {
            (s.a, WorkRequest { remote: Some((u64::MAX - 3, key)), ..s.write(64, 8, key) })
        }),
        ("a right that it has not", 2, |s, key| {
            (s.a, WorkRequest::fetch_add(&s.ours, 0, (&s.theirs, 64), 1).through(key))
        }),
        ("the key of another bind", 2, |s, key| (s.a, s.write(64, 8, key ^ 1))),
        ("another queue", 2, |s, key| (s.others().0, s.write(64, 8, key))),
        ("the key before the bind", 1, |s, key| (s.a, s.write(64, 8, key & !0xff))),
        ("another window of the region", 2, |s, _| {
            let window = s.driver.window(2);
            (s.a, s.write(64, 8, window.rkey))
        }),
        ("the region itself", 2, |s, _| (s.a, s.write(64, 8, s.theirs.rkey))),
    ];
    for (name, kind, make) in cases {
        let mut s = WindowPair::new("refused");
        let before = s.theirs.fill(0, 4096, 9);
        let window = s.driver.window(kind);
        let key = s.bind(&window, 7, 64, 128, READ | WRITE);
        let (qp, request) = make(&mut s, key);
        assert_eq!(s.done(qp, &request), Some(CqeSyndrome::RemoteAccess), "{name}");
        assert_eq!(s.theirs.block.bytes(0, 4096), before, "{name}: nothing is touched");
        assert_eq!(s.driver.state(qp), 6, "{name}: the queue is in error");
    }
}

#[test]
fn a_window_gives_only_the_rights_that_it_was_bound_with() {
    for (rights, allowed) in [
        (0, [false; 3]),
        (READ, [true, false, false]),
        (WRITE, [false, true, false]),
        (right::ATOMIC, [false, false, true]),
    ] {
        for (operation, wanted) in allowed.into_iter().enumerate() {
            let mut s = WindowPair::new("rights");
            let window = s.driver.window(2);
            let key = s.bind(&window, 1, 0, 4096, rights);
            let request = match operation {
                0 => s.read(0, 8, key),
                1 => s.write(0, 8, key),
                _ => WorkRequest::fetch_add(&s.ours, 0, (&s.theirs, 0), 1).through(key),
            };
            let refused = (!wanted).then_some(CqeSyndrome::RemoteAccess);
            assert_eq!(s.done(s.a, &request), refused, "rights {rights:#x}, operation {operation}");
        }
    }
}

#[test]
fn a_windows_key_is_no_local_key() {
    let mut s = WindowPair::new("local");
    let window = s.driver.window(2);
    let key = s.bind(&window, 1, 0, 4096, EVERY);
    let pointer = DataPointer { byte_count: 8, lkey: key, va: s.theirs.address };
    let send = WorkRequest { data: vec![Data::Pointer(pointer)], ..WorkRequest::send(&s.ours, 0, 8) };
    assert_eq!(s.done(s.b, &send), Some(CqeSyndrome::LocalProtection));
}

/// A window of this type, and the bind of it that must fail so.
type BadBind = (&'static str, u8, fn(&mut WindowPair, &Window) -> WorkRequest, CqeSyndrome);

fn umr(request: WorkRequest, change: impl FnOnce(&mut mlx5_layout::umr::Umr)) -> WorkRequest {
    let mut umr = request.umr.expect("a bind");
    change(&mut umr);
    WorkRequest { umr: Some(umr), ..request }
}

fn good(s: &WindowPair, window: &Window) -> WorkRequest {
    s.driver.bind(s.b, window, 5, &s.opening(64, 128, EVERY))
}

/// Regions that do not carry the window.
const BAD_REGIONS: &[BadBind] = &[
    (
        "a region without the right to bind",
        2,
        |s, w| {
            let region = s.driver.region(4096, 1);
            s.driver.bind(s.b, w, 5, &Opening { region: &region, ..s.opening(64, 128, READ) })
        },
        MwBind,
    ),
    (
        "WRITEs into a region that may not be written",
        2,
        |s, w| {
            let region = s.driver.region(4096, 1 << 4);
            s.driver.bind(s.b, w, 5, &Opening { region: &region, ..s.opening(64, 128, WRITE) })
        },
        MwBind,
    ),
    (
        "atomics on such a region",
        1,
        |s, w| {
            let region = s.driver.region(4096, 1 << 4);
            s.driver.bind(s.b, w, 5, &Opening { region: &region, ..s.opening(64, 128, right::ATOMIC) })
        },
        MwBind,
    ),
    ("a byte past the region", 2, |s, w| s.driver.bind(s.b, w, 5, &s.opening(64, 4033, READ)), MwBind),
    (
        "a byte before it",
        2,
        |s, w| umr(good(s, w), |u| u.klm.as_mut().expect("a piece").address -= 65),
        MwBind,
    ),
    (
        "a piece shorter than the window",
        2,
        |s, w| umr(good(s, w), |u| u.klm.as_mut().expect("a piece").byte_count = 127),
        MwBind,
    ),
    ("addresses that wrap", 2, |s, w| umr(good(s, w), |u| u.context.start = u64::MAX - 100), MwBind),
    ("no length", 2, |s, w| umr(good(s, w), |u| u.context.len = 0), MwBind),
    ("no region", 2, |s, w| umr(good(s, w), |u| u.klm.as_mut().expect("a piece").mkey ^= 1), MwBind),
    (
        "a window in place of the region",
        1,
        |s, w| {
            let other = s.driver.window(1);
            umr(good(s, w), |u| u.klm.as_mut().expect("a piece").mkey = other.rkey)
        },
        MwBind,
    ),
];

const BAD_WINDOWS: &[BadBind] = &[
    ("no window", 2, |s, w| WorkRequest { immediate: [0xff; 4], ..good(s, w) }, MwBind),
    (
        "a region in place of the window",
        2,
        |s, w| WorkRequest { immediate: s.theirs.rkey.to_be_bytes(), ..good(s, w) },
        MwBind,
    ),
    ("a window of the other type", 2, |s, w| good(s, &Window { kind: 1, ..*w }), MwBind),
    ("and the other way round", 1, |s, w| good(s, &Window { kind: 2, ..*w }), MwBind),
    (
        "another domain's window",
        1,
        |s, _| {
            let own = s.driver.pd;
            s.driver.pd = s.driver.nic.alloc_pd(s.driver.context).expect("a PD").handle;
            let window = s.driver.window(1);
            s.driver.pd = own;
            good(s, &window)
        },
        MwBind,
    ),
    (
        "another domain's region",
        1,
        |s, w| {
            let own = s.driver.pd;
            s.driver.pd = s.driver.nic.alloc_pd(s.driver.context).expect("a PD").handle;
            let region = s.driver.region(4096, BINDABLE);
            s.driver.pd = own;
            s.driver.bind(s.b, w, 5, &Opening { region: &region, ..s.opening(64, 128, READ) })
        },
        MwBind,
    ),
];

const MALFORMED: &[BadBind] = &[
    ("for another queue", 2, |s, w| umr(good(s, w), |u| u.context.qpn ^= 1), LocalQpOperation),
    (
        "a list that is elsewhere",
        2,
        |s, w| umr(good(s, w), |u| u.control.flags ^= flag::INLINE),
        LocalQpOperation,
    ),
    ("a list of five pieces", 2, |s, w| umr(good(s, w), |u| u.control.octowords = 8), LocalQpOperation),
    (
        "a field that no bind changes",
        2,
        |s, w| umr(good(s, w), |u| u.control.mask |= 1 << 12),
        LocalQpOperation,
    ),
    ("half a bind", 2, |s, w| umr(good(s, w), |u| u.control.mask ^= change::LEN), LocalQpOperation),
];

#[test]
fn a_bind_that_may_not_be_fails_and_opens_nothing() {
    for (name, kind, make, wanted) in [BAD_REGIONS, BAD_WINDOWS, MALFORMED].concat() {
        let mut s = WindowPair::new("bad-bind");
        let window = s.driver.window(kind);
        let bad = make(&mut s, &window);
        // One before it and one behind, as with every WQE that fails.
        let near = WorkRequest::write(&s.ours, 0, 8, &s.ours, 64);
        s.driver.lay(s.b, &near).lay(s.b, &bad).lay(s.b, &near).ring_doorbell(s.b).settle();
        assert_eq!(s.ends(s.b), [None, Some(wanted), Some(CqeSyndrome::WrFlush)], "{name}");
        assert_eq!(s.driver.state(s.b), 6, "{name}");
        let (c, _) = s.others();
        let try_it = s.write(64, 8, window.key(5));
        assert_eq!(s.done(c, &try_it), Some(CqeSyndrome::RemoteAccess), "{name}: the window");
        assert_eq!(errno(s.driver.nic.dereg_mr(s.driver.context, s.theirs.handle)), 0, "{name}: the region");
    }
}

#[test]
fn a_datagram_queue_binds_nothing() {
    let mut s = WindowPair::of("datagram", ServiceType::Ud);
    let window = s.driver.window(1);
    let bind = s.driver.bind(s.b, &window, 1, &s.opening(0, 64, READ));
    assert_eq!(s.done(s.b, &bind), Some(CqeSyndrome::LocalQpOperation));
}

#[test]
fn a_bound_type_2_window_must_be_closed_before_it_is_bound_again() {
    let mut s = WindowPair::new("bound");
    let window = s.driver.window(2);
    let first = s.bind(&window, 1, 0, 64, WRITE);
    assert_eq!(s.done(s.b, &WorkRequest::local_invalidate(first)), None);
    let second = s.bind(&window, 2, 64, 64, WRITE);
    let write = s.write(64, 8, second);
    assert_eq!(s.done(s.a, &write), None);
    let third = s.driver.bind(s.b, &window, 3, &s.opening(128, 64, WRITE));
    assert_eq!(s.done(s.b, &third), Some(CqeSyndrome::MwBind), "it is bound");
}

#[test]
fn local_invalidation_closes_what_this_queue_opened() {
    for (name, others, before, wanted) in [
        ("its own", false, true, None),
        ("another queue's", true, true, Some(CqeSyndrome::MwBind)),
        ("one that is free", false, false, Some(CqeSyndrome::MwBind)),
    ] {
        let mut s = WindowPair::new("invalidate");
        let window = s.driver.window(2);
        let key = if before { s.bind(&window, 1, 0, 64, WRITE) } else { window.rkey };
        let by = if others { s.others().1 } else { s.b };
        assert_eq!(s.done(by, &WorkRequest::local_invalidate(key)), wanted, "{name}");
        // A queue in error answers nobody.
        if wanted.is_none() || others {
            let write = s.write(0, 8, key);
            assert_eq!(s.done(s.a, &write).is_none(), others, "{name}: the window afterwards");
        }
    }
    for (name, kind) in [("a region", None), ("a type-1 window", Some(1))] {
        let mut s = WindowPair::new("invalidate-other");
        let key = kind.map_or(s.theirs.rkey, |kind| {
            let window = s.driver.window(kind);
            s.bind(&window, 1, 0, 64, WRITE)
        });
        assert_eq!(s.done(s.b, &WorkRequest::local_invalidate(key)), Some(CqeSyndrome::MwBind), "{name}");
    }
}

#[test]
fn a_send_closes_the_receivers_window_and_its_completion_says_which() {
    let mut s = WindowPair::new("send-inv");
    let window = s.driver.window(2);
    let key = s.bind(&window, 1, 0, 64, WRITE);
    let into = s.driver.region(64, ALL);
    let sent = s.ours.fill(0, 64, 5);
    s.driver.post_receive(s.b, &[into.pointer(0, 64)]);
    // The WRITE before it still goes through, the one behind it does not.
    let (before, send) = (s.write(0, 64, key), WorkRequest::send_invalidate(&s.ours, 0, 24, key));
    s.driver.lay(s.a, &before).lay(s.a, &send).lay(s.a, &before).ring_doorbell(s.a).settle();
    assert_eq!(s.ends(s.a), [None, None, Some(CqeSyndrome::RemoteAccess)]);
    let cqe = s.driver.poll_receive(s.b).expect("a receive");
    assert_eq!(cqe.opcode(), Some(CqeOpcode::ResponderSendInvalidate));
    assert_eq!((cqe.byte_count(), cqe.immediate()), (24, key.to_be_bytes()));
    assert_eq!((s.theirs.block.bytes(0, 64), into.block.bytes(0, 24)), (sent.clone(), sent[..24].to_vec()));
    assert_eq!(s.driver.counters().windows_invalidated, 1);
    assert_eq!(errno(s.driver.nic.dereg_mr(s.driver.context, s.theirs.handle)), 0, "nothing is bound to it");
}

#[test]
fn a_send_may_close_nothing_but_an_open_window_of_its_queue() {
    type Key = fn(&mut WindowPair) -> u32;
    let cases: [(&str, Key); 6] = [
        ("a region", |s| s.theirs.rkey),
        ("no key at all", |_| 0x00ff_ff00),
        ("a type-1 window", |s| {
            let window = s.driver.window(1);
            s.bind(&window, 1, 0, 64, WRITE)
        }),
        ("a window that is free", |s| s.driver.window(2).rkey),
        ("the key of another bind", |s| {
            let window = s.driver.window(2);
            s.bind(&window, 1, 0, 64, WRITE) ^ 1
        }),
        ("another queue's window", |s| {
            let (window, other) = (s.driver.window(2), s.others().1);
            let bind = s.driver.bind(other, &window, 1, &s.opening(0, 64, WRITE));
            assert_eq!(s.done(other, &bind), None);
            window.key(1)
        }),
    ];
    for (name, key) in cases {
        let mut s = WindowPair::new("send-inv-bad");
        let key = key(&mut s);
        let into = s.driver.region(64, ALL);
        s.driver.post_receive(s.b, &[into.pointer(0, 64)]);
        let send = WorkRequest::send_invalidate(&s.ours, 0, 24, key);
        assert_eq!(s.done(s.a, &send), Some(CqeSyndrome::RemoteAccess), "{name}");
        let cqe = s.driver.poll_receive(s.b).expect("the receive");
        assert_eq!(syndrome(&cqe), Some(CqeSyndrome::WrFlush), "{name}");
        let events: Vec<u32> = s.driver.sinks.take_events().iter().map(|event| event.kind).collect();
        assert!(events.contains(&event_type::QP_ACCESS_ERR), "{name}: {events:?}");
    }
}

#[test]
fn a_type_1_window_opens_to_its_domain_and_moves_without_being_closed() {
    let mut s = WindowPair::new("type-1");
    let window = s.driver.window(1);
    let first = s.bind(&window, 1, 0, 64, WRITE);
    let ((c, d), write) = (s.others(), s.write(0, 8, first));
    assert_eq!(s.done(c, &write), None, "any queue of the domain");
    // Bound by another queue, elsewhere.
    let bind = s.driver.bind(d, &window, 2, &s.opening(64, 64, WRITE));
    assert_eq!(s.done(d, &bind), None);
    let write = s.write(64, 8, window.key(2));
    assert_eq!(s.done(s.a, &write), None);
    let (moved, old) = (s.write(0, 8, window.key(2)), s.write(0, 8, first));
    assert_eq!(s.done(s.a, &moved), Some(CqeSyndrome::RemoteAccess), "what it opened before");
    assert_eq!(s.done(c, &old), Some(CqeSyndrome::RemoteAccess), "under the key of before");
    // A queue of another domain.
    let own = s.driver.pd;
    s.driver.pd = s.driver.nic.alloc_pd(s.driver.context).expect("a PD").handle;
    let (e, _) = s.others();
    let ours = s.driver.region(64, ALL);
    s.driver.pd = own;
    let write = WorkRequest::write(&ours, 0, 8, &s.theirs, 64).through(window.key(2));
    assert_eq!(s.done(e, &write), Some(CqeSyndrome::RemoteAccess), "another domain");
}

#[test]
fn a_bind_of_no_length_closes() {
    for kind in [1, 2] {
        let mut s = WindowPair::new("close");
        let window = s.driver.window(kind);
        let key = s.bind(&window, 1, 0, 64, WRITE);
        assert_eq!(s.done(s.b, &WorkRequest::close(&window, 9)), None, "type {kind}");
        assert_eq!(errno(s.driver.nic.dereg_mr(s.driver.context, s.theirs.handle)), 0, "type {kind}");
        let write = s.write(0, 8, key);
        assert_eq!(s.done(s.a, &write), Some(CqeSyndrome::RemoteAccess), "type {kind}");
    }
}

#[test]
fn where_addresses_count_from_zero_an_atomic_still_needs_aligned_bytes() {
    for (at, wanted) in [(64, None), (68, Some(CqeSyndrome::RemoteAccess))] {
        let mut s = WindowPair::new("zero-based");
        let window = s.driver.window(2);
        let mut bind = s.driver.bind(s.b, &window, 1, &s.opening(at, 64, EVERY));
        bind.umr.as_mut().expect("a bind").context.start = 0;
        assert_eq!(s.done(s.b, &bind), None);
        let key = window.key(1);
        let add =
            WorkRequest { remote: Some((8, key)), ..WorkRequest::fetch_add(&s.ours, 0, (&s.theirs, 0), 3) };
        assert_eq!(s.done(s.a, &add), wanted, "at {at}");
        let expected = if wanted.is_none() { 3u64 } else { 0 };
        assert_eq!(s.theirs.block.bytes(72, 8), expected.to_ne_bytes());
    }
}

#[test]
fn a_region_with_open_windows_stays_as_it_is() {
    let mut s = WindowPair::new("busy");
    let context = s.driver.context;
    let (window, other) = (s.driver.window(2), s.driver.window(1));
    let key = s.bind(&window, 1, 0, 64, WRITE);
    s.bind(&other, 1, 0, 64, READ);
    let mr = s.theirs.handle;
    let (flags, start) = (rereg_change::ACCESS, s.theirs.block.address());
    let rereg = RegMr { start, length: 4096, iova: start, pd: s.driver.pd, access: 1 };
    for closed in [WorkRequest::local_invalidate(key), WorkRequest::close(&other, 2)] {
        assert_eq!(errno(s.driver.nic.dereg_mr(context, mr)), errno::EBUSY);
        assert_eq!(errno(s.driver.nic.rereg_mr(context, mr, flags, &rereg)), errno::EBUSY);
        assert_eq!(s.done(s.b, &closed), None);
    }
    assert_eq!(errno(s.driver.nic.rereg_mr(context, mr, flags, &rereg)), 0);
    assert_eq!(errno(s.driver.nic.dereg_mr(context, mr)), 0);
    assert_eq!(errno(s.driver.nic.dereg_mr(context, mr)), errno::EINVAL);
}

#[test]
fn windows_go_with_their_command_their_queue_and_their_open() {
    let mut s = WindowPair::new("go");
    let context = s.driver.context;
    let window = s.driver.window(2);
    let key = s.bind(&window, 1, 0, 64, WRITE);
    assert_eq!(errno(s.driver.nic.dealloc_mw(context, window.handle)), 0, "bound or not");
    assert_eq!(errno(s.driver.nic.dealloc_mw(context, window.handle)), errno::EINVAL);
    let write = s.write(0, 8, key);
    assert_eq!(s.done(s.a, &write), Some(CqeSyndrome::RemoteAccess));
    assert_ne!(s.driver.window(2).rkey, key, "the key does not come back at once");

    let (c, d) = s.others();
    let window = s.driver.window(2);
    let bind = s.driver.bind(d, &window, 1, &s.opening(0, 64, WRITE));
    assert_eq!(s.done(d, &bind), None);
    assert_eq!(errno(s.driver.nic.dereg_mr(context, s.theirs.handle)), errno::EBUSY);
    s.driver.replace_qp(d);
    assert_eq!(errno(s.driver.nic.dereg_mr(context, s.theirs.handle)), 0, "its queue is gone");
    assert_eq!(s.driver.state(c), 3);

    // An open is closed with windows that are bound, by whichever order of handles.
    let mut s = WindowPair::new("close-open");
    let window = s.driver.window(2);
    s.bind(&window, 1, 0, 64, WRITE);
    assert_eq!(errno(s.driver.nic.dealloc_pd(s.driver.context, s.driver.pd)), errno::EBUSY);
    s.driver.nic.close_context(s.driver.context);
    for kind in [0, 3, 255] {
        let mut s = WindowPair::new("kinds");
        let request = mlx5_device::command::AllocMw { pd: s.driver.pd, kind };
        assert_eq!(errno(s.driver.nic.alloc_mw(s.driver.context, &request)), errno::EINVAL, "type {kind}");
        let request = mlx5_device::command::AllocMw { pd: 77, kind: 1 };
        assert_eq!(errno(s.driver.nic.alloc_mw(s.driver.context, &request)), errno::EINVAL, "no such PD");
    }
}

#[test]
fn a_window_is_open_for_what_is_posted_behind_its_bind_and_closed_behind_its_end() {
    let mut s = WindowPair::new("order");
    let window = s.driver.window(2);
    let bind = s.driver.bind(s.b, &window, 1, &s.opening(0, 64, WRITE)).unsignalled();
    let into = s.driver.region(64, ALL);
    s.driver.post_receive(s.a, &[into.pointer(0, 64)]);
    // Bind, and a SEND that tells the peer of it: one doorbell.
    let tell = WorkRequest::send(&s.ours, 0, 8);
    s.driver.lay(s.b, &bind).lay(s.b, &tell).ring_doorbell(s.b);
    while s.driver.poll_receive(s.a).is_none() {
        s.driver.poll();
    }
    let write = s.write(0, 8, window.key(1));
    assert_eq!(s.done(s.a, &write), None);
    // An unsignalled bind has no completion of its own.
    let cqe = s.driver.poll_send(s.b).expect("the SEND's");
    assert_eq!((cqe.send_opcode(), cqe.wqe_counter()), (0x0a, 3));
    assert!(s.driver.poll_send(s.b).is_none());
    // Invalidation behind a fence waits for a READ of the same queue; both complete in order.
    let source = s.driver.region(4096, ALL);
    let read = WorkRequest::read(&s.ours, 0, 2048, &source, 0);
    let end = WorkRequest { fence: true, ..WorkRequest::local_invalidate(window.key(1)) };
    s.driver.lay(s.b, &read).lay(s.b, &end).ring_doorbell(s.b).settle();
    let done: Vec<_> =
        std::iter::from_fn(|| s.driver.poll_send(s.b)).map(|c| (c.opcode(), c.send_opcode())).collect();
    assert_eq!(done, [(Some(CqeOpcode::Requester), 0x10), (Some(CqeOpcode::Requester), 0x25)]);
}
