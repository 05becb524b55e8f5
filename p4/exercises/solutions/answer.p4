// Exercise 2, answer marks: solution.

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
        bit<48> last_us;
        last_cnp_us.read(last_us, 0);
        is_due = last_us == 0 || standard_metadata.egress_global_timestamp - last_us >= INTERVAL_US;
        if (is_due) {
            last_cnp_us.write(0, standard_metadata.egress_global_timestamp);
        }
    }

    // From the receiver to the sender. Both ends of a connection have the same QPN in this exercise.
    action become_cnp() {
        bit<48> mac = hdr.ethernet.dst;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        bit<32> address = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = address;
        hdr.ipv4.dscp = 48;
        hdr.ipv4.ecn = ECN_NOT_ECT;
        hdr.ipv4.total_len = 60;
        hdr.udp.length = 40;
        hdr.udp.checksum = 0;
        hdr.bth.opcode = OPCODE_CNP;
        hdr.bth.flags = 0;
        hdr.bth.becn = 1;
        hdr.bth.ack_request = 0;
        hdr.bth.psn = 0;
        hdr.cnp.setValid();
        hdr.cnp.reserved = 0;
        SEAL(hdr)
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
