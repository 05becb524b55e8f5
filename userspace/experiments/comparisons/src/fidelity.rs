//! Comparison of `dcqcn-lab sim` with analysis and published results: target/measured/fidelity.md.

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;
use serde_json::Value;

use crate::lab::{Args, Lab, Page, Table, cells, find, kb, list, number, percent, table, text};
use xtask::workspace::Workspace;

/// Packets of the fluid model: 1000 bytes without overhead.
const MODEL_PACKETS: &str = "--mtu 1000B --header 0";
/// CNPs at the start of each window only, and at its end as well.
const WINDOWS: &str = "np_window=start,both";
const PICTURES: &[(&str, &str)] = &[
    ("staircase.png", "staircase --mtu 1000B --header 0 --sample 2ms"),
    (
        "oscillation.png",
        "stability --mtu 1000B --header 0 --flows 10 --loop-delay 85us --duration 20ms --warm-up 10ms --sample 300us",
    ),
];

/// Runs every experiment and writes the tables and pictures.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let tables: &[Table<'_>] = &[
        ("variants", &variants),
        ("fairness", &fairness),
        ("loss", &loss),
        ("fixed-point", &fixed_point),
        ("staircase", &staircase),
        ("stability", &stability),
        ("seeds", &seeds),
        ("marking", &marking),
        ("linkedin", &linkedin),
        ("linkedin-outstanding", &linkedin_outstanding),
        ("window-end", &window_end),
        ("speed", &speed),
        ("speed-fabric", &speed_fabric),
    ];
    Page { name: "fidelity", files: Vec::new(), tables, pictures: PICTURES }.write(workspace, args)
}

/// The setting `key` that a sweep gave this run.
fn at(run: &Value, key: &str) -> String {
    find(run, "/at").map_or_else(|| "-".to_owned(), |at| text(at, key))
}

/// Result of RoCE's class, the highest with flows.
fn queue(run: &Value, metric: &str) -> Result<f64> {
    number(run, &format!("/outcome/classes/last/queue/{metric}"))
}

fn variation(run: &Value) -> Result<f64> {
    number(run, "/oscillation/queue_variation")
}

fn pair(runs: &[Value]) -> Result<&[Value; 2]> {
    runs.try_into().context("a pair of runs is incomplete")
}

fn variants(lab: &Lab) -> Result<String> {
    let command = "incast --link 100g --flows 8 --duration 400ms --kmin 400KB --kmax 1600KB --pmax 20% \
                   --sweep profile=paper,nvidia,hpcc,irdma";
    let row = |run: &Value| {
        Ok(format!(
            "`{}` | {} | {} | {}",
            at(run, "profile"),
            cells(
                run,
                "/outcome/groups/0/goodput_bps:1G /outcome/groups/0/jain:3 /outcome/classes/last/queue/mean_bytes:kb \
                 /outcome/classes/last/queue/p99_bytes:kb"
            )?,
            percent(1.0 - number(run, "/outcome/link_utilisation")?),
            cells(run, "/outcome/groups/0/totals/cnps:0")?
        ))
    };
    let rows: Vec<_> = lab.sweep(command)?.iter().map(row).collect::<Result<_>>()?;
    let heading = "profile | goodput, Gbit/s | Jain | queue mean, KB | queue p99, KB | link idle | CNPs";
    Ok(table(&[command], heading, &rows))
}

/// Time until NVIDIA's profile is fair, by its step.
fn fairness(lab: &Lab) -> Result<String> {
    let command = "incast --link 100g --flows 8 --kmin 400KB --kmax 1600KB --pmax 20% --profile nvidia --warm-up 0ns \
                   --sweep rpg_ai_rate=5mbit,20mbit,100mbit --sweep duration=100ms,1s,3s";
    let row = |runs: &[Value]| {
        let jain: Result<String> =
            runs.iter().map(|run| Ok(format!(" | {}", cells(run, "/outcome/groups/0/jain:2")?))).collect();
        Ok(at(runs.first().context("no runs")?, "rpg_ai_rate") + &jain?)
    };
    let rows: Vec<_> = lab.sweep(command)?.chunks(3).map(row).collect::<Result<_>>()?;
    Ok(table(&[command], "`rpg_ai_rate` | Jain, first 100 ms | first 1 s | first 3 s", &rows))
}

