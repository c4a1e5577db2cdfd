//! One number: the programs that give it, started, waited for, and their output read.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use measure::Hosts;
use serde_json::Value;

use super::cores::Cores;
use super::idle;
use super::source::{Column, Perftest, Source};
use crate::figure::Programs;
use crate::process::{ChildGuard, Ended, JsonProgram, WAIT, output, run_logged, wait_for};
use crate::workspace::target_dir;

/// Idling before each message of [`Source::First`].
const PAUSE: Duration = Duration::from_secs(1);

/// How long the other end of a pair may live on when one end failed.
const FAILED: Duration = Duration::from_secs(2);
/// Lines of a log that an error quotes.
const LAST: usize = 3;

/// Where and with what the numbers are taken.
pub struct BenchSetup<'a> {
    pub programs: &'a Programs,
    /// Folder whose perftest programs go before those in `PATH`.
    pub tools: Option<&'a Path>,
    /// `nic.toml` as in the figures.
    pub plain: PathBuf,
    /// The same with the pump on.
    pub pumped: PathBuf,
    /// Two hosts with a cable between them, where this machine can have some.
    pub hosts: Option<Hosts>,
    pub logs: &'a Path,
    /// Cores of the server and of the client.
    pub cores: Option<Cores>,
    /// How long a generator run takes.
    pub seconds: f64,
    /// How long an open device is watched doing nothing.
    pub idle: Duration,
    /// Messages after a pause each.
    pub pauses: u32,
    /// Bursts of each kind in `bench-post`.
    pub rounds: u32,
    /// Longest that any program may take, pauses not counted.
    pub limit: Duration,
}

/// Which end of a pair; the server starts first.
#[derive(Clone, Copy)]
enum End {
    Server,
    Client,
    /// One process alone: not pinned, its NIC thread is the other half.
    Alone,
}

