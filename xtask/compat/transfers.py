"""Two processes that move 4 MiB through a transfer library's Python wheel, and compare every byte.

`transfers.py nixl|mooncake serve PORT` registers a pattern and tells its peer where it lies, over TCP. `... ask PORT` READs it,
compares it, and WRITEs another one, which the server compares. `cargo xtask compat` starts both on the NIC.
"""

import ctypes
import pickle
import random
import socket
import sys
import time

BYTES = 4 << 20
DEADLINE_S = 60


class Nixl:
    """NIXL's agent with its UCX plug-in."""

    def __init__(self, name, buffer):
        from nixl_cu12 import nixl_agent, nixl_agent_config

        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self.place = [(ctypes.addressof(buffer), BYTES, 0, "")]
        self.agent.register_memory(self.place, "DRAM")
        self.mine = self.agent.get_xfer_descs([entry[:3] for entry in self.place], "DRAM")

    def card(self):
        """What a peer needs to reach the buffer."""
        return self.agent.get_agent_metadata(), self.agent.get_serialized_descs(self.mine)

    def move(self, operation, card):
        metadata, descriptors = card
        peer = self.agent.add_remote_agent(metadata)
        theirs = self.agent.deserialize_descs(descriptors)
        handle = self.agent.initialize_xfer(operation, self.mine, theirs, peer, b"done")
        state = self.agent.transfer(handle)
        until = time.monotonic() + DEADLINE_S
        while state == "PROC" and time.monotonic() < until:
            state = self.agent.check_xfer_state(handle)
        assert state == "DONE", f"{operation}: {state}"
        self.agent.release_xfer_handle(handle)


class Mooncake:
    """Mooncake's transfer engine, without a metadata server."""

    def __init__(self, _name, buffer):
        from mooncake.engine import TransferEngine

        self.engine, self.address = TransferEngine(), ctypes.addressof(buffer)
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "mlx5_0") == 0, "initialize"
        assert self.engine.register_memory(self.address, BYTES) == 0, "register_memory"

    def card(self):
        return f"127.0.0.1:{self.engine.get_rpc_port()}", self.address

    def move(self, operation, card):
        session, address = card
        calls = {"READ": self.engine.transfer_sync_read, "WRITE": self.engine.transfer_sync_write}
        result = calls[operation](session, self.address, address, BYTES)
        assert result == 0, f"{operation}: {result}"


def pattern(seed):
    return random.Random(seed).randbytes(BYTES)


def compare(buffer, seed, what):
    assert buffer.raw == pattern(seed), f"the bytes {what} are not those that were sent"
    print(f"{BYTES} bytes {what} compared", flush=True)


def serve(library, port):
    buffer = ctypes.create_string_buffer(pattern(1), BYTES)
    end = library("server", buffer)
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(DEADLINE_S)
        peer, _ = listener.accept()
        peer.settimeout(DEADLINE_S)
        with peer, peer.makefile("rwb") as stream:
            pickle.dump(end.card(), stream)
            stream.flush()
            assert pickle.load(stream) == "written"
            compare(buffer, 2, "written")
            pickle.dump("compared", stream)
            stream.flush()
            stream.read()


def ask(library, port):
    buffer = ctypes.create_string_buffer(BYTES)
    end = library("client", buffer)
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as peer, peer.makefile("rwb") as stream:
        card = pickle.load(stream)
        end.move("READ", card)
        compare(buffer, 1, "read")
        buffer.raw = pattern(2)
        end.move("WRITE", card)
        pickle.dump("written", stream)
        stream.flush()
        assert pickle.load(stream) == "compared"


if __name__ == "__main__":
    libraries, ends = {"nixl": Nixl, "mooncake": Mooncake}, {"serve": serve, "ask": ask}
    ends[sys.argv[2]](libraries[sys.argv[1]], int(sys.argv[3]))
