//! `ibv_reg_dmabuf_mr` of the distribution: refusals, and a real dma-buf where the kernel exports some.

use std::path::Path;

use crate::c_program::verbs_program;
use crate::counters::messages;
use crate::fabric::{Fabric, Layer};
use crate::processes::gid_argument;

#[test]
fn what_is_no_dma_buf_is_refused_as_a_kernel_refuses_it() {
    let program = measure::need!(verbs_program("dma_buf"), "C compiler and libibverbs-dev");
    for layer in Layer::BOTH {
        Fabric::new(layer).run(&[&program, "refusals"]);
    }
}

#[test]
fn a_dma_buf_of_the_kernel_is_written_to_and_read_from_by_a_peer() {
    let program = measure::need!(verbs_program("dma_buf"), "C compiler and libibverbs-dev");
    let exporter = Path::new("/dev/udmabuf");
    let there =
        exporter.exists().then_some(()).ok_or("/dev/udmabuf not found: CONFIG_UDMABUF, modprobe udmabuf");
    measure::need!(there, udmabuf, "a kernel that exports dma-bufs");
    for layer in Layer::BOTH {
        let fabric = Fabric::new(layer);
        let (_, counters) = fabric.run(&[&program, "udmabuf", &gid_argument(&fabric)]);
        assert_eq!(counters.completed(), messages("write", 3));
    }
}
