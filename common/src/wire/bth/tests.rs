use super::*;

#[test]
fn fields_round_trip() {
    let bytes = [0x0a, 0xf0, 0x80, 0x01, 0xc0, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef];
    let repr = BthRepr::parse(Bth::new(&bytes));
    assert_eq!(
        repr,
        BthRepr {
            opcode: Opcode::RC_RDMA_WRITE_ONLY,
            dest_qpn: 0x0012_3456,
            psn: 0x00ab_cdef,
            ack_request: true,
            pad_count: 3,
            becn: true,
            fecn: true,
            p_key: 0x8001,
            solicited: true,
            migrated: true,
            tver: 0,
        }
    );
    let mut out = [0xff; 12];
    repr.emit(&mut out);
    assert_eq!(out, bytes);
}

#[test]
fn opcode_names_have_transport_and_operation() {
    for (code, name) in [
        (0x06, "RC_RDMA_WRITE_FIRST"),
        (0x11, "RC_ACKNOWLEDGE"),
        (0x2b, "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE"),
        (0x55, "RD_RESYNC"),
        (0x64, "UD_SEND_ONLY"),
        (0x81, "CNP"),
        (0xb7, "XRC_SEND_ONLY_WITH_INVALIDATE"),
        (0x15, "UNKNOWN"),
        (0x60, "UNKNOWN"),
        (0xff, "UNKNOWN"),
    ] {
        assert_eq!(Opcode(code).name(), name);
    }
}

#[test]
fn opcodes_agree_with_names() {
    let mut known = 0;
    for code in 0..=u8::MAX {
        let opcode = Opcode(code);
        let name = opcode.name();
        let name_has = |part| name.contains(part);
        assert_eq!((opcode.is_cnp(), opcode.is_vendor()), (code == 0x81, code >= 0xc0), "{code:#x}");
        if !opcode.is_known() {
            assert_eq!(name, "UNKNOWN");
            assert!(!opcode.is_data() && !opcode.is_response() && opcode.ext_len() == 0, "{code:#x}");
            continue;
        }
        known += 1;
        if opcode.is_of(Transport::Cnp) {
            assert!(!opcode.is_data() && opcode.ext_len() == 0);
            continue;
        }
        for (transport, prefix) in [
            (Transport::Rc, "RC_"),
            (Transport::Uc, "UC_"),
            (Transport::Rd, "RD_"),
            (Transport::Ud, "UD_"),
            (Transport::Xrc, "XRC_"),
        ] {
            assert_eq!(opcode.is_of(transport), name.starts_with(prefix), "{name}");
        }
        let data = name_has("_SEND_") || name_has("_RDMA_WRITE_") || name_has("_READ_RESPONSE_");
        assert_eq!(opcode.is_data(), data, "{name}");
        assert_eq!(opcode.is_read_response(), name_has("_READ_RESPONSE_"), "{name}");
        assert_eq!(opcode.is_response(), name_has("_READ_RESPONSE_") || name_has("_ACKNOWLEDGE"), "{name}");
        assert_eq!(opcode.has_immdt(), name_has("_WITH_IMMEDIATE"), "{name}");
        assert_eq!(opcode.has_ieth(), name_has("_WITH_INVALIDATE"), "{name}");
    }
    // RC 25, UC 12, RD 23, UD 2, XRC 23, and the two congestion notifications.
    assert_eq!(known, 25 + 12 + 23 + 2 + 23 + 2);
}

#[test]
fn extension_headers_add_up() {
    for (opcode, len) in [
        (Opcode::RC_SEND_FIRST, 0),
        (Opcode::RC_SEND_LAST_WITH_INVALIDATE, 4),
        (Opcode::RC_RDMA_WRITE_FIRST, 16),
        (Opcode::RC_RDMA_WRITE_MIDDLE, 0),
        (Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, 4),
        (Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, 20),
        (Opcode::RC_RDMA_READ_REQUEST, 16),
        (Opcode::RC_RDMA_READ_RESPONSE_FIRST, 4),
        (Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 0),
        (Opcode::RC_ACKNOWLEDGE, 4),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, 12),
        (Opcode::RC_COMPARE_SWAP, 28),
        (Opcode::RC_FETCH_ADD, 28),
        (Opcode::RC_FLUSH, 20),
        (Opcode::RC_ATOMIC_WRITE, 16),
        (Opcode::RD_SEND_ONLY, 12),
        (Opcode::RD_RDMA_READ_RESPONSE_MIDDLE, 4),
        (Opcode::RD_ACKNOWLEDGE, 8),
        (Opcode::UD_SEND_ONLY_WITH_IMMEDIATE, 12),
        (Opcode::CNP, 0),
        (Opcode::XRC_RDMA_WRITE_ONLY, 20),
        (Opcode::XRC_ACKNOWLEDGE, 4),
    ] {
        assert_eq!(opcode.ext_len(), len, "{}", opcode.name());
    }
}
