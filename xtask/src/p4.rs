//! Constants of the P4 program from `dcqcn-common`, and its compilation.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use dcqcn_common::classify::QP_GSI;
use dcqcn_common::hooks::{CNP_TTL, LEARNING};
use dcqcn_common::layout::PairSource;
use dcqcn_common::params::{CNP_LIMIT_PEER, CNP_LIMIT_PORT, CNP_LIMIT_QP, NP_WINDOW_START};
use dcqcn_common::rate::{self, COARSE_MAX, COARSE_SHIFT, COARSE_STEPS};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::{Bth, DEFAULT_P_KEY, Opcode, Transport};
use dcqcn_common::wire::cm::{self, Attribute, Mad};
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_common::wire::eth::{EtherType, Ethernet, VlanTag};
use dcqcn_common::wire::ext::Deth;
use dcqcn_common::wire::ipv4::Ipv4;
use dcqcn_common::wire::ipv6::{self, Ipv6};
use dcqcn_common::wire::udp::{self, Udp};
use dcqcn_common::wire::{cnp, icrc};
use serde_json::Value;

use crate::{
    run::{capture, find_program, header, stream},
    workspace::Workspace,
};

const CONSTANTS: &str = "constants.p4";
const JSON: &str = "dcqcn.json";
const P4INFO: &str = "dcqcn.p4info.txtpb";
/// Hashes of the sources and of the compiled files, in the format of `sha256sum`.
const SUMS: &str = "build/SHA256SUMS";
const COMPILER: &str = "p4c-bm2-ss";
/// The packages that hold the compiler, from the p4lang repository for Debian and Ubuntu.
const COMPILER_PACKAGE: &str = "p4lang-p4c";

/// Options of `cargo xtask p4`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if `p4/constants.p4`, or the compiled program, differs from the committed one.
    #[arg(long)]
    check: bool,
}

/// Writes the constants and compiles the program, or checks both.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let program = workspace.root().join("p4");
    let path = program.join(CONSTANTS);
    if args.check {
        check_sums(&program)?;
        check_constants(&program)?;
        header(format_args!("{} matches dcqcn-common", workspace.shown(&path)));
    } else {
        fs::write(&path, constants()?).with_context(|| format!("cannot write {}", path.display()))?;
        header(format_args!("wrote {}", workspace.shown(&path)));
    }
    let Some(compiler) = find_program(COMPILER) else {
        header(format_args!(
            "not compiled: {COMPILER} is not on PATH; install the p4lang package {COMPILER_PACKAGE}"
        ));
        return Ok(());
    };
    let build = program.join("build");
    if !args.check {
        compile(&compiler, &program, &build)?;
        let path = program.join(SUMS);
        return fs::write(&path, sums(&program)?).with_context(|| format!("cannot write {}", path.display()));
    }
    let fresh = workspace.host_target().join("p4");
    compile(&compiler, &program, &fresh)?;
    let exercises = exercises(&program)?;
    for name in exercises.iter().map(|exercise| compiled(exercise)).chain([JSON, P4INFO].map(str::to_owned)) {
        if read(&build.join(&name))? != read(&fresh.join(&name))? {
            bail!(
                "p4/build/{name} differs from the output of {COMPILER}; run `cargo xtask p4` with the same compiler version"
            );
        }
    }
    header("p4/build matches the compiler's output");
    Ok(())
}

/// Compiles in the program's own directory, so that the result has no absolute path.
fn compile(compiler: &Path, program: &Path, build: &Path) -> Result<()> {
    fs::create_dir_all(build).with_context(|| format!("cannot create {}", build.display()))?;
    compile_one(compiler, program, "dcqcn.p4", &build.join(JSON), Some(&build.join(P4INFO)))?;
    for exercise in exercises(program)? {
        compile_one(compiler, program, &exercise, &build.join(compiled(&exercise)), None)?;
    }
    Ok(())
}

fn compile_one(
    compiler: &Path,
    program: &Path,
    source: &str,
    path: &PathBuf,
    info: Option<&Path>,
) -> Result<()> {
    let mut command = Command::new(compiler);
    command.current_dir(program).args(["--std", "p4-16", "--Wdisable=unused", "-o"]).arg(path);
    if let Some(info) = info {
        command.arg("--p4runtime-files").arg(info);
    }
    stream(command.arg(source))?;
    let mut json = serde_json::from_str(&read(path)?).with_context(|| format!("{}", path.display()))?;
    forget_lines(&mut json);
    fs::write(path, format!("{json}\n")).with_context(|| format!("cannot write {}", path.display()))
}

