//! Samples of a transfer between two hosts, taken where its programs run: counters of their software NICs, and use of processors.
//!
//! On each host a shell, which ssh starts once, reads the counters. A sender leaves its own as it ends; the receiver serves every
//! point, and `softnic ctl` asks it. Left out: counters of a card on another host.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use experiment::Samples;
use serde_json::json;

use super::ELSEWHERE;
use super::nic::{Line, differences};
use crate::figure::nodes::Nodes;
use crate::process::{JsonProgram, WAIT};
use crate::testbed::hosts::Host;

/// Run by `sh` with a folder to make, `softnic` and its fabric: answers each line of stdin, and removes the folder when stdin ends.
const READER: &str = r#"mkdir -m 700 "$1" || exit
trap 'rm -r "$1"' EXIT
echo '{"kind":"ready"}'
while read -r request; do
    nics=$({ "$2" ctl counters --all --fabric "$3" --json; cat "$1/ended" 2> /dev/null; } | paste -s -d , -)
    printf '{"kind":"answer","nics":[%s]}\n' "$nics"
done"#;

/// What reads samples on both hosts.
pub struct OnNodes<'a> {
    nodes: &'a Nodes,
    /// Name of the host, and the shell there. Error: why nothing is read, with cards, and from the first failure on: a late answer
    /// would pass for the next one.
    readers: Result<[(String, JsonProgram); 2], String>,
}

/// What was read before a point. Counters: the sums of both hosts, or why there are none.
pub struct PointStart {
    at: Instant,
    used_s: Option<f64>,
    counters: Result<BTreeMap<String, f64>, String>,
}

impl OnNodes<'_> {
    /// Starts the readers. Error: one of them cannot be started there.
    pub fn start<'a>(nodes: &'a Nodes, logs: &Path) -> Result<OnNodes<'a>> {
        if nodes.card().is_some() {
            return Ok(OnNodes { nodes, readers: Err(ELSEWHERE.into()) });
        }
        let start = |host: &Host, end| -> Result<_> {
            let log = logs.join(format!("counters-{end}.log"));
            let reader = reader(host, &nodes.counters(end), &log);
            Ok((host.name.clone(), reader.with_context(|| format!("reading counters on {}", host.name))?))
        };
        let [sender, receiver] = nodes.hosts();
        Ok(OnNodes { nodes, readers: Ok([start(sender, "sender")?, start(receiver, "receiver")?]) })
    }

    /// A point begins now.
    pub fn begin(&mut self) -> PointStart {
        let counters = self.counters();
        PointStart { at: Instant::now(), used_s: self.nodes.seconds(), counters }
    }

    /// The samples since then.
    pub fn end(&mut self, begin: &PointStart) -> Samples {
        let mut samples = Samples::default();
        if let Some((before, after)) = begin.used_s.zip(self.nodes.seconds()) {
            samples.gauge("programs_cores", &[(after - before) / begin.at.elapsed().as_secs_f64().max(1e-3)]);
        }
        match (&begin.counters, self.counters()) {
            (Ok(before), Ok(after)) => (samples.counts, samples.absent) = differences("nic", before, &after),
            (Err(why), _) => drop(samples.absent.insert("nic".into(), why.clone())),
            (_, Err(why)) => drop(samples.absent.insert("nic".into(), why)),
        }
        samples
    }

    fn counters(&mut self) -> Result<BTreeMap<String, f64>, String> {
        let sums = self.readers.as_mut().map_err(|why| why.clone()).and_then(sums);
        if let Err(why) = &sums {
            self.readers = Err(why.clone());
        }
        sums
    }
}

