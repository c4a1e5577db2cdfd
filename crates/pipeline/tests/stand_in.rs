//! The graph of a turn, recorded on a stand-in of CUDA's driver (`crates/gpu/tests/gpu/stand_in.c`): its nodes are counted, none is run.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use gpu::Toolkit;
use measure::need;

/// Names and parameters of the kernels, as the stand-in has them.
const KERNELS: &str = r#"-DRECORDED={"wait_inputs",{8,8,0}},{"send_outputs",{8,8,0}},{"take_inputs",{8,8,0}},{"put_outputs",{8,8,0}},{"one_node",{0}}"#;

/// A folder with a `libcuda.so`, removed afterwards.
struct Driver(PathBuf);

impl Driver {
    /// Error: there is no C compiler.
    fn new() -> Result<Driver, String> {
        let driver = Driver(std::env::temp_dir().join(format!("pipeline-stand-in-{}", std::process::id())));
        fs::create_dir_all(&driver.0).unwrap();
        for (name, text) in [
            ("stand_in.c", include_str!("../../gpu/tests/gpu/stand_in.c")),
            ("stand_in_streams.h", include_str!("../../gpu/tests/gpu/stand_in_streams.h")),
            ("stand_in_graphs.h", include_str!("../../gpu/tests/gpu/stand_in_graphs.h")),
        ] {
            fs::write(driver.0.join(name), text).unwrap();
        }
        // NVRTC looks for libcuda.so.1, and would call what the stand-in lacks.
        let mut cc = Command::new("cc");
        cc.current_dir(&driver.0).args(["-shared", "-fPIC", "-pthread", "-std=gnu11", KERNELS]);
        let said =
            cc.args(["-o", "libcuda.so", "stand_in.c"]).output().map_err(|error| format!("cc: {error}"))?;
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        Ok(driver)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// M11: the release's graph has about 17 kernels that take times beside the four steps, and copies.
#[test]
fn release_m11_a_turn_is_recorded_as_four_kernels_and_nothing_else() {
    need!(Toolkit::find(None).map(drop), toolkit, "a CUDA toolkit");
    let driver = need!(Driver::new(), cc, "a C compiler");
    let mut program = Command::new(env!("CARGO_BIN_EXE_pipeline-graph"));
    let said = program.env("LD_LIBRARY_PATH", &driver.0).output().unwrap();
    let wanted =
        r#"{"kind":"pipeline-graph","nodes":4,"kernels":4,"host_nodes":0,"copies":0,"host_copies":0}"#;
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), wanted, "{said:?}");
}
