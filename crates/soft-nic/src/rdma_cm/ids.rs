//! Connection ids of programs, and all that one process's connection manager knows.
//!
//! Which call goes with which state, and its errno, follow Linux's `drivers/infiniband/core/cma.c`.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};

use mlx5_device::Answer;
use mlx5_device::command::{refusal, refuse_if};
use mlx5_device::model::{DeviceConfig, GidKind};
use mlx5_device::random;
use roce::Now;
use roce::cm::{Cm, CmConfig, ConnectionId};
use roce::wire::Gid;
use roce::wire::ip_of;

use super::address::Address;
use super::mad_port::MadPort;
use super::queue::{EventWriter, Queue, Queued, event};
use crate::abi::attributes::refuse;
use crate::abi::layout::ucm_event_resp;
use crate::abi::reasons::Reasons;
use crate::config::LinkLayer;
use crate::link::ServiceError;

/// Connections of one process, those that end included.
const MAX_CONNECTIONS: usize = 1 << 16;
/// Ports that are given to ids that ask for none (`ip_local_port_range` of Linux).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

/// `enum rdma_ucm_port_space`.
pub mod space {
    /// IP over InfiniBand.
    pub const IPOIB: u16 = 0x0002;
    /// Connections.
    pub const TCP: u16 = 0x0106;
    /// Datagrams.
    pub const UDP: u16 = 0x0111;
    /// Whatever the caller says.
    pub const IB: u16 = 0x013f;
}

/// `IBV_QPT_RC`, `_UC` and `_UD`.
pub mod qp_type {
    /// Reliable connection.
    pub const RC: u8 = 2;
    /// Unreliable connection.
    pub const UC: u8 = 3;
    /// Datagrams.
    pub const UD: u8 = 4;
}

/// Where an id stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// Made.
    #[default]
    Idle,
    /// Has an address of its own.
    Bound,
    /// Knows where to.
    AddrResolved,
    /// Knows how.
    RouteResolved,
    /// Asks, or is asked, or stands.
    Connected,
    /// Is over.
    Disconnected,
    Listening,
}

/// One `struct rdma_cm_id` of a program.
#[derive(Debug, Default)]
pub struct Id {
    pub file: u32,
    /// What the program calls it in events; 0 until it is told.
    pub uid: u64,
    pub space: u16,
    pub qp_type: u8,
    pub stage: Stage,
    pub source: Address,
    pub destination: Address,
    /// Device that its address is of.
    pub device: Option<usize>,
    pub connection: Option<ConnectionId>,
    pub events_reported: u32,
    pub starting_psn: u32,
    pub qkey: u32,
    pub reuse: bool,
    pub traffic_class: u8,
    pub ack_timeout: Option<u8>,
}

/// Time-out and retries of the connection manager's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmTimeouts {
    /// Code of 5 bits.
    pub response_timeout: u8,
    /// How often it is asked again.
    pub max_retries: u8,
}

impl Default for CmTimeouts {
    /// `CMA_CM_RESPONSE_TIMEOUT` and `CMA_MAX_CM_RETRIES`, which no program can change.
    fn default() -> CmTimeouts {
        CmTimeouts { response_timeout: 20, max_retries: 15 }
    }
}

/// What one process's connection manager knows. One thread at a time uses it.
pub struct Ids {
    pub cm: Cm,
    pub port: Box<dyn MadPort>,
    pub devices: Vec<DeviceConfig>,
    pub timeouts: CmTimeouts,
    pub reasons: Reasons,
    pub files: BTreeMap<u32, Queue>,
    pub ids: BTreeMap<u32, Id>,
    pub of_connection: BTreeMap<ConnectionId, u32>,
    next_file: u32,
    next_id: u32,
    random: u64,
}

impl Ids {
    pub fn new(devices: Vec<DeviceConfig>, port: Box<dyn MadPort>, slot: u8, seed: u64) -> Ids {
        let cm = Cm::new(CmConfig { slot, seed, max_connections: MAX_CONNECTIONS });
        Ids {
            cm,
            port,
            devices,
            timeouts: CmTimeouts::default(),
            reasons: Reasons::default(),
            files: BTreeMap::new(),
            ids: BTreeMap::new(),
            of_connection: BTreeMap::new(),
            next_file: 1,
            next_id: 0,
            random: seed,
        }
    }

