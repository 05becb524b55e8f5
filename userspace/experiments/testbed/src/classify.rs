//! Classification of the bottleneck's other traffic if the data plane does not do it.

use anyhow::{Context, Result};
use dcqcn_netlink::tc::Handle;
use netlink_packet_route::tc::{TcFilterU32Option, TcHandle, TcU32Key, TcU32Selector, TcU32SelectorFlags};

/// `IPPROTO_TCP` in the header word that contains it: bytes 8 to 11 of IPv4 (TTL, protocol, checksum), 4 to 7 of IPv6
/// (payload length, next header, hop limit).
const MATCHES: [(i32, i32, u32, u32); 2] =
    [(libc::ETH_P_IP, 8, 0x0006_0000, 0x00ff_0000), (libc::ETH_P_IPV6, 4, 0x0000_0600, 0x0000_ff00)];

/// Maps TCP at interface `ifindex` of the calling thread's namespace to `class` of its root qdisc.
pub(super) fn tcp_to(ifindex: u32, class: Handle) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        for (index, (protocol, offset, value, mask)) in MATCHES.into_iter().enumerate() {
            let mut key = TcU32Key::default();
            (key.mask, key.val, key.off) = (mask, value, offset);
            let mut selector = TcU32Selector::default();
            selector.flags = TcU32SelectorFlags::Terminal;
            selector.nkeys = 1;
            selector.keys = vec![key];
            let class = TcHandle { major: class.major(), minor: class.minor() };
            handle
                .traffic_filter(ifindex.cast_signed())
                .add()
                .parent(Handle::new(class.major, 0).0)
                .priority(index as u16 + 1)
                .protocol((protocol as u16).to_be())
                .u32(&[TcFilterU32Option::ClassId(class), TcFilterU32Option::Selector(selector)])?
                .execute()
                .await
                .context("cannot classify TCP: the kernel needs the u32 classifier (cls_u32)")?;
        }
        Ok(())
    })
}
