#!/usr/bin/env python3
"""A network of hosts and BMv2 switches in mininet (Debian's package `mininet`). Needs root and BMv2."""

import os
import subprocess
import sys
import time

from mininet.cli import CLI
from mininet.net import Mininet
from mininet.node import Host, Switch

from topology import NETWORKS, THRIFT_PORT, Commands, arguments
from watch import Watch

HERE = os.path.dirname(os.path.abspath(__file__))


class Bmv2(Switch):
    """simple_switch, in a namespace of its own: its Thrift server listens on every address."""

    def __init__(self, name, configuration, commands, **params):
        super().__init__(name, **{**params, "inNamespace": True})
        self.configuration, self.commands = configuration, commands

    def start(self, controllers):
        ports = " ".join(f"-i {n}@{intf.name}" for n, intf in self.intfs.items() if intf.name != "lo")
        base = f"/tmp/dcqcn-mininet-{self.name}"
        self.cmd("ip link set lo up")
        self.cmd(*self.commands.program(), f"> {base}.json")
        with open(f"{base}.toml", "w") as file:
            file.write(self.configuration)
        self.cmd(f"simple_switch {ports} --thrift-port {THRIFT_PORT} {base}.json -- --priority-queues 8 > {base}.log 2>&1 &")
        for _ in range(100):
            answer = self.cmd(*self.commands.push(f"{base}.toml"), "2>&1")
            if "no switch answers" not in answer:
                break
            time.sleep(0.1)
        print(f"{self.name}: {answer.strip()}")

    def stop(self, deleteIntfs=True):
        self.cmd("kill %simple_switch; wait")
        super().stop(deleteIntfs)


def build(described, commands, rp_in_switch):
    net = Mininet(controller=None, build=False)
    for name, address in described.hosts.items():
        net.addHost(name, cls=Host, ip=f"{address}/8", mac=described.ports[name][0].mac)
    for name in described.switches:
        net.addSwitch(name, cls=Bmv2, configuration=described.configuration(name, rp_in_switch), commands=commands)
    for (a, a_port), (b, b_port) in described.links():
        net.addLink(a, b, port1=a_port.number, port2=b_port.number, addr1=a_port.mac, addr2=b_port.mac)
    net.build()
    for name in described.hosts:
        host = net[name]
        host.cmd("sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
        for other, address in described.hosts.items():
            if other != name:
                host.cmd(f"ip neigh replace {address} lladdr {described.gateway_mac(name)} dev {host.defaultIntf()}")
    return net


def main():
    parser = arguments(__doc__)
    parser.add_argument("--cli", action="store_true", help="open mininet's command line instead of sending")
    options = parser.parse_args()
    described = NETWORKS[options.network]()
    commands = Commands(options.dcqcn, options.dcqcn_lab)
    net = build(described, commands, options.rp == "switch")
    try:
        net.start()
        if options.cli:
            return CLI(net)
        lost = net.pingAll()
        if options.rp == "host":
            for host in net.hosts:
                print(f"{host.name}: {host.cmd(*commands.attach(host.defaultIntf().name)).strip()}")
        watch = None
        if options.changes or options.plot:
            started = lambda switch, words: net[switch].popen(words, stdin=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            watch = Watch(described.switches, started, commands, options.changes, options.duration)
            watch.start()
        receiver, address = net["h1"], described.hosts["h1"]
        senders = [net[name] for name in described.hosts if name != "h1"]
        receiver.sendCmd(f"python3 {HERE}/traffic.py take {options.duration + 1}")
        for number, host in enumerate(senders):
            host.sendCmd(f"python3 {HERE}/traffic.py send {address} {0x211 + number} {options.duration}")
        for host in [receiver, *senders]:
            print(f"{host.name}: {host.waitOutput().strip()}")
        if watch:
            watch.stop(options.plot)
        if options.rp == "host":
            for host in net.hosts:
                print(f"\n{host.name}:\n{host.cmd(*commands.flows(host.defaultIntf().name))}")
        for switch in net.switches:
            print(f"\n{switch.name}:\n{switch.cmd(*commands.read())}")
        return 0 if lost == 0 else 1
    finally:
        for host in net.hosts:
            host.cmd(*commands.detach())
        net.stop()


if __name__ == "__main__":
    sys.exit(main())
