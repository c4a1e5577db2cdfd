//! One test's fabric: programs started on it under `softnic run`, alone or as a server and its client.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use measure::{Hosts, Loopback};

use crate::counters::{self, Counters};
use crate::program::{DEADLINE, Program, find, terminal, within};
use crate::tcp_port;

/// Link layer of the ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// LIDs.
    InfiniBand,
    /// RoCE v2 on Ethernet.
    Roce,
}

impl Layer {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::InfiniBand, Self::Roce];

    /// Its name as an option of `softnic run`.
    pub fn option(self) -> &'static str {
        match self {
            Self::InfiniBand => "ib",
            Self::Roce => "roce",
        }
    }

    /// Its name as `ibv_devinfo` prints it.
    pub fn printed(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "Ethernet",
        }
    }
}

/// The launcher under test, with its library beside it; `SOFTNIC_TEST_LAUNCHER` names another build of it.
pub fn launcher() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = || std::env::var_os("SOFTNIC_TEST_LAUNCHER").map_or_else(build_library, PathBuf::from);
    BUILT.get_or_init(built).clone()
}

/// Builds the interposing library next to the launcher: cargo builds no cdylib for integration tests.
fn build_library() -> PathBuf {
    cargo(&["build", "--package", "softnic", "--lib"]);
    env!("CARGO_BIN_EXE_softnic").into()
}

/// Runs cargo as it was run for these tests: same profile, same target folder. Returns what it printed.
pub fn cargo(arguments: &[&str]) -> String {
    let profile_folder = Path::new(env!("CARGO_BIN_EXE_softnic")).parent().expect("target/PROFILE/softnic");
    let profile = match profile_folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).args(["--quiet", "--profile", profile, "--target-dir"]);
    cargo.arg(profile_folder.parent().expect("target/PROFILE"));
    let output =
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo, which runs this test, starts");
    assert!(output.status.success(), "{arguments:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A folder of this test binary's own for outputs, counters and compiled programs.
pub fn scratch(name: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{}", std::process::id())).join(name);
    fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("creating {}: {error}", folder.display()));
    folder
}

/// A named fabric, its link layer, and what every program on it is started with.
pub struct Fabric {
    name: String,
    layer: Layer,
    folder: PathBuf,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    started: AtomicU32,
    hosts: Option<Arc<Hosts>>,
    /// On the wire: the address of this test alone, unless hosts or an option give one.
    own: OnceLock<Arc<Loopback>>,
    nobody: Option<SharedFolder>,
    /// What its configuration file holds.
    config: String,
    has_terminal: bool,
    _turn: Option<Turn>,
}

