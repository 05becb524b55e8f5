//! Workload files of SimAI: the layers of a model, each with computations and collectives.
//!
//! The first line has `model_parallel_NPU_group: N` (or starts with `MICRO`, `DATA` or `MODEL`), `ep: N` and
//! `all_gpus: N` (by default all hosts), the second the number of layers. A layer is `NAME DEPENDENCY`, then
//! three times time, collective and bytes (forward, input gradient, weight gradient), then the time of the
//! update; times are in nanoseconds. One iteration is simulated: forward through all layers, then backward;
//! with `MICRO`, only the first layer's collective of its weight gradient. Every GPU is a host of the fabric:
//! NVLink is not modelled.
//!
//! With `pp: N` the layers are those of one pipeline stage. A stage is a block of neighbouring ranks, and
//! starts when each rank has `ga` messages of `pp_comm` bytes from its counterpart in the stage before;
//! gradients go the same way back. Micro-batches do not overlap.

use std::collections::BTreeSet;

use super::collective::{Collective, Pairs};
use super::{MAX_FLOW_BYTES, Wait, Workload};
use crate::network::read::{FileError, cut, quoted, words};

/// Assignment of ranks to groups.
#[derive(Clone, Copy, Debug)]
struct Shape {
    ranks: u32,
    tensor: u32,
    expert: u32,
    /// Stages of the pipeline.
    pipeline: u32,
}

/// Messages from one stage of the pipeline to the next, in each direction.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    messages: u32,
    bytes: u64,
}

/// Policy, the first word of a file, for one collective instead of an iteration.
const MICRO: &str = "MICRO";

/// Ranks that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Tensor,
    Data,
    Expert,
    DataExpert,
}

/// A computation followed by a collective.
#[derive(Clone, Copy, Debug)]
struct Step {
    compute_ns: u64,
    collective: Option<(Collective, Group, u64)>,
}

impl Workload {
    /// Reads a workload file for a fabric of `hosts` hosts.
    ///
    /// # Errors
    /// A line is malformed, or there are more GPUs than hosts.
    pub(crate) fn simai(name: &str, text: &str, hosts: u32, class: u8) -> Result<Self, FileError> {
        let mut lines = words(text);
        let (first_line, first) = lines.next().unwrap_or((1, Vec::new()));
        let (shape, transfer) =
            shape(&first, hosts).map_err(|what| FileError::new(name, first_line, what))?;
        let (line, head) = lines.next().unwrap_or((2, Vec::new()));
        let count = head.first().and_then(|word| word.parse::<usize>().ok()).unwrap_or(usize::MAX);
        let layers: Vec<[Step; 3]> =
            lines.map(|(line, words)| layer(name, line, &words)).collect::<Result<_, _>>()?;
        if layers.len() != count {
            return Err(FileError::new(
                name,
                line,
                format!("the second line must be the number of layers, of which {} follow", layers.len()),
            ));
        }
        let passes =
            if first.first() == Some(&MICRO) { micro(&layers) } else { passes(name, &first, &layers) };
        let [forward, backward] = passes.map_err(|what| FileError::new(name, first_line, what))?;
        let steps = forward.iter().chain(&backward);
        let of_stage = steps.map(|step| shape.flows(*step)).fold(0, u64::saturating_add);
        let transfers = u64::from(shape.pipeline - 1) * 2 * shape.flows_of(transfer);
        let flows = of_stage.saturating_mul(shape.pipeline.into()).saturating_add(transfers);
        let mut model = Model { workload: Self::new(), pairs: Pairs::new(class), shape, ready: Vec::new() };
        model.workload.check_room(name, flows.saturating_add(shape.ranks.into()))?;
        model.ready = (0..shape.ranks).map(|host| model.workload.compute(host, 0)).collect();
        for stage in 0..shape.pipeline {
            if stage > 0 {
                model.transfer(stage - 1, stage, transfer);
            }
            forward.iter().for_each(|step| model.step(*step, stage));
        }
        for stage in (0..shape.pipeline).rev() {
            if stage + 1 < shape.pipeline {
                model.transfer(stage + 1, stage, transfer);
            }
            backward.iter().for_each(|step| model.step(*step, stage));
        }
        Ok(model.workload)
    }
}

