//! Faults of attaching and detaching, on hosts of their own: nothing may be left of them. The served host goes on meanwhile.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use dcqcn_netlink::Netns;
use dcqcn_tests::kill::{Tc, killed, ok};
use dcqcn_tests::lab::Lab;
use dcqcn_tests::leftover::{problems, state};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::Fault;
use crate::site::{OTHER_FLOWS, Site};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "attach killed", make: attach_killed },
    Fault { name: "attach killed by the clock", make: attach_killed_by_the_clock },
    Fault { name: "detach killed", make: detach_killed },
    Fault { name: "no room for the journal", make: journal_full },
    Fault { name: "interface deleted", make: interface_deleted },
    Fault { name: "interface renamed", make: interface_renamed },
    Fault { name: "interface moved", make: interface_moved },
    Fault { name: "namespace deleted", make: namespace_deleted },
    Fault { name: "qdisc replaced by somebody", make: qdisc_replaced },
];

/// A way to attach.
struct Way {
    tc: Tc,
    line: String,
}

impl Way {
    fn any(random: &mut fastrand::Rng) -> Self {
        let pacer = ["none", "fq", "htb"].get(random.usize(..3)).copied().unwrap_or("none");
        let tc = if random.bool() { Tc::Tcx } else { Tc::Clsact };
        let line = format!("attach a0 --pacer {pacer} --flows {OTHER_FLOWS} --set link_rate=1gbit");
        Self { tc, line }
    }

    fn attach(&self, lab: &Lab) -> Result<()> {
        ok(lab, self.tc, &self.line)?;
        let problems = problems(lab, "a0")?;
        ensure!(problems.is_empty(), "{problems:?}");
        Ok(())
    }
}

/// Ends with nothing attached, in one of the ways there are, whatever was left.
fn recover(lab: &Lab, way: &Way, random: &mut fastrand::Rng) -> Result<()> {
    let is_attached =
        || lab.json("status a0").is_ok_and(|status| status["attachments"][0]["state"] == "attached");
    match random.u32(..3) {
        0 => drop(lab.ok("gc")?),
        1 if !is_attached() => way.attach(lab)?,
        _ => {}
    }
    if lab.host.journal("a0")?.exists() {
        lab.ok("detach a0")?;
    }
    lab.ok("gc").map(drop)
}

/// Makes a lab, does something there, and wants it to be as before.
fn in_lab(work: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    let lab = Lab::new("soak")?;
    let before = state(&lab.host, "a0")?;
    work(&lab)?;
    let after = state(&lab.host, "a0")?;
    ensure!(after == before, "a0 was {before:?} and is {after:?}");
    let (journals, pins) = (lab.host.journals()?, lab.host.pins("a0")?);
    ensure!(!journals.exists() && !pins.exists(), "{} or {} is left", journals.display(), pins.display());
    Ok(())
}

fn attach_killed(_: &mut Site, random: &mut fastrand::Rng) -> Result<()> {
    in_lab(|lab| {
        let way = Way::any(random);
        killed(lab, way.tc, &way.line, random.u32(1..20))?;
        recover(lab, &way, random)
    })
}

fn attach_killed_by_the_clock(_: &mut Site, random: &mut fastrand::Rng) -> Result<()> {
    in_lab(|lab| {
        let way = Way::any(random);
        let mut command = dcqcn_tests::kill::command(lab, way.tc, &way.line)?;
        let mut child = lab.host.run(|| command.spawn())??;
        std::thread::sleep(Duration::from_millis(random.u64(0..1_500)));
        child.kill()?;
        child.wait()?;
        recover(lab, &way, random)
    })
}

fn detach_killed(_: &mut Site, random: &mut fastrand::Rng) -> Result<()> {
    in_lab(|lab| {
        let way = Way::any(random);
        way.attach(lab)?;
        killed(lab, way.tc, "detach a0", random.u32(1..12))?;
        recover(lab, &way, random)
    })
}

fn journal_full(_: &mut Site, random: &mut fastrand::Rng) -> Result<()> {
    in_lab(|lab| {
        let way = Way::any(random);
        let dir = lab.host.journals()?;
        fs::create_dir_all(&dir)?;
        // Room for one journal, and not for the one that is to replace it.
        mount(Some("tmpfs"), &dir, Some("tmpfs"), MsFlags::empty(), Some("size=4096,mode=0755"))?;
        let refused = ok(lab, way.tc, &way.line).is_err();
        umount2(&dir, MntFlags::MNT_DETACH)?;
        let _ = fs::remove_dir(&dir);
        ensure!(refused, "there was room");
        way.attach(lab)?;
        lab.ok("detach a0").map(drop)
    })
}

fn interface_deleted(_: &mut Site, random: &mut fastrand::Rng) -> Result<()> {
    let lab = Lab::new("soak")?;
    Way::any(random).attach(&lab)?;
    let netlink = lab.host.netlink()?;
    netlink.delete_link(netlink.link("a0")?.index)?;
    lab.ok("gc")?;
    ensure!(!lab.host.journals()?.exists(), "its journal is left");
    Ok(())
}

fn interface_renamed(_: &mut Site, random: &mut fastrand::Rng) -> Result<()> {
    in_lab(|lab| {
        Way::any(random).attach(lab)?;
        let rename = |from: &str, to: &str| -> Result<()> {
            lab.host.command(&format!("ip link set {from} down"))?;
            lab.host.command(&format!("ip link set {from} name {to}"))?;
            lab.host.command(&format!("ip link set {to} up")).map(drop)
        };
        rename("a0", "other")?;
        let problems = problems(lab, "other")?;
        ensure!(problems.is_empty(), "{problems:?}");
        lab.ok("detach other")?;
        rename("other", "a0")
    })
}

fn interface_moved(_: &mut Site, random: &mut fastrand::Rng) -> Result<()> {
    let (from, to) = (Lab::new("soak")?, Lab::new("soak2")?);
    let way = Way::any(random);
    way.attach(&from)?;
    to.host.command("ip link delete a0")?;
    from.host.command(&format!("ip link set a0 netns {}", to.host.netns.name()))?;
    to.host.command("ip link set a0 up")?;
    way.attach(&to)?;
    to.ok("detach a0")?;
    from.ok("gc")?;
    ensure!(!from.host.journals()?.exists() && !to.host.journals()?.exists(), "a journal is left");
    Ok(())
}

fn namespace_deleted(site: &mut Site, random: &mut fastrand::Rng) -> Result<()> {
    let lab = Lab::new("soak")?;
    Way::any(random).attach(&lab)?;
    let journals = lab.host.journals()?;
    Netns::delete(lab.host.netns.name())?;
    drop(lab);
    // The namespace ends when its last thread has left it.
    dcqcn_tests::daemon::wait(|| {
        site.ok("gc")?;
        Ok(if journals.exists() { Err(format!("{} is left", journals.display())) } else { Ok(()) })
    })
}

fn qdisc_replaced(_: &mut Site, random: &mut fastrand::Rng) -> Result<()> {
    let lab = Lab::new("soak")?;
    let way = Way::any(random);
    way.attach(&lab)?;
    lab.host.command("tc qdisc replace dev a0 root handle 77: pfifo limit 77")?;
    lab.ok("detach a0")?;
    let found = lab.host.command("tc qdisc show dev a0")?;
    ensure!(found.contains("pfifo 77: root"), "what somebody put there is gone: {found}");
    Ok(())
}
