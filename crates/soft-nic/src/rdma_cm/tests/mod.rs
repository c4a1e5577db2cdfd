//! Commands as a program writes them, on two connection managers joined by a queue of MADs.

mod commands;
mod connections;
mod flood;
mod hostile;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex};

use mlx5_device::command::CommandError;
use mlx5_device::memory::{Fault, Memory};
use mlx5_device::model::DeviceConfig;
use roce::Now;
use roce::wire::Gid;

use super::call::{Call, CallContext};
use super::ids::Ids;
use super::mad_port::{EndedProcess, MadPort};
use super::queue::Queue;
use crate::abi::layout::*;
use crate::config::{Config, LinkLayer};
use crate::dma::Host;
use crate::link::ServiceError;
use crate::link::mads::AddressedMad;
use crate::os::system::is_readable;
use crate::os::testing::own;

/// Carries MADs between the two programs, and knows the services that each listens to.
#[derive(Debug, Default)]
pub struct MadFabric {
    boxes: [Vec<AddressedMad>; 2],
    services: Vec<(usize, u64, Option<Gid>)>,
    /// Where packets to other hosts leave from.
    source: Option<Gid>,
    /// Ended processes, which the other end has yet to learn of.
    departed: Vec<EndedProcess>,
}

struct Port {
    fabric: Arc<Mutex<MadFabric>>,
    end: usize,
}

impl MadPort for Port {
    fn send(&mut self, addressed: AddressedMad) {
        self.fabric.lock().unwrap().boxes[1 - self.end].push(addressed);
    }

    fn receive(&mut self) -> Vec<AddressedMad> {
        std::mem::take(&mut self.fabric.lock().unwrap().boxes[self.end])
    }

    fn announce(&mut self, service: u64, address: Option<Gid>) -> Result<(), ServiceError> {
        if self.is_taken(service, address) {
            return Err(ServiceError::Taken(1));
        }
        self.fabric.lock().unwrap().services.push((self.end, service, address));
        Ok(())
    }

    fn withdraw(&mut self, service: u64, address: Option<Gid>) {
        self.fabric.lock().unwrap().services.retain(|taken| *taken != (self.end, service, address));
    }

    fn source_for(&self, to: Gid, from: Option<Gid>) -> Option<Gid> {
        let source = from.or(self.fabric.lock().unwrap().source);
        source.filter(|source| source.ipv4().is_some() == to.ipv4().is_some())
    }

    fn departed(&mut self) -> Vec<EndedProcess> {
        std::mem::take(&mut self.fabric.lock().unwrap().departed)
    }

    fn is_waiting(&self) -> bool {
        false
    }

    fn is_taken(&self, service: u64, address: Option<Gid>) -> bool {
        let fabric = self.fabric.lock().unwrap();
        fabric.services.iter().any(|(end, taken, at)| {
            *end != self.end && *taken == service && (at.is_none() || address.is_none() || *at == address)
        })
    }
}

/// An event as a program reads it.
#[derive(Debug, Clone)]
pub struct ReportedEvent {
    pub uid: u64,
    pub id: u32,
    pub kind: u32,
    pub status: i32,
    pub param: Vec<u8>,
}

impl ReportedEvent {
    pub fn fields(&self) -> Reader<'_> {
        Reader(&self.param)
    }
}

/// A program with one open file.
pub struct Program {
    pub ids: Ids,
    pub file: u32,
    pub pipe: File,
    pub now: Now,
    pub others: BTreeMap<i32, u32>,
    pub memory: Fenced,
    fabric: Arc<Mutex<MadFabric>>,
}

/// The two programs' addresses: devices 0 and 1 of the same fabric.
pub const IP: [[u8; 4]; 2] = [[10, 9, 0, 1], [10, 9, 0, 2]];

pub fn sockaddr(ip: [u8; 4], port: u16) -> [u8; 28] {
    let mut out = [0; 28];
    out[..2].copy_from_slice(&2_u16.to_ne_bytes());
    out[2..4].copy_from_slice(&port.to_be_bytes());
    out[4..8].copy_from_slice(&ip);
    out
}

pub fn programs(link_layer: LinkLayer) -> [Program; 2] {
    programs_with_wire(link_layer, None)
}

