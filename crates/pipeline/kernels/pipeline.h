/*! What a pipeline's kernels share with each other and with the Rust program that launches them. Each struct
 * is mirrored in src/gpu/layout.rs; a test compares every offset.
 *
 * One turn is a row of launches, in order: wait_inputs, take_inputs, the model, put_outputs, send_outputs.
 * For a model that works in the slot itself, take and put are left out. Launches of one stream or graph end
 * before the next one begins, which orders them for the GPU. Only what a NIC or the CPU writes needs more:
 *
 *   a flag or a CQE       relaxed loads, then db_acquire_cqe(): the request, in the same memory, came before
 *   an answer             db_ring(): its system-scope release covers earlier launches' stores, observed here
 *   a completed WRITE     db_acquire_cqe() before the slot's answer may be overwritten
 *   a client that joins   db_load_acquire_sys32(wanted): the host wrote the rest of the place before
 *   a client that leaves  db_store_release_sys32(done): the queue's structs were stored back before
 */
#ifndef DB_PIPELINE_H
#define DB_PIPELINE_H

#include "doorbell_kernel.h"
#include "slots.h"

/* How a wait ended. */
#define DB_TURN_NONE 0u    /* its time was over */
#define DB_TURN_REQUEST 1u /* a request is whole */
#define DB_TURN_STOP 2u    /* the host wants an end */

/* How a request and its answer arrive. */
#define DB_ARRIVAL_FLAG 0u       /* a second WRITE, of the flag */
#define DB_ARRIVAL_TAIL 1u       /* the last bytes of the message */
#define DB_ARRIVAL_COMPLETION 2u /* a receive completion with the slot's number as immediate data */
#define DB_ARRIVAL_SEND 3u       /* the receive completion of a SEND, which lands in a slot */

#define DB_PREFIX_WORDS (DB_SLOT_PREFIX_BYTES / 8)
#define DB_HEADER_WORDS (DB_SLOT_HEADER_BYTES / 8)
#define DB_TABLE_WORDS (DB_PREFIX_WORDS - DB_HEADER_WORDS)
#define DB_NO_CLIENT 0xffffffffu

/* Counts since the pipeline was made. */
struct db_counts {
    db_u64 turns;    /* that have begun */
    db_u64 answered; /* answers that were posted */
    db_u64 refused;  /* of these, requests that were bad */
    db_u64 sent;     /* answers whose WRITE has completed */
    db_u64 strays;   /* receive completions that name a slot that is another client's or in use */
};

/* The request served in this turn: GPU memory. wait_inputs writes it, the kernels behind it read it. */
struct db_turn {
    db_u32 state;    /* DB_TURN_* */
    db_u32 slot;     /* of the request; otherwise that of the request before, in `runs` of db_lanes the spare one */
    db_u32 sequence; /* of the request */
    db_u32 client;   /* index of its client */
    db_u32 status;   /* DB_SLOT_STATUS_*: a request that is not OK is answered and not computed */
    db_u32 model_slot; /* where a model works that has no buffers: the request's slot; without a good one the spare one behind all */
    db_u64 request_id;
    db_u64 cookie;
    db_u64 sent_ns;
    db_u64 begun_ns; /* when its request was found, by db_clock_ns(), and nothing ran any more */
    db_u64 attended_ns; /* of the last look across PCIe */
    db_u32 next;        /* the slot behind those of the client that was served last: the search begins there */
    db_u32 first, count; /* the slots of its client */
    db_u32 passed;       /* a request waits for its slot's completion and would be next: the next wait looks for that first */
    struct db_counts counts;
};

/* One of the two graphs of ahead.cu, of the even or of the odd turns. */
struct db_lane {
    db_u64 cancel; /* the graph's word that ends it, on the twin one of the same meaning: this launch is the last */
    db_u32 next;   /* the turn that it waits for */
    db_u32 pad;
};

/* Both, in the GPU's memory. */
struct db_lanes {
    struct db_turn runs; /* the turn that runs, for the model and the copies: its state and its slots; `status` is OK from the launch on */
    struct db_lane lanes[2];
};

