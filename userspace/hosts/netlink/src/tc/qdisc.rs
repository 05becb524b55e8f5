//! Listing, creating and removing qdiscs and classes of one interface.

use std::collections::BTreeMap;
use std::{fmt, io};

use libc::{RTM_DELQDISC, RTM_GETQDISC, RTM_GETTCLASS, RTM_NEWQDISC};
use netlink_packet_core::{NLA_F_NESTED, NLM_F_CREATE, NLM_F_ECHO, NLM_F_REPLACE};
use nix::errno::Errno;

use super::read::{
    Class, Qdisc, Shaper, Shaping, Stats, TBF_BUFFER, TBF_LIMIT, TCA_KIND, TCA_OPTIONS, TCMSG_LEN, burst_ns,
    class, qdisc, rate_bps, stats,
};
use super::spec::{TCA_TBF_PARMS, TCA_TBF_RATE64};
use super::{DELETE_CLASS, Handle, HtbClass, Message, PUT_CLASS, QdiscSpec};
use crate::error::{Error, Result};
use crate::netlink::{Context, Netlink, Subject, Subsystem};
use crate::netns;
use crate::wire::{Encoder, attribute, c_string, u32_at};

/// Index of the loopback interface, the first of every namespace.
pub(super) const LOOPBACK: u32 = 1;

impl Netlink {
    pub fn qdiscs(&self, ifindex: u32) -> Result<Vec<Qdisc>> {
        let bodies = self.dump_tc(format_args!("list the qdiscs"), RTM_GETQDISC, ifindex, Handle::UNSPEC)?;
        // The kernel lists the qdiscs of all interfaces.
        Ok(bodies
            .iter()
            .filter(|body| u32_at(body, 4) == Some(ifindex))
            .filter_map(|body| qdisc(body))
            .collect())
    }

    /// The qdiscs of all interfaces, by index.
    pub fn all_qdiscs(&self) -> Result<BTreeMap<u32, Vec<Qdisc>>> {
        let bodies = self.dump_tc(format_args!("list the qdiscs"), RTM_GETQDISC, 0, Handle::UNSPEC)?;
        let mut all = BTreeMap::<_, Vec<_>>::new();
        for (ifindex, qdisc) in bodies.iter().filter_map(|body| Some((u32_at(body, 4)?, qdisc(body)?))) {
            all.entry(ifindex).or_default().push(qdisc);
        }
        Ok(all)
    }

    pub fn classes(&self, ifindex: u32) -> Result<Vec<Class>> {
        let bodies =
            self.dump_tc(format_args!("list the classes"), RTM_GETTCLASS, ifindex, Handle::UNSPEC)?;
        Ok(bodies.iter().filter_map(|body| class(body)).collect())
    }

    /// The root qdisc; `None` if the interface is down and never had one.
    pub fn root_qdisc(&self, ifindex: u32) -> Result<Option<Qdisc>> {
        Ok(self.qdiscs(ifindex)?.into_iter().find(|qdisc| qdisc.parent == Handle::ROOT))
    }

    /// Statistics of the qdisc at `parent` ([`Handle::ROOT`] or a class): one short exchange, suitable for polling the
    /// queue's depth.
    pub fn qdisc_stats(&self, ifindex: u32, parent: Handle) -> Result<Stats> {
        self.stats_of(RTM_GETQDISC, Message::new(ifindex, Handle::UNSPEC, parent), parent)
    }

    pub fn class_stats(&self, ifindex: u32, class: Handle) -> Result<Stats> {
        self.stats_of(RTM_GETTCLASS, Message::new(ifindex, class, Handle::UNSPEC), class)
    }

    /// Installs a new qdisc at the interface's root; classes of the old one are removed with it.
    pub fn replace_root(&self, ifindex: u32, handle: Handle, spec: &QdiscSpec) -> Result<()> {
        // An existing root with this handle would be changed in place, which HTB does not support, and would retain its
        // classes.
        if self.root_qdisc(ifindex)?.is_some_and(|root| root.handle == handle && handle != Handle::UNSPEC) {
            self.delete_root(ifindex, handle)?;
        }
        self.replace_qdisc(ifindex, Handle::ROOT, handle, spec)
    }

    /// Installs a qdisc at `parent`, or changes the existing one of the same kind and handle.
    pub fn replace_qdisc(
        &self,
        ifindex: u32,
        parent: Handle,
        handle: Handle,
        spec: &QdiscSpec,
    ) -> Result<()> {
        let (kind, mut options) = (spec.kind(), Encoder::default());
        spec.encode(&mut options);
        let operation = format_args!("install the qdisc {kind} {handle} at {parent}");
        self.put_qdisc(operation, Message::new(ifindex, handle, parent), kind, &options.into_bytes())
    }

    /// Removes the root qdisc with this handle; the kernel installs its default.
    ///
    /// # Errors
    /// The root is another one: the kernel's default, or one that another process has installed in the meantime.
    pub fn delete_root(&self, ifindex: u32, handle: Handle) -> Result<()> {
        let root = Message::new(ifindex, handle, Handle::ROOT);
        self.delete_qdisc(format_args!("delete the root qdisc {handle}"), root)
    }

    /// Removes the clsact qdisc unless it has filters, which would be removed too. Returns whether it did.
    pub fn delete_clsact(&self, ifindex: u32) -> Result<bool> {
        for hook in Handle::CLSACT_HOOKS {
            if !self.filters(ifindex, hook)?.is_empty() {
                return Ok(false);
            }
        }
        let clsact = Message::new(ifindex, Handle::UNSPEC, Handle::CLSACT);
        self.delete_qdisc(format_args!("delete the clsact qdisc"), clsact)?;
        Ok(true)
    }

