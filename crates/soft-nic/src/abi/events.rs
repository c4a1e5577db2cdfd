//! Completion channels and asynchronous event files: pipes whose read end the program owns.
//!
//! The program reads, polls and makes them non-blocking; nothing is interposed. The NIC writes whole events.
//! A destroyed object's unread events are taken back: libibverbs waits until all are acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use mlx5_device::Reason;
use mlx5_device::command::{ContextId, EventSink};

use super::reasons::Reasons;
use crate::os::locked;
use crate::os::pipe::{Pipe, open_pipes, pipe_inode};

/// A completion event: the CQ's user handle.
const COMPLETION_BYTES: usize = 8;
/// An asynchronous event: the object's user handle, the event type, a reserved word.
const ASYNCHRONOUS_BYTES: usize = 16;
/// `IBV_EVENT_DEVICE_FATAL`.
const DEVICE_FATAL: u32 = 8;
/// Channels without a CQ that may be there before the first search for closed ones.
const UNUSED: usize = 16;

/// All pipes of a process, and why what failed; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Events(Arc<Mutex<Pipes>>, pub Reasons);

#[derive(Debug, Default)]
struct Pipes {
    /// By number, the latest last.
    files: BTreeMap<u32, EventFile>,
    next: u32,
    /// Channels without a CQ that the last search for closed ones left.
    left: usize,
}

/// A completion channel or asynchronous event file. A context may have several; the latest gets the events.
#[derive(Debug)]
struct EventFile {
    owner: ContextId,
    is_channel: bool,
    pipe: Pipe,
    /// Held by each CQ that reports here too.
    users: Arc<()>,
}

impl EventFile {
    fn is_unused_channel(&self) -> bool {
        self.is_channel && Arc::strong_count(&self.users) == 1
    }

    fn is_asynchronous_of(&self, context: ContextId) -> bool {
        !self.is_channel && self.owner == context
    }
}

impl Events {
    /// Makes a completion channel; returns the program's descriptor.
    pub fn create_channel(&self, context: ContextId) -> io::Result<RawFd> {
        self.sweep();
        self.create(context, true)
    }

    /// Makes an asynchronous event file; returns the program's descriptor.
    pub fn create_asynchronous(&self, context: ContextId) -> io::Result<RawFd> {
        self.create(context, false)
    }

    fn create(&self, owner: ContextId, is_channel: bool) -> io::Result<RawFd> {
        let (pipe, fd) = Pipe::new()?;
        let mut pipes = locked(&self.0);
        let number = pipes.next;
        pipes.next += 1;
        pipes.files.insert(number, EventFile { owner, is_channel, pipe, users: Arc::default() });
        Ok(fd)
    }

    /// Drops channels that the program has closed and no CQ uses. No hook sees every close, so the kernel is
    /// asked. That walks all descriptors, so twice as many must be unused as the last search left.
    fn sweep(&self) {
        let mut gone: Vec<(u32, u64)> = {
            let pipes = locked(&self.0);
            let unused = pipes.files.iter().filter(|(_, file)| file.is_unused_channel());
            let unused: Vec<_> = unused.map(|(number, file)| (*number, file.pipe.inode)).collect();
            if unused.len() < UNUSED.max(2 * pipes.left) {
                return;
            }
            unused
        };
        // Twice, so that a descriptor on its way from one number to another is not overlooked.
        for _ in 0..2 {
            // Without an answer nothing is known to be closed.
            let Some(open) = open_pipes() else { return };
            gone.retain(|(_, inode)| open.get(inode).is_none_or(|count| *count <= NIC_ENDS));
        }
        let mut pipes = locked(&self.0);
        let is_gone = |number: &u32| gone.iter().any(|(gone, _)| gone == number);
        let closed: Vec<_> =
            pipes.files.extract_if(.., |number, file| file.is_unused_channel() && is_gone(number)).collect();
        pipes.left = pipes.files.values().filter(|file| file.is_unused_channel()).count();
        // Closing comes back through the interposer: not with the lock held.
        drop(pipes);
        drop(closed);
    }

