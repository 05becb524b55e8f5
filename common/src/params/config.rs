//! The parameters an operator sets.

use super::spec::parameters;
use super::{
    Allowed, Invalid, MAX_RATE_BPS, MIN_RATE_BPS, Name, PfcConfig, QUEUES_KINDS, QUEUES_NONE, QueueConfig,
    Spec, Table, Unit,
};
use crate::layout::{CLASSES, DSCPS};
use crate::limit::Limit;
use crate::pfc::watchdog::{StormAction, Watchdog};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MBIT: u64 = 1_000_000;

/// Words of `pfc_wd_action`.
pub(crate) const PFC_WD_ACTIONS: &[&str] = &["forward", "drop"];
/// `pfc_wd_action`: ignore the pauses of a storm.
pub const PFC_WD_FORWARD: u64 = 0;
/// `pfc_wd_action`: drop paused packets during a storm.
pub const PFC_WD_DROP: u64 = 1;

/// Words of `cnp_limit`: scope of a CNP interval. NICs differ (Lumina, SIGCOMM'23, tests all three).
pub const CNP_LIMITS: &[&str] = &["qp", "peer", "port"];
/// `cnp_limit`: one interval per QP, as in the paper.
pub const CNP_LIMIT_QP: u64 = 0;
/// `cnp_limit`: one interval per data sender's address.
pub const CNP_LIMIT_PEER: u64 = 1;
/// `cnp_limit`: one interval for the whole interface.
pub const CNP_LIMIT_PORT: u64 = 2;

/// Words of `np_window`: when to answer marks that arrive within `min_time_between_cnps` of a CNP.
pub(crate) const NP_WINDOWS: &[&str] = &["start", "both"];
/// `np_window`: never; the first mark after that time triggers a CNP, which starts the next window.
pub const NP_WINDOW_START: u64 = 0;
/// `np_window`: by a CNP at the end of that time (DCQCN, SIGCOMM'15, §3.1), which starts the next window.
pub const NP_WINDOW_BOTH: u64 = 1;

/// Words of `pacer`.
pub(crate) const PACERS: &[&str] = &["none", "fq", "htb"];
/// `pacer`: rates are not enforced.
pub const PACER_NONE: u64 = 0;
/// `pacer`: `skb->tstamp` carries the departure time, which the `fq` qdisc enforces.
pub const PACER_FQ: u64 = 1;
/// `pacer`: one HTB class per QP, chosen by `skb->priority`.
pub const PACER_HTB: u64 = 2;

/// Words of `queue_source`.
pub(crate) const QUEUE_SOURCES: &[&str] = &["virtual", "backlog"];
/// `queue_source`: a virtual queue that drains at the class's rate.
pub(crate) const QUEUE_SOURCE_VIRTUAL: u64 = 0;
/// `queue_source`: the backlog of the real qdisc, as polled by `dcqcn run`.
pub const QUEUE_SOURCE_BACKLOG: u64 = 1;

/// Words of `tail_loss_probe`; `on`: on kernels whose soft-RoCE is known to retransmit.
pub(crate) const TAIL_LOSS_PROBES: &[&str] = &["off", "on", "force"];
/// `tail_loss_probe`: no probes.
pub const TAIL_LOSS_PROBE_OFF: u64 = 0;
/// `tail_loss_probe`: probes on every kernel.
pub const TAIL_LOSS_PROBE_FORCE: u64 = 2;

/// Words of `rp_variant`.
pub(crate) const RP_VARIANTS: &[&str] = &["paper", "firmware"];
/// `rp_variant`: a CNP cuts immediately (DCQCN, SIGCOMM'15).
pub const RP_VARIANT_PAPER: u64 = 0;
/// `rp_variant`: free-running alpha and cut periods, as described by the parameters of NVIDIA's firmware.
pub const RP_VARIANT_FIRMWARE: u64 = 1;

