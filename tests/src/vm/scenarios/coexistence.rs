//! Coexistence with the kernel's own queues, shapers, bonds, and programs at the same hooks.

use aya::programs::tc::TcAttachType;
use dcqcn_common::layout::Mode;
use dcqcn_loader::dataplane;

use crate::lab::Lab;
use crate::tap::Tap;
use crate::vm::prelude::*;

const QUEUES: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(30);
/// The paced QP, its rate, and the amount it sends: 400 ms at that rate.
const PACED_QPN: u32 = 0x55;
const PACED_BPS: u64 = 20_000_000;
const PACED_FRAMES: usize = 920;
const ATTACH: &str = "--flows 64 --set link_rate=1gbit";

pub(super) fn run(report: &mut Report) -> Result<()> {
    sh("modprobe -a tun sch_fq sch_htb bonding")?;
    report.columns("there before | attached | afterwards");
    let lab = Lab::new("coexistence")?;
    our_programs_first(report, &lab)?;
    queues(report, &lab)?;
    classes(report, &lab)?;
    bond(report, &lab)?;
    filters(report, &lab)?;
    if release()? >= (6, 6) {
        chain(report, &lab)?;
    }
    dispatcher(report, &lab)
}

/// The first two commands after boot, concurrently: one of them mounts the file system of attachments.
fn our_programs_first(report: &mut Report, lab: &Lab) -> Result<()> {
    let attach = |iface: &str| lab.ok(&format!("attach {iface} --pacer none {ATTACH}")).map(drop);
    thread::scope(|scope| {
        let other = scope.spawn(|| attach("b0"));
        attach("a0").and(other.join().map_err(|_| anyhow!("a command panicked"))?)
    })?;
    let mounts = fs::read_to_string("/proc/mounts")?;
    let mounts = mounts.lines().filter(|line| line.contains(" /run/dcqcn/bpf ")).count();
    report.equals("the first two commands at once: mounts", mounts, 1);
    let found = [problems(lab, "a0")?, problems(lab, "b0")?].concat();
    report.empty("the first two commands concurrently: complete", &found);
    lab.ok("detach --all").map(drop)
}

fn release() -> Result<(u32, u32)> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = text.split(['.', '-']).map(str::parse::<u32>);
    Ok((numbers.next().context("no release")??, numbers.next().context("no release")??))
}

fn show(lab: &Lab, iface: &str) -> Result<String> {
    lab.host.command(&format!("tc -d qdisc show dev {iface}"))
}

/// Attaches and detaches, with `verify` in between, and checks that the previous state is restored.
fn between(
    report: &mut Report,
    lab: &Lab,
    (what, iface): (&str, &str),
    options: &str,
    verify: impl FnOnce(&mut Report, &str) -> Result<()>,
) -> Result<()> {
    let before = show(lab, iface)?;
    let printed = lab.ok(&format!("attach {iface} {options} {ATTACH}")).with_context(|| what.to_owned())?;
    report.empty(&format!("{what}: complete"), &problems(lab, iface)?);
    verify(report, &printed).with_context(|| what.to_owned())?;
    lab.ok(&format!("detach {iface}"))?;
    report.unchanged(&format!("{what}: qdiscs afterwards"), &before, &show(lab, iface)?);
    Ok(())
}

