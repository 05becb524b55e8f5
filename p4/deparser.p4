// The headers; the rest of the packet follows unchanged.

control Emit(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.vlan);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv6);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
        packet.emit(hdr.deth);
        packet.emit(hdr.cm);
        packet.emit(hdr.aeth);
        packet.emit(hdr.cnp);
    }
}
