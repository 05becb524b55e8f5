// Forwarding by the MAC address, or else by the longest prefix of the IP address.

// Index of `not_forwarded`.
const bit<32> NO_DESTINATION = 0;
const bit<32> NO_TTL = 1;

counter(2, CounterType.packets) not_forwarded;

// Selects the port. A packet that waits for its departure passes this on every round, so the packet is not changed yet.
control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    bool is_to_port = false;
    bool is_to_group = false;

    action to_port(bit<9> port) {
        standard_metadata.egress_spec = port;
        is_to_port = true;
    }

    action to_group(bit<16> group) {
        standard_metadata.mcast_grp = group;
        is_to_group = true;
    }

    table mac_forward {
        key = { hdr.ethernet.dst: exact @name("dst_mac"); }
        actions = { to_port; to_group; NoAction; }
        default_action = NoAction();
        size = 1024;
    }

    action no_route() {
        not_forwarded.count(NO_DESTINATION);
        mark_to_drop(standard_metadata);
    }

    action route(bit<9> port, bit<48> src_mac, bit<48> dst_mac) {
        standard_metadata.egress_spec = port;
        meta.is_routed = 1;
        meta.is_to_station = 1;
        meta.next_src = src_mac;
        meta.next_dst = dst_mac;
    }

    table ipv4_route {
        key = { hdr.ipv4.dst: lpm @name("dst"); }
        actions = { route; no_route; }
        default_action = no_route();
        size = 1024;
    }

    table ipv6_route {
        key = { hdr.ipv6.dst: lpm @name("dst"); }
        actions = { route; no_route; }
        default_action = no_route();
        size = 1024;
    }

    apply {
        if (mac_forward.apply().hit && is_to_port) {
            meta.is_to_station = 1;
        }
        if (!is_to_port && !is_to_group) {
            if (hdr.ipv4.isValid()) {
                ipv4_route.apply();
            } else if (hdr.ipv6.isValid()) {
                ipv6_route.apply();
            } else {
                no_route();
            }
        }
    }
}

// IPv4 header checksum after a 16-bit word changed (RFC 1624, equation 3): a wrong one stays wrong.
#define UPDATE_CHECKSUM(checksum, old, new)                                                   \
    sum = (bit<32>)(~checksum) + (bit<32>)(~(old)) + (bit<32>)(new);                          \
    sum = (sum & 0xffff) + (sum >> 16);                                                       \
    checksum = ~((bit<16>)sum + (bit<16>)(sum >> 16));

// Changes by a router.
control Rewrite(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action expired() {
        not_forwarded.count(NO_TTL);
        mark_to_drop(standard_metadata);
    }

    action next_hop() {
        hdr.ethernet.src = meta.next_src;
        hdr.ethernet.dst = meta.next_dst;
    }

    action less_ttl() {
        bit<16> old = hdr.ipv4.ttl ++ hdr.ipv4.protocol;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        bit<32> sum;
        UPDATE_CHECKSUM(hdr.ipv4.checksum, old, hdr.ipv4.ttl ++ hdr.ipv4.protocol)
    }

    action less_hops() {
        hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
    }

    apply {
        if (meta.is_routed == 1) {
            next_hop();
            if (hdr.ipv4.isValid()) {
                if (hdr.ipv4.ttl <= 1) {
                    expired();
                } else {
                    less_ttl();
                }
            } else if (hdr.ipv6.hop_limit <= 1) {
                expired();
            } else {
                less_hops();
            }
        }
    }
}
