//! `gpu-probe`: what CUDA finds and allows here, a line for each fact (`name TAB value`), for `cargo xtask
//! doctor`; with `--json` one object that says which GPUs and versions there are, for programs that name them
//! beside a number; with `--energy` the driver's count of a GPU's energy, for samples of figures.
//!
//! Tries things instead of believing attributes: a dma-buf is exported, a page is registered, an image is
//! built and loaded. A card's doorbell page is stood in for by the first page of its BAR, mapped and
//! registered, but neither read nor written. Ends with status 0 even if something is missing: that is its
//! answer.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::ptr::NonNull;
use std::time::Instant;

use gpu::cache::Cache;
use gpu::nvml::EnergyCounter;
use gpu::{
    Context, DeviceMemory, Form, Gpu, How, ImageBuilder, Kind, Module, Registered, Toolkit, ToolkitMissing,
    relaunch_unit,
};

const HELP: &str = "gpu-probe [--json] [--toolkit DIR] | --energy BUS: what CUDA finds and allows here; DIR is looked at when no toolkit is \
     found elsewhere; --json: GPUs and versions only, as one JSON object, nothing is tried; --energy: answers each line of stdin with \
     the energy in mJ that the GPU at BUS, as 0000:17:00.0, has used since its driver was loaded";
const PAGE: usize = 4096;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let ProbeOptions { json, spare, energy, help } = match asked(arguments) {
        Ok(asked) => asked,
        Err(why) => {
            let _ = writeln!(io::stderr(), "gpu-probe: {why}; {HELP}");
            return ExitCode::from(2);
        }
    };
    if help {
        say("usage", HELP);
        return ExitCode::SUCCESS;
    }
    if let Some(bus) = energy {
        count_energy(&bus);
        return ExitCode::SUCCESS;
    }
    if json {
        let _ = writeln!(io::stdout(), "{}", identity(spare.as_deref()));
        return ExitCode::SUCCESS;
    }
    say("CUDA driver", &driver(gpu::driver_version()));
    let options = fs::read_to_string("/proc/driver/nvidia/params").ok();
    say("driver options", &driver_options(options.as_deref()));
    say("peer memory", &peer_memory(Path::new("/sys/module")));
    let builder = match toolkit(spare.as_deref()) {
        Ok((builder, nvrtc, nvjitlink)) => {
            let root = builder.toolkit().root.display().to_string();
            say("CUDA toolkit", &format!("{root}: NVRTC {nvrtc}, nvJitLink {nvjitlink}"));
            Some(builder)
        }
        Err(missing) => {
            say("CUDA toolkit", &missing);
            None
        }
    };
    say("cuDNN", &cudnn(gpu::cudnn::version(None)));
    for gpu in Gpu::all().unwrap_or_default() {
        let name = gpu.to_string();
        match probe(gpu, builder.as_ref()) {
            Ok(facts) => facts.iter().for_each(|(fact, value)| say(&format!("{name} {fact}"), value)),
            Err(error) => say(&name, &error.to_string()),
        }
    }
    ExitCode::SUCCESS
}

/// What the command line asks for.
#[derive(Debug, Default, PartialEq)]
struct ProbeOptions {
    json: bool,
    spare: Option<PathBuf>,
    energy: Option<String>,
    help: bool,
}

/// The options, in any order. Errors: which is none, or lacks its folder.
fn asked(arguments: Vec<OsString>) -> Result<ProbeOptions, String> {
    let (mut asked, mut words) = (ProbeOptions::default(), arguments.into_iter());
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--json") => asked.json = true,
            Some("--help") => asked.help = true,
            Some("--toolkit") => match words.next().filter(|folder| !folder.is_empty()) {
                Some(folder) => asked.spare = Some(folder.into()),
                None => return Err("--toolkit: give the folder of a toolkit behind it".into()),
            },
            Some("--energy") => match words.next().and_then(|bus| bus.into_string().ok()) {
                Some(bus) => asked.energy = Some(bus),
                None => return Err("--energy: give the GPU's place on the bus behind it".into()),
            },
            _ => return Err(format!("{} is no option of it", word.display())),
        }
    }
    Ok(asked)
}

/// Answers each line of stdin with the energy of the GPU at a place on the bus, or why it is not known.
fn count_energy(bus: &str) {
    let counter = EnergyCounter::on_bus(bus).map_err(|error| error.to_string());
    for _ in io::stdin().lines().map_while(Result::ok) {
        let read = |counter: &EnergyCounter| counter.read_mj().map_err(|error| error.to_string());
        let (name, value) = match counter.as_ref().map_err(Clone::clone).and_then(read) {
            Ok(energy_mj) => ("energy_mj", energy_mj.to_string()),
            Err(why) => ("why", quoted(&why)),
        };
        if writeln!(io::stdout(), "{{\"kind\":\"answer\",\"{name}\":{value}}}").is_err() {
            break;
        }
    }
}

