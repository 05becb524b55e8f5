// Reaction point: the flows of the hosts on this switch's ports, each kept to the rate of its rate machine.

// One flow: fields of `RpFlow`.
register<bit<32>>(FLOWS) rp_addr_0;
register<bit<32>>(FLOWS) rp_addr_1;
register<bit<32>>(FLOWS) rp_addr_2;
register<bit<32>>(FLOWS) rp_addr_3;
register<bit<32>>(FLOWS) rp_qpn;
register<bit<64>>(FLOWS) rp_last_seen_ns;
register<bit<64>>(FLOWS) rp_rate_bps;
register<bit<64>>(FLOWS) rp_target_bps;
register<bit<64>>(FLOWS) rp_alpha_epoch_ns;
register<bit<32>>(FLOWS) rp_alpha_q31;
register<bit<64>>(FLOWS) rp_next_increase_ns;
register<bit<64>>(FLOWS) rp_byte_count;
register<bit<32>>(FLOWS) rp_time_stage;
register<bit<32>>(FLOWS) rp_byte_stage;
register<bit<1>>(FLOWS)  rp_active;
register<bit<64>>(FLOWS) rp_next_ns;
register<bit<32>>(FLOWS) rp_next_frac_q24;
register<bit<64>>(FLOWS) rp_pacer_rate_bps;
register<bit<64>>(FLOWS) rp_ns_per_byte_q24;
register<bit<64>>(FLOWS) rp_departure_ns;
register<bit<32>>(FLOWS) rp_ticket;
register<bit<32>>(FLOWS) rp_released;
register<bit<64>>(FLOWS) rp_packets;
register<bit<64>>(FLOWS) rp_bytes;
register<bit<64>>(FLOWS) rp_last_cnp_ns;
register<bit<32>>(FLOWS) rp_cnp_handled;
register<bit<32>>(FLOWS) rp_cnp_ignored;

// Packets that go round, as the last of them to leave queue 510 saw it. The queue takes 1024; beyond this many the next
// does not wait: it passes, or is dropped.
register<bit<32>>(1) wait_depth;
const bit<32> MAX_WAITING = 1000;
// A packet that waits this long after its departure for one before it does not: that one was lost.
const bit<64> LOST_NS = 500000000;

// What an action decides about a packet.
const bit<3> TURN_NOW = 0;
const bit<3> TURN_WAIT = 1;
const bit<3> TURN_BEYOND = 2;
const bit<3> TURN_CNP_HANDLED = 3;
const bit<3> TURN_CNP_TOO_SOON = 4;
const bit<3> TURN_CNP_UNKNOWN = 5;
const bit<3> TURN_CNP_INVALID = 6;
const bit<3> TURN_AT_HORIZON = 7;

// A CNP is to be believed only if it is one to the last bit, ICRC included (`read_cnp`).
control CheckCnp(in headers_t hdr, out bool is_valid) {
    action check() {
        bit<32> crc;
        bit<16> sum;
        CNP_ICRC(crc, hdr)
        IPV4_CHECKSUM(sum, hdr)
        is_valid = hdr.cnp.isValid() && hdr.bth.becn == 1 && hdr.cnp.icrc == crc
            && (hdr.ipv6.isValid() || hdr.ipv4.checksum == sum);
    }

    apply {
        check();
    }
}