/* When the steps of a slot's request were taken, by db_clock_ns(): GPU memory, only while it is traced. */
struct db_steps {
    db_u64 arrived; /* the receive completion's timestamp, by the NIC's clock */
    db_u64 looks;   /* the wait began that found it */
    db_u64 begun;   /* it was found and checked */
    db_u64 takes;   /* the copy into the model's inputs began */
    db_u64 taken;   /* it ended, and the model began */
    db_u64 puts;    /* the model ended, and the copy out of its outputs began */
    db_u64 put;     /* it ended */
    db_u64 rung;    /* the doorbell was rung */
    db_u32 have_taken, have_put; /* blocks that have copied */
};

/* The same of an answer, for the host: a ring, the next one in the next record. `number` is written last. */
struct db_traced {
    struct db_steps steps;
    db_u32 slot;
    db_u32 client; /* index of its place */
    db_u32 status; /* DB_SLOT_STATUS_*: only an answer that is OK has all steps */
    db_u32 number; /* how many were answered with this one, its low half */
};

/* What the host wants of one client's place: host memory. The host writes `wanted` last, and the rest only
 * while `done` equals it. An odd number: a client is here. */
struct db_place {
    struct db_kernel_queue queue;
    db_u64 answers;      /* where the answer of its first slot goes */
    db_u64 answer_flags; /* and that answer's flag, which no other way of arrival uses */
    db_u32 answers_rkey;
    db_u32 flags_rkey;
    db_u32 lkey;     /* of the slots */
    db_u32 first;    /* its slots */
    db_u32 count;
    db_u32 sequence; /* of each slot's request before */
    db_u32 wanted;
    db_u32 done; /* what the GPU has acted on */
    db_u32 unreliable; /* a request may lose its middle: its flag alone says nothing */
    db_u32 flushed;    /* where the CPU posts: receives failed, of which its sends may tell the reason */
    db_u64 answered; /* answers that were posted, and of these bad requests; written when it leaves */
    db_u64 refused;
    struct db_kernel_end end; /* why its queue was given up; `code` is written last */
};

/* A client as the GPU has it, in its own memory. */
struct db_client {
    struct db_place place; /* as it was when the client joined */
    struct db_sq sq;
    struct db_rq rq;
    struct db_cq send_cq, receive_cq;
    db_u64 send_released, receive_released;
    db_u32 acted; /* the last `wanted`; an odd number: here */
    db_u32 dead;  /* its queue has failed */
    db_u32 turn;  /* its slot whose turn is next, counted from its first */
    db_u32 pad;
    db_u64 answered, refused;
    db_u64 progress_ns; /* when a send completed last, or the first one was seen; 0: none is in flight */
};

/* An answer in its slot, for the CPU to post. The next one goes to the next record. A slot is told again only
 * after its `sending` is 0, so no record is overwritten that the CPU has not read. */
struct db_told {
    db_u32 slot;
    db_u32 client; /* index of its place */
    db_u32 status; /* DB_SLOT_STATUS_* */
    db_u32 pad;
    db_u64 number; /* how many were told with this one; written last */
};

/* What the kernels keep of a slot beside the sequence that it awaits: 16 bytes, for one load. */
struct db_slot_words {
    db_u32 owner;   /* the index of the client, or DB_NO_CLIENT */
    db_u32 sending; /* not 0 from when a request is taken until the NIC has read its answer, or the CPU is told of it */
    db_u32 twice;   /* sequence of a request whose number was outstanding when it came */
    db_u32 pad;
};

