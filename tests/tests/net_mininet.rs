//! The networks of `p4/mininet`: validated everywhere, run if BMv2 is installed.

use dcqcn_netlink::netns::Temporary;
use dcqcn_tests::command::lab_binary;
use dcqcn_tests::prelude::*;

/// Debian's Python, for which mininet is installed.
const PYTHON: &str = "/usr/bin/python3";

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../p4/mininet")
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// All networks' switches have configurations that `dcqcn-lab p4` accepts.
#[test]
fn switch_configurations_valid() -> Result<()> {
    require_that!(succeeds(PYTHON, &["--version"]), "there is no {PYTHON}");
    let directory = tempfile::tempdir()?;
    let program = "\
import sys, topology
for name, make in topology.NETWORKS.items():
    network = make()
    for switch in network.switches:
        for rp in (False, True):
            with open(f'{sys.argv[1]}/{name}-{switch}-{rp}.toml', 'w') as file:
                file.write(network.configuration(switch, rp))
";
    let mut python = Command::new(PYTHON);
    python.args(["-B", "-c", program]).arg(directory.path());
    output_of(python.env("PYTHONPATH", scripts()))?;
    let mut checked = 0;
    for file in fs::read_dir(directory.path())? {
        output_of(dcqcn_lab("p4 commands --config")?.arg(file?.path()))?;
        checked += 1;
    }
    // One switch, two, and two leaves and two spines; each with its reaction points in the hosts and in the switch.
    ensure!(checked == 2 * (1 + 2 + 4), "{checked} configurations");
    Ok(())
}

/// The commands in the scripts exist; BMv2 itself is not needed.
#[test]
fn script_commands_exist() -> Result<()> {
    require_that!(succeeds(PYTHON, &["--version"]), "there is no {PYTHON}");
    let program = "\
import sys, topology
commands = topology.Commands(*sys.argv[1:])
for words in (commands.attach('a0'), commands.flows('a0'), commands.detach(), commands.program(),
              commands.push('switch.toml'), commands.set(['wred.3.kmax=60KB']), commands.read()):
    print(*words)
";
    let mut python = Command::new(PYTHON);
    python.args(["-B", "-c", program]).args([binary()?, lab_binary()?]);
    let commands = output_of(python.env("PYTHONPATH", scripts()))?;
    ensure!(commands.lines().count() == 7, "{commands}");
    for line in commands.lines() {
        // Followed by `--help`, the command only checks the words before it.
        output_of(words(line)?.arg("--help"))?;
    }
    Ok(())
}

/// Runs a script until packets were marked; it ends with an error unless every host reaches every other.
fn run(script: &str, arguments: &str) -> Result<()> {
    // In a separate namespace mininet cannot change the machine's limits (`mininet.util.fixLimits`).
    let netns = Temporary::create(&format!("dcqcn-test-{}-mininet", std::process::id()))?;
    let plot = tempfile::NamedTempFile::new()?;
    while_busy(3, || {
        let mut command = Command::new(PYTHON);
        command.arg("-B").arg(scripts().join(script)).args(arguments.split_whitespace());
        command.args(["--duration", "3s", "--dcqcn"]).arg(binary()?).arg("--dcqcn-lab").arg(lab_binary()?);
        command.args(["--set", "wred.3.kmax=40KB", "--plot"]).arg(plot.path());
        let output = netns.run(|| command.output())??;
        let printed = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{script} {arguments}: {}: {complaint}\n{printed}", output.status);
        ensure!(Netns::list("dcqcn-net-")?.is_empty(), "namespaces are left over");
        let duration =
            printed.lines().find_map(|line| line.strip_prefix("h1: took ")).context(printed.to_string())?;
        let mut numbers = duration.split(' ').filter_map(|word| word.parse::<u32>().ok());
        let (packets, marked) = (numbers.next(), numbers.next());
        eprintln!("{script} {arguments}: {packets:?} packets accepted, {marked:?} marked");
        ensure!(packets > Some(0) && marked > Some(0), "{printed}");
        // Mininet's hosts print to a terminal: a line may end with CR LF.
        let is_charged = printed.lines().any(|line| line == "Reaction point: flows sent");
        ensure!(is_charged, "no flow is charged: {printed}");
        let picture = fs::read_to_string(plot.path())?;
        // Two charts with axes, the time of the change, and a line for the switch.
        ensure!(picture.matches("<path").count() == 6 && picture.contains(">wred.3.kmax=40KB<"), "{picture}");
        Ok(())
    })
}

#[test]
fn incast_in_plain_namespaces() -> Result<()> {
    require_bmv2!();
    for (program, argument) in [(PYTHON, "--version"), ("ip", "-Version"), ("ping", "-V")] {
        require_that!(succeeds(program, &[argument]), "there is no {program}");
    }
    run("with_netns.py", "incast --rp switch")?;
    run("with_netns.py", "incast --rp host")
}

#[test]
fn incast_in_mininet() -> Result<()> {
    require_bmv2!();
    require_that!(succeeds(PYTHON, &["-c", "import mininet.net"]), "no mininet (Debian: mininet)");
    run("with_mininet.py", "incast --rp switch")
}
