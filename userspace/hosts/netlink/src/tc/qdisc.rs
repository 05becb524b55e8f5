//! Listing, creating and removing qdiscs and classes of one interface.

use std::collections::BTreeMap;
use std::io;

use libc::{RTM_DELQDISC, RTM_DELTCLASS, RTM_GETQDISC, RTM_GETTCLASS, RTM_NEWQDISC, RTM_NEWTCLASS};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_ECHO, NLM_F_REPLACE};
use nix::errno::Errno;

use super::read::{
    Class, Qdisc, Shaper, Shaping, Stats, TBF_BUFFER, TBF_LIMIT, TCA_KIND, TCA_OPTIONS, TCMSG_LEN, burst_ns,
    class, qdisc, rate_bps, stats,
};
use super::spec::{TCA_TBF_PARMS, TCA_TBF_RATE64};
use super::{Handle, HtbClass, QdiscSpec};
use crate::error::{Error, Refusal, Result};
use crate::netlink::{Netlink, Subsystem};
use crate::netns;
use crate::wire::{Encoder, attribute, u32_at};

/// Index of the loopback interface, the first of every namespace.
pub(super) const LOOPBACK: u32 = 1;

impl Netlink {
    /// All qdiscs of the interface.
    pub fn qdiscs(&self, ifindex: u32) -> Result<Vec<Qdisc>> {
        let bodies = self
            .dump(Subsystem::Route, RTM_GETQDISC, |request| {
                tcmsg(request, ifindex, Handle::UNSPEC, Handle::UNSPEC)
            })?
            .map_err(|refusal| self.kernel_error("list the qdiscs", ifindex, refusal))?;
        // The kernel lists the qdiscs of all interfaces.
        Ok(bodies
            .iter()
            .filter(|body| u32_at(body, 4) == Some(ifindex))
            .filter_map(|body| qdisc(body))
            .collect())
    }

    /// The qdiscs of all interfaces, by index.
    pub fn all_qdiscs(&self) -> Result<BTreeMap<u32, Vec<Qdisc>>> {
        let bodies = self
            .dump(Subsystem::Route, RTM_GETQDISC, |request| {
                tcmsg(request, 0, Handle::UNSPEC, Handle::UNSPEC)
            })?
            .map_err(|refusal| Error::Refused {
                operation: "list the qdiscs".into(),
                subject: "all interfaces".into(),
                refusal,
            })?;
        let mut all = BTreeMap::<_, Vec<_>>::new();
        for (ifindex, qdisc) in bodies.iter().filter_map(|body| Some((u32_at(body, 4)?, qdisc(body)?))) {
            all.entry(ifindex).or_default().push(qdisc);
        }
        Ok(all)
    }

    /// All classes of the interface.
    pub fn classes(&self, ifindex: u32) -> Result<Vec<Class>> {
        let bodies = self
            .dump(Subsystem::Route, RTM_GETTCLASS, |request| {
                tcmsg(request, ifindex, Handle::UNSPEC, Handle::UNSPEC)
            })?
            .map_err(|refusal| self.kernel_error("list the classes", ifindex, refusal))?;
        Ok(bodies.iter().filter_map(|body| class(body)).collect())
    }

    /// The root qdisc; `None` if the interface is down and never had one.
    pub fn root_qdisc(&self, ifindex: u32) -> Result<Option<Qdisc>> {
        Ok(self.qdiscs(ifindex)?.into_iter().find(|qdisc| qdisc.parent == Handle::ROOT))
    }

    /// Statistics of the qdisc at `parent` ([`Handle::ROOT`] or a class): one short exchange, suitable for polling the
    /// queue's depth.
    ///
    /// # Errors
    /// There is no qdisc at `parent`.
    pub fn qdisc_stats(&self, ifindex: u32, parent: Handle) -> Result<Stats> {
        self.stats_of(RTM_GETQDISC, ifindex, Handle::UNSPEC, parent)
    }

    /// Statistics of one class.
    ///
    /// # Errors
    /// There is no such class.
    pub fn class_stats(&self, ifindex: u32, class: Handle) -> Result<Stats> {
        self.stats_of(RTM_GETTCLASS, ifindex, class, Handle::UNSPEC)
    }

