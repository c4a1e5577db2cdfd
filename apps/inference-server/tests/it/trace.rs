//! `--trace`: how long the requests of a client took, told when it leaves.

use measure::need;
use serving::Arrival;

use crate::served::*;

#[test]
fn the_steps_of_a_clients_requests_are_told_when_it_leaves() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 2);
    let fair: &[&str] = &["--mode", "cpu-cpu-shim", "--engine", "gpu"];
    for (mode, steps) in [
        (&["--mode", "gpu-graph"][..], &["wait", "copy_in", "run", "copy_out", "send"][..]),
        (fair, &["to_gpu", "run", "to_cpu", "send"][..]),
    ] {
        let more = ["--machine", "twin", "--trace", "--arrival", "completion"];
        let (mut server, address) = server(SMALL, &[mode, &more].concat());
        // Each client's requests are its own.
        for count in [5, 3] {
            let mut client = Client::by(&nic, &address, 2, Arrival::Completion);
            client.run(&expected, count);
            drop(client);
            let mut line = || server.next_line();
            let traced = std::iter::repeat_with(&mut line).find(|line| line["kind"] == "traced").unwrap();
            assert_eq!(
                (traced["count"].as_u64(), traced["lost"].as_u64()),
                (Some(count), Some(0)),
                "{traced}"
            );
            let mean = |step: &str| traced["steps"][step]["mean_ns"].as_f64().unwrap();
            for step in steps {
                assert!(mean(step) > 0.0, "{mode:?} {step}: {traced}");
            }
            // What the steps take is no more than the service, but for the error of the clocks on both sides.
            let service = traced["service"]["mean_ns"].as_f64().unwrap();
            let error = 2.0 * traced["clock_error_ns"].as_f64().unwrap();
            let sum: f64 = steps.iter().map(|step| mean(step)).sum();
            assert!(sum <= 1.01 * (service + error), "{mode:?}: {traced}");
        }
        stopped(&mut server);
    }
}
