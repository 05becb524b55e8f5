//! Validation of a star: relations between settings, and values from files. Settings check their own ranges.

use dcqcn_common::params::Unit;
use dcqcn_params::quantity::{OutOfRange, in_range};

use super::*;
use crate::network::workload::MAX_FLOW_BYTES;
use crate::network::{MAX_FRAME_BYTES, MAX_PACKETS};

impl Star {
    /// Checks every relation.
    ///
    /// # Errors
    /// The first violation, with value and allowed range.
    pub(crate) fn validate(&self) -> Result<(), SimError> {
        in_range("warm-up", self.stats_from_ns, 0..=self.duration_ns - 1, Unit::Nanoseconds)?;
        for (tc, class) in self.classes.iter().enumerate() {
            class.validate(tc, self.buffer_bytes)?;
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
        self.validate_times()?;
        self.validate_order()?;
        self.link_config().validate()?;
        Ok(())
    }

    /// Checks that every flow starts, and that some of them send after the warm-up. The end of `after` is unknown.
    fn validate_times(&self) -> Result<(), SimError> {
        for group in self.groups.iter().filter(|group| group.after.is_none()) {
            let times = [
                (group.start_ns, ""),
                (group.start_ns.saturating_add(group.start_jitter_ns), ", with its jitter"),
            ];
            for (start_ns, with) in times {
                let what = format!("start of group `{}`{with}", group.name);
                in_range(what, start_ns, 0..=self.duration_ns - 1, Unit::Nanoseconds)?;
            }
        }
        let warm_up_ns = self.stats_from_ns;
        let mut stops = self.groups.iter().map(|group| group.stop_ns);
        if stops.all(|stop_ns| stop_ns.is_some_and(|stop_ns| stop_ns <= warm_up_ns)) {
            return Err(SimError::Stops { warm_up_ns });
        }
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
    /// A queue that is full before it reaches XOFF would never pause.
    fn validate(&self, tc: usize, buffer_bytes: u64) -> Result<(), OutOfRange> {
        let Some(QueuePfc { xoff_bytes, xon_bytes }) = self.pfc else { return Ok(()) };
        let limit_bytes = self.limit_bytes.unwrap_or(buffer_bytes).min(buffer_bytes);
        let room = limit_bytes.saturating_sub(MAX_FRAME_BYTES.into());
        in_range(
            format!("XOFF of class {tc}, a frame below its queue's limit"),
            xoff_bytes,
            0..=room,
            Unit::Bytes,
        )?;
        in_range(format!("XON of class {tc}"), xon_bytes, 0..=xoff_bytes, Unit::Bytes)
    }
}

impl Group {
    fn validate(&self) -> Result<(), OutOfRange> {
        let check = |what: &str, value: u64, range, unit| {
            in_range(format!("{what} of group `{}`", self.name), value, range, unit)
        };
        let most = u64::from(MAX_FRAME_BYTES - self.transport.header_bytes);
        check("payload", self.transport.payload_bytes.into(), 64..=most, Unit::Bytes)?;
        check("start", self.start_ns, 0..=MAX_DURATION_NS, Unit::Nanoseconds)?;
        let stop_ns = self.stop_ns.unwrap_or(MAX_DURATION_NS);
        check("stop", stop_ns, self.start_ns..=MAX_DURATION_NS, Unit::Nanoseconds)?;
        let Work::Messages { sizes, mean_gap_ns } = &self.work else { return Ok(()) };
        check("number of message sizes", sizes.len() as u64, 1..=1_000, Unit::Count)?;
        for size in sizes {
            check("message size", size.bytes, 1..=MAX_FLOW_BYTES, Unit::Bytes)?;
            check("weight of a message size", size.weight, 1..=1_000_000_000_000, Unit::Count)?;
        }
        check("mean gap", *mean_gap_ns, 100..=MAX_DURATION_NS, Unit::Nanoseconds)
    }
}
