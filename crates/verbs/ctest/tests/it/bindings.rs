//! Every struct, union, alias and constant from bindgen, compared by ctest; inline functions by distances.

use std::mem::offset_of;

// The archive with the C side hangs on the library of this package.
use verbs_ctest as _;

mod generated {
    #![allow(dead_code, unused_imports, clippy::all, clippy::unwrap_used)]
    #![allow(
        clippy::undocumented_unsafe_blocks,
        clippy::multiple_unsafe_ops_per_block,
        unsafe_op_in_unsafe_fn
    )]
    use crate::sys::ibverbs::*;
    use crate::sys::mlx5::*;
    use libc::off_t;

    // Written by ctest: a `main` that panics when one comparison failed.
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

    /// Compares everything; returns how many comparisons were made.
    pub fn compare() -> usize {
        main();
        generated_tests::NTESTS.load(std::sync::atomic::Ordering::Relaxed)
    }
}

unsafe extern "C" {
    fn headers_inline(out: *mut usize);
    fn headers_grown(out: *mut usize);
}

#[test]
fn bindings_are_the_headers() {
    let compared = generated::compare();
    println!("{compared} comparisons");
    assert!(compared > 1300, "only {compared} comparisons were made");
}

#[test]
fn what_inline_functions_need_is_the_headers() {
    use crate::sys::inline::{ACCESS_OPTIONAL_RANGE, LINK_LAYER_ETHERNET, QPF_GRH_REQUIRED, distance};
    let mut theirs = [0; 8];
    // SAFETY: `headers.c` writes 8 numbers.
    unsafe { headers_inline(theirs.as_mut_ptr()) };
    let ours = [
        distance::SIZE,
        distance::CREATE_QP_EX,
        distance::ALLOC_TD,
        distance::DEALLOC_TD,
        distance::ALLOC_PARENT_DOMAIN,
        ACCESS_OPTIONAL_RANGE as usize,
        QPF_GRH_REQUIRED.into(),
        LINK_LAYER_ETHERNET.into(),
    ];
    assert_eq!(ours, theirs);
}

#[test]
fn what_we_use_of_grown_structs_is_the_headers() {
    use crate::sys::ibverbs::ibv_port_attr;
    use crate::sys::mlx5::mlx5dv_obj;
    let mut theirs = [0; 6];
    // SAFETY: `headers.c` writes 6 numbers.
    unsafe { headers_grown(theirs.as_mut_ptr()) };
    let ours = [
        offset_of!(mlx5dv_obj, qp.in_),
        offset_of!(mlx5dv_obj, cq.in_),
        offset_of!(mlx5dv_obj, ah.out),
        offset_of!(ibv_port_attr, state),
        offset_of!(ibv_port_attr, lid),
        offset_of!(ibv_port_attr, flags),
    ];
    assert_eq!(ours, theirs);
}
