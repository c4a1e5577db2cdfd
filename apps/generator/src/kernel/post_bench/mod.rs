//! What `generator bench-post-gpu` runs: GPU kernels post to queues on plain memory, timed by the GPU.
//!
//! No NIC takes part. There is a ring in pinned host memory or in GPU memory, a record and a word for a
//! register in host memory, and room for every post of a run. So a time is that of the GPU's side alone, with
//! the stores over PCIe that a NIC would see. For a steady state host threads play the NIC ([`nic`]): the
//! ring is short, and completions give room. After each run the ring is compared with what the host's shim
//! writes for the same messages ([`content`]). A peer's routine, whose headers the user gives
//! ([`PeerHeaders`]), and the original release's style can post the same.

mod case;
pub mod content;
mod gpu_bench;
mod memory;
pub mod nic;
mod peer;
#[cfg(test)]
pub(super) mod tests;

pub use case::{Case, Floor, Place, Poster, Room, Scope, Sharing};
pub use gpu_bench::{GpuBench, GpuBenchError, Sample};
pub use peer::{PeerError, PeerHeaders};

use gpu::{Arch, BuildError, Form, Image, ImageBuilder, Unit};

use rdma_shim::device;

/// Bytes of a message: `DB_BENCH_LENGTH`.
pub const LENGTH: u32 = 64;
/// Name and text of the header that the kernels share.
const RUN: (&str, &str) = ("bench_run.h", include_str!("../../../kernels/bench_run.h"));
/// What the shim's kernels post, and the kernels of the steady state.
const NEXT: (&str, &str) = ("bench_next.h", include_str!("../../../kernels/bench_next.h"));
/// Of the original release's style, which the generator's kernels have too.
const ORIGINAL: (&str, &str) = ("post_original.h", include_str!("../../../kernels/post_original.h"));

/// The shim's kernels, and those in the original's style.
pub(super) fn shim_units() -> [Unit; 2] {
    [
        device::unit("bench_post.cu", include_str!("../../../kernels/bench_post.cu"))
            .header(ORIGINAL.0, ORIGINAL.1),
        device::unit("bench_steady.cu", include_str!("../../../kernels/bench_steady.cu")),
    ]
    .map(|unit| unit.header(RUN.0, RUN.1).header(NEXT.0, NEXT.1))
}

/// The image of the peer's kernels. Errors: the compiler's and the linker's, in words for the user.
pub fn put_image(peer: &PeerHeaders, builder: &ImageBuilder, arch: Arch) -> Result<Image, BuildError> {
    let unit =
        device::unit("bench_put.cu", include_str!("../../../kernels/peer/bench_put.cu")).header(RUN.0, RUN.1);
    builder.image(&[peer.complete(unit, builder.toolkit())], arch, Form::Cubin)
}

fn shim_image(builder: &ImageBuilder, arch: Arch) -> Result<Image, BuildError> {
    builder.image(&shim_units(), arch, Form::Cubin)
}
