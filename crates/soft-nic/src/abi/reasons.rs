//! Reasons of the last failures, for `softnic ctl explain`. The first of each kind except refused commands is
//! a line on stderr. Also counts, by name, commands refused because this NIC lacks what they ask for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use mlx5_device::command::CommandError;
use mlx5_device::reason::FLUSHED;
use mlx5_device::{About, Reason};
use roce::Now;
use serde::{Deserialize, Serialize};

use crate::os::{locked, log, system};

pub const KEPT: usize = 100;
/// Longest reason: all of them fit into an answer.
const MAX_BYTES: usize = 500;

/// Kind of refused commands, never a line on stderr: programs also ask to learn what exists, such as GIDs.
const COMMAND: &str = "command";

/// Names of refusals that get a line; a program that tries numbers must not fill its log.
const SAID: usize = 64;

/// What every libmlx5 asks at each open to learn what exists, and does without. A line for each would be
/// noise in every program's output.
const PROBED: [&str; 3] = ["DEVX method ", "GET_CONTEXT with DEVX", "QUERY_DEVICE: 0 bytes in"];

/// Whether this refusal is of what every open tries in vain.
pub fn is_probe(reason: &str) -> bool {
    PROBED.iter().any(|probe| reason.starts_with(probe))
}

/// A reason as `softnic ctl` takes it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Since 1970.
    pub ns: u64,
    pub kind: String,
    pub qpn: Option<u32>,
    pub wqe: Option<u16>,
    /// QPN of the peer that knows more.
    pub peer: Option<u32>,
    /// How many of the same followed.
    pub more: u32,
    /// One line.
    pub text: String,
}

/// What would help after a refusal. `EINVAL` has as many causes as checks, told apart by a word of its text.
fn help(error: &CommandError) -> &'static str {
    const OF_EINVAL: [(&[&str], &str); 18] = [
        (&["does not exist"], "name what this open has made, and has not destroyed"),
        (&[" at most", " is above ", " beyond "], "`ibv_devinfo -v` says what this NIC takes"),
        (&[" is not in "], "take a value of that range"),
        (&[" needs "], "add what is missing"),
        (&[" is not aligned"], "rings begin at multiples of 64 bytes, records at multiples of 8"),
        (&[" of two"], "a queue has a power of two of entries, `cqe` is one less"),
        (&[" is neither "], "take one of the two"),
        (
            &[" of an id that is "],
            "call librdmacm in order: bind, listen, accept, or address, route, connect",
        ),
        (&[" no room"], "poll the CQ empty first"),
        (&[" has no device"], "bind it, or resolve its address, first"),
        (&[" has no connection"], "connect or accept it first"),
        (&[" wrap around"], "take a region that ends below 2^64"),
        (&["reserved word", "unknown "], "send 0 there, since this NIC has no such extension"),
        (&[" flags "], "leave these flags out"),
        (&[" is missing"], "send what `rdma/ib_user_ioctl_cmds.h` lists as mandatory"),
        (&[" page offset"], "let both have the same offset in their page"),
        (&[" in state "], "ask `ibv_query_qp` for the state, and go on from there"),
        (&[" bytes"], "compare the size with the kernel's header or the manual page"),
    ];
    match error.errno {
        libc::EBUSY => "destroy its users first",
        libc::EFAULT => "map the memory first, writable where the NIC writes",
        libc::ENOMEM => "destroy some, or use more processes",
        libc::ENODEV => "`ibv_devices` has this NIC's devices, `softnic ctl list` their addresses",
        libc::EINVAL => OF_EINVAL
            .iter()
            .find(|(words, _)| words.iter().any(|word| error.reason.contains(word)))
            .map_or("compare it with the verb's manual page, and see `SOFTNIC_LOG=1`", |(_, help)| help),
        libc::EOPNOTSUPP | libc::EPROTONOSUPPORT => "do without: docs/soft-nic.md says what this NIC lacks",
        _ => "`SOFTNIC_LOG=1` shows the command",
    }
}

/// The reasons of a process; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Reasons(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// Oldest first, each with how many of the same followed it.
    last: VecDeque<(Reason, u32)>,
    said: BTreeSet<&'static str>,
    refused: BTreeMap<String, u64>,
}

