//! Executes an attach plan; each step is journaled before it is taken.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use aya::{Ebpf, EbpfLoader};
use dcqcn_common::layout::LAYOUT_VERSION;
use dcqcn_common::params::Params;
use dcqcn_netlink::tc::{Handle, SavedQdisc};
use dcqcn_netlink::{Netlink, netns};
use dcqcn_params::XdpModeChoice;
use dcqcn_support::sync::lock;

use super::hooks::{self, XDP_PEER, tc_hook};
use super::journal::{FORMAT, Journal, Record, State, UndoStep, boot_id};
use super::plan::{Plan, port};
use super::state_dir::{StateDir, remove_pins};
use super::undo::{InterfaceAccess, undo_with};
use super::{Error, Info, pin_run, siblings};
use crate::dataplane::{self, Maps, Programs};
use crate::{failpoint, pacer, queues};

/// aya's loader, which parses the kernel's types, for all attaches of a call; `None` until one needs it.
///
/// Its lock serialises the creation of shared maps: the first attach creates them, later ones reuse them.
/// Other processes are excluded by the lock of the [`StateDir`].
pub(super) type Loader = Mutex<Option<EbpfLoader<'static>>>;

/// Executes `plan`; `inherited` are undo steps left over from an earlier attachment.
pub(super) fn run(
    plan: Plan,
    netlink: &Netlink,
    state_dir: &StateDir,
    loader: &Loader,
    inherited: Vec<UndoStep>,
) -> Result<Info, Error> {
    let ifindex = plan.link.index;
    let record = Record {
        format: FORMAT,
        state: State::Attaching,
        boot_id: boot_id().to_owned(),
        netns_inode: netns::current_inode()?,
        bpf_dev: state_dir.bpf_dev(),
        info: plan.info.clone(),
        devices: plan.devices.clone(),
        steps: inherited,
        pending: None,
    };
    let mut journal = Journal::begin(record, state_dir.store(ifindex))?;
    let mut executor = Executor {
        plan: &plan,
        netlink,
        state_dir,
        loader,
        pins: state_dir.pins(ifindex),
        xdp_mode: plan.xdp_mode,
        ebpf: None,
    };
    let mut result = plan
        .steps
        .iter()
        .try_for_each(|step| journal.record(step.clone(), |info| executor.execute(step, info)));
    if result.is_ok() {
        result = retain_lost_offloads(netlink, &mut journal.record).and_then(|()| journal.finish());
    }
    let Err(error) = result else {
        return Ok(journal.record.info);
    };
    // Undo the steps taken; report the first error.
    let pins = executor.pins.clone();
    drop(executor);
    // Prevents concurrent attaches from sharing maps that are about to be removed.
    let _alone = lock(loader);
    for error in undo_with(journal, &pins, InterfaceAccess::All(netlink)).errors {
        tracing::error!(iface = plan.info.iface, %error, "cannot undo a step of the failed attach");
    }
    Err(error)
}

/// Restricts the offloads to restore to those that attaching disabled.
///
/// The user may disable others from now on.
fn retain_lost_offloads(netlink: &Netlink, record: &mut Record) -> Result<(), Error> {
    for step in &mut record.steps {
        if let UndoStep::Offloads { ifindex, features } = step {
            let active = netlink.offloads(*ifindex)?;
            features.retain(|feature| !active.contains(feature));
        }
    }
    record.steps.retain(|step| !matches!(step, UndoStep::Offloads { features, .. } if features.is_empty()));
    Ok(())
}

struct Executor<'a> {
    plan: &'a Plan,
    netlink: &'a Netlink,
    state_dir: &'a StateDir,
    loader: &'a Loader,
    pins: PathBuf,
    /// Requested or required XDP mode.
    xdp_mode: XdpModeChoice,
    ebpf: Option<Ebpf>,
}

