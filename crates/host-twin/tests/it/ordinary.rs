//! Ordinary kernels beside plain Rust: the same bits, direct memory on any shape and weak on small ones.

use std::time::Instant;

use host_twin::{Arguments, Dim3, Launch, Visibility};
use measure::need;

use crate::reference::{fractions, half_value, nearest_half, numbers, product};
use crate::{KERNELS, compiler, run_on};

/// A launch in direct memory, and one of at most 256 lanes with weak memory.
fn both(launch: Launch) -> [Launch; 2] {
    [launch, Launch { visibility: Visibility::Weak { seed: 5 }, ..launch }]
}

#[test]
fn a_tiled_product_equals_plain_rust_and_its_rate_is_told() {
    need!(compiler(), cc, "a C++ compiler");
    for (size, weak) in [(16, true), (64, false), (384, false)] {
        let (a, b) = (fractions(size * size), fractions(size * size + 1)[1..].to_vec());
        let expected = product(&a, &b, size);
        let tiles = (size / 16) as u32;
        let launch = Launch::new((tiles, tiles), (16, 16));
        for launch in if weak { both(launch).to_vec() } else { vec![launch] } {
            let mut c = vec![f32::NAN; size * size];
            let arguments = Arguments::new()
                .pointer(a.as_ptr().cast_mut())
                .pointer(b.as_ptr().cast_mut())
                .pointer(c.as_mut_ptr())
                .push(size as i32);
            let begun = Instant::now();
            run_on("tiled_product", &launch, arguments).unwrap();
            let rate = (size * size * size) as f64 / begun.elapsed().as_secs_f64() / 1e6;
            assert!(c.iter().zip(&expected).all(|(c, e)| c.to_bits() == e.to_bits()), "{size}, {launch:?}");
            if size > 64 {
                println!(
                    "TABLE host twin, tiled product of {size}: {rate:.0} million multiply-adds a second"
                );
            }
        }
    }
}

#[test]
fn sums_by_shuffles_equal_plain_rust() {
    need!(compiler(), cc, "a C++ compiler");
    let all: Vec<i32> = numbers(10_000, 1000).into_iter().map(|number| number as i32).collect();
    let mut launches = both(Launch::new(2, 128)).to_vec();
    launches.extend([Launch::new(7, 1024), Launch::new(100, 32)]);
    for launch in launches {
        let (blocks, threads) = (launch.blocks.x as usize, launch.threads.x as usize);
        let mut sums = vec![0_i32; blocks];
        let arguments = Arguments::new()
            .pointer(all.as_ptr().cast_mut())
            .pointer(sums.as_mut_ptr())
            .push(all.len() as i32);
        run_on("reduce_by_shuffles", &launch, arguments).unwrap();
        let mut expected = vec![0; blocks];
        all.iter().enumerate().for_each(|(at, number)| expected[at / threads % blocks] += number);
        assert_eq!(sums, expected, "{launch:?}");
    }
}

#[test]
fn a_histogram_counts_every_byte() {
    need!(compiler(), cc, "a C++ compiler");
    let bytes: Vec<u8> =
        numbers(50_000, 256).into_iter().map(|number| ((number * number) >> 8) as u8).collect();
    let mut expected = vec![0_u32; 256];
    bytes.iter().for_each(|&byte| expected[usize::from(byte)] += 1);
    for (launch, count) in [(Launch::new(9, 256), bytes.len()), (both(Launch::new(1, 256))[1], 2000)] {
        if count < bytes.len() {
            expected.fill(0);
            bytes[..count].iter().for_each(|&byte| expected[usize::from(byte)] += 1);
        }
        let mut counts = vec![0_u32; 256];
        let arguments = Arguments::new()
            .pointer(bytes.as_ptr().cast_mut())
            .pointer(counts.as_mut_ptr())
            .push(count as i32);
        run_on("histogram", &launch, arguments).unwrap();
        assert_eq!(counts, expected, "{launch:?}");
    }
}

#[test]
fn a_scan_through_dynamic_shared_memory_equals_plain_rust() {
    need!(compiler(), cc, "a C++ compiler");
    let mut launches = both(Launch { shared_bytes: 64 * 8, ..Launch::new(3, 64) }).to_vec();
    launches.push(Launch { shared_bytes: 1000 * 8, ..Launch::new(5, 1000) });
    for launch in launches {
        let threads = launch.threads.x as usize;
        let all: Vec<i32> =
            numbers(threads * launch.blocks.x as usize, 100).iter().map(|&n| n as i32).collect();
        let mut sums = vec![0_i32; all.len()];
        let arguments = Arguments::new().pointer(all.as_ptr().cast_mut()).pointer(sums.as_mut_ptr());
        run_on("scan_block", &launch, arguments).unwrap();
        let scan = |block: &[i32]| {
            block
                .iter()
                .scan(0, |sum, number| {
                    Some({
                        *sum += number;
                        *sum
                    })
                })
                .collect::<Vec<i32>>()
        };
        assert_eq!(sums, all.chunks(threads).flat_map(scan).collect::<Vec<i32>>(), "{launch:?}");
    }
}