/// The counters of both hosts. Error: which host does not say, or lacks the receiver's NIC, which serves every point.
fn sums(readers: &mut [(String, JsonProgram); 2]) -> Result<BTreeMap<String, f64>, String> {
    let mut sums = BTreeMap::new();
    for ((name, reader), least) in readers.iter_mut().zip([0, 1]) {
        let mut read = || -> Result<Vec<Line>> {
            let nics = reader.ask(&json!({}), WAIT)?["nics"].take();
            let nics: Vec<Line> = serde_json::from_value(nics).context("counters of its NICs")?;
            ensure!(
                nics.len() >= least,
                "`softnic ctl` finds no NIC there (its words: logs/counters-receiver.log)"
            );
            Ok(nics)
        };
        let nics = read().map_err(|error| format!("{name}: {error:#}"))?;
        for (counter, count) in nics.into_iter().flat_map(|nic| nic.counters) {
            *sums.entry(counter).or_default() += count;
        }
    }
    Ok(sums)
}

fn reader(host: &Host, folder: &str, log: &Path) -> Result<JsonProgram> {
    let softnic = format!("{}/bin/softnic", host.prefix);
    let words = ["sh", "-c", READER, "sh", folder, &softnic, Nodes::FABRIC];
    let mut reader = JsonProgram::start(&mut host.command(&words)?, log)?;
    reader.json("ready", WAIT)?;
    Ok(reader)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::process::script;
    use crate::testbed::hosts::tests::line;

    #[test]
    fn counters_of_programs_that_run_and_that_ended_on_both_hosts_are_summed() {
        let folder = std::env::temp_dir().join(format!("xtask-readers-{}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).unwrap();
        let (ssh, alive) = (folder.join("ssh"), folder.join("alive"));
        // As ssh does: what follows the options and the host goes to a shell.
        script(&ssh, "#!/bin/sh\nshift 5; exec sh -c \"$*\"\n");
        let asked = format!("ctl counters --all --fabric {} --json", Nodes::FABRIC);
        let softnic = format!("#!/bin/sh\n[ \"$*\" = '{asked}' ] && cat {}\n", alive.display());
        script(&folder.join("bin/softnic"), &softnic);
        let host = |name: &str, device: &str| {
            let of = [("ssh", &ssh), ("prefix", &folder)]
                .map(|(key, path)| (key, path.display().to_string().into()));
            let own = [("name", name.into()), ("device", device.into())];
            serde_json::from_str(&line(&[of, own].concat())).unwrap()
        };
        let nodes = Nodes::new([host("a", ""), host("b", "")], None);
        let mut on_nodes = OnNodes::start(&nodes, &folder).unwrap();
        let counters =
            |sent: u32| format!("{{\"pid\":7,\"counters\":{{\"messages_sent\":{sent},\"cqes\":1}}}}\n");
        fs::write(&alive, counters(5)).unwrap();
        let begin = on_nodes.begin();
        fs::write(&alive, counters(7)).unwrap();
        fs::write(format!("{}/ended", nodes.counters("sender")), counters(100)).unwrap();
        let samples = on_nodes.end(&begin);
        let grown = [("nic.messages_sent".to_owned(), 104.0), ("nic.cqes".to_owned(), 1.0)];
        assert_eq!(samples, Samples { counts: grown.into(), ..Samples::default() });
        fs::write(&alive, "{}\n").unwrap();
        let why = on_nodes.end(&begin).absent["nic"].clone();
        assert!(why.starts_with("a: counters of its NICs: missing field"), "{why}");
        fs::write(&alive, counters(9)).unwrap();
        assert_eq!(on_nodes.end(&begin).absent["nic"], why, "answers are read behind one that was not");
        drop(on_nodes);
        fs::write(&alive, "").unwrap();
        let nodes = Nodes::new([host("a", ""), host("b", "")], None);
        let mut on_nodes = OnNodes::start(&nodes, &folder).unwrap();
        let begin = on_nodes.begin();
        assert!(on_nodes.end(&begin).absent["nic"].starts_with("b: `softnic ctl` finds no NIC there"));
        drop(on_nodes);
        let cards = Nodes::new([host("a", "mlx5_0"), host("b", "mlx5_0")], None);
        let mut on_cards = OnNodes::start(&cards, &folder).unwrap();
        let begin = on_cards.begin();
        assert_eq!(on_cards.end(&begin).absent, [("nic".to_owned(), ELSEWHERE.to_owned())].into());
        fs::remove_dir_all(folder).unwrap();
    }
}
