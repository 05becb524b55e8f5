//! Metrics of the process and of the daemon.

use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use procfs::WithCurrentSystemInfo as _;
use procfs::process::{LimitValue, Process};

use super::exposition::Exposition;
use crate::shared_state::SharedState;

/// Metrics of the process; values missing in `/proc` are omitted.
pub(super) fn process(text: &mut Exposition) {
    let Ok(me) = Process::myself() else { return };
    let mut gauge = |name, help, value: Option<f64>| {
        if let Some(value) = value {
            text.family(name, help).series(&[], value);
        }
    };
    let fds = me.fd_count().ok().map(|count| count as f64);
    gauge("process_open_fds", "Open file descriptors.", fds);
    let limit = me.limits().ok().and_then(|limits| match limits.max_open_files.soft_limit {
        LimitValue::Value(limit) => Some(limit as f64),
        LimitValue::Unlimited => None,
    });
    gauge("process_max_fds", "Maximum number of open file descriptors.", limit);
    let Ok(stat) = me.stat() else { return };
    gauge("process_threads", "Number of threads.", Some(stat.num_threads as f64));
    gauge("process_resident_memory_bytes", "Resident memory, bytes.", Some(stat.rss_bytes().get() as f64));
    gauge("process_virtual_memory_bytes", "Virtual memory, bytes.", Some(stat.vsize as f64));
    let ticks_per_s = procfs::ticks_per_second() as f64;
    let started_s =
        procfs::boot_time_secs().ok().map(|boot_s| boot_s as f64 + stat.starttime as f64 / ticks_per_s);
    gauge("process_start_time_seconds", "Start time of the process, since 1970 (UTC).", started_s);
    let cpu_s = (stat.utime + stat.stime) as f64 / ticks_per_s;
    text.family("process_cpu_seconds_total", "User and system CPU time.").series(&[], cpu_s);
}

pub(super) fn daemon(text: &mut Exposition, shared: &SharedState) {
    let snapshot = shared.snapshot();
    let mut family =
        text.family("dcqcn_interface_served", "1 if the daemon manages the interface, 0 if it cannot.");
    snapshot.served.iter().for_each(|iface| family.series(&[("interface", iface)], 1));
    let fails = snapshot.failing.iter().filter(|failing| !snapshot.served.contains(&failing.interface));
    fails.for_each(|failing| family.series(&[("interface", &failing.interface)], 0));
    let help = "1 if all of a managed interface's attachment is in the kernel and sees packets, 0 if not.";
    let mut family = text.family("dcqcn_interface_complete", help);
    for iface in &snapshot.served {
        let is_complete = snapshot.failing.iter().all(|failing| failing.interface != *iface);
        family.series(&[("interface", iface)], u8::from(is_complete));
    }
    let help = "Repairs after another program removed part of an attachment, successful or not.";
    let mut family = text.family("dcqcn_interface_repairs_total", help);
    snapshot.repairs.iter().for_each(|(iface, repairs)| family.series(&[("interface", iface)], *repairs));
    if let Some(reload) = &snapshot.reload {
        let help = "1 if the last reload of the configuration file succeeded, 0 if it was rejected.";
        let taken = u8::from(reload.refused.is_empty());
        text.family("dcqcn_config_last_reload_successful", help).series(&[], taken);
        let help = "Time of the last reload of the configuration file, since 1970 (UTC).";
        text.family("dcqcn_config_last_reload_timestamp_seconds", help).series(&[], seconds(reload.at));
    }
    let tasks = shared.tasks();
    let mut family = text.family("dcqcn_task_interfaces", "Interfaces managed by a task.");
    for (task, health) in &tasks {
        family.series(&[("task", task)], health.interfaces.load(Ordering::Relaxed));
    }
    let help = "Time a task has been busy with one interface; 0 if idle.";
    let mut family = text.family("dcqcn_task_busy_seconds", help);
    tasks.iter().for_each(|(task, health)| family.series(&[("task", task)], health.busy_ns() as f64 / 1e9));
    let help = "Failures of a task, which runs again after a second.";
    let mut family = text.family("dcqcn_task_failures_total", help);
    for (task, health) in &tasks {
        family.series(&[("task", task)], health.failures.load(Ordering::Relaxed));
    }
}

pub(super) fn duration(text: &mut Exposition, began: Instant) {
    let help = "Time spent collecting these metrics.";
    let took_s = began.elapsed().as_secs_f64();
    text.family("dcqcn_scrape_duration_seconds", help).series(&[], took_s);
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
