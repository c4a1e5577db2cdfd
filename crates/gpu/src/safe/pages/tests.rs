//! The registry against a driver that behaves as CUDA: it refuses overlaps and unregisters only whole runs.

use super::*;

/// What the driver has, and what it refuses.
#[derive(Default)]
struct Driver {
    registered: BTreeMap<usize, usize>,
    /// Pages of a card: not memory.
    card: Vec<usize>,
    /// Whether registers may be registered: `PeerMappingOverride=1`.
    peer_mapping: bool,
    calls: usize,
    /// The n-th call from now on that fails for another reason.
    fail_at: Option<usize>,
}

fn error(code: u32) -> Error {
    let (name, text) = (format!("CUDA_ERROR_{code}"), "refused".into());
    Error::Call { call: "cuMemHostRegister_v2", what: String::new(), code, name, text }
}

impl Registrar for Driver {
    fn register(&mut self, start: usize, len: usize, io: bool) -> Result<()> {
        self.calls += 1;
        assert!(
            start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && len > 0,
            "{len} bytes at {start:#x}"
        );
        if self.fail_at == Some(self.calls) {
            return Err(error(code::OUT_OF_MEMORY));
        }
        if self.registered.iter().any(|(first, bytes)| start < first + bytes && *first < start + len) {
            return Err(error(code::HOST_MEMORY_ALREADY_REGISTERED));
        }
        let of_card = self.card.iter().any(|page| (start..start + len).contains(page));
        if io != of_card || io && !self.peer_mapping {
            return Err(error(if of_card && io { code::NOT_PERMITTED } else { code::INVALID_VALUE }));
        }
        self.registered.insert(start, len);
        Ok(())
    }

    fn unregister(&mut self, start: usize) -> Result<()> {
        self.registered.remove(&start).map(drop).ok_or_else(|| error(code::INVALID_VALUE))
    }
}

const P: usize = PAGE;

fn pages() -> Pages<Driver> {
    Pages::new(Driver::default())
}

#[test]
fn records_that_share_a_page_are_one_registration_until_the_last_is_gone() {
    let mut pages = pages();
    let first = pages.acquire(10 * P, 8, Kind::Memory).unwrap();
    let second = pages.acquire(10 * P + 64, 8, Kind::Memory).unwrap();
    assert_eq!((pages.registrar.calls, pages.len()), (1, 1));
    pages.release(&first);
    assert_eq!(pages.registrar.registered.len(), 1);
    pages.release(&second);
    assert_eq!((pages.registrar.registered.len(), pages.len()), (0, 0));
}

#[test]
fn a_range_is_widened_to_whole_pages() {
    for (start, len, expected) in [
        (10 * P, P, (10 * P, P)),
        (10 * P + 1, 1, (10 * P, P)),
        (10 * P + 64, P, (10 * P, 2 * P)),
        (11 * P - 1, 2, (10 * P, 2 * P)),
        (10 * P, 3 * P + 1, (10 * P, 4 * P)),
    ] {
        let mut pages = pages();
        pages.acquire(start, len, Kind::Memory).unwrap();
        let found: Vec<(usize, usize)> = pages.registrar.registered.into_iter().collect();
        assert_eq!(found, [expected], "{len} bytes at {start:#x}");
    }
}

#[test]
fn only_the_gaps_of_a_range_are_registered() {
    let mut pages = pages();
    let held =
        [pages.acquire(11 * P, P, Kind::Memory).unwrap(), pages.acquire(14 * P, P, Kind::Memory).unwrap()];
    let wide = pages.acquire(10 * P, 6 * P, Kind::Memory).unwrap();
    assert_eq!(wide.extents, [10 * P, 11 * P, 12 * P, 14 * P, 15 * P]);
    held.iter().for_each(|share| pages.release(share));
    assert_eq!(pages.registrar.registered.len(), 5, "the wide one still uses them");
    pages.release(&wide);
    assert_eq!(pages.registrar.registered.len(), 0);
}