/// Hundreds of flows starting together into a deep buffer.
fn loss(lab: &Lab) -> Result<String> {
    lab.swept(
        &format!(
            "incast --flows 200 --kmax 20MB --pmax 100% --buffer 200MB --sweep pfc=off,on --sweep {WINDOWS}"
        ),
        "PFC | `np_window` | goodput, Gbit/s | packets dropped | packets retransmitted",
        "/at/pfc:s /at/np_window:s /outcome/groups/0/goodput_bps:1G /outcome/groups/0/totals/dropped_packets:0 \
         /outcome/groups/0/totals/retransmitted_packets:0",
    )
}

/// Settings under test: name, options, and published result by number of flows.
type Cases<T> = &'static [(&'static str, &'static str, &'static [(u32, T)])];

/// Numbers of flows, as a list of the command line.
fn flows<T>(published: &[(u32, T)]) -> String {
    published.iter().map(|(flows, _)| flows.to_string()).collect::<Vec<_>>().join(",")
}

/// Link, thresholds, and published q* of the fluid model, KB, by number of flows.
const FIXED_POINTS: Cases<f64> = &[
    (
        "40 Gbit/s, 5/200 KB, 1 %",
        "--link 40g --kmin 5KB --kmax 200KB --pmax 1%",
        &[(2, 20.2), (4, 41.8), (8, 93.8)],
    ),
    (
        "25 Gbit/s, 100/400 KB, 20 %",
        "--link 25g --kmin 100KB --kmax 400KB --pmax 20%",
        &[(2, 102.0), (4, 105.0), (8, 112.0), (16, 129.0)],
    ),
    (
        "100 Gbit/s, 400/1600 KB, 20 %",
        "--link 100g --kmin 400KB --kmax 1600KB --pmax 20%",
        &[(2, 401.0), (4, 404.0), (8, 409.0), (16, 421.0), (32, 449.0)],
    ),
];

fn fixed_point(lab: &Lab) -> Result<String> {
    let (mut rows, mut commands) = (Vec::new(), Vec::new());
    for (name, options, published) in FIXED_POINTS {
        let command = format!(
            "incast {options} {MODEL_PACKETS} --duration 1s --warm-up 300ms --sweep flows={} --sweep {WINDOWS}",
            flows(published)
        );
        let runs = lab.sweep(&command)?;
        ensure!(runs.len() == 2 * published.len(), "`dcqcn-lab sim {command}` reported {} runs", runs.len());
        for (runs, (flows, published_kb)) in runs.chunks(2).zip(*published) {
            let [run, both] = pair(runs)?;
            let (mean, events) = (queue(run, "mean_bytes")?, number(run, "/cycle_fixed_point/queue_bytes")?);
            let settled =
                "/outcome/classes/last/queue/mean_bytes:kb /outcome/classes/last/queue/deviation_bytes:kb";
            rows.push(format!(
                "{name} | {flows} | {published_kb} | {:.1} | {} | {} | {:+.1} % | {} | {}",
                number(run, "/fixed_point/queue_bytes")? / 1e3,
                kb(events),
                kb(mean),
                (mean / events - 1.0) * 100.0,
                kb(queue(run, "deviation_bytes")?),
                cells(both, settled)?
            ));
        }
        commands.push(command);
    }
    let heading = "link, Kmin/Kmax, Pmax | N | published q*, KB | our fluid q*, KB | event by event, KB | \
                   **simulated mean, KB**, `start` | against event by event | deviation, KB | \
                   **simulated mean, KB**, `both` | deviation, KB";
    Ok(table(&commands, heading, &rows))
}

