"""All operations of a reliable QP between two hosts, both ways at once, every byte and every answer checked.

Arguments: device, GID index, traffic class, seconds, TCP port, and for the client the server's address. Prints `started` when the
QPs are connected, and at the end one line of JSON: operations by kind, payload bytes, wrong answers by kind, failed completions,
whether all operations of both ends completed, longest time without a completion.
"""

import itertools
import json
import os
import random
import select
import socket
import sys
import time
from collections import Counter, deque

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SLOT_BYTES = 8192
MIN_BYTES = 64
# Operations in flight, one slot each; the other end posts at least as many receives.
DEPTH = 8
RECEIVES = 4 * DEPTH
# Areas of an end's memory, in slots: received messages, target of the peer's WRITEs and READs, sent messages, answers, and one
# slot for the operands of atomic operations.
INCOMING, TARGET, OUTGOING, ANSWERS = 0, RECEIVES, RECEIVES + DEPTH, RECEIVES + 2 * DEPTH
NUMBERS = RECEIVES + 3 * DEPTH
SLOTS = NUMBERS + 1
ADDED, SWAPPED = 0, 8
ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
)
KINDS = {
    "send": e.IBV_WR_SEND,
    "send_imm": e.IBV_WR_SEND_WITH_IMM,
    "write": e.IBV_WR_RDMA_WRITE,
    "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": e.IBV_WR_RDMA_READ,
    "fetch_add": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
    "compare_swap": e.IBV_WR_ATOMIC_CMP_AND_SWP,
}
# Those that complete a receive of the peer.
RECEIVED = ("send", "send_imm", "write_imm")
# Exponent: 4.096 us << 18 = 1.07 s.
TIMEOUT = 18
RETRIES = 7
READS = 4
PATIENCE_S = 30


def pattern(number, length):
    """Content of the message with this number."""
    return (number.to_bytes(4, "big") * (length // 4 + 1))[:length]


def operations(seed):
    """Number, kind and length of the operations that the end with this seed posts; its peer expects the same."""
    source = random.Random(seed)
    for number in itertools.count(1):
        yield number, source.choice(list(KINDS)), source.randrange(MIN_BYTES, SLOT_BYTES + 1)


class End:
    """This end of the connection."""

    def __init__(self, device, gid_index, seed, peer_seed):
        self.context = Context(name=device)
        self.gid_index = gid_index
        self.pd = PD(self.context)
        self.cq = CQ(self.context, RECEIVES + DEPTH)
        self.memory = MR(self.pd, SLOTS * SLOT_BYTES, ACCESS)
        capacity = QPCap(max_send_wr=DEPTH, max_recv_wr=RECEIVES)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capacity, sq_sig_all=1)
        self.qp = QP(self.pd, init)
        self.operations = operations(seed)
        self.expected = (one for one in operations(peer_seed) if one[1] in RECEIVED)
        # Operations in flight, in posting order: slot, kind, length, expected answer.
        self.posted = deque()
        self.free = deque(range(DEPTH))
        self.written = {}
        self.peer = None
        self.added = 0
        self.swapped = 0
        self.messages = 0
        self.received = 0
        self.done = Counter()
        self.bytes = 0
        self.wrong = Counter()
        self.failed = 0
        self.last = time.monotonic()
        self.longest = 0.0

    def describe(self):
        """Description of this end for its peer."""
        gid = self.context.query_gid(1, self.gid_index).gid
        return {"gid": gid, "qpn": self.qp.qp_num, "rkey": self.memory.rkey, "address": self.memory.buf}

    def connect(self, peer, traffic_class):
        """Connects the QP to the described one."""
        self.peer = peer
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = ACCESS
        self.qp.to_init(attributes)
        for slot in range(RECEIVES):
            self.receive(slot)
        route = GlobalRoute(
            dgid=GID(peer["gid"]), sgid_index=self.gid_index, hop_limit=64, traffic_class=traffic_class
        )
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attributes.dest_qp_num = peer["qpn"]
        attributes.path_mtu = e.IBV_MTU_1024
        attributes.rq_psn = peer["qpn"]
        attributes.max_dest_rd_atomic = READS
        attributes.min_rnr_timer = 12
        self.qp.to_rtr(attributes)
        attributes.timeout = TIMEOUT
        attributes.retry_cnt = RETRIES
        attributes.rnr_retry = RETRIES
        attributes.sq_psn = self.qp.qp_num
        attributes.max_rd_atomic = READS
        self.qp.to_rts(attributes)

    def element(self, slot, length):
        return [SGE(self.memory.buf + slot * SLOT_BYTES, length, self.memory.lkey)]

    def receive(self, slot):
        self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=self.element(INCOMING + slot, SLOT_BYTES)))

    def remote(self, slot):
        return self.peer["address"] + slot * SLOT_BYTES

    def next(self):
        """Posts the next operation."""
        number, kind, length = next(self.operations)
        slot = self.free.popleft()
        self.post(slot, number, "write" if kind == "read" and slot not in self.written else kind, length)

    def post(self, slot, number, kind, length):
        """Posts an operation. A slot has one at a time, as a retransmitted READ may return later data."""
        wanted = None
        area = ANSWERS
        if kind == "read":
            wanted = self.written[slot]
            length = len(wanted)
        elif kind in ("fetch_add", "compare_swap"):
            length = 8
        else:
            area = OUTGOING
            data = pattern(number, length)
            self.memory.write(data, length, (OUTGOING + slot) * SLOT_BYTES)
            if kind.startswith("write"):
                self.written[slot] = data
            self.messages += kind in RECEIVED
        request = SendWR(
            wr_id=slot,
            opcode=KINDS[kind],
            num_sge=1,
            imm_data=number,
            send_flags=e.IBV_SEND_SIGNALED,
            sg=self.element(area + slot, length),
        )
        if kind in ("write", "write_imm", "read"):
            request.set_wr_rdma(self.peer["rkey"], self.remote(TARGET + slot))
        elif kind == "fetch_add":
            wanted = self.added.to_bytes(8, sys.byteorder)
            self.added += 1
            request.set_wr_atomic(self.peer["rkey"], self.remote(NUMBERS) + ADDED, 1, 0)
        elif kind == "compare_swap":
            wanted = self.swapped.to_bytes(8, sys.byteorder)
            compare, self.swapped = self.swapped, number
            request.set_wr_atomic(self.peer["rkey"], self.remote(NUMBERS) + SWAPPED, compare, number)
        self.posted.append((slot, kind, length, wanted))
        self.qp.post_send(request)

    def poll(self):
        """Processes completions; waits a little if there are none."""
        count, completions = self.cq.poll(DEPTH)
        for completion in completions:
            if completion.status != e.IBV_WC_SUCCESS:
                self.failed += 1
            elif completion.opcode & e.IBV_WC_RECV:
                self.arrived(completion)
            else:
                self.finished(completion)
        if count == 0:
            time.sleep(0.0005)

    def arrived(self, completion):
        number, kind, length = next(self.expected)
        slot = completion.wr_id
        if kind != "write_imm":
            found = self.memory.read(completion.byte_len, (INCOMING + slot) * SLOT_BYTES)
            self.wrong["received"] += found != pattern(number, length)
        if kind != "send":
            self.wrong["immediate"] += completion.imm_data != number
        self.received += 1
        self.receive(slot)

    def finished(self, completion):
        slot, kind, length, wanted = self.posted.popleft()
        self.wrong["order"] += completion.wr_id != slot
        if wanted is not None:
            self.wrong[kind] += self.memory.read(length, (ANSWERS + slot) * SLOT_BYTES) != wanted
        self.done[kind] += 1
        self.bytes += length
        self.free.append(slot)
        now = time.monotonic()
        self.longest = max(self.longest, now - self.last)
        self.last = now

    def work(self, seconds):
        """Posts operations for this long, reads back everything written, and waits for all of them."""
        self.last = time.monotonic()
        until = self.last + seconds
        while time.monotonic() < until and not self.failed:
            self.poll()
            while self.free:
                self.next()
        self.settle()
        if self.failed:
            return
        for slot in [slot for slot in self.free if slot in self.written]:
            self.free.remove(slot)
            self.post(slot, 0, "read", 0)
        self.settle()

    def settle(self):
        """Waits for the operations in flight."""
        until = time.monotonic() + PATIENCE_S
        while self.posted and not self.failed and time.monotonic() < until:
            self.poll()


