//! What the machines have that the programs are built for.

/// The oldest glibc that they run on: that of Debian 11 and Ubuntu 20.04.
pub const GLIBC: (u32, u32) = (2, 31);

/// The headers alone: the shim has no library.
pub fn pkg_config(version: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         Name: doorbell\n\
         Description: posts RDMA requests to mlx5 queues, on the host and in CUDA kernels: headers alone\n\
         Version: {version}\n\
         Cflags: -I${{prefix}}/include\n"
    )
}
