//! What came into the queues, by ingress port.

use std::io;

use aya::maps::{MapError, PerCpuValues};
use aya::util::nr_cpus;
use dcqcn_common::layout::IngressBytes;

use super::maps::at;
use super::{Error, Maps};

const NAME: &str = "INGRESS_BYTES";
/// Only where there is none (include/uapi/linux/bpf.h).
const BPF_NOEXIST: u64 = 1;

impl Maps {
    /// Tells an ingress port apart from now on, by its index; 0 stands for all others.
    ///
    /// # Errors
    /// There are too many, or what the kernel says.
    pub(crate) fn tell_apart(&mut self, ifindex: u32) -> Result<(), Error> {
        let failed = |source| Error::Map { name: NAME, source };
        let cpus = nr_cpus().map_err(|(_, source)| failed(MapError::IoError(source)))?;
        let zero = PerCpuValues::try_from(vec![IngressBytes::default(); cpus])
            .map_err(MapError::IoError)
            .map_err(failed)?;
        match self.came.insert(ifindex, zero, BPF_NOEXIST) {
            // It keeps its count.
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(())
            }
            result => result.map_err(at(NAME)),
        }
    }

    /// Counts an ingress port among the others again; should it be distinguished once more it begins at zero.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn forget(&mut self, ifindex: u32) -> Result<(), Error> {
        match self.came.remove(&ifindex) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(at(NAME)),
        }
    }

    /// What came by an ingress port so far, by queue, bytes; `None` if it is not distinguished.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn ingress_bytes(&self, ifindex: u32) -> Result<Option<IngressBytes>, Error> {
        let mut sum = IngressBytes::default();
        match self.came.get(&ifindex, 0) {
            Ok(by_cpu) => {
                for came in by_cpu.iter() {
                    sum.iter_mut().zip(came).for_each(|(sum, bytes)| *sum += bytes);
                }
                Ok(Some(sum))
            }
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(Error::Map { name: NAME, source }),
        }
    }
}
