//! Whether a change made things worse, by what hosts count themselves.

use std::collections::BTreeMap;

use super::{Rollout, State};
use crate::file::Limit;
use crate::record::{Rates, Report};

/// What is judged: its name in `[gate]`, what it is, and its value and limit.
type Measure = (&'static str, &'static str, fn(&Rates) -> u64);

const MEASURES: [Measure; 8] = [
    ("marks", "marked packets in a million", |rates| rates.marks),
    ("cnps", "CNPs for a million packets", |rates| rates.cnps),
    ("drops", "drops for a million packets", |rates| rates.drops),
    ("rdma_errors", "retransmissions and time-outs for a million packets", |rates| rates.rdma_errors),
    ("pauses", "PFC frames for a million packets", |rates| rates.pauses),
    ("queue", "percent of Kmax in its deepest queue", |rates| rates.queue),
    ("queue_p99", "percent of Kmax in its deepest queue at 1 look of 100", |rates| rates.queue_p99),
    ("floor", "of 100 flows at their lowest rate", |rates| rates.floor),
];

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No worse than allowed; so many hosts had enough packets to say so.
    Good { judged: usize, changed: usize },
    /// Why it is too bad, with figures.
    Bad(String),
}

/// Judges all hosts that are changed.
pub(super) fn judge(rollout: &Rollout, reports: &BTreeMap<String, Report>) -> Verdict {
    let gate = &rollout.policy.gate;
    let speaks = |rates: &Rates| rates.data_packets >= gate.min_packets;
    let others: Vec<&Rates> = (rollout.steps.iter())
        .filter(|step| step.state == State::Waiting)
        .filter_map(|step| Some(&reports.get(&step.host)?.rates).filter(|rates| speaks(rates)))
        .collect();
    let (mut judged, mut changed) = (0, 0);
    for step in rollout.steps.iter().filter(|step| matches!(step.state, State::Applied { .. })) {
        changed += 1;
        let Some(now) = reports.get(&step.host).map(|report| &report.rates).filter(|rates| speaks(rates))
        else {
            continue;
        };
        judged += 1;
        for (name, what, of) in MEASURES {
            let limit = limit_of(rollout, name);
            let before = step.before.filter(|before| speaks(before)).map(|before| of(&before));
            let mean = mean(&others, of);
            // Without a word from before or from others everything is new, and nothing is worse.
            let Some(known) = before.max(mean) else { continue };
            let allowed = (known as f64 * limit.times) as u64 + limit.plus;
            if of(now) > allowed {
                let host = &step.host;
                let (value, seconds) = (of(now), now.window_ms / 1_000);
                let before = before.map_or_else(|| "not known".into(), |before| before.to_string());
                let beside = match mean {
                    Some(mean) => format!("{mean} on {} hosts that are not changed", others.len()),
                    None => "no host to compare with is unchanged".into(),
                };
                let Limit { times, plus } = limit;
                return Verdict::Bad(format!(
                    "{host} has {value} {what} in the last {seconds} s; before it was {before}, {beside}; allowed are \
                     {allowed} ([gate] {name} = {{ times = {times}, plus = {plus} }})"
                ));
            }
        }
    }
    Verdict::Good { judged, changed }
}

fn limit_of(rollout: &Rollout, name: &str) -> Limit {
    let gate = &rollout.policy.gate;
    match name {
        "marks" => gate.marks,
        "cnps" => gate.cnps,
        "drops" => gate.drops,
        "rdma_errors" => gate.rdma_errors,
        "pauses" => gate.pauses,
        "queue_p99" => gate.queue_p99,
        "floor" => gate.floor,
        _ => gate.queue,
    }
}

fn mean(rates: &[&Rates], of: fn(&Rates) -> u64) -> Option<u64> {
    let sum: u64 = rates.iter().map(|rates| of(rates)).sum();
    sum.checked_div(rates.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::{Phase, Step};
    use super::*;
    use crate::file::Policy;
    use crate::record::Target;

    const CALM: Rates = Rates {
        window_ms: 60_000,
        data_packets: 100_000,
        marks: 0,
        cnps: 0,
        drops: 0,
        rdma_errors: 0,
        pauses: 0,
        queue: 0,
        queue_p99: 0,
        floor: 0,
    };

    /// A host that is changed and counts `now`, beside one that is not changed.
    fn judged(now: Rates) -> Verdict {
        let step = |host: &str, state: State| Step {
            host: host.into(),
            wave: 0,
            group: None,
            former: Target::default(),
            state,
            before: Some(CALM),
            was_failing: false,
            is_mended: false,
        };
        let rollout = Rollout {
            version: 2,
            is_for_newcomers: false,
            by: String::new(),
            why: String::new(),
            policy: Policy::default(),
            steps: vec![step("h1", State::Applied { silent_ms: 0 }), step("h2", State::Waiting)],
            phase: Phase::Forward { wave: 0, soaked_ms: 0 },
            is_paused: false,
            lines: Vec::new(),
        };
        let report = |rates: Rates| Report { rates, ..Report::default() };
        judge(&rollout, &[("h1".to_owned(), report(now)), ("h2".to_owned(), report(CALM))].into())
    }

    #[test]
    fn whatever_gets_worse_is_found_by_its_name() {
        assert_eq!(judged(CALM), Verdict::Good { judged: 1, changed: 1 });
        for (name, now) in [
            ("marks", Rates { marks: 1_001, ..CALM }),
            ("cnps", Rates { cnps: 1_001, ..CALM }),
            ("drops", Rates { drops: 11, ..CALM }),
            ("rdma_errors", Rates { rdma_errors: 11, ..CALM }),
            ("pauses", Rates { pauses: 1_001, ..CALM }),
            ("queue", Rates { queue: 26, ..CALM }),
            ("queue_p99", Rates { queue_p99: 60, ..CALM }),
            ("floor", Rates { floor: 21, ..CALM }),
        ] {
            let Verdict::Bad(why) = judged(now) else { panic!("{name} is not found") };
            assert!(why.starts_with("h1 has ") && why.contains(&format!("([gate] {name} = ")), "{why}");
        }
        let less = Rates { marks: 1_000, pauses: 1_000, queue_p99: 50, floor: 20, ..CALM };
        assert_eq!(judged(less), Verdict::Good { judged: 1, changed: 1 });
    }
}