    pub(super) fn delete_qdisc(&self, operation: fmt::Arguments<'_>, message: Message) -> Result<()> {
        self.change_tc(operation, (RTM_DELQDISC, 0), message, |_| {})
    }

    /// Creates or changes an HTB class; its queued packets stay.
    pub fn replace_htb_class(&self, ifindex: u32, class: &HtbClass) -> Result<()> {
        let message = Message::new(ifindex, class.handle, class.parent);
        self.change_tc(format_args!("set the class {}", class.handle), PUT_CLASS, message, |request| {
            htb_class(request, class);
        })
    }

    /// Removes a class and drops its queued packets.
    pub fn delete_class(&self, ifindex: u32, class: Handle) -> Result<()> {
        let message = Message::new(ifindex, class, Handle::UNSPEC);
        self.change_tc(format_args!("delete the class {class}"), DELETE_CLASS, message, |_| {})
    }

    /// The root TBF, or the only top class of a root HTB, that limits the interface.
    pub fn shaping(&self, ifindex: u32) -> Result<Option<Shaping>> {
        let qdiscs = self.qdiscs(ifindex)?;
        let Some(root) = qdiscs.iter().find(|qdisc| qdisc.parent == Handle::ROOT) else { return Ok(None) };
        let shaping = |shaper, rate_bps: Option<u64>, burst_ns: Option<u64>, limit_bytes| {
            Some(Shaping { shaper, rate_bps: rate_bps?, burst_ns: burst_ns?, limit_bytes })
        };
        match root.kind.as_str() {
            "tbf" => {
                let rate_bps = rate_bps(&root.options, TCA_TBF_PARMS, 0, TCA_TBF_RATE64);
                let burst_ns = burst_ns(&root.options, TCA_TBF_PARMS, TBF_BUFFER);
                // The kernel does not list the fifo that `limit` creates.
                let is_below = |qdisc: &Qdisc| qdisc.parent.major() == root.handle.major();
                let limit_bytes = match qdiscs.iter().any(is_below) {
                    true => None,
                    false => attribute(&root.options, TCA_TBF_PARMS).and_then(|of| u32_at(of, TBF_LIMIT)),
                };
                Ok(shaping(Shaper::Tbf, rate_bps, burst_ns, limit_bytes))
            }
            "htb" => {
                let classes = self.classes(ifindex)?;
                let mut top = classes.iter().filter(|class| class.parent == Handle::ROOT);
                Ok(match (top.next(), top.next()) {
                    (Some(class), None) => {
                        shaping(Shaper::Htb { class: class.handle }, class.rate_bps, class.burst_ns, None)
                    }
                    _ => None,
                })
            }
            _ => Ok(None),
        }
    }

    /// Installs a qdisc of any kind, with options as raw bytes.
    pub(super) fn put_qdisc(
        &self,
        operation: fmt::Arguments<'_>,
        message: Message,
        kind: &str,
        options: &[u8],
    ) -> Result<()> {
        self.change_tc(operation, (RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE), message, |request| {
            request.attribute(TCA_KIND, &c_string(kind));
            if !options.is_empty() {
                // ets requires the flag of nested attributes (Linux 5.6); a fifo's options are not nested.
                let nested = if kind == "ets" { NLA_F_NESTED } else { 0 };
                request.attribute(TCA_OPTIONS | nested, options);
            }
        })
    }

    fn stats_of(&self, kind: u16, message: Message, which: Handle) -> Result<Stats> {
        let context = Context {
            operation: format_args!("read the statistics of {which}"),
            subject: Subject::Interface(message.ifindex),
        };
        // Older kernels answer with a notification, which the requester gets only with an echo.
        let bodies =
            self.request(context, Subsystem::Route, kind, NLM_F_ECHO, |request| message.encode(request))?;
        let body = bodies.first().and_then(|body| body.get(TCMSG_LEN..));
        body.map(stats)
            .ok_or_else(|| Error::Decode { what: "a queue", detail: "the answer is empty".to_owned() })
    }
}

/// Whether the kernel has a qdisc of this kind, built in or as a loadable module.
///
/// It is tried on the loopback of a temporary namespace. Without CAP_SYS_ADMIN, which that requires, it is
/// tried on the process's own loopback, with options that every kind rejects before changing anything.
///
/// # Errors
/// The process lacks CAP_NET_ADMIN.
pub fn kernel_has_qdisc(kind: &str) -> Result<bool> {
    // Without options most kinds fail to start (EINVAL); only the kind's existence matters.
    match netns::in_temporary_netns(|| supports_qdisc(kind, Handle::new(1, 0), &[])) {
        Err(Error::Netns { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
            // Attribute 1 is a structure or a 32-bit number; here it has one byte.
            let mut refused = Encoder::default();
            refused.attribute(1, &[0]);
            supports_qdisc(kind, Handle::new(0xdcff, 0), &refused.into_bytes())
        }
        result => result,
    }
}

fn supports_qdisc(kind: &str, handle: Handle, options: &[u8]) -> Result<bool> {
    let message = Message::new(LOOPBACK, handle, Handle::ROOT);
    match Netlink::connect()?.put_qdisc(format_args!("try the qdisc {kind}"), message, kind, options) {
        Err(Error::Refused { refusal, .. }) if refusal.errno == Errno::ENOENT => Ok(false),
        Err(Error::Refused { refusal, .. }) if refusal.errno != Errno::EPERM => Ok(true),
        tried => tried.map(|()| true),
    }
}

pub(super) fn htb_class(request: &mut Encoder, class: &HtbClass) {
    request.attribute(TCA_KIND, b"htb\0");
    request.nested(TCA_OPTIONS, |options| class.encode(options));
}
