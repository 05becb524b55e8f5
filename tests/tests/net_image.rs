//! The OCI image, run by Debian's podman with the privileges and directories of the manifests.
//!
//! It runs on a network namespace like the node's: the daemon manages interfaces, its file changes as a
//! ConfigMap does, a fleet's rollout passes through it, and it takes over from a previous one.

use std::os::unix::fs::symlink;

use dcqcn_tests::fleet::unjudged_file;
use dcqcn_tests::manifests::{directory, documents};
use dcqcn_tests::prelude::*;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// An archive of the image; `cargo xtask test` makes it.
const IMAGE: &str = "DCQCN_IMAGE";
/// Options of `podman run` on a machine without cgroups of podman's own.
const LIMITS: [&str; 3] = ["--cgroups=disabled", "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"];

/// A machine that has podman, and directories as a node's.
struct Node {
    dir: TempDir,
    /// Prefix of podman's names in this test.
    prefix: String,
    image: String,
    started: Vec<String>,
}

impl Node {
    fn new(archive: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        for name in "run/dcqcn run/dcqcn-control sys/fs/bpf/dcqcn var/lib/dcqcn var/log/dcqcn config storage"
            .split(' ')
        {
            fs::create_dir_all(dir.path().join(name))?;
        }
        let bpf = dir.path().join("sys/fs/bpf/dcqcn");
        mount(Some("bpf"), &bpf, Some("bpf"), MsFlags::empty(), Some("mode=0700"))?;
        let prefix = format!("dcqcn-test-{}", std::process::id());
        let mut node = Self { dir, prefix, image: String::new(), started: Vec::new() };
        let loaded = node.podman(&["load", "--quiet", "--input", &archive.display().to_string()])?;
        let loaded = loaded.trim();
        node.image = loaded.rsplit_once(": ").map_or(loaded, |(_, name)| name).to_owned();
        Ok(node)
    }