fn forget_lines(json: &mut Value) {
    match json {
        Value::Object(fields) => {
            fields.remove("source_info");
            fields.values_mut().for_each(forget_lines);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_lines),
        _ => {}
    }
}

/// Checks that the committed program was compiled from the committed sources: this needs no compiler.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    header("P4: compiled program and sources");
    check_sums(&workspace.root().join("p4"))
}

fn check_sums(program: &Path) -> Result<()> {
    let (committed, actual) = (read(&program.join(SUMS))?, sums(program)?);
    let is_in = |text: &str, line: &str| text.lines().any(|other| other == line);
    let differs = actual.lines().find(|line| !is_in(&committed, line));
    if let Some(line) = differs.or_else(|| committed.lines().find(|line| !is_in(&actual, line))) {
        let file = line.split_whitespace().last().unwrap_or(line);
        bail!(
            "p4/{file} differs from its hash in p4/{SUMS}: the compiled program does not match the sources; run \
             `cargo xtask p4` with {COMPILER} on PATH (package {COMPILER_PACKAGE})"
        );
    }
    Ok(())
}

/// Starting points and solutions of the exercises.
fn exercises(program: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for folder in ["exercises/solutions", "exercises/start"] {
        files.extend(sources(program, folder)?);
    }
    Ok(files)
}

/// Name of the compiled exercise.
fn compiled(exercise: &str) -> String {
    exercise.trim_start_matches("exercises/").replace('/', "-").replace(".p4", ".json")
}

/// The P4 files of a folder, sorted, relative to `program`.
fn sources(program: &Path, folder: &str) -> Result<Vec<String>> {
    let directory = program.join(folder);
    let failed = || format!("cannot read {}", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&directory).with_context(failed)? {
        let name = entry.with_context(failed)?.file_name();
        let name = name.to_str().filter(|name| name.ends_with(".p4"));
        files.extend(
            name.map(|name| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }),
        );
    }
    files.sort_unstable();
    Ok(files)
}

/// Hashes of every source, the JSON and the description for P4Runtime, a line each.
fn sums(program: &Path) -> Result<String> {
    let exercises = exercises(program)?;
    let mut files = sources(program, "")?;
    files.extend([JSON, P4INFO].map(|name| format!("build/{name}")));
    files.extend(sources(program, "exercises")?);
    for exercise in exercises {
        files.extend([format!("build/{}", compiled(&exercise)), exercise]);
    }
    capture(Command::new("sha256sum").current_dir(program).args(files))
}

fn check_constants(program: &Path) -> Result<()> {
    let path = program.join(CONSTANTS);
    if read(&path)? != constants()? {
        bail!("p4/{CONSTANTS} differs from dcqcn-common; run `cargo xtask p4`");
    }
    Ok(())
}

