// DCQCN for RoCEv2 as a switch program for v1model (BMv2): the same pipeline as the eBPF data plane. README.md is its contract.

#include <core.p4>
#include <v1model.p4>

#include "constants.p4"
#include "headers.p4"

// All counters, by the indices of `Stat`.
counter(STATS, CounterType.packets) stats;

#include "parser.p4"
#include "arithmetic.p4"
#include "flow.p4"
#include "limit.p4"
#include "classify.p4"
#include "pairing.p4"
#include "forward.p4"
#include "trim.p4"
#include "cp.p4"
#include "np.p4"
#include "pacing.p4"
#include "alpha.p4"
#include "rate.p4"
#include "rp.p4"
#include "deparser.p4"

control NoVerification(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

// Checksums are updated incrementally: a wrong one stays wrong.
control NoUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Classify() classify;
    ConnectionManagement() connections;
    Forward() forward;
    ReactionPoint() rp;
    Rewrite() rewrite;
    Trim() trim;

    apply {
        classify.apply(hdr, meta, standard_metadata);
        connections.apply(hdr, meta, standard_metadata);
        forward.apply(hdr, meta, standard_metadata);
        rp.apply(hdr, meta, standard_metadata);
        rewrite.apply(hdr, meta, standard_metadata);
        trim.apply(hdr, meta, standard_metadata);
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    CongestionPoint() cp;
    CnpLimiter() limiter;
    BecomeCnp() become_cnp;
    CutShort() cut_short;

    action go_round() {
        meta.left_us = standard_metadata.egress_global_timestamp;
        recirculate_preserving_field_list(KEEP_RECIRCULATED);
    }

    action cut() {
        truncate(meta.trimmed_bytes);
    }

    action leave_queue() {
        behind_packets.write((bit<32>)(standard_metadata.egress_port ++ standard_metadata.priority),
                             (bit<32>)standard_metadata.deq_qdepth);
    }

    apply {
        leave_queue();
        if (standard_metadata.egress_port == WAIT_PORT) {
            wait_depth.write(0, (bit<32>)standard_metadata.deq_qdepth);
            go_round();
        } else if (standard_metadata.egress_port == CNP_PORT) {
            become_cnp.apply(hdr, meta, standard_metadata);
            go_round();
        } else if (standard_metadata.instance_type == INSTANCE_REPLICATED
                   && standard_metadata.egress_port == standard_metadata.ingress_port) {
            mark_to_drop(standard_metadata);
        } else if (meta.is_own_cnp == 1) {
            cut_short.apply(hdr, meta);
        } else if (meta.kind != KIND_OTHER) {
            if (meta.is_fixed_time == 0) {
                meta.now_ns = (bit<64>)standard_metadata.egress_global_timestamp * NS_PER_US;
            }
            cp.apply(hdr, meta, standard_metadata);
            if (meta.kind == KIND_DATA) {
                bool is_answered;
                limiter.apply(hdr, meta, standard_metadata, is_answered);
                if (is_answered) {
                    clone_preserving_field_list(CloneType.E2E, CNP_SESSION, KEEP_CLONED);
                }
                if (meta.trimmed_bytes != 0) {
                    cut();
                }
            }
        }
    }
}

V1Switch(Headers(), NoVerification(), SwitchIngress(), SwitchEgress(), NoUpdate(), Emit()) main;
