//! Devices, their contexts, ports and GIDs; protection domains.

use std::ffi::c_int;
use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::Arc;

use super::gid::Gid;
use crate::result::code::{GidType, LinkLayer, Mtu, PortState};
use crate::result::raw;
use crate::result::{Error, Result, object};

/// The RDMA devices of this host, in libibverbs' order. An empty list is not an error.
pub fn devices() -> Result<DeviceList> {
    let (list, count) = object::get_device_list()?;
    Ok(DeviceList { list, count })
}

/// Opens the device with this name, or the first one. Error: it is missing; the sentence lists the others.
pub fn open(name: Option<&str>) -> Result<Context> {
    let list = devices()?;
    let found = match name {
        Some(name) => list.iter().find(|device| device.name() == name),
        None => list.iter().next(),
    };
    let Some(device) = found else {
        let names: Vec<String> = list.iter().map(|device| device.name()).collect();
        return Err(Error::Refused(missing(name, &names)));
    };
    device.open()
}

/// Why no device was found, with what there is, or why there may be nothing.
fn missing(name: Option<&str>, there: &[String]) -> String {
    if !there.is_empty() {
        return format!("no RDMA device {}; there are: {}", name.unwrap_or_default(), there.join(", "));
    }
    match object::load_mlx5() {
        Ok(()) => "no RDMA device on this host (ibv_devices lists none)".into(),
        // libibverbs then shows no mlx5 device even where there is one.
        Err(error) => format!("no RDMA device on this host (ibv_devices lists none); {error}"),
    }
}

/// Devices found by [`devices`].
#[derive(Debug)]
pub struct DeviceList {
    list: NonNull<*mut raw::ibv_device>,
    count: usize,
}

impl DeviceList {
    pub fn iter(&self) -> impl Iterator<Item = Device<'_>> {
        (0..self.count).filter_map(|index| {
            // SAFETY: libibverbs' list has `count` entries, and lives until it is dropped here.
            let device = unsafe { self.list.as_ptr().wrapping_add(index).read() };
            NonNull::new(device).map(|device| Device { device, _list: self })
        })
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: devices that borrow the list are gone. It errs only if the library is not loaded: not here.
        let _ = unsafe { object::free_device_list(self.list) };
    }
}

/// A device that can be opened.
#[derive(Debug, Clone, Copy)]
pub struct Device<'l> {
    device: NonNull<raw::ibv_device>,
    _list: &'l DeviceList,
}

impl Device<'_> {
    /// Name, as `mlx5_0`.
    pub fn name(&self) -> String {
        // SAFETY: the list lives.
        unsafe { object::device_name(self.device) }.unwrap_or_default()
    }

    /// Node GUID.
    pub fn guid(&self) -> u64 {
        // SAFETY: the list lives.
        unsafe { object::device_guid(self.device) }.unwrap_or_default()
    }

    /// Opens the device. The context outlives the list.
    pub fn open(&self) -> Result<Context> {
        let name = self.name();
        // SAFETY: the list lives.
        let mlx5 = unsafe { object::is_mlx5(self.device) };
        // SAFETY: the list lives.
        let context = unsafe { object::open_device(self.device) }.map_err(|e| e.of(&name))?;
        // A missing libmlx5 is told when something needs it: other vendors' devices work without.
        Ok(Context(Arc::new(ContextHandle { context, name, mlx5: mlx5.unwrap_or(false) })))
    }
}

/// What all objects of an open device keep.
#[derive(Debug)]
pub(super) struct ContextHandle {
    pub(super) context: NonNull<raw::ibv_context>,
    pub(super) name: String,
    pub(super) mlx5: bool,
}

// SAFETY: libibverbs' contexts may be used from any thread (verbs are thread safe, `ibv_open_device(3)`).
unsafe impl Send for ContextHandle {}
// SAFETY: as above.
unsafe impl Sync for ContextHandle {}

impl Drop for ContextHandle {
    fn drop(&mut self) {
        // SAFETY: every object keeps its context, so none is left. A refusal leaves it open, harmlessly.
        let _ = unsafe { object::close_device(self.context) };
    }
}

/// An open device. Clones are the same open.
#[derive(Debug, Clone)]
pub struct Context(pub(super) Arc<ContextHandle>);

