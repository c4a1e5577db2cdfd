//! Compiles the kernels for the host twin, and once more with each defect that tests plant.

fn main() {
    let table = |name| host_twin_build::Kernels::new(name).include("../gpu/kernels").include("kernels");
    table("kernels").folder("kernels").compile();
    table("planted")
        .for_tests()
        .planted("kernels/resident.cu", "DB_DEFECT_NO_GRID_BARRIER", "DB_DEFECT_NO_GRID_BARRIER")
        .compile();
}
