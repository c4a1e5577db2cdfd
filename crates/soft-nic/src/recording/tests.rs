//! Traffic is recorded and replayed; a difference is named; a file that is no whole recording is refused.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mlx5_device::Commands;
use mlx5_device::carrier::Unsent;
use mlx5_device::command::{AddressVector, CreateCq, ModifyQp, QpCap, RegMr};
use mlx5_device::faults::{Injection, InjectionKind, Settings};
use mlx5_layout::SendOpcode;
use roce::{Now, Packet};

use super::entry::{Form, MOST_BYTES, Tag};
use super::events::{Event, Transfer};
use super::format::{self, BLOCK_WORDS, Reader};
use super::recorder::Recorder;
use super::replay::{observe, replay};
use super::replayer::ReplayError;
use crate::config::{LinkLayer, LinkPath};
use crate::dma::Host;
use crate::testing::{Driver, QpShape, Region, Setup, WorkRequest};

mod compared;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("softnic-recording-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn recorder(name: &str, file: &Path) -> Driver<Host> {
    fs::write(file, []).unwrap();
    recorded(Setup::new(name), file)
}

/// A driver of a device that is recorded; a replay has a clock.
fn recorded(setup: Setup<Host>, file: &Path) -> Driver<Host> {
    let mut driver =
        Driver::new(setup.with(|config| config.record = Some(file.to_str().unwrap().to_owned())));
    driver.nic.stamp_by(Now::default);
    driver
}

/// A driver of a recorded device on the wire; this part of its packets is overtaken.
fn on_wire(name: &str, place: u8, reorder: f64, file: &Path) -> Driver<Host> {
    fs::write(file, []).unwrap();
    let setup = Setup::new(name).with(|config| {
        (config.link_layer, config.path, config.reorder) = (LinkLayer::Roce, LinkPath::Wire, reorder);
        let [high, low, ..] = std::process::id().to_le_bytes();
        config.ipv4 = Some(Ipv4Addr::new(127, place, high, low));
    });
    recorded(setup, file)
}

/// A message with bytes of its WQE beside memory, which the device keeps at another place in each run.
fn mixed(near: &Region, far: &Region) -> WorkRequest {
    WorkRequest::new(SendOpcode::RdmaWrite).remote(far, 64).inline(&[7; 20]).pointer(near, 0, 100)
}

/// Messages of every kind; returns how many completions the program saw.
fn traffic(driver: &mut Driver<Host>, rounds: u8) -> u64 {
    let (a, b) = driver.pair(QpShape::default());
    let [near, far] = [1 << 16; 2].map(|len| driver.region(len, 0xf));
    let mut completions = 0;
    for round in 0..rounds {
        near.fill(0, 5000, round);
        driver.post_receive(b, &[far.pointer(0, 64)]);
        driver.post(a, &WorkRequest::write(&near, 0, 5000, &far, 64));
        driver.post(a, &WorkRequest::read(&near, 8192, 3000, &far, 64));
        driver.post(a, &WorkRequest::fetch_add(&near, 0, (&far, 8), 3));
        driver.post(a, &WorkRequest::send(&near, 0, 16));
        driver.settle();
        completions += std::iter::from_fn(|| driver.poll_send(a)).count();
        completions += std::iter::from_fn(|| driver.poll_receive(b)).count();
    }
    completions as u64
}

/// A recording of some traffic in this folder; what its link counted, and the completions the program saw.
fn recording(folder: &Folder, name: &str) -> (PathBuf, [u64; 2]) {
    let file = folder.0.join(name);
    let mut driver = recorder(name, &file);
    driver.nic.set(&Settings { messages_per_second: Some(None), ..Settings::default() }).unwrap();
    let missing = Injection { qpn: 0xffff, kind: InjectionKind::Drop(None) };
    driver.nic.inject(missing).expect_err("there is no such queue");
    let completions = traffic(&mut driver, 3);
    let counters = driver.nic.link().counters();
    let sent = ["link_requests_sent", "link_replies_sent"];
    let packets = counters.fields().filter(|(name, _)| sent.contains(name)).map(|(_, count)| count).sum();
    driver.nic.end_recording();
    traffic(&mut driver, 1);
    (file, [packets, completions])
}

