//! Units in, image out: the cache asked first, then compiler and linker, loaded only when they are needed.
//!
//! A cache entry stands for every text, flag, the architecture, and the toolkit's files by name, length and
//! date (NVRTC tells no patch level). Headers that a flag points to are not in it, except the toolkit's own.

#![forbid(unsafe_code)]

use std::sync::OnceLock;

use super::compile::{Arch, Compiler, Form, Unit};
use super::link::Linker;
use super::toolkit::Toolkit;
use crate::cache::{Cache, Key, KeyBuilder, Origin};
use crate::image::{self, ImageFacts};
use crate::result::BuildError;

/// An image that can be loaded on a GPU of its architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The ELF file.
    pub bytes: Vec<u8>,
    /// What it was linked for.
    pub arch: Arch,
    /// Its functions, and what the driver is to supply.
    pub facts: ImageFacts,
    /// Whether it was built or came from disk.
    pub origin: Origin,
}

/// Makes images with one toolkit.
#[derive(Debug)]
pub struct ImageBuilder {
    toolkit: Toolkit,
    cache: Cache,
    /// Loading them takes longer than reading an image from disk.
    tools: OnceLock<Result<(Compiler, Linker), BuildError>>,
}

impl ImageBuilder {
    /// With this toolkit and this cache; loads nothing yet.
    pub fn new(toolkit: Toolkit, cache: Cache) -> ImageBuilder {
        ImageBuilder { toolkit, cache, tools: OnceLock::new() }
    }

    pub fn toolkit(&self) -> &Toolkit {
        &self.toolkit
    }

    /// Compiler and linker, loaded now if they were not yet.
    pub fn tools(&self) -> Result<(&Compiler, &Linker), BuildError> {
        let load = || Ok((Compiler::load(&self.toolkit)?, Linker::load(&self.toolkit)?));
        match self.tools.get_or_init(load) {
            Ok((compiler, linker)) => Ok((compiler, linker)),
            Err(error) => Err(error.clone()),
        }
    }

    /// The image of `units` for `arch`, by way of `form`. Errors: the compiler's and the linker's with their
    /// logs, and `Image` when the result could not be loaded.
    pub fn image(&self, units: &[Unit], arch: Arch, form: Form) -> Result<Image, BuildError> {
        let key = self.key(units, arch, form);
        let (bytes, origin) = self.cache.get_or_build(&key, || self.build(units, arch, form))?;
        let facts = image::check(&bytes)
            .map_err(|error| BuildError::Image { units: names(units), reason: error.to_string() })?;
        Ok(Image { bytes, arch, facts, origin })
    }

    fn build(&self, units: &[Unit], arch: Arch, form: Form) -> Result<Vec<u8>, BuildError> {
        let (compiler, linker) = self.tools()?;
        let compiled = units.iter().map(|unit| compiler.compile(unit, arch, form));
        linker.link(&compiled.collect::<Result<Vec<_>, _>>()?, arch)
    }

    fn key(&self, units: &[Unit], arch: Arch, form: Form) -> Key {
        let mut key = KeyBuilder::default()
            .part("toolkit", self.toolkit.fingerprint().as_bytes())
            .part("arch", arch.to_string().as_bytes())
            .part("form", format!("{form:?}").as_bytes());
        for unit in units {
            key = key.part("unit", unit.name.as_bytes()).part("text", unit.text.as_bytes());
            for (name, text) in &unit.headers {
                key = key.part("header", name.as_bytes()).part("header text", text.as_bytes());
            }
            for flag in &unit.flags {
                key = key.part("flag", flag.as_bytes());
            }
        }
        key.key()
    }
}

fn names(units: &[Unit]) -> String {
    units.iter().map(|unit| unit.name.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn builder(folder: &Path) -> ImageBuilder {
        let file = |name: &str| folder.join(name);
        let toolkit = Toolkit {
            root: folder.into(),
            nvrtc: file("libnvrtc.so.13"),
            builtins: file("libnvrtc-builtins.so.13.0"),
            jit_link: file("libnvJitLink.so.13"),
            device_runtime: file("libcudadevrt.a"),
            include: vec![],
        };
        ImageBuilder::new(toolkit, Cache::off())
    }

    #[test]
    fn all_that_an_image_depends_on_is_in_its_key() {
        let folder = std::env::temp_dir().join(format!("gpu-key-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvJitLink.so.13", "libcudadevrt.a"] {
            fs::write(folder.join(name), "13.0").unwrap();
        }
        let (unit, arch) = (Unit::new("a.cu", "int a;").header("a.h", "int b;"), Arch::sm(90));
        let key = |units: &[Unit], arch, form| builder(&folder).key(units, arch, form);
        let first = key(std::slice::from_ref(&unit), arch, Form::Cubin);
        assert_eq!(first, key(std::slice::from_ref(&unit), arch, Form::Cubin));
        let mut other_header = unit.clone();
        other_header.headers[0].1.push(' ');
        let mut keys = vec![
            ("text", key(&[Unit { text: "int c;".into(), ..unit.clone() }], arch, Form::Cubin)),
            ("name", key(&[Unit { name: "b.cu".into(), ..unit.clone() }], arch, Form::Cubin)),
            ("header", key(&[other_header], arch, Form::Cubin)),
            ("flag", key(&[unit.clone().flag("-G")], arch, Form::Cubin)),
            ("second unit", key(&[unit.clone(), unit.clone()], arch, Form::Cubin)),
            ("architecture", key(std::slice::from_ref(&unit), Arch::sm(100), Form::Cubin)),
            ("form", key(std::slice::from_ref(&unit), arch, Form::Ptx)),
        ];
        fs::write(folder.join("libnvrtc.so.13"), "13.0, with a patch").unwrap();
        keys.push(("compiler", key(&[unit], arch, Form::Cubin)));
        fs::remove_dir_all(&folder).unwrap();
        for (index, (name, key)) in keys.iter().enumerate() {
            assert!(*key != first && keys[..index].iter().all(|(_, earlier)| earlier != key), "{name}");
        }
    }
}
