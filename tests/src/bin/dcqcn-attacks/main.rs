//! Costs of hostile packets for their sender, and their effects; `cargo xtask attacks` builds and runs it.

mod attacks;
mod testbed;

use std::process::ExitCode;

use clap::Parser;
use dcqcn_support::render::Table;
use dcqcn_tests::command::exit_code;
use dcqcn_tests::prelude::*;
use nix::unistd::Uid;

use crate::attacks::{ATTACKS, Attack};
use crate::testbed::Testbed;

/// Attack a host with a running QP, and measure the effects.
#[derive(Parser)]
struct Args {
    /// Packets per attack.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    packets: u32,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Result of an attack.
#[derive(Serialize)]
struct Row {
    who: &'static str,
    what: &'static str,
    packets: u32,
    packets_per_second: f64,
    /// Time of the attacked host's programs per packet, ns.
    ns_each: f64,
    effect: String,
    bound: String,
    is_within: bool,
}

fn main() -> ExitCode {
    exit_code(&run(&Args::parse()))
}

/// Runs the attacks, prints the table, and returns whether every bound held.
fn run(args: &Args) -> Result<bool> {
    ensure!(Uid::effective().is_root(), "this makes network namespaces and loads programs: run it as root");
    // Keeps the kernel's time measurement enabled.
    let _statistics = aya::sys::enable_stats(aya::sys::Stats::RunTime)?;
    let rows = ATTACKS.iter().map(|attack| one(attack, args.packets)).collect::<Result<Vec<_>>>()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        let table = Table::of(
            &rows,
            &[
                ("WHO", &|row| row.who.to_owned()),
                ("WHAT", &|row| row.what.to_owned()),
                (">PACKETS", &|row| row.packets.to_string()),
                (">PER SECOND", &|row| format!("{:.0}", row.packets_per_second)),
                (">ns EACH", &|row| format!("{:.0}", row.ns_each)),
                ("EFFECT", &|row| row.effect.clone()),
                ("BOUND", &|row| row.bound.clone()),
                ("HELD", &|row| if row.is_within { "yes" } else { "NO" }.to_owned()),
            ],
        );
        print!("{table}");
    }
    Ok(rows.iter().all(|row| row.is_within))
}

fn one(attack: &Attack, packets: u32) -> Result<Row> {
    eprintln!("   {}: {}", attack.who, attack.what);
    let testbed = Testbed::new()?;
    let before = testbed.observe()?.activated()?;
    let (program_ns, started) = (testbed.program_ns(attack.at)?, Instant::now());
    (attack.send)(&testbed, packets)?;
    let seconds = started.elapsed().as_secs_f64();
    let ns_each = (testbed.program_ns(attack.at)? - program_ns) as f64 / f64::from(packets);
    let after = testbed.observe()?;
    let (effect, bound, is_within) = (attack.verdict)(&before, &after, seconds);
    Ok(Row {
        who: attack.who,
        what: attack.what,
        packets,
        packets_per_second: f64::from(packets) / seconds,
        ns_each,
        effect,
        bound,
        is_within,
    })
}
