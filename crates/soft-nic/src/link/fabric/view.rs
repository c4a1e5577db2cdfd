//! A fabric seen from outside: which processes have a NIC, and how `softnic ctl` asks one to call back.
//!
//! A caller writes the call, one word of the slot, and rings the bell. A call is taken by swapping it for 0,
//! so that none is taken twice; its number says where the caller waits.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use super::directory::{is_open_in, name_prefix, open_directory};
use super::layout::{SLOTS, at, slot_at};
use super::process::descriptors;
use super::{SlotOwner, ring, slot_owner};
use crate::os::SharedMemory;

/// A fabric of this user, looked at from outside.
#[derive(Debug)]
pub struct FabricView {
    /// Name that `--fabric` gave it.
    pub name: String,
    full_name: String,
    directory: SharedMemory,
    _fd: OwnedFd,
}

/// A living process that has a NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricMember {
    /// Slot: the upper bits of its QPNs.
    pub slot: u8,
    pub pid: u32,
    slot_owner: SlotOwner,
}

impl FabricView {
    /// Every fabric that a process like this one could join and that has a process on it, by name.
    ///
    /// Errors: the kernel's, when `/proc` cannot be read.
    pub fn all() -> io::Result<Vec<FabricView>> {
        let prefix = name_prefix()?;
        let mut found: Vec<FabricView> = Vec::new();
        for (_, path, target) in descriptors() {
            if let Some(name) = fabric_name(&target, &prefix)
                && !found.iter().any(|view| view.name == name)
                && let Some((fd, directory)) = open_directory(&path)
            {
                let (full_name, name) = (format!("{prefix}{name}"), name.to_owned());
                found.push(FabricView { name, full_name, directory, _fd: fd });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The processes with a NIC here, by slot.
    pub fn members(&self) -> Vec<FabricMember> {
        let member = |slot: u8| {
            let slot_owner = slot_owner(&self.directory, slot)?;
            Some(FabricMember { slot, pid: slot_owner.pid, slot_owner })
        };
        (0..SLOTS as u8).filter_map(member).filter(|member| self.is_taken(member)).collect()
    }

    /// Whether the process still runs, and still is the program that joined: `exec` closes the directory.
    pub fn is_taken(&self, member: &FabricMember) -> bool {
        let owner = &member.slot_owner;
        owner.watch().is_ok() && is_open_in(&self.full_name, owner).unwrap_or(false)
    }

    /// Asks this process's NIC to connect to the one that `call` (not 0) names. False: another call waits.
    pub fn call(&self, member: &FabricMember, call: u64) -> bool {
        let base = slot_at(member.slot);
        let word = self.directory.word(base + at::CALL);
        if word.compare_exchange(0, call, Ordering::AcqRel, Ordering::Relaxed).is_err_and(|old| old != call) {
            return false;
        }
        // Between call and bell: either the NIC sees the call before it sleeps, or we see that it sleeps.
        fence(Ordering::SeqCst);
        ring(self.directory.half(base + at::BELL));
        true
    }

    /// Takes back a call that the NIC did not take.
    pub fn withdraw_call(&self, member: &FabricMember, call: u64) {
        let word = self.directory.word(slot_at(member.slot) + at::CALL);
        let _ = word.compare_exchange(call, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The fabric whose directory a descriptor leads to, if its full name begins so.
fn fabric_name<'t>(target: &'t Path, prefix: &str) -> Option<&'t str> {
    target.to_str()?.strip_prefix("/memfd:")?.strip_prefix(prefix)?.strip_suffix(" (deleted)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::fabric::Fabric;

    #[test]
    fn a_view_shows_the_members_and_each_call_is_taken_once() {
        let name = format!("view-{}", std::process::id());
        let fabric = Fabric::join(&name).unwrap();
        let view = FabricView::all().unwrap().into_iter().find(|view| view.name == name).unwrap();
        let members = view.members();
        let [member] = members[..] else { panic!("{members:?}") };
        assert_eq!((member.slot, member.pid), (fabric.slot(), std::process::id()));
        assert_eq!((fabric.has_call(), fabric.take_call()), (false, None));
        assert!(view.call(&member, 7) && view.call(&member, 7), "one's own call may be repeated");
        assert!(!view.call(&member, 8), "another's call waits");
        assert!(fabric.has_call());
        assert_eq!((fabric.take_call(), fabric.take_call()), (Some(7), None));
        assert!(view.call(&member, 8));
        view.withdraw_call(&member, 7);
        assert!(fabric.has_call(), "not ours to take back");
        view.withdraw_call(&member, 8);
        assert!(!fabric.has_call());
        fabric.leave();
        assert_eq!(view.members(), []);
    }

    #[test]
    fn names_are_taken_from_directories_of_this_version_and_user_only() {
        for (target, name) in [
            ("/memfd:softnic-fabric-v3-0-1-2-default (deleted)", Some("default")),
            ("/memfd:softnic-fabric-v3-0-1-2-a-b.c (deleted)", Some("a-b.c")),
            ("/memfd:softnic-fabric-v2-0-1-2-default (deleted)", None),
            ("/memfd:softnic-fabric-v3-0-1-2-default", None),
            ("/tmp/softnic-fabric-v3-0-1-2-default (deleted)", None),
        ] {
            assert_eq!(fabric_name(Path::new(target), "softnic-fabric-v3-0-1-2-"), name, "{target}");
        }
    }
}
