//! Programs outside Rust's toolchain for the build, the tests and the lab.

use std::path::Path;

use crate::run;

/// Programs of the tests and the lab, and the compiler of etcd's messages, with their Debian packages.
const RUNTIME_TOOLS: [(&str, &str); 4] =
    [("ip", "iproute2"), ("tc", "iproute2"), ("ethtool", "ethtool"), (PROTOC, "protobuf-compiler")];
const PROTOC: &str = "protoc";
/// Imports of etcd's messages, below the `include` next to `protoc`'s directory. Debian only recommends their package.
const PROTOC_IMPORTS: (&str, &str) = ("include/google/protobuf/descriptor.proto", "libprotobuf-dev");

/// Packages of missing programs.
pub(crate) fn missing() -> Vec<String> {
    let mut packages: Vec<String> = RUNTIME_TOOLS
        .iter()
        .filter(|(program, _)| run::find_program(program).is_none())
        .map(|&(_, package)| package.to_owned())
        .collect();
    packages.dedup();
    let (imports, package) = PROTOC_IMPORTS;
    let is_beside = |protoc: &Path| {
        // Debian's is in /usr/bin, which may be found as /bin.
        let prefixes = [protoc.parent().and_then(Path::parent), Some(Path::new("/usr"))];
        prefixes.into_iter().flatten().any(|prefix| prefix.join(imports).is_file())
    };
    if !run::find_program(PROTOC).is_some_and(|protoc| is_beside(&protoc)) {
        packages.push(package.to_owned());
    }
    packages
}
