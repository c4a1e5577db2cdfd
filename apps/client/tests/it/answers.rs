//! Every request is answered, in each way, and the line says so.

use cli::testing::{Program, Signal};
use measure::need;
use serde_json::json;

use crate::played::{AnswerFault, CLIENT, Files, MODEL, asked, device, start};

#[test]
fn every_way_to_learn_of_an_answer_gives_all_of_them() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("ways");
    let reference = files.reference(16, None);
    for arrival in ["flag", "tail", "completion"] {
        for transport in ["rc", "uc"] {
            let options = ["--arrival", arrival, "--transport", transport, "--reference", &reference];
            let ended = asked(&files, AnswerFault::Nothing, &[&options[..], &["--count", "400"]].concat());
            assert_eq!(ended.code, Some(0), "{arrival} {transport}: {ended:?}");
            let run = ended.line();
            let said = [&run["sent"], &run["answered"], &run["wrong"], &run["lost"], &run["duplicate"]];
            assert_eq!(said, [&json!(400), &json!(400), &json!(0), &json!(0), &json!(0)], "{run}");
            assert_eq!((&run["arrival"], &run["transport"]), (&json!(arrival), &json!(transport)));
            let latency = &run["latency"];
            assert!(latency["count"] == 400 && latency["p50_ns"].as_u64() <= latency["p999_ns"].as_u64());
            assert_eq!(run["service"]["max_ns"], 900, "{run}");
        }
    }
}

/// S8: the release writes the whole slot, the area of the answer as well. The played server looks there.
#[test]
fn release_s8_a_request_writes_nothing_behind_itself() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("behind");
    for arrival in ["flag", "tail"] {
        let options = ["--arrival", arrival, "--slots", "4", "--count", "40"];
        let ended = asked(&files, AnswerFault::Nothing, &options);
        assert_eq!((ended.code, &ended.line()["answered"]), (Some(0), &json!(40)), "{ended:?}");
    }
}

#[test]
fn an_open_loop_counts_the_wait_for_a_slot() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("open");
    // 200 a second of a server that takes 10 ms each: the last of 40 waits for about 200 ms.
    let options = ["--rate", "200", "--arrivals", "constant", "--count", "40", "--slots", "1"];
    let ended = asked(&files, AnswerFault::Slow(10), &options);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let run = ended.line();
    assert!(run["latency"]["max_ns"].as_u64().unwrap() > 150_000_000, "{run}");
}

#[test]
fn a_poisson_load_ends_after_its_seconds() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("poisson");
    let ended =
        asked(&files, AnswerFault::Nothing, &["--rate", "300", "--seconds", "0.5", "--warm-up", "10"]);
    let run = ended.line();
    let answered = run["answered"].as_u64().unwrap();
    assert!(ended.code == Some(0) && (80..240).contains(&answered), "{run}");
    assert_eq!(run["latency"]["count"], answered - 10);
}

#[test]
fn a_signal_ends_a_run_with_its_counts() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("signal");
    let (address, server) = start(&files, AnswerFault::Slow(1));
    let options = ["--model", MODEL, "--manifests", files.folder(), "--seconds", "60", "--connect", &address];
    let mut client = Program::start(&CLIENT, &options);
    std::thread::sleep(std::time::Duration::from_millis(500));
    client.signal(Signal::SIGTERM);
    let ended = client.end();
    server.join().unwrap();
    assert_eq!((ended.code, &ended.line()["interrupted"]), (Some(130), &json!(true)), "{ended:?}");
    assert_eq!(ended.line()["lost"], 0);
}
