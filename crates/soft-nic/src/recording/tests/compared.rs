//! What a device asks and does in a replay is compared with what was recorded.

use std::fs;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use mlx5_device::carrier::{Addressing, Carrier, Disposition, Icrc, Inbound, PathAddress, Payload};
use mlx5_device::memory::{Fault, Memory, Order, Segment};
use roce::{Fragment, Now, Packet};

use super::Folder;
use crate::config::Config;
use crate::dma::Host;
use crate::link::{Link, LinkConfig, record};
use crate::os::locked;
use crate::recording::carrier;
use crate::recording::entry::Tag;
use crate::recording::format::Reader;
use crate::recording::recorder::Recorder;
use crate::recording::replayer::{Replay, ReplayError, Step};
use crate::recording::source::Source;

/// In words, how a replay differs in its only round from what was recorded.
fn difference(
    folder: &Folder,
    of_recorded: impl FnOnce(&Arc<Recorder>),
    of_replayed: impl FnOnce(&Arc<Mutex<Replay>>),
) -> Option<String> {
    let file = folder.0.join("difference");
    fs::write(&file, []).unwrap();
    let recorder = Arc::new(Recorder::create(&file, &Config::default().to_toml(), Now(1)).unwrap());
    recorder.time(Tag::Round, Now(2));
    of_recorded(&recorder);
    recorder.time(Tag::Round, Now(3));
    recorder.end();
    let replay = Replay::new(Reader::open(&file).unwrap(), Some(1), None);
    let replay = Arc::new(Mutex::new(replay));
    assert!(matches!(locked(&replay).step(), Step::Round(Now(2))));
    let next = catch_unwind(AssertUnwindSafe(|| {
        of_replayed(&replay);
        locked(&replay).step()
    }));
    next.err().map(|error| error.downcast::<ReplayError>().unwrap().to_string())
}

/// In words, how a link is asked otherwise in a replay.
fn difference_of_link(
    name: &str,
    folder: &Folder,
    of_recorded: impl FnOnce(&mut Source<Link>),
    of_replayed: impl FnOnce(&mut Source<Link>),
) -> Option<String> {
    let fabric = format!("test-{}-{name}", std::process::id());
    let link = Link::join(LinkConfig { fabric, ..LinkConfig::default() }).unwrap();
    difference(
        folder,
        |recorder| of_recorded(&mut Source::Recorded(link, recorder.clone())),
        |replay| of_replayed(&mut Source::Replayed(replay.clone())),
    )
}

/// A message that has come without payload.
struct NoPayload;

impl Inbound for NoPayload {
    fn addressing(&self) -> &Addressing {
        &Addressing { path: None, to_port: None, addresses: None }
    }

    fn copy_into(&mut self, _: &[Segment], _: Order) -> Result<(), Fault> {
        Ok(())
    }

    fn copy_to_buffer(&mut self, _: &mut [u8]) -> Result<(), Fault> {
        Ok(())
    }
}

#[test]
fn a_question_with_an_answer_as_guessed_is_compared_with_what_it_asked() {
    let folder = Folder::new("asked");
    let word = 7_u64;
    let addr = &raw const word as u64;
    for (len, is_as_recorded) in [(8, true), (4, false)] {
        let differs = difference(
            &folder,
            |recorder| {
                Source::Recorded(Host::new().unwrap(), recorder.clone()).probe(addr, 8, false).unwrap()
            },
            |replay| Source::<Host>::Replayed(replay.clone()).probe(addr, len, false).unwrap(),
        );
        assert_eq!(differs.is_none(), is_as_recorded, "{differs:?}");
        if let Some(text) = differs {
            assert!(
                text.contains(&format!("the question whether memory is mapped ({addr}, 4, false)")),
                "{text}"
            );
        }
    }
}

