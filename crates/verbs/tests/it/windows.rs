//! Memory windows of both types: opened, used by a peer, closed in every way, refused.

use measure::need;
use verbs::code::{Access, WcOpcode, WcStatus};
use verbs::{Mr, Mw, MwKind, Opening, Pages, Payload, ReceiveRequest, Remote, SendOperation, SendRequest};

use crate::pair::{self, Pair};

const HERE: usize = 0;
const THERE: usize = 1;

/// A pair, and a region of the far end that peers reach through windows only.
struct Fixture {
    pair: Pair,
    region: Mr<Pages>,
}

impl Fixture {
    fn new(context: &verbs::Context) -> Self {
        let pair = Pair::rc(context);
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let region = Mr::register(&pair.pd, Pages::new(4096).unwrap(), access).unwrap();
        pair.memory[HERE].write(0, b"through a window");
        Self { pair, region }
    }

    /// Binds on the far end; gives the key.
    fn bind(&mut self, window: &mut Mw, rights: Access) -> u32 {
        let opening = Opening::new(&self.region, 64..192, Access::LOCAL_WRITE | rights);
        let key = match window.kind() {
            MwKind::One => self.pair.qps[THERE].bind(7, window, Some(&opening)).unwrap(),
            MwKind::Two => {
                let key = window.key(5);
                self.pair.qps[THERE].post_bind(7, window, key, &opening).unwrap();
                key
            }
        };
        let done = self.pair.completion(THERE);
        assert_eq!((done.id(), done.status(), done.opcode()), (7, WcStatus::Success, WcOpcode::BindMw));
        key
    }

    /// Posts on the near end, and waits.
    fn end(&mut self, operation: SendOperation, range: std::ops::Range<usize>) -> WcStatus {
        let entries = [self.pair.memory[HERE].sge(range).unwrap()];
        self.pair.qps[HERE].post_send(&SendRequest::new(1, operation, Payload::Gather(&entries))).unwrap();
        self.pair.completion(HERE).status()
    }

    fn remote(&self, offset: usize, rkey: u32) -> Remote {
        Remote { address: self.region.address() + offset as u64, rkey }
    }

    fn write(&mut self, offset: usize, rkey: u32) -> WcStatus {
        let remote = self.remote(offset, rkey);
        self.end(SendOperation::Write(remote), 0..16)
    }
}

#[test]
fn both_types_open_what_they_were_bound_to() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    for kind in [MwKind::One, MwKind::Two] {
        let mut s = Fixture::new(&context);
        let mut window = Mw::alloc(&s.pair.pd, kind).unwrap();
        let before = window.rkey();
        let key = s.bind(&mut window, Access::REMOTE_WRITE | Access::REMOTE_READ);
        assert_eq!((key & !0xff, key == before), (before & !0xff, false), "{kind:?}: another last byte");
        assert_eq!(s.write(64, key), WcStatus::Success, "{kind:?}");
        let mut bytes = [0; 16];
        s.region.read(64, &mut bytes);
        assert_eq!(&bytes, b"through a window", "{kind:?}");
        let remote = s.remote(72, key);
        assert_eq!(s.end(SendOperation::Read(remote), 100..108), WcStatus::Success, "{kind:?}");
        s.pair.memory[HERE].read(100, &mut bytes[..8]);
        assert_eq!(&bytes[..8], b"a window", "{kind:?}");
        // The region cannot go while it is open, and goes when the window has.
        drop(window);
        s.region.deregister().unwrap();
    }
}

#[test]
fn what_a_window_does_not_open_is_a_remote_access_error() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    type Try = fn(&mut Fixture, u32) -> WcStatus;
    let cases: [(&str, Access, Try); 5] = [
        ("a byte past its end", Access::REMOTE_WRITE, |s, key| s.write(177, key)),
        ("a byte before it", Access::REMOTE_WRITE, |s, key| s.write(63, key)),
        ("a right that it has not", Access::REMOTE_READ, |s, key| s.write(64, key)),
        ("the key of another bind", Access::REMOTE_WRITE, |s, key| s.write(64, key + 1)),
        ("the region's own key", Access::REMOTE_WRITE, |s, _| {
            let key = s.region.rkey();
            s.write(64, key)
        }),
    ];
    for (name, rights, attempt) in cases {
        for kind in [MwKind::One, MwKind::Two] {
            let mut s = Fixture::new(&context);
            let mut window = Mw::alloc(&s.pair.pd, kind).unwrap();
            let key = s.bind(&mut window, rights);
            assert_eq!(attempt(&mut s, key), WcStatus::RemoteAccess, "{kind:?}: {name}");
            let mut bytes = [1; 256];
            s.region.read(0, &mut bytes);
            assert_eq!(bytes, [0; 256], "{kind:?}: {name}: nothing is touched");
        }
    }
}