impl Fabric {
    /// A fabric that no other test uses. Waits for this test's turn on the machine's cores.
    pub fn new(layer: Layer) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{number}", std::process::id());
        let folder = scratch(&number.to_string());
        let _turn = Some(Turn::take());
        let (options, environment) = (vec![], vec![]);
        Self {
            name,
            layer,
            folder,
            options,
            environment,
            started: AtomicU32::new(0),
            hosts: None,
            own: OnceLock::new(),
            nobody: None,
            config: String::new(),
            has_terminal: false,
            _turn,
        }
    }

    /// The same with further options of `softnic run`.
    pub fn with_options(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|&option| option.to_owned()));
        self
    }

    /// The same with a configuration file of this content.
    pub fn with_config(mut self, toml: &str) -> Self {
        toml.clone_into(&mut self.config);
        let file = self.folder.join("nic.toml");
        fs::write(&file, toml).unwrap_or_else(|error| panic!("writing {}: {error}", file.display()));
        let file = file.display().to_string();
        self.with_options(&["--config", &file])
    }

    /// The same with an environment variable for every program.
    pub fn with_environment(mut self, variable: &str, value: &str) -> Self {
        self.environment.push((variable.into(), value.into()));
        self
    }

    /// The same with a terminal as the standard input of every program.
    pub fn with_terminal(mut self) -> Self {
        self.has_terminal = true;
        self
    }

    /// The same with launcher and programs started as the user `nobody`; the error is why it cannot be.
    pub fn for_nobody(mut self) -> Result<Self, String> {
        let mine = fs::metadata("/proc/self").map_err(|error| format!("/proc/self: {error}"))?.uid();
        if mine != 0 {
            return Err(format!(
                "user {mine} cannot become another; as it is no root, the other tests are this one"
            ));
        }
        let nobody = SharedFolder::new(&self.name);
        self.folder.clone_from(&nobody.folder);
        self.nobody = Some(nobody);
        Ok(self)
    }

    /// The same with servers on one host and clients on another: single programs run on the first.
    pub fn on_hosts(mut self, hosts: Hosts) -> Self {
        self.hosts = Some(Arc::new(hosts));
        self
    }

    /// Whether messages go over the wire.
    pub fn is_wired(&self) -> bool {
        self.options.windows(2).any(|pair| pair == ["--path", "wire"])
    }

    /// The acknowledgement timeout that a requester is to have, as a QP context codes it: 4.096 µs * 2^n
    /// (InfiniBand Architecture Specification, 9.7.6.1.3). perftest's own, 67 ms, ends while a NIC waits for
    /// a core. A lost last packet is sent again only after the timeout; both programs poll until then.
    pub fn ack_timeout(&self) -> &'static str {
        match (self.is_wired(), self.config.contains("loss = ")) {
            (false, _) => "22",    // 17 s
            (true, false) => "18", // 1.1 s
            (true, true) => "16",  // 0.27 s
        }
    }

    /// The option that gives a NIC on the wire its own address, unless the test chose one or has hosts.
    fn own_address(&self) -> Option<[String; 2]> {
        let is_given = self.hosts.is_some() || self.options.iter().any(|option| option == "--ipv4");
        let own = || self.own.get_or_init(|| Arc::new(Loopback::unused())).address().to_string();
        (self.is_wired() && !is_given).then(|| ["--ipv4".into(), own()])
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A copy of a program where every user can start it.
    pub fn for_everybody(&self, program: &str) -> String {
        let name = Path::new(program).file_name().expect("a file");
        let copy = self.folder.join(name);
        fs::copy(program, &copy).unwrap_or_else(|error| panic!("copying {program}: {error}"));
        copy.display().to_string()
    }

    /// Link layer.
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// Starts one program under the NIC.
    pub fn start(&self, command: &[&str]) -> OnNic {
        self.start_on(0, command)
    }

    /// The same on the second host, if there are two.
    pub fn start_on(&self, host: usize, command: &[&str]) -> OnNic {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let stats = self.folder.join(format!("{number}.jsonl"));
        let mut softnic = match &self.nobody {
            None => self.launcher_on(host),
            Some(nobody) => nobody.launcher(),
        };
        softnic
            .args(["run", "--link-layer", self.layer.option(), "--fabric", &self.name, "--stats"])
            .arg(&stats);
        // The real path: PATH's folder has a link to it, and may be in a home that another user cannot enter.
        let place = self
            .nobody
            .as_ref()
            .and_then(|_| find(command[0]).ok())
            .and_then(|place| place.canonicalize().ok());
        softnic
            .args(&self.options)
            .args(self.own_address().into_iter().flatten())
            .arg("--")
            .arg(place.unwrap_or_else(|| command[0].into()))
            .args(&command[1..]);
        softnic.envs(self.environment.iter().map(|(variable, value)| (variable, value)));
        let what = format!("`{}`", command.join(" "));
        let input = if self.has_terminal { terminal() } else { Stdio::null() };
        let output = self.folder.join(format!("{number}.txt"));
        OnNic { program: Program::start(softnic, input, &what, &output), stats }
    }

    fn launcher_on(&self, host: usize) -> Command {
        let Some(hosts) = &self.hosts else { return Command::new(launcher()) };
        let words = hosts.enter(host);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(launcher());
        command
    }

    /// Runs one program to its successful end; returns its output and what its NIC counted.
    pub fn run(&self, command: &[&str]) -> (String, Counters) {
        let mut started = self.start(command);
        let output = started.program.succeed();
        (output, started.counters())
    }

    /// Whether the NIC also runs from inside the programs' polls.
    pub fn is_pumped(&self) -> bool {
        self.config.contains("pump = true")
    }

    /// Another fabric of the same test, sharing its turn.
    pub fn neighbour(&self) -> Self {
        let name = format!("{}-neighbour", self.name);
        Self {
            folder: scratch(&name),
            name,
            options: self.options.clone(),
            environment: self.environment.clone(),
            started: AtomicU32::new(0),
            hosts: self.hosts.clone(),
            own: self.own.clone(),
            nobody: None,
            config: self.config.clone(),
            _turn: None,
            ..*self
        }
    }

    /// Starts a server, and its client as soon as the server listens on the TCP port.
    ///
    /// `command` gets `-p PORT`, the client also this host's address, as perftest and the pingpongs do.
    pub fn pair(&self, command: &[&str]) -> Pair {
        self.pair_across(self, command)
    }

    /// The same with the client on a fabric of its own choice.
    pub fn pair_across(&self, clients: &Self, command: &[&str]) -> Pair {
        self.pair_of(clients, command, |_| ())
    }

    /// A pair whose server is prepared, with its NIC there, before the client starts.
    pub fn pair_prepared(&self, command: &[&str], prepare: impl FnOnce(&OnNic)) -> Pair {
        self.pair_of(self, command, prepare)
    }

    fn pair_of(&self, clients: &Self, command: &[&str], prepare: impl FnOnce(&OnNic)) -> Pair {
        let port = tcp_port::unused();
        let port_text = port.to_string();
        let mut command = command.to_vec();
        command.extend(["-p", &port_text]);
        let mut server = self.start(&command);
        let listens = within(Duration::from_secs(20), || {
            tcp_port::is_listening(server.program.pid(), port) || server.program.exited().is_some()
        });
        assert!(
            listens && server.program.exited().is_none(),
            "no server on port {port}: {}\n{}",
            server.program.ending(),
            server.program.tail()
        );
        prepare(&server);
        let libraries = Some(Libraries::of(&server.program));
        command.push(if self.hosts.is_some() { Hosts::ADDRESSES[0] } else { "127.0.0.1" });
        Pair { client: clients.start_on(1, &command), server, libraries }
    }

    /// The GID index that RoCE programs must be given: the first RoCE v2 GID with an IPv4 address.
    pub fn gid_index(&self) -> Option<u32> {
        let (output, _) = self.run(&["ibv_devinfo", "-v"]);
        output.lines().find_map(|line| {
            let entry = line.trim().strip_prefix("GID[")?;
            let (index, gid) = entry.split_once("]:")?;
            let gid = gid.trim();
            (gid.starts_with("::ffff:") && gid.ends_with("RoCE v2")).then(|| index.trim().parse().ok())?
        })
    }

    /// Arguments that give a pingpong its GID where the link layer needs one.
    pub fn gid_arguments(&self) -> Vec<String> {
        match self.layer {
            Layer::InfiniBand => vec![],
            Layer::Roce => {
                let index = self.gid_index().expect("a RoCE v2 GID with an IPv4 address in ibv_devinfo -v");
                vec!["-g".into(), index.to_string()]
            }
        }
    }
}

