//! Export of parameters to a switch's configuration.

use dcqcn_common::layout::{CLASSES, DSCPS};
use dcqcn_common::params::{Config, PFC_WD_DROP, PfcConfig, SCHEDULER_STRICT, WredConfig};
use serde_json::{Value, json};

use super::db::{Error, Fields, Result};

/// Name of the exported maps.
const MAP: &str = "DCQCN";

#[derive(Clone, Debug)]
pub struct Export {
    pub tables: Value,
    /// Parameters that SONiC supports approximately or not at all.
    pub notes: Vec<String>,
}

/// The tables that configure `port` of a switch like `config`.
pub fn export(config: &Config, port: &str) -> Result<Export> {
    let mut notes = Vec::new();
    let mut tables = Fields::new();
    if let Some(row) = speed(config, &mut notes) {
        tables.insert("PORT".into(), json!({ port: row }));
    }
    let map = |entries: &[u8]| -> Fields {
        entries.iter().enumerate().map(|(i, entry)| (i.to_string(), entry.to_string().into())).collect()
    };
    tables.insert("DSCP_TO_TC_MAP".into(), json!({ MAP: map(&config.dscp_to_tc[..DSCPS]) }));
    tables.insert("TC_TO_QUEUE_MAP".into(), json!({ MAP: map(&config.tc_to_queue) }));
    let mut qos = Fields::new();
    qos.insert("dscp_to_tc_map".into(), MAP.into());
    qos.insert("tc_to_queue_map".into(), MAP.into());
    add_pfc(config, port, &mut qos, &mut tables, &mut notes);
    tables.insert("PORT_QOS_MAP".into(), json!({ port: qos }));
    let (mut profiles, mut queues, mut schedulers) = (Fields::new(), Fields::new(), Fields::new());
    for queue in 0..CLASSES {
        let Some(tc) = class_of_queue(config, queue)? else { continue };
        let mut row = Fields::new();
        if let Some(wred) = config.wred.get(tc) {
            let name = format!("DCQCN_QUEUE{queue}");
            profiles.insert(name.clone(), profile(wred, &format!("wred.{tc}"), &mut notes));
            row.insert("wred_profile".into(), name.into());
            let mut scheduler = scheduler(config, queue);
            if wred.drain_rate_bps != 0 {
                if !wred.drain_rate_bps.is_multiple_of(8) {
                    notes.push(format!("wred.{tc}.drain_rate is rounded down to whole bytes per second"));
                }
                scheduler.insert("meter_type".into(), "bytes".into());
                // Releases of SONiC accept `pir` only with a `cir` above 0 (sonic-scheduler.yang).
                scheduler.insert("cir".into(), "1".into());
                scheduler.insert("pir".into(), (wred.drain_rate_bps / 8).to_string().into());
                notes.push(format!(
                    "dcqcn.{queue} has a cir of 1 byte per second, which SONiC requires with pir"
                ));
            }
            let name = format!("dcqcn.{queue}");
            schedulers.insert(name.clone(), scheduler.into());
            row.insert("scheduler".into(), name.into());
            if wred.queue_limit_bytes != 0 {
                notes.push(format!("wred.{tc}.queue_limit is omitted: the switch has its own buffers"));
            }
        }
        queues.insert(format!("{port}|{queue}"), row.into());
    }
    tables.insert("WRED_PROFILE".into(), profiles.into());
    tables.insert("QUEUE".into(), queues.into());
    tables.insert("SCHEDULER".into(), schedulers.into());
    Ok(Export { tables: tables.into(), notes })
}

fn scheduler(config: &Config, queue: usize) -> Fields {
    let fields = match config.queue.get(queue) {
        Some(of) if of.scheduler == SCHEDULER_STRICT => vec![("type", "STRICT".to_owned())],
        Some(of) => vec![("type", "DWRR".to_owned()), ("weight", of.weight.to_string())],
        None => Vec::new(),
    };
    fields.into_iter().map(|(field, value)| (field.to_owned(), value.into())).collect()
}

fn speed(config: &Config, notes: &mut Vec<String>) -> Option<Value> {
    const MBIT: u64 = 1_000_000;
    let bps = config.scalars.link_rate_bps;
    match bps / MBIT {
        0 => {
            notes.push("PORT is omitted: link_rate is unknown, or below 1 Mbit/s".into());
            None
        }
        mbit => {
            if !bps.is_multiple_of(MBIT) {
                notes.push(format!("link_rate is rounded down to {mbit} Mbit/s"));
            }
            Some(json!({ "speed": mbit.to_string() }))
        }
    }
}

fn profile(wred: &WredConfig, row: &str, notes: &mut Vec<String>) -> Value {
    const PPM_PER_PERCENT: u64 = 10_000;
    // Rounded up, so that a small probability does not become 0.
    let percent = wred.pmax_ppm.div_ceil(PPM_PER_PERCENT);
    if !wred.pmax_ppm.is_multiple_of(PPM_PER_PERCENT) {
        notes.push(format!("{row}.pmax is rounded up to {percent}%: SONiC has whole percentages"));
    }
    let mut threshold = |key: &str, bytes: u64| {
        if bytes == 0 {
            notes.push(format!("{row}.{key} is 1 byte: SONiC's 0 is the size of the buffer"));
        }
        bytes.max(1).to_string()
    };
    let (min, max) = (threshold("kmin", wred.kmin_bytes), threshold("kmax", wred.kmax_bytes));
    let ecn = if wred.ecn != 0 { "ecn_all" } else { "ecn_none" };
    json!({
        "ecn": ecn,
        "wred_green_enable": (wred.ecn != 0).to_string(),
        "green_min_threshold": min,
        "green_max_threshold": max,
        "green_drop_probability": percent.to_string(),
    })
}

