//! Counters of the NIC under a point: the software NIC's own, or those of a card's port and interface.
//!
//! Source: `Documentation/ABI/stable/sysfs-class-infiniband` (`counters`, `hw_counters`), `ethtool(8)`. A
//! software NIC leaves its own as its process ends (names: `softnic ctl counters`); both ends are summed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use experiment::Samples;
use serde::Deserialize;
use serde_json::json;

use crate::figure::reader::{self, Reader};

/// Where a run's NIC counts.
#[derive(Debug)]
pub enum Counters {
    /// Lines that processes append as they end.
    Software(PathBuf),
    /// Of a device below this sysfs.
    Card { sys: PathBuf, device: String },
    /// The bench reads them itself, on other hosts.
    OfBench,
    /// Why there are none.
    Absent(String),
}

/// Counters before a point.
#[derive(Debug)]
pub enum CountersBefore {
    /// Bytes of the file.
    Bytes(u64),
    Card(Result<Line, String>),
}

/// Shell, here or on a host, that reads a card's counters from sysfs and `ethtool`. Arguments: the sysfs,
/// the device.
pub const CARD_READER: &str = r#"PATH=$PATH:/usr/sbin:/sbin
device=$1/class/infiniband/$2
echo '{"kind":"ready"}'
while read -r request; do
    absent=
    test -d "$device/ports/1" || absent=",\"port\":\"no $device/ports/1 there\""
    counters=$(
        cd "$device/ports/1" && for file in counters/* hw_counters/*; do
            read -r count < "$file" && echo "$file: $count" | sed 's/^counters.//; s/^hw_counters./hw./'
        done
    )
    for interface in "$device"/device/net/*; do
        test -e "$interface" || continue
        name=${interface##*/}
        said=$(ethtool -S "$name") || absent="$absent,\"ethtool.$name\":\"\`ethtool -S $name\` fails there\""
        counters="$counters
$(echo "$said" | sed "s/^ */ethtool.$name./")"
    done
    counters=$(echo "$counters" | sed -n 's/: */:/; s/ /_/g; s/^\([A-Za-z0-9_.-]*\):\([0-9][0-9]*\)$/"\1":\2/p' | paste -s -d , -)
    printf '{"kind":"answer","nics":[{"counters":{%s},"absent":{%s}}]}\n' "$counters" "${absent#,}"
done"#;

/// A line of `softnic run --stats`, of `softnic ctl counters --json`, or of a card.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Line {
    pub counters: BTreeMap<String, f64>,
    /// Of a card: why some are not known.
    #[serde(default)]
    pub absent: BTreeMap<String, String>,
}

impl Counters {
    /// Those of a card; `root` is `/`, or a folder in tests.
    pub fn of_card(root: &Path, name: &str) -> Counters {
        let sys = root.join("sys");
        match sys.join(format!("class/infiniband/{name}/ports/1")).is_dir() {
            true => Counters::Card { sys, device: name.to_owned() },
            false => Counters::Absent(format!("no /sys/class/infiniband/{name}/ports/1")),
        }
    }

    pub fn before(&self) -> CountersBefore {
        match self {
            Counters::Software(file) => {
                CountersBefore::Bytes(fs::metadata(file).map_or(0, |file| file.len()))
            }
            Counters::Card { sys, device } => CountersBefore::Card(of_card(sys, device)),
            Counters::OfBench | Counters::Absent(_) => CountersBefore::Bytes(0),
        }
    }

    /// By how much the counters grew since then.
    pub fn grown(&self, before: &CountersBefore) -> Samples {
        match (self, before) {
            (Counters::Software(file), CountersBefore::Bytes(from)) => match of_software(file, *from) {
                Ok(counts) if counts.is_empty() => {
                    Samples::without("nic", "no process left its NIC's counters")
                }
                Ok(counts) => Samples { counts, ..Samples::default() },
                Err(error) => Samples::without("nic", format!("{error:#}")),
            },
            (Counters::Card { sys, device }, CountersBefore::Card(before)) => {
                grown(before, of_card(sys, device))
            }
            (Counters::OfBench, _) => Samples::default(),
            (Counters::Absent(why), _) => Samples::without("nic", why),
            _ => Samples::without("nic", "counters of another NIC"),
        }
    }
}

/// By how much the counters of NICs grew. Error: why they are not known.
pub fn grown(before: &Result<Line, String>, after: Result<Line, String>) -> Samples {
    match (before, after) {
        (Ok(before), Ok(after)) => {
            let mut samples = differences("nic", &before.counters, &after.counters);
            let absent = after.absent.into_iter().map(|(name, why)| (format!("nic.{name}"), why));
            samples.absent.extend(absent);
            samples
        }
        (Err(why), _) => Samples::without("nic", why),
        (_, Err(why)) => Samples::without("nic", why),
    }
}

