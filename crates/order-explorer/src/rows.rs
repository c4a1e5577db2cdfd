//! The rows of the tables: which program, and the assumptions under which its author could stand by it.

use crate::ours::{looks, ours_on_gpu, ours_on_host, ours_twice, ours_warp, polls, receives};
use crate::peers::{
    deepep, deepep_shared, gpunetio, gpunetio_shared, libmlx5, nvshmem, nvshmem_shared, released_record,
    releases, volatile_only,
};
use crate::program::Machine::{self, Arm64, X86};
use crate::program::Place::{Gpu, Host};
use crate::program::{Assumptions, Belief, Scenario, Scope};
use crate::sharing::Sharing::{FourElections, OneBetween, ThreeTakes, TwoThenOne, Warps};
use crate::sharing::{in_order, ours_shared, warp_looks};

/// One row: a program, and under which assumptions its author could stand by it.
pub struct Row {
    pub order: &'static str,
    /// The threads that post or poll.
    pub poster: &'static str,
    /// Where ring and record lie, or CQ and payload.
    pub memory: &'static str,
    pub scenario: Scenario,
    /// What ours claims to be right under; for peers, the switches of the row.
    pub assume: Assumptions,
    /// Ours: with this order in, nothing may fail, and with any piece of it out, something must.
    pub ours: bool,
}

const LEAST: Assumptions = Assumptions::LEAST;
const GROWS: Assumptions = Assumptions { belief: Belief::Grows, ..LEAST };
const WC_WAITS: Assumptions = Assumptions { write_combining_waits: true, ..LEAST };
const NO_L2: Assumptions = Assumptions { l2_serves_pcie: false, ..LEAST };
const ORDERED: Assumptions = Assumptions { dma_in_order: true, ..LEAST };

/// All rows that post, in the order of the table.
pub fn posting() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |order, poster, memory, scenario, assume, ours| {
        rows.push(Row { order, poster, memory, scenario, assume, ours });
    };
    row("ours, strict", "x86-64", "host", ours_on_host(X86, true), LEAST, true);
    row("ours, early", "x86-64", "host", ours_on_host(X86, false), LEAST, false);
    row("ours, early, if stores leave in order", "x86-64", "host", ours_on_host(X86, false), WC_WAITS, true);
    row("libmlx5", "x86-64", "host", libmlx5(X86), LEAST, false);
    row("ours, strict", "arm64", "host", ours_on_host(Arm64, true), LEAST, true);
    row("ours, early", "arm64", "host", ours_on_host(Arm64, false), LEAST, true);
    row("libmlx5", "arm64", "host", libmlx5(Arm64), LEAST, false);
    for (order, strict, assume) in [("ours, strict", true, LEAST), ("ours, early", false, GROWS)] {
        row(order, "GPU thread", "host", ours_on_gpu(strict), assume, true);
        row(order, "GPU warp", "host", ours_warp(strict), assume, true);
        // Two posters hold even if the role is taken relaxed (a small search); three need the header's order.
        row(
            order,
            "2 threads share, 2 + 1 posts",
            "host",
            ours_shared(strict, false, TwoThenOne { exact: false }),
            assume,
            true,
        );
        row(order, "2 warps share", "host", ours_shared(strict, false, Warps), assume, true);
        row(order, "a warp rings for a thread", "host", warp_looks(strict), assume, true);
        row(order, "3 threads share", "host", ours_shared(strict, true, ThreeTakes), assume, false);
    }
    let older = ours_shared(true, true, TwoThenOne { exact: true });
    row(
        "ours, strict, were an older count of reserved blocks taken for posters to come",
        "2 threads share, 2 + 1 posts",
        "host",
        older,
        LEAST,
        false,
    );
    // Early fails as well, in twice as many states.
    let relaxed = ours_shared(true, false, ThreeTakes);
    row("ours, strict, were the role taken relaxed", "3 threads share", "host", relaxed, LEAST, false);
    for (order, strict, assume, late) in [
        ("ours, strict", true, LEAST, false),
        ("ours, strict, were the role of a lone poster taken behind the mark", true, LEAST, true),
        ("ours, early", false, GROWS, false),
    ] {
        let four = ours_shared(strict, true, FourElections { late });
        row(order, "3 threads share, 4 posts", "host", four, assume, false);
    }
    for (order, strict, assume) in
        [("published in order, strict", true, LEAST), ("published in order, early", false, GROWS)]
    {
        row(order, "2 warps share", "host", in_order(strict, true), assume, true);
        row(order, "3 threads share", "host", in_order(strict, false), assume, true);
    }
    // Early would be too large.
    let between = ours_shared(true, false, OneBetween);
    row("ours, strict", "2 threads share, 1 between 2", "host", between, LEAST, true);
    row("register, record, register", "GPU thread", "host", ours_twice(), LEAST, true);
    row("record by `st.release.sys`, then register", "GPU thread", "host", released_record(), LEAST, false);
    row("the paper's release", "GPU thread", "host", releases(Host), LEAST, false);
    row("Monarch", "GPU thread", "host", volatile_only(), LEAST, false);
    row("NVSHMEM", "GPU thread", "host", nvshmem(Host), LEAST, false);
    row("NVSHMEM", "GPU thread", "GPU", nvshmem(Gpu), LEAST, false);
    row("NVSHMEM", "2 blocks share", "GPU", nvshmem_shared(Gpu), LEAST, false);
    row("DeepEP", "GPU thread", "host", deepep(Host), LEAST, false);
    row("DeepEP", "GPU thread", "GPU", deepep(Gpu), LEAST, false);
    row("DeepEP", "2 blocks share", "GPU", deepep_shared(Gpu), LEAST, false);
    row("gpunetio, GPU fences", "GPU thread", "host", gpunetio(Host, Scope::Gpu), LEAST, false);
    row("gpunetio, system fences", "GPU thread", "host", gpunetio(Host, Scope::Sys), LEAST, false);
    row("gpunetio, system fences", "2 blocks share", "host", gpunetio_shared(Host, Scope::Sys), LEAST, false);
    row("gpunetio, GPU fences", "GPU thread", "GPU", gpunetio(Gpu, Scope::Gpu), LEAST, false);
    row("gpunetio, GPU fences", "2 blocks share", "GPU", gpunetio_shared(Gpu, Scope::Gpu), LEAST, false);
    row(
        "gpunetio, if PCIe reads missed the L2",
        "GPU thread",
        "GPU",
        gpunetio(Gpu, Scope::Gpu),
        NO_L2,
        false,
    );
    rows
}

/// All rows that poll or post receives.
pub fn polling() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |order, poster, memory, scenario, assume, ours| {
        rows.push(Row { order, poster, memory, scenario, assume, ours });
    };
    row("completions", "x86-64", "host", polls(X86, Host), LEAST, true);
    row("completions", "arm64", "host", polls(Arm64, Host), LEAST, true);
    row("completions", "GPU thread", "host", polls(Machine::Gpu, Host), LEAST, true);
    row("completions, two in a look", "GPU thread", "host", looks(), LEAST, true);
    row("completions", "GPU thread", "host, payload GPU", polls(Machine::Gpu, Gpu), LEAST, false);
    row(
        "completions, if writes are ordered",
        "GPU thread",
        "host, payload GPU",
        polls(Machine::Gpu, Gpu),
        ORDERED,
        true,
    );
    row("receives", "x86-64", "host", receives(X86), LEAST, true);
    row("receives", "arm64", "host", receives(Arm64), LEAST, true);
    row("receives", "GPU thread", "host", receives(Machine::Gpu), LEAST, true);
    rows
}