/* What all kernels are told. In the GPU's memory, constant while they run. */
struct db_served {
    db_u64 slots;       /* slot 0, in memory that the NIC writes */
    db_u64 slots_nic;   /* the same as the NIC addresses it */
    db_u64 slot_stride;
    db_u64 answer;      /* where a slot's answer begins in it */
    db_u64 flags;       /* of slot 0, 8-byte aligned; with DB_ARRIVAL_COMPLETION and DB_ARRIVAL_SEND the GPU's own; null: the CPU looks */
    db_u64 flag_stride; /* from one flag to the next, in bytes */
    db_u64 awaited;     /* 32-bit words, one a slot, the GPU's: sequence of the next request; 0: there is no client */
    db_u64 words;       /* struct db_slot_words, one a slot, the GPU's */
    db_u64 sending;     /* where the CPU posts: 32-bit words, one a slot, the host's: not 0 from when it is told of an answer until the NIC has
                           read it */
    db_u64 clients;     /* struct db_client, the GPU's */
    db_u64 places;      /* struct db_place, the host's */
    db_u64 cancel;      /* 32-bit word in host memory; anything but 0 ends a wait that found nothing for 64 rounds */
    db_u64 counts;      /* struct db_counts in host memory: what the turn has, for the host */
    db_u64 wait_ns;     /* longest wait */
    db_u64 patience_ns; /* longest time without a completion while answers are sent; 0: no limit */
    db_u64 attend_ns;   /* time between two looks across PCIe while requests come */
    db_u64 ends;        /* 32-bit word that ends the chain of turns when it is not 0; 0: there is none, and a queue that fails ends nothing */
    db_u64 told;        /* struct db_told, one a slot, in host memory: the CPU posts the answers; 0: the kernels do */
    db_u64 steps;       /* struct db_steps, one a slot; 0: nothing is traced */
    db_u64 traced;      /* struct db_traced in host memory; 0: the thread that launches reads the steps */
    db_u64 host_flag;   /* the flag of the host's own slot, the GPU's memory: db_slot_flag(0) ends a wait and the chain */
    db_u32 slot_count;  /* 1 at least */
    db_u32 client_count;
    db_u32 arrival; /* DB_ARRIVAL_* */
    db_u32 model_id;
    db_u32 request_tensors, answer_tensors;
    db_u32 request_tail, answer_tail;   /* where the tail flag lies */
    db_u32 refuses;                     /* DB_SLOT_STATUS_* that good requests get; 0: they are served */
    db_u32 traced_count;                /* records of `traced` */
    db_u32 credits, pad;                /* requests that a client may have outstanding; 0: as many as it has slots */
    db_u64 answer_stride;               /* from one answer to the next in the client's memory */
    db_u64 request_table[DB_TABLE_WORDS]; /* what follows a request's header: offset and length, then the kind, of each tensor */
    db_u64 answer_table[DB_TABLE_WORDS];
    db_u64 inputs[DB_SLOT_MOST_TENSORS]; /* the model's, in the GPU's memory, 16-byte aligned */
    db_u64 outputs[DB_SLOT_MOST_TENSORS];
};

/* Shared memory of a block that waits or sends: no look takes a trip of the GPU's bus, nor does a fence cause
 * one. */
struct db_own {
    struct db_served served;
    struct db_turn turn;
};

/* Words that a thread copies side by side. */
#define DB_COPIED 4u

/* Copies both there, in one trip: all threads, which meet behind it. */
DB_GPU_FN void db_copy_own(struct db_own &own, const struct db_served *served, const struct db_turn *turn) {
    const db_u32 threads = db_block_threads(), of_served = sizeof own.served / 8, all = sizeof own / 8;
    db_u32 from, nth;
    for (from = db_block_thread(); from < all; from += DB_COPIED * threads) {
        db_u64 copied[DB_COPIED];
        DB_UNROLL
        for (nth = 0; nth < DB_COPIED; nth++) {
            const db_u32 word = from + nth * threads;
            if (word < all) copied[nth] = word < of_served ? ((const db_u64 *)served)[word] : ((const db_u64 *)turn)[word - of_served];
        }
        DB_UNROLL
        for (nth = 0; nth < DB_COPIED; nth++)
            if (from + nth * threads < all) ((db_u64 *)&own)[from + nth * threads] = copied[nth];
    }
    db_block_sync();
}

/* Copies the turn back: all threads, which have met before. */
DB_GPU_FN void db_copy_back(const struct db_own &own, struct db_turn *turn) {
    db_u32 word;
    for (word = db_block_thread(); word < sizeof own.turn / 8; word += db_block_threads())
        ((db_u64 *)turn)[word] = ((const db_u64 *)&own.turn)[word];
}

/* When a wait of so many nanoseconds from now is over; the end of time, if that is behind it. */
DB_GPU_FN db_u64 db_deadline_ns(db_u64 now, db_u64 wait_ns) { return now + wait_ns < now ? ~0ull : now + wait_ns; }

/* The sequence that follows: never 0. */
DB_GPU_FN db_u32 db_slot_next(db_u32 sequence) { return sequence + 1 ? sequence + 1 : 1; }

DB_GPU_FN db_u64 db_slot_flag(db_u32 sequence) { return (db_u64)sequence << 32 | (sequence ^ DB_SLOT_FLAG_MARK); }

/* Requests that a client of so many slots may have outstanding. */
DB_GPU_FN db_u32 db_credits_of(const struct db_served *at, db_u32 count) {
    return at->credits && at->credits < count ? at->credits : count;
}

