//! Experiments of the tables.

use super::*;

pub(super) fn variants(lab: &Lab) -> Result<String> {
    let command = "incast --link 100g --flows 8 --duration 400ms --kmin 400KB --kmax 1600KB --pmax 20% \
                   --sweep profile=paper,nvidia,hpcc,irdma";
    let runs = lab.sweep(command)?;
    let row = |run: &Value| {
        let group = "/outcome/groups/0";
        Ok(vec![
            format!("`{}`", at(run, "profile")),
            gbps(number(run, &format!("{group}/goodput_bps"))?),
            format!("{:.3}", number(run, &format!("{group}/jain"))?),
            kb(queue(run, "mean_bytes")?),
            kb(queue(run, "p99_bytes")?),
            percent(1.0 - number(run, "/outcome/link_utilisation")?),
            format!("{:.0}", number(run, &format!("{group}/totals/cnps"))?),
        ])
    };
    let rows: Vec<_> = runs.iter().map(row).collect::<Result<_>>()?;
    let heading =
        ["profile", "goodput, Gb/s", "Jain", "queue mean, KB", "queue p99, KB", "link idle", "CNPs"];
    Ok(table(&[command], &heading, &rows))
}

/// Time until NVIDIA's profile is fair, by its step.
pub(super) fn fairness(lab: &Lab) -> Result<String> {
    let common =
        "incast --link 100g --flows 8 --kmin 400KB --kmax 1600KB --pmax 20% --profile nvidia --warm-up 0ns";
    let command = format!("{common} --sweep rpg_ai_rate=5mbit,20mbit,100mbit --sweep duration=100ms,1s,3s");
    let runs = lab.sweep(&command)?;
    let row = |runs: &[Value]| {
        let first = runs.first().context("no runs")?;
        let mut row = vec![at(first, "rpg_ai_rate").to_owned()];
        for run in runs {
            row.push(format!("{:.2}", number(run, "/outcome/groups/0/jain")?));
        }
        Ok(row)
    };
    let rows: Vec<_> = runs.chunks(3).map(row).collect::<Result<_>>()?;
    Ok(table(&[&command], &["`rpg_ai_rate`", "Jain, first 100 ms", "first 1 s", "first 3 s"], &rows))
}

/// Hundreds of flows starting together into a deep buffer.
pub(super) fn loss(lab: &Lab) -> Result<String> {
    let command = format!(
        "incast --flows 200 --kmax 20MB --pmax 100% --buffer 200MB --sweep pfc=off,on --sweep {WINDOWS}"
    );
    let row = |run: &Value| {
        let totals = |figure: &str| number(run, &format!("/outcome/groups/0/totals/{figure}"));
        Ok(vec![
            at(run, "pfc").to_owned(),
            at(run, "np_window").to_owned(),
            gbps(number(run, "/outcome/groups/0/goodput_bps")?),
            format!("{:.0}", totals("dropped_packets")?),
            format!("{:.0}", totals("retransmitted_packets")?),
        ])
    };
    let rows: Vec<_> = lab.sweep(&command)?.iter().map(row).collect::<Result<_>>()?;
    Ok(table(
        &[&command],
        &["PFC", "`np_window`", "goodput, Gb/s", "packets dropped", "packets sent again"],
        &rows,
    ))
}

/// Settings under test: name, options, and published result by number of flows.
type Cases<T> = &'static [(&'static str, &'static str, &'static [(u32, T)])];

/// CNPs at the start of each window only, and at its end as well.
const WINDOWS: &str = "np_window=start,both";

/// Link, thresholds, and published q* of the fluid model, KB, by number of flows.
const FIXED_POINTS: Cases<f64> = &[
    (
        "40 Gb/s, 5/200 KB, 1 %",
        "--link 40g --kmin 5KB --kmax 200KB --pmax 1%",
        &[(2, 20.2), (4, 41.8), (8, 93.8)],
    ),
    (
        "25 Gb/s, 100/400 KB, 20 %",
        "--link 25g --kmin 100KB --kmax 400KB --pmax 20%",
        &[(2, 102.0), (4, 105.0), (8, 112.0), (16, 129.0)],
    ),
    (
        "100 Gb/s, 400/1600 KB, 20 %",
        "--link 100g --kmin 400KB --kmax 1600KB --pmax 20%",
        &[(2, 401.0), (4, 404.0), (8, 409.0), (16, 421.0), (32, 449.0)],
    ),
];