/// `alpha_bits`: an integer of 0 to 1023, rounded down at every step, as in NVIDIA's firmware.
pub const COARSE_ALPHA_BITS: u64 = 10;
/// `alpha_bits`: the machine's full precision.
pub(crate) const FINE_ALPHA_BITS: u64 = 31;
/// Values of `alpha_bits`.
pub(crate) const ALPHA_BITS: &[u64] = &[COARSE_ALPHA_BITS, FINE_ALPHA_BITS];

/// `roce_dscp`: the application's DSCP is kept.
pub const DSCP_UNCHANGED: u64 = DSCPS as u64;

/// `trim_dscp_value`: packets are not trimmed.
pub const TRIM_OFF: u64 = DSCPS as u64;

parameters! {
    /// Everything but the per-class tables.
    Scalars {
        /// Congestion point: mark ECT packets CE by queue depth (WRED) at egress, or inline.
        cp_enable = 0, "cp_enable", Unit::Switch, 0, 1, "";
        /// Notification point: answer CE-marked data with CNPs.
        np_enable = 1, "np_enable", Unit::Switch, 0, 1, "";
        /// Reaction point: keep a DCQCN rate per QP and pace its data packets.
        rp_enable = 1, "rp_enable", Unit::Switch, 0, 1, "";
        /// Send CNPs from the congestion point itself for packets marked there, at most one per interval.
        fast_cnp = 0, "fast_cnp", Unit::Switch, 0, 1, "";
        /// Rate of the link; 0 = unknown, which disables everything that depends on it.
        link_rate_bps = 0, "link_rate", Unit::BitsPerSecond, 0 => MIN_RATE_BPS, MAX_RATE_BPS, "Flows start faster, and the virtual queues drain faster.";
        /// Bytes added to every frame on the wire; 24 on Ethernet (preamble 8, FCS 4, gap 12), 0 behind a
        /// software shaper.
        wire_overhead_bytes = 0, "wire_overhead", Unit::Bytes, 0, 64, "Small packets weigh more in queue depth and pacing.";
        /// Queue depth used for marking: of a virtual queue, or of the real qdisc if `dcqcn run` has read it
        /// within 100 ms.
        queue_source = QUEUE_SOURCE_VIRTUAL, "queue_source", Unit::Choice(QUEUE_SOURCES), 0, 1, "";
        /// Drop Not-ECT packets while the queue is above Kmax (as RFC 3168 requires) instead of passing them.
        drop_not_ect = 0, "drop_not_ect", Unit::Switch, 0, 1, "";
        /// Send this host's own Not-ECT RoCE packets with data as ECT(0), for applications that cannot set
        /// the ECN bits.
        ect_enable = 0, "ect_enable", Unit::Switch, 0, 1, "";
        /// DSCP of this host's own RoCE packets except CNPs; 64 = as the application set it.
        roce_dscp = DSCP_UNCHANGED, "roce_dscp", Unit::Count, 0, DSCP_UNCHANGED, "";
        /// Major number of a qdisc; skb->priority selects its class `queue + 1` for the traffic class. 0
        /// leaves skb->priority unchanged.
        priority_major = 0, "priority_major", Unit::Count, 0, 0xffff, "";
        /// Qdisc with eight queues, selected by DSCP; packets without a DSCP use DSCP 0's.
        queues = QUEUES_NONE, "queues", Unit::Choice(QUEUES_KINDS), 0, 2, "";
        /// Duration of a pause storm after which `dcqcn run` acts (SONiC: PFC_WD); 0 = off.
        pfc_wd_detection_time_ns = 0, "pfc_wd_detection_time", Unit::Nanoseconds, 0, 5 * SECOND, "Fewer false alarms, longer effect of a storm.";
        /// Time without a pause after which a storm is over; 0 = twice `pfc_wd_detection_time`.
        pfc_wd_restoration_time_ns = 0, "pfc_wd_restoration_time", Unit::Nanoseconds, 0, 60 * SECOND, "";
        /// Action in a storm: `forward` ignores pauses, `drop` drops paused packets (which ends soft-RoCE's
        /// QPs on Linux 6.12 and later).
        pfc_wd_action = PFC_WD_FORWARD, "pfc_wd_action", Unit::Choice(PFC_WD_ACTIONS), 0, 1, "";

        /// Minimum time between two CNPs in the scope of `cnp_limit` (paper: tau, 50 us).
        min_time_between_cnps_ns = 50 * US, "min_time_between_cnps", Unit::Nanoseconds, 0, SECOND, "Fewer CNPs; senders react later.";
        /// Marks within min_time_between_cnps of a CNP: answered at the end of that time (`both`, as in the
        /// paper), or ignored (`start`).
        np_window = NP_WINDOW_BOTH, "np_window", Unit::Choice(NP_WINDOWS), 0, 1, "";
        /// Scope of a CNP interval.
        cnp_limit = CNP_LIMIT_QP, "cnp_limit", Unit::Choice(CNP_LIMITS), 0, 2, "";
        /// Maximum CNPs per second and interface, with a burst of a hundredth of that; 0 = no limit.
        cnp_rate = 1_000_000, "cnp_rate", Unit::Count, 0, 100_000_000, "Forged marked packets can trigger more CNPs.";
        /// Also answer packets for other hosts, with their IP address. On by default below a bridge, macvlan
        /// or VLAN with its own MAC.
        np_other_host = 0, "np_other_host", Unit::Switch, 0, 1, "";
        /// Also answer ECT packets while this host's CPUs do not keep up with received packets, as read by `dcqcn run`.
        np_host_congestion = 0, "np_host_congestion", Unit::Switch, 0, 1, "";
        /// DSCP of CNPs.
        cnp_dscp = 48, "cnp_dscp", Unit::Count, 0, 63, "";
        /// 802.1p priority of CNPs that leave with a VLAN tag; without one, their `skb->priority`.
        cnp_802p_prio = 6, "cnp_802p_prio", Unit::Count, 0, 7, "";
        /// Drop handled CNPs instead of passing them to the host (soft-RoCE ignores them).
        cnp_consume = 0, "cnp_consume", Unit::Switch, 0, 1, "";

        /// DCQCN variant: `paper` cuts when a CNP arrives; `firmware` checks once per rate_reduce_monitor_period.
        rp_variant = RP_VARIANT_PAPER, "rp_variant", Unit::Choice(RP_VARIANTS), 0, 1, "";
        /// Fractional bits of alpha: 10, an integer of 0 to 1023 rounded down at every step as in NVIDIA's
        /// firmware, or 31.
        alpha_bits = FINE_ALPHA_BITS, "alpha_bits", Unit::OneOf(ALPHA_BITS), COARSE_ALPHA_BITS, FINE_ALPHA_BITS, "";
        /// Period of the increase timer (paper: T, 55 us); 0 = off.
        rpg_time_reset_ns = 55 * US, "rpg_time_reset", Unit::Nanoseconds, 0 => US, 10 * SECOND, "Slower recovery.";
        /// Bytes between two increase events (paper: B, 10 MB; NVIDIA counts it in units of 64 bytes); 0 = off.
        rpg_byte_reset_bytes = 10_000_000, "rpg_byte_reset", Unit::Bytes, 0 => MIN_BYTE_RESET, 10_000_000_000, "Slower recovery of fast flows.";
        /// Increase events of fast recovery (paper: F, 5).
        rpg_threshold = 5, "rpg_threshold", Unit::Count, 0, 31, "Longer fast recovery, later growth beyond the old rate.";
        /// Step of additive increase (paper: R_AI, 40 Mbit/s).
        rpg_ai_rate_bps = 40 * MBIT, "rpg_ai_rate", Unit::BitsPerSecond, 1_000, MAX_RATE_BPS, "Faster growth, deeper queue, less stable.";
        /// Step of hyper increase (paper: R_HAI; the authors' simulator uses 200 Mbit/s).
        rpg_hai_rate_bps = 200 * MBIT, "rpg_hai_rate", Unit::BitsPerSecond, 1_000, MAX_RATE_BPS, "Faster return of a flow that sees no congestion.";
        /// Minimum rate of a flow after cuts.
        rpg_min_rate_bps = 10 * MBIT, "rpg_min_rate", Unit::BitsPerSecond, MIN_RATE_BPS, MAX_RATE_BPS, "Better worst case for a flow, less room for many flows.";
        /// Maximum rate of a flow; 0 = the rate of the link.
        rpg_max_rate_bps = 0, "rpg_max_rate", Unit::BitsPerSecond, 0 => MIN_RATE_BPS, MAX_RATE_BPS, "";
        /// Cut factor: a cut takes alpha / 2^rpg_gd of the rate, alpha counted in 1/1024; 11 is the paper's alpha/2.
        rpg_gd = 11, "rpg_gd", Unit::Count, 10, 15, "Gentler cuts.";
        /// Minimum percentage of the rate that remains after one cut.
        rpg_min_dec_fac = 1, "rpg_min_dec_fac", Unit::Count, 1, 100, "Gentler cuts; 100 turns them off.";
        /// Minimum time between cuts. `firmware`: the CNPs of a period cause one cut. `paper`: earlier CNPs
        /// are ignored (0: as published).
        rate_reduce_monitor_period_ns = 40 * US, "rate_reduce_monitor_period", Unit::Nanoseconds, 0, SECOND, "A flood of CNPs, forged ones too, does less harm.";
        /// `firmware`: every cut first sets the target rate to the current rate, as `paper` always does.
        clamp_tgt_rate = 0, "clamp_tgt_rate", Unit::Switch, 0, 1, "";
        /// `firmware`: a cut sets the target rate to the current rate if the increase timer has expired since
        /// the last cut.
        clamp_tgt_rate_after_time_inc = 1, "clamp_tgt_rate_after_time_inc", Unit::Switch, 0, 1, "";
        /// `firmware`: rate of a flow at its first CNP instead of a cut; 0 = the first CNP cuts like any other.
        rate_to_set_on_first_cnp_bps = 0, "rate_to_set_on_first_cnp", Unit::BitsPerSecond, 0 => MIN_RATE_BPS, MAX_RATE_BPS, "Gentler first reaction.";
        /// Decay of alpha per period, in 1/1024 (gain g = 1 - this/1024; paper: g = 1/256, so 1020).
        dce_tcp_g = 1020, "dce_tcp_g", Unit::Count, 1, 1023, "Alpha follows congestion more slowly: smoother, slower.";
        /// Period of the alpha timer (paper: tau', 55 us; longer than min_time_between_cnps).
        dce_tcp_rtt_ns = 55 * US, "dce_tcp_rtt", Unit::Nanoseconds, US, 10 * SECOND, "Alpha forgets congestion more slowly: deeper cuts.";
        /// Alpha of a new flow, in 1/1024 (paper: 1, so 1024).
        initial_alpha_value = 1024, "initial_alpha_value", Unit::Count, 1, 1024, "Deeper first cut.";

        /// Mechanism that enforces departure times.
        pacer = PACER_NONE, "pacer", Unit::Choice(PACERS), 0, 2, "";
        /// Maximum delay for which a packet is scheduled; keep it below fq's horizon (10 s).
        pacing_horizon_ns = 5 * SECOND, "pacing_horizon", Unit::Nanoseconds, MS, 9 * SECOND, "Rates are enforced for longer queues in the pacer.";
        /// Drop packets beyond the horizon instead of sending them at it; a drop ends soft-RoCE's QPs (Linux
        /// 6.12 and later).
        pacing_horizon_drop = 0, "pacing_horizon_drop", Unit::Switch, 0, 1, "";
        /// Delay that a flow may catch up on, so that late softirqs do not reduce its rate.
        pacing_credit_ns = 100 * US, "pacing_credit", Unit::Nanoseconds, 0, SECOND, "More exact rates, longer bursts.";

        /// Make soft-RoCE retransmit after silence (`dcqcn run`). `on`: on Linux 6.1, 6.12, 7.3 (tested);
        /// `force`: on all.
        tail_loss_probe = TAIL_LOSS_PROBE_OFF, "tail_loss_probe", Unit::Choice(TAIL_LOSS_PROBES), 0, 2, "";
        /// Minimum silence before a probe; otherwise four round trips.
        tail_loss_probe_floor_ns = 20 * MS, "tail_loss_probe_floor", Unit::Nanoseconds, MS, SECOND, "Fewer needless retransmissions, later recovery.";
        /// Probes without progress before soft-RoCE's own timer acts; each uses one `retry_cnt`. 0 = no limit
        /// (`retry_cnt` 7 only).
        tail_loss_probe_limit = 1, "tail_loss_probe_limit", Unit::Count, 0, 7, "Recovery from several losses in a row.";

        /// Entries per second and kind in the event log (`dcqcn events`), with a burst of one second; 0 = none.
        event_rate = 100, "event_rate", Unit::Count, 0, 1_000, "Fewer omitted events, a shorter history.";

        /// DSCP of data cut to its headers because `queue_limit` has no room (SONiC: SWITCH_TRIMMING
        /// `dscp_value`); 64 = off.
        trim_dscp_value = TRIM_OFF, "trim_dscp_value", Unit::Count, 0, TRIM_OFF, "";
        /// Maximum share of the link that trimmed packets use; data beyond it passes untrimmed.
        trim_share_ppm = 250_000, "trim_share", Unit::PartsPerMillion, 1_000, 1_000_000, "More losses are reported, less room for data.";
        /// Answer received trimmed data and drop it (`dcqcn run`): requests by a NAK, READ responses by a
        /// probe; it counts as CE-marked.
        trim_nak = 0, "trim_nak", Unit::Switch, 0, 1, "";
    }
}

