//! Validation of scenarios.

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
        for group in &self.roce {
            group.validate()?;
            self.validate_packets(group)?;
        }
        for group in &self.tcp {
            group.validate()?;
        }
        let counts = self.roce.iter().map(|g| g.flows).chain(self.tcp.iter().map(|g| g.flows));
        let flows: u64 = counts.map(u64::from).sum();
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
    fn validate_packets(&self, group: &RoceGroup) -> Result<(), OutOfRange> {
        let frame_bytes = u64::from(group.payload_bytes + group.header_bytes);
        let bits = u128::from(self.sender_rate_bps) * u128::from(self.duration_ns) / 1_000_000_000;
        let sendable = u64::try_from(bits / 8 / u128::from(frame_bytes)).unwrap_or(u64::MAX);
        let packets = match group.work {
            Work::Once { bytes } => sendable.min(bytes.div_ceil(group.payload_bytes.into())),
            Work::Bulk | Work::Blocks { .. } | Work::Messages { .. } => sendable,
        };
        let what = format!("packets that a flow of group `{}` may send", group.name);
        in_range(what, packets, 0..=MAX_PACKETS, Unit::Count)
    }

    /// Checks that groups wait for existing, finite groups, without cycles.
    fn validate_order(&self) -> Result<(), SimError> {
        for group in self.roce.iter().filter(|group| group.after.is_some()) {
            let wrong = |why| SimError::After {
                group: group.name.clone(),
                after: group.after.clone().unwrap_or_default(),
                why,
            };
            let mut next = self.dependency_of(group).ok_or_else(|| wrong("no such group of RoCE flows"))?;
            if !matches!(self.roce[next].work, Work::Once { .. }) {
                return Err(wrong("that group is endless; set its `size`"));
            }
            for _ in 0..self.roce.len() {
                match self.dependency_of(&self.roce[next]) {
                    Some(before) => next = before,
                    None => break,
                }
            }
            if self.dependency_of(&self.roce[next]).is_some() {
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

impl RoceGroup {
    fn validate(&self) -> Result<(), OutOfRange> {
        let Self { name, flows_per_sender, ack_every, .. } = self;
        let of = |what: &str| format!("{what} of group `{name}`");
        in_range(
            of("flows per sender"),
            u64::from(*flows_per_sender),
            1..=u64::from(MAX_FLOWS),
            Unit::Count,
        )?;
        in_range(of("ack_every"), u64::from(*ack_every), 1..=1_000_000, Unit::Count)?;
        in_range(
            of("retransmission timeout"),
            self.retransmit_timeout_ns,
            1_000..=MAX_DURATION_NS,
            Unit::Nanoseconds,
        )?;
        validate_common(&of, self.class, self.sender_delay_ns, self.payload_bytes, self.header_bytes)?;
        validate_times(&of, self.start_ns, self.start_jitter_ns, self.stop_ns)?;
        let length = |what: &str, bytes: u64| in_range(of(what), bytes, 1..=MAX_MESSAGE_BYTES, Unit::Bytes);
        match &self.work {
            Work::Bulk => Ok(()),
            Work::Once { bytes } => length("size", *bytes),
            Work::Blocks { bytes, outstanding } => {
                length("block", *bytes)?;
                in_range(of("outstanding blocks"), u64::from(*outstanding), 1..=65_536, Unit::Count)
            }
            Work::Messages { sizes, mean_gap_ns } => {
                in_range(of("number of message sizes"), sizes.len() as u64, 1..=1_000, Unit::Count)?;
                for size in sizes {
                    length("message size", size.bytes)?;
                    in_range(
                        of("weight of a message size"),
                        size.weight,
                        1..=1_000_000_000_000,
                        Unit::Count,
                    )?;
                }
                in_range(of("mean gap"), *mean_gap_ns, 100..=MAX_DURATION_NS, Unit::Nanoseconds)
            }
        }
    }
}

impl TcpGroup {
    fn validate(&self) -> Result<(), OutOfRange> {
        let of = |what: &str| format!("{what} of group `{}`", self.name);
        validate_common(&of, self.class, self.sender_delay_ns, self.payload_bytes, self.header_bytes)?;
        validate_times(&of, self.start_ns, self.start_jitter_ns, self.stop_ns)?;
        let windows = u64::from(self.payload_bytes)..=MAX_BUFFER_BYTES;
        in_range(of("window"), self.max_window_bytes, windows, Unit::Bytes)?;
        in_range(of("shortest timeout"), self.min_rto_ns, 10_000..=60_000_000_000, Unit::Nanoseconds)
    }
}

fn validate_common(
    of: &impl Fn(&str) -> String,
    class: u8,
    sender_delay_ns: Option<u64>,
    payload_bytes: u32,
    header_bytes: u32,
) -> Result<(), OutOfRange> {
    in_range(of("class"), u64::from(class), 0..=CLASSES as u64 - 1, Unit::Count)?;
    in_range(of("sender delay"), sender_delay_ns.unwrap_or(0), 0..=MAX_DELAY_NS, Unit::Nanoseconds)?;
    in_range(of("header"), u64::from(header_bytes), 0..=256, Unit::Bytes)?;
    let most = u64::from(MAX_FRAME_BYTES) - u64::from(header_bytes);
    in_range(of("payload"), u64::from(payload_bytes), 64..=most, Unit::Bytes)
}

fn validate_times(
    of: &impl Fn(&str) -> String,
    start_ns: u64,
    jitter_ns: u64,
    stop_ns: Option<u64>,
) -> Result<(), OutOfRange> {
    let times = 0..=MAX_DURATION_NS;
    in_range(of("start"), start_ns, times.clone(), Unit::Nanoseconds)?;
    in_range(of("start jitter"), jitter_ns, times, Unit::Nanoseconds)?;
    let stops = start_ns..=MAX_DURATION_NS;
    in_range(of("stop"), stop_ns.unwrap_or(MAX_DURATION_NS), stops, Unit::Nanoseconds)
}
