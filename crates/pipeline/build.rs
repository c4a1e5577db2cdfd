//! Compiles the kernels for the host twin, once as they are and once with each defect that tests plant.

fn main() {
    let includes = |kernels: host_twin_build::Kernels| {
        kernels.include("../rdma-shim/include").include("../slots/include").include("kernels")
    };
    includes(host_twin_build::Kernels::new("kernels")).folder("kernels").compile();
    let planted = includes(host_twin_build::Kernels::new("planted"));
    let plant = |all: host_twin_build::Kernels, defect: &&str| all.planted("kernels/wait.cu", defect, defect);
    ["DB_DEFECT_FROM_SLOT_0", "DB_DEFECT_ANY_FLAG"].iter().fold(planted, plant).compile();
}
