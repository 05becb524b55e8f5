"""Everything that a reliable queue pair can do, mixed at random, both ways at once, every byte and every answer checked.

Arguments: seconds that do not count, seconds that count, traffic class, and for each connection
DEVICE:GID_INDEX:DEVICE:GID_INDEX. All devices are in this network namespace. Prints `settled` when the first seconds are over, and
at the end one line of JSON: operations by kind, payload bytes, wrong answers, failed completions, longest time without a completion
of a QP.
"""

import json
import os
import random
import sys
import time
from collections import Counter, deque

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SLOT_BYTES = 8192
# Operations in flight per QP, one slot each; the other end posts at least as many receives.
DEPTH = 16
RECEIVES = 4 * DEPTH
MIN_BYTES = 64
# Areas of an end's memory, in slots: received messages, target of the peer's WRITEs and READs, sent messages,
# results of own READs, and one slot for the operands of atomic operations.
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
    "send_solicited": e.IBV_WR_SEND,
    "write": e.IBV_WR_RDMA_WRITE,
    "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": e.IBV_WR_RDMA_READ,
    "fetch_add": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
    "compare_swap": e.IBV_WR_ATOMIC_CMP_AND_SWP,
}
# Exponent: 4.096 us << 20 = 4.3 s. Soft-RoCE retransmits everything in flight when its timer expires, however recent.
TIMEOUT = 20
RETRIES = 7
# Soft-RoCE takes up to 128. With 16, four QPs have more in flight than fits into the port's queue.
READS = 4


def pattern(number, length):
    """Content of the message with this number."""
    return (number.to_bytes(4, "big") * (length // 4 + 1))[:length]


class End:
    """One end of a connection."""

    def __init__(self, device, gid_index, seed):
        self.random = random.Random(seed)
        self.context = Context(name=device)
        self.gid_index = gid_index
        self.pd = PD(self.context)
        self.cq = CQ(self.context, RECEIVES + DEPTH)
        self.memory = MR(self.pd, SLOTS * SLOT_BYTES, ACCESS)
        capacity = QPCap(max_send_wr=DEPTH, max_recv_wr=RECEIVES)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capacity, sq_sig_all=1)
        self.qp = QP(self.pd, init)
        self.peer = None
        # Operations in flight, in posting order: slot, kind, expected result.
        self.posted = deque()
        self.free = deque(range(DEPTH))
        # Announced by the other end, not yet received.
        self.expected = deque()
        self.numbers = 0
        self.added = 0
        self.swapped = 0
        # Content of each slot of the other end that this end wrote.
        self.written = {}
        self.done = Counter()
        self.bytes = 0
        self.wrong = Counter()
        self.failed = 0
        self.last = None
        self.longest = 0.0

    def connect(self, peer, traffic_class):
        """Connects the QP to that of `peer`."""
        self.peer = peer
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = ACCESS
        self.qp.to_init(attributes)
        route = GlobalRoute(
            dgid=peer.context.query_gid(1, peer.gid_index),
            sgid_index=self.gid_index,
            hop_limit=64,
            traffic_class=traffic_class,
        )
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attributes.dest_qp_num = peer.qp.qp_num
        attributes.path_mtu = e.IBV_MTU_1024
        attributes.rq_psn = peer.qp.qp_num
        attributes.max_dest_rd_atomic = READS
        attributes.min_rnr_timer = 12
        self.qp.to_rtr(attributes)
        attributes.timeout = TIMEOUT
        attributes.retry_cnt = RETRIES
        attributes.rnr_retry = RETRIES
        attributes.sq_psn = self.qp.qp_num
        attributes.max_rd_atomic = READS
        self.qp.to_rts(attributes)
        for slot in range(RECEIVES):
            self.receive(slot)

    def address(self, slot):
        return self.memory.buf + slot * SLOT_BYTES

    def element(self, slot, length):
        return [SGE(self.address(slot), length, self.memory.lkey)]

    def receive(self, slot):
        self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=self.element(INCOMING + slot, SLOT_BYTES)))

    def post(self):
        """Posts one more operation of a random kind."""
        slot = self.free.popleft()
        kind = self.random.choice(list(KINDS))
        length = self.random.randrange(MIN_BYTES, SLOT_BYTES + 1)
        self.numbers += 1
        number = self.numbers
        wanted = None
        # Only slots without other pending writes: a retransmitted READ may return later data.
        if kind == "read" and slot not in self.written:
            kind = "write"
        if kind == "read":
            wanted = self.written[slot]
            length = len(wanted)
            sge = self.element(ANSWERS + slot, length)
        elif kind in ("fetch_add", "compare_swap"):
            length = 8
            sge = self.element(ANSWERS + slot, length)
        else:
            data = pattern(number, length)
            self.memory.write(data, length, (OUTGOING + slot) * SLOT_BYTES)
            sge = self.element(OUTGOING + slot, length)
            if kind.startswith("write"):
                self.written[slot] = data
            if kind.startswith("send"):
                self.peer.expected.append((data, number if kind == "send_imm" else None))
            elif kind == "write_imm":
                self.peer.expected.append((None, number))
        flags = e.IBV_SEND_SIGNALED
        if kind == "send_solicited":
            flags |= e.IBV_SEND_SOLICITED
        request = SendWR(wr_id=slot, opcode=KINDS[kind], num_sge=1, imm_data=number, send_flags=flags, sg=sge)
        if kind in ("write", "write_imm", "read"):
            request.set_wr_rdma(self.peer.memory.rkey, self.peer.address(TARGET + slot))
        elif kind == "fetch_add":
            wanted = self.added.to_bytes(8, sys.byteorder)
            self.added += 1
            request.set_wr_atomic(self.peer.memory.rkey, self.peer.address(NUMBERS) + ADDED, 1, 0)
        elif kind == "compare_swap":
            wanted = self.swapped.to_bytes(8, sys.byteorder)
            compare, self.swapped = self.swapped, number
            request.set_wr_atomic(self.peer.memory.rkey, self.peer.address(NUMBERS) + SWAPPED, compare, number)
        self.posted.append((slot, kind, length, wanted))
        self.qp.post_send(request)

    def poll(self):
        """Processes completions; returns whether there were any."""
        count, completions = self.cq.poll(DEPTH)
        for completion in completions:
            if completion.status != e.IBV_WC_SUCCESS:
                self.failed += 1
            elif completion.opcode & e.IBV_WC_RECV:
                self.came(completion)
            else:
                self.finished(completion)
        return count > 0

    def came(self, completion):
        data, number = self.expected.popleft()
        slot = completion.wr_id
        if data is not None:
            length = completion.byte_len
            found = self.memory.read(length, (INCOMING + slot) * SLOT_BYTES)
            self.wrong["received"] += found != data
        if number is not None:
            self.wrong["immediate"] += completion.imm_data != number
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
        self.longest = max(self.longest, now - (self.last or now))
        self.last = now


