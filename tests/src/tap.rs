//! An interface with several transmit queues, like a NIC, whose frames this process reads per queue.

use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

use crate::prelude::*;

/// `TUNSETIFF` (include/uapi/linux/if_tun.h): makes the interface, or adds a queue to it.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
/// `struct ifreq` of that ioctl: its length, and that of the name, which precedes the flags.
const REQUEST_BYTES: usize = 40;
const NAME_BYTES: usize = 16;
const MAX_FRAME_BYTES: usize = 10_000;

/// The interface; removed on drop.
#[derive(Debug)]
pub struct Tap {
    queues: Vec<File>,
}

impl Tap {
    /// Creates the interface in the namespace of a host, with this many queues, and brings it up.
    pub fn new(host: &Host, name: &str, queues: usize) -> Result<Self> {
        let open = || (0..queues).map(|_| queue(name)).collect::<Result<Vec<_>>>();
        let tap = Self { queues: host.run(open)?? };
        host.command(&format!("ip link set {name} up"))?;
        Ok(tap)
    }

    pub fn read_frames(
        &mut self,
        count: usize,
        patience: Duration,
    ) -> Result<Vec<(Instant, usize, Vec<u8>)>> {
        let until = Instant::now() + patience;
        let mut frames = Vec::new();
        while frames.len() < count {
            let before = frames.len();
            for (number, queue) in self.queues.iter_mut().enumerate() {
                let mut frame = vec![0; MAX_FRAME_BYTES];
                match queue.read(&mut frame) {
                    Ok(len) => {
                        frame.truncate(len);
                        frames.push((Instant::now(), number, frame));
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error).context("a queue"),
                }
            }
            if frames.len() == before {
                ensure!(Instant::now() < until, "{before} of {count} frames have arrived");
                thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(frames)
    }
}

fn queue(name: &str) -> Result<File> {
    let path = "/dev/net/tun";
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.context(path)?;
    ensure!(name.len() < NAME_BYTES, "{name} is too long");
    let flags = u16::try_from(libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE)?.to_ne_bytes();
    let mut request = [0_u8; REQUEST_BYTES];
    let (to_name, behind) = request.split_at_mut(NAME_BYTES);
    to_name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    behind.iter_mut().zip(flags).for_each(|(to, from)| *to = from);
    // SAFETY: the request is as large as the kernel's, and lives longer than the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) };
    ensure!(result == 0, "TUNSETIFF {name}: {}", std::io::Error::last_os_error());
    Ok(file)
}
