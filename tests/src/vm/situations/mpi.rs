//! UCX and MPI between the guests, without and with `dcqcn`.

use super::super::perftest::Outcome;
use super::Measured;
use super::storage::TOS;
use crate::vm::prelude::*;

/// Messages of UCX's tests: 10 MB, 4 s at the bottleneck's rate. Two in flight fill the port's queue.
const MESSAGE_BYTES: u32 = 65_536;
const MESSAGES: u32 = 160;
/// Options of ucx_perftest that depend on the protocol. UCT's tests exchange addresses over TCP, UCP's
/// connect over a UD QP.
const STEPS: [(&str, &str, &str); 4] = [
    ("SEND", "", "-d rxe0:1 -x rc_verbs -t am_bw -D bcopy -s 4096 -n 2500 -W 16"),
    ("WRITE", "", "-d rxe0:1 -x rc_verbs -t put_bw -D zcopy -s 65536 -n 160 -O 2"),
    ("tags by WRITE, UD", "UCX_RNDV_SCHEME=put_zcopy", "-t tag_bw -s 65536 -n 160 -O 2"),
    ("tags by READ, UD", "UCX_RNDV_SCHEME=get_zcopy", "-t tag_bw -s 65536 -n 160 -O 2"),
];
const IO: &str = "io_demo -p 1337 -d 65536:65536 -q";
/// READs and WRITEs of io_demo, half of each; WRITEs pass the bottleneck.
const IO_OPERATIONS: u32 = 2 * MESSAGES;
/// Sizes of NetPIPE's messages, each of which it sends 40 times in both directions.
const SIZES: [u32; 13] =
    [1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152, 65_536];
const NETPIPE: &str = "mpirun --allow-run-as-root -np 2 --host 10.8.0.1,10.8.0.2 --bind-to none \
    --mca plm_rsh_agent /tmp/agent --mca plm_rsh_no_tree_spawn 1 --mca orte_keep_fqdn_hostnames 1 \
    --mca oob_tcp_if_include eth2 --mca btl self --mca osc ^ucx --mca pml ucx \
    --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any \
    NPopenmpi -i -l 1024 -u 65536 -n 40 -o /tmp/np.out";
