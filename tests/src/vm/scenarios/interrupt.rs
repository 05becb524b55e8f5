//! Attaching and detaching with active QPs: accepted commands interrupt none, and mounted disks are unaffected.

use std::sync::atomic::AtomicU64;

use aya::programs::TcAttachType;
use dcqcn_common::layout::Mode;
use dcqcn_loader::dataplane;

use super::super::lab;
use super::super::perftest::Traffic;
use super::systemd::tables;
use crate::vm::prelude::*;

const INITIATOR: u8 = 1;
const TARGET: u8 = 2;
const ENDS: [NvmeDisk; 1] = [NvmeDisk { initiator: INITIATOR, target: TARGET }];
const MOUNTED: &str = "/mnt";
const FILE_BYTES: usize = 256 << 10;
const ATTACH: &str = "--set link_rate=1gbit --set pacing_credit=5ms";
/// Another address of an interface.
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
/// Time limit of a write after another packet loss.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The package's own scripts, with the arguments of `dpkg --purge`.
const REMOVAL: [(&str, &str); 3] = [
    (include_str!("../../../../dist/packages/dcqcn/prerm"), "remove"),
    (include_str!("../../../../dist/packages/dcqcn/postrm"), "remove"),
    (include_str!("../../../../dist/packages/dcqcn/postrm"), "purge"),
];

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(TARGET, &Options::default())?;
    nvme::prepare(&lab, &ENDS, ECT)?;
    let ends = lab::dies_on_local_drop()?;
    // The first and the last program of a hook make the kernel patch its own code, which can crash an
    // emulated CPU that is running it. So one interface stays attached throughout.
    sh("ip link add spare0 type veth peer name spare1")?;
    sh("dcqcn attach spare0 --pacer none --flows 64 --set link_rate=1gbit")?;
    report.columns("under traffic | attach or detach | files written in the meantime | the QP");
    without_fq(report, &lab, ends)?;
    with_fq(report, &lab)?;
    detach_is_refused(report, &lab, ends)?;
    reload_is_refused(report, &lab, ends)?;
    lost_journal(report, &lab, ends)?;
    interrupt_allowed(report, &lab)?;
    package_removed(report, &lab)
}

/// Where QPs end, a command is refused with fixes; otherwise it is `done`.
fn refused_if(
    report: &mut Report,
    what: &str,
    ends: bool,
    refused: Option<&str>,
    fixes: &[&str],
    done: &str,
) {
    let has_fix = refused.is_some_and(|error| fixes.iter().all(|fix| error.contains(fix)));
    let expected = if ends { "refused, with a fix" } else { done };
    let is_right = has_fix == ends && refused.is_some() == ends;
    report.check(what, refused.map_or(done, |_| "refused"), expected, is_right);
}

/// Attaching without a previous fq.
fn without_fq(report: &mut Report, lab: &Lab, ends: bool) -> Result<()> {
    under_traffic(report, lab, "no fq", 30, |report| {
        for host in [INITIATOR, TARGET] {
            let iface = lab.iface(host);
            let before = link_and_qdiscs(lab, host)?;
            let refused = error_of(&format!("dcqcn attach {iface} --pacer fq {ATTACH}"))?;
            let fixes = ["--interrupt", &format!("tc qdisc replace dev {iface} root fq")];
            refused_if(report, &format!("no fq: {iface}"), ends, refused.as_deref(), &fixes, "attached");
            if refused.is_some() {
                report.unchanged(&format!("no fq: {iface}, refused"), &before, &link_and_qdiscs(lab, host)?);
                // This replaces no qdisc.
                sh(&format!("dcqcn attach {iface} --pacer none {ATTACH}"))?;
            }
            thread::sleep(Duration::from_secs(2));
            sh(&format!("dcqcn detach {iface}"))?;
            report.unchanged(&format!("no fq: {iface}, detached"), &before, &link_and_qdiscs(lab, host)?);
        }
        Ok(if ends { "refused; accepted without a pacer" } else { "attached and detached" })
    })
}