fn staircase(lab: &Lab) -> Result<String> {
    let command = format!("staircase {MODEL_PACKETS} --duration 300ms");
    let run = lab.json(&command)?;
    let published = ["20, 20", "13.3, 13.3, 13.3, well within 100 ms"];
    let row = |(stage, published): (&Value, &str)| {
        let shares = list(stage, "/goodput_bps").iter().filter_map(Value::as_f64);
        let shares: Vec<String> = shares.map(|bps| format!("{:.1}", bps / 1e9)).collect();
        let [from, to] = ["/from_ns:0M", "/to_ns:0M"].map(|end| cells(stage, end));
        Ok(format!(
            "{} to {} ms | {published} | {} | {}",
            from?,
            to?,
            shares.join(", "),
            cells(stage, "/jain:3")?
        ))
    };
    let rows: Vec<_> = list(&run, "/stages").iter().zip(published).map(row).collect::<Result<_>>()?;
    ensure!(!rows.is_empty(), "no stages in the simulator's JSON");
    let fair =
        number(&run, "/outcome/convergence_ns").map_or("not".to_owned(), |ns| format!("{:.0} ms", ns / 1e6));
    let heading = "stage | published, Gbit/s | **simulated, Gbit/s** (mean of its second half) | Jain";
    let note = format!("\nFair (Jain's index stays at 0.95 or more) after the third flow's start: {fair}.\n");
    Ok(table(&[command], heading, &rows) + &note)
}

/// Settings, name, number of flows, and published result for a loop delay of 85 us.
const STABILITY: Cases<&str> = &[
    ("200 KB, 1 %, then all", "--kmax 200KB --pmax 1%", &[(2, "stable"), (10, "unstable"), (64, "stable")]),
    (
        "same slope, no jump",
        "--kmax 19505KB --pmax 100% --buffer 200MB",
        &[(2, "stable"), (10, "unstable"), (64, "stable"), (80, ""), (100, ""), (150, "")],
    ),
    ("cure: R_AI 10 Mbit/s, 1000 KB", "--set rpg_ai_rate=10mbit --kmax 1000KB", &[(10, "stable")]),
    (
        "cure, no jump",
        "--set rpg_ai_rate=10mbit --kmax 99505KB --pmax 100% --buffer 200MB",
        &[(10, "stable")],
    ),
];
/// A long loop delay counts as destabilising if it raises the queue's relative deviation by this factor over 4 us.
const UNSETTLED: f64 = 1.5;

fn stability(lab: &Lab) -> Result<String> {
    let (mut rows, mut commands) = (Vec::new(), Vec::new());
    for (name, options, published) in STABILITY {
        let command = format!(
            "stability {options} {MODEL_PACKETS} --duration 600ms --sweep flows={} --sweep loop-delay=4us,85us \
             --sweep {WINDOWS}",
            flows(published)
        );
        // `stability` puts its own axes first, unless they are given.
        let runs = lab.sweep(&command)?;
        for (flows, published) in *published {
            let of = |delay: &str, window: &str| {
                let requested =
                    [("flows", flows.to_string().as_str()), ("loop-delay", delay), ("np_window", window)]
                        .map(|(key, value)| (key, value.to_owned()));
                runs.iter()
                    .find(|run| requested.iter().all(|(key, value)| at(run, key) == *value))
                    .with_context(|| format!("`dcqcn-lab sim {command}` has no run of {requested:?}"))
            };
            let [start, both] = ["start", "both"].map(|window| {
                let (short, long) = (of("4us", window)?, of("85us", window)?);
                let ratio = variation(long)? / variation(short)?;
                anyhow::Ok([
                    percent(variation(short)?),
                    percent(variation(long)?),
                    format!("{ratio:.1}"),
                    cells(long, "/oscillation/idle_share:%")?,
                    if ratio > UNSETTLED { "unstable" } else { "stable" }.to_owned(),
                ])
            });
            let long = of("85us", "start")?;
            let model =
                number(long, "/fluid_settled/deviation_bytes")? / number(long, "/fluid_settled/mean_bytes")?;
            let mut row = format!("{name} | {flows} | {published} | {}", percent(model));
            for (start, both) in start?.iter().zip(both?) {
                row += &format!(" | {start} / {both}");
            }
            rows.push(row);
        }
        commands.push(command);
    }
    let heading = "marking up to | N | published, 85 us | fluid model, 85 us | simulated, 4 us | simulated, 85 us | ratio | \
                   link idle, 85 us | **verdict**";
    Ok(table(&commands, heading, &rows))
}