#[test]
fn a_window_is_closed_by_its_queue_by_a_peers_send_and_by_a_bind_of_nothing() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    for way in ["local invalidation", "SEND with invalidate", "bind of nothing", "unbind of type 1"] {
        let mut s = Fixture::new(&context);
        let kind = if way == "unbind of type 1" { MwKind::One } else { MwKind::Two };
        let mut window = Mw::alloc(&s.pair.pd, kind).unwrap();
        let key = s.bind(&mut window, Access::REMOTE_WRITE);
        assert_eq!(s.write(64, key), WcStatus::Success, "{way}");
        match way {
            "local invalidation" => {
                let request = SendRequest::new(3, SendOperation::LocalInvalidate(key), Payload::Gather(&[]));
                s.pair.qps[THERE].post_send(&request).unwrap();
                let done = s.pair.completion(THERE);
                assert_eq!((done.status(), done.opcode()), (WcStatus::Success, WcOpcode::LocalInvalidate));
            }
            "SEND with invalidate" => {
                let scatter = [s.pair.memory[THERE].sge(0..64).unwrap()];
                s.pair.qps[THERE].post_receive(&ReceiveRequest { id: 9, scatter: &scatter }).unwrap();
                assert_eq!(s.end(SendOperation::SendInvalidate(key), 0..16), WcStatus::Success);
                let done = s.pair.completion(THERE);
                assert_eq!((done.id(), done.byte_count()), (9, 16));
                assert_eq!(done.invalidated_rkey(), Some(key));
            }
            "bind of nothing" => {
                let nothing = Opening::new(&s.region, 64..64, Access::NONE);
                s.pair.qps[THERE].post_bind(4, &window, window.key(6), &nothing).unwrap();
                assert_eq!(s.pair.completion(THERE).status(), WcStatus::Success);
            }
            _ => {
                s.pair.qps[THERE].bind(4, &mut window, None).unwrap();
                assert_eq!(s.pair.completion(THERE).status(), WcStatus::Success);
            }
        }
        assert_eq!(s.write(64, key), WcStatus::RemoteAccess, "{way}");
        s.region.deregister().unwrap_or_else(|error| panic!("{way}: {error}"));
    }
}

#[test]
fn a_bind_that_may_not_be_is_a_bind_error() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    for what in ["a region without windows", "past the region", "a window that is open", "a key of nobody"] {
        let mut s = Fixture::new(&context);
        let mut window = Mw::alloc(&s.pair.pd, MwKind::Two).unwrap();
        let closed = Mr::register(&s.pair.pd, Pages::new(4096).unwrap(), Access::LOCAL_WRITE).unwrap();
        let key = window.key(1);
        let far = &mut s.pair.qps[THERE];
        match what {
            "a region without windows" => {
                far.post_bind(1, &window, key, &Opening::new(&closed, 0..64, Access::REMOTE_READ)).unwrap();
            }
            "past the region" => {
                far.post_bind(1, &window, key, &Opening::new(&s.region, 64..4097, Access::REMOTE_READ))
                    .unwrap();
            }
            "a window that is open" => {
                s.bind(&mut window, Access::REMOTE_READ);
                let again = Opening::new(&s.region, 0..64, Access::REMOTE_READ);
                s.pair.qps[THERE].post_bind(1, &window, key, &again).unwrap();
            }
            _ => {
                let nobody = SendOperation::LocalInvalidate(0x00ab_cd00);
                far.post_send(&SendRequest::new(1, nobody, Payload::Gather(&[]))).unwrap();
            }
        }
        let done = s.pair.completion(THERE);
        assert_eq!((done.id(), done.status()), (1, WcStatus::MwBind), "{what}");
    }
}

#[test]
fn a_region_is_not_given_up_while_a_window_opens_it_and_types_are_kept_apart() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let mut s = Fixture::new(&context);
    let mut window = Mw::alloc(&s.pair.pd, MwKind::Two).unwrap();
    // `ibv_bind_mw` is for type 1.
    let opening = Opening::new(&s.region, 64..192, Access::REMOTE_READ);
    let refused = s.pair.qps[THERE].bind(1, &mut window, Some(&opening)).unwrap_err();
    assert_eq!(refused.source.raw_os_error(), Some(libc::EINVAL));
    s.bind(&mut window, Access::REMOTE_READ);
    let error = s.region.deregister().unwrap_err().to_string();
    assert!(error.contains("busy"), "{error}");
}
