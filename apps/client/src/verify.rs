//! Verifies answers: the first to each input against the reference, later ones bit for bit against the first.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use zoo::Manifest;

/// The answers to each input.
#[derive(Debug)]
pub struct Verifier {
    /// The first right answer to each input.
    firsts: Vec<Option<Vec<u8>>>,
    reference: Option<Reference>,
}

/// What an engine computed for each input.
#[derive(Debug)]
struct Reference {
    outputs: Vec<Vec<f32>>,
    tolerance: f64,
}

impl Verifier {
    /// Errors: a reference that cannot be read, or that has fewer inputs or other sizes.
    pub fn new(
        manifest: &Manifest,
        inputs: usize,
        reference: Option<&Path>,
        tolerance: f64,
    ) -> Result<Verifier> {
        let reference = match reference {
            None => None,
            Some(path) => {
                let bytes = std::fs::read(path).with_context(|| format!("--reference {}", path.display()))?;
                let one: u64 = manifest.output.iter().map(|output| output.bytes).sum();
                let outputs = split(&bytes, one as usize, inputs)
                    .with_context(|| format!("--reference {}", path.display()))?;
                Some(Reference { outputs, tolerance })
            }
        };
        Ok(Verifier { firsts: vec![None; inputs], reference })
    }

    /// What is wrong with an answer to an input, if anything is.
    pub fn fault<'a>(&mut self, input: usize, outputs: impl Iterator<Item = &'a [u8]>) -> Option<String> {
        let answer = outputs.collect::<Vec<_>>().concat();
        if let Some(first) = &self.firsts[input] {
            let at = first.iter().zip(&answer).position(|(one, other)| one != other);
            return at.map(|at| {
                format!("input {input}: value {} is not, bit for bit, that of the first answer", at / 4)
            });
        }
        let fault = self.reference.as_ref().and_then(|reference| reference.fault(input, &values(&answer)));
        if fault.is_none() {
            self.firsts[input] = Some(answer);
        }
        fault
    }
}

impl Reference {
    /// The value that is farthest from the reference, if it is beyond the tolerance.
    fn fault(&self, input: usize, answer: &[f32]) -> Option<String> {
        let wanted = &self.outputs[input];
        let squares: f64 = wanted.iter().map(|value| f64::from(*value).powi(2)).sum();
        let norm = (squares / wanted.len() as f64).sqrt().max(1e-6);
        let apart = |(one, other): (&f32, &f32)| {
            let apart = (f64::from(*one) - f64::from(*other)).abs() / norm;
            if apart.is_nan() { f64::INFINITY } else { apart }
        };
        let apart = answer.iter().zip(wanted).map(apart).enumerate();
        let (at, most) = apart.max_by(|one, other| one.1.total_cmp(&other.1))?;
        (most > self.tolerance).then(|| {
            format!(
                "input {input}: value {at} is {}, the reference has {}: {most:.1e} of its root mean square apart, {:.1e} is allowed",
                answer[at], wanted[at], self.tolerance
            )
        })
    }
}

/// A reference's outputs of each input, each of `one` bytes.
fn split(bytes: &[u8], one: usize, inputs: usize) -> Result<Vec<Vec<f32>>> {
    let has = bytes.len() / one;
    ensure!(
        bytes.len().is_multiple_of(one) && has >= inputs,
        "{} bytes are {has} outputs of {one} bytes; {inputs} inputs need as many: make it by `profiler reference`",
        bytes.len()
    );
    Ok(bytes.chunks_exact(one).take(inputs).map(values).collect())
}

fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn verifier(reference: Option<&[f32]>) -> Verifier {
        let outputs = |values: &[f32]| split(&bytes(values), 8, values.len() / 2).unwrap();
        let reference = reference.map(|values| Reference { outputs: outputs(values), tolerance: 0.01 });
        Verifier { firsts: vec![None; 2], reference }
    }

    fn fault(verifier: &mut Verifier, input: usize, values: &[f32]) -> String {
        let (one, other) = values.split_at(1);
        let (one, other) = (bytes(one), bytes(other));
        verifier.fault(input, [&one[..], &other[..]].into_iter()).unwrap_or_default()
    }

    #[test]
    fn the_first_answer_is_near_the_reference_and_later_ones_are_equal() {
        let mut verifier = verifier(Some(&[3.0, 4.0, 1.0, 1.0]));
        assert_eq!(fault(&mut verifier, 0, &[3.0, 4.01]), "");
        // As near as the first was, and yet another one.
        let said = fault(&mut verifier, 0, &[3.0, 4.02]);
        assert!(said.starts_with("input 0: value 1 is not, bit for bit"), "{said}");
        assert_eq!(fault(&mut verifier, 0, &[3.0, 4.01]), "");
        assert_eq!(fault(&mut verifier, 1, &[1.0, 1.0]), "");
    }

    #[test]
    fn every_answer_beyond_the_tolerance_is_wrong() {
        let mut verifier = verifier(Some(&[3.0, 4.0, 1.0, 1.0]));
        for wrong in [[3.0, 4.1], [3.1, 4.0], [f32::NAN, 4.0], [f32::INFINITY, 4.0], [1.0, 1.0]] {
            for _ in 0..2 {
                let said = fault(&mut verifier, 0, &wrong);
                assert!(said.contains("the reference has"), "{said}");
            }
        }
        assert_eq!(fault(&mut verifier, 0, &[3.0, 4.0]), "");
    }

    #[test]
    fn without_a_reference_the_first_answer_stands() {
        let mut verifier = verifier(None);
        assert_eq!(fault(&mut verifier, 0, &[-0.0, 1.0]), "");
        assert_eq!(fault(&mut verifier, 1, &[5.0, 1.0]), "");
        assert!(!fault(&mut verifier, 0, &[0.0, 1.0]).is_empty());
    }

    #[test]
    fn a_reference_of_too_few_inputs_or_of_another_model_is_refused() {
        for (bytes, inputs) in [(7, 1), (8, 2), (17, 2), (0, 1)] {
            let error = split(&vec![0; bytes], 8, inputs).unwrap_err().to_string();
            assert!(error.contains("profiler reference"), "{error}");
        }
        assert_eq!(split(&[0; 24], 8, 2).unwrap().len(), 2);
    }
}
