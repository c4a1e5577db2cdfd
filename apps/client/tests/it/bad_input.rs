//! What cannot be is refused in one line, with exit code 2.

use cli::testing::refused;
use measure::need;
use verbs::connect::{Listener, Wait};

use crate::played::{CLIENT, Files, MODEL, device};

#[test]
fn command_lines_that_cannot_be_are_refused() {
    let files = Files::new("bad");
    let short = format!("{}/short.f32", files.folder());
    std::fs::write(&short, [0; 383]).unwrap();
    let model = ["--manifests", files.folder(), "--model", MODEL];
    let cases: [(&[&str], &[&str]); 6] = [
        (&["--connect", "here"], &["--connect here has no port"]),
        (&["--connect", "h:1", "--rate", "0"], &["--rate 0"]),
        (&["--connect", "h:1", "--window", "9", "--slots", "8"], &["--window 9"]),
        (&["--connect", "h:1", "--reference", "/nowhere"], &["--reference /nowhere", "No such file"]),
        (&["--connect", "h:1", "--reference", &short], &["383 bytes", "profiler reference"]),
        (&["--connect", "h:1", "--seed", "3"], &["--seed 3 would do nothing"]),
    ];
    for (options, words) in cases {
        refused(&CLIENT, &[&model, options].concat(), words);
    }
    let unknown = ["--connect", "h:1", "--model", "none", "--manifests", files.folder()];
    refused(&CLIENT, &unknown, &["there is no model none", "has: small"]);
}

#[test]
fn a_server_that_refuses_is_quoted() {
    need!(device(), nic, "an RDMA device");
    let files = Files::new("refused");
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let wait = Wait::at_most(std::time::Duration::from_secs(20));
        let mut session = listener.accept(wait).unwrap();
        let _: serving::SetupRequest = session.receive("a set-up request", wait).unwrap();
        session.send(&serving::Reply::Refused("no slot is free".into())).unwrap();
    });
    let options = ["--connect", &address, "--model", MODEL, "--manifests", files.folder()];
    refused(&CLIENT, &options, &["the server refuses: no slot is free"]);
    server.join().unwrap();
}
