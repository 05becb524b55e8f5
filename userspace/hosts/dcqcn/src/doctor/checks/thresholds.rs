//! Fit of the parameters to the link, and their stability.

use dcqcn_common::params::{MIN_RATE_BPS, PACER_NONE, RP_VARIANT_PAPER, WredConfig};
use dcqcn_loader::{pacer, queues};
use dcqcn_netlink::tc::Shaping;
use dcqcn_params::fluid::{self, Bottleneck};

use super::{Finding, Reading, Severity, Snapshot, ppm, rate, size, time, transmission_ns};

/// Overhead of a frame, bytes: Ethernet, IPv4, UDP, BTH, ICRC.
const HEADERS_BYTES: u64 = 14 + 20 + 8 + 12 + 4;
/// Number of flows with which a bottleneck should be stable.
const EXPECTED_FLOWS: u64 = 8;
/// A burst that suffices on physical CPUs.
const GOOD_BURST_NS: u64 = 10_000_000;
/// Maximum number of flows evaluated.
const MAX_FLOWS: u64 = 1 << 16;

/// Bytes of a full RoCE frame: the largest InfiniBand path MTU that fits the interface's.
fn frame_bytes(mtu: u32) -> u64 {
    let max_payload = u64::from(mtu) + 14 - HEADERS_BYTES.min(u64::from(mtu));
    [4_096, 2_048, 1_024, 512, 256].into_iter().find(|payload| *payload <= max_payload).unwrap_or(256)
        + HEADERS_BYTES
}

/// A class that marks packets on the way to an interface.
pub(super) struct MarkingClass<'a> {
    reading: &'a Reading<'a>,
    tc: usize,
    wred: &'a WredConfig,
    drain_bps: u64,
    frame_bytes: u64,
}

impl<'a> MarkingClass<'a> {
    /// Those of an attachment that marks, if its interface was read.
    pub(super) fn all(reading: &'a Reading<'a>) -> impl Iterator<Item = Self> {
        reading.link().into_iter().flat_map(move |link| {
            let frame_bytes = frame_bytes(link.mtu);
            reading.marking_classes().into_iter().filter_map(move |tc| {
                let (wred, drain_bps) = (reading.config.wred.get(tc)?, reading.config.drain_rate_bps(tc));
                Some(Self { reading, tc, wred, drain_bps, frame_bytes })
            })
        })
    }

    fn param(&self, name: &str) -> String {
        self.reading.params(&[&format!("wred.{}.{name}", self.tc)])
    }

    fn set_kmax(&self, bytes: u64) -> String {
        self.reading.set(&format!("wred.{}.kmax={}", self.tc, size(bytes)))
    }

    /// The models' input, with the flows that were seen, or the expected number.
    fn bottleneck(&self) -> Bottleneck<'a> {
        let flows = match flows(self.reading.snapshot) {
            0 => EXPECTED_FLOWS,
            seen => seen,
        };
        let (config, packet_bytes) = (&self.reading.config, self.frame_bytes);
        Bottleneck { config, tc: self.tc, link_bps: self.drain_bps, flows, packet_bytes }
    }
}

pub(super) fn rate_unknown(reading: &Reading<'_>) -> Option<Finding> {
    let unknown = reading.marking_classes().into_iter().any(|tc| reading.config.drain_rate_bps(tc) == 0);
    let what = "the drain rate of the queues is unknown: nothing is marked";
    let fix = reading.set("link_rate=RATE");
    unknown.then(|| Finding::error("rate-unknown", what, "link_rate and drain_rate are 0").fix(fix))
}

pub(super) fn rate_above_link(reading: &Reading<'_>) -> Option<Finding> {
    let speed_bps = reading.link().filter(|link| link.kind.is_none())?.speed_bps?;
    let drains = (0_usize..)
        .zip(&reading.config.wred)
        .map(|(tc, wred)| (format!("wred.{tc}.drain_rate"), wred.drain_rate_bps));
    let link_rate = ("link_rate".to_owned(), reading.config.scalars.link_rate_bps);
    let rates = std::iter::once(link_rate).chain(drains).filter(|(_, bps)| *bps > speed_bps);
    let keys: Vec<String> = rates.map(|(key, _)| key).collect();
    let what = "the virtual queue drains faster than the link: it never fills";
    let evidence = format!("{}; the link runs at {}", reading.params(&keys), rate(speed_bps));
    let changes: Vec<String> = keys.iter().map(|key| format!("{key}={}", rate(speed_bps))).collect();
    let fix = reading.set(&changes.join(" "));
    (!keys.is_empty()).then(|| Finding::error("rate-above-link", what, evidence).fix(fix))
}

