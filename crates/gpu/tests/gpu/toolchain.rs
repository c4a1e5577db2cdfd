//! Compiler and linker without a GPU: three architectures, three forms, and what each says when it refuses.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use gpu::cache::{Cache, Origin};
use gpu::image::{self, ImageError};
use gpu::{Arch, BuildError, Compiler, Form, ImageBuilder, Linker, Toolkit, Unit};
use measure::need;

const HEADER: &str = "typedef unsigned int uint32_t;\nstruct segment { uint32_t qpn, imm; };\n\
    static __device__ uint32_t swap(uint32_t x) { return __byte_perm(x, 0, 0x0123); }\n";
const WORK: &str = "#include \"segment.h\"\nextern \"C\" __device__ uint32_t scale(uint32_t x);\n\
    extern \"C\" __global__ void work(segment *s) { s->qpn = swap(scale(s->imm)); }\n";
const SCALE: &str =
    "#include \"segment.h\"\nextern \"C\" __device__ uint32_t scale(uint32_t x) { return 3 * x + 1; }\n";

const ARCHS: [Arch; 3] = [Arch::sm(80), Arch::sm(90), Arch::sm(100)];

fn work() -> Unit {
    Unit::new("work.cu", WORK).header("segment.h", HEADER)
}

/// A graph launch, a call across units, a header in memory.
fn units() -> [Unit; 3] {
    [gpu::relaunch_unit(), work(), Unit::new("scale.cu", SCALE).header("segment.h", HEADER)]
}

fn builder(toolkit: Toolkit) -> ImageBuilder {
    ImageBuilder::new(toolkit, Cache::off())
}

#[test]
fn every_form_links_for_every_architecture_and_leaves_only_what_the_driver_supplies() {
    let builder = builder(need!(Toolkit::find(None), toolkit, "a CUDA toolkit"));
    for arch in ARCHS {
        for form in [Form::Cubin, Form::Ptx] {
            let since = Instant::now();
            let image = builder
                .image(&units(), arch, form)
                .unwrap_or_else(|error| panic!("{arch} {form:?}: {error}"));
            println!(
                "TABLE {arch:7} {form:5?} image {:6} bytes, {:4} ms, undefined {:?}",
                image.bytes.len(),
                since.elapsed().as_millis(),
                image.facts.undefined
            );
            for name in ["doorbell_relaunch", "work"] {
                assert!(image.facts.functions.contains(name), "{arch} {form:?}: {:?}", image.facts);
            }
            // Linking says nothing about it: that it is still there is what the driver resolves.
            assert!(image.facts.undefined.contains("cudaGraphLaunch"), "{arch} {form:?}: {:?}", image.facts);
        }
    }
}

#[test]
fn kernels_of_the_tests_that_need_a_gpu_link_for_every_architecture() {
    let builder = builder(need!(Toolkit::find(None), toolkit, "a CUDA toolkit"));
    for arch in ARCHS {
        let again = builder.image(&[gpu::again_unit()], arch, Form::Cubin).unwrap();
        assert!(again.facts.undefined.contains("cudaGraphSetConditional"), "{arch}: {:?}", again.facts);
        let image = builder.image(&crate::bench::units(), arch, Form::Cubin).unwrap();
        for name in ["add", "spin", "pass_time", "ring", "doorbell_relaunch"] {
            assert!(image.facts.functions.contains(name), "{arch}: {name} is not in {:?}", image.facts);
        }
    }
}

#[test]
fn assembly_is_text_for_its_architecture() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let compiler = Compiler::load(&toolkit).unwrap();
    for arch in ARCHS {
        let compiled = compiler.compile(&work(), arch, Form::Ptx).unwrap();
        let text = String::from_utf8(compiled.bytes).unwrap();
        assert!(text.contains(&format!(".target {arch}")) && text.contains("prmt.b32"), "{text}");
    }
}

#[test]
fn an_error_in_the_source_names_unit_line_and_target() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let compiler = Compiler::load(&toolkit).unwrap();
    let wrong =
        Unit::new("ring.cu", "#include \"segment.h\"\nextern \"C\" __global__ void f() { nonsense(); }\n");
    for (unit, words) in [
        (wrong.clone().header("segment.h", HEADER), &["ring.cu(2)", "nonsense"][..]),
        (wrong, &["ring.cu(1)", "segment.h"]),
        (work().flag("--no-such-option"), &["invalid option", "no-such-option"]),
        (Unit::new("none.cu", "int x = __LINE__ +;"), &["none.cu(1)"]),
    ] {
        let error = compiler.compile(&unit, Arch::sm(90), Form::Cubin).unwrap_err().to_string();
        let start = format!("compiling {} for sm_90: ", unit.name);
        assert!(
            error.starts_with(&start) && words.iter().all(|word| error.contains(word)),
            "{words:?}: {error}"
        );
    }
    let error = compiler.compile(&work(), Arch::sm(35), Form::Cubin).unwrap_err().to_string();
    assert!(error.contains("invalid option") && error.contains("sm_35"), "{error}");
}

