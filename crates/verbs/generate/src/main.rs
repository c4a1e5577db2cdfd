//! Writes the raw bindings of `verbs` from the system's rdma-core headers, or checks the committed ones.
//!
//! `verbs-generate` writes `crates/verbs/src/sys/generated/{ibverbs,mlx5}.rs`; `verbs-generate --check`
//! compares. Needs libclang and the headers (Debian: `libclang-dev libibverbs-dev`). The output is committed:
//! users need neither. Headers of another rdma-core version give another text (structs that grew at their
//! end, new constants): then only functions are compared here; `verbs-ctest` compares layouts with any
//! version. `--include DIR` takes the headers of another directory.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

/// Where the output lies, from the workspace's root.
const OUTPUT: &str = "crates/verbs/src/sys/generated";

/// One generated file: a header, the functions of one library, and what else is named in it.
struct Unit {
    file: &'static str,
    header: &'static str,
    /// Name of the struct of function pointers.
    library: &'static str,
    functions: &'static [&'static str],
    types: &'static [&'static str],
    /// Lines above the declarations.
    imports: &'static [&'static str],
    /// Whether types that the listed ones need are declared as well.
    recursive: bool,
}

/// The exported functions of libibverbs; inline ones go through the context and are in `sys/inline.rs`.
const IBVERBS: Unit = Unit {
    file: "ibverbs.rs",
    header: "infiniband/verbs.h",
    library: "Ibverbs",
    functions: &[
        "ibv_get_device_list",
        "ibv_free_device_list",
        "ibv_get_device_name",
        "ibv_get_device_guid",
        "ibv_open_device",
        "ibv_close_device",
        "ibv_get_async_event",
        "ibv_ack_async_event",
        "ibv_query_device",
        "ibv_query_port",
        "ibv_query_gid",
        "ibv_query_pkey",
        "_ibv_query_gid_ex",
        "ibv_alloc_pd",
        "ibv_dealloc_pd",
        "ibv_reg_mr",
        "ibv_reg_mr_iova2",
        "ibv_reg_dmabuf_mr",
        "ibv_dereg_mr",
        "ibv_create_comp_channel",
        "ibv_destroy_comp_channel",
        "ibv_create_cq",
        "ibv_destroy_cq",
        "ibv_get_cq_event",
        "ibv_ack_cq_events",
        "ibv_create_qp",
        "ibv_destroy_qp",
        "ibv_modify_qp",
        "ibv_query_qp",
        "ibv_create_ah",
        "ibv_destroy_ah",
    ],
    types: &[
        "ibv_gid_entry",
        "ibv_port_attr",
        "ibv_gid_type",
        "ibv_gid_type_sysfs",
        "ibv_wc",
        "ibv_wc_flags",
        "ibv_send_flags",
        "ibv_access_flags",
        "ibv_qp_attr_mask",
        "ibv_qp_init_attr_mask",
        "ibv_qp_init_attr_ex",
        "ibv_qp_create_send_ops_flags",
        "ibv_port_cap_flags",
        "ibv_td_init_attr",
        "ibv_parent_domain_init_attr",
        "ibv_context",
        "ibv_dm",
    ],
    imports: &["pub use libc::{pthread_cond_t, pthread_mutex_t, timespec};"],
    recursive: true,
};

const MLX5: Unit = Unit {
    file: "mlx5.rs",
    header: "infiniband/mlx5dv.h",
    library: "Mlx5",
    functions: &["mlx5dv_is_supported", "mlx5dv_init_obj", "mlx5dv_create_qp", "mlx5dv_get_clock_info"],
    types: &[
        "mlx5dv_clock_info",
        "mlx5dv_qp",
        "mlx5dv_qp__.*",
        "mlx5dv_qp_comp_mask",
        "mlx5dv_cq",
        "mlx5dv_srq",
        "mlx5dv_rwq",
        "mlx5dv_dm",
        "mlx5dv_ah",
        "mlx5dv_pd",
        "mlx5dv_obj",
        "mlx5dv_obj__.*",
        "mlx5dv_obj_type",
        "mlx5dv_qp_init_attr",
        "mlx5dv_qp_init_attr__.*",
        "mlx5dv_qp_init_attr_mask",
        "mlx5dv_qp_create_flags",
        "mlx5dv_dc_init_attr",
        "mlx5dv_dc_init_attr__.*",
        "mlx5dv_dci_streams",
        "mlx5dv_dc_type",
    ],
    imports: &[
        "use super::ibverbs::*;",
        "use libc::off_t;",
        "/// Address vector; `mlx5-layout` describes its bytes.",
        "pub type mlx5_wqe_av = [u8; 48];",
    ],
    recursive: false,
};

