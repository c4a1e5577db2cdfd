//! Writes `include/mlx5_layout.h`; with `--check` compares it instead and exits 1 when it differs (INV-14).

use std::process::ExitCode;

fn main() -> ExitCode {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(rdma_shim::header::PATH);
    let text = rdma_shim::header::mlx5_layout_h();
    let check = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(other) => {
            eprintln!("headers: unknown option {other}; only --check is known");
            return ExitCode::from(2);
        }
    };
    if !check {
        return match std::fs::write(&path, text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("headers: cannot write {}: {error}", path.display());
                ExitCode::FAILURE
            }
        };
    }
    match std::fs::read_to_string(&path) {
        Ok(committed) if committed == text => ExitCode::SUCCESS,
        Ok(_) => {
            eprintln!(
                "headers: {} is not what mlx5-layout says; run cargo run -p rdma-shim --bin headers",
                path.display()
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("headers: cannot read {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
