//! The header without Rust: both languages, all warnings, and the C example on a NIC.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use measure::need;

use rdma_shim::testing::device;

const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/c/write.c");
const STRICT: [&str; 5] = ["-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"];

/// Every function of the header, so that none escapes the compiler.
const USE_EVERYTHING: &str = r#"
#include "doorbell.h"
#include "doorbell_shared.h"
int use_everything(struct db_shared_sq *shared, struct db_sq *sq, struct db_rq *rq, struct db_cq *cq, const struct db_send_wr *wr,
                   const struct db_recv_wr *receive, struct db_completion *done) {
    struct db_sge sge = {0, 0, 0};
    db_u32 bad = 0;
    int sum = db_sq_init(sq, 64) + db_rq_init(rq) + db_cq_init(cq, 64);
    sum += db_try_post(sq, wr) + db_post(sq, wr, 1, &bad) + db_post_recv(rq, receive, 1, &bad);
    sum += db_try_post_write(sq, 0, sge, 0, 0, 0) + db_try_post_write_imm(sq, 0, sge, 0, 0, 0, 0);
    sum += db_try_post_writes(sq, 0, sge, 0, 0, 0, 4, 64);
    sum += db_try_post_send(sq, 0, sge, 0) + db_try_post_send_imm(sq, 0, sge, 0, 0) + db_try_post_read(sq, 0, sge, 0, 0, 0);
    db_ring(sq);
    sum += db_poll(cq, sq, rq, done, 1) + db_drain(cq);
    db_reset_send(sq);
    db_reset_recv(rq);
    sum += db_shared_init(shared) + db_shared_reset(shared);
    return sum;
}
"#;

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn compiler(name: &str) -> Result<(), String> {
    Command::new(name).arg("--version").output().map(|_| ()).map_err(|e| e.to_string())
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_header_is_c11_and_cpp17_without_a_warning() {
    let folder = folder("header");
    for (tool, standard, file) in [("cc", "-std=c11", "use.c"), ("c++", "-std=c++17", "use.cpp")] {
        need!(compiler(tool), cc, format!("the compiler {tool}"));
        std::fs::write(folder.join(file), USE_EVERYTHING).unwrap();
        let output = Command::new(tool)
            .args(STRICT)
            .args([standard, "-I", INCLUDE, "-c", "-o", "/dev/null"])
            .arg(folder.join(file))
            .output()
            .unwrap();
        assert!(output.status.success(), "{tool} {standard}: {}", text(&output));
    }
}

#[test]
fn the_c_example_builds_with_plain_cc_and_its_writes_arrive() {
    need!(compiler("cc"), cc, "the compiler cc");
    need!(Path::new("/usr/include/infiniband/mlx5dv.h").exists(), headers, "the headers of libmlx5");
    let program = folder("example").join("write");
    let output = Command::new("cc")
        .args(STRICT)
        .args(["-std=c11", "-I", INCLUDE, EXAMPLE, "-o"])
        .arg(&program)
        .args(["-libverbs", "-lmlx5"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    need!(device(), nic, "an mlx5 device");
    let device = device().unwrap().name().to_owned();
    let output = Command::new("timeout").arg("20").arg(&program).args([&device, "20000"]).output().unwrap();
    let said = text(&output);
    assert!(
        output.status.success() && said.contains("20000 WRITEs posted by doorbell.h, all completed"),
        "{said}"
    );
}
