//! What RDMA devices this host has, for people and for the commands that choose one.

use std::path::Path;

use anyhow::Result;
use measure::provenance::Host;
use serde::Serialize;
use verbs::Device;
use verbs::code::{GidType, LinkLayer, PortState};

#[derive(Debug, Serialize)]
struct Report {
    kind: &'static str,
    host: Host,
    libraries: Libraries,
    error: Option<String>,
    devices: Vec<DeviceFacts>,
}

#[derive(Debug, Serialize)]
struct Libraries {
    libibverbs: Option<String>,
    libmlx5: Option<String>,
}

#[derive(Debug, Default, Serialize)]
struct DeviceFacts {
    name: String,
    error: Option<String>,
    firmware: String,
    part_id: u32,
    node_guid: String,
    max_qp: u32,
    max_qp_wr: u32,
    max_sge: u32,
    ports: Vec<PortFacts>,
}

#[derive(Debug, Serialize)]
struct PortFacts {
    port: u8,
    state: String,
    active: bool,
    link_layer: LinkLayer,
    active_mtu: u32,
    lid: u16,
    speed_gbps: Option<f64>,
    gids: Vec<GidFacts>,
}

#[derive(Debug, Serialize)]
struct GidFacts {
    index: u32,
    gid: String,
    kind: String,
}

/// Prints the facts. Exit code 1: there is no usable device; the reason is part of the report.
pub fn run(json: bool) -> Result<u8> {
    let report = report();
    if json {
        crate::emit(Some(Path::new("-")), &report)?;
    } else {
        print(&report);
    }
    Ok(if report.devices.iter().any(|device| device.error.is_none()) { 0 } else { crate::FAILED })
}

fn report() -> Report {
    let (devices, error) = match verbs::devices() {
        Ok(list) => {
            let devices: Vec<_> = list.iter().map(|device| facts(&device)).collect();
            let error = devices.is_empty().then(|| "no RDMA device (is the driver loaded?)".to_owned());
            (devices, error)
        }
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let version = |stem| measure::provenance::library_version(stem);
    let libraries = Libraries { libibverbs: version("libibverbs.so"), libmlx5: version("libmlx5.so") };
    Report { kind: "probe", host: Host::here(), libraries, error, devices }
}

fn facts(device: &Device<'_>) -> DeviceFacts {
    ask(device).unwrap_or_else(|error| DeviceFacts {
        name: device.name(),
        error: Some(format!("{error:#}")),
        node_guid: format!("{:016x}", device.guid()),
        ..DeviceFacts::default()
    })
}

fn ask(device: &Device<'_>) -> Result<DeviceFacts> {
    let context = device.open()?;
    let attributes = context.query_device()?;
    let mut ports = Vec::new();
    for port in 1..=attributes.ports {
        let facts = context.query_port(port)?;
        let gids = context.gids(port)?.into_iter().map(|entry| GidFacts {
            index: entry.index,
            gid: entry.gid.to_string(),
            kind: match entry.kind {
                GidType::Ib => "IB".into(),
                GidType::RoceV1 => "RoCE v1".into(),
                GidType::RoceV2 => "RoCE v2".into(),
                GidType::Other(number) => format!("type {number}"),
            },
        });
        ports.push(PortFacts {
            port,
            state: facts.state.to_string(),
            active: facts.state == PortState::Active,
            link_layer: facts.link_layer,
            active_mtu: facts.active_mtu.bytes(),
            lid: facts.lid,
            speed_gbps: speed_gbps(facts.active_width, facts.active_speed),
            gids: gids.collect(),
        });
    }
    Ok(DeviceFacts {
        name: device.name(),
        error: None,
        firmware: attributes.firmware,
        part_id: attributes.vendor_part_id,
        node_guid: format!("{:016x}", attributes.node_guid),
        max_qp: attributes.max_qp,
        max_qp_wr: attributes.max_qp_wr,
        max_sge: attributes.max_sge,
        ports,
    })
}

/// Lanes times the speed of one, from the codes of `ibv_query_port(3)`.
fn speed_gbps(width: u8, speed: u8) -> Option<f64> {
    let lanes = match width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => return None,
    };
    let lane = match speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => return None,
    };
    Some(lanes * lane)
}

fn print(report: &Report) {
    let name = |version: &Option<String>| version.clone().unwrap_or_else(|| "missing".into());
    say!("libibverbs {}  libmlx5 {}", name(&report.libraries.libibverbs), name(&report.libraries.libmlx5));
    if let Some(error) = &report.error {
        say!("{error}");
    }
    for device in &report.devices {
        say!("{}  firmware {}  part {:#x}", device.name, device.firmware, device.part_id);
        if let Some(error) = &device.error {
            say!("  {error}");
        }
        for port in &device.ports {
            let speed = port.speed_gbps.map_or(String::from("?"), |speed| format!("{speed:.0}"));
            let (state, layer, mtu) = (&port.state, port.link_layer, port.active_mtu);
            say!("  port {}  {state}  {layer}  {speed} Gbit/s  MTU {mtu}  LID {}", port.port, port.lid);
            for gid in &port.gids {
                say!("    GID {}  {}  {}", gid.index, gid.gid, gid.kind);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_lanes_times_lane() {
        // 4X HDR, 2X EDR, 1X SDR; codes of ibv_query_port(3).
        for (width, speed, gbps) in
            [(2, 64, Some(200.0)), (16, 32, Some(50.0)), (1, 1, Some(2.5)), (3, 1, None)]
        {
            assert_eq!(speed_gbps(width, speed), gbps);
        }
    }
}
