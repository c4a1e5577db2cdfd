//! A model that fails, over a NIC, run by the thread that serves.

use measure::need;
use rdma_shim::testing::device;
use slots::{Arrival, SlotOrder, Status};

use super::Served;
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
