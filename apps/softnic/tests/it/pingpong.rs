//! `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong`, `ibv_srq_pingpong`: polling, events, data checks.
//!
//! Each side sends once an exchange (`libibverbs/examples/*_pingpong.c` of rdma-core 44): the client first,
//! then each when its own send and the peer's completed. So `-n 200` makes 200 SENDs each way.

use measure::need::is_full;

use crate::counters::messages;
use crate::fabric::{Fabric, Layer};
use crate::program::find;

fn pingpong(program: &str, options: &[&str], layer: Layer) {
    pingpong_on(&Fabric::new(layer), program, options);
}

/// Sixteen queue pairs and one shared receive queue on each side. `-n` counts the receives of a side; its
/// last sends may be in flight when it has enough.
fn shared(fabric: &Fabric, options: &[&str]) {
    let gid = fabric.gid_arguments();
    let mut command = vec!["ibv_srq_pingpong", "-n", "200"];
    command.extend(options);
    command.extend(gid.iter().map(String::as_str));
    let what = format!("{} over {:?}", command.join(" "), fabric.layer());
    let finished = fabric.pair(&command).finish_on_distribution();
    for (name, side) in [("server", finished.server), ("client", finished.client)] {
        let (output, counters) = (side.output, side.counters);
        assert!(output.contains("200 iters in"), "{what}: no result from the {name} in\n{output}");
        assert!(!output.contains("invalid data"), "{what}: wrong data at the {name}: \n{output}");
        let received = counters.value("receives_consumed");
        assert!(received >= 200, "{what}: {received} received by the {name}");
        assert_eq!(counters.value("receives_shared"), received, "{what}: the {name}");
        assert_eq!(counters.executed(), received, "{what}: executed by the {name}");
        assert_eq!(counters.posted().keys().collect::<Vec<_>>(), ["send"], "{what}: the {name}");
        let mut trouble = counters.trouble();
        // From the last sends, to a side that has left, and from the answers to that side's own last sends.
        let at_the_end = ["dropped_unknown_qp", "dropped_replies", "retransmissions"];
        trouble.retain(|name, _| !at_the_end.contains(name));
        assert!(trouble.is_empty(), "{what}: the {name} had {trouble:?}");
    }
}

#[test]
fn ibv_srq_pingpong_polls_sleeps_and_finds_its_data_unchanged() {
    measure::need!(find("ibv_srq_pingpong"), "ibverbs-utils");
    for layer in Layer::BOTH {
        for options in [&[][..], &["-e"], &["-c", "-s", "1000"]] {
            shared(&Fabric::new(layer), options);
        }
    }
}

fn pingpong_on(fabric: &Fabric, program: &str, options: &[&str]) {
    let layer = fabric.layer();
    let gid = fabric.gid_arguments();
    let mut command = vec![program, "-n", "200"];
    command.extend(options);
    command.extend(gid.iter().map(String::as_str));
    let what = format!("{} over {layer:?}", command.join(" "));
    let finished = fabric.pair(&command).finish_on_distribution();
    for (name, side) in [("server", finished.server), ("client", finished.client)] {
        let (output, counters) = (side.output, side.counters);
        assert!(output.contains("200 iters in"), "{what}: no result from the {name} in\n{output}");
        assert!(!output.contains("invalid data"), "{what}: wrong data at the {name}: \n{output}");
        assert_eq!(counters.posted(), messages("send", 200), "{what}: posted by the {name}");
        assert_eq!(counters.completed(), messages("send", 200), "{what}: completed for the {name}");
        assert_eq!(counters.executed(), 200, "{what}: executed by the {name}");
        assert!(counters.trouble().is_empty(), "{what}: the {name} had {:?}", counters.trouble());
    }
}

/// Options of one row, all of them with `full`.
const VARIANTS: &[&[&str]] = &[&[], &["-e"], &["-c"], &["-e", "-c", "-s", "1000"], &["-r", "2"]];

fn variants(program: &str, first: usize) {
    let rows = if is_full() { VARIANTS } else { &VARIANTS[first..=first] };
    for layer in Layer::BOTH {
        for options in rows {
            pingpong(program, options, layer);
        }
    }
}

macro_rules! each_program {
    ($($name:ident),*) => { $(
        mod $name {
            use super::*;

            #[test]
            fn polls() {
                measure::need!(find(stringify!($name)), "ibverbs-utils");
                variants(stringify!($name), 0);
            }

            #[test]
            fn sleeps_on_events() {
                measure::need!(find(stringify!($name)), "ibverbs-utils");
                variants(stringify!($name), 1);
            }

            #[test]
            fn finds_its_data_unchanged() {
                measure::need!(find(stringify!($name)), "ibverbs-utils");
                variants(stringify!($name), 2);
            }
        }
    )* };
}

each_program!(ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong);

#[test]
fn the_second_port_of_a_device_exchanges_as_the_first_does() {
    measure::need!(find("ibv_rc_pingpong"), "ibverbs-utils");
    for layer in Layer::BOTH {
        for program in ["ibv_rc_pingpong", "ibv_ud_pingpong"] {
            pingpong_on(&Fabric::new(layer).with_options(&["--ports", "2"]), program, &["-i", "2"]);
        }
    }
}

/// Two processes of an ordinary user, with payloads that the kernel copies from one to the other.
#[test]
fn an_ordinary_user_needs_no_right() {
    measure::need!(find("ibv_rc_pingpong"), "ibverbs-utils");
    for layer in Layer::BOTH {
        let fabric = measure::need!(Fabric::new(layer).for_nobody(), "the right to become another user");
        pingpong_on(&fabric, "ibv_rc_pingpong", &["-c", "-s", "65536"]);
    }
}
