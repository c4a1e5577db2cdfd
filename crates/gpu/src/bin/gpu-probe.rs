//! `gpu-probe`: what CUDA finds and allows here, a line for each fact (`name TAB value`), for `cargo xtask doctor`.
//!
//! Tries things instead of believing attributes: a dma-buf is exported, a page is registered, an image is built and loaded.
//! A card's doorbell page is stood in for by the first page of its BAR, mapped and registered, but neither read nor written.
//! Ends with status 0 whatever is missing: that is what it is asked for.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::ptr::NonNull;
use std::time::Instant;

use gpu::cache::Cache;
use gpu::{
    Context, DeviceMemory, Form, Gpu, How, ImageBuilder, Kind, Module, Registered, Toolkit, relaunch_unit,
};

const HELP: &str = "gpu-probe [--toolkit DIR]: what CUDA finds and allows here; DIR is looked at when no toolkit is found elsewhere";
const PAGE: usize = 4096;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let spare = match &arguments[..] {
        [] => None,
        [option, folder] if option == "--toolkit" => Some(PathBuf::from(folder)),
        [option] if option == "--help" => {
            say("usage", HELP);
            return ExitCode::SUCCESS;
        }
        _ => {
            let _ = writeln!(io::stderr(), "gpu-probe: {arguments:?} are no options of it; {HELP}");
            return ExitCode::from(2);
        }
    };
    say(
        "CUDA driver",
        &gpu::driver_version()
            .map_or_else(|error| error.to_string(), |version| format!("for CUDA {version}")),
    );
    let options = fs::read_to_string("/proc/driver/nvidia/params").ok();
    say("driver options", &driver_options(options.as_deref()));
    say("peer memory", &peer_memory(Path::new("/sys/module")));
    let builder = toolkit(spare.as_deref());
    for gpu in Gpu::all().unwrap_or_default() {
        let name = gpu.to_string();
        match probe(gpu, builder.as_ref()) {
            Ok(facts) => facts.iter().for_each(|(fact, value)| say(&format!("{name} {fact}"), value)),
            Err(error) => say(&name, &error.to_string()),
        }
    }
    ExitCode::SUCCESS
}

/// Who reads it may go away.
fn say(name: &str, value: &str) {
    let _ = writeln!(io::stdout(), "{name}\t{}", value.replace('\n', " "));
}

/// Finds and loads a toolkit, and says which.
fn toolkit(spare: Option<&Path>) -> Option<ImageBuilder> {
    let found = Toolkit::find(None).or_else(|missing| match spare {
        Some(folder) => Toolkit::find(Some(folder)).map_err(|_| missing),
        None => Err(missing),
    });
    let builder = match found {
        Ok(toolkit) => ImageBuilder::new(toolkit, Cache::off()),
        Err(missing) => {
            say("CUDA toolkit", &missing.to_string());
            return None;
        }
    };
    match builder.tools() {
        Ok((compiler, linker)) => {
            let root = builder.toolkit().root.display();
            say(
                "CUDA toolkit",
                &format!("{root}: NVRTC {}, nvJitLink {}", compiler.version(), linker.version()),
            );
            Some(builder)
        }
        Err(error) => {
            say("CUDA toolkit", &error.to_string());
            None
        }
    }
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
