//! Sends tail-loss probes, and NAKs for trimmed requests; see [`dcqcn_common::recovery`].

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use dcqcn_common::events::EventKind;
use dcqcn_common::flow::{FlowId, QpId};
use dcqcn_common::params::{Params, TAIL_LOSS_PROBE_FORCE, TAIL_LOSS_PROBE_OFF};
use dcqcn_common::recovery::{Action, Requester, Sent, Settings as Rules};
use dcqcn_common::wire::ecn::{self, Ecn};
use dcqcn_common::wire::eth::with_other_local_bit;
use dcqcn_common::wire::ext::{NakCode, Syndrome};
use dcqcn_common::wire::nak::{self, Macs, Nak};
use dcqcn_loader::attach;
use dcqcn_loader::dataplane::{self, Direction, Probe};
use dcqcn_loader::soft_roce::SoftRoce;
use dcqcn_netlink::Netlink;
use dcqcn_params::qp::address;
use dcqcn_support::clock::monotonic_ns;

use super::work::{Begun, Port, Start, Work};
use crate::error::Result;

/// Interval between checks whether the parameters enable it.
const IDLE_PERIOD: Duration = Duration::from_millis(500);
/// Idle time after which a requester is forgotten: its acknowledged PSN must be learned again.
const FORGET_NS: u64 = 600_000_000_000;

/// Delay before a QP is checked again whose check failed.
const RETRY_NS: u64 = 1_000_000_000;
/// A requester idle for longer than this is not in use, and is not taken over from an earlier daemon.
const FRESH_NS: u64 = 1_000_000_000;
/// Interval between checks of a requester in use. A first round-trip time, or progress after several probes, makes the
/// next probe due earlier, and is not announced.
const CHECK_NS: u64 = 100_000_000;

/// 0.01 ms (IBTA vol. 1, 9.7.5.2.8).
const SHORTEST_RNR_TIMER: u8 = 1;

/// State of an announced QP between two checks.
#[derive(Default)]
struct QpState {
    due_ns: u64,
    sent: Sent,
    progress: (u32, u32),
    /// Last NAK for a trimmed request; 0 = none.
    nak_ns: u64,
}

struct Prober {
    port: Arc<Port>,
    /// Open while enabled.
    probe: Option<Probe>,
    states: HashMap<FlowId, QpState>,
    /// Whether the parameters enabled tail-loss probes at the last run.
    probed: bool,
    soft_roce: SoftRoce,
    has_warned: bool,
}

/// Starts the task, if the interface has both programs of a host.
pub(super) fn begin(Start { port, .. }: Start<'_>) -> Begun {
    let has = |hook: &str| port.info.programs.iter().any(|name| name == hook);
    if !has("ingress") || !has("egress") {
        return Ok(None);
    }
    let (states, soft_roce) = (HashMap::new(), SoftRoce::current());
    Ok(Some(Box::new(Prober { port, probe: None, states, probed: false, soft_roce, has_warned: false })))
}

impl Work for Prober {
    fn run(&mut self, _: &Netlink) -> Result<Duration> {
        let params = self.port.maps().params()?;
        let probes = self.probes(&params);
        let follows = params.config.scalars.tail_loss_probe != TAIL_LOSS_PROBE_OFF;
        if self.probed && !follows {
            self.forget_all()?;
        }
        self.probed = follows;
        if !probes && params.config.scalars.trim_nak == 0 {
            (self.probe, self.states) = (None, HashMap::new());
            return Ok(IDLE_PERIOD);
        }
        let now_ns = monotonic_ns();
        let probe = match &mut self.probe {
            Some(probe) => probe,
            None => {
                // Requesters announced to an earlier daemon, or before the parameters changed. One idle since
                // then may have wrapped its PSNs: forget it.
                let known = self.port.maps().requesters().collect::<std::result::Result<Vec<_>, _>>()?;
                for (id, requester) in known {
                    if now_ns.saturating_sub(requester.last_used_ns()) > FRESH_NS {
                        self.port.maps_mut().remove_requester(&id)?;
                    } else {
                        self.states.entry(id).or_default().due_ns = now_ns;
                    }
                }
                self.probe.insert(attach::open_probe(&self.port.info)?)
            }
        };
        for id in probe.announced() {
            self.states.entry(id).or_default().due_ns = now_ns;
        }
        let takes_naks_in_reads = self.soft_roce.takes_naks_in_reads();
        let mut failed = None;
        for (id, state) in &mut self.states {
            if state.due_ns > now_ns {
                continue;
            }
            let check = Check { port: &self.port, params: &params, probe, id, now_ns, takes_naks_in_reads };
            if let Err(error) = check.run(state, probes) {
                // One QP must not keep those behind it from being checked.
                state.due_ns = now_ns + RETRY_NS;
                failed = failed.or(Some(error));
            }
        }
        self.states.retain(|_, state| state.due_ns != 0);
        if let Some(error) = failed {
            return Err(error);
        }
        let due_ns = self.states.values().map(|state| state.due_ns).min();
        let rest = due_ns.map_or(IDLE_PERIOD, |due_ns| Duration::from_nanos(due_ns.saturating_sub(now_ns)));
        Ok(rest.min(IDLE_PERIOD))
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.probe.as_ref().map(Probe::fd)
    }
}

