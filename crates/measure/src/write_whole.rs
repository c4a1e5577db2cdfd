//! Files that are there whole, or as they were before.

use std::fs::{self, File};
use std::io::{Result, Write};
use std::path::Path;

/// Writes a file under another name, syncs and renames it: after a crash or power cut it is whole, or as
/// before. What is no file, as a pipe or `/dev/stdout`, is written in place; a link stays one.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return fs::write(path, bytes);
    }
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        // The name is the folder's.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_whole_or_left_as_it_was() {
        let folder = std::env::temp_dir().join(format!("measure-whole-{}", std::process::id()));
        fs::create_dir_all(folder.join("taken")).unwrap();
        let file = folder.join("plot.png");
        for bytes in [&b"whole"[..], b"new"] {
            write_whole(&file, bytes).unwrap();
            assert_eq!(fs::read(&file).unwrap(), bytes);
        }
        assert!(write_whole(&folder.join("taken"), b"whole").is_err());
        assert!(write_whole(&folder.join("no/folder"), b"whole").is_err());
        let link = folder.join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_whole(&link, b"newer").unwrap();
        assert!(link.is_symlink() && fs::read(&file).unwrap() == b"newer");
        fs::remove_file(&link).unwrap();
        // A device stays one.
        let full = write_whole(Path::new("/dev/full"), b"whole").unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        let mut names: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["plot.png", "taken"]);
        fs::remove_dir_all(folder).unwrap();
    }
}
