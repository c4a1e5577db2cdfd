//! A recording for Perfetto and `chrome://tracing`: Google's «Trace Event Format», the JSON of `traceEvents`.
//!
//! A track is a thread of that format, its number the QPN. Slices nest: `round` around what it did. Flow
//! events with one id join a message's events, from doorbell (from WQE if it rang for several) to CQE.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use soft_nic::os::locked;
use soft_nic::recording::{Event, Psn, Relation, ReplayError, Transfer, observe, start_ns};

/// Messages of a queue pair that are remembered at most.
const MAX_MESSAGES: usize = 64 * 1024;

/// The only process.
const PID: u32 = 1;

/// What is known of a queue pair's messages.
#[derive(Default)]
struct Track {
    /// Slice of a doorbell in this round that no WQE followed yet.
    rung: Option<u64>,
    /// Read and not yet sent whole: the message.
    posted: VecDeque<u64>,
    /// First PSN and message, in the order of sending.
    sent: VecDeque<(Psn, u64)>,
    newest_psn: Option<Psn>,
    /// Index and message of WQEs that have no CQE yet.
    open: VecDeque<(u16, u64)>,
    /// The last message that has its CQE: what comes for it later is no part of its flow.
    done: u64,
    /// First and last time of this round's slices.
    round: Option<(u64, u64)>,
}

impl Track {
    /// The message of what was sent, and whether it was sent before.
    fn sends(&mut self, transfer: &Transfer) -> Option<(u64, bool)> {
        if self.newest_psn.is_none_or(|newest| transfer.psn.relation_to(newest) == Relation::Ahead) {
            self.newest_psn = Some(transfer.psn);
            let message = *self.posted.front()?;
            if self.sent.back().is_none_or(|(_, last)| *last != message) {
                remember(&mut self.sent, (transfer.psn, message));
            }
        }
        let message = self.of_psn(transfer.psn)?;
        let is_new = self.posted.front() == Some(&message);
        if is_new && transfer.last {
            self.posted.pop_front();
        }
        Some((message, !is_new))
    }

    fn of_psn(&self, psn: Psn) -> Option<u64> {
        let mut sent = self.sent.iter().rev();
        let found = sent.find(|(first, _)| psn.relation_to(*first) != Relation::Duplicate);
        found.map(|(_, message)| *message).filter(|message| *message > self.done)
    }

    /// The message that a CQE completes; those before it are completed too.
    fn completes(&mut self, index: u16) -> Option<u64> {
        let at = self.open.iter().position(|(open, _)| *open == index)?;
        self.done = self.open.drain(..=at).next_back()?.1;
        // Those that were flushed send nothing more.
        while self.posted.front().is_some_and(|message| *message <= self.done) {
            self.posted.pop_front();
        }
        Some(self.done)
    }
}

fn remember<T>(queue: &mut VecDeque<T>, value: T) {
    if queue.len() == MAX_MESSAGES {
        queue.pop_front();
    }
    queue.push_back(value);
}

/// Writes the trace; the events of a round are sorted before they leave.
struct Trace<W> {
    out: W,
    tracks: BTreeMap<u32, Track>,
    messages: u64,
    /// Time of the round, and the first time that is free.
    round: u64,
    free: u64,
    /// Time, place among those of one time, and text.
    pending: Vec<(u64, u8, Value)>,
    count: u64,
}

impl<W: Write> Trace<W> {
    fn new(out: W) -> Trace<W> {
        Trace { out, tracks: BTreeMap::new(), messages: 0, round: 0, free: 0, pending: Vec::new(), count: 0 }
    }

    fn event(&mut self, value: &Value) -> io::Result<()> {
        let comma = if self.count == 0 { "" } else { "," };
        self.count += 1;
        write!(self.out, "{comma}\n{value}")
    }

