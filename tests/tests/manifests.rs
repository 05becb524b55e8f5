//! Kubernetes' manifests checked against the API's schema and the commands' requirements, without a cluster.

use dcqcn_tests::manifests::{directory, documents, parsed};
use dcqcn_tests::prelude::*;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde::de::DeserializeOwned;

const FOLDERS: [&str; 3] = ["base", "fleet", "etcd"];

/// The API's parse of a manifest; it drops unknown fields, which are mistakes here.
fn strictly(manifest: &Value) -> std::result::Result<(), String> {
    match manifest["kind"].as_str().unwrap_or_default() {
        "DaemonSet" => typed::<DaemonSet>(manifest),
        "Deployment" => typed::<Deployment>(manifest),
        "ConfigMap" => typed::<ConfigMap>(manifest),
        "Pod" => typed::<Pod>(manifest),
        "StatefulSet" => typed::<StatefulSet>(manifest),
        "Service" => typed::<Service>(manifest),
        "Namespace" => typed::<Namespace>(manifest),
        "NetworkPolicy" => typed::<NetworkPolicy>(manifest),
        other => Err(format!("kind {other:?} is not covered by this test: add it")),
    }
}

fn typed<T: DeserializeOwned + Serialize>(manifest: &Value) -> std::result::Result<(), String> {
    let read: T = serde_json::from_value(manifest.clone()).map_err(|error| error.to_string())?;
    let back = serde_json::to_value(read).map_err(|error| error.to_string())?;
    match lost(manifest, &back) {
        Some(path) => Err(format!("{path} is unknown to the API")),
        None => Ok(()),
    }
}

/// The first field of `from` missing in `back`.
fn lost(from: &Value, back: &Value) -> Option<String> {
    match (from, back) {
        (Value::Object(from), Value::Object(back)) => {
            from.iter().find_map(|(key, value)| match back.get(key) {
                None => Some(key.clone()),
                Some(other) => lost(value, other).map(|path| format!("{key}.{path}")),
            })
        }
        (Value::Array(from), Value::Array(back)) if from.len() == back.len() => {
            let mut both = from.iter().zip(back).enumerate();
            both.find_map(|(at, (from, back))| lost(from, back).map(|path| format!("{at}.{path}")))
        }
        _ => (from != back).then(|| format!("(it is {from}, and {back} to the API)")),
    }
}

fn files() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for name in FOLDERS {
        for entry in fs::read_dir(directory().join(name))? {
            files.push(entry?.path());
        }
    }
    let is_manifest = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "yaml") && !path.ends_with("kustomization.yaml")
    };
    files.retain(is_manifest);
    Ok(files)
}

fn all() -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for path in files()? {
        all.extend(documents(&path)?);
    }
    Ok(all)
}

fn one(kind: &str, name: &str) -> Result<Value> {
    let matches_name = |one: &Value| one["kind"] == kind && one["metadata"]["name"] == name;
    all()?.into_iter().find(matches_name).with_context(|| format!("no {kind} {name}"))
}

#[test]
fn manifests_match_the_api() {
    let files = files().unwrap();
    assert!(files.len() >= 5, "{files:?}");
    for path in files {
        for manifest in documents(&path).unwrap() {
            let verdict = strictly(&manifest);
            assert_eq!(verdict, Ok(()), "{}", path.display());
        }
    }
}

#[test]
fn unknown_manifest_field_detected() {
    let pod = |daemon: &mut Value, key: &str, value: Value| daemon["spec"]["template"]["spec"][key] = value;
    let mut misspelt = one("DaemonSet", "dcqcn").unwrap();
    pod(&mut misspelt, "hostNetwrk", json!(true));
    assert!(strictly(&misspelt).unwrap_err().contains("spec.template.spec.hostNetwrk"));
    let mut wrong = one("DaemonSet", "dcqcn").unwrap();
    pod(&mut wrong, "hostNetwork", json!("yes"));
    assert!(strictly(&wrong).unwrap_err().contains("expected a boolean"));
    let mut mismatched = one("DaemonSet", "dcqcn").unwrap();
    mismatched["apiVersion"] = json!("apps/v1beta1");
    assert!(strictly(&mismatched).is_err());
    let mut deep = one("DaemonSet", "dcqcn").unwrap();
    deep["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"]["ad"] =
        json!(["BPF"]);
    assert!(strictly(&deep).unwrap_err().contains("capabilities.ad"));
}

