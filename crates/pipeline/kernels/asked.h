/*! What the CPU asks of a turn: a host record, mirrored in src/gpu/by_cpu.rs. A test checks every offset. */
#ifndef DB_ASKED_H
#define DB_ASKED_H

#include "pipeline.h"

/* Records of the ring, one a launch in flight at most. */
#define DB_ASKED_ENTRIES 64u

#define DB_ASKED_REQUEST 0u /* serve a request */
#define DB_ASKED_JOIN 1u    /* take a client's queue over */
#define DB_ASKED_LEAVE 2u   /* give it back */

struct db_asked {
    db_u32 what;     /* DB_ASKED_* */
    db_u32 slot;
    db_u32 sequence; /* of the request */
    db_u32 client;   /* its place */
    db_u32 status;   /* DB_SLOT_STATUS_*: a request that is not OK is answered and not computed */
    db_u32 arrival;  /* of the client: DB_ARRIVAL_* */
    db_u64 request_id;
    db_u64 cookie;
    db_u64 sent_ns;
    db_u64 completed; /* consumer index of the client's send queue: the CPU takes its completions */
    db_u64 pad;
};

#endif /* DB_ASKED_H */
