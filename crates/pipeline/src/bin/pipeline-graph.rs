//! `pipeline-graph`: what the graph of a turn is made of on this machine's GPU, as one line of JSON, for `cargo xtask figure 3`.
//!
//! Records the graph with one kernel in the place of a model, and launches nothing. Exit status 2: no GPU, or no CUDA toolkit.

use std::io::{self, Write};
use std::process::ExitCode;

use pipeline::gpu::structure;
use rdma_shim::kernel::Machine;

fn main() -> ExitCode {
    if std::env::args_os().len() > 1 {
        let _ = writeln!(io::stderr(), "pipeline-graph: it takes no arguments");
        return ExitCode::from(2);
    }
    let found = Machine::gpu(None, None)
        .map_err(|error| (2, error.to_string()))
        .and_then(|machine| structure(&machine).map_err(|error| (1, error.to_string())));
    match found {
        Ok(one) => {
            let _ = writeln!(
                io::stdout(),
                "{{\"kind\":\"pipeline-graph\",\"nodes\":{},\"kernels\":{},\"host_nodes\":{},\"copies\":{},\"host_copies\":{}}}",
                one.nodes,
                one.kernels,
                one.host_nodes,
                one.copies,
                one.host_copies
            );
            ExitCode::SUCCESS
        }
        Err((code, why)) => {
            let _ = writeln!(io::stderr(), "pipeline-graph: {why}");
            ExitCode::from(code)
        }
    }
}
