//! NVMe over Fabrics between hosts of the lab, without other programs: targets in configfs, connections through
//! `/dev/nvme-fabrics`.

use std::fs::OpenOptions;
use std::os::unix::fs::symlink;

use crate::vm::prelude::*;

/// Transport of the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// RDMA over soft-RoCE.
    Rdma,
    Tcp,
}

impl Transport {
    const fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        }
    }

    const fn service(self) -> u16 {
        match self {
            Self::Rdma => 4420,
            Self::Tcp => 4421,
        }
    }
}

/// A disk, by its two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeDisk {
    /// Host that connects.
    pub initiator: u8,
    /// Host that exports the disk.
    pub target: u8,
}

/// The first and the second disk, on their targets.
pub const MEMORY: [&str; 2] = ["/dev/ram0", "/dev/ram1"];
const DISK_KB: u32 = 32 * 1024;
const QUEUE_SIZE: u32 = 32;
/// The tree of the targets.
const NVMET: &str = "/sys/kernel/config/nvmet";
const TIMEOUT: Duration = Duration::from_secs(20);

/// Loads modules, creates a disk for each of `all`, and sets `tos` of the RDMA manager's connections.
pub fn prepare(lab: &Lab, all: &[NvmeDisk], tos: u8) -> Result<()> {
    sh(&format!("modprobe brd rd_nr={} rd_size={DISK_KB}", all.len()))?;
    sh("modprobe -a nvmet-rdma nvmet-tcp nvme-rdma nvme-tcp")?;
    for host in all.iter().flat_map(|ends| [ends.initiator, ends.target]) {
        let device = format!("/sys/kernel/config/rdma_cm/{}", rxe(host));
        fs::create_dir_all(&device).with_context(|| device.clone())?;
        sysfs::write(&format!("{device}/ports/1/default_roce_tos"), &tos.to_string())?;
    }
    for (number, ends) in (1..).zip(all) {
        let subsystem = format!("{NVMET}/subsystems/{}", name(number));
        let namespace = format!("{subsystem}/namespaces/1");
        fs::create_dir(&subsystem).and_then(|()| fs::create_dir(&namespace)).context(namespace.clone())?;
        sysfs::write(&format!("{subsystem}/attr_allow_any_host"), "1")?;
        sysfs::write(&format!("{namespace}/device_path"), &format!("/dev/ram{}", number - 1))?;
        sysfs::write(&format!("{namespace}/enable"), "1")?;
        for transport in [Transport::Rdma, Transport::Tcp] {
            let link = format!("{}/subsystems/{}", port(lab, ends.target, transport)?, name(number));
            symlink(&subsystem, &link).with_context(|| link)?;
        }
    }
    Ok(())
}

/// Port of a target, shared by all its disks.
fn port(lab: &Lab, target: u8, transport: Transport) -> Result<String> {
    let port = format!("{NVMET}/ports/{}", transport.service() * 10 + u16::from(target));
    if Path::new(&port).exists() {
        return Ok(port);
    }
    fs::create_dir(&port).with_context(|| port.clone())?;
    for (key, value) in [
        ("addr_trtype", transport.name().to_owned()),
        ("addr_adrfam", "ipv4".to_owned()),
        ("addr_traddr", lab.address(target).to_string()),
        ("addr_trsvcid", transport.service().to_string()),
    ] {
        sysfs::write(&format!("{port}/{key}"), &value)?;
    }
    Ok(port)
}

/// Loads the initiator so that it registers no memory for blocks in one piece of it: to retransmit past a registration,
/// soft-RoCE executes it again, which fails (`rxe_do_local_ops`, `rxe_reg_fast_mr`). Without connections.
pub fn register_nothing() -> Result<()> {
    sh("modprobe -r nvme-rdma")?;
    sh("modprobe nvme-rdma register_always=N").map(drop)
}

/// Makes a target fetch all data of writes by READs, not from the SENDs of their commands. Without connections.
pub fn inline_nothing(lab: &Lab, disk: u8, ends: NvmeDisk) -> Result<()> {
    let port = port(lab, ends.target, Transport::Rdma)?;
    let link = format!("{port}/subsystems/{}", name(disk));
    // The size of an enabled port is fixed.
    fs::remove_file(&link).with_context(|| link.clone())?;
    sysfs::write(&format!("{port}/param_inline_data_size"), "0")?;
    symlink(format!("{NVMET}/subsystems/{}", name(disk)), &link).with_context(|| link)
}

/// Splits blocks into pages: the initiator would register blocks in several pieces of memory.
pub fn split_blocks() -> Result<()> {
    for disk in fs::read_dir("/sys/block").context("/sys/block")? {
        let queue = disk.context("/sys/block")?.path().join("queue");
        if queue.to_string_lossy().contains("/nvme") {
            // Linux 6.12 forgets the limit of a path when its controller is reset.
            for (name, value) in [("max_sectors_kb", "4"), ("nomerges", "2")] {
                sysfs::write(&queue.join(name).to_string_lossy(), value)?;
            }
        }
    }
    Ok(())
}

pub fn name(disk: u8) -> String {
    format!("nqn.2014-08.org.nvmexpress:dcqcn:{disk}")
}

pub struct Disk {
    /// The block device.
    pub path: PathBuf,
    instance: u32,
}

/// Connects all initiators to their disks, in the order of [`prepare`].
pub fn connect(lab: &Lab, all: &[NvmeDisk], transport: Transport) -> Result<Vec<Disk>> {
    (1..).zip(all).map(|(number, ends)| connect_one(lab, number, *ends, transport)).collect()
}

fn connect_one(lab: &Lab, number: u8, ends: NvmeDisk, transport: Transport) -> Result<Disk> {
    let line = format!(
        "transport={},traddr={},trsvcid={},nqn={},host_traddr={},nr_io_queues=1,queue_size={QUEUE_SIZE}",
        transport.name(),
        lab.address(ends.target),
        transport.service(),
        name(number),
        lab.address(ends.initiator)
    );
    let mut fabrics = OpenOptions::new().read(true).write(true).open("/dev/nvme-fabrics")?;
    fabrics.write_all(line.as_bytes()).with_context(|| line.clone())?;
    let mut answer = String::new();
    fabrics.read_to_string(&mut answer).with_context(|| line.clone())?;
    let instance = answer
        .split(',')
        .find_map(|field| field.trim().strip_prefix("instance=")?.parse().ok())
        .with_context(|| format!("{line}: {answer:?}"))?;
    let disk = Disk { path: block_device(instance)?, instance };
    println!("{} is host {}'s disk over {}", disk.path.display(), ends.target, transport.name());
    Ok(disk)
}

pub fn disconnect(disks: Vec<Disk>) -> Result<()> {
    disks.into_iter().try_for_each(Disk::disconnect)
}

/// The first namespace of an NVMe controller: its head, with multipath.
fn block_device(instance: u32) -> Result<PathBuf> {
    let path = PathBuf::from(format!("/dev/nvme{instance}n1"));
    let started = Instant::now();
    while !path.exists() {
        ensure!(started.elapsed() < TIMEOUT, "no {} after {TIMEOUT:?}", path.display());
        thread::sleep(Duration::from_millis(50));
    }
    Ok(path)
}

impl Disk {
    pub fn disconnect(self) -> Result<()> {
        let path = format!("/sys/class/nvme/nvme{}/delete_controller", self.instance);
        sysfs::write(&path, "1")?;
        let started = Instant::now();
        while Path::new(&path).exists() {
            ensure!(started.elapsed() < TIMEOUT, "nvme{} is not removed", self.instance);
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