    /// Takes an open file in; its number.
    pub fn open(&mut self, queue: Queue) -> u32 {
        let number = self.next_file;
        self.next_file = self.next_file.wrapping_add(1) & 0xff_ffff;
        self.files.insert(number, queue);
        number
    }

    /// A file was closed: its ids go.
    pub fn close(&mut self, now: Now, file: u32) {
        let unread = self.files.remove(&file).map(Queue::into_events).unwrap_or_default();
        let of_file = self.ids.iter().filter(|(_, id)| id.file == file).map(|(number, _)| *number);
        let gone: Vec<u32> = of_file.chain(unread.iter().filter_map(|queued| queued.brings)).collect();
        for id in gone {
            self.destroy(now, id);
        }
    }

    /// The id that a command names. Errors: `ENOENT`; `EINVAL` when it is of another file.
    pub fn id(&self, file: u32, number: u32) -> Answer<&Id> {
        let found = self.ids.get(&number).ok_or_else(|| refusal!(ENOENT, "no id {number}"))?;
        refuse_if!(found.file != file, EINVAL, "id {number} is of another file");
        Ok(found)
    }

    /// As [`Ids::id`], to be changed.
    pub fn id_mut(&mut self, file: u32, number: u32) -> Answer<&mut Id> {
        self.id(file, number)?;
        Ok(self.ids.get_mut(&number).expect("it was just found"))
    }

    /// As [`Ids::id`], with the device that it must have by now.
    pub fn id_with_device(&self, file: u32, number: u32) -> Answer<(&Id, &DeviceConfig)> {
        let found = self.id(file, number)?;
        let device = self.device(found).ok_or_else(|| refusal!(EINVAL, "id {number} has no device yet"))?;
        Ok((found, device))
    }

    pub fn device(&self, id: &Id) -> Option<&DeviceConfig> {
        id.device.and_then(|device| self.devices.get(device))
    }

    /// A new id.
    pub fn create(&mut self, file: u32, uid: u64, space: u16, qp_type: u8) -> u32 {
        let number = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let starting_psn = self.draw() as u32 & 0xff_ffff;
        self.ids.insert(number, Id { file, uid, space, qp_type, starting_psn, ..Id::default() });
        number
    }

    /// An id goes; how many events it had been given.
    pub fn destroy(&mut self, now: Now, number: u32) -> u32 {
        let Some(id) = self.ids.remove(&number) else { return 0 };
        if id.stage == Stage::Listening {
            let (service, address) = (service_id(id.space, id.source), self.gid_at(id.source));
            self.cm.unlisten(service, address);
            self.port.withdraw(service, address);
        }
        if let Some(connection) = id.connection {
            self.of_connection.remove(&connection);
            self.cm.release_connection(now, connection);
        }
        let unread = self.files.get_mut(&id.file).map(|queue| queue.withdraw(number)).unwrap_or_default();
        for brought in unread.iter().filter_map(|queued| queued.brings) {
            self.destroy(now, brought);
        }
        id.events_reported
    }

    /// BIND: an address of one's own.
    pub fn bind(&mut self, file: u32, number: u32, address: Address) -> Answer<()> {
        let id = self.id(file, number)?;
        let none = || refusal!(ENODEV, "no port has the address {address:?}");
        let device = address.gid().map(|gid| self.device_of(gid).ok_or_else(none)).transpose()?;
        refuse_if!(id.stage != Stage::Idle, EINVAL, "BIND of an id that is {:?}", id.stage);
        let address = self.claim_port(number, (id.space, id.reuse), address)?;
        let id = self.id_mut(file, number)?;
        id.source = address;
        id.device = device;
        id.stage = Stage::Bound;
        Ok(())
    }

