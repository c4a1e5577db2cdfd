//! The connection manager's datagrams in `rxe-cm.pcap`: as tshark reads them, and as later traffic says.

use roce::testing::frame::{Frame, port_of_flow_label};
use roce::wire::Gid;
use roce::wire::cm::{CmMad, Dreq, IpCm, Message, Path};
use roce::wire::mad::{QP1, QP1_QKEY};

use crate::pcap::{packets, text};

/// The part of tshark's text that stands for packet `number`.
fn block(text: &str, number: usize) -> &str {
    let start = text.find(&format!("Frame {number}: ")).unwrap_or_else(|| panic!("no frame {number}"));
    let rest = &text[start..];
    &rest[..rest[1..].find("\nFrame ").map_or(rest.len(), |end| end + 1)]
}

fn ipv4(gid: Gid) -> String {
    let [a, b, c, d] = gid.ipv4().unwrap();
    format!("{a}.{b}.{c}.{d}")
}

/// Without flow label and rate, which tshark 4.0 reads a byte early: the traffic's source port tells it.
fn path_lines(name: &str, path: &Path) -> Vec<String> {
    let gid = |gid: Gid| match gid.0 {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => "0".repeat(32),
        _ => ipv4(gid),
    };
    vec![
        format!("{name} Local Port LID: {}", path.local_lid),
        format!("{name} Remote Port LID: {}", path.remote_lid),
        format!("{name} Local Port GID: {}", gid(path.local_gid)),
        format!("{name} Remote Port GID: {}", gid(path.remote_gid)),
        format!("{name} Traffic Class: 0x{:02x}", path.traffic_class),
        format!("{name} Hop Limit: 0x{:02x}", path.hop_limit),
        format!("{name} SL: 0x{:x}", path.service_level),
        format!("{name} Subnet Local: 0x{:x}", u8::from(path.subnet_local)),
        format!("{name} Local ACK Timeout: 0x{:02x}", path.ack_timeout),
    ]
}

/// What tshark's lines say of this message, in their order. It knows no SIDR messages.
fn lines(mad: &CmMad<'_>) -> Vec<String> {
    let id = |side: &str, id: u32| format!("{side} Communication ID: 0x{id:08x}");
    let ids = |ids: &roce::wire::cm::Ids| vec![id("Local", ids.local), id("Remote", ids.remote)];
    let mut lines = vec![
        format!("Transaction ID: 0x{:016x}", mad.transaction),
        format!("Attribute ID: 0x{:04x}", mad.message.attribute()),
    ];
    match &mad.message {
        Message::Req(req) => {
            // Service ids of IP (Annex A11): 1, the protocol, the port.
            assert_eq!(req.service >> 24, 1);
            let (protocol, port) = ((req.service >> 16) as u8, req.service as u16);
            lines.extend([
                id("Local", req.local_id),
                format!("Protocol: 0x{protocol:02x}"),
                format!("Destination Port: 0x{port:04x}"),
                format!("Local CA GUID: 0x{:016x}", req.ca_guid),
                format!("Local Q_Key: 0x{:08x}", req.qkey),
                format!("Local QPN: 0x{:06x}", req.qpn),
                format!("Responder Resources: 0x{:02x}", req.responder_resources),
                format!("Initiator Depth: 0x{:02x}", req.initiator_depth),
                format!("Remote CM Response Timeout: 0x{:02x}", req.remote_response_timeout),
                format!("Transport Service Type: 0x{:x}", req.transport),
                format!("End-to-End Flow Control: 0x{:x}", u8::from(req.flow_control)),
                format!("Starting PSN: 0x{:06x}", req.starting_psn),
                format!("Local CM Response Timeout: 0x{:02x}", req.local_response_timeout),
                format!("Retry Count: 0x{:x}", req.retry),
                format!("Partition Key: 0x{:04x}", req.pkey),
                format!("Path Packet Payload MTU: 0x{:x}", req.path_mtu),
                format!("RDC Exists: 0x{:x}", u8::from(req.rdc_exists)),
                format!("RNR Retry Count: 0x{:x}", req.rnr_retry),
                format!("Max CM Retries: 0x{:x}", req.max_cm_retries),
                format!("SRQ: 0x{:x}", u8::from(req.srq)),
                format!("Extended Transport: 0x{:x}", req.extended_transport),
            ]);
            lines.extend(path_lines("Primary", &req.primary));
            lines.extend(path_lines("Alternate", &req.alternate));
            let ip = IpCm::parse(mad.private).unwrap();
            lines.extend([
                format!("IP CM Major Version: 0x{:x}", ip.version >> 4),
                format!("IP CM Minor Version: 0x{:x}", ip.version & 0xf),
                format!("IP CM IP Version: 0x{:x}", ip.ip_version),
                format!("IP CM Source Port: 0x{:04x}", ip.source_port),
                format!("IP CM Source IP: {}", ipv4(ip.source)),
                format!("IP CM Destination IP: {}", ipv4(ip.destination)),
            ]);
        }
        Message::Rep(rep) => {
            lines.extend(ids(&rep.ids));
            lines.extend([
                format!("Local Q_Key: 0x{:08x}", rep.qkey),
                format!("Local QPN: 0x{:06x}", rep.qpn),
                format!("Starting PSN: 0x{:06x}", rep.starting_psn),
                format!("Responder Resources: 0x{:02x}", rep.responder_resources),
                format!("Initiator Depth: 0x{:02x}", rep.initiator_depth),
                format!("Target ACK Delay: 0x{:02x}", rep.target_ack_delay),
                format!("Failover Accepted: 0x{:x}", rep.failover_accepted),
                format!("End-To-End Flow Control: 0x{:x}", u8::from(rep.flow_control)),
                format!("RNR Retry Count: 0x{:x}", rep.rnr_retry),
                format!("SRQ: 0x{:x}", u8::from(rep.srq)),
                format!("Local CA GUID: 0x{:016x}", rep.ca_guid),
            ]);
        }
        Message::Rtu(both) | Message::Drep(both) => lines.extend(ids(both)),
        Message::Dreq(Dreq { ids: both, qpn }) => {
            lines.extend(ids(both));
            lines.push(format!("Remote QPN/EECN: 0x{qpn:06x}"));
        }
        Message::Rej(rej) => {
            lines.extend(ids(&rej.ids));
            lines.extend([
                format!("Message REJected: 0x{:x}", rej.message),
                format!("Reject Info Length: 0x{:02x}", rej.info_bytes),
                format!("Reason: 0x{:04x}", rej.reason),
            ]);
        }
        Message::SidrReq(_) | Message::SidrRep(_) | Message::Mra(_) => {}
    }
    lines
}

