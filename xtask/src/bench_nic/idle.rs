//! An open device that does nothing: what its NIC thread runs, and what memory its process holds.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::process::{JsonProgram, WAIT, wait_for};

/// What opening the device cost is not idling, and a NIC that had work a moment ago looks around more often.
const SETTLE: Duration = Duration::from_secs(5);

/// The NIC thread's share of a core in percent, and the process's resident MiB, watched for `time`.
pub fn watch(program: &mut JsonProgram, time: Duration) -> Result<(f64, f64)> {
    let process = program.child.0.id();
    wait_for(WAIT, || {
        let is_over = nic_ns(process).is_some() || program.child.poll()?.is_some();
        Ok(is_over.then_some(()))
    })?;
    nic_ns(process)
        .with_context(|| format!("the program has no NIC thread; see {}", program.log.display()))?;
    sleep(SETTLE);
    let since = Instant::now();
    let before = nic_ns(process).context("the NIC thread is gone")?;
    sleep(time);
    let after = nic_ns(process).context("the NIC thread is gone")?;
    let percent = (after - before) as f64 / since.elapsed().as_nanos() as f64 * 100.0;
    let status = fs::read_to_string(format!("/proc/{process}/status")).context("reading its memory")?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<f64>().ok());
    Ok((percent, resident.context("no VmRSS")? / 1024.0))
}

/// Nanoseconds that the NIC's thread in `process` has run, if it has one.
fn nic_ns(process: u32) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let of_nic = |task: &fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        // The first field is time on a core; `stat` counts in hundredths of a second, too coarse for idling.
        let schedstat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        name.starts_with("softnic-nic").then(|| schedstat.split_whitespace().next()?.parse::<u64>().ok())?
    };
    tasks.flatten().filter_map(|task| of_nic(&task)).reduce(|one, other| one + other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_the_nic_s_name_is_found_by_what_it_ran() {
        let before = nic_ns(std::process::id());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let work = move || {
            let sum: u64 = (0..1_000_000_u64).map(std::hint::black_box).sum();
            ready.send(sum).unwrap();
            let _ = stopped.recv();
        };
        let thread = std::thread::Builder::new().name("softnic-nic".into()).spawn(work).unwrap();
        is_ready.recv().unwrap();
        assert_eq!(before, None);
        assert!(nic_ns(std::process::id()).is_some_and(|ns| ns > 0));
        drop(stop);
        thread.join().unwrap();
    }
}
