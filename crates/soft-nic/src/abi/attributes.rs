//! One verbs ioctl: header and attributes copied once, checked by the method's table, answers written back.
//!
//! Follows Linux `drivers/infiniband/core/uverbs_ioctl.c` (which errno for which mistake) and
//! `rdma/rdma_user_ioctl_cmds.h`. Everything comes from the program and is not trusted: addresses are read
//! through [`Memory`], which turns a bad one into `EFAULT`. Left out: arrays of handles and enum attributes,
//! which no method that the NIC knows takes.

use mlx5_device::Answer;
use mlx5_device::command::{CommandError, refusal, refuse_if};
use mlx5_device::memory::Memory;

use super::layout::{Reader, attr, ioctl_hdr};

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, 24 bytes)`.
pub const RDMA_VERBS_IOCTL: u64 = 0xc018_1b01;
/// `RDMA_DRIVER_MLX5`.
const DRIVER_MLX5: u32 = 1;
/// A kernel takes at most one page of header and attributes.
const MAX_LENGTH: usize = 4096;
const MANDATORY: u16 = 1;
const VALID_OUTPUT: u16 = 2;

/// Driver part of a command: input, output.
pub const UHW_IN: u16 = 0x1000;
pub const UHW_OUT: u16 = 0x1001;

/// What both may be.
pub const UHW: Kind = Kind::In { min: 0, max: 4096 };
pub const ANY_OUT: Kind = out(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes from the program, at least `min`; those past `max` must be zeros (a newer library's struct).
    In {
        /// Least length.
        min: u16,
        /// Length known here.
        max: u16,
    },
    /// Bytes to the program, at least `min` of room.
    Out {
        /// Least room.
        min: u16,
    },
    Handle,
    NewHandle,
    Fd,
    /// Place for a new file descriptor.
    NewFd,
}

/// An attribute that a method takes.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub id: u16,
    pub kind: Kind,
    /// Whether a call without it is refused.
    pub mandatory: bool,
}

/// A method, with all attributes it knows.
#[derive(Debug)]
pub struct Method {
    pub name: &'static str,
    pub attributes: &'static [Spec],
}

/// A mandatory attribute.
pub const fn must(id: u16, kind: Kind) -> Spec {
    Spec { id, kind, mandatory: true }
}

/// An optional attribute.
pub const fn may(id: u16, kind: Kind) -> Spec {
    Spec { id, kind, mandatory: false }
}

/// Bytes in, of one known length.
pub const fn bytes(length: u16) -> Kind {
    Kind::In { min: length, max: length }
}

/// Room for as many bytes at least.
pub const fn out(min: usize) -> Kind {
    Kind::Out { min: min as u16 }
}

/// Declares a list of attributes, and a constant for the number of each except those after the braces.
macro_rules! specs {
    ($(#[$doc:meta])* $list:ident { $($need:ident $name:ident = $id:literal, $kind:expr;)* } $($more:expr),*) => {
        $(pub const $name: u16 = $id;)*
        $(#[$doc])*
        pub const $list: &[$crate::abi::attributes::Spec] = &[$($need($name, $kind),)* $($more),*];
    };
}
pub(super) use specs;

/// A refusal in a kernel's words: errno and the sentence for the log.
pub fn refuse(errno: i32, reason: impl Into<String>) -> CommandError {
    CommandError { errno, reason: reason.into() }
}

#[derive(Debug)]
struct Attribute {
    spec: &'static Spec,
    /// Address of the attribute itself, where handles and flags are written back.
    address: u64,
    len: u16,
    flags: u16,
    data: u64,
    /// The bytes of an [`Kind::In`] attribute.
    input: Vec<u8>,
}

/// A decoded call.
pub struct Command<'m> {
    memory: &'m dyn Memory,
    pub method: Method,
    attributes: Vec<Attribute>,
}

impl<'m> Command<'m> {
    /// Copies and checks the call whose header is at `address`. `find` gives a method's table and handler.
    pub fn decode<H>(
        memory: &'m dyn Memory,
        address: u64,
        find: impl FnOnce(u16, u16) -> Answer<(Method, H)>,
    ) -> Answer<(Self, H)> {
        let mut header = [0; ioctl_hdr::SIZE];
        memory.read(address, &mut header).map_err(fault)?;
        let header = Reader(&header);
        let count = usize::from(header.u16(ioctl_hdr::num_attrs));
        let length = usize::from(header.u16(ioctl_hdr::length));
        let (object, method) = (header.u16(ioctl_hdr::object), header.u16(ioctl_hdr::method));
        let fits = length == ioctl_hdr::SIZE + count * attr::SIZE && length <= MAX_LENGTH;
        refuse_if!(!fits, EINVAL, "a header of {length} bytes for {count} attributes");
        let reserved = (header.u64(ioctl_hdr::reserved1), header.u32(ioctl_hdr::reserved2));
        refuse_if!(reserved != (0, 0), EPROTONOSUPPORT, "reserved words of the header: {reserved:x?}");
        let (method, handler) = find(object, method)?;
        let driver = header.u32(ioctl_hdr::driver);
        refuse_if!(driver != DRIVER_MLX5, EINVAL, "driver id {driver}, this is an mlx5 device (1)");
        let mut raw = vec![0; count * attr::SIZE];
        let first = address.wrapping_add(ioctl_hdr::SIZE as u64);
        memory.read(first, &mut raw).map_err(fault)?;
        let mut command = Self { memory, method, attributes: Vec::with_capacity(count) };
        for (index, bytes) in raw.chunks_exact(attr::SIZE).enumerate() {
            command.take(Reader(bytes), first.wrapping_add((index * attr::SIZE) as u64))?;
        }
        match command.method.attributes.iter().find(|spec| spec.mandatory && command.get(spec.id).is_none()) {
            Some(spec) => Err(command.missing(spec.id)),
            None => Ok((command, handler)),
        }
    }

    /// Checks one attribute against its spec and keeps it. Skips unknown optional ones, as a kernel does.
    fn take(&mut self, raw: Reader<'_>, address: u64) -> Answer<()> {
        let (id, len, flags) = (raw.u16(attr::id), raw.u16(attr::len), raw.u16(attr::flags));
        let data = raw.u64(attr::data);
        let name = self.method.name;
        let Some(spec) = self.method.attributes.iter().find(|spec| spec.id == id) else {
            refuse_if!(
                flags & MANDATORY != 0,
                EPROTONOSUPPORT,
                "{name}: unknown mandatory attribute {id:#x}"
            );
            return Ok(());
        };
        let what = format!("{name}: attribute {id:#x}");
        refuse_if!(self.get(id).is_some(), EINVAL, "{what}: given twice");
        let reserved = raw.u16(attr::reserved);
        refuse_if!(reserved != 0, EINVAL, "{what}: reserved bits {reserved:#x} set");
        let mut input = Vec::new();
        match spec.kind {
            Kind::In { min, .. } | Kind::Out { min } if len < min => {
                return Err(refusal!(EINVAL, "{what}: {len} bytes, {min} needed"));
            }
            Kind::In { max, .. } => {
                input = self.copy_in(len, data)?;
                let unknown = input.iter().skip(usize::from(max)).any(|&byte| byte != 0);
                refuse_if!(unknown, EOPNOTSUPP, "{what}: bytes after the known {max} are not zero");
            }
            Kind::Out { .. } => {}
            Kind::Handle | Kind::NewHandle | Kind::Fd | Kind::NewFd => {
                refuse_if!(len != 0, EINVAL, "{what}: length {len} for a handle");
                let wide = spec.kind == Kind::Handle && data > u64::from(u32::MAX);
                refuse_if!(wide, EINVAL, "{what}: handle {data:#x} is no 32-bit number");
            }
        }
        self.attributes.push(Attribute { spec, address, len, flags, data, input });
        Ok(())
    }

    /// Up to eight bytes sit in the attribute itself, more behind its pointer.
    fn copy_in(&self, len: u16, data: u64) -> Answer<Vec<u8>> {
        let len = usize::from(len);
        if len <= 8 {
            return Ok(data.to_ne_bytes()[..len].to_vec());
        }
        let mut input = vec![0; len];
        self.memory.read(data, &mut input).map_err(fault)?;
        Ok(input)
    }

    fn get(&self, id: u16) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| attribute.spec.id == id)
    }

    pub fn has(&self, id: u16) -> bool {
        self.get(id).is_some()
    }

    /// The bytes of an input attribute.
    pub fn input(&self, id: u16) -> Option<Reader<'_>> {
        self.get(id).map(|attribute| Reader(&attribute.input))
    }

    /// The number in an input attribute of up to eight bytes.
    pub fn number(&self, id: u16) -> Option<u64> {
        self.input(id).map(|input| input.u64(0))
    }

    pub fn number32(&self, id: u16) -> Option<u32> {
        self.input(id).map(|input| input.u32(0))
    }

    pub fn handle(&self, id: u16) -> Option<u32> {
        self.get(id).map(|attribute| attribute.data as u32)
    }

    /// A handle of a mandatory attribute.
    pub fn expect_handle(&self, id: u16) -> Answer<u32> {
        self.handle(id).ok_or_else(|| self.missing(id))
    }

    pub fn missing(&self, id: u16) -> CommandError {
        refusal!(EINVAL, "{}: attribute {id:#x} is missing", self.method.name)
    }

    /// A file descriptor: the low 32 bits, signed.
    pub fn fd(&self, id: u16) -> Option<i32> {
        self.get(id).map(|attribute| attribute.data as u32 as i32)
    }

    /// Room that an output attribute offers; 0 when it is absent.
    pub fn room(&self, id: u16) -> usize {
        self.get(id).map_or(0, |attribute| usize::from(attribute.len))
    }

    /// Writes an output attribute: as much as fits, zeros after it, and the flag that says "valid".
    pub fn write(&self, id: u16, answer: &[u8]) -> Answer<()> {
        let Some(attribute) = self.get(id) else { return Ok(()) };
        let room = usize::from(attribute.len);
        let mut whole = answer[..answer.len().min(room)].to_vec();
        whole.resize(room, 0);
        self.memory.write(attribute.data, &whole, true).map_err(fault)?;
        let flags = (attribute.flags | VALID_OUTPUT).to_ne_bytes();
        let place = attribute.address.wrapping_add(attr::flags as u64);
        self.memory.write(place, &flags, true).map_err(fault)
    }

    /// Gives a new handle or file descriptor back, in the attribute itself.
    pub fn give(&self, id: u16, value: u64) -> Answer<()> {
        let Some(attribute) = self.get(id) else { return Ok(()) };
        let place = attribute.address.wrapping_add(attr::data as u64);
        self.memory.write(place, &value.to_ne_bytes(), true).map_err(fault)
    }
}

/// What the kernel refused the NIC: descriptors, memory.
pub fn kernel(error: &std::io::Error) -> CommandError {
    refuse(error.raw_os_error().unwrap_or(libc::ENOMEM), error.to_string())
}

/// A bad address, as a kernel says it.
pub fn fault(fault: mlx5_device::memory::Fault) -> CommandError {
    refuse(libc::EFAULT, fault.to_string())
}

impl std::fmt::Display for Command<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.method.name)?;
        for Attribute { spec, len, data, .. } in &self.attributes {
            write!(f, " {:#x}:{len}={data:#x}", spec.id)?;
        }
        Ok(())
    }
}