/// Launcher and library where every user reaches them, in a folder all can write to; removed at the end.
struct SharedFolder {
    folder: PathBuf,
}

impl SharedFolder {
    /// User and group `nobody`, as Debian, Fedora and the kernel's overflow ids have them.
    const NOBODY: u32 = 65534;

    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("softnic-{name}"));
        let make = || -> std::io::Result<()> {
            fs::create_dir(&folder)?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
            let built = launcher();
            fs::copy(&built, folder.join("softnic"))?;
            let library = "libsoftnic_preload.so";
            fs::copy(built.with_file_name(library), folder.join(library)).map(drop)
        };
        make().unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        Self { folder }
    }

    fn launcher(&self) -> Command {
        let mut command = Command::new(self.folder.join("softnic"));
        command.uid(Self::NOBODY).gid(Self::NOBODY).current_dir("/");
        command
    }
}

impl Drop for SharedFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A program under the NIC and the file that gets its counters.
pub struct OnNic {
    /// The program.
    pub program: Program,
    stats: PathBuf,
}

impl OnNic {
    /// What the NIC of this process counted; the process must have ended.
    pub fn counters(&self) -> Counters {
        let pid = self.program.pid();
        let all = self.all_counters();
        let mine: Vec<Counters> = all.into_iter().filter(|line| line.pid() == pid).collect();
        let count = mine.len();
        let [line] = <[Counters; 1]>::try_from(mine).unwrap_or_else(|_| {
            panic!("{count} lines of process {pid} in {}\n{}", self.stats.display(), self.program.tail())
        });
        line
    }

    /// The lines of every process that this start led to.
    pub fn all_counters(&self) -> Vec<Counters> {
        let text = fs::read_to_string(&self.stats).unwrap_or_default();
        text.lines().map(|line| counters::parse(line).unwrap_or_else(|why| panic!("{why}: {line}"))).collect()
    }
}

/// A server and its client.
pub struct Pair {
    /// The side that was started first and listens.
    pub server: OnNic,
    /// The side that connects.
    pub client: OnNic,
    /// What the server had mapped while it waited, seen from outside.
    libraries: Option<Libraries>,
}

impl Pair {
    /// A server that waits already, and its client.
    pub fn of(server: OnNic, client: OnNic) -> Self {
        let libraries = Some(Libraries::of(&server.program));
        Self { server, client, libraries }
    }

    /// The same where the server loads libmlx5 only for a client: the NIC's own report must do.
    pub fn loading_late(self) -> Self {
        Self { libraries: None, ..self }
    }

