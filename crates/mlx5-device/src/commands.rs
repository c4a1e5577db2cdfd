//! The commands of a device as one trait, implemented by the NIC and, in tests of the ABI, by a recorder.

use super::command::{
    AddressVector, AllocMw, AllocatedMw, AllocatedPd, AllocatedUar, CommandError, ContextId, CreateCq,
    CreateQp, CreateSrq, CreatedAh, CreatedCq, CreatedQp, CreatedSrq, DestroyedCq, Handle, ModifyQp,
    ModifySrq, MrKeys, QueriedQp, QueriedSrq, RegMr, ReregMr, ResizeCq,
};
use super::doorbell::UarKind;
use crate::memory::Registers;

/// A command's answer.
pub type Answer<T> = Result<T, CommandError>;

/// Commands of the device; handles are scoped to the context.
pub trait Commands: Send {
    fn open_context(&mut self, device: usize) -> Answer<ContextId>;
    /// Whether the port at this place among all ports is down.
    fn port_is_down(&self, place: usize) -> bool;
    /// A program closed it; everything it left goes with it.
    fn close_context(&mut self, context: ContextId);
    /// `registers` is the NIC's own mapping of the page.
    fn alloc_uar(
        &mut self,
        context: ContextId,
        kind: UarKind,
        registers: Box<dyn Registers>,
    ) -> Answer<AllocatedUar>;
    fn free_uar(&mut self, context: ContextId, uar: Handle) -> Answer<()>;
    fn alloc_pd(&mut self, context: ContextId) -> Answer<AllocatedPd>;
    fn dealloc_pd(&mut self, context: ContextId, pd: Handle) -> Answer<()>;
    fn reg_mr(&mut self, context: ContextId, command: &RegMr) -> Answer<MrKeys>;
    fn rereg_mr(&mut self, context: ContextId, command: &ReregMr) -> Answer<MrKeys>;
    fn dereg_mr(&mut self, context: ContextId, mr: Handle) -> Answer<()>;
    fn alloc_mw(&mut self, context: ContextId, command: &AllocMw) -> Answer<AllocatedMw>;
    /// Removes it, bound or not.
    fn dealloc_mw(&mut self, context: ContextId, mw: Handle) -> Answer<()>;
    fn create_cq(&mut self, context: ContextId, command: &CreateCq) -> Answer<CreatedCq>;
    /// Destroys it; returns how many events of it the program has read.
    fn destroy_cq(&mut self, context: ContextId, cq: Handle) -> Answer<DestroyedCq>;
    /// Moves it to another ring; returns `cqe` as it is now.
    fn resize_cq(&mut self, context: ContextId, cq: Handle, command: &ResizeCq) -> Answer<u32>;
    fn create_qp(&mut self, context: ContextId, command: &CreateQp) -> Answer<CreatedQp>;
    fn modify_qp(&mut self, context: ContextId, qp: Handle, command: &ModifyQp) -> Answer<()>;
    fn query_qp(&self, context: ContextId, qp: Handle) -> Answer<QueriedQp>;
    /// Destroys it; returns how many asynchronous events of it the program has read.
    fn destroy_qp(&mut self, context: ContextId, qp: Handle) -> Answer<u32>;
    fn create_srq(&mut self, context: ContextId, command: &CreateSrq) -> Answer<CreatedSrq>;
    /// Arms its limit.
    fn modify_srq(&mut self, context: ContextId, srq: Handle, command: &ModifySrq) -> Answer<()>;
    fn query_srq(&self, context: ContextId, srq: Handle) -> Answer<QueriedSrq>;
    /// Destroys it; returns how many asynchronous events of it the program has read.
    fn destroy_srq(&mut self, context: ContextId, srq: Handle) -> Answer<u32>;
    fn create_ah(&mut self, context: ContextId, pd: Handle, address: &AddressVector) -> Answer<CreatedAh>;
    fn destroy_ah(&mut self, context: ContextId, ah: Handle) -> Answer<()>;
}
