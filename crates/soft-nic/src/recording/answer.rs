//! Which answers are the usual ones: a recording only counts them.

use mlx5_device::carrier::{Sent, Unsent};
use mlx5_device::memory::Fault;
use mlx5_device::threads::ThreadTime;

use super::values::{Put, Take};

/// An answer that is only counted when it is the usual one.
pub trait Answer: Put + Take {
    fn usual() -> Option<Self> {
        None
    }

    fn is_usual(&self) -> bool {
        false
    }
}

macro_rules! usual {
    ($($type:ty: $usual:expr;)*) => { $(
        impl Answer for $type {
            fn usual() -> Option<Self> {
                Some($usual)
            }
            fn is_usual(&self) -> bool {
                Self::usual().as_ref() == Some(self)
            }
        }
    )* };
}
usual! {
    bool: false;
    usize: 0;
    Result<(), Fault>: Ok(());
    Option<[u8; 8]>: None;
    Option<String>: None;
}

impl Answer for u8 {}
impl Answer for u32 {}
impl Answer for String {}
impl Answer for Result<u32, Fault> {}
impl Answer for Result<u64, Fault> {}
impl Answer for Vec<ThreadTime> {}
impl Answer for Result<Sent, Unsent> {}
impl Answer for Result<usize, Unsent> {}
