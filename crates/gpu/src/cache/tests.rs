//! Failures of a cache: damage, unwritable folders, a full disk, other processes, killed writers.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use super::*;

/// A folder of its own, removed afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("gpu-cache-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Folder(folder)
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).map(|entries| entries.flatten().collect()).unwrap_or(vec![]);
        let mut names: Vec<String> =
            entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

type Said = Arc<Mutex<Vec<String>>>;

/// A cache whose words can be read.
fn listening(folder: &Path) -> (Cache, Said) {
    let said = Said::default();
    let heard = said.clone();
    (Cache::at(folder).voice(move |text| heard.lock().unwrap().push(text.to_owned())), said)
}

fn key(text: &str) -> Key {
    KeyBuilder::default().part("source", text.as_bytes()).key()
}

fn content(of: &str) -> Vec<u8> {
    of.bytes().cycle().take(70_000).collect()
}

fn get(cache: &Cache, of: &str) -> (Vec<u8>, Origin) {
    cache.get_or_build(&key(of), || Ok::<_, ()>(content(of))).unwrap()
}

#[test]
fn what_was_built_once_is_read() {
    let folder = Folder::new("once");
    let (cache, said) = listening(&folder.0);
    assert_eq!(get(&cache, "a"), (content("a"), Origin::Built));
    assert_eq!(get(&cache, "a"), (content("a"), Origin::Cached));
    assert_eq!(get(&cache, "b"), (content("b"), Origin::Built));
    assert_eq!((folder.files().len(), said.lock().unwrap().len()), (2, 0));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder.0), 0o700);
    assert_eq!(mode(&folder.0.join(key("a").file_name())), 0o600);
}