/// Random variation of the ratio of [`stability`], without the jump.
fn seeds(lab: &Lab) -> Result<String> {
    let command = format!(
        "stability --kmax 19505KB --pmax 100% --buffer 200MB {MODEL_PACKETS} --duration 600ms --sweep flows=2,10,150 \
         --sweep seed=1,2,3,4 --sweep loop-delay=4us,85us"
    );
    let row = |runs: &[Value]| {
        let mut row = at(runs.first().context("no runs")?, "flows");
        for runs in runs.chunks(2) {
            let [short, long] = pair(runs)?;
            row += &format!(" | {:.2}", variation(long)? / variation(short)?);
        }
        Ok(row)
    };
    let rows: Vec<_> = lab.sweep(&command)?.chunks(8).map(row).collect::<Result<_>>()?;
    Ok(table(&[command], "N | seed 1 | seed 2 | seed 3 | seed 4", &rows))
}

fn marking(lab: &Lab) -> Result<String> {
    let command = format!(
        "stability {MODEL_PACKETS} --duration 600ms --sweep flows=2,10 --sweep loop-delay=4us,85us --sweep marking=egress,ingress"
    );
    let row = |runs: &[Value]| {
        let [egress, ingress] = pair(runs)?;
        let mut row = cells(egress, "/at/flows:s /at/loop-delay:s")?;
        for metric in [
            "/outcome/classes/last/queue/mean_bytes:kb",
            "/oscillation/queue_variation:%",
            "/oscillation/idle_share:%",
        ] {
            row += &format!(" | {} / {}", cells(egress, metric)?, cells(ingress, metric)?);
        }
        Ok(row)
    };
    let rows: Vec<_> = lab.sweep(&command)?.chunks(2).map(row).collect::<Result<_>>()?;
    let heading = "N | loop delay | queue mean, KB, egress / ingress | deviation over mean, egress / ingress | \
                   link idle, egress / ingress";
    Ok(table(&[command], heading, &rows))
}

fn linkedin(lab: &Lab) -> Result<String> {
    let command = "coexist --sweep classes=on,off";
    let published = [["about 17", "6 to 7", "none"], ["9 to 10", "13 to 14", "yes"]];
    let row = |(run, [roce, tcp, drops]): (&Value, [&str; 3])| {
        let [our_roce, our_tcp, our_drops] = [
            "/outcome/groups/0/goodput_bps:1G",
            "/outcome/groups/1/goodput_bps:1G",
            "/outcome/groups/0/totals/dropped_packets:0 /outcome/groups/0/totals/retransmitted_packets:0",
        ]
        .map(|metric| cells(run, metric));
        Ok(format!(
            "classes, ECN, DCQCN {} | {roce} | {} | {tcp} | {} | {drops} | {}",
            at(run, "classes"),
            our_roce?,
            our_tcp?,
            our_drops?
        ))
    };
    let rows: Vec<_> = lab.sweep(command)?.iter().zip(published).map(row).collect::<Result<_>>()?;
    let heading = "run | RoCE published, Gbit/s | **RoCE simulated** | TCP published, Gbit/s | **TCP simulated** | \
                   RoCE drops published | **simulated** | RoCE packets retransmitted";
    Ok(table(&[command], heading, &rows))
}

fn linkedin_outstanding(lab: &Lab) -> Result<String> {
    lab.swept(
        "coexist --duration 1s --sweep classes=on,off --sweep buffer=4MB,12MB --sweep outstanding=8,16,32,64",
        "classes | buffer | blocks per target | RoCE, Gbit/s | TCP, Gbit/s | RoCE drops | RoCE retransmitted",
        "/at/classes:s /at/buffer:s /at/outstanding:s /outcome/groups/0/goodput_bps:1G /outcome/groups/1/goodput_bps:1G \
         /outcome/groups/0/totals/dropped_packets:0 /outcome/groups/0/totals/retransmitted_packets:0",
    )
}

