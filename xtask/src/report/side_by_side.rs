//! Work on many things by all cores: reading, judging and drawing take most of a report's time.

use std::sync::Mutex;
use std::{iter, thread};

use anyhow::{Result, anyhow};

/// What `made` makes of each, in their order, by a thread a core, at most 8.
pub fn side_by_side<T: Send, R: Send>(all: Vec<T>, made: impl Fn(T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = Mutex::new(all.into_iter().enumerate());
    let work = || {
        let take = || next.lock().ok()?.next();
        iter::from_fn(take).map(|(at, one)| Ok((at, made(one)?))).collect::<Result<Vec<_>>>()
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    let all = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ended = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread of the report failed")))
        };
        threads.into_iter().map(ended).collect::<Result<Vec<_>>>()
    })?;
    let mut all: Vec<(usize, R)> = all.into_iter().flatten().collect();
    all.sort_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, made)| made).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_worked_on_once_and_keeps_its_place() {
        assert_eq!(
            side_by_side((0..100).collect(), |one| Ok(one * 2)).unwrap(),
            Vec::from_iter((0..200).step_by(2))
        );
        assert!(side_by_side::<u8, u8>(Vec::new(), Ok).unwrap().is_empty());
    }

    #[test]
    fn one_failure_fails_the_whole() {
        let refused =
            side_by_side(vec![1, 2, 3], |one| if one == 2 { Err(anyhow!("no {one}")) } else { Ok(one) });
        assert_eq!(refused.unwrap_err().to_string(), "no 2");
    }
}