def run(ends, until):
    """Keeps all QPs busy until then, or until one fails."""
    while time.monotonic() < until and not any(end.failed for end in ends):
        busy = False
        for end in ends:
            busy |= end.poll()
            while end.free:
                end.post()
        if not busy:
            time.sleep(0.0005)


def drain(ends):
    """Waits for the operations in flight."""
    until = time.monotonic() + 60
    while any(end.posted for end in ends) and not any(end.failed for end in ends):
        if time.monotonic() > until:
            return False
        for end in ends:
            end.poll()
        time.sleep(0.0005)
    return True


def main():
    settling, counted, traffic_class = (int(word) for word in sys.argv[1:4])
    ends = []
    for number, word in enumerate(sys.argv[4:]):
        near, near_gid, far, far_gid = word.split(":")
        one, other = End(near, int(near_gid), 2 * number), End(far, int(far_gid), 2 * number + 1)
        one.connect(other, traffic_class)
        other.connect(one, traffic_class)
        ends += [one, other]
    run(ends, time.monotonic() + settling)
    for end in ends:
        end.done.clear()
        end.bytes = 0
    print("settled", flush=True)
    run(ends, time.monotonic() + counted)
    ended = drain(ends)
    for end in ends:
        if end.posted and end.last:
            end.longest = max(end.longest, time.monotonic() - end.last)
    done = sum((end.done for end in ends), Counter())
    wrong = sum((end.wrong for end in ends), Counter())
    figures = {
        "operations": {kind: done[kind] for kind in KINDS},
        "bytes": sum(end.bytes for end in ends),
        "wrong": sum(wrong.values()),
        "wrong_by_kind": wrong,
        "failed": sum(end.failed for end in ends),
        "ended": ended,
        "pending": [end.posted[0][1] for end in ends if end.posted],
        "longest_ms": int(1000 * max(end.longest for end in ends)),
    }
    print(json.dumps(figures), flush=True)
    # The kernel frees everything in a valid order; the bindings do not.
    os._exit(0)


main()
