//! Driver in the guest of `cargo xtask vm`: scenarios with real soft-RoCE traffic.

use std::process::ExitCode;

use dcqcn_netlink::link::VethEnd;
use dcqcn_tests::prelude::*;
use dcqcn_tests::vm;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["list"] => {
            println!("{}", serde_json::to_string(vm::SCENARIOS).context("the list of scenarios")?);
            Ok(())
        }
        ["lab", hosts] => {
            let hosts: u8 = hosts.parse().context("lab NUMBER-OF-HOSTS")?;
            let lab = vm::lab::Lab::new(hosts, &vm::lab::Options::default())?;
            println!("{lab}");
            // The guest keeps running for the user at the console.
            std::mem::forget(lab);
            Ok(())
        }
        ["run", name, result] => vm::run(name, result.as_ref()),
        ["situations"] => {
            let list = vm::situations::SITUATIONS.iter();
            let list: Vec<_> = list.map(|situation| (situation.name, situation.about)).collect();
            println!("{}", serde_json::to_string(&list).context("the list of situations")?);
            Ok(())
        }
        ["netkit", near, far] => {
            let end = |name| VethEnd { name, netns: None, mac: None };
            Ok(Netlink::connect()?.add_netkit(&end(near), &end(far))?)
        }
        ["between", result, names @ ..] => vm::run_between(result.as_ref(), names),
        _ => bail!(
            "usage: vm-guest list | vm-guest lab HOSTS | vm-guest run SCENARIO RESULT.json | vm-guest situations | \
                  vm-guest between RESULT.json SITUATION.. | vm-guest netkit NAME NAME"
        ),
    }
}