#[test]
fn what_the_device_does_without_an_answer_is_compared_too() {
    let folder = Folder::new("done");
    let packet = Packet::default();
    let by_link = |of_recorded: &dyn Fn(&mut Source<Link>), of_replayed: &dyn Fn(&mut Source<Link>)| {
        difference_of_link("done", &folder, of_recorded, of_replayed)
    };
    let disposed = |of_replayed: Disposition| {
        difference(
            &folder,
            |recorder| {
                carrier::recorded(recorder, Tag::Rings, &mut |_, _| Disposition::Consumed, |take| {
                    take(&packet, &record::encode(&packet, 0), &mut NoPayload);
                    1
                });
            },
            |replay| {
                carrier::replayed(replay, Tag::Rings, &mut |_, _| of_replayed);
            },
        )
    };
    let written = |relaxed: bool| {
        let word = AtomicU64::new(0);
        let addr = word.as_ptr() as u64;
        difference(
            &folder,
            |recorder| {
                Source::Recorded(Host::new().unwrap(), recorder.clone()).write(addr, &[7; 8], true).unwrap()
            },
            |replay| Source::<Host>::Replayed(replay.clone()).write(addr, &[7; 8], relaxed).unwrap(),
        )
    };
    let delay = |ns| move |source: &mut Source<Link>| source.set_delay(ns);
    let rings: &dyn Fn(&mut Source<Link>) = &|source| source.ring_bells();
    let [omitted, otherwise] =
        ["expected a question with an answer as guessed", "expected what was recorded"];
    for (what, as_recorded, differs, said) in [
        ("bells", by_link(rings, rings), by_link(rings, &|_| ()), omitted),
        ("a delay", by_link(&delay(5), &delay(5)), by_link(&delay(5), &delay(6)), otherwise),
        ("a disposition", disposed(Disposition::Consumed), disposed(Disposition::NotNow), otherwise),
        ("an order", written(true), written(false), otherwise),
    ] {
        assert_eq!(as_recorded, None, "{what}");
        assert!(differs.as_ref().is_some_and(|text| text.contains(said)), "{what}: {differs:?}");
    }
}

/// How a payload leaves, and whether it did.
type Way<'a> = dyn Fn(&mut Source<Link>, Payload<'_>) -> bool + 'a;

#[test]
fn another_payload_is_a_difference_in_memory_and_on_the_wire() {
    let folder = Folder::new("payload");
    let packet = Packet::default();
    let ours = IpAddr::from([127, 0, 0, 1]);
    let ring = |source: &mut Source<Link>, payload: Payload<'_>| {
        source.send_record(&packet, 4096, &PathAddress::default(), payload).is_ok()
    };
    let wire = |source: &mut Source<Link>, payload: Payload<'_>| {
        source.send_packet(ours, ours, &packet, Icrc::Right, payload).is_ok()
    };
    let later = |source: &mut Source<Link>, payload: Payload<'_>| {
        source.read_payload(Fragment::default(), payload).is_ok()
    };
    let ways: [&Way<'_>; 3] = [&ring, &wire, &later];
    let [first, second, moved, shorter] =
        [(64, 9), (128, 5), (136, 5), (128, 4)].map(|(addr, len)| Segment { addr, len });
    let memory = [first, second];
    let segments = Payload::Segments(&memory);
    let inline = Payload::Inline(&[1, 2]);
    let mut missed = Vec::new();
    // In shared memory, on the wire, and on the wire later.
    for (what, recorded, replayed, differs) in [
        ("the same memory", segments, segments, [false; 3]),
        ("another address", segments, Payload::Segments(&[first, moved]), [true; 3]),
        ("another length", segments, Payload::Segments(&[first, shorter]), [true; 3]),
        ("no memory", segments, Payload::Nothing, [true; 3]),
        ("the same inline data", inline, Payload::Inline(&[1, 2]), [false; 3]),
        ("other inline data", inline, Payload::Inline(&[1, 3]), [true, false, true]),
    ] {
        let differences = ways.map(|send| {
            let [of_recorded, of_replayed] = [recorded, replayed].map(|payload| {
                move |source: &mut Source<Link>| {
                    send(source, payload);
                }
            });
            difference_of_link("payload", &folder, of_recorded, of_replayed).is_some()
        });
        missed.extend((differences != differs).then_some((what, differences)));
    }
    assert!(missed.is_empty(), "payloads whose differences are others: {missed:?}");
}

#[test]
fn a_read_of_another_length_is_a_difference_that_has_both() {
    let folder = Folder::new("lengths");
    let bytes = [7_u8; 64];
    let addr = bytes.as_ptr() as u64;
    let differs = difference(
        &folder,
        |recorder| Source::Recorded(Host::new().unwrap(), recorder.clone()).read(addr, &mut [0; 12]).unwrap(),
        |replay| Source::<Host>::Replayed(replay.clone()).read(addr, &mut [0; 20]).unwrap(),
    );
    let text = differs.expect("it differs");
    assert!(text.contains("expected a long read of memory with 12 bytes, came "), "{text}");
    assert!(text.contains(" with 20 bytes (as recorded"), "{text}");
}
