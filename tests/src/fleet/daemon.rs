//! A mock daemon without a data plane. It responds as `dcqcn run` does, with simulated counters.

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Mutex, MutexGuard};

use dcqcn_control_api::{
    Answer, Applied, Changes, Class, Counts, Health, InterfaceSnapshot, Override, ParameterValue, Qp,
    Question, Snapshot, Status, Values, Verb, VersionAnswer,
};
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::sync::lock;

use crate::prelude::*;

const PACKETS_PER_S: u64 = 10_000;
const QPS: u64 = 1_000;
const LINE: u64 = 25_000_000_000;
const MARKS: u64 = 500;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// Applies versions; `rpg_gd = 15` increases marks.
    #[default]
    Good,
    Refuses,
    Slow(Duration),
    /// The next applied version stops the traffic, but the QPs remain.
    Silent,
    /// The next applied version halves the traffic.
    Half,
}

fn counts(data_packets: u64, marked_packets: u64) -> Counts {
    Counts { attached_at_ns: 1, data_packets, marked_packets, ..Counts::default() }
}

#[derive(Default)]
struct State {
    nature: Behaviour,
    /// Name and text of the active configuration.
    active: Option<(String, String)>,
    /// Names of all configurations so far, in order.
    names: Vec<Option<String>>,
    packets: f64,
    marks: f64,
    counted_at: Option<Instant>,
    /// Remaining fraction of the traffic.
    left: Option<f64>,
}

impl State {
    fn count(&mut self) {
        let now = Instant::now();
        let since = self.counted_at.replace(now).map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        let is_worse = self.active.as_ref().is_some_and(|(_, text)| text.contains("rpg_gd = 15"));
        let packets = since * PACKETS_PER_S as f64 * self.left.unwrap_or(1.0);
        self.packets += packets;
        self.marks += packets * if is_worse { 20 * MARKS } else { MARKS } as f64 / 1e6;
    }

    fn switch_to(&mut self, active: Option<(String, String)>) -> Applied {
        self.count();
        let changed = self.active != active;
        let name = active.as_ref().map(|(name, _)| name.clone());
        if changed {
            self.names.push(name.clone());
            self.left = match self.nature {
                Behaviour::Silent if self.left.is_none() => Some(0.0),
                Behaviour::Half if self.left.is_none() => Some(0.5),
                _ => None,
            };
        }
        self.active = active;
        Applied { name, changed, took_ms: 0, interfaces: vec!["eth0".into()] }
    }
}

#[derive(Clone)]
pub struct MockDaemon(Arc<Mutex<State>>);

impl MockDaemon {
    /// Starts a daemon at `path`, which runs until the process exits.
    pub fn listen(path: impl AsRef<Path>) -> Result<Self> {
        let daemon = Self(Arc::default());
        let listener = UnixListener::bind(path)?;
        let answering = daemon.clone();
        thread::Builder::new().stack_size(256 << 10).spawn(move || {
            for stream in listener.incoming().flatten() {
                // Errors of a connection concern its client.
                let _ = answering.connection(stream);
            }
        })?;
        Ok(daemon)
    }

    pub fn be(&self, nature: Behaviour) {
        self.lock().nature = nature;
    }

    /// Drops the override, as when the host's file no longer allows it.
    pub fn forget(&self) {
        self.lock().switch_to(None);
    }

    pub fn name(&self) -> Option<String> {
        Some(self.lock().active.clone()?.0)
    }

    pub fn text(&self) -> Option<String> {
        Some(self.lock().active.clone()?.1)
    }

