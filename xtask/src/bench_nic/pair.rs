//! One number: the programs that give it, started, waited for, and their output read.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::measures::{Column, Source};
use crate::figure::Programs;
use crate::process::{Ended, Guarded, Speaking, WAIT, descendants, run_logged};

/// Longest of all: twenty messages a second apart, and the start.
const LIMIT: Duration = Duration::from_secs(120);
/// How long an open device is watched doing nothing.
const IDLE: Duration = Duration::from_secs(5);

/// Where and with what the numbers are taken.
pub struct Stand<'a> {
    /// Our programs.
    pub programs: &'a Programs,
    /// `nic.toml` as in the figures.
    pub plain: PathBuf,
    /// The same with the pump on.
    pub pumped: PathBuf,
    /// Where logs go.
    pub logs: &'a Path,
    /// How long a generator run takes.
    pub seconds: f64,
}

impl Stand<'_> {
    /// Takes one number.
    pub fn take(&self, source: &Source) -> Result<f64> {
        match source {
            Source::Perftest { tool, options, column, pump } => self.perftest(tool, options, *column, *pump),
            Source::Generator { options } => self.generator(options),
            Source::Baseline { options, field, scale } => Ok(self.baseline(options, field)? * scale),
            Source::IdleCpu => Ok(self.idle()?.0),
            Source::IdleMemory => Ok(self.idle()?.1),
        }
    }

    fn softnic(&self, pump: bool, program: &str) -> Command {
        let mut command = Command::new(&self.programs.softnic);
        let config = if pump { &self.pumped } else { &self.plain };
        command.args(["run", "--config"]).arg(config);
        command.args(["--fabric", &format!("xtask-{}", std::process::id()), "--", program]);
        command
    }

    fn perftest(&self, tool: &str, options: &[&str], column: Column, pump: bool) -> Result<f64> {
        let port = free_port()?.to_string();
        let end = || {
            let mut command = self.softnic(pump, tool);
            // -F: the governor is not ours to complain about.
            command.args(["-d", "mlx5_0", "-F", "-p", &port]).args(options);
            if matches!(column, Column::Bandwidth | Column::Rate) {
                command.arg("--report_gbits");
            }
            command
        };
        let server_log = self.logs.join("perftest-server.log");
        let file =
            fs::File::create(&server_log).with_context(|| format!("writing {}", server_log.display()))?;
        let mut server = end();
        server.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut server = Guarded(server.spawn().with_context(|| format!("starting {tool}"))?);
        wait_for_listener(&mut server, &port, &server_log)?;
        let client_log = self.logs.join("perftest-client.log");
        let ended = run_logged(end().arg("127.0.0.1"), &client_log, LIMIT)?;
        if ended != Ended::Well {
            bail!("{tool} {}: {ended:?}; see {}", options.join(" "), client_log.display());
        }
        server.wait(WAIT)?;
        let log =
            fs::read_to_string(&client_log).with_context(|| format!("reading {}", client_log.display()))?;
        column.read(&log).with_context(|| format!("{tool} printed no result; see {}", client_log.display()))
    }

    fn generator(&self, options: &[&str]) -> Result<f64> {
        let generator = self.programs.generator.to_string_lossy();
        let mut receiver = self.softnic(false, &generator);
        receiver.args(["--listen", "127.0.0.1:0", "--nic", "mlx5_0", "--json", "-"]);
        let mut receiver = Speaking::start(&mut receiver, &self.logs.join("receiver.log"))?;
        let listening = receiver.json("listening", WAIT).context("starting the receiver")?;
        let address = listening["address"].as_str().context("the receiver does not say where it listens")?;
        let mut sender = self.softnic(false, &generator);
        sender.args(["--connect", address, "--nic", "mlx5_0", "--poster", "cpu-shim", "--json", "-"]);
        sender.args(["--seconds", &self.seconds.to_string()]).args(options);
        let mut sender = Speaking::start(&mut sender, &self.logs.join("sender.log"))?;
        let run = sender.json("run", LIMIT).context("running the sender")?;
        sender.child.wait(WAIT)?;
        receiver.child.wait(WAIT)?;
        match run["content_ok"].as_bool() {
            Some(true) => run["msgs_per_s"].as_f64().context("the sender gives no rate"),
            _ => bail!("messages did not arrive whole; see {}", self.logs.join("sender.log").display()),
        }
    }

    fn baseline(&self, options: &[&str], field: &str) -> Result<f64> {
        let mut command = Command::new(&self.programs.generator);
        command.arg("baseline").args(options).args(["--json", "-"]);
        let mut session = Speaking::start(&mut command, &self.logs.join("baseline.log"))?;
        let answer = session.json("baseline", LIMIT).with_context(|| format!("baseline {}", options[0]))?;
        session.child.wait(WAIT)?;
        answer
            .pointer(field)
            .and_then(serde_json::Value::as_f64)
            .with_context(|| format!("baseline {}: no {field}", options[0]))
    }

    /// NIC thread's share of a core in percent, and the process's memory in MiB, of a program that opened a device and
    /// waits for events that never come.
    fn idle(&self) -> Result<(f64, f64)> {
        let log = fs::File::create(self.logs.join("idle.log")).context("writing idle.log")?;
        let mut command = self.softnic(false, "ibv_asyncwatch");
        command.args(["-d", "mlx5_0"]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut watcher = Guarded(command.spawn().context("starting ibv_asyncwatch")?);
        let since = Instant::now();
        let process = loop {
            let found = std::iter::once(watcher.0.id())
                .chain(descendants(watcher.0.id()))
                .find(|id| nic_ns(*id).is_some());
            match found {
                Some(process) => break process,
                None if since.elapsed() > WAIT || watcher.poll()?.is_some() => {
                    bail!("ibv_asyncwatch opened no device; see {}", self.logs.join("idle.log").display())
                }
                None => sleep(Duration::from_millis(20)),
            }
        };
        // What opening it cost is not idling.
        sleep(Duration::from_secs(1));
        let before = nic_ns(process).context("the NIC thread is gone")?;
        sleep(IDLE);
        let after = nic_ns(process).context("the NIC thread is gone")?;
        let percent = (after - before) as f64 / IDLE.as_nanos() as f64 * 100.0;
        let status = fs::read_to_string(format!("/proc/{process}/status")).context("reading its memory")?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<f64>().ok());
        Ok((percent, resident.context("no VmRSS")? / 1024.0))
    }
}