impl Scalars {
    /// Whether `ect_enable` or `roce_dscp` changes packets.
    #[inline(always)]
    pub(crate) const fn sets_tos(&self) -> bool {
        self.ect_enable != 0 || self.roce_dscp < DSCP_UNCHANGED
    }
}

parameters! {
    /// WRED of one traffic class at the congestion point.
    WredConfig {
        /// Queue depth up to which nothing is marked (paper: 5 KB at 40 Gbit/s).
        kmin_bytes = 5_000, "kmin", Unit::Bytes, 0, 1_000_000_000, "Marking starts later: more queue, more throughput.";
        /// Queue depth above which every ECT packet is marked (paper: 200 KB at 40 Gbit/s).
        kmax_bytes = 200_000, "kmax", Unit::Bytes, 0, 1_000_000_000, "Gentler marking: more queue, more stable with many flows.";
        /// Marking probability at Kmax (paper: 1 %).
        pmax_ppm = 10_000, "pmax", Unit::PartsPerMillion, 0, 1_000_000, "Stronger marking near Kmax.";
        /// Rate at which this class's virtual queue drains; 0 = link_rate.
        drain_rate_bps = 0, "drain_rate", Unit::BitsPerSecond, 0 => MIN_RATE_BPS, MAX_RATE_BPS, "The queue appears shorter; above the true rate nothing is marked.";
        /// Size of the real buffer, which limits the virtual queue: dropped packets do not queue; 0 = no limit.
        queue_limit_bytes = 0, "queue_limit", Unit::Bytes, 0, 1_000_000_000, "After an overload marking continues longer.";
        /// Enable marking in this class.
        ecn = 1, "ecn", Unit::Switch, 0, 1, "";
    }
}

