//! What processes of a fabric share, word by word. A build with another layout must have another version.

use mlx5_device::carrier::PathAddress;
use roce::packet::{Aeth, Deth, Reth, Syndrome};
use roce::{Content, Fragment, NakCode, Opcode, Packet, Position, Psn, ServiceType};

use crate::link::{VERSION, channel, fabric, record};

#[test]
fn a_new_layout_is_a_new_version() {
    let whole = Packet {
        dst_qpn: 0x2_0041,
        psn: Psn::new(0x12_3456),
        solicited: true,
        ack_requested: true,
        deth: Deth { qkey: 7, src_qpn: 0x40 },
        ..Packet::default()
    };
    let reth = Reth { va: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, dma_bytes: 100 };
    let aeth = |syndrome| Aeth { syndrome, msn: 0x65_4321 };
    let answers = [
        Content::Acknowledge(aeth(Syndrome::Ack)),
        Content::Acknowledge(aeth(Syndrome::RnrNak { timer: 9 })),
        Content::Acknowledge(aeth(Syndrome::Nak(NakCode::RemoteAccess))),
        Content::ReadResponse { position: Position::Last, aeth: Some(aeth(Syndrome::Ack)) },
        Content::AtomicAcknowledge { aeth: aeth(Syndrome::Ack), old: 8 },
    ];
    let requests = Opcode::ALL.map(|opcode| Content::request(opcode, [1, 2, 3, 4], reth, [5, 6]));
    let path = PathAddress { slid: 1, dlid: 2, flow_label: 3, sl: 4, grh: true, ..PathAddress::default() };
    let records: Vec<_> = [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud]
        .into_iter()
        .flat_map(|service| {
            let all = requests.into_iter().chain(answers);
            all.map(move |content| record::encode(&Packet { service, content, ..whole }, 0))
        })
        .chain([record::encode(&Packet { payload: Fragment { offset: 40, length: 60 }, ..whole }, 59)])
        .collect();
    let shared = format!(
        "{:?} {:?} {records:x?} {:x?} {}",
        fabric::LAYOUT,
        channel::LAYOUT,
        record::encode_path(&path),
        record::MAX_RECORD
    );
    // 64-bit FNV-1a.
    let sum = shared
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    assert_eq!(
        (VERSION, sum),
        (14, 0xd11e_ba57_05aa_450b),
        "raise record::VERSION with the layout, then the sum here: {sum:#x}"
    );
}
