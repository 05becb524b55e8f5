/// Why the data plane could not be told what the kernel knows.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not say.
    #[error(transparent)]
    Net(#[from] dcqcn_netlink::Error),
    /// The data plane's maps cannot be read or written.
    #[error(transparent)]
    Dataplane(#[from] dcqcn_loader::dataplane::Error),
}