/* Where a slot begins, and where its answer does. */
DB_GPU_FN db_u64 db_slot_at(const struct db_served *at, db_u32 slot) { return at->slots + slot * at->slot_stride; }
DB_GPU_FN db_u64 db_answer_at(const struct db_served *at, db_u32 slot) { return db_slot_at(at, slot) + at->answer; }

/* The words of a slot. */
DB_GPU_FN struct db_slot_words *db_words_at(const struct db_served *at, db_u32 slot) { return (struct db_slot_words *)at->words + slot; }

/* The sequence that a slot awaits. */
DB_GPU_FN db_u32 *db_awaited_at(const struct db_served *at, db_u32 slot) { return (db_u32 *)at->awaited + slot; }

/* Where the host has a slot's word. */
DB_GPU_FN db_u64 db_host_sending(const struct db_served *at, db_u32 slot) { return at->sending + 4ull * slot; }

DB_GPU_FN struct db_client *db_client_at(const struct db_served *at, db_u32 client) {
    return (struct db_client *)at->clients + client;
}

/* Offset and length of a tensor of a message. */
DB_GPU_FN db_u32 db_tensor_offset(const db_u64 *table, db_u32 tensor) { return (db_u32)table[2 * tensor]; }
DB_GPU_FN db_u32 db_tensor_bytes(const db_u64 *table, db_u32 tensor) { return (db_u32)(table[2 * tensor] >> 32); }

/* Adds to one of the counts, and tells the host: a store alone, since a load from there would cross PCIe. No
 * order: the host takes none of these counts as a sign that something else was read or written. */
#define DB_COUNT(at, own, count, by) db_store_relaxed64(&((struct db_counts *)(at)->counts)->count, (own)->count += (by))

/* Ends the chain of turns: the host is told, and may start it again. */
DB_GPU_FN void db_end_chain(const struct db_served *at) {
    if (!at->ends) return;
    db_store_relaxed32((db_u32 *)at->cancel, 1);
    db_store_release_sys32(at->ends, 1);
}

/* Fails a queue: the first reason stays. Its slots lose their owner; the wait passes them. The chain ends. */
DB_GPU_FN_OUTLINED void db_give_up(const struct db_served *at, db_u32 index, struct db_kernel_end end) {
    struct db_client *client = db_client_at(at, index);
    struct db_place *place = (struct db_place *)at->places + index;
    db_u32 slot;
    if (client->dead) return;
    client->dead = 1;
    for (slot = client->place.first; slot < client->place.first + client->place.count; slot++) {
        db_store_relaxed32(db_awaited_at(at, slot), 0);
        db_store_relaxed32(&db_words_at(at, slot)->owner, DB_NO_CLIENT);
    }
    place->end.wr_id = end.wr_id;
    place->end.qpn = end.qpn;
    place->end.status = end.status;
    place->end.syndrome = end.syndrome;
    place->end.vendor_syndrome = end.vendor_syndrome;
    place->end.is_send = end.is_send;
    db_store_release_sys32((db_u64)&place->end.code, end.code);
    db_end_chain(at);
}

/* Posts the receive of a slot's next request, which a SEND takes. */
DB_GPU_FN int db_post_slot(const struct db_served *at, struct db_client *client, db_u32 slot) {
    const struct db_sge piece = {at->slots_nic + slot * at->slot_stride, at->request_tail + DB_SLOT_FLAG_BYTES, client->place.lkey};
    const struct db_recv_wr wr = {slot, &piece, 1};
    db_u32 bad;
    return db_post_recv(&client->rq, &wr, 1, &bad);
}

/* Whether the model has no buffers of its own: then nothing is copied. */
DB_GPU_FN int db_works_in_slots(const struct db_served *at) { return !at->inputs[0]; }

/* The steps of a slot's request, while it is traced. */
DB_GPU_FN struct db_steps *db_steps_at(const struct db_served *at, db_u32 slot) { return (struct db_steps *)at->steps + slot; }

/* Notes when the last block of a launch has copied: all threads of each block. */
DB_GPU_FN void db_note_end(db_u64 *when, db_u32 *blocks) {
    db_block_sync();
    if (db_block_thread() || atomicAdd(blocks, 1u) + 1 != gridDim.x) return;
    *blocks = 0;
    *when = db_clock_ns();
}

/* Threads of a block that waits or sends: as many as have registers. */
#define DB_MOST_THREADS 512

