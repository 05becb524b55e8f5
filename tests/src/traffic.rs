//! Packets from one host to the other, counted at both ends.

use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

use crate::prelude::*;

/// Between two packets.
const PACKET_INTERVAL: Duration = Duration::from_micros(500);
/// Maximum time of packets in flight.
const TIMEOUT: Duration = Duration::from_secs(3);
/// PSNs have 24 bits.
const PSN_MASK: u64 = 0xff_ffff;

#[derive(Default)]
struct Shared {
    sent: AtomicU64,
    received: AtomicU64,
    is_paused: AtomicBool,
    /// Whether the sender has paused.
    has_paused: AtomicBool,
    is_over: AtomicBool,
}

pub struct Traffic {
    shared: Arc<Shared>,
    lost: u64,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Traffic {
    pub fn start(pair: &Pair) -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let (from, to) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
        from.limit_send_buffer(64 << 10)?;
        let sender = Arc::clone(&shared);
        let send = move || -> Result<()> {
            while !sender.is_over.load(Ordering::Relaxed) {
                let is_paused = sender.is_paused.load(Ordering::Acquire);
                sender.has_paused.store(is_paused, Ordering::Release);
                if !is_paused {
                    let psn = (sender.sent.load(Ordering::Relaxed) & PSN_MASK) as u32;
                    from.send(&Roce { psn, ..Roce::default() }.frame())?;
                    sender.sent.fetch_add(1, Ordering::Relaxed);
                }
                thread::sleep(PACKET_INTERVAL);
            }
            Ok(())
        };
        let receiver = Arc::clone(&shared);
        let receive = move || -> Result<()> {
            let mut seen = vec![false; 1 << 24];
            while !receiver.is_over.load(Ordering::Relaxed) {
                let Some(frame) = to.receive(Duration::from_millis(100))? else { continue };
                let Some((bth, _)) = frame.get(Roce::default().bth()..).and_then(Bth::parse) else {
                    continue;
                };
                if bth.dest_qpn() != Roce::default().dest_qpn {
                    continue;
                }
                let psn = bth.psn() as usize;
                // The opposite PSN is used next, once PSNs have wrapped.
                seen[psn ^ 1 << 23] = false;
                // A duplicate does not compensate for a loss.
                if !std::mem::replace(&mut seen[psn], true) {
                    receiver.received.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        };
        let threads = vec![thread::spawn(send), thread::spawn(receive)];
        Ok(Self { shared, lost: 0, threads })
    }

    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Waits until more packets were sent.
    pub fn pass(&self, more: u64) -> Result<()> {
        let goal = self.sent() + more;
        self.wait_until("no packet is sent", || self.sent() >= goal)
    }

    /// Packets that were sent since the last call and do not arrive.
    pub fn lost(&mut self) -> Result<u64> {
        self.shared.is_paused.store(true, Ordering::Release);
        let is_paused = || self.shared.has_paused.load(Ordering::Acquire);
        self.wait_until("the sender does not pause: a packet is not sent", is_paused)?;
        let missing = || self.sent().saturating_sub(self.shared.received.load(Ordering::Relaxed) + self.lost);
        // A time-out is a loss.
        let _ = wait_for(TIMEOUT, || Ok((missing() == 0).then_some(()).ok_or_else(String::new)));
        let lost = missing();
        self.lost += lost;
        self.shared.is_paused.store(false, Ordering::Release);
        Ok(lost)
    }

    fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) -> Result<()> {
        wait_for(TIMEOUT, || {
            ensure!(!self.is_broken(), "{what}");
            Ok(is_so().then_some(()).ok_or_else(|| what.to_owned()))
        })
    }

    fn is_broken(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    pub fn end(mut self) -> Result<()> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.threads
            .drain(..)
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("an end of the traffic panicked"))?)
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // Errors were reported when they were detected.
            let _ = thread.join();
        }
    }
}