/// The events of a recording until its end or what is wrong with it.
fn events(file: &Path) -> Vec<Event> {
    let events = Arc::new(Mutex::new(Vec::new()));
    let taken = events.clone();
    let _ = observe(file, Box::new(move |_, _, event| taken.lock().unwrap().push(event)));
    std::mem::take(&mut events.lock().unwrap())
}

/// The requests that left.
fn sent(file: &Path) -> Vec<Transfer> {
    let sent = events(file).into_iter().filter_map(|event| match event {
        Event::Sent(transfer) if transfer.request => Some(transfer),
        _ => None,
    });
    sent.collect()
}

/// Changes the bytes of a recording's blocks, with checksums that fit.
fn edit(file: &Path, edited: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut reader = Reader::open(file).unwrap();
    let mut bytes = Vec::new();
    while let Some(block) = reader.block().unwrap() {
        bytes.extend(block.into_iter().flat_map(u64::to_le_bytes));
    }
    change(&mut bytes);
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|eight| u64::from_le_bytes(*eight)).collect();
    let mut bytes = format::header(&reader.settings, reader.start_ns);
    for piece in words.chunks(BLOCK_WORDS) {
        let mut block = Vec::new();
        format::block(piece.iter().copied(), &mut block);
        bytes.extend(block);
    }
    fs::write(edited, bytes).unwrap();
}

/// Kind and bytes of each entry.
fn entries(bytes: &[u8]) -> Vec<(Tag, std::ops::Range<usize>)> {
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        let head = u64::from_le_bytes(bytes[at..][..8].try_into().unwrap());
        let tag = Tag::of(head as u8).unwrap();
        let begin = at;
        at += 8 + match tag.form() {
            Form::Time => 0,
            Form::Bytes => (head >> 32).next_multiple_of(8) as usize,
            Form::Values => 8 * (head >> 24 & 0xffff).count_ones() as usize,
        };
        found.push((tag, begin..at));
    }
    found
}

#[test]
fn what_was_recorded_replays_to_the_last_completion_and_again() {
    let folder = Folder::new("replays");
    let (file, happened) = recording(&folder, "replays");
    let replayed = replay(&file).unwrap();
    assert!(happened[0] > 12 && happened[1] == 15, "{happened:?}");
    assert_eq!([replayed.packets, replayed.completions], happened);
    assert_eq!(replay(&file).unwrap(), replayed);
}