    /// Runs podman in a uniform cgroup hierarchy, as crun requires, with this test's images and containers.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        let script = "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec podman \"$@\"";
        command.args(["--mount", "sh", "-c", script, "podman"]);
        let (root, run) = (self.dir.path().join("storage/root"), self.dir.path().join("storage/run"));
        command.arg("--root").arg(root).arg("--runroot").arg(run).args(["--storage-driver", "vfs"]);
        command.args(words);
        command
    }

    fn podman(&self, words: &[&str]) -> Result<String> {
        output_of(&mut self.command(words))
    }

    /// Writes the file as in a ConfigMap's volume: behind a link to a directory that each change replaces.
    fn configure(&self, version: u32, text: &str) -> Result<()> {
        let config = self.dir.path().join("config");
        let data = config.join(format!("..{version}"));
        fs::create_dir(&data)?;
        fs::write(data.join("dcqcn.toml"), text)?;
        let (link, next) = (config.join("..data"), config.join("..next"));
        symlink(format!("..{version}"), &next)?;
        fs::rename(&next, &link)?;
        if !config.join("dcqcn.toml").is_symlink() {
            symlink("..data/dcqcn.toml", config.join("dcqcn.toml"))?;
        }
        Ok(())
    }

    /// Starts the container of a manifest in a network namespace, as kubelet would: user, capabilities,
    /// directories, environment, arguments.
    fn start(&mut self, file: &str, network: &str, more: &BTreeMap<&str, String>) -> Result<String> {
        let [manifest] =
            <[Value; 1]>::try_from(documents(&directory().join(file))?).ok().context(file.to_owned())?;
        let pod = &manifest["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let text = |value: &Value| -> Result<String> {
            Ok(value.as_str().with_context(|| value.to_string())?.to_owned())
        };
        let name = format!("{}-{}", self.prefix, text(&container["name"])?);
        let security = &container["securityContext"];
        let mut words: Vec<String> =
            ["run", "--detach"].into_iter().chain(LIMITS).map(String::from).collect();
        words.push(format!("--name={name}"));
        words.push(format!("--network={network}"));
        words.push(format!("--user={}:{}", security["runAsUser"], security["runAsGroup"]));
        words.push("--security-opt=no-new-privileges".into());
        if pod["securityContext"]["seccompProfile"]["type"] == "Unconfined" {
            words.push("--security-opt=seccomp=unconfined".into());
        }
        ensure!(security["readOnlyRootFilesystem"] == true);
        // Kubernetes has no such directories in memory, so podman must not add them.
        words.extend(["--read-only", "--read-only-tmpfs=false"].map(String::from));
        let each = |value: &Value| value.as_array().cloned().unwrap_or_default();
        for right in each(&security["capabilities"]["drop"]) {
            words.push(format!("--cap-drop={}", text(&right)?));
        }
        for right in each(&security["capabilities"]["add"]) {
            words.push(format!("--cap-add={}", text(&right)?));
        }
        for group in each(&pod["securityContext"]["supplementalGroups"]) {
            words.push(format!("--group-add={group}"));
        }
        for variable in each(&container["env"]) {
            let key = text(&variable["name"])?;
            let value =
                variable["value"].as_str().map(str::to_owned).or_else(|| more.get(key.as_str()).cloned());
            words.push(format!("--env={key}={}", value.with_context(|| key.clone())?));
        }
        for (key, value) in more {
            words.push(format!("--env={key}={value}"));
        }
        for volume in each(&container["volumeMounts"]) {
            let source = each(&pod["volumes"])
                .into_iter()
                .find(|other| other["name"] == volume["name"])
                .context("no volume")?;
            let from = match (&source["configMap"], &source["hostPath"]["path"]) {
                (Value::Object(_), _) => self.dir.path().join("config"),
                (_, Value::String(path)) => self.dir.path().join(path.trim_start_matches('/')),
                // The optional secret, which does not exist.
                _ => continue,
            };
            let way = if volume["readOnly"] == true { "ro" } else { "rw" };
            words.push(format!("--volume={}:{}:{way}", from.display(), text(&volume["mountPath"])?));
        }
        if let Some(command) = container["command"][0].as_str() {
            words.push(format!("--entrypoint={command}"));
        }
        words.push(self.image.clone());
        for word in each(&container["args"]) {
            let mut word = text(&word)?;
            for (key, value) in more {
                word = word.replace(&format!("$({key})"), value);
            }
            words.push(word);
        }
        self.started.push(name.clone());
        self.podman(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(name)
    }

    fn inside(&self, name: &str, words: &[&str]) -> Result<String> {
        self.podman(&[&["exec", name], words].concat())
    }

    fn wait_until_ready(&self, name: &str, pair: &Pair) -> Result<()> {
        let ready = wait(|| match probe(pair, "/readyz") {
            Ok(status) if status == "200" => Ok(Ok(())),
            other => Ok(Err(format!("{other:?}"))),
        });
        ready.with_context(|| match self.command(&["logs", name]).output() {
            Ok(Output { stdout, stderr, .. }) => {
                String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
            }
            Err(error) => error.to_string(),
        })
    }

    /// Effective capabilities of a container's process, its user, and whether it has a seccomp filter.
    fn rights(&self, name: &str) -> Result<(u64, String, String)> {
        let pid = self.podman(&["inspect", "--format", "{{.State.Pid}}", name])?;
        let field = |key: &str| status_field(pid.trim(), key);
        let user = field("Uid:")?.split_whitespace().next().unwrap_or_default().to_owned();
        Ok((u64::from_str_radix(&field("CapBnd:")?, 16)?, user, field("Seccomp:")?))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for name in &self.started {
            // Already removed is fine.
            let _ = self.command(&["rm", "--force", "--time", "5", name]).output();
        }
        let _ = umount2(&self.dir.path().join("sys/fs/bpf/dcqcn"), MntFlags::MNT_DETACH);
    }
}

fn probe(pair: &Pair, path: &str) -> Result<String> {
    let answer = scrape(&pair.a, path)?;
    Ok(answer.split(' ').nth(1).unwrap_or_default().to_owned())
}