control ReactionPoint(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action set_rate(bit<64> line_rate_bps, bit<64> ai_rate_bps, bit<64> hai_rate_bps, bit<64> time_reset_ns,
                    bit<64> byte_reset_bytes, bit<32> threshold, bit<32> initial_alpha_q31,
                    bit<16> wire_overhead_bytes, bit<1> pace, bit<64> pacing_credit_ns, bit<64> pacing_horizon_ns,
                    bit<1> pacing_horizon_drop) {
        meta.rate = {
            line_rate_bps, ai_rate_bps, hai_rate_bps, time_reset_ns, byte_reset_bytes, threshold, initial_alpha_q31,
            wire_overhead_bytes, pace, pacing_credit_ns, pacing_horizon_ns, pacing_horizon_drop
        };
    }

    table rp_rate {
        key = { meta.host_port: exact @name("port"); }
        actions = { set_rate; NoAction; }
        default_action = NoAction();
        size = 512;
    }

    action set_cut(bit<64> min_rate_bps, bit<64> guard_ns, bit<64> alpha_period_ns, bit<32> gain_q31,
                   bit<8> cut_shift, bit<8> min_dec_percent, bit<1> cnp_consume,
                   bit<32> decay_q31_0, bit<32> decay_q31_1, bit<32> decay_q31_2, bit<32> decay_q31_3,
                   bit<32> decay_q31_4, bit<32> decay_q31_5, bit<32> decay_q31_6, bit<32> decay_q31_7,
                   bit<32> decay_q31_8, bit<32> decay_q31_9, bit<32> decay_q31_10, bit<32> decay_q31_11,
                   bit<32> decay_q31_12, bit<32> decay_q31_13, bit<32> decay_q31_14, bit<32> decay_q31_15) {
        meta.cut = {
            min_rate_bps, guard_ns, alpha_period_ns, gain_q31, cut_shift, min_dec_percent, cnp_consume,
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

    bit<3> turn = TURN_NOW;

    // Everything between finding a flow and writing it back: a data packet of it, or a CNP for it.
    action take_turn() {
        bit<128> addr = meta.kind == KIND_CNP ? meta.src_addr : meta.dst_addr;
        bit<32> qpn = (bit<32>)meta.flow_qpn;
        bit<32> set;
        hash(set, HashAlgorithm.crc32, 32w0, { addr, qpn }, SETS);
        bit<32> place;
        bool is_found;
        FIND_FLOW(rp, addr, qpn, set, place, is_found)
        meta.place = place;

        if (!is_found && meta.kind == KIND_CNP) {
            turn = TURN_CNP_UNKNOWN;
        } else {
            rate_params_t p = meta.rate;
            cut_params_t cut = meta.cut;
            bit<64> now_ns = meta.now_ns;
            bit<64> rate_bps;
            bit<64> target_bps;
            bit<64> next_increase_ns;
            bit<64> byte_count;
            bit<32> time_stage;
            bit<32> byte_stage;
            bit<1>  active;
            bool is_too_soon = false;
            rp_rate_bps.read(rate_bps, place);
            rp_target_bps.read(target_bps, place);
            rp_next_increase_ns.read(next_increase_ns, place);
            rp_byte_count.read(byte_count, place);
            rp_time_stage.read(time_stage, place);
            rp_byte_stage.read(byte_stage, place);
            rp_active.read(active, place);
            if (!is_found) {
                bit<64> last_seen_ns;
                bit<32> ticket;
                rp_last_seen_ns.read(last_seen_ns, place);
                rp_ticket.read(ticket, place);
                meta.is_missing = 1;
                meta.is_evicting = last_seen_ns != 0 ? 1w1 : 1w0;
                WRITE_FLOW_ID(rp, addr, qpn, place)
                next_increase_ns = 0;
                byte_count = 0;
                time_stage = 0;
                byte_stage = 0;
                active = 0;
                rp_alpha_q31.write(place, p.initial_alpha_q31);
                rp_alpha_epoch_ns.write(place, 0);
                rp_last_cnp_ns.write(place, 0);
                rp_cnp_handled.write(place, 0);
                rp_cnp_ignored.write(place, 0);
                rp_packets.write(place, 0);
                rp_bytes.write(place, 0);
                rp_next_ns.write(place, 0);
                rp_next_frac_q24.write(place, 0);
                // Packets of the flow that was here may still wait; none after them has to.
                rp_released.write(place, ticket);
            } else if (meta.kind == KIND_CNP) {
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

                // What fell due up to now.
                if (active == 0) {
                    rate_bps = p.line_rate_bps;
                    target_bps = p.line_rate_bps;
                } else {
                    // The line rate may have been lowered since, or the period shortened.
                    rate_bps = rate_bps < p.line_rate_bps ? rate_bps : p.line_rate_bps;
                    target_bps = target_bps < p.line_rate_bps ? target_bps : p.line_rate_bps;
                    if (p.time_reset_ns == 0) {
                        next_increase_ns = NEVER_NS;
                    } else if (next_increase_ns > now_ns + p.time_reset_ns) {
                        next_increase_ns = now_ns + p.time_reset_ns;
                    }
                    if (next_increase_ns <= now_ns) {
                        bit<64> late_ns = now_ns - next_increase_ns;
                        DIVIDE_16(late_ns, p.time_reset_ns, left)
                        left = left < MAX_EVENTS ? left + 1 : MAX_EVENTS;
                        next_increase_ns = next_increase_ns + (bit<64>)left * p.time_reset_ns;
                        own = time_stage;
                        other = byte_stage;
                        other_is_on = p.byte_reset_bytes != 0;
                        RUN(FIT_16)
                        time_stage = own;
                    }
                }

                if (meta.kind == KIND_CNP) {
                    // Cut with the old alpha, then raise alpha; stages, byte counter and timer start anew.
                    turn = TURN_CNP_HANDLED;
                    bit<32> cnp_handled;
                    bit<32> alpha_q31;
                    bit<64> alpha_epoch_ns;
                    rp_cnp_handled.read(cnp_handled, place);
                    rp_alpha_q31.read(alpha_q31, place);
                    rp_alpha_epoch_ns.read(alpha_epoch_ns, place);
                    rp_last_cnp_ns.write(place, now_ns);
                    rp_cnp_handled.write(place, cnp_handled + 1);
                    bit<32> periods = 0;
                    if (active == 1 && now_ns > alpha_epoch_ns) {
                        bit<96> since_ns = (bit<96>)(now_ns - alpha_epoch_ns);
                        bit<96> period_ns = (bit<96>)cut.alpha_period_ns;
                        if (since_ns >= (period_ns << 16)) {
                            // (1023/1024)^65536 is e^-64.
                            alpha_q31 = 0;
                        } else {
                            DIVIDE_16(since_ns, period_ns, periods)
                            DECAY_16
                        }
                    }
                    bit<64> reduction_bps = (bit<64>)(((bit<96>)rate_bps * (bit<96>)alpha_q31) >> cut.cut_shift);
                    bit<64> kept_bps =
                        (bit<64>)(((bit<96>)rate_bps * (bit<96>)cut.min_dec_percent * HUNDREDTH_Q54) >> 54);
                    target_bps = rate_bps;
                    rate_bps = rate_bps - reduction_bps;
                    rate_bps = rate_bps > kept_bps ? rate_bps : kept_bps;
                    rate_bps = rate_bps > cut.min_rate_bps ? rate_bps : cut.min_rate_bps;
                    alpha_q31 = MUL_Q31(alpha_q31, cut.decay_q31_0) |+| cut.gain_q31;
                    alpha_q31 = alpha_q31 < ALPHA_ONE ? alpha_q31 : ALPHA_ONE;
                    rp_alpha_q31.write(place, alpha_q31);
                    rp_alpha_epoch_ns.write(place, now_ns);
                    next_increase_ns = p.time_reset_ns == 0 ? NEVER_NS : now_ns + p.time_reset_ns;
                    byte_count = 0;
                    time_stage = 0;
                    byte_stage = 0;
                    active = 1;
                } else {
                    rp_last_seen_ns.write(place, now_ns);
                    bit<64> frame_bytes = (bit<64>)standard_metadata.packet_length;
                    bit<64> departure_ns = now_ns;
                    turn = TURN_NOW;
                    if (p.pace == 1) {
                        // It leaves when the flow's last packet has left at the flow's rate (`Pacer::schedule`).
                        bit<64> next_ns;
                        bit<32> next_frac_q24;
                        bit<32> ticket;
                        bit<32> released;
                        rp_next_ns.read(next_ns, place);
                        rp_next_frac_q24.read(next_frac_q24, place);
                        rp_ticket.read(ticket, place);
                        rp_released.read(released, place);
                        bit<64> earliest_ns = now_ns |-| p.pacing_credit_ns;
                        bit<64> start_ns = next_ns > earliest_ns ? next_ns : earliest_ns;
                        departure_ns = start_ns > now_ns ? start_ns : now_ns;
                        bit<64> last_departure_ns;
                        bit<32> waiting;
                        rp_departure_ns.read(last_departure_ns, place);
                        wait_depth.read(waiting, 0);
                        if (now_ns > last_departure_ns + LOST_NS) {
                            released = ticket;
                            rp_released.write(place, ticket);
                        }
                        bool must_wait = departure_ns > now_ns || ticket != released;
                        bool is_beyond = departure_ns - now_ns > p.pacing_horizon_ns;
                        if (must_wait && (waiting >= MAX_WAITING || (is_beyond && p.pacing_horizon_drop == 1))) {
                            turn = TURN_BEYOND;
                        } else {
                            if (is_beyond) {
                                // The flow's time line stays as it was.
                                departure_ns = now_ns + p.pacing_horizon_ns;
                                turn = TURN_AT_HORIZON;
                            } else {
                                bit<64> pacer_rate_bps;
                                bit<64> ns_per_byte_q24;
                                rp_pacer_rate_bps.read(pacer_rate_bps, place);
                                rp_ns_per_byte_q24.read(ns_per_byte_q24, place);
                                if (pacer_rate_bps != rate_bps) {
                                    // Rounded up, so that no packet leaves early.
                                    bit<96> divisor = (bit<96>)rate_bps;
                                    bit<96> rest = NS_PER_BYTE_AT_1_BPS_Q24 + divisor - 1;
                                    bit<96> quotient = 0;
                                    DIVIDE_41(rest, divisor, quotient)
                                    ns_per_byte_q24 = (bit<64>)quotient;
                                    rp_pacer_rate_bps.write(place, rate_bps);
                                    rp_ns_per_byte_q24.write(place, ns_per_byte_q24);
                                }
                                bit<64> duration_q24 = (frame_bytes + (bit<64>)p.wire_overhead_bytes) * ns_per_byte_q24
                                    + (bit<64>)next_frac_q24;
                                rp_next_ns.write(place, start_ns + (duration_q24 >> 24));
                                rp_next_frac_q24.write(place, (bit<32>)duration_q24[23:0]);
                                if (must_wait) {
                                    turn = TURN_WAIT;
                                }
                            }
                            rp_departure_ns.write(place, departure_ns);
                            if (must_wait) {
                                meta.ticket = ticket;
                                meta.departure_ns = departure_ns;
                                rp_ticket.write(place, ticket + 1);
                            }
                        }
                    }
                    if (turn != TURN_BEYOND || p.pacing_horizon_drop == 0) {
                        bit<64> packets;
                        bit<64> bytes;
                        rp_packets.read(packets, place);
                        rp_bytes.read(bytes, place);
                        rp_packets.write(place, packets + 1);
                        rp_bytes.write(place, bytes + frame_bytes);
                        if (p.byte_reset_bytes != 0) {
                            byte_count = byte_count + frame_bytes;
                            left = 0;
                            DIVIDE_4(byte_count, p.byte_reset_bytes, left)
                            own = byte_stage;
                            other = time_stage;
                            other_is_on = p.time_reset_ns != 0;
                            RUN(FIT_4)
                            byte_stage = own;
                        }
                    }
                }
            }
            rp_rate_bps.write(place, rate_bps);
            rp_target_bps.write(place, target_bps);
            rp_next_increase_ns.write(place, next_increase_ns);
            rp_byte_count.write(place, byte_count);
            rp_time_stage.write(place, time_stage);
            rp_byte_stage.write(place, byte_stage);
            rp_active.write(place, active);
        }
    }

    // A packet that went round: its time has come, and nothing of its flow is still before it.
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

    // Round once more, past nothing that is to be changed only once.
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
            // A data packet's flow is paced where its host's packets come in; a CNP cuts where it goes out to its host.
            bool is_turn = false;
            if (meta.kind == KIND_DATA) {
                meta.host_port = standard_metadata.ingress_port;
                meta.flow_qpn = hdr.bth.dest_qpn;
                is_turn = true;
            } else if (meta.kind == KIND_CNP) {
                meta.host_port = standard_metadata.egress_spec;
                if (rp_cut.apply().hit) {
                    bool is_valid;
                    check_cnp.apply(hdr, is_valid);
                    if (!is_valid) {
                        turn = TURN_CNP_INVALID;
                    } else {
                        turn = TURN_CNP_UNKNOWN;
                        if (hdr.cnp.hint_magic == CNP_HINT_MAGIC && hdr.cnp.hint_version == CNP_HINT_VERSION) {
                            meta.flow_qpn = hdr.cnp.hint_qpn;
                            is_turn = true;
                        } else {
                            is_turn = rp_pair.apply().hit;
                        }
                    }
                }
            }
            if (is_turn) {
                if (rp_rate.apply().hit && meta.rate.line_rate_bps != 0) {
                    take_turn();
                }
            }
            if (meta.is_missing == 1) {
                stats.count(STAT_RP_FLOW_NEW);
            }
            if (meta.is_evicting == 1) {
                stats.count(STAT_RP_FLOW_EVICTED);
            }
            if (turn == TURN_WAIT) {
                stats.count(STAT_RP_PACED_PACKETS);
                wait();
            } else if (turn == TURN_AT_HORIZON) {
                stats.count(STAT_RP_HORIZON_PASS);
                wait();
            } else if (turn == TURN_BEYOND) {
                if (meta.rate.pacing_horizon_drop == 1) {
                    stats.count(STAT_RP_HORIZON_DROP);
                    mark_to_drop(standard_metadata);
                } else {
                    stats.count(STAT_RP_HORIZON_PASS);
                }
            } else if (turn == TURN_CNP_HANDLED) {
                stats.count(STAT_RP_CNP_HANDLED);
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
