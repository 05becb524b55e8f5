//! Fixes for another network namespace than that of the operator's shell.

/// A fix whose commands, quoted by backticks, run in network namespace `netns`. Those with `IFACE` are for other hosts.
pub(crate) fn in_netns(fix: &str, netns: &str) -> String {
    let parts = fix.split('`').enumerate();
    let commands =
        |text: &str| text.split(" && ").map(|text| command(text, netns)).collect::<Vec<_>>().join(" && ");
    let parts = parts.map(|(at, text)| if at % 2 == 1 { commands(text) } else { text.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

fn command(text: &str, netns: &str) -> String {
    let mut words = text.split(' ');
    let program = words.next().unwrap_or_default();
    if words.any(|word| word == "IFACE") {
        return text.to_owned();
    }
    match (program, text.strip_prefix(program).unwrap_or_default()) {
        ("dcqcn" | "ip" | "tc", rest) => format!("{program} -n {netns}{rest}"),
        ("ethtool" | "mlnx_qos" | "tcpdump", _) => format!("ip netns exec {netns} {text}"),
        ("echo", rest) if rest.contains("/sys/class/net/") => {
            format!("ip netns exec {netns} sh -c '{text}'")
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_in_namespace() {
        for (fix, expected) in [
            ("`dcqcn detach eth0`, then attach", "`dcqcn -n blue detach eth0`, then attach"),
            (
                "see `tc -s qdisc show dev eth0` shows drops",
                "see `tc -n blue -s qdisc show dev eth0` shows drops",
            ),
            ("`ip link set eth0 up`", "`ip -n blue link set eth0 up`"),
            (
                "`ip link set eth0 mtu 4270 && ip link set vx0 mtu 4200`, at both ends",
                "`ip -n blue link set eth0 mtu 4270 && ip -n blue link set vx0 mtu 4200`, at both ends",
            ),
            (
                "`ethtool -K eth0 gro off` or `dcqcn run`",
                "`ip netns exec blue ethtool -K eth0 gro off` or `dcqcn -n blue run`",
            ),
            (
                "`echo 1 > /sys/class/net/eth0/ecn/roce_np/enable/3`",
                "`ip netns exec blue sh -c 'echo 1 > /sys/class/net/eth0/ecn/roce_np/enable/3'`",
            ),
        ] {
            assert_eq!(in_netns(fix, "blue"), expected);
        }
    }

    #[test]
    fn commands_elsewhere_are_unchanged() {
        for fix in [
            "there: `dcqcn attach IFACE`, or `roce_np/enable`",
            "`nsenter -t 7 -n dcqcn doctor`; `dcqcn-lab replay cnp.pcap`",
            "`sysctl -w net.core.netdev_budget=600`, `echo 3 > /proc/irq/7/smp_affinity_list`",
            "boot Linux 6.6 or later",
            "",
        ] {
            assert_eq!(in_netns(fix, "blue"), fix);
        }
    }
}