impl BenchSetup<'_> {
    /// Takes the number `name`; an error after `limit` at the latest for each program that it runs.
    pub fn take(&self, name: &str, source: &Source) -> Result<f64> {
        match source {
            Source::Perftest(pair) => self.perftest(name, pair),
            Source::Wire(pair) => self.wire(name, pair),
            Source::Example { name, options, field } => self.example(name, options, field),
            Source::Iperf => self.iperf(name),
            Source::UdpPingPong => self.udp(name),
            Source::Generator { options, receiver, field } => {
                let seconds = self.seconds.to_string();
                let mut all = vec!["--seconds", &seconds];
                all.extend(options.iter().map(String::as_str));
                let run = self.generator(name, &all, receiver, self.limit)?;
                number(&run, field, "the sender")
            }
            Source::Echo { options, field, scale } => {
                let program = self.programs.softnic.with_file_name("doorbell-echo");
                let mut command = self.on_nic(End::Alone, &program);
                let run = self.said(command.args(options), "run", name, "doorbell-echo")?;
                Ok(number(&run, field, "doorbell-echo")? * scale)
            }
            Source::First => {
                let (pause, count) = (PAUSE.as_secs_f64().to_string(), self.pauses.to_string());
                let options = ["--op", "write", "--payload", "8", "--pause", &pause, "--count", &count];
                let run = self.generator(name, &options, &[], self.limit + PAUSE * self.pauses)?;
                Ok(number(&run, "/first/p99_ns", "the sender")? * 1e-6)
            }
            Source::Post { list, doorbell } => self.post(name, *list, doorbell),
            Source::Baseline { options, field, scale } => Ok(self.baseline(name, options, field)? * scale),
            Source::IdleCpu => Ok(self.idle(name)?.0),
            Source::IdleMemory => Ok(self.idle(name)?.1),
        }
    }

    fn log(&self, name: &str, end: &str) -> PathBuf {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        self.logs.join(format!("{name}-{end}.log"))
    }

    fn softnic(&self, end: End, pump: bool, recording: Option<&Path>, program: &Path) -> Command {
        // A NIC that is pinned to the only core of its polling program has nowhere to go.
        let cores = self.cores.as_ref().filter(|cores| pump || cores.are_enough());
        let mut command = Command::new(&self.programs.softnic);
        if let (Some(cores), false) = (cores, matches!(end, End::Alone)) {
            command = Command::new("taskset");
            command.args(["-c", &cores.of(end as usize)]).arg(&self.programs.softnic);
        }
        let config = if pump { &self.pumped } else { &self.plain };
        command.args(["run", "--config"]).arg(config);
        command.args(["--fabric", &format!("xtask-{}", std::process::id())]);
        if let Some(file) = recording {
            command.arg("--record").arg(file);
        }
        command.arg("--").arg(program);
        command
    }

    /// A program on the NIC as in the figures; its options follow.
    fn on_nic(&self, end: End, program: &Path) -> Command {
        let mut command = self.softnic(end, false, None, program);
        command.args(["--nic", "mlx5_0", "--json", "-"]);
        command
    }

    /// A program on the server's or the client's host.
    fn on_host(&self, end: End, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let hosts = self.hosts.as_ref().context("this machine cannot have two hosts")?;
        let words = hosts.enter(end as usize);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        Ok(command)
    }

    /// The path of a perftest program: in our folder, or its name for `PATH` to be looked through.
    fn tool(&self, name: &str) -> PathBuf {
        let ours = self.tools.map(|folder| folder.join(name)).filter(|path| path.is_file());
        ours.unwrap_or_else(|| name.into())
    }

    fn perftest(&self, name: &str, pair: &Perftest) -> Result<f64> {
        let port = free_port()?;
        let [server, client] = ["server", "client"].map(|end| self.log(name, end).with_extension("rec"));
        // What an interrupted run has left would be refused.
        let remove = || [&server, &client].iter().for_each(|file| _ = fs::remove_file(file));
        remove();
        let command = |end: End| {
            let file = if matches!(end, End::Server) { &server } else { &client };
            let recording = pair.record.then_some(file.as_path());
            Ok(self.softnic(end, pair.pump, recording, &self.tool(&pair.tool)))
        };
        let taken = self.pair(name, pair, command, "127.0.0.1", port);
        let recorded = [&server, &client].iter().all(|file| file.is_file());
        remove();
        let taken = taken?;
        if !pair.record {
            return Ok(taken);
        }
        ensure!(recorded, "no recording was written to {} and {}", server.display(), client.display());
        for end in ["server", "client"] {
            // The NIC's line where a disk is full: the program goes on without.
            let log = self.log(name, end);
            let said = fs::read_to_string(&log).unwrap_or_default();
            ensure!(!said.contains("; it ends after "), "a recording ended early; see {}", log.display());
        }
        Ok(taken)
    }

    fn wire(&self, name: &str, pair: &Perftest) -> Result<f64> {
        let (loss, pump) = (pair.loss, pair.pump);
        let config = self.logs.join(format!("wire-{loss}{}.toml", if pump { "-pump" } else { "" }));
        let text =
            format!("path = \"wire\"\nlink_layer = \"roce\"\nmtu = 4096\nloss = {loss:?}\npump = {pump}\n");
        fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        let port = free_port()?;
        let command = |end: End| {
            let mut command = self.on_host(end, &self.programs.softnic)?;
            command.args(["run", "--config"]).arg(&config).arg("--").arg(self.tool(&pair.tool));
            Ok(command)
        };
        self.pair(name, pair, command, Hosts::ADDRESSES[0], port)
    }

    /// Starts a server, its client when it listens, and reads the client's number. perftest's options follow
    /// what `command` gives.
    fn pair(
        &self,
        name: &str,
        pair: &Perftest,
        command: impl Fn(End) -> Result<Command>,
        address: &str,
        port: u16,
    ) -> Result<f64> {
        let tool = &pair.tool;
        let (server_log, client_log) = (self.log(name, "server"), self.log(name, "client"));
        // -F: the governor is not ours to complain about.
        let mut options = ["-d", "mlx5_0", "-F", "-p", &port.to_string()].map(str::to_owned).to_vec();
        options.extend(pair.options.iter().cloned());
        options.extend((pair.column != Column::Latency).then(|| "--report_gbits".to_owned()));
        let mut server = self.serving(command(End::Server)?.args(&options), port, &server_log)?;
        let client = run_logged(command(End::Client)?.args(&options).arg(address), &client_log, self.limit)?;
        // A client that failed says less than its server, which ends soon then.
        let patience = if client == Ended::Well { WAIT } else { FAILED };
        let server = server.wait(patience.min(self.limit))?;
        if (client, server) != (Ended::Well, Ended::Well) {
            let said = |end: &str, ended: Ended, log: &Path| {
                format!("{tool}'s {end} {ended} ({}), log {}", last_words(log), log.display())
            };
            bail!("{}; {}", said("client", client, &client_log), said("server", server, &server_log));
        }
        let log =
            fs::read_to_string(&client_log).with_context(|| format!("reading {}", client_log.display()))?;
        let number = pair.column.read(&log);
        number.with_context(|| format!("{tool} printed no result; see {}", client_log.display()))
    }

    /// One TCP stream; what the receiver got.
    fn iperf(&self, name: &str) -> Result<f64> {
        let port = free_port()?;
        let mut server = self.on_host(End::Server, "iperf3")?;
        let server = server.args(["-s", "-1", "-p", &port.to_string()]);
        let _server = self.serving(server, port, &self.log(name, "server"))?;
        let mut client = self.on_host(End::Client, "iperf3")?;
        client.args(["-c", Hosts::ADDRESSES[0], "-p", &port.to_string()]);
        client.args(["-J", "-t", &self.seconds.ceil().to_string()]);
        let said: Value = serde_json::from_str(&output(&mut client, self.limit)?).context("iperf3's JSON")?;
        Ok(number(&said, "/end/sum_received/bits_per_second", "iperf3")? / 8e9)
    }

    /// Half a round trip of two sockets.
    fn udp(&self, name: &str) -> Result<f64> {
        let command = |end: End, option: &str, address: &str| -> Result<Command> {
            let mut command = self.on_host(end, &self.programs.generator)?;
            command.args(["baseline", "udp-ping-pong", option, address, "--json", "-"]);
            Ok(command)
        };
        let mut server = command(End::Server, "--listen", &format!("{}:0", Hosts::ADDRESSES[0]))?;
        let (mut answering, address) = self.listening(&mut server, &self.log(name, "server"))?;
        let mut asks = command(End::Client, "--connect", &address)?;
        asks.args(["--seconds", &self.seconds.to_string()]);
        let mut asking = JsonProgram::start(&mut asks, &self.log(name, "client"))?;
        let answer = asking.json("baseline", self.limit).context("measuring")?;
        asking.ends_well("the asking side", WAIT)?;
        answering.ends_well("the answering side", WAIT)?;
        Ok(number(&answer, "/half_round_trip/p50_ns", "the asking side")? * 1e-3)
    }

    /// The sender's line of a generator pair whose messages all arrived whole.
    fn generator(&self, name: &str, options: &[&str], to: &[String], limit: Duration) -> Result<Value> {
        let mut receiver = self.receiver(End::Server);
        let (mut receiver, address) = self.listening(receiver.args(to), &self.log(name, "receiver"))?;
        let mut sender = self.on_nic(End::Client, &self.programs.generator);
        sender.args(["--connect", &address]).args(options);
        let mut sender = JsonProgram::start(&mut sender, &self.log(name, "sender"))?;
        let run = sender.json("run", limit).context("running the sender")?;
        sender.ends_well("the sender", WAIT)?;
        receiver.ends_well("the receiver", WAIT)?;
        ensure!(run["content_ok"] == true, "messages did not arrive whole; see {}", sender.log.display());
        Ok(run)
    }

    /// A generator that receives.
    fn receiver(&self, end: End) -> Command {
        let mut receiver = self.softnic(end, false, None, &self.programs.generator);
        receiver.args(["--listen", "127.0.0.1:0", "--nic", "mlx5_0", "--json", "-"]);
        receiver
    }

    /// Ratio of the medians, in strict order.
    fn post(&self, name: &str, list: u64, doorbell: &str) -> Result<f64> {
        let mut command = self.softnic(End::Alone, false, None, &self.programs.generator);
        command.args(["bench-post", "--nic", "mlx5_0", "--rounds", &self.rounds.to_string(), "--json", "-"]);
        let answer = self.said(&mut command, "bench-post", name, "bench-post")?;
        let is_it =
            |row: &&Value| row["list"] == list && row["doorbell"] == doorbell && row["order"] == "strict";
        let row = answer["rows"].as_array().into_iter().flatten().find(is_it);
        row.and_then(|row| row["ratio"].as_f64()).context("bench-post has no such row")
    }

    fn baseline(&self, name: &str, options: &[String], field: &str) -> Result<f64> {
        let mut command = Command::new(&self.programs.generator);
        command.arg("baseline").args(options).args(["--seconds", &self.seconds.to_string(), "--json", "-"]);
        if let Some(cores) = &self.cores {
            command.args(["--cores", &cores.first_of_each()]);
        }
        let answer = self.said(&mut command, "baseline", name, "baseline")?;
        number(&answer, field, &options[0])
    }

    /// The line of this kind of a program that then ends well; `program`: its name for errors and its log.
    fn said(&self, command: &mut Command, kind: &str, name: &str, program: &str) -> Result<Value> {
        let mut session = JsonProgram::start(command, &self.log(name, program))?;
        let answer = session.json(kind, self.limit).with_context(|| format!("running {program}"))?;
        session.ends_well(program, WAIT)?;
        Ok(answer)
    }

    /// A server whose output goes to `log`, once it listens on `port`.
    fn serving(&self, command: &mut Command, port: u16, log: &Path) -> Result<ChildGuard> {
        let mut server = ChildGuard::logged(command, log)?;
        wait_for_listener(&mut server, port, log, WAIT.min(self.limit))?;
        Ok(server)
    }

    /// A program that listens, and where.
    fn listening(&self, command: &mut Command, log: &Path) -> Result<(JsonProgram, String)> {
        let mut program = JsonProgram::start(command, log)?;
        let address = program.address("a listener", WAIT.min(self.limit))?;
        Ok((program, address))
    }

    /// The field of an example's line.
    fn example(&self, name: &str, options: &[String], field: &str) -> Result<f64> {
        let carried = self.tools.map(|folder| folder.join(name));
        let program = carried.unwrap_or_else(|| target_dir().join("release/examples").join(name));
        let said = output(Command::new(program).args(options), self.limit)?;
        let said: Value = serde_json::from_str(&said).with_context(|| format!("what {name} says"))?;
        number(&said, field, name)
    }

    /// An open device that does nothing: a receiver without a sender.
    fn idle(&self, name: &str) -> Result<(f64, f64)> {
        let (mut receiver, _) = self.listening(&mut self.receiver(End::Alone), &self.log(name, "idle"))?;
        idle::watch(&mut receiver, self.idle)
    }
}

