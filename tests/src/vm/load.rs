//! Reads and writes of disks with verifiable blocks.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

/// Bytes of one read or write.
pub const BLOCK_BYTES: usize = 16 * 1024;
/// Alignment of memory and offsets for direct access.
const ALIGNMENT: usize = 4_096;
/// Blocks of a disk for each of its workers.
const BLOCKS: u64 = 16;

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    Reads,
    /// As many reads as writes, in random order.
    Half,
}

/// Results of the workers of all disks in the measured time.
#[derive(Debug, Default)]
pub struct LoadResult {
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Durations of all reads and writes, sorted.
    pub took: Vec<Duration>,
    /// Blocks with wrong content.
    pub wrong_blocks: u64,
}

impl LoadResult {
    /// Quantile of the durations; 0 if there are none.
    pub fn quantile(&self, part: f64) -> Duration {
        let rank = (self.took.len() as f64 * part) as usize;
        self.took.get(rank.min(self.took.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    fn add(&mut self, other: Self) {
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.wrong_blocks += other.wrong_blocks;
        self.took.extend(other.took);
    }
}

/// Runs `depth` workers per disk for `length`, after a warm-up of `settling`; `settled` is called in between.
pub fn run<T>(
    disks: &[&Path],
    depth: u64,
    mix: Mix,
    settling: Duration,
    length: Duration,
    settled: impl FnOnce() -> Result<T>,
) -> Result<(T, LoadResult)> {
    let stop = AtomicBool::new(false);
    let (settled, results) = thread::scope(|scope| {
        let workers: Vec<_> = disks
            .iter()
            .flat_map(|disk| (0..depth).map(move |number| (*disk, number)))
            .map(|(disk, number)| {
                let stop = &stop;
                scope.spawn(move || Worker::open(disk, number)?.work(mix, settling, stop))
            })
            .collect();
        thread::sleep(settling);
        let settled = settled();
        thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        let results: Result<Vec<LoadResult>> = workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow!("a worker panicked"))?)
            .collect();
        (settled, results)
    });
    let mut all = LoadResult::default();
    results?.into_iter().for_each(|done| all.add(done));
    all.took.sort_unstable();
    Ok((settled?, all))
}

/// Load worker with one outstanding read or write, on its own range of blocks.
struct Worker {
    disk: File,
    first: u64,
    random: fastrand::Rng,
    /// Number of writes of each block, which determines its content.
    generations: [u64; BLOCKS as usize],
    /// Twice the size of a block, so that it contains an aligned one.
    memory: Vec<u8>,
}

impl Worker {
    fn open(disk: &Path, number: u64) -> Result<Self> {
        let open = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(disk);
        let mut worker = Self {
            disk: open.with_context(|| disk.display().to_string())?,
            first: number * BLOCKS,
            random: fastrand::Rng::with_seed(number),
            generations: [0; BLOCKS as usize],
            memory: vec![0; BLOCK_BYTES + ALIGNMENT],
        };
        for block in 0..BLOCKS {
            worker.write(block)?;
        }
        Ok(worker)
    }

    fn work(mut self, mix: Mix, settling: Duration, stop: &AtomicBool) -> Result<LoadResult> {
        let from = Instant::now() + settling;
        let mut done = LoadResult::default();
        while !stop.load(Ordering::Relaxed) {
            let block = self.random.u64(..BLOCKS);
            let is_read = mix == Mix::Reads || self.random.bool();
            let started = Instant::now();
            let is_right = if is_read { self.read(block)? } else { self.write(block).map(|()| true)? };
            done.wrong_blocks += u64::from(!is_right);
            if started >= from {
                let bytes = if is_read { &mut done.read_bytes } else { &mut done.written_bytes };
                *bytes += BLOCK_BYTES as u64;
                done.took.push(started.elapsed());
            }
        }
        Ok(done)
    }

    /// The aligned part of the memory.
    fn block(&mut self) -> &mut [u8] {
        let at = self.memory.as_ptr().align_offset(ALIGNMENT);
        &mut self.memory[at..at + BLOCK_BYTES]
    }

    fn write(&mut self, block: u64) -> Result<()> {
        let (at, generation) = (self.first + block, self.generations[block as usize] + 1);
        self.block().chunks_exact_mut(8).enumerate().for_each(|(word, bytes)| {
            bytes.copy_from_slice(&content(at, generation, word as u64).to_le_bytes());
        });
        let offset = at * BLOCK_BYTES as u64;
        let memory = self.memory.as_ptr().align_offset(ALIGNMENT);
        self.disk.write_all_at(&self.memory[memory..memory + BLOCK_BYTES], offset).context("writing")?;
        self.generations[block as usize] = generation;
        Ok(())
    }

    /// Whether the block has the data last written.
    fn read(&mut self, block: u64) -> Result<bool> {
        let (at, generation) = (self.first + block, self.generations[block as usize]);
        let memory = self.memory.as_ptr().align_offset(ALIGNMENT);
        let bytes = &mut self.memory[memory..memory + BLOCK_BYTES];
        self.disk.read_exact_at(bytes, at * BLOCK_BYTES as u64).context("reading")?;
        Ok(bytes
            .chunks_exact(8)
            .enumerate()
            .all(|(word, bytes)| bytes == content(at, generation, word as u64).to_le_bytes()))
    }
}

/// A word of a block, distinct by position, block and number of the write.
const fn content(block: u64, generation: u64, word: u64) -> u64 {
    (block << 48) ^ (generation << 16) ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_blocks_verified_missing_reported() {
        let disk = tempfile::NamedTempFile::new().expect("a file");
        disk.as_file().set_len(4 * BLOCKS * BLOCK_BYTES as u64).expect("room");
        let Ok(mut worker) = Worker::open(disk.path(), 3) else {
            eprintln!(
                "SKIPPED written_blocks_verified_missing_reported: no direct access to {}",
                disk.path().display()
            );
            return;
        };
        assert!(worker.read(5).expect("a block"));
        worker.write(5).expect("a block");
        assert!(worker.read(5).expect("a block"));
        // One byte, of the block and of the one before.
        let at = (worker.first + 5) * BLOCK_BYTES as u64;
        disk.as_file().write_all_at(&[1], at + 100).expect("a byte");
        assert!(!worker.read(5).expect("a block"));
        worker.write(5).expect("a block");
        worker.generations[5] -= 1;
        assert!(!worker.read(5).expect("a block"), "an older write would not be detected");
    }

    #[test]
    fn quantiles_cover_completed_ios() {
        let took = (1..=100).map(Duration::from_millis).collect();
        let done = LoadResult { took, ..LoadResult::default() };
        assert_eq!(
            (done.quantile(0.5), done.quantile(1.0)),
            (Duration::from_millis(51), Duration::from_millis(100))
        );
        assert_eq!(LoadResult::default().quantile(0.99), Duration::ZERO);
    }
}
