//! What libmlx5 keeps private and this project relies on, as numbers; `PROVENANCE.md` has each source.
//!
//! The public header `mlx5dv.h` comes first: what it gives is not here. An entry that nobody uses goes.
#![forbid(unsafe_code)]

/// Last byte of each CQE of a ring that libmlx5 made and no device has written: `MLX5_CQE_INVALID << 4`,
/// owner 0. Used to see that a CQ is fresh when it is taken over.
pub const FRESH_CQE_OP_OWN: u8 = 0xf0;
