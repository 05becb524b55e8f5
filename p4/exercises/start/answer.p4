// Exercise 2, answer marks: starting point.

#include "../roce.p4"

// Time between two CNPs.
const bit<48> INTERVAL_US = 50;
register<bit<48>>(1) last_cnp_us;

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Forward() forward;

    action back() {
        standard_metadata.egress_spec = meta.back_port;
    }

    apply {
        // A recirculated packet is a CNP of this switch.
        if (standard_metadata.instance_type == INSTANCE_RECIRCULATED) {
            back();
        } else {
            forward.apply(meta, standard_metadata);
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    bool is_due = false;

    // At most one CNP per interval.
    action limit() {
        // Your code: set `is_due` if the last CNP was sent INTERVAL_US ago or earlier, and store the time of this one.
    }

    // From the receiver to the sender. Both ends of a connection have the same QPN in this exercise.
    action become_cnp() {
        // Your code: swap the addresses, change opcode, lengths, DSCP (48) and ECN bits, add `hdr.cnp`, and end with SEAL(hdr).
    }

    action recirculate_cnp() {
        recirculate_preserving_field_list(1);
    }

    action cut_payload() {
        truncate(CNP_BYTES);
    }

    apply {
        if (standard_metadata.egress_port == CNP_PORT) {
            become_cnp();
            recirculate_cnp();
        } else if (hdr.cnp.isValid()) {
            // The payload of the packet it was made from.
            cut_payload();
        } else if (IS_DATA(hdr) && hdr.ipv4.ecn == ECN_CE) {
            limit();
            if (is_due) {
                clone_preserving_field_list(CloneType.E2E, CNP_SESSION, 1);
            }
        }
    }
}

V1Switch(Parse(), NoChecksum(), SwitchIngress(), SwitchEgress(), NoChecksum(), Emit()) main;
