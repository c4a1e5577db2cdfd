//! Which values share a piece of the arena: parts of a Concat, and both names of a Reshape.

use super::fuse::Fused;
use super::{Format, Layout, Place, PlanError, Precision};
use crate::graph::{Graph, Op, Shape, ValueId};

/// In which other value a value lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    /// A part of a Concat's result, so many elements behind the begin of each image.
    Part(ValueId, usize),
    /// The same elements as a Reshape's result.
    Alias(ValueId),
}

/// The places of all values.
#[derive(Debug)]
pub struct Places {
    layout: Layout,
    within: Vec<Option<Within>>,
    places: Vec<Option<Place>>,
    /// Elements of each piece.
    sizes: Vec<usize>,
}

/// Elements of one image, or of one row of a matrix.
fn image_of(shape: &Shape) -> usize {
    shape.count() / shape.extents().first().unwrap_or(&1)
}

impl Places {
    /// Places for what the steps write.
    pub fn new(
        graph: &Graph,
        fused: &[Fused],
        in_slots: &[ValueId],
        format: Format,
    ) -> Result<Places, PlanError> {
        let layout = format.layout;
        let count = graph.values.len();
        let mut places =
            Places { layout, within: vec![None; count], places: vec![None; count], sizes: Vec::new() };
        for one in fused {
            places.check(graph, one)?;
        }
        // From the last to the first: a Concat that is a part of another has its place before its own parts
        // get theirs.
        let joining = || fused.iter().rev().filter(|one| matches!(one.op, Op::Concat { .. } | Op::Reshape));
        joining().for_each(|one| places.share(graph, one));
        let inputs = graph.inputs.iter().filter(|id| !in_slots.contains(id)).map(|&id| (id, 1));
        for (id, unit) in inputs.chain(fused.iter().map(|one| (one.output, channel_unit(one, format)))) {
            if places.within[id.0].is_none() && places.places[id.0].is_none() {
                let [batch, channels, rows, columns] = graph.shape(id).parts();
                let (channel, pixel) = strides(graph.shape(id), layout);
                let image = channels.next_multiple_of(unit) * rows * columns;
                let pixel = if unit > 1 { channels.next_multiple_of(unit) } else { pixel };
                places.places[id.0] =
                    Some(Place { piece: places.sizes.len(), offset: 0, image, channel, pixel });
                places.sizes.push(image * batch);
            }
        }
        for one in joining() {
            one.inputs.iter().for_each(|&id| places.resolve(graph, id));
        }
        Ok(places)
    }

    /// The place of a value within another one, whose place is known.
    fn resolve(&mut self, graph: &Graph, id: ValueId) {
        let (channel, pixel) = strides(graph.shape(id), self.layout);
        self.places[id.0] = match self.within[id.0] {
            Some(Within::Part(whole, offset)) => Some(self.part(graph, id, self.of(whole), offset)),
            Some(Within::Alias(whole)) => Some(Place { channel, pixel, ..self.of(whole) }),
            None => return,
        };
    }

    /// The place of a part of a Concat's result.
    fn part(&self, graph: &Graph, id: ValueId, whole: Place, offset: usize) -> Place {
        let shape = graph.shape(id);
        let (channel, pixel) = strides(shape, self.layout);
        let apart = self.layout == Layout::ChannelsLast && shape.image().is_some();
        Place {
            offset: whole.offset + offset,
            channel,
            pixel: if apart { whole.pixel } else { pixel },
            ..whole
        }
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
        !last || (plain(one.inputs[0]) && plain(one.output) && self.within[one.output.0].is_none())
    }

    /// How far each part of a Concat lies behind the begin of an image; a Reshape has one part.
    fn offsets(&self, graph: &Graph, one: &Fused) -> Vec<usize> {
        let mut offset = 0;
        let mut next = |id: &ValueId| {
            let shape = graph.shape(*id);
            let before = offset;
            offset += match (self.layout, shape.image()) {
                (Layout::ChannelsLast, Some([_, channels, ..])) => channels,
                _ => image_of(shape),
            };
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
            if self.within[id.0].is_none() && graph.constant(id).is_none() && !graph.inputs.contains(&id) {
                let within = if one.op == Op::Reshape {
                    Within::Alias(one.output)
                } else {
                    Within::Part(one.output, offset)
                };
                self.within[id.0] = Some(within);
            }
        }
    }

    /// A value's place. It is no constant.
    pub fn of(&self, id: ValueId) -> Place {
        self.places[id.0].expect("every computed value has a place")
    }

    /// What a Concat or Reshape reads and does not find in its place yet: the number of the input, and the
    /// place.
    pub fn missing(&self, graph: &Graph, one: &Fused) -> Vec<(usize, Place)> {
        let whole = self.of(one.output);
        let wanted = self.offsets(graph, one).into_iter().enumerate();
        let missing = wanted.filter_map(|(at, offset)| {
            let id = one.inputs[at];
            let (there, place) = match one.op {
                Op::Reshape => (Within::Alias(one.output), whole),
                _ => (Within::Part(one.output, offset), self.part(graph, id, whole, offset)),
            };
            (self.within[id.0] != Some(there)).then_some((at, place))
        });
        missing.collect()
    }

    /// Elements of each piece.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }
}

/// A pixel of what a convolution writes by itself has room for a multiple of so many channels: tensor cores
/// write 16 bytes at a time, and a kernel for 9 channels takes longer than one for 16.
fn channel_unit(one: &Fused, format: Format) -> usize {
    match (&one.op, format) {
        (Op::Conv { groups: 1, .. }, Format { layout: Layout::ChannelsLast, precision })
            if precision != Precision::Single =>
        {
            16 / precision.bytes()
        }
        _ => 1,
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
