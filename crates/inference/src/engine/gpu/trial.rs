//! Engines under trial, on disk: one whose trial failed twice is left out from then on.
//!
//! Each choice has a file `trial-NUMBER` in the cache's folder. It names the running engine, and is empty
//! between two. The process holds its lock, which the kernel releases however the process ends. So an
//! unlocked file with a name is of an engine that lost the context, did not end, or was killed with its
//! process. The next process tries it again: a context may be lost without its fault, and Ctrl-C ends a trial
//! too. If it succeeds, the file is deleted. If not, two files name the engine, until they are deleted.
//! Unlike the cache's entries they are not synced: writes outlive the process, and a power cut costs another
//! trial.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fmt, fs};

use gpu::cache::KeyBuilder;
use gpu::cudnn::Convolution;

use crate::engine::EngineError;

/// How the file's name begins, and its content.
const NAME: &str = "trial-";
const HEAD: &str = "doorbell trial 1";
/// Files that are looked at for a free one.
const MOST: usize = 1000;
/// No file of ours has more bytes.
const MOST_BYTES: u64 = 64 << 10;

/// An engine for a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Of the GPU, the driver, the libraries and the convolution, as a hash.
    pub problem: String,
    /// The library and its engine.
    pub engine: String,
    /// The layer that it is tried for, for people.
    pub layer: String,
}

impl Attempt {
    fn text(&self) -> String {
        let [problem, engine, layer] =
            [&self.problem, &self.engine, &self.layer].map(|words| words.replace(char::is_control, " "));
        format!("{HEAD}\nproblem {problem}\nengine {engine}\nlayer {layer}\n")
    }

    /// Whether both are of one engine and one problem; layers that are alike share both.
    fn is_of(&self, other: &Attempt) -> bool {
        (&self.problem, &self.engine) == (&other.problem, &other.engine)
    }

    fn read(text: &str) -> Option<Attempt> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let head = lines.next()?;
        let mut words = |name| Some(lines.next()?.strip_prefix(name)?.to_owned());
        let attempt =
            Attempt { problem: words("problem ")?, engine: words("engine ")?, layer: words("layer ")? };
        (head == HEAD && lines.next().is_none()).then_some(attempt)
    }
}

/// An attempt that failed or was cut short, and its files: one for each time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    attempt: Attempt,
    paths: Vec<PathBuf>,
}

impl Failed {
    /// Whether it is tried no more.
    fn is_left_out(&self) -> bool {
        self.paths.len() > 1
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attempt { engine, layer, .. } = &self.attempt;
        let paths: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        write!(
            f,
            "{engine} is left out for {layer}: {} earlier trials of it failed or were cut short; delete {} to try it again",
            paths.len(),
            paths.join(" ")
        )
    }
}

/// The attempts of a folder that failed or were cut short. Says which files are not of this kind.
fn failed(folder: &Path, say: &dyn Fn(&str)) -> Vec<Failed> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let ours = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(NAME));
    let mut paths: Vec<PathBuf> = ours.map(|entry| entry.path()).collect();
    paths.sort_unstable();
    let mut all: Vec<Failed> = Vec::new();
    for path in paths {
        match left(&path) {
            Ok(None) => {}
            Ok(Some(attempt)) => match all.iter_mut().find(|one| one.attempt.is_of(&attempt)) {
                Some(before) => before.paths.push(path),
                None => all.push(Failed { attempt, paths: vec![path] }),
            },
            Err(why) => say(&format!("{}: {why}; it is ignored, delete it", path.display())),
        }
    }
    all
}

/// What an ended process left under this name. `None`: no engine, or its process lives.
fn left(path: &Path) -> io::Result<Option<Attempt>> {
    let damaged = || io::Error::other("it names no engine that was tried");
    let gone = |error: io::Error| if error.kind() == ErrorKind::NotFound { Ok(None) } else { Err(error) };
    // Asked before it is opened: opening a pipe would wait for its other end.
    match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => return Err(damaged()),
        Err(error) => return gone(error),
        Ok(_) => {}
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return gone(error),
    };
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8(bytes).map_err(|_| damaged())?;
    if text.is_empty() { Ok(None) } else { Attempt::read(&text).map(Some).ok_or_else(damaged) }
}

/// The file of a choice, locked.
#[derive(Debug)]
struct TrialFile {
    file: File,
    path: PathBuf,
}

