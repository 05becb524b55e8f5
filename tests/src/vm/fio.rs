//! fio, with a checksum in each block, and its results.

use std::fmt::Display;

use crate::vm::prelude::*;

/// Job of fio. The libaio engine verifies the data it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// `randread`, `randwrite`, `randrw`, ...
    pub pattern: &'static str,
    /// Bytes of a block; the disk is filled with blocks of this size before.
    pub block_bytes: u32,
    /// In flight to each disk.
    pub depth: u32,
    /// Warm-up, s.
    pub settling_s: u32,
    /// Measured time, s.
    pub length_s: u32,
}

const SIZE_MB: u32 = 8;
/// Time for fio to start and to exit: it waits for stalled writes, for 70 s and more.
const TIMEOUT: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CompletedIo {
    pub read_bps: f64,
    pub written_bps: f64,
    /// Completion times of reads, or of writes if nothing is read, ms.
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p99_9_ms: f64,
    pub max_ms: f64,
    /// Longest completion time of reads and writes, ms.
    pub longest_ms: f64,
    /// A block was wrong, or a read or write failed, which ends fio.
    pub failed: bool,
}

/// Fills disks with blocks that can be checked.
pub fn fill(disks: &[&str], block_bytes: u32) -> Result<()> {
    disks.iter().try_for_each(|disk| sh(&fill_command(disk, block_bytes)).map(drop))
}

/// The command line of [`fill`].
pub fn fill_command(disk: &str, block_bytes: u32) -> String {
    format!(
        "fio --name=fill --filename={disk} --rw=write --bs={block_bytes} --size={SIZE_MB}m --direct=1 --ioengine=psync \
         --verify=crc32c --do_verify=0"
    )
}

/// Whether every block of `disks` is intact.
pub fn is_intact(disks: &[&str], block_bytes: u32) -> Result<bool> {
    for disk in disks {
        let mut check = Background::start(&format!(
            "fio --name=check --filename={disk} --rw=read --bs={block_bytes} --size={SIZE_MB}m --direct=1 --ioengine=psync \
             --verify=crc32c"
        ))?;
        if !check.finish(TIMEOUT)?.0 {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Job {
    /// The command line of this job on all `disks`, with results as JSON. Write-only jobs verify nothing: see
    /// [`is_intact`].
    pub fn command(self, disks: &[impl Display]) -> String {
        let Self { pattern, block_bytes, depth, settling_s, length_s } = self;
        let jobs: Vec<_> = disks.iter().map(|disk| format!("--name={disk} --filename={disk}")).collect();
        // Without this option, fio reads during write-only jobs.
        let alone = if pattern == "randwrite" { " --do_verify=0" } else { "" };
        format!(
            "fio --rw={pattern} --bs={block_bytes} --size={SIZE_MB}m --iodepth={depth} --ioengine=libaio --direct=1 \
             --verify=crc32c{alone} --time_based --ramp_time={settling_s} --runtime={length_s} --group_reporting \
             --output-format=json {}",
            jobs.join(" ")
        )
    }

    pub fn start(self, disks: &[impl Display]) -> Result<Background> {
        Background::start(&self.command(disks))
    }

    pub fn finish(self, running: &mut Background) -> Result<CompletedIo> {
        let time = Duration::from_secs(u64::from(self.settling_s + self.length_s));
        let (success, printed) = running.finish(time + TIMEOUT)?;
        if !success {
            println!("{printed}");
            return Ok(CompletedIo { failed: true, ..CompletedIo::default() });
        }
        done(&printed)
    }
}

pub fn done(printed: &str) -> Result<CompletedIo> {
    // Notes may come before the JSON.
    let start = printed.find('{').with_context(|| format!("fio printed {printed:?}"))?;
    let printed_json: Value = serde_json::from_str(printed.get(start..).unwrap_or_default())
        .with_context(|| format!("fio printed {printed:?}"))?;
    let job = printed_json.pointer("/jobs/0").context("fio ran no job")?;
    let number = |path: &str| job.pointer(path).and_then(Value::as_f64).with_context(|| format!("no {path}"));
    let read_bps = number("/read/bw_bytes")? * 8.0;
    let way = if read_bps > 0.0 { "read" } else { "write" };
    let longest_ms = |way: &str| number(&format!("/{way}/clat_ns/max")).map_or(0.0, |ns| ns / 1e6);
    let of = |part: &str| number(&format!("/{way}/clat_ns/{part}")).map(|ns| ns / 1e6);
    Ok(CompletedIo {
        read_bps,
        written_bps: number("/write/bw_bytes")? * 8.0,
        p50_ms: of("percentile/50.000000")?,
        p99_ms: of("percentile/99.000000")?,
        p99_9_ms: of("percentile/99.900000")?,
        max_ms: of("max")?,
        longest_ms: longest_ms("read").max(longest_ms("write")),
        failed: number("/error")? != 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_output_parsed() {
        let read = r#""read":{"bw_bytes":250000,"clat_ns":{"max":12000000,"percentile":{"50.000000":2000000,"99.000000":9000000,"99.900000":11000000}}}"#;
        let printed_json =
            format!("note: x\n{{\"jobs\":[{{\"error\":0,{read},\"write\":{{\"bw_bytes\":0}}}}]}}");
        let expected = CompletedIo {
            read_bps: 2e6,
            p50_ms: 2.0,
            p99_ms: 9.0,
            p99_9_ms: 11.0,
            max_ms: 12.0,
            longest_ms: 12.0,
            ..CompletedIo::default()
        };
        assert_eq!(done(&printed_json).unwrap(), expected);
        let written =
            printed_json.replace("write", "x").replace("read", "write").replace("\"x\"", "\"read\"");
        let expected = CompletedIo { read_bps: 0.0, written_bps: 2e6, ..expected };
        assert_eq!(done(&written).unwrap(), expected);
        assert!(done("fio: no such file").is_err());
        assert!(done(&printed_json.replace("50.000000", "5")).is_err());
    }
}