/// All parameters of one attachment.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Parameters other than the tables.
    pub scalars: Scalars,
    /// WRED per traffic class.
    pub wred: [WredConfig; CLASSES],
    /// Traffic class by DSCP.
    pub dscp_to_tc: [u8; DSCPS],
    /// Queue by traffic class.
    pub tc_to_queue: [u8; CLASSES],
    /// Scheduling by queue.
    pub queue: [QueueConfig; CLASSES],
    /// PFC by priority.
    pub pfc: [PfcConfig; CLASSES],
}

impl Config {
    /// The paper's parameters. DSCP 26 is in TC 3 and queue 3, DSCP 48 in TC 6 and queue 6, the rest in TC 0 and queue
    /// 0.
    pub const DEFAULT: Self = {
        let mut dscp_to_tc = [0; DSCPS];
        dscp_to_tc[26] = 3;
        dscp_to_tc[48] = 6;
        Self {
            scalars: Scalars::DEFAULT,
            wred: [WredConfig::DEFAULT; CLASSES],
            dscp_to_tc,
            tc_to_queue: [0, 0, 0, 3, 0, 0, 6, 0],
            queue: QueueConfig::DEFAULT_ALL,
            pfc: PfcConfig::DEFAULT_ALL,
        }
    };

    /// Rate at which flows start and to which they return: `rpg_max_rate`, or the link's; 0 = unknown.
    pub const fn line_rate_bps(&self) -> u64 {
        let Scalars { rpg_max_rate_bps: max, link_rate_bps: link, .. } = self.scalars;
        if max == 0 || (link != 0 && link < max) { link } else { max }
    }