/// `shaper-burst`: a token bucket loses the tokens beyond its burst if its timer is late. It is then slower than its
/// rate, and a virtual queue that drains at that rate stays empty while the real one fills.
pub(super) fn shaper(reading: &Reading<'_>) -> Option<Finding> {
    /// Percent of the rate; header bytes that shapers and links count differently are less.
    const MIN_PERCENT: u64 = 97;
    let link = reading.link()?;
    let shaper = link.shaper.as_ref()?;
    let served_bps = shaper.served_bps().filter(|bps| *bps / MIN_PERCENT < shaper.rate_bps / 100);
    // `attach` chooses the burst of its own class: only the thresholds can be changed.
    let ours = shaper.class.is_some_and(|class| [pacer::PORT, queues::PORT].contains(&class));
    if served_bps.is_none() && (ours || shaper.burst_ns >= Shaping::MIN_BURST_NS) {
        return None;
    }
    let burst_bytes = |ns| u128::from(shaper.rate_bps) * u128::from(ns) / 8 / 1_000_000_000;
    let evidence = format!(
        "{} of {}: rate {}, burst {} bytes, {} at that rate; {}",
        shaper.name,
        link.name,
        rate(shaper.rate_bps),
        burst_bytes(shaper.burst_ns),
        time(shaper.burst_ns),
        served_bps.map_or_else(
            || "no shortfall observed".to_owned(),
            |bps| format!(
                "packets waited in {} of {} samples, and it sent {}",
                shaper.waiting,
                shaper.samples,
                rate(bps)
            )
        )
    );
    // Quadruple a burst that was observed to be too small.
    let min_burst_ns = match served_bps {
        Some(_) => shaper.burst_ns.saturating_mul(4).max(GOOD_BURST_NS),
        None => GOOD_BURST_NS,
    };
    let drain = rate(served_bps.unwrap_or(shaper.rate_bps) / 100 * 95);
    let burst = format!("set a burst of {} bytes ({})", burst_bytes(min_burst_ns), time(min_burst_ns));
    let classes = reading.marking_classes();
    let drains: Vec<String> = classes.iter().map(|tc| format!("wred.{tc}.drain_rate={drain}")).collect();
    let lower =
        (!classes.is_empty()).then(|| format!("mark for a lower rate: {}", reading.set(&drains.join(" "))));
    let fixes: Vec<String> = (!ours).then_some(burst).into_iter().chain(lower).collect();
    let (severity, what) = if served_bps.is_some() {
        (Severity::Warning, "the shaper is slower than its rate: its queue is longer than marking assumes")
    } else {
        (Severity::Info, "the shaper's burst is too short: a late timer makes it slower than its rate")
    };
    Some(Finding::new("shaper-burst", severity, what, evidence).fix(fixes.join("; or ")))
}

/// `kmax-below-frames`: with thresholds of a frame or two, packets are marked without congestion.
pub(super) fn frames(class: &MarkingClass<'_>) -> Option<Finding> {
    let MarkingClass { tc, wred, frame_bytes, .. } = *class;
    let what = format!("class {tc} marks every packet behind two others, without any congestion");
    let evidence = format!("{}; a full frame has {frame_bytes} bytes", class.param("kmax"));
    let fix = class.set_kmax(40 * frame_bytes);
    (wred.kmax_bytes < 2 * frame_bytes)
        .then(|| Finding::warning("kmax-below-frames", what, evidence).fix(fix))
}