impl Reasons {
    /// Keeps a reason, in one line of bounded length.
    pub fn note(&self, mut reason: Reason) {
        reason.why = reason.why.replace(|c: char| c.is_control(), " ");
        reason.why.truncate(reason.why.floor_char_boundary(MAX_BYTES));
        let mut kept = locked(&self.0);
        // As from a program that asks the same in a loop.
        if let Some((last, more)) = kept.last.back_mut()
            && (last.about, &last.why) == (reason.about, &reason.why)
        {
            *more = more.saturating_add(1);
            return;
        }
        let is_first = ![FLUSHED, COMMAND].contains(&reason.kind) && kept.said.insert(reason.kind);
        let line = is_first.then(|| reason.to_string());
        if kept.last.len() == KEPT {
            kept.last.pop_front();
        }
        kept.last.push_back((reason, 0));
        drop(kept);
        if let Some(line) = line {
            let pid = std::process::id();
            log(&format!("{line} (said once; `softnic ctl explain {pid}` has the last {KEPT} reasons)"));
        }
    }

    fn note_now(&self, about: About, kind: &'static str, why: String) {
        self.note(Reason { at: Now(system::monotonic_ns()), about, kind, why, peer: None });
    }

    /// A connection does not come about.
    pub fn note_connection(&self, why: String) {
        self.note_now(About::Connection, "connection", why);
    }

    pub fn note_refused(&self, command: &str, error: &CommandError) {
        self.note_now(About::Command, COMMAND, format!("{command}: {error}; {}", help(error)));
    }

    /// Counts a refusal for the line of counters. The first of a name, unless a probe, is a line on stderr.
    pub fn count_refusal(&self, name: &str, line: &str) {
        let mut kept = locked(&self.0);
        let count = kept.refused.entry(name.to_owned()).or_insert(0);
        *count += 1;
        let first = *count == 1 && kept.refused.len() <= SAID;
        drop(kept);
        if first && !is_probe(name) {
            log(&format!("{line} (said once)"));
        }
    }

    /// Names and counts of refusals, for the stats file.
    pub fn refusals(&self) -> Vec<(String, u64)> {
        locked(&self.0).refused.clone().into_iter().collect()
    }