impl Context {
    pub(super) fn raw(&self) -> NonNull<raw::ibv_context> {
        self.0.context
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether libmlx5 drives the device, so that queues can be taken over.
    pub fn is_mlx5(&self) -> bool {
        self.0.mlx5
    }

    /// Limits and identity of the device, as `ibv_query_device(3)` gives them.
    pub fn query_device(&self) -> Result<DeviceAttributes> {
        // SAFETY: the context is live.
        let raw = unsafe { object::query_device(self.raw()) }.map_err(|e| e.of(self.name()))?;
        let count = |number: c_int| u32::try_from(number).unwrap_or(0);
        let firmware = raw.fw_ver.iter().take_while(|&&c| c != 0).map(|&c| c.cast_unsigned()).collect();
        Ok(DeviceAttributes {
            firmware: String::from_utf8(firmware).unwrap_or_default(),
            node_guid: u64::from_be(raw.node_guid),
            vendor_part_id: raw.vendor_part_id,
            ports: raw.phys_port_cnt,
            max_mr_bytes: raw.max_mr_size,
            max_qp: count(raw.max_qp),
            max_qp_wr: count(raw.max_qp_wr),
            max_sge: count(raw.max_sge),
            max_cq: count(raw.max_cq),
            max_cqe: count(raw.max_cqe),
            max_mr: count(raw.max_mr),
            max_pd: count(raw.max_pd),
            max_rd_atomic: count(raw.max_qp_rd_atom),
            max_initiator_rd_atomic: count(raw.max_qp_init_rd_atom),
            atomics: raw.atomic_cap != raw::IBV_ATOMIC_NONE,
        })
    }

    /// State and identity of a port, counted from 1.
    pub fn query_port(&self, port: u8) -> Result<PortAttributes> {
        // SAFETY: the context is live.
        let raw = unsafe { object::query_port(self.raw(), port) };
        let raw = raw.map_err(|e| e.of(&format!("{} port {port}", self.name())))?;
        let mtu = |code| Mtu::from_raw(code).unwrap_or(Mtu::Mtu256);
        Ok(PortAttributes {
            state: PortState::from_raw(raw.state),
            link_layer: LinkLayer::from_raw(raw.link_layer),
            lid: raw.lid,
            max_mtu: mtu(raw.max_mtu),
            active_mtu: mtu(raw.active_mtu),
            gid_count: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            max_message_bytes: raw.max_msg_sz,
            active_width: raw.active_width,
            active_speed: raw.active_speed,
            grh_required: raw.flags & raw::QPF_GRH_REQUIRED != 0,
        })
    }

    /// One GID of a port; `None` for an empty entry.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>> {
        // SAFETY: the context is live.
        match unsafe { object::query_gid(self.raw(), port, index) } {
            Ok(entry) => {
                // SAFETY: all bytes of the union are initialised, and `raw` is the bytes.
                let gid = Gid(unsafe { entry.gid.raw });
                Ok(Some(GidEntry { index, gid, kind: GidType::from_raw(entry.gid_type) }))
            }
            Err(error) if error.errno() == Some(libc::ENODATA) => Ok(None),
            Err(error) => Err(error.of(&format!("{} port {port} index {index}", self.name()))),
        }
    }

    /// The GIDs of a port, empty entries left out.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>> {
        let count = self.query_port(port)?.gid_count;
        let mut found = Vec::new();
        for index in 0..count {
            found.extend(self.query_gid(port, index)?);
        }
        Ok(found)
    }

    pub fn alloc_pd(&self) -> Result<Pd> {
        // SAFETY: the context is live.
        let pd = unsafe { object::alloc_pd(self.raw()) }.map_err(|e| e.of(self.name()))?;
        Ok(Pd(Arc::new(PdHandle { pd, context: self.clone() })))
    }
}

/// What a device can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Firmware version.
    pub firmware: String,
    pub node_guid: u64,
    /// Model: 0x1017 ConnectX-5, 0x101b ConnectX-6, 0x101d ConnectX-6 Dx, 0x1021 ConnectX-7.
    pub vendor_part_id: u32,
    pub ports: u8,
    pub max_mr_bytes: u64,
    pub max_qp: u32,
    /// Work requests of a queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of a request.
    pub max_sge: u32,
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Outstanding READs and atomics of a queue pair, as responder.
    pub max_rd_atomic: u32,
    /// The same, as initiator.
    pub max_initiator_rd_atomic: u32,
    /// Whether atomics work at all.
    pub atomics: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAttributes {
    pub state: PortState,
    pub link_layer: LinkLayer,
    /// LID, 0 on Ethernet.
    pub lid: u16,
    pub max_mtu: Mtu,
    pub active_mtu: Mtu,
    /// Length of the GID table.
    pub gid_count: u32,
    pub max_message_bytes: u32,
    /// Lanes, as coded in `ibv_query_port(3)`.
    pub active_width: u8,
    /// Speed of a lane, as coded there.
    pub active_speed: u8,
    /// Whether packets need a GRH.
    pub grh_required: bool,
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u32,
    pub gid: Gid,
    /// InfiniBand, RoCE v1 or v2.
    pub kind: GidType,
}

impl GidEntry {
    /// The IPv4 address of a RoCE v2 entry that maps one.
    pub fn roce_v2_ipv4(&self) -> Option<Ipv4Addr> {
        if self.kind == GidType::RoceV2 { self.gid.ipv4() } else { None }
    }
}

#[derive(Debug)]
pub(super) struct PdHandle {
    pub(super) pd: NonNull<raw::ibv_pd>,
    pub(super) context: Context,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for PdHandle {}
// SAFETY: as above.
unsafe impl Sync for PdHandle {}

impl Drop for PdHandle {
    fn drop(&mut self) {
        // SAFETY: every object of the domain keeps it, so that none is left.
        let _ = unsafe { object::dealloc_pd(self.pd) };
    }
}

/// A protection domain. Clones are the same domain.
#[derive(Debug, Clone)]
pub struct Pd(pub(super) Arc<PdHandle>);

impl Pd {
    pub(super) fn raw(&self) -> NonNull<raw::ibv_pd> {
        self.0.pd
    }

    pub fn context(&self) -> &Context {
        &self.0.context
    }
}
