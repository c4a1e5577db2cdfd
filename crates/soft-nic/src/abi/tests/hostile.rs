//! A seeded stream of damaged calls: none may panic, and every one is answered.

use std::sync::{Arc, Mutex};

use mlx5_device::memory::{Fault, Memory};

use super::queues::{cq_call, qp_call, srq_call};
use super::{Bench, Call, get_context};
use crate::config::Config;

/// Where the arena begins.
const BASE: u64 = 0x10_0000;
/// Its length: enough for every call, too little for the lengths that damage makes up.
const LENGTH: usize = 8192;

/// All the memory there is: what is outside is not mapped.
#[derive(Clone)]
struct Arena(Arc<Mutex<Vec<u8>>>);

impl Arena {
    fn range(addr: u64, len: usize) -> Result<std::ops::Range<usize>, Fault> {
        let start =
            addr.checked_sub(BASE).filter(|start| *start <= LENGTH as u64).ok_or(Fault { addr })? as usize;
        if len > LENGTH - start { Err(Fault { addr }) } else { Ok(start..start + len) }
    }
}

impl Memory for Arena {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        let range = Self::range(addr, out.len())?;
        out.copy_from_slice(&self.0.lock().expect("no panic")[range]);
        Ok(())
    }

    fn write(&self, addr: u64, bytes: &[u8], _: bool) -> Result<(), Fault> {
        let range = Self::range(addr, bytes.len())?;
        self.0.lock().expect("no panic")[range].copy_from_slice(bytes);
        Ok(())
    }

    fn load32(&self, addr: u64) -> Result<u32, Fault> {
        Err(Fault { addr })
    }

    fn store32(&self, addr: u64, _: u32) -> Result<(), Fault> {
        Err(Fault { addr })
    }

    fn compare_swap32(&self, addr: u64, _: u32, _: u32) -> Result<u32, Fault> {
        Err(Fault { addr })
    }

    fn compare_swap64(&self, addr: u64, _: u64, _: u64) -> Result<u64, Fault> {
        Err(Fault { addr })
    }

    fn fetch_add64(&self, addr: u64, _: u64) -> Result<u64, Fault> {
        Err(Fault { addr })
    }

    fn probe(&self, _: u64, _: u64, _: bool) -> Result<(), Fault> {
        Ok(())
    }
}

/// xorshift64*: enough randomness for damage, reproducible from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Numbers of the write commands that are damaged, by name.
const WRITES: [(&str, u32); 12] = [
    ("QUERY_DEVICE", 1),
    ("ALLOC_PD", 3),
    ("CREATE_AH", 5),
    ("REG_MR", 9),
    ("QUERY_QP", 0x19),
    ("MODIFY_QP", 0x1a),
    ("REREG_MR", 0xb),
    ("RESIZE_CQ", 0x13),
    ("MODIFY_SRQ", 0x21),
    ("QUERY_SRQ", 0x22),
    ("EX_QUERY_DEVICE", 0x8000_0001),
    ("EX_MODIFY_QP", 0x8000_001a),
];

/// Valid calls of the other methods, to be damaged. None returns descriptors, which would leak.
fn methods() -> Vec<(&'static str, Call)> {
    let entry = |index: u32| {
        let call = Call::new(0, 6).input(0, &[1, 0, 0, 0]).input(1, &index.to_ne_bytes());
        call.input(2, &[0; 4]).output(3, 32)
    };
    vec![
        ("QUERY_PORT", Call::new(0, 2).input(0, &[1]).output(1, 48)),
        ("QUERY_GID_TABLE", Call::new(0, 5).input(0, &32_u64.to_ne_bytes()).output(2, 256).output(3, 8)),
        ("QUERY_GID_ENTRY", entry(0)),
        ("QUERY_GID_ENTRY", entry(4)),
        ("CQ.CREATE", cq_call(64, 0, 0, 0, 0)),
        ("QP.CREATE", qp_call(2, 0, 0x400)),
        ("PD.DESTROY", Call::new(1, 0).handle(0, 4)),
        ("CQ.DESTROY", Call::new(3, 1).handle(0, 4).output(1, 8)),
        ("QP.DESTROY", Call::new(4, 1).handle(0, 4).output(1, 4)),
        ("SRQ.CREATE", srq_call(0, 0)),
        ("SRQ.DESTROY", Call::new(5, 1).handle(0, 4).output(1, 4)),
        ("AH.DESTROY", Call::new(6, 0).handle(0, 4)),
        ("MR.DESTROY", Call::new(7, 1).handle(0, 4)),
        // What this device lacks.
        ("CREATE_XSRQ", Call::write(0x27).input(0, &[0; 64]).output(1, 64)),
        ("DEVX", Call::new(0x1000, 0x1000).input(0, &[0; 16])),
        ("no object", Call::new(0x77, 0)),
    ]
}

