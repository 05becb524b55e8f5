//! Validation of scenarios.

use std::ops::RangeInclusive;

use dcqcn_common::params::{MAX_RATE_BPS, MIN_RATE_BPS, Unit};
use dcqcn_params::quantity::{OutOfRange, in_range};

use super::*;
use crate::network::MAX_PACKETS;

impl Scenario {
    /// Checks every value.
    ///
    /// # Errors
    /// The first violation, with value and allowed range.
    pub(crate) fn validate(&self) -> Result<(), SimError> {
        let rates = MIN_RATE_BPS..=MAX_RATE_BPS;
        in_range("duration", self.duration_ns, 1_000..=MAX_DURATION_NS, Unit::Nanoseconds)?;
        in_range("warm-up", self.stats_from_ns, 0..=self.duration_ns - 1, Unit::Nanoseconds)?;
        in_range("port rate", self.port_rate_bps, rates.clone(), Unit::BitsPerSecond)?;
        in_range("sender rate", self.sender_rate_bps, rates, Unit::BitsPerSecond)?;
        for (what, delay_ns) in
            [("sender delay", self.sender_delay_ns), ("receiver delay", self.receiver_delay_ns)]
        {
            in_range(what, delay_ns, 0..=MAX_DELAY_NS, Unit::Nanoseconds)?;
        }
        in_range("buffer", self.buffer_bytes, u64::from(MAX_FRAME_BYTES)..=MAX_BUFFER_BYTES, Unit::Bytes)?;
        for (tc, class) in self.classes.iter().enumerate() {
            class.validate(tc)?;
        }
        for group in &self.groups {
            group.validate()?;
        }
        for group in self.roce() {
            self.validate_packets(group)?;
        }
        let flows: u64 = self.groups.iter().map(|group| u64::from(group.flows)).sum();
        if flows == 0 {
            return Err(SimError::NoFlows);
        }
        in_range("number of flows", flows, 1..=u64::from(MAX_FLOWS), Unit::Count)?;
        if let Some(series) = self.series {
            let intervals = 1_000..=self.duration_ns;
            in_range("series interval", series.interval_ns, intervals, Unit::Nanoseconds)?;
        }
        self.validate_order()?;
        self.link_config().validate()?;
        Ok(())
    }

    /// Checks that the packets of a flow can be numbered.
    fn validate_packets(&self, group: &Group) -> Result<(), OutOfRange> {
        let frame_bytes = u64::from(group.transport.frame_bytes());
        let bits = u128::from(self.sender_rate_bps) * u128::from(self.duration_ns) / 1_000_000_000;
        let sendable = u64::try_from(bits / 8 / u128::from(frame_bytes)).unwrap_or(u64::MAX);
        let packets = match group.work {
            Work::Once { bytes } => sendable.min(bytes.div_ceil(group.transport.payload_bytes.into())),
            Work::Bulk | Work::Blocks { .. } | Work::Messages { .. } => sendable,
        };
        let what = format!("packets that a flow of group `{}` may send", group.name);
        in_range(what, packets, 0..=MAX_PACKETS, Unit::Count)
    }

    /// Checks that groups wait for existing, finite groups, without cycles.
    fn validate_order(&self) -> Result<(), SimError> {
        for group in self.groups.iter().filter(|group| group.after.is_some()) {
            let wrong = |why| SimError::After {
                group: group.name.clone(),
                after: group.after.clone().unwrap_or_default(),
                why,
            };
            let mut next = self.dependency_of(group).ok_or_else(|| wrong("no such group of RoCE flows"))?;
            if !self.groups[next].is_finite() {
                return Err(wrong("that group is endless; set its `size`"));
            }
            for _ in 0..self.groups.len() {
                match self.dependency_of(&self.groups[next]) {
                    Some(before) => next = before,
                    None => break,
                }
            }
            if self.dependency_of(&self.groups[next]).is_some() {
                return Err(wrong("that group waits for this one"));
            }
        }
        Ok(())
    }
}

impl Class {
    fn validate(&self, tc: usize) -> Result<(), SimError> {
        let buffers = u64::from(MAX_FRAME_BYTES)..=MAX_BUFFER_BYTES;
        if let Some(limit_bytes) = self.limit_bytes {
            in_range(format!("limit of class {tc}"), limit_bytes, buffers, Unit::Bytes)?;
        }
        if let Schedule::Dwrr(weight) = self.schedule {
            in_range(format!("DWRR weight of class {tc}"), u64::from(weight), 1..=1_000, Unit::Count)?;
        }
        if let Some(Pfc { xoff_bytes, xon_bytes }) = self.pfc {
            in_range(format!("XOFF of class {tc}"), xoff_bytes, 0..=MAX_BUFFER_BYTES, Unit::Bytes)?;
            in_range(format!("XON of class {tc}"), xon_bytes, 0..=xoff_bytes, Unit::Bytes)?;
        }
        Ok(())
    }
}

impl Group {
    fn validate(&self) -> Result<(), OutOfRange> {
        let check = |what: &str, value: u64, range: RangeInclusive<u64>, unit| {
            in_range(format!("{what} of group `{}`", self.name), value, range, unit)
        };
        let count = |what, value: u32, max| check(what, value.into(), 1..=max, Unit::Count);
        let time = |what, value_ns, range| check(what, value_ns, range, Unit::Nanoseconds);
        let Transport { payload_bytes, header_bytes, ack_every, timeout_ns, tcp, .. } = self.transport;
        let times = 0..=MAX_DURATION_NS;

        count("flows per sender", self.flows_per_sender, MAX_FLOWS.into())?;
        count("ack_every", ack_every, 1_000_000)?;
        check("class", self.class.into(), 0..=CLASSES as u64 - 1, Unit::Count)?;
        time("sender delay", self.sender_delay_ns.unwrap_or(0), 0..=MAX_DELAY_NS)?;
        check("header", header_bytes.into(), 0..=256, Unit::Bytes)?;
        let most = u64::from(MAX_FRAME_BYTES - header_bytes);
        check("payload", payload_bytes.into(), 64..=most, Unit::Bytes)?;
        time("start", self.start_ns, times.clone())?;
        time("start jitter", self.start_jitter_ns, times)?;
        time("stop", self.stop_ns.unwrap_or(MAX_DURATION_NS), self.start_ns..=MAX_DURATION_NS)?;
        match tcp {
            None => time("retransmission timeout", timeout_ns, 1_000..=MAX_DURATION_NS)?,
            Some(rules) => {
                let windows = payload_bytes.into()..=MAX_BUFFER_BYTES;
                check("window", rules.max_window_bytes, windows, Unit::Bytes)?;
                time("shortest timeout", timeout_ns, 10_000..=60_000_000_000)?;
            }
        }

        let length = |what, bytes| check(what, bytes, 1..=MAX_MESSAGE_BYTES, Unit::Bytes);
        match &self.work {
            Work::Bulk => Ok(()),
            Work::Once { bytes } => length("size", *bytes),
            Work::Blocks { bytes, outstanding } => {
                length("block", *bytes)?;
                count("outstanding blocks", *outstanding, 65_536)
            }
            Work::Messages { sizes, mean_gap_ns } => {
                check("number of message sizes", sizes.len() as u64, 1..=1_000, Unit::Count)?;
                for size in sizes {
                    length("message size", size.bytes)?;
                    check("weight of a message size", size.weight, 1..=1_000_000_000_000, Unit::Count)?;
                }
                time("mean gap", *mean_gap_ns, 100..=MAX_DURATION_NS)
            }
        }
    }
}
