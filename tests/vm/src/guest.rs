//! A guest: its parts, and running a scenario in one.

use std::fs::File;

use super::bottleneck::Bottleneck;
use super::kernel::{self, Kernel};
use super::machine::{self, Accelerator, Machine, Qemu};
use super::network::Layout;
use super::requests::Requests;
use super::scenario::{self, Scenario};
use super::tree;
use super::{RESULTS, cache};
use crate::prelude::*;
use xtask::apt::Requirement;
use xtask::run::find_program;
use xtask::{build, dist, page};

/// First commands of every guest. Our own commands are on the share, which is not cached: reading them takes half a
/// second each time. The guest's modules are the running kernel's.
pub(super) const PREPARE: &str = "\
mkdir -p /usr/local/bin
cp /share/dcqcn /share/dcqcn-failpoints /share/vm-guest /usr/local/bin
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
export DCQCN_BIN=/usr/local/bin/dcqcn DCQCN_FAILPOINTS_BIN=/usr/local/bin/dcqcn-failpoints
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
modprobe configfs
mount -t configfs configfs /sys/kernel/config
ip link set lo up
hostname guest
cd /share
";
/// `b` ends QEMU immediately; no data needs to be written back.
pub(super) const END: &str = "sync\necho b > /proc/sysrq-trigger\nsleep 60\n";
/// With a separate terminal, for job control.
pub(super) const SHELL: &str = "TERM=linux busybox setsid busybox cttyhack bash\n";

/// Start-up of a guest with systemd.
const SYSTEMD: &str = include_str!("systemd.sh");

const RESULT: &str = "result.json";
/// Commands for the guests that do not run the driver, in the shared directory.
const PEER: &str = "peer";

/// Time limit from start to the first line of the driver, emulated, on a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
const SITUATION_TIMEOUT: Duration = Duration::from_secs(600);

/// Requirements of guests with any kernel.
pub(super) struct Guest {
    /// Commit, command and date.
    made: String,
    workspace: Workspace,
    /// Directory of etcd, if present.
    programs: PathBuf,
    pub(super) cache: PathBuf,
    pub(super) share: PathBuf,
    parts: Parts,
}

pub(super) struct Parts {
    /// Lock: the cache and the shared directory are for one run at a time.
    _lock: File,
    tree: Tree,
}

impl Parts {
    /// Gets the parts that are missing in the cache, for guests with the kernel `series`.
    pub(super) fn ensure(workspace: &Workspace, arch: Arch, series: Option<Series>) -> Result<Self> {
        let machine = std::env::consts::ARCH;
        ensure!(machine == "x86_64", "QEMU and most guests need an x86_64 machine, and this is {machine}");
        let cache = cache(workspace);
        fs::create_dir_all(cache.join("share"))?;
        let lock = File::create(cache.join("lock")).context("cannot create the guest's lock")?;
        if lock.try_lock().is_err() {
            header("another `cargo xtask vm` is using the guest's files; waiting for it");
            lock.lock().context("cannot lock the guest's files")?;
        }
        let cache = arch.directory(&cache);
        fs::create_dir_all(&cache)?;
        let needed_mb =
            Tree::needed_mb(&cache, arch) + series.map_or(0, |series| kernel::needed_mb(&cache, series));
        tree::require_room(&cache, needed_mb, "the guest")?;
        let (tree, fetched) = thread::scope(|scope| {
            let fetched = scope.spawn(|| series.map_or(Ok(()), |series| kernel::fetch(&cache, series, arch)));
            (Tree::ensure(&cache, arch), joined(fetched))
        });
        // An optional kernel is tried again, and skipped, when it is due.
        if series.is_some_and(Series::is_required) {
            fetched?;
        }
        Ok(Self { _lock: lock, tree: tree? })
    }
}

