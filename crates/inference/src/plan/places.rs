//! Which values share a piece of the arena: parts of a Concat, and both names of a Reshape.

use super::fuse::Fused;
use super::{Place, PlanError};
use crate::graph::{Graph, Op, ValueId};

/// Where a value lies.
#[derive(Debug, Clone, Copy)]
enum Home {
    /// In a piece of its own.
    Piece(usize),
    /// In another value, so many elements behind the begin of each of its images.
    Within(ValueId, usize),
}

/// The places of all values.
#[derive(Debug)]
pub struct Places {
    homes: Vec<Option<Home>>,
    /// Elements of one image of each value, and of the whole.
    images: Vec<usize>,
    /// Elements of each piece.
    sizes: Vec<usize>,
}

impl Places {
    /// Places for what the steps write.
    pub fn new(graph: &Graph, fused: &[Fused]) -> Result<Places, PlanError> {
        let image = |shape: &crate::graph::Shape| shape.count() / shape.extents().first().unwrap_or(&1);
        let images = graph.values.iter().map(|value| image(&value.shape)).collect();
        let mut places = Places { homes: vec![None; graph.values.len()], images, sizes: Vec::new() };
        for one in fused {
            places.check(graph, one)?;
        }
        // From the last to the first: a Concat that is a part of another has its place before its own parts get theirs.
        for one in fused.iter().rev().filter(|one| matches!(one.op, Op::Concat { .. } | Op::Reshape)) {
            places.share(graph, one);
        }
        let computed = graph.inputs.iter().copied().chain(fused.iter().map(|one| one.output));
        for id in computed.collect::<Vec<_>>() {
            if places.homes[id.0].is_none() {
                places.homes[id.0] = Some(Home::Piece(places.sizes.len()));
                places.sizes.push(graph.shape(id).count());
            }
        }
        Ok(places)
    }

    /// Whether images stay one behind the other.
    fn check(&self, graph: &Graph, one: &Fused) -> Result<(), PlanError> {
        let batch = |id: ValueId| graph.shape(id).extents().first().copied();
        let before = |id: ValueId, axis: usize| graph.shape(id).extents()[..axis].iter().product::<usize>();
        let problem = match one.op {
            Op::Concat { axis }
                if axis != 1 && (batch(one.output) != Some(1) || before(one.output, axis) != 1) =>
            {
                format!("a Concat along axis {axis}")
            }
            Op::Reshape if batch(one.output) != batch(one.inputs[0]) => {
                format!("{} becomes {}", graph.shape(one.inputs[0]), graph.shape(one.output))
            }
            _ => return Ok(()),
        };
        Err(PlanError::Layout { name: one.names.join(" "), problem })
    }

    /// Gives what a Concat or Reshape reads its place in what it writes, if it has none yet.
    fn share(&mut self, graph: &Graph, one: &Fused) {
        let mut offset = 0;
        for &id in &one.inputs {
            let free =
                self.homes[id.0].is_none() && graph.constant(id).is_none() && !graph.inputs.contains(&id);
            // A value that is its own part would lie in itself.
            if free && id != one.output {
                self.homes[id.0] = Some(Home::Within(one.output, offset));
            }
            offset += self.images[id.0];
        }
    }

    /// A value's place. It is no constant.
    pub fn of(&self, id: ValueId) -> Place {
        match self.homes[id.0].expect("every computed value has a home") {
            Home::Piece(piece) => Place { piece, offset: 0, batch_stride: self.images[id.0] },
            Home::Within(whole, offset) => {
                let place = self.of(whole);
                Place { offset: place.offset + offset, ..place }
            }
        }
    }

    /// Where each input of a Concat or Reshape is wanted.
    pub fn wanted(&self, graph: &Graph, one: &Fused) -> Vec<Place> {
        let whole = self.of(one.output);
        let mut offset = whole.offset;
        let mut next = |id: &ValueId| {
            let place = Place { offset, ..whole };
            offset += graph.shape(*id).count() / graph.shape(*id).extents().first().unwrap_or(&1);
            place
        };
        one.inputs.iter().map(&mut next).collect()
    }

    /// Elements of each piece.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }
}
