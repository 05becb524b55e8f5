//! Statistics of the programs from the verifier and the JIT.

use aya::EbpfLoader;
use aya::programs::{Program, ProgramFd, ProgramInfo};
use dcqcn_loader::object::OBJECT;
use dcqcn_tests::prelude::*;

use crate::Bench;
use crate::report::{Metric, Section};

/// Loads the object as `attach` does and reads the kernel's statistics of each program.
pub(crate) fn measure(bench: &mut Bench) -> Result<()> {
    bench.progress("programs");
    let rounds = if bench.quick { 1 } else { 7 };
    let mut seconds = vec![Vec::new(); PROGRAMS.len()];
    for round in 0..rounds {
        let mut ebpf = EbpfLoader::new().load(OBJECT)?;
        for (name, seconds) in PROGRAMS.iter().zip(&mut seconds) {
            let program = ebpf.program_mut(name).with_context(|| format!("no program {name}"))?;
            let start = Instant::now();
            match program {
                Program::Xdp(xdp) => xdp.load()?,
                Program::SchedClassifier(tc) => tc.load()?,
                _ => bail!("{name} is neither XDP nor TC"),
            }
            seconds.push(start.elapsed().as_secs_f64() * 1e3);
            if round == 0 {
                describe(bench, name, program)?;
            }
        }
    }
    for (name, ms) in PROGRAMS.iter().zip(seconds) {
        bench.add(Metric::new(Section::Programs, format!("{name}: load"), "ms", ms));
    }
    Ok(())
}

fn describe(bench: &mut Bench, name: &str, program: &Program) -> Result<()> {
    let (info, fd): (ProgramInfo, &ProgramFd) = match program {
        Program::Xdp(xdp) => (xdp.info()?, xdp.fd()?),
        Program::SchedClassifier(tc) => (tc.info()?, tc.fd()?),
        _ => bail!("{name} is neither XDP nor TC"),
    };
    let mut add = |what: &str, unit: &str, value: Option<f64>| match value {
        Some(value) => {
            bench.add(Metric::new(Section::Programs, format!("{name}: {what}"), unit, vec![value]));
        }
        None => bench.skip(&format!("{name}: {what}"), "this kernel does not report it"),
    };
    add("verified", "instructions", info.verified_instruction_count().map(f64::from));
    add("translated", "bytes", info.size_translated().map(f64::from));
    add("JITed", "bytes", Some(f64::from(info.size_jitted())));
    add("stack", "bytes", stack::bytes(fd)?.map(f64::from));
    Ok(())
}

/// Stack depth, visible only in the JITed code, whose prologue reserves it.
mod stack {
    use std::io;
    use std::os::fd::{AsFd as _, AsRawFd as _};

    use anyhow::{Context as _, Result};
    use aya::programs::ProgramFd;

    const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
    /// `struct bpf_prog_info` (include/uapi/linux/bpf.h): type, id, tag, then the fields used here.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        _type_id_tag: [u32; 4],
        jited_prog_len: u32,
        _xlated_prog_len: u32,
        jited_prog_insns: u64,
    }
    /// The part of `union bpf_attr` of that command.
    #[repr(C)]
    struct Attr {
        bpf_fd: u32,
        info_len: u32,
        info: u64,
    }
    /// x86-64: `sub rsp, imm32`, within the first instructions.
    const SUB_RSP: [u8; 3] = [0x48, 0x81, 0xec];
    const PROLOGUE: usize = 64;

    /// Bytes of stack of the main function; `None` where the code is not readable, or not x86-64's.
    pub(super) fn bytes(program: &ProgramFd) -> Result<Option<u32>> {
        if !cfg!(target_arch = "x86_64") {
            return Ok(None);
        }
        let mut code = vec![0u8; 1 << 17];
        let mut info = Info {
            jited_prog_len: u32::try_from(code.len())?,
            jited_prog_insns: code.as_mut_ptr() as u64,
            ..Info::default()
        };
        let attr = Attr {
            bpf_fd: u32::try_from(program.as_fd().as_raw_fd())?,
            info_len: size_of::<Info>() as u32,
            info: &raw mut info as u64,
        };
        // SAFETY: the kernel writes at most `info_len` bytes of `info` and `jited_prog_len` of `code`, which
        // both live on.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &raw const attr, size_of::<Attr>())
        };
        if result != 0 {
            return Err(io::Error::last_os_error()).context("cannot read a program's code");
        }
        let prologue = code.get(..PROLOGUE).unwrap_or_default();
        let at = prologue.windows(SUB_RSP.len()).position(|bytes| bytes == SUB_RSP);
        let imm = at.and_then(|at| prologue.get(at + SUB_RSP.len()..)?.first_chunk());
        Ok(imm.copied().map(u32::from_le_bytes))
    }
}
