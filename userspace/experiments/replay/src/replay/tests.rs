//! Real-world captures, and their replay.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dcqcn_common::wire::ecn::Ecn;
use dcqcn_common::wire::ipv4::{Ipv4, Ipv4Repr};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::{DataLink, TsResolution};
use proptest::prelude::*;
use serde_json::Value;
use tempfile::{NamedTempFile, TempPath};

use super::*;

/// 44 s past the epoch, an arbitrary time for the captures' own clock.
const AT_NS: u64 = 44_000_000_000;

fn soft_roce(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/captures").join(name)
}

/// The first `count` frames of a capture of soft-RoCE, ECT.
fn frames(name: &str, count: usize) -> Vec<Vec<u8>> {
    frames_with(Ecn::ECT0, name, count)
}

fn frames_with(ecn: Ecn, name: &str, count: usize) -> Vec<Vec<u8>> {
    let mut capture = Capture::open(&soft_roce(name)).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = capture.next_packet().filter(|_| frames.len() < count) {
        let mut frame = packet.unwrap().data;
        let header = frame[14..].first_chunk_mut().unwrap();
        let ip = Ipv4Repr::parse(Ipv4::new(header)).unwrap();
        Ipv4Repr { tos: ecn.apply(ip.tos), ..ip }.emit(header);
        frames.push(frame);
    }
    frames
}

fn options(input: &Path, hook: Hook) -> Options {
    Options {
        input: input.to_owned(),
        hook,
        engine: EngineKind::Reference,
        config: None,
        seed: 1,
        out: None,
        summary_line: false,
    }
}

fn replayed(options: &Options) -> (Vec<Value>, Summary) {
    let mut output = Vec::new();
    let summary = run(options, &mut output).unwrap_or_else(|error| panic!("{error}"));
    let lines = output.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    (lines.map(|line| serde_json::from_slice(line).unwrap()).collect(), summary)
}

/// A file until it is dropped.
fn file(bytes: &[u8]) -> TempPath {
    let path = NamedTempFile::new().unwrap().into_temp_path();
    fs::write(&path, bytes).unwrap();
    path
}

/// A pcap file of frames 1 us apart, each cut to `snaplen`.
fn pcap(frames: &[Vec<u8>], link_type: DataLink, resolution: TsResolution, snaplen: u32) -> Vec<u8> {
    let header =
        PcapHeader { snaplen, datalink: link_type, ts_resolution: resolution, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (number, frame) in (0u32..).zip(frames) {
        let data = &frame[..frame.len().min(snaplen as usize)];
        let unit = if resolution == TsResolution::NanoSecond { 1_000 } else { 1 };
        let packet = RawPcapPacket {
            ts_sec: 44,
            ts_frac: number * unit,
            incl_len: data.len() as u32,
            orig_len: frame.len() as u32,
            data: Cow::Borrowed(data),
        };
        writer.write_raw_packet(&packet).unwrap();
    }
    writer.into_writer()
}

fn ethernet(frames: &[Vec<u8>]) -> Vec<u8> {
    pcap(frames, DataLink::ETHERNET, TsResolution::MicroSecond, 65_535)
}

/// A pcapng file of the same frames and times, in units of `resolution` (if_tsresol), `per_us` a microsecond.
fn pcapng(frames: &[Vec<u8>], link_type: DataLink, resolution: Option<u8>, per_us: f64) -> Vec<u8> {
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    let mut interface = InterfaceDescriptionBlock::new(link_type, 0);
    interface.options.extend(resolution.map(InterfaceDescriptionOption::IfTsResol));
    writer.write_pcapng_block(interface).unwrap();
    for (number, frame) in (0u64..).zip(frames) {
        let units = ((AT_NS / 1_000 + number) as f64 * per_us).ceil() as u64;
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            // The library writes nanoseconds as units.
            timestamp: Duration::from_nanos(units),
            original_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
            options: Vec::new(),
        };
        writer.write_pcapng_block(packet).unwrap();
    }
    writer.into_inner()
}

