//! Faults of attaching and detaching, on separate hosts, which must leave no state behind.

use std::process::Child;
use std::sync::LazyLock;

use dcqcn_tests::kill::{killed, ok};
use dcqcn_tests::leftover::is_attached;
use dcqcn_tests::prelude::*;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::fixture::{ALTERNATIVE_FLOWS, SoakFixture};
use crate::{Fault, fault};

pub(crate) const FAULTS: &[Fault] = &[
    fault("attach killed", |_, random| {
        in_lab(|lab| {
            let options = AttachOptions::any(random);
            killed(lab, options.tc, &options.line, random.u32(1..20))?;
            recover(lab, &options, random)
        })
    }),
    fault("attach killed by the clock", |_, random| {
        in_lab(|lab| {
            let options = AttachOptions::any(random);
            let mut command = dcqcn_tests::kill::command(lab, options.tc, &options.line)?;
            let mut child = lab.host.run(|| command.stdout(Stdio::null()).spawn())??;
            thread::sleep(Duration::from_millis(random.u64(0..1_500)));
            child.kill()?;
            child.wait()?;
            recover(lab, &options, random)
        })
    }),
    fault("detach killed", |_, random| {
        in_lab(|lab| {
            let options = AttachOptions::any(random);
            options.attach(lab)?;
            killed(lab, options.tc, "detach a0", random.u32(1..12))?;
            recover(lab, &options, random)
        })
    }),
    fault("no space for the journal", |_, random| {
        in_lab(|lab| {
            let options = AttachOptions::any(random);
            let dir = lab.host.journals()?;
            fs::create_dir_all(&dir)?;
            // Space for one journal, but not for its replacement.
            mount(Some("tmpfs"), &dir, Some("tmpfs"), MsFlags::empty(), Some("size=4096,mode=0755"))?;
            let refused = ok(lab, options.tc, &options.line).is_err();
            umount2(&dir, MntFlags::MNT_DETACH)?;
            let _ = fs::remove_dir(&dir);
            ensure!(refused, "the journal was written");
            options.attach(lab)?;
            lab.ok("detach a0").map(drop)
        })
    }),
    fault("interface deleted", |_, random| {
        let lab = Lab::new("soak")?;
        AttachOptions::any(random).attach(&lab)?;
        let netlink = lab.host.netlink()?;
        netlink.delete_link(netlink.link("a0")?.index)?;
        lab.ok("gc")?;
        ensure!(!lab.host.journals()?.exists(), "its journal is left");
        Ok(())
    }),
    fault("interface renamed", |_, random| {
        in_lab(|lab| {
            AttachOptions::any(random).attach(lab)?;
            lab.host.rename("a0", "other")?;
            complete(lab, "other")?;
            lab.ok("detach other")?;
            lab.host.rename("other", "a0")
        })
    }),
    fault("interface moved", |_, random| {
        let (from, to) = (Lab::new("soak")?, Lab::new("soak2")?);
        let options = AttachOptions::any(random);
        options.attach(&from)?;
        to.host.command("ip link delete a0")?;
        from.host.command(&format!("ip link set a0 netns {}", to.host.netns.name()))?;
        to.host.command("ip link set a0 up")?;
        options.attach(&to)?;
        to.ok("detach a0")?;
        from.ok("gc")?;
        ensure!(!from.host.journals()?.exists() && !to.host.journals()?.exists(), "a journal is left");
        Ok(())
    }),
    fault("namespace deleted", |fixture, random| {
        let lab = Lab::new("soak")?;
        AttachOptions::any(random).attach(&lab)?;
        let journals = lab.host.journals()?;
        if random.bool() {
            // Its interfaces are unknown then.
            let namespace = journals.file_name().context("a separate directory")?;
            fs::remove_dir_all(Path::new("/run/dcqcn/bpf").join(namespace))?;
        }
        Netns::delete(lab.host.netns.name())?;
        drop(lab);
        are_freed(fixture, &[journals])
    }),
    fault("namespace recreated under its name", |fixture, random| {
        let name = format!("dcqcn-test-{}-soak-again", std::process::id());
        let options = AttachOptions::any(random);
        let mut left = Vec::new();
        for _ in 0..2 {
            let netns = Netns::create(&name)?;
            let cookie = netns.run(dcqcn_netlink::netns::current_cookie)??;
            left.push(Path::new("/run/dcqcn").join(format!("ns-{cookie}")));
            add_veth(&Netlink::connect_in(&netns)?, "a0", "b0")?;
            fixture.ok(&format!("-n {name} {}", options.line))?;
            Netns::delete(&name)?;
        }
        are_freed(fixture, &left)
    }),
    fault("qdisc replaced by another process", |_, random| {
        let lab = Lab::new("soak")?;
        let options = AttachOptions::any(random);
        options.attach(&lab)?;
        lab.host.command("tc qdisc replace dev a0 root handle 77: pfifo limit 77")?;
        lab.ok("detach a0")?;
        let found = lab.host.command("tc qdisc show dev a0")?;
        ensure!(found.contains("pfifo 77: root"), "another process's qdisc was removed: {found}");
        Ok(())
    }),
    // As if the module of the previous qdisc was unloaded, and loaded again.
    fault("qdisc that cannot be recreated", |_, random| {
        let lab = Lab::new("soak")?;
        lab.host.command("tc qdisc replace dev a0 root handle 7: pfifo limit 77")?;
        let before = state(&lab.host, "a0")?;
        let options = AttachOptions::any(random);
        options.attach(&lab)?;
        let path = lab.host.journal("a0")?;
        let text = fs::read_to_string(&path)?;
        let without = text.replace("\"pfifo\"", "\"nosuchqdisc\"");
        if without != text {
            fs::write(&path, without)?;
            let error = lab.expect_error(1, "detach a0")?;
            ensure!(error.contains("not yet restored: root qdisc"), "{error}");
            let text = fs::read_to_string(&path)?;
            fs::write(&path, text.replace("nosuchqdisc", "pfifo"))?;
        }
        lab.ok("detach a0")?;
        let after = state(&lab.host, "a0")?;
        ensure!(after == before, "a0 was {before:?}, now {after:?}");
        Ok(())
    }),
    fault("rate of a shaper changed", |_, random| {
        let lab = Lab::new("soak")?;
        let shaper = |verb: &str, mbit: u32| {
            let tbf = format!("tbf rate {mbit}mbit burst 200k limit 1m");
            lab.host.command(&format!("tc qdisc {verb} dev a0 root handle 7: {tbf}"))
        };
        let (first, second) = (random.u32(100..200), random.u32(200..300));
        shaper("replace", second)?;
        let expected = state(&lab.host, "a0")?;
        shaper("change", first)?;
        let options = AttachOptions::any(random);
        options.attach(&lab)?;
        shaper("change", second)?;
        lab.ok("detach a0")?;
        let after = state(&lab.host, "a0")?;
        ensure!(after == expected, "a0 should be {expected:?} and is {after:?}");
        Ok(())
    }),
    fault("program detached", |_, random| {
        in_lab(|lab| {
            let options = AttachOptions { tc: Tc::Tcx, ..AttachOptions::any(random) };
            options.attach(lab)?;
            let hook = ["ingress", "egress"].get(random.usize(..2)).copied().unwrap_or("ingress");
            fs::remove_file(lab.host.pins("a0")?.join(hook))?;
            has_problem(lab, "a0", &format!("{hook}: expected, not found"))?;
            if random.bool() {
                options.attach(lab)?;
            }
            lab.ok("detach a0").map(drop)
        })
    }),
    fault("inline peer recreated", |_, _| {
        in_lab(|lab| {
            let netlink = lab.host.netlink()?;
            let attach = format!(
                "attach a0 --inline p0 --pacer none --flows {ALTERNATIVE_FLOWS} --set link_rate=1gbit"
            );
            add_veth(&netlink, "p0", "q0")?;
            lab.ok(&attach)?;
            netlink.delete_link(netlink.link("p0")?.index)?;
            add_veth(&netlink, "p0", "q0")?;
            has_problem(lab, "a0", "xdp_peer")?;
            lab.ok(&attach)?;
            complete(lab, "a0")?;
            lab.ok("detach a0").map(drop)
        })
    }),
    fault("attached by several processes", |_, random| {
        in_lab(|lab| {
            let options = AttachOptions::any(random);
            let start = |line: &str| -> Result<Child> {
                let mut command = dcqcn_tests::kill::command(lab, options.tc, line)?;
                command.stdout(Stdio::null()).stderr(Stdio::null());
                Ok(lab.host.run(|| command.spawn())??)
            };
            let one_succeeds = |line: &str| -> Result<()> {
                let children = (0..3).map(|_| start(line)).collect::<Result<Vec<_>>>()?;
                let codes = children.into_iter().map(|mut child| Ok(child.wait()?.code()));
                let codes = codes.collect::<Result<Vec<_>>>()?;
                let succeeded = codes.iter().filter(|code| **code == Some(0)).count();
                ensure!(succeeded == 1, "{line}, three times: {codes:?}");
                Ok(())
            };
            one_succeeds(&options.line)?;
            complete(lab, "a0")?;
            one_succeeds("detach a0")
        })
    }),
];

