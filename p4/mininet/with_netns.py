#!/usr/bin/env python3
"""A network of hosts and BMv2 switches in plain network namespaces (iproute2). Needs root and BMv2."""

import os
import subprocess
import sys
import tempfile
import time

from topology import NETWORKS, THRIFT_PORT, Commands, arguments
from watch import Watch

HERE = os.path.dirname(os.path.abspath(__file__))
PREFIX = "dcqcn-net-"


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def inside(node, *words):
    return ["ip", "netns", "exec", PREFIX + node, *words]


def interface(node, port):
    return f"{node}-eth{port.number}"


def build(described):
    for node in described.ports:
        run("ip", "netns", "add", PREFIX + node)
        run(*inside(node, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"))
        run("ip", "-n", PREFIX + node, "link", "set", "lo", "up")
    for (a, a_port), (b, b_port) in described.links():
        near, far = interface(a, a_port), interface(b, b_port)
        run("ip", "link", "add", near, "netns", PREFIX + a, "type", "veth", "peer", "name", far, "netns", PREFIX + b)
        for node, name, port in ((a, near, a_port), (b, far, b_port)):
            run("ip", "-n", PREFIX + node, "link", "set", name, "address", port.mac, "up")
    for host, address in described.hosts.items():
        name = interface(host, described.ports[host][0])
        run("ip", "-n", PREFIX + host, "address", "add", f"{address}/8", "dev", name)
        for other, to in described.hosts.items():
            if other != host:
                mac = described.gateway_mac(host)
                run("ip", "-n", PREFIX + host, "neigh", "replace", to, "lladdr", mac, "dev", name)


def start_switches(described, commands, rp_in_switch, directory):
    """Starts simple_switch in every switch's namespace and pushes its configuration. Returns the processes."""
    program = os.path.join(directory, "dcqcn.json")
    with open(program, "w") as file:
        file.write(run(*commands.program()))
    processes = []
    for switch in described.switches:
        ports = [word for port in described.ports[switch] for word in ("-i", f"{port.number}@{interface(switch, port)}")]
        line = ["simple_switch", *ports, "--thrift-port", THRIFT_PORT, program, "--", "--priority-queues", "8"]
        log = open(os.path.join(directory, f"{switch}.log"), "w")
        processes.append(subprocess.Popen(inside(switch, *line), stdout=log, stderr=log))
        path = os.path.join(directory, f"{switch}.toml")
        with open(path, "w") as file:
            file.write(described.configuration(switch, rp_in_switch))
        push = inside(switch, *commands.push(path))
        for _ in range(100):
            pushed = subprocess.run(push, capture_output=True, text=True, check=False)
            if "no switch answers" not in pushed.stderr:
                break
            time.sleep(0.1)
        print(f"{switch}: {(pushed.stdout + pushed.stderr).strip()}")
        if pushed.returncode != 0:
            for process in processes:
                process.terminate()
            raise SystemExit(1)
    return processes


def send(described, seconds):
    """Every other host sends to h1."""
    traffic = ["python3", os.path.join(HERE, "traffic.py")]
    started = [("h1", subprocess.Popen(inside("h1", *traffic, "take", str(seconds + 1)), stdout=subprocess.PIPE, text=True))]
    address = described.hosts["h1"]
    for number, host in enumerate(name for name in described.hosts if name != "h1"):
        line = inside(host, *traffic, "send", address, str(0x211 + number), str(seconds))
        started.append((host, subprocess.Popen(line, stdout=subprocess.PIPE, text=True)))
    for host, process in started:
        print(f"{host}: {process.communicate()[0].strip()}")


def main():
    options = arguments(__doc__).parse_args()
    described = NETWORKS[options.network]()
    commands = Commands(options.dcqcn, options.dcqcn_lab)
    processes = []
    try:
        build(described)
        with tempfile.TemporaryDirectory() as directory:
            processes = start_switches(described, commands, options.rp == "switch", directory)
            for host in described.hosts:
                for address in described.hosts.values():
                    run(*inside(host, "ping", "-c", "1", "-W", "2", address))
            print("every host reaches every other")
            if options.rp == "host":
                for host, ports in described.ports.items():
                    if host in described.hosts:
                        print(f"{host}: {run(*inside(host, *commands.attach(interface(host, ports[0])))).strip()}")
            watch = None
            if options.changes or options.plot:
                started = lambda switch, words: subprocess.Popen(
                    inside(switch, *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                watch = Watch(described.switches, started, commands, options.changes, options.duration)
                watch.start()
            send(described, options.duration)
            if watch:
                watch.stop(options.plot)
            if options.rp == "host":
                for host in described.hosts:
                    iface = interface(host, described.ports[host][0])
                    print(f"\n{host}:\n{run(*inside(host, *commands.flows(iface)))}")
            for switch in described.switches:
                print(f"\n{switch}:\n{run(*inside(switch, *commands.read()))}")
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        for node in described.ports:
            if node in described.hosts:
                subprocess.run(inside(node, *commands.detach()), capture_output=True, check=False)
            subprocess.run(["ip", "netns", "delete", PREFIX + node], capture_output=True, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