#[test]
fn capture_formats_have_equal_times() {
    let frames = frames("rc_write.pcap", 20);
    let at_ns = (AT_NS..).step_by(1_000);
    let captured = |(time_ns, data): (u64, Vec<u8>)| Captured { time_ns, length: data.len() as u32, data };
    let expected: Vec<_> = at_ns.zip(frames.clone()).map(captured).collect();
    let ethernet = DataLink::ETHERNET;
    for (name, bytes) in [
        ("us.pcap", pcap(&frames, ethernet, TsResolution::MicroSecond, 65_535)),
        ("ns.pcap", pcap(&frames, ethernet, TsResolution::NanoSecond, 65_535)),
        ("default.pcapng", pcapng(&frames, ethernet, None, 1.0)),
        ("us.pcapng", pcapng(&frames, ethernet, Some(6), 1.0)),
        ("ns.pcapng", pcapng(&frames, ethernet, Some(9), 1_000.0)),
        ("binary.pcapng", pcapng(&frames, ethernet, Some(0x80 | 30), (1u64 << 30) as f64 / 1e6)),
    ] {
        let mut capture = Capture::open(&file(&bytes)).unwrap();
        for expected in &expected {
            assert_eq!(capture.next_packet().unwrap().unwrap(), *expected, "{name}");
        }
        assert!(capture.next_packet().is_none(), "{name}");
    }
}

#[test]
fn simple_blocks_have_no_time_and_no_padding() {
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    writer.write_pcapng_block(InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0)).unwrap();
    let frame = vec![1; 61];
    let packet = SimplePacketBlock { original_len: 61, data: Cow::Borrowed(&frame) };
    writer.write_pcapng_block(packet).unwrap();
    let path = file(&writer.into_inner());
    let packet = Capture::open(&path).unwrap().next_packet().unwrap().unwrap();
    assert_eq!(packet, Captured { time_ns: 0, length: 61, data: frame });
    let summary = replayed(&options(&path, Hook::Egress)).1;
    assert_eq!((summary.untimed, summary.late), (1, 0));
    assert!(summary.to_string().contains("captured without a time: 1 packet, replayed"), "{summary}");
}

/// A pcap file of one frame at several times.
fn captured_at(times: &[Duration]) -> TempPath {
    let frame = &frames("rc_write.pcap", 1)[0];
    let mut writer = PcapWriter::new(Vec::new()).unwrap();
    for &time in times {
        writer.write_packet(&PcapPacket::new(time, frame.len() as u32, frame)).unwrap();
    }
    file(&writer.into_writer())
}

#[test]
fn packets_that_go_backwards_are_counted() {
    let path = captured_at(&[9_000, 8_000, 7_000, 9_500].map(Duration::from_micros));
    let summary = replayed(&options(&path, Hook::Egress)).1;
    assert_eq!((summary.late, summary.clock_steps, summary.untimed), (2, 0, 0));
    assert!(summary.to_string().contains("captured out of order: 2 packets, replayed"), "{summary}");
}

#[test]
fn other_link_types_get_ethernet_header() {
    let frames = frames("rc_write.pcap", 3);
    let cooked = |head: &[u8], tail: &[u8]| [head, &[2, 0, 0, 0, 0, 9, 0, 0], tail].concat();
    let sll = cooked(&[0, 0, 0, 1, 0, 6], &[0x08, 0x00]);
    let sll2 = cooked(&[0x08, 0x00, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6], &[]);
    let no_mac = [&sll[..4], &[0, 0], &sll[6..]].concat();
    for (link_type, header, src) in [
        (DataLink::RAW, &[][..], [0; 6]),
        (DataLink::from(12), &[][..], [0; 6]),
        (DataLink::IPV4, &[], [0; 6]),
        (DataLink::NULL, &[2, 0, 0, 0], [0; 6]),
        (DataLink::LOOP, &[0, 0, 0, 2], [0; 6]),
        (DataLink::LINUX_SLL, &sll, [2, 0, 0, 0, 0, 9]),
        (DataLink::LINUX_SLL, &no_mac, [0; 6]),
        (DataLink::LINUX_SLL2, &sll2, [2, 0, 0, 0, 0, 9]),
    ] {
        let packets: Vec<_> = frames.iter().map(|frame| [header, &frame[14..]].concat()).collect();
        for bytes in [
            pcap(&packets, link_type, TsResolution::MicroSecond, 65_535),
            pcapng(&packets, link_type, None, 1.0),
        ] {
            let path = file(&bytes);
            let mut capture = Capture::open(&path).unwrap();
            for frame in &frames {
                let packet = capture.next_packet().unwrap().unwrap();
                assert_eq!(packet.data, [&[0; 6], &src, &frame[12..]].concat(), "{link_type:?}");
                assert_eq!(packet.length as usize, frame.len(), "{link_type:?}");
            }
            assert!(capture.next_packet().is_none());
            let (lines, _) = replayed(&options(&path, Hook::Egress));
            assert!(lines.iter().all(|line| line["parse"]["dest_qpn"].is_u64()), "{link_type:?}: {lines:?}");
        }
    }
}