/* Slots that a thread looks at side by side. So 4,096 take one trip, also where the first warp does not look:
 * with 8 a second trip took 1 us of a turn (H200). */
#define DB_SEEN 9u

/* Distance of threads whose slots share a place of two rows. Else one thread would consider in turn all
 * requests at distances of a power of two, as clients' first slots. Odd, less than a row in DB_SEEN rows. */
#define DB_SKEW 37u

/* Where a look finds flags and sequences, and which of the looking threads it is. In registers: any access of
 * another thread's word has the compiler load again what it knew before. */
struct db_look {
    db_u64 flags, flag_stride, awaited;
    db_u32 me, threads, skew;
};

/* Threads from `first` on look. */
DB_GPU_FN struct db_look db_look_of(const struct db_served *at, db_u32 first) {
    const db_u32 threads = db_block_threads() - first;
    const struct db_look look = {at->flags, at->flag_stride, at->awaited, db_block_thread() - first, threads,
                                 threads > DB_SEEN * DB_SKEW ? DB_SKEW : 0};
    return look;
}

/* This thread's slot in row `nth` from `base` on. A row has a slot for each thread. */
DB_GPU_FN db_u32 db_slot_in_row(struct db_look look, db_u32 base, db_u32 nth) {
    const db_u32 at = look.me + nth * look.skew;
    return base + nth * look.threads + (at < look.threads ? at : at - look.threads);
}

/* A slot's awaited sequence and other words: plain loads, which may hit L1. This block, before a barrier, or
 * an earlier kernel wrote them: causality order (PTX ISA, "Memory Consistency Model", 8.9.5), so no race. */
#ifdef DB_TWIN
DB_GPU_FN db_u32 db_load_awaited(db_u64 awaited, db_u32 slot) { return db_load_relaxed32((const db_u32 *)awaited + slot); }
DB_GPU_FN struct db_slot_words db_load_words(const struct db_slot_words *at) {
    const struct db_slot_words words = {db_load_relaxed32(&at->owner), db_load_relaxed32(&at->sending), db_load_relaxed32(&at->twice), 0};
    return words;
}
#else
DB_GPU_FN db_u32 db_load_awaited(db_u64 awaited, db_u32 slot) { return ((const db_u32 *)awaited)[slot]; }
DB_GPU_FN struct db_slot_words db_load_words(const struct db_slot_words *at) {
    const uint4 four = *(const uint4 *)at;
    const struct db_slot_words words = {four.x, four.y, four.z, four.w};
    return words;
}
#endif

/* Whether it is the flag of a client's next request. */
DB_GPU_FN int db_is_next(db_u64 flag, db_u32 awaited) {
#ifdef DB_DEFECT_ANY_FLAG
    return flag && awaited;
#else
    return flag == db_slot_flag(awaited) && awaited;
#endif
}

DB_GPU_FN db_u64 db_flag_of(struct db_look look, db_u32 slot) { return db_load_cqe_tail(look.flags + slot * look.flag_stride); }

/* Looks at DB_SEEN rows from `base` on, below `end`: this thread's slots that have a flag, a bit each, and
 * the flags. The loads share one trip of the GPU's bus. Whether it is the next request's is checked only
 * where one is: a request that is taken clears its own. No order: the finder acquires. */
DB_GPU_FN db_u32 db_look_at(struct db_look look, db_u32 base, db_u32 end, db_u64 *flag) {
    db_u32 nth, found = 0;
    DB_UNROLL
    for (nth = 0; nth < DB_SEEN; nth++) {
        const db_u32 slot = db_slot_in_row(look, base, nth);
        flag[nth] = slot < end ? db_flag_of(look, slot) : 0;
    }
    DB_UNROLL
    for (nth = 0; nth < DB_SEEN; nth++)
        if (flag[nth]) found |= 1u << nth;
    return found;
}

/* The first slot that was found, of which there is one. */
DB_GPU_FN db_u32 db_first_of(struct db_look look, db_u32 base, db_u32 found) {
    return db_slot_in_row(look, base, (db_u32)__ffs((int)found) - 1);
}

/* Whether a request is whole whose flag has come. */
DB_GPU_FN int db_is_whole(const struct db_served *at, db_u32 slot, db_u32 sequence, db_u32 unreliable) {
#ifdef DB_DEFECT_NO_TAIL
    unreliable = 0;
#endif
    if (!unreliable || at->arrival != DB_ARRIVAL_FLAG) return 1;
    return db_load_cqe_tail(db_slot_at(at, slot) + at->request_tail) == db_slot_flag(sequence);
}

