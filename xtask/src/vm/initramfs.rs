//! Boot before the guest's root file system: busybox, a script, and the modules for mounting it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::tree::Tree;

/// Modules that mount the root file system, with their dependencies.
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];
const INIT: &str = include_str!("init.sh");

/// Writes an initramfs for the kernel whose modules are in `modules`.
pub(super) fn build(modules: &Path, tree: &Tree, out: &Path) -> Result<()> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let mut archive = Cpio::default();
    for dir in ["bin", "dev", "proc", "sys", "modules", "lower", "upper", "root"] {
        archive.add(dir, 0o040_755, &[]);
    }
    archive.add("bin/busybox", 0o100_755, &read(&tree.join("usr/bin/busybox"))?);
    archive.add("init", 0o100_755, INIT.as_bytes());
    let dependencies =
        fs::read_to_string(modules.join("modules.dep")).context("depmod wrote no modules.dep")?;
    let builtin = fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
    for (number, path) in load_order(&dependencies, &builtin)?.into_iter().enumerate() {
        let path = modules.join(path);
        let module = if path.extension().is_some_and(|extension| extension == "xz") {
            let mut xz = tree.command("usr/bin/xz", "xz");
            let output = xz.arg("-dc").arg(&path).output().context("cannot start xz")?;
            ensure!(output.status.success(), "{} is damaged", path.display());
            output.stdout
        } else {
            read(&path)?
        };
        archive.add(&format!("modules/{number:02}.ko"), 0o100_644, &module);
    }
    fs::write(out, archive.finish()).with_context(|| format!("cannot write {}", out.display()))
}

/// Files of [`MODULES`] and their dependencies, in load order. `dependencies` is `modules.dep`, whose lines name a
/// module and all it needs, last needed first.
fn load_order<'a>(dependencies: &'a str, builtin: &str) -> Result<Vec<&'a str>> {
    let mut order = Vec::new();
    for module in MODULES {
        let line = dependencies.lines().find(|line| name(line) == module);
        let Some((path, needs)) = line.and_then(|line| line.split_once(':')) else {
            ensure!(
                builtin.lines().any(|path| name(path) == module),
                "the kernel's package lacks module `{module}`"
            );
            continue;
        };
        for path in needs.split_whitespace().rev().chain([path]) {
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    Ok(order)
}

/// The module of a path or a line of `modules.dep`.
fn name(line: &str) -> &str {
    let path = line.split(':').next().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split('.').next().unwrap_or_default()
}

/// An archive in the kernel's format (Documentation/driver-api/early-userspace/buffer-format.rst, "newc").
#[derive(Default)]
struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    fn add(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        // Inode, mode, uid, gid, links, time, size, device numbers, length of the path with its end, checksum.
        let fields =
            [self.entries, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, path.len() as u32 + 1, 0];
        self.bytes.extend(b"070701");
        self.bytes.extend(fields.iter().flat_map(|field| format!("{field:08X}").into_bytes()));
        self.bytes.extend(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_follow_dependencies() {
        let dependencies = "kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko\n\
                            kernel/net/9p/9pnet.ko:\nkernel/fs/netfs/netfs.ko:\n\
                            kernel/net/9p/9pnet_virtio.ko: kernel/drivers/virtio/virtio.ko kernel/net/9p/9pnet.ko\n\
                            kernel/drivers/virtio/virtio.ko:\nkernel/fs/overlayfs/overlay.ko.xz:\n";
        let order = load_order(dependencies, "kernel/drivers/virtio/virtio_pci.ko\n").unwrap();
        assert_eq!(
            order,
            [
                "kernel/net/9p/9pnet.ko",
                "kernel/drivers/virtio/virtio.ko",
                "kernel/net/9p/9pnet_virtio.ko",
                "kernel/fs/netfs/netfs.ko",
                "kernel/fs/9p/9p.ko",
                "kernel/fs/overlayfs/overlay.ko.xz"
            ]
        );
        let error = load_order(dependencies, "").unwrap_err().to_string();
        assert!(error.contains("`virtio_pci`"), "{error}");
    }

    #[test]
    fn archives_are_aligned_and_ended() {
        let mut archive = Cpio::default();
        archive.add("init", 0o100_755, b"hello");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"07070100000001000081ED"));
        // 110 bytes of header, the path and its end, padded to 116.
        assert_eq!(&bytes[116..121], b"hello");
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
