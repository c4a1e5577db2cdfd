//! A model's results layer by layer, as ONNX Runtime computes them: what another engine's layers are compared
//! with.

use std::collections::HashMap;
use std::sync::Arc;

use prost::Message;
use zoo::onnx::{Model, ValueInfo};

use crate::engine::onnx_runtime::Runtime;
use crate::engine::{Engine, EngineError};
use crate::graph::Graph;
use crate::plan::{Precision, Step};

/// How far a layer may be from the reference, as [`distance`] says: its sums are of up to 5,000 products.
pub fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::Single => 1e-4,
        Precision::Tf32 => 5e-3,
        Precision::Half => 2e-2,
    }
}

/// The values of a model for one input.
#[derive(Debug)]
pub struct Layers {
    /// What each node writes, by the value's name.
    values: HashMap<String, Vec<f32>>,
    /// The name of the value that a node writes, by the node's name.
    written: HashMap<String, String>,
}

impl Layers {
    /// Runs a file with each node's result as an output. `graph`: what was imported from it.
    pub fn compute(
        runtime: &Runtime,
        file: &[u8],
        graph: &Graph,
        inputs: &[&[f32]],
    ) -> Result<Layers, EngineError> {
        let no_file = |reason: String| EngineError::Runtime { at: graph.name.clone(), reason };
        let mut model = Model::decode(file).map_err(|error| no_file(error.to_string()))?;
        let of_file = model.graph.as_mut().ok_or_else(|| no_file("the file has no graph".to_owned()))?;
        let mut names: Vec<String> = of_file.output.iter().map(|output| output.name.clone()).collect();
        let mut written = HashMap::new();
        for node in &graph.nodes {
            let value = &graph.value(node.output).name;
            written.insert(node.names[0].clone(), value.clone());
            if !names.contains(value) {
                names.push(value.clone());
                of_file.output.push(ValueInfo { name: value.clone(), r#type: None });
            }
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let computed = runtime.model(&model.encode_to_vec(), threads)?.run(inputs)?;
        Ok(Layers { values: names.into_iter().zip(computed).collect(), written })
    }

    /// What a step of the file's plan should write; `None` for one that writes an input, or a part of a
    /// value.
    pub fn of(&self, step: &Step) -> Option<&[f32]> {
        let name = step.names.last()?;
        let value = self.values.get(self.written.get(name).unwrap_or(name))?;
        (value.len() == step.to.count()).then_some(value)
    }
}

/// How far results are from those that are wanted, relative to the root mean square of these. In single
/// precision the largest difference, so that one wrong element is seen; with TF32 and in half precision,
/// where the largest of many roundings grows with their number, the root mean square of all differences.
/// Infinite for a value that is no number. Panics unless both are of the same length.
pub fn distance(precision: Precision, found: &[f32], wanted: &[f32]) -> f64 {
    assert_eq!(found.len(), wanted.len(), "results of one shape are compared");
    let root = |squares: f64| (squares / wanted.len() as f64).sqrt();
    let norm = root(wanted.iter().map(|&value| f64::from(value).powi(2)).sum());
    let apart = found.iter().zip(wanted).map(|(&one, &two)| (f64::from(one) - f64::from(two)).abs());
    let apart = match precision {
        Precision::Half | Precision::Tf32 => root(apart.map(|apart| apart * apart).sum()),
        Precision::Single => {
            apart.fold(0.0, |most: f64, apart| if apart.is_nan() { f64::INFINITY } else { most.max(apart) })
        }
    };
    let distance = apart / norm.max(1e-6);
    if distance.is_nan() { f64::INFINITY } else { distance }
}

/// Numbers between -1 and 1 that depend on the seed alone: inputs of models.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "there is always another one")]
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// So many of them.
    pub fn tensor(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }

    /// Weights changed by a share of their norm, in a direction of chance: a comparison must see it.
    pub fn perturb(&mut self, weights: &[f32], share: f64) -> Arc<[f32]> {
        let norm =
            |elements: &[f32]| elements.iter().map(|&element| f64::from(element).powi(2)).sum::<f64>().sqrt();
        let direction = self.tensor(weights.len());
        let factor = (share * norm(weights) / norm(&direction)) as f32;
        weights.iter().zip(&direction).map(|(weight, direction)| weight + factor * direction).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_infinitely_far() {
        for precision in [Precision::Single, Precision::Tf32, Precision::Half] {
            assert_eq!(distance(precision, &[1.0, 2.0], &[1.0, 2.0]), 0.0);
            for (found, wanted) in
                [(f32::NAN, 1.0), (1.0, f32::NAN), (5.0, f32::INFINITY), (f32::INFINITY, 5.0)]
            {
                let apart = distance(precision, &[found, 1.0], &[wanted, 1.0]);
                assert!(apart.is_infinite(), "{precision:?}: {found} for {wanted}: {apart}");
            }
        }
    }
}