/// The second guest's part of a remote shell, as the guests do not have SSH.
const SERVER: &str = "python3 -c '
import socket, subprocess
server = socket.create_server((\"10.8.0.2\", 5140))
while True:
    connection, _ = server.accept()
    line = connection.makefile().readline()
    subprocess.Popen([\"sh\", \"-c\", line], stdout=connection, stderr=connection)
    connection.close()
'";
/// The first guest's part: `/tmp/agent HOST COMMAND`. It runs as long as the remote command has its connection.
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
const KILL: &str = "pkill -9 -x 'ucx_perftest|io_demo|mpirun|orted|NPopenmpi|python3' || true";
const PATIENCE_S: u64 = 60;

/// SEND, WRITE and READ of UCX, connected over TCP, over UD and by the RDMA manager, the last with every byte checked.
pub(super) fn ucx(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    if !prepared(hosts, report, "ucx", "ucx_perftest io_demo")? {
        return Ok(());
    }
    hosts.both(TOS)?;
    for (what, environment, options) in STEPS {
        without_and_with(hosts, report, "ucx", what, |hosts| ucx_perftest(hosts, environment, options))?;
    }
    without_and_with(hosts, report, "ucx", "io_demo, integrity checked", io_demo)
}

/// MPI over UCX: NetPIPE compares every byte it receives.
pub(super) fn mpi(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    if !prepared(hosts, report, "mpi", "mpirun NPopenmpi python3")? {
        return Ok(());
    }
    hosts.both(AGENT)?;
    without_and_with(hosts, report, "mpi", "NetPIPE, integrity checked", netpipe)
}

/// Builds the topology, unless a guest lacks a program.
fn prepared(hosts: &mut Hosts, report: &mut Report, name: &str, programs: &str) -> Result<bool> {
    for guest in GUESTS {
        let script = format!("for program in {programs}; do command -v $program; done");
        if hosts.sh(guest, &script).is_err() {
            report.skip(name, &format!("guest {guest} lacks one of {programs}"));
            return Ok(false);
        }
    }
    hosts.build(PLAIN)?;
    Ok(true)
}

/// Runs a test without `dcqcn`, and with it if that works.
fn without_and_with(
    hosts: &mut Hosts,
    report: &mut Report,
    name: &str,
    what: &str,
    mut test: impl FnMut(&mut Hosts) -> Result<Outcome>,
) -> Result<()> {
    let off = measured(hosts, &mut test)?;
    off.row(report, name, &format!("{what}, off"));
    if off.broken != 0 {
        report.skip(&format!("{name}, {what}"), "it does not work without dcqcn either; its output is above");
        return Ok(());
    }
    hosts.attach_both()?;
    let on = measured(hosts, &mut test)?;
    hosts.detach_both()?;
    on.row(report, name, &format!("{what}, dcqcn"));
    on.check_answers(report, &format!("{name}, {what}"));
    let most = off.counts.retries.max(2) as f64;
    report.at_most(&format!("{name}, {what}: retries, as without dcqcn"), on.counts.retries as f64, most);
    Ok(())
}

fn measured(hosts: &mut Hosts, test: &mut impl FnMut(&mut Hosts) -> Result<Outcome>) -> Result<Measured> {
    let before = hosts.counts()?;
    let outcome = test(hosts);
    hosts.both(KILL)?;
    Ok(Measured::new(&[outcome?], hosts.counts()?.since(before)))
}

/// UCX by RC QPs, and a UD QP that connects some of them, with DSCP 26 and ECT(0).
///
/// Soft-RoCE does not report a received packet's IP version where UCX before 1.19 expects it, and UCX drops
/// all packets of UD if it checks their destination.
fn environment(hosts: &mut Hosts, guest: u8) -> Result<String> {
    Ok(format!(
        "UCX_TLS=rc_v,self UCX_NET_DEVICES=rxe0:1 UCX_IB_GID_INDEX={} UCX_IB_TRAFFIC_CLASS={ECT} \
         UCX_UD_VERBS_ETH_DGID_CHECK=n UCX_RC_VERBS_TIMEOUT=1s UCX_RC_VERBS_RX_QUEUE_LEN=512 \
         UCX_WARN_UNUSED_ENV_VARS=n",
        hosts.gid_index(guest)?
    ))
}

fn ucx_perftest(hosts: &mut Hosts, scheme: &str, options: &str) -> Result<Outcome> {
    let server = environment(hosts, RECEIVER)?;
    hosts.start(RECEIVER, &format!("timeout {PATIENCE_S} env {server} {scheme} ucx_perftest -p 13337"))?;
    hosts.listening(RECEIVER, 13_337)?;
    let client = format!("{scheme} ucx_perftest 10.8.0.{RECEIVER} -p 13337 -w 8 {options}");
    let (ok, printed, _) = finish(hosts, &client)?;
    Ok(Outcome { goodput_bps: bandwidth_bps(&printed).filter(|_| ok), printed })
}

fn io_demo(hosts: &mut Hosts) -> Result<Outcome> {
    let server = environment(hosts, RECEIVER)?;
    let server = hosts.start(RECEIVER, &format!("timeout {PATIENCE_S} env {server} {IO}"))?;
    wait_for(Duration::from_secs(PATIENCE_S), || {
        let printed = hosts.printed(&server)?;
        Ok(if printed.contains("started listener") { Ok(()) } else { Err(printed) })
    })?;
    let client = format!("{IO} -o read,write -i {IO_OPERATIONS} -w 4 -c 1 10.9.0.{RECEIVER}");
    let (ok, printed, seconds) = finish(hosts, &client)?;
    let ok = ok && printed.contains("Client exit with status 'OK'");
    let bits = f64::from(IO_OPERATIONS / 2) * f64::from(MESSAGE_BYTES) * 8.0;
    Ok(Outcome { goodput_bps: ok.then_some(bits / seconds), printed })
}

fn netpipe(hosts: &mut Hosts) -> Result<Outcome> {
    let server = environment(hosts, RECEIVER)?;
    // Its environment is that of the remote process.
    hosts.start(RECEIVER, &format!("env {server} {SERVER}"))?;
    hosts.listening(RECEIVER, 5_140)?;
    let (ok, printed, seconds) = finish(hosts, NETPIPE)?;
    let ok = ok && printed.matches("Integrity check passed").count() == SIZES.len();
    let bits = f64::from(40 * SIZES.iter().sum::<u32>()) * 8.0;
    Ok(Outcome { goodput_bps: ok.then_some(bits / seconds), printed })
}

/// Runs a program in the first guest; returns whether it succeeded, its output, and the time it took.
fn finish(hosts: &mut Hosts, line: &str) -> Result<(bool, String, f64)> {
    let environment = environment(hosts, SENDER)?;
    let started = Instant::now();
    let program = hosts.start(SENDER, &format!("timeout {PATIENCE_S} env {environment} {line}"))?;
    let (ok, printed) = hosts.finish(&program, Duration::from_secs(PATIENCE_S + 30))?;
    Ok((ok, printed, started.elapsed().as_secs_f64()))
}

/// The overall bandwidth of ucx_perftest, which it prints in units of 2^20 bytes: `Final: ITERATIONS`, three
/// times in us, average and overall bandwidth, average and overall message rate.
fn bandwidth_bps(printed: &str) -> Option<f64> {
    let line = printed.lines().find(|line| line.starts_with("Final:"))?;
    let mb_per_s: f64 = line.split_whitespace().nth(6)?.parse().ok()?;
    Some(mb_per_s * f64::from(1 << 20) * 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_bandwidth_parsed() {
        let printed = "|    Stage     | # iterations |\nFinal:                   160      1.9     2.0     2.1    \
                       3.00   2.00      517815      517815\n";
        assert_eq!(bandwidth_bps(printed), Some(16.0 * 1_048_576.0));
        assert_eq!(bandwidth_bps("Final: 160 1.9\n"), None);
    }
}
