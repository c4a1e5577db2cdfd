//! Which values share a piece of the arena: parts of a Concat, and both names of a Reshape.

use super::fuse::Fused;
use super::{Layout, Place, PlanError};
use crate::graph::{Graph, Op, Shape, ValueId};

/// Where a value lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    /// In a piece of its own.
    Piece(usize),
    /// In another value, so many elements behind the begin of each of its images.
    Within(ValueId, usize),
}

/// The places of all values.
#[derive(Debug)]
pub struct Places {
    layout: Layout,
    homes: Vec<Option<Home>>,
    /// Elements of each piece.
    sizes: Vec<usize>,
}

/// Elements of one image, or of one row of a matrix.
fn image_of(shape: &Shape) -> usize {
    shape.count() / shape.extents().first().unwrap_or(&1)
}

impl Places {
    /// Places for what the steps write.
    pub fn new(graph: &Graph, fused: &[Fused], layout: Layout) -> Result<Places, PlanError> {
        let mut places = Places { layout, homes: vec![None; graph.values.len()], sizes: Vec::new() };
        for one in fused {
            places.check(graph, one)?;
        }
        // From the last to the first: a Concat that is a part of another has its place before its own parts get theirs.
        for one in fused.iter().rev().filter(|one| matches!(one.op, Op::Concat { .. } | Op::Reshape)) {
            places.share(graph, one);
        }
        let computed = graph.inputs.iter().copied().chain(fused.iter().map(|one| one.output));
        for id in computed {
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
        let before = |axis: usize| graph.shape(one.output).extents()[..axis].iter().product::<usize>();
        let problem = match one.op {
            // Of one image whose axes before are 1, in their order.
            Op::Concat { axis }
                if axis != 1
                    && (batch(one.output) != Some(1)
                        || before(axis) != 1
                        || self.layout != Layout::ChannelsFirst) =>
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

    /// Whether a Reshape leaves the elements where they are.
    fn keeps_order(&self, graph: &Graph, one: &Fused) -> bool {
        let plain = |id: ValueId| match graph.shape(id).image() {
            Some([_, channels, rows, columns]) => channels == 1 || rows * columns == 1,
            None => true,
        };
        let last = self.layout == Layout::ChannelsLast;
        !last || (plain(one.inputs[0]) && plain(one.output) && self.homes[one.output.0].is_none())
    }

    /// How far each part of a Concat lies behind the begin of an image; a Reshape has one part.
    fn offsets(&self, graph: &Graph, one: &Fused) -> Vec<usize> {
        let mut offset = 0;
        let mut next = |id: &ValueId| {
            let shape = graph.shape(*id);
            let channels = shape.extents().get(1).copied().unwrap_or(1);
            let before = offset;
            offset += if self.layout == Layout::ChannelsLast { channels } else { image_of(shape) };
            before
        };
        one.inputs.iter().map(&mut next).collect()
    }

    /// Gives what a Concat or Reshape reads its place in what it writes, if it has none yet.
    fn share(&mut self, graph: &Graph, one: &Fused) {
        if one.op == Op::Reshape && !self.keeps_order(graph, one) {
            return;
        }
        for (&id, offset) in one.inputs.iter().zip(self.offsets(graph, one)) {
            if self.homes[id.0].is_none() && graph.constant(id).is_none() && !graph.inputs.contains(&id) {
                self.homes[id.0] = Some(Home::Within(one.output, offset));
            }
        }
    }

    /// A value's place. It is no constant.
    pub fn of(&self, graph: &Graph, id: ValueId) -> Place {
        let shape = graph.shape(id);
        let (channel, pixel) = strides(shape, self.layout);
        match self.homes[id.0].expect("every computed value has a home") {
            Home::Piece(piece) => Place { piece, offset: 0, image: image_of(shape), channel, pixel },
            Home::Within(whole, offset) => {
                let around = self.of(graph, whole);
                let in_image = self.layout == Layout::ChannelsLast && graph.shape(whole).image().is_some();
                let pixel = if in_image { around.pixel } else { pixel };
                Place { offset: around.offset + offset, channel, pixel, ..around }
            }
        }
    }

    /// What a Concat or Reshape reads and does not find in its place yet: the number of the input, and the place.
    pub fn missing(&self, graph: &Graph, one: &Fused) -> Vec<(usize, Place)> {
        let whole = self.of(graph, one.output);
        let offsets = self.offsets(graph, one).into_iter().enumerate();
        let missing = offsets
            .filter(|&(at, offset)| self.homes[one.inputs[at].0] != Some(Home::Within(one.output, offset)));
        let place = |(at, offset): (usize, usize)| {
            if one.op == Op::Reshape {
                return (at, whole);
            }
            let (channel, pixel) = strides(graph.shape(one.inputs[at]), self.layout);
            let pixel = if self.layout == Layout::ChannelsLast { whole.pixel } else { pixel };
            (at, Place { offset: whole.offset + offset, channel, pixel, ..whole })
        };
        missing.map(place).collect()
    }

    /// Elements of each piece.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }
}

/// From one channel to the next and from one pixel to the next, of a value that lies by itself.
fn strides(shape: &Shape, layout: Layout) -> (usize, usize) {
    match (shape.image(), layout) {
        (Some([_, _, rows, columns]), Layout::ChannelsFirst) => (rows * columns, 1),
        (Some([_, channels, ..]), Layout::ChannelsLast) => (1, channels),
        (None, _) => (1, 1),
    }
}
