//! Workload files of SimAI: the layers of a model, each with computations and collectives.
//!
//! The first line has `model_parallel_NPU_group: N`, `ep: N` and `all_gpus: N`, the second the number of layers. A layer is
//! `NAME DEPENDENCY`, then three times time, collective and bytes (forward, input gradient, weight gradient), then the time of
//! the update; times in nanoseconds. One iteration is made of it: forward through all layers, then back. Every GPU is a host
//! of the fabric: NVLink is not modelled.

use super::collective::{Collective, Pairs};
use super::{Wait, Workload};
use crate::network::read::{FileError, words};

/// How ranks are put into groups.
#[derive(Clone, Copy, Debug)]
struct Shape {
    ranks: u32,
    tensor: u32,
    expert: u32,
}

/// Which ranks take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Tensor,
    Data,
    Expert,
    DataExpert,
}

/// A computation and a collective after it.
#[derive(Clone, Copy, Debug)]
struct Step {
    compute_ns: u64,
    collective: Option<(Collective, Group, u64)>,
}

impl Workload {
    /// Reads a workload file for a fabric of `hosts` hosts.
    ///
    /// # Errors
    /// A line is not as it should be, or there are more GPUs than hosts.
    pub(crate) fn simai(name: &str, text: &str, hosts: u32, class: u8) -> Result<Self, FileError> {
        let mut lines = words(text);
        let (_, head) = lines.next().unwrap_or_default();
        let setting = |key: &str| {
            head.windows(2).find(|pair| pair[0] == key).and_then(|pair| pair[1].parse::<u32>().ok())
        };
        let (Some(ranks), Some(tensor)) = (setting("all_gpus:"), setting("model_parallel_NPU_group:")) else {
            return Err(FileError::new(
                name,
                1,
                "the first line must give `model_parallel_NPU_group: N` and `all_gpus: N`",
            ));
        };
        let shape = Shape { ranks, tensor, expert: setting("ep:").unwrap_or(1) };
        if !(1..=hosts).contains(&ranks) {
            let what = format!("all_gpus: {ranks} is out of range: the fabric has hosts for 1 to {hosts}");
            return Err(FileError::new(name, 1, what));
        }
        let fits = tensor != 0
            && shape.expert != 0
            && ranks.is_multiple_of(tensor)
            && (ranks / tensor).is_multiple_of(shape.expert);
        if !fits {
            let what = format!(
                "{ranks} GPUs cannot be put into groups of {tensor}, and these into groups of {}",
                shape.expert
            );
            return Err(FileError::new(name, 1, what));
        }
        let count =
            lines.next().and_then(|(_, words)| words.first()?.parse::<usize>().ok()).unwrap_or(usize::MAX);
        let layers: Vec<[Step; 3]> =
            lines.map(|(line, words)| layer(name, line, &words)).collect::<Result<_, _>>()?;
        if layers.len() != count {
            return Err(FileError::new(
                name,
                2,
                format!("the second line must be the number of layers, of which {} follow", layers.len()),
            ));
        }
        let mut model = Model { workload: Self::new(), pairs: Pairs::new(class), shape, ready: Vec::new() };
        model.ready = (0..ranks).map(|host| model.workload.compute(host, 0)).collect();
        layers.iter().for_each(|layer| model.step(layer[0]));
        for layer in layers.iter().rev() {
            model.step(layer[1]);
            model.step(layer[2]);
        }
        Ok(model.workload)
    }
}

/// A workload in the making: every rank's last step.
struct Model {
    workload: Workload,
    pairs: Pairs,
    shape: Shape,
    ready: Vec<u32>,
}

impl Model {
    fn step(&mut self, step: Step) {
        if step.compute_ns > 0 {
            for (host, ready) in (0..).zip(&mut self.ready) {
                let compute = self.workload.compute(host, step.compute_ns);
                self.workload.after(compute, *ready, Wait::Delivered);
                *ready = compute;
            }
        }
        let Some((collective, group, bytes)) = step.collective else { return };
        for ranks in self.shape.groups(group) {
            let ready: Vec<u32> = ranks.iter().map(|&rank| self.ready[rank as usize]).collect();
            let done = self.workload.collective(collective, bytes, &ranks, &ready, &mut self.pairs);
            for (&rank, done) in ranks.iter().zip(done) {
                self.ready[rank as usize] = done;
            }
        }
    }
}

impl Shape {
    /// Every group of a kind: tensor groups are of neighbours; across them, expert groups are of neighbouring tensor groups,
    /// and the rest repeats them.
    fn groups(self, group: Group) -> Vec<Vec<u32>> {
        let Self { ranks, tensor, expert } = self;
        let replicas = ranks / tensor;
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
    let refuse =
        |what: &str| FileError::new(name, line, format!("`{}` is no layer: {what}", words.join(" ")));
    let [_, _, steps @ .., _update] = words else {
        return Err(refuse("it needs a name, a dependency, three steps and a time"));
    };
    let step = |index: usize, default: Group| {
        let Some([time, kind, bytes]) = steps.chunks(3).nth(index) else {
            return Err(refuse("a step is TIME COLLECTIVE BYTES"));
        };
        let (Ok(compute_ns), Ok(bytes)) = (time.parse(), bytes.parse()) else {
            return Err(refuse("times and bytes are whole numbers"));
        };
        let collective = collective(kind, default).ok_or_else(|| {
            refuse("known collectives are NONE, ALLREDUCE, ALLGATHER, REDUCESCATTER and ALLTOALL, with _EP or _DP_EP")
        })?;
        Ok(Step { compute_ns, collective: collective.map(|(kind, group)| (kind, group, bytes)) })
    };
    if steps.len() != 9 {
        return Err(refuse("it needs a name, a dependency, three steps and a time"));
    }
    Ok([step(0, Group::Tensor)?, step(1, Group::Tensor)?, step(2, Group::Data)?])
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
    }

    #[test]
    fn groups_cover_every_rank_once() {
        let shape = Shape { ranks: 24, tensor: 3, expert: 4 };
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
    fn what_is_no_workload_is_refused() {
        for (text, hosts, says) in [
            (FILE.to_owned(), 4, "w:1: all_gpus: 8 is out of range: the fabric has hosts for 1 to 4"),
            (FILE.replace("group: 2", "group: 3"), 8, "w:1: 8 GPUs cannot be put into groups of 3"),
            (FILE.replace("ALLTOALL_EP", "BROADCAST"), 8, "w:4: `experts -1 100 BROADCAST"),
            (
                FILE.replace("\n2\n", "\n3\n"),
                8,
                "w:2: the second line must be the number of layers, of which 2 follow",
            ),
            ("X 1\n".to_owned(), 8, "w:1: the first line must give"),
            (FILE.replace(" 100\n", "\n"), 8, "w:3: `attention"),
        ] {
            let refused = Workload::simai("w", &text, hosts, 3).unwrap_err().to_string();
            assert!(refused.starts_with(says), "{refused}");
        }
    }
}