#[test]
fn packet_below_link_header_is_not_roce() {
    for link_type in [DataLink::RAW, DataLink::NULL, DataLink::LINUX_SLL, DataLink::LINUX_SLL2] {
        for length in 0..4 {
            let bytes = pcap(&[vec![0x45; length]], link_type, TsResolution::MicroSecond, 65_535);
            let path = file(&bytes);
            let packet = Capture::open(&path).unwrap().next_packet().unwrap().unwrap();
            assert!(packet.data.len() >= 14 && packet.length as usize >= packet.data.len(), "{packet:?}");
            let (lines, _) = replayed(&options(&path, Hook::Egress));
            assert_eq!(lines[0]["parse"], Value::Null, "{link_type:?}");
        }
    }
}

#[test]
fn unknown_link_types_rejected_by_name() {
    let frames = frames("rc_write.pcap", 1);
    let link_type = DataLink::IEEE802_11;
    for bytes in
        [pcap(&frames, link_type, TsResolution::MicroSecond, 65_535), pcapng(&frames, link_type, None, 1.0)]
    {
        let path = file(&bytes);
        let error = run(&options(&path, Hook::Egress), &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("link type IEEE802_11 cannot be replayed"), "{error}");
    }
}

#[test]
fn packet_of_other_link_type_is_not_run() {
    let mut bytes = pcapng(&frames("rc_write.pcap", 2), DataLink::IEEE802_11, None, 1.0);
    // A second section.
    bytes.extend(pcapng(&frames("rc_write.pcap", 3), DataLink::ETHERNET, None, 1.0));
    let (lines, summary) = replayed(&options(&file(&bytes), Hook::Egress));
    assert_eq!((lines.len(), summary.packets, summary.not_run, summary.passed), (3, 5, 2, 3));
}

#[test]
fn pipe_read_as_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let bytes = fs::read(soft_roce("rc_write.pcap")).unwrap();
    let writer = std::thread::spawn({
        let path = path.clone();
        move || fs::write(path, bytes)
    });
    assert_eq!(replayed(&options(&path, Hook::Egress)).0.len(), 270);
    writer.join().unwrap().unwrap();
}

#[test]
fn compressed_capture_named() {
    let path = file(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);
    let error = Capture::open(&path).err().unwrap().to_string();
    assert!(error.contains("it is compressed; use `zcat FILE | dcqcn-lab replay -`"), "{error}");
}

#[test]
fn non_capture_rejected_by_name() {
    let directory = tempfile::tempdir().unwrap();
    for bytes in [&b""[..], b"abc", b"#!/bin/sh\necho no capture at all\n", &[0x0a, 0x0d, 0x0d, 0x0a]] {
        let path = file(bytes);
        let error = Capture::open(&path).err().unwrap().to_string();
        assert!(error.contains(&format!("{}: neither a pcap nor a pcapng file", path.display())), "{error}");
    }
    let error = Capture::open(&directory.path().join("absent")).err().unwrap().to_string();
    assert!(error.contains("absent: No such file"), "{error}");
}

#[test]
fn truncated_capture_replayed_to_its_end() {
    let frames = frames("rc_write.pcap", 10);
    let whole = ethernet(&frames);
    for cut in [1, 20, 40] {
        let path = file(&whole[..whole.len() - cut]);
        let (lines, summary) = replayed(&options(&path, Hook::Egress));
        assert_eq!((lines.len(), summary.packets), (9, 9));
        let damaged = summary.damaged.unwrap();
        assert!(damaged.contains("cut short after packet 9"), "{damaged}");
    }
}

