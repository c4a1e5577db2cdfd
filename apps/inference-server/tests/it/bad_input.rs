//! Command lines that cannot be, and clients that want what is not there.

use std::io::Read as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use measure::need;
use serving::{Arrival, SetupRequest, Transport};

use crate::served::*;

#[test]
fn what_cannot_be_served_is_refused_in_one_line() {
    need!(device(), nic, "an RDMA device");
    for (options, words) in [
        (
            &["--mode", "gpu-graph", "--machine", "twin", "--place", "gpu"][..],
            &["--place", "--machine gpu"][..],
        ),
        (
            &["--mode", "gpu-graph", "--engine", "twin"],
            &["--engine twin", "--mode cpu-cpu-ibverbs or cpu-cpu-shim"],
        ),
        (&["--mode", "cpu-cpu"], &["cpu-cpu-shim"]),
        (&["--mode", "gpu-persistent", "--model", "b"], &["one model", "--model once"]),
        (&["--model", "resnet51"], &["resnet51"]),
        (&["--slots", "1000", "--memory", "500000"], &["--slots 1000", "at most --slots 7"]),
        (&["--onnxruntime", "/nowhere"], &["/nowhere", "cargo xtask setup", "--engine twin"]),
        (&["--listen", "203.0.113.7:0"], &["an address of this host"]),
    ] {
        if options[0] == "--listen" {
            cli::testing::refused(&SERVER, &[options, &["--model", SLOW]].concat(), words);
        } else {
            refused(options, words);
        }
    }
}

#[test]
fn a_client_hears_why_it_gets_no_slots() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(runtime(), reference, "ONNX Runtime");
    let options = ["--slots", "8", "--slots-per-client", "4", "--clients", "2", "--transport", "rc"];
    let (_server, address) = server(SMALL, &options);
    let usual = || setup_request(SMALL, 4, Arrival::Flag, Transport::Rc);
    for (wrong, words) in [
        (
            setup_request(SMALL, 5, Arrival::Flag, Transport::Rc),
            "5 slots are wanted, a client gets 4 at most: give the client --slots 4 or less",
        ),
        (setup_request(SMALL, 0, Arrival::Flag, Transport::Rc), "0 slots are wanted"),
        (
            setup_request(SMALL, 4, Arrival::Flag, Transport::Uc),
            "transport uc is wanted, and rc alone is served: give the client --transport rc",
        ),
        (SetupRequest { model: "other".into(), ..usual() }, "no model \"other\" here; there is: small"),
        (SetupRequest { bytes: [1, 2], ..usual() }, "the server's manifest of the model says"),
        (SetupRequest { serving: 99, ..usual() }, "use the same build"),
    ] {
        let said = Client::open(&nic, &address, SMALL, &wrong).err().unwrap();
        assert!(said.contains(words), "{said}");
    }
    let clients =
        [usual(), usual()].map(|setup_request| Client::open(&nic, &address, SMALL, &setup_request).unwrap());
    let said = Client::open(&nic, &address, SMALL, &usual()).err().unwrap();
    assert!(said.contains("2 clients are connected"), "{said}");
    // Of connections that say nothing some hear why within a second, and no thread waits for the others.
    let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let since = Instant::now();
    let hears = |mut connection: &TcpStream| connection.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0);
    let heard = silent.iter().filter(|connection| hears(connection)).count();
    assert!((1..=16).contains(&heard) && since.elapsed() < Duration::from_secs(5), "{heard} {since:?}");
    drop(clients);
}
