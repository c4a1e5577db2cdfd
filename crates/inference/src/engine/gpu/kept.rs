//! Choices on disk: for steps that a library computes, its plans with their compiled kernels.
//!
//! A line: the library (`cudnn`, `cublaslt`), what is fused, the plan's length in bytes, the steps, the
//! engine; then the plan and a line's end, for each plan. What is named by no line is computed by our own
//! kernels. The entry's key has everything that a choice depends on: GPU, driver, library, steps, kernels.

use super::convolution::Fused;
use super::libraries::Library;

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

/// The content of the entry.
pub fn write(all: &[Kept]) -> Vec<u8> {
    let mut content = Vec::new();
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

/// What [`write`] wrote for a plan of so many steps; `None` for anything else.
pub fn read(mut content: &[u8], step_count: usize) -> Option<Vec<Kept>> {
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
        let content = write(&[one.clone(), two.clone()]);
        assert_eq!(read(&content, 5), Some(vec![one.clone(), two]));
        assert_eq!(read(&[], 5), Some(vec![]));
        assert_eq!(read(&content, 4), None, "there is no step 4");
        let whole = write(&[one]);
        for length in 1..whole.len() {
            assert_eq!(read(&whole[..length], 5), None, "{length} bytes of {}", whole.len());
        }
        let other = String::from_utf8(whole).unwrap_or_default().replace("cudnn", "cudnnx");
        assert_eq!(read(other.as_bytes(), 5), None);
    }
}
