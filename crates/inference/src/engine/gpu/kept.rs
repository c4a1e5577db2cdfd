//! Choices on disk: for steps that a library computes, its plans with their compiled kernels.
//!
//! The first line has the libraries' versions that chose. Then, for each plan, a line: the library (`cudnn`,
//! `cublaslt`), what is fused, the plan's length in bytes, the steps, the engine; then the plan and a
//! newline. Our own kernels compute what no line names. The entry's key has everything else that a choice
//! depends on: GPU, driver, steps, kernels. So choices of another library are found, and said to be such.

use super::convolution::Fused;
use super::library::Library;

/// A plan of a library, and the steps that it computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub library: Library,
    /// What of them it computes.
    pub fused: Fused,
    /// Their numbers in the plan.
    pub steps: Vec<usize>,
    /// The engine with its settings.
    pub engine: String,
    /// What [`super::library_plan::Present::read`] takes.
    pub text: Vec<u8>,
}

const FUSED: [(Fused, &str); 3] = [(Fused::All, "all"), (Fused::Sums, "sums"), (Fused::Products, "products")];

const LIBRARIES: [(Library, &str); 2] = [(Library::Cudnn, "cudnn"), (Library::CublasLt, "cublaslt")];

/// Why choices on disk are not used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUsed {
    /// Another library may be faster by another engine, and cannot read a plan of this one.
    #[error("found choices of {found}, wanted those of {wanted}")]
    Other { found: String, wanted: String },
    #[error("found choices that are damaged")]
    Damaged,
}

/// The content of the entry. `versions`: of the libraries that chose, one line.
pub fn write(versions: &str, all: &[Kept]) -> Vec<u8> {
    let mut content = format!("{versions}\n").into_bytes();
    for kept in all {
        let fused = FUSED.iter().find(|(fused, _)| *fused == kept.fused).map_or("all", |(_, name)| name);
        let library = LIBRARIES.iter().find(|(of, _)| *of == kept.library).map_or("cudnn", |(_, name)| name);
        let steps: Vec<String> = kept.steps.iter().map(usize::to_string).collect();
        let line = format!("{library} {fused} {} {} {}\n", kept.text.len(), steps.join(","), kept.engine);
        content.extend(line.as_bytes());
        content.extend(&kept.text);
        content.push(b'\n');
    }
    content
}

/// What [`write`] wrote with these versions for a plan of so many steps.
pub fn read(content: &[u8], versions: &str, step_count: usize) -> Result<Vec<Kept>, NotUsed> {
    let end = content.iter().position(|&byte| byte == b'\n').ok_or(NotUsed::Damaged)?;
    let found = std::str::from_utf8(&content[..end]).map_err(|_| NotUsed::Damaged)?;
    if found != versions {
        return Err(NotUsed::Other { found: found.to_owned(), wanted: versions.to_owned() });
    }
    plans(&content[end + 1..], step_count).ok_or(NotUsed::Damaged)
}

fn plans(mut content: &[u8], step_count: usize) -> Option<Vec<Kept>> {
    let mut all = Vec::new();
    while !content.is_empty() {
        let end = content.iter().position(|&byte| byte == b'\n')?;
        let line = std::str::from_utf8(&content[..end]).ok()?;
        let mut words = line.splitn(5, ' ');
        let library = words.next()?;
        let (library, _) = LIBRARIES.iter().find(|(_, name)| *name == library)?;
        let fused = words.next()?;
        let (fused, _) = FUSED.iter().find(|(_, name)| *name == fused)?;
        let length: usize = words.next()?.parse().ok()?;
        let steps = words.next()?.split(',').map(|step| step.parse().ok().filter(|&step| step < step_count));
        let steps = steps.collect::<Option<Vec<usize>>>()?;
        let engine = words.next()?.to_owned();
        let rest = &content[end + 1..];
        if rest.get(length) != Some(&b'\n') {
            return None;
        }
        all.push(Kept { library: *library, fused: *fused, steps, engine, text: rest[..length].to_vec() });
        content = &rest[length + 1..];
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSIONS: &str = "cuDNN 9.19.0, cuBLASLt 13.1.0";

    #[test]
    fn choices_are_read_as_they_were_written_and_damaged_ones_are_none() {
        let one = Kept {
            library: Library::Cudnn,
            fused: Fused::Sums,
            steps: vec![1, 4],
            engine: "engine 7 2=3".into(),
            text: b"{\n}".into(),
        };
        let two = Kept {
            library: Library::CublasLt,
            fused: Fused::Products,
            steps: vec![2],
            engine: "algorithm 66 1=20".into(),
            text: (0..64).collect(),
        };
        let read = |content: &[u8], steps| read(content, VERSIONS, steps);
        let content = write(VERSIONS, &[one.clone(), two.clone()]);
        assert_eq!(read(&content, 5), Ok(vec![one.clone(), two]));
        let none = write(VERSIONS, &[]);
        assert_eq!((read(&none, 5), read(&[], 5)), (Ok(vec![]), Err(NotUsed::Damaged)));
        assert_eq!(read(&content, 4), Err(NotUsed::Damaged), "there is no step 4");
        let whole = write(VERSIONS, &[one]);
        for length in none.len() + 1..whole.len() {
            assert_eq!(read(&whole[..length], 5), Err(NotUsed::Damaged), "{length} bytes of {}", whole.len());
        }
        let other = String::from_utf8(whole).unwrap_or_default().replace("cudnn", "cudnnx");
        assert_eq!(read(other.as_bytes(), 5), Err(NotUsed::Damaged));
    }

    #[test]
    fn choices_of_another_cudnn_are_refused_with_both_versions() {
        let content = write("cuDNN 9.10.2, cuBLASLt 13.1.0", &[]);
        let said = read(&content, VERSIONS, 5).expect_err("another version").to_string();
        assert_eq!(
            said,
            "found choices of cuDNN 9.10.2, cuBLASLt 13.1.0, wanted those of cuDNN 9.19.0, cuBLASLt 13.1.0"
        );
    }
}
