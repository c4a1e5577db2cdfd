//! UAR pages: the registers that a program rings, and the queues that ring them.

use mlx5_layout::doorbell::Doorbell;

use super::command::{AllocatedUar, CommandError, ContextId, Handle};
use super::commands::Answer;
use super::nic::Nic;
use crate::carrier::Carrier;
use crate::memory::{Memory, Registers};

/// Register offsets of a page, with the register's number: two registers of two halves each (`MLX5_BF_OFFSET`, bf_reg_size
/// 512). libmlx5 rings the halves in turn.
const REGISTERS: [(u8, usize); 4] = [(0, 0x800), (0, 0x900), (1, 0xa00), (1, 0xb00)];

/// `MLX5_IB_UAPI_UAR_ALLOC_TYPE_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UarKind {
    /// Write combining: BlueFlame registers, two queues a page or queues that share.
    BlueFlame,
    /// Not cached: every queue of `MLX5_SHUT_UP_BF=1`, and CQ arming.
    NonCached,
}

/// A UAR page.
pub(super) struct Uar {
    pub context: ContextId,
    pub kind: UarKind,
    pub registers: Box<dyn Registers>,
    /// Queues that named the page when they were made.
    pub queues: Vec<u32>,
    /// Those of them that were seen to ring, and which register each rings.
    pub rang: Vec<(u32, u8)>,
    /// The last register write on this page named a queue that is not on it, and no violation was blamed on it yet.
    pub stray: bool,
    /// Poll in which the registers were looked at last.
    pub polled: u64,
}

impl Uar {
    pub(super) fn new(context: ContextId, kind: UarKind, registers: Box<dyn Registers>) -> Uar {
        Uar { context, kind, registers, queues: Vec::new(), rang: Vec::new(), stray: false, polled: 0 }
    }

    /// Whether some register was written since the last look.
    pub(super) fn is_rung(&self) -> bool {
        self.registers.any(&REGISTERS.map(|(_, offset)| offset))
    }

    /// Takes at most one write from each half: register number and content.
    pub(super) fn take(&self) -> impl Iterator<Item = (u8, Doorbell)> + '_ {
        let taken = |(register, offset)| self.registers.take(offset).map(|b| (register, Doorbell::parse(b)));
        REGISTERS.into_iter().filter_map(taken)
    }

    /// Whether nothing can be checked from the start: all queues of a non-cached page ring the same register.
    pub(super) fn is_shared(&self) -> bool {
        self.kind == UarKind::NonCached && self.queues.len() > 1
    }
}

pub trait UarCommands {
    /// `registers` is the NIC's own mapping of the page.
    fn alloc_uar(
        &mut self,
        context: ContextId,
        kind: UarKind,
        registers: Box<dyn Registers>,
    ) -> Answer<AllocatedUar>;
    fn free_uar(&mut self, context: ContextId, uar: Handle) -> Answer<()>;
}

impl<M: Memory, C: Carrier> UarCommands for Nic<M, C> {
    fn alloc_uar(
        &mut self,
        id: ContextId,
        kind: UarKind,
        registers: Box<dyn Registers>,
    ) -> Answer<AllocatedUar> {
        self.core.context(id)?;
        let page_id = self.core.uars.insert(Uar::new(id, kind, registers));
        Ok(AllocatedUar { handle: self.core.context_mut(id)?.uars.insert(page_id), page_id })
    }

    fn free_uar(&mut self, id: ContextId, handle: Handle) -> Answer<()> {
        let page = self.core.context(id)?.uars.get(handle).copied();
        let page = page.ok_or_else(|| CommandError::no_such("UAR", handle))?;
        if self.core.uars.get(page).is_some_and(|uar| !uar.queues.is_empty()) {
            return Err(CommandError::busy("UAR", handle, "queues"));
        }
        self.core.uars.remove(page);
        self.core.context_mut(id)?.uars.remove(handle);
        Ok(())
    }
}