    pub fn names(&self) -> Vec<Option<String>> {
        self.lock().names.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Snapshot of four interfaces, one of them with a thousand QPs whose order varies between samples.
    fn snapshot(&self, most: usize) -> Snapshot {
        let at_ns = monotonic_ns();
        let packets = {
            let mut state = self.lock();
            state.count();
            state.packets as u64
        };
        let wave = |n: u64| (at_ns / 1_000_000_000 * 37 + n * 101) % 1_000;
        let seen = |n: u64| {
            let counts = Counts { flows: QPS, ..counts(packets, packets / 50) };
            let (kmin_bytes, kmax_bytes, depth_bytes) = (50_000, 200_000, wave(n) * 200);
            let class =
                Class { tc: 3, ecn: true, kmin_bytes, kmax_bytes, depth_bytes, packets, ..Class::default() };
            let [role, pacer] = ["host", "fq"].map(String::from);
            InterfaceSnapshot { counts, role, pacer, line_rate_bps: LINE, classes: vec![class] }
        };
        let qp = |n: u64| {
            let (address, state) = (format!("10.0.{}.{}", n / 250, n % 250 + 1), "additive-increase".into());
            let (qpn, cnps_handled, rate_bps) = (n as u32 + 0x11, n as u32, LINE * (wave(n) + 1) / 1_000);
            let throughput_bps = rate_bps as f64;
            Qp { address, qpn, state, rate_bps, target_bps: rate_bps, throughput_bps, cnps_handled }
        };
        let mut busiest: Vec<Qp> = (0..QPS).map(qp).collect();
        busiest.sort_by(|a, b| b.throughput_bps.total_cmp(&a.throughput_bps));
        busiest.truncate(most);
        let interfaces = (0..4).map(|n| (format!("eth{n}"), seen(n))).collect();
        Snapshot { at_ns, interfaces, failing: Vec::new(), busiest }
    }

    fn connection(&self, mut stream: UnixStream) -> Result<()> {
        let mut line = String::new();
        BufReader::new(stream.try_clone()?).read_line(&mut line)?;
        let Question { verb, .. } = serde_json::from_str(&line)?;
        let mut answer = serde_json::to_vec(&self.answer(verb))?;
        answer.push(b'\n');
        Ok(stream.write_all(&answer)?)
    }

    fn answer(&self, verb: Verb) -> Answer {
        let nature = self.lock().nature;
        match (verb, nature) {
            (Verb::Apply(_), Behaviour::Refuses) => {
                Answer::of::<Applied>(Err("this host's own bounds".into()))
            }
            (Verb::Apply(apply), nature) => {
                if let Behaviour::Slow(time) = nature {
                    thread::sleep(time);
                }
                Answer::of(Ok(self.lock().switch_to(Some((apply.name, apply.text)))))
            }
            (Verb::Release(_), _) => Answer::of(Ok(self.lock().switch_to(None))),
            (Verb::Health {}, _) => {
                let mut state = self.lock();
                state.count();
                let counts = counts(state.packets as u64, state.marks as u64);
                let counts = Counts { kmax_bytes: 200_000, queue_pairs: Some(QPS), ..counts };
                let interfaces = [("eth0".to_owned(), counts)].into();
                Answer::of(Ok(Health { at_ns: monotonic_ns(), interfaces, failing: Vec::new() }))
            }
            (Verb::Snapshot(request), _) => Answer::of(Ok(self.snapshot(request.most))),
            (Verb::Parameters(_), _) => {
                let value =
                    |key: Key| ParameterValue { text: key.default_text(), bounds: Some(key.allowed()) };
                let parameters = Key::all().map(|key| (key.to_string(), value(key))).collect();
                Answer::of(Ok(Values { parameters }))
            }
            (Verb::Changes {}, _) => Answer::of(Ok(Changes::default())),
            (Verb::Config {}, _) => Answer::of(Ok(None::<Override>)),
            (Verb::Version {}, _) => Answer::of(Ok(VersionAnswer { dcqcn: "test".into(), protocol: 1 })),
            _ => {
                let config = self.lock().active.as_ref().map(|(name, _)| name.clone());
                let interfaces = vec!["eth0".into()];
                Answer::of(Ok(Status { is_ready: true, interfaces, config, ..Status::default() }))
            }
        }
    }
}
