//! Compiles the C routines for the host, and test kernels for the host twin; needs only compilers, no
//! rdma-core headers and no CUDA (INV-8).

use host_twin_build::Kernels;

/// Kernels compiled once more with a defect that tests must find, or with a clock at which tests stop them:
/// source, name of the defect, what it defines.
const PLANTED: &[(&str, &str, &str)] = &[
    ("reduce", "no-warp-sync", "DEFECT_NO_WARP_SYNC"),
    ("hand_over", "no-release", "DB_DEFECT_RELAXED_RELEASE"),
    ("post", "no-wqe-fence", "DB_DEFECT_NO_WQE_FENCE"),
    ("post", "no-warp-sync", "DB_DEFECT_NO_WARP_SYNC"),
    ("block", "no-block-sync", "DB_DEFECT_NO_BLOCK_SYNC"),
    ("post", "ring-index", "DB_DEFECT_RING_INDEX"),
    ("post", "length-in-bytes", "DB_DEFECT_LENGTH_IN_BYTES"),
    ("requests", "no-alignment", "DB_DEFECT_NO_ALIGNMENT"),
    ("shared", "one-poster", "DB_DEFECT_ONE_POSTER"),
    ("shared", "no-warp-sync", "DB_DEFECT_NO_WARP_SYNC"),
    ("shared", "no-release", "DB_DEFECT_RELAXED_RELEASE"),
    ("shared", "gated-clock", "DB_TWIN_GATED_CLOCK"),
    ("post", "gpu-scope", "DB_DEFECT_GPU_SCOPE"),
    ("post", "no-owner-bit", "DEFECT_NO_OWNER_BIT"),
    ("wait", "no-owner-bit-behind", "DB_DEFECT_NO_OWNER_BIT_BEHIND"),
    ("post", "short-index", "DEFECT_SHORT_INDEX"),
    ("post", "no-space-check", "DEFECT_NO_SPACE_CHECK"),
    ("post", "eight-bytes", "DEFECT_EIGHT_BYTES"),
];

fn main() {
    for path in ["include", "src/shim.c"] {
        println!("cargo:rerun-if-changed={path}");
    }
    cc::Build::new()
        .file("src/shim.c")
        .include("include")
        .std("c11")
        // The routines are measured: an unoptimised build would measure the compiler.
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .flag("-pedantic")
        .compile("rdma_shim");
    // The kernels are those of tests, which ask for this feature.
    if std::env::var_os("CARGO_FEATURE_TESTING").is_none() {
        return;
    }
    Kernels::new("kernels").include("include").folder("tests/kernels").compile();
    let planted = Kernels::new("planted").for_tests().include("include").include("tests/kernels");
    let plant = |kernels: Kernels, &(source, defect, define): &(&str, &str, &str)| {
        kernels.planted(format!("tests/kernels/{source}.cu"), defect, define)
    };
    PLANTED.iter().fold(planted, plant).compile();
}
