//! The attributes of one node. One that the operator's reader did not take is an error: it would change the
//! result.

use zoo::onnx::{self, AttributeKind};

use super::error::{ImportError, label};
use crate::graph::Window;

/// The attributes that were not asked for yet.
pub(super) struct Attributes<'a> {
    node: &'a onnx::Node,
    left: Vec<&'a onnx::Attribute>,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(node: &'a onnx::Node) -> Attributes<'a> {
        Attributes { node, left: node.attribute.iter().collect() }
    }

    pub(super) fn wrong(&self, attribute: &str, problem: impl Into<String>) -> ImportError {
        ImportError::Attribute {
            node: label(self.node),
            attribute: attribute.to_owned(),
            problem: problem.into(),
        }
    }

    fn take(&mut self, name: &str, kind: AttributeKind) -> Result<Option<&'a onnx::Attribute>, ImportError> {
        let Some(at) = self.left.iter().position(|attribute| attribute.name == name) else {
            return Ok(None);
        };
        let found = self.left.swap_remove(at);
        if found.kind != i32::from(kind) {
            return Err(
                self.wrong(name, format!("it is of type {}, not {}", found.kind, format_args!("{kind:?}")))
            );
        }
        Ok(Some(found))
    }

    pub(super) fn int(&mut self, name: &str, default: i64) -> Result<i64, ImportError> {
        Ok(self.take(name, AttributeKind::Int)?.map_or(default, |attribute| attribute.i))
    }

    pub(super) fn float(&mut self, name: &str, default: f32) -> Result<f32, ImportError> {
        let value = self.take(name, AttributeKind::Float)?.map_or(default, |attribute| attribute.f);
        if value.is_finite() {
            Ok(value)
        } else {
            Err(self.wrong(name, format!("{value} is no finite number")))
        }
    }

    pub(super) fn ints(&mut self, name: &str) -> Result<Option<&'a [i64]>, ImportError> {
        Ok(self.take(name, AttributeKind::Ints)?.map(|attribute| attribute.ints.as_slice()))
    }

    pub(super) fn tensor(&mut self, name: &str) -> Result<Option<&'a onnx::Tensor>, ImportError> {
        Ok(self.take(name, AttributeKind::Tensor)?.and_then(|attribute| attribute.t.as_ref()))
    }

    pub(super) fn text(&mut self, name: &str, default: &str) -> Result<String, ImportError> {
        let found = self.take(name, AttributeKind::String)?;
        Ok(found.map_or(default.to_owned(), |attribute| String::from_utf8_lossy(&attribute.s).into_owned()))
    }

    /// Asks for an attribute that changes nothing here.
    pub(super) fn ignore(&mut self, name: &str) {
        self.left.retain(|attribute| attribute.name != name);
    }

    /// Asks for an attribute that must have this value, if it is there.
    pub(super) fn only(&mut self, name: &str, value: i64, why: &str) -> Result<(), ImportError> {
        let found = self.int(name, value)?;
        if found == value { Ok(()) } else { Err(self.wrong(name, format!("{found}: {why}"))) }
    }

    /// The error of the first attribute that was not asked for.
    pub(super) fn finish(self) -> Result<(), ImportError> {
        match self.left.first() {
            Some(left) => Err(self.wrong(&left.name, "the operator has no such attribute here")),
            None => Ok(()),
        }
    }

    /// The window of a convolution or pooling over images of these rows and columns. `kernel`: what the
    /// weights say.
    pub(super) fn window(
        &mut self,
        kernel: Option<[usize; 2]>,
        image: [usize; 2],
    ) -> Result<Window, ImportError> {
        let kernel = match (self.pair("kernel_shape")?, kernel) {
            (Some(kernel), _) | (None, Some(kernel)) => kernel,
            (None, None) => return Err(self.wrong("kernel_shape", "it is missing")),
        };
        let stride = self.pair("strides")?.unwrap_or([1, 1]);
        let dilation = self.pair("dilations")?.unwrap_or([1, 1]);
        if [kernel, stride, dilation].as_flattened().contains(&0) {
            return Err(self.wrong("kernel_shape", "a kernel, stride or dilation of 0"));
        }
        let pads = self.pads(kernel, stride, dilation, image)?;
        Ok(Window { kernel, stride, pads, dilation, round_up: false })
    }

    /// The window of a pooling. It sees the image wherever it is: pads are smaller than it reaches.
    pub(super) fn pool(&mut self, image: [usize; 2]) -> Result<Window, ImportError> {
        let round_up = self.int("ceil_mode", 0)? != 0;
        let window = self.window(None, image)?;
        let reach = |axis: usize| (window.kernel[axis] - 1) * window.dilation[axis] + 1;
        if (0..4).any(|side| window.pads[side] >= reach(side % 2)) {
            return Err(self.wrong("pads", format!("{:?} are not smaller than the window", window.pads)));
        }
        Ok(Window { round_up, ..window })
    }

    fn pads(
        &mut self,
        kernel: [usize; 2],
        stride: [usize; 2],
        dilation: [usize; 2],
        image: [usize; 2],
    ) -> Result<[usize; 4], ImportError> {
        let given = self.sizes::<4>("pads")?;
        let rule = self.text("auto_pad", "NOTSET")?;
        let upper = match rule.as_str() {
            "NOTSET" => return Ok(given.unwrap_or_default()),
            _ if given.is_some() => {
                return Err(self.wrong("pads", format!("they are given beside auto_pad {rule}")));
            }
            "VALID" => return Ok([0; 4]),
            "SAME_UPPER" => true,
            "SAME_LOWER" => false,
            _ => return Err(self.wrong("auto_pad", format!("there is no rule {rule}"))),
        };
        let mut pads = [0; 4];
        for axis in 0..2 {
            let steps = image[axis].div_ceil(stride[axis]) - 1;
            let all =
                (steps * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1).saturating_sub(image[axis]);
            let (less, more) = (all / 2, all - all / 2);
            (pads[axis], pads[axis + 2]) = if upper { (less, more) } else { (more, less) };
        }
        Ok(pads)
    }

    fn pair(&mut self, name: &str) -> Result<Option<[usize; 2]>, ImportError> {
        self.sizes::<2>(name)
    }

    /// So many sizes, each below 2^16.
    fn sizes<const COUNT: usize>(&mut self, name: &str) -> Result<Option<[usize; COUNT]>, ImportError> {
        let Some(ints) = self.ints(name)? else {
            return Ok(None);
        };
        let sizes: Option<Vec<usize>> =
            ints.iter().map(|&int| u16::try_from(int).ok().map(usize::from)).collect();
        let sizes = sizes.and_then(|sizes| sizes.try_into().ok());
        let sizes =
            sizes.ok_or_else(|| self.wrong(name, format!("{ints:?} are not {COUNT} sizes below 65536")))?;
        Ok(Some(sizes))
    }
}