#[test]
fn a_function_that_no_unit_defines_is_named_by_the_linker() {
    let builder = builder(need!(Toolkit::find(None), toolkit, "a CUDA toolkit"));
    for form in [Form::Cubin, Form::Ptx] {
        let error = builder.image(&[work()], Arch::sm(90), form).unwrap_err();
        assert!(matches!(error, BuildError::Link { .. }), "{error}");
        assert!(error.to_string().contains("scale"), "{form:?}: {error}");
    }
}

#[test]
fn the_linker_reads_nothing_behind_the_end_of_a_text() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let text = "extern \"C\" __global__ void alone(int *at) { *at = 1; }\n";
    let unit = Unit::new("alone.cu", text);
    let mut compiled = Compiler::load(&toolkit).unwrap().compile(&unit, Arch::sm(90), Form::Ptx).unwrap();
    // What lay in that memory before.
    let len = compiled.bytes.len();
    compiled.bytes.extend([0xff; 64]);
    compiled.bytes.truncate(len);
    let linked = Linker::load(&toolkit).unwrap().link(&[compiled], Arch::sm(90));
    assert!(linked.is_ok(), "{}", linked.unwrap_err());
}

#[test]
fn a_kernel_that_launches_kernels_is_refused_by_what_it_leaves_undefined() {
    let builder = builder(need!(Toolkit::find(None), toolkit, "a CUDA toolkit"));
    let text = "__global__ void child() {}\nextern \"C\" __global__ void parent() { child<<<1, 1>>>(); }\n";
    // It links, and the driver would load it; no graph that the GPU launches may hold it.
    let error = builder.image(&[Unit::new("parent.cu", text)], Arch::sm(90), Form::Cubin).unwrap_err();
    assert!(matches!(error, BuildError::Image { .. }), "{error}");
    assert!(error.to_string().contains("parent.cu") && error.to_string().contains("LaunchDevice"), "{error}");
}

#[test]
fn what_was_not_linked_is_refused_as_an_image() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let compiled = Compiler::load(&toolkit).unwrap().compile(&work(), Arch::sm(90), Form::Cubin).unwrap();
    assert_eq!(image::check(&compiled.bytes), Err(ImageError::Type(1)));
}

#[test]
fn a_real_image_that_is_cut_or_changed_anywhere_is_read_or_refused() {
    let builder = builder(need!(Toolkit::find(None), toolkit, "a CUDA toolkit"));
    let whole = builder.image(&units(), Arch::sm(90), Form::Cubin).unwrap().bytes;
    let (mut refused, mut read) = (0, 0);
    let step = (whole.len() / 4000).max(1);
    for at in (0..whole.len()).step_by(step) {
        refused += usize::from(image::check(&whole[..at]).is_err());
        let mut changed = whole.clone();
        changed[at] = !changed[at];
        read += usize::from(image::check(&changed).is_ok());
    }
    assert!(refused > 3000 && read > 1000, "{refused} refused, {read} read");
}

#[test]
fn a_second_start_reads_its_image_from_disk_and_loads_no_compiler() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let folder = std::env::temp_dir().join(format!("gpu-start-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let start = || ImageBuilder::new(toolkit.clone(), Cache::at(&folder).voice(|_| ()));
    let times = [Origin::Built, Origin::Cached].map(|origin| {
        let since = Instant::now();
        let image = start().image(&units(), Arch::sm(90), Form::Cubin).unwrap();
        assert_eq!(image.origin, origin);
        since.elapsed()
    });
    println!(
        "TABLE sm_90 three units: built in {} ms, read in {} ms",
        times[0].as_millis(),
        times[1].as_millis()
    );
    // The same toolkit in another place is another: without its libraries only a cache entry could serve.
    let gone = Toolkit { nvrtc: "/no/such/libnvrtc.so.13".into(), ..toolkit.clone() };
    let error =
        ImageBuilder::new(gone, Cache::at(&folder)).image(&units(), Arch::sm(90), Form::Cubin).unwrap_err();
    fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(&error, BuildError::Load { library, .. } if library.contains("/no/such")), "{error}");
}

#[test]
fn libraries_that_are_something_else_are_errors_that_name_them() {
    let folder = std::env::temp_dir().join(format!("gpu-libraries-{}", std::process::id()));
    fs::create_dir_all(folder.join("lib")).unwrap();
    let place = |name: &str| folder.join("lib").join(name);
    let names = ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvJitLink.so.13", "libcudadevrt.a"];
    names.iter().for_each(|name| fs::write(place(name), "no library").unwrap());
    let toolkit = Toolkit::find_in(std::slice::from_ref(&folder)).unwrap();
    let error = builder(toolkit.clone()).image(&units(), Arch::sm(90), Form::Cubin).unwrap_err().to_string();
    assert!(error.contains("cannot load") && error.contains("libnvrtc-builtins.so.13.0"), "{error}");
    // A library of the system in their place loads, and has none of their functions.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc.so"));
    let libc = PathBuf::from(libc.unwrap());
    let other = Toolkit { nvrtc: libc.clone(), builtins: libc.clone(), jit_link: libc, ..toolkit };
    let error = Compiler::load(&other).unwrap_err().to_string();
    assert!(error.contains("has no nvrtcVersion"), "{error}");
    let error = gpu::Linker::load(&other).unwrap_err().to_string();
    assert!(error.contains("has no __nvJitLinkCreate_12_0"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}
