//! What `doctor` says of the ONNX Runtime that the profiler and the server load here.

use zoo::onnx_runtime::{Found, Search};

use crate::carried;
use crate::wheels::ONNX_RUNTIME;

/// The version, what named the library, and its path; or that there is none, and how to fetch one.
pub fn state(search: &Search<'_>) -> String {
    let means = match carried::folder() {
        Some(_) => "fetch the tested version",
        None => "figures 1 and 2, `bench-models` and `demo` fetch it, or you",
    };
    match search.find() {
        Err(looked) => format!("not found: {looked}; {means} by: {}", ONNX_RUNTIME.by_hand()),
        Ok(Found { library, by }) => {
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            let version = name.split_once(".so.").map_or("of unknown version", |(_, version)| version);
            format!("{version}, {by}: {}", library.display())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn doctor_says_the_version_or_the_pinned_command_with_its_hash() {
        let folder = std::env::temp_dir().join(format!("xtask-onnx-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let search =
            Search { option: Some(&folder), variable: None, program: None, python: Path::new("none") };
        let said = state(&search);
        let words = [
            "not found: ",
            "xtask-onnx-",
            "onnxruntime==",
            "--hash=sha256:",
            "--require-hashes",
            "--no-deps",
        ];
        for word in words.into_iter().chain(["; figures 1 and 2, `bench-models` and `demo` fetch it"]) {
            assert!(said.contains(word), "{word}: {said}");
        }
        std::fs::write(folder.join("libonnxruntime.so.1.2.3"), "").unwrap();
        let said = state(&search);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(said.starts_with("1.2.3, named by an option: /"), "{said}");
    }
}
