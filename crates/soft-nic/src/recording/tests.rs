//! A driver's traffic is recorded and replayed; a difference is named; a file that is no whole recording is refused.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mlx5_device::Commands;
use mlx5_device::faults::{Injection, InjectionKind, Settings};

use super::events::{Event, Events, Objects, Transfer};
use super::format::{self, BLOCK_WORDS, Reader};
use super::recorder::Head;
use super::replay::replay;
use super::replayer::ReplayError;
use super::tag::Tag;
use super::values::number;
use crate::dma::Host;
use crate::testing::{Driver, QpShape, Setup, WorkRequest};

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
    Driver::new(Setup::new(name).with(|config| config.record = Some(file.to_str().unwrap().to_owned())))
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

/// A recording of some traffic in this folder; what the link counted in it, and the completions that the program saw.
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
    let mut events = Events::open(file).unwrap();
    std::iter::from_fn(|| Some(events.next_event().ok()??.2)).collect()
}

/// The requests that left.
fn sent(file: &Path) -> Vec<Transfer> {
    let sent = events(file).into_iter().filter_map(|event| match event {
        Event::Sent(transfer) if transfer.request => Some(transfer),
        _ => None,
    });
    sent.collect()
}

/// Changes the words of a recording, with checksums that fit.
fn edit(file: &Path, edited: &Path, change: impl FnOnce(&mut Vec<u64>)) {
    let mut reader = Reader::open(file).unwrap();
    let mut words = Vec::new();
    while let Some(block) = reader.block().unwrap() {
        words.extend(block);
    }
    change(&mut words);
    let mut bytes = format::header(&reader.settings, reader.start_ns);
    for piece in words.chunks(BLOCK_WORDS) {
        let mut block = Vec::new();
        format::block(piece.iter().copied(), &mut block);
        bytes.extend(block);
    }
    fs::write(edited, bytes).unwrap();
}

