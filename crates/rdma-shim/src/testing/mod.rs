//! What kernel tests share: a device and its loop to itself, a machine under test, a compiler for GPUs.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used, reason = "a helper of tests")]

mod bench;
mod ends;

pub use bench::{Bench, PATIENCE};
pub use ends::{DEADLINE, connect, connect_with, device, memory, softnic, wait_for};

use gpu::cache::Cache;
use gpu::{Arch, Form, ImageBuilder, Toolkit, Unit};

/// Compiles and links each source for the oldest architecture, where an instruction of a newer one fails, and
/// for the first that waits by `fence.acquire.sys`; in a full run for a third too. Panics unless each kernel
/// is in its image, which lacks nothing but what the driver supplies.
pub fn compile_and_link(toolkit: Toolkit, units: &[Unit], is_full: bool) {
    let builder = ImageBuilder::new(toolkit, Cache::off());
    for arch in [80, 90, 100].into_iter().take(if is_full { 3 } else { 2 }).map(Arch::sm) {
        for unit in units {
            let image = builder.image(std::slice::from_ref(unit), arch, Form::Cubin);
            let facts = image.unwrap_or_else(|error| panic!("{arch}: {error}")).facts;
            let text = without_twin(&unit.text);
            let mut kernels = text.split("__global__ void ").skip(1).filter_map(name_of);
            let absent = kernels.find(|kernel| !facts.functions.contains(*kernel));
            assert_eq!(absent, None, "{arch} {}: {:?}", unit.name, facts.functions);
            let missing = facts.undefined.iter().find(|symbol| !symbol.starts_with(".nv.reservedSmem."));
            assert_eq!(missing, None, "{arch} {}", unit.name);
        }
    }
}

/// The name of a kernel, whose bounds may stand before it.
fn name_of(rest: &str) -> Option<&str> {
    let rest = match rest.strip_prefix("__launch_bounds__(") {
        Some(bounds) => bounds.split_once(')')?.1.trim_start(),
        None => rest,
    };
    Some(rest.split_once('(')?.0)
}

/// The text without what the host twin alone compiles.
fn without_twin(text: &str) -> String {
    let mut parts = text.split("#ifdef DB_TWIN\n");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = |part: &str| part.find("\n#").map_or(String::new(), |end| part[end..].to_owned());
    parts.fold(first, |text, part| text + &rest(part))
}

/// Two tests of a function that takes a [`Bench`]: on the host twin (needs a `KERNELS` table), and on a GPU.
#[macro_export]
macro_rules! on_both {
    ($twin:ident, $gpu:ident, $test:ident) => {
        #[test]
        fn $twin() {
            let context = measure::need!($crate::testing::device(), nic, "an mlx5 device");
            let bench = $crate::testing::Bench::twin(&KERNELS, &context, 1);
            $test(&measure::need!(bench, cc, "a C++ compiler"));
        }

        #[test]
        fn $gpu() {
            let context = measure::need!($crate::testing::device(), nic, "an mlx5 device");
            $test(&measure::need!($crate::testing::Bench::gpu(&context), gpu, "one CUDA device"));
        }
    };
}
