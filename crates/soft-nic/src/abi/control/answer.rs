//! The NIC's side of a request: what is done with it, under the NIC's lock, as for a command of the driver.

use std::time::SystemTime;

use mlx5_device::Commands;
use mlx5_device::Span;
use roce::Now;

use super::Request;
use super::frame::Answer;
use crate::Nic;
use crate::abi::process;
use crate::abi::server::Server;
use crate::link::capture::Captured;
use crate::os::system;

/// Does what was asked.
pub(super) fn answer(server: &Server<Nic>, request: &Request) -> Answer {
    let _announced = server.nic.announce();
    let mut nic = server.nic.command().map_err(|error| error.reason)?;
    let done = |()| Vec::new();
    match request {
        Request::Link { device, port, up } => nic.set_link(usize::from(*device), *port, *up).map(done),
        Request::Set(settings) => nic.set(settings).map(done),
        Request::Inject(injection) => nic.inject(*injection).map(done),
        Request::Capture { .. } => Err("a capture is more than one answer".to_owned()),
        Request::Status => Ok(status(&mut nic)),
        Request::Counters => {
            let counters = process::counters(server, &mut nic);
            let whole = counters.into_iter().map(|(name, value)| (name.to_owned(), value.to_string()));
            Ok(whole.chain(by_port(&nic)).collect())
        }
    }
}

/// Begins to capture the packets of the wire. The error is a sentence.
pub(super) fn begin_capture(server: &Server<Nic>, packets: u64) -> Result<Captured, String> {
    let _announced = server.nic.announce();
    let mut nic = server.nic.command().map_err(|error| error.reason)?;
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = Now(system::monotonic_ns());
    nic.link().begin_capture(now, since_1970.as_nanos() as u64, packets)
}

/// Name of the port at a place: `mlx5_0`, and `mlx5_0/2` where devices have more than one.
fn port_name(nic: &Nic, place: usize) -> String {
    let (ports, port) = (nic.ports(), &nic.ports()[place]);
    if ports.iter().any(|other| other.port > 1) {
        format!("mlx5_{}/{}", port.index, port.port)
    } else {
        format!("mlx5_{}", port.index)
    }
}

/// A line for each port: `mlx5_0 active 3`, its state and its QPs; where what leaves is delayed, ` delay=2ms` behind it.
fn status(nic: &mut Nic) -> Vec<(String, String)> {
    let delay = match nic.link().delay_ns() {
        0 => String::new(),
        ns => format!(" delay={}", Span(ns)),
    };
    let nic = &*nic;
    let state = |place| if nic.port_is_down(place) { "down" } else { "active" };
    let line =
        |place: usize| (port_name(nic, place), format!("{} {}{delay}", state(place), nic.open_qps(place)));
    (0..nic.ports().len()).map(line).collect()
}

/// What each port carried, where there are several: `mlx5_0/2.messages_sent`. Of an only one the NIC's own counters say it.
fn by_port(nic: &Nic) -> Vec<(String, String)> {
    let of_port = |place: usize| {
        let name = port_name(nic, place);
        nic.port_counters(place)
            .fields()
            .map(move |(what, value)| (format!("{name}.{what}"), value.to_string()))
    };
    let ports = nic.ports().len();
    if ports > 1 { (0..ports).flat_map(of_port).collect() } else { Vec::new() }
}