    /// The reasons as `softnic ctl` takes them, the oldest first.
    pub fn failures(&self) -> Vec<Failure> {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let began = (since_1970.as_nanos() as u64).saturating_sub(system::monotonic_ns());
        let failure = |(reason, more): &(Reason, u32)| {
            let (qpn, wqe) = match reason.about {
                About::Qp(qpn, wqe) => (Some(qpn), wqe),
                _ => (None, None),
            };
            let (ns, kind, text) =
                (reason.at.0.saturating_add(began), reason.kind.to_owned(), reason.to_string());
            Failure { ns, kind, qpn, wqe, peer: reason.peer, more: *more, text }
        };
        locked(&self.0).last.iter().map(failure).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::control::MAX_ANSWER_BYTES;

    #[test]
    fn a_refused_command_says_what_would_help() {
        for (errno, reason, help) in [
            (libc::EBUSY, "PD 7 is used", "destroy its users first"),
            (libc::EFAULT, "0x1000", "map the memory first"),
            (libc::ENOMEM, "full", "use more processes"),
            (libc::ENODEV, "no port has the address 10.0.0.1", "`softnic ctl list`"),
            (libc::EINVAL, "PD 7 does not exist", "has not destroyed"),
            (libc::EINVAL, "max_send_wr 9 is above the limit of 8", "`ibv_devinfo -v`"),
            (libc::EINVAL, "SRQ limit 9: 8 at most", "`ibv_devinfo -v`"),
            (libc::EINVAL, "rq_wqe_shift 3 is not in 4..=9", "a value of that range"),
            (libc::EINVAL, "moving from Init to Rtr needs PATH_MTU too", "add what is missing"),
            (libc::EINVAL, "cqe 8 plus 1 is no power of two", "`cqe` is one less"),
            (libc::EINVAL, "queues of 3 and 4 entries: no powers of two", "of entries"),
            (libc::EINVAL, "cqe_size 32 is neither 64 nor 128", "one of the two"),
            (libc::EINVAL, "CQ ring 0x1004 or record 0x2000 is not aligned", "of 64 bytes, records"),
            (libc::EINVAL, "source GID index 9 is beyond the table of 4", "`ibv_devinfo -v`"),
            (
                libc::EINVAL,
                "a connection moves neither from shared memory to the wire nor back",
                "manual page",
            ),
            (libc::EINVAL, "LISTEN of an id that is Idle", "librdmacm in order"),
            (libc::EINVAL, "id 7 has no connection", "connect or accept it first"),
            (libc::EINVAL, "reserved words (0, 1) of RESIZE_CQ are not 0", "send 0 there"),
            (libc::EINVAL, "unknown flags 0x1 in QUERY_GID_ENTRY", "no such extension"),
            (libc::EINVAL, "access flags 0x1 do not exist", "leave these flags out"),
            (libc::EINVAL, "CQ.CREATE: attribute 0x1000 is missing", "mandatory"),
            (libc::EINVAL, "start 0x10 and iova 0x20 differ in their page offset", "the same offset"),
            (libc::EINVAL, "CQ 0x3: 8 CQEs wait, a ring of 4 has no room for them", "poll the CQ"),
            (libc::EINVAL, "the QP is in Init, not in state 3", "`ibv_query_qp`"),
            (libc::EINVAL, "an option of 5000000 bytes", "compare the size"),
            (libc::EINVAL, "CONNECT of id 7 without parameters", "manual page"),
            (libc::EOPNOTSUPP, "DEVX", "docs/soft-nic.md"),
            (libc::EPROTONOSUPPORT, "MR.ADVISE_MR", "docs/soft-nic.md"),
            (libc::EIO, "the NIC has stopped", "`SOFTNIC_LOG=1`"),
        ] {
            let reasons = Reasons::default();
            reasons.note_refused("VERB", &CommandError { errno, reason: reason.into() });
            let said = reasons.failures().remove(0).text;
            let (what, then) = said.rsplit_once("; ").expect("what would help");
            assert_eq!(what, format!("command refused: VERB: {reason} (errno {errno})"));
            assert!(then.contains(help), "{said}");
        }
    }

    /// Refusals with no value to say: there is one of it, or it is absent.
    const NO_VALUE: [&str; 11] = [
        "this open has a context already",
        "no context yet: GET_CONTEXT comes first",
        "the NIC has stopped after an internal error",
        "the connection manager has stopped after an internal error",
        "the connection manager was not opened",
        "the file is closed",
        "an address on Ethernet needs a GRH",
        "a re-registration that changes nothing",
        "a connection moves neither from shared memory to the wire nor back: reset the QP",
        "the size of an SRQ stays as it was made",
        "QP without a UAR page: there are no static registers",
    ];

    /// Errno and text of each `refusal!` and `refuse_if!` in the sources of this crate and the device's.
    fn refusals_of_sources() -> Vec<(String, String)> {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let mut folders = vec![here.join("src"), here.join("../mlx5-device/src")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && !path.ends_with("tests") {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let source = std::fs::read_to_string(path).unwrap();
                    for part in source.split("refusal!(").flat_map(|part| part.split("refuse_if!(")).skip(1) {
                        let mut pieces = part.split('"');
                        let (before, text) = (pieces.next().unwrap(), pieces.next().unwrap_or_default());
                        let errno = before.trim_end_matches([',', ' ', '\n']).rsplit([' ', '\n']).next();
                        let errno = errno.filter(|errno| errno.starts_with('E') && !errno.contains('('));
                        found.extend(errno.map(|errno| (errno.to_owned(), text.to_owned())));
                    }
                }
            }
        }
        found
    }

    #[test]
    fn a_refusal_says_on_which_value_its_check_failed() {
        let all = refusals_of_sources();
        assert!(all.len() > 100, "only {} refusals found", all.len());
        for (errno, text) in &all {
            // What it begins with names the command.
            let text = text.strip_prefix("{name}: ").unwrap_or(text);
            assert!(text.contains('{') || NO_VALUE.contains(&text), "{errno}, {text:?}: on which value?");
        }
        let helped = |reason: &str| help(&CommandError { errno: libc::EINVAL, reason: reason.to_owned() });
        let of_einval: Vec<_> = all.iter().filter(|(errno, _)| errno == "EINVAL").collect();
        let unhelped: Vec<_> = of_einval.iter().filter(|(_, text)| helped(text) == helped("")).collect();
        assert!(unhelped.len() * 3 < of_einval.len(), "no help of their own: {unhelped:#?}");
    }

    #[test]
    fn the_last_hundred_are_kept_in_short_lines_and_the_same_once() {
        let reasons = Reasons::default();
        for number in 0..150 {
            for _ in 0..=number % 2 {
                reasons.note_connection(format!("{number}\n{}", "µ".repeat(600)));
            }
        }
        let failures = reasons.failures();
        assert_eq!(failures.len(), KEPT);
        for (failure, number) in failures.iter().zip(50..) {
            let words = format!("connection: {number} µµ");
            assert_eq!((&*failure.kind, failure.qpn, failure.more), ("connection", None, number % 2));
            assert!(failure.text.starts_with(&words) && failure.text.len() < 560, "{failure:?}");
        }
        let bytes = postcard::to_allocvec(&failures).unwrap().len();
        assert!(bytes + 10 <= MAX_ANSWER_BYTES, "{bytes} bytes");
    }
}
