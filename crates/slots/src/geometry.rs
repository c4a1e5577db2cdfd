//! Where the tensors of a model lie in a slot. Made of the model's manifest alone: no option changes it.

use crate::layout::{ALIGNMENT, Entry, FLAG_BYTES, Header, MOST_TENSORS, PREFIX_BYTES, TensorKind};

/// A tensor of a model: the kind of its elements, and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    pub kind: TensorKind,
    pub count: usize,
}

/// Why there is no geometry for these tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    #[error("{0} tensors in one message; it has one at least and {MOST_TENSORS} at most")]
    Tensors(usize),
    #[error("a tensor without elements")]
    Empty,
    #[error("a message of more than 4 GiB")]
    TooLong,
}

/// A request, or an answer: the prefix (header and table), tensors, and the tail flag as its last bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    entries: Vec<Entry>,
    /// Where the tail flag lies.
    pub tail: usize,
}

impl Message {
    fn new(tensors: &[Tensor]) -> Result<Message, GeometryError> {
        if !(1..=MOST_TENSORS).contains(&tensors.len()) {
            return Err(GeometryError::Tensors(tensors.len()));
        }
        let (mut entries, mut end) = (Vec::new(), PREFIX_BYTES);
        for tensor in tensors {
            if tensor.count == 0 {
                return Err(GeometryError::Empty);
            }
            let bytes = tensor.kind.bytes().checked_mul(tensor.count).ok_or(GeometryError::TooLong)?;
            let narrow = |number: usize| u32::try_from(number).map_err(|_| GeometryError::TooLong);
            let offset = end.next_multiple_of(ALIGNMENT);
            end = offset.checked_add(bytes).ok_or(GeometryError::TooLong)?;
            narrow(end.checked_add(ALIGNMENT).ok_or(GeometryError::TooLong)?)?;
            entries.push(Entry {
                offset: narrow(offset)?,
                length: narrow(bytes)?,
                kind: tensor.kind.number(),
            });
        }
        Ok(Message { entries, tail: end.next_multiple_of(FLAG_BYTES) })
    }

    /// Of the whole message, the tail flag included.
    pub fn bytes(&self) -> usize {
        self.tail + FLAG_BYTES
    }

    /// One entry for each tensor, in the model's order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// What the table behind the header has to be; entries that are not used are 0.
    pub fn table(&self) -> [u8; PREFIX_BYTES - Header::BYTES] {
        let mut table = [0; PREFIX_BYTES - Header::BYTES];
        for (bytes, entry) in table.chunks_exact_mut(Entry::BYTES).zip(&self.entries) {
            bytes.copy_from_slice(&entry.bytes());
        }
        table
    }

    /// Header and table, as a message begins.
    pub fn prefix(&self, header: &Header) -> [u8; PREFIX_BYTES] {
        let header = Header { tensors: self.entries.len() as u16, ..*header };
        let mut prefix = [0; PREFIX_BYTES];
        prefix[..Header::BYTES].copy_from_slice(&header.bytes());
        prefix[Header::BYTES..].copy_from_slice(&self.table());
        prefix
    }
}

/// A slot of one model. On the server it has the request and, behind it, the answer; on the client the answer
/// has the same layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    pub model_id: u32,
    pub request: Message,
    pub answer: Message,
}

impl Geometry {
    /// Of a model with these inputs and outputs. Errors: too many tensors, or too long ones.
    pub fn new(model_id: u32, inputs: &[Tensor], outputs: &[Tensor]) -> Result<Geometry, GeometryError> {
        Ok(Geometry { model_id, request: Message::new(inputs)?, answer: Message::new(outputs)? })
    }

    /// Where the answer begins in the server's slot.
    pub fn answer_offset(&self) -> usize {
        self.request.bytes().next_multiple_of(ALIGNMENT)
    }

    /// From one slot of the server to the next.
    pub fn server_stride(&self) -> usize {
        self.answer_offset() + self.client_stride()
    }

    /// From one slot of a client to the next.
    pub fn client_stride(&self) -> usize {
        self.answer.bytes().next_multiple_of(ALIGNMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(count: usize) -> Tensor {
        Tensor { kind: TensorKind::F32, count }
    }

    #[test]
    fn tensors_lie_on_lines_of_their_own_and_the_tail_flag_is_last() {
        let bytes = Tensor { kind: TensorKind::U8, count: 65 };
        let geometry = Geometry::new(3, &[f32s(3), bytes], &[f32s(1000)]).unwrap();
        let at: Vec<[u32; 2]> =
            geometry.request.entries().iter().map(|entry| [entry.offset, entry.length]).collect();
        assert_eq!(at, [[192, 12], [256, 65]]);
        assert_eq!((geometry.request.tail, geometry.request.bytes()), (328, 336));
        assert_eq!((geometry.answer_offset(), geometry.answer.tail), (384, 4192));
        assert_eq!((geometry.client_stride(), geometry.server_stride()), (4224, 4608));
    }

    #[test]
    fn the_table_is_part_of_the_prefix_and_ends_with_zeros() {
        let geometry = Geometry::new(3, &[f32s(3)], &[f32s(1)]).unwrap();
        let prefix = geometry.request.prefix(&Header { slot: 9, ..Header::default() });
        let header = Header::read(&prefix).unwrap();
        assert_eq!((header.slot, header.tensors), (9, 1));
        assert_eq!(Entry::read(&prefix[Header::BYTES..]), Some(Entry { offset: 192, length: 12, kind: 1 }));
        assert!(prefix[Header::BYTES + Entry::BYTES..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_no_header_can_say_is_refused() {
        let of = |inputs: &[Tensor]| Geometry::new(0, inputs, &[f32s(1)]).unwrap_err();
        assert_eq!(of(&[]), GeometryError::Tensors(0));
        assert_eq!(of(&[f32s(1); 9]), GeometryError::Tensors(9));
        assert_eq!(of(&[f32s(1), f32s(0)]), GeometryError::Empty);
        assert_eq!(of(&[f32s(1 << 30)]), GeometryError::TooLong);
        assert_eq!(of(&[f32s(usize::MAX)]), GeometryError::TooLong);
        for less in [192, 193, 200, 260] {
            let count = usize::MAX - less;
            assert_eq!(of(&[Tensor { kind: TensorKind::U8, count }]), GeometryError::TooLong);
        }
        assert_eq!(of(&[f32s((1 << 30) - 64)]), GeometryError::TooLong);
    }
}