impl Executor<'_> {
    fn execute(&mut self, step: &UndoStep, info: &mut Info) -> Result<(), Error> {
        match step {
            UndoStep::Pins => self.load(info),
            UndoStep::Sibling { slot } => {
                let entered = self.ebpf.as_mut().map_or(Ok(()), |ebpf| siblings::enter(ebpf, *slot));
                if let Err(error) = entered {
                    info.notes.push(format!("CNPs that arrive on another interface are ignored: {error}"));
                }
                Ok(())
            }
            UndoStep::Offloads { .. } => Ok(()),
            UndoStep::Qdisc { parent, saved, .. } => self.replace_qdisc(*parent, saved, info),
            UndoStep::Clsact => hooks::add_clsact(&self.netlink.link_by_index(self.plan.link.index)?),
            UndoStep::Stripping { ifindex, features } => self.preserve_tags(*ifindex, features, info),
            UndoStep::Filter { hook, .. } => self.attach(hook, None, info),
            UndoStep::Link { pin } => self.attach(pin, Some(&self.pins.join(pin)), info),
        }
    }

    /// Installs the pacer or the queues in place of `saved`.
    fn replace_qdisc(&self, parent: Handle, saved: &SavedQdisc, info: &mut Info) -> Result<(), Error> {
        let Plan { link, config, sizes, placement, queues_at, .. } = self.plan;
        failpoint::step("the qdisc is about to be replaced");
        // Loading takes seconds, in which another program may have replaced or changed it.
        let found = self.netlink.save_qdisc(link.index, parent)?;
        // The kernel installs its own default when the interface is brought up.
        let is_default = found.is_default() && saved.is_default();
        if !is_default && found != *saved {
            let (iface, saved) = (link.name.clone(), Box::new(saved.clone()));
            return Err(Error::QdiscReplaced { iface, saved, found: Box::new(found) });
        }
        if let Some(placement) = placement {
            pacer::install(self.netlink, link.index, placement, config, sizes.rp_flows, &mut info.notes)?;
        }
        if let Some(parent) = queues_at {
            queues::install(self.netlink, link.index, *parent, config)?;
        }
        Ok(())
    }

    /// Attaches a program, with a link pinned at `pin`; without, as a filter.
    fn attach(&mut self, name: &str, pin: Option<&Path>, info: &mut Info) -> Result<(), Error> {
        let is_peer = name == XDP_PEER;
        let to = if is_peer { self.plan.peer.as_ref() } else { Some(&self.plan.link) };
        let (Some(to), Some(ebpf)) = (to, &mut self.ebpf) else { return Ok(()) };
        // aya attaches by name, and the interface may have been renamed while the object was loaded.
        let to = self.netlink.link_by_index(to.index)?;
        match (tc_hook(name), pin) {
            (Some(hook), _) => hooks::attach_tc(ebpf, self.netlink, &to, hook, pin, info)?,
            (None, Some(pin)) => {
                let (mode, note) = hooks::attach_xdp(ebpf, self.netlink, &to, self.xdp_mode, pin)?;
                if !is_peer {
                    info.xdp_mode = mode.into();
                } else if mode != info.xdp_mode {
                    info.xdp_mode = format!("{}, {mode} on {}", info.xdp_mode, to.name);
                }
                info.notes.extend(note);
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Disables VLAN stripping, or falls back to generic XDP, which does not lose the tags.
    fn preserve_tags(&mut self, ifindex: u32, features: &[String], info: &mut Info) -> Result<(), Error> {
        self.netlink.set_features(ifindex, features, false)?;
        let features = self.netlink.vlan_stripping(ifindex)?.join(", ");
        match self.xdp_mode {
            _ if features.is_empty() => Ok(()),
            XdpModeChoice::Driver => Err(Error::TagsLost { ifindex, features }),
            XdpModeChoice::Auto | XdpModeChoice::Skb => {
                info.notes.push(format!(
                    "XDP on socket buffers: {features} of interface {ifindex} cannot be turned off, and XDP in the driver \
                     would lose VLAN tags"
                ));
                self.xdp_mode = XdpModeChoice::Skb;
                Ok(())
            }
        }
    }

    /// Reuses the maps that all attachments of a namespace share, if another attachment has them.
    ///
    /// The maps are shared because a switch sees the two directions of a conversation on different ports. They
    /// are freed with the last attachment.
    fn share(&self) -> Result<(), Error> {
        let is_like_ours = |record: &Record| record.info.layout_version == LAYOUT_VERSION;
        for ifindex in self.state_dir.pinned()?.into_iter().filter(|other| *other != self.plan.link.index) {
            if self
                .state_dir
                .read_shared(ifindex)
                .is_ok_and(|record| record.as_deref().is_some_and(is_like_ours))
                && dataplane::share(&self.state_dir.pins(ifindex), &self.pins)?
            {
                break;
            }
        }
        Ok(())
    }

    /// Loads and pins the object, without attaching it to a hook.
    fn load(&mut self, info: &mut Info) -> Result<(), Error> {
        let Plan { link, peer, config, sizes, placement, .. } = self.plan;
        let params = Params::new(config, port(link, peer.as_ref(), sizes, info.link_rate_from)?)?;
        let mut ebpf = {
            let mut loader = lock(self.loader);
            // An incomplete rollback may have left pins, whose maps must not be reused.
            remove_pins(&self.pins)?;
            self.state_dir.create_pin_dir(link.index)?;
            self.share()?;
            let (mode, pins) = (info.mode(), Some(self.pins.as_path()));
            match info.which() {
                Programs::Plain => {
                    let loader = loader.get_or_insert_with(EbpfLoader::new);
                    dataplane::create_maps(loader, &Programs::Plain, *sizes, mode, pins, None)?
                }
                // Its sampling interval must outlive the loader.
                trace => dataplane::create_maps(&mut EbpfLoader::new(), &trace, *sizes, mode, pins, None)?,
            }
        };
        dataplane::load_programs(&mut ebpf, info.which(), &info.program_names())?;
        failpoint::step("the maps are pinned");
        Maps::take(&mut ebpf)?.set_params(&params)?;
        pin_run(&mut ebpf, &self.pins)?;
        self.ebpf = Some(ebpf);
        if let Some(pacer::Placement::Kept(note)) = placement {
            info.notes.push(note.clone());
        }
        Ok(())
    }
}
