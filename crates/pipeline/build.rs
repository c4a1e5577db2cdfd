//! Compiles the kernels for the host twin, once as they are and once with each defect that tests plant.

fn main() {
    let includes = |kernels: host_twin_build::Kernels| {
        kernels
            .include("../rdma-shim/include")
            .include("../slots/include")
            .include("../gpu/kernels")
            .include("kernels")
    };
    includes(host_twin_build::Kernels::new("kernels")).folder("kernels").compile();
    let planted = includes(host_twin_build::Kernels::new("planted").for_tests());
    let plant =
        |all: host_twin_build::Kernels, (file, defect): &(&str, &str)| all.planted(*file, defect, defect);
    [
        ("kernels/wait.cu", "DB_DEFECT_FROM_SLOT_0"),
        ("kernels/wait.cu", "DB_DEFECT_ANY_FLAG"),
        ("kernels/wait.cu", "DB_DEFECT_NO_SENDING"),
        ("kernels/wait.cu", "DB_DEFECT_NO_TABLE"),
        ("kernels/wait.cu", "DB_DEFECT_ANY_SLOT"),
        ("kernels/wait.cu", "DB_DEFECT_SLOT_NOT_SET"),
        ("kernels/put.cu", "DB_DEFECT_REVERSED_COPY"),
        ("kernels/put.cu", "DB_DEFECT_ONE_THREAD"),
        ("kernels/wait.cu", "DB_DEFECT_SLOTS_IN_TURN"),
        ("kernels/wait.cu", "DB_DEFECT_FLOOD"),
        ("kernels/wait.cu", "DB_DEFECT_LATE_REFILL"),
        ("kernels/wait.cu", "DB_DEFECT_NO_TAIL"),
        ("kernels/wait.cu", "DB_DEFECT_TWICE"),
        ("kernels/wait.cu", "DB_DEFECT_ALWAYS_IN_SLOT"),
        ("kernels/wait.cu", "DB_DEFECT_PASSED_FOR_LONG"),
        ("kernels/wait.cu", "DB_DEFECT_NO_LIMIT"),
        ("kernels/wait.cu", "DB_DEFECT_NO_MARK"),
        ("kernels/send.cu", "DB_DEFECT_NO_SEND_SYNC"),
        ("kernels/send.cu", "DB_DEFECT_NO_TAIL"),
        ("kernels/serve.cu", "DB_DEFECT_NO_STOP"),
        ("kernels/serve.cu", "DB_DEFECT_NOT_DONE"),
        ("kernels/serve.cu", "DB_DEFECT_LOOKS_ON"),
        ("kernels/serve.cu", "DB_DEFECT_NO_SENDING"),
        ("kernels/serve.cu", "DB_DEFECT_NOT_HELD"),
        ("kernels/serve.cu", "DB_DEFECT_SENDS_ANYWAY"),
        ("kernels/serve.cu", "DB_DEFECT_TWICE"),
        ("kernels/serve.cu", "DB_DEFECT_NO_LIMIT"),
        ("kernels/serve.cu", "DB_DEFECT_NO_MARK"),
        ("kernels/serve.cu", "DB_DEFECT_PASSED_FOR_LONG"),
        ("kernels/serve.cu", "DB_DEFECT_STOPS_LATE"),
        ("kernels/ahead.cu", "DB_DEFECT_NOT_IN_TURN"),
        ("tests/kernels/add_one.cu", "DB_DEFECT_NO_GRID_FENCE"),
    ]
    .iter()
    .fold(planted, plant)
    .planted("tests/kernels/layout.cu", "none", "DB_NO_DEFECT")
    .planted("tests/kernels/add_one.cu", "none", "DB_NO_DEFECT")
    .planted("tests/kernels/late.cu", "none", "DB_NO_DEFECT")
    .planted("tests/kernels/late.cu", "DB_DEFECT_NO_GRID_BARRIER", "DB_DEFECT_NO_GRID_BARRIER")
    .compile();
}
