//! The dashboard of `dcqcn top`: periodic samples, a screen, and keys.

mod column;
mod state;
#[cfg(test)]
mod tests;
mod view;

use std::io;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use dcqcn_loader::attach::ChangeError;
use dcqcn_params::Assignment;
use dcqcn_support::causes::one_line;
use dcqcn_support::interrupt::Interrupt;
use dcqcn_telemetry::audit;
use dcqcn_telemetry::{Reading, Sample, alive_names, check_readable};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::terminal::disable_raw_mode;
use ratatui::layout::{Position, Rect};

use state::{Action, State};

/// Maximum delay of the reaction to a signal.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Shows the dashboard of `iface`, or of the first attached interface, until the user or a signal ends it. Restores the
/// terminal when it returns or panics.
pub(crate) fn run(iface: Option<String>, interval: Duration) -> anyhow::Result<()> {
    let interrupt = Interrupt::of_terminal(restore_and_exit)?;
    let mut ifaces = alive_names()?;
    if let Some(iface) = &iface {
        // Before the screen changes, as in every command.
        Reading::take(iface)?;
        if !ifaces.contains(iface) {
            ifaces.push(iface.clone());
        }
    } else {
        check_readable()?;
    }
    if ifaces.is_empty() {
        bail!("no interface is attached in this network namespace; run `dcqcn attach IFACE`");
    }
    let at = ifaces.iter().position(|name| Some(name) == iface.as_ref()).unwrap_or(0);
    let mut top = Top { state: State::new(ifaces, at, interval), last: None };
    let result = ratatui::try_init().context("cannot take over the terminal").and_then(|terminal| {
        // Its destructor would show the cursor, and panic if the terminal is closed.
        let mut terminal = ManuallyDrop::new(terminal);
        let result = top.run(&mut terminal, &interrupt);
        result.and(terminal.show_cursor().context("cannot show the cursor"))
    });
    let restored = ratatui::try_restore().context("cannot restore the terminal");
    let result = result.and(restored);
    // Errors of a closed terminal are not errors of the command.
    if result.is_err() && interrupt.sleep(TIMEOUT)? { Ok(()) } else { result }
}

/// Restores the mode of a terminal that accepts no more output.
fn restore_and_exit() {
    // The error cannot be reported anywhere.
    let _ = disable_raw_mode();
}

struct Top {
    state: State,
    /// Previous reading, for rates.
    last: Option<Reading>,
}

impl Top {
    fn run(&mut self, terminal: &mut DefaultTerminal, interrupt: &Interrupt) -> anyhow::Result<()> {
        let mut due = Instant::now();
        let mut stale = true;
        loop {
            let now = Instant::now();
            if now >= due {
                if !self.state.paused {
                    self.sample();
                    stale = true;
                }
                due = now + self.state.interval;
            }
            if stale {
                terminal.draw(|frame| view::draw(frame, &self.state))?;
                stale = false;
            }
            let rest = due.saturating_duration_since(Instant::now()).min(TIMEOUT);
            if interrupt.sleep_unless_read(&io::stdin(), rest)? {
                return Ok(());
            }
            // Draw first: reading keys from a closed terminal would not end.
            while event::poll(Duration::ZERO)? {
                stale = true;
                let Event::Key(key) = event::read()? else { continue };
                if key.kind != KeyEventKind::Press {
                    continue;
                }
                let screen = Rect::from((Position::ORIGIN, terminal.size()?));
                match self.state.press(key, view::page(screen, &self.state)) {
                    Action::None => {}
                    Action::Quit => return Ok(()),
                    Action::Switch(steps) => {
                        self.switch(steps);
                        due = Instant::now();
                    }
                    Action::Set(assignment) => {
                        self.set(assignment);
                        // A warning about the audit log went to the same terminal: redraw all.
                        terminal.resize(screen)?;
                    }
                }
            }
        }
    }

    fn sample(&mut self) {
        match Reading::take(self.state.iface()) {
            Ok(reading) => {
                self.state.show(Sample::new(self.last.as_ref(), &reading), reading.params.config);
                self.last = Some(reading);
            }
            Err(error) => {
                self.last = None;
                self.state.lose(&error);
            }
        }
    }

    /// Switches to another interface; the attachments may have changed.
    fn switch(&mut self, steps: isize) {
        let iface = self.state.iface().to_owned();
        match alive_names() {
            Ok(ifaces) if !ifaces.is_empty() => self.state.ifaces = ifaces,
            Ok(_) => {}
            Err(error) => {
                self.state.lose(&error);
                return;
            }
        }
        let ifaces = &self.state.ifaces;
        let at = ifaces.iter().position(|name| *name == iface).unwrap_or(0) as isize;
        self.state.at = (at + steps).rem_euclid(ifaces.len().max(1) as isize).unsigned_abs();
        self.state.paused = false;
        self.state.forget();
        self.last = None;
    }

    /// Sets a parameter as `dcqcn set` does.
    fn set(&mut self, assignment: Assignment) {
        let iface = self.state.iface().to_owned();
        let edit = |_: &_, config: &mut _| -> anyhow::Result<()> { Ok(assignment.apply(config)?) };
        match audit::change(&[iface], audit::ChangeMode::Lasting, edit) {
            Ok(changes) => {
                for change in &changes {
                    self.state.changed(assignment.key, &change.old, &change.new);
                }
            }
            Err(ChangeError { error, .. }) => {
                self.state.show_error(format!("nothing was changed: {}", one_line(error.as_ref())))
            }
        }
    }
}
