//! Our orders hold in every interleaving and fail without any piece; the tables are the documentation's.

use crate::device::Failure;
use crate::explore::{Outcome, explore};
use crate::program::{Assumptions, Belief};
use crate::rows::{Row, polling, posting};
use crate::table;

/// Fewer states than this in a program that holds, and the search has looked at next to nothing.
const FEWEST_STATES: usize = 40;
/// The same for a queue that several threads or warps share.
const FEWEST_SHARED_STATES: usize = 300;

fn rows() -> impl Iterator<Item = Row> {
    posting().into_iter().chain(polling())
}

fn row(name: &str) -> Row {
    rows().find(|row| table::name(row) == name).expect("the row exists")
}

fn fails(row: &Row, belief: Belief) -> bool {
    explore(&row.scenario, Assumptions { belief, ..row.assume }).witness.is_some()
}

#[test]
fn ours_hold_in_every_interleaving_and_end_with_every_wqe_executed() {
    for row in rows().filter(|row| row.ours) {
        let Outcome { states, ends, witness } = explore(&row.scenario, row.assume);
        let name = table::name(&row);
        assert_eq!(witness, None, "{name}");
        let fewest = match row.scenario.queue.register {
            Some(_) if row.poster.contains("share") => FEWEST_SHARED_STATES,
            Some(_) => FEWEST_STATES,
            None => FEWEST_STATES / 4,
        };
        assert!(states >= fewest && ends >= 1, "{name}: {states} states, {ends} of them good ends");
    }
}

#[test]
fn without_any_piece_of_ours_an_interleaving_fails() {
    let mut pieces = 0;
    for row in rows().filter(|row| row.ours) {
        let labels = row.scenario.labels();
        assert!(!labels.is_empty(), "{} has nothing to take out", table::name(&row));
        for label in labels {
            let outcome = explore(&row.scenario.without(label), row.assume);
            let witness = outcome.witness.unwrap_or_else(|| {
                panic!("{} without {label}: nothing fails in {} states", table::name(&row), outcome.states)
            });
            println!("{} without {label}:\n  {}", table::name(&row), witness.trace.join("\n  "));
            pieces += 1;
        }
    }
    assert!(pieces >= 49, "only {pieces} pieces were taken out");
}

/// What each piece is for: the failure that its absence must lead to.
#[test]
fn each_piece_keeps_off_the_failure_that_it_is_for() {
    let stale = |failure| matches!(failure, Failure::Stale { .. });
    let lost = |failure| matches!(failure, Failure::Lost { .. });
    let read = |failure| matches!(failure, Failure::Read { .. });
    type IsIt = fn(Failure) -> bool;
    let kinds: [(&str, &str, IsIt); 13] = [
        ("ours, strict, x86-64, host", "db_order_wqe_before_record", stale),
        ("ours, strict, x86-64, host", "db_flush_register", lost),
        ("ours, strict, arm64, host", "db_order_record_before_register", lost),
        ("ours, strict, GPU thread, host", "db_order_wqe_before_record", stale),
        ("ours, strict, GPU thread, host", "db_order_record_before_register", lost),
        ("ours, early, GPU warp, host", "db_warp_sync", stale),
        ("ours, early, 2 warps share, host", "db_order_wqe_before_mark", stale),
        ("published in order, strict, 3 threads share, host", "acq_rel of handing over", lost),
        ("completions, GPU thread, host", "db_acquire_cqe", read),
        ("completions, two in a look, GPU thread, host", "db_acquire_cqe", read),
        ("completions, GPU thread, host", "db_release_cqes", read),
        ("completions, arm64, host", "db_acquire_cqe", read),
        ("receives, GPU thread, host", "db_order_wqe_before_record", stale),
    ];
    for (name, label, is_it) in kinds {
        let row = row(name);
        let outcome = explore(&row.scenario.without(label), row.assume);
        let witness = outcome.witness.expect(label);
        assert!(is_it(witness.failure), "{name} without {label}: {:?}", witness.failure);
    }
}

#[test]
fn early_on_a_gpu_stands_or_falls_with_what_a_nic_makes_of_an_older_record() {
    for row in posting()
        .iter()
        .filter(|row| row.ours && row.order.ends_with("early") && row.assume.belief == Belief::Grows)
    {
        assert!(!fails(row, Belief::Grows) && fails(row, Belief::LastWins), "{}", table::name(row));
    }
    let twice = row("register, record, register, GPU thread, host");
    assert!(!fails(&twice, Belief::Grows) && !fails(&twice, Belief::LastWins));
}

#[test]
fn early_on_x86_stands_or_falls_with_the_write_combining_buffer() {
    let early = row("ours, early, x86-64, host");
    assert!(fails(&early, Belief::Grows), "the register may pass the WQE");
    assert!(!fails(&row("ours, early, if stores leave in order, x86-64, host"), Belief::LastWins));
}

