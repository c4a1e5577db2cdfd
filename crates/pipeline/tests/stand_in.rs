//! The nodes of a turn's graph, recorded on a stand-in of CUDA's driver (`crates/gpu/tests/gpu/stand_in.c`).

#![allow(clippy::unwrap_used)]

use std::process::Command;

use gpu::Toolkit;
use measure::need;

#[path = "../../gpu/tests/gpu/driver.rs"]
mod driver;

use driver::Driver;

/// Names and parameters of the kernels, as the stand-in has them.
const KERNELS: &str = r#"RECORDED={"wait_inputs",{8,8,0}},{"send_outputs",{8,8,0}},{"take_inputs",{8,8,0}},{"put_outputs",{8,8,0}},{"one_node",{0}}"#;

/// M11: the release's graph has about 17 kernels that take times beside the four steps, and copies.
#[test]
fn release_m11_a_turn_is_recorded_as_four_kernels_and_nothing_else() {
    need!(Toolkit::find(None).map(drop), toolkit, "a CUDA toolkit");
    let driver = need!(Driver::new("pipeline", &[KERNELS]), cc, "a C compiler");
    let mut program = Command::new(env!("CARGO_BIN_EXE_pipeline-graph"));
    let said = program.env("LD_LIBRARY_PATH", &driver.0).output().unwrap();
    let wanted =
        r#"{"kind":"pipeline-graph","nodes":4,"kernels":4,"host_nodes":0,"copies":0,"host_copies":0}"#;
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), wanted, "{said:?}");
}
