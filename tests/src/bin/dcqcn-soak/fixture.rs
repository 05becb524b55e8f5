//! Two hosts, one managed by a daemon, with traffic between them, and its invariants.

use std::fmt;

use dcqcn_common::flow::RpFlow;
use dcqcn_loader::attach::Id;
use dcqcn_tests::prelude::*;
use dcqcn_tests::traffic::Traffic;

/// Size of the tables of the daemon's attachments, which identifies its maps.
pub(crate) const FLOWS: u32 = 1_531;
/// Size of the tables of other attachments.
pub(crate) const ALTERNATIVE_FLOWS: u32 = 1_533;

/// Configuration of the daemon: rates change only by cuts.
pub(crate) fn file() -> String {
    format!(
        "[[interface]]\nname = 'a*'\nrole = 'host'\npacer = 'htb'\nflows = {FLOWS}\n[interface.parameters]\n\
         link_rate = '600mbit'\nrpg_time_reset = '0ns'\nrpg_byte_reset = '0B'\nrpg_ai_rate = '10mbit'\n\
         {METRICS}"
    )
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Violations {
    pub(crate) packets_lost: u64,
    pub(crate) rates_lost: u64,
    pub(crate) leaked: u64,
}

impl Violations {
    pub(crate) const fn is_none(&self) -> bool {
        self.packets_lost == 0 && self.rates_lost == 0 && self.leaked == 0
    }

    pub(crate) const fn add(&mut self, other: Self) {
        self.packets_lost += other.packets_lost;
        self.rates_lost += other.rates_lost;
        self.leaked += other.leaked;
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets_lost, rates_lost, leaked } = self;
        write!(f, "{packets_lost} packets lost, {rates_lost} rates lost, {leaked} leftovers")
    }
}

pub(crate) struct SoakFixture {
    traffic: Traffic,
    pub(crate) daemon: Daemon,
    pub(crate) pair: Pair,
    id: Id,
    config: Config,
    rate_bps: u64,
}

impl SoakFixture {
    /// Builds them, and cuts the flow once.
    pub(crate) fn new() -> Result<Self> {
        let pair = Pair::new("soak")?;
        pair.a.set_up("lo", true)?;
        let mut daemon = Daemon::start(&pair.a, &file())?;
        daemon.wait_for_log(&["task started", "\"task\":\"pacer\""])?;
        let traffic = Traffic::start(&pair)?;
        traffic.pass(100)?;
        pair.b.socket("b0")?.send(&Roce::default().cnp(None, CNP_TOS))?;
        let is_cut = |flow: &RpFlow| flow.cnps.handled == 1 && flow.hot.machine.rate_bps < 600_000_000;
        let cut = wait_value(|| flow(&pair), is_cut)?;
        let rate_bps = cut.hot.machine.rate_bps;
        let attachment = pair.a.attachment("a0")?;
        let (id, config) = (attachment.info.id(), attachment.maps.params()?.config);
        drop(attachment);
        Ok(Self { traffic, daemon, pair, id, config, rate_bps })
    }

    pub(crate) fn sent(&self) -> u64 {
        self.traffic.sent()
    }

    /// The command on the managed host, with its audit log next to the daemon's.
    pub(crate) fn command(&self, line: &str) -> Result<Command> {
        self.command_with(line, &[])
    }

    /// As [`Self::command`], with environment variables.
    pub(crate) fn command_with(&self, line: &str, environment: &[(&str, &str)]) -> Result<Command> {
        let mut command = dcqcn_with(line, environment)?;
        command.env("DCQCN_AUDIT", self.daemon.dir.path());
        Ok(command)
    }

    /// Runs one that must succeed.
    pub(crate) fn ok(&self, line: &str) -> Result<String> {
        let mut command = self.command(line)?;
        self.pair.a.run(|| output_of(&mut command))?
    }

    /// Runs one that must exit with `code`.
    pub(crate) fn fails(&self, line: &str, code: i32) -> Result<String> {
        let mut command = self.command(line)?;
        self.pair.a.run(|| error_of(&mut command, code))?
    }

    pub(crate) fn wait_until_served(&mut self) -> Result<()> {
        if let Some(status) = self.daemon.process.0.try_wait()? {
            bail!("the daemon has exited: {status}");
        }
        wait(|| {
            let ready = scrape(&self.pair.a, "/readyz");
            Ok(match ready {
                Ok(answer) if answer.starts_with("HTTP/1.1 200") => Ok(()),
                Ok(answer) => Err(answer),
                Err(error) => Err(format!("{error:#}")),
            })
        })
    }

    /// Effects of a fault, after it has ended.
    pub(crate) fn violations(&mut self) -> Result<Violations> {
        self.traffic.pass(20)?;
        let packets_lost = self.traffic.lost()?;
        self.wait_until_served()?;
        let attachment = self.pair.a.attachment("a0")?;
        ensure!(attachment.info.id() == self.id, "a0 was attached again");
        let config = attachment.maps.params()?.config;
        let others: Vec<String> =
            dcqcn_params::differing(&self.config, &config).map(|key| key.to_string()).collect();
        ensure!(others.is_empty(), "parameters changed: {others:?}");
        drop(attachment);
        let flow = flow(&self.pair)?;
        let rates_lost = u64::from(flow.hot.machine.rate_bps != self.rate_bps || flow.cnps.handled != 1);
        Ok(Violations { packets_lost, rates_lost, leaked: self.leaked()? })
    }

    fn leaked(&self) -> Result<u64> {
        // Maps are freed a moment after their last user.
        let others = if freed(ALTERNATIVE_FLOWS).is_ok() { 0 } else { tables(ALTERNATIVE_FLOWS) };
        let served = wait_value(|| Ok(tables(FLOWS)), |found| *found == 1);
        let served = served.unwrap_or_else(|_| tables(FLOWS)).abs_diff(1);
        // State that the daemon is still removing does not count.
        let mut found = 0;
        let cleared = wait(|| {
            let pending = self.pair.a.run(attach::pending)??.len();
            let journals = fs::read_dir(self.pair.a.journals()?)?
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .filter(|name| name != "lock")
                .count();
            ensure!(journals != 0, "the journal is missing");
            found = pending + journals - 1;
            Ok(if found == 0 {
                Ok(())
            } else {
                Err(format!("{pending} changes pending, {journals} journals"))
            })
        });
        if let Err(error) = cleared
            && found == 0
        {
            return Err(error);
        }
        Ok((others + served + found) as u64)
    }

    /// Removes everything, and returns the number of leftovers.
    pub(crate) fn end(self) -> Result<usize> {
        let Self { traffic, mut daemon, pair, .. } = self;
        traffic.end()?;
        daemon.end()?;
        pair.a.run(attach::detach_all)??;
        let journals = pair.a.journals()?;
        drop(pair);
        let _ = freed(FLOWS);
        let _ = freed(ALTERNATIVE_FLOWS);
        Ok(tables(FLOWS) + tables(ALTERNATIVE_FLOWS) + usize::from(journals.exists()))
    }
}

fn flow(pair: &Pair) -> Result<RpFlow> {
    pair.a.flow("a0", &Roce::default())
}
