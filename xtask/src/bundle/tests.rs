//! The layout of a bundle in a folder of its own, without building the world.

use super::*;
use crate::refused::Refused;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("xtask-bundle-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_stripped_program_is_smaller_and_still_one() {
    let folder = Folder::new("strip");
    let (here, to) = (std::env::current_exe().unwrap(), folder.0.join("stripped"));
    strip(&here, &to).unwrap();
    let (was, is) = (fs::metadata(&here).unwrap(), fs::metadata(&to).unwrap());
    assert!(is.len() < was.len() && is.permissions() == was.permissions());
}

#[test]
fn what_figures_and_examples_read_lies_at_its_place_and_what_was_measured_does_not() {
    let folder = Folder::new("texts");
    texts(&root(), &folder.0).unwrap();
    for file in [
        "LICENSE",
        "crates/rdma-shim/include/doorbell.h",
        "experiments/fig4/spec.toml",
        "experiments/fig5/paper.toml",
        "experiments/bench-nic/README.md",
        "experiments/bench-models/spec.toml",
        "experiments/peers/compiled_graph.py",
        "modelzoo/models/squeezenet-1.1.toml",
    ] {
        assert!(folder.0.join(file).is_file(), "{file}");
    }
    assert!(!folder.0.join("experiments/fig4/measured.json").exists());
    let missing: Vec<&&str> = TEXTS.iter().filter(|text| !root().join(text).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_test_program_is_carried_under_a_name_that_tells_it_from_others() {
    let folder = Folder::new("carry");
    let here = TestProgram {
        package: "gpu".into(),
        target: "test-gpu".into(),
        path: std::env::current_exe().unwrap(),
    };
    let carried = carry(&here, &folder.0).unwrap();
    assert_eq!(carried.path, Path::new("tests/gpu-test-gpu"));
    assert!(folder.0.join(&carried.path).is_file());
}

#[test]
fn a_bundle_that_is_too_large_names_what_is_large() {
    let folder = Folder::new("large");
    fs::create_dir_all(folder.0.join("tests")).unwrap();
    for (name, bytes) in [("tests/huge", MOST_BYTES), ("generator", 3 << 20), ("tests/small", 5)] {
        fs::File::create(folder.0.join(name)).unwrap().set_len(bytes).unwrap();
    }
    let error = size(&folder.0).unwrap_err();
    let words = "103.0 MiB, at most 100 are carried; the largest: tests/huge 100.0 MiB, generator 3.0 MiB, tests/small 0.0 MiB;";
    assert!(error.is::<Refused>() && error.to_string().contains(words), "{error}");
    fs::remove_file(folder.0.join("generator")).unwrap();
    fs::remove_file(folder.0.join("tests/small")).unwrap();
    assert_eq!(size(&folder.0).unwrap(), MOST_BYTES);
}

#[test]
fn an_earlier_bundle_is_cleared_and_nothing_else() {
    let folder = Folder::new("clear");
    fs::create_dir_all(folder.0.join("tests")).unwrap();
    fs::write(folder.0.join("tests/mine"), "").unwrap();
    clear(&folder.0).unwrap();
    assert!(folder.0.join("tests/mine").exists(), "it was no bundle");
    write_manifest(&folder.0, &Manifest { profile: "dev".into(), tests: vec![] }).unwrap();
    fs::write(folder.0.join("notes"), "").unwrap();
    clear(&folder.0).unwrap();
    assert!(!folder.0.join("tests").exists() && !folder.0.join(MANIFEST).exists());
    assert!(folder.0.join("notes").exists());
    let error = clear(&folder.0.join("notes")).unwrap_err();
    assert!(
        error.is::<Refused>()
            && error.to_string().ends_with("is a file; give a folder, new or of an earlier bundle")
    );
    fs::write(folder.0.join("Cargo.toml"), "").unwrap();
    assert!(clear(&folder.0).unwrap_err().is::<Refused>());
}