/// The reader may close the pipe.
fn say(name: &str, value: &str) {
    let _ = writeln!(io::stdout(), "{name}\t{}", value.replace('\n', " "));
}

/// Which CUDA it runs, or why there is none and all that was looked at.
fn driver(version: gpu::Result<String>) -> String {
    match version {
        Ok(version) => format!("for CUDA {version}"),
        Err(gpu::Error::NoDriver { looked, reason }) => format!(
            "no CUDA driver: {reason}; looked for {looked} as the dynamic loader does (LD_LIBRARY_PATH, /etc/ld.so.cache, the \
             system's library directories); it comes with NVIDIA's kernel driver (package libcuda1 or nvidia-driver)"
        ),
        Err(error) => error.to_string(),
    }
}

/// Its version, or why there is none: the name that the error begins with is the row's already.
fn cudnn(version: gpu::Result<String>) -> String {
    version.unwrap_or_else(|error| error.to_string().trim_start_matches("cuDNN: ").to_owned())
}

/// Finds and loads a toolkit; with the versions of its compiler and its linker.
fn toolkit(spare: Option<&Path>) -> Result<(ImageBuilder, String, String), String> {
    let found = Toolkit::find(None).or_else(|missing| match spare {
        Some(folder) => Toolkit::find(Some(folder)).map_err(|spare| both(missing, spare)),
        None => Err(missing),
    });
    let builder = ImageBuilder::new(found.map_err(|missing| missing.to_string())?, Cache::off());
    let (compiler, linker) = builder.tools().map_err(|error| error.to_string())?;
    let (nvrtc, nvjitlink) = (compiler.version().to_string(), linker.version().to_string());
    Ok((builder, nvrtc, nvjitlink))
}

/// What each of two searches looked at.
fn both(mut first: ToolkitMissing, second: ToolkitMissing) -> ToolkitMissing {
    first.looked.extend(second.looked);
    first
}

/// GPUs and versions as one JSON object; what is missing is a sentence in `missing`.
fn identity(spare: Option<&Path>) -> String {
    let mut missing = Vec::new();
    let mut known = |found: Result<String, String>| match found {
        Ok(value) => quoted(&value),
        Err(why) => {
            missing.push(quoted(&why));
            "null".to_owned()
        }
    };
    let cuda = known(gpu::driver_version().map(|version| version.to_string()).map_err(|why| why.to_string()));
    let (found, why) = match toolkit(spare) {
        Ok((builder, nvrtc, nvjitlink)) => {
            (Some([builder.toolkit().root.display().to_string(), nvrtc, nvjitlink]), None)
        }
        Err(why) => (None, Some(why)),
    };
    let [root, nvrtc, nvjitlink] = match &found {
        Some(found) => found.clone().map(|word| quoted(&word)),
        None => ["null"; 3].map(str::to_owned),
    };
    let named = |gpu: Gpu| -> gpu::Result<String> {
        Ok(format!(
            "{{\"ordinal\":{},\"name\":{},\"arch\":{},\"memory_mib\":{},\"bus\":{}}}",
            gpu.ordinal(),
            quoted(&gpu.name()?),
            quoted(&gpu.arch()?.to_string()),
            gpu.memory_bytes()? >> 20,
            quoted(&gpu.bus_id()?)
        ))
    };
    let gpus = Gpu::all().and_then(|gpus| gpus.into_iter().map(named).collect::<gpu::Result<Vec<_>>>());
    let gpus = gpus.unwrap_or_else(|why| {
        // Without a driver that was said above.
        missing.extend((cuda != "null").then(|| quoted(&why.to_string())));
        Vec::new()
    });
    missing.extend(why.iter().map(|why| quoted(why)));
    let [cudnn, why_no_cudnn] = match gpu::cudnn::version(None) {
        Ok(version) => [quoted(&version), "null".to_owned()],
        Err(why) => ["null".to_owned(), quoted(&why.to_string())],
    };
    let driver = kernel_module().map_or("null".to_owned(), |version| quoted(&version));
    format!(
        "{{\"kind\":\"gpu-probe\",\"driver\":{driver},\"cuda\":{cuda},\"toolkit\":{root},\"nvrtc\":{nvrtc},\
         \"nvjitlink\":{nvjitlink},\"cudnn\":{cudnn},\"why_no_cudnn\":{why_no_cudnn},\"gpus\":[{}],\"missing\":[{}]}}",
        gpus.join(","),
        missing.join(",")
    )
}