/// The pacers that this kernel has.
static PACERS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let has = |pacer: &&str| *pacer == "none" || kernel_has_qdisc(pacer).unwrap_or(false);
    ["none", "fq", "htb"].into_iter().filter(has).collect()
});

struct AttachOptions {
    tc: Tc,
    line: String,
}

impl AttachOptions {
    fn any(random: &mut fastrand::Rng) -> Self {
        let pacer = PACERS.get(random.usize(..PACERS.len())).copied().unwrap_or("none");
        let tc = if random.bool() { Tc::Tcx } else { Tc::Clsact };
        let line = format!("attach a0 --pacer {pacer} --flows {ALTERNATIVE_FLOWS} --set link_rate=1gbit");
        Self { tc, line }
    }

    fn attach(&self, lab: &Lab) -> Result<()> {
        ok(lab, self.tc, &self.line)?;
        complete(lab, "a0")?;
        Ok(())
    }
}

/// Detaches everything in one of several ways, whatever the state.
fn recover(lab: &Lab, options: &AttachOptions, random: &mut fastrand::Rng) -> Result<()> {
    match random.u32(..3) {
        0 => drop(lab.ok("gc")?),
        1 if !is_attached(lab, "a0") => options.attach(lab)?,
        _ => {}
    }
    if lab.host.journal("a0")?.exists() {
        lab.ok("detach a0")?;
    }
    lab.ok("gc").map(drop)
}

/// Creates a lab, does something there, and checks that its state is restored.
fn in_lab(work: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    let lab = Lab::new("soak")?;
    let before = state(&lab.host, "a0")?;
    work(&lab)?;
    // A program whose pin another process removed is freed some time after that.
    wait_value(|| state(&lab.host, "a0"), |after| *after == before)
        .with_context(|| format!("a0 was {before:?}"))?;
    let (journals, pins) = (lab.host.journals()?, lab.host.pins("a0")?);
    ensure!(!journals.exists() && !pins.exists(), "{} or {} is left", journals.display(), pins.display());
    Ok(())
}

/// `gc` frees these directories, once their namespaces have ended, which is when their last thread has left them.
fn are_freed(fixture: &SoakFixture, journals: &[PathBuf]) -> Result<()> {
    let left = || {
        fixture.ok("gc")?;
        Ok(journals.iter().filter(|journals| journals.exists()).collect::<Vec<_>>())
    };
    wait_value(left, Vec::is_empty).map(drop)
}
