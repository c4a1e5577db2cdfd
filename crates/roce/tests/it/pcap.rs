//! Reader of classic libpcap files: little-endian, microseconds, Ethernet. For tests: panics on bad input.

use std::path::PathBuf;

/// Captures with the number of packets in each, as the data's README lists them.
pub const CAPTURES: [(&str, usize); 7] = [
    ("rxe-rc", 85),
    ("rxe-rc-ipv6", 85),
    ("rxe-rc-mtu4096", 77),
    ("rxe-rc-loss", 209),
    ("rxe-cm", 126),
    ("rxe-ud-uc", 24),
    ("rxe-userpeer", 37),
];

/// Bytes of an Ethernet header without tags.
const ETHERNET_BYTES: usize = 14;

/// A file of the data's folder, from this crate or one beside it.
pub fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "roce", "tests", "data", name].iter().collect()
}

/// The text of a file of the data's folder.
pub fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All packets of `name.pcap`, in order, each from its IP header on.
pub fn packets(name: &str) -> Vec<Vec<u8>> {
    timed_packets(name).into_iter().map(|(_, bytes)| bytes).collect()
}

/// The same with the time of each, in ns since the epoch.
pub fn timed_packets(name: &str) -> Vec<(u64, Vec<u8>)> {
    let file = format!("{name}.pcap");
    let bytes = std::fs::read(path(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    assert_eq!(word(0), 0xa1b2_c3d4, "{file}: no little-endian pcap with microseconds");
    assert_eq!(word(20), 1, "{file}: not Ethernet");
    let (mut packets, mut at) = (Vec::new(), 24);
    while at < bytes.len() {
        let (seconds, microseconds) = (u64::from(word(at)), u64::from(word(at + 4)));
        let (captured, length) = (word(at + 8), word(at + 12));
        assert_eq!(captured, length, "{file}: packet {} was cut", packets.len() + 1);
        at += 16;
        let frame = &bytes[at..at + captured as usize];
        let ether_type = u16::from_be_bytes([frame[12], frame[13]]);
        assert!(matches!(ether_type, 0x0800 | 0x86dd), "{file}: Ethernet type {ether_type:#06x}");
        packets.push((seconds * 1_000_000_000 + microseconds * 1000, frame[ETHERNET_BYTES..].to_vec()));
        at += captured as usize;
    }
    packets
}