    /// Installs a new qdisc at the interface's root; classes of the old one are removed with it.
    ///
    /// # Errors
    /// The kernel lacks the kind or rejects the options, or the process lacks CAP_NET_ADMIN.
    pub fn replace_root(&self, ifindex: u32, handle: Handle, spec: &QdiscSpec) -> Result<()> {
        // An existing root with this handle would be changed in place, which HTB does not support, and would retain its
        // classes.
        if self.root_qdisc(ifindex)?.is_some_and(|root| root.handle == handle && handle != Handle::UNSPEC) {
            self.delete_root(ifindex)?;
        }
        self.replace_qdisc(ifindex, Handle::ROOT, handle, spec)
    }

    /// Installs a qdisc at `parent`, or changes the existing one of the same kind and handle.
    ///
    /// # Errors
    /// There is no such parent, the kernel lacks the kind or rejects the options, or the process lacks
    /// CAP_NET_ADMIN.
    pub fn replace_qdisc(
        &self,
        ifindex: u32,
        parent: Handle,
        handle: Handle,
        spec: &QdiscSpec,
    ) -> Result<()> {
        let mut options = Encoder::default();
        spec.encode(&mut options);
        self.send_qdisc(ifindex, parent, handle, spec.kind(), &options.into_bytes())?.map_err(|refusal| {
            self.kernel_error(
                format!("install the qdisc {} {handle} at {parent}", spec.kind()),
                ifindex,
                refusal,
            )
        })
    }

    /// Removes the root qdisc; the kernel installs its default.
    ///
    /// # Errors
    /// The root is the kernel's default, or the process lacks CAP_NET_ADMIN.
    pub fn delete_root(&self, ifindex: u32) -> Result<()> {
        self.change(RTM_DELQDISC, 0, |request| tcmsg(request, ifindex, Handle::UNSPEC, Handle::ROOT))?
            .map_err(|refusal| self.kernel_error("delete the root qdisc", ifindex, refusal))
    }

    /// Removes the clsact qdisc unless it has filters, which would be removed too. Returns whether it did.
    ///
    /// # Errors
    /// There is none, or the process lacks CAP_NET_ADMIN.
    pub fn delete_clsact(&self, ifindex: u32) -> Result<bool> {
        for hook in Handle::CLSACT_HOOKS {
            if !self.filters(ifindex, hook)?.is_empty() {
                return Ok(false);
            }
        }
        self.change(RTM_DELQDISC, 0, |request| tcmsg(request, ifindex, Handle::UNSPEC, Handle::CLSACT))?
            .map_err(|refusal| self.kernel_error("delete the clsact qdisc", ifindex, refusal))?;
        Ok(true)
    }

    /// Creates or changes an HTB class; its queued packets stay.
    ///
    /// # Errors
    /// There is no such parent, or the process lacks CAP_NET_ADMIN.
    pub fn replace_htb_class(&self, ifindex: u32, class: &HtbClass) -> Result<()> {
        let (kind, flags) = PUT_CLASS;
        self.change(kind, flags, |request| htb_class(request, ifindex, class))?
            .map_err(|refusal| self.kernel_error(format!("set the class {}", class.handle), ifindex, refusal))
    }

    /// Removes a class and drops its queued packets.
    ///
    /// # Errors
    /// There is no such class, it has classes of its own, or the process lacks CAP_NET_ADMIN.
    pub fn delete_class(&self, ifindex: u32, class: Handle) -> Result<()> {
        self.change(RTM_DELTCLASS, 0, |request| tcmsg(request, ifindex, class, Handle::UNSPEC))?
            .map_err(|refusal| self.kernel_error(format!("delete the class {class}"), ifindex, refusal))
    }