impl Guest {
    /// Prepares the guest while `build` runs, as the former waits for the network and the latter does not. `series` is
    /// the kernel to boot first; returns the result of `build`.
    pub(super) fn prepare<T>(
        workspace: &Workspace,
        arch: Arch,
        series: Option<Series>,
        build: impl FnOnce() -> Result<(PathBuf, T)>,
    ) -> Result<(Self, T)> {
        let (built, parts) = thread::scope(|scope| {
            let parts = scope.spawn(|| Parts::ensure(workspace, arch, series));
            (build(), joined(parts))
        });
        // A misspelt name is reported even without network.
        let ((driver, made), parts) = (built?, parts?);
        let (cache, tree) = (cache(workspace), &parts.tree);
        let share = cache.join("share");
        if arch == Arch::X86_64 {
            require_c_library(tree)?;
        }
        for name in [build::COMMAND.0, build::FAILPOINTS.0, build::GUEST.0] {
            fs::copy(driver.with_file_name(name), share.join(name))?;
        }
        dist::copy(&workspace.root().join("tests/vectors"), &share.join("vectors"))?;
        let from = page::origin(workspace, "cargo xtask vm")?;
        let (workspace, programs) = (workspace.clone(), apt::unpacked_tools(workspace));
        Ok((Self { made: from, workspace, programs, cache, share, parts }, made))
    }

    /// Puts etcd and the packages of `cargo xtask deb` on the share, the daemon's also as an earlier version.
    fn package(&self) -> Result<()> {
        let out = self.cache.join("deb");
        let current = env!("CARGO_PKG_VERSION");
        let package = |binary: &Path, name: &str, version: &str| {
            let generated = out.join("generated");
            dist::generate(&self.workspace, binary, &generated.join(name))?;
            let binaries = binary.parent().context("a binary without a directory")?;
            dist::package(&self.workspace, name, binaries, &generated, &out, ("deb", version, "amd64"))
        };
        let dcqcn = self.share.join(build::COMMAND.0);
        for (name, version) in [("dcqcn-before.deb", "0.0.1"), ("dcqcn.deb", current)] {
            let package = package(&dcqcn, build::COMMAND.0, version)?;
            fs::copy(&package, self.share.join(name))?;
        }
        let fleet = package(&self.workspace.binary_of("release", build::FLEET.0), build::FLEET.0, current)?;
        for (from, to) in [(fleet, "dcqcn-fleet.deb"), (self.programs.join("etcd"), "etcd")] {
            let from = if from.exists() { from } else { find_program(to).unwrap_or(from) };
            fs::copy(&from, self.share.join(to))?;
        }
        Ok(())
    }

    pub(super) fn boot(&self, series: Series) -> Result<Booted<'_>> {
        let tree = &self.parts.tree;
        let kernel = Kernel::ensure(&tree.arch.directory(&self.cache), series, tree)?;
        let (accelerator, why) = machine::accelerator(tree, &kernel)?;
        header(format_args!("Linux {} under QEMU, {accelerator:?}: {why}", kernel.release()));
        Ok(Booted { guest: self, series, kernel, accelerator })
    }
}

/// Fails if the guest cannot run what this machine builds.
fn require_c_library(tree: &Tree) -> Result<()> {
    let (host, guest) = (tree::host_c_library()?, tree.c_library()?);
    ensure!(
        host <= guest,
        "this machine's C library is {}.{}, the guest's {}.{} (Debian 12): what is built here does not run there; \
         build on Debian 12",
        host.0,
        host.1,
        guest.0,
        guest.1
    );
    Ok(())
}

/// Builds further programs for guests with systemd, and gets etcd.
pub(super) fn build_fleet(workspace: &Workspace) -> Result<()> {
    build::release(workspace, &[build::FLEET])?;
    apt::for_tests(workspace, Requirement::Etcd);
    Ok(())
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked; its message is above")))
}

/// Start-up of each of two guests, with arguments of the driver.
fn two_guests(arguments: &str) -> String {
    format!("{PREPARE}vm-guest {arguments}\n{END}")
}

/// A guest with its kernel.
pub(super) struct Booted<'a> {
    guest: &'a Guest,
    pub(super) series: Series,
    kernel: Kernel,
    accelerator: Accelerator,
}