impl TrialFile {
    /// The first one in a folder that is free: not another's, and without a name in it.
    fn in_folder(folder: &Path) -> io::Result<TrialFile> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        for number in 0..MOST {
            let path = folder.join(format!("{NAME}{number}"));
            // With a name in it, it is not locked even for a moment: that would say that its process lives.
            if fs::symlink_metadata(&path).is_ok_and(|there| !there.is_file() || there.len() > 0) {
                continue;
            }
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let now = file.metadata()?;
            // Its owner may have removed it since it was opened.
            if now.len() == 0 && now.nlink() > 0 {
                return Ok(TrialFile { file, path });
            }
        }
        Err(io::Error::other(format!("{MOST} files named {NAME}NUMBER are taken, delete them")))
    }

    /// Puts this in the place of the content. A disk that is full keeps nothing, which the cache says.
    fn write(&self, text: &str) {
        let written = self.file.set_len(0).and_then(|()| self.file.write_all_at(text.as_bytes(), 0));
        if written.is_err() {
            let _ = self.file.set_len(0);
        }
    }
}

impl Drop for TrialFile {
    fn drop(&mut self) {
        if self.file.metadata().is_ok_and(|now| now.len() == 0) {
            let _ = fs::remove_file(&self.path);
        }
        // Closing alone does not: a child that another thread starts has the file until its program begins.
        let _ = self.file.unlock();
    }
}

/// What was tried before for the steps of a plan and failed, and what is tried now.
pub struct Trials<'a> {
    /// GPU, driver and libraries.
    place: String,
    failed: Vec<Failed>,
    file: Option<TrialFile>,
    say: &'a dyn Fn(&str),
}

