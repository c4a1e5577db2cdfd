//! Whether LD_PRELOAD can reach a program: found, executable, 64-bit x86, dynamically linked with glibc, with
//! no more rights than ours. And which sanitizer's run-time library must stand before ours there.
//!
//! ELF fields as in the System V ABI (gABI chapters 4 and 5). Of script interpreters, only `env` is followed
//! to the program that it starts.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Interpreters of interpreters that Linux follows.
const MAX_SCRIPTS: usize = 5;

/// A file that the kernel cannot execute.
const NEITHER: &str = "neither an ELF program nor a script with #!";

/// The file that `execvp` would start: the first executable one with the name, a path as it is. If none is
/// executable, the first. [`check`] refuses both.
pub fn find(name: &OsStr) -> Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    let places = std::env::split_paths(&search).map(|folder| folder.join(name));
    let files: Vec<PathBuf> = places.filter(|path| path.is_file()).collect();
    let is_executable =
        |path: &&PathBuf| path.metadata().is_ok_and(|found| found.permissions().mode() & 0o111 != 0);
    let found = files.iter().find(is_executable).or(files.first());
    found
        .cloned()
        .with_context(|| format!("{}: not found in PATH; install it, or give its path", name.display()))
}

/// Refuses what LD_PRELOAD cannot reach, by name and reason; returns the library that must stand first.
pub fn check(path: &Path) -> Result<Option<String>> {
    let mut path = path.to_owned();
    for _ in 0..MAX_SCRIPTS {
        check_rights(&path)?;
        let file = File::open(&path).with_context(|| {
            format!("{}: cannot be read; softnic must see that it is dynamically linked", path.display())
        })?;
        let mut head = Vec::new();
        (&file).take(4096).read_to_end(&mut head).context("reading a program")?;
        let refused = match head.strip_prefix(b"#!").map(script) {
            Some(Some(interpreter)) => {
                path = interpreter;
                continue;
            }
            Some(None) => NEITHER,
            None => match elf(&head, |at, room| file.read_exact_at(room, at).is_ok()) {
                Ok(first) => return Ok(first),
                Err(refused) => refused,
            },
        };
        bail!(
            "{}: {refused}; softnic needs a 64-bit x86 Linux program that is dynamically linked with glibc, or a script",
            path.display()
        );
    }
    bail!("{}: a script of scripts of scripts; give the program itself", path.display())
}

fn check_rights(path: &Path) -> Result<()> {
    let found =
        path.metadata().with_context(|| format!("{}: no such program; check the path", path.display()))?;
    if !found.is_file() {
        bail!("{}: not a file; give a program", path.display());
    }
    let mode = found.permissions().mode();
    if mode & 0o111 == 0 {
        bail!("{}: not executable; chmod +x it, or give another program", path.display());
    }
    // SAFETY: takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    // SAFETY: as above.
    let group = unsafe { libc::getegid() };
    for (bit, changes, what) in
        [(0o4000, found.uid() != user, "set-uid"), (0o2000, found.gid() != group, "set-gid")]
    {
        if mode & bit != 0 && changes {
            bail!(
                "{}: a {what} program, the loader ignores LD_PRELOAD for it; copy it without that bit",
                path.display()
            );
        }
    }
    if user != 0 && has_capabilities(path) {
        bail!(
            "{}: a program with file capabilities, the loader ignores LD_PRELOAD for it; copy it without them",
            path.display()
        );
    }
    Ok(())
}

/// Whether the file carries capabilities (capabilities(7), "security.capability").
fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: two C strings, and no room: the call only says how long the value is.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// The interpreter of a `#!` line, without the two characters, if it names one. `env` is looked through.
fn script(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| b" \t\r".contains(byte)).filter(|word| !word.is_empty());
    let interpreter = PathBuf::from(OsStr::from_bytes(words.next()?));
    if interpreter.file_name() == Some(OsStr::new("env"))
        && let Some(name) = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))
        && let Ok(found) = find(OsStr::from_bytes(name))
    {
        return Some(found);
    }
    Some(interpreter)
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_PIE: u64 = 0x0800_0000;

/// Run-time libraries of AddressSanitizer, gcc's and clang's: each ends a program that loads another first.
const FIRST_OF_ALL: [&str; 2] = ["libasan.so", "libclang_rt.asan"];

/// A program header.
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    length: u64,
}