/// More blocks than cores: those that wait let the others begin.
#[test]
fn a_cooperative_grid_meets_and_every_block_sees_all_sums() {
    need!(compiler(), cc, "a C++ compiler");
    let mut launches = both(Launch { cooperative: true, ..Launch::new(4, 64) }).to_vec();
    launches.push(Launch { cooperative: true, ..Launch::new(16, 128) });
    for launch in launches {
        // Sums of fractions of 64 are exact in any order.
        let all = fractions(5000);
        let blocks = launch.blocks.x as usize;
        let (mut of_block, mut totals) = (vec![0_f32; blocks], vec![0_f32; blocks]);
        let arguments = Arguments::new()
            .pointer(all.as_ptr().cast_mut())
            .pointer(of_block.as_mut_ptr())
            .pointer(totals.as_mut_ptr())
            .push(all.len() as i32);
        run_on("sum_of_grid", &launch, arguments).unwrap();
        assert_eq!(totals, vec![all.iter().sum::<f32>(); blocks], "{launch:?}");
    }
}

#[test]
fn blocks_and_threads_have_their_places_in_three_dimensions() {
    need!(compiler(), cc, "a C++ compiler");
    for launch in both(Launch::new((3, 2, 2), (4, 1, 5))) {
        let (blocks, threads) = (launch.blocks, launch.threads);
        let mut out = vec![u32::MAX; (blocks.count() * threads.count()) as usize];
        run_on("places", &launch, Arguments::new().pointer(out.as_mut_ptr())).unwrap();
        let places = |of: Dim3| {
            (0..of.z).flat_map(move |z| (0..of.y).flat_map(move |y| (0..of.x).map(move |x| [x, y, z])))
        };
        let digits =
            |digits: [[u32; 3]; 2]| digits.as_flattened().iter().fold(0, |all, digit| all * 16 + digit);
        let expected: Vec<u32> = places(blocks)
            .flat_map(|block| places(threads).map(move |thread| digits([block, thread])))
            .collect();
        assert_eq!(out, expected, "{launch:?}");
    }
}

#[test]
fn intrinsics_answer_as_on_a_gpu() {
    need!(compiler(), cc, "a C++ compiler");
    for launch in both(Launch::new(2, 64)) {
        let (mut out, mut words, mut sum) = (vec![u32::MAX; 128], [0_i32; 8], [0_f32; 4]);
        let arguments =
            Arguments::new().pointer(out.as_mut_ptr()).pointer(words.as_mut_ptr()).pointer(sum.as_mut_ptr());
        run_on("intrinsics", &launch, arguments).unwrap();
        assert_eq!(out, vec![0; 128], "the number of the first answer that is wrong; {launch:?}");
        assert_eq!((words, sum[2]), ([128, 127, -127, -1, 0, 0, 128, 0], 64.0), "{launch:?}");
    }
}

#[test]
fn a_seed_interleaves_the_lanes_of_all_blocks_the_same_way_each_time() {
    need!(compiler(), cc, "a C++ compiler");
    let order = |seed| {
        let (mut count, mut order) = (0_i32, vec![-1_i32; 2 * 32 * 20]);
        let arguments = Arguments::new().pointer(&raw mut count).pointer(order.as_mut_ptr()).push(20_i32);
        let launch = Launch { visibility: Visibility::Weak { seed }, ..Launch::new(2, 32) };
        run_on("arrivals", &launch, arguments).unwrap();
        order
    };
    let first = order(1);
    assert!((0..64).all(|lane| first.iter().filter(|&&came| came == lane).count() == 20));
    assert!((0..8).all(|_| order(1) == first), "the same seed");
    assert_ne!(order(2), first, "another seed");
    let blocks: Vec<bool> = first.iter().map(|lane| *lane < 32).collect();
    assert!(blocks.windows(2).filter(|pair| pair[0] != pair[1]).count() > 10, "blocks take turns");
}

#[test]
fn what_a_kernel_has_stored_is_in_memory_when_it_has_ended() {
    need!(compiler(), cc, "a C++ compiler");
    for seed in 0..10 {
        let mut words = [0_u32; 40];
        let arguments = Arguments::new().pointer(words.as_mut_ptr()).push(words.len() as i32);
        let launch = Launch { visibility: Visibility::Weak { seed }, ..Launch::new(1, 1) };
        let kernel = KERNELS.find("stores_and_ends").unwrap();
        // SAFETY: the kernel writes so many words, which live until it was waited for.
        let running = unsafe { host_twin::start(kernel, &launch, arguments) }.unwrap();
        while !running.has_ended() {
            std::thread::yield_now();
        }
        // SAFETY: the kernel has ended; it was not waited for, and the compiler must not know the words.
        let seen = unsafe { (&raw const words).read_volatile() };
        running.wait().unwrap();
        assert!(seen.iter().zip(1..).all(|(word, nth)| *word == nth), "seed {seed}: {seen:?}");
    }
}

