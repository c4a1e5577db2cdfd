//! `softnic ctl list`: who has a NIC.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use soft_nic::abi::control::Request;

use super::{Everybody, program_of, show};

/// Which, and how it is shown.
#[derive(Debug, Args)]
pub struct List {
    /// Only this fabric; without it, all of this user's.
    #[arg(long, value_name = "NAME")]
    fabric: Option<String>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// One device of a process: name, state of its port, QPs.
type Device = (String, String, u64);

pub fn run(list: &List) -> Result<()> {
    let everybody = Everybody::find(list.fabric.as_deref())?;
    let mut text = if list.json {
        String::new()
    } else {
        format!("{:<16} {:>4} {:>8} {:<16} DEVICES (port, QPs)\n", "FABRIC", "SLOT", "PID", "PROGRAM")
    };
    for target in &everybody.targets {
        let (fabric, seat) = (&everybody.visit(target).name, &target.seat);
        let answer = everybody.ask(target, &Request::Status);
        let program = program_of(seat.pid);
        let devices = answer.map(|lines| lines.iter().map(device).collect::<Vec<_>>());
        if list.json {
            let mut line = json!({"fabric": fabric, "slot": seat.slot, "pid": seat.pid, "program": program});
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
            text += &format!("{fabric:<16} {:>4} {:>8} {program:<16} {devices}\n", seat.slot, seat.pid);
        }
    }
    show(&text).map(drop)
}

fn device((name, state): &(String, String)) -> Device {
    let (port, qps) = state.split_once(' ').unwrap_or((state, ""));
    (name.clone(), port.to_owned(), qps.parse().unwrap_or(0))
}

fn as_json((name, port, qps): &Device) -> Value {
    json!({"name": name, "port": port, "qps": qps})
}

fn in_words((name, port, qps): &Device) -> String {
    format!("{name} ({port}, {qps})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_shown_with_its_port_and_queues() {
        let device = device(&("mlx5_1".to_owned(), "down 12".to_owned()));
        assert_eq!(in_words(&device), "mlx5_1 (down, 12)");
        assert_eq!(as_json(&device), json!({"name": "mlx5_1", "port": "down", "qps": 12}));
    }
}