#[test]
fn pages_that_somebody_else_registered_are_used_and_left() {
    let mut pages = pages();
    pages.registrar.registered.insert(11 * P, 2 * P);
    let share = pages.acquire(10 * P, 4 * P, Kind::Memory).unwrap();
    assert_eq!(share.how, [How::Memory, How::Others, How::Others, How::Memory]);
    let again = pages.acquire(11 * P, 8, Kind::Memory).unwrap();
    assert_eq!(again.how, [How::Others]);
    pages.release(&share);
    pages.release(&again);
    assert_eq!(pages.registrar.registered, BTreeMap::from([(11 * P, 2 * P)]));
    assert_eq!(pages.len(), 0);
}

#[test]
fn a_long_run_of_which_somebody_has_a_page_is_refused_by_one_call() {
    let mut pages = pages();
    pages.registrar.registered.insert(11 * P, P);
    assert!(pages.acquire(10 * P, ONE_BY_ONE + P, Kind::Memory).is_err());
    assert_eq!((pages.registrar.calls, pages.len()), (1, 0));
    assert!(pages.acquire(10 * P, ONE_BY_ONE, Kind::Memory).is_ok());
}

#[test]
fn a_doorbell_page_is_tried_as_registers_and_then_as_memory() {
    for (name, card, peer_mapping, expected) in [
        ("a card's, allowed", true, true, Some(How::DeviceRegisters)),
        ("memory in its place", false, false, Some(How::MemoryAfter("INVALID".into()))),
        ("a card's, not allowed", true, false, None),
    ] {
        let mut pages = pages();
        pages.registrar.peer_mapping = peer_mapping;
        pages.registrar.card = if card { vec![10 * P] } else { vec![] };
        match (pages.acquire(10 * P + 0x800, 8, Kind::Doorbell), expected) {
            (Ok(share), Some(How::MemoryAfter(_))) => {
                assert!(
                    matches!(&share.how[..], [How::MemoryAfter(words)] if words.contains("CUDA_ERROR_1")),
                    "{name}"
                );
            }
            (Ok(share), Some(how)) => assert_eq!(share.how, [how], "{name}"),
            (Err(error), None) => {
                let text = error.to_string();
                for words in ["CUDA_ERROR_800", "CUDA_ERROR_1 ", "PeerMappingOverride=1", "let the CPU ring"]
                {
                    assert!(text.contains(words), "{words:?} is missing in {text:?}");
                }
                assert_eq!((text.lines().count(), pages.len()), (1, 0));
            }
            (found, expected) => panic!("{name}: {found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn a_refusal_in_the_middle_changes_nothing() {
    for fail_at in 1..=5 {
        let mut pages = pages();
        pages.registrar.registered.insert(13 * P, P);
        let held = pages.acquire(11 * P, P, Kind::Memory).unwrap();
        pages.registrar.calls = 0;
        pages.registrar.fail_at = Some(fail_at);
        let error = pages.acquire(10 * P, 6 * P, Kind::Memory).unwrap_err();
        assert_eq!(error.code(), Some(code::OUT_OF_MEMORY), "call {fail_at}");
        let left: Vec<usize> = pages.registrar.registered.keys().copied().collect();
        assert_eq!((left, pages.len()), (vec![11 * P, 13 * P], 1), "call {fail_at}");
        pages.release(&held);
        assert_eq!(pages.len(), 0);
    }
}

#[test]
fn what_is_no_range_is_refused_before_the_driver_is_asked() {
    let mut pages = pages();
    for (start, len) in [(0, 8), (10 * P, 0), (usize::MAX - 7, 16), (usize::MAX - 7, 7)] {
        assert!(
            matches!(pages.acquire(start, len, Kind::Memory), Err(Error::Refused(_))),
            "{len} bytes at {start:#x}"
        );
    }
    assert_eq!(pages.registrar.calls, 0);
}
