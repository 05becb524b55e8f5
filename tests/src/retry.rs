//! Tests in real time, on machines with other load.

use anyhow::Result;

/// Runs `test` until it passes, at most `attempts` times, and prints the reason for each repetition. Only for rates and
/// races against a timer: everything independent of time must hold at the first attempt.
pub fn while_busy(attempts: u32, mut test: impl FnMut() -> Result<()>) -> Result<()> {
    let mut attempt = 1;
    loop {
        match test() {
            Err(error) if attempt < attempts => {
                eprintln!(
                    "attempt {attempt} of {attempts} failed, retrying in case the machine was busy: {error:#}"
                );
                attempt += 1;
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

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