impl Unit {
    /// The part of a generated file with the signatures of the library's functions.
    fn functions_of<'t>(&self, text: &'t str) -> &'t str {
        text.find(&format!("pub struct {} {{", self.library)).map_or("", |start| &text[start..])
    }
}

fn main() -> Result<ExitCode> {
    let mut check = false;
    let mut include = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--check" => check = true,
            "--include" => include = Some(PathBuf::from(args.next().context("--include needs a directory")?)),
            other => bail!("unknown argument {other}; usage: verbs-generate [--check] [--include DIR]"),
        }
    }
    let output = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(OUTPUT);
    let version = match &include {
        Some(directory) => format!("headers in {}", directory.display()),
        None => header_version()?,
    };
    let mut stale = Vec::new();
    for unit in [IBVERBS, MLX5] {
        let path = output.join(unit.file);
        let text = generate(&unit, &version, include.as_deref())?;
        if !check {
            std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
            println!("wrote {}", path.display());
            continue;
        }
        let committed =
            std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        if !committed.contains(&version_line(&version)) {
            let same = unit.functions_of(&committed) == unit.functions_of(&text);
            println!(
                "{}: of other headers than {version}; its functions are {}",
                unit.file,
                if same { "the same" } else { "others" }
            );
            if !same {
                stale.push(path.display().to_string());
            }
        } else if committed != text {
            stale.push(path.display().to_string());
        } else {
            println!("{} is current ({version})", unit.file);
        }
    }
    if stale.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("not what the headers give: {}; run `cargo run -p verbs-generate`", stale.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Version of the installed headers, as pkg-config tells it: 1.14.44.0 for rdma-core 44.
fn header_version() -> Result<String> {
    let output = Command::new("pkg-config").args(["--modversion", "libibverbs"]).output();
    let output = output.context("running pkg-config (Debian: apt-get install pkg-config libibverbs-dev)")?;
    if !output.status.success() {
        bail!("pkg-config does not know libibverbs; Debian and Ubuntu: apt-get install libibverbs-dev");
    }
    Ok(format!("libibverbs {}", String::from_utf8(output.stdout)?.trim()))
}

fn version_line(version: &str) -> String {
    format!("//! From `{version}` by bindgen 0.73.2.")
}

fn generate(unit: &Unit, version: &str, include: Option<&Path>) -> Result<String> {
    let mut builder = bindgen::builder()
        .header_contents("wrapper.h", &format!("#include <{}>\n", unit.header))
        .dynamic_library_name(unit.library)
        // A missing function is an error value of that function, not of the library: rdma-core 39 lacks some.
        .dynamic_link_require_all(false)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(true)
        .generate_comments(false)
        .merge_extern_blocks(true)
        .wrap_unsafe_ops(true)
        .allowlist_recursively(unit.recursive)
        // glibc's own layout is libc's business.
        .blocklist_type("pthread_.*|__pthread_.*|__atomic_wide_counter.*|timespec|__time_t|__syscall_slong_t")
        .formatter(bindgen::Formatter::Prettyplease)
        .raw_line(format!(
            "//! Declarations of `{}` and the functions of its library, as bindgen reads them.",
            unit.header
        ))
        .raw_line("//!")
        .raw_line(version_line(version))
        .raw_line("//! Generated by `cargo run -p verbs-generate`; do not edit.");
    if let Some(directory) = include {
        builder = builder.clang_arg(format!("-I{}", directory.display()));
    }
    for line in unit.imports {
        builder = builder.raw_line(*line);
    }
    for name in unit.functions {
        builder = builder.allowlist_function(format!("^{name}$"));
    }
    for name in unit.types {
        builder = builder.allowlist_type(format!("^{name}$"));
    }
    let bindings = builder.generate().with_context(|| format!("reading {} with libclang", unit.header))?;
    Ok(bindings.to_string())
}