pub(super) fn fixed_point(lab: &Lab) -> Result<String> {
    let mut rows = Vec::new();
    let mut commands = Vec::new();
    for (name, options, published) in FIXED_POINTS {
        let flows: Vec<String> = published.iter().map(|(flows, _)| flows.to_string()).collect();
        let command = format!(
            "incast {options} {MODEL_PACKETS} --duration 1s --warm-up 300ms --sweep flows={} --sweep {WINDOWS}",
            flows.join(",")
        );
        let runs = lab.sweep(&command)?;
        ensure!(runs.len() == 2 * published.len(), "`dcqcn-lab sim {command}` reported {} runs", runs.len());
        for (runs, (flows, published_kb)) in runs.chunks(2).zip(*published) {
            let [run, both] = runs else { anyhow::bail!("a pair of runs is incomplete") };
            let measured = queue(run, "mean_bytes")?;
            let events = number(run, "/cycle_fixed_point/queue_bytes")?;
            rows.push(vec![
                (*name).to_owned(),
                flows.to_string(),
                published_kb.to_string(),
                format!("{:.1}", number(run, "/fixed_point/queue_bytes")? / 1e3),
                kb(events),
                kb(measured),
                format!("{:+.1} %", (measured / events - 1.0) * 100.0),
                kb(queue(run, "deviation_bytes")?),
                kb(queue(both, "mean_bytes")?),
                kb(queue(both, "deviation_bytes")?),
            ]);
        }
        commands.push(command);
    }
    let heading = [
        "link, Kmin/Kmax, Pmax",
        "N",
        "published q*, KB",
        "our fluid q*, KB",
        "event by event, KB",
        "**simulated mean, KB**, `start`",
        "against event by event",
        "deviation, KB",
        "**simulated mean, KB**, `both`",
        "deviation, KB",
    ];
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    Ok(table(&commands, &heading, &rows))
}

pub(super) fn staircase(lab: &Lab) -> Result<String> {
    let command = format!("staircase {MODEL_PACKETS} --duration 300ms");
    let run = lab.json(&command)?;
    let stages =
        run.pointer("/stages").and_then(Value::as_array).context("no stages in the simulator's JSON")?;
    let published = ["20, 20", "13.3, 13.3, 13.3, well within 100 ms"];
    let mut rows = Vec::new();
    for (stage, published) in stages.iter().zip(published) {
        let shares = stage.pointer("/goodput_bps").and_then(Value::as_array).into_iter().flatten();
        let shares: Vec<String> = shares.filter_map(Value::as_f64).map(gbps).collect();
        rows.push(vec![
            format!("{:.0} to {:.0} ms", number(stage, "/from_ns")? / 1e6, number(stage, "/to_ns")? / 1e6),
            published.to_owned(),
            shares.join(", "),
            format!("{:.3}", number(stage, "/jain")?),
        ]);
    }
    let fair = optional(&run, "/outcome/convergence_ns")
        .map_or_else(|| "not".to_owned(), |ns| format!("{:.0} ms", ns / 1e6));
    let heading = ["stage", "published, Gb/s", "**simulated, Gb/s** (mean of its second half)", "Jain"];
    let note = format!("\nFair (Jain's index stays at 0.95 or more) after the third flow's start: {fair}.\n");
    Ok(table(&[&command], &heading, &rows) + &note)
}

