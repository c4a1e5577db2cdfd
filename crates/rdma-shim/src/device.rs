//! The headers as device code includes them, in memory: a program copied to a GPU machine has no sources.

#![forbid(unsafe_code)]

use gpu::Unit;

/// Names and texts of `include/`, for programs that compile kernels at run time.
pub const HEADERS: [(&str, &str); 11] = [
    ("doorbell.h", include_str!("../include/doorbell.h")),
    ("doorbell_gpu.h", include_str!("../include/doorbell_gpu.h")),
    ("doorbell_kernel.h", include_str!("../include/doorbell_kernel.h")),
    ("doorbell_poll.h", include_str!("../include/doorbell_poll.h")),
    ("doorbell_post.h", include_str!("../include/doorbell_post.h")),
    ("doorbell_shared.h", include_str!("../include/doorbell_shared.h")),
    ("mlx5_layout.h", include_str!("../include/mlx5_layout.h")),
    ("order.h", include_str!("../include/order.h")),
    ("order_cuda.h", include_str!("../include/order_cuda.h")),
    ("order_host.h", include_str!("../include/order_host.h")),
    ("order_twin.h", include_str!("../include/order_twin.h")),
];

/// A unit of device code that may include them.
pub fn unit(name: impl Into<String>, text: impl Into<String>) -> Unit {
    HEADERS.iter().fold(Unit::new(name, text), |unit, (name, text)| unit.header(*name, *text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_of_the_folder_is_there() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/include")).unwrap();
        let mut names: Vec<_> =
            folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, HEADERS.map(|(name, _)| name));
    }
}
