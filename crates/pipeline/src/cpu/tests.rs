//! A model that fails, over a NIC, run by the thread that serves; clients of an offload that is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use measure::need;
use rdma_shim::testing::{device, wait_for};
use slots::{Arrival, SlotOrder, Status};

use super::{CpuError, Job, LOOKS, Memory, Offload, Served};
use crate::Mode;
use crate::testing::{FLOATS, SLOTS, geometry, join};

#[test]
fn a_model_that_fails_is_told_to_its_client_and_the_next_request_is_served() {
    let context = need!(device(), nic, "an mlx5 device");
    type Model = fn(&[Vec<f32>]) -> Result<Vec<Vec<f32>>, String>;
    let models: [(Model, Status); 5] = [
        (|_| Err("it is broken".into()), Status::ModelFailed),
        (|_| Ok(vec![vec![0.0; FLOATS - 1]]), Status::ModelFailed),
        (|_| Ok(vec![vec![0.0; FLOATS]; 2]), Status::ModelFailed),
        (|_| Ok(Vec::new()), Status::ModelFailed),
        (|inputs| Ok(vec![inputs[0].iter().map(|value| value + 1.0).collect()]), Status::Ok),
    ];
    for mode in [Mode::CpuCpuIbverbs, Mode::CpuCpuShim] {
        let mut served = Served::new(geometry(), 2 * SLOTS).unwrap();
        let mut peers = [0, 1].map(|_| join(&context, &mut served, mode, Arrival::Flag, 0));
        for (id, (model, status)) in (0..).zip(models) {
            for peer in &mut peers {
                let asked = peer.ask(id, 3.0 * id as f32);
                let mut pump = || {
                    served.look();
                    let mut run = |inputs: &[Vec<f32>], outputs: &mut Vec<Vec<f32>>| {
                        *outputs = model(inputs)?;
                        Ok(())
                    };
                    served.serve(Some(&mut run)).unwrap();
                };
                let is_right = status == Status::Ok;
                assert_eq!(peer.answer(asked, &mut pump), (status, is_right), "{mode} model {id}");
            }
        }
        assert_eq!(served.model_failure(), Some("it is broken"));
    }
}

#[test]
fn a_client_s_requests_are_served_in_the_order_that_was_asked_for() {
    const ASKED: [u32; 4] = [3, 1, 2, 0];
    let context = need!(device(), nic, "an mlx5 device");
    for (order, wanted) in [(SlotOrder::Arrival, ASKED), (SlotOrder::Index, [0, 1, 2, 3])] {
        let mut served = Served::new(geometry(), SLOTS).unwrap();
        served.set_order(order);
        let mut peer = join(&context, &mut served, Mode::CpuCpuShim, Arrival::Completion, 0);
        let requests = [0, 1, 2, 3].map(|id| peer.client.ask(id, 0, 0, u64::MAX).unwrap());
        for slot in ASKED {
            let request = &requests[slot as usize];
            peer.send(slot.into(), request.slot, request.sequence, &request.prefix, slot as f32);
        }
        // All are there before one is served.
        peer.wait_sent(ASKED.len());
        served.look();
        let mut served_slots = Vec::new();
        let mut run = |inputs: &[Vec<f32>], outputs: &mut Vec<Vec<f32>>| {
            served_slots.push(inputs[0][0] as u32);
            *outputs = inputs.to_vec();
            Ok(())
        };
        while served.serve(Some(&mut run)).unwrap() {}
        assert_eq!(served_slots, wanted, "{order:?}");
    }
}

#[test]
fn a_client_that_asks_to_the_end_meets_no_region_that_is_gone() {
    let context = need!(device(), nic, "an mlx5 device");
    for mode in [Mode::CpuCpuIbverbs, Mode::CpuCpuShim] {
        let mut served = Served::new(geometry(), SLOTS).unwrap();
        for _ in 0..20 {
            let peer = join(&context, &mut served, mode, Arrival::Tail, 0);
            let number = peer.number;
            let endpoint = served.remove(number).unwrap();
            assert_eq!(peer.failure_while(|| drop(endpoint)), None, "{mode}");
            served.withdraw(number).unwrap();
        }
    }
}

const PATIENCE: Duration = Duration::from_millis(100);

/// An offload that takes its time to begin a request and never posts. Its number: turns that have begun.
struct SlowOffload(Arc<AtomicU64>);

impl Offload for SlowOffload {
    fn posts(&self) -> bool {
        true
    }
    fn turns(&self) -> [u64; 2] {
        [0, self.0.load(Ordering::Relaxed)]
    }
    fn has_room(&self) -> bool {
        true
    }
    fn begin(&mut self, _: Job) -> Result<(), CpuError> {
        sleep(2 * PATIENCE);
        Ok(())
    }
    fn ended(&mut self) -> Result<Option<Job>, CpuError> {
        Ok(None)
    }
}

#[test]
fn a_client_s_patience_counts_from_the_first_look_at_an_answer_whose_turn_has_begun() {
    let context = need!(device(), nic, "an mlx5 device");
    let (memory, begun) = (Memory::new(geometry(), SLOTS).unwrap(), Arc::default());
    let offload = SlowOffload(Arc::clone(&begun));
    let mut served = Served::with(memory, SLOTS, Some(Box::new(offload))).unwrap();
    served.set_patience(PATIENCE);
    let mut peer = join(&context, &mut served, Mode::CpuCpuShim, Arrival::Completion, 0);
    peer.ask(1, 1.0);
    wait_for("the request", || {
        served.look();
        served.serve(Some(&mut |_, _| Ok(()))).unwrap().then_some(())
    });
    let mut failed = || {
        for _ in 0..LOOKS {
            served.look();
        }
        served.failed().next().map(|(_, why)| why.to_owned())
    };
    assert_eq!(failed(), None, "a slow hand-over");
    sleep(2 * PATIENCE);
    assert_eq!(failed(), None, "behind other turns");
    begun.store(1, Ordering::Relaxed);
    assert_eq!(failed(), None, "posted");
    sleep(2 * PATIENCE);
    assert_eq!(failed().as_deref(), Some("the answer in slot 0 was not taken within 0 s"));
}