/// Ranks and transfers of the first line of a file, for a fabric of `hosts` hosts.
fn shape(head: &[&str], hosts: u32) -> Result<(Shape, Transfer), String> {
    /// Upper bound: more micro-batches than any model has.
    const MAX_MESSAGES: u32 = 4_096;
    let number = |key: &str| {
        let Some([text, ..]) = behind(head, key) else { return Ok(None) };
        let expected = || format!("{key} {}: expected a number up to {MAX_FLOW_BYTES}", cut(text));
        size(text).map(Some).ok_or_else(expected)
    };
    let count = |key: &str| -> Result<_, String> {
        Ok(number(key)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
    };
    // Older versions of AICB leave the number of GPUs to the network.
    let ranks = count("all_gpus:")?.unwrap_or(hosts);
    let policy = head.first().copied().unwrap_or_default();
    let pipeline = if policy == MICRO { 1 } else { count("pp:")?.unwrap_or(1) };
    let implied = match policy {
        // Data parallelism only, or tensor parallelism only.
        MICRO | "DATA" => Some(1),
        "MODEL" => Some(ranks.checked_div(pipeline).unwrap_or(0)),
        _ => None,
    };
    let named = count("model_parallel_NPU_group:")?;
    if let (Some(implied), Some(named)) = (implied, named)
        && implied != named
    {
        tracing::warn!("model_parallel_NPU_group: {named} is ignored: groups of {policy} have {implied}");
    }
    let Some(tensor) = implied.or(named) else {
        // `NODES GPUS_PER_SERVER NV_SWITCHES SWITCHES LINKS GPU_TYPE`.
        let is_topology = head.len() == 6 && head.iter().take(5).all(|word| word.parse::<u32>().is_ok());
        let what = if is_topology {
            "it is a topology of SimAI, not a workload; use `--topology file:FILE`"
        } else {
            "the first line must have `model_parallel_NPU_group: N` or start with MICRO, DATA or MODEL, and may have \
             `all_gpus: N`"
        };
        return Err(what.to_owned());
    };
    let expert = count("ep:")?.unwrap_or(1);
    let shape = Shape { ranks, tensor, expert, pipeline };
    let messages = count("ga:")?.unwrap_or(1);
    if !(1..=MAX_MESSAGES).contains(&messages) {
        return Err(format!("ga: {messages} is out of range: 1 to {MAX_MESSAGES}"));
    }
    let bytes = number("pp_comm:")?.unwrap_or(0);
    if !(1..=hosts).contains(&ranks) {
        return Err(format!("all_gpus: {ranks} is out of range: the fabric has hosts for 1 to {hosts}"));
    }
    let fits = tensor != 0
        && expert != 0
        && pipeline != 0
        && ranks.is_multiple_of(pipeline)
        && shape.stage_ranks().is_multiple_of(tensor)
        && (shape.stage_ranks() / tensor).is_multiple_of(expert);
    if !fits {
        return Err(format!(
            "{ranks} GPUs cannot be divided into {pipeline} stages, these into groups of {tensor}, and those into groups of \
             {expert}"
        ));
    }
    if pipeline > 1 && bytes == 0 {
        return Err("`pp_comm: N`, at least 1, is missing: `pp` is greater than 1".to_owned());
    }
    Ok((shape, Transfer { messages, bytes }))
}

/// The words behind a key of the first line, which SimAI writes with and without its colon.
fn behind<'h, 't>(head: &'h [&'t str], key: &str) -> Option<&'h [&'t str]> {
    let at = head.iter().position(|word| word.trim_end_matches(':') == key.trim_end_matches(':'))?;
    head.get(at + 1..)
}

/// Layers that the first line lists after their number, as in `checkpoints: 2 0 9`.
fn listed(head: &[&str], key: &str, layers: usize) -> Result<BTreeSet<usize>, String> {
    let Some(words) = behind(head, key) else { return Ok(BTreeSet::new()) };
    let count = words.first().copied().unwrap_or_default();
    let listed = count.parse::<usize>().ok().and_then(|count| words.get(1..)?.get(..count));
    let number = |word: &&str| word.parse::<usize>().ok().filter(|layer| *layer < layers);
    let numbers = listed.and_then(|words: &[&str]| words.iter().map(number).collect());
    numbers.ok_or_else(|| {
        format!(
            "{key} {}: expected the number of layers listed, then each, 0 to {}",
            cut(count),
            layers.saturating_sub(1)
        )
    })
}