/// `frames` cut to `snaplen`, and replayed, with the captured and original lengths of the packets as they leave.
fn cut(frames: &[Vec<u8>], snaplen: u32, hook: Hook) -> (Vec<Value>, Summary, Vec<(u32, usize)>) {
    let directory = tempfile::tempdir().unwrap();
    let bytes = pcap(frames, DataLink::ETHERNET, TsResolution::MicroSecond, snaplen);
    let path = file(&bytes);
    let out = directory.path().join("out.pcap");
    let (lines, summary) = replayed(&Options { out: Some(out.clone()), ..options(&path, hook) });
    let mut reader = PcapReader::new(fs::File::open(out).unwrap()).unwrap();
    let mut lengths = Vec::new();
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet.unwrap();
        lengths.push((packet.incl_len, packet.orig_len as usize));
    }
    (lines, summary, lengths)
}

#[test]
fn packets_cut_behind_headers_are_padded() {
    let frames = frames("rc_write.pcap", 100);
    let (complete, expected, _) = cut(&frames, 65_535, Hook::Egress);
    let (lines, summary, lengths) = cut(&frames, 96, Hook::Egress);
    assert!(summary.truncated > 50);
    assert_eq!((summary.padded, summary.without_headers, summary.passed), (summary.truncated, 0, 100));
    assert_eq!(summary.counters, expected.counters);
    for (line, complete) in lines.iter().zip(&complete) {
        for field in ["length", "parse", "left_alone", "departure_ns", "flow", "depth_after_bytes"] {
            assert_eq!(line[field], complete[field], "{field}");
        }
    }
    // The bytes cut off are not written as zeros.
    assert_eq!(lengths[0], (96, frames[0].len()));
}

#[test]
fn packets_cut_before_bth_are_counted() {
    let frames = frames("rc_write.pcap", 100);
    let (lines, summary, lengths) = cut(&frames, 50, Hook::Egress);
    assert_eq!((summary.padded, summary.without_headers, summary.passed), (0, 100, 100));
    assert!(lines.iter().all(|line| line["verdict"] == "pass" && line["parse"].is_null()));
    assert_eq!(lengths[0], (50, frames[0].len()));
    assert!(summary.to_string().contains("captured without all headers: 100 packets"), "{summary}");
}

#[test]
fn cnps_cut_before_icrc_are_reported() {
    let (lines, ..) = cut(&frames_with(Ecn::CE, "rc_write.pcap", 270), 65_535, Hook::Ingress);
    let hex = lines.iter().find_map(|line| line["emitted"][0]["hex"].as_str()).unwrap();
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let cnp: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    let (_, summary, _) = cut(&[cnp], 64, Hook::Ingress);
    assert_eq!((summary.padded, summary.unverified_cnps), (1, 1));
    assert!(summary.to_string().contains("without the ICRC and rejected: 1 CNP;"), "{summary}");
}

#[test]
fn packet_beyond_pcap_limit_is_cut() {
    let frames = [vec![1; 300_000], vec![1; 60]];
    let (_, summary, lengths) = cut(&frames, u32::MAX, Hook::Egress);
    assert_eq!((summary.packets, summary.not_run, summary.passed), (2, 1, 1));
    assert_eq!(lengths, [(262_144, 300_000), (60, 60)]);
}