/// Reads the program headers; `read` fills room from an offset of the file. Returns the library that must be
/// first of all, or why LD_PRELOAD does not reach the program.
fn elf(head: &[u8], read: impl Fn(u64, &mut [u8]) -> bool) -> Result<Option<String>, &'static str> {
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if head.len() < 64 || &head[..4] != b"\x7fELF" {
        return Err(NEITHER);
    }
    match (head[4], head[5], half(18)) {
        (1, _, _) => return Err("a 32-bit program"),
        (2, 1, 62) => {}
        _ => return Err("a program for another machine"),
    }
    let word = |at| word(at, &read);
    let segment = |index: u64| {
        let at = word(32)?.saturating_add(index * u64::from(half(54)));
        let field = |offset| word(at.checked_add(offset)?);
        Some(Segment { kind: field(0)? as u32, offset: field(8)?, address: field(16)?, length: field(32)? })
    };
    let segments = (0..u64::from(half(56))).map(segment).collect::<Option<Vec<_>>>().ok_or(NEITHER)?;
    let find = |kind| segments.iter().find(|segment| segment.kind == kind);
    let dynamic = find(PT_DYNAMIC).map(|at| entries(at, &read));
    if let Some(interpreter) = find(PT_INTERP) {
        let name = text(interpreter.offset, &read);
        if name.rsplit('/').next().is_some_and(|file| file.starts_with("ld-musl-")) {
            return Err("a program of musl's C library");
        }
        return Ok(dynamic.and_then(|entries| first_of_all(&entries, &segments, &read)));
    }
    // No interpreter: a static program, a static position-independent one (marked PIE), or the loader itself,
    // which honours LD_PRELOAD for the program it starts.
    let is_pie = |entries: &[(u64, u64)]| {
        entries.iter().any(|(tag, value)| *tag == DT_FLAGS_1 && value & DF_1_PIE != 0)
    };
    match dynamic {
        Some(entries) if !is_pie(&entries) => Ok(None),
        _ => Err("a static program, LD_PRELOAD cannot reach it"),
    }
}

/// The eight bytes at an offset, if it has so many.
fn word(at: u64, read: &impl Fn(u64, &mut [u8]) -> bool) -> Option<u64> {
    let mut word = [0; 8];
    read(at, &mut word).then(|| u64::from_le_bytes(word))
}

/// Tags and values of a dynamic section.
fn entries(at: &Segment, read: &impl Fn(u64, &mut [u8]) -> bool) -> Vec<(u64, u64)> {
    let entry = |index: u64| {
        let tag = at.offset.checked_add(index * 16)?;
        Some((word(tag, read)?, word(tag.checked_add(8)?, read)?)).filter(|(tag, _)| *tag != 0)
    };
    (0..(at.length / 16).min(1024)).map_while(entry).collect()
}

/// The needed library that must be the first of all.
fn first_of_all(
    entries: &[(u64, u64)],
    segments: &[Segment],
    read: &impl Fn(u64, &mut [u8]) -> bool,
) -> Option<String> {
    let (_, strings) = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?;
    let holds = |at: &&Segment| {
        at.kind == PT_LOAD && (at.address..at.address.saturating_add(at.length)).contains(strings)
    };
    let load = segments.iter().find(holds)?;
    let strings = (strings - load.address).checked_add(load.offset)?;
    let needed = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED);
    let mut names = needed.filter_map(|(_, place)| Some(text(strings.checked_add(*place)?, read)));
    names.find(|name| FIRST_OF_ALL.iter().any(|first| name.starts_with(first)))
}