/// The forward pass, which is empty, and the backward pass of a file with `MICRO`.
fn micro(layers: &[[Step; 3]]) -> Result<[Vec<Step>; 2], String> {
    let step = layers.first().map(|[_, _, weight]| Step { compute_ns: 0, ..*weight });
    let step = step.filter(|step| step.collective.is_some());
    let step =
        step.ok_or("MICRO: the first layer needs a collective of at least 1 byte for its weight gradient")?;
    Ok([Vec::new(), vec![step]])
}

/// The steps of the forward and the backward pass. Before a layer in `checkpoint_initiates`, the forward pass is
/// repeated from the last layer in `checkpoints`.
fn passes(name: &str, head: &[&str], layers: &[[Step; 3]]) -> Result<[Vec<Step>; 2], String> {
    /// Policy that repeats forward passes; SimAI ignores these keys with all others.
    const REPEATING: &str = "HYBRID_TRANSFORMER_FWD_IN_BCKWD";
    const KEYS: [&str; 2] = ["checkpoints:", "checkpoint_initiates:"];
    let mut lists = [BTreeSet::new(), BTreeSet::new()];
    for (list, key) in lists.iter_mut().zip(KEYS) {
        if head.first() == Some(&REPEATING) {
            *list = listed(head, key, layers.len())?;
        } else if behind(head, key).is_some_and(|words| words.first() != Some(&"0")) {
            tracing::warn!("{name}: {key} is ignored: it applies to {REPEATING}");
        }
    }
    let [checkpoints, initiates] = lists;
    let mut steps = Vec::new();
    for (index, [_, input, weight]) in layers.iter().enumerate().rev() {
        if initiates.contains(&index) {
            let from = checkpoints.range(..=index).next_back();
            // Each layer is repeated at most once.
            let Some(&from) = from.filter(|&&from| initiates.range(from..index).next().is_none()) else {
                return Err(format!(
                    "checkpoint_initiates: layer {index} needs a checkpoint from which no other layer repeats"
                ));
            };
            steps.extend(layers[from..index].iter().map(|layer| layer[0]));
        }
        steps.extend([*input, *weight]);
    }
    Ok([layers.iter().map(|layer| layer[0]).collect(), steps])
}

/// A workload under construction, with every rank's last step.
struct Model {
    workload: Workload,
    pairs: Pairs,
    shape: Shape,
    ready: Vec<u32>,
}

impl Model {
    /// Every rank of a stage sends to its counterpart in another.
    fn transfer(&mut self, from: u32, to: u32, transfer: Transfer) {
        for rank in 0..self.shape.stage_ranks() {
            let [src, dst] = [from, to].map(|stage| stage * self.shape.stage_ranks() + rank);
            let received = self.workload.compute(dst, 0);
            self.workload.after(received, self.ready[dst as usize], Wait::Delivered);
            for _ in 0..transfer.messages {
                let flow = self.workload.between(&mut self.pairs, src, dst, transfer.bytes);
                self.workload.after(flow, self.ready[src as usize], Wait::Delivered);
                self.workload.after(received, flow, Wait::Delivered);
            }
            self.ready[dst as usize] = received;
        }
    }

    fn step(&mut self, step: Step, stage: u32) {
        let stage_ranks = self.shape.stage_ranks();
        let first = stage * stage_ranks;
        if step.compute_ns > 0 {
            let of_stage = self.ready.iter_mut().skip(first as usize).take(stage_ranks as usize);
            for (host, ready) in (first..).zip(of_stage) {
                let compute = self.workload.compute(host, step.compute_ns);
                self.workload.after(compute, *ready, Wait::Delivered);
                *ready = compute;
            }
        }
        let Some((collective, group, bytes)) = step.collective else { return };
        for mut ranks in self.shape.groups(group) {
            ranks.iter_mut().for_each(|rank| *rank += first);
            let ready: Vec<u32> = ranks.iter().map(|&rank| self.ready[rank as usize]).collect();
            let done = self.workload.collective(collective, bytes, &ranks, &ready, &mut self.pairs);
            for (&rank, done) in ranks.iter().zip(done) {
                self.ready[rank as usize] = done;
            }
        }
    }
}

