//! Waiting and retrying: tests run in real time, on machines with other load.

use std::fmt::Debug;

use crate::prelude::*;

/// Waits until `probe` returns a value; a temporary error describes the state so far.
pub fn wait<T>(probe: impl FnMut() -> Result<std::result::Result<T, String>>) -> Result<T> {
    wait_for(TIMEOUT, probe)
}

/// As [`wait`], for at most `patience`.
pub fn wait_for<T>(
    patience: Duration,
    mut probe: impl FnMut() -> Result<std::result::Result<T, String>>,
) -> Result<T> {
    let until = Instant::now() + patience;
    let mut interval = Duration::from_millis(4);
    loop {
        match probe()? {
            Ok(found) => return Ok(found),
            Err(what) => ensure!(Instant::now() < until, "time-out after {} s: {what}", patience.as_secs()),
        }
        thread::sleep(interval);
        // A probe may be a command, which should not take the CPU from its subject.
        interval = (interval * 5 / 4).min(Duration::from_millis(60));
    }
}

/// Waits until a value is as expected, and returns it.
pub fn wait_value<T: Debug>(
    mut read: impl FnMut() -> Result<T>,
    is_expected: impl Fn(&T) -> bool,
) -> Result<T> {
    wait(|| {
        let found = read()?;
        Ok(if is_expected(&found) { Ok(found) } else { Err(format!("{found:?}")) })
    })
}

/// Waits until a condition holds; `what` describes its absence.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    wait(|| Ok(is_so()?.then_some(()).ok_or_else(|| what.to_owned())))
}

/// Runs `test` until it passes, at most `attempts` times, and prints the reason for each repetition. Only for rates and
/// races against a timer: everything independent of time must hold at the first attempt.
pub fn while_busy(attempts: u32, mut test: impl FnMut() -> Result<()>) -> Result<()> {
    let mut attempt = 1;
    loop {
        match test() {
            Err(error) if attempt < attempts => {
                eprintln!("attempt {attempt} of {attempts} failed, retrying in case of load: {error:#}");
                attempt += 1;
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_ends_at_first_pass_or_last() {
        let run = |passes_at: u32| {
            let mut ran = 0;
            let result = while_busy(3, || {
                ran += 1;
                ensure!(ran == passes_at, "attempt {ran}");
                Ok(())
            });
            (ran, result.map_err(|error| error.to_string()))
        };
        assert_eq!(run(1), (1, Ok(())));
        assert_eq!(run(3), (3, Ok(())));
        assert_eq!(run(4), (3, Err("attempt 3".to_owned())));
    }
}
