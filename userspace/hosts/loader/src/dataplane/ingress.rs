//! Bytes received for each queue, by ingress port.

use std::io;

use aya::maps::{MapError, PerCpuValues};
use aya::util::nr_cpus;
use dcqcn_common::layout::IngressBytes;

use super::error::at;
use super::{Error, Maps};

const NAME: &str = "INGRESS_BYTES";
/// Insert only (include/uapi/linux/bpf.h).
const BPF_NOEXIST: u64 = 1;

impl Maps {
    /// Starts counting an ingress port separately, by its index; 0 stands for all other ports.
    ///
    /// # Errors
    /// The map is full.
    pub(crate) fn count_separately(&mut self, ifindex: u32) -> Result<(), Error> {
        let failed = |source| Error::Map { name: NAME, source };
        let cpus = nr_cpus().map_err(|(_, source)| failed(MapError::IoError(source)))?;
        let zero = PerCpuValues::try_from(vec![IngressBytes::default(); cpus])
            .map_err(MapError::IoError)
            .map_err(failed)?;
        match self.ingress_bytes.get_mut()?.insert(ifindex, zero, BPF_NOEXIST) {
            // Already counted: its counters are preserved.
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(())
            }
            result => result.map_err(at(NAME)),
        }
    }

    /// Counts an ingress port among the others again. If it is counted separately later, it starts at zero.
    pub(crate) fn forget(&mut self, ifindex: u32) -> Result<(), Error> {
        match self.ingress_bytes.get_mut()?.remove(&ifindex) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(at(NAME)),
        }
    }

    /// Bytes received by an ingress port so far, by queue; `None` if it is not counted separately.
    pub(crate) fn ingress_bytes(&self, ifindex: u32) -> Result<Option<IngressBytes>, Error> {
        let mut sum = IngressBytes::default();
        match self.ingress_bytes.get()?.get(&ifindex, 0) {
            Ok(by_cpu) => {
                for of_cpu in by_cpu.iter() {
                    sum.iter_mut().zip(of_cpu).for_each(|(sum, bytes)| *sum += bytes);
                }
                Ok(Some(sum))
            }
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(Error::Map { name: NAME, source }),
        }
    }
}
