//! `pipeline-graph`: a turn's graph on this machine's GPU, for `cargo xtask figure 3`. With `wait graph` what
//! waiting and sending add to a turn, for `cargo xtask figure bench-wait`. Each is one line of JSON.
//!
//! Without arguments it records the graph with one kernel for a model, and launches nothing. `while`,
//! `persistent` and `walk` are other drivers. Exit status 2: a wrong argument, no GPU, or no CUDA toolkit.

use std::io::{self, Write};
use std::process::ExitCode;

use pipeline::gpu::cost::{Cost, Driver, SLOTS, cost};
use pipeline::gpu::{Structure, structure};
use rdma_shim::kernel::Machine;

/// What is asked for; `None`: the graph's structure.
fn asked(words: &[String]) -> Result<Option<Driver>, String> {
    match words {
        [] => Ok(None),
        [wait, driver] if wait == "wait" => driver.parse().map(Some),
        _ => Err("it takes no arguments, or `wait` and one of graph, while, ahead, persistent, walk".into()),
    }
}

fn of_structure(one: &Structure) -> String {
    let Structure { nodes, kernels, host_nodes, copies, host_copies } = one;
    format!(
        "{{\"kind\":\"pipeline-graph\",\"nodes\":{nodes},\"kernels\":{kernels},\"host_nodes\":{host_nodes},\"copies\":{copies},\"host_copies\":{host_copies}}}"
    )
}

fn of_cost(one: &Cost) -> String {
    let us = |time: std::time::Duration| time.as_nanos() as f64 / 1e3;
    let periods = SLOTS.iter().zip(one.periods).map(|(slots, time)| format!("\"{slots}\":{}", us(time)));
    format!(
        "{{\"kind\":\"pipeline-wait\",\"alone_us\":{},\"period_us\":{{{}}},\"traced_us\":{}}}",
        us(one.alone),
        periods.collect::<Vec<_>>().join(","),
        us(one.traced)
    )
}

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let found = asked(&words).map_err(|why| (2, why)).and_then(|driver| {
        let machine = Machine::gpu(None, None).map_err(|error| (2, error.to_string()))?;
        let line = match driver {
            None => structure(&machine).map(|one| of_structure(&one)),
            Some(driver) => cost(&machine, driver).map(|one| of_cost(&one)),
        };
        line.map_err(|error| (1, error.to_string()))
    });
    match found {
        Ok(line) => {
            let _ = writeln!(io::stdout(), "{line}");
            ExitCode::SUCCESS
        }
        Err((code, why)) => {
            let _ = writeln!(io::stderr(), "pipeline-graph: {why}");
            ExitCode::from(code)
        }
    }
}
