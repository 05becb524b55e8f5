//! Programs that are not Rust's, which building, the tests and the lab need.

use std::path::Path;

use crate::run;

/// Programs the tests and the lab run, and what makes code of etcd's messages; the Debian packages they are in.
const RUNTIME_TOOLS: [(&str, &str); 4] =
    [("ip", "iproute2"), ("tc", "iproute2"), ("ethtool", "ethtool"), (PROTOC, "protobuf-compiler")];
const PROTOC: &str = "protoc";
/// What etcd's messages import, below the `include` next to `protoc`'s directory. Debian only recommends its package.
const PROTOC_IMPORTS: (&str, &str) = ("include/google/protobuf/descriptor.proto", "libprotobuf-dev");

/// Packages of which something is missing.
pub(crate) fn missing() -> Vec<String> {
    let mut packages: Vec<String> = RUNTIME_TOOLS
        .iter()
        .filter(|(program, _)| run::find_program(program).is_none())
        .map(|&(_, package)| package.to_owned())
        .collect();
    packages.dedup();
    let (imports, package) = PROTOC_IMPORTS;
    let is_beside = |protoc: &Path| {
        // Debian's lies in /usr/bin, and may be found in /bin.
        let prefixes = [protoc.parent().and_then(Path::parent), Some(Path::new("/usr"))];
        prefixes.into_iter().flatten().any(|prefix| prefix.join(imports).is_file())
    };
    if !run::find_program(PROTOC).is_some_and(|protoc| is_beside(&protoc)) {
        packages.push(package.to_owned());
    }
    packages
}
