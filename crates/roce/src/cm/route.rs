//! Between which two ports a MAD goes.

use crate::wire::Gid;

/// Both ends of a MAD's way, seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Route {
    pub local: Gid,
    pub remote: Gid,
}
