//! Traffic and other steps that a thread repeats during a test.

use std::thread::JoinHandle;

use crate::prelude::*;

fn repeat(mut step: impl FnMut() -> Result<()>, is_over: &AtomicBool) -> Result<()> {
    while !is_over.load(Ordering::Relaxed) {
        step()?;
    }
    Ok(())
}

/// Ends the threads, after a panic too: the scope waits for them.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while each of `steps` is repeated by a thread. An error of `work` precedes those of the steps.
pub fn while_repeating<T>(
    steps: impl IntoIterator<Item = impl FnMut() -> Result<()> + Send>,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let end = End(is_over);
        let threads: Vec<_> =
            steps.into_iter().map(|step| scope.spawn(move || repeat(step, is_over))).collect();
        let worked = work();
        drop(end);
        let repeated = threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a repeated step panicked"))?);
        worked.and_then(|worked| repeated.map(|()| worked))
    })
}

/// A step that a thread repeats until it fails or this is dropped.
pub struct Repeated {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Repeated {
    pub fn start(step: impl FnMut() -> Result<()> + Send + 'static) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&is_over);
        Self { is_over, thread: Some(thread::spawn(move || repeat(step, &flag))) }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn repetition_ends_with_work_panic_or_error() {
        let nothing = || -> Result<()> { Ok(()) };
        let error = |result: Result<()>| result.unwrap_err().to_string();
        let mut steps = 0;
        let count = || -> Result<()> {
            steps += 1;
            Ok(())
        };
        let wait = || {
            thread::sleep(Duration::from_millis(100));
            Ok(())
        };
        while_repeating([count], wait).unwrap();
        assert!(steps > 0);
        assert_eq!(error(while_repeating([nothing], || bail!("work"))), "work");
        assert_eq!(error(while_repeating([|| bail!("step")], wait)), "step");
        assert_eq!(error(while_repeating([|| bail!("step")], || bail!("work"))), "work");
        let panics = || while_repeating([nothing], || -> Result<()> { panic!("an assertion") });
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    }
}