/// Every call of a round after the one that opens the context. Zeros name handle 0 and no attributes.
fn calls() -> Vec<(&'static str, Call)> {
    let whole = WRITES.map(|(name, number)| {
        (
            name,
            Call::write(number)
                .input(0, &[0; 144])
                .input(0x1000, &[0; 32])
                .output(1, 304)
                .output(0x1001, 104),
        )
    });
    let short = WRITES.map(|(name, number)| (name, Call::write(number).input(0, &[0; 3]).output(1, 2)));
    methods().into_iter().chain(whole).chain(short).collect()
}

/// Answers that each write command must have given: fine, and refused in every way that they have in common.
const OF_WRITES: [i32; 6] =
    [0, libc::EINVAL, libc::EFAULT, libc::ENOSPC, libc::EPROTONOSUPPORT, libc::EOPNOTSUPP];

/// The same for the rest.
const OF_METHODS: &[(&str, &[i32])] = &[
    ("GET_CONTEXT", &[0, libc::EINVAL, libc::EFAULT, libc::EPROTONOSUPPORT]),
    ("QUERY_PORT", &[0, libc::EINVAL, libc::EFAULT, libc::EPROTONOSUPPORT]),
    ("QUERY_GID_TABLE", &[0, libc::EINVAL, libc::EFAULT, libc::EPROTONOSUPPORT]),
    ("QUERY_GID_ENTRY", &[0, libc::EINVAL, libc::EFAULT, libc::EPROTONOSUPPORT, libc::ENODATA]),
    ("CQ.CREATE", &[0, libc::EINVAL, libc::EFAULT, libc::EPROTONOSUPPORT]),
    ("QP.CREATE", &[0, libc::EINVAL, libc::EFAULT, libc::EPROTONOSUPPORT]),
    ("PD.DESTROY", &[0, libc::EINVAL, libc::EPROTONOSUPPORT]),
    ("CQ.DESTROY", &[0, libc::EINVAL, libc::EFAULT, libc::EPROTONOSUPPORT]),
    ("QP.DESTROY", &[0, libc::EINVAL, libc::EFAULT, libc::EPROTONOSUPPORT]),
    ("AH.DESTROY", &[0, libc::EINVAL, libc::EPROTONOSUPPORT]),
    ("MR.DESTROY", &[0, libc::EINVAL, libc::EPROTONOSUPPORT]),
    ("SRQ.CREATE", &[0, libc::EINVAL, libc::EFAULT, libc::EPROTONOSUPPORT]),
    ("SRQ.DESTROY", &[0, libc::EINVAL, libc::EFAULT, libc::EPROTONOSUPPORT]),
    ("CREATE_XSRQ", &[libc::EOPNOTSUPP]),
    ("DEVX", &[libc::EOPNOTSUPP]),
    ("no object", &[libc::EPROTONOSUPPORT]),
];

#[test]
fn damaged_calls_are_answered_and_never_panic() {
    let mut random = Random(0x5eed_0001);
    let mut answers = std::collections::BTreeMap::<(&str, i32), u32>::new();
    let arena = Arena(Arc::new(Mutex::new(vec![0; LENGTH])));
    let mut bench = Bench::over(&Config::default(), Box::new(arena.clone()));
    for round in 0..8000 {
        let every = [("GET_CONTEXT", get_context())].into_iter().chain(calls());
        for (number, (name, call)) in every.enumerate() {
            let mut image = call.image(BASE);
            let attributes = call.encode().len();
            // Three contexts of four come about undamaged, or most calls would only find that there is none.
            let damage = if number == 0 && round % 4 > 0 { 0 } else { random.below(4) };
            for _ in 0..damage {
                let at = random.below(attributes);
                image[at] ^= if random.below(2) == 0 { 1 << random.below(8) } else { random.next() as u8 };
            }
            arena.0.lock().expect("no panic")[..image.len()].copy_from_slice(&image);
            let errno = bench.ioctl(BASE).map_or_else(|error| error.errno, |()| 0);
            *answers.entry((name, errno)).or_default() += 1;
        }
        let file = std::mem::replace(&mut bench.file, super::OpenFile::new(0));
        bench.server.close(file);
        bench.asked();
    }
    for ((name, errno), seen) in &answers {
        println!("TABLE {seen:>9}  abi       {name}, errno {errno}");
    }
    let writes = WRITES.iter().map(|(name, _)| (*name, &OF_WRITES[..]));
    for (name, wanted) in writes.chain(OF_METHODS.iter().copied()) {
        for errno in wanted {
            let seen = answers.get(&(name, *errno)).copied().unwrap_or(0);
            assert!(seen >= 100, "{name} answered with errno {errno} only {seen} times");
        }
    }
}
