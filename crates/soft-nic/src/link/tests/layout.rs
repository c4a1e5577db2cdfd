//! What processes of a fabric share, word by word. A build that lays it out otherwise has to say so by its version.

use mlx5_device::carrier::PathAddress;
use roce::packet::{Aeth, Syndrome};
use roce::{Content, Fragment, Opcode, Position, Psn, Request, ServiceType};

use super::processes::answer;
use crate::link::{VERSION, channel, fabric, record};

#[test]
fn a_new_layout_is_a_new_version() {
    let request = |service, opcode| Request {
        src_qpn: 0x40,
        dst_qpn: 0x2_0041,
        service,
        opcode,
        psn: Psn::new(0x12_3456),
        solicited: true,
        ack_requested: true,
        imm: [1, 2, 3, 4],
        remote_va: 0x1122_3344_5566_7788,
        rkey: 0x99aa_bbcc,
        length: 100,
        swap_add: 5,
        compare: 6,
        qkey: 7,
        fragment: Fragment { offset: 40, length: 60 },
    };
    let aeth = |syndrome| Aeth { syndrome, msn: 0x65_4321 };
    let asked = Request { src_qpn: 0x40, dst_qpn: 0x2_0041, psn: Psn::new(0x12_3456), ..Request::default() };
    let path = PathAddress { slid: 1, dlid: 2, flow_label: 3, sl: 4, grh: true, ..PathAddress::default() };
    let requests = [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud].map(|service| {
        Opcode::ALL.map(|opcode| record::encode_request(&request(service, opcode), record::Form::Inline(60)))
    });
    let replies = [
        Content::Acknowledge(aeth(Syndrome::Ack)),
        Content::Acknowledge(aeth(Syndrome::RnrNak { timer: 9 })),
        Content::ReadResponse { position: Position::Last, aeth: Some(aeth(Syndrome::Ack)) },
        Content::AtomicAcknowledge { aeth: aeth(Syndrome::Ack), old: 8 },
    ]
    .map(|content| record::encode_reply(&answer(&Request { length: 60, ..asked }, content), 60));
    let shared = format!(
        "{:?} {:?} {requests:x?} {replies:x?} {:x?} {}",
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
        (10, 0x8827_c191_f3ec_39ea),
        "raise record::VERSION with the layout, then the sum here: {sum:#x}"
    );
}
