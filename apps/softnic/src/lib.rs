//! The interposing library: `softnic run` puts it in front of the C library by LD_PRELOAD.
//!
//! Only it exports libc names (INV-4), and for the pump `ibv_open_device`. A hook decides by a load or a few
//! bytes whether a path or descriptor is the emulated device's. Everything else goes to the kernel by a raw
//! system call, or to the C library's own function. The device, the virtual sysfs tree and the command server
//! are in `soft-nic`. What `LD_PRELOAD` cannot reach (static and set-uid programs, raw system calls) sees the
//! machine as it is. Not hooked: `glob`, `ftw`, `fts` (the C library walks directories inside itself).
#![cfg_attr(test, allow(dead_code))]

mod preload;