fn read(path: &PathBuf) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Contents of the constants file.
fn constants() -> Result<String> {
    let mut text = String::from(
        "// Written by `cargo xtask p4` from dcqcn-common: change it there.\n\n// Indices of `stats`, the order of `Stat`.\n",
    );
    writeln!(text, "const bit<32> STATS = {};", Stat::COUNT)?;
    for &stat in Stat::ALL {
        writeln!(text, "const bit<32> STAT_{} = {};", stat.label().to_uppercase(), stat as u32)?;
    }
    text.push_str("\n// Headers.\n");
    let bit = |bits, name, value: u64| format!("const bit<{bits}> {name} = {value};\n");
    let hex = |bits, name, value: u64| format!("const bit<{bits}> {name} = {value:#x};\n");
    text += &hex(16, "ETHERTYPE_IPV4", EtherType::IPV4.0.into());
    text += &hex(16, "ETHERTYPE_IPV6", EtherType::IPV6.0.into());
    text += &hex(16, "ETHERTYPE_VLAN", EtherType::VLAN.0.into());
    text += &hex(16, "ETHERTYPE_QINQ", EtherType::QINQ.0.into());
    text += &hex(16, "ETHERTYPE_ROCE_V1", EtherType::ROCE_V1.0.into());
    text += &bit(8, "IP_PROTOCOL_UDP", udp::IP_PROTOCOL.into());
    text += &bit(16, "ROCE_V2_PORT", udp::ROCE_V2_PORT.into());
    text += &bit(16, "UET_PORT", udp::UET_PORT.into());
    text += &bit(16, "ETHERNET_LEN", Ethernet::LEN as u64);
    text += &bit(16, "VLAN_LEN", VlanTag::LEN as u64);
    text += &bit(32, "IPV4_LEN", Ipv4::LEN as u64);
    text += &bit(32, "IPV6_LEN", Ipv6::LEN as u64);
    text += &bit(32, "UDP_AND_BTH_LEN", (Udp::LEN + Bth::LEN) as u64);
    let min_udp = Udp::LEN + Bth::LEN + icrc::LEN;
    text += &bit(16, "MIN_UDP_LEN", min_udp as u64);
    text += &bit(16, "MIN_UD_UDP_LEN", (min_udp + Deth::LEN) as u64);
    text += &bit(2, "ECN_NOT_ECT", Ecn::NOT_ECT.bits().into());
    text += &bit(2, "ECN_CE", Ecn::CE.bits().into());
    text += &bit(24, "QP_GSI", QP_GSI.into());
    text += &hex(16, "DEFAULT_P_KEY", DEFAULT_P_KEY.into());
    text += &hex(8, "OPCODE_CNP", Opcode::CNP.0.into());
    text += &hex(8, "OPCODE_FIRST_OF_MANUFACTURERS", Opcode::FIRST_OF_MANUFACTURERS.into());
    text += &hex(8, "OPCODE_UD_SEND_ONLY", Opcode::UD_SEND_ONLY.0.into());

    text.push_str("\n// CNPs, and what one interval is kept for.\n");
    text += &bit(16, "CNP_UDP_LEN", cnp::UDP_LEN as u64);
    text += &bit(8, "CNP_TTL", CNP_TTL.into());
    text += &hex(32, "CNP_HINT_MAGIC", u32::from_be_bytes(cnp::HINT_MAGIC).into());
    text += &bit(8, "CNP_HINT_VERSION", cnp::HINT_VERSION.into());
    text += &bit(2, "CNP_LIMIT_QP", CNP_LIMIT_QP);
    text += &bit(2, "CNP_LIMIT_PEER", CNP_LIMIT_PEER);
    text += &bit(2, "CNP_LIMIT_PORT", CNP_LIMIT_PORT);
    text += &bit(1, "NP_WINDOW_START", NP_WINDOW_START);

    text.push_str("\n// Connection management, and how a pair came to be known.\n");
    text += &bit(8, "CM_BASE_VERSION", cm::BASE_VERSION.into());
    text += &bit(8, "CM_CLASS", cm::CLASS_COMMUNICATION_MANAGEMENT.into());
    text += &bit(8, "CM_CLASS_VERSION", cm::CLASS_VERSION.into());
    text += &bit(8, "CM_METHOD_SEND", cm::METHOD_SEND.into());
    for (name, attribute) in [
        ("CM_REQ", Attribute::REQ),
        ("CM_MRA", Attribute::MRA),
        ("CM_REJ", Attribute::REJ),
        ("CM_REP", Attribute::REP),
        ("CM_RTU", Attribute::RTU),
        ("CM_DREQ", Attribute::DREQ),
        ("CM_DREP", Attribute::DREP),
    ] {
        text += &hex(16, name, attribute.0.into());
    }
    text += &bit(32, "CM_IP_LEN", (Udp::LEN + Bth::LEN + Deth::LEN + Mad::LEN) as u64);
    text += &bit(8, "PAIR_SOURCE_CM", PairSource::Cm as u64);
    text += &bit(8, "PAIR_SOURCE_DATAGRAM", PairSource::Datagram as u64);
    text += &bit(64, "PAIRS_GAP_NS", LEARNING.gap_ns);
    text += &bit(64, "PAIRS_BURST_NS", LEARNING.burst_ns);

    text.push_str("\n// The rate machine.\n");
    text += &bit(3, "CLAMP_ALWAYS", rate::CLAMP_ALWAYS.into());
    text += &bit(3, "CLAMP_AFTER_BYTES", rate::CLAMP_AFTER_BYTES.into());
    text += &bit(3, "CLAMP_AFTER_TIME", rate::CLAMP_AFTER_TIME.into());
    text += &bit(2, "PENDING_RAISE", rate::RAISE.into());
    text += &bit(2, "PENDING_CUT", rate::CUT.into());
    text += &bit(8, "COARSE_SHIFT", COARSE_SHIFT.into());
    text += &bit(32, "COARSE_MAX", COARSE_MAX.into());
    text += &bit(32, "MAX_COARSE_STEPS", (1 << COARSE_STEPS) - 1);
    text += &bit(32, "COARSE_CELLS", COARSE_STEPS as u64 * 1024 / 4);

    let opcodes = (0..=u8::MAX).map(Opcode).filter(|opcode| opcode.is_known());
    text.push_str("\n// Cases of a parser's `select`: headers behind the BTH (reliable datagrams have one more before them).\n");
    let cases = |name, chosen: &dyn Fn(&Opcode) -> bool| {
        let of_it = opcodes.clone().filter(|opcode| chosen(opcode) && !opcode.has_rdeth());
        lines(&format!("{name}(state)"), of_it.map(|opcode| format!("({:#04x}, _): state;", opcode.0)))
    };
    text += &cases("OPCODES_WITH_DETH", &|opcode| opcode.has_deth());
    text += &cases("OPCODES_WITH_AETH", &|opcode| opcode.has_aeth());
    text.push_str("\n// IPv6 extension headers.\n");
    let extensions = (0..=u8::MAX).filter(|&next| ipv6::is_extension_header(next));
    text += &lines("IPV6_EXTENSION_HEADERS(state)", extensions.map(|next| format!("({next}, _): state;")));
    text.push_str(
        "\n// Entries of `opcode_kind`: what the hooks do with a packet, whether it is a datagram, whether it has a place among \
         the\n// packets of its queue pair, in which stream, and the length of its extension headers.\n",
    );
    let kinds = opcodes.clone().map(|opcode| {
        let class = opcode.class();
        let kind = if opcode.is_cnp() {
            "KIND_CNP"
        } else if class.congests() {
            "KIND_DATA"
        } else {
            "KIND_CONTROL"
        };
        let datagram = u8::from(opcode.transport() == Transport::Ud);
        let (sequenced, stream) = (u8::from(class.is_sequenced()), class.stream() as u8);
        let ext_bytes = opcode.ext_len();
        format!("{:#04x}: set_kind({kind}, {datagram}, {sequenced}, {stream}, {ext_bytes});", opcode.0)
    });
    text += &lines("OPCODE_KINDS", kinds);
    Ok(text)
}