    /// The address with a free port.
    fn claim_port(&mut self, number: u32, (space, reuse): (u16, bool), address: Address) -> Answer<Address> {
        if matches!(address, Address::Ib(_)) {
            return Ok(address);
        }
        if address.port() != 0 {
            let (port, taken) = (address.port(), self.port_is_taken(number, space, address, reuse));
            refuse_if!(taken, EADDRINUSE, "port {port} of space {space:#x} is in use");
            return Ok(address);
        }
        let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let first = self.draw() as u32 % count;
        (0..count)
            .map(|step| address.with_port(EPHEMERAL.start() + ((first + step) % count) as u16))
            .find(|address| !self.port_is_taken(number, space, *address, false))
            .ok_or_else(|| refusal!(EADDRNOTAVAIL, "every port in {EPHEMERAL:?} is in use"))
    }

    fn port_is_taken(&self, number: u32, space: u16, address: Address, reuse: bool) -> bool {
        let overlaps = |other: &Address| {
            other.port() == address.port()
                && (other.is_any() || address.is_any() || other.gid() == address.gid())
        };
        let ours = self.ids.iter().any(|(other_number, other)| {
            *other_number != number
                && other.space == space
                && !matches!(other.source, Address::None | Address::Ib(_))
                && overlaps(&other.source)
                // An id that came from a listener shares its port.
                && other.stage != Stage::Connected
                && !(reuse && other.reuse && other.stage != Stage::Listening)
        });
        ours || self.port.is_taken(service_id(space, address), self.gid_at(address))
    }

    /// RESOLVE_ADDR: which device reaches the destination. What cannot be reached is an event.
    pub fn resolve_addr(
        &mut self,
        file: u32,
        number: u32,
        source: Address,
        destination: Address,
    ) -> Answer<()> {
        let stage = self.id(file, number)?.stage;
        if stage == Stage::Idle {
            let any = match destination {
                Address::Ip(SocketAddr::V6(_)) => Address::Ip((Ipv6Addr::UNSPECIFIED, 0).into()),
                Address::Ib(bytes) => Address::Ib(bytes),
                _ => Address::ANY_V4,
            };
            self.bind(file, number, if source == Address::None { any } else { source })?;
        } else {
            refuse_if!(stage != Stage::Bound, EINVAL, "RESOLVE_ADDR of an id that is {stage:?}");
        }
        let id = self.id(file, number)?;
        let reached = self.reach(id, destination);
        let id = self.id_mut(file, number)?;
        id.destination = destination;
        let (kind, status) = match reached {
            Ok((device, gid, to)) => {
                id.device = Some(device);
                if id.source.is_any() {
                    id.source = Address::of_gid(gid, id.source.port());
                }
                id.destination = Address::of_gid(to, destination.port());
                id.stage = Stage::AddrResolved;
                (event::ADDR_RESOLVED, 0)
            }
            Err(errno) => {
                let why = std::io::Error::from_raw_os_error(errno);
                self.reasons.note_connection(
                    format!("no way to {destination} ({why}); give an IP address that `ibv_devinfo -v` shows at its GIDs"),
                );
                (event::ADDR_ERROR, -errno)
            }
        };
        self.tell(number, kind, status);
        Ok(())
    }

    /// Device, source and destination address for a destination, from the device and the address that an id
    /// is bound to, or from any. Error: an errno.
    fn reach(&self, id: &Id, destination: Address) -> Result<(usize, Gid, Gid), i32> {
        if matches!(destination, Address::Ib(_) | Address::None) {
            return Err(libc::EAFNOSUPPORT);
        }
        let ip_gid = |device: &DeviceConfig| {
            // A link-local address is good for one link only, and the program does not say which.
            let fits = |ip: &Gid| ip.ipv4().is_some() == destination.is_v4() && ip_of(*ip).is_some();
            device.ips.iter().copied().map(Gid).find(fits)
        };
        // No address is this machine, as everywhere.
        let Some(to) = destination.gid() else {
            let device = id.device.unwrap_or(0);
            let gid = self.devices.get(device).and_then(ip_gid).ok_or(libc::ENODEV)?;
            return Ok((device, gid, gid));
        };
        // A fabric's processes have the same devices: the destination is on one of these, or on the wire.
        let (device, source) = match self.device_of(to) {
            Some(device) => (device, to),
            None => {
                let source = self.port.source_for(to, id.source.gid()).ok_or(libc::EHOSTUNREACH)?;
                (self.device_of(source).ok_or(libc::ENODEV)?, source)
            }
        };
        let from = id.device.unwrap_or(device);
        let gid = if from == device { Some(source) } else { self.devices.get(from).and_then(ip_gid) };
        Ok((from, gid.ok_or(libc::ENODEV)?, to))
    }