/// Settings, name, number of flows, and published result for a loop delay of 85 us.
const STABILITY: Cases<&str> = &[
    ("200 KB, 1 %, then all", "--kmax 200KB --pmax 1%", &[(2, "stable"), (10, "unstable"), (64, "stable")]),
    (
        "same slope, no jump",
        "--kmax 19505KB --pmax 100% --buffer 200MB",
        &[(2, "stable"), (10, "unstable"), (64, "stable"), (80, ""), (100, ""), (150, "")],
    ),
    ("cure: R_AI 10 Mb/s, 1000 KB", "--set rpg_ai_rate=10mbit --kmax 1000KB", &[(10, "stable")]),
    (
        "cure, no jump",
        "--set rpg_ai_rate=10mbit --kmax 99505KB --pmax 100% --buffer 200MB",
        &[(10, "stable")],
    ),
];
/// A long loop delay counts as destabilising if it raises the queue's relative deviation by this factor over 4 us.
const UNSETTLED: f64 = 1.5;

pub(super) fn stability(lab: &Lab) -> Result<String> {
    let mut rows = Vec::new();
    let mut commands = Vec::new();
    for (name, options, published) in STABILITY {
        let flows: Vec<String> = published.iter().map(|(flows, _)| flows.to_string()).collect();
        let command = format!(
            "stability {options} {MODEL_PACKETS} --duration 600ms --sweep flows={} --sweep loop-delay=4us,85us \
             --sweep {WINDOWS}",
            flows.join(",")
        );
        // `stability` puts its own axes first, unless they are given.
        let runs = lab.sweep(&command)?;
        for (flows, published) in *published {
            let of = |delay: &str, window: &str| {
                let flows = flows.to_string();
                let asked = [("flows", flows.as_str()), ("loop-delay", delay), ("np_window", window)];
                runs.iter()
                    .find(|run| asked.iter().all(|(key, value)| at(run, key) == *value))
                    .with_context(|| format!("`dcqcn-lab sim {command}` has no run of {asked:?}"))
            };
            let variation = |run| number(run, "/oscillation/queue_variation");
            let [start, both] = ["start", "both"].map(|window| {
                let (short, long) = (of("4us", window)?, of("85us", window)?);
                let ratio = variation(long)? / variation(short)?;
                anyhow::Ok([
                    percent(variation(short)?),
                    percent(variation(long)?),
                    format!("{ratio:.1}"),
                    percent(number(long, "/oscillation/idle_share")?),
                    if ratio > UNSETTLED { "unstable" } else { "stable" }.to_owned(),
                ])
            });
            let long = of("85us", "start")?;
            let model =
                number(long, "/fluid_settled/deviation_bytes")? / number(long, "/fluid_settled/mean_bytes")?;
            let mut row =
                vec![(*name).to_owned(), flows.to_string(), (*published).to_owned(), percent(model)];
            row.extend(start?.iter().zip(both?).map(|(start, both)| format!("{start} / {both}")));
            rows.push(row);
        }
        commands.push(command);
    }
    let heading = [
        "marking up to",
        "N",
        "published, 85 us",
        "fluid model, 85 us",
        "simulated, 4 us",
        "simulated, 85 us",
        "ratio",
        "link idle, 85 us",
        "**verdict**",
    ];
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    Ok(table(&commands, &heading, &rows))
}

/// Random variation of the ratio of [`stability`], without the jump.
pub(super) fn seeds(lab: &Lab) -> Result<String> {
    const SEEDS: usize = 4;
    let command = format!(
        "stability --kmax 19505KB --pmax 100% --buffer 200MB {MODEL_PACKETS} --duration 600ms --sweep flows=2,10,150 \
         --sweep seed=1,2,3,4 --sweep loop-delay=4us,85us"
    );
    let runs = lab.sweep(&command)?;
    let variation = |run: &Value| number(run, "/oscillation/queue_variation");
    let ratio = |pair: &[Value]| {
        let [short, long] = pair else { anyhow::bail!("a pair of runs is incomplete") };
        Ok(variation(long)? / variation(short)?)
    };
    let row = |runs: &[Value]| {
        let first = runs.first().context("no runs")?;
        let mut row = vec![at(first, "flows").to_owned()];
        let ratios: Vec<f64> = runs.chunks(2).map(ratio).collect::<Result<_>>()?;
        row.extend(ratios.iter().map(|ratio| format!("{ratio:.2}")));
        Ok(row)
    };
    let rows: Vec<_> = runs.chunks(2 * SEEDS).map(row).collect::<Result<_>>()?;
    Ok(table(&[&command], &["N", "seed 1", "seed 2", "seed 3", "seed 4"], &rows))
}