#[test]
fn another_result_is_named_with_its_step_and_what_the_device_did() {
    let folder = Folder::new("differs");
    let (file, edited) = (recording(&folder, "differs").0, folder.0.join("edited"));
    let differs = |change: &dyn Fn(&mut Vec<u8>)| {
        edit(&file, &edited, |bytes| change(bytes));
        match replay(&edited) {
            Err(error @ ReplayError::Differs { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let last = |bytes: &[u8], tag: Tag| entries(bytes).into_iter().rfind(|(of, _)| *of == tag).unwrap().1;
    // The digest of the round in which the last message of a WRITE left.
    let mut messages = 0;
    edit(&file, &edited, |bytes| {
        messages = entries(bytes).iter().filter(|(tag, _)| *tag == Tag::Record).count()
    });
    let text = differs(&|bytes| {
        let all = entries(bytes);
        let (at, _) = all.iter().enumerate().rfind(|(_, (tag, _))| *tag == Tag::Record).unwrap();
        let before = all[..at].iter().rfind(|(tag, _)| *tag == Tag::Round).unwrap();
        bytes[before.1.start + 2] ^= 1;
    });
    assert!(
        text.contains("differs in step ")
            && text.contains("a packet to send through shared memory (Packet {"),
        "{text}"
    );
    assert!(text.contains("expected what was recorded (digest ") && !text.contains('\n'), "{text}");
    assert!(
        differs(&|bytes| {
            let end = last(bytes, Tag::End).end;
            bytes[end - 1] ^= 1;
        })
        .contains("expected what was recorded"),
        "the end's digest"
    );
    // A question that was not asked, and one that was not recorded.
    for change in [1_u8, u8::MAX] {
        let text = differs(&|bytes| {
            let all = entries(bytes);
            let (_, entry) = all.iter().rev().find(|(_, entry)| bytes[entry.start + 1] > 2).unwrap();
            let guessed = &mut bytes[entry.start + 1];
            *guessed = guessed.wrapping_add(change);
        });
        assert!(text.contains("expected "), "{text}");
    }
}

#[test]
fn an_entry_that_is_too_long_ends_the_recording_before_it() {
    let folder = Folder::new("long");
    for (len, wanted) in [(MOST_BYTES, 3), (MOST_BYTES + 1, 1)] {
        let file = folder.0.join("long");
        fs::write(&file, []).unwrap();
        let recorder = Recorder::create(&file, "", Now(1)).unwrap();
        recorder.time(Tag::Round, Now(2));
        recorder.bytes(Tag::ReadLong, &vec![0xff; len]);
        recorder.time(Tag::Round, Now(3));
        drop(recorder);
        let mut reader = Reader::open(&file).unwrap();
        let mut tags = Vec::new();
        let error = loop {
            match reader.next_entry() {
                Ok(entry) => tags.push(entry.tag),
                Err(error) => break error.to_string(),
            }
        };
        assert_eq!(tags, [Tag::Round, Tag::ReadLong, Tag::Round][..wanted], "{len} bytes");
        assert!(error.contains("the end mark is missing"), "{error}");
    }
}

#[test]
fn bytes_that_the_device_keeps_elsewhere_in_each_run_replay() {
    let folder = Folder::new("mixed");
    let file = folder.0.join("mixed");
    let mut driver = recorder("mixed", &file);
    let (a, _) = driver.pair(QpShape::default());
    let [near, far] = [1 << 13; 2].map(|len| driver.region(len, 0xf));
    driver.post(a, &mixed(&near, &far)).settle();
    driver.nic.end_recording();
    assert_eq!(replay(&file).unwrap().completions, 1);
}

#[test]
fn the_payload_of_an_overtaken_packet_is_not_in_the_file() {
    let folder = Folder::new("overtaken");
    let (file, edited) = (folder.0.join("overtaken"), folder.0.join("edited"));
    let mut driver = on_wire("overtaken", 40, 1.0, &file);
    let (a, _) = driver.pair(QpShape::default());
    let [near, far] = [1 << 13; 2].map(|len| driver.region(len, 0xf));
    let payload: Vec<u8> = (0..5000_u32).map(|at| (at * 7 % 251) as u8).collect();
    near.block.write(0, &payload);
    driver.post(a, &WorkRequest::write(&near, 0, 5000, &far, 0));
    driver.post(a, &mixed(&near, &far));
    driver.settle();
    let overtaken = driver.counters().fields().find(|(name, _)| *name == "injected_overtaken");
    assert!(overtaken.is_some_and(|(_, count)| count > 1), "{overtaken:?}");
    driver.nic.end_recording();
    assert!(replay(&file).unwrap().packets > 5);
    edit(&file, &edited, |bytes| {
        let holds = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        assert!(!payload.chunks_exact(100).any(|part| holds(&part[..16])), "payload is in the file");
    });
}

#[test]
fn a_payload_that_cannot_be_read_is_a_fault_in_the_replay_too() {
    let folder = Folder::new("fault");
    let (file, edited) = (folder.0.join("fault"), folder.0.join("edited"));
    for (reorder, tag) in [(0.0, Tag::SendPacket), (1.0, Tag::ReadPayload)] {
        let mut driver = on_wire("fault", 41, reorder, &file);
        let (a, _) = driver.pair(QpShape::default());
        let [near, far] = [1 << 13; 2].map(|len| driver.region(len, 0xf));
        near.block.protect(0);
        driver.post(a, &WorkRequest::write(&near, 0, 100, &far, 0)).settle();
        driver.nic.end_recording();
        assert_eq!(replay(&file).unwrap().completions, 1, "{tag:?}");
        // Of the fault an answer as guessed: the payload was read.
        edit(&file, &edited, |bytes| {
            let all = entries(bytes).into_iter().filter(|(tag, _)| *tag == Tag::Failed);
            let [(_, failed)] = &all.collect::<Vec<_>>()[..] else { panic!("one fault of {tag:?}") };
            let guessed = [Tag::Guessed as u8, bytes[failed.start + 1] + 1, 0, 0, 0, 0, 0, 0];
            bytes.splice(failed.clone(), guessed);
        });
        let replayed = replay(&edited);
        assert!(matches!(replayed, Err(ReplayError::Differs { .. })), "{tag:?}: {replayed:?}");
    }
}

#[test]
fn no_words_of_a_file_make_a_reader_panic_or_hang() {
    let folder = Folder::new("words");
    let (file, edited) = (recording(&folder, "words").0, folder.0.join("edited"));
    let mut count = 0;
    edit(&file, &edited, |bytes| count = bytes.len());
    let mut kinds = [0; 3];
    for at in (0..count).step_by(5) {
        edit(&file, &edited, |bytes| bytes[at] ^= 1 << (at * 7 % 8));
        match replay(&edited) {
            Ok(_) => kinds[0] += 1,
            Err(ReplayError::Differs { .. }) => kinds[1] += 1,
            Err(ReplayError::Recording { .. }) => kinds[2] += 1,
            Err(error @ ReplayError::Panics { .. }) => panic!("byte {at}: {error}"),
        }
        events(&edited);
    }
    assert!(kinds[1] > 20 && kinds[2] > 5, "as recorded, different, refused: {kinds:?}");
}

#[test]
fn a_file_that_is_cut_off_damaged_or_foreign_is_refused_in_one_line() {
    let folder = Folder::new("refused");
    let (file, broken) = (recording(&folder, "refused").0, folder.0.join("broken"));
    let whole = fs::read(&file).unwrap();
    let refused = |bytes: &[u8], what: &str| {
        fs::write(&broken, bytes).unwrap();
        let replayed = replay(&broken);
        let Err(ReplayError::Recording { error, replayed }) = replayed else {
            panic!("{what}: {replayed:?}");
        };
        let text = ReplayError::Recording { error, replayed }.to_string();
        assert!(text.contains(broken.to_str().unwrap()) && !text.contains('\n'), "{what}: {text}");
        text
    };
    for len in (0..whole.len()).step_by(61) {
        let text = refused(&whole[..len], "cut off");
        let words = if len < 8 { "is no recording; give a file" } else { "record it again" };
        assert!(text.contains(words), "{len} bytes: {text}");
    }
    for at in (8..whole.len()).step_by(67) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        let text = refused(&bytes, "damaged");
        let known = ["damaged at byte", "cut off at byte", "a recording of version"];
        assert!(known.iter().any(|known| text.contains(known)), "byte {at}: {text}");
    }
    assert!(refused(b"{\"traceEvents\":[]}", "foreign").contains("is no recording"));
    let mut newer = whole;
    let of_records = crate::link::VERSION;
    newer[8] = of_records as u8 + 1;
    let words =
        format!("a recording of version 10.{}, and this softnic reads 10.{of_records}", of_records + 1);
    assert!(refused(&newer, "newer").contains(&words));
}

#[test]
fn a_device_that_is_dropped_without_its_end_leaves_all_that_it_did() {
    let folder = Folder::new("dropped");
    let file = folder.0.join("dropped");
    let mut driver = recorder("dropped", &file);
    let completions = traffic(&mut driver, 3);
    drop(driver);
    let Err(ReplayError::Recording { error, replayed }) = replay(&file) else { panic!("it has no end") };
    assert!(error.to_string().contains("the end mark is missing"), "{error}");
    assert_eq!(replayed.completions, completions);
    // The last round's answers are there too, as guessed or not: a replay gets to where the device stopped.
    edit(&file, &file.with_extension("edited"), |bytes| {
        let last = entries(bytes).last().unwrap().0;
        assert_ne!(last.form(), Form::Time, "{last:?}");
    });
}

#[test]
fn all_until_a_panic_is_in_the_file_though_nothing_runs_after_it() {
    let folder = Folder::new("panic");
    let file = folder.0.join("panic");
    fs::write(&file, []).unwrap();
    let recorder = Recorder::create(&file, "", Now(1)).unwrap();
    recorder.time(Tag::Round, Now(2));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        recorder.guarded(|| {
            recorder.guessed();
            panic!("a device that panics");
        })
    }));
    panicked.unwrap_err();
    std::mem::forget(recorder);
    let mut reader = Reader::open(&file).unwrap();
    let tags: Vec<_> = std::iter::from_fn(|| reader.next_entry().ok().map(|entry| entry.tag)).collect();
    assert_eq!(tags, [Tag::Round, Tag::Guessed]);
}

