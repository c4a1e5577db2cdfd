//! Compiles CUDA sources with the host's C++ compiler, so that `host-twin` runs them: for build scripts.
//!
//! ```no_run
//! // build.rs; in the crate itself, `host_twin::include_kernels!("kernels");` makes the table `KERNELS`.
//! host_twin_build::Kernels::new("kernels").include("include").folder("kernels").compile();
//! ```
//!
//! A kernel is a function `__global__ void NAME(…)` that is no template. `twin.h` stands in front of each
//! source and has CUDA's names; `cuda_fp16.h` and `cooperative_groups.h` are the twin's own. `DB_TWIN` is
//! defined. Without a C++ compiler the table is empty, and looking up a kernel says so; so is a table for
//! tests in a release build.

#![forbid(unsafe_code)]

mod shared;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The headers of the twin.
const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../include");

/// A table of kernels to compile.
#[derive(Debug)]
pub struct Kernels {
    name: String,
    sources: Vec<Source>,
    includes: Vec<PathBuf>,
    is_for_tests: bool,
}

/// Why a table has no kernels.
const NO_COMPILER: &str = "this build found no C++ compiler; install g++ and build again";
const RELEASE: &str = "a release build has no kernels of tests; leave --release out";

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
        Kernels {
            name: name.to_owned(),
            sources: Vec::new(),
            includes: vec![HEADERS.into()],
            is_for_tests: false,
        }
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

    /// Kernels of one source compiled with `define` and unoptimised, for tests that find a defect; each is
    /// `NAME+DEFECT`.
    pub fn planted(mut self, path: impl Into<PathBuf>, defect: &str, define: &str) -> Kernels {
        let source = Source { path: path.into(), defect: defect.to_owned(), define: define.to_owned() };
        println!("cargo:rerun-if-changed={}", source.path.display());
        self.sources.push(source);
        self
    }

    /// Tests alone run them: a release build leaves them out.
    pub fn for_tests(mut self) -> Kernels {
        self.is_for_tests = true;
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
        let is_left_out = self.is_for_tests && env::var("PROFILE").is_ok_and(|profile| profile == "release");
        let has_compiler = is_left_out || self.has_compiler(&out);
        let kernels = match (is_left_out, has_compiler) {
            (true, _) => Err(RELEASE),
            (_, false) => Err(NO_COMPILER),
            _ => Ok(symbol.as_str()),
        };
        write(&out, &format!("{}.rs", self.name), &rust_table(&self.name, kernels));
        if is_left_out {
            return;
        }
        if !has_compiler {
            println!("cargo:warning=no C++ compiler: the host twin will have no {}", self.name);
            // A file that is never there: the next build looks again.
            println!("cargo:rerun-if-changed=no-compiler-was-found");
            return;
        }
        // Planted kernels, those without a defect included, run for moments. Most of the compiler's time
        // would go into their optimisation.
        let (mut build, mut planted) = (self.cpp(2), self.cpp(0));
        let mut tables = Vec::new();
        for source in &self.sources {
            let unit = Unit::read(source, &symbol);
            let build = if source.defect.is_empty() { &mut build } else { &mut planted };
            build.file(write(&out, &format!("{}.cpp", unit.symbol), &unit.text));
            tables.extend(unit.tables());
        }
        build.objects(planted.compile_intermediates());
        build.file(write(&out, &format!("{symbol}.cpp"), &table(&symbol, &tables)));
        build.compile(&symbol);
    }

    fn cpp(&self, level: u32) -> cc::Build {
        let mut build = cc::Build::new();
        // Kernels throw nothing and use no library, so that no program asks for one.
        build.cpp(true).cpp_link_stdlib(None).std("c++17").flag("-fno-exceptions").flag("-fno-rtti");
        build.flag("-fno-threadsafe-statics").define("DB_TWIN", None);
        // A frame touches each of its pages, so that one beyond a lane's stack meets the guard page.
        build.flag_if_supported("-fstack-clash-protection");
        // A product and a sum are rounded each, so that results do not depend on the machine.
        build.opt_level(level).flag("-ffp-contract=off");
        build.includes(&self.includes).warnings(true).extra_warnings(true);
        build
    }

    fn has_compiler(&self, out: &Path) -> bool {
        let probe = write(out, "probe.cpp", "int db_twin_probe;\n");
        let mut build = self.cpp(2);
        build.cargo_metadata(false).cargo_warnings(false).file(probe).try_compile("host_twin_probe").is_ok()
    }
}

fn write(out: &Path, name: &str, text: &str) -> PathBuf {
    let path = out.join(name);
    fs::write(&path, text).unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
    path
}

/// One source, with or without a defect, as it is compiled.
struct Unit {
    /// What its names end with.
    symbol: String,
    kernels: Vec<String>,
    text: String,
}