/// Bits of sums, products and the like of pairs, row by row as the kernel leaves them.
fn half_bits(pairs: &[(f32, f32)]) -> Vec<Vec<u16>> {
    let (xs, ys): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    let mut results = vec![0_u16; 6 * pairs.len()];
    let arguments = Arguments::new()
        .pointer(xs.as_ptr().cast_mut())
        .pointer(ys.as_ptr().cast_mut())
        .pointer(results.as_mut_ptr())
        .push(pairs.len() as i32);
    let blocks = pairs.len().div_ceil(256) as u32;
    run_on("half_arithmetic", &Launch::new(blocks, 256), arguments).unwrap();
    results.chunks(pairs.len()).map(<[u16]>::to_vec).collect()
}

/// Rows: a number and its bits, from IEEE 754-2019's definition and the table of binary16's bounds.
#[test]
fn half_precision_has_the_bits_of_known_values() {
    need!(compiler(), cc, "a C++ compiler");
    let rows: [(f32, u16); 16] = [
        (0.0, 0x0000),
        (-0.0, 0x8000),
        (1.0, 0x3c00),
        (-2.0, 0xc000),
        (65_504.0, 0x7bff),
        (65_519.996, 0x7bff),
        (65_520.0, 0x7c00),
        (f32::INFINITY, 0x7c00),
        (f32::NEG_INFINITY, 0xfc00),
        (f32::NAN, 0x7fff),
        (6.103_515_6e-5, 0x0400),
        (6.097_555e-5, 0x03ff),
        (5.960_464_5e-8, 0x0001),
        (2.980_232_2e-8, 0x0000),
        (2.980_232_6e-8, 0x0001),
        (0.333_251_95, 0x3555),
    ];
    let pairs: Vec<(f32, f32)> = rows.iter().map(|&(value, _)| (value, 1.0)).collect();
    for ((value, bits), found) in rows.iter().zip(&half_bits(&pairs)[0]) {
        assert_eq!(found, bits, "{value:e}: {found:#06x}, not {bits:#06x}");
    }
}

/// Every number of half precision, what lies between each and the next, and its operations with another.
#[test]
fn half_precision_rounds_every_result_to_the_nearest() {
    need!(compiler(), cc, "a C++ compiler");
    let values: Vec<f32> =
        (0..0xfc00_u16).map(|bits| half_value(bits) as f32).filter(|v| v.is_finite()).collect();
    let others = numbers(values.len(), values.len() as u32);
    let mut pairs: Vec<(f32, f32)> =
        values.iter().zip(&others).map(|(&value, &other)| (value, values[other as usize])).collect();
    // The middle between two neighbours, and the floats beside it.
    for pair in values.windows(2) {
        let middle = (pair[0] + pair[1]) / 2.0;
        pairs.extend([middle.next_down(), middle, middle.next_up()].map(|value| (value, pair[0])));
    }
    let rows = half_bits(&pairs);
    let is_nan = |bits: u16| bits & 0x7fff > 0x7c00;
    for (at, &(x, y)) in pairs.iter().enumerate() {
        let (x, y) = (half_value(nearest_half(f64::from(x))), half_value(nearest_half(f64::from(y))));
        // Exact in f64 but for quotient and root, whose second rounding changes nothing (53 > 2 * 11 + 2).
        let exact = [f64::from(pairs[at].0), x + y, x * y, x / y, x.mul_add(y, x), x.sqrt()];
        for (row, exact) in exact.into_iter().enumerate() {
            let (found, expected) = (rows[row][at], nearest_half(exact));
            let same = found == expected || is_nan(found) && is_nan(expected);
            assert!(same, "row {row} of {x:e} and {y:e}: {found:#06x}, not {expected:#06x}");
        }
    }
}

#[test]
fn an_axpy_in_half_precision_equals_one_rounding_each() {
    need!(compiler(), cc, "a C++ compiler");
    let half = |value: &f32| nearest_half(f64::from(*value));
    let (x, mut y): (Vec<u16>, Vec<u16>) =
        fractions(4000).chunks(2).map(|pair| (half(&pair[0]), half(&pair[1]))).unzip();
    let sum = |(x, y): (&u16, &u16)| nearest_half(half_value(*x).mul_add(0.75, half_value(*y)));
    let expected: Vec<u16> = x.iter().zip(&y).map(sum).collect();
    let arguments = Arguments::new()
        .pointer(x.as_ptr().cast_mut())
        .pointer(y.as_mut_ptr())
        .push(0.75_f32)
        .push((x.len() / 2) as i32);
    run_on("axpy_half", &Launch::new(8, 128), arguments).unwrap();
    assert_eq!(y, expected);
}