#[test]
fn a_file_that_cannot_grow_ends_the_recording_and_not_the_program() {
    let folder = Folder::new("full");
    let file = folder.0.join("full");
    let mut driver = recorder("full", &file);
    traffic(&mut driver, 1);
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/full", &file).unwrap();
    driver.advance(300_000_000);
    assert_eq!(traffic(&mut driver, 2), 10);
    driver.nic.end_recording();
    assert_eq!(fs::read_link(&file).unwrap(), Path::new("/dev/full"));
}

#[test]
fn a_second_process_has_a_file_of_its_own_that_only_its_user_reads() {
    let folder = Folder::new("second");
    let (file, _) = recording(&folder, "second");
    let first = fs::read(&file).unwrap();
    let taken = file.with_file_name(format!("second.{}", std::process::id()));
    fs::write(&taken, "of another").unwrap();
    let mut driver = recorded(Setup::new("second-other"), &file);
    traffic(&mut driver, 1);
    driver.nic.end_recording();
    let second = file.with_file_name(format!("second.{}.2", std::process::id()));
    assert_eq!(replay(&second).unwrap().completions, 5);
    assert_eq!(fs::metadata(&second).unwrap().mode() & 0o777, 0o600);
    assert_eq!((fs::read(&file).unwrap(), fs::read(&taken).unwrap()), (first, b"of another".to_vec()));
}

