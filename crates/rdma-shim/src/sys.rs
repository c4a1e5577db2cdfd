//! `include/doorbell.h` and the host's part of `doorbell_shared.h` in Rust: structs and `shim.c`'s routines.
//!
//! Numbers (opcodes, flags, status) are libibverbs', named in the modules above. Public for code that lays
//! out queues elsewhere (tests on plain memory, other processors); [`crate::QueuePair`] is the safe way.
#![allow(missing_docs, reason = "fields and functions are documented in the headers")]
#![allow(non_camel_case_types, reason = "names are C's")]

/// `struct db_sge`, which is `struct ibv_sge`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct db_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct db_send_wr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct db_send_wr {
    pub wr_id: u64,
    pub sg_list: *const db_sge,
    pub num_sge: u32,
    pub opcode: u32,
    pub send_flags: u32,
    pub imm_data: u32,
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// `struct db_recv_wr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct db_recv_wr {
    pub wr_id: u64,
    pub sg_list: *const db_sge,
    pub num_sge: u32,
}

/// `struct db_completion`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct db_completion {
    pub wr_id: u64,
    pub timestamp: u64,
    pub status: u32,
    pub opcode: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub has_imm: u32,
    pub qpn: u32,
    pub wqe_index: u32,
    pub is_send: u32,
    pub syndrome: u32,
    pub vendor_syndrome: u32,
}

/// `struct db_slot`.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default)]
pub struct db_slot {
    pub wr_id: u64,
    pub end: u64,
}

/// `struct db_sq`.
#[repr(C)]
#[derive(Debug, Clone, Default)]
pub struct db_sq {
    pub ring: u64,
    pub record: u64,
    pub reg: u64,
    pub slots: u64,
    pub blocks: u32,
    pub qpn: u32,
    pub half_bytes: u32,
    pub max_sge: u32,
    pub max_inline: u32,
    pub opcodes: u32,
    pub signal_all: u32,
    pub order: u32,
    pub doorbell: u32,
    pub register_offset: u32,
    pub doorbell_word: u64,
    pub producer: u64,
    pub rung: u64,
    pub consumer: u64,
}

/// `struct db_rq`.
#[repr(C)]
#[derive(Debug, Clone, Default)]
pub struct db_rq {
    pub ring: u64,
    pub record: u64,
    pub wr_ids: u64,
    pub wqes: u32,
    pub stride: u32,
    pub qpn: u32,
    pub max_sge: u32,
    pub producer: u64,
    pub consumer: u64,
}

/// `struct db_cq`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct db_cq {
    pub ring: u64,
    pub record: u64,
    pub entries: u32,
    pub cqn: u32,
    pub consumer: u64,
}

/// `struct db_failure` of `doorbell_shared.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct db_failure {
    pub wr_id: u64,
    pub why: u32,
    pub qpn: u32,
    pub status: u32,
    pub syndrome: u32,
    pub vendor_syndrome: u32,
    pub wqe_index: u32,
}

/// `DB_PUBLISHED_SHIFT`: where the blocks' low 32 bits begin in `published`.
pub const DB_PUBLISHED_SHIFT: u32 = 32;

/// `struct db_shared_sq` of `doorbell_shared.h`.
#[repr(C)]
#[derive(Debug, Clone, Default)]
pub struct db_shared_sq {
    pub sq: db_sq,
    pub cq: db_cq,
    pub released: u64,
    pub filled: u64,
    pub signal_mask: u32,
    pub polling: u32,
    pub failing: u32,
    pub failed: u32,
    pub failure: db_failure,
    pub line0: [u64; 7],
    pub reserved: u64,
    pub line1: [u64; 15],
    pub published: u64,
    pub line2: [u64; 15],
    pub rung: u64,
    pub line3: [u64; 15],
    pub consumed: u64,
    pub line4: [u64; 15],
}

unsafe extern "C" {
    pub fn db_c_sq_init(sq: *mut db_sq, stride: u32) -> i32;
    pub fn db_c_rq_init(rq: *mut db_rq) -> i32;
    pub fn db_c_cq_init(cq: *mut db_cq, cqe_bytes: u32) -> i32;
    pub fn db_c_try_post(sq: *mut db_sq, wr: *const db_send_wr) -> i32;
    pub fn db_c_post(sq: *mut db_sq, wrs: *const db_send_wr, count: u32, bad: *mut u32) -> i32;
    pub fn db_c_try_post_write(
        sq: *mut db_sq,
        wr_id: u64,
        local: db_sge,
        remote_addr: u64,
        rkey: u32,
        send_flags: u32,
    ) -> i32;
    pub fn db_c_try_post_writes(
        sq: *mut db_sq,
        wr_id: u64,
        local: db_sge,
        remote_addr: u64,
        rkey: u32,
        send_flags: u32,
        count: u32,
        stride: u32,
    ) -> i32;
    pub fn db_c_ring(sq: *mut db_sq);
    pub fn db_c_post_recv(rq: *mut db_rq, wrs: *const db_recv_wr, count: u32, bad: *mut u32) -> i32;
    pub fn db_c_poll(
        cq: *mut db_cq,
        sq: *mut db_sq,
        rq: *mut db_rq,
        out: *mut db_completion,
        max: i32,
    ) -> i32;
    pub fn db_c_reset_send(sq: *mut db_sq);
    pub fn db_c_reset_recv(rq: *mut db_rq);
    pub fn db_c_drain(cq: *mut db_cq) -> i32;
    pub fn db_c_shared_init(shared: *mut db_shared_sq) -> i32;
    pub fn db_c_shared_reset(shared: *mut db_shared_sq) -> i32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_struct_is_as_large_as_in_the_header() {
        unsafe extern "C" {
            static db_c_sizes: [u32; 10];
        }
        // SAFETY: `shim.c` defines ten words under this name, and nothing writes them.
        let in_c = unsafe { db_c_sizes };
        let here = [
            size_of::<db_sge>(),
            size_of::<db_send_wr>(),
            size_of::<db_recv_wr>(),
            size_of::<db_completion>(),
            size_of::<db_slot>(),
            size_of::<db_sq>(),
            size_of::<db_rq>(),
            size_of::<db_cq>(),
            size_of::<db_failure>(),
            size_of::<db_shared_sq>(),
        ];
        assert_eq!(in_c.map(|size| size as usize), here);
    }
}
