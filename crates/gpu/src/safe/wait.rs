//! Waiting with a deadline: GPU work may never end, so nothing here calls a function that waits for it.
//!
//! Spins at first, since most waits take microseconds, then yields the processor, then sleeps.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::result::{Error, Result};

/// How long to poll without a pause, and how long with pauses of the scheduler's.
const HARD: Duration = Duration::from_micros(200);
const YIELDING: Duration = Duration::from_millis(2);
const SLEEP: Duration = Duration::from_micros(100);

/// Calls `poll`, at least once, until it gives `true`. Errors: its own, and `Deadline` after `limit`.
pub(super) fn until(what: &str, limit: Duration, poll: impl FnMut() -> Result<bool>) -> Result<()> {
    let since = Instant::now();
    match poll_until(limit, poll)? {
        true => Ok(()),
        false => Err(Error::Deadline { what: what.to_owned(), waited: since.elapsed() }),
    }
}

/// Calls `poll` until it gives `true`, at most so long, and at least once: whether it did.
pub fn poll_until<E>(
    limit: Duration,
    mut poll: impl FnMut() -> std::result::Result<bool, E>,
) -> std::result::Result<bool, E> {
    let since = Instant::now();
    loop {
        if poll()? {
            return Ok(true);
        }
        match since.elapsed() {
            waited if waited >= limit => return Ok(false),
            waited if waited < HARD => std::hint::spin_loop(),
            waited if waited < YIELDING => std::thread::yield_now(),
            _ => std::thread::sleep(SLEEP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_is_given_up_at_the_deadline() {
        let limit = Duration::from_millis(20);
        let since = Instant::now();
        let error = until("kernel `echo`", limit, || Ok(false)).unwrap_err();
        // However crowded the machine is.
        let whole = since.elapsed();
        assert!((limit..Duration::from_secs(10)).contains(&whole), "{whole:?}");
        assert!(matches!(error, Error::Deadline { waited, .. } if waited >= limit), "{error}");
        assert!(error.to_string().starts_with("kernel `echo` has not ended after "), "{error}");
    }

    #[test]
    fn what_has_ended_needs_no_time_and_an_error_ends_the_wait() {
        assert_eq!(until("x", Duration::ZERO, || Ok(true)), Ok(()));
        let mut polls = 0;
        let third = until("x", Duration::from_secs(9), || {
            polls += 1;
            if polls == 3 { Err(Error::Refused("lost".into())) } else { Ok(false) }
        });
        assert_eq!((third, polls), (Err(Error::Refused("lost".into())), 3));
    }
}
