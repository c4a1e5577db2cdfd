//! Compiles the C routines for the host, and the kernels for the host twin; nothing but compilers is needed (no rdma-core
//! headers, no CUDA, INV-8). Without a C++ compiler there are no kernels, and whoever asks for one is told so.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Blocks of a kernel with `__shared__` variables that can run at a time: the source is compiled once for each.
const BLOCKS: usize = 4;

/// Kernels compiled once more with a defect, which tests see found, or with a clock at which they stop them: source, name of the defect,
/// what it defines.
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
    ("post", "short-index", "DEFECT_SHORT_INDEX"),
    ("post", "no-space-check", "DEFECT_NO_SPACE_CHECK"),
];

fn main() {
    for path in ["include", "src/shim.c", "src/baseline.c", "twin", "kernels"] {
        println!("cargo:rerun-if-changed={path}");
    }
    cc::Build::new()
        .file("src/shim.c")
        .file("src/baseline.c")
        .include("include")
        .std("c11")
        // The routines are measured: an unoptimised build would measure the compiler.
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .flag("-pedantic")
        .compile("rdma_shim");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut c = cc::Build::new();
    c.file("twin/jump.c").std("gnu11").warnings(true).extra_warnings(true);
    if has_cpp(&out) {
        compile_kernels(&out);
    } else {
        println!("cargo:warning=no C++ compiler: the host twin will have no kernels");
        // A file that is never there: the next build looks again.
        println!("cargo:rerun-if-changed=twin/no-compiler-was-found");
        c.file("twin/absent.c");
    }
    c.compile("rdma_shim_twin_entry");
}

fn cpp() -> cc::Build {
    let mut build = cc::Build::new();
    // Kernels throw nothing and use no library, so that no program of ours asks for one.
    build.cpp(true).cpp_link_stdlib(None).std("c++17").flag("-fno-exceptions").flag("-fno-rtti");
    build.flag("-fno-threadsafe-statics").define("DB_TWIN", None).opt_level(1);
    build.include("include").include("twin").include("kernels").warnings(true).extra_warnings(true);
    build
}

fn has_cpp(out: &Path) -> bool {
    let probe = write(out, "probe.cpp", "int db_twin_probe;\n");
    cpp().cargo_metadata(false).cargo_warnings(false).file(probe).try_compile("rdma_shim_probe").is_ok()
}

fn write(out: &Path, name: &str, text: &str) -> PathBuf {
    let path = out.join(name);
    fs::write(&path, text).unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
    path
}

fn compile_kernels(out: &Path) {
    let mut sources: Vec<String> = fs::read_dir("kernels")
        .expect("the crate has a folder of kernels")
        .filter_map(|entry| {
            entry.ok()?.file_name().into_string().ok()?.strip_suffix(".cu").map(str::to_owned)
        })
        .collect();
    sources.sort();
    let mut build = cpp();
    let mut kernels = Vec::new();
    for source in &sources {
        let unit = Unit::read(source, "");
        build.file(write(out, &format!("{}.cpp", unit.symbol), &unit.text("")));
        kernels.extend(unit.tables());
    }
    build.file(write(out, "kernels.cpp", &table("kernel", "kernels", &kernels, true)));
    build.compile("rdma_shim_kernels");

    let mut planted = Vec::new();
    for &(source, defect, defines) in PLANTED {
        let unit = Unit::read(source, defect);
        let file = write(out, &format!("{}.cpp", unit.symbol), &unit.text(defines));
        cpp().file(file).compile(&format!("rdma_shim_{}", unit.symbol));
        planted.extend(unit.tables());
    }
    let table = write(out, "planted.cpp", &table("planted", "planted", &planted, false));
    cpp().file(table).compile("rdma_shim_planted");
}

/// One source with or without a defect.
struct Unit {
    source: String,
    /// What its names end with.
    symbol: String,
    defect: String,
    includes: Vec<String>,
    kernels: Vec<String>,
    blocks: usize,
}

