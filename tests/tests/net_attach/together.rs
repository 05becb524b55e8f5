//! Several interfaces attached at once, as the daemon does.

use anyhow::{Result, ensure};
use aya::maps::MapData;
use dcqcn_loader::attach::{Options, attach_all};
use dcqcn_loader::dataplane::SHARED;
use dcqcn_params::Role;
use dcqcn_tests::host::request;
use dcqcn_tests::lab::Lab;
use dcqcn_tests::skip::runnable;

/// Each looks for what another has made.
#[test]
fn what_is_attached_side_by_side_shares_its_maps() -> Result<()> {
    if !runnable("what_is_attached_side_by_side_shares_its_maps", &[])? {
        return Ok(());
    }
    let lab = Lab::new("together")?;
    let names: Vec<String> = (0..6).map(|number| format!("d{number}")).collect();
    for name in &names {
        lab.host.command(&format!("ip link add {name} type veth peer name far-{name}"))?;
        lab.host.command(&format!("ip link set {name} up"))?;
    }
    let request = |name: &String| request(name, Role::Host, &["link_rate=1gbit"]);
    let requests = names.iter().map(request).collect::<Result<Vec<_>>>()?;
    for _ in 0..3 {
        lab.host
            .run(|| attach_all(&requests, Options::default()))??
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        for shared in SHARED {
            let id = |name: &String| -> Result<u32> {
                Ok(MapData::from_pin(lab.host.pins(name)?.join(shared))?.info()?.id())
            };
            let ids = names.iter().map(id).collect::<Result<Vec<_>>>()?;
            ensure!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{shared}: {ids:?}");
        }
        lab.ok("detach --all")?;
    }
    Ok(())
}