impl Prober {
    /// Forgets all requesters: the programs no longer follow their PSNs, though `trim_nak` may keep them in use.
    fn forget_all(&mut self) -> Result<()> {
        let known = self.port.maps().requesters().collect::<std::result::Result<Vec<_>, _>>()?;
        for (id, _) in known {
            self.port.maps_mut().remove_requester(&id)?;
        }
        self.states.clear();
        Ok(())
    }

    /// Whether to send tail-loss probes.
    fn probes(&mut self, params: &Params) -> bool {
        match params.config.scalars.tail_loss_probe {
            TAIL_LOSS_PROBE_OFF => return false,
            TAIL_LOSS_PROBE_FORCE => return true,
            _ => {}
        }
        let is_tested = self.soft_roce.is_tested_with_probes();
        if !is_tested && !self.has_warned {
            self.has_warned = true;
            tracing::warn!(
                iface = self.port.info.iface,
                kernel = %self.soft_roce,
                "no tail-loss probes: not tested on this kernel; tail_loss_probe=force sends them anyway"
            );
        }
        is_tested
    }
}

struct Check<'a> {
    port: &'a Port,
    params: &'a Params,
    probe: &'a Probe,
    id: &'a FlowId,
    now_ns: u64,
    takes_naks_in_reads: bool,
}

impl Check<'_> {
    /// Sends what is due, and sets the time of the next check; 0 = forget the QP.
    fn run(&self, state: &mut QpState, probes: bool) -> Result<()> {
        let Some(requester) = self.port.maps().requester(self.id)? else {
            state.due_ns = 0;
            return Ok(());
        };
        let scalars = &self.params.config.scalars;
        let rules = Rules {
            floor_ns: scalars.tail_loss_probe_floor_ns,
            limit: scalars.tail_loss_probe_limit as u32,
            takes_naks_in_reads: self.takes_naks_in_reads,
        };
        state.due_ns = self.probe(&requester, rules, state, probes)?;
        if scalars.trim_nak != 0 {
            state.due_ns = state.due_ns.min(self.answer(&requester, rules, state)?);
        }
        Ok(())
    }

    /// The tail-loss probe. Returns the time of the next check.
    fn probe(&self, requester: &Requester, rules: Rules, state: &mut QpState, probes: bool) -> Result<u64> {
        let &Self { port, params, id, now_ns, .. } = self;
        if requester.progress() != state.progress || requester.has_timed_out(state.sent) {
            (state.progress, state.sent.probes) = (requester.progress(), 0);
        }
        let action = if probes {
            let is_paced = params.config.scalars.rp_enable != 0;
            let paced = if is_paced { port.maps().rp_find(params, id)? } else { None };
            // Not that of READ responses, which the QP may be sending all the time.
            let departs_ns = paced.map_or(0, |flow| flow.hot.last_request_ns());
            requester.action(rules, now_ns, state.sent, departs_ns)
        } else {
            Action::Idle
        };
        Ok(match action {
            // Also with requests outstanding: their QP has ended.
            _ if now_ns.saturating_sub(requester.last_used_ns()) > FORGET_NS => {
                port.maps_mut().remove_requester(id)?;
                0
            }
            Action::At(due_ns) => next_check_ns(requester, due_ns, now_ns),
            // Until the next announcement.
            Action::Idle if requester.is_announced_again(now_ns) => requester.last_used_ns() + FORGET_NS + 1,
            Action::Idle => now_ns + rules.floor_ns,
            Action::Nak(psn) | Action::RnrNak(psn) => {
                let syndrome = syndrome(action);
                let (dest_qpn, udp_sport) = (requester.own_qpn(), requester.udp_sport());
                // A macvlan's, for example: with the port's, the host would route the NAK to the peer.
                let mac = requester.mac();
                let nak = Nak { dest_qpn, psn, udp_sport, tos: 0, tpid: requester.tpid(), pcp: 0, syndrome };
                let silent_ns = now_ns.saturating_sub(requester.last_ns());
                // A bridge logs frames from its own port's address.
                let macs = Macs { dst: mac, src: with_other_local_bit(mac) };
                if self.send(Direction::In, id, macs, &nak)? {
                    self.report(psn, silent_ns)?;
                }
                state.sent = Sent { probes: state.sent.probes.saturating_add(1), at_ns: now_ns };
                now_ns + rules.floor_ns
            }
        })
    }

    /// The NAK for a trimmed request. Returns the time of the next check.
    fn answer(&self, requester: &Requester, rules: Rules, state: &mut QpState) -> Result<u64> {
        let action = requester.answer(rules, self.now_ns, state.nak_ns);
        let psn = match action {
            Action::At(due_ns) => return Ok(due_ns),
            Action::Nak(psn) | Action::RnrNak(psn) => psn,
            Action::Idle => return Ok(u64::MAX),
        };
        let FlowId { src: own, receiver: QpId { addr: peer, qpn: dest_qpn, vlan } } = *self.id;
        // The flow that the NAK answers; its destination QPN is not part of a NAK.
        let flow = FlowId { src: peer, receiver: QpId { addr: own, qpn: 0, vlan } };
        let responder = requester.responder();
        let nak = Nak {
            dest_qpn,
            psn,
            udp_sport: responder.udp_sport(),
            tos: ecn::tos(self.params.config.scalars.cnp_dscp as u8, Ecn::NOT_ECT),
            tpid: requester.tpid(),
            pcp: self.params.config.scalars.cnp_802p_prio as u8,
            syndrome: syndrome(action),
        };
        // The request may have been flooded: switches must not learn its destination at this port.
        let macs = Macs { src: self.params.port.mac, ..responder.macs() };
        if self.send(Direction::Out, &flow, macs, &nak)? {
            let (iface, peer) = (&self.port.info.iface, address(&self.id.receiver));
            tracing::debug!(iface, %peer, qpn = dest_qpn, psn, "NAK sent for a trimmed request");
        }
        state.nak_ns = self.now_ns;
        Ok(self.now_ns + rules.floor_ns)
    }

    /// Delivers a NAK of the receiver of `flow`. Returns false if its VLAN tags are not supported, or it was dropped.
    fn send(&self, direction: Direction, flow: &FlowId, macs: Macs, nak: &Nak) -> Result<bool> {
        let mut out = [0; nak::MAX_LEN];
        let Some(frame) = nak::emit(&mut out, flow, macs, nak) else {
            return Ok(false);
        };
        was_delivered(self.probe.deliver(direction, self.port.info.ifindex, self.params.port.cnp_mark, frame))
    }

    /// Logs a probe, and adds it to the events.
    fn report(&self, psn: u32, silent_ns: u64) -> Result<()> {
        let &Self { port, id, now_ns, .. } = self;
        tracing::debug!(
            iface = port.info.iface,
            peer = %address(&id.receiver),
            qpn = id.receiver.qpn,
            psn,
            silent_ns,
            "tail-loss probe delivered"
        );
        port.maps().record(EventKind::TailLossProbe, id.receiver, now_ns, [psn.into(), silent_ns])?;
        Ok(())
    }
}