/* Of one client's slots that were found, those whose next requests have come, and are whole. */
DB_GPU_FN db_u32 db_whole_of(const struct db_served *at, struct db_look look, db_u32 base, db_u32 found, const db_u64 *flag,
                             db_u32 unreliable) {
    db_u32 awaited[DB_SEEN], nth, whole = 0;
    DB_UNROLL
    for (nth = 0; nth < DB_SEEN; nth++) awaited[nth] = found >> nth & 1 ? db_load_awaited(look.awaited, db_slot_in_row(look, base, nth)) : 0;
    DB_UNROLL
    for (nth = 0; nth < DB_SEEN; nth++)
        if (db_is_next(flag[nth], awaited[nth]) && db_is_whole(at, db_slot_in_row(look, base, nth), awaited[nth], unreliable)) whole |= 1u << nth;
    return whole;
}

/* Whether the slot's answer is not sent yet. The CPU clears its word once the NIC has read it. */
DB_GPU_FN int db_is_sending(const struct db_served *at, db_u32 slot, struct db_slot_words words) {
    db_u32 sending = words.sending;
    if (at->told && !sending) sending = db_load_acquire_sys32(db_host_sending(at, slot));
#ifdef DB_DEFECT_NO_SENDING
    sending = 0;
#endif
    return sending != 0;
}

/* Fails a client that takes no answers: the NIC has not sent them for too long. `count`: new completions. */
DB_GPU_FN void db_check_progress(const struct db_served *at, db_u32 index, db_u32 count) {
    struct db_client *client = db_client_at(at, index);
    db_u64 now;
    if (client->sq.rung == client->sq.consumer) {
        client->progress_ns = 0;
        return;
    }
    now = db_clock_ns();
    if (count || !client->progress_ns) client->progress_ns = now;
    if (now - client->progress_ns > at->patience_ns)
        db_give_up(at, index, db_kernel_end_of(client->sq.qpn, 0, DB_ETIMEDOUT, 0));
}

/* Takes a client's completed sends: a sent answer may be overwritten. One thread a client. How many. */
DB_GPU_FN db_u32 db_poll_sends(const struct db_served *at, db_u32 index) {
    struct db_client *client = db_client_at(at, index);
    struct db_completion done;
    db_u32 count = 0, failed = 0;
    if (!(client->acted & 1) || client->dead) return 0;
    while (!failed && client->sq.rung != client->sq.consumer) {
        int taken = db_gpu_take(&client->send_cq, &client->sq, 0, &done, &client->send_released);
        if (!taken) break;
        failed = taken < 0 || done.status != DB_WC_SUCCESS;
        if (failed) {
            db_give_up(at, index, db_kernel_end_of(client->sq.qpn, 0, taken < 0 ? DB_EINVAL : 0, &done));
        } else {
            db_store_relaxed32(&db_words_at(at, (db_u32)done.wr_id)->sending, 0);
            count++;
        }
    }
    if (!failed && at->patience_ns) db_check_progress(at, index, count);
    return count;
}

/* The tail of a client's next send completion; of none, if no answer is in flight. */
DB_GPU_FN db_u64 db_sent_tail(const struct db_client *client) {
    if (!(client->acted & 1) || client->dead || client->sq.rung == client->sq.consumer) return ~0ull;
    return db_load_cqe_tail(db_cqe_at(&client->send_cq, 0) + DB_CQE_OPCODE_QPN);
}

/* Copies `bytes` side by side, thread `me` of `all` its share; both addresses are multiples of 16. `STORE`
 * takes the address and two words. */
#define DB_COPY_SHARE(to, from, bytes, me, all, STORE)                                                        \
    do {                                                                                                      \
        db_u32 piece, whole = (bytes) / 16, rest = (bytes) & 15;                                              \
        for (piece = (me); piece < whole; piece += (all)) {                                                   \
            ulonglong2 two = ((const ulonglong2 *)(from))[piece];                                             \
            STORE((to) + 16ull * piece, two.x, two.y);                                                        \
        }                                                                                                     \
        if ((me) == 0 && rest) db_copy((to) + 16ull * whole, (from) + 16ull * whole, rest);                   \
    } while (0)

#endif /* DB_PIPELINE_H */