    /// Tells every context that its device is gone.
    pub fn fatal(&self) {
        let contexts: BTreeSet<ContextId> = locked(&self.0).files.values().map(|file| file.owner).collect();
        for context in contexts {
            // As a kernel whose device is taken away: of no object.
            self.clone().asynchronous(context, 0, DEVICE_FATAL);
        }
    }

    /// The channel that `fd` (or a duplicate) reads in this context, and what a CQ that reports to it holds.
    pub fn channel(&self, context: ContextId, fd: RawFd) -> Option<(u32, Arc<()>)> {
        self.find(context, true, fd)
    }

    /// Whether this descriptor reads asynchronous events of the context.
    pub fn is_asynchronous(&self, context: ContextId, fd: RawFd) -> bool {
        self.find(context, false, fd).is_some()
    }

    fn find(&self, context: ContextId, is_channel: bool, fd: RawFd) -> Option<(u32, Arc<()>)> {
        let wanted = (context, is_channel, pipe_inode(fd)?);
        let pipes = locked(&self.0);
        let mut files = pipes.files.iter();
        let found = files.find(|(_, file)| (file.owner, file.is_channel, file.pipe.inode) == wanted);
        found.map(|(number, file)| (*number, file.users.clone()))
    }

    /// Forgets a context's pipes; a reader of one sees its end.
    pub fn close_context(&self, context: ContextId) {
        // Closing comes back through the interposer: not with the lock held.
        let closed: Vec<_> = locked(&self.0).files.extract_if(.., |_, file| file.owner == context).collect();
        drop(closed);
    }
}

impl EventSink for Events {
    fn explain(&mut self, reason: Reason) {
        self.1.note(reason);
    }

    fn completion(&mut self, channel: u32, cq_user_handle: u64) -> bool {
        let mut pipes = locked(&self.0);
        let file = pipes.files.get_mut(&channel);
        file.is_some_and(|file| file.pipe.put(&cq_user_handle.to_ne_bytes()))
    }

    fn asynchronous(&mut self, context: ContextId, element: u64, event_type: u32) -> bool {
        let mut event = [0; ASYNCHRONOUS_BYTES];
        event[..8].copy_from_slice(&element.to_ne_bytes());
        event[8..12].copy_from_slice(&event_type.to_ne_bytes());
        let mut pipes = locked(&self.0);
        let latest = pipes.files.values_mut().rfind(|file| file.is_asynchronous_of(context));
        latest.is_some_and(|file| file.pipe.put(&event))
    }

    fn withdraw_completions(&mut self, channel: u32, cq_user_handle: u64) -> u32 {
        let is_its = |event: &[u8; COMPLETION_BYTES]| *event == cq_user_handle.to_ne_bytes();
        locked(&self.0).files.get_mut(&channel).map_or(0, |file| file.pipe.withdraw(is_its))
    }

    fn withdraw_asynchronous(&mut self, context: ContextId, element: u64) -> u32 {
        let is_its = |event: &[u8; ASYNCHRONOUS_BYTES]| event[..8] == element.to_ne_bytes();
        let mut pipes = locked(&self.0);
        let files = pipes.files.values_mut().filter(|file| file.is_asynchronous_of(context));
        files.map(|file| file.pipe.withdraw(is_its)).sum()
    }
}

