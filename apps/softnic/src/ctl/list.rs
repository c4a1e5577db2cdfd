//! `softnic ctl list`: the processes that have a NIC.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use soft_nic::control::{PortStatus, Request, printable};

use super::nics::{Target, program_of, show};

/// Which, and how it is shown.
#[derive(Debug, Args)]
#[command(
    after_help = "QPs are counted, not named. The QPN that `softnic ctl inject` takes is qp_num of the program's ibv_qp; \
                        perftest prints it."
)]
pub struct List {
    /// Only this fabric; without it, all of this user's.
    #[arg(long, value_name = "NAME")]
    fabric: Option<String>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

pub fn run(list: &List) -> Result<()> {
    let mut text = if list.json {
        String::new()
    } else {
        format!(
            "{:<16} {:>4} {:>8} {:<16} DEVICES (port, QPs, delay if any)\n",
            "FABRIC", "SLOT", "PID", "PROGRAM"
        )
    };
    for target in Target::all(list.fabric.as_deref())? {
        let (fabric, member) = (&target.view.name, &target.member);
        let devices = target.ask::<Vec<PortStatus>>(&Request::Status);
        let program = program_of(member.pid);
        if list.json {
            let mut line =
                json!({"fabric": fabric, "slot": member.slot, "pid": member.pid, "program": program});
            match devices {
                Ok(devices) => line["devices"] = devices.iter().map(as_json).collect(),
                Err(error) => line["error"] = error.to_string().into(),
            }
            text += &format!("{line}\n");
        } else {
            let devices = match devices {
                Ok(devices) => devices.iter().map(in_words).collect::<Vec<_>>().join(", "),
                Err(error) => format!("- ({error})"),
            };
            text += &format!("{fabric:<16} {:>4} {:>8} {program:<16} {devices}\n", member.slot, member.pid);
        }
    }
    show(&text).map(drop)
}

fn state(port: &PortStatus) -> &'static str {
    if port.is_up { "active" } else { "down" }
}

fn as_json(port: &PortStatus) -> Value {
    json!({"name": port.name, "port": state(port), "qps": port.qps, "delay_ns": port.delay.0})
}

fn in_words(port: &PortStatus) -> String {
    let (name, PortStatus { qps, delay, .. }) = (printable(&port.name), port);
    let delay = if delay.is_zero() { String::new() } else { format!(", delay {delay}") };
    format!("{name} ({}, {qps}{delay})", state(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_shown_with_its_port_and_queues() {
        for (delay, words, delay_ns) in
            [("0", "mlx5_1 (down, 12)", 0), ("2ms", "mlx5_1 (down, 12, delay 2ms)", 2_000_000)]
        {
            let delay = delay.parse().unwrap();
            let port = |name: &str| PortStatus { name: name.to_owned(), is_up: false, qps: 12, delay };
            assert_eq!(in_words(&port("mlx5_1")), words);
            assert_eq!(in_words(&port("mlx\u{1b}5_1")).split_once(' '), Some(("mlx", &words[3..])));
            let port = port("mlx5_1");
            let wanted = json!({"name": "mlx5_1", "port": "down", "qps": 12, "delay_ns": delay_ns});
            assert_eq!(as_json(&port), wanted);
        }
    }
}
