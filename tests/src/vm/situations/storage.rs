//! An NVMe-oF disk of the second guest: mounted, written and verified through attach, upgrade, restarts and
//! detach; read and written next to a backup over TCP.

use super::super::command::received_bps;
use super::super::perftest::Outcome;
use super::Measured;
use super::incast::restored;
use crate::vm::prelude::*;

/// DSCP 26 and ECT(0) for connections of the RDMA manager.
pub(super) const TOS: &str = "mkdir -p /sys/kernel/config/rdma_cm/rxe0
echo 106 > /sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_tos";
/// Disk in memory, exported by RDMA.
pub(super) const EXPORT: &str = "
modprobe -a nvmet-rdma
modprobe brd rd_nr=1 rd_size=32768
cd /sys/kernel/config/nvmet
mkdir -p subsystems/disk/namespaces/1 ports/1
echo 1 > subsystems/disk/attr_allow_any_host
echo /dev/ram0 > subsystems/disk/namespaces/1/device_path
echo 1 > subsystems/disk/namespaces/1/enable
echo rdma > ports/1/addr_trtype
echo ipv4 > ports/1/addr_adrfam
echo 10.9.0.$N > ports/1/addr_traddr
echo 4420 > ports/1/addr_trsvcid
ln -s $PWD/subsystems/disk ports/1/subsystems/disk";
const CONNECT: &str = "
modprobe nvme-rdma
dmesg --clear
echo transport=rdma,traddr=10.9.0.$M,trsvcid=4420,nqn=disk,nr_io_queues=1,queue_size=32,keep_alive_tmo=60 > /dev/nvme-fabrics
until [ -b /dev/nvme0n1 ]; do sleep 0.2; done";
const MOUNT: &str = "
modprobe ext4
mke2fs -q -t ext2 /dev/nvme0n1
mount -t ext2 -o errors=remount-ro /dev/nvme0n1 /mnt
rm -f /tmp/stop";
/// Writes files, and compares their checksums with what is read, until `/tmp/stop` exists.
const WRITE: &str = "rounds=0
while [ ! -e /tmp/stop ]; do
    fio --name=verify --directory=/mnt --rw=randwrite --bs=16k --size=4m --iodepth=4 --ioengine=libaio --direct=1 \
        --verify=crc32c --verify_backlog=16 --verify_fatal=1 --time_based --runtime=5 || exit 1
    rounds=$((rounds + 1))
done
echo rounds $rounds";
const DISCONNECT: &str = "
for controller in /sys/class/nvme/nvme*; do echo 1 > $controller/delete_controller; done
dmesg | grep -E 'I/O error|EXT[24]-fs error|reconnecting|failed, error' || true";
pub(super) const REMOVE: &str = "
cd /sys/kernel/config/nvmet
rm ports/1/subsystems/disk
rmdir ports/1 subsystems/disk/namespaces/1 subsystems/disk
modprobe -r nvmet-rdma nvmet brd || true";
/// Replaces the programs. The journal must name another build, because `upgrade` skips programs of its own build.
const UPGRADE: &str = "
sed -i 's/\"object\": *\"[0-9a-f]*\"/\"object\":\"0123456789abcdef\"/' /run/dcqcn/ns-*/$(cat /sys/class/net/eth0/ifindex).json
dcqcn upgrade eth0";

pub(super) fn run(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    let before = hosts.state()?;
    hosts.both(TOS)?;
    hosts.sh(RECEIVER, EXPORT)?;
    hosts.sh(SENDER, &format!("{CONNECT}{MOUNT}"))?;
    let writer = hosts.start(SENDER, WRITE)?;
    thread::sleep(Duration::from_secs(3));
    hosts.attach_both()?;
    thread::sleep(Duration::from_secs(2));
    hosts.both(UPGRADE)?;
    for guest in GUESTS {
        for signal in ["KILL", "TERM"] {
            hosts.start(guest, "dcqcn run eth0")?;
            thread::sleep(Duration::from_secs(3));
            hosts.sh(guest, &format!("pkill -{signal} -x dcqcn"))?;
        }
    }
    let counts = hosts.counts()?;
    hosts.both("until ! pgrep -x dcqcn >/dev/null; do sleep 0.2; done; dcqcn detach eth0")?;
    thread::sleep(Duration::from_secs(3));
    hosts.sh(SENDER, "touch /tmp/stop")?;
    let (ok, printed) = hosts.finish(&writer, Duration::from_secs(180))?;
    let end = printed.lines().rev().nth(1).unwrap_or_default().to_owned();
    report.check("storage: fio with crc32c", if ok { &end } else { printed.trim() }, "no error", ok);
    hosts.sh(SENDER, "umount /mnt")?;
    disconnect(hosts, report, "storage")?;
    restored(hosts, report, "storage", &before)?;
    report.row([
        "storage".to_owned(),
        format!("{end} of fio"),
        String::new(),
        counts.marked.to_string(),
        counts.sent.to_string(),
        counts.handled.to_string(),
        counts.out_of_sequence.to_string(),
        counts.retries.to_string(),
        String::new(),
    ]);
    Ok(())
}