/// Descriptors of a channel's pipe that are the NIC's own.
const NIC_ENDS: usize = 2;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::os::testing::own;

    #[test]
    fn a_completion_event_is_the_cqs_user_handle() {
        let mut events = Events::default();
        let context = ContextId(3);
        let mut channel = own(events.create_channel(context).unwrap());
        let (id, _) = events.channel(context, channel.as_raw_fd()).unwrap();
        assert!(events.completion(id, 0x1122_3344_5566_7788));
        let mut event = [0; 8];
        channel.read_exact(&mut event).unwrap();
        assert_eq!(u64::from_ne_bytes(event), 0x1122_3344_5566_7788);
        assert!(!events.completion(id + 1, 0), "an unknown channel");
    }

    #[test]
    fn a_duplicate_of_the_descriptor_names_the_same_channel_and_another_context_does_not() {
        let events = Events::default();
        let channel = own(events.create_channel(ContextId(0)).unwrap());
        let other = own(events.create_channel(ContextId(0)).unwrap());
        let duplicate = channel.try_clone().unwrap();
        let id = |fd: i32| events.channel(ContextId(0), fd).map(|(id, _)| id);
        assert_eq!(id(duplicate.as_raw_fd()), id(channel.as_raw_fd()));
        assert_ne!(id(other.as_raw_fd()), id(channel.as_raw_fd()));
        assert_eq!(events.channel(ContextId(1), channel.as_raw_fd()), None);
        assert_eq!(events.channel(ContextId(0), 0), None);
    }

    #[test]
    fn withdrawn_events_are_counted_and_the_rest_keeps_its_order() {
        let mut events = Events::default();
        let mut channel = own(events.create_channel(ContextId(0)).unwrap());
        let (id, _) = events.channel(ContextId(0), channel.as_raw_fd()).unwrap();
        for handle in [1, 2, 1, 3, 1_u64] {
            assert!(events.completion(id, handle));
        }
        assert_eq!(events.withdraw_completions(id, 1), 3);
        assert_eq!(events.withdraw_completions(id, 1), 0);
        let mut left = [0; 16];
        channel.read_exact(&mut left).unwrap();
        assert_eq!((left[0], left[8]), (2, 3));
    }

    #[test]
    fn asynchronous_events_have_element_and_type() {
        let mut events = Events::default();
        let context = ContextId(9);
        let mut file = own(events.create_asynchronous(context).unwrap());
        assert!(events.is_asynchronous(context, file.as_raw_fd()));
        assert!(events.asynchronous(context, 0xabcd, 1));
        assert!(events.asynchronous(context, 0x1234, 0));
        assert_eq!(events.withdraw_asynchronous(context, 0x1234), 1);
        let mut event = [0; 16];
        file.read_exact(&mut event).unwrap();
        assert_eq!(event, [0xcd, 0xab, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn closed_channels_are_let_go_unless_a_cq_uses_them() {
        let events = Events::default();
        let used = own(events.create_channel(ContextId(0)).unwrap());
        let (used_id, _user) = events.channel(ContextId(0), used.as_raw_fd()).unwrap();
        let open = own(events.create_channel(ContextId(0)).unwrap());
        drop(used);
        for _ in 0..500 {
            drop(own(events.create_channel(ContextId(0)).unwrap()));
        }
        let left = locked(&events.0).files.len();
        assert!(left < 40, "{left} channels are left of two");
        assert!(events.clone().completion(used_id, 1), "a CQ reports here");
        assert!(events.channel(ContextId(0), open.as_raw_fd()).is_some(), "the program has it open");
    }

    #[test]
    fn a_device_that_is_gone_is_an_event_of_every_context() {
        let events = Events::default();
        let files: Vec<File> =
            (0..3).map(|context| own(events.create_asynchronous(ContextId(context)).unwrap())).collect();
        events.fatal();
        for mut file in files {
            let mut event = [0xff; 16];
            file.read_exact(&mut event).unwrap();
            assert_eq!(event, [0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
        }
    }

    #[test]
    fn a_program_that_closed_its_end_costs_no_signal_and_no_block() {
        let mut events = Events::default();
        let channel = own(events.create_channel(ContextId(0)).unwrap());
        let (id, _) = events.channel(ContextId(0), channel.as_raw_fd()).unwrap();
        drop(channel);
        let delivered = (0..20_000).filter(|_| events.completion(id, 1)).count();
        assert!(delivered < 20_000, "a full pipe is a false, not a wait");
        events.close_context(ContextId(0));
        assert!(!events.completion(id, 1));
    }
}