/// Nanoseconds that the NIC's thread in `process` has run, if it has one.
fn nic_ns(process: u32) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let of_nic = |task: &fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        // The first field is the time on a core; `stat` counts in hundredths of a second, too coarse for idling.
        let schedstat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        name.starts_with("softnic-nic").then(|| schedstat.split_whitespace().next()?.parse::<u64>().ok())?
    };
    tasks.flatten().filter_map(|task| of_nic(&task)).reduce(|one, other| one + other)
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr().context("looking for a free port")?.port())
}

/// perftest's server takes exactly one connection, so that a trial connection would spoil it: the kernel's table tells.
fn wait_for_listener(server: &mut Guarded, port: &str, log: &Path) -> Result<()> {
    let since = Instant::now();
    let port: u16 = port.parse().context("a port")?;
    loop {
        let tables =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
        if tables.iter().any(|table| listens(table, port)) {
            return Ok(());
        }
        if let Some(ended) = server.poll()? {
            bail!("the server {ended:?} before it listened; see {}", log.display());
        }
        if since.elapsed() > WAIT {
            bail!("the server does not listen on port {port}; see {}", log.display());
        }
        sleep(Duration::from_millis(5));
    }
}

/// Whether a socket of the kernel's table listens (state 0A) on `port`.
fn listens(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&end)) && fields.nth(1) == Some("0A")
    })
}

impl Column {
    /// The number in perftest's last row of results.
    pub fn read(self, log: &str) -> Option<f64> {
        let is_row = |line: &&str| {
            line.split_whitespace().count() >= 5
                && line.split_whitespace().all(|field| field.parse::<f64>().is_ok())
        };
        let row = log.lines().rfind(is_row)?;
        let field = |index: usize| row.split_whitespace().nth(index)?.parse::<f64>().ok();
        match self {
            // bytes, iterations, peak and average Gbit/s, million messages/s
            Column::Bandwidth => Some(field(3)? / 8.0),
            Column::Rate => Some(field(4)? * 1e6),
            // bytes, iterations, min, max, typical, average, deviation, 99 %, 99.9 %
            Column::Latency => field(4),
            Column::Latency99 => field(7),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftest_rows_are_read_by_column() {
        let bandwidth = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
            65536      5000             130.53             128.40               0.244904\n---\n";
        assert_eq!(Column::Bandwidth.read(bandwidth), Some(128.40 / 8.0));
        assert_eq!(Column::Rate.read(bandwidth), Some(0.244904 * 1e6));
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n \
            8       1000          0.70           9.35         0.74     	       0.80        	0.11   		1.50    		9.35   \n";
        assert_eq!(Column::Latency.read(latency), Some(0.74));
        assert_eq!(Column::Latency99.read(latency), Some(1.50));
        assert_eq!(Column::Latency.read("nothing"), None);
    }

    #[test]
    fn a_listening_socket_is_seen_and_a_connected_one_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        assert!(listens(&table, port));
        assert!(!listens("header\n 0: 0100007F:1234 00000000:0000 01 0:0\n", 0x1234));
    }

    #[test]
    fn a_thread_of_the_nic_s_name_is_found_by_what_it_ran() {
        let before = nic_ns(std::process::id());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let work = move || {
            let sum: u64 = (0..1_000_000_u64).map(std::hint::black_box).sum();
            ready.send(sum).unwrap();
            let _ = stopped.recv();
        };
        let thread = std::thread::Builder::new().name("softnic-nic".into()).spawn(work).unwrap();
        is_ready.recv().unwrap();
        assert_eq!(before, None);
        assert!(nic_ns(std::process::id()).is_some_and(|ns| ns > 0));
        drop(stop);
        thread.join().unwrap();
    }
}
