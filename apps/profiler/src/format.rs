//! How values lie in an engine's memory: `--precision` and `--layout`, and which of them an engine has.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use inference::plan::{self, Format};
use serde::Serialize;

use crate::engine::Engine;

/// Precision and layout, as they were asked for. Not a group of options: clap names those by the type.
#[derive(Args)]
#[group(skip)]
pub struct Choice {
    /// Precision of values; tf32 with --engine cuda, fp16 has NHWC alone.
    #[arg(long, value_enum, default_value_t = Precision::Fp32)]
    pub precision: Precision,
    /// Order of an image's axes [default: nhwc for fp16, auto for --engine cuda, else nchw].
    #[arg(long, value_enum)]
    layout: Option<Layout>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision.
    Fp32,
    /// Single precision; libraries round factors to 10 bits for tensor cores.
    Tf32,
    /// Half precision; sums and biases are in single precision.
    Fp16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// The columns of an image fastest.
    Nchw,
    /// The channels fastest.
    Nhwc,
    /// Both are loaded and timed on the GPU; the faster one is taken.
    Auto,
}

impl Layout {
    /// That of a plan.
    pub fn of(format: Format) -> Layout {
        match format.layout {
            plan::Layout::ChannelsFirst => Layout::Nchw,
            plan::Layout::ChannelsLast => Layout::Nhwc,
        }
    }
}

impl Choice {
    /// The formats of which the engine takes the fastest; none for an engine with formats of its own.
    pub fn formats(&self, engine: Engine) -> Result<Vec<Format>> {
        use plan::Layout::{ChannelsFirst, ChannelsLast};
        if engine == Engine::Cpu {
            ensure!(
                self.precision == Precision::Fp32 && self.layout.is_none(),
                "--precision and --layout are for our plans: ONNX Runtime computes the file as it is"
            );
            return Ok(Vec::new());
        }
        ensure!(
            self.precision != Precision::Tf32 || engine == Engine::Cuda,
            "--precision tf32 is for --engine cuda: our kernels do not round factors; take fp32 or fp16"
        );
        ensure!(
            self.precision != Precision::Fp16 || self.layout != Some(Layout::Nchw),
            "--precision fp16 has --layout nhwc alone, as tensor cores read it"
        );
        ensure!(
            engine != Engine::Twin || self.layout != Some(Layout::Auto),
            "--layout auto times both on a GPU: name one for --engine twin"
        );
        let precision = match self.precision {
            Precision::Fp32 => plan::Precision::Single,
            Precision::Tf32 => plan::Precision::Tf32,
            Precision::Fp16 => plan::Precision::Half,
        };
        let layouts: &[plan::Layout] = match (self.precision, self.layout) {
            (Precision::Fp16, _) | (_, Some(Layout::Nhwc)) => &[ChannelsLast],
            (_, Some(Layout::Auto)) => &[ChannelsFirst, ChannelsLast],
            (_, None) if engine == Engine::Cuda => &[ChannelsFirst, ChannelsLast],
            (_, Some(Layout::Nchw) | None) => &[ChannelsFirst],
        };
        Ok(layouts.iter().map(|&layout| Format { precision, layout }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::name;

    /// What an engine tries, as `nchw nhwc`; or the refusal.
    fn tried(engine: Engine, precision: Precision, layout: Option<Layout>) -> String {
        match (Choice { precision, layout }).formats(engine) {
            Ok(formats) => {
                let names = formats.iter().map(|&format| name(Layout::of(format)));
                names.collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn each_engine_has_its_formats_and_refuses_the_others() {
        use {Engine::*, Layout::*, Precision::*};
        for (engine, precision, layout, wanted) in [
            (Cpu, Fp32, None, ""),
            (Cpu, Fp32, Some(Nchw), "are for our plans"),
            (Cpu, Fp16, None, "are for our plans"),
            (Twin, Fp32, None, "nchw"),
            (Twin, Fp16, None, "nhwc"),
            (Twin, Fp32, Some(Auto), "name one"),
            (Twin, Tf32, None, "for --engine cuda"),
            (Own, Fp32, None, "nchw"),
            (Own, Fp32, Some(Nhwc), "nhwc"),
            (Own, Fp32, Some(Auto), "nchw nhwc"),
            (Own, Tf32, None, "for --engine cuda"),
            (Own, Fp16, Some(Nchw), "nhwc alone"),
            (Cuda, Fp32, None, "nchw nhwc"),
            (Cuda, Tf32, None, "nchw nhwc"),
            (Cuda, Tf32, Some(Nchw), "nchw"),
            (Cuda, Fp16, None, "nhwc"),
            (Cuda, Fp16, Some(Auto), "nhwc"),
        ] {
            let found = tried(engine, precision, layout);
            let is_refusal = wanted.contains(' ') && wanted != "nchw nhwc";
            let is_right = if is_refusal { found.contains(wanted) } else { found == wanted };
            assert!(is_right, "{engine:?} {precision:?} {layout:?}: {found}");
        }
    }
}
