//! A device that says yes and writes down what it was asked.

use std::cell::RefCell;

use mlx5_device::UarKind;
use mlx5_device::command::{
    AddressVector, AllocMw, CommandError, ContextId, CreateCq, CreateQp, CreateSrq, Created, CreatedAh,
    CreatedQp, CreatedSrq, DestroyedCq, Handle, ModifyQp, ModifySrq, MrKeys, QpCap, QueriedQp, QueriedSrq,
    RegMr, ResizeCq,
};
use mlx5_device::commands::*;
use mlx5_device::memory::Registers;

/// The device.
#[derive(Default)]
pub struct Recorder {
    /// One line a command.
    pub asked: RefCell<Vec<String>>,
    /// When set, every command that makes something is refused with this errno.
    pub refusal: Option<i32>,
}

impl Recorder {
    fn note(&self, line: String) {
        self.asked.borrow_mut().push(line);
    }

    fn make<T>(&self, line: String, made: T) -> Answer<T> {
        self.note(line);
        match self.refusal {
            Some(errno) => Err(CommandError { errno, reason: "as told".into() }),
            None => Ok(made),
        }
    }
}

impl Commands for Recorder {
    fn open_context(&mut self, device: usize) -> Answer<ContextId> {
        self.make(format!("open_context {device}"), ContextId(7))
    }

    fn close_context(&mut self, context: ContextId) {
        self.note(format!("close_context {}", context.0));
    }

    fn port_is_down(&self, _: usize) -> bool {
        false
    }

    fn alloc_uar(&mut self, _: ContextId, kind: UarKind, _: Box<dyn Registers>) -> Answer<Created> {
        self.make(format!("alloc_uar {kind:?}"), Created { handle: 3, number: 0x21 })
    }

    fn free_uar(&mut self, _: ContextId, uar: Handle) -> Answer<()> {
        self.note(format!("free_uar {uar}"));
        Ok(())
    }

    fn alloc_pd(&mut self, _: ContextId) -> Answer<Created> {
        self.make("alloc_pd".into(), Created { handle: 4, number: 0x44 })
    }

    fn dealloc_pd(&mut self, _: ContextId, pd: Handle) -> Answer<()> {
        self.note(format!("dealloc_pd {pd}"));
        Ok(())
    }

    fn reg_mr(&mut self, _: ContextId, command: &RegMr) -> Answer<MrKeys> {
        self.make(format!("{command:x?}"), MrKeys { handle: 5, lkey: 0x500, rkey: 0x501 })
    }

    fn rereg_mr(&mut self, _: ContextId, mr: Handle, flags: u32, command: &RegMr) -> Answer<MrKeys> {
        self.make(
            format!("rereg_mr {mr} {flags} {command:x?}"),
            MrKeys { handle: 5, lkey: 0x510, rkey: 0x511 },
        )
    }

    fn dereg_mr(&mut self, _: ContextId, mr: Handle) -> Answer<()> {
        self.note(format!("dereg_mr {mr}"));
        Ok(())
    }

    fn alloc_mw(&mut self, _: ContextId, command: &AllocMw) -> Answer<Created> {
        self.make(format!("{command:x?}"), Created { handle: 9, number: 0x900 })
    }

    fn dealloc_mw(&mut self, _: ContextId, mw: Handle) -> Answer<()> {
        self.note(format!("dealloc_mw {mw}"));
        Ok(())
    }

    fn create_cq(&mut self, _: ContextId, command: &CreateCq) -> Answer<Created> {
        self.make(format!("{command:x?}"), Created { handle: 6, number: 0x406 })
    }

    fn resize_cq(&mut self, _: ContextId, cq: Handle, command: &ResizeCq) -> Answer<u32> {
        self.make(format!("resize_cq {cq} {command:x?}"), command.cqe)
    }

    fn destroy_cq(&mut self, _: ContextId, cq: Handle) -> Answer<DestroyedCq> {
        self.note(format!("destroy_cq {cq}"));
        Ok(DestroyedCq { completion_events: 2, async_events: 1 })
    }

    fn create_qp(&mut self, _: ContextId, command: &CreateQp) -> Answer<CreatedQp> {
        self.make(format!("{command:x?}"), CreatedQp { handle: 8, qpn: 0x20040, cap: command.cap })
    }

    fn modify_qp(&mut self, _: ContextId, qp: Handle, command: &ModifyQp) -> Answer<()> {
        self.make(format!("modify_qp {qp} {command:x?}"), ())
    }

    fn query_qp(&self, _: ContextId, qp: Handle) -> Answer<QueriedQp> {
        let address =
            AddressVector { dlid: 0x1234, dgid: Some([9; 16]), sl: 3, port: 1, ..AddressVector::default() };
        let attributes = ModifyQp { state: 3, dest_qpn: 0x77, timeout: 14, address, ..ModifyQp::default() };
        let cap = QpCap {
            max_send_wr: 11,
            max_recv_wr: 12,
            max_send_sge: 13,
            max_recv_sge: 14,
            max_inline_data: 15,
        };
        self.make(format!("query_qp {qp}"), QueriedQp { attributes, cap, signal_all: true })
    }

    fn destroy_qp(&mut self, _: ContextId, qp: Handle) -> Answer<u32> {
        self.note(format!("destroy_qp {qp}"));
        Ok(5)
    }

    fn create_srq(&mut self, _: ContextId, command: &CreateSrq) -> Answer<CreatedSrq> {
        let (max_wr, max_sge) = (command.max_wr + 1, command.max_sge);
        self.make(format!("{command:x?}"), CreatedSrq { handle: 10, srqn: 0x40a, max_wr, max_sge })
    }

    fn modify_srq(&mut self, _: ContextId, srq: Handle, command: &ModifySrq) -> Answer<()> {
        self.make(format!("modify_srq {srq} {command:x?}"), ())
    }

    fn query_srq(&self, _: ContextId, srq: Handle) -> Answer<QueriedSrq> {
        self.make(format!("query_srq {srq}"), QueriedSrq { max_wr: 15, max_sge: 3, limit: 7 })
    }

    fn destroy_srq(&mut self, _: ContextId, srq: Handle) -> Answer<u32> {
        self.note(format!("destroy_srq {srq}"));
        Ok(6)
    }

    fn create_ah(&mut self, _: ContextId, pd: Handle, address: &AddressVector) -> Answer<CreatedAh> {
        self.make(format!("create_ah {pd} {address:x?}"), CreatedAh { handle: 9, dmac: [1, 2, 3, 4, 5, 6] })
    }

    fn destroy_ah(&mut self, _: ContextId, ah: Handle) -> Answer<()> {
        self.note(format!("destroy_ah {ah}"));
        Ok(())
    }
}
