//! State of the dashboard, and its reaction to keys.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use dcqcn_common::params::Config;
use dcqcn_params::{Assignment, Key};
use dcqcn_telemetry::{QpKey, Sample};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::column::Column;

/// Stored rates per flow: the width of its sparkline.
pub(super) const HISTORY: usize = 15;

#[derive(Debug)]
pub(super) struct State {
    pub(super) ifaces: Vec<String>,
    /// Index of the current interface.
    pub(super) at: usize,
    pub(super) interval: Duration,
    /// The last sample; `None` if the interface cannot be read.
    pub(super) sample: Option<Sample>,
    pub(super) config: Option<Config>,
    pub(super) sort: Column,
    pub(super) descending: bool,
    /// Index of the first visible flow.
    pub(super) offset: usize,
    pub(super) paused: bool,
    pub(super) mode: Mode,
    /// Message that replaces the list of keys.
    pub(super) status: Option<Status>,
    /// Recent rates of each flow, bit/s, the newest last.
    history: HashMap<QpKey, VecDeque<f32>>,
}

/// Window above the dashboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Normal,
    Help,
    /// List of parameters that contain `filter`.
    Choose {
        filter: String,
        at: usize,
    },
    /// Input of a parameter's value.
    Value {
        key: Key,
        text: String,
    },
}

/// Result of the last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Done(String),
    Error(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    /// Switch to another interface, by offset.
    Switch(isize),
    Set(Assignment),
}

impl State {
    pub(super) fn new(ifaces: Vec<String>, at: usize, interval: Duration) -> Self {
        Self {
            ifaces,
            at,
            interval,
            sample: None,
            config: None,
            sort: Column::Throughput,
            descending: true,
            offset: 0,
            paused: false,
            mode: Mode::Normal,
            status: None,
            history: HashMap::new(),
        }
    }

    pub(super) fn iface(&self) -> &str {
        self.ifaces.get(self.at).map_or("", String::as_str)
    }

    pub(super) fn show(&mut self, sample: Sample, config: Config) {
        let mut history = HashMap::with_capacity(sample.qps.len());
        for qp in &sample.qps {
            let mut rates = self.history.remove(&qp.id()).unwrap_or_default();
            if rates.len() == HISTORY {
                rates.pop_front();
            }
            rates.push_back(qp.row.rate.rate_bps as f32);
            history.insert(qp.id(), rates);
        }
        // Forget flows that have ended.
        self.history = history;
        (self.sample, self.config) = (Some(sample), Some(config));
        self.order();
    }

    /// Records that the interface cannot be read.
    pub(super) fn lose(&mut self, error: &dyn std::error::Error) {
        self.forget();
        self.status = Some(Status::Error(error.to_string()));
    }

    /// Clears the sample after a switch to another interface.
    pub(super) fn forget(&mut self) {
        (self.sample, self.config) = (None, None);
        self.history.clear();
        self.offset = 0;
    }

    /// Recent rates of a flow in bit/s, the newest last.
    pub(super) fn history(&self, id: &QpKey) -> impl Iterator<Item = f32> {
        self.history.get(id).into_iter().flatten().copied()
    }

    fn order(&mut self) {
        let (sort, descending) = (self.sort, self.descending);
        if let Some(sample) = &mut self.sample {
            sample.qps.sort_unstable_by(
                |a, b| {
                    if descending { sort.compare(b, a) } else { sort.compare(a, b) }
                },
            );
        }
    }

    /// Parameters that can be set and contain `filter`.
    pub(super) fn choices(filter: &str) -> Vec<Key> {
        let filter = filter.to_lowercase();
        let fits = |key: &Key| !key.follows_from_attach() && key.to_string().contains(&filter);
        Key::all().filter(fits).collect()
    }

    /// Processes a key; the table shows `page` flows.
    pub(super) fn press(&mut self, key: KeyEvent, page: usize) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c')) {
            return Action::Quit;
        }
        match std::mem::replace(&mut self.mode, Mode::Normal) {
            Mode::Normal => self.press_normal(key.code, page),
            Mode::Help => match key.code {
                KeyCode::Char('q') => Action::Quit,
                _ => Action::None,
            },
            Mode::Choose { filter, at } => {
                self.press_choose(key.code, filter, at);
                Action::None
            }
            Mode::Value { key: parameter, text } => self.press_value(key.code, parameter, text),
        }
    }

    fn press_normal(&mut self, code: KeyCode, page: usize) -> Action {
        self.status = None;
        let count = self.sample.as_ref().map_or(0, |sample| sample.qps.len());
        let last = count.saturating_sub(page);
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Tab => return Action::Switch(1),
            KeyCode::BackTab => return Action::Switch(-1),
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('e') if self.config.is_some() => {
                self.mode = Mode::Choose { filter: String::new(), at: 0 };
            }
            KeyCode::Char('r') => self.descending = !self.descending,
            KeyCode::Left | KeyCode::Char('<') => self.sort = self.sort.step(-1),
            KeyCode::Right | KeyCode::Char('>') => self.sort = self.sort.step(1),
            KeyCode::Up => self.offset = self.offset.min(last).saturating_sub(1),
            KeyCode::Down => self.offset = self.offset.saturating_add(1).min(last),
            KeyCode::PageUp => self.offset = self.offset.min(last).saturating_sub(page),
            KeyCode::PageDown => self.offset = self.offset.saturating_add(page).min(last),
            KeyCode::Home => self.offset = 0,
            KeyCode::End => self.offset = last,
            _ => {}
        }
        self.order();
        Action::None
    }

    fn press_choose(&mut self, code: KeyCode, mut filter: String, mut at: usize) {
        let choices = Self::choices(&filter);
        match code {
            KeyCode::Esc => return,
            KeyCode::Enter => {
                if let Some(key) = choices.get(at) {
                    self.mode = Mode::Value { key: *key, text: String::new() };
                    return;
                }
            }
            KeyCode::Up => at = at.saturating_sub(1),
            KeyCode::Down => at = at.saturating_add(1).min(choices.len().saturating_sub(1)),
            KeyCode::Backspace => {
                filter.pop();
                at = 0;
            }
            KeyCode::Char(c) => {
                filter.push(c);
                at = 0;
            }
            _ => {}
        }
        self.mode = Mode::Choose { filter, at };
    }

    fn press_value(&mut self, code: KeyCode, key: Key, mut text: String) -> Action {
        match code {
            KeyCode::Esc => {
                self.status = None;
                return Action::None;
            }
            KeyCode::Enter => {
                let name = key.to_string();
                match Assignment::new(&name, &text) {
                    Ok(assignment) => {
                        self.mode = Mode::Value { key, text };
                        return Action::Set(assignment);
                    }
                    Err(error) => self.status = Some(Status::Error(error.to_string())),
                }
            }
            KeyCode::Backspace => {
                text.pop();
            }
            KeyCode::Char(c) => text.push(c),
            _ => {}
        }
        self.mode = Mode::Value { key, text };
        Action::None
    }

    pub(super) fn changed(&mut self, key: Key, old: &Config, new: &Config) {
        self.mode = Mode::Normal;
        self.config = Some(*new);
        self.status = Some(Status::Done(format!("{key}: {} -> {}", key.text(old), key.text(new))));
    }

    /// Records a rejected change; keeps the typed text for correction.
    pub(super) fn show_error(&mut self, why: String) {
        self.status = Some(Status::Error(why));
    }
}
