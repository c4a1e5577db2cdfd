//! Compiles CUDA sources with the host's C++ compiler, so that `host-twin` can run their kernels: for build scripts.
//!
//! ```no_run
//! // build.rs; in the crate itself, `host_twin::include_kernels!("kernels");` makes the table `KERNELS`.
//! host_twin_build::Kernels::new("kernels").include("include").folder("kernels").compile();
//! ```
//!
//! A kernel is a line `extern "C" __global__ void NAME(`. `twin.h` stands in front of each source and has CUDA's names.
//! Where the machine has no C++ compiler the table is empty, and looking for a kernel says so.

#![forbid(unsafe_code)]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Blocks of a kernel with `__shared__` variables that can run at a time: the source is compiled once for each.
const BLOCKS: usize = 4;

/// The headers of the twin.
const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../include");

/// A table of kernels to compile.
#[derive(Debug)]
pub struct Kernels {
    name: String,
    sources: Vec<Source>,
    includes: Vec<PathBuf>,
}

#[derive(Debug)]
struct Source {
    path: PathBuf,
    defect: String,
    define: String,
}

impl Kernels {
    /// An empty table of that name, in lower case: `host_twin::include_kernels!` takes the same.
    pub fn new(name: &str) -> Kernels {
        println!("cargo:rerun-if-changed={HEADERS}");
        Kernels { name: name.to_owned(), sources: Vec::new(), includes: vec![HEADERS.into()] }
    }

    /// Kernels of one source.
    pub fn source(self, path: impl Into<PathBuf>) -> Kernels {
        self.planted(path, "", "")
    }

    /// Kernels of every `.cu` file of a folder, whose headers they may include.
    pub fn folder(self, path: impl AsRef<Path>) -> Kernels {
        let path = path.as_ref();
        let entries =
            fs::read_dir(path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()));
        let mut sources: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        sources.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
        sources.sort();
        sources.into_iter().fold(self.include(path), Kernels::source)
    }

    /// Kernels of one source compiled with `define`, for tests that see a defect found: each is called `NAME+DEFECT`.
    pub fn planted(mut self, path: impl Into<PathBuf>, defect: &str, define: &str) -> Kernels {
        let source = Source { path: path.into(), defect: defect.to_owned(), define: define.to_owned() };
        println!("cargo:rerun-if-changed={}", source.path.display());
        self.sources.push(source);
        self
    }

    /// A folder of headers, before those of the twin.
    pub fn include(mut self, path: impl Into<PathBuf>) -> Kernels {
        let path = path.into();
        println!("cargo:rerun-if-changed={}", path.display());
        self.includes.insert(0, path);
        self
    }

    /// Compiles all of them, tells cargo to link them, and writes the table.
    pub fn compile(self) {
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        let package = env::var("CARGO_PKG_NAME").expect("cargo sets the package's name");
        let symbol = format!("host_twin_{}_{}", package.replace('-', "_"), self.name);
        let has_compiler = self.has_compiler(&out);
        write(&out, &format!("{}.rs", self.name), &rust_table(&self.name, has_compiler.then_some(&symbol)));
        if !has_compiler {
            println!("cargo:warning=no C++ compiler: the host twin will have no {}", self.name);
            // A file that is never there: the next build looks again.
            println!("cargo:rerun-if-changed=no-compiler-was-found");
            return;
        }
        let mut build = self.cpp();
        let mut tables = Vec::new();
        for source in &self.sources {
            let unit = Unit::read(source, &symbol);
            build.file(write(&out, &format!("{}.cpp", unit.symbol), &unit.text()));
            tables.extend(unit.tables());
        }
        build.file(write(&out, &format!("{symbol}.cpp"), &table(&symbol, &tables)));
        build.compile(&symbol);
    }

    fn cpp(&self) -> cc::Build {
        let mut build = cc::Build::new();
        // Kernels throw nothing and use no library, so that no program asks for one.
        build.cpp(true).cpp_link_stdlib(None).std("c++17").flag("-fno-exceptions").flag("-fno-rtti");
        build.flag("-fno-threadsafe-statics").define("DB_TWIN", None).opt_level(1);
        build.includes(&self.includes).warnings(true).extra_warnings(true);
        build
    }

    fn has_compiler(&self, out: &Path) -> bool {
        let probe = write(out, "probe.cpp", "int db_twin_probe;\n");
        let mut build = self.cpp();
        build.cargo_metadata(false).cargo_warnings(false).file(probe).try_compile("host_twin_probe").is_ok()
    }
}