#[test]
fn a_lock_that_another_process_keeps_costs_the_name_and_not_the_recording() {
    let folder = Folder::new("locked");
    let file = folder.0.join("locked");
    fs::write(&file, []).unwrap();
    let other = fs::File::open(&file).unwrap();
    other.lock().unwrap();
    let mut driver = recorded(Setup::new("locked"), &file);
    traffic(&mut driver, 1);
    driver.nic.end_recording();
    let own = file.with_file_name(format!("locked.{}", std::process::id()));
    assert_eq!(replay(&own).unwrap().completions, 5);
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
}

#[test]
fn nothing_follows_the_end() {
    let folder = Folder::new("end");
    let (file, edited) = (recording(&folder, "end").0, folder.0.join("edited"));
    edit(&file, &edited, |bytes| bytes.extend([Tag::Guessed as u8, 0, 0, 0, 0, 0, 0, 0]));
    let refused = |file: &Path| match replay(file) {
        Err(ReplayError::Recording { error, .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refused(&edited).contains("something follows the end"), "{}", refused(&edited));
    fs::write(&edited, [fs::read(&file).unwrap(), b"more".to_vec()].concat()).unwrap();
    assert!(refused(&edited).contains("cut off at byte"), "{}", refused(&edited));
}

#[test]
fn a_long_message_is_drawn_in_the_pieces_that_left() {
    const LEN: u32 = 1 << 20;
    let folder = Folder::new("pieces");
    let file = folder.0.join("pieces");
    let mut driver = recorder("pieces", &file);
    let (a, _) = driver.pair(QpShape::default());
    let [near, far] = [LEN as usize; 2].map(|len| driver.region(len, 0xf));
    driver.post(a, &WorkRequest::write(&near, 0, LEN, &far, 0));
    driver.settle();
    driver.nic.end_recording();
    let pieces = sent(&file);
    assert!(pieces.len() > 4, "{pieces:?}");
    assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<u32>(), LEN);
    assert_eq!(pieces.iter().position(|piece| piece.last), Some(pieces.len() - 1));
    let packet = Packet::default();
    assert_eq!(Event::of_record(&packet, &Err(Unsent::Full)), None, "one without room did not leave");
}

#[test]
fn what_is_destroyed_is_forgotten() {
    let folder = Folder::new("destroyed");
    for closes in [false, true] {
        let file = folder.0.join(format!("destroyed-{closes}"));
        let mut driver = recorder(&format!("destroyed-{closes}"), &file);
        let (a, b) = driver.pair(QpShape::default());
        let context = driver.context;
        driver.reset(a);
        if closes {
            driver.nic.close_context(context);
        } else {
            for qp in [a, b].map(|qp| driver.qp(qp).handle) {
                driver.nic.destroy_qp(context, qp).unwrap();
            }
        }
        driver.nic.end_recording();
        let resets = events(&file).iter().filter(|event| **event == Event::Reset).count();
        assert_eq!(resets, 3, "one reset, two gone");
    }
}

/// A layout that changes is a further version of the format: raise [`format::VERSION`], then this sum.
#[test]
fn commands_are_encoded_as_in_this_version_of_the_format() {
    let shape =
        QpCap { max_send_wr: 1, max_recv_wr: 2, max_send_sge: 3, max_recv_sge: 4, max_inline_data: 5 };
    let cq = CreateCq {
        cqe: 1,
        cqe_size: 2,
        buffer: 3,
        record: 4,
        user_handle: 5,
        channel: Some(6),
        ignore_overrun: true,
    };
    let mr = RegMr { start: 1, length: 2, iova: 3, pd: 4, access: 5 };
    let address = AddressVector { dlid: 1, dgid: Some([2; 16]), sgid_index: 3, ..AddressVector::default() };
    let modify = ModifyQp { mask: 1, state: 2, path_mtu: 3, rq_psn: 4, address, ..ModifyQp::default() };
    let settings =
        Settings { loss: Some(0.25), reorder: Some(0.5), rate_gbps: Some(None), ..Settings::default() };
    let kind = InjectionKind::ErrorCqe(mlx5_layout::CqeSyndrome::WrFlush);
    let bytes =
        postcard::to_allocvec(&(shape, cq, mr, modify, settings, Injection { qpn: 7, kind })).unwrap();
    let sum = format::checksum(bytes.iter().map(|byte| u64::from(*byte)));
    assert_eq!((format::VERSION >> 32, bytes.len(), sum), (10, 86, 8_788_408_251_536_079_889));
    let back: (QpCap, CreateCq, RegMr, ModifyQp, Settings, Injection) = postcard::from_bytes(&bytes).unwrap();
    assert_eq!((back.0, back.4, back.5), (shape, settings, Injection { qpn: 7, kind }));
}
