// Exercise 1, mark by queue depth: starting point.

#include "../roce.p4"

// Packets behind the one that leaves: below, none is marked; above, all are.
const bit<19> KMIN = 8;
const bit<19> KMAX = 24;

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Forward() forward;

    apply {
        forward.apply(meta, standard_metadata);
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action mark() {
        SET_ECN(hdr, ECN_CE)
    }

    apply {
        // Your code: mark data of ECN-capable senders by `standard_metadata.deq_qdepth`, with a probability that grows from 0
        // at KMIN to 1 at KMAX. `random` draws a number.
    }
}

V1Switch(Parse(), NoChecksum(), SwitchIngress(), SwitchEgress(), NoChecksum(), Emit()) main;
