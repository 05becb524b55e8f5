// Exercise 3, slow down: solution.

#include "../roce.p4"

// Microseconds per 1024 bytes: 10 Mbit/s, the rate of the link, and the slowest rate.
const bit<48> FASTEST = 819;
const bit<48> SLOWEST = 52416;
// Time without a CNP after which a flow becomes faster.
const bit<48> RECOVERY_US = 1000;

// One flow per QPN, both ends of which are the same in this exercise.
register<bit<48>>(256) us_per_kib;
register<bit<48>>(256) next_us;
register<bit<48>>(256) changed_us;

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Forward() forward;
    bit<48> now_us = 0;

    action read_clock() {
        now_us = standard_metadata.ingress_global_timestamp;
    }

    // A recirculated packet has no time of arrival, and no port.
    action look_again() {
        now_us = meta.left_us;
        standard_metadata.egress_spec = 3 - meta.back_port;
    }

    // A CNP halves the rate.
    action cut() {
        bit<32> flow = (bit<32>)hdr.bth.dest_qpn[7:0];
        bit<48> gap;
        us_per_kib.read(gap, flow);
        gap = (gap < FASTEST ? FASTEST : gap) << 1;
        us_per_kib.write(flow, gap > SLOWEST ? SLOWEST : gap);
        changed_us.write(flow, now_us);
    }

    // A packet departs when the one before it has left at the flow's rate. The rate recovers by an eighth.
    action pace() {
        bit<32> flow = (bit<32>)hdr.bth.dest_qpn[7:0];
        bit<48> gap;
        bit<48> last_us;
        us_per_kib.read(gap, flow);
        changed_us.read(last_us, flow);
        if (now_us - last_us >= RECOVERY_US) {
            gap = gap - (gap >> 3);
            changed_us.write(flow, now_us);
        }
        gap = gap < FASTEST ? FASTEST : gap;
        us_per_kib.write(flow, gap);
        bit<48> from_us;
        next_us.read(from_us, flow);
        meta.departure_us = from_us > now_us ? from_us : now_us;
        next_us.write(flow, meta.departure_us + ((gap * (bit<48>)standard_metadata.packet_length) >> 10));
    }

    action wait() {
        standard_metadata.egress_spec = WAIT_PORT;
    }

    apply {
        if (standard_metadata.instance_type == INSTANCE_RECIRCULATED) {
            look_again();
        } else {
            read_clock();
            forward.apply(meta, standard_metadata);
            if (hdr.cnp.isValid()) {
                cut();
            } else if (IS_DATA(hdr)) {
                pace();
            }
        }
        if (meta.departure_us > now_us) {
            wait();
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action go_round() {
        meta.left_us = standard_metadata.egress_global_timestamp;
        recirculate_preserving_field_list(1);
    }

    apply {
        if (standard_metadata.egress_port == WAIT_PORT) {
            go_round();
        }
    }
}

V1Switch(Parse(), NoChecksum(), SwitchIngress(), SwitchEgress(), NoChecksum(), Emit()) main;