/// A NIC with several transmit queues, under the kernel's own mq and under a configured one.
fn queues(report: &mut Report, lab: &Lab) -> Result<()> {
    let mut tap = Tap::new(&lab.host, "q0", QUEUES)?;
    let own = show(lab, "q0")?;
    report.contains("mq: the kernel's own", own.lines().next().unwrap_or(""), "mq 0: root");
    let fqs = |shown: &str, mq: &str| {
        (1..=QUEUES).filter(|queue| shown.lines().any(|line| is_fq_at(line, &format!("{mq}{queue}")))).count()
    };
    let pace = format!("--pacer fq --set rpg_max_rate={}mbit", PACED_BPS / 1_000_000);
    between(report, lab, ("the kernel's mq", "q0"), &pace, |report, printed| {
        let shown = show(lab, "q0")?;
        let made = shown.contains("mq dc02: root");
        report.equals("the kernel's mq: mq created", made, true);
        report.equals("the kernel's mq: fq below it", fqs(&shown, "dc02:"), QUEUES);
        let all = shown.lines().filter(|line| line.starts_with("qdisc fq ")).count();
        report.equals("the kernel's mq: fq in all", all, QUEUES);
        ensure!(printed.contains("an fq for each transmit queue"), "{printed}");
        let share = measure_pacing(lab, &mut tap)?;
        let result = format!("rate {share:.3} of the requested");
        report.row(["mq 0:".into(), "mq dc02:, fq in each child".into(), result]);
        report.at_least("the kernel's mq: rate of a flow, relative to the requested", share, 0.5);
        report.at_most("the kernel's mq: rate of a flow, relative to the requested", share, 1.1);
        Ok(())
    })?;

    let tc = |line: String| lab.host.command(&format!("tc qdisc replace dev q0 {line}"));
    tc("root handle 1: mq".into())?;
    tc("parent 1:1 handle 11: pfifo limit 77".into())?;
    tc("parent 1:2 handle 12: fq limit 5000 flow_limit 500".into())?;
    between(report, lab, ("an mq with a pfifo and an fq", "q0"), "--pacer fq", |report, _| {
        let shown = show(lab, "q0")?;
        report.equals("an mq with a pfifo and an fq: fq below it", fqs(&shown, "1:"), QUEUES);
        let unchanged = shown.contains("fq 12: parent 1:2 limit 5000p");
        report.equals("an mq with a pfifo and an fq: fq kept", unchanged, true);
        report.row(["mq 1:, pfifo, fq".into(), "fq added to the pfifo queue".into(), "as before".into()]);
        Ok(())
    })?;

    for queue in 1..=QUEUES {
        tc(format!("parent 1:{queue} handle 2{queue}: fq limit {}", 5_000 + queue))?;
    }
    let before = show(lab, "q0")?;
    between(report, lab, ("an mq with an fq in each child", "q0"), "--pacer fq", |report, printed| {
        let shown = show(lab, "q0")?;
        // Before Linux 6.6 attaching adds clsact, which is not a queue.
        let others = |line: &&str| !line.contains("clsact");
        let queues = |shown: &str| shown.lines().filter(others).map(str::to_owned).collect::<Vec<_>>();
        let unchanged = queues(&shown) == queues(&before) && printed.contains("the fq of each queue is kept");
        if !unchanged {
            println!("{before}\n{shown}\n{printed}");
        }
        report.equals("an mq with an fq in each child: kept", unchanged, true);
        report.row(["mq 1:, fq in each".into(), "kept".into(), "as before".into()]);
        Ok(())
    })
}

/// Whether a line of `tc qdisc show` is of an fq below this class.
fn is_fq_at(line: &str, parent: &str) -> bool {
    line.starts_with("qdisc fq ") && line.contains(&format!(" parent {parent} "))
}

/// The measured rate of a paced flow, relative to the requested one.
fn measure_pacing(lab: &Lab, tap: &mut Tap) -> Result<f64> {
    let frame = Roce { dest_qpn: PACED_QPN, ..Roce::default() }.frame();
    let socket = lab.host.socket("q0")?;
    // Wait for frames to leave; otherwise later ones would be beyond the horizon.
    socket.limit_send_buffer(64 << 10)?;
    let frames = thread::scope(|scope| {
        let taken = scope.spawn(|| tap.read_frames(PACED_FRAMES, TIMEOUT));
        for _ in 0..PACED_FRAMES {
            socket.send(&frame)?;
        }
        taken.join().map_err(|_| anyhow!("the other end panicked"))?
    })?;
    let first = frames.first().context("no frame")?.0;
    let took = frames.iter().map(|(at, ..)| at.saturating_duration_since(first)).max().unwrap_or_default();
    let bits = ((PACED_FRAMES - 1) * frame.len() * 8) as f64;
    Ok(bits / took.as_secs_f64() / PACED_BPS as f64)
}