/// A number that a program said.
fn number(said: &Value, field: &str, program: &str) -> Result<f64> {
    said.pointer(field).and_then(Value::as_f64).with_context(|| format!("{program} gives no {field}"))
}

/// The last lines of a log that are no table or ruler, for an error.
pub fn last_words(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let is_word = |line: &&str| line.chars().any(char::is_alphabetic);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(is_word).collect();
    match lines[..] {
        [] => "it said nothing".to_owned(),
        _ => lines[lines.len().saturating_sub(LAST)..].join(" | "),
    }
}

/// A free TCP port.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr().context("looking for a free port")?.port())
}

/// perftest's server takes one connection, so a trial connection would spoil it: the kernel's table tells.
fn wait_for_listener(server: &mut ChildGuard, port: u16, log: &Path, limit: Duration) -> Result<()> {
    let listens = wait_for(limit, || {
        if is_listening(server.0.id(), port) {
            return Ok(Some(()));
        }
        match server.poll()? {
            None => Ok(None),
            Some(ended) => {
                bail!("the server {ended} before it listened ({}), log {}", last_words(log), log.display())
            }
        }
    });
    listens?.with_context(|| format!("the server does not listen on port {port}; see {}", log.display()))
}

/// Whether some process of the network namespace that process `pid` is in listens on `port`.
pub fn is_listening(pid: u32, port: u16) -> bool {
    let path = |table| format!("/proc/{pid}/net/{table}");
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(path(table)).unwrap_or_default());
    tables.iter().any(|table| listens(table, port))
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
            // bytes, iterations, min, max, typical, and more
            Column::Latency => field(4),
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
}
