//! Memfds stand for dma-bufs here: this floor asks of a buffer only that it can be mapped and has a size.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use mlx5_device::memory::Memory;

use super::*;
use crate::dma::Host;
use crate::os::system::memfd;
use crate::os::testing::true_in_fork_child;

const SIZE: u64 = 5 * 4096;

fn any(_: &OwnedFd) -> bool {
    true
}

fn buffer() -> OwnedFd {
    memfd("dma-buf", SIZE as usize).unwrap()
}

fn errno(fd: RawFd, offset: u64, length: u64) -> i32 {
    DmaBuf::map(fd, offset, length, true, any).map_or_else(|error| error.errno(), |_| 0)
}

#[test]
fn only_what_lies_in_the_buffer_is_mapped() {
    let fd = buffer();
    let raw = fd.as_raw_fd();
    for (name, offset, length, wanted) in [
        ("all of it", 0, SIZE, 0),
        ("its last byte", SIZE - 1, 1, 0),
        ("nothing, inside of a page", 100, 0, 0),
        ("nothing, at a page's start", 4096, 0, libc::EINVAL),
        ("one byte more", 0, SIZE + 1, libc::EINVAL),
        ("one byte later", 1, SIZE, libc::EINVAL),
        ("from its end on", SIZE, 1, libc::EINVAL),
        ("far behind", 1 << 40, 4096, libc::EINVAL),
        ("a length that wraps", 4096, u64::MAX - 100, libc::EINVAL),
        ("an offset that wraps", u64::MAX - 1, 8, libc::EINVAL),
        ("the longest", 0, u64::MAX, libc::EINVAL),
    ] {
        assert_eq!(errno(raw, offset, length), wanted, "{name}");
    }
    assert_eq!(errno(-1, 0, 8), libc::EBADF);
    assert_eq!(errno(0x3fff_fff0, 0, 8), libc::EBADF);
}

#[test]
fn a_memfd_a_pipe_and_a_folder_are_no_dma_bufs() {
    let (reader, _writer) = std::io::pipe().unwrap();
    for (name, fd) in [
        ("memfd", buffer()),
        ("pipe", reader.into()),
        ("folder", File::open("/").unwrap().into()),
        ("/dev/zero", File::open("/dev/zero").unwrap().into()),
    ] {
        let refused = DmaBuf::map(fd.as_raw_fd(), 0, 4096, true, is_dma_buf).unwrap_err();
        assert_eq!(refused, DmaBufError::NoDmaBuf { fd: fd.as_raw_fd() }, "{name}");
        assert_eq!(refused.errno(), libc::EINVAL);
    }
}

#[test]
fn what_its_exporter_does_not_map_is_not_supported() {
    let sealed = File::from({
        // SAFETY: a name that lives through the call.
        let raw = unsafe { libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING) };
        // SAFETY: the kernel just gave us this descriptor.
        unsafe { OwnedFd::from_raw_fd(raw) }
    });
    sealed.set_len(4096).unwrap();
    // SAFETY: plain system call on our descriptor.
    unsafe { libc::fcntl(sealed.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    let refused = DmaBuf::map(sealed.as_raw_fd(), 0, 4096, true, any).unwrap_err();
    assert_eq!(refused, DmaBufError::NotMappable { errno: libc::EPERM, size: 4096 });
    assert_eq!(refused.errno(), libc::EOPNOTSUPP);
    // Opened for reading alone: good for a region that nobody writes to.
    let fd = buffer();
    let readable = File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    let map = |write| DmaBuf::map(readable.as_raw_fd(), 0, 4096, write, any);
    assert_eq!(map(true).unwrap_err(), DmaBufError::NotMappable { errno: libc::EACCES, size: SIZE });
    let mapped = map(false).unwrap();
    let host = Host::new().unwrap();
    assert_eq!(host.probe(mapped.address(), 4096, false), Ok(()));
    assert!(host.probe(mapped.address(), 4096, true).is_err());
    assert!(host.write(mapped.address(), &[1], false).is_err());
}

#[test]
fn a_mapping_outlives_the_descriptor_and_ends_with_its_region() {
    let host = Host::new().unwrap();
    let fd = buffer();
    let file = File::from(fd.try_clone().unwrap());
    file.write_all_at(b"from the exporter", 4096 + 8).unwrap();
    let mapped = DmaBuf::map(fd.as_raw_fd(), 4096 + 8, 8192, true, any).unwrap();
    drop(fd);
    let mut found = [0; 17];
    host.read(mapped.address(), &mut found).unwrap();
    assert_eq!(&found, b"from the exporter");
    host.write(mapped.address() + 8191, b"!", false).unwrap();
    let mut last = [0; 1];
    file.read_exact_at(&mut last, 4096 + 8 + 8191).unwrap();
    assert_eq!(&last, b"!");
    // In a process of one thread, so that nobody else's mapping takes the place.
    assert!(true_in_fork_child(|| {
        let mapped = DmaBuf::map(file.as_raw_fd(), 4096 + 8, 8192, true, any).unwrap();
        let address = mapped.address();
        let before = host.read(address, &mut [0; 1]);
        drop(mapped);
        before == Ok(()) && host.read(address, &mut [0; 1]) == Err(Fault { addr: address })
    }));
}

#[test]
fn a_fork_child_has_no_mapping_and_its_parent_keeps_it() {
    let host = Host::new().unwrap();
    let fd = buffer();
    let mapped = DmaBuf::map(fd.as_raw_fd(), 0, SIZE, true, any).unwrap();
    let address = mapped.address();
    assert!(true_in_fork_child(|| {
        let mut byte = [0; 1];
        let gone = host.read(address, &mut byte).is_err() && host.probe(address, 1, false).is_err();
        let ours = DmaBuf::map(fd.as_raw_fd(), 0, SIZE, true, any);
        let works = ours.is_ok_and(|ours| host.write(ours.address(), b"child", false).is_ok());
        gone && works
    }));
    let mut found = [0; 5];
    host.read(address, &mut found).unwrap();
    assert_eq!(&found, b"child");
}

#[test]
fn so_many_mappings_and_no_more() {
    // In a child, whose table is its own: other tests need places as well.
    assert!(true_in_fork_child(|| {
        let fd = buffer();
        let mut held = Vec::new();
        let refused = loop {
            match DmaBuf::map(fd.as_raw_fd(), 0, 4096, true, any) {
                Ok(mapped) => held.push(mapped),
                Err(error) => break error,
            }
        };
        let full = held.len();
        held.pop();
        (full, refused.errno(), errno(fd.as_raw_fd(), 0, 4096)) == (MAX_DMA_BUFS, libc::ENOMEM, 0)
    }));
}

#[test]
fn a_process_without_descriptors_is_told_that_and_not_that_its_descriptor_is_bad() {
    let buffer = buffer();
    assert!(true_in_fork_child(|| {
        let mut held = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            held.push(file);
        }
        errno(buffer.as_raw_fd(), 0, 4096) == libc::EMFILE && errno(i32::MAX, 0, 4096) == libc::EBADF
    }));
}