#[test]
fn an_entry_is_synced_before_it_has_its_name() {
    // This device takes all that is written, and cannot be synced.
    let error = write(Path::new("/dev/null"), &key("a"), &content("a")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
}

#[test]
fn a_build_that_fails_is_the_callers_and_leaves_nothing() {
    let folder = Folder::new("fails");
    let (cache, said) = listening(&folder.0);
    assert_eq!(cache.get_or_build(&key("a"), || Err("no compiler")).unwrap_err(), "no compiler");
    assert_eq!((folder.files().len(), said.lock().unwrap().len()), (0, 0));
}

#[test]
fn a_damaged_entry_is_built_again_and_said() {
    let folder = Folder::new("damaged");
    let path = folder.0.join(key("a").file_name());
    let other = folder.0.join(key("b").file_name());
    type Harm<'a> = &'a dyn Fn(&mut Vec<u8>);
    let harms: [(&str, Harm, &str); 9] = [
        ("a bit of the content", &|bytes| *bytes.last_mut().unwrap() ^= 1, "checksum"),
        ("a bit of the checksum", &|bytes| bytes[56] ^= 1, "checksum"),
        (
            "the last byte is gone",
            &|bytes| bytes.truncate(bytes.len() - 1),
            "cut off: 70087 bytes instead of 70088",
        ),
        ("one byte more", &|bytes| bytes.push(0), "cut off: 70089"),
        ("most is gone", &|bytes| bytes.truncate(40), "cut off: 40"),
        ("all is gone", &|bytes| bytes.clear(), "cut off: 0"),
        ("an absurd length", &|bytes| bytes[48..56].fill(0xff), "cut off"),
        ("another version", &|bytes| bytes[15] = b'0', "stale"),
        ("another key's", &|bytes| *bytes = fs::read(&other).unwrap(), "stale"),
    ];
    for (name, harm, words) in harms {
        let (cache, said) = listening(&folder.0);
        get(&cache, "a");
        get(&cache, "b");
        let mut bytes = fs::read(&path).unwrap();
        harm(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let (found, origin) = get(&cache, "a");
        assert!(found == content("a") && matches!(origin, Origin::Rebuilt(_)), "{name}: {origin:?}");
        let said = said.lock().unwrap();
        assert!(
            said.len() == 1 && said[0].contains(words) && said[0].contains("built again"),
            "{name}: {said:?}"
        );
        assert_eq!(get(&cache, "a").1, Origin::Cached, "{name}");
    }
}

#[test]
fn an_entry_that_is_no_file_is_not_waited_for() {
    let folder = Folder::new("pipe");
    fs::create_dir_all(&folder.0).unwrap();
    let path = folder.0.join(key("a").file_name());
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (cache, said) = listening(&folder.0);
    let (found, origin) = get(&cache, "a");
    assert!(found == content("a") && matches!(origin, Origin::Rebuilt(Damage::Unreadable(_))), "{origin:?}");
    assert_eq!(get(&cache, "a").1, Origin::Cached);
    assert_eq!(said.lock().unwrap().len(), 1);
}

#[test]
fn a_folder_that_cannot_be_written_is_said_once_and_is_no_error() {
    let parent = Folder::new("unwritable");
    fs::create_dir_all(&parent.0).unwrap();
    fs::write(parent.0.join("file"), "").unwrap();
    // Kernel file systems refuse even root, whom permissions do not stop.
    for folder in
        [parent.0.join("file"), parent.0.join("file/below"), "/sys/kernel".into(), "/proc/self/x".into()]
    {
        let (cache, said) = listening(&folder);
        for of in ["a", "a", "b"] {
            assert_eq!(get(&cache, of), (content(of), Origin::Built), "{}", folder.display());
        }
        let said = said.lock().unwrap();
        assert!(said.len() == 1 && said[0].contains(&*folder.to_string_lossy()), "{said:?}");
        assert!(said[0].contains("each start compiles them again"), "{said:?}");
    }
}

/// The tests below as a process of their own: what it is to do, and where.
const STAGE: &str = "GPU_TEST_CACHE";

/// This very test program, running `test` alone.
fn us(test: &str, folder: &Path) -> Vec<String> {
    let program = std::env::current_exe().unwrap().display().to_string();
    let place = format!("{STAGE}={}", folder.display());
    ["env", &place, &program, "--exact", test, "--nocapture"].map(str::to_owned).into()
}

#[test]
fn a_full_disk_is_said_once_and_leaves_no_part_of_an_entry() {
    if let Some(folder) = std::env::var_os(STAGE).map(PathBuf::from) {
        let (cache, said) = listening(&folder);
        for _ in 0..3 {
            assert_eq!(get(&cache, "a"), (content("a"), Origin::Built));
        }
        let said = said.lock().unwrap();
        assert!(said.len() == 1 && said[0].contains("too large"), "{said:?}");
        return;
    }
    let folder = Folder::new("full");
    // Writing stops after 32 KiB, as on a full disk, which sends no signal: the limit's is ignored.
    let test = "cache::tests::a_full_disk_is_said_once_and_leaves_no_part_of_an_entry";
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"]).args(us(test, &folder.0));
    let ended = shell.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "the test did not run there");
    assert_eq!(folder.files(), [""; 0]);
}

#[test]
fn processes_that_build_the_same_at_once_read_whole_entries_or_none() {
    const ENTRIES: [&str; 3] = ["a", "b", "c"];
    if let Some(folder) = std::env::var_os(STAGE).map(PathBuf::from) {
        let cache = Cache::at(&folder).voice(|_| ());
        let harsh = folder.ends_with("harsh");
        let since = Instant::now();
        // Long enough that a reader would meet a writer in the middle.
        let content: Vec<u8> = content("x").repeat(12);
        let mut cached = 0;
        while since.elapsed() < Duration::from_millis(700) {
            for of in ENTRIES {
                let built = || Ok::<_, ()>(content.clone());
                let (found, origin) = cache.get_or_build(&key(of), built).unwrap();
                assert!(found == content, "{of}: {} bytes, {origin:?}", found.len());
                // Writers alone damage nothing, however they meet.
                assert!(harsh || !matches!(origin, Origin::Rebuilt(_)), "{of}: {origin:?}");
                cached += usize::from(origin == Origin::Cached);
            }
        }
        assert!(cached > 2, "only {cached} times was an entry whole");
        return;
    }
    for name in ["calm", "harsh"] {
        let folder = Folder::new("two");
        let place = folder.0.join(name);
        let test = "cache::tests::processes_that_build_the_same_at_once_read_whole_entries_or_none";
        let command = us(test, &place);
        let start = || {
            let mut us = Command::new(&command[0]);
            us.args(&command[1..]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let (mut killed, mut others) = (start(), vec![start(), start()]);
        let since = Instant::now();
        let mut harms = 0;
        while others.iter_mut().any(|other| other.try_wait().unwrap().is_none()) {
            assert!(since.elapsed() < Duration::from_secs(60), "they do not end");
            // Meanwhile entries vanish, or are cut off, and one process is killed at whatever it does.
            let path = place.join(key(ENTRIES[harms % 3]).file_name());
            if name == "calm" || harms % 2 == 0 {
                let _ = fs::remove_file(&path);
            } else {
                let _ = OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(500));
            }
            if harms == 60 {
                killed.kill().unwrap();
            }
            harms += 1;
            std::thread::sleep(Duration::from_millis(3));
        }
        let _ = killed.kill();
        let _ = killed.wait();
        for other in others {
            let ended = other.wait_with_output().unwrap();
            assert!(ended.status.success(), "{name}: {}", String::from_utf8_lossy(&ended.stderr));
            assert!(
                String::from_utf8_lossy(&ended.stdout).contains("1 passed"),
                "the test did not run there"
            );
        }
        assert!(harms > 20, "{name}: {harms}");
    }
}

#[test]
fn what_a_killed_writer_left_is_removed_after_an_hour() {
    let folder = Folder::new("left");
    fs::create_dir_all(&folder.0).unwrap();
    for (name, minutes) in [(".x.cubin.1.0.tmp", 61), (".y.cubin.2.0.tmp", 5), ("z.cubin", 99)] {
        let file = fs::File::create(folder.0.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(minutes * 60)).unwrap();
    }
    get(&listening(&folder.0).0, "a");
    let mut expected = [".y.cubin.2.0.tmp".to_owned(), key("a").file_name(), "z.cubin".into()];
    expected.sort_unstable();
    assert_eq!(folder.files(), expected);
}

#[test]
fn the_folder_follows_the_environment() {
    for (set, expected) in [
        (&[("DOORBELL_CACHE", "/d"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")][..], Some("/d")),
        (&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], Some("/x/doorbell")),
        (&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")], Some("/h/.cache/doorbell")),
        (&[("XDG_CACHE_HOME", ""), ("HOME", "/h")], Some("/h/.cache/doorbell")),
        (&[("HOME", "")], None),
        (&[], None),
    ] {
        let environment =
            |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        assert_eq!(usual_folder(&environment), expected.map(PathBuf::from), "{set:?}");
    }
}

#[test]
fn no_two_lists_of_parts_have_one_key() {
    let of = |parts: &[(&str, &str)]| {
        parts.iter().fold(KeyBuilder::default(), |key, (name, text)| key.part(name, text.as_bytes())).key()
    };
    let keys = [
        of(&[("source", "ab"), ("flag", "c")]),
        of(&[("source", "a"), ("flag", "bc")]),
        of(&[("source", "ab"), ("flagc", "")]),
        of(&[("source", "ab")]),
        of(&[("flag", "c"), ("source", "ab")]),
        of(&[]),
    ];
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(key), "{index}");
    }
    // SHA-256 of nothing, from FIPS 180-4's example values.
    assert!(of(&[]).file_name().starts_with("e3b0c44298fc1c149afbf4c8996fb924"));
}
