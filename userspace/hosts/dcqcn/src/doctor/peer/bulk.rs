//! Throughput of TCP: streams that send as fast as they can, for a limited time.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use dcqcn_support::interrupt::Interrupt;
use serde::{Deserialize, Serialize};

/// Bytes per system call.
const CHUNK_BYTES: usize = 1 << 18;
/// Time limit of a blocked stream, after which it ends.
const STALL_TIME: Duration = Duration::from_secs(5);

/// Bytes received by all streams, from the first byte to the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bulk {
    bytes: u64,
    time_ns: u64,
}

impl Bulk {
    pub(super) fn rate_bps(self) -> u64 {
        let bits = u128::from(self.bytes) * 8 * 1_000_000_000;
        u64::try_from(bits / u128::from(self.time_ns.max(1))).unwrap_or(u64::MAX)
    }
}

/// Sends on all streams for `time` or until an interrupt, and closes them.
pub(super) fn send(streams: Vec<TcpStream>, time: Duration, interrupt: &Interrupt) {
    let until = Instant::now() + time;
    let send = |mut stream: TcpStream| {
        let bytes = vec![0x5a; CHUNK_BYTES];
        // A stream that fails ends early; the receiver counts what has arrived.
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero()
                || interrupt.is_requested()
                || stream.set_write_timeout(Some(left.min(STALL_TIME))).is_err()
                || stream.write(&bytes).is_err()
            {
                return;
            }
        }
    };
    thread::scope(|scope| streams.into_iter().for_each(|stream| _ = scope.spawn(move || send(stream))));
}

/// Receives on all streams until they are closed or an interrupt, at most `time` and a margin.
pub(super) fn receive(streams: Vec<TcpStream>, time: Duration, interrupt: &Interrupt) -> Bulk {
    let until = Instant::now() + time + STALL_TIME;
    let receive = |mut stream: TcpStream| {
        let mut buffer = vec![0; CHUNK_BYTES];
        let (mut bytes, mut span) = (0, None);
        let _ = stream.set_read_timeout(Some(STALL_TIME));
        while Instant::now() < until && !interrupt.is_requested() {
            let Ok(len @ 1..) = stream.read(&mut buffer) else { break };
            let now = Instant::now();
            bytes += len as u64;
            span = Some((span.map_or(now, |(first, _)| first), now));
        }
        (bytes, span)
    };
    let results: Vec<(u64, Option<(Instant, Instant)>)> = thread::scope(|scope| {
        let threads: Vec<_> =
            streams.into_iter().map(|stream| scope.spawn(move || receive(stream))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let spans = || results.iter().filter_map(|(_, span)| *span);
    let first = spans().map(|(first, _)| first).min();
    let last = spans().map(|(_, last)| last).max();
    let time = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Bulk { bytes: results.iter().map(|(bytes, _)| bytes).sum(), time_ns }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn streams_are_summed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far): (Vec<_>, Vec<_>) =
            (0..2).map(|_| (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0)).unzip();
        let time = Duration::from_millis(50);
        let interrupt = Interrupt::catch().unwrap();
        let bulk = thread::scope(|scope| {
            scope.spawn(|| send(near, time, &interrupt));
            receive(far, time, &interrupt)
        });
        assert!(bulk.bytes >= CHUNK_BYTES as u64, "{bulk:?}");
        assert!(bulk.time_ns < 5_000_000_000 && bulk.rate_bps() > 0, "{bulk:?}");
        assert_eq!(receive(Vec::new(), time, &interrupt), Bulk::default());
        assert_eq!(Bulk { bytes: 1_250, time_ns: 1_000 }.rate_bps(), 10_000_000_000);
    }
}