#[test]
fn a_fence_that_stops_at_the_gpu_serves_queues_in_gpu_memory_alone() {
    for (name, failing) in [
        ("the paper's release, GPU thread, host", true),
        ("record by `st.release.sys`, then register, GPU thread, host", true),
        ("Monarch, GPU thread, host", true),
        ("DeepEP, GPU thread, host", true),
        ("DeepEP, GPU thread, GPU", false),
        ("gpunetio, GPU fences, GPU thread, host", true),
        ("gpunetio, system fences, GPU thread, host", false),
        ("gpunetio, GPU fences, GPU thread, GPU", false),
        ("gpunetio, if PCIe reads missed the L2, GPU thread, GPU", true),
        ("NVSHMEM, GPU thread, host", false),
        ("libmlx5, x86-64, host", false),
        ("libmlx5, arm64, host", false),
    ] {
        assert_eq!(fails(&row(name), Belief::Grows), failing, "{name}");
    }
}

/// A ringer that took its role by a relaxed atomic may take an older word for the index told last, and tell
/// nothing, while another thread has told an older index in between.
#[test]
fn a_shared_queue_needs_a_role_that_is_taken_with_what_was_handed_over() {
    for order in ["strict", "early"] {
        let as_it_is = row(&format!("ours, {order}, 3 threads share, host"));
        assert!(!fails(&as_it_is, as_it_is.assume.belief));
    }
    let relaxed = row("ours, strict, were the role taken relaxed, 3 threads share, host");
    assert!(fails(&relaxed, relaxed.assume.belief));
}

/// The last look at what is reserved follows an atomic that only releases, so it may see less than that did.
/// A ringer that takes an older count for posters to come leaves a block unrung, and none comes.
#[test]
fn a_ringer_does_not_leave_because_of_an_older_count() {
    let as_it_is = row("ours, strict, 2 threads share, 2 + 1 posts, host");
    assert!(as_it_is.ours, "which `ours_hold_in_every_interleaving` looks at");
    let older = row("ours, strict, were an older count of reserved blocks taken for posters to come, \
         2 threads share, 2 + 1 posts, host");
    let witness = explore(&older.scenario, older.assume).witness.expect("it fails");
    assert!(matches!(witness.failure, Failure::Lost { .. }), "{:?}", witness.failure);
}

/// A poster with the role before its own block is marked knows that no other has rung further. One that
/// learns of its role behind the mark does not: another may have rung for that block and more.
#[test]
fn a_poster_that_is_alone_has_the_role_before_its_mark() {
    for order in ["strict", "early"] {
        let as_it_is = row(&format!("ours, {order}, 3 threads share, 4 posts, host"));
        assert!(!fails(&as_it_is, as_it_is.assume.belief));
    }
    let late = row(
        "ours, strict, were the role of a lone poster taken behind the mark, 3 threads share, 4 posts, host",
    );
    let witness = explore(&late.scenario, late.assume).witness.expect("it fails");
    assert!(matches!(witness.failure, Failure::Backwards { .. }), "{:?}", witness.failure);
}

/// The shortest way into a failure, step by step: nothing before it is superfluous.
#[test]
fn a_witness_is_a_shortest_interleaving() {
    let row = row("ours, early, GPU thread, host");
    let outcome = explore(&row.scenario.without("db_order_wqe_before_record"), row.assume);
    assert_eq!(
        outcome.witness.expect("it fails").trace,
        [
            "poster stores register = 2",
            "    register = 2 arrives at the NIC",
            "    the NIC fetches what it believes in",
            "fails: the register tells the NIC of a WQE that is not there yet (WQE 0)",
        ]
    );
}

/// What a routine of a header calls that bears on order. What it does with the results, the tests of
/// `crates/rdma-shim/tests/it/twin_shared_words.rs` look at.
fn calls<'a>(header: &'a str, routine: &str) -> Vec<&'a str> {
    const MODELLED: [&str; 21] = [
        "db_order_",
        "db_store_rec",
        "db_store_reg",
        "db_store_relaxed64",
        "db_load_cqe_tail",
        "db_load_relaxed64",
        "db_flush_",
        "db_acquire_",
        "db_release_cqes",
        "db_warp_sync",
        "db_fetch_add",
        "db_compare_swap",
        "db_shared_tell",
        "db_shared_filled",
        "db_shared_mark",
        "db_shared_fence",
        "db_shared_take",
        "db_shared_publish",
        "db_shared_leave",
        "db_shared_ring",
        "db_fetch_and",
    ];
    let start = header.find(routine).expect(routine) + routine.len();
    let body = &header[start..start + header[start..].find("\n}\n").expect("it ends")];
    let words = body.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| MODELLED.iter().any(|modelled| word.starts_with(modelled))).collect()
}

