// Exercise 3, slow down: starting point.

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
        // Your code: double `us_per_kib` of the flow, from FASTEST to SLOWEST at most, and store the time in `changed_us`.
    }

    // A packet departs when the one before it has left at the flow's rate. The rate recovers by an eighth.
    action pace() {
        // Your code: store the time at which the packet may leave in `meta.departure_us`, and in `next_us` that of the next one.
        // Without a CNP for RECOVERY_US, first take an eighth off `us_per_kib`.
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
