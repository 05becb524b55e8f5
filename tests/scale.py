#!/usr/bin/env python3
"""Measures `dcqcn run` with many ports in its own network namespace: tests/scale.py DCQCN PORTS [ROLE].

Needs root, iproute2, curl and a memory cgroup. Prints one line of JSON: seconds until all ports are attached, memory,
descriptors per port, seconds of `dcqcn status`, a scrape and `/readyz` (best of three), and CPU at rest over 20 s. Then prints
each bound with the measured value, and exits with 1 if one is exceeded or was not measured.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NETNS = "dcqcn-scale"
CGROUPS = Path("/sys/fs/cgroup")
ATTACH_LIMIT_S = 900
REST_S = 20


def bounds(ports, role):
    """Upper bounds by name. Those for 400 and 1,000 ports grow with more ports; fewer ports have the fixed part of a start."""
    found = {
        "attach_s": 0.15 * max(ports, 100),
        "status_s": max(ports, 400) / 400,
        "scrape_s": max(ports, 400) / 400,
        "descriptors_per_port": 8,
        "cpu_at_rest_percent": 3 * max(ports, 400) / 400,
    }
    if role == "switch":
        # Ports that only mark have no flow tables to fill.
        found["memory_mb"] = 2 * max(ports, 100)
    return found


def check(result):
    """Prints each bound and returns whether all are kept."""
    is_kept = result["attached"] == result["ports"]
    print(f"{'attached':20} {result['attached']:10} of {result['ports']}", "" if is_kept else "MISSED")
    for name, bound in bounds(result["ports"], result["role"]).items():
        value = result.get(name)
        is_within = value is not None and value <= bound
        is_kept &= is_within
        shown = "not measured" if value is None else value
        print(f"{name:20} {shown:>10} <= {bound:g}", "" if is_within else "MISSED")
    return is_kept


def memory_cgroup():
    """Creates a cgroup; returns its directory and the file with its memory, or None twice without a memory controller."""
    if (CGROUPS / "memory").exists():
        parent, usage = CGROUPS / "memory", "memory.usage_in_bytes"
    else:
        parent, usage = CGROUPS, "memory.current"
        try:
            (parent / "cgroup.subtree_control").write_text("+memory")
        except OSError as error:
            print(f"no memory controller: {error}", file=sys.stderr)
            return None, None
    cgroup = parent / "dcqcn-scale"
    cgroup.mkdir(exist_ok=True)
    return cgroup, cgroup / usage


def seconds(command):
    """Seconds of a command: the best of three, each after the daemon's cached reading has expired."""
    times = []
    for _ in range(3):
        time.sleep(1.2)
        begin = time.time()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(time.time() - begin)
    return round(min(times), 3)


def add_ports(ports):
    subprocess.run(["ip", "netns", "add", NETNS], check=True)
    batch = "link set lo up\n" + "".join(f"link add d{n} type KIND\nlink set d{n} up\n" for n in range(ports))
    for kind in ("dummy", "ifb"):
        command = ["ip", "-n", NETNS, "-batch", "-"]
        if subprocess.run(command, input=batch.replace("KIND", kind).encode(), check=False).returncode == 0:
            return
    raise SystemExit("cannot add ports: the kernel has neither dummy nor ifb")


def measure(dcqcn, ports, role, directory, cgroup, usage):
    config, log = directory / "dcqcn.toml", directory / "log"
    config.write_text(
        f'[[interface]]\nname = "d*"\nrole = "{role}"\n[interface.parameters]\nlink_rate = "10gbit"\n'
        '[metrics]\nlisten = "127.0.0.1:9310"\n'
    )
    inside = ["ip", "netns", "exec", NETNS]
    begin = time.time()
    with log.open("w") as output:
        daemon = subprocess.Popen(
            [*inside, dcqcn, "run", "--config", config, "--log-format", "json"],
            stdout=output,
            stderr=output,
            preexec_fn=lambda: (cgroup / "cgroup.procs").write_text(str(os.getpid())) if cgroup else None,
        )
    proc = Path(f"/proc/{daemon.pid}")

    def attached():
        return log.read_text().count('"attached"')

    def cpu_s():
        fields = (proc / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    try:
        while attached() < ports and time.time() < begin + ATTACH_LIMIT_S and daemon.poll() is None:
            time.sleep(0.2)
        if daemon.poll() is not None:
            raise SystemExit(f"the daemon has exited with {daemon.returncode}:\n{log.read_text()[-2000:]}")
        result = {
            "ports": ports,
            "role": role,
            "load": os.getloadavg()[0],
            "attached": attached(),
            "attach_s": round(time.time() - begin, 1),
            "attach_cpu_s": round(cpu_s(), 1),
        }
        time.sleep(5)
        if usage:
            result["memory_mb"] = round(int(usage.read_text()) / 2**20, 1)
        result["rss_mb"] = round(int(re.search(r"VmRSS:\s+(\d+)", (proc / "status").read_text())[1]) / 1024, 1)
        result["descriptors_per_port"] = round(len(list((proc / "fd").iterdir())) / ports, 2)
        result["status_s"] = seconds([*inside, dcqcn, "status"])
        result["scrape_s"] = seconds([*inside, "curl", "-sf", "http://127.0.0.1:9310/metrics"])
        result["readyz_s"] = seconds([*inside, "curl", "-sf", "http://127.0.0.1:9310/readyz"])
        before, begin = cpu_s(), time.time()
        time.sleep(REST_S)
        result["cpu_at_rest_percent"] = round(100 * (cpu_s() - before) / (time.time() - begin), 2)
        return result
    finally:
        daemon.terminate()
        daemon.wait(60)
        subprocess.run([*inside, dcqcn, "detach", "--all"], stdout=subprocess.DEVNULL, check=True)


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    dcqcn, ports, role = sys.argv[1], int(sys.argv[2]), (sys.argv[3:] or ["switch"])[0]
    cgroup, usage = memory_cgroup()
    try:
        add_ports(ports)
        with tempfile.TemporaryDirectory() as directory:
            result = measure(dcqcn, ports, role, Path(directory), cgroup, usage)
    finally:
        subprocess.run(["ip", "netns", "del", NETNS], check=False)
        if cgroup:
            cgroup.rmdir()
    print(json.dumps(result))
    sys.exit(0 if check(result) else 1)


if __name__ == "__main__":
    main()
