/// Error of copying the kernel's QPs to the data plane.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants and their fields")]
pub enum Error {
    #[error(transparent)]
    Net(#[from] dcqcn_netlink::Error),
    #[error(transparent)]
    Dataplane(#[from] dcqcn_loader::dataplane::Error),
}