/// The class that determines a queue's marking: the first in use, or the first mapped to it.
fn class_of_queue(config: &Config, queue: usize) -> Result<Option<usize>> {
    let classes = (0..CLASSES)
        .filter(|tc| config.tc_to_queue.get(*tc).is_some_and(|of_tc| usize::from(*of_tc) == queue));
    let classes: Vec<usize> = classes.collect();
    let is_used = |tc: &&usize| config.dscp_to_tc.iter().any(|of_dscp| usize::from(*of_dscp) == **tc);
    let used: Vec<usize> = classes.iter().filter(is_used).copied().collect();
    let Some(first) = used.first().or(classes.first()).copied() else { return Ok(None) };
    match used.iter().find(|tc| config.wred.get(**tc) != config.wred.get(first)) {
        Some(other) => Err(Error::Export(format!(
            "traffic classes {first} and {other} share queue {queue} and mark differently, but in SONiC WRED belongs to the \
             queue; make wred.{first} and wred.{other} equal, or set tc_to_queue.{other} to another queue"
        ))),
        None => Ok(Some(first)),
    }
}

/// Shortest time of a watchdog (sonic-pfcwd.yang).
const MIN_WATCHDOG_NS: u64 = 100_000_000;

/// Adds PFC to the port's row of `PORT_QOS_MAP` and as separate tables; nothing if PFC is unused.
fn add_pfc(config: &Config, port: &str, qos: &mut Fields, tables: &mut Fields, notes: &mut Vec<String>) {
    let enabled = config.pfc.iter().enumerate().filter(|(_, pfc)| pfc.rx != 0);
    let enabled = enabled.map(|(priority, _)| priority.to_string()).collect::<Vec<_>>().join(",");
    let watchdog = config.watchdog();
    buffers(config, port, tables, notes);
    let is_default =
        |(of, default): (&PfcConfig, &PfcConfig)| (of.rx, of.queue) == (default.rx, default.queue);
    if watchdog.is_none() && config.pfc.iter().zip(&Config::DEFAULT.pfc).all(is_default) {
        return;
    }
    if let Some(watchdog) = watchdog {
        qos.insert("pfcwd_sw_enable".into(), enabled.clone().into());
        let mut ms = |key: &str, ns: u64| {
            if ns < MIN_WATCHDOG_NS {
                notes.push(format!("{key} is raised to 100 ms, SONiC's minimum"));
            } else if !ns.is_multiple_of(1_000_000) {
                notes.push(format!("{key} is rounded up to whole milliseconds"));
            }
            ns.max(MIN_WATCHDOG_NS).div_ceil(1_000_000).to_string()
        };
        let action = if config.scalars.pfc_wd_action == PFC_WD_DROP { "drop" } else { "forward" };
        let row = json!({
            "action": action,
            "detection_time": ms("pfc_wd_detection_time", watchdog.detection_ns),
            "restoration_time": ms("pfc_wd_restoration_time", watchdog.restoration_ns),
        });
        tables.insert("PFC_WD".into(), json!({ port: row }));
    }
    qos.insert("pfc_enable".into(), enabled.into());
    qos.insert("pfc_to_queue_map".into(), MAP.into());
    let queues = config.pfc.iter().enumerate();
    let queues: Fields =
        queues.map(|(priority, pfc)| (priority.to_string(), pfc.queue.to_string().into())).collect();
    tables.insert("MAP_PFC_PRIORITY_TO_QUEUE".into(), json!({ MAP: queues }));
}

/// Adds the buffers of the priorities for which neighbours are paused.
fn buffers(config: &Config, port: &str, tables: &mut Fields, notes: &mut Vec<String>) {
    let (mut groups, mut profiles) = (Fields::new(), Fields::new());
    for (priority, of) in config.pfc.iter().enumerate() {
        let default = PfcConfig { rx: of.rx, queue: of.queue, ..PfcConfig::DEFAULT };
        if of.tx == 0 {
            if *of != default {
                notes.push(format!("thresholds of pfc.{priority} are omitted while its tx is off"));
            }
            continue;
        }
        let name = format!("dcqcn_pfc{priority}");
        groups.insert(format!("{port}|{priority}"), json!({ "profile": name }));
        let profile = json!({
            "pool": "ingress_lossless_pool",
            "size": "0",
            "static_th": of.xoff.to_string(),
            "xoff": of.headroom.to_string(),
            "xon": of.xon.to_string(),
        });
        profiles.insert(name, profile);
    }
    if !groups.is_empty() {
        tables.insert("BUFFER_PG".into(), groups.into());
        tables.insert("BUFFER_PROFILE".into(), profiles.into());
    }
}
