//! The NIC's side of a request: what is done with it, under the NIC's lock, as for a command of the driver.

use super::Request;
use super::frame::Answer;
use crate::abi::process;
use crate::abi::server::Server;
use crate::device::Nic;
use crate::dma::Host;

/// Does what was asked.
pub(super) fn answer(server: &Server<Nic<Host>>, request: &Request) -> Answer {
    let _announced = server.nic.announce();
    let mut nic = server.nic.command().map_err(|error| error.reason)?;
    match request {
        Request::Status => Ok(status(&nic)),
        Request::Counters => {
            let counters = process::counters(&mut nic);
            Ok(counters.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect())
        }
    }
}

/// A line for each device: `mlx5_0 active 3`, its port's state and its QPs.
fn status(nic: &Nic<Host>) -> Vec<(String, String)> {
    let line = |index: usize| (format!("mlx5_{index}"), format!("active {}", nic.open_qps(index)));
    (0..nic.devices().len()).map(line).collect()
}
