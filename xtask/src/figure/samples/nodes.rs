//! Samples of a transfer between two hosts, taken on these: counters of their NICs, and use of processors.
//!
//! On each host a shell, started once by ssh, reads counters. A program leaves its software NIC's as it ends;
//! a receiver serves every point, and `softnic ctl` asks it. A card's: see `nic.rs`, in the host's sysfs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use experiment::Samples;
use experiment::point::{Key, Point};
use experiment::run::Bench;
use serde_json::json;

use super::gpu::Gpu;
use super::machine::{Machine, MachineSampler};
use super::nic::{CARD_READER, Line, grown};
use crate::figure::nodes::Nodes;
use crate::figure::reader::{self, Reader};

/// Run by `sh` with a folder, `softnic` and its fabric: makes the folder, answers lines of stdin, removes it.
const READER: &str = r#"mkdir -m 700 "$1" || exit
trap 'rm -r "$1"' EXIT
echo '{"kind":"ready"}'
while read -r request; do
    nics=$({ "$2" ctl counters --all --fabric "$3" --json; cat "$1/ended" 2> /dev/null; } | paste -s -d , -)
    printf '{"kind":"answer","nics":[%s]}\n' "$nics"
done"#;

/// A bench whose ends run on nodes, with samples that are read there.
pub struct BetweenNodes<'a> {
    bench: &'a mut dyn Bench,
    on_nodes: OnNodes<'a>,
    /// The hosts, by what runs there; none where they are this machine, which is sampled anyway.
    machines: Vec<(&'static str, Machine)>,
    /// The first host's GPU, where it has a part in the run and is not this machine's.
    gpu: Option<Gpu>,
    logs: &'a Path,
}

impl BetweenNodes<'_> {
    /// Starts the readers. `stands`: the second end serves every point. `gpu`: that of the first host. Error:
    /// the counters have no reader.
    pub fn start<'a>(
        bench: &'a mut dyn Bench,
        nodes: &'a Nodes,
        stands: bool,
        gpu: Option<Gpu>,
        logs: &'a Path,
    ) -> Result<BetweenNodes<'a>> {
        let hosts = nodes.hosts.iter().zip(nodes.ends).filter(|_| !nodes.are_here());
        let of = |(host, end)| (end, Machine::on(host, &logs.join(format!("machine-{end}.log"))));
        let machines = hosts.map(of).collect();
        Ok(BetweenNodes { bench, on_nodes: OnNodes::start(nodes, stands, logs)?, machines, gpu, logs })
    }
}

impl Bench for BetweenNodes<'_> {
    fn asked(&self, key: &Key) -> BTreeMap<String, u64> {
        self.bench.asked(key)
    }

    fn is_here(&self) -> bool {
        self.on_nodes.nodes.are_here()
    }

    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
        let nodes = self.on_nodes.nodes;
        let (begin, others) = (self.on_nodes.begin(), nodes.others());
        let start = |(end, machine): &(_, Machine)| Ok((*end, MachineSampler::start(machine, seconds)?));
        let samplers = self.machines.iter().map(start).collect::<Result<Vec<(&str, _)>>>()?;
        let gpu = self.gpu.as_ref().map(|gpu| (gpu, gpu.begin()));
        let measured = self.bench.measure(key, seconds);
        let mut samples = Samples::default();
        if let Some((gpu, begin)) = gpu {
            let mut own = Samples::default();
            gpu.end(begin, &mut own);
            // That of a login.
            own.counts.remove("nvidia_smi_cpu_ms");
            samples.extend(own.of(nodes.ends[0]));
        }
        for (end, sampler) in samplers {
            let mut own = Samples::default();
            sampler.end(&mut own);
            // That is this machine's.
            own.counts.remove("sampling_cpu_ms");
            samples.extend(own.of(end));
        }
        let others = others.and_then(|others| others());
        let mut point = measured
            .with_context(|| format!("{} (see the logs in {})", nodes.in_words(), self.logs.display()))?;
        samples.extend(self.on_nodes.end(&begin));
        (point.others, point.samples) = (others, Some(samples));
        Ok(point)
    }
}

/// What reads samples on both hosts.
struct OnNodes<'a> {
    nodes: &'a Nodes,
    /// NICs of each host that have to be there before a point.
    least: [usize; 2],
    /// The shell on each host, and its log.
    readers: [(Reader, PathBuf); 2],
}

/// What was read before a point. Counters: sums of both hosts' software NICs, or each card's; or why none.
struct PointStart {
    at: Instant,
    used_s: Option<f64>,
    counters: Result<Line, String>,
}

