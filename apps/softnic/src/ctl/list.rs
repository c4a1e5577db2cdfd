//! `softnic ctl list`: the processes that have a NIC.

use anyhow::Result;
use clap::Args;
use mlx5_device::Span;
use serde_json::{Value, json};
use soft_nic::control::Request;

use super::nics::{RunningNics, program_of, show};

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

#[derive(Debug, PartialEq)]
struct Device {
    name: String,
    /// State of its port.
    port: String,
    qps: u64,
    /// One-way delay of what leaves.
    delay: Span,
}

pub fn run(list: &List) -> Result<()> {
    let nics = RunningNics::find(list.fabric.as_deref())?;
    let mut text = if list.json {
        String::new()
    } else {
        format!(
            "{:<16} {:>4} {:>8} {:<16} DEVICES (port, QPs, delay if any)\n",
            "FABRIC", "SLOT", "PID", "PROGRAM"
        )
    };
    for target in &nics.targets {
        let (fabric, member) = (&nics.view(target).name, &target.member);
        let answer = nics.ask(target, &Request::Status);
        let program = program_of(member.pid);
        let devices = answer.map(|lines| lines.iter().map(device).collect::<Vec<_>>());
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

fn device((name, state): &(String, String)) -> Device {
    let mut words = state.split_ascii_whitespace();
    let (name, port) = (name.clone(), words.next().unwrap_or_default().to_owned());
    let qps = words.next().and_then(|qps| qps.parse().ok()).unwrap_or(0);
    let delay = words.next().and_then(|word| word.strip_prefix("delay=")?.parse().ok()).unwrap_or_default();
    Device { name, port, qps, delay }
}

fn as_json(device: &Device) -> Value {
    json!({"name": device.name, "port": device.port, "qps": device.qps, "delay_ns": device.delay.0})
}

fn in_words(Device { name, port, qps, delay }: &Device) -> String {
    let delay = if delay.0 > 0 { format!(", delay {delay}") } else { String::new() };
    format!("{name} ({port}, {qps}{delay})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_shown_with_its_port_and_queues() {
        for (state, words, delay_ns) in [
            ("down 12", "mlx5_1 (down, 12)", 0),
            ("down 12 delay=2ms", "mlx5_1 (down, 12, delay 2ms)", 2_000_000),
        ] {
            let device = device(&("mlx5_1".to_owned(), state.to_owned()));
            assert_eq!(in_words(&device), words);
            let wanted = json!({"name": "mlx5_1", "port": "down", "qps": 12, "delay_ns": delay_ns});
            assert_eq!(as_json(&device), wanted);
        }
    }
}
