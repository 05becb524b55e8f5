//! A mounted NVMe-oF disk of the second guest, written and verified through attach, upgrade, restarts and detach.

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
const MOUNT: &str = "
modprobe -a nvme-rdma ext4
dmesg --clear
echo transport=rdma,traddr=10.9.0.$M,trsvcid=4420,nqn=disk,nr_io_queues=1,queue_size=32,keep_alive_tmo=60 > /dev/nvme-fabrics
until [ -b /dev/nvme0n1 ]; do sleep 0.2; done
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
const UNMOUNT: &str = "
umount /mnt
echo 1 > /sys/class/nvme/nvme0/delete_controller
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
    hosts.sh(SENDER, MOUNT)?;
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
    let errors = hosts.sh(SENDER, UNMOUNT)?;
    report.check("storage: errors in the kernel's log", errors.trim(), "none", errors.trim().is_empty());
    hosts.sh(RECEIVER, REMOVE)?;
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