    /// The port whose network interface has this IP address.
    pub fn device_of(&self, ip: Gid) -> Option<usize> {
        self.devices.iter().position(|device| device.ips.contains(&ip.0))
    }

    /// The GID that an address leads to, if it is one address: see [`port_gid`].
    pub fn gid_at(&self, address: Address) -> Option<Gid> {
        address.gid().map(|ip| port_gid(&self.devices, ip).0)
    }

    pub fn listen(&mut self, file: u32, number: u32, backlog: u32) -> Answer<()> {
        if self.id(file, number)?.stage == Stage::Idle {
            self.bind(file, number, Address::ANY_V4)?;
        }
        let id = self.id(file, number)?;
        refuse_if!(id.stage != Stage::Bound, EINVAL, "LISTEN of an id that is {:?}", id.stage);
        refuse_if!(matches!(id.source, Address::Ib(_)), EOPNOTSUPP, "LISTEN of id {number} at AF_IB");
        let (service, address) = (service_id(id.space, id.source), self.gid_at(id.source));
        // `ucma.c`: none or too many is as many as there may be.
        let backlog = if (1..=1024).contains(&backlog) { backlog } else { 1024 };
        self.cm
            .listen(service, address, backlog as usize)
            .map_err(|error| refuse(libc::EADDRINUSE, error.to_string()))?;
        if let Err(error) = self.port.announce(service, address) {
            self.cm.unlisten(service, address);
            let errno = if error == ServiceError::Full { libc::ENOSPC } else { libc::EADDRINUSE };
            return Err(refuse(errno, error.to_string()));
        }
        self.id_mut(file, number)?.stage = Stage::Listening;
        Ok(())
    }

    pub fn listener(&self, service: u64, address: Gid) -> Option<u32> {
        let find = |wanted: Option<Gid>| {
            self.ids.iter().find(|(_, id)| {
                id.stage == Stage::Listening
                    && service_id(id.space, id.source) == service
                    && id.source.gid() == wanted
            })
        };
        find(Some(address)).or_else(|| find(None)).map(|(number, _)| *number)
    }

    /// Gives an id an event without parameters.
    pub fn tell(&mut self, number: u32, kind: u32, status: i32) {
        self.queue(number, None, event(number, kind, status));
    }

    /// Puts an event into its id's file. Drops those of ids the program has no name for, as a kernel does.
    pub fn queue(&mut self, owner: u32, brings: Option<u32>, event: EventWriter) -> bool {
        let Some(id) = self.ids.get(&owner).filter(|id| id.uid != 0) else { return false };
        let bytes = event.u64(ucm_event_resp::uid, id.uid).finish();
        self.files.get_mut(&id.file).is_some_and(|queue| queue.push(Queued { owner, brings, bytes }))
    }

    /// The next number of the sequence: ports and PSNs need to differ, not to be secret.
    pub fn draw(&mut self) -> u64 {
        random::draw(&mut self.random)
    }
}

/// Service id of a port: of the space of an id, at its own address or at the other end's.
pub fn service_id(space: u16, address: Address) -> u64 {
    u64::from(space) << 16 | u64::from(address.port())
}

/// The GID and LID of an IP address. On RoCE the address is the GID itself, of any host. All of an InfiniBand
/// fabric's are known here; IPoIB would ask ARP for the GID, and the subnet administrator for the LID.
pub fn port_gid(devices: &[DeviceConfig], ip: Gid) -> (Gid, u16) {
    let port = devices.iter().find(|port| port.link_layer == LinkLayer::Ib && port.ips.contains(&ip.0));
    let found = port.and_then(|port| Some((Gid(port.gids.first()?.gid), port.lid)));
    // RoCE has no LIDs: `IB_LID_PERMISSIVE`.
    found.unwrap_or((ip, 0xffff))
}

/// Where a device has this GID for its connections, on RoCE those of version 2.
pub fn gid_index(device: &DeviceConfig, gid: Gid) -> Option<usize> {
    device.gids.iter().position(|entry| entry.kind != GidKind::RoceV1 && entry.gid == gid.0)
}