/// The same with a wire, which packets leave from an address.
pub fn programs_with_wire(link_layer: LinkLayer, source: Option<Gid>) -> [Program; 2] {
    let fabric = Arc::new(Mutex::new(MadFabric { source, ..MadFabric::default() }));
    let ipv6 = Some("fd00::10".parse().unwrap());
    let config = Config { devices: 2, link_layer, ipv4: Some(IP[0].into()), ipv6, ..Config::default() };
    [0, 1].map(|end| {
        let devices = (0..2).map(|index| DeviceConfig::new(&config.nic(), index)).collect();
        let port = Box::new(Port { fabric: fabric.clone(), end });
        let mut ids = Ids::new(devices, port, end as u8 + 1, 0x5_0000_0077);
        let (queue, fd) = Queue::new().unwrap();
        let file = ids.open(queue);
        let pipe = own(fd);
        Program {
            ids,
            file,
            pipe,
            now: Now(1),
            others: BTreeMap::new(),
            memory: Fenced { host: Host::new().unwrap(), writable: None },
            fabric: fabric.clone(),
        }
    })
}

/// This process's memory, of which commands may write everything, or only the inside of a fence: a made-up
/// address could be another test's.
pub struct Fenced {
    host: Host,
    pub writable: Option<std::ops::Range<u64>>,
}

impl Memory for Fenced {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.host.read(addr, out)
    }

    fn write(&self, addr: u64, bytes: &[u8], relaxed: bool) -> Result<(), Fault> {
        let inside = |fence: &std::ops::Range<u64>| {
            fence.contains(&addr) && addr.checked_add(bytes.len() as u64).is_some_and(|end| end <= fence.end)
        };
        if self.writable.as_ref().is_none_or(inside) {
            self.host.write(addr, bytes, relaxed)
        } else {
            Err(Fault { addr })
        }
    }

    fn load32(&self, addr: u64) -> Result<u32, Fault> {
        self.host.load32(addr)
    }

    fn store32(&self, addr: u64, _: u32) -> Result<(), Fault> {
        Err(Fault { addr })
    }

    fn compare_swap32(&self, addr: u64, _: u32, _: u32) -> Result<u32, Fault> {
        Err(Fault { addr })
    }

    fn compare_swap64(&self, addr: u64, _: u64, _: u64) -> Result<u64, Fault> {
        Err(Fault { addr })
    }

    fn fetch_add64(&self, addr: u64, _: u64) -> Result<u64, Fault> {
        Err(Fault { addr })
    }

    fn probe(&self, addr: u64, len: u64, write: bool) -> Result<(), Fault> {
        self.host.probe(addr, len, write)
    }
}

/// A write: header and command.
pub fn bytes_of(command: u32, out: usize, body: &[u8]) -> Vec<u8> {
    let header = Writer::<{ ucm_hdr::SIZE }>::new()
        .u32(ucm_hdr::cmd, command)
        .u16(ucm_hdr::len_in, body.len() as u16)
        .u16(ucm_hdr::out, out as u16)
        .finish();
    [&header[..], body].concat()
}

