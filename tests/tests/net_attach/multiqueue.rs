//! Interfaces with several transmit queues, which have the kernel's own mq.

use anyhow::{Context as _, Result, ensure};
use dcqcn_tests::lab::Lab;
use dcqcn_tests::leftover::problems;
use dcqcn_tests::packets::Roce;
use dcqcn_tests::require;
use dcqcn_tests::socket::TIMEOUT;
use dcqcn_tests::tap::Tap;

const QUEUES: usize = 4;
const FRAMES: u32 = 32;

#[test]
fn kernel_mq_restored() -> Result<()> {
    require!("kernel_mq_restored", "htb", "mq");
    let lab = Lab::new("ownmq")?;
    let mut tap = match Tap::new(&lab.host, "q0", QUEUES) {
        Ok(tap) => tap,
        Err(error) => {
            eprintln!("SKIPPED kernel_mq_restored: this kernel makes no such interface: {error:#}");
            return Ok(());
        }
    };
    let show = || lab.host.command("tc -d qdisc show dev q0");
    let before = show()?;
    ensure!(before.starts_with("qdisc mq 0: root"), "{before}");
    for pacer in ["none", "htb"] {
        lab.ok(&format!("attach q0 --pacer {pacer} --flows 64 --set link_rate=1gbit"))?;
        assert!(problems(&lab, "q0")?.is_empty(), "{pacer}: {:?}", problems(&lab, "q0")?);
        let socket = lab.host.socket("q0")?;
        for flow in 0..FRAMES {
            socket.send(&Roce { dest_qpn: 0x100 + flow, ..Roce::default() }.frame())?;
        }
        tap.read_frames(FRAMES as usize, TIMEOUT).with_context(|| pacer.to_owned())?;
        lab.ok("detach q0")?;
        assert_eq!(show()?, before, "{pacer}");
    }
    Ok(())
}
