//! The stand-in of CUDA's driver (`stand_in.c`), compiled into a folder; used by `crates/pipeline` too.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A folder with a `libcuda` in it, removed afterwards.
pub struct Driver(pub PathBuf);

impl Driver {
    /// Compiles the stand-in with these macros. Error: there is no C compiler, or what it said.
    pub fn new(name: &str, macros: &[&str]) -> Result<Driver, String> {
        let driver = Driver::empty(name);
        for (name, text) in [
            ("stand_in.c", include_str!("stand_in.c")),
            ("stand_in_streams.h", include_str!("stand_in_streams.h")),
            ("stand_in_graphs.h", include_str!("stand_in_graphs.h")),
        ] {
            fs::write(driver.0.join(name), text).unwrap();
        }
        let mut cc = Command::new("cc");
        cc.current_dir(&driver.0);
        cc.args(["-shared", "-fPIC", "-pthread", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]);
        cc.args(macros.iter().map(|macro_| format!("-D{macro_}")));
        // The name that is looked for first, so that a real driver of this machine is not taken.
        let said =
            cc.args(["-o", "libcuda.so", "stand_in.c"]).output().map_err(|error| format!("cc: {error}"))?;
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        Ok(driver)
    }

    /// An empty folder.
    pub fn empty(name: &str) -> Driver {
        let folder = std::env::temp_dir().join(format!("gpu-stand-in-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Driver(folder)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
