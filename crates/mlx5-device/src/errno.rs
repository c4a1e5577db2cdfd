//! Errnos of refused commands, as Linux numbers them (`asm-generic/errno-base.h` and `errno.h`).

macro_rules! errnos {
    ($($name:ident $number:literal,)+) => { $(pub const $name: i32 = $number;)+ };
}

errnos! {
    ENOENT 2, EIO 5, EBADF 9, ENOMEM 12, EFAULT 14, EBUSY 16, ENODEV 19, EINVAL 22, ENOSPC 28, ENOSYS 38, ENODATA 61,
    EPROTONOSUPPORT 93, EOPNOTSUPP 95, EADDRINUSE 98, EADDRNOTAVAIL 99,
}