/// The workaround: an fq that exists before the QPs do.
fn with_fq(report: &mut Report, lab: &Lab) -> Result<()> {
    for host in [INITIATOR, TARGET] {
        when_idle(&format!("dcqcn prepare {}", lab.iface(host)))?;
    }
    under_traffic(report, lab, "fq beforehand", 40, |_| {
        for host in [INITIATOR, TARGET] {
            let iface = lab.iface(host);
            let before = link_and_qdiscs(lab, host)?;
            sh(&format!("dcqcn attach {iface} --pacer fq {ATTACH}"))?;
            thread::sleep(Duration::from_secs(2));
            sh(&format!("dcqcn set {iface} rpg_ai_rate=7mbit"))?;
            sh(&format!("dcqcn detach {iface}"))?;
            ensure!(link_and_qdiscs(lab, host)? == before, "{iface} is not restored");
        }
        sh(&format!("dcqcn attach --all-rdma --pacer fq {ATTACH}"))?;
        for host in [INITIATOR, TARGET] {
            sh(&format!("dcqcn detach {}", lab.iface(host)))?;
        }
        Ok("twice attached and detached")
    })?;
    for host in [INITIATOR, TARGET] {
        sh(&format!("tc qdisc delete dev {} root", lab.iface(host)))?;
    }
    Ok(())
}

/// Attached without traffic, with a pacer that detaching would remove. The interface's MAC address, by which it is
/// recognised, has changed since; not under traffic, where soft-RoCE ended QPs (`Failed allocating skb`, Linux 6.1).
fn detach_is_refused(report: &mut Report, lab: &Lab, ends: bool) -> Result<()> {
    let iface = lab.iface(INITIATOR);
    let before = link_and_qdiscs(lab, INITIATOR)?;
    when_idle(&format!("dcqcn attach {iface} --pacer fq {ATTACH}"))?;
    lab.set_mac(INITIATOR, OTHER_MAC)?;
    under_traffic(report, lab, "attached with an fq", 25, |report| {
        let refused = error_of(&format!("dcqcn detach {iface}"))?;
        let what = "attached with an fq: detach";
        refused_if(report, what, ends, refused.as_deref(), &["--interrupt"], "detached");
        if refused.is_some() {
            let problems = lab.on_host(INITIATOR, "status {}")?["attachments"][0]["problems"].clone();
            let whole = problems.as_array().is_some_and(Vec::is_empty);
            report.check("attached with an fq: complete", &problems, "[]", whole);
        }
        Ok(if ends { "refused" } else { "detached" })
    })?;
    if ends {
        when_idle(&format!("dcqcn detach {iface}"))?;
    }
    lab.set_mac(INITIATOR, mac(INITIATOR))?;
    report.unchanged("attached with an fq: afterwards", &before, &link_and_qdiscs(lab, INITIATOR)?);
    Ok(())
}

/// A reload that would remove a pacer under traffic changes nothing: the interface remains managed.
fn reload_is_refused(report: &mut Report, lab: &Lab, ends: bool) -> Result<()> {
    const FILE: &str = "/tmp/interrupt.toml";
    const SOCKET: &str = "/tmp/interrupt.sock";
    let (iface, other) = (lab.iface(INITIATOR), lab.iface(TARGET));
    let write = |interfaces: &[&str]| {
        let mut text = format!("[control]\nsocket = '{SOCKET}'\n");
        for name in interfaces {
            text +=
                &format!("[[interface]]\nname = '{name}'\npacer = 'fq'\nparameters.link_rate = '1gbit'\n");
        }
        fs::write(FILE, text)
    };
    write(&[&iface, &other])?;
    let daemon = Background::start(&format!("dcqcn run --config {FILE}"))?;
    let served = || -> Result<String> {
        Ok(sh(&format!("dcqcn daemon status --socket {SOCKET} --json")).unwrap_or_default().replace(' ', ""))
    };
    wait_for(TIMEOUT, || {
        let status = served()?;
        Ok(if status.contains("\"is_ready\":true") { Ok(()) } else { Err(status) })
    })?;
    under_traffic(report, lab, "a reload without the interface", 25, |report| {
        write(&[&other])?;
        let refused = error_of(&format!("dcqcn daemon reload --socket {SOCKET}"))?;
        let what = "reload: under traffic";
        refused_if(report, what, ends, refused.as_deref(), &["--interrupt"], "reloaded");
        let is_served = served()?.contains(&format!("\"{iface}\""));
        report.equals("reload: the interface is managed", is_served, ends);
        Ok(if ends { "refused" } else { "reloaded" })
    })?;
    drop(daemon);
    for iface in [&iface, &other] {
        let _ = error_of(&format!("dcqcn detach {iface} --interrupt"))?;
    }
    Ok(())
}

