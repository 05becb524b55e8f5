#!/usr/bin/env python3
"""Measures `dcqcn run` with many ports in its own network namespace: tests/scale.py DCQCN PORTS [ROLE].

Needs root, iproute2 and curl. Prints one line of JSON: seconds until all ports are attached, memory (cgroup v1), descriptors
per port, seconds of `dcqcn status`, a scrape and `/readyz` (best of three), and CPU at rest over 20 s.
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
CGROUP = Path("/sys/fs/cgroup/memory/dcqcn-scale")
ATTACH_LIMIT_S = 900
REST_S = 20


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


def measure(dcqcn, ports, role, directory):
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
            preexec_fn=lambda: (CGROUP / "cgroup.procs").write_text(str(os.getpid())) if CGROUP.exists() else None,
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
        if CGROUP.exists():
            result["memory_mb"] = round(int((CGROUP / "memory.usage_in_bytes").read_text()) / 2**20, 1)
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
    dcqcn, ports, role = sys.argv[1], int(sys.argv[2]), (sys.argv[3:] or ["switch"])[0]
    if CGROUP.parent.exists():
        CGROUP.mkdir(exist_ok=True)
    try:
        add_ports(ports)
        with tempfile.TemporaryDirectory() as directory:
            print(json.dumps(measure(dcqcn, ports, role, Path(directory))))
    finally:
        subprocess.run(["ip", "netns", "del", NETNS], check=False)
        if CGROUP.exists():
            CGROUP.rmdir()


if __name__ == "__main__":
    main()
