/// Error of copying the kernel's QPs to the data plane.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A netlink query failed.
    #[error(transparent)]
    Net(#[from] dcqcn_netlink::Error),
    /// The data plane's maps cannot be read or written.
    #[error(transparent)]
    Dataplane(#[from] dcqcn_loader::dataplane::Error),
}
