//! What goes wrong is counted, and the exit code says so.

use measure::need;
use serde_json::json;
use slots::Status;

use crate::played::{AnswerFault, Files, asked, device};

#[test]
fn a_reference_with_one_other_number_makes_each_answer_to_its_input_wrong() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("reference");
    let reference = files.reference(16, Some(2 * 24 + 5));
    let ended = asked(&files, AnswerFault::Nothing, &["--count", "160", "--reference", &reference]);
    let run = ended.line();
    assert_eq!((ended.code, &run["wrong"], &run["answered"]), (Some(1), &json!(10), &json!(160)), "{run}");
    let first = run["first_wrong"].as_str().unwrap();
    assert!(first.contains("input 2: value 5 "), "{first}");
}

#[test]
fn each_fault_of_a_server_is_counted_as_what_it_is() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("faults");
    for (arrival, transport) in [("flag", "rc"), ("flag", "uc"), ("tail", "rc"), ("completion", "rc")] {
        for (spoil, counts) in [
            (AnswerFault::Value(90), json!({"wrong": 1, "answered": 200, "lost": 0})),
            (AnswerFault::Header(90), json!({"wrong": 1, "answered": 199, "lost": 1})),
            (AnswerFault::Never(90), json!({"wrong": 0, "answered": 199, "lost": 1, "late": 0})),
            (
                AnswerFault::Status(90, Status::ModelFailed),
                json!({"refused": {"model_failed": 1}, "wrong": 0}),
            ),
        ] {
            let options =
                ["--arrival", arrival, "--transport", transport, "--count", "200", "--deadline", "1"];
            let ended = asked(&files, spoil, &options);
            let run = ended.line();
            for (name, count) in counts.as_object().unwrap() {
                assert_eq!(&run[name], count, "{arrival} {transport} {spoil:?} {name}: {run}");
            }
            assert_eq!(ended.code, Some(1), "{spoil:?} {run}");
        }
    }
}

#[test]
fn release_s10_an_answer_that_comes_again_is_counted_as_a_duplicate() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("twice");
    for arrival in ["flag", "tail", "completion"] {
        // Each request has a slot of its own, so the second copy comes to a slot without a request.
        let options = [
            "--slots",
            "20",
            "--arrival",
            arrival,
            "--count",
            "20",
            "--rate",
            "60",
            "--arrivals",
            "constant",
        ];
        let ended = asked(&files, AnswerFault::Twice(7), &options);
        let run = ended.line();
        assert_eq!((ended.code, &run["duplicate"]), (Some(1), &json!(1)), "{arrival}: {run}");
        assert_eq!((&run["answered"], &run["wrong"]), (&json!(20), &json!(0)), "{arrival}: {run}");
    }
}

#[test]
fn an_answer_after_its_deadline_is_late_and_its_slot_is_used_again() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("late");
    let options =
        ["--slots", "2", "--count", "80", "--rate", "40", "--deadline", "1", "--arrivals", "constant"];
    let ended = asked(&files, AnswerFault::Late(3, 1500), &options);
    let run = ended.line();
    let said = [&run["lost"], &run["late"], &run["answered"], &run["wrong"]];
    assert_eq!(said, [&json!(1), &json!(1), &json!(79), &json!(0)], "{run}");
}

#[test]
fn on_uc_a_flag_without_its_answers_last_packet_is_no_answer() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("torn");
    let options = ["--transport", "uc", "--count", "200", "--deadline", "1"];
    let ended = asked(&files, AnswerFault::Torn(90), &options);
    let run = ended.line();
    assert_eq!((&run["wrong"], &run["answered"], &run["lost"]), (&json!(0), &json!(199), &json!(1)), "{run}");
}

#[test]
fn a_server_that_answers_nothing_ends_the_run_when_each_slot_has_waited_two_deadlines() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("silent");
    let options = ["--slots", "2", "--count", "8", "--deadline", "0.5"];
    let ended = asked(&files, AnswerFault::Silent, &options);
    let run = ended.line();
    assert_eq!((ended.code, &run["sent"], &run["answered"]), (Some(1), &json!(2), &json!(0)), "{run}");
    assert!(run["error"].as_str().is_some_and(|error| error.starts_with("the server is silent")), "{run}");
}

#[test]
fn a_server_that_dies_ends_the_run_and_its_requests_are_lost() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("dies");
    // The second load goes on asking: its NIC notices first.
    let open = ["--slots", "50", "--count", "1000", "--rate", "200", "--deadline", "5"];
    for (load, says) in [
        (&["--slots", "4", "--count", "1000"][..], "the server is gone"),
        (&open, "the server is gone: a request"),
    ] {
        let ended = asked(&files, AnswerFault::Die(50), load);
        let run = ended.line();
        let [sent, answered, lost] = ["sent", "answered", "lost"].map(|name| run[name].as_u64().unwrap());
        assert_eq!((ended.code, sent), (Some(1), answered + lost), "{run}");
        assert!(lost > 0 && run["error"].as_str().unwrap().starts_with(says), "{run}");
    }
}
