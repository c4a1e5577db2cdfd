//! All test kernels through NVIDIA's compiler and linker, for two architectures or, in a full run, three; and
//! the order of fences and stores in the assembly of a doorbell. Needs a toolkit, no GPU.

use std::fs;
use std::path::Path;

use gpu::{Arch, Compiler, Form, Toolkit, Unit};
use measure::need;
use rdma_shim::device::unit;
use rdma_shim::testing::compile_and_link;

const ARCHS: [Arch; 3] = [Arch::sm(80), Arch::sm(90), Arch::sm(100)];

/// One thread posts a WRITE, or several, and rings; the order is a constant.
const RING: &str = r#"
#include "doorbell.h"
extern "C" __global__ void ring(struct db_sq *given, struct db_sge piece, db_u64 remote_addr, db_u32 rkey) {
    struct db_sq sq = *given;
    sq.order = ORDER;
    sq.doorbell = DB_DOORBELL_8_BYTES;
#ifdef POSTS
#pragma unroll
    for (int post = 1; post < POSTS; post++) {
        db_try_post_write(&sq, 7, piece, remote_addr, rkey, 0);
#ifdef DEFECT_A_DOORBELL_EACH
        db_ring(&sq);
#endif
    }
#endif
    db_try_post_write(&sq, 7, piece, remote_addr, rkey, DB_SEND_SIGNALED);
    db_ring(&sq);
}
"#;

/// Names and texts of the kernels' files with this ending.
fn files(ending: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn every_kernel_compiles_and_links() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let headers = files("h");
    let with_headers =
        |unit| headers.iter().fold(unit, |unit: Unit, (name, text)| unit.header(name, text.clone()));
    let units: Vec<Unit> = files("cu").iter().map(|(name, text)| with_headers(unit(name, text))).collect();
    assert!(units.len() >= 6, "{units:?}");
    compile_and_link(toolkit, &units, need::is_full());
}

/// What an instruction is to the order of a doorbell. Stores to a thread's own memory are nothing to it.
fn edge(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    let (name, _) = line.split_once([' ', '\t', ';'])?;
    match name {
        "fence.acq_rel.sys" => Some("fence"),
        "st.relaxed.sys.global.u32" => Some("record"),
        "st.mmio.relaxed.sys.global.u64" => Some("register"),
        _ if name.starts_with("fence") || name.starts_with("membar") => Some("another fence"),
        _ if name.starts_with("st.local") || name.starts_with("st.param") => None,
        _ if name.starts_with("st.") => Some("bytes"),
        _ => None,
    }
}

/// Rows: the order, and fences and stores as they have to follow one another once the bytes are written.
#[test]
fn a_doorbell_is_fences_and_stores_in_that_order_and_no_fence_more() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let compiler = Compiler::load(&toolkit).unwrap();
    for arch in ARCHS {
        for (order, expected) in [
            ("DB_ORDER_STRICT", &["fence", "record", "fence", "register"][..]),
            ("DB_ORDER_EARLY", &["fence", "record", "register"][..]),
        ] {
            let unit = unit("ring.cu", RING).flag(format!("-DORDER={order}"));
            let compiled =
                compiler.compile(&unit, arch, Form::Ptx).unwrap_or_else(|error| panic!("{arch}: {error}"));
            let text = String::from_utf8(compiled.bytes).unwrap();
            let edges: Vec<&str> = text.lines().filter_map(edge).collect();
            let bytes = edges.iter().take_while(|&&edge| edge == "bytes").count();
            assert!(bytes >= 3, "{arch} {order}: a WQE of a WRITE has three segments: {edges:?}\n{text}");
            assert_eq!(edges[bytes..], *expected, "{arch} {order}\n{text}");
        }
    }
}

/// P7: the release spends fences and a doorbell on each post; ours are for as many posts as the caller likes.
#[test]
fn release_p7_several_posts_take_one_fence_and_one_doorbell() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let compiler = Compiler::load(&toolkit).unwrap();
    let count = |flags: &[&str]| {
        let flags = flags.iter().fold(unit("ring.cu", RING), |unit, flag| unit.flag(*flag));
        let unit = flags.flag("-DORDER=DB_ORDER_EARLY").flag("-DPOSTS=4");
        let compiled =
            compiler.compile(&unit, Arch::sm(90), Form::Ptx).unwrap_or_else(|error| panic!("{error}"));
        let text = String::from_utf8(compiled.bytes).unwrap();
        let edges: Vec<&str> = text.lines().filter_map(edge).collect();
        ["fence", "record", "register"].map(|wanted| edges.iter().filter(|&&found| found == wanted).count())
    };
    assert_eq!(count(&[]), [1, 1, 1]);
    assert_eq!(count(&["-DDEFECT_A_DOORBELL_EACH"]), [4, 4, 4]);
}

/// PTX has the acquiring fence from sm_90 on; ptxas of CUDA 13 takes it for sm_80 too, others do not.
#[test]
fn completions_are_acquired_by_a_fence_that_the_gpu_knows() {
    const TAKE: &str = "#include \"doorbell_gpu.h\"\nextern \"C\" __global__ void take(struct db_cq *cq, struct db_completion *out) {\n\
        db_take_cqe(cq, out);\n}\n";
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let compiler = Compiler::load(&toolkit).unwrap();
    for arch in ARCHS {
        let compiled = compiler.compile(&unit("take.cu", TAKE), arch, Form::Ptx).unwrap();
        let text = String::from_utf8(compiled.bytes).unwrap();
        let [acquiring, full] = ["fence.acquire.sys", "fence.acq_rel.sys"].map(|fence| text.contains(fence));
        assert_eq!((acquiring, full), (arch != ARCHS[0], arch == ARCHS[0]), "{arch}\n{text}");
    }
}
