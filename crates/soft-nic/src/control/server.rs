//! The NIC's side: connects to the client and executes its request under the NIC's lock, like a command.

use std::io;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use mlx5_device::Commands;
use mlx5_device::Span;
use roce::Now;
use serde::Serialize;

use super::frame::{self, MAX_REQUEST_BYTES, encode};
use super::{PortStatus, Request, THREAD_NAME, capture, socket_name};
use crate::Nic;
use crate::abi::server::Server;
use crate::dma::{copiers, gpu};
use crate::link::capture::CaptureReader;
use crate::os::unix_stream::Stream;
use crate::os::{log, log_command, system};
use crate::rdma_cm::Manager;

/// Deadline of one request: a client that is silent or slow is disconnected.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Executes the requests of `softnic ctl` on a process's NIC.
pub struct ControlServer {
    pub server: Arc<Server<Nic>>,
    pub manager: Manager,
    /// Held while a client is served: one at a time.
    turn: Mutex<()>,
}

impl ControlServer {
    pub fn new(server: Arc<Server<Nic>>, manager: Manager) -> ControlServer {
        ControlServer { server, manager, turn: Mutex::default() }
    }

    /// Serves this call's client. The thread inherits the NIC thread's mask: no program signal reaches it.
    pub fn take_call(self: &Arc<Self>, call: u64) {
        let server = self.clone();
        let thread = std::thread::Builder::new().name(THREAD_NAME.to_owned());
        if let Err(error) = thread.spawn(move || server.serve(call)) {
            log(&format!("softnic ctl calls, and there is no thread to answer: {error}"));
        }
    }

    fn serve(&self, call: u64) {
        let turn = self.turn.try_lock();
        if matches!(turn, Err(TryLockError::WouldBlock)) {
            // The client calls again.
            return;
        }
        let ended = self.exchange(call);
        // Other clients are served while a capture goes on.
        drop(turn);
        let ended = ended.and_then(|(stream, captured)| match captured {
            Some(captured) => capture::stream(&stream, captured)
                .map_err(|error| format!("the caller of a capture went away: {error}")),
            None => Ok(()),
        });
        if let Err(why) = ended {
            log_command(|| format!("softnic ctl: {why}"));
        }
    }

    /// One request, its answer, and the capture that follows, if any. The error says why no answer was sent.
    fn exchange(&self, call: u64) -> Result<(Stream, Option<CaptureReader>), String> {
        let until = Instant::now() + TIMEOUT;
        let (stream, peer) = Stream::connect(&socket_name(call), TIMEOUT)
            .map_err(|error| format!("the caller cannot be reached: {error}"))?;
        if peer.user != system::user() {
            return Err(format!("process {} of user {} is refused", peer.pid, peer.user));
        }
        let request = match frame::receive::<Request>(&stream, MAX_REQUEST_BYTES, until) {
            Ok(request) => request.check().map(|()| request),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error.to_string()),
            Err(error) => return Err(format!("the caller went away: {error}")),
        };
        let (answer, captured) = match request {
            Ok(request) => self.answer(&request),
            Err(why) => (encode(&Err::<(), _>(why)), None),
        };
        stream.send(&answer, until).map_err(|error| format!("the answer was not taken: {error}"))?;
        Ok((stream, captured))
    }

    /// An answer as it is sent, and the capture that begins with it, if any.
    fn answer(&self, request: &Request) -> (Vec<u8>, Option<CaptureReader>) {
        let mut captured = None;
        let answer = match request {
            // Also of a NIC that has stopped.
            Request::Explain => encode(&Ok::<_, String>(self.server.events.1.failures())),
            Request::Link { device, port, up } => {
                self.ask(|nic| nic.set_link(usize::from(*device), *port, *up))
            }
            Request::Set(settings) => self.ask(|nic| nic.set(settings)),
            Request::Inject(injection) => self.ask(|nic| nic.inject(*injection)),
            Request::Status => self.ask(|nic| Ok(status(nic))),
            Request::Counters => self.ask(|nic| {
                let whole = self.counters(nic).into_iter().map(|(name, value)| (name.to_owned(), value));
                Ok(whole.chain(by_port(nic)).collect::<Vec<_>>())
            }),
            Request::Capture { packets } => self.ask(|nic| {
                let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let now = Now(system::monotonic_ns());
                captured = Some(nic.link().begin_capture(now, since_1970.as_nanos() as u64, *packets)?);
                Ok(())
            }),
        };
        (answer, captured)
    }

    /// Asks the NIC, under its lock, for a value: the answer as it is sent.
    fn ask<T: Serialize>(&self, asked: impl FnOnce(&mut Nic) -> Result<T, String>) -> Vec<u8> {
        let _announced = self.server.nic.announce();
        let nic = self.server.nic.command().map_err(|error| error.reason);
        encode(&nic.and_then(|mut nic| asked(&mut nic)))
    }

    /// Every counter of the device and of the link, by the names of the stats line.
    pub fn counters(&self, nic: &mut Nic) -> Vec<(&'static str, u64)> {
        let (link, delay_ns, wire) = (nic.link().counters(), nic.link().delay_ns(), wire_counters(nic));
        let device = nic.counters().fields();
        device
            .chain(link.fields())
            .chain([("link_delay_ns", delay_ns)])
            .chain(wire)
            .chain(copiers::counters())
            .chain(gpu::counters())
            .chain(self.manager.counters())
            .collect()
    }
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

fn status(nic: &mut Nic) -> Vec<PortStatus> {
    let delay = Span(nic.link().delay_ns());
    let nic = &*nic;
    let port = |place: usize| PortStatus {
        name: port_name(nic, place),
        is_up: !nic.port_is_down(place),
        qps: nic.open_qps(place) as u64,
        delay,
    };
    (0..nic.ports().len()).map(port).collect()
}

/// Each port's counters, if several: `mlx5_0/2.messages_sent`. With one port the NIC's own counters say it.
fn by_port(nic: &Nic) -> Vec<(String, u64)> {
    let of_port = |place: usize| {
        let name = port_name(nic, place);
        nic.port_counters(place).fields().map(move |(what, value)| (format!("{name}.{what}"), value))
    };
    let ports = nic.ports().len();
    if ports > 1 { (0..ports).flat_map(of_port).collect() } else { Vec::new() }
}

/// The wire's counters, all 0 without a wire except the fabric's connection-manager datagrams (`mads_*`).
fn wire_counters(nic: &mut Nic) -> impl Iterator<Item = (&'static str, u64)> + use<> {
    let wire = nic.link().wire_counters().unwrap_or_default();
    let router = nic.link().mad_router();
    let (mads, local) = (router.counters(), router.local_counters());
    let local = [
        ("mads_unclaimed", local.unclaimed),
        ("mads_malformed", local.malformed),
        ("mads_full", local.full),
        ("mads_failed", local.failed),
    ];
    wire.fields().chain(local).chain(mads.fields())
}
