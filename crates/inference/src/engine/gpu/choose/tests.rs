//! Choices on disk, and errors of engines, where there is no GPU.

use std::cell::RefCell;
use std::path::PathBuf;

use prost::Message;

use super::super::library::Library;
use super::*;
use crate::import::import;

fn small() -> Plan {
    let file = zoo::Architecture::SuperResolution { factor: 1, height: 8, width: 8 }.build(1);
    let graph = import(&file.encode_to_vec(), 1).expect("the zoo's models are imported");
    Plan::new(&graph).expect("it is planned")
}

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("inference-choices-{}-{name}", std::process::id()))
}

fn error(code: u32) -> gpu::Error {
    let (call, [what, name, text]) = ("cuStreamSynchronize", [const { String::new() }; 3]);
    gpu::Error::Call { call, what, code, name, text }
}

#[test]
fn a_library_s_kernel_that_takes_the_context_is_named_and_our_own_is_not() {
    let plan = small();
    let step = &plan.steps[0];
    let library = By::Library { library: Library::Cudnn, engine: "7".into(), finished: false };
    let late = || gpu::Error::Deadline { what: "a way".into(), waited: Duration::ZERO };
    for (by, error, is_named) in [
        (&library, error(gpu::code::ILLEGAL_ADDRESS), true),
        (&library, error(gpu::code::OUT_OF_MEMORY), false),
        (&library, late(), true),
        (&By::Own, error(gpu::code::ILLEGAL_ADDRESS), false),
        (&By::Own, late(), false),
    ] {
        let found = lost(step, by, error.into(), true);
        assert_eq!(matches!(found, EngineError::Tried { .. }), is_named, "{by}: {found}");
    }
}

/// A stand-in plays the other version: it is a word of the entry.
#[test]
fn choices_of_another_cudnn_are_not_used_which_is_said() {
    let (folder, plan) = (folder("versions"), small());
    let (cache, key) = (Cache::at(&folder), KeyBuilder::default().part("test", b"").key());
    let said = RefCell::new(Vec::new());
    let say = |text: &str| said.borrow_mut().push(text.to_owned());
    let kept = |versions| kept(&cache, &key, versions, &plan, &say);
    let [old, new] = ["cuDNN 9.10.2, cuBLASLt none", "cuDNN 9.19.0, cuBLASLt none"];
    assert_eq!(kept(new), None);
    assert!(said.borrow().is_empty(), "nothing was kept: {said:?}");
    cache.keep(&key, &kept::write(old, &[]));
    assert_eq!((kept(old), said.borrow().len()), (Some(Vec::new()), 0));
    assert_eq!(kept(new), None);
    let words = "found choices of cuDNN 9.10.2, cuBLASLt none, wanted those of cuDNN 9.19.0, cuBLASLt none; every step";
    assert!(said.borrow()[0].contains(words), "{said:?}");
    // What was chosen anew takes their place.
    cache.keep(&key, &kept::write(new, &[]));
    assert_eq!((kept(new), said.borrow().len()), (Some(Vec::new()), 1));
    std::fs::remove_dir_all(folder).expect("it is ours");
}

#[test]
fn another_kernel_or_header_of_ours_makes_other_choices() {
    let unit = |text: &str, header: &str| Unit::new("one.cu", text).header("one.h", header);
    let key = |units: Vec<Unit>| of_units(KeyBuilder::default(), units).key();
    let before = key(vec![unit("kernel", "body")]);
    assert!(before == key(vec![unit("kernel", "body")]), "the same kernels have one key");
    assert!(before != key(vec![unit("kernel", "another body")]), "a header");
    assert!(before != key(vec![unit("another kernel", "body")]), "a unit");
}

#[test]
fn another_launch_of_our_kernels_makes_other_choices() {
    let plan = small();
    let trials = Trials::new(None, "GPU".into(), std::iter::empty(), &|_| ());
    let own = launch::launches(&plan).expect("they are few");
    let mut other = own.clone();
    other[1].blocks[0] += 1;
    assert_eq!(key(&plan, &own, "GPU", &trials), key(&plan, &own, "GPU", &trials));
    assert_ne!(key(&plan, &own, "GPU", &trials), key(&plan, &other, "GPU", &trials));
}

#[test]
fn an_engine_that_is_left_out_makes_other_choices_until_its_file_is_deleted() {
    let (folder, plan) = (folder("left-out"), small());
    let all = || plan.steps.iter().flat_map(|step| convolution::ways(&plan, step)).map(|(_, of)| of);
    let trials = || Trials::new(Some(&folder), "GPU".into(), all(), &|_| ());
    let own = launch::launches(&plan).expect("they are few");
    let key = || key(&plan, &own, "GPU", &trials());
    let before = key();
    let lose = || {
        let mut trials = trials();
        trials.begin(Some(&folder));
        let attempt = trials.attempt(&all().next().expect("a convolution"), "engine".into(), "conv1".into());
        let lost = || Err::<(), _>(error(gpu::code::LAUNCH_FAILED).into());
        trials.of(&attempt, lost).expect_err("the context is lost");
    };
    lose();
    assert_eq!(key(), before, "it is tried once more");
    lose();
    assert_ne!(key(), before);
    std::fs::remove_file(folder.join("trial-0")).expect("it names the engine");
    assert_eq!(key(), before);
    std::fs::remove_dir_all(folder).expect("it is ours");
}
