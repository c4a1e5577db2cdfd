//! Work on many things by all cores: reading, judging and drawing take most of a report's time.

use std::sync::Mutex;
use std::{iter, thread};

use anyhow::{Result, anyhow};

/// The results of `work` on each, in their order, by a thread a core, at most 8. Error: the first one's.
pub fn side_by_side<T: Send, R: Send>(all: Vec<T>, work: impl Fn(T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = Mutex::new(all.into_iter().enumerate());
    let worker = || {
        let take = || next.lock().ok()?.next();
        iter::from_fn(take).map(|(at, one)| (at, work(one))).collect::<Vec<_>>()
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    let joined: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let mut all = Vec::new();
    for results in joined {
        all.extend(results.map_err(|_| anyhow!("a thread of the report failed"))?);
    }
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
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
