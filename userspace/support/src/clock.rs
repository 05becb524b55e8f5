//! The clock of the BPF programs, and the clock of attachments.

use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC of the initial time namespace, as returned by `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    static OFFSET_NS: OnceLock<i64> = OnceLock::new();
    now_ns(ClockId::CLOCK_MONOTONIC, *OFFSET_NS.get_or_init(|| offset_ns("monotonic")))
}

/// CLOCK_BOOTTIME of the initial time namespace, which advances while the machine is suspended.
pub fn boottime_ns() -> u64 {
    static OFFSET_NS: OnceLock<i64> = OnceLock::new();
    now_ns(ClockId::CLOCK_BOOTTIME, *OFFSET_NS.get_or_init(|| offset_ns("boottime")))
}

fn now_ns(clock: ClockId, offset_ns: i64) -> u64 {
    // The clock exists on every Linux.
    let ns = clock_gettime(clock).map_or(0, |time| Duration::from(time).as_nanos() as u64);
    ns.saturating_sub_signed(offset_ns)
}

/// Offset of a clock in this process's time namespace. Deadlines in journals, and times in maps, have none.
fn offset_ns(clock: &str) -> i64 {
    fs::read_to_string("/proc/self/timens_offsets").map_or(0, |offsets| offset_in(&offsets, clock))
}

/// Offset of a clock in the lines `CLOCK SECONDS NANOSECONDS` of time_namespaces(7); 0 if it is absent.
fn offset_in(offsets: &str, clock: &str) -> i64 {
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        let [seconds, ns] = (words.next()? == clock).then(|| [words.next(), words.next()])?;
        let seconds: i64 = seconds?.parse().ok()?;
        seconds.checked_mul(1_000_000_000)?.checked_add(ns?.parse().ok()?)
    };
    offsets.lines().find_map(of).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_of_a_time_namespace_read() {
        let offsets = "monotonic       86400         0\nboottime          -10 500000000\n";
        let both = |offsets| ["monotonic", "boottime"].map(|clock| offset_in(offsets, clock));
        assert_eq!(both(offsets), [86_400_000_000_000, -9_500_000_000]);
        assert_eq!(both(""), [0, 0]);
        assert_eq!(both("monotonic x y\nboottime 9223372036854775807 0\n"), [0, 0]);
    }
}
