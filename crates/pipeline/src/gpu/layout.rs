//! The structs of `kernels/pipeline.h`. A test compares every offset with C's (`tests/kernels/layout.cu`).

use rdma_shim::c_structs;
use rdma_shim::kernel::{Plain, db_kernel_end, db_kernel_queue};
use rdma_shim::sys::{db_cq, db_rq, db_sq};
use slots::Geometry;
use slots::layout::{Header, MOST_TENSORS, PREFIX_BYTES};

use super::client::Client;

/// Words of the table behind a header.
pub const TABLE_WORDS: usize = (PREFIX_BYTES - Header::BYTES) / 8;

c_structs! {
    /// Counts since the pipeline was made.
    pub struct db_counts {
        pub turns: u64,
        /// Answers that were posted.
        pub answered: u64,
        /// Of these, requests that were bad.
        pub refused: u64,
        /// Answers whose WRITE was seen to have completed.
        pub sent: u64,
        /// Receive completions that named a slot of another client, or one in use.
        pub strays: u64,
    }

    pub struct db_turn {
        pub state: u32,
        pub slot: u32,
        pub sequence: u32,
        pub client: u32,
        pub status: u32,
        pub model_slot: u32,
        pub request_id: u64,
        pub cookie: u64,
        pub sent_ns: u64,
        pub begun_ns: u64,
        pub attended_ns: u64,
        pub next: u32,
        pub first: u32,
        pub count: u32,
        pub passed: u32,
        pub counts: db_counts,
    }

    pub struct db_lane {
        pub cancel: u64,
        pub next: u32,
        pub pad: u32,
    }

    pub struct db_lanes {
        pub runs: db_turn,
        pub lanes: [db_lane; 2],
    }

    pub struct db_place {
        pub queue: db_kernel_queue,
        pub answers: u64,
        pub answer_flags: u64,
        pub answers_rkey: u32,
        pub flags_rkey: u32,
        pub lkey: u32,
        pub first: u32,
        pub count: u32,
        pub sequence: u32,
        pub wanted: u32,
        pub done: u32,
        pub unreliable: u32,
        pub flushed: u32,
        pub answered: u64,
        pub refused: u64,
        pub end: db_kernel_end,
    }
}

#[repr(C)]
#[derive(Debug, Clone, Default)]
pub struct db_client {
    pub place: db_place,
    pub sq: db_sq,
    pub rq: db_rq,
    pub send_cq: db_cq,
    pub receive_cq: db_cq,
    pub send_released: u64,
    pub receive_released: u64,
    pub acted: u32,
    pub dead: u32,
    pub turn: u32,
    pub pad: u32,
    pub answered: u64,
    pub refused: u64,
    pub progress_ns: u64,
}

c_structs! {
    pub struct db_told {
        pub slot: u32,
        pub client: u32,
        pub status: u32,
        pub pad: u32,
        pub number: u64,
    }

    pub struct db_steps {
        pub arrived: u64,
        pub looks: u64,
        pub begun: u64,
        pub takes: u64,
        pub taken: u64,
        pub puts: u64,
        pub put: u64,
        pub rung: u64,
        pub have_taken: u32,
        pub have_put: u32,
    }

    pub struct db_traced {
        pub steps: db_steps,
        pub slot: u32,
        pub client: u32,
        pub status: u32,
        pub number: u32,
    }

    pub struct db_slot_words {
        pub owner: u32,
        pub sending: u32,
        pub twice: u32,
        pub pad: u32,
    }

    pub struct db_served {
        pub slots: u64,
        pub slots_nic: u64,
        pub slot_stride: u64,
        pub answer: u64,
        pub flags: u64,
        pub flag_stride: u64,
        pub awaited: u64,
        pub words: u64,
        pub sending: u64,
        pub clients: u64,
        pub places: u64,
        pub cancel: u64,
        pub counts: u64,
        pub wait_ns: u64,
        pub patience_ns: u64,
        pub attend_ns: u64,
        pub ends: u64,
        pub told: u64,
        pub steps: u64,
        pub traced: u64,
        pub host_flag: u64,
        pub slot_count: u32,
        pub client_count: u32,
        pub arrival: u32,
        pub model_id: u32,
        pub request_tensors: u32,
        pub answer_tensors: u32,
        pub request_tail: u32,
        pub answer_tail: u32,
        pub refuses: u32,
        pub traced_count: u32,
        pub credits: u32,
        pub pad: u32,
        pub answer_stride: u64,
        pub request_table: [u64; TABLE_WORDS],
        pub answer_table: [u64; TABLE_WORDS],
        pub inputs: [u64; MOST_TENSORS],
        pub outputs: [u64; MOST_TENSORS],
    }
}