impl Booted<'_> {
    pub(super) fn machine(&self) -> Machine<'_> {
        let Guest { parts: Parts { tree, .. }, share, .. } = self.guest;
        Machine { tree, kernel: &self.kernel, accelerator: self.accelerator, share, port: None }
    }

    /// Runs a scenario in two guests with a NIC of a model each; the second has the kernel of `peer`.
    pub(super) fn run_two(&self, scenario: &Scenario, nic: Nic, peer: &Self) -> Result<Finished> {
        let title = format!("{}-{}", scenario.name, nic.name());
        self.exchange()?;
        let network = Network::new(nic, Layout::Single)?;
        machine::write_start(&self.guest.share, &two_guests(&format!("run {} {RESULT}", scenario.name)))?;
        let _second = self.second(&network, peer)?;
        let machine = Machine { port: Some(&network.ports[0]), ..self.machine() };
        self.watched(scenario.limit(), &title, &machine)
    }

    /// Runs situations in two guests with a bottleneck between them; the second has the kernel of `peer`. If
    /// `has_middle`, a situation may request a third guest, with the kernel of the first one.
    pub(super) fn run_situations(
        &self,
        title: &str,
        situations: &[String],
        nic: Nic,
        peer: &Self,
        has_middle: bool,
    ) -> Result<Finished> {
        let dir = self.exchange()?;
        let network = Network::new(nic, Layout::Matrix)?;
        let bottleneck = Bottleneck::new(&self.guest.workspace, &network)?;
        let start = two_guests(&format!("between {RESULT} {}", situations.join(" ")));
        machine::write_start(&self.guest.share, &start)?;
        let second = self.second(&network, peer)?;
        let tree = &self.guest.parts.tree;
        let middle = has_middle.then(|| Machine { port: Some(&network.ports[2]), ..self.machine() });
        let requests =
            Requests { network: &network, bottleneck: &bottleneck, tree, dir, second: second.pid(), middle };
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| requests.serve(&stop));
            let machine = Machine { port: Some(&network.ports[0]), ..self.machine() };
            let limit = SITUATION_TIMEOUT * u32::try_from(situations.len()).unwrap_or(u32::MAX);
            let finished = self.watched(limit, title, &machine);
            stop.store(true, Ordering::Relaxed);
            finished
        })
    }

    /// The directory in which guests exchange commands, without those of an earlier run.
    fn exchange(&self) -> Result<PathBuf> {
        let dir = self.guest.share.join(PEER);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        Ok(dir)
    }

    fn second(&self, network: &Network, peer: &Self) -> Result<Qemu> {
        Machine { port: Some(&network.ports[1]), ..peer.machine() }.start_printed()
    }

    pub(super) fn run(&self, scenario: &Scenario) -> Result<Finished> {
        let name = &scenario.name;
        let start = if scenario.with_systemd {
            self.guest.package()?;
            SYSTEMD.replace("SCENARIO", name)
        } else {
            format!("{PREPARE}vm-guest run {name} result.json\n{END}")
        };
        machine::write_start(&self.guest.share, &start)?;
        let arch = self.guest.parts.tree.arch;
        let title = if arch == Arch::X86_64 { name.clone() } else { format!("{name}-{}", arch.name()) };
        self.watched(scenario.limit(), &title, &self.machine())
    }

    /// Runs a guest with its script, and stores its results under a title.
    fn watched(&self, limit: Duration, title: &str, machine: &Machine<'_>) -> Result<Finished> {
        let result = self.guest.share.join(RESULT);
        if result.exists() {
            fs::remove_file(&result)?;
        }
        header(format_args!("{title} on Linux {}", self.kernel.release()));
        let started = Instant::now();
        let verdict = machine.run(BOOT_TIMEOUT + limit, |line| {
            println!("{:6.1} {line}", started.elapsed().as_secs_f64());
        })?;
        let seconds = started.elapsed().as_secs_f64();
        let outcome = scenario::outcome(&result)?;
        if let Err(error) = &verdict {
            println!("FAILED {title} on Linux {}: {error}", self.kernel.release());
        }
        let made = self.guest.made.clone();
        let finished =
            Finished { scenario: title.to_owned(), series: self.series, seconds, outcome, verdict, made };
        self.store(&finished)?;
        Ok(finished)
    }

    pub(super) fn store(&self, finished: &Finished) -> Result<()> {
        let path = self.result(&finished.scenario);
        fs::create_dir_all(self.guest.cache.join(RESULTS))?;
        let bytes = serde_json::to_vec(finished)?;
        Ok(fs::write(&path, bytes)?)
    }

    /// The result stored under a title, if any.
    pub(super) fn stored(&self, title: &str) -> Result<Option<Finished>> {
        let path = self.result(title);
        if !path.exists() {
            return Ok(None);
        }
        let finished = serde_json::from_slice(&fs::read(&path)?);
        finished.map(Some).with_context(|| path.display().to_string())
    }

    fn result(&self, title: &str) -> PathBuf {
        self.guest.cache.join(RESULTS).join(format!("{}-{title}.json", self.series))
    }
}
