//! Top floor: owned objects. No call here is unsafe for its caller unless it says so.
//!
//! Why this is sound: a device reads and writes only registered memory, which its [`Mr`] alone holds until it
//! is deregistered. What the CPU would touch on the device's word is kept away: inline payload is a slice,
//! and scatter-to-CQE (libmlx5 copies from a CQE to the address in a WQE, unchecked) is off.

mod address;
mod clock;
mod completion;
mod device;
mod direct;
mod event;
mod gid;
mod layout;
mod memory;
mod parent_domain;
mod qp_builder;
mod qp_type;
mod queue_pair;
mod window;
mod work_request;

pub use address::{AddressAttributes, AddressHandle};
pub use clock::Clock;
pub(crate) use completion::wait_readable;
pub use completion::{CompChannel, Cq, WorkCompletion};
pub use device::{
    Context, Device, DeviceAttributes, DeviceList, GidEntry, Pd, PortAttributes, devices, open,
};
pub use direct::{DirectCq, DirectQp};
pub use event::{AsyncEvent, Element};
pub use gid::Gid;
pub use layout::{CqLayout, QpLayout, Ring};
pub use memory::{Addressable, Memory, Mr, Pages, Part};
pub use qp_builder::{QpBuilder, SendOperations};
pub use qp_type::{QpCapacity, QpType};
pub use queue_pair::{InitAttributes, Qp, QueriedQp, QueuePair, RtrAttributes, RtsAttributes};
pub use window::{Mw, MwKind, Opening};
pub use work_request::{
    Datagram, InlineSlice, Payload, PostError, ReceiveRequest, Remote, SendFlags, SendList, SendOperation,
    SendRequest, Sge,
};
