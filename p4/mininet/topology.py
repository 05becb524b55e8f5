"""Networks of hosts and BMv2 switches as data: who is linked to whom, addresses, and each switch's configuration.

Nothing here touches a machine; with_mininet.py and with_netns.py build what it describes.
"""

from collections import deque
from dataclasses import dataclass, field

LINK_RATE = "10mbit"
# Of every switch, in a network namespace of its own.
THRIFT_PORT = "9090"
# BMv2's queues hold 64 packets: marking starts at 8 of them and is certain above 32.
KMIN, KMAX, PMAX, QUEUE_LIMIT = "8656B", "34624B", "10%", "69248B"


@dataclass
class Port:
    """One end of a link."""

    number: int
    mac: str
    peer: str
    peer_number: int


@dataclass
class Network:
    """Hosts, switches and links, in the order they were added."""

    hosts: dict = field(default_factory=dict)  # name -> IPv4 address
    switches: list = field(default_factory=list)
    ports: dict = field(default_factory=dict)  # node -> its ports; a host's is number 0, a switch's begin with 1

    def add_host(self, name):
        self.hosts[name] = f"10.0.0.{len(self.hosts) + 1}"
        self.ports[name] = []
        return name

    def add_switch(self, name):
        self.switches.append(name)
        self.ports[name] = []
        return name

    def link(self, a, b):
        ends = [(node, len(self.ports[node]) + (node in self.switches)) for node in (a, b)]
        for (node, number), (peer, peer_number) in (ends, reversed(ends)):
            index = list(self.ports).index(node)
            self.ports[node].append(Port(number, f"02:dc:0c:00:{index:02x}:{number:02x}", peer, peer_number))

    def links(self):
        """Each link once: (node, port), (node, port)."""
        for node, ports in self.ports.items():
            for port in ports:
                peer = next(p for p in self.ports[port.peer] if p.number == port.peer_number)
                if (node, port.number) < (port.peer, peer.number):
                    yield (node, port), (port.peer, peer)

    def gateway_mac(self, host):
        """Address of the switch port that a host is on."""
        port = self.ports[host][0]
        return next(p.mac for p in self.ports[port.peer] if p.number == port.peer_number)

    def next_port(self, switch, host):
        """The port on a shortest way to the host. Of several as short, hosts take turns."""
        distance = {host: 0}
        queue = deque([host])
        while queue:
            node = queue.popleft()
            for port in self.ports[node]:
                if port.peer not in distance:
                    distance[port.peer] = distance[node] + 1
                    queue.append(port.peer)
        nearer = [p for p in self.ports[switch] if distance[p.peer] < distance[switch]]
        return nearer[list(self.hosts).index(host) % len(nearer)]

    def configuration(self, switch, rp_in_switch=False):
        """What `dcqcn-lab p4 push --config` takes for a switch."""
        on = "true" if rp_in_switch else "false"
        lines = [
            'role = "switch"', 'profile = "lab"',
            "[parameters]", f'link_rate = "{LINK_RATE}"', f"np_enable = {on}", f"rp_enable = {on}",
            "[wred.3]", f'kmin = "{KMIN}"', f'kmax = "{KMAX}"', f'pmax = "{PMAX}"', f'queue_limit = "{QUEUE_LIMIT}"',
            "[bmv2]",
        ]
        for port in self.ports[switch]:
            lines += ["[[bmv2.port]]", f"number = {port.number}"]
            lines += ["host = true"] if port.peer in self.hosts else []
        for host, address in self.hosts.items():
            port = self.next_port(switch, host)
            peer = next(p for p in self.ports[port.peer] if p.number == port.peer_number)
            lines += ["[[bmv2.route]]", f'to = "{address}/32"', f"port = {port.number}"]
            lines += [f'src_mac = "{port.mac}"', f'dst_mac = "{peer.mac}"']
        return "\n".join(lines) + "\n"


def dumbbell(pairs=2):
    """`pairs` hosts on each of two switches, and one link between those."""
    net = Network()
    left, right = net.add_switch("s1"), net.add_switch("s2")
    for i in range(pairs):
        net.link(net.add_host(f"h{i + 1}"), left)
    for i in range(pairs):
        net.link(net.add_host(f"h{pairs + i + 1}"), right)
    net.link(left, right)
    return net


def incast(senders=4):
    """`senders` hosts and a receiver, h1, on one switch."""
    net = Network()
    switch = net.add_switch("s1")
    for i in range(senders + 1):
        net.link(net.add_host(f"h{i + 1}"), switch)
    return net


def leaf_spine(leaves=2, spines=2, hosts=2):
    """`hosts` on each leaf, each leaf on every spine."""
    net = Network()
    all_leaves = [net.add_switch(f"l{i + 1}") for i in range(leaves)]
    all_spines = [net.add_switch(f"p{i + 1}") for i in range(spines)]
    for leaf in all_leaves:
        for _ in range(hosts):
            net.link(net.add_host(f"h{len(net.hosts) + 1}"), leaf)
        for spine in all_spines:
            net.link(leaf, spine)
    return net


class Commands:
    """What both builders run, as lists of words: `dcqcn` in the hosts, `dcqcn-lab` beside the switches."""

    def __init__(self, dcqcn, lab):
        self.dcqcn, self.lab = dcqcn, lab

    def attach(self, iface):
        """Gives a host its notification and reaction point."""
        return [self.dcqcn, "attach", iface, "--role", "host", "--profile", "lab", "--set", f"link_rate={LINK_RATE}"]

    def flows(self, iface):
        """Shows a host's flows."""
        return [self.dcqcn, "flows", iface]

    def detach(self):
        """Takes everything off a host."""
        return [self.dcqcn, "detach", "--all"]

    def program(self):
        """Prints the P4 program, as simple_switch takes it."""
        return [self.lab, "p4", "json"]

    def push(self, path):
        """Configures a switch by a file."""
        return [self.lab, "p4", "push", "--config", path, "--thrift-port", THRIFT_PORT]

    def set(self, changes):
        """Changes parameters of a switch, live."""
        return [self.lab, "p4", "set", "--thrift-port", THRIFT_PORT, *changes]

    def cli(self):
        """BMv2's own command line, which reads its standard input."""
        return ["simple_switch_CLI", "--thrift-port", THRIFT_PORT]

    def read(self):
        """Shows a switch's flows, queues and counters."""
        return [self.lab, "p4", "read", "--thrift-port", THRIFT_PORT]


NETWORKS = {"dumbbell": dumbbell, "incast": incast, "leaf-spine": leaf_spine}


def seconds(time):
    """A time as `dcqcn` takes it, in seconds."""
    number = time.removesuffix("s")
    return float(number.removesuffix("m")) * (0.001 if number.endswith("m") else 1)


def arguments(doc):
    """The command line both builders take."""
    import argparse

    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--dcqcn", default="dcqcn", help="the dcqcn command")
    parser.add_argument("--dcqcn-lab", default="dcqcn-lab", help="the dcqcn-lab command")
    parser.add_argument("--rp", choices=["none", "host", "switch"], default="host",
                        help="who answers marks and paces: nobody, eBPF in the hosts, or P4 in the hosts' switches")
    parser.add_argument("--duration", type=seconds, metavar="TIME", default="5s",
                        help="how long every other host sends to h1, as in 5s or 500ms [default: 5s]")
    parser.add_argument("--set", nargs="+", metavar="NAME=VALUE", default=[], dest="changes",
                        help="change parameters of every switch halfway, as in wred.3.kmax=60KB")
    parser.add_argument("--plot", metavar="FILE", help="write queue depths and marks over time to this SVG file")
    return parser