/// Where each entry begins.
fn entries(words: &[u64]) -> Vec<(usize, Head)> {
    let (mut at, mut found) = (0, Vec::new());
    while at < words.len() {
        let head = Head::of(words[at]);
        found.push((at, head));
        at += 1 + if head.tag < Tag::FIRST_VALUE { head.number as usize } else { 0 };
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
fn another_result_is_named_with_its_step_and_both_values() {
    let folder = Folder::new("differs");
    let (file, edited) = (recording(&folder, "differs").0, folder.0.join("edited"));
    // The kind of entry, the word of it that is changed, and what the difference names.
    for (tag, word, named) in [
        (Tag::SendRequest, 3, "a request to send"),
        (Tag::SendReply, 3, "a reply to send"),
        (Tag::Write, 3, "a write to memory"),
        (Tag::Store, 2, "a store of 32 bits"),
        (Tag::CopyInto, 2, "a copy of payload to memory"),
        (Tag::Answer, 2, "the answer to a command"),
    ] {
        edit(&file, &edited, |words| {
            let all = entries(words);
            let (at, _) = all.iter().rev().find(|(_, head)| head.tag == tag as u8).unwrap();
            words[at + word] ^= 1 << 8;
        });
        let error = replay(&edited).expect_err(named);
        assert!(matches!(error, ReplayError::Differs { .. }), "{named}: {error}");
        let text = error.to_string();
        assert!(text.contains(&format!("expected {named}")) && text.contains("came "), "{named}: {text}");
        assert!(text.contains("differs in step ") && !text.contains('\n'), "{text}");
    }
    // A question that was not asked, and one that was not recorded.
    for change in [1_i64, -1] {
        edit(&file, &edited, |words| {
            let all = entries(words);
            let (at, _) = all.iter().rev().find(|(_, head)| head.usual.count > 2).unwrap();
            words[*at] = words[*at].wrapping_add_signed(change << 8);
        });
        let error = replay(&edited).unwrap_err();
        assert!(matches!(error, ReplayError::Differs { .. }), "{change}: {error}");
    }
}

#[test]
fn no_words_of_a_file_make_a_reader_panic_or_hang() {
    let folder = Folder::new("words");
    let (file, edited) = (recording(&folder, "words").0, folder.0.join("edited"));
    let mut count = 0;
    edit(&file, &edited, |words| count = words.len());
    let mut kinds = [0; 3];
    for at in (0..count).step_by(5) {
        edit(&file, &edited, |words| words[at] ^= 1 << (at * 7 % 64));
        match replay(&edited) {
            Ok(_) => kinds[0] += 1,
            Err(ReplayError::Differs { .. }) => kinds[1] += 1,
            Err(ReplayError::Recording { .. }) => kinds[2] += 1,
            Err(error @ ReplayError::Panics { .. }) => panic!("word {at}: {error}"),
        }
        events(&edited);
    }
    // Shifts and lengths of a queue pair.
    let mut shapes = Vec::new();
    edit(&file, &edited, |words| {
        let all = entries(words)
            .into_iter()
            .filter(|(at, head)| head.tag == Tag::Command as u8 && words[at + 1] == number::CREATE_QP);
        shapes.extend(all.flat_map(|(at, head)| at + 2..=at + head.number as usize));
    });
    for at in shapes {
        edit(&file, &edited, |words| words[at] ^= 1 << 6);
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
    newer[8] = 2;
    assert!(refused(&newer, "newer").contains("a recording of version 2, and this softnic reads 1"));
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
    // The answers of the last round are there too: a replay comes to where the device stopped.
    edit(&file, &file.with_extension("edited"), |words| {
        assert_eq!(entries(words).last().unwrap().1.tag, Tag::Usual as u8);
    });
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
    let config = |config: &mut crate::config::Config| config.record = Some(file.to_str().unwrap().to_owned());
    let mut driver = Driver::new(Setup::new("second-other").with(config));
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
    let config = |config: &mut crate::config::Config| config.record = Some(file.to_str().unwrap().to_owned());
    let mut driver = Driver::new(Setup::new("locked").with(config));
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
    let last = |words: &mut Vec<u64>| words.push(*words.last().unwrap());
    edit(&file, &edited, last);
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
    let (file, edited) = (folder.0.join("pieces"), folder.0.join("edited"));
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
    // One that found no room did not leave: its result is an error and the kind of that.
    edit(&file, &edited, |words| {
        let all = entries(words);
        let (at, head) = all.iter().find(|(_, head)| head.tag == Tag::SendRequest as u8).unwrap();
        let result = at + head.number as usize - 3;
        words[result..][..2].copy_from_slice(&[1, 0]);
    });
    assert_eq!(sent(&edited), pieces[1..]);
}

#[test]
fn what_is_destroyed_is_forgotten() {
    let folder = Folder::new("destroyed");
    for closes in [false, true] {
        let file = folder.0.join(format!("destroyed-{closes}"));
        let mut driver = recorder(&format!("destroyed-{closes}"), &file);
        let (a, b) = driver.pair(QpShape::default());
        let (context, cq) = (driver.context, driver.cq(driver.qp(a).recv_cq));
        let (ring, cq) = (cq.ring.address(), cq.handle);
        driver.reset(a);
        if closes {
            driver.nic.close_context(context);
        } else {
            for qp in [a, b].map(|qp| driver.qp(qp).handle) {
                driver.nic.destroy_qp(context, qp).unwrap();
            }
            driver.nic.destroy_cq(context, cq).unwrap();
        }
        driver.nic.end_recording();
        let resets = events(&file).iter().filter(|event| **event == Event::Reset).count();
        assert_eq!(resets, 3, "one reset, two gone");
        let (mut objects, mut known) = (Objects::default(), Vec::new());
        edit(&file, &file.with_extension("edited"), |words| {
            for (at, head) in entries(words) {
                let len = if head.tag < Tag::FIRST_VALUE { head.number as usize } else { 0 };
                objects.note(Tag::of(head.tag).unwrap(), &words[at + 1..][..len]);
                known.push(objects.is_completion(ring));
            }
        });
        known.dedup();
        assert_eq!(known, [false, true, false], "unknown, made, gone");
    }
}