impl Program {
    /// Writes bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, CommandError> {
        let call = Call::read(&self.memory, bytes.as_ptr() as u64, bytes.len())?;
        let file_of = |fd| self.others.get(&fd).copied();
        let context = CallContext { memory: &self.memory, now: self.now, file: self.file, file_of: &file_of };
        let done = match call.is_get_event() {
            true => call.check_get_event().and_then(|()| call.get_event(&mut self.ids, &context).map(|_| ())),
            false => super::commands::run(&call, &mut self.ids, &context),
        };
        self.ids.turn(self.now);
        done.map(|()| call.written)
    }

    /// A command without an answer; its errno, 0 for none.
    pub fn run(&mut self, command: u32, body: &[u8]) -> i32 {
        self.write(&bytes_of(command, 0, body)).map_or_else(|error| error.errno, |_| 0)
    }

    /// A command whose answer goes to the address at the beginning of the command.
    pub fn ask<const N: usize>(&mut self, command: u32, at: usize, body: &[u8]) -> Result<[u8; N], i32> {
        let mut answer = [0xee_u8; N];
        let mut body = body.to_vec();
        body[at..at + 8].copy_from_slice(&(answer.as_mut_ptr() as u64).to_ne_bytes());
        self.write(&bytes_of(command, N, &body)).map(|_| answer).map_err(|error| error.errno)
    }

    pub fn create(&mut self, space: u16, uid: u64) -> u32 {
        use ucm_create_id as at;
        let body =
            Writer::<{ at::SIZE }>::new().u64(at::uid, uid).u16(at::ps, space).u8(at::qp_type, 2).finish();
        u32::from_ne_bytes(self.ask(0, at::response, &body).unwrap())
    }

    pub fn destroy(&mut self, id: u32) -> Result<u32, i32> {
        let body = Writer::<16>::new().u32(ucm_destroy_id::id, id).finish();
        self.ask(1, 0, &body).map(u32::from_ne_bytes)
    }

    pub fn bind(&mut self, id: u32, ip: [u8; 4], port: u16) -> i32 {
        use ucm_bind as at;
        let body = Writer::<{ at::SIZE }>::new().u32(at::id, id).u16(at::addr_size, 16);
        self.run(20, &body.bytes(at::addr, &sockaddr(ip, port)).finish())
    }

    pub fn resolve_addr(&mut self, id: u32, ip: [u8; 4], port: u16) -> i32 {
        use ucm_resolve_addr as at;
        let body = Writer::<{ at::SIZE }>::new().u32(at::id, id).u16(at::dst_size, 16);
        self.run(21, &body.bytes(at::dst, &sockaddr(ip, port)).finish())
    }

    pub fn resolve_route(&mut self, id: u32) -> i32 {
        self.run(4, &Writer::<8>::new().u32(0, id).u32(4, 2000).finish())
    }

    pub fn listen(&mut self, id: u32) -> i32 {
        self.run(7, &Writer::<8>::new().u32(0, id).u32(4, 3).finish())
    }

    /// Parameters of CONNECT and ACCEPT.
    pub fn param(qpn: u32, private: &[u8]) -> [u8; ucm_conn_param::SIZE] {
        use ucm_conn_param as at;
        Writer::new()
            .u32(at::qp_num, qpn)
            .bytes(at::private_data, private)
            .u8(at::private_data_len, private.len() as u8)
            .u8(at::responder_resources, 3)
            .u8(at::initiator_depth, 2)
            .u8(at::retry_count, 7)
            .u8(at::rnr_retry_count, 6)
            .u8(at::valid, 1)
            .finish()
    }

    pub fn connect(&mut self, id: u32, qpn: u32, private: &[u8]) -> i32 {
        let param = Self::param(qpn, private);
        self.run(
            6,
            &Writer::<{ ucm_connect::SIZE }>::new().bytes(0, &param).u32(ucm_connect::id, id).finish(),
        )
    }

    pub fn accept(&mut self, id: u32, uid: u64, qpn: u32, private: &[u8]) -> i32 {
        use ucm_accept as at;
        let param = Self::param(qpn, private);
        let body =
            Writer::<{ at::SIZE }>::new().u64(at::uid, uid).bytes(at::conn_param, &param).u32(at::id, id);
        self.run(8, &body.finish())
    }

    /// ACCEPT of an answer, which has no parameters.
    pub fn ready(&mut self, id: u32) -> i32 {
        self.run(8, &Writer::<{ ucm_accept::SIZE }>::new().u32(ucm_accept::id, id).finish())
    }

    /// REJECT.
    pub fn reject(&mut self, id: u32, private: &[u8]) -> i32 {
        use ucm_reject as at;
        let body = Writer::<{ at::SIZE }>::new()
            .u32(at::id, id)
            .u8(at::private_data_len, private.len() as u8)
            .bytes(at::private_data, private);
        self.run(9, &body.finish())
    }

    pub fn disconnect(&mut self, id: u32) -> i32 {
        self.run(10, &id.to_ne_bytes())
    }

    /// The process in a slot ends. The request of `asking` went to it.
    pub fn departs(&self, slot: u8, asking: u32) {
        let asked = self.ids.ids[&asking].connection.map(|connection| connection.0);
        self.fabric.lock().unwrap().departed.push(EndedProcess { slot, asked: asked.into_iter().collect() });
    }

    /// The next event, if the pipe says that there is one.
    pub fn event(&mut self) -> Option<ReportedEvent> {
        self.ids.turn(self.now);
        if !is_readable(&self.pipe) {
            return None;
        }
        self.pipe.read_exact(&mut [0]).unwrap();
        use ucm_event_resp as at;
        let bytes: [u8; at::SIZE] = self.ask(12, 0, &[0; 8]).unwrap();
        let fields = Reader(&bytes);
        Some(ReportedEvent {
            uid: fields.u64(at::uid),
            id: fields.u32(at::id),
            kind: fields.u32(at::event),
            status: fields.u32(at::status) as i32,
            param: bytes[at::param..at::reserved].to_vec(),
        })
    }

    /// The next event, which must be of this kind.
    pub fn expect(&mut self, kind: u32) -> ReportedEvent {
        let told = self.event().unwrap_or_else(|| panic!("no event, {kind} was due"));
        assert_eq!(told.kind, kind, "{told:?}");
        told
    }

    /// INIT_QP_ATTR.
    pub fn attributes(&mut self, id: u32, state: u32) -> Result<[u8; uverbs_qp_attr::SIZE], i32> {
        use ucm_init_qp_attr as at;
        self.ask(11, 0, &Writer::<{ at::SIZE }>::new().u32(at::id, id).u32(at::qp_state, state).finish())
    }
}
