//! What processes of a fabric share, word by word. A build that lays it out otherwise has to say so by its version.

use mlx5_device::carrier::PathAddress;
use roce::{Fragment, Opcode, Psn, Reply, ReplyKind, Request, ServiceType};

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
    let reply =
        |kind| Reply { src_qpn: 0x2_0041, dst_qpn: 0x40, psn: Psn::new(0x12_3456), msn: 0x65_4321, kind };
    let path = PathAddress { slid: 1, dlid: 2, flow_label: 3, sl: 4, grh: true, ..PathAddress::default() };
    let requests = [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud].map(|service| {
        Opcode::ALL.map(|opcode| record::encode_request(&request(service, opcode), record::Form::Inline(60)))
    });
    let replies = [
        ReplyKind::Ack,
        ReplyKind::RnrNak { timer: 9 },
        ReplyKind::ReadResponse,
        ReplyKind::AtomicResponse { old: 8 },
    ]
    .map(|kind| record::encode_reply(&reply(kind), 40, 60, true));
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
        (9, 0xf3de_d70f_1cf9_3eb5),
        "raise record::VERSION with the layout, then the sum here: {sum:#x}"
    );
}