#[test]
fn containers_have_least_privileges() {
    let unit = include_str!("../../dist/systemd/dcqcn.service");
    let of_unit = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let of_unit: Vec<&str> = of_unit.split(' ').map(|name| name.trim_start_matches("CAP_")).collect();
    let mut seen = 0;
    for manifest in all().unwrap() {
        let pod = &manifest["spec"]["template"]["spec"];
        let Some(containers) = pod["containers"].as_array() else { continue };
        let name = manifest["metadata"]["name"].as_str().unwrap();
        let is_daemon = name == "dcqcn";
        assert_eq!(pod["hostNetwork"] == true, is_daemon, "{name}");
        let is_unset = |key: &str| pod[key].is_null();
        assert!(["hostPID", "hostIPC", "initContainers"].into_iter().all(is_unset), "{name}");
        assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
        let filter = if is_daemon { "Unconfined" } else { "RuntimeDefault" };
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], filter, "{name}");
        let is_on_nodes = manifest["kind"] == "DaemonSet";
        let selinux = if is_on_nodes { json!({ "type": "spc_t" }) } else { Value::Null };
        assert_eq!(pod["securityContext"]["seLinuxOptions"], selinux, "{name}");
        assert_eq!(pod["tolerations"] == json!([{ "operator": "Exists" }]), is_on_nodes, "{name}");
        let labels = &manifest["spec"]["template"]["metadata"]["labels"];
        let selector = manifest["spec"]["selector"]["matchLabels"].as_object().unwrap();
        assert!(selector.iter().all(|(key, value)| labels[key] == *value), "{name}");
        for container in containers {
            let security = &container["securityContext"];
            assert_eq!(security["capabilities"]["drop"], json!(["ALL"]), "{name}");
            assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
            assert!(security["privileged"].is_null(), "{name}");
            let added = security["capabilities"]["add"].as_array();
            if is_daemon {
                assert_eq!(json!(added), json!(of_unit), "as under systemd");
            } else {
                assert_eq!((added, &security["runAsNonRoot"]), (None, &json!(true)), "{name}");
            }
            seen += 1;
        }
        let paths: Vec<&str> = pod["volumes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|volume| volume["hostPath"]["path"].as_str())
            .collect();
        match name {
            "dcqcn" => assert!(paths.iter().all(|path| path.contains("dcqcn")), "{paths:?}"),
            "dcqcn-fleet-agent" => assert_eq!(paths, ["/run/dcqcn-control"]),
            _ => assert!(paths.is_empty(), "{name}: {paths:?}"),
        }
    }
    assert_eq!(seen, 4);
}

