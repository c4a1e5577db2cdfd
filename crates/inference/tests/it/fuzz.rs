//! Damaged files: changed and cut bytes of every operator's files and a small model; nothing panics.

use std::collections::BTreeSet;

use inference::import::import;
use inference::launch::launches;
use inference::plan::Plan;
use prost::Message;
use zoo::onnx::Model;

use crate::files::File;
use crate::models::FEW_PIXELS;
use crate::operators::files_of_every_operator;

/// Mutants of an operator's file besides one for each byte of its nodes; those of the model; cuts of a file.
const MUTANTS: usize = 10;
const OF_MODEL: usize = 200;
const CUTS: usize = 10;
/// Bytes of a model at its begin (its nodes) and at its end (inputs and outputs). Weights lie between.
const NODES: usize = 2000;
const ENDS: usize = 300;

/// Numbers of a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

/// Whether a file is refused, by the importer or the planner. What is planned has launches or an error.
fn is_refused(file: &[u8], batch: usize) -> bool {
    let graph = import(file, batch);
    graph.map(|graph| Plan::new(&graph).map(|plan| launches(&plan).is_ok())).is_err()
}

/// The operators that the importer says it knows.
fn known() -> BTreeSet<String> {
    let said = import(&File::new(&[1]).node("Celu", &["x"], "y", &[]).bytes("y"), 1);
    let said = said.expect_err("there is no such operator").to_string();
    let (_, names) = said.split_once("there are: ").expect("the message has them");
    names.split(", ").map(str::to_owned).collect()
}

#[test]
fn no_bytes_make_the_importer_panic() {
    let operators = files_of_every_operator();
    let model = FEW_PIXELS.build(1).encode_to_vec();
    let model = [("a model of the zoo".to_owned(), model, 1)];
    let (mut random, mut refused, mut rounds) = (Numbers(1), 0, 0);
    let mut found = BTreeSet::new();
    for (count, (what, whole, batch)) in
        operators.iter().map(|file| (MUTANTS, file)).chain(model.iter().map(|file| (OF_MODEL, file)))
    {
        let nodes = Model::decode(&**whole).expect("it is whole").graph.expect("it has one").node;
        // They stand first, behind the file's and the graph's few fields.
        let of_nodes: usize = nodes.iter().map(|node| node.encoded_len() + 2).sum();
        found.extend(nodes.into_iter().map(|node| node.op_type));
        assert!(!is_refused(whole, *batch), "{what}");
        // A cut file is refused, or is another whole file.
        for _ in 0..CUTS {
            is_refused(&whole[..random.below(whole.len())], *batch);
        }
        let ends = NODES.min(whole.len()) + ENDS.min(whole.len());
        let mut bytes = whole.clone();
        for at in 0..(of_nodes + 16).min(whole.len()) {
            bytes[at] = random.below(256) as u8;
            refused += usize::from(is_refused(&bytes, *batch));
            rounds += 1;
            bytes[at] = whole[at];
        }
        for _ in 0..count {
            let mut changed = Vec::new();
            for _ in 0..1 + random.below(4) {
                let at = random.below(ends);
                let at = if at < NODES.min(whole.len()) { at } else { whole.len() - 1 - (ends - 1 - at) };
                changed.push(at);
                bytes[at] = random.below(256) as u8;
            }
            refused += usize::from(is_refused(&bytes, *batch));
            rounds += 1;
            changed.into_iter().for_each(|at| bytes[at] = whole[at]);
        }
    }
    assert_eq!(known().difference(&found).count(), 0, "of {:?} only {found:?} are in a file", known());
    println!("TABLE {refused} of {rounds} damaged files were refused, of {} operators", found.len());
    assert!(refused > rounds / 10 && refused < rounds, "{refused} of {rounds} were refused");
}