impl<'a> Trials<'a> {
    /// `place`: GPU, driver, libraries. `tried`: all that a library may compute. No folder: nothing is known.
    pub fn new(
        folder: Option<&Path>,
        place: String,
        tried: impl Iterator<Item = Convolution>,
        say: &'a dyn Fn(&str),
    ) -> Trials<'a> {
        let failed = folder.map_or_else(Vec::new, |folder| failed(folder, &|text| say_once(say, text)));
        let mut trials = Trials { place, failed, file: None, say };
        if !trials.failed.is_empty() {
            let problems: BTreeSet<String> = tried.map(|of| trials.problem(&of)).collect();
            trials.failed.retain(|failed| problems.contains(&failed.attempt.problem));
        }
        trials
    }

    /// Writes down what is tried from now on.
    pub fn begin(&mut self, folder: Option<&Path>) {
        let file = folder.map(|folder| TrialFile::in_folder(folder).map_err(|why| (folder, why)));
        match file.transpose() {
            Ok(file) => self.file = file,
            Err((folder, why)) => (self.say)(&format!(
                "{}: {why}; an engine that fails is tried again at the next start",
                folder.display()
            )),
        }
    }

    /// Whether a file names the engine that was run last.
    pub fn has_noted(&self) -> bool {
        let file = self.file.as_ref().map(|file| file.file.metadata());
        file.is_some_and(|found| found.is_ok_and(|found| found.len() > 0 && found.nlink() > 0))
    }

    /// The engines that are left out, each with its problem: they make other choices.
    pub fn left_out(&self) -> BTreeSet<String> {
        let failed = self.failed.iter().filter(|failed| failed.is_left_out()).map(|failed| &failed.attempt);
        failed.map(|attempt| format!("{} {}", attempt.engine, attempt.problem)).collect()
    }

    /// An engine for a convolution. `layer`: for people.
    pub fn attempt(&self, of: &Convolution, engine: String, layer: String) -> Attempt {
        Attempt { problem: self.problem(of), engine, layer }
    }

    fn problem(&self, of: &Convolution) -> String {
        let key = KeyBuilder::default().part("place", self.place.as_bytes());
        format!("{:?}", key.part("convolution", format!("{of:?}").as_bytes()).key())
    }

    /// Runs an engine with its name in the file, which stays as said above. Error: also one left out.
    pub fn of<T>(
        &self,
        attempt: &Attempt,
        run: impl FnOnce() -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let left_out =
            self.failed.iter().find(|failed| failed.is_left_out() && failed.attempt.is_of(attempt));
        if let Some(failed) = left_out {
            say_once(self.say, &failed.to_string());
            return Err(gpu::Error::NotSupported(failed.to_string()).into());
        }
        let Some(file) = &self.file else { return run() };
        file.write(&attempt.text());
        let result = run();
        let is_condemned = matches!(&result, Err(EngineError::Gpu(error)) if condemns(error));
        if !is_condemned {
            file.write("");
        }
        result
    }

    /// Forgets an earlier failure of an engine whose trial came to its end.
    pub fn succeeded(&self, attempt: &Attempt) {
        let before = self.failed.iter().filter(|failed| failed.attempt.is_of(attempt));
        for path in before.flat_map(|failed| &failed.paths) {
            // By now it may be another process's, or this one's own: those are locked.
            if left(path).is_ok_and(|left| left.is_some_and(|left| left.is_of(attempt))) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Whether no kernel of this process can run behind an error: the context is lost, or a kernel does not end.
pub fn condemns(error: &gpu::Error) -> bool {
    error.is_context_lost() || matches!(error, gpu::Error::Deadline { .. })
}

/// Once in this process: a model is loaded in several formats, and a layer is tried in several ways.
fn say_once(say: &dyn Fn(&str), text: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned()) {
        say(text);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::BufRead;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use gpu::cudnn::{Arithmetic, TensorShape};

    use super::*;

    /// Says to the test below that it is the process whose trial is looked at, and where.
    const STAGE: &str = "INFERENCE_TEST_TRIAL";

    /// A folder of its own, removed afterwards.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("inference-trial-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).expect("there is a folder for tests");
            Folder(folder)
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.0).expect("it is there").count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn convolution(channels: i64) -> Convolution {
        let shape = |extents| TensorShape { extents, strides: [1; 4], alignment: 16 };
        let arithmetic = Arithmetic::Single;
        let (from, weights, to) =
            (shape([1, 8, 6, 6]), shape([channels, 8, 1, 1]), shape([1, channels, 6, 6]));
        let (residual, bias, bounds) = (None, false, None);
        let (stride, dilation, pads) = ([1; 2], [1; 2], [0; 4]);
        Convolution { arithmetic, from, weights, to, residual, bias, bounds, stride, dilation, pads }
    }

    fn trials<'a>(folder: &Path, say: &'a dyn Fn(&str)) -> Trials<'a> {
        let all = [convolution(8), convolution(16)];
        let mut trials = Trials::new(Some(folder), "GPU, cuDNN 9".into(), all.into_iter(), say);
        trials.begin(Some(folder));
        trials
    }

    fn attempt(trials: &Trials, channels: i64, engine: &str) -> Attempt {
        trials.attempt(&convolution(channels), engine.into(), "model: features.2\nblock.0".into())
    }

    /// Whether it is run.
    fn is_tried(trials: &Trials, channels: i64, engine: &str) -> bool {
        let mut ran = false;
        let _ = trials.of(&attempt(trials, channels, engine), || Ok(std::mem::replace(&mut ran, true)));
        ran
    }

    fn quiet(text: &str) {
        panic!("nothing is to be said: {text}");
    }

    /// A process that tries engine 44 and does not come to its end.
    fn in_trial(folder: &Path) -> Child {
        let mut us = Command::new(std::env::current_exe().expect("a test runs"));
        let name =
            "engine::gpu::trial::tests::an_engine_is_left_out_when_its_process_ended_and_not_while_it_lives";
        us.args(["--exact", name, "--nocapture"]).env(STAGE, folder);
        let mut child = us.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
        let lines = io::BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let begun = lines.map_while(Result::ok).any(|line| line.ends_with("begun"));
        assert!(begun, "it tries an engine");
        child
    }

    #[test]
    fn an_engine_is_left_out_when_its_process_ended_and_not_while_it_lives() {
        if let Some(folder) = std::env::var_os(STAGE).map(PathBuf::from) {
            let trials = trials(&folder, &quiet);
            let _ = trials.of(&attempt(&trials, 8, "cuDNN engine 44"), || {
                println!("begun");
                // Until this process is killed.
                Ok(io::stdin().read_line(&mut String::new()).is_ok())
            });
            return;
        }
        let folder = Folder::new("lives");
        let mut child = in_trial(&folder.0);
        assert!(is_tried(&trials(&folder.0, &quiet), 8, "cuDNN engine 44"), "its process lives");
        child.kill().expect("it runs");
        child.wait().expect("it was started");
        let said = RefCell::new(Vec::new());
        let say = |text: &str| said.borrow_mut().push(text.to_owned());
        let second = trials(&folder.0, &say);
        assert!(is_tried(&second, 8, "cuDNN engine 44"), "it may have been no fault of the engine");
        assert_eq!((second.left_out().len(), said.borrow().len()), (0, 0));
        drop(second);
        let mut child = in_trial(&folder.0);
        child.kill().expect("it runs");
        child.wait().expect("it was started");
        let again = trials(&folder.0, &say);
        for _ in 0..2 {
            assert!(!is_tried(&again, 8, "cuDNN engine 44"), "its process was killed twice");
        }
        assert!(is_tried(&again, 8, "cuDNN engine 4") && is_tried(&again, 16, "cuDNN engine 44"));
        let [file, other] = ["trial-0", "trial-1"].map(|name| folder.0.join(name));
        let words = format!(
            "cuDNN engine 44 is left out for model: features.2 block.0: 2 earlier trials of it failed or were cut short; delete {} {} to try it again",
            file.display(),
            other.display()
        );
        assert_eq!(said.take(), [words]);
        assert_eq!(again.left_out().len(), 1);
        drop(again);
        assert_eq!(
            folder.files(),
            2,
            "what failed stays, the file of a choice that came to its end does not"
        );
        fs::remove_file(file).expect("it is there");
        let last = trials(&folder.0, &quiet);
        assert!(is_tried(&last, 8, "cuDNN engine 44"));
        last.succeeded(&attempt(&last, 8, "cuDNN engine 4"));
        assert_eq!(folder.files(), 2, "another engine, and the file of this choice");
        let earlier = trials(&folder.0, &quiet);
        last.succeeded(&attempt(&last, 8, "cuDNN engine 44"));
        assert!(!other.exists(), "its trial went well");
        let _new = trials(&folder.0, &quiet);
        earlier.succeeded(&attempt(&earlier, 8, "cuDNN engine 44"));
        assert!(other.exists(), "it is the file of another choice by now");
    }

    #[test]
    fn an_engine_that_takes_the_context_or_does_not_end_twice_is_left_out_and_one_that_is_refused_is_not() {
        let call = |code| gpu::Error::Call {
            call: "cuStreamSynchronize",
            what: String::new(),
            code,
            name: String::new(),
            text: String::new(),
        };
        for (error, is_left_out) in [
            (call(gpu::code::LAUNCH_FAILED), true),
            (gpu::Error::Deadline { what: "a way".into(), waited: Duration::ZERO }, true),
            (call(gpu::code::OUT_OF_MEMORY), false),
            (gpu::Error::NotSupported("not here".into()), false),
        ] {
            let folder = Folder::new("ends");
            let text = EngineError::from(error.clone()).to_string();
            for _ in 0..2 {
                let trials = trials(&folder.0, &quiet);
                assert!(is_tried(&trials, 8, "before"));
                let failed = || Err::<(), _>(error.clone().into());
                let found = trials.of(&attempt(&trials, 8, "44"), failed);
                assert_eq!(found.expect_err("it failed").to_string(), text);
                assert_eq!(trials.has_noted(), is_left_out, "{text}");
            }
            let next = trials(&folder.0, &|_| ());
            assert_eq!(
                (is_tried(&next, 8, "44"), is_tried(&next, 8, "before")),
                (!is_left_out, true),
                "{text}"
            );
        }
    }

    #[test]
    fn a_file_that_names_no_engine_is_reported_once_and_ignored() {
        let good = Attempt { problem: "1".into(), engine: "e".into(), layer: "l".into() }.text();
        let cut = &good[..good.len() - 1];
        let other = "doorbell trial 0\nproblem 1\nengine e\nlayer l\n";
        for (number, content) in [cut, other, "x", &format!("{good}\n")].into_iter().enumerate() {
            let folder = Folder::new(&format!("damaged-{number}"));
            fs::write(folder.0.join("trial-0"), content).expect("it can be written");
            fs::create_dir(folder.0.join("trial-1")).expect("it can be made");
            let said = RefCell::new(Vec::new());
            let say = |text: &str| said.borrow_mut().push(text.to_owned());
            for _ in 0..2 {
                let trials = trials(&folder.0, &say);
                assert!(
                    is_tried(&trials, 8, "44") && folder.0.join("trial-2").is_file(),
                    "the next one is taken"
                );
            }
            assert_eq!(said.borrow().len(), 2, "{content}: {said:?}");
            let words = "trial-0: it names no engine that was tried; it is ignored, delete it";
            assert!(said.borrow()[0].ends_with(words), "{said:?}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_costs_the_memory_of_failures_alone() {
        let folder = Folder::new("unwritable");
        fs::write(folder.0.join("file"), "").expect("it can be written");
        let said = RefCell::new(Vec::new());
        let say = |text: &str| said.borrow_mut().push(text.to_owned());
        let trials = trials(&folder.0.join("file"), &say);
        assert!(is_tried(&trials, 8, "44"));
        let lost =
            || Err::<(), _>(gpu::Error::Deadline { what: "a way".into(), waited: Duration::ZERO }.into());
        assert!(trials.of(&attempt(&trials, 8, "44"), lost).is_err() && !trials.has_noted());
        assert!(
            said.borrow()[0].ends_with("an engine that fails is tried again at the next start"),
            "{said:?}"
        );
    }
}
