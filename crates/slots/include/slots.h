/*! Offsets and numbers of requests and answers in slots, as crate `slots` states them; little-endian.
 *
 * Written by `cargo xtask headers`; `cargo xtask headers --check` compares (INV-14).
 */
#ifndef DB_SLOTS_H
#define DB_SLOTS_H

#define DB_SLOT_HEADER_MAGIC 0x0u
#define DB_SLOT_HEADER_VERSION 0x4u
#define DB_SLOT_HEADER_STATUS 0x6u
#define DB_SLOT_HEADER_REQUEST_ID 0x8u
#define DB_SLOT_HEADER_MODEL_ID 0x10u
#define DB_SLOT_HEADER_SEQUENCE 0x14u
#define DB_SLOT_HEADER_COOKIE 0x18u
#define DB_SLOT_HEADER_SENT_NS 0x20u
#define DB_SLOT_HEADER_BEGUN_NS 0x28u
#define DB_SLOT_HEADER_ENDED_NS 0x30u
#define DB_SLOT_HEADER_TENSORS 0x38u
#define DB_SLOT_HEADER_CREDITS 0x3au
#define DB_SLOT_HEADER_SLOT 0x3cu
#define DB_SLOT_HEADER_BYTES 0x40u
#define DB_SLOT_ENTRY_OFFSET 0x0u
#define DB_SLOT_ENTRY_LENGTH 0x4u
#define DB_SLOT_ENTRY_KIND 0x8u
#define DB_SLOT_ENTRY_BYTES 0x10u
#define DB_SLOT_PREFIX_BYTES 0xc0u
#define DB_SLOT_MOST_TENSORS 0x8u
#define DB_SLOT_ALIGNMENT 0x40u
#define DB_SLOT_FLAG_BYTES 0x8u
#define DB_SLOT_MAGIC 0x544f4c53u
#define DB_SLOT_VERSION 0x1u
#define DB_SLOT_FLAG_MARK 0x5f1a9b1eu
#define DB_SLOT_STATUS_OK 0x1u
#define DB_SLOT_STATUS_BAD_HEADER 0x2u
#define DB_SLOT_STATUS_BAD_MODEL 0x3u
#define DB_SLOT_STATUS_BAD_TENSORS 0x4u
#define DB_SLOT_STATUS_BAD_SEQUENCE 0x5u
#define DB_SLOT_STATUS_DUPLICATE_ID 0x6u
#define DB_SLOT_STATUS_MODEL_FAILED 0x7u
#define DB_SLOT_STATUS_STOPPING 0x8u
#define DB_SLOT_STATUS_NO_CREDIT 0x9u
#define DB_SLOT_KIND_F32 0x1u
#define DB_SLOT_KIND_F16 0x2u
#define DB_SLOT_KIND_U8 0x3u
#define DB_SLOT_KIND_I32 0x4u
#define DB_SLOT_KIND_I64 0x5u

#endif /* DB_SLOTS_H */
