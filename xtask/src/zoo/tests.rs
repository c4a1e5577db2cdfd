//! The commands on files in a folder of their own, and downloads from a server that the test starts.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Parser;
use zoo::{Digest, Weights};

use super::fetch::{Client, download};
use super::*;
use crate::refused::Refused;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("xtask-zoo-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn zoo(folder: &Folder, words: &str) -> Result<()> {
    let store = folder.0.to_str().unwrap();
    let line = ["zoo"].into_iter().chain(words.split_whitespace()).chain(["--store", store]);
    run(&Line::try_parse_from(line).unwrap().options)
}

#[test]
fn the_small_zoo_is_built_and_verified_and_a_changed_file_is_found_and_mended() {
    let folder = Folder::new("small");
    let unbuilt = zoo(&folder, "verify --small").unwrap_err();
    assert!(unbuilt.to_string().contains("3 files"), "{unbuilt}");
    zoo(&folder, "build --small").unwrap();
    zoo(&folder, "verify --small").unwrap();
    let which = ModelSelection { models: Vec::new(), small: false, store: Some(folder.0.clone()) };
    let rows = list(&which).unwrap();
    for (model, counts, state) in [
        ("squeezenet-1.1", "1235496        349    602112      4000", "there; untried: no network"),
        ("super-resolution-x1", "57345      17567   1228800   1228800", "not built; none are published"),
    ] {
        let row = rows.iter().find(|row| row.starts_with(model)).unwrap();
        assert!(row.contains(counts) && row.ends_with(state), "{row}");
    }
    let path = folder.0.join("super-resolution-x3.seeded.onnx");
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for wrong in [&flipped[..], &whole[..whole.len() / 2], &[]] {
        fs::write(&path, wrong).unwrap();
        let error = zoo(&folder, "verify super-resolution-x3").unwrap_err();
        assert!(error.to_string().contains("1 files"), "{error}");
        zoo(&folder, "build super-resolution-x3").unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn an_unknown_model_or_a_file_of_no_named_model_is_refused() {
    let folder = Folder::new("refused");
    for (line, words) in [
        ("build alexnet", "has: mobilenet-v3-small"),
        ("build squeznet-1.1", "; the nearest is `squeezenet-1.1`"),
        ("fetch --from file", "name the one model"),
        ("fetch squeezenet-1.1 --from /nowhere/file", "/nowhere/file"),
        ("fetch squeezenet-1.1 --from /dev/null", "another one was given: compare with [weights] of"),
    ] {
        let error = zoo(&folder, line).unwrap_err();
        assert!(error.is::<Refused>() && error.to_string().contains(words), "{line}: {error}");
    }
    assert!(!folder.0.join("squeezenet-1.1.trained.onnx").exists());
}

#[test]
fn trained_weights_come_from_a_server_or_from_a_file() {
    let path = workspace::root().join(MANIFESTS).join("super-resolution-x3.toml");
    let mut model = Manifest::read(&path).unwrap();
    // Its own seeded file stands for a published one.
    let file = model.build();
    let server = Server::start(file.clone(), vec![Cut(100_000), Good]);
    let weights = model.weights.insert(server.weights(&file)).clone();
    let folder = Folder::new("trained");
    fs::create_dir_all(&folder.0).unwrap();
    let here = folder.0.join("downloaded.onnx");
    fs::write(&here, &file).unwrap();
    for (name, from) in [("server", None), ("file", Some(here.as_path()))] {
        let store = Store::at(folder.0.join(name));
        let said = take(&store, &model, &weights, from, &client()).unwrap();
        assert!(said.contains("59657 parameters (published 59657)"), "{said}");
        assert_eq!(store.read(&model.trained_file(), weights.sha256).unwrap(), file);
        // A second command finds it there.
        assert_eq!(take(&store, &model, &weights, from, &client()).unwrap(), said);
    }
    assert_eq!(*server.asked.lock().unwrap(), [None, Some(100_000)]);
}

/// How the server answers one request.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// As it should.
    Good,
    /// As it should, but the connection ends after so many bytes of the body.
    Cut(usize),
    /// As it should for so many bytes, then nothing until the client goes away.
    Stall(usize),
    /// The whole file, whatever range was asked for; the connection ends after so many bytes.
    Whole(usize),
    /// A range that was not asked for.
    Elsewhere,
    /// A file with one byte changed.
    Changed,
    /// A file with one byte more.
    Longer,
    /// This status and no file.
    Status(u16),
}
use Answer::*;

const EVERYTHING: usize = usize::MAX;

/// An HTTP server on the loopback interface; the last answer repeats.
struct Server {
    address: String,
    /// First byte of each request's range.
    asked: Arc<Mutex<Vec<Option<usize>>>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(file: Vec<u8>, answers: Vec<Answer>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (asked, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (heard, ends) = (asked.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            for number in 0.. {
                let (stream, _) = listener.accept().unwrap();
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let answer = answers[number.min(answers.len() - 1)];
                let range = range(&stream);
                heard.lock().unwrap().push(range);
                // A client that goes away in the middle is part of some tests.
                let _ = respond(stream, &file, answer, range);
            }
        });
        Server { address, asked, over, thread: Some(thread) }
    }

    fn weights(&self, file: &[u8]) -> Weights {
        Weights {
            url: format!("http://{}/model.onnx", self.address),
            sha256: Digest::of(file),
            bytes: file.len() as u64,
            source: "the test".into(),
            licence: "none".into(),
            tried: "now".into(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Reads a request, and returns the first byte of its range.
fn range(stream: &TcpStream) -> Option<usize> {
    let mut first = None;
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap_or_default().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(bytes) = line.strip_prefix("range: bytes=") {
            first = bytes.trim_end_matches('-').parse().ok();
        }
    }
    first
}

fn respond(mut stream: TcpStream, file: &[u8], answer: Answer, range: Option<usize>) -> std::io::Result<()> {
    let (mut file, all) = (file.to_vec(), file.len());
    let (mut from, mut most) = (range, EVERYTHING);
    match answer {
        Status(status) => {
            return write!(
                stream,
                "HTTP/1.1 {status} Said So\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
        Good => {}
        Cut(bytes) | Stall(bytes) => most = bytes,
        Whole(bytes) => (from, most) = (None, bytes),
        Elsewhere => from = range.map(|first| first - 1),
        Changed => file[all - 1] ^= 1,
        Longer => file.push(0),
    }
    let body = &file[from.unwrap_or(0)..];
    let (status, place) = match from {
        Some(first) => ("206 Partial Content", format!("Content-Range: bytes {first}-{}/{all}\r\n", all - 1)),
        None => ("200 OK", String::new()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\n{place}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(&body[..body.len().min(most)])?;
    if matches!(answer, Stall(_)) {
        let _ = stream.read(&mut [0]);
    }
    Ok(())
}

fn client() -> Client {
    Client::of_tests(Duration::from_secs(30))
}

fn a_file() -> Vec<u8> {
    (0..300_000u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn a_download_goes_on_where_it_ended_and_keeps_nothing_wrong() {
    let file = a_file();
    for (name, there, answers, asked, wrong) in [
        ("at once", 0, vec![Good], vec![None], None),
        ("begun earlier", 1000, vec![Good], vec![Some(1000)], None),
        ("whole but for its name", 300_000, vec![Status(500)], vec![], None),
        (
            "cut twice",
            0,
            vec![Cut(100_000), Cut(50_000), Good],
            vec![None, Some(100_000), Some(150_000)],
            None,
        ),
        ("no ranges", 1000, vec![Whole(EVERYTHING)], vec![Some(1000)], None),
        ("no ranges, cut", 0, vec![Whole(200_000), Whole(EVERYTHING)], vec![None, Some(200_000)], None),
        ("range not satisfiable", 1000, vec![Status(416), Good], vec![Some(1000), None], None),
        ("busy", 0, vec![Status(503), Status(429), Good], vec![None; 3], None),
        ("a part longer than the file", 300_001, vec![Good], vec![None], None),
        (
            "cut at the same byte",
            0,
            vec![Whole(9)],
            vec![None, Some(9), Some(9)],
            Some("9 of 300000 bytes came"),
        ),
        ("never there", 0, vec![Status(503)], vec![None; 3], Some("503")),
        ("not found", 0, vec![Status(404)], vec![None], Some("404")),
        (
            "another range",
            1000,
            vec![Elsewhere],
            vec![Some(1000)],
            Some("bytes from 999 came, not from 1000"),
        ),
        ("wrong hash", 0, vec![Changed], vec![None], Some("changed, or another one was given: compare")),
        ("wrong hash, begun earlier", 1000, vec![Changed], vec![Some(1000)], Some("run it again")),
        ("too long", 0, vec![Longer], vec![None], Some("more than 300000 bytes")),
    ] {
        let folder = Folder::new("http");
        let store = Store::at(&folder.0);
        let server = Server::start(file.clone(), answers);
        let mut partial = store.resume("m.onnx").unwrap();
        let mut begun = file.clone();
        begun.push(0);
        partial.append(&begun[..there]).unwrap();
        drop(partial);
        let mut shown = Vec::new();
        let result =
            download(&client(), &server.weights(&file), store.resume("m.onnx").unwrap(), &mut |bytes| {
                shown.push(bytes)
            });
        assert_eq!(*server.asked.lock().unwrap(), asked, "{name}");
        match (result, wrong) {
            (Ok(path), None) => {
                assert_eq!(fs::read(path).unwrap(), file, "{name}");
                // Of a part that is whole nothing comes.
                assert_eq!(shown.last().copied(), (there != 300_000).then_some(300_000), "{name}: {shown:?}");
            }
            (Err(error), Some(words)) => {
                assert!(format!("{error:#}").contains(words), "{name}: {error:#}");
                assert!(!store.path("m.onnx").exists(), "{name}");
            }
            (result, _) => panic!("{name}: {result:?}"),
        }
    }
}

/// Says to the test below that it is the download, whose standard error is no terminal.
const TOLD: &str = "XTASK_ZOO_TOLD";

#[test]
fn a_download_is_told_in_ten_lines_where_there_is_no_terminal() {
    let path = workspace::root().join(MANIFESTS).join("super-resolution-x3.toml");
    let model = Manifest::read(&path).unwrap();
    if std::env::var_os(TOLD).is_some() {
        let (file, folder) = (a_file(), Folder::new("told"));
        let server = Server::start(file.clone(), vec![Cut(100_000), Good]);
        over_http(&Store::at(&folder.0), &model, &server.weights(&file), &client()).unwrap();
        return;
    }
    let name = "zoo::tests::a_download_is_told_in_ten_lines_where_there_is_no_terminal";
    let said = crate::process::one_test(name).env(TOLD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("super-resolution-x3: ")).collect();
    assert!(said.status.success() && (2..=10).contains(&lines.len()), "{text}");
    assert!(
        lines[0] != lines[1] && lines.last() == Some(&"super-resolution-x3: 300000 of 300000 bytes"),
        "{text}"
    );
}

#[test]
fn a_server_that_falls_silent_is_asked_again() {
    let (file, folder) = (a_file(), Folder::new("stall"));
    let store = Store::at(&folder.0);
    let server = Server::start(file.clone(), vec![Stall(1000), Good]);
    let client = Client::of_tests(Duration::from_secs(1));
    let partial = store.resume("m.onnx").unwrap();
    let path = download(&client, &server.weights(&file), partial, &mut |_| {}).unwrap();
    assert_eq!(fs::read(path).unwrap(), file);
    assert_eq!(server.asked.lock().unwrap()[..2], [None, Some(1000)]);
}

#[test]
fn a_full_disk_ends_a_download_with_what_to_do() {
    let (file, folder) = (a_file(), Folder::new("full"));
    fs::create_dir_all(&folder.0).unwrap();
    // Writing to this device fails as on a full disk.
    std::os::unix::fs::symlink("/dev/full", folder.0.join("m.onnx.part")).unwrap();
    let store = Store::at(&folder.0);
    let server = Server::start(file.clone(), vec![Good]);
    let partial = store.resume("m.onnx").unwrap();
    let error = download(&client(), &server.weights(&file), partial, &mut |_| {}).unwrap_err();
    assert!(error.is::<Refused>() && error.to_string().contains("no space is left"), "{error}");
    assert!(!store.path("m.onnx").exists());
}

#[test]
fn a_published_file_is_taken_over_https_alone() {
    let (file, folder) = (a_file(), Folder::new("https"));
    let server = Server::start(file.clone(), vec![Good]);
    let partial = Store::at(&folder.0).resume("m.onnx").unwrap();
    let error = download(&Client::new(), &server.weights(&file), partial, &mut |_| {}).unwrap_err();
    assert!(error.is::<Refused>() && error.to_string().contains("https"), "{error}");
    assert!(server.asked.lock().unwrap().is_empty());
}