fn words(bytes: &[u8]) -> [u64; TABLE_WORDS] {
    let mut words = [0; TABLE_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

impl db_place {
    /// The place of a client with this queue.
    pub fn of(queue: db_kernel_queue, client: &Client) -> db_place {
        let Client { first, count, sequence, answers, flags, lkey, is_reliable } = *client;
        db_place {
            queue,
            answers: answers.0,
            answer_flags: flags.0,
            answers_rkey: answers.1,
            flags_rkey: flags.1,
            lkey,
            first,
            count,
            sequence,
            unreliable: u32::from(!is_reliable),
            ..db_place::default()
        }
    }
}

impl db_served {
    /// What a model's slots and its messages are like.
    pub fn of(geometry: &Geometry) -> db_served {
        let Geometry { request, answer, .. } = geometry;
        db_served {
            slot_stride: geometry.server_stride() as u64,
            answer: geometry.answer_offset() as u64,
            model_id: geometry.model_id,
            request_tensors: request.entries().len() as u32,
            answer_tensors: answer.entries().len() as u32,
            request_tail: request.tail as u32,
            answer_tail: answer.tail as u32,
            answer_stride: geometry.client_stride() as u64,
            request_table: words(&request.table()),
            answer_table: words(&answer.table()),
            ..db_served::default()
        }
    }
}

// SAFETY: likewise.
unsafe impl Plain for db_client {}
#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use host_twin::{Arguments, Launch, run};
    use measure::need;

    use super::*;
    use crate::gpu::by_cpu::db_asked;

    macro_rules! offsets {
        ($($name:ident { $($field:ident)* })*) => {
            vec![$($(offset_of!($name, $field),)* size_of::<$name>(),)*]
        };
    }

    #[test]
    fn every_field_lies_where_the_kernels_have_it() {
        let kernel = need!(crate::gpu::tests::PLANTED.find("layout+none"), cc, "a C++ compiler");
        let here: Vec<usize> = offsets! {
            db_counts { turns answered refused sent strays }
            db_turn { state slot sequence client status request_id cookie sent_ns begun_ns attended_ns model_slot next first count counts }
            db_lane { cancel next }
            db_lanes { runs lanes }
            db_place {
                queue answers answer_flags answers_rkey flags_rkey lkey first count sequence wanted done unreliable flushed
                answered refused end
            }
            db_client { place sq rq send_cq receive_cq send_released receive_released acted dead turn answered refused progress_ns }
            db_served {
                slots slots_nic slot_stride answer flags flag_stride awaited words sending clients places cancel counts
                wait_ns patience_ns attend_ns ends told steps traced host_flag slot_count client_count arrival model_id request_tensors answer_tensors request_tail
                answer_tail refuses traced_count credits answer_stride request_table answer_table inputs outputs
            }
            db_slot_words { owner sending twice }
            db_told { slot client status number }
            db_steps { arrived looks begun takes taken puts put rung have_taken have_put }
            db_traced { steps slot client status number }
            db_asked { what slot sequence client status arrival request_id cookie sent_ns completed }
        };
        let mut there = vec![u32::MAX; here.len() + 1];
        let arguments = Arguments::new().pointer(there.as_mut_ptr()).push(there.len() as u32);
        // SAFETY: the kernel writes at most so many words to the vector, which lives until it has ended.
        unsafe { run(kernel, &Launch::new(1, 1), arguments) }.unwrap();
        assert_eq!(there.pop(), Some(u32::MAX), "C has more fields");
        assert_eq!(there, here.iter().map(|at| *at as u32).collect::<Vec<_>>());
    }
}
