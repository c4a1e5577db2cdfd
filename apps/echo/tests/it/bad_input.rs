//! Impossible requests, and machines that lack something: exit code 2, one line of what, where, what to do.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use cli::testing::{command, refused};
use measure::need;

use crate::ends::{ECHO, asking, device, gpu, service, twin};

#[test]
fn options_that_do_not_exist_or_do_not_fit_are_named() {
    for (arguments, words) in [
        (&[][..], &["--listen", "--connect", "--loopback"][..]),
        (&["--conect", "h:1"], &["--conect", "'--connect'", "(--help tells more)"]),
        (&["--connect", "h:1", "--listen", "h:2"], &["--connect", "--listen"]),
        (&["--connect", "localhost"], &["--connect localhost has no port", "localhost:18515"]),
        (&["--connect", "h:0"], &["nobody listens on port 0"]),
        (&["--connect", "h:1", "--payload", "7"], &["--payload 7", "multiple of 8"]),
        (&["--connect", "h:1", "--payload", "x"], &["--payload", "x"]),
        (&["--connect", "h:1", "--count", "0"], &["--count 0", "1 to 10000000"]),
        (&["--connect", "h:1", "--machine", "tpu"], &["tpu", "gpu", "twin", "cpu"]),
        (&["--connect", "h:1", "--machine", "twin", "--memory", "gpu"], &["--memory gpu"]),
        (&["--listen", "h:1", "--machine", "cpu"], &["--machine cpu", "gpu or twin"]),
        (&["--listen", "h:1", "--machine", "twin", "--window", "0"], &["--window 0"]),
        (&["--listen", "h:1", "--mtu", "1500"], &["1500 is no MTU"]),
        (&["--loopback", "--machine", "twin", "--gpu", "3"], &["--gpu 3 would do nothing", "--machine gpu"]),
        (&["--loopback", "--sessions", "4"], &["--sessions 4 would do nothing", "--listen"]),
        (&["--listen", "h:1", "--count", "4"], &["--count 4 would do nothing", "--connect or --loopback"]),
        (&["--connect", "h:1", "--machine", "cpu", "--sessions", "3"], &["--sessions 3 would do nothing"]),
    ] {
        refused(&ECHO, arguments, words);
    }
}

/// Where there is a GPU as well.
#[test]
fn a_machine_without_a_gpu_or_a_toolkit_says_what_it_lacks() {
    let output =
        command(&ECHO, &["--listen", "127.0.0.1:0"]).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("no CUDA driver: ") || said.contains("CUDA_VISIBLE_DEVICES"), "{said}");
    if gpu().is_ok() {
        refused(&ECHO, &["--listen", "127.0.0.1:0", "--gpu", "99"], &["GPU 99"]);
    }
    refused(
        &ECHO,
        &["--listen", "127.0.0.1:0", "--cuda", "/nonexistent"],
        &["doorbell-echo: no CUDA", "without a GPU --machine twin"],
    );
}

/// A client looks for the device first.
#[test]
fn who_asks_on_a_machine_without_a_toolkit_hears_what_asks_without_one() {
    need!(device(), nic, "an RDMA device");
    refused(
        &ECHO,
        &["--connect", "127.0.0.1:1", "--cuda", "/nonexistent"],
        &["--machine twin, or cpu, asks"],
    );
}

#[test]
fn gpu_without_a_compiler_is_one_line() {
    need!(gpu(), gpu, "one CUDA device");
    refused(&ECHO, &["--listen", "127.0.0.1:0", "--cuda", "/nonexistent"], &["libnvrtc", "/nonexistent"]);
    let output =
        command(&ECHO, &["--listen", "127.0.0.1:0"]).env("DOORBELL_CUDA", "/nowhere").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere"), "{output:?}");
}

#[test]
fn addresses_that_cannot_be_used_say_what_to_do() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    let (_service, address) = service(&["--machine", "twin"]);
    refused(&ECHO, &["--listen", &address, "--machine", "twin"], &[&address, "free port"]);
    refused(
        &ECHO,
        &["--listen", "203.0.113.7:0", "--machine", "twin"],
        &["203.0.113.7", "an address of this host"],
    );
    refused(
        &ECHO,
        &["--connect", "127.0.0.1:1", "--machine", "cpu"],
        &["127.0.0.1:1", "service listening there?"],
    );
    refused(&ECHO, &["--connect", &address, "--machine", "cpu", "--nic", "mlx5_77"], &["mlx5_77"]);
}

#[test]
fn a_stranger_costs_a_service_a_line_and_is_no_session() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    let (mut service, address) = service(&["--machine", "twin"]);
    for line in ["GET / HTTP/1.1\r\n\r\n", "{\"protocol\":\"doorbell-connect\",\"version\":0}\n"] {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        // It hangs up on us.
        let mut said = String::new();
        while BufReader::new(&stream).read_line(&mut said).is_ok_and(|bytes| bytes > 0) {}
    }
    let asked = asking(&address, &["--machine", "cpu", "--count", "5"]).end();
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let served = service.end();
    assert_eq!(served.code, Some(0), "{served:?}");
    assert_eq!(served.stderr.matches("; still listening").count(), 2, "{}", served.stderr);
}

#[test]
fn ends_that_do_not_go_together_refuse_each_other_by_what_differs() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    for (service_options, options, words) in [
        (
            &["--payload", "64"][..],
            &["--payload", "128"][..],
            "128 bytes are asked of a service that takes 64",
        ),
        (&["--mtu", "256"], &["--mtu", "512"], "MTUs differ"),
    ] {
        let (mut service, address) = service(&[&["--machine", "twin"], service_options].concat());
        let asked = asking(&address, &[&["--machine", "cpu"], options].concat()).end();
        let served = service.end();
        for ended in [&asked, &served] {
            assert_eq!(ended.code, Some(2), "{asked:?} {served:?}");
            assert!(ended.stderr.contains(words) && ended.stderr.lines().count() == 1, "{ended:?}");
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(&ECHO, &["--help"]).stdout(writer).output().unwrap();
    assert!(output.status.code().is_some_and(|code| code <= 2) && output.stderr.is_empty(), "{output:?}");
}