impl Shape {
    /// Ranks of each stage of the pipeline.
    const fn stage_ranks(self) -> u32 {
        self.ranks / self.pipeline
    }

    /// Flows of a step in one stage, including those that only wait.
    fn flows(self, step: Step) -> u64 {
        let ranks = u64::from(self.stage_ranks());
        let computations = if step.compute_ns > 0 { ranks } else { 0 };
        let Some((collective, group, _)) = step.collective else { return computations };
        let replicas = self.stage_ranks() / self.tensor;
        let size = u64::from(match group {
            Group::Tensor => self.tensor,
            Group::Data => replicas,
            Group::Expert => self.expert,
            Group::DataExpert => replicas / self.expert,
        });
        let of_group = if size < 2 { 0 } else { Workload::flows_of_collectives(collective, size, 1) - size };
        computations + ranks / size * of_group
    }

    /// Flows of a transfer between two stages, including those that only wait.
    fn flows_of(self, transfer: Transfer) -> u64 {
        u64::from(self.stage_ranks()) * (1 + u64::from(transfer.messages))
    }

    /// All groups of a kind in the first stage: tensor groups consist of neighbours, expert groups of neighbouring
    /// tensor groups, and data-parallel groups of the rest.
    fn groups(self, group: Group) -> Vec<Vec<u32>> {
        let Self { tensor, expert, .. } = self;
        let replicas = self.stage_ranks() / tensor;
        let row = |members: &mut dyn Iterator<Item = u32>, offset: u32| {
            members.map(|replica| replica * tensor + offset).collect()
        };
        let offsets = 0..tensor;
        match group {
            Group::Tensor => {
                (0..replicas).map(|replica| (replica * tensor..(replica + 1) * tensor).collect()).collect()
            }
            Group::Data => offsets.map(|offset| row(&mut (0..replicas), offset)).collect(),
            Group::Expert => (0..replicas / expert)
                .flat_map(|block| offsets.clone().map(move |offset| (block, offset)))
                .map(|(block, offset)| row(&mut (block * expert..(block + 1) * expert), offset))
                .collect(),
            Group::DataExpert => (0..expert)
                .flat_map(|first| offsets.clone().map(move |offset| (first, offset)))
                .map(|(first, offset)| row(&mut (first..replicas).step_by(expert as usize), offset))
                .collect(),
        }
    }
}

fn layer(name: &str, line: usize, words: &[&str]) -> Result<[Step; 3], FileError> {
    let refuse = |what: &str| FileError::new(name, line, format!("{} is not a layer: {what}", quoted(words)));
    let [_, _, steps @ .., _update] = words else {
        return Err(refuse("it needs a name, a dependency, three steps and a time"));
    };
    let step = |index: usize, default: Group| {
        let Some([time, kind, bytes]) = steps.chunks(3).nth(index) else {
            return Err(refuse("a step is TIME COLLECTIVE BYTES"));
        };
        let (Ok(compute_ns), Some(bytes)) = (time.parse(), bytes.parse().ok().or_else(|| size(bytes))) else {
            return Err(refuse("times and bytes are whole numbers"));
        };
        let collective = collective(kind, default).ok_or_else(|| {
            refuse(
                "known collectives are NONE, ALLREDUCE, ALLGATHER, REDUCESCATTER, ALLTOALL and BROADCAST, with _EP or _DP_EP",
            )
        })?;
        let collective = collective.filter(|_| bytes > 0);
        Ok(Step { compute_ns, collective: collective.map(|(kind, group)| (kind, group, bytes)) })
    };
    if steps.len() != 9 {
        return Err(refuse("it needs a name, a dependency, three steps and a time"));
    }
    Ok([step(0, Group::Tensor)?, step(1, Group::Tensor)?, step(2, Group::Data)?])
}

/// Bytes. AICB divides some, and writes `12582912.0`.
fn size(text: &str) -> Option<u64> {
    let bytes = text.parse::<f64>().ok().filter(|bytes| (0.0..=MAX_FLOW_BYTES as f64).contains(bytes))?;
    Some(bytes as u64)
}