fn write(out: &Path, name: &str, text: &str) -> PathBuf {
    let path = out.join(name);
    fs::write(&path, text).unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
    path
}

/// One source, with or without a defect.
struct Unit<'a> {
    source: &'a Source,
    path: PathBuf,
    /// What its names end with.
    symbol: String,
    includes: Vec<String>,
    kernels: Vec<String>,
    blocks: usize,
}

impl Unit<'_> {
    fn read<'a>(source: &'a Source, table: &str) -> Unit<'a> {
        let path = fs::canonicalize(&source.path);
        let path = path.unwrap_or_else(|error| panic!("looking for {}: {error}", source.path.display()));
        let text =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()));
        let code = || text.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
        // Outside the namespaces of the blocks, where their guards keep them out.
        let includes = code().filter(|line| line.starts_with("#include")).map(str::to_owned).collect();
        let kernels: Vec<String> = code()
            .filter_map(|line| line.split_once("__global__ void "))
            .filter_map(|(_, rest)| rest.split_once('(').map(|(name, _)| name.to_owned()))
            .collect();
        assert!(!kernels.is_empty(), "{} has no line with `__global__ void NAME(`", path.display());
        let blocks = if code().any(|line| line.contains("__shared__")) { BLOCKS } else { 1 };
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let symbol = format!("{table}_{stem}_{}", source.defect).replace('-', "_");
        Unit { source, path, symbol, includes, kernels, blocks }
    }

    /// The source once for each block, each kernel under a name of its own, and its table.
    fn text(&self) -> String {
        let Unit { source, symbol, .. } = self;
        let mut text = format!("/* Made by a build script from {}. */\n", self.path.display());
        if !source.define.is_empty() {
            let _ = writeln!(text, "#define {}", source.define);
        }
        let _ = writeln!(text, "#include \"twin.h\"\n{}", self.includes.join("\n"));
        for block in 0..self.blocks {
            let _ = writeln!(text, "namespace db_block_{block} {{");
            for name in &self.kernels {
                let _ = writeln!(text, "#define {name} {name}_{symbol}_{block}");
            }
            let _ = writeln!(text, "#include \"{}\"", self.path.display());
            for name in &self.kernels {
                let _ = writeln!(text, "#undef {name}");
            }
            let _ = writeln!(text, "}}");
        }
        for (name, table) in self.kernels.iter().zip(self.tables()) {
            let entry = |block| format!("db_twin_entry<db_block_{block}::{name}_{symbol}_{block}>");
            let runs: Vec<String> = (0..self.blocks).map(|block| format!("{}::run", entry(block))).collect();
            let plus = if source.defect.is_empty() { "" } else { "+" };
            let _ = writeln!(
                text,
                "static void (*const runs_{table}[])(void **) = {{{}}};\n\
                 extern const struct db_twin_kernel {table};\n\
                 const struct db_twin_kernel {table} = {{\"{name}{plus}{}\", runs_{table}, {}, {first}::parameters, \
                 {first}::sizes}};",
                runs.join(", "),
                source.defect,
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

/// The table as `crates/host-twin/src/kernels.rs` reads it.
fn table(symbol: &str, tables: &[String]) -> String {
    let mut text = String::from("#include \"twin.h\"\n");
    for table in tables {
        let _ = writeln!(text, "extern const struct db_twin_kernel {table};");
    }
    let addresses: Vec<String> = tables.iter().map(|table| format!("&{table}")).collect();
    let _ = writeln!(
        text,
        "static const struct db_twin_kernel *const all[] = {{{}}};\n\
         extern \"C\" {{\n\
         extern const struct db_twin_table {symbol};\n\
         const struct db_twin_table {symbol} = {{{}, all}};\n\
         }}",
        addresses.join(", "),
        tables.len(),
    );
    text
}

/// What `host_twin::include_kernels!` includes.
fn rust_table(name: &str, symbol: Option<&String>) -> String {
    let constant = name.to_uppercase();
    match symbol {
        None => format!(
            "/// None: this build found no C++ compiler.\npub static {constant}: host_twin::Kernels = host_twin::Kernels::none();\n"
        ),
        Some(symbol) => format!(
            "unsafe extern \"C\" {{\n    static {symbol}: host_twin::Table;\n}}\n\
             /// The kernels that this crate's build script compiled for the host twin.\n\
             pub static {constant}: host_twin::Kernels = {{\n\
             \x20   // SAFETY: the build script's helper wrote the table.\n\
             \x20   unsafe {{ host_twin::Kernels::of(&raw const {symbol}) }}\n}};\n"
        ),
    }
}