/// The example of a pod with its own RDMA device: the daemon as on a node, but in the pod's network namespace.
#[test]
fn sidecar_equals_the_daemon() {
    let example = documents(&directory().join("sidecar/pod.yaml")).unwrap();
    for manifest in &example {
        assert_eq!(strictly(manifest), Ok(()), "{}", manifest["kind"]);
    }
    let of_kind = |kind: &str| example.iter().find(|one| one["kind"] == kind).unwrap();
    let (pod, config) = (&of_kind("Pod")["spec"], &of_kind("ConfigMap")["data"]["dcqcn.toml"]);
    for key in ["hostNetwork", "hostPID", "hostIPC", "securityContext"] {
        assert!(pod[key].is_null(), "{key}");
    }
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert!(pod["containers"][0]["volumeMounts"].is_null(), "of the application");

    let sidecar = &pod["initContainers"][0];
    let daemon_set = one("DaemonSet", "dcqcn").unwrap();
    let of_node = &daemon_set["spec"]["template"]["spec"];
    let daemon = &of_node["containers"][0];
    assert_eq!(sidecar["restartPolicy"], "Always");
    for key in ["image", "env"] {
        assert_eq!(sidecar[key], daemon[key], "{key}");
    }
    let args = sidecar["args"].as_array().unwrap();
    assert!(args.starts_with(daemon["args"].as_array().unwrap()), "{args:?}");
    let mut security = daemon["securityContext"].clone();
    for key in ["seccompProfile", "seLinuxOptions"] {
        security[key] = of_node["securityContext"][key].clone();
    }
    assert_eq!(sidecar["securityContext"], security);
    // One daemon has the socket and the persisted values.
    let is_shared = |volume: &&Value| !["control", "state"].iter().any(|name| volume["name"] == *name);
    let shared = |volumes: &Value| -> Vec<Value> {
        volumes.as_array().unwrap().iter().filter(is_shared).cloned().collect()
    };
    assert_eq!(sidecar["volumeMounts"], json!(shared(&daemon["volumeMounts"])));
    let of_node: Vec<Value> =
        shared(&of_node["volumes"]).into_iter().filter(|volume| volume["configMap"].is_null()).collect();
    assert_eq!(pod["volumes"].as_array().unwrap()[1..], of_node);
    assert_eq!(pod["volumes"][0]["configMap"]["name"], of_kind("ConfigMap")["metadata"]["name"]);

    let file: toml::Table = config.as_str().unwrap().parse().unwrap();
    assert!(!file.contains_key("control") && !file.contains_key("fleet"), "{file:?}");
    for (probe, path) in [("startupProbe", "/readyz"), ("livenessProbe", "/healthz")] {
        let get = &sidecar[probe]["httpGet"];
        // Of IPv4 too.
        let address = format!("[::]:{}", get["port"]);
        assert_eq!(
            (file["metrics"]["listen"].as_str(), get["path"].as_str()),
            (Some(address.as_str()), Some(path))
        );
    }
}

#[test]
fn probes_use_the_daemon_port() {
    let file: toml::Table = fs::read_to_string(directory().join("base/dcqcn.toml")).unwrap().parse().unwrap();
    let container = &one("DaemonSet", "dcqcn").unwrap()["spec"]["template"]["spec"]["containers"][0];
    for (probe, path) in [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")] {
        let get = &container[probe]["httpGet"];
        let address = format!("{}:{}", get["host"].as_str().unwrap(), get["port"]);
        let found = (Some(address.as_str()), get["path"].as_str());
        assert_eq!(found, (file["metrics"]["listen"].as_str(), Some(path)));
    }
    let socket = file["control"]["socket"].as_str().unwrap();
    let agent = &one("DaemonSet", "dcqcn-fleet-agent").unwrap()["spec"]["template"]["spec"]["containers"][0];
    assert!(agent["args"].as_array().unwrap().iter().any(|word| word == socket), "{agent}");
}

/// Documents of `helm template` or `kubectl kustomize` by kind and name, without the hash in the name of the
/// fleet's variables; `None` if the program is not installed.
fn rendered(command: &mut Command) -> Option<BTreeMap<String, Value>> {
    let output = command.output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let documents = parsed(&text).expect("YAML");
    let names = documents.iter().filter(|one| one["kind"] == "ConfigMap").map(|one| &one["metadata"]["name"]);
    let hashed = names.filter_map(Value::as_str).find(|name| *name != "dcqcn");
    let text = hashed.map_or_else(|| text.clone(), |name| text.replace(name, "variables"));
    let documents = parsed(&text).expect("YAML").into_iter().filter(|document| !document.is_null());
    let name = |one: &Value| format!("{} {}", one["kind"], one["metadata"]["name"]);
    Some(documents.map(|document| (name(&document), document)).collect())
}

fn helm(namespace: &str, values: &[&str]) -> Option<BTreeMap<String, Value>> {
    let mut command = Command::new("helm");
    command.args(["template", "dcqcn"]).arg(directory()).args(["--namespace", namespace]);
    rendered(command.args(values.iter().flat_map(|value| ["--set", value])))
}