/// Version of the kernel's part of the driver, as `nvidia-smi` prints it.
fn kernel_module() -> Option<String> {
    let said = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let version = module_version(&said).map(str::to_owned);
    version.or_else(|| Some(fs::read_to_string("/sys/module/nvidia/version").ok()?.trim().to_owned()))
}

/// `580.95.05` of `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep …`, and of the open
/// module's line.
fn module_version(said: &str) -> Option<&str> {
    let line = said.lines().find(|line| line.starts_with("NVRM version"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    line.split_whitespace().find(is_version)
}

/// As JSON has it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character < ' ' => quoted.push_str(&format!("\\u{:04x}", u32::from(character))),
            character => quoted.push(character),
        }
    }
    quoted + "\""
}

fn probe(gpu: Gpu, builder: Option<&ImageBuilder>) -> gpu::Result<Vec<(String, String)>> {
    let can = gpu.abilities()?;
    let mut facts = vec![
        (
            "".into(),
            format!(
                "{}, {}, {} MiB, at {}",
                gpu.name()?,
                gpu.arch()?,
                gpu.memory_bytes()? >> 20,
                gpu.bus_id()?
            ),
        ),
        (
            "RDMA".into(),
            format!(
                "{}; writes are ordered for {}; flush options {:#x}",
                if can.gpu_direct_rdma {
                    "a NIC may reach its memory"
                } else {
                    "no NIC may reach its memory"
                },
                match can.write_ordering {
                    0 => "nobody",
                    100 => "the context that owns the memory",
                    _ => "every device",
                },
                can.flush_options
            ),
        ),
    ];
    let context = Context::new(gpu)?;
    let exported = DeviceMemory::for_export(&context, 1).and_then(|memory| memory.dma_buf());
    facts
        .push(("dma-buf".into(), exported.map_or_else(|error| error.to_string(), |_| "export works".into())));
    facts.push(("pages".into(), stand_in(&context)));
    facts.extend(
        cards(Path::new("/sys/class/infiniband"))
            .into_iter()
            .map(|(card, bar)| (card, card_page(&context, &bar))),
    );
    if let Some(builder) = builder {
        let since = Instant::now();
        let built = builder
            .image(&[relaunch_unit()], gpu.arch()?, Form::Cubin)
            .map_err(|error| error.to_string())
            .and_then(|image| Module::load(&context, &image).map_err(|error| error.to_string()));
        let took = format!("compiled, linked and loaded in {} ms", since.elapsed().as_millis());
        facts.push(("kernels".into(), built.map_or_else(|error| error, |_| took)));
    }
    Ok(facts)
}

/// What of the driver's options matters, from `/proc/driver/nvidia/params`.
fn driver_options(params: Option<&str>) -> String {
    let Some(params) = params else { return "unknown: no /proc/driver/nvidia/params".into() };
    let words = params.lines().find_map(|line| line.strip_prefix("RegistryDwords: "));
    match words.map(|words| words.trim_matches('"')) {
        Some(words) if words.contains("PeerMappingOverride=1") => {
            "PeerMappingOverride=1: a GPU may be given a card's doorbell page".into()
        }
        _ => "PeerMappingOverride is not set: a card's doorbell page will be refused unless root registers it (options nvidia \
              NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in /etc/modprobe.d allows it; without it the CPU rings)"
            .into(),
    }
}

/// Which way a NIC's driver gets at GPU memory that is registered by address.
fn peer_memory(modules: &Path) -> String {
    let loaded = ["nvidia_peermem", "nv_peer_mem"].into_iter().find(|name| modules.join(name).exists());
    match loaded {
        Some(name) => format!("{name} is loaded: a CUDA address can be registered with ibv_reg_mr"),
        None => "no nvidia_peermem: GPU memory is registered as a dma-buf (ibv_reg_dmabuf_mr), or by the software NIC".into(),
    }
}

/// A page of memory in a doorbell page's place, as under the software NIC.
fn stand_in(context: &Context) -> String {
    match Mapped::anonymous() {
        Ok(page) => register(context, &page),
        Err(error) => format!("no page to try it with: {error}"),
    }
}

/// The first page of a card's BAR.
fn card_page(context: &Context, bar: &Path) -> String {
    let opened = OpenOptions::new().read(true).write(true).open(bar);
    match opened.and_then(|file| Mapped::of(&file)) {
        Ok(page) => register(context, &page),
        Err(error) => format!("{}: {error}: its doorbell page could not be tried", bar.display()),
    }
}