/// A macro that expands to these lines.
fn lines(head: &str, lines: impl Iterator<Item = String>) -> String {
    let mut text = format!("#define {head}");
    for line in lines {
        text += " \\\n    ";
        text += &line;
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[test]
    fn p4_constants_match_common() {
        let workspace = Workspace::locate().unwrap();
        check_constants(&workspace.root().join("p4")).unwrap();
    }

    #[test]
    fn compiled_p4_belongs_to_its_sources() {
        check_sums(&Workspace::locate().unwrap().root().join("p4")).unwrap();
    }

    #[test]
    fn changed_p4_source_is_named() {
        let directory = env::temp_dir().join(format!("dcqcn-xtask-p4-{}", process::id()));
        for folder in ["build", "exercises/start", "exercises/solutions"] {
            fs::create_dir_all(directory.join(folder)).unwrap();
        }
        let exercise = ["exercises/roce.p4", "exercises/start/e.p4", "build/start-e.json"];
        let program = ["a.p4", "b.p4", "build/dcqcn.json", "build/dcqcn.p4info.txtpb"];
        for name in program.into_iter().chain(exercise) {
            fs::write(directory.join(name), name).unwrap();
        }
        fs::write(directory.join(SUMS), sums(&directory).unwrap()).unwrap();
        let refusal = |change: &dyn Fn()| {
            change();
            check_sums(&directory).unwrap_err().to_string()
        };
        check_sums(&directory).unwrap();
        let source = refusal(&|| fs::write(directory.join("b.p4"), "changed").unwrap());
        assert!(source.contains("p4/b.p4 differs from its hash"), "{source}");
        fs::write(directory.join("b.p4"), "b.p4").unwrap();
        let added = refusal(&|| fs::write(directory.join("c.p4"), "").unwrap());
        assert!(added.contains("p4/c.p4 differs from its hash"), "{added}");
        fs::remove_file(directory.join("c.p4")).unwrap();
        let compiled = refusal(&|| fs::write(directory.join("build/dcqcn.json"), "{}").unwrap());
        assert!(compiled.contains("p4/build/dcqcn.json differs from its hash"), "{compiled}");
        fs::write(directory.join("build/dcqcn.json"), "build/dcqcn.json").unwrap();
        let exercise = refusal(&|| fs::write(directory.join("build/start-e.json"), "{}").unwrap());
        assert!(exercise.contains("p4/build/start-e.json differs from its hash"), "{exercise}");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn p4_program_compiles() {
        if find_program(COMPILER).is_none() {
            eprintln!("SKIPPED p4_program_compiles: no {COMPILER} on PATH");
            return;
        }
        run(&Workspace::locate().unwrap(), &Args { check: true }).unwrap();
    }
}