#[test]
fn row_describes_verdict() {
    let frames = frames("rc_write.pcap", 270);
    let path = file(&ethernet(&frames));
    let mut config = default_config();
    config.scalars.link_rate_bps = 1_000_000_000;
    let options = Options { config: Some(config), ..options(&path, Hook::Egress) };
    let (lines, summary) = replayed(&options);
    assert_eq!((lines.len(), summary.packets, summary.damaged.clone()), (270, 270, None));

    let first = lines.iter().find(|line| line["parse"]["kind"] == "data").unwrap();
    assert_eq!(first["time_ns"], BASE_NS + 1_000 * first["index"].as_u64().unwrap());
    let parse = &first["parse"];
    for (key, value) in [
        ("ethertype", Value::from("0x0800")),
        ("ip_version", 4.into()),
        ("ecn", "ect0".into()),
        ("opcode", "RC_RDMA_WRITE_FIRST".into()),
    ] {
        assert_eq!(parse[key], value, "{key}");
    }
    let flow = &first["flow"];
    assert_eq!((&flow["role"], &flow["rate_bps"]), (&"rp".into(), &1_000_000_000u64.into()));

    // A megabit per millisecond is a byte per 8 ns: the queue grows by the arrivals.
    let data: Vec<_> = lines.iter().filter(|line| line["flow"]["role"] == "rp").collect();
    for line in &data {
        let (before, after) = (&line["depth_before_bytes"], &line["depth_after_bytes"]);
        let wire_bytes = line["length"].as_u64().unwrap() + config.scalars.wire_overhead_bytes;
        assert!(after.as_u64().unwrap().abs_diff(before.as_u64().unwrap() + wire_bytes) <= 1, "{line}");
    }
    assert!(data.iter().any(|line| line["marked"] == true));
    assert!(data.iter().any(|line| line["departure_ns"].as_u64() > line["time_ns"].as_u64()));
    let marked = lines.iter().filter(|line| line["marked"] == true).count() as u64;
    assert_eq!((marked, marked), (summary.marked, summary.counters["egress"]["cp_ecn_marked_packets"]));
    assert_eq!(summary.delayed, summary.counters["egress"]["rp_paced_packets"]);
    assert_eq!(replayed(&options), (lines, summary), "the same every time");
}

#[test]
fn departures_include_cnps_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = soft_roce("rc_write.pcap");
    let out = directory.path().join("out.pcap");
    let paced = Options { out: Some(out.clone()), ..options(&path, Hook::Egress) };
    let times = |path: &Path| {
        let mut capture = Capture::open(path).unwrap();
        iter::from_fn(|| capture.next_packet()).map(|packet| packet.unwrap().time_ns).collect::<Vec<_>>()
    };
    let (_, summary) = replayed(&paced);
    let left = times(&out);
    assert_eq!(left.len() as u64, summary.passed);
    assert!(left.is_sorted());
    assert_eq!(left[0], times(&path)[0], "the capture's own time");

    let path = file(&ethernet(&frames_with(Ecn::CE, "rc_write.pcap", 270)));
    let (lines, summary) =
        replayed(&Options { out: Some(out.clone()), summary_line: true, ..options(&path, Hook::Ingress) });
    assert!(summary.emitted > 0);
    assert_eq!(times(&out).len() as u64, summary.passed + summary.emitted);
    assert_eq!(serde_json::to_value(&summary).unwrap(), *lines.last().unwrap());
    let emitted: Vec<_> = lines.iter().filter_map(|line| line["emitted"].get(0)).collect();
    assert_eq!(emitted.len() as u64, summary.emitted);
    for cnp in emitted {
        assert_eq!((&cnp["parse"]["opcode"], &cnp["parse"]["dscp"]), (&"CNP".into(), &48.into()));
        assert_eq!(cnp["hex"].as_str().unwrap().len(), 2 * 74);
    }
    let counted = lines.iter().filter(|line| line["flow"]["role"] == "np").count() as u64;
    assert_eq!(counted, summary.counters["ingress"]["np_ecn_marked_roce_packets"]);
}

/// Without marking, which uses random numbers, the P4 program gives the reference's lines, to the nanosecond.
#[test]
fn p4_replays_capture_as_reference() {
    for hook in [Hook::Egress, Hook::Ingress, Hook::Xdp] {
        let mut config = default_config();
        config.scalars.link_rate_bps = 100_000_000;
        for wred in &mut config.wred {
            wred.ecn = 0;
        }
        let reference = Options { config: Some(config), ..options(&soft_roce("rc_write.pcap"), hook) };
        let p4 = Options { engine: EngineKind::P4, ..reference.clone() };
        let (reference, p4) = (replayed(&reference).0, replayed(&p4).0);
        assert_eq!((reference.len(), p4.len()), (270, 270));
        for (reference, p4) in reference.iter().zip(&p4) {
            assert_eq!(reference, p4, "{hook:?}");
        }
    }
}