#[test]
fn chart_equals_the_kustomization() {
    let test = test_name!();
    for (folder, values) in [("base", &[][..]), ("fleet", &["fleet.enabled=true"][..])] {
        let Some(chart) = helm("dcqcn", values) else {
            eprintln!("SKIPPED {test}: helm is not installed");
            return;
        };
        for (name, manifest) in &chart {
            assert_eq!(strictly(manifest), Ok(()), "{name}");
        }
        let kustomize = &mut Command::new("kubectl");
        let Some(mut own) = rendered(kustomize.arg("kustomize").arg(directory().join(folder))) else {
            eprintln!("SKIPPED {test}, in part: kubectl is not installed");
            continue;
        };
        // Helm creates it on request only.
        assert!(own.remove("\"Namespace\" \"dcqcn\"").is_some());
        assert_eq!(chart, own, "{folder}");
    }
}

#[test]
fn chart_applies_values() {
    let values = [
        "fleet.enabled=true",
        "fleet.env.DCQCN_ETCD=https://etcd:2379",
        "image.name=registry/dcqcn:1",
        "capabilities={NET_RAW}",
        "nodeSelector.roce=true",
    ];
    let Some(chart) = helm("roce", &values) else {
        eprintln!("SKIPPED chart_applies_values: helm is not installed");
        return;
    };
    for (name, manifest) in &chart {
        let namespace = &manifest["metadata"]["namespace"];
        assert_eq!((strictly(manifest), namespace), (Ok(()), &json!("roce")), "{name}");
        let pod = &manifest["spec"]["template"]["spec"];
        for container in pod["containers"].as_array().into_iter().flatten() {
            assert_eq!(container["image"], "registry/dcqcn:1", "{name}");
        }
    }
    let daemon = &chart["\"DaemonSet\" \"dcqcn\""]["spec"]["template"]["spec"];
    let granted = daemon["containers"][0]["securityContext"]["capabilities"]["add"].as_array().unwrap();
    assert_eq!(granted.last(), Some(&json!("NET_RAW")));
    let env = &chart["\"ConfigMap\" \"variables\""]["data"];
    assert_eq!(env["DCQCN_ETCD"], "https://etcd:2379");
}

/// The chart has the versions of the commands.
#[test]
fn chart_has_the_version() {
    let [chart] = <[Value; 1]>::try_from(documents(&directory().join("Chart.yaml")).unwrap()).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((&chart["version"], &chart["appVersion"]), (&json!(version), &json!(version)));
}

#[test]
fn kustomizations_build() {
    let test = test_name!();
    if Command::new("kubectl")
        .args(["kustomize", "--help"])
        .output()
        .is_ok_and(|output| output.status.success())
    {
        // As shown in docs/how-to/kubernetes.md.
        let page = include_str!("../../docs/how-to/kubernetes.md");
        let typed: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("kubectl kustomize ")).collect();
        let counts = [("base", 3), ("fleet", 6), ("etcd", 9)];
        assert_eq!(typed, counts.map(|(name, _)| format!("deploy/kubernetes/{name}")));
        for (name, count) in counts {
            let output =
                Command::new("kubectl").arg("kustomize").arg(directory().join(name)).output().unwrap();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).unwrap();
            let kinds = text.lines().filter(|line| line.starts_with("kind: ")).count();
            assert_eq!(kinds, count, "{name}: {text}");
            assert!(text.contains("dcqcn.toml: |") && !text.contains("namespace: default"), "{name}");
        }
    } else {
        eprintln!("SKIPPED {test}: there is no kubectl with kustomize");
    }
    // All referenced names exist.
    for name in FOLDERS {
        let folder = directory().join(name);
        let [kustomization] =
            <[Value; 1]>::try_from(documents(&folder.join("kustomization.yaml")).unwrap()).unwrap();
        for resource in kustomization["resources"].as_array().unwrap() {
            assert!(folder.join(resource.as_str().unwrap()).exists(), "{name}: {resource}");
        }
    }
}