    fn add(&mut self, now: u64, qpn: u32, event: &Event) -> io::Result<()> {
        if now != self.round {
            self.finish_round()?;
            self.round = now;
        }
        if !self.tracks.contains_key(&qpn) {
            let name = json!({"name": format!("QP {qpn:#x}")});
            self.event(&json!({"ph": "M", "name": "thread_name", "pid": PID, "tid": qpn, "args": name}))?;
        }
        let at = self.free.max(now);
        self.free = at.saturating_add(1);
        let track = self.tracks.entry(qpn).or_default();
        track.round = Some((track.round.map_or(at, |(first, _)| first), self.free));
        let (name, message, phase, mut args) = match event {
            Event::Doorbell { next } => {
                track.rung = Some(at);
                ("doorbell".to_owned(), None, "s", json!({"next": next}))
            }
            Event::Wqe { index, opcode, sends } => {
                self.messages += 1;
                let message = self.messages;
                if *sends {
                    remember(&mut track.posted, message);
                }
                remember(&mut track.open, (*index, message));
                let phase = match track.rung.take() {
                    Some(rung) => {
                        self.pending.push((rung, 2, flow("s", rung, qpn, message)));
                        "t"
                    }
                    None => "s",
                };
                (format!("WQE {index} {opcode}"), Some(message), phase, json!({"index": index}))
            }
            Event::Sent(transfer) => {
                let sent = if transfer.request { track.sends(transfer) } else { None };
                let mut args = json!({"psn": transfer.psn.value(), "bytes": transfer.bytes});
                if let Some((_, true)) = sent {
                    args["again"] = json!(true);
                }
                let lost = if transfer.lost { " lost" } else { "" };
                let name = format!("send {}{lost} PSN {}", transfer.what, transfer.psn.value());
                (name, sent.map(|(message, _)| message), "t", args)
            }
            Event::Arrived(transfer) => {
                let message = if transfer.request { None } else { track.of_psn(transfer.psn) };
                let args = json!({"psn": transfer.psn.value(), "bytes": transfer.bytes});
                (format!("receive {} PSN {}", transfer.what, transfer.psn.value()), message, "t", args)
            }
            Event::Completion { index, opcode, requester } => {
                let message = if *requester { track.completes(*index) } else { None };
                (format!("CQE {index} {opcode}"), message, "f", json!({"index": index}))
            }
            Event::Reset => {
                // Its PSNs and indices begin anew.
                *track = Track { round: track.round, done: self.messages, ..Track::default() };
                ("reset".to_owned(), None, "t", json!({}))
            }
        };
        if let Some(message) = message {
            args["message"] = json!(message);
            self.pending.push((at, 2, flow(phase, at, qpn, message)));
        }
        self.pending.push((at, 1, slice(&name, at, 1, qpn, args)));
        Ok(())
    }

    fn finish_round(&mut self) -> io::Result<()> {
        for (qpn, track) in &mut self.tracks {
            track.rung = None;
            if let Some((first, last)) = track.round.take() {
                self.pending.push((first, 0, slice("round", first, last - first, *qpn, json!({}))));
            }
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.sort_by_key(|(at, place, _)| (*at, *place));
        pending.iter().try_for_each(|(.., value)| self.event(value))
    }
}

/// The format counts in µs.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn slice(name: &str, at: u64, ns: u64, qpn: u32, args: Value) -> Value {
    json!({"ph": "X", "name": name, "ts": us(at), "dur": us(ns), "pid": PID, "tid": qpn, "args": args})
}

fn flow(phase: &str, at: u64, qpn: u32, message: u64) -> Value {
    json!({"ph": phase, "name": "message", "cat": "message", "id": message, "ts": us(at), "pid": PID, "tid": qpn, "bp": "e"})
}

/// Writes the trace of a recording; returns the number of events. Times count from the recording's start.
///
/// An existing file is replaced at once, at the end. For a recording that is cut off or damaged, the trace
/// has what precedes the error, which is then returned.
pub fn write(file: &Path, out: &Path) -> Result<u64> {
    let name = out.display();
    let start = start_ns(file)?;
    let held = fs::metadata(out).ok();
    let recording = fs::metadata(file).with_context(|| file.display().to_string())?;
    if held.as_ref().is_some_and(|held| (held.dev(), held.ino()) == (recording.dev(), recording.ino())) {
        bail!("{name}: is the recording itself; name another file");
    }
    // A pipe or a device cannot be replaced.
    let written = if held.is_some_and(|held| !held.is_file()) {
        File::create(out).map_err(anyhow::Error::from).and_then(|created| draw(file, start, created))
    } else {
        replace(out, |created| draw(file, start, created))
    };
    let (count, end) = written.with_context(|| format!("{name}: cannot be written; name another file"))?;
    end.with_context(|| format!("{name} has the {count} events before the first error"))?;
    Ok(count)
}