/// The rows say what the routines do: the same calls, in the same order.
#[test]
fn the_headers_call_what_is_modelled() {
    let post = include_str!("../../rdma-shim/include/doorbell_post.h");
    let poll = include_str!("../../rdma-shim/include/doorbell_poll.h");
    let gpu = include_str!("../../rdma-shim/include/doorbell_gpu.h");
    let shared = include_str!("../../rdma-shim/include/doorbell_shared.h");
    let ring = [
        "db_order_wqe_before_record",
        "db_store_record",
        "db_order_record_before_register",
        "db_order_wqe_before_register",
        "db_store_register",
        "db_flush_register",
    ];
    let left =
        ["db_load_relaxed64", "db_fetch_and_release64", "db_load_relaxed64", "db_compare_swap_acquire64"];
    let rings = [
        "db_load_relaxed64",
        "db_shared_filled_by_warp",
        "db_shared_filled",
        "db_order_wqe_before_record",
        "db_warp_sync",
        "db_shared_tell",
        "db_shared_leave",
    ];
    for (called, modelled) in [
        (calls(post, "void db_ring("), &ring[..]),
        (calls(post, "int db_post_recv("), &["db_order_wqe_before_record", "db_store_record"]),
        (calls(poll, "void db_release("), &["db_release_cqes", "db_store_record"]),
        (calls(poll, "int db_take_cqe("), &["db_load_cqe_tail", "db_acquire_cqe"]),
        (calls(gpu, "int db_take_sends("), &["db_load_cqe_tail", "db_acquire_cqe"]),
        (calls(gpu, "void db_warp_ring("), &["db_warp_sync"]),
        (calls(shared, "void db_shared_tell("), &[&ring[1..], &["db_store_relaxed64"]].concat()),
        (calls(shared, "void db_shared_fence("), &["db_order_wqe_before_record", "db_order_wqe_before_mark"]),
        (calls(shared, "db_u64 db_shared_take("), &["db_fetch_add64", "db_fetch_add_acquire64"]),
        (
            calls(shared, "int db_shared_post("),
            &["db_shared_take", "db_shared_fence", "db_shared_mark", "db_shared_publish", "db_shared_ring"],
        ),
        (
            calls(shared, "int db_shared_warp_publish("),
            &[
                "db_warp_sync",
                "db_shared_fence",
                "db_shared_mark",
                "db_shared_publish",
                "db_shared_ring_by_warp",
            ],
        ),
        (
            calls(shared, "int db_shared_publish("),
            &["db_fetch_add_acquire64", "db_fetch_add64", "db_shared_tell", "db_shared_leave"],
        ),
        (calls(shared, "int db_shared_leave("), &left),
        (calls(shared, "db_u64 db_shared_ring_as("), &rings),
    ] {
        assert_eq!(called, modelled);
    }
}

/// And each call is the instruction that the rows take it for.
#[test]
fn the_headers_have_the_fences_that_are_modelled() {
    let host = include_str!("../../rdma-shim/include/order_host.h");
    let cuda = include_str!("../../rdma-shim/include/order_cuda.h");
    let fences = |header: &str, function: &str| -> Vec<String> {
        let start = header.find(&format!("void {function}(void)")).expect(function);
        let body = header[start..].split('}').next().expect("it ends");
        let code = body.lines().filter(|line| !line.starts_with('#'));
        let quoted = code.flat_map(|line| line.split('"').skip(1).step_by(2));
        quoted.filter(|&text| text != "memory").map(|text| text.trim_end_matches(';').to_owned()).collect()
    };
    for (function, on_host, on_gpu) in [
        ("db_order_wqe_before_record", &["", "dmb oshst"], &["fence.acq_rel.sys"][..]),
        ("db_order_record_before_register", &["sfence", "dsb st"], &["fence.acq_rel.sys"]),
        ("db_order_wqe_before_register", &["", "dmb oshst"], &[""]),
        ("db_flush_register", &["sfence", "dsb st"], &[]),
        ("db_acquire_cqe", &["", "dmb oshld"], &["fence.acquire.sys", "fence.acq_rel.sys"]),
        ("db_release_cqes", &["", "dmb osh"], &["fence.acq_rel.sys"]),
    ] {
        assert_eq!(fences(host, function), on_host, "{function}");
        assert_eq!(fences(cuda, function), on_gpu, "{function}");
    }
    for instruction in
        ["st.relaxed.sys.global.u32", "st.mmio.relaxed.sys.global.u64", "ld.relaxed.sys.global.u64"]
    {
        assert!(cuda.contains(instruction), "{instruction}");
    }
}

#[test]
fn the_documentation_has_these_tables() {
    let documentation = include_str!("../../../docs/orders.md");
    for table in table::all() {
        let missing: Vec<&str> = table.lines().filter(|line| !documentation.contains(*line)).collect();
        assert!(
            documentation.contains(&table),
            "docs/orders.md is to hold what `cargo run -p order-explorer` prints; it lacks\n{}",
            missing.join("\n")
        );
    }
}

#[test]
fn a_name_that_no_row_has_finds_nothing() {
    assert!(table::traces("DeepFake").is_empty());
    assert!(table::traces("Monarch").contains("fails: "));
}
