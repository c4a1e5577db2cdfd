//! Captures as tshark reads them: every packet of a real kernel, written as if a NIC had captured it.
//!
//! `crates/roce/tests/data` has what the kernel's packets looked like, and what tshark 4.0 thinks of them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use mlx5_device::faults::{Injection, InjectionKind};
use roce::testing::frame::Frame;
use roce::wire::Gid;
use roce::{Now, ServiceType};
use soft_nic::dma::Host;
use soft_nic::link::capture::pcapng::{BlockKind, first_block};
use soft_nic::link::capture::{Capture, WirePacket};
use soft_nic::testing::{Driver, WorkRequest};

use crate::pcap::{CAPTURES, packets};
use crate::two::{By, joined, sent};

/// Bytes of an enhanced packet block before the frame, and of an Ethernet header.
const BLOCK_HEAD: usize = 28;
const ETHERNET: usize = 14;

fn address(gid: Gid) -> IpAddr {
    gid.ipv4().map_or_else(|| gid.0.into(), IpAddr::from)
}

/// A file with all packets of a kernel's capture, in turns sent and received, a µs apart.
fn captured(name: &str) -> Vec<u8> {
    let (mut capture, mut captured) = Capture::begin("wire", Now(0), 1_700_000_000_000_000_000, 0);
    for (number, bytes) in packets(name).iter().enumerate() {
        let frame = Frame::decode(bytes).expect("the kernel's packets are well-formed");
        let identification = match frame.ip {
            roce::wire::IpHeader::V4(ip) => ip.identification,
            roce::wire::IpHeader::V6(_) => 0,
        };
        let packet = WirePacket {
            source: address(frame.ip.source()),
            source_port: frame.udp.source_port,
            destination: address(frame.ip.destination()),
            identification,
            bytes: &bytes[frame.ip.header_bytes() + 8..frame.ip.header_bytes() + frame.ip.payload_bytes()],
        };
        let now = Now(1000 * number as u64);
        if number % 2 == 0 { capture.sent(now, &packet) } else { capture.received(now, &packet) }
    }
    let mut file = Vec::new();
    captured.take(&mut file);
    captured.append_statistics(&mut file);
    file
}

/// The frames of a file, from the Ethernet header on, and where each begins in it.
fn frames(file: &[u8]) -> Vec<(usize, &[u8])> {
    let (mut frames, mut at) = (Vec::new(), 0);
    while let Some((kind, block)) = first_block(&file[at..]).expect("blocks") {
        if kind == BlockKind::Packet {
            let length = u32::from_le_bytes(block[20..24].try_into().expect("4 bytes")) as usize;
            frames.push((at + BLOCK_HEAD, &block[BLOCK_HEAD..BLOCK_HEAD + length]));
        }
        at += block.len();
    }
    frames
}

#[test]
fn a_captured_packet_is_the_kernels_but_for_its_checksum_and_its_crc_is_right() {
    let mut all = 0;
    for (name, count) in CAPTURES {
        let (file, kernels) = (captured(name), packets(name));
        let frames = frames(&file);
        assert_eq!(frames.len(), count, "{name}");
        for (number, ((_, frame), kernels)) in frames.iter().zip(&kernels).enumerate() {
            let ours = &frame[ETHERNET..];
            let decoded =
                Frame::decode(ours).unwrap_or_else(|error| panic!("{name} {}: {error}", number + 1));
            let mut without = ours.to_vec();
            let checksum = decoded.ip.header_bytes() + 6;
            without[checksum..checksum + 2].fill(0);
            assert!(without == kernels[..ours.len()], "{name} {}:\n{kernels:02x?}\n{ours:02x?}", number + 1);
        }
        all += frames.len();
    }
    assert_eq!(all, 643);
}

/// The program and a file for it to read, removed at the end.
struct Tshark {
    program: PathBuf,
    file: PathBuf,
}