/// Each counter's growth, as `BEGINNING.name`; one not in both, or that went back, is absent with the reason.
pub fn differences(
    beginning: &str,
    before: &BTreeMap<String, f64>,
    after: &BTreeMap<String, f64>,
) -> Samples {
    let mut samples = Samples::default();
    for name in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let full = format!("{beginning}.{name}");
        let why = match (before.get(name), after.get(name)) {
            (Some(before), Some(after)) => {
                samples.counts.extend((after > before).then(|| (full.clone(), after - before)));
                (after < before).then(|| format!("it went back from {before} to {after}"))
            }
            (Some(_), None) => Some("it was there before the point only".to_owned()),
            (None, _) => Some("it was there after the point only".to_owned()),
        };
        samples.absent.extend(why.map(|why| (full, why)));
    }
    samples
}

/// The sums of what processes left from this byte on; counters that are 0 are left out.
fn of_software(file: &Path, from: u64) -> Result<BTreeMap<String, f64>> {
    let mut text = String::new();
    match fs::File::open(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        opened => {
            let read = || format!("reading {}", file.display());
            let mut opened = opened.with_context(read)?;
            opened.seek(SeekFrom::Start(from)).with_context(read)?;
            opened.read_to_string(&mut text).with_context(read)?;
        }
    }
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for line in text.lines() {
        let line: Line =
            serde_json::from_str(line).with_context(|| format!("a line of {}", file.display()))?;
        for (name, count) in line.counters.into_iter().filter(|(_, count)| *count > 0.0) {
            *sums.entry(format!("nic.{name}")).or_default() += count;
        }
    }
    Ok(sums)
}

/// Every counter of a card's first port and of its interfaces.
pub fn of_card(sys: &Path, device: &str) -> Result<Line, String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", CARD_READER, "sh"]).arg(sys).arg(device);
    let reader = Reader::of("nic", reader::ready(&mut shell, Path::new("/dev/null")));
    reader.ask(&json!({}), |mut said| Ok(serde_json::from_value(said["nics"][0].take())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-counters-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn processes_of_a_point_count_together_and_those_before_it_do_not() {
        let folder = folder("software");
        let counters = Counters::Software(folder.join("stats"));
        let line = |sent: u32, lost: u32| {
            format!("{{\"pid\":1,\"counters\":{{\"messages_sent\":{sent},\"lost_port_down\":{lost}}}}}\n")
        };
        fs::write(folder.join("stats"), line(1000, 1)).unwrap();
        let before = counters.before();
        let said =
            |counters: &Counters, before: &CountersBefore| counters.grown(before).absent["nic"].clone();
        assert_eq!(said(&counters, &before), "no process left its NIC's counters");
        fs::write(folder.join("stats"), line(1000, 1) + &line(10, 0) + &line(5, 0)).unwrap();
        let grown = Samples { counts: [("nic.messages_sent".into(), 15.0)].into(), ..Samples::default() };
        assert_eq!(counters.grown(&before), grown);
        fs::write(folder.join("stats"), line(1000, 1) + "half a li").unwrap();
        assert!(said(&counters, &before).starts_with("a line of "), "{}", said(&counters, &before));
        fs::remove_file(folder.join("stats")).unwrap();
        assert_eq!(said(&counters, &before), "no process left its NIC's counters");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_cards_counters_are_those_of_its_port() {
        let root = folder("card");
        let port = root.join("sys/class/infiniband/mlx5_1/ports/1");
        for (file, text) in [
            ("counters/port_xmit_data", "100\n"),
            ("counters/port_rcv_errors", "0\n"),
            ("counters/symbol_error", "no number\n"),
            ("hw_counters/out_of_sequence", "7\n"),
        ] {
            fs::create_dir_all(port.join(file).parent().unwrap()).unwrap();
            fs::write(port.join(file), text).unwrap();
        }
        let counters = Counters::of_card(&root, "mlx5_1");
        let before = counters.before();
        fs::write(port.join("counters/port_xmit_data"), "164\n").unwrap();
        fs::write(port.join("hw_counters/out_of_sequence"), "3\n").unwrap();
        let Samples { counts, absent, .. } = counters.grown(&before);
        assert_eq!(counts, [("nic.port_xmit_data".into(), 64.0)].into());
        assert_eq!(absent, [("nic.hw.out_of_sequence".into(), "it went back from 7 to 3".into())].into());
        let none = Counters::of_card(&root, "mlx5_0");
        assert_eq!(none.grown(&none.before()).absent["nic"], "no /sys/class/infiniband/mlx5_0/ports/1");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_counter_that_is_only_on_one_side_of_a_point_says_so() {
        let [one, other] = ["a", "b"].map(|name| BTreeMap::from([(name.to_owned(), 1.0)]));
        let Samples { counts, absent, .. } = differences("hook", &one, &other);
        assert!(counts.is_empty(), "{counts:?}");
        assert_eq!(absent["hook.a"], "it was there before the point only");
        assert_eq!(absent["hook.b"], "it was there after the point only");
    }
}