/// All datagrams to QP1: packet number and payload.
fn datagrams() -> Vec<(usize, Vec<u8>)> {
    let mut found = Vec::new();
    for (index, bytes) in packets("rxe-cm").iter().enumerate() {
        let packet = Frame::decode(bytes).unwrap().packet;
        if packet.bth.dst_qpn == QP1 {
            let deth = packet.extended.deth().unwrap();
            assert_eq!((deth.src_qpn, deth.qkey), (QP1, QP1_QKEY), "packet {}", index + 1);
            found.push((index + 1, packet.payload.to_vec()));
        }
    }
    found
}

#[test]
fn every_datagram_is_read_as_tshark_read_it_and_written_byte_for_byte() {
    let (text, mut compared, mut kinds) = (text("rxe-cm.txt"), 0, Vec::new());
    let datagrams = datagrams();
    for (number, bytes) in &datagrams {
        let mad = CmMad::decode(bytes).unwrap();
        assert_eq!(mad.encode().unwrap()[..], bytes[..], "packet {number}");
        let mut rest = block(&text, *number);
        for line in lines(&mad) {
            let Some(at) = rest.find(&format!("{line}\n")) else {
                panic!("packet {number}: not in tshark's text from here on: {line}\n{rest}");
            };
            rest = &rest[at + line.len()..];
            compared += 1;
        }
        kinds.push(mad.message.attribute());
    }
    let count = |attribute: u16| kinds.iter().filter(|kind| **kind == attribute).count();
    // REQ, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP.
    assert_eq!([0x10, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18].map(count), [4, 1, 3, 3, 3, 3, 1, 1]);
    assert_eq!((datagrams.len(), compared), (19, 4 * 47 + 7 + 3 * 15 + 6 * 4 + 3 * 5 + 2 * 2));
}

#[test]
fn traffic_goes_to_the_queue_pairs_that_the_datagrams_name() {
    let frames = packets("rxe-cm");
    // Each side names the PSN that it expects, so the other's first request has it.
    let (mut asked, mut connections, mut both_ways) = (None, 0, 0);
    for (number, bytes) in datagrams() {
        match CmMad::decode(&bytes).unwrap().message {
            Message::Req(req) => asked = Some(req),
            Message::Rep(rep) => {
                let req = asked.take().unwrap();
                assert_eq!(rep.ids.remote, req.local_id, "packet {number}");
                // The first request to this QP from there on.
                let first = |to: (u32, bool)| {
                    frames[number..].iter().map(|bytes| Frame::decode(bytes).unwrap()).find(|frame| {
                        let bth = frame.packet.bth;
                        let from_b = frame.ip.source() == Gid::from_ipv4([10, 9, 0, 2]);
                        // Both ends have the same QPN.
                        bth.dst_qpn == to.0 && from_b == to.1 && !bth.opcode.kind().operation().is_response()
                    })
                };
                let (by_b, by_a) = (first((rep.qpn, true)).unwrap(), first((req.qpn, false)));
                assert_eq!(by_b.packet.bth.psn.value(), rep.starting_psn, "packet {number}");
                assert_eq!(
                    by_b.udp.source_port,
                    port_of_flow_label(req.primary.flow_label),
                    "packet {number}"
                );
                if let Some(by_a) = by_a {
                    assert_eq!(by_a.packet.bth.psn.value(), req.starting_psn, "packet {number}");
                    assert_eq!(by_a.udp.source_port, by_b.udp.source_port, "packet {number}");
                    both_ways += 1;
                }
                connections += 1;
            }
            Message::SidrRep(rep) => {
                let datagram = Frame::decode(&frames[number]).unwrap().packet;
                assert_eq!(datagram.bth.dst_qpn, rep.qpn);
                assert_eq!(datagram.extended.deth().unwrap().qkey, rep.qkey);
            }
            _ => {}
        }
    }
    assert_eq!((connections, both_ways), (3, 2));
}
