//! A linked image read as an ELF file: machine, type, kernels, and the names left for the driver.
//!
//! Follows the ELF-64 specification (System V ABI, chapters 4 and 5); 190 is `EM_CUDA`. nvJitLink leaves
//! `cudaGraphLaunch` undefined without an error, with `libcudadevrt.a` or without, so undefined names are
//! checked here. The bytes may come from a file: every offset in them is checked before use. Left out:
//! relocations, code, debug information.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

/// `e_machine` of an image for a GPU.
pub const EM_CUDA: u16 = 190;
/// `e_type` of an image that can be loaded; 1 still wants a linker.
const ET_EXEC: u16 = 2;
const SHT_SYMTAB: u32 = 2;
/// Most symbols, and the longest name, that are read: far above any image here, and low enough that a forged
/// file costs little memory.
const MOST_SYMBOLS: u64 = 1 << 16;
const LONGEST_NAME: usize = 4096;

/// Whether the driver supplies an undefined name at load: graph launch, a node's condition, bounds of the
/// shared memory that it reserves. (Seen with CUDA 13.0: `offset0` for sm_90, `cap` too for sm_100.) No C
/// name begins with a dot, so the prefix hides none of this code. It would supply `__cuda_syscall_*` too, for
/// kernels that launch kernels: refused here, since no graph that the GPU launches may hold one.
pub fn supplied_by_the_driver(name: &str) -> bool {
    ["cudaGraphLaunch", "cudaGraphSetConditional"].contains(&name) || name.starts_with(".nv.reservedSmem.")
}

/// What is wrong with the bytes of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    #[error("no image: {len} bytes that begin with {start:02x?}, not with an ELF-64 header")]
    NotElf { len: usize, start: Vec<u8> },
    #[error("an ELF file for machine {0}, not for a GPU ({EM_CUDA})")]
    Machine(u16),
    #[error("an ELF file of type {0}, not {ET_EXEC}: it has not been linked")]
    Type(u16),
    /// An offset or length in the file points out of it, or a count is absurd.
    #[error("a damaged image: {what} at {at:#x} reaches {end:#x}, and the file has {len:#x} bytes")]
    OutOfBounds { what: &'static str, at: u64, end: u64, len: u64 },
    #[error("undefined in the image, and not supplied by the driver: {}", .0.join(", "))]
    Undefined(Vec<String>),
}

/// What an image says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFacts {
    /// Names of global functions that are defined: kernels, and device functions that other units call.
    pub functions: BTreeSet<String>,
    /// Names of globals that are not defined.
    pub undefined: BTreeSet<String>,
}

/// Reads an image that is to be loaded. Errors: each of [`ImageError`].
pub fn check(bytes: &[u8]) -> Result<ImageFacts, ImageError> {
    let facts = read(bytes)?;
    let unknown: Vec<String> =
        facts.undefined.iter().filter(|name| !supplied_by_the_driver(name)).cloned().collect();
    if unknown.is_empty() { Ok(facts) } else { Err(ImageError::Undefined(unknown)) }
}

/// As [`check`], but undefined names are only told.
pub fn read(bytes: &[u8]) -> Result<ImageFacts, ImageError> {
    let file = File(bytes);
    // e_ident: magic, then class 2 (64 bits) and data 1 (little endian).
    if bytes.len() < 64 || bytes[..6] != *b"\x7fELF\x02\x01" {
        let start = bytes[..bytes.len().min(6)].to_vec();
        return Err(ImageError::NotElf { len: bytes.len(), start });
    }
    match file.u16(18, "e_machine")? {
        EM_CUDA => {}
        machine => return Err(ImageError::Machine(machine)),
    }
    match file.u16(16, "e_type")? {
        ET_EXEC => {}
        kind => return Err(ImageError::Type(kind)),
    }
    let sections = file.sections()?;
    let mut facts = ImageFacts { functions: BTreeSet::new(), undefined: BTreeSet::new() };
    // The specification allows one symbol table at most.
    if let Some(table) = sections.iter().find(|section| section.kind == SHT_SYMTAB) {
        let names = sections.get(table.link as usize).ok_or_else(|| {
            file.out_of_bounds(
                "the section of the symbols' names",
                u64::from(table.link),
                sections.len() as u64,
            )
        })?;
        file.symbols(table, names, &mut facts)?;
    }
    Ok(facts)
}

