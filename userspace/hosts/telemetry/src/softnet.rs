//! Receive processing of the host by CPU.

use std::{fs, io};

use serde::{Deserialize, Serialize};

/// A line of `/proc/net/softnet_stat`, or several added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Softnet {
    pub processed: u64,
    /// Packets dropped because a CPU's backlog was full.
    pub dropped: u64,
    /// Times that a CPU stopped with packets left because its budget or time was used up.
    pub squeezed: u64,
    pub backlog: u64,
}

impl Softnet {
    pub fn read() -> io::Result<Vec<Self>> {
        Ok(Self::parse(&fs::read_to_string("/proc/net/softnet_stat")?))
    }

    /// Hexadecimal numbers, more of them in newer kernels; missing ones are 0.
    fn parse(text: &str) -> Vec<Self> {
        const BACKLOG: usize = 11;
        let of_cpu = |line: &str| {
            let number = |index: usize| {
                let word = line.split_whitespace().nth(index)?;
                u64::from_str_radix(word, 16).ok()
            };
            let [processed, dropped, squeezed, backlog] =
                [0, 1, 2, BACKLOG].map(|index| number(index).unwrap_or(0));
            Self { processed, dropped, squeezed, backlog }
        };
        text.lines().map(of_cpu).collect()
    }

    /// The counters of all CPUs added up.
    pub fn sum(cpus: &[Self]) -> Self {
        cpus.iter().fold(Self::default(), |all, cpu| Self {
            processed: all.processed + cpu.processed,
            dropped: all.dropped + cpu.dropped,
            squeezed: all.squeezed + cpu.squeezed,
            backlog: all.backlog + cpu.backlog,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softnet_lines_of_any_kernel_are_summed() {
        let new = "0000000a 00000002 00000003 0 0 0 0 0 0 0 0 00000004 00000000 0 0\n0000000b 0 1 0 0 0 0 0 0 0 0 1 1 0 0\n";
        let sum = |text| Softnet::sum(&Softnet::parse(text));
        assert_eq!(sum(new), Softnet { processed: 21, dropped: 2, squeezed: 4, backlog: 5 });
        assert_eq!(
            sum("0000000a 00000002 00000003\n"),
            Softnet { processed: 10, dropped: 2, squeezed: 3, backlog: 0 }
        );
        assert_eq!(sum("words\n\n"), Softnet::default());
        assert!(!Softnet::read().unwrap().is_empty());
    }
}