/// Time of the next check if nothing is due before `due_ns`.
fn next_check_ns(requester: &Requester, due_ns: u64, now_ns: u64) -> u64 {
    let is_in_use = now_ns.saturating_sub(requester.last_ns()) <= FRESH_NS;
    if is_in_use { due_ns.min(now_ns + CHECK_NS) } else { due_ns }
}

const fn syndrome(action: Action) -> Syndrome {
    match action {
        Action::RnrNak(_) => Syndrome::RnrNak { timer: SHORTEST_RNR_TIMER },
        _ => Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR),
    }
}

/// Whether a frame was delivered. One that was dropped counts as sent, like one that is lost later.
fn was_delivered(result: Result<(), dataplane::Error>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error @ dataplane::Error::NotDelivered { .. }) => {
            tracing::debug!(%error);
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::recovery::{Request, Response, SharedRequester};
    use dcqcn_common::wire::bth::Opcode;

    use super::*;

    /// An error would delay the checks of all other QPs.
    #[test]
    fn dropped_probe_counts_as_sent() {
        assert!(was_delivered(Ok(())).unwrap());
        for result in [1, 2, -100] {
            assert!(!was_delivered(Err(dataplane::Error::NotDelivered { ifindex: 2, result })).unwrap());
        }
        was_delivered(Err(dataplane::Error::Missing("REQUESTS"))).unwrap_err();
    }

    /// The first check, at the first packet, is before the round trip.
    #[test]
    fn first_round_trip_makes_probe_due_earlier() {
        const MS: u64 = 1_000_000;
        let rules = Rules { floor_ns: 20 * MS, limit: 1, takes_naks_in_reads: true };
        let send = |psn| Request { opcode: Opcode::RC_SEND_ONLY, psn, ack_request: true, bytes: 0 };
        let ack = Response { opcode: Opcode::RC_ACKNOWLEDGE, psn: 1, syndrome: 0, own_qpn: 17, udp_sport: 1 };
        let mut requester = Requester::NEW;
        let start_ns = 1_000 * MS;
        assert!(SharedRequester::new(&mut requester).on_request(&send(1), start_ns));
        let Action::At(due_ns) = requester.action(rules, start_ns, Sent::default(), 0) else {
            panic!("a probe is due");
        };
        let checked_ns = next_check_ns(&requester, due_ns, start_ns);
        SharedRequester::new(&mut requester).on_response(&ack, start_ns + 5 * MS);
        assert!(!SharedRequester::new(&mut requester).on_request(&send(2), start_ns + 6 * MS));
        assert_eq!(requester.action(rules, checked_ns, Sent::default(), 0), Action::Nak(2));
        assert!(checked_ns <= start_ns + 100 * MS, "{checked_ns}");
        // Until its next packet, which is announced.
        assert_eq!(next_check_ns(&requester, u64::MAX, start_ns + 2_000 * MS), u64::MAX);
    }
}
