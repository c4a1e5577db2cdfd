//! What a GPU draws while a server runs.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

use crate::process::output;

/// Reads what a GPU draws, again and again, on a thread of its own: a reading takes some time.
pub struct Power {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<f64>>>,
}

impl Power {
    pub fn start(read: impl Fn() -> Option<f64> + Send + 'static) -> Result<Power> {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let reads = move || {
            let mut watts = Vec::new();
            loop {
                let now = read();
                if ends.load(Ordering::Relaxed) {
                    return watts;
                }
                watts.extend(now);
                std::thread::park_timeout(Duration::from_secs(1));
            }
        };
        let thread = std::thread::Builder::new().name("power".into()).spawn(reads)?;
        Ok(Power { over, thread: Some(thread) })
    }

    /// Counts no reading that has not ended by now. The thread still has to be waited for.
    pub fn stop(mut self) -> Option<JoinHandle<Vec<f64>>> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().inspect(|thread| thread.thread().unpark())
    }
}

impl Drop for Power {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// The mean of all readings, if there are any.
pub fn mean(watts: JoinHandle<Vec<f64>>) -> Option<f64> {
    let watts = watts.join().ok().filter(|watts| !watts.is_empty())?;
    Some(watts.iter().sum::<f64>() / watts.len() as f64)
}

/// What the GPU at that place of the PCI bus draws now, in watts; `None` where `nvidia-smi` does not say. It numbers GPUs in another
/// order than CUDA.
pub fn draws(bus: &str) -> Option<f64> {
    let mut ask = Command::new("nvidia-smi");
    ask.args(["--query-gpu=power.draw", "--format=csv,noheader,nounits", "--id", bus]);
    output(&mut ask, Duration::from_secs(5)).ok()?.trim().parse().ok()
}
