//! A seeded stream of damaged calls: none may panic, and every one is answered.

use std::sync::{Arc, Mutex};

use super::{Bench, Call, get_context};
use crate::config::Config;
use crate::dma::{Fault, Memory};

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

    fn store_release_u8(&self, addr: u64, _: u8) -> Result<(), Fault> {
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

/// One whole call of every family, to be damaged. None that gives descriptors: nobody would close them.
fn calls() -> Vec<Call> {
    let create = |object| {
        Call::new(object, 0)
            .handle(0, 0)
            .input(1, &[0; 4])
            .handle(2, 4)
            .input(8, &[1; 20])
            .input(9, &2_u64.to_ne_bytes())
            .output(6, 4)
            .output(13, 20)
            .output(14, 4)
            .input(0x1000, &[0; 56])
            .output(0x1001, 40)
    };
    let mut calls = vec![create(3), create(4), Call::write(1)];
    calls.extend(
        [1, 3, 4, 5, 8, 9, 0xd, 0x19, 0x1a, 0x8000_0001, 0x8000_001a]
            .map(|command| Call::write(command).input(0, &[3; 112]).output(1, 304).output(0x1001, 104)),
    );
    calls.push(Call::new(0, 2).input(0, &[1]).output(1, 48));
    calls.push(Call::new(0, 5).input(0, &32_u64.to_ne_bytes()).output(2, 256).output(3, 8));
    calls.push(Call::new(0, 6).input(0, &[1, 0, 0, 0]).input(1, &[0; 4]).output(3, 32));
    for (object, method) in [(1, 0), (3, 1), (4, 1), (6, 0), (7, 1)] {
        calls.push(Call::new(object, method).handle(0, 4).output(1, 8));
    }
    calls
}

#[test]
fn damaged_calls_are_answered_and_never_panic() {
    let mut random = Random(0x5eed_0001);
    let mut answers = std::collections::BTreeMap::<i32, u32>::new();
    let arena = Arena(Arc::new(Mutex::new(vec![0; LENGTH])));
    let mut bench = Bench::over(&Config::default(), Box::new(arena.clone()));
    for round in 0..2000 {
        for (number, call) in [get_context()].into_iter().chain(calls()).enumerate() {
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
            *answers.entry(errno).or_default() += 1;
        }
        let file = std::mem::replace(&mut bench.file, super::OpenFile::new(0));
        bench.server.close(file);
        bench.asked();
    }
    for errno in [0, libc::EINVAL, libc::EFAULT, libc::EPROTONOSUPPORT, libc::EOPNOTSUPP, libc::ENOSPC] {
        let seen = answers.get(&errno).copied().unwrap_or(0);
        assert!(seen >= 100, "errno {errno} only {seen} times: {answers:?}");
    }
}