impl OnNodes<'_> {
    fn start<'a>(nodes: &'a Nodes, stands: bool, logs: &Path) -> Result<OnNodes<'a>> {
        let start = |end: usize| -> Result<_> {
            let host = &nodes.hosts[end];
            let log = logs.join(format!("counters-{}.log", nodes.ends[end]));
            let (softnic, folder) = (host.file("bin/softnic"), nodes.counters(end));
            let words = match &*host.device {
                "" => vec!["sh", "-c", READER, "sh", &folder, &softnic, Nodes::FABRIC],
                device => vec!["sh", "-c", CARD_READER, "sh", &host.sys, device],
            };
            let shell = host.command(&words).and_then(|mut shell| reader::ready(&mut shell, &log));
            let shell = shell.with_context(|| format!("reading counters on {}", host.name))?;
            Ok((Reader::of(&host.name, Ok(shell)), log))
        };
        Ok(OnNodes { nodes, least: [0, usize::from(stands)], readers: [start(0)?, start(1)?] })
    }

    /// A point begins now.
    fn begin(&self) -> PointStart {
        let counters = self.counters(self.least);
        PointStart { at: Instant::now(), used_s: self.nodes.seconds(), counters }
    }

    /// The samples since then.
    fn end(&self, begin: &PointStart) -> Samples {
        let mut samples = Samples::default();
        if let Some((before, after)) = begin.used_s.zip(self.nodes.seconds()) {
            samples.gauge("programs_cores", &[(after - before) / begin.at.elapsed().as_secs_f64().max(1e-3)]);
        }
        let (mut before, after) = (begin.counters.clone(), self.counters([1; 2]));
        if let (Ok(before), Ok(after), None) = (&mut before, &after, self.nodes.card()) {
            // A software NIC begins with its process.
            let begin =
                |name: &String| (name.clone(), before.counters.get(name).copied().unwrap_or_default());
            before.counters = after.counters.keys().map(begin).collect();
        }
        samples.extend(grown(&before, after));
        samples
    }

    /// The counters of both hosts, those of the same name summed; a card's begin with its end. Error: which
    /// host does not answer, or has had fewer NICs than `least`.
    fn counters(&self, least: [usize; 2]) -> Result<Line, String> {
        let of_card = self.nodes.card().is_some();
        let mut all = Line::default();
        for (((reader, log), least), end) in self.readers.iter().zip(least).zip(self.nodes.ends) {
            let nics = reader.ask(&json!({}), |mut said| {
                let nics: Vec<Line> =
                    serde_json::from_value(said["nics"].take()).context("counters of its NICs")?;
                ensure!(
                    nics.len() >= least,
                    "`softnic ctl` finds no NIC there, and none has ended (its words: {})",
                    log.display()
                );
                Ok(nics)
            })?;
            let named = |counter| if of_card { format!("{end}.{counter}") } else { counter };
            for nic in nics {
                all.absent.extend(nic.absent.into_iter().map(|(counter, why)| (named(counter), why)));
                for (counter, count) in nic.counters {
                    *all.counters.entry(named(counter)).or_default() += count;
                }
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::figure::samples::nic::of_card;
    use crate::process::{one_test, script};
    use crate::testbed::hosts::tests::line;

    const ENDS: [&str; 2] = ["sender", "receiver"];

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
        let nodes = Nodes::new([host("a", ""), host("b", "")], ENDS, None);
        let on_nodes = OnNodes::start(&nodes, true, &folder).unwrap();
        let counters =
            |sent: u32| format!("{{\"pid\":7,\"counters\":{{\"messages_sent\":{sent},\"cqes\":1}}}}\n");
        fs::write(&alive, counters(5)).unwrap();
        let begin = on_nodes.begin();
        fs::write(&alive, counters(7)).unwrap();
        fs::write(format!("{}/ended", nodes.counters(0)), counters(100)).unwrap();
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
        let nodes = Nodes::new([host("a", ""), host("b", "")], ENDS, None);
        let on_nodes = OnNodes::start(&nodes, true, &folder).unwrap();
        let begin = on_nodes.begin();
        assert!(on_nodes.end(&begin).absent["nic"].starts_with("b: `softnic ctl` finds no NIC there"));
        drop(on_nodes);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_cards_counters_are_those_of_its_own_hosts_port_and_interfaces() {
        let folder = std::env::temp_dir().join(format!("xtask-card-readers-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let file = folder.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let (ssh, bin) = (folder.join("ssh"), folder.join("bin"));
        fs::create_dir_all(&bin).unwrap();
        script(&ssh, &format!("#!/bin/sh\nshift 5; PATH={}:$PATH; exec sh -c \"$*\"\n", bin.display()));
        // An interface is of one host alone.
        let ethtool = format!("#!/bin/sh\n[ $2 = eth0 ] && cat {}\n", folder.join("said").display());
        script(&bin.join("ethtool"), &ethtool);
        let port = ["a/class/infiniband/mlx5_0/ports/1", "b/class/infiniband/mlx5_1/ports/1"];
        let said = |rx: u32| {
            format!(
                "NIC statistics:\n     rx_packets: {rx}\n     rx prio 0: {rx}\n     state: up\n     \"odd\": 1\n"
            )
        };
        for (end, interface) in port.iter().zip(["eth0", "eth1"]) {
            write(&format!("{end}/../../device/net/{interface}/mtu"), "1500\n");
            write(&format!("{end}/counters/port_xmit_data"), "100\n");
            write(&format!("{end}/counters/symbol_error"), "no number\n");
            write(&format!("{end}/hw_counters/out_of_sequence"), "7\n");
        }
        write("said", &said(1));
        let host = |name: &str, device: &str| {
            let of = [("ssh", ssh.clone()), ("sys", folder.join(name))];
            let of = of.map(|(key, path)| (key, path.display().to_string().into()));
            serde_json::from_str(&line(&[of, [("name", name.into()), ("device", device.into())]].concat()))
                .unwrap()
        };
        let nodes = Nodes::new([host("a", "mlx5_0"), host("b", "mlx5_1")], ENDS, None);
        let on_nodes = OnNodes::start(&nodes, true, &folder).unwrap();
        let begin = on_nodes.begin();
        write(&format!("{}/counters/port_xmit_data", port[0]), "18446744073709551615\n");
        write(&format!("{}/hw_counters/out_of_sequence", port[1]), "9\n");
        write("said", &said(4));
        let samples = on_nodes.end(&begin);
        let grown = [
            ("nic.sender.port_xmit_data", 18_446_744_073_709_551_515.0),
            ("nic.receiver.hw.out_of_sequence", 2.0),
            ("nic.sender.ethtool.eth0.rx_packets", 3.0),
            ("nic.sender.ethtool.eth0.rx_prio_0", 3.0),
        ];
        assert_eq!(samples.counts, grown.map(|(name, count)| (name.to_owned(), count)).into());
        let why = ("nic.receiver.ethtool.eth1".to_owned(), "`ethtool -S eth1` fails there".to_owned());
        assert_eq!(samples.absent, [why].into());
        fs::remove_dir_all(folder.join("b")).unwrap();
        let absent = on_nodes.end(&begin).absent;
        let why = format!("no {} there", folder.join(port[1]).display());
        assert_eq!((absent.len(), &absent["nic.receiver.port"]), (3, &why), "{absent:?}");
        drop(on_nodes);
        fs::remove_dir_all(folder).unwrap();
    }

    /// The test below as the process whose PATH has a stand-in for `ethtool`: its folder.
    const STAGE: &str = "XTASK_TEST_CARD";

    #[test]
    fn counters_of_a_card_are_whole_numbers_with_plain_names() {
        if let Some(folder) = std::env::var_os(STAGE).map(std::path::PathBuf::from) {
            let found = of_card(&folder.join("sys"), "mlx5_0").unwrap();
            let names: Vec<&str> = found.counters.keys().map(String::as_str).collect();
            let known =
                ["ethtool.eth0.rx-0.packets", "ethtool.eth0.rx_prio_0", "hw.lifespan", "port_xmit_data"];
            assert_eq!(names, known);
            return;
        }
        let folder = std::env::temp_dir().join(format!("xtask-card-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let file = folder.join("sys/class/infiniband/mlx5_0").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("device/net/eth0/mtu", "1500\n");
        write("ports/1/counters/port_xmit_data", "18446744073709551615\n");
        write("ports/1/counters/symbol_error", "no number\n");
        write("ports/1/counters/link_downed", "-1\n");
        write("ports/1/hw_counters/lifespan", "10\n");
        let said = "NIC statistics:\n     rx-0.packets: 3\n     rx prio 0:   4\n     state: up\n     \"odd\": 1\n     a: b: 2\n     half: 1.5\n     all: inf\n";
        script(&folder.join("ethtool"), &format!("#!/bin/sh\ncat << 'END'\n{said}END\n"));
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let name = "figure::samples::nodes::tests::counters_of_a_card_are_whole_numbers_with_plain_names";
        let said = one_test(name).env(STAGE, &folder).env("PATH", path).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        fs::remove_dir_all(folder).unwrap();
    }
}
