//! `cargo xtask vm matrix`: situations of two guests, for pairs of NIC model, kernels and situation.
//!
//! All situations of a NIC and a pair of kernels run in one boot. Without `--full`, each situation runs on
//! every NIC and with every pair of kernels at least once, not in every combination.

pub(super) mod table;

use std::str::FromStr;

use super::guest::{Booted, Guest};
use super::scenario;
use crate::prelude::*;

const TITLE: &str = "between";

/// Options of `cargo xtask vm matrix`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Models of the NICs.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "virtio-net,virtio-net-mq,e1000e,vmxnet3"
    )]
    nic: Vec<Nic>,
    /// Kernels of both guests, or of the first and the second one.
    #[arg(long, value_name = "KERNEL[+KERNEL]", value_delimiter = ',', default_value = "6.1,6.12,7,6.1+7")]
    kernel: Vec<Kernels>,
    /// Situations [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    situation: Vec<String>,
    /// Boot a third guest between both for the situations that need one, which are skipped otherwise.
    #[arg(long)]
    middle: bool,
    /// Run every combination instead of every pair.
    #[arg(long)]
    full: bool,
    /// List the situations.
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kernels(Series, Series);

impl FromStr for Kernels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, second) = text.split_once('+').unwrap_or((text, text));
        let of = |name| Series::from_str(name, false);
        Ok(Self(of(first)?, of(second)?))
    }
}

pub(super) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let first = args.kernel.first().context("no kernel")?.0;
    if args.list {
        let all = situations(&scenario::build_driver(workspace)?)?;
        all.iter().for_each(|(name, about)| println!("{name:12} {about}"));
        return Ok(());
    }
    let (guest, names) = Guest::prepare(workspace, Arch::X86_64, Some(first), || {
        let driver = scenario::build_driver(workspace)?;
        let names = chosen(&situations(&driver)?, &args.situation)?;
        Ok((driver, names))
    })?;
    let mut finished = Vec::new();
    let mut left_out = Vec::new();
    for (row, kernels) in args.kernel.iter().enumerate() {
        let booted = match boot(&guest, *kernels) {
            Ok(booted) => booted,
            Err(error) if !(kernels.0.is_required() && kernels.1.is_required()) => {
                left_out.push(format!("SKIPPED kernels {kernels}: {error:#}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        for (column, nic) in args.nic.iter().enumerate() {
            let period = if args.full { 1 } else { args.nic.len().min(args.kernel.len()) };
            let names = selected(&names, row + column, period);
            let title = format!("{TITLE}-{}-{kernels}", nic.name());
            let [first, second] = &booted;
            let earlier = first.stored(&title)?;
            let mut run = first.run_situations(&title, &names, *nic, second, args.middle)?;
            if let Some(earlier) = earlier {
                run = table::merge(earlier, run, &names);
                first.store(&run)?;
            }
            finished.push(run);
        }
    }
    for run in &finished {
        println!("{:30} {}", run.scenario, run.verdict());
        run.outcome.iter().flat_map(|outcome| &outcome.skipped).for_each(|line| println!("  SKIPPED {line}"));
    }
    left_out.iter().for_each(|line| println!("{line}"));
    println!("\n{}", table::table(&finished));
    let failed = finished.iter().filter(|run| run.verdict.is_err()).count();
    ensure!(failed == 0, "{failed} of {} runs failed", finished.len());
    ensure!(!finished.is_empty(), "no run: none of the requested kernels is available");
    Ok(())
}

impl std::fmt::Display for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == self.1 { write!(f, "{}", self.0) } else { write!(f, "{}+{}", self.0, self.1) }
    }
}

/// Title of [`quick`].
pub(super) const QUICK: &str = "two-guests";

/// The situations that every change must pass, over virtio-net.
pub(super) fn quick(booted: &Booted<'_>) -> Result<Finished> {
    booted.run_situations(QUICK, &["incast", "tcp"].map(str::to_owned), Nic::VirtioNet, booted, false)
}

fn boot(guest: &Guest, kernels: Kernels) -> Result<[Booted<'_>; 2]> {
    Ok([guest.boot(kernels.0)?, guest.boot(kernels.1)?])
}

fn situations(driver: &Path) -> Result<Vec<(String, String)>> {
    let list = run::capture(Command::new(driver).arg("situations"))?;
    serde_json::from_str(&list).context("cannot read the driver's list of situations")
}

/// The situations with these names; all if there are none.
fn chosen(all: &[(String, String)], names: &[String]) -> Result<Vec<String>> {
    let known: Vec<String> = all.iter().map(|(name, _)| name.clone()).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        bail!("unknown situation `{unknown}`; situations are: {}", known.join(", "));
    }
    Ok(known.into_iter().filter(|name| names.is_empty() || names.contains(name)).collect())
}

/// The situations of a boot: each `period`th, such that each occurs in every row and every column of the matrix.
fn selected(names: &[String], boot: usize, period: usize) -> Vec<String> {
    let is_selected = |index: usize| (index + boot).is_multiple_of(period);
    names.iter().enumerate().filter(|(index, _)| is_selected(*index)).map(|(_, name)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_guests_parsed() {
        assert_eq!("6.12".parse(), Ok(Kernels(Series::V6_12, Series::V6_12)));
        let mixed: Kernels = "6.1+7".parse().unwrap();
        assert_eq!((mixed, mixed.to_string()), (Kernels(Series::V6_1, Series::V7), "6.1+7".to_owned()));
        assert!("6.1+5".parse::<Kernels>().is_err());
    }

    #[test]
    fn each_situation_in_every_row_and_column() {
        let names: Vec<String> = (0..7).map(|number| number.to_string()).collect();
        let (nics, kernels) = (5, 4);
        let runs = |row: usize, column: usize| selected(&names, row + column, nics.min(kernels));
        for name in &names {
            for row in 0..kernels {
                assert!((0..nics).any(|column| runs(row, column).contains(name)), "{name}, kernels {row}");
            }
            for column in 0..nics {
                assert!((0..kernels).any(|row| runs(row, column).contains(name)), "{name}, NIC {column}");
            }
        }
    }

    #[test]
    fn single_boot_has_all_situations() {
        let names = ["a".to_owned(), "b".to_owned()];
        assert_eq!(selected(&names, 0, 1), names);
    }
}
