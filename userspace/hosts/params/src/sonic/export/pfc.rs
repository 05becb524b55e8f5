//! Export of a port's PFC to SONiC's tables.

use dcqcn_common::params::{Config, PFC_WD_DROP, PfcConfig};
use serde_json::{Map, Value, json};

use super::MAP;

/// Shortest time of a watchdog (sonic-pfcwd.yang).
const MIN_NS: u64 = 100_000_000;

/// Adds PFC to the port's row of `PORT_QOS_MAP` and as separate tables; nothing if PFC is unused.
pub(super) fn add(
    config: &Config,
    port: &str,
    qos: &mut Map<String, Value>,
    tables: &mut Map<String, Value>,
    notes: &mut Vec<String>,
) {
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
            if ns < MIN_NS {
                notes.push(format!("{key} is raised to 100 ms, SONiC's minimum"));
            } else if !ns.is_multiple_of(1_000_000) {
                notes.push(format!("{key} is rounded up to whole milliseconds"));
            }
            ns.max(MIN_NS).div_ceil(1_000_000).to_string()
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
    let queues: Map<String, Value> =
        queues.map(|(priority, pfc)| (priority.to_string(), pfc.queue.to_string().into())).collect();
    tables.insert("MAP_PFC_PRIORITY_TO_QUEUE".into(), json!({ MAP: queues }));
}

/// Adds the buffers of the priorities for which neighbours are paused.
fn buffers(config: &Config, port: &str, tables: &mut Map<String, Value>, notes: &mut Vec<String>) {
    let (mut groups, mut profiles) = (Map::new(), Map::new());
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
