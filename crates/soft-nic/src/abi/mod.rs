//! The kernel's side of `/dev/infiniband/uverbs*`: discovery, open, ioctl, mmap.