    /// Rate limit of CNPs: `cnp_rate`, with a burst of a hundredth of a second.
    pub const fn cnps(&self) -> Limit {
        let rate = self.scalars.cnp_rate;
        Limit::new(rate, rate.div_ceil(100))
    }

    /// Rate limit of trimmed packets: `trim_share` of the link, with a burst of a hundredth of a second.
    ///
    /// A gap of 0 = not trimmed: off, or the rate of the link is unknown.
    pub const fn trims(&self) -> Limit {
        let Scalars { link_rate_bps, trim_dscp_value, trim_share_ppm, .. } = self.scalars;
        if trim_dscp_value >= TRIM_OFF || link_rate_bps == 0 {
            return Limit::new(0, 0);
        }
        // 800 Gbit/s · 10^6 fits.
        let rate = link_rate_bps * trim_share_ppm / (1_000_000 * 8 * TRIMMED_BYTES);
        let rate = if rate == 0 { 1 } else { rate };
        Limit::new(rate, rate.div_ceil(100))
    }

    /// Drain rate of class `tc` (taken modulo 8): its own, or the link's; 0 = unknown.
    pub const fn drain_rate_bps(&self, tc: usize) -> u64 {
        match self.wred[tc % CLASSES].drain_rate_bps {
            0 => self.scalars.link_rate_bps,
            own => own,
        }
    }

