//! What this process sees: the configuration and the virtual tree, made when a path first asks for them.

use std::sync::OnceLock;

use soft_nic::config::Config;
use soft_nic::os::{Interface, interfaces, log};
use soft_nic::sysfs::tree::Tree;
use soft_nic::sysfs::{self, Machine};

/// The configuration and the tree of virtual files; never changes once made.
pub struct VirtualTree {
    /// The configuration that the launcher left.
    pub config: Config,
    pub machine: Machine,
    pub tree: Tree,
}

/// The tree of this process, made once. An unreadable configuration logs a line and shows no devices.
pub fn virtual_tree() -> &'static VirtualTree {
    static TREE: OnceLock<VirtualTree> = OnceLock::new();
    TREE.get_or_init(|| {
        let config = Config::from_environment().unwrap_or_else(|error| {
            log(&format!("{error}; no device is shown"));
            Config { devices: 0, ..Config::default() }
        });
        let machine = machine(&config);
        let tree = sysfs::build(&config, &machine);
        VirtualTree { config, machine, tree }
    })
}

fn machine(config: &Config) -> Machine {
    // SAFETY: sysconf takes and returns numbers.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let has_address = |i: &Interface| i.address == config.nic().ipv4;
    let interface = interfaces().ok().and_then(|all| all.into_iter().find(has_address));
    let (interface, interface_index) =
        interface.map_or_else(|| ("lo".to_owned(), 1), |found| (found.name, found.index));
    let processors = usize::try_from(processors).unwrap_or(1).max(1);
    Machine { processors, interface, interface_index }
}