    /// Waits for both to end well; on failure kills both and shows how each ended.
    pub fn finish(mut self) -> Finished {
        // A side that fails may leave the other waiting for ever, so the first failure ends the wait.
        within(DEADLINE, || {
            let ended = self.ended();
            ended.iter().all(Option::is_some) || ended.iter().flatten().any(|status| !status.success())
        });
        if !self.ended().iter().all(|status| status.is_some_and(|status| status.success())) {
            // The other side gets a moment to say what it saw.
            within(Duration::from_secs(2), || self.ended().iter().all(Option::is_some));
            panic!("{}", self.account());
        }
        let side = |it: &OnNic| Side { output: it.program.output(), counters: it.counters() };
        let finished = Finished { server: side(&self.server), client: side(&self.client) };
        if let Some(libraries) = &self.libraries {
            libraries.check(&finished.server.counters);
        }
        finished
    }

    /// The same, and both sides used the distribution's libmlx5.
    pub fn finish_on_distribution(self) -> Finished {
        let finished = self.finish();
        for side in [&finished.server, &finished.client] {
            assert_eq!(Ok(side.counters.libmlx5().to_owned()), distribution_libmlx5());
        }
        finished
    }

    fn ended(&mut self) -> [Option<ExitStatus>; 2] {
        [self.server.program.exited(), self.client.program.exited()]
    }

    /// How both sides stand, with their last lines.
    pub fn account(&mut self) -> String {
        let (server, client) = (&mut self.server.program, &mut self.client.program);
        format!(
            "server: {}; client: {}\n{}\n{}",
            server.ending(),
            client.ending(),
            server.tail(),
            client.tail()
        )
    }
}

/// What one side left.
pub struct Side {
    /// What it printed.
    pub output: String,
    /// What its NIC counted.
    pub counters: Counters,
}

/// A pair that ended well.
pub struct Finished {
    /// The side that listened.
    pub server: Side,
    /// The side that connected.
    pub client: Side,
}

/// The libmlx5 and interposer files that a process has mapped.
struct Libraries {
    libmlx5: Vec<String>,
    interposer: Vec<String>,
}

impl Libraries {
    fn of(program: &Program) -> Self {
        let maps = program.maps();
        let named = |part: &str| {
            let mut files: Vec<String> = maps
                .lines()
                .filter_map(|line| line.find('/').map(|at| line[at..].to_owned()))
                .filter(|file| file.rsplit('/').next().is_some_and(|name| name.starts_with(part)))
                .collect();
            files.sort();
            files.dedup();
            files
        };
        Self { libmlx5: named("libmlx5"), interposer: named("libsoftnic_preload") }
    }

    /// One libmlx5, the one the NIC reports too; and our library is in there, once.
    fn check(&self, counters: &Counters) {
        assert_eq!(
            self.libmlx5,
            [counters.libmlx5()],
            "libmlx5 in /proc/PID/maps against the NIC's own report"
        );
        assert_eq!(
            self.interposer.len(),
            1,
            "the interposing library in /proc/PID/maps: {:?}",
            self.interposer
        );
    }
}

/// The file of the libmlx5 that this distribution installed, or why none is found.
pub fn distribution_libmlx5() -> Result<String, String> {
    static FOUND: OnceLock<Result<String, String>> = OnceLock::new();
    let look = || {
        let ldconfig = find("ldconfig").unwrap_or_else(|_| "/sbin/ldconfig".into());
        let cache =
            Command::new(ldconfig).arg("-p").output().map_err(|error| format!("ldconfig -p: {error}"))?;
        let listed = String::from_utf8_lossy(&cache.stdout)
            .lines()
            .filter(|line| line.contains("libmlx5.so.1 ") && line.contains("x86-64"))
            .find_map(|line| line.split("=> ").nth(1).map(str::to_owned))
            .ok_or("libmlx5.so.1 not in the loader's cache (package ibverbs-providers)")?;
        let file = fs::canonicalize(&listed).map_err(|error| format!("{listed}: {error}"))?;
        Ok(file.display().to_string())
    };
    FOUND.get_or_init(look).clone()
}

/// A place on the machine's cores. A pair keeps four threads busy; more pairs than fit would measure the
/// scheduler. At least two: most tests wait for protocol time-outs.
struct Turn;

static TURNS: Mutex<usize> = Mutex::new(0);
static TURN_ENDED: Condvar = Condvar::new();

impl Turn {
    fn take() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let places = (cores / 4).max(2);
        let taken = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken =
            TURN_ENDED.wait_while(taken, |taken| *taken >= places).unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TURNS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        TURN_ENDED.notify_one();
    }
}
