//! Whether LD_PRELOAD can reach a program: found, executable, 64-bit x86, dynamically linked, and run with no more rights
//! than ours.
//!
//! ELF fields as in the System V ABI (gABI chapters 4 and 5). What a script's interpreter goes on to start is looked at
//! for `env` only.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Interpreters of interpreters that Linux follows.
const MAX_SCRIPTS: usize = 5;

/// The file that `execvp` would start.
pub fn find(name: &OsStr) -> Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        if !path.exists() {
            bail!("{}: no such program; check the path", path.display());
        }
        return Ok(path);
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    let mut found_not_executable = None;
    for path in std::env::split_paths(&search).map(|folder| folder.join(name)) {
        match path.metadata() {
            Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => return Ok(path),
            Ok(found) if found.is_file() => found_not_executable = Some(path),
            _ => {}
        }
    }
    match found_not_executable {
        Some(path) => bail!("{}: not executable; chmod +x it, or give another program", path.display()),
        None => bail!("{}: not found in PATH; install it, or give its path", name.display()),
    }
}

/// Refuses what LD_PRELOAD cannot reach, by name and reason.
pub fn check(path: &Path) -> Result<()> {
    let mut path = path.to_owned();
    for _ in 0..MAX_SCRIPTS {
        check_rights(&path)?;
        let file = File::open(&path).with_context(|| {
            format!("{}: cannot be read; softnic must see that it is dynamically linked", path.display())
        })?;
        match kind(&file)? {
            Kind::Dynamic => return Ok(()),
            Kind::Static => {
                bail!("{}: a static program, LD_PRELOAD cannot reach it; link it dynamically", path.display())
            }
            Kind::Foreign(what) => {
                bail!("{}: {what}; softnic needs a 64-bit x86 Linux program", path.display())
            }
            Kind::Script(interpreter) => path = interpreter,
            Kind::Unknown => {
                bail!("{}: neither an ELF program nor a script with #!; give one", path.display())
            }
        }
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

/// What a file is to the kernel's `execve`.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// Has a program interpreter, or is the loader itself.
    Dynamic,
    Static,
    /// Another machine or width.
    Foreign(&'static str),
    Script(PathBuf),
    Unknown,
}

fn kind(file: &File) -> Result<Kind> {
    let mut head = Vec::new();
    file.take(4096).read_to_end(&mut head).context("reading a program")?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    Ok(elf(&head, |at, room| file.read_exact_at(room, at).is_ok()))
}

/// The interpreter of a `#!` line, without the two characters. `env` is looked through.
fn script(line: &[u8]) -> Kind {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| b" \t\r".contains(byte)).filter(|word| !word.is_empty());
    let Some(interpreter) = words.next() else { return Kind::Unknown };
    let interpreter = PathBuf::from(OsString::from_vec(interpreter.to_vec()));
    if interpreter.file_name() == Some(OsStr::new("env"))
        && let Some(name) = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))
        && let Ok(found) = find(OsStr::from_bytes(name))
    {
        return Kind::Script(found);
    }
    Kind::Script(interpreter)
}

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_PIE: u64 = 0x0800_0000;

/// Reads the program headers; `read` fills room from an offset of the file.
fn elf(head: &[u8], read: impl Fn(u64, &mut [u8]) -> bool) -> Kind {
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if head.len() < 64 || &head[..4] != b"\x7fELF" {
        return Kind::Unknown;
    }
    match (head[4], head[5], half(18)) {
        (1, _, _) => return Kind::Foreign("a 32-bit program"),
        (2, 1, 62) => {}
        _ => return Kind::Foreign("a program for another machine"),
    }
    let table = u64::from_le_bytes(head[32..40].try_into().unwrap_or_default());
    let (size, count) = (u64::from(half(54)), u64::from(half(56)));
    let mut dynamic = None;
    for index in 0..count {
        let mut entry = [0; 56];
        if !read(table + index * size, &mut entry) {
            return Kind::Unknown;
        }
        let long = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default());
        match u32::from_le_bytes(entry[..4].try_into().unwrap_or_default()) {
            PT_INTERP => return Kind::Dynamic,
            PT_DYNAMIC => dynamic = Some((long(8), long(32))),
            _ => {}
        }
    }
    // No interpreter: a static program, a static position-independent one (marked PIE), or the loader itself, which
    // honours LD_PRELOAD for what it is told to start.
    match dynamic {
        Some((at, length)) if !is_pie(at, length, read) => Kind::Dynamic,
        _ => Kind::Static,
    }
}

fn is_pie(at: u64, length: u64, read: impl Fn(u64, &mut [u8]) -> bool) -> bool {
    (0..(length / 16).min(1024)).any(|index| {
        let mut entry = [0; 16];
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        read(at + index * 16, &mut entry)
            && word(&entry[..8]) == DT_FLAGS_1
            && word(&entry[8..]) & DF_1_PIE != 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF header with these class, machine and program header types.
    fn program(class: u8, machine: u16, headers: &[u32]) -> Kind {
        let mut file = vec![0; 64];
        file[..4].copy_from_slice(b"\x7fELF");
        (file[4], file[5]) = (class, 1);
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        file[32] = 64;
        (file[54], file[56]) = (56, headers.len() as u8);
        for kind in headers {
            let mut entry = [0; 56];
            entry[..4].copy_from_slice(&kind.to_le_bytes());
            file.extend(entry);
        }
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
            ("dynamic", program(2, 62, &[6, PT_INTERP, PT_DYNAMIC]), Kind::Dynamic),
            ("static", program(2, 62, &[1, 1]), Kind::Static),
            ("no headers", program(2, 62, &[]), Kind::Static),
            ("32-bit", program(1, 3, &[PT_INTERP]), Kind::Foreign("a 32-bit program")),
            ("arm", program(2, 183, &[PT_INTERP]), Kind::Foreign("a program for another machine")),
            ("short", elf(b"\x7fELF", |_, _| false), Kind::Unknown),
            ("text", elf(&[b'a'; 64], |_, _| false), Kind::Unknown),
        ] {
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn scripts_lead_to_their_interpreter_and_env_to_what_it_starts() {
        assert_eq!(script(b"/bin/sh -e\necho"), Kind::Script("/bin/sh".into()));
        assert_eq!(script(b" /bin/sh\n"), Kind::Script("/bin/sh".into()));
        assert_eq!(script(b"\n"), Kind::Unknown);
        let Kind::Script(found) = script(b"/usr/bin/env -S sh\n") else { panic!("not a script") };
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
