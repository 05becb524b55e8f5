//! Locked namespaces, and concurrent attaches in other namespaces.

use aya::programs::links::PinnedLink;
use aya::programs::tc::TcAttachType;
use dcqcn_netlink::netns::{current_cookie, current_inode, exists};
use dcqcn_tests::host::lock_journals;
use dcqcn_tests::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(10);

fn attach(flows: u32) -> String {
    format!("attach a0 --pacer none --flows {flows} --set link_rate=1gbit")
}

#[test]
fn lock_of_removed_netns_does_not_block() -> Result<()> {
    const FLOWS: u32 = 1_259;
    let other = new_lab!();
    let name = format!("dcqcn-test-{}-heldgone", std::process::id());
    let removed_netns = Netns::create(&name)?;
    let [inode, cookie] = [removed_netns.run(current_inode)??, removed_netns.run(current_cookie)??];
    add_veth(&Netlink::connect_in(&removed_netns)?, "a0", "b0")?;
    other.ok(&format!("-n {name} {}", attach(FLOWS)))?;
    let journals = Path::new("/run/dcqcn").join(format!("ns-{cookie}"));
    let lock = lock_journals(&journals)?;
    Netns::delete(&name)?;
    drop(removed_netns);
    wait_until(&format!("{name} exists"), || Ok(exists(inode, cookie) != Some(true)))?;
    let began = Instant::now();
    other.ok(&attach(64))?;
    ensure!(began.elapsed() < TIMEOUT, "it waited for {:?}", began.elapsed());
    complete(&other, "a0")?;
    // Locked state is left to the next command.
    assert!(journals.exists());
    assert_eq!(tables(FLOWS), 1);
    drop(lock);
    wait_until(&format!("{} is left", journals.display()), || {
        other.ok("gc")?;
        Ok(!journals.exists())
    })?;
    freed(FLOWS)?;
    other.ok("detach a0").map(drop)
}

/// Like another command that starts and checks for state to free.
#[test]
fn moved_interface_waits_for_old_lock() -> Result<()> {
    require!();
    const FLOWS: u32 = 1_261;
    let (from, to) = (Lab::new("heldfrom")?, Lab::new("heldto")?);
    to.host.command("ip link del a0")?;
    from.ok(&attach(FLOWS))?;
    let journals = from.host.journals()?;
    from.host.command(&format!("ip link set a0 netns {}", to.host.netns.name()))?;
    to.host.command("ip link set a0 up")?;
    let lock = lock_journals(&journals)?;
    // Permanently: the error names the holder.
    let refused = to.expect_error(1, &attach(FLOWS))?;
    assert_contains(&refused, &format!("process {}", std::process::id()));
    assert!(!to.host.journal("a0")?.exists(), "no step was taken");
    // Temporarily: the command waits before the lock is released, and does not hold that of its own
    // namespace, for which a command in the other one may wait.
    thread::scope(|scope| -> Result<()> {
        let attached = scope.spawn(|| to.ok(&attach(FLOWS)));
        let own = to.host.journals()?.join("lock");
        for _ in 0..50 {
            ensure!(!attached.is_finished(), "it did not wait");
            ensure!(!own.exists(), "it holds {}", own.display());
            thread::sleep(Duration::from_millis(10));
        }
        drop(lock);
        attached.join().ok().context("it panicked")?.map(drop)
    })?;
    complete(&to, "a0")?;
    assert_eq!(tables(FLOWS), 1, "the attachment in the previous namespace is freed");
    assert!(!journals.exists(), "{} is left", journals.display());
    to.ok("detach a0")?;
    freed(FLOWS)?;
    assert!(!to.host.journals()?.exists());
    Ok(())
}

/// As `status`, `gc` and the daemon do, and `bpftool`.
#[test]
fn detach_with_open_link_fd() -> Result<()> {
    const FLOWS: u32 = 1_263;
    let lab = new_lab!();
    let before = state(&lab.host, "a0")?;
    lab.ok(&attach(FLOWS))?;
    let pins = lab.host.pins("a0")?;
    let open = |hook: &&str| Ok(PinnedLink::from_pin(pins.join(hook))?);
    let watched: Vec<PinnedLink> = ["ingress", "egress"].iter().map(open).collect::<Result<_>>()?;
    lab.ok("detach a0")?;
    assert_eq!(state(&lab.host, "a0")?, before);
    for hook in [TcAttachType::Ingress, TcAttachType::Egress] {
        let (_, chain) = lab.host.run(|| SchedClassifier::query_tcx("a0", hook))??;
        assert!(chain.is_empty(), "{hook:?}: {} programs", chain.len());
    }
    lab.ok(&attach(FLOWS))?;
    lab.ok("detach a0")?;
    drop(watched);
    freed(FLOWS)
}
