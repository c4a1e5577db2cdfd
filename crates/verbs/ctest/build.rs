//! Makes the C side of the comparisons, when the system has rdma-core's headers; else the tests skip aloud.
//!
//! `VERBS_CTEST_INCLUDE` names another include directory, to compare with another version's headers.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

/// The generated files of `verbs`, and where each one's library functions begin.
const BINDINGS: [(&str, &str); 2] = [("ibverbs", "pub struct Ibverbs {"), ("mlx5", "pub struct Mlx5 {")];

/// Stand-ins for what the files import: ctest expands its input alone, and needs only a type's size.
const IMPORTED: &str = "
pub struct pthread_mutex_t([u64; 5]);
pub struct pthread_cond_t([u64; 6]);
pub type off_t = i64;
";

/// Structs that have grown at their end since rdma-core 44, with their size there; left out if the headers'
/// are larger. libibverbs fills the first only as far as it went then, and libmlx5 reads the members of the
/// second that its caller names.
const GROWN: [(&str, usize); 2] = [("ibv_port_attr", 52), ("mlx5dv_obj", 112)];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rustc-check-cfg=cfg(headers)");
    println!("cargo::rerun-if-env-changed=VERBS_CTEST_INCLUDE");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=/usr/include/infiniband");
    let include = env::var_os("VERBS_CTEST_INCLUDE").map(PathBuf::from);
    if !compiles(
        "#include <infiniband/mlx5dv.h>\nint newest = MLX5_OPCODE_FLOW_TBL_ACCESS;\n",
        include.as_deref(),
    )? {
        return Ok(());
    }
    println!("cargo::rustc-cfg=headers");
    cc::Build::new().includes(&include).file("src/headers.c").warnings(true).try_compile("verbs_headers")?;
    compare_bindings(include.as_deref())
}

/// Whether a C text compiles with the headers.
fn compiles(text: &str, include: Option<&Path>) -> Result<bool, Box<dyn Error>> {
    let file = PathBuf::from(env::var("OUT_DIR")?).join("probe.c");
    std::fs::write(&file, text)?;
    let mut build = cc::Build::new();
    build.includes(include).file(&file).cargo_metadata(false).cargo_warnings(false);
    Ok(build.try_compile("probe").is_ok())
}

/// Lets ctest write a C and a Rust file that compare all structs, unions, aliases and constants generated.
fn compare_bindings(include: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut types = String::from(IMPORTED);
    for (name, functions) in BINDINGS {
        let source = format!("../src/sys/generated/{name}.rs");
        println!("cargo::rerun-if-changed={source}");
        let text = std::fs::read_to_string(&source)?;
        let end = text.find(functions).ok_or_else(|| format!("{source} has no {functions:?}"))?;
        for line in text[..end].lines().filter(|line| !line.contains("use ") && !line.starts_with("//!")) {
            types.push_str(line);
            types.push('\n');
        }
    }
    let input = out.join("types.rs");
    std::fs::write(&input, types)?;

    let mut left_out = vec!["pthread_mutex_t", "pthread_cond_t"];
    for (name, bytes) in GROWN {
        let larger = format!(
            "#include <infiniband/mlx5dv.h>\n_Static_assert(sizeof(struct {name}) > {bytes}, \"\");\n"
        );
        if compiles(&larger, include)? {
            println!("cargo::warning=struct {name} is larger here than in rdma-core 44: not compared");
            left_out.push(name);
        }
    }
    let mut test = ctest::TestGenerator::new();
    if let Some(directory) = include {
        test.include(directory);
    }
    // bindgen's names for what has none in C, and its own helpers.
    let unnamed = |name: &str| name.contains("bindgen") || name.contains("Bindgen") || name.starts_with('_');
    let skipped = move |name: &str| unnamed(name) || left_out.contains(&name);
    let skipped_union = skipped.clone();
    test.header("infiniband/mlx5dv.h")
        .edition(2024)
        .flag("-Wno-incompatible-pointer-types")
        .rename_struct_ty(|name| Some(format!("struct {name}")))
        .rename_union_ty(|name| Some(format!("union {name}")))
        // A keyword of Rust carries an underscore there: `in_`, `type_`.
        .rename_struct_field(|_, field| field.ident().strip_suffix('_').map(str::to_string))
        // Its bytes are compared in `layouts`.
        .skip_struct_field_type(|_, field| field.ident() == "av")
        .alias_is_c_enum(|name| {
            (name.starts_with("ibv_") || name.starts_with("mlx5dv_")) && name != "mlx5_wqe_av"
        })
        // bindgen's own layout tests.
        .skip_const(|constant| constant.ident() == "_")
        .skip_alias(move |alias| unnamed(alias.ident()) || alias.ident() == "mlx5_wqe_av")
        .skip_struct(move |item| skipped(item.ident()))
        .skip_union(move |item| skipped_union(item.ident()))
        .skip_struct_field(move |_, field| unnamed(field.ident()))
        .skip_union_field(move |_, field| unnamed(field.ident()));
    ctest::generate_test(&mut test, &input, out.join("bindings.rs"))?;
    Ok(())
}
