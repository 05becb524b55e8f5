"""All operations of reliable QPs in this network namespace, both ways at once.

Arguments: seconds that do not count, seconds that count, traffic class, and for each connection
DEVICE:GID_INDEX:DEVICE:GID_INDEX. Prints `settled` when the first seconds are over, and the results of all ends as the
last line.
"""

import sys

from end import End, report, run, settle

DEPTH = 16
# Exponent: 4.096 us << 20 = 4.3 s. Soft-RoCE retransmits everything in flight when its timer expires, however recent.
TIMEOUT = 20
PATIENCE_S = 60


def main():
    settling, counted, traffic_class = (int(word) for word in sys.argv[1:4])
    ends = []
    for number, word in enumerate(sys.argv[4:]):
        near, near_gid, far, far_gid = word.split(":")
        seed, peer_seed = 2 * number, 2 * number + 1
        one = End(near, int(near_gid), seed, peer_seed, DEPTH, TIMEOUT)
        other = End(far, int(far_gid), peer_seed, seed, DEPTH, TIMEOUT)
        one.connect(other.describe(), traffic_class)
        other.connect(one.describe(), traffic_class)
        ends += [one, other]
    run(ends, settling)
    for end in ends:
        end.done.clear()
        end.bytes = 0
    print("settled", flush=True)
    run(ends, counted)
    report(ends, settle(ends, PATIENCE_S))


main()