/// The qdisc of an attachment whose journal was removed stays while it has traffic.
fn lost_journal(report: &mut Report, lab: &Lab, ends: bool) -> Result<()> {
    let iface = lab.iface(INITIATOR);
    let gc =
        || anyhow::Ok((sh("dcqcn gc")?, sh(&format!("tc qdisc show dev {iface}"))?.contains("htb dc00:")));
    when_idle(&format!("dcqcn attach {iface} --pacer htb {ATTACH}"))?;
    under_traffic(report, lab, "its journal removed", 25, |report| {
        let index = fs::read_to_string(format!("/sys/class/net/{iface}/ifindex"))?;
        sh(&format!("find /run/dcqcn -name {}.json -delete", index.trim()))?;
        let (printed, stays) = gc()?;
        let has_cause = printed.contains("active QPs");
        report.check("its journal removed: its qdisc stays", stays, ends, (stays, has_cause) == (ends, ends));
        Ok(if ends { "kept by gc" } else { "removed by gc" })
    })?;
    wait_for(TIMEOUT, || Ok(if gc()?.1 { Err("its qdisc is not removed".to_owned()) } else { Ok(()) }))
}

/// With `--interrupt` the command is accepted, and may end QPs.
fn interrupt_allowed(report: &mut Report, lab: &Lab) -> Result<()> {
    let iface = lab.iface(INITIATOR);
    let traffic = flow(lab, 15)?;
    thread::sleep(Duration::from_secs(2));
    let attached = error_of(&format!("dcqcn attach {iface} --pacer fq --interrupt {ATTACH}"))?;
    report.equals("--interrupt: attach", attached.as_deref().unwrap_or("attached"), "attached");
    let detached = error_of(&format!("dcqcn detach {iface} --interrupt"))?;
    report.equals("--interrupt: detach", detached.as_deref().unwrap_or("detached"), "detached");
    let end = traffic.finish()?.end();
    report.row(["no fq".into(), "attached and detached with --interrupt".into(), "-".into(), end]);
    Ok(())
}

/// With an fq beforehand no QP ends; without one, the qdiscs are restored nevertheless.
fn package_removed(report: &mut Report, lab: &Lab) -> Result<()> {
    // They stay on their hooks when the last of dcqcn's own goes, see `run`.
    sh("tc qdisc add dev spare1 clsact")?;
    let sizes = Sizes { rp_flows: 64, np_flows: 64 };
    let mut kept = dataplane::load(Programs::Plain, sizes, Mode::Host, None, &PROGRAMS[1..])?;
    for (program, hook) in PROGRAMS.into_iter().skip(1).zip([TcAttachType::Ingress, TcAttachType::Egress]) {
        dataplane::classifier(&mut kept, program)?.attach("spare1", hook)?;
    }
    let hosts = [INITIATOR, TARGET];
    let state = || hosts.into_iter().map(|host| link_and_qdiscs(lab, host)).collect::<Result<Vec<_>>>();
    for host in hosts {
        when_idle(&format!("dcqcn prepare {}", lab.iface(host)))?;
    }
    let before = state()?;
    sh(&format!("dcqcn attach --all-rdma --pacer fq {ATTACH}"))?;
    under_traffic(report, lab, "fq beforehand, the package", 30, |report| {
        remove_package(report, "fq beforehand")?;
        report.unchanged("fq beforehand, removed: the interfaces", &before, &state()?);
        Ok("removed")
    })?;
    for host in hosts {
        sh(&format!("tc qdisc delete dev {} root", lab.iface(host)))?;
    }
    let before = state()?;
    when_idle(&format!("dcqcn attach --all-rdma --pacer fq {ATTACH}"))?;
    let traffic = flow(lab, 15)?;
    thread::sleep(Duration::from_secs(2));
    remove_package(report, "no fq")?;
    report.unchanged("no fq, removed: the interfaces", &before, &state()?);
    let end = traffic.finish()?.end();
    report.row(["no fq".into(), "the package removed".into(), "-".into(), end]);
    Ok(())
}

/// Removes and purges the package, whose programs stay; of its attachments nothing may be left.
fn remove_package(report: &mut Report, when: &str) -> Result<()> {
    for (script, action) in REMOVAL {
        fs::write("/tmp/script", script)?;
        sh(&format!("sh /tmp/script {action}"))?;
    }
    let files = sh("find /run -path /run/dcqcn/* ! -type d")?;
    report.empty(&format!("{when}, removed: pins and journals"), &files.lines().collect::<Vec<_>>());
    // Maps are freed a moment after their last user. Those of one attachment are the scenario's.
    let freed = wait_for(TIMEOUT, || Ok(if tables() == 1 { Ok(()) } else { Err(tables().to_string()) }));
    report.check(&format!("{when}, removed: attachments in the kernel"), tables(), 1, freed.is_ok());
    Ok(())
}