/// As in captures of bare IP packets, and of `lo`.
#[test]
fn equal_addresses_pass_p4_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let mut frames = frames("rc_write.pcap", 3);
    frames.iter_mut().for_each(|frame| frame[..12].fill(0));
    let path = file(&ethernet(&frames));
    for hook in [Hook::Egress, Hook::Ingress, Hook::Xdp] {
        let out = directory.path().join("out");
        let p4 = Options { engine: EngineKind::P4, out: Some(out.clone()), ..options(&path, hook) };
        assert_eq!(replayed(&p4).1.passed, 3, "{hook:?}");
        let mut left = Capture::open(&out).unwrap();
        while let Some(packet) = left.next_packet() {
            assert_eq!(packet.unwrap().data[..12], [0; 12], "{hook:?}");
        }
    }
}

#[test]
fn unordered_capture_is_replayed() {
    let directory = tempfile::tempdir().unwrap();
    let path = captured_at(&[10, 4_000_000_000, 9, 0].map(Duration::from_secs));
    let out = directory.path().join("out.pcap");
    let (lines, _) = replayed(&Options { out: Some(out), ..options(&path, Hook::Egress) });
    let times: Vec<_> = lines.iter().map(|line| line["time_ns"].as_u64().unwrap()).collect();
    let last_ns = BASE_NS + 3_999_999_990_000_000_000;
    assert_eq!(times, [BASE_NS, last_ns, last_ns, last_ns]);
}

/// After a step back, the replayed time is beyond that of a pcap file.
#[test]
fn time_beyond_pcap_limit_is_capped() {
    let directory = tempfile::tempdir().unwrap();
    let path = captured_at(&[4_000_000_000, 0, 1_000_000_000].map(Duration::from_secs));
    let out = directory.path().join("out.pcap");
    let (_, summary) = replayed(&Options { out: Some(out.clone()), ..options(&path, Hook::Egress) });
    assert_eq!((summary.packets, summary.clock_steps), (3, 1));
    let mut capture = Capture::open(&out).unwrap();
    let last = iter::from_fn(|| capture.next_packet()).last().unwrap().unwrap();
    assert_eq!(last.time_ns, u64::from(u32::MAX) * 1_000_000_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any file is replayed as far as possible, or rejected.
    #[test]
    fn damaged_captures_never_panic(
        ng in any::<bool>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let frames = frames("rc_cm_rping.pcap", 12);
        let mut bytes = if ng {
            pcapng(&frames, DataLink::ETHERNET, Some(9), 1_000.0)
        } else {
            pcap(&frames, DataLink::ETHERNET, TsResolution::NanoSecond, 65_535)
        };
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(4 * bytes.len()));
        let directory = tempfile::tempdir().unwrap();
        let path = file(&bytes);
        let out = directory.path().join("out.pcap");
        let _ = run(&Options { out: Some(out), ..options(&path, Hook::Egress) }, &mut Vec::new());
    }
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A pcap file with one packet of 20 bytes and this last field of the header.
fn with_network(network: u32) -> Vec<u8> {
    [bytes_of(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, network, 1, 0, 20, 20]), (0..20).collect()].concat()
}

#[test]
fn fcs_of_capture_removed() {
    // No flag, a length without the flag, reserved bits, and a flag with four bytes.
    for (network, bytes) in [(1, 20), (0x5000_0001, 20), (0x00ff_0001, 20), (0x2400_0001, 16)] {
        let path = file(&with_network(network));
        let packet = Capture::open(&path).unwrap().next_packet().unwrap().unwrap();
        assert_eq!((packet.length, packet.data.len()), (bytes, bytes as usize), "{network:x}");
    }
    let path = file(&with_network(0x2400_0093));
    assert!(matches!(Capture::open(&path), Err(CaptureError::LinkType { .. })));
}

