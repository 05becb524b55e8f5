"""An end of an RC QP that posts all operations at random, and checks every byte and every answer."""

import itertools
import json
import os
import random
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
# Most operations in flight, one slot each; the other end posts at least as many receives.
MAX_DEPTH = 16
RECEIVES = 4 * MAX_DEPTH
# Areas of an end's memory, in slots: received messages, target of the peer's WRITEs and READs, sent messages, answers, and one
# slot for the operands of atomic operations.
INCOMING, TARGET, OUTGOING, ANSWERS = 0, RECEIVES, RECEIVES + MAX_DEPTH, RECEIVES + 2 * MAX_DEPTH
NUMBERS = RECEIVES + 3 * MAX_DEPTH
SLOTS = NUMBERS + 1
ADDED, SWAPPED = 0, 8
ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
)
KINDS = {
    "send": e.IBV_WR_SEND,
    "send_imm": e.IBV_WR_SEND_WITH_IMM,
    "send_solicited": e.IBV_WR_SEND,
    "write": e.IBV_WR_RDMA_WRITE,
    "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": e.IBV_WR_RDMA_READ,
    "fetch_add": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
    "compare_swap": e.IBV_WR_ATOMIC_CMP_AND_SWP,
}
# Those that complete a receive of the peer.
RECEIVED = ("send", "send_imm", "send_solicited", "write_imm")
RETRIES = 7
# Soft-RoCE takes up to 128. With 16, four QPs have more in flight than fits into the port's queue.
READS = 4
PAUSE_S = 0.0005


def pattern(number, length):
    """Content of the message with this number."""
    return (number.to_bytes(4, "big") * (length // 4 + 1))[:length]


def operations(seed):
    """Number, kind and length of the operations that the end with this seed posts; its peer expects the same."""
    source = random.Random(seed)
    for number in itertools.count(1):
        yield number, source.choice(list(KINDS)), source.randrange(MIN_BYTES, SLOT_BYTES + 1)


class End:
    """One end of a connection, with up to `depth` operations in flight; `timeout` is the QP's exponent."""

    def __init__(self, device, gid_index, seed, peer_seed, depth, timeout):
        self.context = Context(name=device)
        self.gid_index = gid_index
        self.timeout = timeout
        self.pd = PD(self.context)
        self.cq = CQ(self.context, RECEIVES + MAX_DEPTH)
        self.memory = MR(self.pd, SLOTS * SLOT_BYTES, ACCESS)
        capacity = QPCap(max_send_wr=MAX_DEPTH, max_recv_wr=RECEIVES)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capacity, sq_sig_all=1)
        self.qp = QP(self.pd, init)
        self.peer = None
        self.operations = operations(seed)
        self.expected = (one for one in operations(peer_seed) if one[1] in RECEIVED)
        # Operations in flight, in posting order: slot, kind, length, expected answer.
        self.posted = deque()
        self.free = deque(range(depth))
        # Content of each slot of the other end that this end wrote.
        self.written = {}
        self.added = 0
        self.swapped = 0
        # Messages for the peer, and from it.
        self.messages = 0
        self.received = 0
        self.done = Counter()
        self.bytes = 0
        self.wrong = Counter()
        self.failed = 0
        # Time of the last completion, or of the first operation after none was in flight.
        self.last = 0.0
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
        attributes.timeout = self.timeout
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

    def post_next(self):
        """Posts the next operation; a READ of a slot that was not written yet becomes a WRITE."""
        number, kind, length = next(self.operations)
        slot = self.free.popleft()
        self.post(slot, number, "write" if kind == "read" and slot not in self.written else kind, length)

    def read_back(self):
        """Posts a READ of every slot that was written and has no operation in flight."""
        for slot in [slot for slot in self.free if slot in self.written]:
            self.free.remove(slot)
            self.post(slot, 0, "read", 0)

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
            send_flags=e.IBV_SEND_SIGNALED | (e.IBV_SEND_SOLICITED if kind == "send_solicited" else 0),
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
        if not self.posted:
            self.last = time.monotonic()
        self.posted.append((slot, kind, length, wanted))
        self.qp.post_send(request)

    def poll(self):
        """Processes completions; returns their number."""
        count, completions = self.cq.poll(MAX_DEPTH)
        for completion in completions:
            if completion.status != e.IBV_WC_SUCCESS:
                self.failed += 1
            elif completion.opcode & e.IBV_WC_RECV:
                self.arrived(completion)
            else:
                self.finished(completion)
        return count

    def arrived(self, completion):
        number, kind, length = next(self.expected)
        slot = completion.wr_id
        if kind != "write_imm":
            found = self.memory.read(completion.byte_len, (INCOMING + slot) * SLOT_BYTES)
            self.wrong["received"] += found != pattern(number, length)
        if kind.endswith("_imm"):
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


def poll(ends):
    """Processes completions of all ends; waits a little if there are none."""
    if sum(end.poll() for end in ends) == 0:
        time.sleep(PAUSE_S)


def run(ends, seconds):
    """Keeps all QPs busy for this long, or until one fails."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not any(end.failed for end in ends):
        poll(ends)
        for end in ends:
            while end.free:
                end.post_next()


def settle(ends, patience_s):
    """Waits for the operations in flight; returns whether all succeeded."""
    until = time.monotonic() + patience_s
    while any(end.posted for end in ends) and not any(end.failed for end in ends) and time.monotonic() < until:
        poll(ends)
    return not any(end.posted or end.failed for end in ends)


def report(ends, ended):
    """Prints the sums of all ends as a line of JSON, and exits."""
    now = time.monotonic()
    done = sum((end.done for end in ends), Counter())
    results = {
        "operations": {kind: done[kind] for kind in KINDS},
        "bytes": sum(end.bytes for end in ends),
        "wrong": sum((end.wrong for end in ends), Counter()),
        "failed": sum(end.failed for end in ends),
        "ended": ended,
        "pending": [end.posted[0][1] for end in ends if end.posted],
        "longest_ms": int(1000 * max(max(end.longest, now - end.last if end.posted else 0) for end in ends)),
    }
    print(json.dumps(results), flush=True)
    # The kernel frees everything in a valid order; the bindings do not.
    os._exit(0)
