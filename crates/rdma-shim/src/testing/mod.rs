//! What kernel tests share: a device and its loop to itself, a machine under test, a compiler for all GPUs.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used, reason = "a helper of tests")]

mod bench;
mod ends;

pub use bench::{Bench, PATIENCE};
pub use ends::{DEADLINE, connect, connect_with, device, memory, softnic, wait_for};

use gpu::cache::Cache;
use gpu::{Arch, Form, ImageBuilder, Toolkit, Unit};

/// The architectures that device code of a test is compiled for: the oldest, whose instructions the newer
/// ones have, and in the long run (`measure::need::is_full`) two newer ones.
fn archs() -> impl Iterator<Item = Arch> {
    let is_full = std::env::var("SOFTNIC_TEST_FULL").is_ok_and(|value| value == "1");
    [80, 90, 100].into_iter().take(if is_full { 3 } else { 1 }).map(Arch::sm)
}

/// Compiles and links each source for `archs`. Panics unless each kernel is in its image, which lacks
/// nothing but what the driver supplies.
pub fn compile_and_link(toolkit: Toolkit, units: &[Unit]) {
    let builder = ImageBuilder::new(toolkit, Cache::off());
    for arch in archs() {
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
