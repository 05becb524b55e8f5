//! Runs jobs in parallel.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

use dcqcn_netlink::Link;
use dcqcn_support::sync::lock;

/// Groups requests, by index in `requests`, into rounds that can be attached concurrently. Each has the names or altnames of
/// its interfaces.
///
/// An upper device (VLAN, bridge, bond) is in a later round than its lower devices, because the kernel
/// rejects an XDP program on an interface if an upper device has one.
pub(super) fn rounds(requests: &[Vec<&str>], links: &[Link]) -> Vec<Vec<usize>> {
    let mut ports: Vec<Vec<&Link>> = Vec::new();
    for names in requests {
        let is_one = |link: &&Link| names.iter().any(|name| is_called(link, name));
        ports.push(links.iter().filter(is_one).collect());
    }
    let is_above = |upper: usize, lower: usize| {
        let (Some(uppers), Some(lowers)) = (ports.get(upper), ports.get(lower)) else { return false };
        upper != lower && uppers.iter().any(|upper| lowers.iter().any(|lower| upper.is_above(lower)))
    };
    let mut left: Vec<usize> = (0..requests.len()).collect();
    let mut rounds = Vec::new();
    while !left.is_empty() {
        let waits = |upper: &usize| left.iter().any(|lower| is_above(*upper, *lower));
        let (later, now): (Vec<_>, Vec<_>) = left.iter().copied().partition(waits);
        // Interfaces do not form cycles; if they did, this would put the rest into one round.
        let (now, later) = if now.is_empty() { (later, now) } else { (now, later) };
        rounds.push(now);
        left = later;
    }
    rounds
}

fn is_called(link: &Link, name: &str) -> bool {
    link.name == name || link.altnames.iter().any(|altname| altname == name)
}

/// Runs `work` for each of `jobs`, with one thread per CPU; results are in the order of the jobs.
pub(super) fn run<T: Send, R: Send>(jobs: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    run_on(thread::available_parallelism().map_or(1, NonZero::get), jobs, work)
}

fn run_on<T: Send, R: Send>(threads: usize, jobs: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = threads.min(jobs.len());
    let results = Mutex::new(Vec::with_capacity(jobs.len()));
    let jobs = Mutex::new(jobs.into_iter().enumerate());
    // Not in the `while let` itself, which would hold the lock while the job runs.
    let next = || lock(&jobs).next();
    let worker = || {
        while let Some((number, job)) = next() {
            let result = work(job);
            lock(&results).push((number, result));
        }
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(worker)));
        worker();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;

    /// Each of two jobs waits for a message from the other.
    #[test]
    fn parallel_jobs_keep_result_order() {
        type Job = (u32, Sender<u32>, Receiver<u32>);
        let jobs = || -> Vec<Job> {
            let ((to_one, one), (to_two, two)) = (channel(), channel());
            vec![(1, to_two, one), (2, to_one, two)]
        };
        let exchange = |(number, other, own): Job| {
            other.send(number).ok()?;
            own.recv_timeout(Duration::from_secs(5)).ok()
        };
        assert_eq!(run_on(2, jobs(), exchange), [Some(2), Some(1)]);
        assert_eq!(run_on(8, jobs(), exchange), [Some(2), Some(1)]);
    }

    #[test]
    fn upper_device_follows_lower() {
        let link = |index: u32, name: &str, kind: Option<&str>, peer, master| Link {
            index,
            name: name.into(),
            altnames: vec![format!("alt-{name}")],
            kind: kind.map(Into::into),
            peer,
            master,
            ..Link::default()
        };
        let links = [
            link(2, "eth0", None, None, Some(9)),
            link(3, "eth1", None, None, Some(9)),
            link(5, "veth0", Some("veth"), Some(6), None),
            link(6, "veth1", Some("veth"), Some(5), None),
            link(9, "bond0", Some("bond"), None, None),
            link(10, "bond0.5", Some("vlan"), Some(9), None),
        ];
        let rounds_of = |requests: &[&str]| {
            let requests: Vec<Vec<&str>> = requests.iter().map(|names| names.split('=').collect()).collect();
            rounds(&requests, &links)
        };
        assert_eq!(
            rounds_of(&["bond0.5", "veth0", "bond0", "eth1", "veth1", "eth0", "gone"]),
            [vec![1, 3, 4, 5, 6], vec![2], vec![0]]
        );
        assert_eq!(rounds_of(&["alt-bond0.5", "alt-bond0", "eth1"]), [vec![2], vec![1], vec![0]]);
        assert_eq!(
            rounds_of(&["bond0", "veth0=eth1"]),
            [vec![1], vec![0]],
            "the other end of an inline pair"
        );
        assert_eq!(rounds_of(&["bond0=eth0", "veth0"]), [vec![0, 1]]);
        assert!(rounds_of(&[]).is_empty());
    }

    #[test]
    fn one_thread_runs_all_jobs_in_order() {
        assert_eq!(run_on(1, vec![3, 1, 2], |job| job * 10), [30, 10, 20]);
        assert_eq!(run_on(4, Vec::<u32>::new(), |job| job), [0; 0]);
    }
}
