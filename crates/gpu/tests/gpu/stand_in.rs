//! The tests of `device` on a stand-in of the driver (`stand_in.c`), without a GPU. Drivers that are too old,
//! empty, or no drivers are errors that say so.
//!
//! The stand-in runs on the CPU and shows nothing of a GPU. It is strict about what the safe floor promises:
//! a program that frees under a stream is aborted. What it passes still has to pass on a GPU.

use std::fs;
use std::process::Command;
use std::time::Duration;

use gpu::cache::Cache;
use gpu::{Arch, Form, ImageBuilder, Toolkit};
use measure::need;

use crate::driver::Driver;
use crate::{bench, process};

impl Driver {
    /// By both names, without what the macros leave out.
    fn lacking(name: &str, lacks: &[&str]) -> Result<Driver, String> {
        let driver = Driver::new(name, lacks)?;
        fs::copy(driver.0.join("libcuda.so"), driver.0.join("libcuda.so.1")).unwrap();
        Ok(driver)
    }

    /// With the image that its tests load, for the architecture that it has.
    fn with_image(self, toolkit: Toolkit) -> Driver {
        let builder = ImageBuilder::new(toolkit, Cache::at(self.0.join("images")));
        builder.image(&bench::units(), Arch::sm(90), Form::Cubin).unwrap();
        self
    }

    /// This very test program on that driver; gives what it said, and whether it ended well.
    fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> (String, bool) {
        let set = |us: &mut Command| {
            us.env("LD_LIBRARY_PATH", &self.0).env(bench::IMAGES, self.0.join("images"));
            us.env_remove("REQUIRE").envs(environment.iter().copied());
        };
        process::us(arguments, set, &self.0.join("log"), Duration::from_secs(120))
    }
}

/// What a stand-in does not do: it takes any image, since it runs none, and its times are no GPU's.
const LEFT_OUT: [&str; 4] =
    ["--skip", "gpu_image_for_another_architecture", "--skip", "gpu_module_is_loaded_in_a_second"];

#[test]
fn what_a_gpu_is_to_show_passes_on_a_stand_in_of_its_driver() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let driver = need!(Driver::lacking("whole", &[]), "a C compiler").with_image(toolkit);
    let asked = ["device::gpu_", "context::gpu_context"];
    let (said, good) = driver.run(&[&asked, &LEFT_OUT[..]].concat(), &[("REQUIRE", "gpu")]);
    assert!(good, "{said}");
    let passed = said.lines().filter(|line| line.starts_with("test ") && line.ends_with("ok")).count();
    let skipped: Vec<&str> = said.lines().filter(|line| line.contains("SKIP ")).collect();
    assert!(
        passed >= 16 && skipped.len() == 1 && skipped[0].contains("dma-buf"),
        "{passed}, {skipped:?}: {said}"
    );
}

#[test]
fn a_driver_without_newer_functions_serves_what_needs_none() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let driver = need!(Driver::lacking("older", &["LACKS_NEWER"]), "a C compiler").with_image(toolkit);
    let (said, good) = driver.run(&["device::gpu_timer", "--nocapture"], &[("REQUIRE", "gpu")]);
    assert!(good && said.contains("1 passed"), "{said}");
}

#[test]
fn a_driver_that_is_none_or_finds_none_is_an_error_that_says_so() {
    need!(Toolkit::find(None).map(drop), toolkit, "a CUDA toolkit");
    let empty = Driver::empty("empty");
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::write(empty.0.join(name), "").unwrap();
    }
    let whole = need!(Driver::lacking("errors", &[]), "a C compiler");
    let older = need!(Driver::lacking("no-count", &["LACKS_COUNT"]), "a C compiler");
    let oldest = need!(Driver::lacking("no-version", &["LACKS_COUNT", "LACKS_VERSION"]), "a C compiler");
    for (driver, environment, words) in [
        (
            &whole,
            &[("STAND_IN_INIT", "100")][..],
            "cuInit: CUDA_ERROR_NO_DEVICE (100): said by a stand-in; see `nvidia-smi`",
        ),
        (&whole, &[("STAND_IN_INIT", "34")], "is the toolkit's stub for linking"),
        // A number of a driver that is newer than the bindings.
        (&whole, &[("STAND_IN_INIT", "987654")], "cuInit: unknown error (987654): said by a stand-in"),
        (&whole, &[("STAND_IN_DEVICES", "0")], "no GPU here: the driver finds none"),
        (&older, &[], "the CUDA driver here (CUDA 13.0) has no cuDeviceGetCount: a newer driver is needed"),
        (&oldest, &[], "the CUDA driver here (CUDA unknown) has no cuDeviceGetCount"),
    ] {
        let (said, good) =
            driver.run(&["--exact", "device::gpu_says_what_it_is", "--nocapture"], environment);
        assert!(good && said.contains("SKIP ") && said.contains(words), "{words:?}: {said}");
    }
    // Where the machine has a driver that is found behind the empty files, nothing is missing.
    let (said, good) = empty.run(&["--exact", "device::gpu_says_what_it_is", "--nocapture"], &[]);
    assert!(good && (said.contains("no CUDA driver: ") || !said.contains("SKIP ")), "{said}");
}