impl Unit {
    fn read(source: &str, defect: &str) -> Unit {
        let path = format!("kernels/{source}.cu");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("reading {path}: {error}"));
        let code = || text.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
        // Outside the namespaces of the blocks, where their guards keep them out.
        let includes = code().filter(|line| line.starts_with("#include")).map(str::to_owned).collect();
        let kernels: Vec<String> = code()
            .filter_map(|line| line.split_once("__global__ void "))
            .filter_map(|(_, rest)| rest.split_once('(').map(|(name, _)| name.to_owned()))
            .collect();
        assert!(!kernels.is_empty(), "{path} has no line with `__global__ void NAME(`");
        let blocks = if code().any(|line| line.contains("__shared__")) { BLOCKS } else { 1 };
        let symbol = format!("{source}_{defect}").replace('-', "_");
        Unit { source: source.to_owned(), symbol, defect: defect.to_owned(), includes, kernels, blocks }
    }

    /// The source once for each block, each kernel under a name of its own, and its table.
    fn text(&self, defines: &str) -> String {
        let Unit { source, symbol, .. } = self;
        let mut text = format!("/* Made by build.rs from kernels/{source}.cu. */\n");
        if !defines.is_empty() {
            let _ = writeln!(text, "#define {defines}");
        }
        let _ = writeln!(text, "#include \"twin.h\"\n{}", self.includes.join("\n"));
        for block in 0..self.blocks {
            let _ = writeln!(text, "namespace db_block_{block} {{");
            for name in &self.kernels {
                let _ = writeln!(text, "#define {name} {name}_{symbol}_{block}");
            }
            let _ = writeln!(text, "#include \"{source}.cu\"");
            for name in &self.kernels {
                let _ = writeln!(text, "#undef {name}");
            }
            let _ = writeln!(text, "}}");
        }
        for (name, table) in self.kernels.iter().zip(self.tables()) {
            let entry = |block| format!("db_twin_entry<db_block_{block}::{name}_{symbol}_{block}>");
            let runs: Vec<String> = (0..self.blocks).map(|block| format!("{}::run", entry(block))).collect();
            let plus = if self.defect.is_empty() { "" } else { "+" };
            let _ = writeln!(
                text,
                "static void (*const runs_{table}[])(void **) = {{{}}};\n\
                 extern const struct db_twin_kernel {table};\n\
                 const struct db_twin_kernel {table} = {{\"{name}{plus}{}\", runs_{table}, {}, {first}::parameters, \
                 {first}::sizes}};",
                runs.join(", "),
                self.defect,
                self.blocks,
                first = entry(0),
            );
        }
        text
    }

    fn tables(&self) -> Vec<String> {
        self.kernels.iter().map(|name| format!("db_twin_{name}_{}", self.symbol)).collect()
    }
}

/// The list that `src/twin/kernels.rs` reads.
fn table(count: &str, list: &str, tables: &[String], has_compiler: bool) -> String {
    let mut text = String::from("#include \"twin.h\"\n");
    for table in tables {
        let _ = writeln!(text, "extern const struct db_twin_kernel {table};");
    }
    let addresses: Vec<String> = tables.iter().map(|table| format!("&{table}")).collect();
    let _ = writeln!(
        text,
        "extern \"C\" {{\n\
         extern const db_twin_u32 db_twin_{count}_count;\n\
         const db_twin_u32 db_twin_{count}_count = {};\n\
         extern const struct db_twin_kernel *const db_twin_{list}[];\n\
         const struct db_twin_kernel *const db_twin_{list}[] = {{{}}};",
        tables.len(),
        addresses.join(", ")
    );
    if has_compiler {
        let _ = writeln!(
            text,
            "extern const db_twin_u32 db_twin_has_compiler;\nconst db_twin_u32 db_twin_has_compiler = 1;"
        );
    }
    text.push_str("}\n");
    text
}
