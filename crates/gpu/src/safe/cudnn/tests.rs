//! Descriptors that cuDNN takes without a GPU, and which of its engines are used.

use measure::need;

use super::candidate::accepts;
use super::*;

fn images(extents: [i64; 4]) -> TensorShape {
    let [_, channels, rows, columns] = extents;
    TensorShape {
        extents,
        strides: [channels * rows * columns, 1, columns * channels, channels],
        alignment: 16,
    }
}

/// A convolution of 32 channels to 64, with everything behind it.
fn example(arithmetic: Arithmetic) -> Convolution {
    let to = images([1, 64, 28, 28]);
    Convolution {
        arithmetic,
        from: images([1, 32, 28, 28]),
        weights: images([64, 32, 3, 3]),
        to,
        residual: Some(to),
        bias: true,
        bounds: Some([0.0, f64::from(f32::MAX)]),
        stride: [1, 1],
        dilation: [1, 1],
        pads: [1, 1, 1, 1],
    }
}

fn library() -> std::result::Result<Library, String> {
    let named = std::env::var_os(VARIABLE).ok_or(format!("{VARIABLE} is not set"))?;
    Library::load(&PathBuf::from(named).join(NAME)).map_err(|error| error.to_string())
}

#[test]
fn another_major_version_is_refused_with_both_and_the_file() {
    let checked = |version, needed| of_major("cuDNN", Path::new("/opt/libcudnn.so.9"), version, needed);
    for version in [[9, 0, 0], [9, 19, 1]] {
        checked(version, 9).unwrap();
    }
    for (version, needed, words) in [
        ([8, 9, 7], 9, "cuDNN: /opt/libcudnn.so.9 is of version 8; version 9 is needed"),
        ([10, 9, 9], 9, "cuDNN: /opt/libcudnn.so.9 is of version 10; version 9 is needed"),
        ([12, 13, 13], 13, "cuDNN: /opt/libcudnn.so.9 is of version 12; version 13 is needed"),
    ] {
        let said = checked(version, needed).unwrap_err().to_string();
        assert!(said.contains(words), "{version:?}: {said}");
    }
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let said = Library::load(Path::new("/no/such/libcudnn.so.9")).unwrap_err().to_string();
    assert!(said.contains("/no/such/libcudnn.so.9"), "{said}");
}

#[test]
fn operations_are_taken_by_the_library_without_a_gpu() {
    let library = need!(library(), "cuDNN");
    assert_eq!(library.version().unwrap()[0], 9);
    for arithmetic in [Arithmetic::Single, Arithmetic::Tf32, Arithmetic::Half] {
        let (operations, between) = operations::of(&library, &example(arithmetic)).unwrap();
        assert_eq!((operations.len(), between.len()), (4, 4));
        let alone = Convolution { residual: None, bias: false, bounds: None, ..example(arithmetic) };
        assert_eq!(operations::of(&library, &alone).unwrap().0.len(), 1);
    }
    let wrong = Convolution { stride: [0, 1], ..example(Arithmetic::Half) };
    let said = operations::of(&library, &wrong).unwrap_err().to_string();
    assert!(said.contains("bad parameter"), "{said}");
}

#[test]
fn engines_that_round_or_differ_from_run_to_run_are_left_out() {
    // Numbers of `cudnnBackendNumericalNote_t`: tensor core, nondeterministic, Winograd with tiles of 4x4.
    for (notes, accepted) in [
        (vec![], [true, true, true]),
        (vec![0], [false, true, true]),
        (vec![1], [false, true, true]),
        (vec![2], [false, false, false]),
        (vec![0, 4], [false, false, false]),
        (vec![6], [true, true, true]),
        (vec![7], [false, false, false]),
    ] {
        let found = [Arithmetic::Single, Arithmetic::Tf32, Arithmetic::Half].map(|of| accepts(of, &notes));
        assert_eq!(found, accepted, "{notes:?}");
    }
}
