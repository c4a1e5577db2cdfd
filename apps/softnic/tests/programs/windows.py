"""Memory windows through pyverbs, as the distribution ships it: bound, used by the peer, closed in every way.

Two RC queue pairs of one process are joined to each other; the far one opens windows to its memory. The last line printed
says, as JSON, how many requests of each kind were posted, so that the caller can compare it with the NIC's own counters.
"""
import json
import sys

import pyverbs.device
import pyverbs.enums as e
from pyverbs.cq import CQ
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from life_cycle import PORT, completion, connect, expect

RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
SIGNALLED = e.IBV_SEND_SIGNALED
LENGTH = 256
posted = {'umr': 0, 'write': 0, 'send_inval': 0}


class Ends:
    """Two joined queue pairs, and the memory of each."""

    def __init__(self, context, gid_index):
        self.pd = PD(context)
        self.cqs = [CQ(context, 16) for _ in range(2)]
        self.mrs = [MR(self.pd, LENGTH, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND) for _ in range(2)]
        capacity = QPCap(max_send_wr=16, max_recv_wr=16)
        make = lambda cq: QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=capacity))
        self.qps = [make(cq) for cq in self.cqs]
        port = context.query_port(PORT)
        for here, there in ((0, 1), (1, 0)):
            connect(self.qps[here], self.qps[there].qp_num, port, gid_index, context)

    def bind(self, window, kind, length=LENGTH):
        """Binds on the far end; returns the key."""
        info = MWBindInfo(self.mrs[1], self.mrs[1].buf, length, RIGHTS if length else 0)
        if kind == e.IBV_MW_TYPE_1:
            self.qps[1].bind_mw(window, MWBind(info, SIGNALLED))
            key = window.rkey
        else:
            request = SendWR(opcode=e.IBV_WR_BIND_MW, num_sge=0, send_flags=SIGNALLED)
            request.set_bind_wr(window, info)
            self.qps[1].post_send(request)
            key = request.rkey
        posted['umr'] += 1
        expect(completion(self.cqs[1]), e.IBV_WC_BIND_MW)
        return key

    def write(self, key, byte, status=e.IBV_WC_SUCCESS):
        """WRITEs through a window, and looks at the memory behind it."""
        self.mrs[0].write(byte * LENGTH, LENGTH)
        before = self.mrs[1].read(LENGTH, 0)
        sge = SGE(self.mrs[0].buf, LENGTH, self.mrs[0].lkey)
        request = SendWR(num_sge=1, sg=[sge], opcode=e.IBV_WR_RDMA_WRITE, send_flags=SIGNALLED)
        request.set_wr_rdma(key, self.mrs[1].buf)
        self.qps[0].post_send(request)
        posted['write'] += 1
        expect(completion(self.cqs[0]), e.IBV_WC_RDMA_WRITE, status)
        wanted = byte * LENGTH if status == e.IBV_WC_SUCCESS else before
        assert self.mrs[1].read(LENGTH, 0) in (wanted, wanted.encode() if isinstance(wanted, str) else wanted)

    def close(self, way, window, key):
        """Closes a window."""
        if way == 'unbind':
            self.bind(window, e.IBV_MW_TYPE_1, 0)
        elif way == 'local':
            request = SendWR(opcode=e.IBV_WR_LOCAL_INV, num_sge=0, send_flags=SIGNALLED)
            request.imm_data = key
            self.qps[1].post_send(request)
            posted['umr'] += 1
            expect(completion(self.cqs[1]), e.IBV_WC_LOCAL_INV)
        elif way == 'remote':
            receive = SGE(self.mrs[1].buf, LENGTH, self.mrs[1].lkey)
            self.qps[1].post_recv(RecvWR(num_sge=1, sg=[receive]))
            sge = SGE(self.mrs[0].buf, 8, self.mrs[0].lkey)
            request = SendWR(num_sge=1, sg=[sge], opcode=e.IBV_WR_SEND_WITH_INV, send_flags=SIGNALLED)
            request.imm_data = key
            self.qps[0].post_send(request)
            posted['send_inval'] += 1
            expect(completion(self.cqs[0]), e.IBV_WC_SEND)
            found = completion(self.cqs[1])
            expect(found, e.IBV_WC_RECV)
            assert found.wc_flags & e.IBV_WC_WITH_INV, found
        else:
            window.close()


def main(gid_index):
    """Every way to close, each on queue pairs of its own: what comes through a closed window ends them."""
    context = pyverbs.device.Context(name='mlx5_0')
    limits = context.query_device()
    assert limits.max_mw > 0 and limits.device_cap_flags & e.IBV_DEVICE_MEM_WINDOW
    assert limits.device_cap_flags & e.IBV_DEVICE_MEM_WINDOW_TYPE_2B
    ways = [(e.IBV_MW_TYPE_1, 'unbind'), (e.IBV_MW_TYPE_1, 'dealloc'), (e.IBV_MW_TYPE_2, 'local'),
            (e.IBV_MW_TYPE_2, 'remote'), (e.IBV_MW_TYPE_2, 'dealloc')]
    for kind, way in ways:
        ends = Ends(context, gid_index)
        window = MW(ends.pd, kind)
        key = ends.bind(window, kind)
        ends.write(key, 'a')
        ends.close(way, window, key)
        ends.write(key, 'b', e.IBV_WC_REM_ACCESS_ERR)
    print(json.dumps(dict(posted, refused=len(ways))))


main(int(sys.argv[1]))