/// A collective and its group; `Some(None)`: none.
fn collective(word: &str, default: Group) -> Option<Option<(Collective, Group)>> {
    let (kind, group) = match word.strip_suffix("_DP_EP") {
        Some(kind) => (kind, Group::DataExpert),
        None => word.strip_suffix("_EP").map_or((word, default), |kind| (kind, Group::Expert)),
    };
    let collective = match kind {
        "NONE" => return Some(None),
        "ALLREDUCE" => Collective::AllReduce,
        "ALLGATHER" => Collective::AllGather,
        "REDUCESCATTER" => Collective::ReduceScatter,
        "ALLTOALL" => Collective::AllToAll,
        "BROADCAST" => Collective::Broadcast,
        _ => return None,
    };
    Some(Some((collective, group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 8 ga: 1 all_gpus: 8 checkpoints: 0\n\
        2\n\
        attention -1 5000 ALLREDUCE 2000 1000 NONE 0 10 ALLREDUCE 8000 100\n\
        experts -1 100 ALLTOALL_EP 400 0 NONE 0 10 REDUCESCATTER_DP_EP 600 100\n";

    #[test]
    fn layers_become_steps_of_all_ranks() {
        let workload = Workload::simai("w.txt", FILE, 8, 3).unwrap();
        assert_eq!(workload.validate(8), Ok(()));
        let sent = |bytes: u64| {
            let between =
                |flow: &&super::super::Flow| workload.ends(flow).is_some_and(|pair| pair.src != pair.dst);
            workload.flows().iter().filter(between).filter(|flow| flow.bytes == bytes).count()
        };
        // Four groups of two: two steps of half of it each. Two groups of four: six steps of a quarter.
        assert_eq!((sent(1_000), sent(2_000)), (4 * 2 * 2, 2 * 4 * 6));
        // Four groups of two exchange half; four groups of two scatter.
        assert_eq!((sent(200), sent(300)), (4 * 2, 4 * 2));
        assert_eq!(workload.flows().iter().filter(|flow| flow.delay_ns == 5_000).count(), 8);
        assert_eq!(Workload::simai("w.txt", &FILE.replace(" 400 ", " 400.0 "), 8, 3), Ok(workload));
    }

    #[test]
    fn all_hosts_take_part_by_default() {
        let without = FILE.replace(" all_gpus: 8", "");
        assert_eq!(Workload::simai("w", &without, 8, 3), Workload::simai("w", FILE, 8, 3));
        let refused = Workload::simai("w", &without, 9, 3).unwrap_err().to_string();
        assert!(refused.starts_with("w:1: 9 GPUs cannot be divided"), "{refused}");
    }

    #[test]
    fn empty_collective_sends_nothing() {
        let with = |kind: &str| Workload::simai("w", &FILE.replace("1000 NONE", kind), 8, 3);
        assert_eq!(with("1000 ALLREDUCE"), with("1000 NONE"));
    }

    #[test]
    fn policy_replaces_group_size() {
        let with = |head: &str| {
            let text = FILE.replacen("HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2", head, 1);
            let text = text.replace("_DP_EP", "").replace("_EP", "").replace("ep: 2", "ep: 1");
            let stages = text.replace("pp: 1", "pp: 2 pp_comm: 7");
            [text, stages].map(|text| Workload::simai("w", &text, 8, 3))
        };
        let group = |size: u32| with(&format!("HYBRID_TRANSFORMER model_parallel_NPU_group: {size}"));
        assert_eq!((with("DATA"), &with("MODEL")[0]), (group(1), &group(8)[0]));
        assert_eq!(with("DATA model_parallel_NPU_group: 2"), group(1), "as in SimAI");
        // All ranks of a stage.
        assert_eq!(with("MODEL")[1], group(4)[1]);
        assert!(with("MODEL").iter().chain(&with("DATA")).all(Result::is_ok));
    }

    #[test]
    fn micro_runs_one_collective_without_times() {
        let micro = |layers: &str| {
            Workload::simai(
                "w",
                &format!("MICRO all_gpus: 4 pp: 2\n2\n{layers}l -1 5 NONE 0 5 NONE 0 5 ALLTOALL 9 5\n"),
                8,
                3,
            )
        };
        let workload = micro("l -1 7 ALLREDUCE 50 7 ALLREDUCE 60 7 ALLREDUCE 8000 7\n").unwrap();
        let expected = Workload::collectives(Collective::AllReduce, &[0, 1, 2, 3], 8_000, 3, 1);
        assert_eq!(workload.flows(), expected.flows());
        let refused = micro("l -1 7 ALLREDUCE 50 7 ALLREDUCE 60 7 NONE 0 7\n").unwrap_err().to_string();
        assert_eq!(
            refused,
            "w:1: MICRO: the first layer needs a collective of at least 1 byte for its weight gradient"
        );
    }

    #[test]
    fn broadcast_sends_to_all_of_group() {
        let text = FILE.replace("ALLTOALL_EP 400", "BROADCAST 400");
        let workload = Workload::simai("w", &text, 8, 3).unwrap();
        let sent = workload.flows().iter().filter(|flow| flow.bytes == 400);
        let ends: Vec<_> = sent.filter_map(|flow| workload.ends(flow)).map(|p| (p.src, p.dst)).collect();
        assert_eq!(ends, [(0, 1), (2, 3), (4, 5), (6, 7)]);
    }

    #[test]
    fn forward_repeated_from_checkpoint() {
        // All layers of the forward pass, 0 and 1 again before 2 goes backward, and the times of the rest.
        let layers: String =
            [10, 20, 30].map(|ns| format!("l -1 {ns} NONE 0 1 NONE 0 0 NONE 0 0\n")).concat();
        let times = |policy: &str, colon: &str| {
            let text = format!(
                "{policy} model_parallel_NPU_group: 1 checkpoints{colon} 1 0 checkpoint_initiates{colon} 1 2\n3\n\
                 {layers}"
            );
            let workload = Workload::simai("w", &text, 1, 3).unwrap();
            workload.flows().iter().map(|flow| flow.delay_ns).collect::<Vec<_>>()
        };
        for colon in ["", ":"] {
            let repeated = [0, 10, 20, 30, 10, 20, 1, 1, 1];
            assert_eq!(times("HYBRID_TRANSFORMER_FWD_IN_BCKWD", colon), repeated);
            assert_eq!(times("HYBRID_TRANSFORMER", colon), [0, 10, 20, 30, 1, 1, 1]);
        }
    }

    #[test]
    fn flow_count_is_exact() {
        let counted = |text: &str| {
            let (shape, steps) =
                (Shape { ranks: 8, tensor: 2, expert: 2, pipeline: 1 }, text.lines().skip(2));
            let steps =
                steps.flat_map(|line| layer("w", 1, &line.split_whitespace().collect::<Vec<_>>()).unwrap());
            steps.map(|step| shape.flows(step)).sum::<u64>() + u64::from(shape.ranks)
        };
        assert_eq!(counted(FILE), Workload::simai("w", FILE, 8, 3).unwrap().flows().len() as u64);
    }

    #[test]
    fn pipeline_splits_groups_and_transfers() {
        for (key, ga, bytes) in [("pp_comm:", 1, "1048576"), ("pp_comm", 3, "1048576.0")] {
            let text = format!(
                "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 2 vpp: 1 ga: {ga} all_gpus: 8 \
                 checkpoints: 0 {key} {bytes}\n1\nlayer -1 5000 NONE 0 10 NONE 0 10 ALLREDUCE 8000 100\n"
            );
            let workload = Workload::simai("w.txt", &text, 8, 3).unwrap();
            assert_eq!(workload.validate(8), Ok(()));
            let ends = |bytes: u64| {
                let flows = workload.flows().iter().filter(move |flow| flow.bytes == bytes);
                let mut ends: Vec<_> =
                    flows.filter_map(|flow| workload.ends(flow)).map(|p| (p.src, p.dst)).collect();
                ends.sort_unstable();
                ends
            };
            // Data-parallel groups of two within a stage, not of four across both.
            let mut expected = vec![(0, 2), (1, 3), (2, 0), (3, 1), (4, 6), (5, 7), (6, 4), (7, 5)];
            let mut groups = ends(4_000);
            groups.dedup();
            assert_eq!(groups, expected);
            // Activations one way, gradients the other.
            expected =
                (0..4).map(|rank| (rank, rank + 4)).chain((4..8).map(|rank| (rank, rank - 4))).collect();
            let transfers = ends(1_048_576);
            assert_eq!(transfers.len(), 8 * ga);
            let mut distinct = transfers;
            distinct.dedup();
            assert_eq!(distinct, expected);
        }
    }

    #[test]
    fn groups_cover_every_rank_once() {
        let shape = Shape { ranks: 24, tensor: 3, expert: 4, pipeline: 1 };
        for (group, count, size) in
            [(Group::Tensor, 8, 3), (Group::Data, 3, 8), (Group::Expert, 6, 4), (Group::DataExpert, 12, 2)]
        {
            let groups = shape.groups(group);
            assert_eq!((groups.len(), groups[0].len()), (count, size), "{group:?}");
            let mut all: Vec<u32> = groups.concat();
            all.sort_unstable();
            assert_eq!(all, (0..24).collect::<Vec<_>>());
        }
        assert_eq!(shape.groups(Group::Expert)[0], [0, 3, 6, 9]);
        assert_eq!(shape.groups(Group::DataExpert)[0], [0, 12]);
    }

    #[test]
    fn invalid_workload_rejected() {
        for (text, hosts, message_start) in [
            (FILE.to_owned(), 4, "w:1: all_gpus: 8 is out of range: the fabric has hosts for 1 to 4"),
            (
                FILE.replace("group: 2", "group: 3"),
                8,
                "w:1: 8 GPUs cannot be divided into 1 stages, these into groups of 3",
            ),
            (FILE.replace("pp: 1", "pp: 3"), 8, "w:1: 8 GPUs cannot be divided into 3 stages"),
            (FILE.replace("pp: 1", "pp: 0"), 8, "w:1: 8 GPUs cannot be divided into 0 stages"),
            (FILE.replace("pp: 1", "pp: 2"), 8, "w:1: `pp_comm: N`, at least 1, is missing"),
            (
                FILE.replace("checkpoints: 0", "checkpoints: 2 0"),
                8,
                "w:1: checkpoints: 2: expected the number of layers listed, then each, 0 to 1",
            ),
            (
                FILE.replace("checkpoints: 0", "checkpoints: 1 1 checkpoint_initiates: 1 0"),
                8,
                "w:1: checkpoint_initiates: layer 0 needs a checkpoint",
            ),
            (FILE.replace("ep: 2", "ep: two"), 8, "w:1: ep: two: expected a number up to 1000000000000"),
            (
                FILE.replace("ep: 2", &format!("ep: {}", "x".repeat(999))),
                8,
                &format!("w:1: ep: {}...: expected", "x".repeat(160)),
            ),
            (FILE.replace("ga: 1", "ga: 1 pp_comm: -5"), 8, "w:1: pp_comm: -5: expected a number"),
            (FILE.replace("ga: 1", "ga: 5000"), 8, "w:1: ga: 5000 is out of range: 1 to 4096"),
            (FILE.replace("ALLTOALL_EP", "GATHER"), 8, "w:4: `experts -1 100 GATHER"),
            (
                FILE.replace("\n2\n", "\n3\n"),
                8,
                "w:2: the second line must be the number of layers, of which 2 follow",
            ),
            (
                FILE.replace("\n2\n", "\n# layers\n3\n"),
                8,
                "w:3: the second line must be the number of layers, of which 2 follow",
            ),
            ("10 8 1 1 16 A100\n8 9\n".to_owned(), 8, "w:1: it is a topology of SimAI, not a workload"),
            ("X 1\n".to_owned(), 8, "w:1: the first line must have"),
            (FILE.replace(" 100\n", "\n"), 8, "w:3: `attention"),
        ] {
            let refused = Workload::simai("w", &text, hosts, 3).unwrap_err().to_string();
            assert!(refused.starts_with(message_start), "{refused}");
        }
    }

    #[test]
    fn too_many_flows_rejected_before_they_exist() {
        let layer = FILE.lines().nth(2).unwrap();
        let layers = format!("{}{}", FILE.replace("\n2\n", "\n4002\n"), format!("{layer}\n").repeat(4_000));
        let head = FILE.replace("ga: 1", "ga: 4096 pp_comm: 1");
        for text in [
            head.replace("all_gpus: 8", "all_gpus: 65536").replace("group: 2", "group: 1"),
            head.replace("all_gpus: 8", "all_gpus: 8192").replace("pp: 1", "pp: 2"),
            layers.replace("all_gpus: 8", "all_gpus: 128"),
        ] {
            let refused = Workload::simai("w", &text, 65_536, 3).unwrap_err().to_string();
            assert_eq!(refused, "w: more than 16000000 flows: use fewer ranks, layers or messages");
        }
    }
}