    /// Settings of the PFC watchdog; `None` = disabled.
    pub const fn watchdog(&self) -> Option<Watchdog> {
        let Scalars {
            pfc_wd_detection_time_ns: detection_ns,
            pfc_wd_restoration_time_ns: restoration_ns,
            ..
        } = self.scalars;
        if detection_ns == 0 {
            return None;
        }
        let restoration_ns = if restoration_ns == 0 { 2 * detection_ns } else { restoration_ns };
        let action =
            if self.scalars.pfc_wd_action == PFC_WD_DROP { StormAction::Drop } else { StormAction::Forward };
        Some(Watchdog { detection_ns, restoration_ns, action })
    }

    /// Checks the range of every value, and conditions between values.
    ///
    /// # Errors
    /// The first violation, with key, value and allowed range.
    pub fn validate(&self) -> Result<(), Invalid> {
        check(Scalars::SPECS, &self.scalars, Name::Scalar)?;
        self.check_tables()?;
        self.check_queues()?;
        check_rates(&self.scalars)?;
        check_rate_machine(&self.scalars)
    }

    fn check_tables(&self) -> Result<(), Invalid> {
        for (tc, wred) in (0..).zip(&self.wred) {
            let name = |key| Name::Row(Table::Wred, tc, key);
            check(WredConfig::SPECS, wred, name)?;
            check_order(name("kmin"), wred.kmin_bytes, "kmax", wred.kmax_bytes, Unit::Bytes)?;
        }
        for (queue, values) in (0..).zip(&self.queue) {
            check(QueueConfig::SPECS, values, |key| Name::Row(Table::Queue, queue, key))?;
        }
        for (priority, values) in (0..).zip(&self.pfc) {
            let name = |key| Name::Row(Table::Pfc, priority, key);
            check(PfcConfig::SPECS, values, name)?;
            check_order(name("xon"), values.xon, "xoff", values.xoff, Unit::Bytes)?;
        }
        for (table, values, len) in [
            (Table::DscpToTc, &self.dscp_to_tc[..], CLASSES),
            (Table::TcToQueue, &self.tc_to_queue[..], CLASSES),
        ] {
            if let Some((index, &value)) = (0..).zip(values).find(|(_, v)| usize::from(**v) >= len) {
                let allowed = Allowed { min: 0, min_nonzero: 0, max: len as u64 - 1, unit: Unit::Count };
                return Err(Invalid::Range { name: Name::Entry(table, index), value: value.into(), allowed });
            }
        }
        Ok(())
    }

