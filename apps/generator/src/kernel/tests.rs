//! The kernels through NVIDIA's compiler and linker. Needs a toolkit, no GPU.

use gpu::Toolkit;
use measure::need;
use rdma_shim::testing::compile_and_link;

use super::{generate, post_bench, receive};

#[test]
fn every_kernel_compiles_and_links() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let ours = [&generate::SOURCE, &generate::SHARED, &generate::ORIGINAL, &receive::SOURCE];
    let units = ours.iter().map(|source| source.unit()).chain(post_bench::shim_units());
    compile_and_link(toolkit, &units.collect::<Vec<_>>(), need::is_full());
}
