//! When the steps of served requests were taken, for figure 6 of the paper.
//!
//! A request's service begins when the NIC has written its receive completion, stamped by the device's clock.
//! It ends behind the doorbell of its answer. Both are turned into the system's time: the NIC's by
//! [`verbs::Clock`], a GPU's by an offset that was measured before and after.

use std::time::{SystemTime, UNIX_EPOCH};

/// A step of a request, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It waits for its turn: the server was not looking yet, or had no room. The release leaves it out.
    Queue,
    /// The server looks for it, until it is found, checked and begun.
    Wait,
    /// The CPU's copy to the GPU; in the faithful baseline, as in the release, after a wait for the last run.
    ToGpu,
    /// The GPU copies it into the model's inputs, unless the model reads the slot.
    CopyIn,
    Run,
    /// The GPU copies the model's outputs into the answer, unless the model writes it there.
    CopyOut,
    /// The CPU has the answer copied into the host's memory.
    ToCpu,
    /// The answer's header is written, it is posted, and its doorbell is rung.
    Send,
}

impl Step {
    pub const ALL: [Step; 8] = [
        Step::Queue,
        Step::Wait,
        Step::ToGpu,
        Step::CopyIn,
        Step::Run,
        Step::CopyOut,
        Step::ToCpu,
        Step::Send,
    ];

    /// The name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Step::Queue => "queue",
            Step::Wait => "wait",
            Step::ToGpu => "to_gpu",
            Step::CopyIn => "copy_in",
            Step::Run => "run",
            Step::CopyOut => "copy_out",
            Step::ToCpu => "to_cpu",
            Step::Send => "send",
        }
    }
}

/// How long a request and its steps took. What no step has is time between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    pub service_ns: u64,
    pub steps_ns: [u64; Step::ALL.len()],
}

impl Sample {
    pub fn ns(&self, step: Step) -> u64 {
        self.steps_ns[step as usize]
    }

    pub(crate) fn set(&mut self, step: Step, ns: u64) {
        self.steps_ns[step as usize] = ns;
    }

    /// The sample with the steps of an [`Offload`](crate::cpu::Offload).
    pub(crate) fn with(mut self, times: OffloadTimes) -> Sample {
        let OffloadTimes { queue_ns, to_gpu_ns, copy_in_ns, run_ns, copy_out_ns, to_cpu_ns } = times;
        for (step, ns) in [
            (Step::Queue, self.ns(Step::Queue) + queue_ns),
            (Step::ToGpu, to_gpu_ns),
            (Step::CopyIn, copy_in_ns),
            (Step::Run, run_ns),
            (Step::CopyOut, copy_out_ns),
            (Step::ToCpu, to_cpu_ns),
        ] {
            self.set(step, ns);
        }
        self
    }
}

/// How long the steps of a request took that an offload computes; 0 where there is no such step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OffloadTimes {
    /// Until a thread took the request that was begun, or the GPU, whose run before was not over.
    pub queue_ns: u64,
    pub to_gpu_ns: u64,
    pub copy_in_ns: u64,
    pub run_ns: u64,
    pub copy_out_ns: u64,
    pub to_cpu_ns: u64,
}

/// What was traced of one client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    pub samples: Vec<Sample>,
    /// Answers whose record was written over, or for which there was no room, before it was read.
    pub lost: u64,
    /// Answers without a sample: their receive completion's stamp is over `clock_error_ns` later than found.
    pub disordered: u64,
    /// Largest error of the offset between the GPU's clock and the system's; 0: no GPU's clock took part.
    pub clock_error_ns: u64,
}

/// Most samples of a client.
pub(crate) const MOST: usize = 1 << 20;

impl Trace {
    /// `late_ns`: by how much the receive completion is stamped later than it was found.
    pub(crate) fn push(&mut self, sample: Sample, late_ns: u64, error_ns: u64) {
        if late_ns > error_ns {
            self.disordered += 1;
        } else if self.samples.len() < MOST {
            self.samples.push(sample);
        } else {
            self.lost += 1;
        }
    }
}

/// Now, by the system's clock: nanoseconds since 1970.
pub(crate) fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M12: the release keeps 80 bytes of each of 100,000,000 runs, and copies all of them at the end.
    #[test]
    fn release_m12_a_trace_has_a_bound_and_counts_what_it_leaves_out() {
        const MORE: usize = 5;
        let mut trace = Trace::default();
        for service_ns in 0..(MOST + MORE) as u64 {
            trace.push(Sample { service_ns, ..Sample::default() }, 0, 0);
        }
        trace.push(Sample::default(), 2, 1);
        assert_eq!((trace.samples.len(), trace.lost, trace.disordered), (MOST, MORE as u64, 1));
        assert_eq!(trace.samples.last().map(|sample| sample.service_ns), Some(MOST as u64 - 1));
    }
}