/// Writes a file beside this one, which then takes its name.
fn replace<T>(out: &Path, write: impl FnOnce(File) -> Result<T>) -> Result<T> {
    // The file that a symbolic link names is replaced, not the link.
    let out = out.canonicalize().unwrap_or_else(|_| out.to_owned());
    let mut beside = out.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let created = File::create_new(&beside)?;
    let written = write(created).and_then(|written| {
        fs::rename(&beside, &out)?;
        Ok(written)
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Writes the events; their number, and how the recording ended.
fn draw(file: &Path, start: u64, out: impl Write + Send + 'static) -> Result<(u64, Result<(), ReplayError>)> {
    let mut trace = Trace::new(BufWriter::new(out));
    write!(trace.out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let process = json!({"name": file.display().to_string()});
    trace.event(&json!({"ph": "M", "name": "process_name", "pid": PID, "args": process}))?;
    // An error of the file must not end the replay within the device: the rest is dropped.
    let drawn = Arc::new(Mutex::new((trace, Ok(()))));
    let drawing = drawn.clone();
    let end = observe(
        file,
        Box::new(move |at, qpn, event| {
            let mut drawing = locked(&drawing);
            let (trace, written) = &mut *drawing;
            if written.is_ok() {
                *written = trace.add(at.saturating_sub(start), qpn, &event);
            }
        }),
    );
    let mut drawn = locked(&drawn);
    let (trace, written) = &mut *drawn;
    std::mem::replace(written, Ok(()))?;
    trace.finish_round()?;
    write!(trace.out, "\n]}}\n")?;
    trace.out.flush()?;
    Ok((trace.count, end.map(drop)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_at_the_end_of_the_clock_are_drawn() {
        let mut trace = Trace::new(Vec::new());
        for now in [u64::MAX - 1, u64::MAX, u64::MAX, 0] {
            trace.add(now, 7, &Event::Doorbell { next: 1 }).unwrap();
        }
        trace.finish_round().unwrap();
        // The name of the track, four doorbells, and the rounds at three times.
        assert_eq!(trace.count, 8);
    }

    fn wqe(index: u16, sends: bool) -> Event {
        Event::Wqe { index, opcode: String::new(), sends }
    }

    fn sent(psn: u32) -> Event {
        Event::Sent(Transfer {
            what: "packet".to_owned(),
            psn: Psn::new(psn),
            bytes: 1,
            request: true,
            last: true,
            lost: false,
        })
    }

    /// The message of each packet that is sent.
    fn messages_of_packets(happened: &[Event]) -> Vec<Option<u64>> {
        let mut trace = Trace::new(Vec::new());
        for (now, event) in happened.iter().enumerate() {
            trace.add(now as u64, 7, event).unwrap();
        }
        trace.finish_round().unwrap();
        let text = format!("[{}]", String::from_utf8(trace.out).unwrap());
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        let sent = events.iter().filter(|event| event["name"].as_str().unwrap().starts_with("send "));
        sent.map(|event| event["args"]["message"].as_u64()).collect()
    }

    #[test]
    fn packets_belong_to_the_wqe_that_sent_them() {
        let completion = |index| Event::Completion { index, opcode: String::new(), requester: true };
        // The first sends nothing, the second one packet.
        assert_eq!(messages_of_packets(&[wqe(0, false), wqe(1, true), sent(5)]), [Some(2)]);
        // The first is flushed.
        let flushed = [wqe(0, true), completion(0), wqe(1, true), sent(5)];
        assert_eq!(messages_of_packets(&flushed), [Some(2)]);
        // The first is gone with a reset, after which smaller PSNs are new.
        let reset = [wqe(0, true), sent(50), wqe(1, true), Event::Reset, wqe(0, true), sent(5), sent(5)];
        assert_eq!(messages_of_packets(&reset), [Some(1), Some(3), Some(3)]);
    }

    #[test]
    fn a_file_that_is_not_written_whole_keeps_its_content() {
        let folder = std::env::temp_dir().join(format!("softnic-trace-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (out, link) = (folder.join("out"), folder.join("link"));
        fs::write(&out, "old").unwrap();
        std::os::unix::fs::symlink(&out, &link).unwrap();
        let failed = replace(&link, |mut file| {
            file.write_all(b"half")?;
            Err::<(), _>(anyhow::anyhow!("no room"))
        });
        failed.unwrap_err();
        assert_eq!(fs::read_to_string(&out).unwrap(), "old");
        replace(&link, |mut file| Ok(file.write_all(b"new")?)).unwrap();
        assert_eq!(
            (fs::read_to_string(&out).unwrap(), fs::read_dir(&folder).unwrap().count()),
            ("new".into(), 2)
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}