pub(super) fn marking(lab: &Lab) -> Result<String> {
    let command = format!(
        "stability {MODEL_PACKETS} --duration 600ms --sweep flows=2,10 --sweep loop-delay=4us,85us --sweep marking=egress,ingress"
    );
    let runs = lab.sweep(&command)?;
    let row = |pair: &[Value]| {
        let [egress, ingress] = pair else { anyhow::bail!("a pair of runs is incomplete") };
        let variation = |run: &Value| number(run, "/oscillation/queue_variation").map(percent);
        let idle = |run: &Value| number(run, "/oscillation/idle_share").map(percent);
        let mean = |run: &Value| queue(run, "mean_bytes").map(kb);
        Ok(vec![
            at(egress, "flows").to_owned(),
            at(egress, "loop-delay").to_owned(),
            format!("{} / {}", mean(egress)?, mean(ingress)?),
            format!("{} / {}", variation(egress)?, variation(ingress)?),
            format!("{} / {}", idle(egress)?, idle(ingress)?),
        ])
    };
    let rows: Vec<_> = runs.chunks(2).map(row).collect::<Result<_>>()?;
    let heading = [
        "N",
        "loop delay",
        "queue mean, KB, egress / ingress",
        "deviation over mean, egress / ingress",
        "link idle, egress / ingress",
    ];
    Ok(table(&[&command], &heading, &rows))
}

/// RoCE's and TCP's goodput, drops and retransmissions.
fn coexisting(run: &Value) -> Result<[String; 4]> {
    Ok([
        gbps(number(run, "/outcome/groups/0/goodput_bps")?),
        gbps(number(run, "/outcome/groups/1/goodput_bps")?),
        format!("{:.0}", number(run, "/outcome/groups/0/totals/dropped_packets")?),
        format!("{:.0}", number(run, "/outcome/groups/0/totals/retransmitted_packets")?),
    ])
}

pub(super) fn linkedin(lab: &Lab) -> Result<String> {
    let command = "coexist --sweep classes=on,off";
    let runs = lab.sweep(command)?;
    let published = [("about 17", "6 to 7", "none"), ("9 to 10", "13 to 14", "yes")];
    let mut rows = Vec::new();
    for (run, (roce, tcp, drops)) in runs.iter().zip(published) {
        let [our_roce, our_tcp, our_drops, resent] = coexisting(run)?;
        rows.push(vec![
            format!("classes, ECN, DCQCN {}", at(run, "classes")),
            roce.to_owned(),
            our_roce,
            tcp.to_owned(),
            our_tcp,
            drops.to_owned(),
            our_drops,
            resent,
        ]);
    }
    let heading = [
        "run",
        "RoCE published, Gb/s",
        "**RoCE simulated**",
        "TCP published, Gb/s",
        "**TCP simulated**",
        "RoCE drops published",
        "**simulated**",
        "RoCE packets sent again",
    ];
    Ok(table(&[command], &heading, &rows))
}

pub(super) fn linkedin_outstanding(lab: &Lab) -> Result<String> {
    let command =
        "coexist --duration 1s --sweep classes=on,off --sweep buffer=4MB,12MB --sweep outstanding=8,16,32,64";
    let runs = lab.sweep(command)?;
    let row = |run: &Value| {
        let [roce, tcp, drops, resent] = coexisting(run)?;
        let settings = ["classes", "buffer", "outstanding"].map(|key| at(run, key).to_owned());
        Ok(settings.into_iter().chain([roce, tcp, drops, resent]).collect())
    };
    let rows: Vec<Vec<String>> = runs.iter().map(row).collect::<Result<_>>()?;
    let heading = [
        "classes",
        "buffer",
        "blocks per target",
        "RoCE, Gb/s",
        "TCP, Gb/s",
        "RoCE drops",
        "RoCE sent again",
    ];
    Ok(table(&[command], &heading, &rows))
}
