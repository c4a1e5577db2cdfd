"""Verbs life cycle through pyverbs, as the distribution ships it: query, create, connect, move data, fail, destroy.

Two RC queue pairs of one process are joined to each other. The last line printed says, as JSON, how many messages of
each kind were posted, so that the caller can compare it with the NIC's own counters.
"""
import json
import sys

import pyverbs.device
import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 1
ALL_ACCESS = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
              | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC)
posted = {'send': 0, 'write': 0, 'read': 0, 'fetch_add': 0, 'compare_swap': 0, 'refused': 0}


def connect(qp, peer_qpn, port, gid_index, context):
    """Moves one queue pair through INIT and RTR to RTS."""
    attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=PORT)
    attr.qp_access_flags = ALL_ACCESS
    attr.pkey_index = 0
    qp.to_init(attr)
    if port.link_layer == e.IBV_LINK_LAYER_ETHERNET:
        route = GlobalRoute(dgid=context.query_gid(PORT, gid_index), sgid_index=gid_index)
        address = AHAttr(port_num=PORT, is_global=1, gr=route)
    else:
        address = AHAttr(port_num=PORT, dlid=port.lid)
    attr = QPAttr(qp_state=e.IBV_QPS_RTR, port_num=PORT)
    attr.path_mtu = port.active_mtu
    attr.dest_qp_num = peer_qpn
    attr.rq_psn = 100
    attr.sq_psn = 100
    attr.max_dest_rd_atomic = 4
    attr.max_rd_atomic = 4
    attr.min_rnr_timer = 12
    attr.timeout = 18
    attr.retry_cnt = 7
    attr.rnr_retry = 7
    attr.ah_attr = address
    qp.to_rts(attr)


def completion(cq):
    """Polls until one completion is there. The caller's deadline ends a wait that never ends."""
    while True:
        count, found = cq.poll()
        if count:
            return found[0]


def expect(found, opcode, status=e.IBV_WC_SUCCESS):
    """Fails unless the completion is the wanted one."""
    assert found.status == status, f'status {found.status}, wanted {status}'
    if status == e.IBV_WC_SUCCESS:
        assert found.opcode == opcode, f'opcode {found.opcode}, wanted {opcode}'


def post(qp, opcode, sge, count, **remote):
    """Posts one signalled request and counts it."""
    request = SendWR(wr_id=7, num_sge=1, sg=[sge], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
    if 'compare' in remote or 'add' in remote:
        request.set_wr_atomic(remote['rkey'], remote['addr'], remote.get('add', remote.get('compare')),
                              remote.get('swap', 0))
    elif remote:
        request.set_wr_rdma(remote['rkey'], remote['addr'])
    qp.post_send(request)
    posted[count] += 1


def main(gid_index):
    """The life cycle; raises where something is not as verbs promise."""
    names = [device.name.decode() for device in pyverbs.device.get_device_list()]
    assert 'mlx5_0' in names, names
    context = pyverbs.device.Context(name='mlx5_0')
    limits = context.query_device()
    assert limits.vendor_id == 0x2c9 and limits.max_qp > 0
    port = context.query_port(PORT)
    assert port.state == e.IBV_PORT_ACTIVE
    pd = PD(context)
    local = MR(pd, 4096, ALL_ACCESS)
    remote = MR(pd, 4096, ALL_ACCESS)
    channel = CompChannel(context)
    send_cq = CQ(context, 16)
    recv_cq = CQ(context, 16, channel=channel)
    cap = QPCap(max_send_wr=8, max_recv_wr=8, max_send_sge=1, max_recv_sge=1, max_inline_data=0)
    left, right = (QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=send_cq, rcq=recv_cq, cap=cap)) for _ in range(2))
    connect(left, right.qp_num, port, gid_index, context)
    connect(right, left.qp_num, port, gid_index, context)
    attr, _ = left.query(e.IBV_QP_STATE)
    assert attr.qp_state == e.IBV_QPS_RTS, attr.qp_state

    # SEND into a posted receive, announced by the completion channel.
    recv_cq.req_notify()
    right.post_recv(RecvWR(wr_id=9, num_sge=1, sg=[SGE(remote.buf, 64, remote.lkey)]))
    local.write('through the software NIC'.ljust(64), 64)
    post(left, e.IBV_WR_SEND, SGE(local.buf, 64, local.lkey), 'send')
    expect(completion(send_cq), e.IBV_WC_SEND)
    channel.get_cq_event(recv_cq)
    recv_cq.ack_events(1)
    received = completion(recv_cq)
    expect(received, e.IBV_WC_RECV)
    assert received.byte_len == 64 and received.wr_id == 9
    assert remote.read(24, 0) == b'through the software NIC'

    # WRITE there, READ back.
    local.write('w' * 1000, 1000)
    post(left, e.IBV_WR_RDMA_WRITE, SGE(local.buf, 1000, local.lkey), 'write', rkey=remote.rkey, addr=remote.buf + 1000)
    expect(completion(send_cq), e.IBV_WC_RDMA_WRITE)
    assert remote.read(1000, 1000) == b'w' * 1000
    post(left, e.IBV_WR_RDMA_READ, SGE(local.buf + 2000, 24, local.lkey), 'read', rkey=remote.rkey, addr=remote.buf)
    expect(completion(send_cq), e.IBV_WC_RDMA_READ)
    assert local.read(24, 2000) == b'through the software NIC'

    # Atomics on one word: 0 + 5, then 5 -> 77.
    remote.write('\0' * 8, 8)
    word = SGE(local.buf + 3000, 8, local.lkey)
    post(left, e.IBV_WR_ATOMIC_FETCH_AND_ADD, word, 'fetch_add', rkey=remote.rkey, addr=remote.buf, add=5)
    expect(completion(send_cq), e.IBV_WC_FETCH_ADD)
    assert local.read(8, 3000) == (0).to_bytes(8, sys.byteorder)
    post(left, e.IBV_WR_ATOMIC_CMP_AND_SWP, word, 'compare_swap', rkey=remote.rkey, addr=remote.buf, compare=5, swap=77)
    expect(completion(send_cq), e.IBV_WC_COMP_SWAP)
    assert local.read(8, 3000) == (5).to_bytes(8, sys.byteorder)
    assert remote.read(8, 0) == (77).to_bytes(8, sys.byteorder)

    # A wrong key: a remote access error here, and the queue pair is in error afterwards.
    post(left, e.IBV_WR_RDMA_WRITE, SGE(local.buf, 8, local.lkey), 'refused', rkey=remote.rkey ^ 0xff00, addr=remote.buf)
    expect(completion(send_cq), None, e.IBV_WC_REM_ACCESS_ERR)
    attr, _ = left.query(e.IBV_QP_STATE)
    assert attr.qp_state == e.IBV_QPS_ERR, attr.qp_state

    # Reset brings it back to life as a queue pair without a peer.
    left.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    attr, _ = left.query(e.IBV_QP_STATE)
    assert attr.qp_state == e.IBV_QPS_RESET, attr.qp_state
    try:
        context.query_gid(PORT, 100000)
    except PyverbsRDMAError:
        pass
    else:
        raise AssertionError('a GID index past the table was answered')

    for thing in (left, right, send_cq, recv_cq, channel, local, remote, pd, context):
        thing.close()
    print(json.dumps(posted))


if __name__ == '__main__':
    main(int(sys.argv[1]))