fn register(context: &Context, page: &Mapped) -> String {
    // SAFETY: the page stays mapped until after the registration is dropped, at the end of this function.
    let registered = unsafe { Registered::new(context, page.0, PAGE, Kind::Doorbell) };
    match registered.as_ref().map(|registered| registered.how()) {
        Ok([How::DeviceRegisters]) => "registered as a card's registers: the GPU rings it".into(),
        Ok([How::MemoryAfter(refusal)]) => {
            format!(
                "registered as memory, as the software NIC's doorbell is: the GPU rings it (as registers: {refusal})"
            )
        }
        Ok(how) => format!("registered: {how:?}"),
        Err(error) => error.to_string(),
    }
}

/// RDMA devices and their first BAR.
fn cards(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).map(|entries| entries.flatten().collect()).unwrap_or(vec![]);
    let card = |entry: &fs::DirEntry| {
        let bar = entry.path().join("device/resource0");
        bar.exists().then(|| (entry.file_name().to_string_lossy().into_owned(), bar))
    };
    let mut cards: Vec<(String, PathBuf)> = entries.iter().filter_map(card).collect();
    cards.sort_unstable();
    cards
}

/// One mapped page.
struct Mapped(NonNull<u8>);

impl Mapped {
    fn anonymous() -> io::Result<Mapped> {
        Mapped::map(libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
    }

    fn of(file: &File) -> io::Result<Mapped> {
        Mapped::map(libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(flags: i32, fd: i32) -> io::Result<Mapped> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping touches no memory in use.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, flags, fd, 0) };
        match NonNull::new(page.cast::<u8>()) {
            Some(start) if page != libc::MAP_FAILED => Ok(Mapped(start)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_that_allows_doorbells_is_read_as_the_driver_prints_it() {
        for (params, words) in [
            (
                Some("EnablePCIeGen3: 0\nRegistryDwords: \"PeerMappingOverride=1;\"\nx: 1\n"),
                "PeerMappingOverride=1: a GPU",
            ),
            (Some("RegistryDwords: \"\"\n"), "is not set"),
            (Some("RegistryDwords: \"PeerMappingOverride=0;\"\n"), "is not set"),
            (None, "unknown"),
        ] {
            assert!(driver_options(params).contains(words), "{params:?}: {}", driver_options(params));
        }
    }

    #[test]
    fn the_version_of_the_driver_is_what_nvidia_smi_prints() {
        for (said, version) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC version:  gcc 12.2.0\n",
                Some("580.95.05"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build  (root@host)\n",
                Some("570.172.08"),
            ),
            ("GCC version:  gcc 12.2.0\n", None),
            ("", None),
        ] {
            assert_eq!(module_version(said), version, "{said}");
        }
    }

    #[test]
    fn options_come_in_any_order_and_what_is_none_is_named() {
        let asked = |text: &str| super::asked(text.split_whitespace().map(OsString::from).collect());
        let both = ProbeOptions { json: true, spare: Some("/t".into()), ..ProbeOptions::default() };
        assert_eq!(asked("--json --toolkit /t").as_ref(), Ok(&both));
        assert_eq!(asked("--toolkit /t --json"), Ok(both));
        assert_eq!(asked(""), Ok(ProbeOptions::default()));
        for (text, words) in [("--toolkit", "--toolkit: give the folder"), ("--json -x", "-x is no option")] {
            let why = asked(text).unwrap_err();
            assert!(why.starts_with(words), "{why}");
        }
        assert!(super::asked(vec!["--toolkit".into(), "".into()]).is_err());
    }

    #[test]
    fn a_row_without_cudnn_names_it_once() {
        let error = gpu::Error::Refused("cuDNN: libcudnn.so.9: cannot open shared object file".into());
        assert_eq!(cudnn(Err(error)), "libcudnn.so.9: cannot open shared object file");
        assert_eq!(cudnn(Ok("9.19.0".into())), "9.19.0");
    }

    #[test]
    fn what_json_cannot_hold_as_it_is_is_escaped() {
        assert_eq!(quoted("a \"b\" c:\\d\n"), r#""a \"b\" c:\\d\u000a""#);
    }

    #[test]
    fn cards_and_modules_are_found_where_the_kernel_lists_them() {
        let folder = std::env::temp_dir().join(format!("gpu-probe-{}", std::process::id()));
        fs::create_dir_all(folder.join("mlx5_1/device")).unwrap();
        fs::create_dir_all(folder.join("siw0/device")).unwrap();
        fs::write(folder.join("mlx5_1/device/resource0"), "").unwrap();
        assert_eq!(cards(&folder), [("mlx5_1".to_owned(), folder.join("mlx5_1/device/resource0"))]);
        assert!(peer_memory(&folder).starts_with("no nvidia_peermem"));
        fs::create_dir_all(folder.join("nvidia_peermem")).unwrap();
        assert!(peer_memory(&folder).contains("ibv_reg_mr"));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(cards(&folder), []);
    }
}