/// Runs an action while a QP carries data and files are written to a mounted disk; both must survive.
fn under_traffic(
    report: &mut Report,
    lab: &Lab,
    what: &str,
    seconds: u32,
    action: impl FnOnce(&mut Report) -> Result<&'static str>,
) -> Result<()> {
    let disk = mount(lab)?;
    let traffic = flow(lab, seconds)?;
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let (done, wrote) = thread::scope(|scope| {
        let writer = scope.spawn(|| write(&stop, &written));
        thread::sleep(Duration::from_secs(2));
        let done = action(report);
        // Lost data has been retransmitted, and more was written since.
        let (so_far, until) = (written.load(Ordering::Relaxed), Instant::now() + TIMEOUT);
        while written.load(Ordering::Relaxed) < so_far + 2 && !writer.is_finished() && Instant::now() < until
        {
            thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Ordering::Relaxed);
        let continues = written.load(Ordering::Relaxed) >= so_far + 2;
        let wrote = writer.join().unwrap_or_else(|_| Err(anyhow!("the writer panicked")));
        (done, wrote.map(|()| continues))
    });
    let done = done.with_context(|| what.to_owned())?;
    let wrote = wrote.map_or_else(|error| format!("{error:#}"), |continues| continues.to_string());
    report.equals(&format!("{what}: the disk continues"), wrote.as_str(), "true");
    let end = traffic.finish()?.end();
    report.equals(&format!("{what}: the QP"), &end, "finished");
    report.row([what.to_owned(), done.to_owned(), written.load(Ordering::Relaxed).to_string(), end]);
    report.empty(&format!("{what}: errors of the disk in the kernel's log"), &unmount(disk)?);
    Ok(())
}

fn flow(lab: &Lab, seconds: u32) -> Result<Traffic> {
    let flow = Flow { margin_s: 0, ..Flow::new(Tool::Write, INITIATOR, TARGET, 18_500, seconds) };
    perftest::start(lab, &[flow])?.pop().context("no traffic")
}

/// Connects the target's disk and mounts a new file system on it.
fn mount(lab: &Lab) -> Result<Disk> {
    let disk = nvme::connect(lab, &ENDS, Transport::Rdma)?.pop().context("no disk")?;
    let path = disk.path.display().to_string();
    sh(&format!("mke2fs -q -t ext2 {path}"))?;
    // The ext4 module also provides ext2.
    sh("modprobe ext4")?;
    sh(&format!("mount -t ext2 -o errors=remount-ro {path} {MOUNTED}"))?;
    sh("dmesg --clear")?;
    Ok(disk)
}

/// Unmounts it, and returns errors in the kernel's log.
fn unmount(disk: Disk) -> Result<Vec<String>> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let mount = mounts
        .lines()
        .find(|line| line.contains(&format!(" {MOUNTED} ")))
        .context("the disk is not mounted")?;
    ensure!(mount.contains(" rw,"), "{mount}");
    sh(&format!("umount {MOUNTED}"))?;
    let kernel_log = sh("dmesg")?;
    let errors = ["I/O error", "EXT4-fs error", "EXT2-fs error", "reconnecting", "failed, error"];
    disk.disconnect()?;
    let is_error = |line: &&str| errors.iter().any(|error| line.contains(error));
    Ok(kernel_log.lines().filter(is_error).map(str::to_owned).collect())
}

/// Writes files to the disk, bypassing caches, and reads each back.
fn write(stop: &AtomicBool, written: &AtomicU64) -> Result<()> {
    let mut generation = 0_u8;
    while !stop.load(Ordering::Relaxed) {
        generation = generation.wrapping_add(1);
        let path = Path::new(MOUNTED).join(format!("file{}", generation % 8));
        let content = vec![generation; FILE_BYTES];
        let began = Instant::now();
        let mut file = File::create(&path)?;
        file.write_all(&content)?;
        file.sync_all().with_context(|| format!("after {:?}", began.elapsed()))?;
        fs::write("/proc/sys/vm/drop_caches", "1")?;
        ensure!(fs::read(&path)? == content, "{} has wrong content", path.display());
        written.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Error of a rejected command; `None` if it is accepted.
fn error_of(line: &str) -> Result<Option<String>> {
    let output = words(line)?.output().with_context(|| line.to_owned())?;
    Ok((!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Retries a rejected command until the QPs of exited processes are destroyed.
fn when_idle(line: &str) -> Result<()> {
    wait_for(TIMEOUT, || match error_of(line)? {
        None => Ok(Ok(())),
        Some(error) => {
            ensure!(error.contains("--interrupt"), "{line}: {error}");
            Ok(Err(error))
        }
    })
}

/// Everything of a host's interface that an attachment could change.
fn link_and_qdiscs(lab: &Lab, host: u8) -> Result<[String; 2]> {
    let iface = lab.iface(host);
    Ok([sh(&format!("ip -d link show dev {iface}"))?, sh(&format!("tc -d qdisc show dev {iface}"))?])
}
