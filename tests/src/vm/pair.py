"""All operations of a reliable QP between two hosts, both ways at once.

Arguments: device, GID index, traffic class, seconds, TCP port, and for the client the server's address. Prints `started`
when the QPs are connected, and the results of this end as the last line.
"""

import json
import select
import socket
import sys
import time

from end import End, poll, report, run, settle

# With 16, the data in flight may exceed the bottleneck's queue.
DEPTH = 8
# Exponent: 4.096 us << 18 = 1.07 s.
TIMEOUT = 18
PATIENCE_S = 30


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
    end = End(device, int(gid_index), seed, peer_seed, DEPTH, TIMEOUT)
    end.connect(exchange(connection, lines, end.describe()), int(traffic_class))
    exchange(connection, lines, "ready")
    print("started", flush=True)
    run([end], float(seconds))
    settle([end], PATIENCE_S)
    if not end.failed:
        end.read_back()
    ended = settle([end], PATIENCE_S)
    connection.sendall((json.dumps(end.messages if ended else None) + "\n").encode())
    # The peer may still send to this end, and read from it.
    until = time.monotonic() + 2 * PATIENCE_S
    while not select.select([connection], [], [], 0)[0] and time.monotonic() < until:
        poll([end])
    messages = json.loads(lines.readline() or "null") if time.monotonic() < until else None
    while messages is not None and end.received < messages and time.monotonic() < until:
        poll([end])
    end.wrong["messages"] += messages is not None and end.received != messages
    report([end], ended and messages is not None)


main()