/// One section header, as far as it is used.
struct Section {
    kind: u32,
    link: u32,
    offset: u64,
    bytes: u64,
}

/// The whole file; every look into it is checked.
struct File<'a>(&'a [u8]);

impl<'a> File<'a> {
    fn out_of_bounds(&self, what: &'static str, at: u64, end: u64) -> ImageError {
        ImageError::OutOfBounds { what, at, end, len: self.0.len() as u64 }
    }

    fn slice(&self, at: u64, len: u64, what: &'static str) -> Result<&'a [u8], ImageError> {
        let end = at.saturating_add(len);
        let (Ok(from), Ok(to)) = (usize::try_from(at), usize::try_from(end)) else {
            return Err(self.out_of_bounds(what, at, end));
        };
        self.0.get(from..to).ok_or_else(|| self.out_of_bounds(what, at, end))
    }

    fn array<const N: usize>(&self, at: u64, what: &'static str) -> Result<[u8; N], ImageError> {
        let mut array = [0; N];
        array.copy_from_slice(self.slice(at, N as u64, what)?);
        Ok(array)
    }

    fn u16(&self, at: u64, what: &'static str) -> Result<u16, ImageError> {
        self.array(at, what).map(u16::from_le_bytes)
    }

    fn u32(&self, at: u64, what: &'static str) -> Result<u32, ImageError> {
        self.array(at, what).map(u32::from_le_bytes)
    }

    fn u64(&self, at: u64, what: &'static str) -> Result<u64, ImageError> {
        self.array(at, what).map(u64::from_le_bytes)
    }

    /// The section headers: e_shoff, e_shentsize, e_shnum of the file's header.
    fn sections(&self) -> Result<Vec<Section>, ImageError> {
        const WHAT: &str = "a section header";
        let (offset, bytes) = (self.u64(40, "e_shoff")?, u64::from(self.u16(58, "e_shentsize")?));
        let count = u64::from(self.u16(60, "e_shnum")?);
        // All at once, so that an absurd count is refused before anything is made for it.
        self.slice(offset, bytes.saturating_mul(count), "the table of section headers")?;
        (0..count)
            .map(|index| {
                let at = offset.saturating_add(index * bytes);
                Ok(Section {
                    kind: self.u32(at.saturating_add(4), WHAT)?,
                    offset: self.u64(at.saturating_add(24), WHAT)?,
                    bytes: self.u64(at.saturating_add(32), WHAT)?,
                    link: self.u32(at.saturating_add(40), WHAT)?,
                })
            })
            .collect()
    }

    /// The global symbols of a table: st_name, st_info, st_shndx of each 24 bytes.
    fn symbols(&self, table: &Section, names: &Section, facts: &mut ImageFacts) -> Result<(), ImageError> {
        let symbols = self.slice(table.offset, table.bytes, "a symbol table")?;
        let names = self.slice(names.offset, names.bytes, "the names of symbols")?;
        if table.bytes / 24 > MOST_SYMBOLS {
            return Err(self.out_of_bounds("a symbol table", table.offset, table.bytes));
        }
        for symbol in symbols.chunks_exact(24) {
            let global = symbol[4] >> 4 == 1;
            let is_function = symbol[4] & 15 == 2;
            let defined = symbol[6..8] != [0, 0];
            if !global || defined && !is_function {
                continue;
            }
            let at = u32::from_le_bytes([symbol[0], symbol[1], symbol[2], symbol[3]]) as usize;
            let tail = names
                .get(at..)
                .ok_or_else(|| self.out_of_bounds("a symbol's name", at as u64, names.len() as u64))?;
            let name =
                tail[..tail.len().min(LONGEST_NAME)].split(|byte| *byte == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            if defined {
                facts.functions.insert(name)
            } else {
                facts.undefined.insert(name)
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