    /// The root TBF, or the only top class of a root HTB, that limits the interface.
    pub fn shaping(&self, ifindex: u32) -> Result<Option<Shaping>> {
        let Some(root) = self.root_qdisc(ifindex)? else { return Ok(None) };
        let shaping = |shaper, rate_bps: Option<u64>, burst_ns: Option<u64>, limit_bytes| {
            Some(Shaping { shaper, rate_bps: rate_bps?, burst_ns: burst_ns?, limit_bytes })
        };
        match root.kind.as_str() {
            "tbf" => {
                let rate_bps = rate_bps(&root.options, TCA_TBF_PARMS, 0, TCA_TBF_RATE64);
                let burst_ns = burst_ns(&root.options, TCA_TBF_PARMS, TBF_BUFFER);
                // The kernel does not list the fifo that `limit` creates.
                let is_below = |qdisc: &Qdisc| qdisc.parent.major() == root.handle.major();
                let limit_bytes = match self.qdiscs(ifindex)?.iter().any(is_below) {
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

    /// Installs a qdisc of any kind at `parent`, with options as raw bytes.
    pub(super) fn send_qdisc(
        &self,
        ifindex: u32,
        parent: Handle,
        handle: Handle,
        kind: &str,
        options: &[u8],
    ) -> Result<std::result::Result<(), Refusal>> {
        self.change(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, |request| {
            tcmsg(request, ifindex, handle, parent);
            request.attribute(TCA_KIND, &c_string(kind));
            if !options.is_empty() {
                // ets requires the flag of nested attributes (Linux 5.6); a fifo's options are not nested.
                request.options(TCA_OPTIONS, options, kind == "ets");
            }
        })
    }

    pub(super) fn kernel_error(&self, operation: impl Into<String>, ifindex: u32, refusal: Refusal) -> Error {
        Error::Refused { operation: operation.into(), subject: self.name_of(ifindex), refusal }
    }

    fn stats_of(&self, kind: u16, ifindex: u32, handle: Handle, parent: Handle) -> Result<Stats> {
        // Older kernels answer with a notification, which the requester gets only with an echo.
        let bodies = self
            .get(Subsystem::Route, kind, NLM_F_ECHO, |request| tcmsg(request, ifindex, handle, parent))?
            .map_err(|refusal| {
                let which = if handle == Handle::UNSPEC { parent } else { handle };
                self.kernel_error(format!("read the statistics of {which}"), ifindex, refusal)
            })?;
        let body = bodies.first().and_then(|body| body.get(TCMSG_LEN..));
        body.map(stats)
            .ok_or_else(|| Error::Decode { what: "a queue", detail: "the answer is empty".to_owned() })
    }
}

/// Whether the kernel has a qdisc of this kind, built in or as a loadable module. It is tried on the loopback of a
/// temporary namespace. Without CAP_SYS_ADMIN, which that requires, it is tried on the process's own loopback, with
/// options that every kind rejects before changing anything.
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
    let netlink = Netlink::connect()?;
    match netlink.send_qdisc(LOOPBACK, Handle::ROOT, handle, kind, options)? {
        Err(refusal) if refusal.errno == Errno::ENOENT => Ok(false),
        Err(refusal) if refusal.errno == Errno::EPERM => {
            Err(netlink.kernel_error(format!("try the qdisc {kind}"), LOOPBACK, refusal))
        }
        _ => Ok(true),
    }
}

/// Message type and flags that create or change a class.
pub(super) const PUT_CLASS: (u16, u16) = (RTM_NEWTCLASS, NLM_F_CREATE | NLM_F_REPLACE);

/// Body of a request to set an HTB class.
pub(super) fn htb_class(request: &mut Encoder, ifindex: u32, class: &HtbClass) {
    tcmsg(request, ifindex, class.handle, class.parent);
    request.attribute(TCA_KIND, b"htb\0");
    request.nested(TCA_OPTIONS, |options| class.encode(options));
}

/// `struct tcmsg`: family, padding, ifindex, handle, parent, info.
pub(super) fn tcmsg(request: &mut Encoder, ifindex: u32, handle: Handle, parent: Handle) {
    tcmsg_with_info(request, ifindex, handle, parent, 0);
}

/// `info` of a filter is its priority and protocol.
pub(super) fn tcmsg_with_info(
    request: &mut Encoder,
    ifindex: u32,
    handle: Handle,
    parent: Handle,
    info: u32,
) {
    for word in [0, ifindex, handle.0, parent.0, info] {
        request.raw(&word.to_ne_bytes());
    }
}

pub(super) fn c_string(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}