/// Options without an end, names that are not UTF-8, and blocks of other programs: the packets between them are read.
#[test]
fn unused_options_and_blocks_ignored() {
    // Section header; interface with an if_name of Latin-1, if_tsresol, and no opt_endofopt.
    let section = [0x0a0d_0d0a_u32, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
    let interface = [1, 36, 1, 0, 0x0001_0002, 0xe9, 0x0001_0009, 9, 36];
    // An enhanced and an obsolete block, each with a comment of Latin-1 and no opt_endofopt.
    let enhanced = [6, 44, 0, 0, 7, 4, 4, 1, 0x0001_0001, 0xe9, 44];
    let obsolete = [2, 44, 0x0009_0000, 0, 8, 4, 4, 2, 0x0001_0001, 0xe9, 44];
    // A name record of Latin-1 and a block without meaning.
    let others = [4, 20, 0x0003_0001, 0x00e9_e9e9, 20, 0x8000_1234, 12, 12];
    let words = [&section[..], &interface, &enhanced, &others, &obsolete].concat();
    let path = file(&bytes_of(&words));
    let mut capture = Capture::open(&path).unwrap();
    for (time_ns, data) in [(7, 1), (8, 2)] {
        let packet = Captured { time_ns, length: 4, data: vec![data, 0, 0, 0] };
        assert_eq!(capture.next_packet().unwrap().unwrap(), packet);
    }
    assert!(capture.next_packet().is_none());
}

#[test]
fn options_read_in_both_byte_orders() {
    // An interface with if_tsoffset, if_fcslen and opt_endofopt.
    let half =
        |is_big, first: u32, second: u32| if is_big { first << 16 | second } else { second << 16 | first };
    for is_big in [false, true] {
        let offset = if is_big { [0, 5] } else { [5, 0] };
        let fcs = if is_big { 4 << 24 } else { 4 };
        let words = [
            &[0x0a0d_0d0a_u32, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28][..],
            &[1, 44, half(is_big, 1, 0), 0, half(is_big, 14, 8), offset[0], offset[1]],
            &[half(is_big, 13, 1), fcs, 0, 44],
            &[6, 40, 0, 0, 7, 8, 8, 1, 2, 40],
        ]
        .concat();
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|word| if is_big { word.to_be_bytes() } else { word.to_le_bytes() })
            .collect();
        let packet = Capture::open(&file(&bytes)).unwrap().next_packet().unwrap().unwrap();
        assert_eq!((packet.time_ns, packet.length, packet.data.len()), (5_000_007_000, 4, 4), "{is_big}");
    }
}

#[test]
fn damaged_blocks_reported() {
    let section = [0x0a0d_0d0a_u32, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
    for (block, message) in [
        (&[5, 8, 8][..], "length of a block"),
        (&[5, u32::MAX, 0], "length of a block"),
        (&[5, 16, 0, 12], "the two lengths of a block differ"),
        (&[5, 16, 0], "unexpected end of file"),
        (&[5], "unexpected end of file"),
        (&[1, 24, 1, 0, 0x0009_0002, 24], "options of an interface"),
        (&[0x0a0d_0d0a, 28, 0], "byte order of a section"),
        (&[6, 36, 0, 0, 7, 8, 8, 1, 36], "a block is shorter than its packet"),
    ] {
        let path = file(&bytes_of(&[&section[..], block].concat()));
        let damage = Capture::open(&path).unwrap().next_packet().unwrap().unwrap_err().to_string();
        assert!(damage.contains(message), "{damage}");
        // Without any packet the replay fails.
        let failed = run(&options(&path, Hook::Egress), &mut Vec::new()).unwrap_err().to_string();
        assert_eq!(failed, damage);
    }
}

#[test]
fn clock_set_back_does_not_stop_time() {
    const SECOND: u64 = 1_000_000_000;
    let mut clock = Clock::new(50 * SECOND);
    let at = |time_ns: u64, clock: &mut Clock| clock.advance(time_ns) - BASE_NS;
    assert_eq!(at(50 * SECOND, &mut clock), 0);
    assert_eq!(at(51 * SECOND, &mut clock), SECOND);
    // Reordered by CPUs.
    assert_eq!(at(51 * SECOND - 5, &mut clock), SECOND);
    assert_eq!((at(51 * SECOND + 7, &mut clock), clock.steps, clock.late), (SECOND + 7, 0, 1));
    // NTP, or another capture appended.
    assert_eq!((at(9 * SECOND, &mut clock), clock.steps), (SECOND + 7, 1));
    assert_eq!(at(9 * SECOND + 3, &mut clock), SECOND + 10);
    assert_eq!((at(0, &mut clock), clock.steps), (SECOND + 10, 2));
}
