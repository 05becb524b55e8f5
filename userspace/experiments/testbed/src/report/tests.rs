use super::*;
use crate::record::{Answers, Binned, FlowRecord, ReceivedRecord, SentRecord, Thresholds};

const SECOND_NS: u64 = 1_000_000_000;

/// Two flows of 1 and 3 Mbit/s over 4 s, the first of which is warm-up; every counter increases by one per ms.
fn record(control: bool) -> RunRecord {
    let duration_ns = 4 * SECOND_NS;
    let flow = |name: &str, bytes_per_ms: u64| {
        let mut received = ReceivedRecord::new(duration_ns);
        let mut sent = SentRecord::new(duration_ns);
        for ms in 0..4000 {
            received.goodput_bytes.add(ms * 1_000_000, bytes_per_ms);
            sent.retransmissions.add(ms * 1_000_000, 1);
            let delays =
                if ms < 1000 { &mut received.delay_warm_up_ns } else { &mut received.delay_after_ns };
            delays.record(ms);
        }
        FlowRecord { name: name.to_owned(), received, sent }
    };
    let sample = |ms: u64| Sample {
        at_ns: ms * 1_000_000,
        backlog_bytes: ms,
        drops: ms,
        control: control.then(|| ControlSample { ce_marks: 2 * ms, ..ControlSample::default() }),
    };
    RunRecord {
        control: control.then_some(Thresholds { kmin_bytes: 1, kmax_bytes: 2 }),
        senders: 2,
        link_bps: 8_000_000,
        roce_bps: 8_000_000,
        buffer_bytes: 4000,
        duration_ns,
        warm_up_ns: SECOND_NS,
        flows: vec![flow("s0", 125), flow("s1", 375)],
        tcp_bytes: Vec::new(),
        roce_bytes: Binned::new(duration_ns),
        flood_bytes: Binned::new(duration_ns),
        answers: Answers::NONE,
        samples: (0..4000).map(sample).collect(),
        cpu_share: 0.5,
    }
}

#[test]
fn known_run_results() {
    let report = RunReport::from(&record(true));
    let steady = &report.steady;
    assert_eq!(steady.seconds, 3.0);
    assert_eq!(steady.flows.iter().map(|flow| flow.goodput_bps).collect::<Vec<_>>(), [1e6, 3e6]);
    assert_eq!((steady.goodput_bps, steady.link_share), (4e6, 0.5));
    assert_eq!(steady.jain_index, 0.8);
    assert_eq!((steady.drops, steady.retransmissions), (3000, 6000));
    assert_eq!(steady.control.as_ref().unwrap().ce_marks, 6000);
    assert_eq!(steady.queue_bytes, Quantiles { p50: 2499, p99: 3969, max: 3999 });
    let whole = &report.whole;
    assert_eq!((whole.drops, whole.retransmissions, whole.delay_ns.max), (3999, 8000, 3999));
    assert!(whole.delay_ns.p50 < steady.delay_ns.p50);
}

#[test]
fn jain_index_known_values() {
    assert_eq!(jain_index(&[5.0, 5.0, 5.0]), 1.0);
    assert_eq!(jain_index(&[1.0, 0.0, 0.0, 0.0]), 0.25);
    assert_eq!((jain_index(&[]), jain_index(&[0.0, 0.0])), (1.0, 1.0));
}

#[test]
fn table_compares_runs() {
    let runs = vec![RunReport::from(&record(false)), RunReport::from(&record(true))];
    let table = IncastReport { config: IncastConfig::default(), runs }.to_string();
    let line = |label: &str| {
        let line = table.lines().find(|line| line.starts_with(label)).unwrap_or_else(|| panic!("{table}"));
        line[label.len()..].split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("RoCE goodput, s1"), "3.00 Mbit/s 3.00 Mbit/s 3.00 Mbit/s 3.00 Mbit/s");
    assert_eq!(line("CE marks"), "- 6000 - 7998");
    assert_eq!(line("bottleneck drops, packets"), "3000 3000 3999 3999");
    assert!(table.lines().all(|line| line.len() <= 100), "{table}");
}

#[test]
fn unmeasured_delay_is_dash() {
    let mut report = RunReport::from(&record(true));
    report.steady.delay_ns = Quantiles::default();
    let table = IncastReport { config: IncastConfig::default(), runs: vec![report] }.to_string();
    let line = table.lines().find(|line| line.starts_with("one-way delay, p50")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("-"), "{line}");
}

#[test]
fn empty_quantiles_are_zero() {
    assert_eq!(Quantiles::of(Vec::new()), Quantiles::default());
}
