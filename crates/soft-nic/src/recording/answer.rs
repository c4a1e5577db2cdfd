//! Answers as the values of an entry.

use mlx5_device::carrier::{Position, Sent, Unsent};
use mlx5_device::memory::Fault;
use mlx5_layout::CqeSyndrome;

/// What the values of an answer are; a failure is an entry of its own.
pub trait Answer<const N: usize>: Sized {
    fn values(&self) -> Result<[u64; N], Unsent>;

    /// `None`: no device gets such an answer.
    fn of(values: [u64; N]) -> Option<Self>;

    fn failed(_failure: Unsent) -> Option<Self> {
        None
    }
}

/// Answers that cannot fail.
macro_rules! plain {
    ($($type:ty, $count:literal: $answer:pat => $values:expr, $taken:pat => $of:expr;)*) => { $(
        impl Answer<$count> for $type {
            #[inline]
            fn values(&self) -> Result<[u64; $count], Unsent> {
                let $answer = *self;
                Ok($values)
            }

            fn of($taken: [u64; $count]) -> Option<Self> {
                $of
            }
        }
    )* };
}
plain! {
    (), 0: () => [], [] => Some(());
    bool, 1: value => [value.into()], [value] => Some(value != 0);
    u8, 1: value => [value.into()], [value] => value.try_into().ok();
    u32, 1: value => [value.into()], [value] => value.try_into().ok();
    u64, 1: value => [value], [value] => Some(value);
    usize, 1: value => [value as u64], [value] => value.try_into().ok();
    Sent, 3: Sent { position: Position { channel, offset }, carried } => [channel.into(), offset, carried.into()],
        [channel, offset, carried] => {
            let position = Position { channel: channel.try_into().ok()?, offset };
            Some(Sent { position, carried: carried.try_into().ok()? })
        };
}

impl<const N: usize, A: Answer<N>> Answer<N> for Result<A, Fault> {
    #[inline]
    fn values(&self) -> Result<[u64; N], Unsent> {
        self.as_ref().map_err(|fault| Unsent::Fault(*fault))?.values()
    }

    fn of(values: [u64; N]) -> Option<Self> {
        A::of(values).map(Ok)
    }

    fn failed(failure: Unsent) -> Option<Self> {
        if let Unsent::Fault(fault) = failure { Some(Err(fault)) } else { None }
    }
}

impl<const N: usize, A: Answer<N>> Answer<N> for Result<A, Unsent> {
    #[inline]
    fn values(&self) -> Result<[u64; N], Unsent> {
        self.as_ref().map_err(|unsent| *unsent)?.values()
    }

    fn of(values: [u64; N]) -> Option<Self> {
        A::of(values).map(Ok)
    }

    fn failed(failure: Unsent) -> Option<Self> {
        Some(Err(failure))
    }
}

pub fn of_failure(unsent: Unsent) -> [u64; 2] {
    match unsent {
        Unsent::Full => [0, 0],
        Unsent::Unreachable => [1, 0],
        Unsent::Fault(Fault { addr }) => [2, addr],
        Unsent::Failed(syndrome) => [3, u64::from(syndrome.to_u8())],
    }
}

pub fn failure_of(values: &[u64]) -> Option<Unsent> {
    Some(match *values {
        [0, _] => Unsent::Full,
        [1, _] => Unsent::Unreachable,
        [2, addr] => Unsent::Fault(Fault { addr }),
        [3, syndrome] => Unsent::Failed(CqeSyndrome::from_u8(u8::try_from(syndrome).ok()?)?),
        _ => return None,
    })
}