fn disconnect(hosts: &mut Hosts, report: &mut Report, name: &str) -> Result<()> {
    let errors = hosts.sh(SENDER, DISCONNECT)?;
    let what = format!("{name}: errors in the kernel's log");
    report.check(&what, errors.trim(), "none", errors.trim().is_empty());
    hosts.sh(RECEIVER, REMOVE).map(drop)
}

/// A program's output without its exit status.
pub(super) fn output(printed: &str) -> &str {
    printed.trim_end().trim_end_matches(|c| c != '\n')
}

/// Reads and writes of 16 KiB, 4 in flight, each block verified.
const MIX: Job = Job { pattern: "randrw", block_bytes: 16_384, depth: 4, settling_s: 2, length_s: 14 };
/// The backup's share of the bottleneck, without bursts, while fio runs.
const BACKUP_BPS: f64 = 4e6;
const BACKUP: &str = "iperf3 -c 10.9.0.2 -t 16 -l 8K --fq-rate 4M -J";
/// The sender marks at what the backup leaves, as for a class of RoCE: the bottleneck's virtual queue counts RoCE only.
const MARK: &str = "--set cp_enable=true --set wred.3.drain_rate=14mbit --set wred.3.kmin=10KB";
/// Time limit of fio, stalls included: a lost READ takes soft-RoCE up to 42 s.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest read or write with `dcqcn`; without losses it is a queue's time.
const LONGEST_MS: f64 = 1_000.0;

/// Reads, and writes that pass the bottleneck, next to a backup that passes it too.
pub(super) fn backup(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    let before = hosts.state()?;
    hosts.both(TOS)?;
    hosts.sh(RECEIVER, "iperf3 -s -D")?;
    hosts.sh(RECEIVER, EXPORT)?;
    hosts.sh(RECEIVER, &fio::fill_command("/dev/ram0", MIX.block_bytes))?;
    hosts.sh(SENDER, CONNECT)?;
    let (off, _) = mix(hosts, report, "off")?;
    if off.broken != 0 {
        report.skip("backup, off", "fio failed without dcqcn; its output is above");
    }
    // The driver may still recover from losses.
    hosts.sh(SENDER, &format!("{DISCONNECT}\n{CONNECT}"))?;
    hosts.attach(SENDER, &format!("{LINK} {MARK}"))?;
    hosts.attach(RECEIVER, LINK)?;
    let (on, (longest_ms, backup_bps)) = mix(hosts, report, "dcqcn")?;
    report.equals("backup, dcqcn: fio with crc32c, failed", on.broken, 0);
    on.check_answers(report, "backup, dcqcn");
    report.at_most("backup, dcqcn: longest read or write, ms", longest_ms, LONGEST_MS);
    report.at_least("backup, dcqcn: backup's rate, of that requested", backup_bps / BACKUP_BPS, 0.7);
    hosts.detach_both()?;
    disconnect(hosts, report, "backup")?;
    restored(hosts, report, "backup", &before)
}

/// fio and the backup; returns the longest completion time and the backup's rate too.
fn mix(hosts: &mut Hosts, report: &mut Report, what: &str) -> Result<(Measured, (f64, f64))> {
    let before = hosts.counts()?;
    let stream = hosts.start(SENDER, BACKUP)?;
    let program = hosts.start(SENDER, &MIX.command(&["/dev/nvme0n1"]))?;
    let (is_intact, printed) = hosts.finish(&program, PATIENCE)?;
    let (_, streamed) = hosts.finish(&stream, PATIENCE)?;
    let backup_bps = received_bps(output(&streamed))?;
    let done = if is_intact { fio::done(output(&printed))? } else { CompletedIo::default() };
    let outcome = Outcome { goodput_bps: is_intact.then_some(done.written_bps), printed };
    let measured = Measured::new(&[outcome], hosts.counts()?.since(before));
    let text = format!(
        "{what}, read {:.2} Mbit/s, p99 {:.0} ms, longest {:.0} ms, backup {:.2} Mbit/s",
        done.read_bps / 1e6,
        done.p99_ms,
        done.longest_ms,
        backup_bps / 1e6
    );
    measured.row(report, "backup", &text);
    Ok((measured, (done.longest_ms, backup_bps)))
}