/// Delay of the CNP at the end of a window, by its trigger.
fn window_end(lab: &Lab) -> Result<String> {
    const COMMON: &str = "--profile paper --set wred.3.kmin=100KB --set wred.3.kmax=400KB --set wred.3.pmax=20% --duration 200ms";
    const FIRST: &str = "--topology leaf-spine:1x0x129 --workload incast:8 --size 20MB";
    let mut rows = Vec::new();
    for (name, workload) in [
        ("8 senders, 20 MB", FIRST),
        ("32 senders, 5 MB", "--topology leaf-spine:1x0x129 --workload incast:32 --size 5MB"),
        ("128 senders, 2 MB", "--topology leaf-spine:1x0x129 --workload incast:128 --size 2MB"),
        (
            "random, 200 KB, 70 % load",
            "--topology leaf-spine:4x4x16 --workload random --size 200KB --load 70% --until 5ms",
        ),
    ] {
        for (value, by) in
            [("timer", "a timer"), ("flow", "the flow's next packet"), ("port", "the port's next packet")]
        {
            let run = lab.complete(&format!("fabric {workload} {COMMON} --window-end {value}"))?;
            let values = cells(
                &run,
                "/transport/cnps_sent:0 /transport/window_end/cnps:0 /transport/window_end/late_p50_ns:1k \
                 /transport/window_end/late_p99_ns:1k /transport/window_end/late_max_ns:1k \
                 /transport/window_end/unanswered:0 /ports/0/max_queue_bytes:kb /fct/mean_ns:2M /fct/max_ns:2M",
            )?;
            rows.push(format!("{name} | {by} | {values}"));
        }
    }
    let heading = "flows | sent by | CNPs | at a window's end | late p50, us | **p99** | max | never answered | queue, KB | \
                   mean FCT, ms | last, ms";
    Ok(table(&[format!("fabric {FIRST} {COMMON} --window-end flow")], heading, &rows))
}

fn speed(lab: &Lab) -> Result<String> {
    const LINK_BPS: u64 = 100_000_000_000;
    let command = |flows: &str, rate: &str| {
        format!(
            "incast --link 100g --flows {flows} --sender-link {rate} --kmin 400KB --kmax 1600KB --pmax 20% \
             --set rpg_min_rate=1mbit --duration 300ms"
        )
    };
    let row = |flows: u64| {
        // 1.2 times the fair share, so that the offered load is the same for all.
        let run = lab.json(&command(&flows.to_string(), &(LINK_BPS / flows * 6 / 5).to_string()))?;
        let values = cells(&run, "/outcome/counters/hops:2M /run/wall_seconds:2 /run/hops_per_second:1M")?;
        Ok(format!("{flows} | {values}"))
    };
    let rows: Vec<_> = [2, 10, 100, 1_000, 10_000].map(row).into_iter().collect::<Result<_>>()?;
    let heading = "flows | packet hops, millions | time on one core, s | million hops/s";
    Ok(table(&[command("100", "1.2g")], heading, &rows) + &processor())
}

/// The processor according to Linux, and the number of cores.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("\nProcessor: {}, {} cores.\n", name.map_or("unknown", |(_, name)| name), cores())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

const FABRIC_HEADING: &str = "fabric | cores | packet hops, millions | time, s | million hops/s | memory, MB";

/// A row of one run, and its results without timing.
fn fabric_row(lab: &Lab, name: &str, options: &str, threads: usize) -> Result<(String, Value)> {
    let mut run = lab.json(&format!("{options} --threads {threads}"))?;
    let values =
        cells(&run, "work/hops:1M /run/wall_seconds:1 /run/hops_per_second:1M /run/peak_memory_bytes:0M")?;
    let report = run.as_object_mut().context("a report is an object")?;
    report.remove("run");
    Ok((format!("{name} | {threads} | {values}"), run))
}

/// Fabrics on one core and on all, with the same results.
fn speed_fabric(lab: &Lab) -> Result<String> {
    let small = "fabric --topology leaf-spine:4x4x16 --size 1MB --load 50% --until 40ms";
    let large = "fabric --topology leaf-spine:32x32x32 --size 1MB --load 50% --until 4ms";
    let mut rows = Vec::new();
    for (name, options) in [("64 hosts, 8 switches", small), ("1,024 hosts, 64 switches", large)] {
        let (one, report) = fabric_row(lab, name, options, 1)?;
        let (all, other) = fabric_row(lab, name, options, cores())?;
        if report != other {
            bail!("the result on {} cores differs from that on one: {options}", cores());
        }
        rows.extend([one, all]);
    }
    Ok(table(&[large], FABRIC_HEADING, &rows) + &processor())
}
