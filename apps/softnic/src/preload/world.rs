//! What this process sees: the configuration and the virtual tree, made when a path first asks for them.

use std::sync::OnceLock;

use soft_nic::abi::server::log;
use soft_nic::abi::sysfs::{self, Machine};
use soft_nic::abi::tree::{Node, Tree};
use soft_nic::config::Config;

/// Configuration and tree; never changes once made.
pub struct World {
    /// The configuration that the launcher left.
    pub config: Config,
    /// What the machine has.
    pub machine: Machine,
    /// The tree.
    pub tree: Tree,
    /// Paths of its directories, in order: a directory's descriptor carries the index.
    directories: Vec<String>,
}

/// The one world of this process. A configuration that cannot be read gives a line and a machine without devices.
pub fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let (config, devices) = match Config::from_environment() {
            Ok(config) => (config, true),
            Err(error) => {
                log(&format!("{error}; no device is shown"));
                (Config::default(), false)
            }
        };
        let machine = machine(&config);
        let shown = if devices { config.clone() } else { Config { devices: 0, ..config.clone() } };
        let tree = sysfs::build(&shown, &machine);
        let is_directory = |path: &&str| tree.node(path) == Some(&Node::Directory);
        let directories = tree.paths().filter(is_directory).map(str::to_owned).collect();
        World { config, machine, tree, directories }
    })
}

impl World {
    /// Number of a directory.
    pub fn directory_index(&self, path: &str) -> Option<usize> {
        self.directories.binary_search_by(|known| known.as_str().cmp(path)).ok()
    }

    /// Path of a directory.
    pub fn directory(&self, index: usize) -> Option<&str> {
        self.directories.get(index).map(String::as_str)
    }
}

fn machine(config: &Config) -> Machine {
    // SAFETY: sysconf takes and returns numbers.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let interface = interface_of(config.ipv4).unwrap_or_else(|| ("lo".to_owned(), 1));
    Machine {
        processors: usize::try_from(processors).unwrap_or(1).max(1),
        interface: interface.0,
        interface_index: interface.1,
    }
}

/// The network interface that has this address.
fn interface_of(address: std::net::Ipv4Addr) -> Option<(String, u32)> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` receives a list that `freeifaddrs` below gives back.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return None;
    }
    let mut found = None;
    let mut at = list;
    while !at.is_null() && found.is_none() {
        // SAFETY: `at` is an element of the list, which lives until `freeifaddrs`.
        let element = unsafe { &*at };
        let family = if element.ifa_addr.is_null() {
            0
        } else {
            // SAFETY: not null, so the address of this element.
            unsafe { (*element.ifa_addr).sa_family }
        };
        if i32::from(family) == libc::AF_INET {
            // SAFETY: an AF_INET address is a `sockaddr_in`; getifaddrs aligns it.
            let ip = unsafe { (*element.ifa_addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr };
            if ip.to_ne_bytes() == address.octets() {
                // SAFETY: every element has a name, a C string.
                let name = unsafe { std::ffi::CStr::from_ptr(element.ifa_name) };
                // SAFETY: as above.
                let index = unsafe { libc::if_nametoindex(element.ifa_name) };
                found = name.to_str().ok().map(|name| (name.to_owned(), index));
            }
        }
        at = element.ifa_next;
    }
    // SAFETY: `list` came from `getifaddrs` and is not used after this.
    unsafe { libc::freeifaddrs(list) };
    found
}
