//! UCX and MPI between the guests.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::super::hosts::{GUESTS, Hosts, PLAIN, RECEIVER, SENDER};
use super::super::report::Report;
use super::{Completion, note};

/// UCX by RC QPs (and a UD QP that connects them) only, with DSCP 26 and ECT(0).
const UCX: &str = "UCX_TLS=rc,self UCX_NET_DEVICES=rxe0:1 UCX_IB_TRAFFIC_CLASS=106 UCX_IB_GID_INDEX=1";
/// The second guest's part of a remote shell, as the guests have no SSH.
const SERVER: &str = "python3 -c '
import socket, subprocess
server = socket.create_server((\"10.8.0.2\", 5140))
while True:
    connection, _ = server.accept()
    line = connection.makefile().readline()
    subprocess.Popen([\"sh\", \"-c\", line], stdout=connection, stderr=connection)
    connection.close()
'";
/// The first guest's part: `/tmp/agent HOST COMMAND`.
const AGENT: &str = "hostname guest$N
mkdir -p /dev/shm
cat > /tmp/agent <<'END'
#!/usr/bin/python3
import socket, sys
connection = socket.create_connection((sys.argv[1], 5140))
connection.sendall((\" \".join(sys.argv[2:]) + \"\\n\").encode())
sys.stdout.write(connection.makefile().read())
END
chmod +x /tmp/agent";
/// Messages of 64 KiB, 24 MB: 10 s at the bottleneck's rate.
const MESSAGES: u32 = 370;

pub(super) fn run(hosts: &mut Hosts, report: &mut Report) -> Result<Completion> {
    for guest in GUESTS {
        if hosts.sh(guest, "command -v ucx_perftest mpirun").is_err() {
            return Ok(Completion::Skipped(format!("guest {guest} lacks ucx_perftest or mpirun")));
        }
    }
    hosts.build(PLAIN)?;
    hosts.both(AGENT)?;
    let (ok, printed) = ucx(hosts)?;
    if !ok {
        println!("{printed}");
        return Ok(Completion::Skipped("UCX does not work on soft-RoCE here, without dcqcn either".into()));
    }
    hosts.attach_both()?;

    let before = hosts.counts()?;
    let (ok, printed) = ucx(hosts)?;
    let last = printed.lines().find(|line| line.starts_with("Final")).unwrap_or_default().to_owned();
    let counts = hosts.counts()?.since(before);
    note(report, "mpi", format!("ucx_perftest: {}, {} CNPs handled", last.trim(), counts.handled));
    report.check("mpi: ucx_perftest", if ok { last.trim() } else { printed.trim() }, "no error", ok);
    report.at_least("mpi: CNPs handled for ucx_perftest", counts.handled as f64, 1.0);

    let before = hosts.counts()?;
    hosts.start(RECEIVER, SERVER)?;
    hosts.sh(RECEIVER, "until ss -Hltn 'sport = :5140' | grep -q .; do sleep 0.1; done")?;
    let environment: Vec<String> = UCX.split(' ').map(|pair| format!("-x {pair}")).collect();
    let line = format!(
        "mpirun --allow-run-as-root -np 2 --host 10.8.0.1,10.8.0.2 --mca plm_rsh_agent /tmp/agent --mca pml ucx \
         --mca oob_tcp_if_include eth2 --mca btl self {} python3 -m mpi4py.bench ringtest -n 65536 -l 200",
        environment.join(" ")
    );
    let (ok, printed) = finish(hosts, &line)?;
    let counts = hosts.counts()?.since(before);
    let last = printed.lines().rev().nth(1).unwrap_or_default().trim().to_owned();
    note(
        report,
        "mpi",
        format!("MPI ring: {last}, {} marks, {} CNPs handled", counts.marked, counts.handled),
    );
    report.check("mpi: ring of two processes", if ok { &last } else { printed.trim() }, "no error", ok);
    hosts.both("pkill -x 'python3|ucx_perftest' || true")?;
    hosts.detach_both()?;
    Ok(Completion::Done)
}

/// Sends messages through UCX, whose programs wait for each other.
fn ucx(hosts: &mut Hosts) -> Result<(bool, String)> {
    hosts.start(RECEIVER, &format!("{UCX} timeout 90 ucx_perftest -p 13337"))?;
    hosts.sh(RECEIVER, "until ss -Hltn 'sport = :13337' | grep -q .; do sleep 0.1; done")?;
    let client = format!("{UCX} ucx_perftest 10.8.0.2 -p 13337 -t tag_bw -s 65536 -n {MESSAGES} -w 8");
    finish(hosts, &client)
}

/// Runs a program in the first guest; returns whether it succeeded, and its output.
fn finish(hosts: &mut Hosts, line: &str) -> Result<(bool, String)> {
    let program = hosts.start(SENDER, &format!("timeout 90 env {line}"))?;
    hosts.finish(&program, Duration::from_secs(100)).with_context(|| line.to_owned())
}