/// `kmax-below-bdp`: switch vendors recommend 2 to 3 times the bandwidth-delay product.
pub(super) fn bandwidth_delay(class: &MarkingClass<'_>) -> Option<Finding> {
    let MarkingClass { reading, tc, wred, drain_bps, frame_bytes, .. } = *class;
    // `kmax-below-frames` has a larger fix.
    if wred.kmax_bytes < 2 * frame_bytes {
        return None;
    }
    let rtt_ns = reading.snapshot.rtt_ns;
    let bdp_bytes = u128::from(drain_bps) * u128::from(rtt_ns) / 8 / 1_000_000_000;
    let bdp_bytes = u64::try_from(bdp_bytes).unwrap_or(u64::MAX);
    if wred.kmax_bytes >= bdp_bytes {
        return None;
    }
    let what =
        format!("class {tc} marks every packet above less than a bandwidth-delay product: links run empty");
    let evidence = format!(
        "{}; bandwidth-delay product {} ({} x {})",
        class.param("kmax"),
        size(bdp_bytes),
        rate(drain_bps),
        time(rtt_ns)
    );
    let fix =
        class.set_kmax(bdp_bytes.saturating_mul(2)) + "; or specify the actual round-trip time with `--rtt`";
    Some(Finding::warning("kmax-below-bdp", what, evidence).fix(fix))
}

/// `kmax-too-deep`: many periods of the rate machine pass while the queue grows from empty to Kmax.
pub(super) fn far_apart(class: &MarkingClass<'_>) -> Option<Finding> {
    const PERIODS: u64 = 50;
    let MarkingClass { reading, tc, wred, drain_bps, .. } = *class;
    let period_ns = reading.config.scalars.rpg_time_reset_ns;
    let delay_ns = transmission_ns(wred.kmax_bytes, drain_bps);
    if drain_bps == 0 || period_ns == 0 || delay_ns / period_ns <= PERIODS {
        return None;
    }
    let what = format!("class {tc} may queue for {} before every packet is marked", time(delay_ns));
    let evidence =
        format!("{} at {}; {}", class.param("kmax"), rate(drain_bps), reading.params(&["rpg_time_reset"]));
    let fix = format!(
        "lower `wred.{tc}.kmax`; on links up to 1 Gbit/s slow the machine down with the link: {}, on the senders as \
         well",
        reading.set("--profile lab")
    );
    Some(Finding::warning("kmax-too-deep", what, evidence).fix(fix))
}

/// Maximum flows through the bottleneck: those in the busiest table of this host.
fn flows(snapshot: &Snapshot) -> u64 {
    let tables = snapshot.attachments.iter().filter_map(|attached| attached.tables);
    tables.map(|tables| tables.rp_active.max(tables.np_flows)).max().unwrap_or(0)
}

/// The largest number of flows whose fixed point is on the ramp; `None` if the model does not apply.
fn max_flows_on_ramp(bottleneck: Bottleneck<'_>) -> Option<u64> {
    let on_ramp =
        |flows| fluid::fixed_point(&Bottleneck { flows, ..bottleneck }).map(|point| !point.beyond_pmax);
    if !on_ramp(1)? {
        return Some(0);
    }
    let (mut fits, mut too_many) = (1, MAX_FLOWS);
    while too_many - fits > 1 {
        let middle = fits.midpoint(too_many);
        if on_ramp(middle)? { fits = middle } else { too_many = middle }
    }
    Some(fits)
}

/// `pmax-small`: the fixed point is beyond the ramp, so the queue oscillates around Kmax (`cargo xtask fidelity`).
pub(super) fn fixed_point(class: &MarkingClass<'_>) -> Option<Finding> {
    let MarkingClass { reading, tc, .. } = *class;
    let seen = flows(reading.snapshot);
    let bottleneck = class.bottleneck();
    let flows = bottleneck.flows;
    let (most, point) = (max_flows_on_ramp(bottleneck)?, fluid::fixed_point(&bottleneck)?);
    if !point.beyond_pmax {
        return None;
    }
    let limit = match most {
        0 => "for no number of flows".to_owned(),
        most => format!("for up to {most} flows"),
    };
    let what =
        format!("class {tc} settles below Kmax {limit}; with {flows} flows the queue oscillates around Kmax");
    let needed_ppm = (point.marking_probability * 1e6).ceil() as u64;
    let evidence = format!(
        "{}; {flows} flows ({}) need {} of packets marked by the fluid model, if the senders have the parameters of this \
         interface",
        class.param("pmax"),
        if seen == 0 { "assumed" } else { "seen" },
        ppm(needed_ppm)
    );
    let fix = match needed_ppm.saturating_mul(2) {
        enough_ppm if enough_ppm <= 500_000 => {
            reading.set(&format!("wred.{tc}.pmax={}", ppm(enough_ppm.next_multiple_of(10_000))))
        }
        _ => "the senders' increase is too fast for this link: `--profile lab` there and here".to_owned(),
    };
    let severity = if seen == 0 { Severity::Info } else { Severity::Warning };
    Some(Finding::new("pmax-small", severity, what, evidence).fix(fix))
}

