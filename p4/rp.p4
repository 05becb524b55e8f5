// Reaction point: the flows of the hosts on this switch's ports, each limited to the rate of its rate machine.

// One flow: fields of `RpFlow`.
register<bit<32>>(FLOWS) rp_src_0;
register<bit<32>>(FLOWS) rp_src_1;
register<bit<32>>(FLOWS) rp_src_2;
register<bit<32>>(FLOWS) rp_src_3;
register<bit<32>>(FLOWS) rp_addr_0;
register<bit<32>>(FLOWS) rp_addr_1;
register<bit<32>>(FLOWS) rp_addr_2;
register<bit<32>>(FLOWS) rp_addr_3;
register<bit<32>>(FLOWS) rp_qpn;
register<bit<32>>(FLOWS) rp_vlan;
register<bit<64>>(FLOWS) rp_last_seen_ns;
register<bit<64>>(FLOWS) rp_rate_bps;
register<bit<64>>(FLOWS) rp_target_bps;
register<bit<64>>(FLOWS) rp_alpha_epoch_ns;
register<bit<32>>(FLOWS) rp_alpha_q31;
register<bit<64>>(FLOWS) rp_next_increase_ns;
register<bit<64>>(FLOWS) rp_cut_check_ns;
register<bit<2>>(FLOWS)  rp_pending;
register<bit<64>>(FLOWS) rp_byte_count;
register<bit<32>>(FLOWS) rp_time_stage;
register<bit<32>>(FLOWS) rp_byte_stage;
register<bit<1>>(FLOWS)  rp_active;
register<bit<64>>(FLOWS) rp_next_ns;
register<bit<32>>(FLOWS) rp_next_frac_q27;
register<bit<32>>(FLOWS) rp_owed_bits;
register<bit<64>>(FLOWS) rp_pacer_rate_bps;
register<bit<64>>(FLOWS) rp_ns_per_byte_q24;
register<bit<64>>(FLOWS) rp_packets;
register<bit<64>>(FLOWS) rp_bytes;
register<bit<64>>(FLOWS) rp_last_cnp_ns;
register<bit<32>>(FLOWS) rp_cnp_handled;
register<bit<32>>(FLOWS) rp_cnp_ignored;
// By stream of a flow: departure of its last data packet, number of packets that waited, and of those released.
register<bit<64>>(STREAMS) rp_last_ns;
register<bit<32>>(STREAMS) rp_ticket;
register<bit<32>>(STREAMS) rp_released;

// Recirculating packets, as seen by the last one that left queue 510. The queue takes 1024; above this number the next packet
// does not wait: it passes, or is dropped.
register<bit<32>>(1) wait_depth;
const bit<32> MAX_WAITING = 1000;
// A packet that waits this long after its departure for one before it leaves: that one was lost.
const bit<64> LOST_NS = 500000000;
// How long a flow that was cut retains its entry after its last packet, even if another flow needs one.
const bit<64> CUT_FLOW_KEEPS_PLACE_NS = 1000000000;

// Decisions of the actions.
const bit<4> TURN_NOW = 0;
const bit<4> TURN_WAIT = 1;
const bit<4> TURN_BEYOND = 2;
const bit<4> TURN_AT_HORIZON = 3;
const bit<4> TURN_NO_PLACE = 4;
const bit<4> TURN_CNP_HANDLED = 5;
const bit<4> TURN_CNP_TOO_SOON = 6;
const bit<4> TURN_CNP_UNKNOWN = 7;
const bit<4> TURN_CNP_INVALID = 8;

// Until when the flow at `place` is in use; 0 = the entry is empty.
#define IN_USE_UNTIL(place, seen_ns, until_ns)                                                                  \
    until_ns = 0;                                                                                               \
    if (seen_ns != 0) {                                                                                         \
        bit<64> paced_ns;                                                                                       \
        bit<1> was_cut;                                                                                         \
        rp_next_ns.read(paced_ns, place);                                                                       \
        rp_active.read(was_cut, place);                                                                         \
        until_ns = seen_ns > paced_ns ? seen_ns : paced_ns;                                                     \
        until_ns = until_ns + (was_cut == 1 ? CUT_FLOW_KEEPS_PLACE_NS : 0);                                     \
    }

