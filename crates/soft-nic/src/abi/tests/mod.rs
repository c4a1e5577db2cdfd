//! The command server without a NIC: calls as libibverbs builds them, to a device that records its requests.

mod commands;
mod decode;
mod dma_bufs;
mod hostile;
mod queues;
mod recorder;

use mlx5_device::command::CommandError;
use mlx5_device::memory::Memory;
use recorder::Recorder;

use super::events::Events;
use super::layout::{attr, ioctl_hdr};
use super::server::{OpenFile, Server};
use crate::config::Config;
use crate::dma::Host;
use crate::sysfs::Machine;

/// One ioctl: header and attributes in one buffer, and the memory that attributes point to.
pub struct Call {
    object: u16,
    method: u16,
    attributes: Vec<[u8; attr::SIZE]>,
    /// Inputs and outputs behind pointers; boxed, so that they stay where they are.
    buffers: Vec<(u16, Box<[u8]>)>,
}

/// Bit of the flags that makes an attribute mandatory.
pub const MANDATORY: u16 = 1;
/// Bit that the kernel sets on an output that it wrote.
pub const VALID: u16 = 2;

impl Call {
    pub fn new(object: u16, method: u16) -> Self {
        Self { object, method, attributes: Vec::new(), buffers: Vec::new() }
    }

    /// INVOKE_WRITE of this command.
    pub fn write(command: u32) -> Self {
        Self::new(0, 0).input(2, &u64::from(command).to_ne_bytes())
    }

    /// An attribute as it stands.
    pub fn raw(mut self, id: u16, len: u16, flags: u16, reserved: u16, data: u64) -> Self {
        let mut bytes = [0; attr::SIZE];
        bytes[attr::id..][..2].copy_from_slice(&id.to_ne_bytes());
        bytes[attr::len..][..2].copy_from_slice(&len.to_ne_bytes());
        bytes[attr::flags..][..2].copy_from_slice(&flags.to_ne_bytes());
        bytes[attr::reserved..][..2].copy_from_slice(&reserved.to_ne_bytes());
        bytes[attr::data..][..8].copy_from_slice(&data.to_ne_bytes());
        self.attributes.push(bytes);
        self
    }

    /// The same without an attribute.
    pub fn without(mut self, id: u16) -> Self {
        self.attributes.retain(|bytes| bytes[..2] != id.to_ne_bytes());
        self
    }

    /// An input: inline up to eight bytes, else behind a pointer.
    pub fn input(mut self, id: u16, bytes: &[u8]) -> Self {
        if bytes.len() <= 8 {
            let mut data = [0; 8];
            data[..bytes.len()].copy_from_slice(bytes);
            return self.raw(id, bytes.len() as u16, MANDATORY, 0, u64::from_ne_bytes(data));
        }
        let buffer: Box<[u8]> = bytes.into();
        let address = buffer.as_ptr() as u64;
        self.buffers.push((id, buffer));
        self.raw(id, bytes.len() as u16, MANDATORY, 0, address)
    }

    /// Room for an output, filled with 0xee.
    pub fn output(mut self, id: u16, room: usize) -> Self {
        let buffer: Box<[u8]> = vec![0xee; room].into();
        let address = buffer.as_ptr() as u64;
        self.buffers.push((id, buffer));
        self.raw(id, room as u16, MANDATORY, 0, address)
    }

    /// A handle or descriptor, in or out.
    pub fn handle(self, id: u16, value: u64) -> Self {
        self.raw(id, 0, MANDATORY, 0, value)
    }