/// HTB configured by another tool: rejected with a fix, and preserved once that is applied.
fn classes(report: &mut Report, lab: &Lab) -> Result<()> {
    for line in [
        "tc qdisc replace dev b0 root handle 1: htb default 10",
        "tc class add dev b0 parent 1: classid 1:10 htb rate 50mbit",
        "tc class add dev b0 parent 1: classid 1:20 htb rate 30mbit",
    ] {
        lab.host.command(line)?;
    }
    let before = show(lab, "b0")?;
    let printed = lab.expect_error(1, &format!("attach b0 --pacer fq {ATTACH}"))?;
    let way = printed.contains("tc qdisc replace dev b0 parent 1:");
    report.check("an htb: refused with a fix", way, true, way && show(lab, "b0")? == before);
    for class in ["1:10", "1:20"] {
        lab.host.command(&format!("tc qdisc replace dev b0 parent {class} fq"))?;
    }
    between(report, lab, ("an htb with an fq in each class", "b0"), "--pacer fq", |report, printed| {
        let unchanged = printed.contains("the fq below each class of the htb is kept");
        report.equals("an htb with an fq in each class: kept", unchanged, true);
        report.row(["htb 1:, fq in each class".into(), "kept".into(), "as before".into()]);
        Ok(())
    })?;
    lab.host.command("tc qdisc delete dev b0 root").map(drop)
}

/// A bond whose members are added and removed while it is attached.
fn bond(report: &mut Report, lab: &Lab) -> Result<()> {
    let netlink = lab.host.netlink()?;
    for number in 1..=2 {
        let (near, far) = (format!("m{number}"), format!("w{number}"));
        add_veth(&netlink, &near, &far)?;
        lab.host.command(&format!("ip link set {far} up"))?;
    }
    lab.host.command("ip link add bond0 type bond mode active-backup miimon 100")?;
    let add = |member: &str| -> Result<()> {
        lab.host.command(&format!("ip link set {member} down"))?;
        lab.host.command(&format!("ip link set {member} master bond0"))?;
        lab.host.command(&format!("ip link set {member} up")).map(drop)
    };
    add("m1")?;
    lab.host.command("ip link set bond0 up")?;
    let before = state(&lab.host, "bond0")?;
    lab.ok(&format!("attach bond0 --pacer fq {ATTACH}"))?;
    let passes = |far: &str| -> Result<u64> {
        let (from, to) = (lab.host.socket("bond0")?, lab.host.socket(far)?);
        let before = lab.host.count("bond0", Hook::Egress, Stat::RoceData)?;
        for flow in 0..20 {
            from.send(&Roce { dest_qpn: 0x200 + flow, ..Roce::default() }.frame())?;
        }
        to.expect_all(20)?;
        Ok(lab.host.count("bond0", Hook::Egress, Stat::RoceData)? - before)
    };
    report.equals("a bond: packets counted of 20 sent", passes("w1")?, 20);
    // A new member that takes over from a removed one.
    add("m2")?;
    lab.host.command("ip link set w1 down")?;
    let active = || lab.host.command("ip -d link show bond0");
    wait_value(active, |shown| shown.contains("active_slave m2"))?;
    report.equals("a bond, after failover: packets counted of 20 sent", passes("w2")?, 20);
    report.empty("a bond: complete", &problems(lab, "bond0")?);
    lab.host.command("ip link set m2 nomaster")?;
    lab.host.command("ip link set w1 up")?;
    lab.ok("detach bond0")?;
    report.unchanged("a bond: afterwards", &before, &state(&lab.host, "bond0")?);
    report.row(["a bond of two".into(), "failed over".into(), "as before".into()]);
    // A single member of the bond.
    between(report, lab, ("a member of a bond", "m1"), "--pacer none", |report, _| {
        report.row(["a member of a bond".into(), "as any interface".into(), "as before".into()]);
        Ok(())
    })
}