impl Unit {
    fn read(source: &Source, table: &str) -> Unit {
        let path = source.path.display();
        let found = fs::canonicalize(&source.path)
            .and_then(|path| fs::read_to_string(&path).map(|text| (path, text)));
        let (full, given) = found.unwrap_or_else(|error| panic!("reading {path}: {error}"));
        let kernels = kernels(&given);
        assert!(!kernels.is_empty(), "{path} has no `__global__ void NAME(`");
        let stem = full.file_stem().unwrap_or_default().to_string_lossy();
        let symbol = format!("{table}_{stem}_{}", source.defect).replace(['-', '.'], "_");
        let rewritten = shared::rewrite(&given).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut unit = Unit { symbol, kernels, text: String::new() };
        unit.text = unit.text(source, &full, &rewritten);
        unit
    }

    /// The source in a namespace of its own, each kernel under its own name, and their tables. Includes come
    /// before, so that their guards keep them out of the namespace.
    fn text(&self, source: &Source, path: &Path, rewritten: &str) -> String {
        let Unit { symbol, kernels, .. } = self;
        let mut text = String::new();
        if !source.define.is_empty() {
            let _ = writeln!(text, "#define {}", source.define);
        }
        let _ = writeln!(text, "#include \"twin.h\"");
        includes(rewritten).for_each(|line| text += &format!("{line}\n"));
        let _ = writeln!(text, "namespace {symbol} {{");
        kernels.iter().for_each(|name| text += &format!("#define {name} {name}_{symbol}\n"));
        let _ = writeln!(text, "#line 1 \"{}\"\n{rewritten}\n#line 1 \"{symbol}.cpp\"", path.display());
        kernels.iter().for_each(|name| text += &format!("#undef {name}\n"));
        let _ = writeln!(text, "}}");
        for (name, table) in kernels.iter().zip(self.tables()) {
            let plus = if source.defect.is_empty() { "" } else { "+" };
            let _ = writeln!(
                text,
                "typedef db_twin_entry<{symbol}::{name}_{symbol}> entry_{table};\n\
                 extern const struct db_twin_kernel {table};\n\
                 const struct db_twin_kernel {table} = {{\"{name}{plus}{}\", entry_{table}::run, \
                 entry_{table}::parameters, entry_{table}::sizes}};",
                source.defect,
            );
        }
        text
    }

    fn tables(&self) -> Vec<String> {
        self.kernels.iter().map(|name| format!("db_twin_{name}_{}", self.symbol)).collect()
    }
}

/// A source's includes but those within `#if`: the twin may be without their headers.
fn includes(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.lines().filter(move |line| {
        let directive = line.trim_start().strip_prefix('#').unwrap_or_default().trim_start();
        depth += i32::from(directive.starts_with("if")) - i32::from(directive.starts_with("endif"));
        depth == 0 && directive.starts_with("include")
    })
}

/// Names of a source's kernels; those of templates are left out.
fn kernels(text: &str) -> Vec<String> {
    let code = shared::blank(text);
    let mut names = Vec::new();
    for (at, _) in code.match_indices("__global__") {
        let statement = code[..at].rfind([';', '{', '}', '#']).map_or(0, |last| last + 1);
        let head = code[at + "__global__".len()..].replacen("__launch_bounds__", "", 1);
        // Behind `void` and what stands in the parentheses of launch bounds.
        let Some((_, head)) = head.split_once("void") else { continue };
        let head = match head.trim_start().strip_prefix('(') {
            Some(bounds) => bounds.split_once(')').map_or("", |(_, rest)| rest),
            None => head,
        };
        let name = head.split('(').next().unwrap_or_default().trim();
        if !code[statement..at].contains("template")
            && !name.is_empty()
            && !names.iter().any(|known| known == name)
        {
            names.push(name.to_owned());
        }
    }
    names
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
fn rust_table(name: &str, kernels: Result<&str, &str>) -> String {
    let constant = name.to_uppercase();
    match kernels {
        Err(reason) => format!(
            "/// None: {reason}.\npub static {constant}: host_twin::Kernels = host_twin::Kernels::none({reason:?});\n"
        ),
        Ok(symbol) => format!(
            "unsafe extern \"C\" {{\n    static {symbol}: host_twin::Table;\n}}\n\
             /// The kernels that this crate's build script compiled for the host twin.\n\
             pub static {constant}: host_twin::Kernels = {{\n\
             \x20   // SAFETY: the build script's helper wrote the table.\n\
             \x20   unsafe {{ host_twin::Kernels::of(&raw const {symbol}) }}\n}};\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_within_a_condition_stay_there() {
        let text = "#include <a>\n#ifndef DB_TWIN\n#if 1\n#include <b>\n#endif\n# include <c>\n#endif\n # include \"d.h\"\n";
        assert!(includes(text).eq(["#include <a>", " # include \"d.h\""]));
    }

    #[test]
    fn kernels_are_found_by_their_names_however_they_are_written() {
        let text = "// __global__ void comment(\nextern \"C\" __global__ void plain(int *a) {}\n\
            __global__ void __launch_bounds__(256) bounded(\n    float x) {}\n\
            __launch_bounds__(64, 2) __global__ void before() {}\n\
            template <int N> __global__ void generic(int *a) {}\n\
            __global__\nvoid split(int a);\n__global__ void split(int a) {}\n";
        assert_eq!(kernels(text), ["plain", "bounded", "before", "split"]);
    }
}
