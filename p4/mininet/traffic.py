"""Sends, or takes in, what looks like RDMA WRITEs of a reliable connection: UDP 4791, ECT(0), a BTH and 1024 bytes.

    traffic.py send ADDRESS QPN SECONDS [PACKETS_PER_S]
    traffic.py take SECONDS

The sender has no congestion control of its own, as a NIC without it: what holds it back is the network. It sends by a raw
socket, because dcqcn does not pace a process's datagrams to this port: they belong to no QP.
"""

import socket
import struct
import sys
import time

PORT, DSCP, ECT0, CE = 4791, 26, 2, 3
WRITE_MIDDLE, CNP, PAYLOAD = 0x07, 0x81, 1024


def opened():
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    udp.bind(("0.0.0.0", PORT))
    return udp


def send(address, qpn, seconds, packets_per_s):
    # Receives the CNPs.
    udp = opened()
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    # The kernel fills in lengths, source address and checksum of the IP header. RoCEv2 has no UDP checksum.
    ip = struct.pack("!BBHHHBBH4x4s", 0x45, DSCP << 2 | ECT0, 0, 0, 0, 64, socket.IPPROTO_UDP, 0, socket.inet_aton(address))
    header = ip + struct.pack("!HHHH", PORT, PORT, 8 + 12 + PAYLOAD + 4, 0)
    start, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - start) < seconds:
        while sent < elapsed * packets_per_s and time.monotonic() - start < seconds:
            bth = struct.pack("!BBHII", WRITE_MIDDLE, 0, 0xFFFF, qpn, sent & 0xFFFFFF)
            raw.sendto(header + bth + bytes(PAYLOAD) + bytes(4), (address, 0))
            sent += 1
        time.sleep(0.002)
    udp.settimeout(0.3)
    cnps = 0
    try:
        while True:
            cnps += udp.recv(2048)[0] == CNP
    except socket.timeout:
        print(f"sent {sent} packets, got {cnps} CNPs")


def take(seconds):
    udp, taken, marked = opened(), 0, 0
    udp.settimeout(0.2)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            _, control, _, _ = udp.recvmsg(2048, 64)
        except socket.timeout:
            continue
        taken += 1
        marked += any(level == socket.IPPROTO_IP and kind == socket.IP_TOS and data[0] & 3 == CE for level, kind, data in control)
    print(f"took {taken} packets, {marked} of them marked CE")


if __name__ == "__main__":
    if len(sys.argv) >= 5 and sys.argv[1] == "send":
        send(sys.argv[2], int(sys.argv[3], 0), float(sys.argv[4]), float(sys.argv[5]) if len(sys.argv) > 5 else 1000)
    elif len(sys.argv) == 3 and sys.argv[1] == "take":
        take(float(sys.argv[2]))
    else:
        sys.exit(__doc__)