    /// The bytes that the ioctl gets.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; ioctl_hdr::SIZE];
        let length = ioctl_hdr::SIZE + self.attributes.len() * attr::SIZE;
        bytes[ioctl_hdr::length..][..2].copy_from_slice(&(length as u16).to_ne_bytes());
        bytes[ioctl_hdr::object..][..2].copy_from_slice(&self.object.to_ne_bytes());
        bytes[ioctl_hdr::method..][..2].copy_from_slice(&self.method.to_ne_bytes());
        bytes[ioctl_hdr::num_attrs..][..2].copy_from_slice(&(self.attributes.len() as u16).to_ne_bytes());
        bytes[ioctl_hdr::driver..][..4].copy_from_slice(&1_u32.to_ne_bytes());
        bytes.extend(self.attributes.concat());
        bytes
    }

    /// The same with everything that its pointers name behind it, as it would lie at `base`.
    pub fn image(&self, base: u64) -> Vec<u8> {
        let mut bytes = self.encode();
        for (id, buffer) in &self.buffers {
            let address = base + bytes.len() as u64;
            let place = self.attributes.iter().position(|attribute| attribute[..2] == id.to_ne_bytes());
            let at =
                ioctl_hdr::SIZE + place.expect("an attribute for every buffer") * attr::SIZE + attr::data;
            bytes[at..at + 8].copy_from_slice(&address.to_ne_bytes());
            bytes.extend(buffer.iter());
        }
        bytes
    }

    /// Runs the call; what the server wrote into the attributes comes back here.
    pub fn run(&mut self, bench: &mut Bench) -> Result<(), i32> {
        let bytes = self.encode();
        let done = bench.ioctl(bytes.as_ptr() as u64);
        for (attribute, after) in
            self.attributes.iter_mut().zip(bytes[ioctl_hdr::SIZE..].chunks_exact(attr::SIZE))
        {
            attribute.copy_from_slice(after);
        }
        done.map_err(|error| error.errno)
    }

    /// What stands in an output's room now.
    pub fn result(&self, id: u16) -> &[u8] {
        let (_, buffer) =
            self.buffers.iter().find(|(known, _)| *known == id).expect("a buffer of this attribute");
        buffer
    }

    /// Flags and data of an attribute now.
    pub fn attribute(&self, id: u16) -> (u16, u64) {
        let of = |bytes: &&[u8; attr::SIZE]| u16::from_ne_bytes([bytes[0], bytes[1]]) == id;
        let bytes = self.attributes.iter().find(of).expect("an attribute with this number");
        let flags = u16::from_ne_bytes([bytes[attr::flags], bytes[attr::flags + 1]]);
        (flags, u64::from_ne_bytes(bytes[attr::data..].try_into().expect("eight bytes")))
    }
}

/// A server over a recording device, and one open file.
pub struct Bench {
    pub server: Server<Recorder>,
    pub file: OpenFile,
}

impl Bench {
    /// A fresh open without a context.
    pub fn closed(config: &Config) -> Self {
        Self::over(config, Box::new(Host::new().expect("the fault handler")))
    }

    /// The same over other memory.
    pub fn over(config: &Config, memory: Box<dyn Memory + Sync>) -> Self {
        let machine = Machine { processors: 4, interface: "lo".into(), interface_index: 1 };
        let server = Server::new(config, machine, Recorder::default(), Events::default(), memory);
        Self { server: server.expect("clock pages"), file: OpenFile::new(0) }
    }

    /// The same after GET_CONTEXT.
    pub fn open(config: &Config) -> Self {
        let mut bench = Self::closed(config);
        get_context().run(&mut bench).expect("GET_CONTEXT");
        bench.asked();
        bench
    }

    fn ioctl(&mut self, address: u64) -> Result<(), CommandError> {
        crate::abi::ioctl(&self.server, &mut self.file, address)
    }

    /// What the device was asked since the last look.
    pub fn asked(&self) -> Vec<String> {
        self.device().asked.take()
    }

    /// The device.
    pub fn device(&self) -> super::server::Locked<'_, Recorder> {
        self.server.nic.poll().expect("a healthy device")
    }
}

/// GET_CONTEXT as libmlx5 24 sends it.
pub fn get_context() -> Call {
    let mut request = [0; 32];
    (request[0], request[4]) = (16, 4);
    (request[16], request[24]) = (1, 3);
    Call::new(0, 3).output(0, 4).output(1, 8).input(0x1000, &request).output(0x1001, 72)
}