#[test]
fn image_serves_node_and_rollout() -> Result<()> {
    require!();
    require_installed!(Etcd);
    let archive = std::env::var_os(IMAGE).unwrap_or_default();
    require_that!(!archive.is_empty(), "there is no image: {IMAGE} does not name one");
    let pair = new_pair!();
    pair.a.command("ip link set lo up")?;
    let mut node = Node::new(Path::new(&archive))?;
    let tried = [&["run", "--rm", "--network=host"], &LIMITS[..], &[&node.image, "--version"]].concat();
    let tried = node.command(&tried).output()?;
    let why = String::from_utf8_lossy(&tried.stderr).trim().replace('\n', " ");
    require_that!(tried.status.success(), "podman runs no container here: {why}");
    // The file of the manifests, for this interface; veth reports no link rate.
    let own = fs::read_to_string(directory().join("base/dcqcn.toml"))?;
    let file = own.replace(
        "\"roce*\"",
        "\"a*\"\nflows = 1024\npacer = \"none\"\n[interface.parameters]\nlink_rate = \"1gbit\"",
    );
    ensure!(file != own);
    node.configure(1, &file)?;
    let network = format!("ns:/run/netns/{}", pair.a.netns.name());
    let dcqcn = node.start("base/daemonset.yaml", &network, &BTreeMap::new())?;
    node.wait_until_ready(&dcqcn, &pair)?;
    assert_eq!(probe(&pair, "/healthz")?, "200");
    // CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF, and no filter.
    assert_eq!(node.rights(&dcqcn)?, (1 << 12 | 1 << 38 | 1 << 39, "0".into(), "0".into()));
    let attached_at = |node: &Node| -> Result<Value> {
        let status: Value =
            serde_json::from_str(&node.inside(&dcqcn, &["/usr/bin/dcqcn", "--json", "status", "a0"])?)?;
        let one = &status["attachments"][0];
        let is_complete = one["problems"].as_array().is_some_and(Vec::is_empty);
        ensure!(one["state"] == "attached" && is_complete, "{status}");
        Ok(one["attached_at_ns"].clone())
    };
    let first = attached_at(&node)?;

    // The ConfigMap changes: the daemon reloads it without a container restart.
    node.configure(2, &file.replace("1gbit\"", "2gbit\"\nrpg_ai_rate = \"7mbit\""))?;
    let get = |node: &Node, key: &str| node.inside(&dcqcn, &["/usr/bin/dcqcn", "get", "a0", key]);
    wait_value(
        || Ok(get(&node, "rpg_ai_rate")),
        |text| text.as_ref().is_ok_and(|text| text.contains("7mbit")),
    )
    .map(drop)?;

    // A rollout by the agent's container, which has no privileges.
    let etcd = Etcd::start(1, &[])?;
    let more = BTreeMap::from([("NODE_NAME", "node1".to_owned()), ("DCQCN_ETCD", etcd.endpoints())]);
    let agent = node.start("fleet/agent.yaml", "host", &more)?;
    assert_eq!(node.rights(&agent)?, (0, "65532".into(), "2".into()));
    let run = |words: &[&str]| output_of(dcqcn_fleet(words)?.args(["--etcd", &etcd.endpoints()]));
    let status = || Ok(serde_json::from_str::<Value>(&run(&["--json", "status"])?)?);
    wait_value(status, |status| status["hosts"][0]["is_there"] == true)?;
    let path = node.dir.path().join("fleet.toml");
    fs::write(&path, unjudged_file("on = 'kubernetes'", "a*"))?;
    run(&["apply", &path.display().to_string(), "--wait"])?;
    let kmin = get(&node, "wred.3.kmin")?;
    assert!(kmin.contains("70KB"), "{kmin}");
    let audit = fs::read_to_string(node.dir.path().join("var/log/dcqcn/audit.jsonl"))?;
    assert!(audit.contains("fleet 1"), "{audit}");

    // The pod is replaced: the attachment stays, with the rolled-out parameters.
    node.podman(&["stop", "--time", "10", &dcqcn])?;
    node.podman(&["start", &dcqcn])?;
    node.wait_until_ready(&dcqcn, &pair)?;
    assert_eq!(attached_at(&node)?, first);
    assert!(get(&node, "wred.3.kmin")?.contains("70KB"));
    node.inside(&dcqcn, &["/usr/bin/dcqcn", "detach", "a0"]).map(drop)
}
