//! Attributes as a kernel checks them: rows from `uverbs_process_attr` and its callers (`uverbs_ioctl.c`).

use mlx5_device::memory::Memory;

use super::{Bench, Call, VALID};
use crate::abi::layout::ioctl_hdr;
use crate::config::Config;
use crate::dma::Host;
use crate::dma::testing::Guarded;

/// An address that no process has mapped.
const NOWHERE: u64 = 0x10;

/// ASYNC_EVENT.ALLOC, PD.DESTROY … are all tried through one method with every kind of attribute: CQ.CREATE.
fn cq_create() -> Call {
    Call::new(3, 0)
        .handle(0, 0)
        .input(1, &255_u32.to_ne_bytes())
        .input(2, &0xabcd_u64.to_ne_bytes())
        .input(4, &0_u32.to_ne_bytes())
        .output(6, 4)
        .output(0x1001, 8)
}

/// The mlx5 part: ring 0x1000, record 0x2000, CQEs of 64 bytes, UAR page 0x21.
fn mlx5_cq() -> [u8; 32] {
    let mut part = [0; 32];
    part[1] = 0x10;
    part[9] = 0x20;
    (part[16], part[22], part[24]) = (64, 2, 0x21);
    part
}

#[test]
fn mistakes_in_attributes_get_the_kernels_errno() {
    let whole = || cq_create().input(0x1000, &mlx5_cq());
    let long = |last: u8| [&mlx5_cq()[..], &[0, 0, 0, last]].concat();
    for (what, mut call, expected) in [
        ("all there", whole(), Ok(())),
        ("an unknown optional attribute", whole().raw(0x77, 8, 0, 0, 0), Ok(())),
        ("an unknown mandatory attribute", whole().raw(0x77, 8, 1, 0, 0), Err(libc::EPROTONOSUPPORT)),
        ("an attribute given twice", whole().input(1, &255_u32.to_ne_bytes()), Err(libc::EINVAL)),
        ("reserved bits", cq_create().raw(0x1000, 32, 1, 9, 0), Err(libc::EINVAL)),
        ("a mandatory attribute missing", cq_create(), Err(libc::EINVAL)),
        ("an input too short", cq_create().input(0x1000, &mlx5_cq()[..16]), Err(libc::EINVAL)),
        ("a newer library's longer input, zeros behind", cq_create().input(0x1000, &long(0)), Ok(())),
        ("a longer input that asks for more", cq_create().input(0x1000, &long(1)), Err(libc::EOPNOTSUPP)),
        ("an input at a bad address", cq_create().raw(0x1000, 32, 1, 0, NOWHERE), Err(libc::EFAULT)),
        (
            "an input that ends the address space",
            cq_create().raw(0x1000, 32, 1, 0, u64::MAX - 4),
            Err(libc::EFAULT),
        ),
        ("an input in kernel space", cq_create().raw(0x1000, 32, 1, 0, 1 << 63), Err(libc::EFAULT)),
        ("a handle with a length", whole().raw(3, 4, 1, 0, 0), Err(libc::EINVAL)),
        ("a descriptor that is no channel", whole().handle(3, 0), Err(libc::EBADF)),
        ("a negative descriptor", whole().handle(3, u64::MAX), Err(libc::EBADF)),
        ("an event file that is none", whole().handle(7, 0), Err(libc::EBADF)),
    ] {
        assert_eq!(call.run(&mut Bench::open(&Config::default())), expected, "{what}");
    }
}

#[test]
fn outputs_get_what_fits_then_zeros_and_the_flag() {
    for (room, expected) in
        [(8, &[6, 4, 0, 0, 0, 0, 0, 0][..]), (3, &[6, 4, 0]), (11, &[6, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])]
    {
        let mut call = Call::new(3, 0)
            .handle(0, 0)
            .input(1, &255_u32.to_ne_bytes())
            .input(2, &0_u64.to_ne_bytes())
            .input(4, &0_u32.to_ne_bytes())
            .output(6, 4)
            .output(0x1001, room)
            .input(0x1000, &mlx5_cq());
        call.run(&mut Bench::open(&Config::default())).unwrap();
        assert_eq!(call.result(0x1001), expected, "{room}");
        assert_eq!(call.attribute(0x1001).0 & VALID, VALID);
        assert_eq!(call.attribute(0).1, 6, "the handle stands in its attribute");
        assert_eq!(call.result(6), 255_u32.to_ne_bytes());
    }
}

#[test]
fn an_output_that_cannot_be_written_undoes_the_command() {
    let mut bench = Bench::open(&Config::default());
    let mut call = Call::new(3, 0)
        .handle(0, 0)
        .input(1, &255_u32.to_ne_bytes())
        .input(2, &0_u64.to_ne_bytes())
        .input(4, &0_u32.to_ne_bytes())
        .raw(6, 4, 1, 0, NOWHERE)
        .input(0x1000, &mlx5_cq());
    assert_eq!(call.run(&mut bench), Err(libc::EFAULT));
    assert_eq!(bench.asked().last().map(String::as_str), Some("destroy_cq 6"));
}

#[test]
fn headers_are_checked_before_anything_else() {
    let mut bench = Bench::open(&Config::default());
    let good = Call::new(1, 0).handle(0, 4).encode();
    for (what, at, byte, expected) in [
        ("as it should be", ioctl_hdr::length, good[ioctl_hdr::length], Ok(())),
        ("a length that does not fit the count", ioctl_hdr::length, 24, Err(libc::EINVAL)),
        ("a count beyond a page", ioctl_hdr::num_attrs + 1, 0xff, Err(libc::EINVAL)),
        ("a reserved word", ioctl_hdr::reserved1, 1, Err(libc::EPROTONOSUPPORT)),
        ("the other reserved word", ioctl_hdr::reserved2, 1, Err(libc::EPROTONOSUPPORT)),
        ("another driver", ioctl_hdr::driver, 2, Err(libc::EINVAL)),
        ("an unknown object", ioctl_hdr::object, 0x40, Err(libc::EPROTONOSUPPORT)),
        ("an unknown method", ioctl_hdr::method, 0x40, Err(libc::EPROTONOSUPPORT)),
        ("flows", ioctl_hdr::object, 9, Err(libc::EOPNOTSUPP)),
        ("XRC domains", ioctl_hdr::object, 10, Err(libc::EOPNOTSUPP)),
    ] {
        let mut bytes = good.clone();
        bytes[at] = byte;
        let done = bench.ioctl(bytes.as_ptr() as u64).map_err(|error| error.errno);
        assert_eq!(done, expected, "{what}");
    }
    for address in [0, NOWHERE, u64::MAX, u64::MAX - 30, 1 << 63] {
        let done = bench.ioctl(address).map_err(|error| error.errno);
        assert_eq!(done, Err(libc::EFAULT), "a header at {address:#x}");
    }
}

#[test]
fn a_header_at_the_end_of_its_page_is_read_no_further() {
    let page = Guarded::new(4096).unwrap();
    let host = Host::new().unwrap();
    let mut bench = Bench::open(&Config::default());
    let call = Call::new(1, 0).handle(0, 4).encode();
    for (missing, expected) in
        [(0, Ok(())), (1, Err(libc::EFAULT)), (16, Err(libc::EFAULT)), (17, Err(libc::EFAULT))]
    {
        let room = call.len() - missing;
        let place = page.address() + (page.len() - room) as u64;
        host.write(place, &call[..room], true).unwrap();
        let done = bench.ioctl(place).map_err(|error| error.errno);
        assert_eq!(done, expected, "{missing} bytes missing");
    }
}