    /// Conditions between the queues and other parameters.
    fn check_queues(&self) -> Result<(), Invalid> {
        let s = &self.scalars;
        if s.trim_dscp_value < TRIM_OFF {
            let tc = usize::from(self.dscp_to_tc[s.trim_dscp_value as usize % DSCPS]);
            if self.wred[tc % CLASSES].queue_limit_bytes != 0 {
                return Err(Invalid::TrimmedClass { dscp: s.trim_dscp_value, tc });
            }
        }
        if s.queues != QUEUES_NONE && s.priority_major != 0 {
            return Err(Invalid::TwoQdiscs { priority_major: s.priority_major });
        }
        let paces = s.rp_enable != 0 && s.pacer != PACER_NONE;
        if paces && s.cp_enable != 0 && s.queue_source == QUEUE_SOURCE_BACKLOG {
            return Err(Invalid::OwnBacklog);
        }
        Ok(())
    }
}

/// Conditions between the rates of the link and of the rate machine.
fn check_rates(s: &Scalars) -> Result<(), Invalid> {
    if s.link_rate_bps != 0 && s.rpg_max_rate_bps > s.link_rate_bps {
        return Err(Invalid::AboveLink {
            key: "rpg_max_rate",
            rate_bps: s.rpg_max_rate_bps,
            link_rate_bps: s.link_rate_bps,
        });
    }
    if s.rpg_max_rate_bps != 0 {
        let low = Name::Scalar("rpg_min_rate");
        check_order(low, s.rpg_min_rate_bps, "rpg_max_rate", s.rpg_max_rate_bps, Unit::BitsPerSecond)?;
    }
    if s.link_rate_bps != 0 && s.rpg_min_rate_bps > s.link_rate_bps {
        return Err(Invalid::AboveLink {
            key: "rpg_min_rate",
            rate_bps: s.rpg_min_rate_bps,
            link_rate_bps: s.link_rate_bps,
        });
    }
    Ok(())
}

fn check_rate_machine(s: &Scalars) -> Result<(), Invalid> {
    let first_rate_bps = s.rate_to_set_on_first_cnp_bps;
    if first_rate_bps != 0 && first_rate_bps < s.rpg_min_rate_bps {
        return Err(Invalid::FirstBelowMin { first_rate_bps, min_rate_bps: s.rpg_min_rate_bps });
    }
    if s.rp_variant == RP_VARIANT_FIRMWARE && s.rate_reduce_monitor_period_ns < US {
        return Err(Invalid::NoCutPeriod { period_ns: s.rate_reduce_monitor_period_ns });
    }
    Ok(())
}

/// Assumed length of a trimmed packet on the wire, above that of the longest headers.
const TRIMMED_BYTES: u64 = 128;

/// Smallest `rpg_byte_reset` other than 0 (off): a smaller counter would fire several times per packet.
pub(crate) const MIN_BYTE_RESET: u64 = 1_000;

fn check<T>(
    specs: &'static [Spec<T>],
    values: &T,
    name: impl Fn(&'static str) -> Name,
) -> Result<(), Invalid> {
    for spec in specs {
        let (value, allowed) = ((spec.get)(values), spec.allowed);
        if !allowed.contains(value) {
            return Err(Invalid::Range { name: name(spec.key), value, allowed });
        }
    }
    Ok(())
}

fn check_order(
    low: Name,
    low_value: u64,
    high: &'static str,
    high_value: u64,
    unit: Unit,
) -> Result<(), Invalid> {
    if low_value <= high_value {
        return Ok(());
    }
    Err(Invalid::Order { low, low_value, high, high_value, unit })
}

#[cfg(test)]
mod tests;