// Prefers an entry that is out of use sooner.
#define CHOOSE_IF_SOONER(place, until_ns, way)                                                                  \
    {                                                                                                           \
        bit<64> other_until_ns;                                                                                 \
        IN_USE_UNTIL(place_##way, seen_ns_##way, other_until_ns)                                                \
        if (other_until_ns < until_ns) {                                                                        \
            place = place_##way;                                                                                \
            until_ns = other_until_ns;                                                                          \
        }                                                                                                       \
    }

#define COUNT_IF_NAMED(place, flows, way)                                                                       \
    if (is_named_##way) {                                                                                       \
        place = place_##way;                                                                                    \
        flows = flows + 1;                                                                                      \
    }

// A new flow's stream: waiting packets of the previous flow do not delay it.
#define NEW_STREAM(stream_place)                                                                                \
    {                                                                                                           \
        bit<32> ticket;                                                                                         \
        rp_ticket.read(ticket, stream_place);                                                                   \
        rp_released.write(stream_place, ticket);                                                                \
        rp_last_ns.write(stream_place, 0);                                                                      \
    }

// Whether a packet that will leave at `departure_ns` must wait, and whether the queue for that is full.
#define TAKE_TICKET                                                                                             \
    bit<32> ticket;                                                                                             \
    bit<32> released;                                                                                           \
    bit<64> last_departure_ns;                                                                                  \
    bit<32> waiting;                                                                                            \
    rp_ticket.read(ticket, meta.place);                                                                         \
    rp_released.read(released, meta.place);                                                                     \
    rp_last_ns.read(last_departure_ns, meta.place);                                                             \
    wait_depth.read(waiting, 0);                                                                                \
    if (now_ns > last_departure_ns + LOST_NS) {                                                                 \
        released = ticket;                                                                                      \
        rp_released.write(meta.place, ticket);                                                                  \
    }                                                                                                           \
    bool must_wait = departure_ns > now_ns || ticket != released;                                               \
    bool is_full = must_wait && waiting >= MAX_WAITING;

#define USE_TICKET                                                                                              \
    if (must_wait) {                                                                                            \
        meta.ticket = ticket;                                                                                   \
        meta.departure_ns = departure_ns;                                                                       \
        rp_ticket.write(meta.place, ticket + 1);                                                                \
    }

// Whether a CNP is valid but for its ICRC, and whether that is right: `peek_cnp` and `has_icrc` of dcqcn-common.
control CheckCnp(in headers_t hdr, out bool is_valid, out bool has_icrc) {
    action check() {
        bit<32> crc;
        bit<16> sum;
        CNP_ICRC(crc, hdr)
        IPV4_CHECKSUM(sum, hdr)
        is_valid = hdr.cnp.isValid() && hdr.bth.becn == 1 && (hdr.ipv6.isValid() || hdr.ipv4.checksum == sum);
        has_icrc = hdr.cnp.icrc == crc;
    }

    apply {
        check();
    }
}

control ReactionPoint(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action set_rate(bit<64> line_rate_bps, bit<64> ai_rate_bps, bit<64> hai_rate_bps, bit<64> time_reset_ns,
                    bit<64> byte_reset_bytes, bit<64> cut_period_ns, bit<32> threshold, bit<1> count_first,
                    bit<32> max_hyper, bit<32> initial_alpha_q31, bit<16> wire_overhead_bytes, bit<1> pace,
                    bit<64> pacing_credit_ns, bit<64> pacing_horizon_ns, bit<1> pacing_horizon_drop) {
        meta.rate = {
            line_rate_bps, ai_rate_bps, hai_rate_bps, time_reset_ns, byte_reset_bytes, cut_period_ns, threshold,
            count_first, max_hyper, initial_alpha_q31, wire_overhead_bytes, pace, pacing_credit_ns,
            pacing_horizon_ns, pacing_horizon_drop
        };
    }

    table rp_rate {
        key = { meta.host_port: exact @name("port"); }
        actions = { set_rate; NoAction; }
        default_action = NoAction();
        size = 512;
    }

    action set_cut(bit<64> min_rate_bps, bit<64> first_cnp_rate_bps, bit<64> guard_ns, bit<64> alpha_period_ns,
                   bit<32> gain_q31, bit<8> cut_shift, bit<8> min_dec_percent, bit<3> clamp, bit<1> cnp_consume,
                   bit<32> max_alpha_q31, bit<1> alpha_is_coarse,
                   bit<32> decay_q31_0, bit<32> decay_q31_1, bit<32> decay_q31_2, bit<32> decay_q31_3,
                   bit<32> decay_q31_4, bit<32> decay_q31_5, bit<32> decay_q31_6, bit<32> decay_q31_7,
                   bit<32> decay_q31_8, bit<32> decay_q31_9, bit<32> decay_q31_10, bit<32> decay_q31_11,
                   bit<32> decay_q31_12, bit<32> decay_q31_13, bit<32> decay_q31_14, bit<32> decay_q31_15) {
        meta.cut = {
            min_rate_bps, first_cnp_rate_bps, guard_ns, alpha_period_ns, gain_q31, cut_shift, min_dec_percent, clamp,
            cnp_consume, max_alpha_q31, alpha_is_coarse,
            decay_q31_0, decay_q31_1, decay_q31_2, decay_q31_3, decay_q31_4, decay_q31_5, decay_q31_6, decay_q31_7,
            decay_q31_8, decay_q31_9, decay_q31_10, decay_q31_11, decay_q31_12, decay_q31_13, decay_q31_14,
            decay_q31_15
        };
    }

    table rp_cut {
        key = { meta.host_port: exact @name("port"); }
        actions = { set_cut; NoAction; }
        default_action = NoAction();
        size = 512;
    }

    action receiver(bit<24> qpn) {
        meta.flow_qpn = qpn;
    }

    table rp_pair {
        key = {
            meta.dst_addr: exact @name("addr");
            hdr.bth.dest_qpn: exact @name("qpn");
        }
        actions = { receiver; NoAction; }
        default_action = NoAction();
        size = 4096;
    }

    bool is_paired = false;

    action known_receiver() {
        bit<32> qpn = (bit<32>)hdr.bth.dest_qpn;
        bit<32> place;
        FIND_QP(pair, meta.dst_addr, qpn, place, is_paired)
        bit<32> other_qpn;
        pair_other_qpn.read(other_qpn, place);
        meta.flow_qpn = other_qpn[23:0];
    }

    // A datagram names both its ends: a CNP will name the sender's QPN only. Several QPs here may send to one there.
    action learn_datagram() {
        bit<32> qpn = (bit<32>)hdr.deth.src_qpn;
        bit<32> place;
        bool is_known;
        FIND_QP(pair, meta.src_addr, qpn, place, is_known)
        if (!is_known) {
            bit<32> other_qpn = (bit<32>)hdr.bth.dest_qpn;
            ENTER_PAIR(meta.src_addr, qpn, meta.dst_addr, other_qpn, PAIR_SOURCE_DATAGRAM, place)
        }
    }

    bit<4> turn = TURN_NOW;
    bool has_icrc = false;
    bool is_other_vlan = false;

    // A data packet of a flow, or a CNP for it.
    action take_turn() {
        bool is_cnp = meta.kind == KIND_CNP;
        // A CNP is sent by the receiver of its flow's data.
        bit<128> src = is_cnp ? meta.dst_addr : meta.src_addr;
        bit<128> addr = is_cnp ? meta.src_addr : meta.dst_addr;
        bit<32> qpn = (bit<32>)meta.flow_qpn;
        bit<32> place;
        bool is_found;
        FIND_FLOW(rp, src, addr, qpn, meta.vlan, 32w0, place, is_found)
        bit<64> now_ns = meta.now_ns;
        bool is_free = true;
        if (!is_found && is_cnp) {
            // On its way back it may have got another tag: it is for the only flow with these addresses and QPN.
            bit<8> flows = 0;
            COUNT_IF_NAMED(place, flows, 0)
            COUNT_IF_NAMED(place, flows, 1)
            COUNT_IF_NAMED(place, flows, 2)
            COUNT_IF_NAMED(place, flows, 3)
            is_found = flows == 1;
            is_other_vlan = is_found;
        } else if (!is_found) {
            // A flow with waiting packets, or with a reduced rate, retains its entry.
            bit<64> until_ns;
            place = place_0;
            IN_USE_UNTIL(place_0, seen_ns_0, until_ns)
            CHOOSE_IF_SOONER(place, until_ns, 1)
            CHOOSE_IF_SOONER(place, until_ns, 2)
            CHOOSE_IF_SOONER(place, until_ns, 3)
            meta.is_evicting = until_ns != 0 ? 1w1 : 1w0;
            is_free = until_ns <= now_ns;
        }
        meta.place = (place << 1) | (bit<32>)meta.stream;

        if (!is_found && is_cnp) {
            turn = TURN_CNP_UNKNOWN;
        } else if (is_cnp && !has_icrc) {
            turn = TURN_CNP_INVALID;
        } else if (!is_found && !is_free) {
            turn = TURN_NO_PLACE;
        } else {
            rate_params_t p = meta.rate;
            cut_params_t cut = meta.cut;
            bit<64> rate_bps;
            bit<64> target_bps;
            bit<64> next_increase_ns;
            bit<64> cut_check_ns;
            bit<2>  pending;
            bit<64> byte_count;
            bit<32> time_stage;
            bit<32> byte_stage;
            bit<1>  active;
            bit<64> next_ns;
            bit<32> next_frac_q27;
            bit<32> owed_bits;
            bit<64> pacer_rate_bps;
            bit<64> ns_per_byte_q24;
            bool is_too_soon = false;
            rp_rate_bps.read(rate_bps, place);
            rp_target_bps.read(target_bps, place);
            rp_next_increase_ns.read(next_increase_ns, place);
            rp_cut_check_ns.read(cut_check_ns, place);
            rp_pending.read(pending, place);
            rp_byte_count.read(byte_count, place);
            rp_time_stage.read(time_stage, place);
            rp_byte_stage.read(byte_stage, place);
            rp_active.read(active, place);
            rp_next_ns.read(next_ns, place);
            rp_next_frac_q27.read(next_frac_q27, place);
            rp_owed_bits.read(owed_bits, place);
            rp_pacer_rate_bps.read(pacer_rate_bps, place);
            rp_ns_per_byte_q24.read(ns_per_byte_q24, place);
            if (!is_found) {
                meta.is_missing = 1;
                WRITE_FLOW(rp, src, addr, qpn, meta.vlan, place)
                next_increase_ns = 0;
                cut_check_ns = 0;
                pending = 0;
                byte_count = 0;
                time_stage = 0;
                byte_stage = 0;
                active = 0;
                next_ns = 0;
                next_frac_q27 = 0;
                owed_bits = 0;
                rp_alpha_q31.write(place, p.initial_alpha_q31);
                rp_alpha_epoch_ns.write(place, 0);
                rp_last_cnp_ns.write(place, 0);
                rp_cnp_handled.write(place, 0);
                rp_cnp_ignored.write(place, 0);
                rp_packets.write(place, 0);
                rp_bytes.write(place, 0);
                NEW_STREAM(place << 1)
                NEW_STREAM((place << 1) | 1)
            } else if (is_cnp) {
                bit<64> last_cnp_ns;
                rp_last_cnp_ns.read(last_cnp_ns, place);
                is_too_soon = last_cnp_ns != 0 && cut.guard_ns != 0
                    && (now_ns <= last_cnp_ns || now_ns - last_cnp_ns < cut.guard_ns);
            }
            if (is_too_soon) {
                bit<32> cnp_ignored;
                rp_cnp_ignored.read(cnp_ignored, place);
                rp_cnp_ignored.write(place, cnp_ignored + 1);
                turn = TURN_CNP_TOO_SOON;
            } else {
                PHASE_VARIABLES
                DEBT_VARIABLES
                ALPHA_VARIABLES

                // Events up to now.
                READ_DEBT
                if (active == 0) {
                    rate_bps = p.line_rate_bps;
                    target_bps = p.line_rate_bps;
                } else {
                    // The line rate may have been lowered since, or a period shortened.
                    rate_bps = rate_bps < p.line_rate_bps ? rate_bps : p.line_rate_bps;
                    target_bps = target_bps < p.line_rate_bps ? target_bps : p.line_rate_bps;
                    if (p.time_reset_ns == 0) {
                        next_increase_ns = NEVER_NS;
                    } else if (next_increase_ns > now_ns + p.time_reset_ns) {
                        next_increase_ns = now_ns + p.time_reset_ns;
                    }
                    if (cut_check_ns > now_ns + p.cut_period_ns) {
                        cut_check_ns = now_ns + p.cut_period_ns;
                    }
                    if (p.cut_period_ns != 0 && (pending & PENDING_CUT) != 0 && cut_check_ns <= now_ns) {
                        // A cut restarts the timer, one that expires at the same instant too.
                        bit<64> before_cut_ns = cut_check_ns |-| 1;
                        READ_ALPHA
                        RUN_TIMER(before_cut_ns)
                        PAY(rate_bps, cut_check_ns)
                        ALPHA_AT(cut_check_ns)
                        CUT(cut_check_ns)
                        pending = pending & ~PENDING_CUT;
                    }
                    RUN_TIMER(now_ns)
                }

                if (is_cnp) {
                    turn = TURN_CNP_HANDLED;
                    bit<32> cnp_handled;
                    rp_cnp_handled.read(cnp_handled, place);
                    rp_last_cnp_ns.write(place, now_ns);
                    rp_cnp_handled.write(place, cnp_handled + 1);
                    PAY(rate_bps, now_ns)
                    READ_ALPHA
                    ALPHA_AT(now_ns)
                    if (p.cut_period_ns == 0) {
                        // Cut with the old alpha, then raise alpha; stages, byte counter and timer restart.
                        CUT(now_ns)
                        RAISE_ALPHA
                        alpha_epoch_ns = now_ns;
                        pending = 0;
                    } else if (active == 0) {
                        // The periods begin.
                        alpha_q31 = p.initial_alpha_q31;
                        alpha_epoch_ns = now_ns;
                        next_increase_ns = TIMER_FROM(now_ns);
                        cut_check_ns = now_ns + p.cut_period_ns;
                        if (cut.first_cnp_rate_bps == 0) {
                            pending = PENDING_CUT;
                        } else {
                            rate_bps = cut.first_cnp_rate_bps < p.line_rate_bps ? cut.first_cnp_rate_bps : p.line_rate_bps;
                            target_bps = rate_bps;
                        }
                    } else {
                        // The period's end raises alpha, and the next check cuts.
                        if (now_ns > alpha_epoch_ns) {
                            alpha_epoch_ns = now_ns - (bit<64>)since_ns;
                        }
                        if (now_ns >= cut_check_ns) {
                            since_ns = (bit<96>)(now_ns - cut_check_ns);
                            period_ns = (bit<96>)p.cut_period_ns;
                            REMAINDER_58(since_ns, period_ns)
                            cut_check_ns = now_ns - (bit<64>)since_ns + p.cut_period_ns;
                        }
                        pending = PENDING_RAISE | PENDING_CUT;
                    }
                    rp_alpha_q31.write(place, alpha_q31);
                    rp_alpha_epoch_ns.write(place, alpha_epoch_ns);
                    active = 1;
                }
                FOLLOW
                if (!is_cnp) {
                    rp_last_seen_ns.write(place, now_ns);
                    bit<64> frame_bytes = (bit<64>)standard_metadata.packet_length;
                    bit<64> departure_ns = now_ns;
                    turn = TURN_NOW;
                    if (p.pace == 1) {
                        // The departure follows the last packet at the flow's rate (`Pacer::schedule`).
                        bit<64> earliest_ns = now_ns |-| p.pacing_credit_ns;
                        bit<64> start_ns = next_ns > earliest_ns ? next_ns : earliest_ns;
                        departure_ns = start_ns > now_ns ? start_ns : now_ns;
                        TAKE_TICKET
                        bool is_beyond = departure_ns - now_ns > p.pacing_horizon_ns;
                        if (must_wait && (is_full || (is_beyond && p.pacing_horizon_drop == 1))) {
                            turn = TURN_BEYOND;
                        } else {
                            if (is_beyond) {
                                // The flow's next departure stays unchanged.
                                departure_ns = now_ns + p.pacing_horizon_ns;
                                SKIP_TO(departure_ns)
                                turn = TURN_AT_HORIZON;
                            } else {
                                owed_bits = (bit<32>)(frame_bytes + (bit<64>)p.wire_overhead_bytes) << 3;
                                bit<64> owed_q27 = (bit<64>)owed_bits * ns_per_byte_q24 + (bit<64>)next_frac_q27;
                                next_ns = start_ns + (owed_q27 >> 27);
                                next_frac_q27 = (bit<32>)owed_q27[26:0];
                                if (must_wait) {
                                    turn = TURN_WAIT;
                                }
                            }
                            USE_TICKET
                        }
                    }
                    if (turn != TURN_BEYOND) {
                        rp_last_ns.write(meta.place, departure_ns);
                    }
                    if (turn != TURN_BEYOND || p.pacing_horizon_drop == 0) {
                        bit<64> packets;
                        bit<64> bytes;
                        rp_packets.read(packets, place);
                        rp_bytes.read(bytes, place);
                        rp_packets.write(place, packets + 1);
                        rp_bytes.write(place, bytes + frame_bytes);
                        // While idle, `firmware` counts nothing.
                        if (p.byte_reset_bytes != 0 && (active == 1 || p.cut_period_ns == 0)) {
                            byte_count = byte_count + frame_bytes;
                            RUN_BYTES
                        }
                    }
                }
                rp_next_ns.write(place, next_ns);
                rp_next_frac_q27.write(place, next_frac_q27);
                rp_owed_bits.write(place, owed_bits);
                rp_pacer_rate_bps.write(place, pacer_rate_bps);
                rp_ns_per_byte_q24.write(place, ns_per_byte_q24);
            }
            rp_rate_bps.write(place, rate_bps);
            rp_target_bps.write(place, target_bps);
            rp_next_increase_ns.write(place, next_increase_ns);
            rp_cut_check_ns.write(place, cut_check_ns);
            rp_pending.write(place, pending);
            rp_byte_count.write(place, byte_count);
            rp_time_stage.write(place, time_stage);
            rp_byte_stage.write(place, byte_stage);
            rp_active.write(place, active);
        }
    }

    // A packet without data (READ request, atomic, ACK) is free, and leaves after the waiting data of its stream.
    action keep_place() {
        bit<32> qpn = (bit<32>)meta.flow_qpn;
        bit<32> place;
        bool is_found;
        FIND_FLOW(rp, meta.src_addr, meta.dst_addr, qpn, meta.vlan, 32w0, place, is_found)
        turn = TURN_NOW;
        if (is_found) {
            bit<64> now_ns = meta.now_ns;
            bit<64> departure_ns;
            meta.place = (place << 1) | (bit<32>)meta.stream;
            rp_last_ns.read(departure_ns, meta.place);
            departure_ns = departure_ns > now_ns ? departure_ns : now_ns;
            TAKE_TICKET
            if (must_wait) {
                turn = is_full ? TURN_BEYOND : TURN_WAIT;
            }
            if (!is_full) {
                USE_TICKET
            }
        }
    }

    // A recirculated packet leaves at its time, if no packet of its stream is before it.
    action look_again() {
        bit<32> released;
        rp_released.read(released, meta.place);
        bool is_next = (int<32>)(meta.ticket - released) <= 0;
        bool is_due = meta.now_ns >= meta.departure_ns;
        if (is_due && (is_next || meta.now_ns - meta.departure_ns > LOST_NS)) {
            turn = TURN_NOW;
            if ((int<32>)(meta.ticket - released) >= 0) {
                released = meta.ticket + 1;
            }
            rp_released.write(meta.place, released);
        } else {
            turn = TURN_WAIT;
        }
    }

    // Recirculates again, without what may happen only once.
    action wait() {
        meta.waits = 1;
        meta.is_routed = 0;
        standard_metadata.mcast_grp = 0;
        standard_metadata.priority = 0;
        standard_metadata.egress_spec = WAIT_PORT;
    }

    action leave() {
        meta.waits = 0;
    }

    CheckCnp() check_cnp;

    apply {
        if (meta.waits == 1) {
            look_again();
            if (turn == TURN_WAIT) {
                wait();
            } else {
                leave();
            }
        } else {
            // Data is paced at the port where its host's packets arrive; a CNP cuts at the port to its host.
            bool is_turn = false;
            if (meta.kind == KIND_CNP || meta.is_sequenced == 1) {
                meta.host_port =
                    meta.kind == KIND_CNP ? standard_metadata.egress_spec : standard_metadata.ingress_port;
                is_turn = rp_rate.apply().hit && meta.rate.line_rate_bps != 0;
                // Pending effects of a CNP take place with data too.
                if (meta.kind == KIND_CNP || (meta.kind == KIND_DATA && meta.rate.cut_period_ns != 0)) {
                    rp_cut.apply();
                }
            }
            if (is_turn && meta.kind != KIND_CONTROL) {
                meta.flow_qpn = hdr.bth.dest_qpn;
                if (meta.kind == KIND_CNP) {
                    bool is_valid;
                    check_cnp.apply(hdr, is_valid, has_icrc);
                    if (!is_valid) {
                        turn = TURN_CNP_INVALID;
                        is_turn = false;
                    } else if (hdr.cnp.hint_magic == CNP_HINT_MAGIC && hdr.cnp.hint_version == CNP_HINT_VERSION) {
                        meta.flow_qpn = hdr.cnp.hint_qpn;
                    } else {
                        turn = TURN_CNP_UNKNOWN;
                        if (!rp_pair.apply().hit) {
                            known_receiver();
                            is_turn = is_paired;
                        }
                    }
                } else if (meta.is_datagram == 1) {
                    learn_datagram();
                }
                if (is_turn) {
                    take_turn();
                }
            } else if (is_turn && meta.rate.pace == 1) {
                meta.flow_qpn = hdr.bth.dest_qpn;
                keep_place();
            }
            if (meta.is_missing == 1) {
                stats.count(STAT_RP_FLOW_NEW);
                if (meta.is_evicting == 1) {
                    stats.count(STAT_RP_FLOW_EVICTED);
                }
            }
            if (turn == TURN_WAIT) {
                if (meta.kind == KIND_DATA) {
                    stats.count(STAT_RP_PACED_PACKETS);
                } else {
                    stats.count(STAT_RP_IN_ORDER_PACKETS);
                }
                wait();
            } else if (turn == TURN_AT_HORIZON) {
                stats.count(STAT_RP_HORIZON_PASS);
                wait();
            } else if (turn == TURN_NO_PLACE) {
                stats.count(STAT_RP_TABLE_FULL);
            } else if (turn == TURN_BEYOND) {
                if (meta.rate.pacing_horizon_drop == 1 && meta.kind == KIND_DATA) {
                    stats.count(STAT_RP_HORIZON_DROP);
                    mark_to_drop(standard_metadata);
                } else {
                    stats.count(STAT_RP_HORIZON_PASS);
                }
            } else if (turn == TURN_CNP_HANDLED) {
                stats.count(STAT_RP_CNP_HANDLED);
                if (is_other_vlan) {
                    stats.count(STAT_RP_CNP_OTHER_VLAN);
                }
            } else if (turn != TURN_NOW) {
                stats.count(STAT_RP_CNP_IGNORED);
                if (turn == TURN_CNP_INVALID) {
                    stats.count(STAT_RP_CNP_INVALID);
                } else if (turn == TURN_CNP_UNKNOWN) {
                    stats.count(STAT_RP_CNP_UNKNOWN_FLOW);
                } else {
                    stats.count(STAT_RP_CNP_TOO_SOON);
                }
            }
            if ((turn == TURN_CNP_HANDLED || turn == TURN_CNP_TOO_SOON) && meta.cut.cnp_consume == 1) {
                mark_to_drop(standard_metadata);
            }
        }
    }
}