/// Other programs' filters on clsact, which end the chain.
fn filters(report: &mut Report, lab: &Lab) -> Result<()> {
    lab.host.command("tc qdisc add dev b0 clsact")?;
    let is_clsact = release()? < (6, 6);
    for (priority, is_first) in [(5, true), (1, !is_clsact)] {
        for hook in ["ingress", "egress"] {
            lab.host.command(&format!("tc filter add dev b0 {hook} pref {priority} matchall action ok"))?;
        }
        let theirs = |hook: &str| lab.host.command(&format!("tc filter show dev b0 {hook}"));
        let before = [theirs("ingress")?, theirs("egress")?];
        let printed = lab.ok(&format!("attach b0 --pacer none {ATTACH}"))?;
        let name = format!("a filter of priority {priority}");
        let doctor = lab.run("doctor")?;
        let doctor = String::from_utf8([doctor.stdout, doctor.stderr].concat())?;
        // On TCX, dcqcn's programs precede all filters, whatever their priorities.
        let is_reported = match (is_first, is_clsact) {
            (true, true) => {
                printed.contains("egress: runs before matchall") && !doctor.contains("others-first")
            }
            (true, false) => !printed.contains("runs after") && !doctor.contains("others-first"),
            (false, _) => printed.contains("egress: runs after matchall") && doctor.contains("others-first"),
        };
        report.equals(&format!("{name}: reported"), is_reported, true);
        if !is_reported {
            println!("{printed}\n{doctor}");
        }
        let (from, to) = (lab.host.socket("b0")?, lab.host.socket("a0")?);
        let count = || lab.host.count("b0", Hook::Egress, Stat::RoceData);
        let counted = count()?;
        from.send(&Roce::default().frame())?;
        to.expect()?;
        report.equals(&format!("{name}: dcqcn sees the packet"), count()? - counted, u64::from(is_first));
        lab.ok("detach b0")?;
        let after = [theirs("ingress")?, theirs("egress")?];
        report.unchanged(&format!("{name}: other filters"), &before, &after);
        let order = if is_first { "ours first" } else { "other filters first, and reported" };
        report.row([name, order.into(), "theirs stay".into()]);
        for hook in ["ingress", "egress"] {
            lab.host.command(&format!("tc filter delete dev b0 {hook}"))?;
        }
    }
    lab.host.command("tc qdisc delete dev b0 clsact").map(drop)
}

/// Other programs in a chain of TCX, as Cilium's are.
fn chain(report: &mut Report, lab: &Lab) -> Result<()> {
    let sizes = Sizes { rp_flows: 8, np_flows: 8 };
    let mut theirs = dataplane::load(Programs::Plain, sizes, Mode::Host, None, &PROGRAMS[1..])?;
    for (name, hook) in [(PROGRAMS[1], TcAttachType::Ingress), (PROGRAMS[2], TcAttachType::Egress)] {
        let program = dataplane::classifier(&mut theirs, name)?;
        lab.host.run(|| program.attach("b0", hook))??;
    }
    let printed = lab.ok(&format!("attach b0 --pacer none {ATTACH}"))?;
    let is_reported = printed.contains("egress: runs before") && printed.contains("ingress: runs before");
    report.equals("a chain of TCX: dcqcn first, others listed", is_reported, true);
    lab.ok("detach b0")?;
    report.row(["programs on TCX".into(), "ours first".into(), "theirs stay".into()]);
    Ok(())
}

/// libxdp's dispatcher, which needs exclusive use of an interface.
fn dispatcher(report: &mut Report, lab: &Lab) -> Result<()> {
    // For its pins.
    sh("mount -t bpf bpf /sys/fs/bpf")?;
    let theirs = |line: &str| lab.host.command(line);
    theirs("xdp-filter load --mode skb b0")?;
    let before = theirs("ip -d link show dev b0")?;
    lab.ok(&format!("attach b0 --pacer none {ATTACH}"))?;
    report.empty("libxdp's dispatcher: a host alongside it", &problems(lab, "b0")?);
    lab.ok("detach b0")?;
    report.unchanged("libxdp's dispatcher: its interface", &before, &theirs("ip -d link show dev b0")?);
    theirs("xdp-loader unload b0 --all")?;
    report.row(["libxdp's dispatcher".into(), "alongside".into(), "it stays".into()]);
    Ok(())
}