impl Tshark {
    fn find(name: &str) -> Result<Tshark, String> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let mut programs = std::env::split_paths(&folders).map(|folder| folder.join("tshark"));
        let program =
            programs.find(|program| program.is_file()).ok_or("tshark not in PATH (package tshark)")?;
        let file = std::env::temp_dir().join(format!("softnic-{}-{name}.pcapng", std::process::id()));
        Ok(Tshark { program, file })
    }

    /// What it prints of this file.
    fn prints(&self, bytes: &[u8], arguments: &[&str]) -> String {
        std::fs::write(&self.file, bytes).expect("a file in the folder for such");
        let output = Command::new(&self.program)
            .arg("-r")
            .arg(&self.file)
            // It takes three short SENDs of the kernel's captures for its own.
            .args(["--disable-protocol", "rpcordma"])
            .args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"])
            .args(arguments)
            .output()
            .expect("tshark starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tshark: {said}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// A line for each packet in which it finds something wrong.
    fn complaints(&self, bytes: &[u8]) -> String {
        let wrong = "_ws.malformed || _ws.short || _ws.expert.severity == error || ip.checksum.status == Bad \
                     || udp.checksum.status == Bad";
        self.prints(bytes, &["-Y", wrong, "-T", "fields", "-e", "frame.number", "-e", "_ws.expert.message"])
    }
}

impl Drop for Tshark {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

#[test]
fn tshark_reads_every_packet_and_finds_nothing_wrong() {
    let tshark = measure::need!(Tshark::find("whole"), tshark, "tshark");
    let mut all = 0;
    for (name, count) in CAPTURES {
        let file = captured(name);
        assert_eq!(tshark.complaints(&file), "", "{name}");
        let fields = [
            "frame.time_epoch",
            "frame.packet_flags_direction",
            "infiniband.bth.opcode",
            "infiniband.bth.psn",
            // As stored; that it is right was seen above, which tshark does not look for.
            "infiniband.invariant.crc",
        ];
        let arguments: Vec<&str> =
            ["-T", "fields"].into_iter().chain(fields.iter().flat_map(|f| ["-e", f])).collect();
        let text = tshark.prints(&file, &arguments);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), count, "{name}");
        for (number, (line, (_, frame))) in lines.iter().zip(frames(&file)).enumerate() {
            let bth = Frame::decode(&frame[ETHERNET..]).expect("checked above").packet.bth;
            let icrc = frame.last_chunk().map(|stored| u32::from_be_bytes(*stored)).expect("4 bytes");
            let direction = if number % 2 == 0 { "0x00000002" } else { "0x00000001" };
            let wanted = format!(
                "1700000000.{:09}\t{direction}\t{}\t{}\t{icrc:#010x}",
                number * 1000,
                bth.opcode.to_u8(),
                bth.psn.value()
            );
            assert_eq!(*line, wanted, "{name} {}", number + 1);
        }
        all += lines.len();
    }
    assert_eq!(all, 643);
}

#[test]
fn tshark_complains_when_a_length_or_a_checksum_is_wrong() {
    let tshark = measure::need!(Tshark::find("wrong"), tshark, "tshark");
    let file = captured("rxe-rc");
    let (first, _) = frames(&file)[0];
    // Offsets from the Ethernet header: the low bytes of the IPv4 total length, the IPv4 checksum, the UDP
    // length and the UDP checksum; and one that ends the packet inside its BTH.
    for (what, at, byte) in [
        ("total length", 17, 0x35),
        ("header checksum", 25, 0x00),
        ("UDP length", 39, 0x40),
        ("UDP checksum", 41, 0x00),
        ("no room for a BTH", 39, 0x0c),
    ] {
        let mut wrong = file.clone();
        assert_ne!(wrong[first + at], byte, "{what}");
        wrong[first + at] = byte;
        assert!(tshark.complaints(&wrong).starts_with('1'), "{what}: {:?}", tshark.complaints(&wrong));
    }
}

#[test]
fn two_nics_capture_the_same_packets_and_tshark_reads_them() {
    let mut two = joined("captured", ServiceType::Rc, By::Wire);
    let capture = |driver: &mut Driver<Host>| {
        let now = Now(driver.now);
        driver.nic.link().begin_capture(now, 1_700_000_000_000_000_000, 0)
    };
    let (mut left, mut right) =
        (capture(&mut two.left).expect("a wire"), capture(&mut two.right).expect("a wire"));
    assert!(capture(&mut two.left).is_err_and(|why| why.contains("another")), "one at a time");
    let qpn = two.left.qp(two.a).qpn;
    two.left.nic.inject(Injection { qpn, kind: InjectionKind::CorruptCrc }).expect("a QP on the wire");
    let write = WorkRequest::write(&two.from, 0, 5000, &two.to, 0);
    let read = WorkRequest::read(&two.from, 0, 3000, &two.to, 0);
    two.left.lay(two.a, &write).lay(two.a, &read).ring_doorbell(two.a);
    two.pass(400_000_000);
    assert_eq!([(); 2].map(|()| sent(&mut two.left, two.a)), [Some(Ok(())); 2]);
    let [left, right] = [&mut left, &mut right].map(|captured| {
        let mut file = Vec::new();
        assert!(!captured.take(&mut file), "it goes on");
        file
    });
    // What one sent the other received, and the other way round; each in its own order of sending.
    let directed = |file: &[u8], outbound: bool| {
        let is_it = |at: usize, frame: &[u8]| {
            let flags = at + frame.len().next_multiple_of(4) + 4;
            (file[flags] == 2) == outbound
        };
        let frames = frames(file).into_iter().filter(|(at, frame)| is_it(*at, frame));
        frames.map(|(_, frame)| frame.to_vec()).collect::<Vec<_>>()
    };
    let to_the_right = directed(&left, true);
    assert!(to_the_right.len() >= 6 && !directed(&left, false).is_empty());
    // The first packet's CRC was corrupted: what was its identification, nobody can tell from it.
    assert_eq!(to_the_right[1..], directed(&right, false)[1..]);
    assert_eq!(directed(&right, true), directed(&left, false));
    let wrong = frames(&left).iter().filter(|(_, frame)| Frame::decode(&frame[ETHERNET..]).is_err()).count();
    assert_eq!(wrong, 1, "the corrupted one, everything else is whole");
    // And both end when the NIC says so.
    assert!(two.left.nic.link().end_capture().is_some());
    let tshark = measure::need!(Tshark::find("nics"), tshark, "tshark");
    for file in [left, right] {
        assert_eq!(tshark.complaints(&file), "");
    }
}
