//! Embedded eBPF objects, so that the `dcqcn` binary is the only file to deploy.

/// ELF file of the programs with the packet trace, see [`crate::attach::Info::log_packets`].
pub(crate) static TRACE_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/dcqcn-trace"));

/// ELF file of the `dcqcn-ebpf` crate, aligned for aya's parser.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/dcqcn-ebpf"));

#[cfg(test)]
mod tests {
    use aya_obj::Object;
    use aya_obj::generated::bpf_insn;

    use super::*;

    /// Instruction classes, and operations of the two jump classes (include/uapi/linux/bpf_common.h and
    /// bpf.h).
    const BPF_JMP: u8 = 5;
    const BPF_JMP32: u8 = 6;
    const BPF_JA: u8 = 0x00;
    const BPF_CALL: u8 = 0x80;
    const BPF_EXIT: u8 = 0x90;

    /// Possible successors of instruction `at`, and whether each is reached by a branch.
    fn successors(instructions: &[bpf_insn], at: usize) -> Vec<(usize, bool)> {
        let bpf_insn { code, off, imm, .. } = instructions[at];
        let to = |offset: i64| usize::try_from(at as i64 + 1 + offset).unwrap();
        match (code & 7, code & 0xf0) {
            (BPF_JMP | BPF_JMP32, BPF_EXIT) => vec![],
            (BPF_JMP | BPF_JMP32, BPF_CALL) => vec![(at + 1, false)],
            (BPF_JMP, BPF_JA) => vec![(to(off.into()), true)],
            (BPF_JMP32, BPF_JA) => vec![(to(imm.into()), true)],
            (BPF_JMP | BPF_JMP32, _) => vec![(at + 1, true), (to(off.into()), true)],
            _ => vec![(at + 1, false)],
        }
    }

    /// Loops closed by fall-through, in the order of `check_cfg` of Linux 6.1 (kernel/bpf/verifier.c).
    fn loops_without_branch(instructions: &[bpf_insn]) -> Vec<(usize, usize)> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            Discovered,
            Explored,
        }
        let mut states = vec![State::New; instructions.len()];
        let (mut found, mut stack) = (Vec::new(), vec![(0, successors(instructions, 0).into_iter())]);
        states[0] = State::Discovered;
        while let Some((at, next)) = stack.last_mut() {
            let at = *at;
            match next.next() {
                Some((to, by_branch)) => match states.get(to) {
                    Some(State::New) => {
                        states[to] = State::Discovered;
                        stack.push((to, successors(instructions, to).into_iter()));
                    }
                    Some(State::Discovered) if !by_branch => found.push((at, to)),
                    _ => {}
                },
                None => {
                    states[at] = State::Explored;
                    stack.pop();
                }
            }
        }
        found
    }

    /// Stack bytes of a function: accesses relative to the frame pointer, and addresses derived from it.
    fn stack_bytes(instructions: &[bpf_insn]) -> i64 {
        const FRAME: u8 = 10;
        /// `rX = r10`, and a following `rX += IMM`.
        const MOV64_REGISTER: u8 = 0xbf;
        const ADD64: u8 = 0x07;
        let mut deepest = 0;
        let mut has_frame = [false; 16];
        for instruction in instructions {
            let (to, from) = (instruction.dst_reg(), instruction.src_reg());
            let offset = i64::from(instruction.off);
            let below = match (instruction.code & 7, instruction.code) {
                // BPF_LDX reads, BPF_ST and BPF_STX write.
                (1, _) if from == FRAME => -offset,
                (2 | 3, _) if to == FRAME => -offset,
                (_, ADD64) if has_frame[usize::from(to)] => -i64::from(instruction.imm),
                _ => 0,
            };
            deepest = deepest.max(below);
            if instruction.code == MOV64_REGISTER {
                has_frame[usize::from(to)] = from == FRAME;
            }
        }
        deepest
    }

    /// A program and a function it calls share 512 bytes of stack.
    ///
    /// Each frame is rounded up to 32 bytes (`check_max_stack_depth` of Linux 6.1; later kernels round to
    /// 16).
    #[test]
    fn programs_fit_the_stack_of_linux_6_1() {
        const PROGRAMS: [&str; 5] =
            ["dcqcn_xdp", "dcqcn_ingress", "dcqcn_egress", "dcqcn_expire", "dcqcn_probe"];
        for object in [OBJECT, TRACE_OBJECT] {
            let object = Object::parse(object).unwrap();
            let depth = |is_program: bool| {
                let functions = object.functions.values();
                let of = functions.filter(|f| PROGRAMS.contains(&f.name.as_str()) == is_program);
                of.map(|f| (stack_bytes(&f.instructions).max(1) + 31) / 32 * 32).max().unwrap()
            };
            let (program, called) = (depth(true), depth(false));
            assert!(program > 200 && called > 100, "{program} and {called} bytes");
            assert!(program + called <= 512, "{program} and {called} bytes");
        }
    }

    /// Linux 6.1 accepts a loop only if a branch closes it ("back-edge from insn 124 to 125"); later kernels
    /// accept any.
    #[test]
    fn every_loop_ends_with_a_branch() {
        for object in [OBJECT, TRACE_OBJECT] {
            let object = Object::parse(object).unwrap();
            assert!(object.functions.len() > 4, "{} functions", object.functions.len());
            for function in object.functions.values() {
                let found = loops_without_branch(&function.instructions);
                assert_eq!(found, [], "{}", function.name);
            }
        }
    }

    #[test]
    fn fall_through_into_a_loop_head_is_found() {
        let (_bitfield_align_1, _bitfield_1) = ([], bpf_insn::new_bitfield_1(0, 0));
        let instruction = |code, off| bpf_insn { code, _bitfield_align_1, _bitfield_1, off, imm: 0 };
        let (add, exit) = (instruction(7, 0), instruction(BPF_JMP | BPF_EXIT, 0));
        // 0: goto 2; 1: r0 += 0; 2: if r0 == 0 goto 1; 3: exit
        let rotated = [instruction(BPF_JMP, 1), add, instruction(BPF_JMP | 0x10, -2), exit];
        assert_eq!(loops_without_branch(&rotated), [(1, 2)]);
        // 0: r0 += 0; 1: if r0 == 0 goto 0; 2: exit
        assert_eq!(loops_without_branch(&[add, instruction(BPF_JMP | 0x10, -2), exit]), []);
    }
}
