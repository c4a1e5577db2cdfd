//! `RESIZE_CQ`: a CQ goes on in another ring.
//!
//! As a card does it (`mlx5_cq_resize_copy_cqes` and `mlx5_ib_resize_cq` read what it leaves): the last CQE in the old ring says
//! «resized» and takes an index, all later ones go to the new ring, and the library carries what lies before it over, each one
//! index further on. Whatever is refused leaves the CQ as it was.

use mlx5_layout::{CqeFields, CqeOpcode};

use super::command::{CommandError, ResizeCq, refuse_if};
use super::cq::Cq;
use crate::errno;
use crate::memory::{Fault, Memory};

impl Cq {
    pub(super) fn check_resize<M: Memory>(
        &mut self,
        memory: &M,
        request: &ResizeCq,
        entries: u32,
    ) -> Result<(), CommandError> {
        let cqn = self.cqn;
        refuse_if!(self.dead, EINVAL, "CQ {cqn:#x} is in error");
        let (old, new) = (self.cqe_size, request.cqe_size);
        refuse_if!(old != new, EINVAL, "CQEs of {old} bytes, the new ring is for {new}");
        let buffer = request.buffer;
        refuse_if!(!buffer.is_multiple_of(64), EINVAL, "CQ ring {buffer:#x} is not aligned");
        let fault = |f: Fault| CommandError { errno: errno::EFAULT, reason: format!("CQ: {f}") };
        let bytes = u64::from(entries) * u64::from(self.cqe_size);
        memory.probe(buffer, bytes, true).map_err(fault)?;
        // The firmware's BAD_SIZE_OUTS_CQES: what is in the ring has to fit in the new one, and the last CQE in the old one.
        self.consumer = self.read_consumer(memory).map_err(fault)?;
        let waiting = self.unconsumed();
        let fits = waiting < entries.min(self.entries);
        refuse_if!(
            !fits,
            EINVAL,
            "CQ {cqn:#x}: {waiting} CQEs wait, a ring of {entries} has no room for them"
        );
        Ok(())
    }

    /// The last CQE of the old ring. What fails leaves everything as it was.
    pub(super) fn write_resized<M: Memory>(&mut self, memory: &M) -> Result<(), Fault> {
        let mut fields = CqeFields { opcode: CqeOpcode::ResizeCq, ..CqeFields::default() };
        // There is room: it was counted.
        self.write(memory, &mut fields, None).map(drop)
    }

    /// Everything that comes from now on goes there. What waits is carried over by the library, one index further on.
    pub(super) fn move_to(&mut self, buffer: u64, entries: u32) {
        let empty = self.unconsumed() == 1;
        (self.buffer, self.entries) = (buffer, entries);
        self.solicited_end = self.solicited_end.wrapping_add(1);
        // The index that «resized» took is no completion to tell of.
        self.notified = if empty { self.producer } else { self.notified.wrapping_add(1) };
    }
}
