//! Threads of the program, as far as they excuse a late doorbell: a thread without a core stores nothing.

use std::sync::Arc;

use roce::Now;

/// One thread, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ThreadTime {
    pub tid: u32,
    /// It has a core, or waits for one.
    pub runnable: bool,
    /// CPU time that it ever had, ns.
    pub cpu_ns: u64,
}

/// How the threads of the program on this NIC stand now, without the NIC's own; what cannot be read is left out.
pub type Look = Box<dyn FnMut() -> Vec<ThreadTime> + Send>;

/// Whether some thread of `before` could have gone on since, but had no core.
pub fn any_starved(before: &[ThreadTime], now: &[ThreadTime]) -> bool {
    let stood_still =
        |now: &ThreadTime| before.iter().any(|then| then.tid == now.tid && then.cpu_ns == now.cpu_ns);
    now.iter().any(|thread| thread.runnable && stood_still(thread))
}

/// The states of the program's threads, sampled once a round however many queues ask.
#[derive(Default)]
pub(super) struct ThreadSampler {
    look: Option<Look>,
    last: Option<(Now, Arc<[ThreadTime]>)>,
}

impl ThreadSampler {
    pub(super) fn new(look: Look) -> ThreadSampler {
        ThreadSampler { look: Some(look), last: None }
    }

    /// How they stand in the round of this time.
    pub(super) fn look(&mut self, now: Now) -> Arc<[ThreadTime]> {
        match &self.last {
            Some((at, threads)) if *at == now => threads.clone(),
            _ => {
                let threads: Arc<[_]> = self.look.as_mut().map(|look| look()).unwrap_or_default().into();
                self.last = Some((now, threads.clone()));
                threads
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_starved_when_it_is_runnable_and_had_no_time_since() {
        let thread = |tid, runnable, cpu_ns| ThreadTime { tid, runnable, cpu_ns };
        for (name, before, now, starved) in [
            ("runnable, no time", thread(7, true, 5), thread(7, true, 5), true),
            ("slept then, runnable now", thread(7, false, 5), thread(7, true, 5), true),
            ("had a core", thread(7, true, 5), thread(7, true, 6), false),
            ("sleeps", thread(7, true, 5), thread(7, false, 5), false),
            ("another one", thread(7, true, 5), thread(8, true, 5), false),
        ] {
            assert_eq!(any_starved(&[before], &[now]), starved, "{name}");
        }
    }
}