def exchange(connection, lines, value):
    """Sends a value to the peer, which does the same."""
    connection.sendall((json.dumps(value) + "\n").encode())
    return json.loads(lines.readline())


def connected(port, address):
    """The TCP connection of both ends, and the seeds of this one and the other."""
    if address:
        return socket.create_connection((address[0], port)), 2, 1
    return socket.create_server(("", port)).accept()[0], 1, 2


def main():
    device, gid_index, traffic_class, seconds, port, *address = sys.argv[1:]
    connection, seed, peer_seed = connected(int(port), address)
    lines = connection.makefile()
    end = End(device, int(gid_index), seed, peer_seed)
    end.connect(exchange(connection, lines, end.describe()), int(traffic_class))
    exchange(connection, lines, "ready")
    print("started", flush=True)
    end.work(float(seconds))
    ended = not end.posted and not end.failed
    connection.sendall((json.dumps(end.messages if ended else None) + "\n").encode())
    # The peer may still send to this end, and read from it.
    until = time.monotonic() + 2 * PATIENCE_S
    while not select.select([connection], [], [], 0)[0] and time.monotonic() < until:
        end.poll()
    messages = json.loads(lines.readline() or "null") if time.monotonic() < until else None
    while messages is not None and end.received < messages and time.monotonic() < until:
        end.poll()
    end.wrong["messages"] += messages is not None and end.received != messages
    results = {
        "operations": {kind: end.done[kind] for kind in KINDS},
        "bytes": end.bytes,
        "wrong": dict(end.wrong),
        "failed": end.failed,
        "ended": ended and messages is not None,
        "longest_ms": int(1000 * end.longest),
    }
    print(json.dumps(results), flush=True)
    # The kernel frees everything in a valid order; the bindings do not.
    os._exit(0)


main()