/// The text at an offset, up to its terminating zero; 256 bytes at most.
fn text(at: u64, read: &impl Fn(u64, &mut [u8]) -> bool) -> String {
    let byte = |index| {
        let mut byte = [0];
        (read(at.checked_add(index)?, &mut byte) && byte[0] != 0).then_some(byte[0])
    };
    String::from_utf8_lossy(&(0..256).map_while(byte).collect::<Vec<u8>>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = Result<Option<String>, &'static str>;

    /// An ELF header with these class, machine and program header types.
    fn program(class: u8, machine: u16, headers: &[u32]) -> Read {
        let headers: Vec<_> = headers.iter().map(|kind| (*kind, 0, 0)).collect();
        program_with(class, machine, &headers, &[])
    }

    /// [`program`], each header with place and length of its bytes in `rest`, behind all headers, at 0x1000.
    fn program_with(class: u8, machine: u16, headers: &[(u32, u64, u64)], rest: &[u8]) -> Read {
        let mut file = vec![0; 64];
        file[..4].copy_from_slice(b"\x7fELF");
        (file[4], file[5]) = (class, 1);
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        file[32] = 64;
        (file[54], file[56]) = (56, headers.len() as u8);
        let behind = 64 + 56 * headers.len() as u64;
        for (kind, at, length) in headers {
            let mut entry = [0; 56];
            entry[..4].copy_from_slice(&kind.to_le_bytes());
            entry[8..16].copy_from_slice(&(behind + at).to_le_bytes());
            entry[16..24].copy_from_slice(&(0x1000 + at).to_le_bytes());
            entry[32..40].copy_from_slice(&length.to_le_bytes());
            file.extend(entry);
        }
        file.extend(rest);
        let copy = file.clone();
        elf(&file, |at, room| {
            let Some(bytes) = copy.get(at as usize..at as usize + room.len()) else { return false };
            room.copy_from_slice(bytes);
            true
        })
    }

    #[test]
    fn only_programs_that_the_loader_starts_pass() {
        for (name, found, expected) in [
            ("dynamic", program(2, 62, &[6, PT_INTERP, PT_DYNAMIC]), Ok(None)),
            ("static", program(2, 62, &[1, 1]), Err("a static program, LD_PRELOAD cannot reach it")),
            ("no headers", program(2, 62, &[]), Err("a static program, LD_PRELOAD cannot reach it")),
            ("32-bit", program(1, 3, &[PT_INTERP]), Err("a 32-bit program")),
            ("arm", program(2, 183, &[PT_INTERP]), Err("a program for another machine")),
            ("short", elf(b"\x7fELF", |_, _| false), Err(NEITHER)),
            ("text", elf(&[b'a'; 64], |_, _| false), Err(NEITHER)),
        ] {
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn the_interpreter_tells_musl_s_programs_and_the_needed_libraries_a_sanitizer() {
        let interpreter = |name: &[u8]| program_with(2, 62, &[(PT_INTERP, 0, name.len() as u64)], name);
        assert_eq!(interpreter(b"/lib64/ld-linux-x86-64.so.2\0"), Ok(None));
        let musl = Err("a program of musl's C library");
        assert_eq!(interpreter(b"/lib/ld-musl-x86_64.so.1\0"), musl);

        let names = b"\0libc.so.6\0libasan.so.8\0";
        let first = |needed: &[u64]| {
            let tags = needed.iter().map(|name| (DT_NEEDED, *name)).chain([(DT_STRTAB, 0x1000), (0, 0)]);
            let section = tags.flat_map(|(tag, value)| [tag, value]).flat_map(u64::to_le_bytes);
            let rest: Vec<u8> = names.iter().copied().chain(section).collect();
            let (begin, end) = (names.len() as u64, rest.len() as u64);
            let headers = [(PT_LOAD, 0, end), (PT_INTERP, 0, 1), (PT_DYNAMIC, begin, end - begin)];
            program_with(2, 62, &headers, &rest).unwrap()
        };
        assert_eq!(first(&[1]), None);
        assert_eq!(first(&[1, 11]).as_deref(), Some("libasan.so.8"));
        // A name outside the file.
        assert_eq!(first(&[u64::MAX, 1 << 40]), None);
    }

    #[test]
    fn a_table_of_names_behind_the_last_address_has_no_names() {
        let segments = [Segment { kind: PT_LOAD, offset: u64::MAX, address: 0x1000, length: 64 }];
        let entries = [(DT_NEEDED, 1), (DT_STRTAB, 0x1001)];
        assert_eq!(first_of_all(&entries, &segments, &|_, _| false), None);
    }

    #[test]
    fn scripts_lead_to_their_interpreter_and_env_to_what_it_starts() {
        assert_eq!(script(b"/bin/sh -e\necho"), Some("/bin/sh".into()));
        assert_eq!(script(b" /bin/sh\n"), Some("/bin/sh".into()));
        assert_eq!(script(b"\n"), None);
        let found = script(b"/usr/bin/env -S sh\n").unwrap();
        assert_eq!(found.file_name(), Some(OsStr::new("sh")));
        assert!(found.is_absolute());
    }

    #[test]
    fn this_very_test_is_a_dynamic_program_and_the_loader_passes_too() {
        check(&std::env::current_exe().unwrap()).unwrap();
        let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
        measure::need!(loader.exists(), "the dynamic loader at its usual place");
        check(loader).unwrap();
    }
}
