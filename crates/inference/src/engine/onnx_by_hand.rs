//! How a user names ONNX Runtime's library, and fetches it by hand.

/// The variable that names the library, or a folder that holds it.
pub const VARIABLE: &str = "DOORBELL_ONNXRUNTIME";

/// The version that is tested, with its hash: the list of set-up.
const LIST: &str = include_str!("../../../../xtask/onnxruntime-wheel.txt");

/// How pip takes what a list says and nothing else. The library inside is the same for each version of Python.
const BY_HAND: &str = "onnxruntime.txt && python3 -m pip install --no-deps --require-hashes --only-binary :all: --no-compile --disable-pip-version-check --progress-bar off --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64 --target onnxruntime -r onnxruntime.txt && export DOORBELL_ONNXRUNTIME=$PWD/onnxruntime/onnxruntime/capi";

/// The shell's line that fetches the tested version and names it to programs; a test of `xtask` compares it with set-up's.
pub(super) fn by_hand() -> String {
    let wheel = LIST.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
    format!("printf '%s\\n' '{wheel}' > {BY_HAND}")
}