/// `oscillates`: the fluid model with its delay is unstable at its fixed point. The unstable region is not monotonic:
/// with 85 us and the paper's parameters at 40 Gbit/s 2 flows are stable, 10 are not.
pub(super) fn oscillation(class: &MarkingClass<'_>) -> Option<Finding> {
    /// Minimum deviation over mean of a queue: 0.08 and 1.4 in the example above.
    const UNSTABLE: f64 = 0.5;
    let MarkingClass { reading, tc, wred, .. } = *class;
    let bottleneck = class.bottleneck();
    // Beyond the ramp it oscillates with any delay, which is a separate finding.
    fluid::fixed_point(&bottleneck).filter(|point| !point.beyond_pmax)?;
    let rtt_ns = reading.snapshot.rtt_ns;
    let steady = fluid::steady_state(&bottleneck, rtt_ns)?;
    let swing = steady.deviation_bytes / steady.mean_bytes.max(1.0);
    if swing <= UNSTABLE {
        return None;
    }
    let flows = bottleneck.flows;
    let what = format!("class {tc} oscillates with {flows} flows and {} of loop delay", time(rtt_ns));
    let (percent, increase, kmax) = (swing * 100.0, reading.params(&["rpg_ai_rate"]), class.param("kmax"));
    let evidence = format!(
        "fluid model: the queue's standard deviation is {percent:.0} % of its mean; {increase}, {kmax}"
    );
    let fix = format!(
        "{}, and on the senders `dcqcn set IFACE rpg_ai_rate={}`",
        class.set_kmax(wred.kmax_bytes.saturating_mul(5)),
        rate((reading.config.scalars.rpg_ai_rate_bps / 4).max(1_000))
    );
    Some(Finding::warning("oscillates", what, evidence).fix(fix))
}

pub(super) fn alpha_timer(reading: &Reading<'_>) -> Option<Finding> {
    let s = &reading.config.scalars;
    let (alpha_ns, cnp_ns) = (s.dce_tcp_rtt_ns, s.min_time_between_cnps_ns);
    if s.rp_enable == 0 || s.rp_variant != RP_VARIANT_PAPER || alpha_ns > cnp_ns {
        return None;
    }
    let what = "alpha decays between two CNPs of a persistent congestion";
    let evidence = reading.params(&["dce_tcp_rtt", "min_time_between_cnps"]);
    let longer = time(cnp_ns.saturating_add(cnp_ns / 10).saturating_add(1_000));
    let fix = reading.set(&format!("dce_tcp_rtt={longer}"));
    Some(Finding::warning("alpha-timer", what, evidence).fix(fix))
}

pub(super) fn min_rate(reading: &Reading<'_>) -> Option<Finding> {
    let (s, line_bps) = (&reading.config.scalars, reading.config.line_rate_bps());
    let active = reading.attached.tables.map_or(0, |tables| tables.rp_active);
    let fits = s.rpg_min_rate_bps.saturating_mul(active) <= line_bps;
    if s.rp_enable == 0 || s.pacer == PACER_NONE || line_bps == 0 || fits {
        return None;
    }
    let what = format!("{active} flows at the lowest rate exceed the link: cuts cannot relieve it");
    let minimum = reading.params(&["rpg_min_rate"]);
    let evidence = format!("{minimum}, active flows {active}, link {}", rate(line_bps));
    let lower = rate((line_bps / active / 2).max(MIN_RATE_BPS));
    let fix = reading.set(&format!("rpg_min_rate={lower}"));
    Some(Finding::warning("min-rate", what, evidence).fix(fix))
}
