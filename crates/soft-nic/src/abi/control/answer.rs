//! The NIC's side of a request: what is done with it, under the NIC's lock, as for a command of the driver.

use std::time::SystemTime;

use roce::Now;

use super::Request;
use super::frame::Answer;
use crate::abi::process;
use crate::abi::server::Server;
use crate::device::Nic;
use crate::dma::{Host, system};
use crate::link::capture::Captured;
use crate::span::Span;

/// Does what was asked.
pub(super) fn answer(server: &Server<Nic<Host>>, request: &Request) -> Answer {
    let _announced = server.nic.announce();
    let mut nic = server.nic.command().map_err(|error| error.reason)?;
    let done = |()| Vec::new();
    match request {
        Request::Link { device, up } => nic.set_link(usize::from(*device), *up).map(done),
        Request::Set(settings) => nic.set(settings).map(done),
        Request::Inject(injection) => nic.inject(*injection).map(done),
        Request::Capture { .. } => Err("a capture is more than one answer".to_owned()),
        Request::Status => Ok(status(&mut nic)),
        Request::Counters => {
            let counters = process::counters(server, &mut nic);
            Ok(counters.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect())
        }
    }
}

/// Begins to capture the packets of the wire. The error is a sentence.
pub(super) fn begin_capture(server: &Server<Nic<Host>>, packets: u64) -> Result<Captured, String> {
    let _announced = server.nic.announce();
    let mut nic = server.nic.command().map_err(|error| error.reason)?;
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = Now(system::monotonic_ns());
    nic.link().begin_capture(now, since_1970.as_nanos() as u64, packets)
}

/// A line for each device: `mlx5_0 active 3`, its port's state and its QPs; where what leaves is delayed, ` delay=2ms` behind it.
fn status(nic: &mut Nic<Host>) -> Vec<(String, String)> {
    let delay = match nic.link().delay_ns() {
        0 => String::new(),
        ns => format!(" delay={}", Span(ns)),
    };
    let port = |index| if nic.port_is_down(index) { "down" } else { "active" };
    let line =
        |index: usize| (format!("mlx5_{index}"), format!("{} {}{delay}", port(index), nic.open_qps(index)));
    (0..nic.devices().len()).map(line).collect()
}
